// Activations of hidden layers and their slopes in fp32, as core/workload.h defines them.
//
// A kernel that knows its activation when it is compiled passes a constant, and the switch is gone. What a slope is taken from
// (`kept`) is the output where core/training_rules.h's slope_is_of_output() says so, else the sum z, each as it is stored.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>

#include "core/workload.h"

namespace headroom::rules {

/// Of a hidden sum z. NaN stays NaN, so that a broken network is seen.
__device__ __forceinline__ float activated(Activation activation, float z) {
  switch (activation) {
    case Activation::kRelu:
      return z < 0 ? 0.0f : z;
    case Activation::kTanh:
      return tanhf(z);
    case Activation::kSilu:
      return z / (1 + expf(-z));
    case Activation::kGelu:
      return 0.5f * z * (1 + erff(z * 0.70710678f));
    case Activation::kElu:
      return z < 0 ? expm1f(z) : z;
  }
  return z;
}

/// The derivative of activated().
__device__ __forceinline__ float slope(Activation activation, float kept) {
  switch (activation) {
    case Activation::kRelu:
      return kept > 0 ? 1.0f : 0.0f;
    case Activation::kTanh:
      return fmaf(-kept, kept, 1.0f);
    case Activation::kElu:
      return kept < 0 ? kept + 1 : 1.0f;
    case Activation::kSilu: {
      const float sigmoid = 1 / (1 + expf(-kept));
      return sigmoid * (1 + kept * (1 - sigmoid));
    }
    case Activation::kGelu: {
      const float density = 0.39894228f * expf(-0.5f * kept * kept);
      return 0.5f * (1 + erff(kept * 0.70710678f)) + kept * density;
    }
  }
  return 1;
}

/// What the layer below gets of `gradient`. A unit of slope 0 passes nothing on, not even what is not finite.
__device__ __forceinline__ float passed_back(Activation activation, float kept, float gradient) {
  const float factor = slope(activation, kept);
  return factor == 0 ? 0.0f : gradient * factor;
}

}  // namespace headroom::rules
