// The runtime's launches that take a kernel as a pointer. Alone in a file, so that a program without such launches needs no
// call_of().
#include <cuda_runtime_api.h>

#include "runtime.h"

// NOLINTBEGIN: names and parameters are the runtime's.
extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  return headroom::emulated::launch_thread(*config, headroom::emulated::call_of(kernel, arguments[0]));
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // extern "C"
// NOLINTEND
