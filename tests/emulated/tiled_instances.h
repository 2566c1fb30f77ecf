// The kernels of cuda-tiled that tests have in place of a compiler: for each format those that the tests' networks ask for on an H200 and on a
// GPU of four multiprocessors. They have code for all forms of tasks, look at edges, and are timed, whatever their network would have.
#pragma once

#include "intrinsics.h"
// What CUDA C++ has without asking comes first.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "tiled/portable.cuh"
#include "tiled/schedule.h"
#include "tiled/step.cuh"

namespace headroom::emulated {

struct TiledInstance {
  std::size_t tiling;  ///< of those that the format has
  Activation activation;
  Loss loss;
  int slots;
  bool ranked = false;
};

template <tiled::Tiling kTiling, class Format, tiled::KernelRules kRules>
const void* tiled_function() {
  if constexpr (kTiling.portable)
    return reinterpret_cast<const void*>(&tiled::train_portable_kernel<kTiling, Format, kRules>);
  else
    return reinterpret_cast<const void*>(&tiled::train_kernel<kTiling, Format, kRules>);
}

/// Throws std::logic_error if `kInstances` has none for this shape.
template <class Format, const auto& kTilings, const auto& kInstances>
const void* tiled_instance(const tiled::KernelShape& shape) {
  const void* found = nullptr;
  const auto look = [&]<std::size_t kIndex>() {
    constexpr TiledInstance kOne = kInstances[kIndex];
    constexpr tiled::Tiling kTiling = kTilings[kOne.tiling];
    constexpr tiled::KernelRules kRules = {
        .activation = kOne.activation, .loss = kOne.loss, .slots = kOne.slots, .ranked = kOne.ranked};
    if (shape.tiling == kTiling && shape.rules.activation == kRules.activation &&
        shape.rules.loss == kRules.loss && shape.rules.slots == kRules.slots &&
        shape.rules.ranked == kRules.ranked)
      found = tiled_function<kTiling, Format, kRules>();
  };
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (look.template operator()<kIndices>(), ...);
  }(std::make_index_sequence<std::size(kInstances)>());
  if (found != nullptr) return found;
  const auto place = std::find(std::begin(kTilings), std::end(kTilings), shape.tiling) - std::begin(kTilings);
  throw std::logic_error("tests/emulated has no instance of cuda-tiled in " +
                         std::string(to_string(shape.precision)) + " with tiling " + std::to_string(place) +
                         ", " + std::string(to_string(shape.rules.activation)) + ", " +
                         std::string(to_string(shape.rules.loss)) + ", slots " +
                         std::to_string(shape.rules.slots) + (shape.rules.ranked ? ", ranked" : ""));
}

const void* tiled_fp32_instance(const tiled::KernelShape& shape);
const void* tiled_tf32_instance(const tiled::KernelShape& shape);
const void* tiled_wgmma_tf32_instance(const tiled::KernelShape& shape);
const void* tiled_fp16_instance(const tiled::KernelShape& shape);
const void* tiled_bf16_instance(const tiled::KernelShape& shape);
const void* tiled_portable_fp16_instance(const tiled::KernelShape& shape);
const void* tiled_portable_bf16_instance(const tiled::KernelShape& shape);
/// Of several ranks.
const void* tiled_ranks_instance(const tiled::KernelShape& shape);
const void* tiled_portable_ranks_instance(const tiled::KernelShape& shape);

}  // namespace headroom::emulated
