// Launches and limits of kernels by their types, as CUDA C++ has them beside the runtime's functions of C.
#pragma once

#include <cuda_runtime_api.h>

#include <tuple>

#include "runtime.h"

template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return headroom::emulated::launch_thread(
      *config, [kernel, held = std::tuple<Parameters...>(arguments...)] { std::apply(kernel, held); });
}
