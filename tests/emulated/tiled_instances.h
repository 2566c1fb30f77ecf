// The kernels of cuda-tiled that tests have in place of a compiler: for each precision and tiling all rules of training. They have code for all
// forms of tasks, look at edges, and are timed, so that there is one for every shape.
#pragma once

#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include <cstddef>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "tiled/portable.cuh"
#include "tiled/schedule.h"
#include "tiled/step.cuh"

namespace headroom::emulated {

template <tiled::Tiling kTiling, class Format, tiled::KernelRules kRules>
const void* tiled_function() {
  if constexpr (kTiling.portable)
    return reinterpret_cast<const void*>(&tiled::train_portable_kernel<kTiling, Format, kRules>);
  else
    return reinterpret_cast<const void*>(&tiled::train_kernel<kTiling, Format, kRules>);
}

/// Null if the rules are not those of the template's number: activation, loss and slots.
template <tiled::Tiling kTiling, class Format, std::size_t... kNumber>
const void* tiled_function_of(const tiled::KernelRules& rules, std::index_sequence<kNumber...>) {
  const void* found = nullptr;
  const auto look = [&]<std::size_t kOne>() {
    constexpr std::size_t kLosses = kAllLosses.size(), kSlots = 3;
    constexpr tiled::KernelRules kRules = {.activation = kAllActivations[kOne / (kLosses * kSlots)],
                                           .loss = kAllLosses[kOne / kSlots % kLosses],
                                           .slots = static_cast<int>(kOne % kSlots)};
    if (rules.activation == kRules.activation && rules.loss == kRules.loss && rules.slots == kRules.slots)
      found = tiled_function<kTiling, Format, kRules>();
  };
  (look.template operator()<kNumber>(), ...);
  return found;
}

/// The instance in this format with one of `kTilings`. Throws std::logic_error if it is another.
template <class Format, const auto& kTilings>
const void* tiled_instance(const tiled::KernelShape& shape) {
  constexpr auto kEvery = std::make_index_sequence<kAllActivations.size() * kAllLosses.size() * 3>();
  const void* found = nullptr;
  const auto look = [&]<std::size_t kIndex>() {
    if (shape.tiling == kTilings[kIndex])
      found = tiled_function_of<kTilings[kIndex], Format>(shape.rules, kEvery);
  };
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (look.template operator()<kIndices>(), ...);
  }(std::make_index_sequence<std::extent_v<std::remove_reference_t<decltype(kTilings)>>>());
  if (found == nullptr) throw std::logic_error("tests/emulated has no kernel of cuda-tiled with these tiles");
  return found;
}

const void* tiled_fp32_instance(const tiled::KernelShape& shape);
const void* tiled_tf32_instance(const tiled::KernelShape& shape);
const void* tiled_fp16_instance(const tiled::KernelShape& shape);
const void* tiled_bf16_instance(const tiled::KernelShape& shape);
const void* tiled_portable_fp16_instance(const tiled::KernelShape& shape);
const void* tiled_portable_bf16_instance(const tiled::KernelShape& shape);

}  // namespace headroom::emulated
