// The portable step for every one of its tilings: a translation unit for each format.
#pragma once

#include <iterator>
#include <optional>
#include <utility>

#include "tiled/kernels.h"
#include "tiled/portable.cuh"

namespace headroom::tiled {

template <class Format, const auto& kAllTilings = kPortableTilings>
std::optional<Kernel> find_portable_kernel(const Tiling& tiling) {
  std::optional<Kernel> found;
  const auto look = [&]<std::size_t kIndex>() {
    constexpr Tiling kTiling = kAllTilings[kIndex];
    using S = PortableShape<Format, kTiling.rows(), kTiling.columns, kTiling.weight_rows(),
                            kTiling.weight_columns()>;
    if (tiling != kTiling) return;
    found =
        Kernel{reinterpret_cast<const void*>(
                   train_portable_kernel<Format, S::kRows, S::kColumns, S::kWeightRows, S::kWeightColumns>),
               S::kThreads, static_cast<int>(sizeof(PortableMemory<S>)) + 128, S::kStageBytes};
  };
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (look.template operator()<kIndices>(), ...);
  }(std::make_index_sequence<std::size(kAllTilings)>());
  return found;
}

}  // namespace headroom::tiled
