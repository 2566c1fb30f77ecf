// The streamed step in bf16 with lower halves of masters that stay on the chip.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_kept_bf16() {
  return reinterpret_cast<const void*>(&streamed_steps<KeptBf16, 1>);
}

}  // namespace headroom::streamed
