// Products of a warp between matrices in shared memory, in each precision. The sums lie as mma.sync leaves them (machine/mma.cuh): of
// 16 rows and 8 columns, lane 4g + t has rows g and g + 8, columns 2t and 2t + 1. In fp32, too, so what is done with sums is written once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "machine/formats.cuh"
#include "machine/matrices.cuh"
#include "machine/mma.cuh"
#include "machine/reductions.cuh"
#include "narrow/plan.h"
#include "rules/rounded_activation.cuh"

namespace headroom::narrow {

using machine::bits_to_float;
using machine::float_to_bits;

/// How a factor lies: a row of it after the other, or a column.
enum class Lies { kByRows, kByColumns };

/// add(): sums[i][j] += x's rows 16i on times y's columns 8j on, over kTerms terms. x[row][term] or, by columns, [term][row];
/// y[column][term] by columns, or [term][column] by rows.
/// add_gradients(): the same of factors that both lie with terms as rows, where column `ones` of y is all ones: sums of x, which are not
/// rounded to the product's format.
template <class Format>
struct Product;

template <class Rounding>  // machine::Fp16 or machine::Bf16
struct Sixteen : Rounding {
  using Value = std::uint16_t;
  static constexpr bool kIsExact = false;
  MACHINE_DEVICE static void store_pair(Value* to, float low, float high) {
    *reinterpret_cast<std::uint32_t*>(to) = Rounding::pack(low, high);
  }
  MACHINE_DEVICE static float2 load_pair(const Value* from) {
    return Rounding::unpack(*reinterpret_cast<const std::uint32_t*>(from));
  }
  MACHINE_DEVICE static Value weight(float value) { return Rounding::round_weight(value); }
  MACHINE_DEVICE static Value input(float value) { return Rounding::round(value); }
};
struct ThirtyTwo {
  using Value = float;
  MACHINE_DEVICE static float2 load_pair(const Value* from) { return *reinterpret_cast<const float2*>(from); }
};
struct Tf32 : ThirtyTwo {
  static constexpr bool kIsExact = false;
  MACHINE_DEVICE static void store_pair(Value* to, float low, float high) {
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
  }
  MACHINE_DEVICE static Value weight(float value) { return machine::round_tf32(value); }
  MACHINE_DEVICE static Value input(float value) { return machine::round_tf32(value); }
};
struct Fp32 : ThirtyTwo {
  static constexpr bool kIsExact = true;
  MACHINE_DEVICE static void store_pair(Value* to, float low, float high) {
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
  }
  MACHINE_DEVICE static Value weight(float value) { return value; }
  MACHINE_DEVICE static Value input(float value) { return value; }
};
template <int kPrecision>
using FormatOf = std::conditional_t<
    kPrecision == static_cast<int>(Precision::kFp16), Sixteen<machine::Fp16>,
    std::conditional_t<kPrecision == static_cast<int>(Precision::kBf16), Sixteen<machine::Bf16>,
                       std::conditional_t<kPrecision == static_cast<int>(Precision::kTf32), Tf32, Fp32>>>;

/// Where a product takes factors as they are.
template <class Format>
struct ExactGradients {
  template <int kTerms, int kTall, int kPieces>
  MACHINE_DEVICE static void add_gradients(float (&sums)[kTall][kPieces][4], const typename Format::Value* x,
                                           int x_stride, const typename Format::Value* y, int y_stride,
                                           int lane, int) {
    Product<Format>::template add<Lies::kByColumns, Lies::kByRows, kTerms>(sums, x, x_stride, y, y_stride,
                                                                           lane);
  }
};

template <class Rounding>
struct Product<Sixteen<Rounding>> : ExactGradients<Sixteen<Rounding>> {
  template <Lies kX, Lies kY, int kTerms, int kTall, int kPieces>
  MACHINE_DEVICE static void add(float (&sums)[kTall][kPieces][4], const std::uint16_t* x, int x_stride,
                                 const std::uint16_t* y, int y_stride, int lane) {
    // The row of a matrix of 8x8 values that this lane names; lanes 8 to 15 name those of the second, and so on.
    const int in_matrix = lane & 7, second = lane >> 3 & 1, third = lane >> 4;
    x += kX == Lies::kByRows ? (in_matrix + 8 * second) * x_stride + 8 * third
                             : (in_matrix + 8 * third) * x_stride + 8 * second;
    y += kY == Lies::kByColumns ? (in_matrix + 8 * third) * y_stride + 8 * second
                                : (in_matrix + 8 * second) * y_stride + 8 * third;
#pragma unroll
    for (int term = 0; term < kTerms; term += 16) {
      std::uint32_t a[kTall][4];
#pragma unroll
      for (int i = 0; i < kTall; ++i)
        if constexpr (kX == Lies::kByRows)
          machine::load_matrices(x + 16 * i * x_stride + term, a[i]);
        else
          machine::load_matrices_transposed(x + term * x_stride + 16 * i, a[i]);
#pragma unroll
      for (int j = 0; j < kPieces; j += 2) {
        std::uint32_t b[4];
        if constexpr (kY == Lies::kByColumns)
          machine::load_matrices(y + 8 * j * y_stride + term, b);
        else
          machine::load_matrices_transposed(y + term * y_stride + 8 * j, b);
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
          multiply(sums[i][j], a[i], b[0], b[1]);
          if (j + 1 < kPieces) multiply(sums[i][j + 1 < kPieces ? j + 1 : j], a[i], b[2], b[3]);
        }
      }
    }
  }

 private:
  MACHINE_DEVICE static void multiply(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                      std::uint32_t b1) {
    if constexpr (Rounding::kIsBf16)
      machine::mma_bf16(sums, a[0], a[1], a[2], a[3], b0, b1);
    else
      machine::mma_fp16(sums, a[0], a[1], a[2], a[3], b0, b1);
  }
};

template <>
struct Product<Tf32> {
  /// Which two terms of eight a lane has is free, as long as both factors have the same: neighbours, where both come in one load.
  template <Lies kX, Lies kY, int kTerms, int kTall, int kPieces>
  MACHINE_DEVICE static void add(float (&sums)[kTall][kPieces][4], const float* x, int x_stride,
                                 const float* y, int y_stride, int lane) {
    float lost[kTall][2];
    multiply<kX, kY, kTerms, false>(sums, x, x_stride, y, y_stride, lane, lost);
  }
  template <int kTerms, int kTall, int kPieces>
  MACHINE_DEVICE static void add_gradients(float (&sums)[kTall][kPieces][4], const float* x, int x_stride,
                                           const float* y, int y_stride, int lane, int ones) {
    float lost[kTall][2] = {};
    multiply<Lies::kByColumns, Lies::kByRows, kTerms, true>(sums, x, x_stride, y, y_stride, lane, lost);
#pragma unroll
    for (int i = 0; i < kTall; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float all = machine::quad_sum(lost[i][half]);
#pragma unroll
        for (int j = 0; j < kPieces; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if (8 * j + 2 * (lane % 4) + c == ones) sums[i][j][2 * half + c] += all;
      }
  }

 private:
  /// lost: what rounding has taken off x's values of this lane, of rows g and g + 8.
  template <Lies kX, Lies kY, int kTerms, bool kSumsLost, int kTall, int kPieces>
  MACHINE_DEVICE static void multiply(float (&sums)[kTall][kPieces][4], const float* x, int x_stride,
                                      const float* y, int y_stride, int lane, float (&lost)[kTall][2]) {
    constexpr bool kNeighbours = kX == Lies::kByRows && kY == Lies::kByColumns;
    const int g = lane / 4, t = lane % 4;
    const int first = kNeighbours ? 2 * t : t;
    const auto pair = [&](const float* from, int row, int row_stride, int term_stride, auto is_rounded,
                          std::uint32_t (&words)[2], float& lost) {
      from += row * row_stride + first * term_stride;
      float two[2];
      if constexpr (kNeighbours) {
        const float2 both = *reinterpret_cast<const float2*>(from);
        two[0] = both.x, two[1] = both.y;
      } else {
        two[0] = from[0], two[1] = from[4 * term_stride];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float rounded = decltype(is_rounded)::value ? two[i] : machine::round_tf32(two[i]);
        words[i] = float_to_bits(rounded);
        if constexpr (kSumsLost) lost += two[i] - rounded;
      }
    };
    const int x_row = kX == Lies::kByRows ? x_stride : 1, x_term = kX == Lies::kByRows ? 1 : x_stride;
    const int y_column = kY == Lies::kByColumns ? y_stride : 1,
              y_term = kY == Lies::kByColumns ? 1 : y_stride;
#pragma unroll
    for (int term = 0; term < kTerms; term += 8) {
      std::uint32_t a[kTall][2][2];
#pragma unroll
      for (int i = 0; i < kTall; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          pair(x + term * x_term, 16 * i + g + 8 * half, x_row, x_term, std::false_type(), a[i][half],
               lost[i][half]);
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        std::uint32_t b[2];
        float none = 0;
        pair(y + term * y_term, 8 * j + g, y_column, y_term, std::bool_constant<!kSumsLost>(), b, none);
#pragma unroll
        for (int i = 0; i < kTall; ++i)
          machine::mma_tf32(sums[i][j], a[i][0][0], a[i][1][0], a[i][0][1], a[i][1][1], b[0], b[1]);
      }
    }
  }
};

template <>
struct Product<Fp32> : ExactGradients<Fp32> {
  template <Lies kX, Lies kY, int kTerms, int kTall, int kPieces>
  MACHINE_DEVICE static void add(float (&sums)[kTall][kPieces][4], const float* x, int x_stride,
                                 const float* y, int y_stride, int lane) {
    const int g = lane / 4, t = lane % 4;
    x += kX == Lies::kByRows ? g * x_stride : g;
    y += kY == Lies::kByColumns ? 2 * t * y_stride : 2 * t;
#pragma unroll 2
    for (int term = 0; term < kTerms; term += 4) {
      float a[kTall][2][4];
#pragma unroll
      for (int i = 0; i < kTall; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * i + 8 * half;
          if constexpr (kX == Lies::kByRows) {
            unpack(*reinterpret_cast<const float4*>(x + row * x_stride + term), a[i][half]);
          } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) a[i][half][k] = x[(term + k) * x_stride + row];
          }
        }
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        float b[2][4];
        if constexpr (kY == Lies::kByColumns) {
#pragma unroll
          for (int c = 0; c < 2; ++c)
            unpack(*reinterpret_cast<const float4*>(y + (8 * j + c) * y_stride + term), b[c]);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 two = *reinterpret_cast<const float2*>(y + (term + k) * y_stride + 8 * j);
            b[0][k] = two.x, b[1][k] = two.y;
          }
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
              for (int c = 0; c < 2; ++c)
                sums[i][j][2 * half + c] = fmaf(a[i][half][k], b[c][k], sums[i][j][2 * half + c]);
      }
    }
  }

 private:
  MACHINE_DEVICE static void unpack(float4 four, float (&to)[4]) {
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
};

// ---- activations

template <class Format>
MACHINE_DEVICE float activated(Activation activation, float z) {
  if constexpr (Format::kIsExact)
    return rules::activated(activation, z);
  else
    return rules::activated_roughly(activation, z);
}
template <class Format>
MACHINE_DEVICE float passed_back(Activation activation, float kept, float gradient) {
  if constexpr (Format::kIsExact)
    return rules::passed_back(activation, kept, gradient);
  else
    return rules::passed_back_roughly(activation, kept, gradient);
}

}  // namespace headroom::narrow
