// The rules of what is trained, as every kernel of cuda-tiled applies them: activation and slots as constants, and a parameter's update.
#pragma once

#include <cstddef>
#include <cstring>

#include "rules/activation.cuh"
#include "rules/optimizer.cuh"
#include "tiled/list.cuh"

namespace headroom::tiled {

// Constants of their own: device code may not ask an array of the standard library.
inline constexpr std::size_t kActivations = kAllActivations.size();
template <std::size_t kPlace>
inline constexpr Activation kActivationAt = kAllActivations[kPlace];

/// Calls work(Constant) with the activation as a constant, so that its branches lie outside of the loops over values. Not with ReLU,
/// which has a kernel of its own.
template <std::size_t kPlace = 0, class Work>
MACHINE_DEVICE void with_activation(Activation activation, const Work& work) {
  if constexpr (kPlace < kActivations) {
    constexpr Activation kOne = kActivationAt<kPlace>;
    if constexpr (kOne != Activation::kRelu)
      if (activation == kOne) return work(Constant<kOne>{});
    with_activation<kPlace + 1>(activation, work);
  }
}
TILED_BOTH bool keeps_outputs(Activation activation) {  // core/training_rules.h, slope_is_of_output()
  return activation == Activation::kTanh || activation == Activation::kElu;
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
/// Calls work(Constant) with their number as a constant.
template <class Work>
MACHINE_DEVICE void with_slots(int slots, const Work& work) {
  if (slots == 0) return work(Constant<0>{});
  if (slots == 1) return work(Constant<1>{});
  return work(Constant<2>{});
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
