// The streamed step in bf16.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_bf16(int groups) {
  return groups > 1 ? kernel_of<Bf16, kMostGroups, 0>() : kernel_of<Bf16, 1, 0>();
}

}  // namespace headroom::streamed
