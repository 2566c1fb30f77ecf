// The step for every tiling, in one format: a translation unit for each.
#pragma once

#include <iterator>
#include <optional>
#include <type_traits>

#include "tiled/kernels.h"
#include "tiled/step.cuh"

namespace headroom::tiled {

template <class Format>
std::optional<Kernel> find_kernel(const Tiling& tiling, bool relu) {
  std::optional<Kernel> found;
  const auto consider = [&]<int kIndex>(std::integral_constant<int, kIndex>) {
    constexpr Tiling kTiling = kTilings[kIndex];
    using S = Shape<kTiling.groups, kTiling.columns, kTiling.teams>;
    if (tiling != kTiling) return;
    const auto kernel = relu ? train_kernel<Format, kTiling.groups, kTiling.columns, kTiling.teams, true>
                             : train_kernel<Format, kTiling.groups, kTiling.columns, kTiling.teams, false>;
    found = Kernel{reinterpret_cast<const void*>(kernel), S::kThreads, static_cast<int>(sizeof(SharedMemory<S>)) + 1024};
  };
  consider(std::integral_constant<int, 0>{});
  consider(std::integral_constant<int, 1>{});
  consider(std::integral_constant<int, 2>{});
  static_assert(std::size(kTilings) == 3);
  return found;
}

}  // namespace headroom::tiled
