// Launches of the pipeline: one translation unit a format.
#pragma once

#include <stdexcept>

#include "device/check.h"
#include "fused/launch_config.h"
#include "fused/pipeline.cuh"

namespace headroom::fused {

template <class Format, int kHidden, int kPack>
void launch_pipeline_of(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  constexpr int kBytes = PipelineMap<kHidden, kPack>::kSharedBytes;
  const auto kernel = pipeline_kernel<Format, kHidden, kPack>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const LaunchConfig launch(blocks, kHidden * kWarpgroup, kBytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
}

template <class Format>
void Pipeline<Format>::launch(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  const auto with_pack = [&]<int kHidden>(std::integral_constant<int, kHidden>) {
    switch (arguments.plan.pack) {
      case 1:
        return launch_pipeline_of<Format, kHidden, 1>(arguments, blocks, stream);
      case 2:
        return launch_pipeline_of<Format, kHidden, 2>(arguments, blocks, stream);
    }
    throw std::logic_error("pipeline: a pack of " + std::to_string(arguments.plan.pack));
  };
  switch (arguments.plan.hidden) {
    case 1:
      return with_pack(std::integral_constant<int, 1>{});
    case 2:
      return with_pack(std::integral_constant<int, 2>{});
    case 3:
      return with_pack(std::integral_constant<int, 3>{});
    case 4:
      return with_pack(std::integral_constant<int, 4>{});
  }
  throw std::logic_error("pipeline: " + std::to_string(arguments.plan.hidden) + " hidden layers");
}

}  // namespace headroom::fused
