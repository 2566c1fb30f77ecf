// The step for every tiling: a translation unit for each format, with ReLU and with other activations.
#pragma once

#include <iterator>
#include <optional>

#include "tiled/kernels.h"
#include "tiled/step.cuh"

namespace headroom::tiled {

template <class Format, int kIndex, bool kRelu>
Kernel kernel_of() {
  constexpr Tiling kTiling = kTilings[kIndex];
  using S = Shape<kTiling.groups, kTiling.columns, kTiling.teams, kTiling.slabs_of_stage>;
  return {reinterpret_cast<const void*>(train_kernel<S, Format, kRelu>), S::kThreads,
          static_cast<int>(sizeof(SharedMemory<S>)) + 1024};
}

template <class Format>
std::optional<Kernel> find_relu_kernel(const Tiling& tiling) {
  static_assert(std::size(kTilings) == 3);
  if (tiling == kTilings[0]) return kernel_of<Format, 0, true>();
  if (tiling == kTilings[1]) return kernel_of<Format, 1, true>();
  if (tiling == kTilings[2]) return kernel_of<Format, 2, true>();
  return std::nullopt;
}
/// Of any other activation.
template <class Format>
std::optional<Kernel> find_other_kernel(const Tiling& tiling) {
  if (tiling == kTilings[0]) return kernel_of<Format, 0, false>();
  if (tiling == kTilings[2]) return kernel_of<Format, 2, false>();
  return std::nullopt;
}

}  // namespace headroom::tiled
