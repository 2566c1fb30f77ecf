// Stands in for cuda_impl/machine/wgmma.cuh where the CPU plays the GPU: the same products, by the definitions of PTX ISA 9.0
// ("Asynchronous Warpgroup Level Matrix Instructions", matrix descriptors and swizzling). Each warp makes its own 16 of 64 rows,
// some time later: shared memory is read then, and the sums change then.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "machine/formats.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

enum class Factor { kPlain = 0, kTurned = 1 };

template <int kRowBytes>
struct PanelsOf {
  static_assert(kRowBytes == 128 || kRowBytes == 32);
  std::uint32_t low;
  PanelsOf operator+(int further) const { return {low + static_cast<std::uint32_t>(further)}; }
};
using Panels = PanelsOf<128>;
using NarrowPanel = PanelsOf<32>;
template <class Format>
constexpr bool kHasTf32Factors = requires { requires Format::kIsTf32; };

namespace internal {
/// Once for the warp.
template <class Work>
void of_warp(const char* instruction, const Work& work) {
  int nothing = 0;
  emulated::with_warp(instruction, nothing, [&](int* const*) { work(); });
}
}  // namespace internal

MACHINE_DEVICE void wgmma_fence() {}
MACHINE_DEVICE void wgmma_commit() {
  internal::of_warp("wgmma.commit_group", [] { emulated::commit_warp_work(); });
}
template <int kNewest>
MACHINE_DEVICE void wgmma_wait() {
  internal::of_warp("wgmma.wait_group", [] { emulated::wait_for_warp_work(kNewest); });
}
template <int kCount>
MACHINE_DEVICE void wgmma_sums_are_final(float (&)[kCount]) {}
template <int kCount>
MACHINE_DEVICE void wgmma_words_are_final(std::uint32_t (&)[kCount]) {}

namespace internal {

constexpr int kRowsOfWarp = 16;
/// Of a product, and bytes of a value.
template <class Format>
constexpr int kDepth = kHasTf32Factors<Format> ? 8 : 16;
template <class Format>
constexpr int kValueBytes = kHasTf32Factors<Format> ? 4 : 2;

/// A factor in the block's shared memory as its description says.
template <class Format, Factor kFactor, int kRowBytes>
class Described {
 public:
  explicit Described(PanelsOf<kRowBytes> panels)
      : shared_(emulated::shared_memory()),
        begin_((panels.low & 0x3fff) << 4),
        panel_stride_((panels.low >> 16 & 0x3fff) << 4) {}
  /// Element k of row (left factor) or column (right factor) i.
  float value(int i, int k) const {
    if constexpr (kHasTf32Factors<Format>) {
      std::uint32_t word;
      std::memcpy(&word, shared_ + place(i, k), sizeof word);
      return bits_to_float(word & ~0x1fffu);
    }
    std::uint16_t bits;
    std::memcpy(&bits, shared_ + place(i, k), sizeof bits);
    return Format::kIsBf16 ? bits_to_float(std::uint32_t{bits} << 16) : fp16_value(bits);
  }
  /// Faults if `count` rows or columns from `first` on may not be read.
  void require(int first, int count) const {
    const std::uint32_t own = emulated::shared_address(shared_);
    for (int i = first; i < first + count; ++i)
      for (int k = 0; k < kDepth<Format>; ++k)
        if ((kFactor == Factor::kPlain ? k : i) % (16 / kValueBytes<Format>) == 0)
          emulated::read_by_the_way(own + place(i, k), 16);
  }

 private:
  /// Rows of kRowBytes follow each other, whose 16-byte pieces are exchanged by the row's number; k runs along a row, or i does,
  /// and on in the same row of the next panel.
  std::uint32_t place(int i, int k) const {
    constexpr int kOfRow = kRowBytes / kValueBytes<Format>;
    constexpr std::uint32_t kExchanged = kRowBytes == 128 ? 7 : 1;
    const int row = kFactor == Factor::kPlain ? i : k, element = kFactor == Factor::kPlain ? k : i % kOfRow;
    const int panel = kFactor == Factor::kPlain ? 0 : i / kOfRow;
    const std::uint32_t linear = begin_ + static_cast<std::uint32_t>(panel) * panel_stride_ +
                                 static_cast<std::uint32_t>(row * kRowBytes + kValueBytes<Format> * element);
    return linear ^ (linear >> 7 & kExchanged) << 4;
  }
  const unsigned char* shared_;
  std::uint32_t begin_, panel_stride_;
};

template <int kCount>
struct Lanes {
  float* sums;
  const std::uint32_t* held;  // of a left factor in registers
};
using SumsOfLanes = std::array<float*, emulated::kWarp>;

/// sums [16, 2 * kCount] (+)= left * right, by left(row, k) and right(column, k). Rounded once; a tensor core rounds more often.
template <int kCount, int kDepth, class Left, class Right>
void multiply(const SumsOfLanes& sums, const Left& left, const Right& right, bool accumulates) {
  constexpr int kColumns = 2 * kCount;
  float b[kDepth][kColumns];
  for (int k = 0; k < kDepth; ++k)
    for (int column = 0; column < kColumns; ++column) b[k][column] = right(column, k);
  for (int row = 0; row < kRowsOfWarp; ++row) {
    double of_row[kColumns] = {};
    for (int k = 0; k < kDepth; ++k) {
      const double a = left(row, k);
      for (int column = 0; column < kColumns; ++column) of_row[column] += a * b[k][column];
    }
    for (int column = 0; column < kColumns; ++column) {
      const auto lane = static_cast<std::size_t>(row % 8 * 4 + column % 8 / 2);
      float& sum = sums[lane][column / 8 * 4 + row / 8 * 2 + column % 2];
      sum = static_cast<float>(of_row[column] + (accumulates ? static_cast<double>(sum) : 0.0));
    }
  }
}

/// Lanes meet; product(all lanes, first row of the warp) is called once and says what is to be done later.
template <int kCount, class Product>
void put_off(float (&sums)[kCount], const std::uint32_t* held, const Product& product) {
  Lanes<kCount> mine{sums, held};
  emulated::with_warp("wgmma", mine, [&](Lanes<kCount>* const* lanes) {
    SumsOfLanes all;
    for (std::size_t lane = 0; lane < all.size(); ++lane) all[lane] = lanes[lane]->sums;
    const int warp = static_cast<int>(emulated::place().thread) / emulated::kWarp % 4;
    emulated::warp_later(product(lanes, all, kRowsOfWarp * warp));
  });
}

}  // namespace internal

template <class Format, Factor kA, Factor kB, int kCount, int kRowBytesA, int kRowBytesB>
void wgmma_shared(float (&c)[kCount], PanelsOf<kRowBytesA> a_rows, PanelsOf<kRowBytesB> b_rows,
                  int accumulate) {
  using namespace internal;
  put_off(c, nullptr, [&](Lanes<kCount>* const*, const SumsOfLanes& sums, int first) {
    const Described<Format, kA, kRowBytesA> a(a_rows);
    const Described<Format, kB, kRowBytesB> b(b_rows);
    a.require(first, kRowsOfWarp);
    b.require(0, 2 * kCount);
    return [=] {
      multiply<kCount, kDepth<Format>>(
          sums, [&](int row, int k) { return a.value(first + row, k); },
          [&](int column, int k) { return b.value(column, k); }, accumulate != 0);
    };
  });
}

/// Of lane 4g + t of warp w rows 16w + g and 16w + g + 8, columns 2t, 2t + 1 and 8 more.
template <class Format, Factor kB, int kCount>
void wgmma_held(float (&c)[kCount], const std::uint32_t* a, Panels b_rows, int accumulate) {
  using namespace internal;
  put_off(c, a, [&](Lanes<kCount>* const* lanes, const SumsOfLanes& sums, int) {
    const Described<Format, kB, 128> b(b_rows);
    b.require(0, 2 * kCount);
    std::array<std::array<float, 16>, kRowsOfWarp> left;
    for (std::size_t row = 0; row < left.size(); ++row)
      for (std::size_t k = 0; k < left[row].size(); ++k) {
        const std::uint32_t pair = lanes[row % 8 * 4 + k % 8 / 2]->held[k / 8 * 2 + row / 8];
        const float2 both = Format::unpack(pair);
        left[row][k] = k % 2 == 0 ? both.x : both.y;
      }
    return [=] {
      multiply<kCount, kDepth<Format>>(
          sums,
          [&](int row, int k) { return left[static_cast<std::size_t>(row)][static_cast<std::size_t>(k)]; },
          [&](int column, int k) { return b.value(column, k); }, accumulate != 0);
    };
  });
}

}  // namespace headroom::machine
