// Launches of the pair form: one translation unit a format.
#pragma once

#include "device/check.h"
#include "fused/pair.cuh"
#include "machine/launch_config.h"

namespace headroom::fused {

template <class Format>
int Pair<Format>::fitting() {
  allow_shared_bytes(pair_kernel<Format>, PairMap::kSharedBytes);
  int pairs = 0;
  const LaunchConfig launch(2, kPairThreads, PairMap::kSharedBytes, nullptr, 2);
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&pairs, pair_kernel<Format>, &launch.config));
  return pairs;
}

template <class Format>
void Pair<Format>::launch(const PipelineArguments& arguments, int pairs, cudaStream_t stream) {
  allow_shared_bytes(pair_kernel<Format>, PairMap::kSharedBytes);
  const LaunchConfig launch(2 * pairs, kPairThreads, PairMap::kSharedBytes, stream, 2);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, pair_kernel<Format>, arguments));
}

}  // namespace headroom::fused
