// The four precisions as types: how 8 neighbouring values lie in registers, and the two products built on them.
//
// A warp's lane is 4 * g + t everywhere. A forward product takes from lane (g, t) the rows g, g + 8, g + 16 and
// g + 24 of chunk t of a unit: 16 bytes (32 for fp32 and tf32) that lie side by side, because the order in which
// columns are summed is free as long as the weights follow it. So nothing is shuffled between an exchange and
// the tensor core. A weight gradient takes column g of a chunk, 8 of the 32 rows; every format and both copies
// of a weight take the same 8, in the same order, so that both copies stay the same bits.
#pragma once

#include "machine/matrices.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/plan.h"

namespace headroom::resident {

using namespace machine;

/// 8 values: 4 words of two, or 8 words of one.
template <int kWordCount>
struct Eight {
  std::uint32_t word[kWordCount];
};

template <int kWordCount>
MACHINE_DEVICE void assign(Eight<kWordCount>& eight, int part, uint4 value) {
  eight.word[4 * part] = value.x;
  eight.word[4 * part + 1] = value.y;
  eight.word[4 * part + 2] = value.z;
  eight.word[4 * part + 3] = value.w;
}
template <int kWordCount>
MACHINE_DEVICE uint4 part_of(const Eight<kWordCount>& eight, int part) {
  return make_uint4(eight.word[4 * part], eight.word[4 * part + 1], eight.word[4 * part + 2],
                    eight.word[4 * part + 3]);
}

/// What the 16-bit formats share. Word i of a row: columns 2i and 2i + 1. Word i of a column (lane t): rows
/// 8i + 2t and 8i + 2t + 1, as ldmatrix transposes them.
struct SixteenBit {
  static constexpr int kElementBytes = 2, kWords = 4, kParts = 1, kUnroll = 4, kUpdateUnroll = 4;
  static constexpr int kTile = tile_bytes(kElementBytes), kSharedTile = shared_tile_bytes(kElementBytes);
  using Values = Eight<4>;
  /// Column g of a tile in shared memory.
  MACHINE_DEVICE static Values column(const unsigned char* tile, int lane) {
    Values values;
    load_matrices_transposed(tile + lane * 16, values.word);
    return values;
  }
  MACHINE_DEVICE static Values publishable(Values own) { return own; }
};

/// What the 32-bit formats share. Word i of a row: column i. Word i of a column (lane t): row 4i + t.
struct ThirtyTwoBit {
  static constexpr int kElementBytes = 4, kWords = 8, kParts = 2;
  static constexpr int kTile = tile_bytes(kElementBytes), kSharedTile = shared_tile_bytes(kElementBytes);
  using Values = Eight<8>;
  MACHINE_DEVICE static Values column(const unsigned char* tile, int lane) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      values.word[i] =
          *reinterpret_cast<const std::uint32_t*>(tile + (4 * i + (lane & 3)) * 32 + (lane >> 2) * 4);
    return values;
  }
  MACHINE_DEVICE static Values store_exactly(const float (&value)[8]) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = float_to_bits(value[i]);
    return values;
  }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return bits_to_float(values.word[index]);
  }
  MACHINE_DEVICE static void store_element(unsigned char* tile, int row, int column, float value) {
    *reinterpret_cast<float*>(tile + (row * 8 + column) * 4) = value;
  }
};

struct Fp16Format : SixteenBit {
  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    return {{pack_fp16(v[0], v[1]), pack_fp16(v[2], v[3]), pack_fp16(v[4], v[5]), pack_fp16(v[6], v[7])}};
  }
  MACHINE_DEVICE static Values round_weights(const float (&v)[8]) { return round(v); }
  MACHINE_DEVICE static Values store(const float (&v)[8]) { return round(v); }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return fp16_value(values.word[index / 2] >> (16 * (index % 2)));
  }
  MACHINE_DEVICE static void store_element(unsigned char* tile, int row, int column, float value) {
    *reinterpret_cast<std::uint16_t*>(tile + (row * 8 + column) * 2) =
        static_cast<std::uint16_t>(pack_fp16(value, 0.0f));
  }
  MACHINE_DEVICE static float rounded(float value) { return value; }
  MACHINE_DEVICE static void product(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    mma_fp16(c, a0, a1, a2, a3, b0, b1);
  }
};

struct Bf16Format : SixteenBit {
  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    return {{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])}};
  }
  MACHINE_DEVICE static Values round_weights(const float (&v)[8]) {
    return {{pack_bf16_weights(v[0], v[1]), pack_bf16_weights(v[2], v[3]), pack_bf16_weights(v[4], v[5]),
             pack_bf16_weights(v[6], v[7])}};
  }
  MACHINE_DEVICE static Values store(const float (&v)[8]) { return round(v); }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return bits_to_float((values.word[index / 2] >> (16 * (index % 2))) << 16);
  }
  MACHINE_DEVICE static void store_element(unsigned char* tile, int row, int column, float value) {
    *reinterpret_cast<std::uint16_t*>(tile + (row * 8 + column) * 2) =
        static_cast<std::uint16_t>(pack_bf16(value, 0.0f));
  }
  MACHINE_DEVICE static float rounded(float value) { return value; }
  MACHINE_DEVICE static void product(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
  }
};

/// A member keeps its own gradient as it came, because the bias sum sees it unrounded, and rounds what it sends.
struct Tf32Format : ThirtyTwoBit {
  static constexpr int kUnroll = 2, kUpdateUnroll = 2;
  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = float_to_bits(round_tf32(v[i]));
    return values;
  }
  MACHINE_DEVICE static Values round_weights(const float (&v)[8]) { return round(v); }
  MACHINE_DEVICE static Values store(const float (&v)[8]) { return store_exactly(v); }
  MACHINE_DEVICE static Values publishable(Values own) {
#pragma unroll
    for (int i = 0; i < 8; ++i) own.word[i] = float_to_bits(round_tf32(bits_to_float(own.word[i])));
    return own;
  }
  MACHINE_DEVICE static float rounded(float value) { return round_tf32(value); }
  MACHINE_DEVICE static void product(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    mma_tf32(c, a0, a1, a2, a3, b0, b1);
  }
};

/// Products of the tensor-core formats. `Format` gives the instruction and the roundings.
template <class Format>
struct TensorProducts : Format {
  using Values = typename Format::Values;
  struct Sums {
    float upper[4], lower[4];  // rows g and g + 8, rows g + 16 and g + 24; columns 2t and 2t + 1 of each
  };
  MACHINE_DEVICE static Sums zero_sums() { return {}; }

  using Weights = Values;
  /// The weights [8, 32] of a unit as they enter the product. `weights` points at the unit in row 0.
  MACHINE_DEVICE static Weights load_weights(const float* weights, int pitch, int lane) {
    const float4* own = reinterpret_cast<const float4*>(weights + (lane >> 2) * pitch + (lane & 3) * 8);
    const float4 first = own[0], second = own[1];
    const float eight[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    return Format::round_weights(eight);
  }
  /// sums [32 rows, 8 columns] += rows [32, 32 columns of a unit] * weights [8, 32]^T.
  MACHINE_DEVICE static void multiply(Sums& sums, const Values (&rows)[4], const Weights& w, int /*pitch*/,
                                      int /*lane*/) {
#pragma unroll
    for (int i = 0; i < Format::kWords; i += 2) {
      Format::product(sums.upper, rows[0].word[i], rows[1].word[i], rows[0].word[i + 1], rows[1].word[i + 1],
                      w.word[i], w.word[i + 1]);
      Format::product(sums.lower, rows[2].word[i], rows[3].word[i], rows[2].word[i + 1], rows[3].word[i + 1],
                      w.word[i], w.word[i + 1]);
    }
  }
  /// result[i]: row g + 8i, columns 2t and 2t + 1.
  MACHINE_DEVICE static void finish(const Sums& sums, float2 (&result)[4], int /*lane*/) {
    result[0] = make_float2(sums.upper[0], sums.upper[1]);
    result[1] = make_float2(sums.upper[2], sums.upper[3]);
    result[2] = make_float2(sums.lower[0], sums.lower[1]);
    result[3] = make_float2(sums.lower[2], sums.lower[3]);
  }

  using Own = Values;  // column g of an own tile
  MACHINE_DEVICE static Own load_own(const unsigned char* tile, int lane) {
    return Format::publishable(Format::column(tile, lane));
  }
  struct OuterSums {
    float value[4];
  };
  MACHINE_DEVICE static OuterSums zero_outer_sums() { return {}; }
  /// sums [16 columns of two chunks, 8 own columns] += columns^T * own over 32 rows.
  MACHINE_DEVICE static void multiply_outer(OuterSums& sums, const Values& first, const Values& second,
                                            const Own& own) {
#pragma unroll
    for (int i = 0; i < Format::kWords; i += 2)
      Format::product(sums.value, first.word[i], second.word[i], first.word[i + 1], second.word[i + 1],
                      own.word[i], own.word[i + 1]);
  }
  /// result[i]: column g of chunk i, own columns 2t and 2t + 1.
  MACHINE_DEVICE static void finish_outer(const OuterSums& sums, float2 (&result)[2], int /*lane*/) {
    result[0] = make_float2(sums.value[0], sums.value[1]);
    result[1] = make_float2(sums.value[2], sums.value[3]);
  }
};

/// Adds up `value` over the four lanes of a quad, always as (0 + 2) + (1 + 3); lane t keeps values 2t and 2t + 1.
MACHINE_DEVICE float2 sum_quad(const float (&value)[8], int lane) {
  const bool upper = (lane & 2) != 0, odd = (lane & 1) != 0;
  float half[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    half[i] = (upper ? value[i + 4] : value[i]) + shuffle_xor(upper ? value[i] : value[i + 4], 2);
  const float first = (odd ? half[2] : half[0]) + shuffle_xor(odd ? half[0] : half[2], 1);
  const float second = (odd ? half[3] : half[1]) + shuffle_xor(odd ? half[1] : half[3], 1);
  return make_float2(first, second);
}

/// fp32 by multiply-adds: the same values in the same lanes, each lane summing its own columns or rows for all 8
/// outputs; the quad is added up once at the end.
struct Fp32Format : ThirtyTwoBit {
  static constexpr int kUnroll = 1,
                       kUpdateUnroll = 1;  // long bodies: the step must fit the instruction cache
  MACHINE_DEVICE static Values round(const float (&v)[8]) { return store_exactly(v); }
  MACHINE_DEVICE static Values store(const float (&v)[8]) { return store_exactly(v); }
  MACHINE_DEVICE static Values publishable(Values own) { return own; }
  MACHINE_DEVICE static float rounded(float value) { return value; }

  struct Sums {
    float row[4][8];
  };
  MACHINE_DEVICE static Sums zero_sums() { return {}; }
  using Weights = const float*;  // too many for registers: read when they are needed
  MACHINE_DEVICE static Weights load_weights(const float* weights, int /*pitch*/, int /*lane*/) {
    return weights;
  }
  MACHINE_DEVICE static void multiply(Sums& sums, const Values (&rows)[4], Weights weights, int pitch,
                                      int lane) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4* w = reinterpret_cast<const float4*>(weights + n * pitch + (lane & 3) * 8);
      const float4 first = w[0], second = w[1];
      const float eight[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.row[i][n] = fmaf(at(rows[i], k), eight[k], sums.row[i][n]);
    }
  }
  MACHINE_DEVICE static void finish(const Sums& sums, float2 (&result)[4], int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) result[i] = sum_quad(sums.row[i], lane);
  }

  struct Own {
    float value[8][8];  // rows 4i + t, columns
  };
  MACHINE_DEVICE static Own load_own(const unsigned char* tile, int lane) {
    Own own;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 four = *reinterpret_cast<const float4*>(tile + (4 * i + (lane & 3)) * 32 + half * 16);
        own.value[i][4 * half] = four.x;
        own.value[i][4 * half + 1] = four.y;
        own.value[i][4 * half + 2] = four.z;
        own.value[i][4 * half + 3] = four.w;
      }
    return own;
  }
  struct OuterSums {
    float chunk[2][8];
  };
  MACHINE_DEVICE static OuterSums zero_outer_sums() { return {}; }
  MACHINE_DEVICE static void multiply_outer(OuterSums& sums, const Values& first, const Values& second,
                                            const Own& own) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        sums.chunk[0][n] = fmaf(at(first, i), own.value[i][n], sums.chunk[0][n]);
        sums.chunk[1][n] = fmaf(at(second, i), own.value[i][n], sums.chunk[1][n]);
      }
  }
  MACHINE_DEVICE static void finish_outer(const OuterSums& sums, float2 (&result)[2], int lane) {
    result[0] = sum_quad(sums.chunk[0], lane);
    result[1] = sum_quad(sums.chunk[1], lane);
  }
};

using Fp32 = Fp32Format;
using Tf32 = TensorProducts<Tf32Format>;
using Fp16 = TensorProducts<Fp16Format>;
using Bf16 = TensorProducts<Bf16Format>;

}  // namespace headroom::resident
