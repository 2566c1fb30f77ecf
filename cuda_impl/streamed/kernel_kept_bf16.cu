// The streamed step in bf16 with lower halves of masters that stay on the chip.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_kept_bf16() { return kernel_of<KeptBf16, 1, 1>(); }

}  // namespace headroom::streamed
