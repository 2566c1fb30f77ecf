// The streamed step in tf32.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_tf32(int groups) { return kernel_of<Tf32>(groups); }
const void* streamed_kernel_single_tf32() {
  return reinterpret_cast<const void*>(&streamed_steps<SingleTf32, 1>);
}

}  // namespace headroom::streamed
