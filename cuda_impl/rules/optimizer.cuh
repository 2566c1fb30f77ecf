// What a step does to a parameter and its slots, in fp32: core/workload.h's formulas.
//
// A parameter is rounded once a step: weight decay and the step are added up first, since each rounding of a parameter costs as much
// as many steps' decay.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>

#include "core/workload.h"

namespace headroom::rules {

/// What all parameters of one step share. Made in double: 1 - beta^t is a small difference.
struct UpdateFactors {
  float rate;                      ///< of what is taken off: learning rate; adam's over 1 - beta1^t
  float decay;                     ///< adamw: learning rate times weight decay
  float keep_first, take_first;    ///< first slot = keep_first * first slot + take_first * gradient
  float keep_second, take_second;  ///< second slot = keep_second * second slot + take_second * gradient^2
  float inverse_root;              ///< 1 / sqrt(1 - beta2^t)
  float epsilon;
};

/// `step` counts from 0. Zeros where the optimizer has no such number.
__host__ __device__ inline UpdateFactors update_factors(const Optimizer& optimizer, long long step) {
  UpdateFactors factors{};
  factors.rate = static_cast<float>(optimizer.learning_rate);
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    factors.keep_first = static_cast<float>(optimizer.momentum), factors.take_first = 1;
    return factors;
  }
  const double t = static_cast<double>(step) + 1;
  factors.rate = static_cast<float>(optimizer.learning_rate / (1 - pow(optimizer.beta1, t)));
  factors.inverse_root = static_cast<float>(1 / sqrt(1 - pow(optimizer.beta2, t)));
  factors.keep_first = static_cast<float>(optimizer.beta1);
  factors.take_first = static_cast<float>(1 - optimizer.beta1);
  factors.keep_second = static_cast<float>(optimizer.beta2);
  factors.take_second = static_cast<float>(1 - optimizer.beta2);
  factors.epsilon = static_cast<float>(optimizer.epsilon);
  if (optimizer.kind == Optimizer::Kind::kAdamW)
    factors.decay = static_cast<float>(optimizer.learning_rate * optimizer.weight_decay);
  return factors;
}

// Each takes the gradient of the mean loss.

__device__ __forceinline__ void update_with_momentum(const UpdateFactors& factors, float gradient,
                                                     float& value, float& momentum) {
  momentum = fmaf(factors.keep_first, momentum, gradient);
  value = fmaf(-factors.rate, momentum, value);
}
/// Adam, and AdamW where there is a decay.
__device__ __forceinline__ void update_adam(const UpdateFactors& factors, float gradient, float& value,
                                            float& first, float& second) {
  first = fmaf(factors.keep_first, first, factors.take_first * gradient);
  second = fmaf(factors.keep_second, second, factors.take_second * gradient * gradient);
  const float change = factors.rate * first / fmaf(sqrtf(second), factors.inverse_root, factors.epsilon);
  value -= fmaf(factors.decay, value, change);
}

}  // namespace headroom::rules
