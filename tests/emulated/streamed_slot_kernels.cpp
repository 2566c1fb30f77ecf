// Kernels of cuda-streamed with slots. They take any panels where those of a GPU are made for panels of two or of four tiles.
#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "streamed/step.cuh"
#include "streamed_instances.h"

namespace headroom::emulated {
namespace {

using namespace streamed;

template <class Format, class Rule, int kTold>
const void* of_shape(const KernelShape& shape) {
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
const void* of_rule(const KernelShape& shape) {
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
const void* of_format(const KernelShape& shape) {
  if (shape.rule == SlotRule::kMomentum) return of_rule<Format, Momentum>(shape);
  if constexpr (std::is_same_v<Format, Tf32>)
    return of_rule<Format, PlainAdam>(shape);
  else
    return shape.rule == SlotRule::kAdam ? of_rule<Format, Adam>(shape) : of_rule<Format, AdamW>(shape);
}

}  // namespace

const void* streamed_slot_kernel(const KernelShape& shape) {
  return shape.precision == Precision::kFp32   ? of_format<Fp32>(shape)
         : shape.precision == Precision::kTf32 ? of_format<Tf32>(shape)
         : shape.precision == Precision::kFp16 ? of_format<Fp16>(shape)
                                               : of_format<Bf16>(shape);
}

}  // namespace headroom::emulated
