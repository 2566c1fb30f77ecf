// The streamed step in tf32.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_tf32(int groups, int panels) {
  if (groups > 1) return kernel_of<Tf32, kMostGroups, 0>();
  return panels == 1 ? kernel_of<Tf32, 1, 1>() : kernel_of<Tf32, 1, 0>();
}

}  // namespace headroom::streamed
