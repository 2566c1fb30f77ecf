// Losses of outputs and their derivatives in fp32, as core/workload.h defines them, before the mean over the batch (and outputs).
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>

#include "core/workload.h"

namespace headroom::rules {

/// Softmax cross-entropy of a row of logits, less the largest so that no exponential overflows: the `sum` of their exponentials,
/// and the label's.
__device__ __forceinline__ float cross_entropy(float sum, float logit_of_label) {
  return logf(sum) - logit_of_label;
}
/// By a logit whose softmax is `probability`.
__device__ __forceinline__ float cross_entropy_gradient(float probability, bool is_label) {
  return probability - (is_label ? 1.0f : 0.0f);
}

/// One output's part of a loss over fp32 targets, and its derivative.
struct LossTerm {
  float loss, gradient;
};
__device__ __forceinline__ LossTerm squared_error(float output, float target) {
  const float difference = output - target;
  return {difference * difference, 2 * difference};
}
/// With logits; of large |output| nothing overflows. The derivative, sigmoid(output) - target, is made so that nothing cancels
/// where a sure prediction is right.
__device__ __forceinline__ LossTerm binary_cross_entropy(float output, float target) {
  const float small = expf(-fabsf(output));  // NaN if the output is
  const float unlikely = small / (1 + small);
  return {(output < 0 ? 0.0f : output) - target * output + log1pf(small),
          output < 0 ? unlikely - target : (1 - target) - unlikely};
}
/// `loss` is one of the two above.
__device__ __forceinline__ LossTerm loss_term(Loss loss, float output, float target) {
  return loss == Loss::kMeanSquaredError ? squared_error(output, target)
                                         : binary_cross_entropy(output, target);
}

}  // namespace headroom::rules
