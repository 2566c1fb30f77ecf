// The streamed step in fp32.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp32(int groups) { return kernel_of<Fp32>(groups); }

}  // namespace headroom::streamed
