// Launches of the form whose warps take their rows through all layers: one translation unit a format.
#pragma once

#include <stdexcept>

#include "device/check.h"
#include "fused/warps.cuh"
#include "machine/launch_config.h"

namespace headroom::fused {

template <class Format, int kHidden>
void launch_warps_of(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  constexpr int kBytes = WarpMap<kHidden>::kSharedBytes;
  const auto kernel = warp_kernel<Format, kHidden>;
  allow_shared_bytes(kernel, kBytes);
  const LaunchConfig launch(blocks, kWarpThreads, kBytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
}

template <class Format>
void Warps<Format>::launch(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  switch (arguments.plan.hidden) {
    case 1:
      return launch_warps_of<Format, 1>(arguments, blocks, stream);
    case 2:
      return launch_warps_of<Format, 2>(arguments, blocks, stream);
    case 3:
      return launch_warps_of<Format, 3>(arguments, blocks, stream);
    case 4:
      return launch_warps_of<Format, 4>(arguments, blocks, stream);
  }
  throw std::logic_error("warps: " + std::to_string(arguments.plan.hidden) + " hidden layers");
}

}  // namespace headroom::fused
