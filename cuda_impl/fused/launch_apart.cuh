// Launches of the form whose sums of weight gradients are apart from its tiles' way: one translation unit a format.
#pragma once

#include <stdexcept>

#include "device/check.h"
#include "fused/apart.cuh"
#include "machine/launch_config.h"

namespace headroom::fused {

template <class Format, int kHidden>
void launch_apart_of(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  constexpr int kBytes = ApartMap<kHidden>::kSharedBytes;
  const auto kernel = apart_kernel<Format, kHidden>;
  allow_shared_bytes(kernel, kBytes);
  const LaunchConfig launch(blocks, kApartThreads, kBytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
}

template <class Format>
void Apart<Format>::launch(const PipelineArguments& arguments, int blocks, cudaStream_t stream) {
  switch (arguments.plan.hidden) {
    case 1:
      return launch_apart_of<Format, 1>(arguments, blocks, stream);
    case 2:
      return launch_apart_of<Format, 2>(arguments, blocks, stream);
    case 3:
      return launch_apart_of<Format, 3>(arguments, blocks, stream);
    case 4:
      return launch_apart_of<Format, 4>(arguments, blocks, stream);
  }
  throw std::logic_error("apart: " + std::to_string(arguments.plan.hidden) + " hidden layers");
}

}  // namespace headroom::fused
