// Activations whose outputs are rounded to 16 bits: without the branches that tanhf() and expm1f() take for every value, to 1e-5 of the
// value, a hundredth of what the rounding takes.
#pragma once

#include <cmath>

#include "rules/activation.cuh"

namespace headroom::tiled {

/// 1 - 2 / (e^2|z| + 1), and near 0, where that difference is of few digits, its series.
__device__ __forceinline__ float tanh_for_sixteen_bits(float z) {
  const float square = z * z, size = 1 - 2 / (expf(2 * fabsf(z)) + 1);
  const float series = z * fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  return square < 0.01f ? series : copysignf(size, z);
}
/// The same with e^z - 1.
__device__ __forceinline__ float elu_for_sixteen_bits(float z) {
  const float series = z * fmaf(z, fmaf(z, fmaf(z, 1.0f / 24, 1.0f / 6), 0.5f), 1.0f);
  const float below = z > -0.05f ? series : expf(z) - 1;
  return z < 0 ? below : z;
}

/// rules::activated() of a constant activation. NaN stays NaN.
__device__ __forceinline__ float activated_for_sixteen_bits(Activation activation, float z) {
  if (activation == Activation::kTanh) return tanh_for_sixteen_bits(z);
  if (activation == Activation::kElu) return elu_for_sixteen_bits(z);
  return rules::activated(activation, z);
}

}  // namespace headroom::tiled
