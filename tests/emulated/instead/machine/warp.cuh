// Stands in for cuda_impl/machine/warp.cuh where the CPU plays the GPU. Roundings and fragments are written from their
// definitions, PTX ISA 9.0 ("Matrix fragments for mma.m16n8k16", "cvt", "movmatrix").
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "machine.h"
#include "machine/intrinsics.cuh"
#include "machine/lanes.cuh"

namespace headroom::emulated {

/// Words of four 8x8 matrices of 16-bit values as lanes hold them: of matrix i lane 4g + t has columns 2t and 2t + 1 of
/// row g in words[i], turned rows 2t and 2t + 1 of column g.
struct Matrices {
  const void* row;  // that this lane names: lane % 8 of matrix lane / 8
  std::uint32_t words[4];
};
inline std::uint16_t* matrix_row(Matrices* const* lanes, int matrix, int row) {
  return static_cast<std::uint16_t*>(const_cast<void*>(lanes[8 * matrix + row]->row));
}
template <bool kTurned, bool kStores>
void move_matrices(const char* instruction, Matrices& mine) {
  if (reinterpret_cast<std::uintptr_t>(mine.row) % 16 != 0)
    fault(std::string(instruction) + " of a row that does not begin at 16 bytes");
  with_warp(instruction, mine, [](Matrices* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix)
      for (int lane = 0; lane < kWarp; ++lane)
        for (int of_two = 0; of_two < 2; ++of_two) {
          const int g = lane / 4, pair = 2 * (lane % 4) + of_two;
          std::uint16_t& element =
              kTurned ? matrix_row(lanes, matrix, pair)[g] : matrix_row(lanes, matrix, g)[pair];
          std::uint16_t* held = reinterpret_cast<std::uint16_t*>(&lanes[lane]->words[matrix]) + of_two;
          if (kStores)
            element = *held;
          else
            *held = element;
        }
  });
}

struct Product {
  std::uint32_t a[4], b[2];
  float c[4];
};
/// c [16, 8] += a [16, k] * b [k, 8]; k is 16 in 16 bits, else 8. A sum of exact products, rounded once; a tensor core rounds
/// more often.
template <int kDepth, class Value>
void multiply(const char* instruction, Product& mine, const Value& value) {
  with_warp(instruction, mine, [&](Product* const* lanes) {
    constexpr int kPerWord = kDepth / 8;
    float a[16][kDepth], b[kDepth][8];
    for (int lane = 0; lane < kWarp; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int word = 0; word < 4; ++word)
        for (int i = 0; i < kPerWord; ++i)
          a[g + 8 * (word % 2)][word / 2 * 4 * kPerWord + kPerWord * t + i] = value(lanes[lane]->a[word], i);
      for (int word = 0; word < 2; ++word)
        for (int i = 0; i < kPerWord; ++i)
          b[word * 4 * kPerWord + kPerWord * t + i][g] = value(lanes[lane]->b[word], i);
    }
    for (int lane = 0; lane < kWarp; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = lanes[lane]->c[i];
        for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
        lanes[lane]->c[i] = static_cast<float>(sum);
      }
  });
}
}  // namespace headroom::emulated

#define MACHINE_DEVICE inline

namespace headroom::machine {

MACHINE_DEVICE std::uint32_t transpose8x8(std::uint32_t word) {
  struct Words {
    std::uint16_t given[2], turned[2];
  } mine{{static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)}, {}};
  emulated::with_warp("movmatrix", mine, [](Words* const* lanes) {
    for (int row = 0; row < 8; ++row)
      for (int column = 0; column < 8; ++column)
        lanes[4 * column + row / 2]->turned[row % 2] = lanes[4 * row + column / 2]->given[column % 2];
  });
  return mine.turned[0] | static_cast<std::uint32_t>(mine.turned[1]) << 16;
}
MACHINE_DEVICE std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t order) {
  const std::uint64_t both = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t chosen = 0;
  for (int byte = 0; byte < 4; ++byte)
    chosen |= static_cast<std::uint32_t>(both >> 8 * (order >> 4 * byte & 7) & 0xff) << 8 * byte;
  return chosen;
}

MACHINE_DEVICE float bits_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
MACHINE_DEVICE std::uint32_t float_to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
MACHINE_DEVICE std::uint32_t pack_fp16(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
MACHINE_DEVICE std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
MACHINE_DEVICE float fp16_value(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
/// The NaN that a GPU's instructions make, whatever they were given. What is written as plain C++ keeps the CPU's.
inline constexpr std::uint32_t kNaN = 0x7fffffffu;
/// Ties to even; 13 bits are cut.
MACHINE_DEVICE float round_tf32(float value) {
  if (std::isnan(value)) return bits_to_float(kNaN);
  if (std::isinf(value)) return value;
  const std::uint32_t bits = float_to_bits(value);
  return bits_to_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}
MACHINE_DEVICE float relu(float value) {
  return std::isnan(value) ? bits_to_float(kNaN) : value > 0 ? value : 0.0f;
}

template <class Sums>
void multiply_into(Sums&& c, const emulated::Product& product) {
  for (int i = 0; i < 4; ++i) c[i] = product.c[i];
}
#define EMULATED_PRODUCT(name, depth, value)                                                     \
  template <class Sums>                                                                          \
  void name(Sums&& c, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,    \
            std::uint32_t b0, std::uint32_t b1) {                                                \
    emulated::Product mine{{a0, a1, a2, a3}, {b0, b1}, {c[0], c[1], c[2], c[3]}};                \
    emulated::multiply<depth>(#name, mine,                                                       \
                              [](std::uint32_t word, [[maybe_unused]] int i) { return value; }); \
    multiply_into(c, mine);                                                                      \
  }
EMULATED_PRODUCT(product_fp16, 16, fp16_value(word >> 16 * i & 0xffff))
EMULATED_PRODUCT(product_bf16, 16, bits_to_float((word >> 16 * i) << 16))
EMULATED_PRODUCT(product_tf32, 8, bits_to_float(word & ~0x1fffu))
#undef EMULATED_PRODUCT

}  // namespace headroom::machine
