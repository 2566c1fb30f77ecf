// The streamed step in fp16.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp16(int groups, int panels) {
  if (groups > 1) return kernel_of<Fp16, kMostGroups, 0>();
  return panels == 1 ? kernel_of<Fp16, 1, 1>() : kernel_of<Fp16, 1, 0>();
}

}  // namespace headroom::streamed
