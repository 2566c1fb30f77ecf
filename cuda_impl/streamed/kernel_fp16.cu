// The streamed step in fp16.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp16(int groups) { return kernel_of<Fp16>(groups); }
const void* streamed_kernel_single_fp16() {
  return reinterpret_cast<const void*>(&streamed_steps<SingleFp16, 1>);
}

}  // namespace headroom::streamed
