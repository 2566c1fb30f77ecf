// Launches of the chain: one translation unit a width and format.
#pragma once

#include "device/check.h"
#include "fused/chain.cuh"
#include "machine/launch_config.h"

namespace headroom::fused {

template <class Format, int kWidth>
void Chain<Format, kWidth>::launch(const ChainArguments& arguments, int blocks, cudaStream_t stream) {
  const auto kernel =
      arguments.plan.class_rows == 16 ? chain_kernel<Format, kWidth, 16> : chain_kernel<Format, kWidth, 32>;
  const int bytes = arguments.layout.shared_bytes;
  allow_shared_bytes(kernel, bytes);
  const LaunchConfig launch_config(blocks, kChainThreads, bytes, stream);
  CUDA_CHECK(cudaLaunchKernelEx(&launch_config.config, kernel, arguments));
}

}  // namespace headroom::fused
