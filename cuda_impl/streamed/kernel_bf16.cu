// The streamed step in bf16.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_bf16(int groups) { return kernel_of<Bf16>(groups); }

}  // namespace headroom::streamed
