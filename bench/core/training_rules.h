// What activations, losses and optimizers are, in double precision: the formulas of core/workload.h, each written once, for the
// oracle on the CPU and on a GPU.
//
// Sources: torch.nn.functional (activations, losses), torch.optim.SGD, Adam and AdamW. No rounding happens here.
#pragma once

#include <cmath>

#include "core/workload.h"

#ifdef __CUDACC__
#define HEADROOM_RULE __host__ __device__ inline
#else
#define HEADROOM_RULE inline
#endif

namespace headroom::rules {

/// Of a hidden sum z. NaN stays NaN, so that a broken network is seen.
HEADROOM_RULE double activated(Activation activation, double z) {
  switch (activation) {
    case Activation::kRelu:
      return z < 0 ? 0 : z;
    case Activation::kTanh:
      return std::tanh(z);
    case Activation::kSilu:
      return z / (1 + std::exp(-z));
    case Activation::kGelu:
      return 0.5 * z * (1 + std::erf(z * 0.70710678118654752440));
    case Activation::kElu:
      return z < 0 ? std::expm1(z) : z;
  }
  return z;
}

/// Whether the slope follows from the output that is stored, so that nothing else has to be kept for the way back.
HEADROOM_RULE bool slope_is_of_output(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kTanh || activation == Activation::kElu;
}

/// The derivative. `kept`: the output, as it is stored, where slope_is_of_output(); else the sum z.
HEADROOM_RULE double slope(Activation activation, double kept) {
  switch (activation) {
    case Activation::kRelu:
      return kept > 0 ? 1 : 0;
    case Activation::kTanh:
      return 1 - kept * kept;
    case Activation::kElu:
      return kept < 0 ? kept + 1 : 1;
    case Activation::kSilu: {
      const double sigmoid = 1 / (1 + std::exp(-kept));
      return sigmoid * (1 + kept * (1 - sigmoid));
    }
    case Activation::kGelu: {
      const double density = 0.39894228040143267794 * std::exp(-0.5 * kept * kept);
      return 0.5 * (1 + std::erf(kept * 0.70710678118654752440)) + kept * density;
    }
  }
  return 1;
}

/// One output's part of a loss that is a mean over batch and outputs, and its derivative, both before the mean.
struct LossPart {
  double loss, gradient;
};
HEADROOM_RULE LossPart squared_error(double output, double target) {
  const double difference = output - target;
  return {difference * difference, 2 * difference};
}
/// log(1 + exp(y)) - t y; of large |y| nothing overflows.
HEADROOM_RULE LossPart binary_cross_entropy(double output, double target) {
  const double small = std::exp(-std::fabs(output));
  const double sigmoid = output < 0 ? small / (1 + small) : 1 / (1 + small);
  return {(output < 0 ? 0 : output) - target * output + std::log1p(small), sigmoid - target};
}

/// One parameter with its slots, and what a step does to it.
struct Parameter {
  double value = 0;
  double slots[2] = {};
};
/// An optimizer at one step: what is the same for all parameters is worked out once.
struct OptimizerStep {
  Optimizer optimizer;
  double rate = 0, root2 = 1;  ///< the learning rate over 1 - beta1^t, and the root of 1 - beta2^t
};
HEADROOM_RULE OptimizerStep at_step(const Optimizer& optimizer, double step) {
  OptimizerStep rule{optimizer, optimizer.learning_rate, 1};
  if (optimizer.kind == Optimizer::Kind::kSgd) return rule;
  const double t = step + 1;
  rule.rate /= 1 - std::pow(optimizer.beta1, t);
  rule.root2 = std::sqrt(1 - std::pow(optimizer.beta2, t));
  return rule;
}
/// What the step adds to a parameter of `value`, from its slots behind the step; `first` is the gradient where there are none.
HEADROOM_RULE double increment(const OptimizerStep& rule, double value, double first, double second) {
  const Optimizer& optimizer = rule.optimizer;
  if (optimizer.kind == Optimizer::Kind::kSgd) return -rule.rate * first;
  const double decay = optimizer.kind == Optimizer::Kind::kAdamW
                           ? optimizer.learning_rate * optimizer.weight_decay * value
                           : 0;
  return -decay - rule.rate * first / (std::sqrt(second) / rule.root2 + optimizer.epsilon);
}
HEADROOM_RULE void update(const OptimizerStep& rule, double gradient, Parameter& parameter) {
  const Optimizer& optimizer = rule.optimizer;
  double &first = parameter.slots[0], &second = parameter.slots[1];
  if (optimizer.kind != Optimizer::Kind::kSgd) {
    first = optimizer.beta1 * first + (1 - optimizer.beta1) * gradient;
    second = optimizer.beta2 * second + (1 - optimizer.beta2) * gradient * gradient;
  } else if (optimizer.momentum != 0) {
    first = optimizer.momentum * first + gradient;
  }
  const bool has_slots = optimizer.kind != Optimizer::Kind::kSgd || optimizer.momentum != 0;
  parameter.value += increment(rule, parameter.value, has_slots ? first : gradient, second);
}

}  // namespace headroom::rules
