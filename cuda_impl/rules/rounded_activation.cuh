// Activations and slopes where what follows is rounded to 11 bits or fewer: to an absolute error of some 1e-7, a handful of instructions.
#pragma once

#include <cuda_runtime_api.h>

#include "machine/numbers.cuh"
#include "rules/activation.cuh"

namespace headroom::rules {

inline constexpr float kLog2E = 1.44269504f;

/// As activated().
__device__ __forceinline__ float activated_roughly(Activation activation, float z) {
  if (activation == Activation::kTanh) {
    const float small = machine::exponential2(-2 * kLog2E * fabsf(z));
    return copysignf((1 - small) * machine::reciprocal(1 + small), z);
  }
  if (activation == Activation::kSilu) return z * machine::reciprocal(1 + machine::exponential2(-kLog2E * z));
  if (activation == Activation::kElu) return z < 0 ? machine::exponential2(kLog2E * z) - 1 : z;
  return activated(activation, z);
}
/// As passed_back().
__device__ __forceinline__ float passed_back_roughly(Activation activation, float kept, float gradient) {
  if (activation == Activation::kSilu) {
    const float sigmoid = machine::reciprocal(1 + machine::exponential2(-kLog2E * kept));
    return gradient * (sigmoid * (1 + kept * (1 - sigmoid)));
  }
  return passed_back(activation, kept, gradient);
}

}  // namespace headroom::rules
