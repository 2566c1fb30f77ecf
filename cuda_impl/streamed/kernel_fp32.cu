// The streamed step in fp32.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp32(int groups, bool joined) {
  if (groups > 1) return kernel_of<Fp32, kMostGroups, 0>();
  return joined ? kernel_of<Fp32, 1, 1>() : kernel_of<Fp32, 1, 0>();
}

}  // namespace headroom::streamed
