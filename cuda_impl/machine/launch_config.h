// A launch that may begin while the kernel before it on the stream ends (it waits for it itself), optionally in clusters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "core/error.h"
#include "device/check.h"
#include "device/device.h"

namespace headroom::machine {

/// Lets a kernel's thread blocks have so many bytes of shared memory. Throws UnsupportedError if the device has not as many.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, int bytes) {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const int there = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (bytes > there)
    throw UnsupportedError("a thread block needs " + std::to_string(bytes) +
                           " bytes of shared memory; the device has " + std::to_string(there));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

struct LaunchConfig {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};

  LaunchConfig(int blocks, int threads, int shared_bytes, cudaStream_t stream, int cluster = 1) {
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

}  // namespace headroom::machine
