// The streamed step in fp16.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp16(int groups) { return kernel_of<Fp16>(groups); }

}  // namespace headroom::streamed
