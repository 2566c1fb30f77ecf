// Launches of the pipeline: one translation unit a format.
#pragma once

#include <stdexcept>

#include "device/check.h"
#include "fused/pipeline.cuh"
#include "machine/launch_config.h"
#include "machine/panels.h"

namespace headroom::fused {

template <class Format, int kHidden>
void launch_pipeline_of(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  constexpr int kBytes = PipelineMap<kHidden>::kSharedBytes;
  const auto kernel = pipeline_kernel<Format, kHidden>;
  allow_shared_bytes(kernel, kBytes);
  const LaunchConfig launch(blocks, kHidden * kWarpgroup, kBytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
}

template <class Format>
void Pipeline<Format>::launch(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  switch (arguments.plan.hidden) {
    case 1:
      return launch_pipeline_of<Format, 1>(arguments, blocks, stream);
    case 2:
      return launch_pipeline_of<Format, 2>(arguments, blocks, stream);
    case 3:
      return launch_pipeline_of<Format, 3>(arguments, blocks, stream);
    case 4:
      return launch_pipeline_of<Format, 4>(arguments, blocks, stream);
  }
  throw std::logic_error("pipeline: " + std::to_string(arguments.plan.hidden) + " hidden layers");
}

}  // namespace headroom::fused
