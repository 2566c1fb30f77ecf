// Launches of the cluster form: one translation unit a format.
#pragma once

#include <stdexcept>

#include "device/check.h"
#include "fused/cluster.cuh"
#include "machine/launch_config.h"

namespace headroom::fused {

/// work(kernel, bytes of shared memory) for this many hidden layers.
template <class Format, class Work>
void with_cluster_kernel(int hidden, const Work& work) {
  const auto of = [&]<int kHidden>(std::integral_constant<int, kHidden>) {
    const auto kernel = cluster_kernel<Format, kHidden>;
    constexpr int kBytes = ClusterMap<kHidden>::kSharedBytes;
    allow_shared_bytes(kernel, kBytes);
    work(kernel, kBytes);
  };
  switch (hidden) {
    case 2:
      return of(std::integral_constant<int, 2>{});
    case 3:
      return of(std::integral_constant<int, 3>{});
    case 4:
      return of(std::integral_constant<int, 4>{});
  }
  throw std::logic_error("cluster form: " + std::to_string(hidden) + " hidden layers");
}

template <class Format>
int Cluster<Format>::fitting(int hidden) {
  int clusters = 0;
  with_cluster_kernel<Format>(hidden, [&](auto kernel, int bytes) {
    const LaunchConfig launch(hidden, kClusterThreads, bytes, nullptr, hidden);
    CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config));
  });
  return clusters;
}

template <class Format>
void Cluster<Format>::launch(const PipelineArguments& arguments, int clusters, cudaStream_t stream) {
  with_cluster_kernel<Format>(arguments.plan.hidden, [&](auto kernel, int bytes) {
    const int hidden = arguments.plan.hidden;
    const LaunchConfig launch(hidden * clusters, kClusterThreads, bytes, stream, hidden);
    CUDA_CHECK(cudaLaunchKernelEx(&launch.config, kernel, arguments));
  });
}

}  // namespace headroom::fused
