// The rules of what is trained, as every kernel of cuda-tiled applies them.
#pragma once

#include <cstring>

#include "rules/activation.cuh"
#include "rules/optimizer.cuh"
#include "tiled/list.cuh"

namespace headroom::tiled {

TILED_BOTH bool keeps_outputs(Activation activation) {  // core/training_rules.h, slope_is_of_output()
  return activation == Activation::kTanh || activation == Activation::kElu;
}

TILED_BOTH bool keeps_sums(Activation activation) {
  return activation != Activation::kRelu && !keeps_outputs(activation);
}

/// One parameter by its gradient, with as many slots as the optimizer has.
template <int kSlots>
MACHINE_DEVICE void update(const rules::UpdateFactors& factors, float gradient, float& value, float& first,
                           float& second) {
  if constexpr (kSlots == 2)
    rules::update_adam(factors, gradient, value, first, second);
  else if constexpr (kSlots == 1)
    rules::update_with_momentum(factors, gradient, value, first);
  else
    value = fmaf(-factors.rate, gradient, value);
}
/// The factors of a step's updates, eight floats.
MACHINE_DEVICE rules::UpdateFactors factors_of(const Arguments& a, const StepPlace& step) {
  static_assert(sizeof(rules::UpdateFactors) == 2 * sizeof(uint4));
  const auto* from = reinterpret_cast<const uint4*>(a.factors + step.of_launch);
  const uint4 words[2] = {machine::load_constant16(from), machine::load_constant16(from + 1)};
  rules::UpdateFactors factors;
  memcpy(&factors, words, sizeof factors);
  return factors;
}

}  // namespace headroom::tiled
