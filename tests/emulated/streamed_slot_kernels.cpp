// Kernels of cuda-streamed with slots for the tests: what is compiled at set-up on a GPU is instantiated here. They take any panels
// where the others are made for panels of two or of four tiles.
#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "streamed/step.cuh"
#include "streamed_slot_kernels.h"

namespace headroom::emulated {
namespace {

using namespace streamed;

class Instance : public SlotKernel {
 public:
  explicit Instance(const void* function) : function_(function) {}
  const void* function() const override { return function_; }
  bool was_kept() const override { return false; }
  std::string note() const override { return "its kernel is an instance of the tests"; }

 private:
  const void* function_;
};

template <class Format, class Rule, int kTold>
const void* of_shape(const SlotKernelShape& shape) {
  using Trained = WithSlots<Format, Rule, kTold>;
  if constexpr (kTold == 0) {
    return kernel_of<Trained, kMostGroups, 0>();
  } else {
    // Of panels of one tile in 16 bits and tf32 what is asked for early.
    if constexpr (!Format::kWalks)
      if (shape.panels == 1) return kernel_of<Trained, 1, 1>();
    return kernel_of<Trained, 1, 0>();
  }
}
template <class Format, class Rule>
const void* of_rule(const SlotKernelShape& shape) {
  if (shape.loss != Loss::kCrossEntropy) {
    // Losses over targets: one a format, by Adam.
    constexpr Loss kLoss =
        std::is_same_v<Format, Bf16> || Format::kWalks ? Loss::kMeanSquaredError : Loss::kBinaryCrossEntropy;
    if constexpr (std::is_same_v<Rule, Adam> || std::is_same_v<Rule, PlainAdam>)
      if (shape.loss == kLoss && shape.groups == 1)
        return kernel_of<WithSlots<Format, Rule, 1, kLoss>, 1, 0>();
    throw UnsupportedError("no such instance among those of tests/emulated/streamed_slot_kernels.cpp");
  }
  if (shape.groups > 1) return of_shape<Format, Rule, 0>(shape);
  // AdamW is Adam but for the rule.
  if constexpr (std::is_same_v<Rule, AdamW>) return of_shape<Format, Rule, 1>(shape);
  // In 16 bits and tf32 how many parts may be held is all that differs; two of them in one format.
  if constexpr (Format::kWalks || std::is_same_v<Format, Fp16>)
    if (shape.told == 2) return of_shape<Format, Rule, 2>(shape);
  return of_shape<Format, Rule, 1>(shape);
}
template <class Format>
const void* of_format(const SlotKernelShape& shape) {
  if (shape.rule == SlotRule::kMomentum) return of_rule<Format, Momentum>(shape);
  if constexpr (std::is_same_v<Format, Tf32>)
    return of_rule<Format, PlainAdam>(shape);
  else
    return shape.rule == SlotRule::kAdam ? of_rule<Format, Adam>(shape) : of_rule<Format, AdamW>(shape);
}

}  // namespace

std::unique_ptr<SlotKernel> streamed_slot_kernel(const SlotKernelShape& shape) {
  const void* function = shape.precision == Precision::kFp32   ? of_format<Fp32>(shape)
                         : shape.precision == Precision::kTf32 ? of_format<Tf32>(shape)
                         : shape.precision == Precision::kFp16 ? of_format<Fp16>(shape)
                                                               : of_format<Bf16>(shape);
  return std::make_unique<Instance>(function);
}

}  // namespace headroom::emulated
