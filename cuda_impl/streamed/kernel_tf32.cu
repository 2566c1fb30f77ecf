// The streamed step in tf32.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_tf32(int groups) { return kernel_of<Tf32>(groups); }

}  // namespace headroom::streamed
