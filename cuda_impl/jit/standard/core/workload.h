// In place of bench/core/workload.h, which needs the standard library: the rules of training, as kernels read them. The lists are
// those of the original, in its order; narrow/compiled.cpp compares them.
#pragma once

namespace headroom {

inline constexpr int kMaxLayers = 16;

enum class Precision { kFp32, kTf32, kFp16, kBf16 };
enum class Activation { kRelu, kTanh, kSilu, kGelu, kElu };
enum class Loss { kCrossEntropy, kMeanSquaredError, kBinaryCrossEntropy };

struct Optimizer {
  enum class Kind { kSgd, kAdam, kAdamW };
  Kind kind;
  double learning_rate, momentum, beta1, beta2, epsilon, weight_decay;
};

}  // namespace headroom
