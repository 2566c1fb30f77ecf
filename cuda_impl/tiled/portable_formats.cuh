// What the portable kernel's four precisions have of their own: how values are stored, and how a warp multiplies what lies in a stage of
// the ring.
//
// A stage has lines of a factor in pieces of 16 bytes. Plain, a line is 128 bytes along the inner index, of a row (or column) of the
// tile; turned, it is all rows of the tile at one inner index. Pieces are swapped within their lines, or lines set apart, so that whoever
// reads them together finds them in different banks: place_of_piece(), and PortableNumbers (plan.h).
//
// A warp owns `kWarpRows` by `kWarpColumns` of the tile's sums. It hands them on in bands of 16 of its rows: store_band().
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/formats.cuh"
#include "machine/fragments.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "tiled/plan.h"

namespace headroom::tiled {

/// How a tile's product is shared out among eight warps, as constants.
template <class Format, int kTileRows, int kTileColumns>
struct Split {
  static constexpr int kRows = kTileRows, kColumns = kTileColumns;
  static constexpr PortableSplit kSplit = portable_split(Format::kNumbers, kRows, kColumns);
  static constexpr int kGroups = kSplit.groups, kWarpRows = kSplit.warp_rows,
                       kWarpColumns = kSplit.warp_columns;
  static constexpr int kAcross = kColumns / kWarpColumns, kWarps = kRows / kWarpRows * kAcross;  // of a group
  static_assert(kWarps * kGroups == 8);

  static constexpr int kBands = kSplit.bands, kBandRows = kSplit.band_rows, kBandPitch = kSplit.band_pitch;
};

// ---- plain multiply-adds

/// A lane has four rows next to each other in every 32, four columns in every 16. Lanes stand 8 x 4 over them, and the bits of a lane's
/// number take turns: where a lane and the next one, or the one behind that, read the same place, a load of 8 or 16 bytes takes half
/// the time.
struct MultiplyAdds {
  static constexpr PortableNumbers kNumbers = portable_numbers(Precision::kFp32);
  static constexpr int kInnerOfStep = kNumbers.inner_of_step;

  template <bool kTurned, int kPieces>
  MACHINE_DEVICE static int place_of_piece(int line, int piece) {
    return kTurned ? piece : piece + line / 4;
  }
  MACHINE_DEVICE static int lane_row(int lane) { return (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4); }
  MACHINE_DEVICE static int lane_column(int lane) { return (lane >> 1 & 1) | (lane >> 2 & 2); }

  template <class Split>
  struct Sums {
    static constexpr int kRows = Split::kWarpRows / 8, kColumns = Split::kWarpColumns / 4;
    float of[kRows][kColumns], of_rows[kRows];

    MACHINE_DEVICE void clear() {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        of_rows[row] = 0;
#pragma unroll
        for (int column = 0; column < kColumns; ++column) of[row][column] = 0;
      }
    }

    /// Adds the product of this warp's group of the steps of a stage. `row`, `column`: of the tile, where the warp's part begins.
    ///
    /// A step is four inner indices, and four values of a factor are one load, a *piece*: of a row, or turned of four rows at one inner
    /// index. So 32 multiply-adds follow each piece of the rows. Pieces of the rows are asked for two ahead, those of the columns a
    /// whole step, one with each piece of the rows: behind the first of a stage no multiply-add waits for shared memory, and a load is
    /// never followed by many others.
    template <class Stage>
    MACHINE_DEVICE void multiply(const unsigned char* stage, int row, int column, int group, int lane) {
      constexpr int kGroups = Split::kGroups, kSteps = Stage::template kStepsOfGroup<kGroups>;
      using OfRows = Pieces<Stage::kRowsTurned, Split::kRows, 8>;
      using OfColumns = Pieces<Stage::kColumnsTurned, Split::kColumns, 4>;
      const std::uint32_t begin = machine::shared_address(stage),
                          rows = begin + OfRows::place(row, lane_row(lane), group),
                          columns =
                              begin + Stage::kRowsBytes + OfColumns::place(column, lane_column(lane), group);
      const auto offset = [&](int step, auto pieces, int piece) {
        constexpr int kCount = std::is_same_v<decltype(pieces), OfRows> ? kRows : kColumns;
        return Stage::slab(kGroups * step) +
               decltype(pieces)::template offset<kCount>(Stage::step(0, kGroups * step), piece);
      };
      constexpr int kAhead = 2;
      float4 a[kAhead + 1], b[2][kColumns];
      const auto load_rows = [&](int number) {
        if (number < kSteps * kRows)
          a[number % (kAhead + 1)] =
              machine::load_shared_floats(rows + offset(number / kRows, OfRows{}, number % kRows));
      };
      const auto load_columns = [&](int step, int piece) {
        b[step % 2][piece] = machine::load_shared_floats(columns + offset(step, OfColumns{}, piece));
      };
#pragma unroll
      for (int piece = 0; piece < kColumns; ++piece) load_columns(0, piece);
#pragma unroll
      for (int number = 0; number < kAhead; ++number) load_rows(number);
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int piece = 0; piece < kRows; ++piece) {
          load_rows(step * kRows + piece + kAhead);
          if (step + 1 < kSteps) {
#pragma unroll
            for (int i = piece * kColumns / kRows; i < (piece + 1) * kColumns / kRows; ++i)
              load_columns(step + 1, i);
          }
          add<Stage>(a[(step * kRows + piece) % (kAhead + 1)], piece, b[step % 2]);
        }
    }

    MACHINE_DEVICE void store_band(int band, float* staged /* [.][kBandPitch] */, int row_of_tile, int column,
                                   int lane) const {
      // 16 rows of the warp, two of each eighth lane.
      float* to = staged + (row_of_tile / Split::kWarpRows * 16 + lane_row(lane) * 2) * Split::kBandPitch +
                  column + lane_column(lane) * 4;
#pragma unroll
      for (int of_band = 0; of_band < Split::kBands; ++of_band)
        if (band == of_band)
#pragma unroll
          for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < kColumns; j += 4) {
              const float* from = &of[2 * of_band + i][j];
              *reinterpret_cast<float4*>(to + i * Split::kBandPitch + 4 * j) =
                  make_float4(from[0], from[1], from[2], from[3]);
            }
    }
    /// Calls work(row of the tile, sum) for the sums of rows, by one of the lanes that have them.
    template <class Work>
    MACHINE_DEVICE void for_row_sums(int row, int lane, const Work& work) const {
      if (lane_column(lane) != 0) return;
#pragma unroll
      for (int i = 0; i < kRows; ++i) work(row + lane_row(lane) * 4 + i % 4 + i / 4 * 32, of_rows[i]);
    }

   private:
    /// One of a step's pieces of the rows, with those of the columns.
    template <class Stage>
    MACHINE_DEVICE void add(const float4& a, int piece, const float4 (&b)[kColumns]) {
      const float of_a[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = Stage::kRowsTurned ? piece % (kRows / 4) * 4 + i : piece;
        const int k = Stage::kRowsTurned ? piece / (kRows / 4) : i;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const float4& four = Stage::kColumnsTurned ? b[k * (kColumns / 4) + j / 4] : b[j];
          const int which = Stage::kColumnsTurned ? j % 4 : k;
          const float value = which == 0 ? four.x : which == 1 ? four.y : which == 2 ? four.z : four.w;
          of[row][j] = fmaf(of_a[i], value, of[row][j]);
        }
        if constexpr (Stage::kSumsRows) of_rows[row] += of_a[i];
      }
    }
  };

  /// Where the pieces of a lane lie in a slab, `kLanes` lanes beside each other: place() is the lane's, offset() is known when the kernel
  /// is compiled. Plain: piece i is of row i. Turned: piece i is of inner index i / (values / 4) of the step.
  template <bool kTurned, int kTile, int kLanes>
  struct Pieces {
    MACHINE_DEVICE static std::uint32_t place(int first, int lane, int group) {
      const int line = first + 4 * lane;
      return kTurned ? (kInnerOfStep * group * kTile + line) * 4
                     : line * 128 + place_of_piece<false, 8>(line, group) * 16;
    }
    template <int kCount>
    MACHINE_DEVICE static constexpr int offset(int step, int piece) {
      if (kTurned) {
        const int k = piece / (kCount / 4), four = piece % (kCount / 4);
        return ((kInnerOfStep * step + k) * kTile + kLanes * 4 * four) * 4;
      }
      const int line = piece % 4 + kLanes * (piece - piece % 4);
      return line * 128 + line / 4 * 16 + step * 16;
    }
  };

  /// The row of the tile that is row `staged` of a band.
  template <class Split>
  MACHINE_DEVICE static int row_of_band(int band, int staged) {
    return staged / 16 * Split::kWarpRows + staged % 16 / 2 * 4 + staged % 2 + band % 2 * 2 + band / 2 * 32;
  }
};

// ---- the tensor cores, by mma.sync

/// `Kind` has product(), and kBytes of a value. With kRounds gradients lie in memory as they are, since a bias's gradient is their sum, and
/// are rounded on their way into a product; a product with turned columns is one whose rows are gradients.
template <class Kind>
struct TensorProducts {
  static constexpr PortableNumbers kNumbers =
      portable_numbers(Kind::kBytes == 4 ? Precision::kTf32 : Precision::kFp16);
  static constexpr int kInnerOfStep = kNumbers.inner_of_step, kApart = kNumbers.apart;

  template <bool kTurned, int kPieces>
  MACHINE_DEVICE static int place_of_piece(int line, int piece) {
    if constexpr (!kTurned)
      return piece ^ line % 8;
    else if constexpr (Kind::kBytes == 4)
      return piece;

    else
      return piece ^ (kPieces < 8 ? line / 2 % 4 : line % 8);
  }

  template <class Split>
  struct Sums {
    static constexpr int kRows = Split::kWarpRows / 16, kColumns = Split::kWarpColumns / 8;
    float of[kRows][kColumns][4], of_rows[kRows][4];

    MACHINE_DEVICE void clear() {
#pragma unroll
      for (int row = 0; row < kRows; ++row)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          of_rows[row][i] = 0;
#pragma unroll
          for (int column = 0; column < kColumns; ++column) of[row][column][i] = 0;
        }
    }

    template <class Stage>
    MACHINE_DEVICE void multiply(const unsigned char* stage, int row, int column, int group, int lane) {
#pragma unroll
      for (int step = 0; step < Stage::template kStepsOfGroup<Split::kGroups>; ++step) {
        const unsigned char* slab = stage + Stage::slab(Split::kGroups * step);
        multiply_step<Stage>(slab, slab + Stage::kRowsBytes, row, column, lane,
                             Stage::step(group, Split::kGroups * step));
      }
    }
    template <class Stage>
    MACHINE_DEVICE void multiply_step(const unsigned char* rows, const unsigned char* columns, int row,
                                      int column, int lane, int step) {
      std::uint32_t b[kColumns][2];
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {  // first all of eight columns, then of the next
        std::uint32_t words[4];
        load<Stage::kColumnsTurned, Split::kColumns, false>(columns, column + 8 * j, lane, step, words);
        b[j][0] = words[0], b[j][1] = words[1], b[j + 1][0] = words[2], b[j + 1][1] = words[3];
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        std::uint32_t a[4];
        load<Stage::kRowsTurned, Split::kRows, true>(rows, row + 16 * i, lane, step, a);
        if constexpr (Stage::kSumsRows && Kind::kRounds) {
          of_rows[i][0] += machine::bits_to_float(a[0]) + machine::bits_to_float(a[2]);
          of_rows[i][2] += machine::bits_to_float(a[1]) + machine::bits_to_float(a[3]);
        }
        if constexpr (Stage::kColumnsTurned && Kind::kRounds)
#pragma unroll
          for (std::uint32_t& word : a)
            word = machine::float_to_bits(machine::round_tf32(machine::bits_to_float(word)));
#pragma unroll
        for (int j = 0; j < kColumns; ++j) Kind::product(of[i][j], a[0], a[1], a[2], a[3], b[j][0], b[j][1]);
        if constexpr (Stage::kSumsRows && !Kind::kRounds)
          Kind::product(of_rows[i], a[0], a[1], a[2], a[3], Kind::kOnes, Kind::kOnes);
      }
    }

    MACHINE_DEVICE void store_band(int band, float* staged, int row_of_tile, int column, int lane) const {
      float* to = staged + (row_of_tile / Split::kWarpRows * 16 + lane / 4) * Split::kBandPitch + column +
                  lane % 4 * 2;
#pragma unroll
      for (int of_band = 0; of_band < Split::kBands; ++of_band)
        if (band == of_band)
#pragma unroll
          for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
              *reinterpret_cast<float2*>(to + 8 * half * Split::kBandPitch + 8 * j) =
                  make_float2(of[of_band][j][2 * half], of[of_band][j][2 * half + 1]);
    }
    template <class Work>
    MACHINE_DEVICE void for_row_sums(int row, int lane, const Work& work) const {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float sum = Kind::kRounds ? machine::quad_sum(of_rows[i][2 * half])
                                          : of_rows[i][2 * half];  // of every fourth inner index
          if (lane % 4 == 0) work(row + 16 * i + 8 * half + lane / 4, sum);
        }
    }

   private:
    /// 16 rows (or columns) of the tile from `first` on: words 0 and 2 of the first eight and the first half of the step's inner indices,
    /// and the second half; with kRowsFirst words 1 and 2 are the other way round.
    template <bool kTurned, int kTile, bool kRowsFirst>
    MACHINE_DEVICE static void load(const unsigned char* lines, int first, int lane, int step,
                                    std::uint32_t* words) {
      constexpr int kPieces = kTurned ? kTile * Kind::kBytes / 16 : 8;
      const int matrix = lane / 8;
      const int outer = (kRowsFirst ? matrix % 2 : matrix / 2),
                inner = (kRowsFirst ? matrix / 2 : matrix % 2);
      if constexpr (!kTurned) {
        const int line = first + 8 * outer + lane % 8;
        machine::load_matrices(lines + line * 128 + place_of_piece<false, 8>(lane, 2 * step + inner) * 16,
                               words);
      } else if constexpr (Kind::kBytes == 2) {
        const int line = kInnerOfStep * step + 8 * inner + lane % 8;
        machine::load_matrices_transposed(
            lines + (line * kPieces + place_of_piece<true, kPieces>(line, first / 8 + outer)) * 16, words);
      } else {
        constexpr int kLine = 4 * kTile + kApart;
        const unsigned char* of_lane =
            lines + (kInnerOfStep * step + lane % 4) * kLine + (first + lane / 4) * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          words[i] = *reinterpret_cast<const std::uint32_t*>(
              of_lane + 4 * kLine * (kRowsFirst ? i / 2 : i % 2) + 32 * (kRowsFirst ? i % 2 : i / 2));
      }
    }
  };

  template <class Split>
  MACHINE_DEVICE static int row_of_band(int band, int staged) {
    return staged / 16 * Split::kWarpRows + 16 * band + staged % 16;
  }
};

struct Tf32Kind {
  static constexpr int kBytes = 4;
  static constexpr bool kRounds = true;
  static constexpr std::uint32_t kOnes = 0;  // not asked for
  template <class Sums>
  MACHINE_DEVICE static void product(Sums& sums, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    machine::mma_tf32(sums, a0, a1, a2, a3, b0, b1);
  }
};
struct Fp16Kind {
  static constexpr int kBytes = 2;
  static constexpr bool kRounds = false;
  static constexpr std::uint32_t kOnes = 0x3c003c00;
  template <class Sums>
  MACHINE_DEVICE static void product(Sums& sums, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    machine::mma_fp16(sums, a0, a1, a2, a3, b0, b1);
  }
};
struct Bf16Kind {
  static constexpr int kBytes = 2;
  static constexpr bool kRounds = false;
  static constexpr std::uint32_t kOnes = 0x3f803f80;
  template <class Sums>
  MACHINE_DEVICE static void product(Sums& sums, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    machine::mma_bf16(sums, a0, a1, a2, a3, b0, b1);
  }
};

// ---- formats

/// 32-bit values. kRounds: to tf32 where they are stored for products, but for gradients and what slopes are taken from.
template <bool kRounds, class Products>
struct ThirtyTwoBits : Products {
  using Value = float;
  static constexpr Precision kPrecision = kRounds ? Precision::kTf32 : Precision::kFp32;
  static constexpr bool kMastersAreFactors = !kRounds;  // fp32 weights enter products as they are
  static constexpr bool kHasParts = !kRounds;           // weight gradients may be in parts
  static constexpr bool kKeepsRounded = !kRounds;  // slopes may be taken from what is stored for products
  MACHINE_DEVICE static float rounded(float value) { return kRounds ? machine::round_tf32(value) : value; }
  MACHINE_DEVICE static float4 load(const float* values) {
    return __ldcg(reinterpret_cast<const float4*>(values));
  }
  MACHINE_DEVICE static void store_unrounded(float* values, float4 v) {
    __stcg(reinterpret_cast<float4*>(values), v);
  }
  MACHINE_DEVICE static void store(float* values, float4 v) {
    store_unrounded(values, make_float4(rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)));
  }
  MACHINE_DEVICE static void store_weights(float* values, float4 v) { store(values, v); }
  /// Two values of a gradient, at a multiple of two.
  MACHINE_DEVICE static void store_two(float* values, float x, float y) {
    *reinterpret_cast<float2*>(values) = make_float2(x, y);
  }
};
/// Rounded to 16 bits wherever they are stored.
template <class Format, class Products>
struct SixteenBits : Products {
  using Value = std::uint16_t;
  static constexpr Precision kPrecision = Format::kIsBf16 ? Precision::kBf16 : Precision::kFp16;
  static constexpr bool kMastersAreFactors = false, kHasParts = false;
  static constexpr bool kKeepsRounded = true;
  MACHINE_DEVICE static float4 load(const std::uint16_t* values) {
    const uint2 words = __ldcg(reinterpret_cast<const uint2*>(values));
    const float2 low = Format::unpack(words.x), high = Format::unpack(words.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  MACHINE_DEVICE static void store(std::uint16_t* values, float4 v) {
    __stcg(reinterpret_cast<uint2*>(values), make_uint2(Format::pack(v.x, v.y), Format::pack(v.z, v.w)));
  }
  MACHINE_DEVICE static void store_unrounded(std::uint16_t* values, float4 v) { store(values, v); }
  MACHINE_DEVICE static void store_weights(std::uint16_t* values, float4 v) {
    if constexpr (Format::kIsBf16)
      __stcg(reinterpret_cast<uint2*>(values),
             make_uint2(machine::pack_bf16_weights(v.x, v.y), machine::pack_bf16_weights(v.z, v.w)));
    else
      store(values, v);
  }
  MACHINE_DEVICE static void store_two(std::uint16_t* values, float x, float y) {
    *reinterpret_cast<std::uint32_t*>(values) = Format::pack(x, y);
  }
};
using PortableFp32 = ThirtyTwoBits<false, MultiplyAdds>;
using PortableTf32 = ThirtyTwoBits<true, TensorProducts<Tf32Kind>>;
using PortableFp16 = SixteenBits<machine::Fp16, TensorProducts<Fp16Kind>>;
using PortableBf16 = SixteenBits<machine::Bf16, TensorProducts<Bf16Kind>>;

}  // namespace headroom::tiled
