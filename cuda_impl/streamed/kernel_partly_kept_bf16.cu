// The streamed step in bf16 with hints for the L2 and some lower halves of masters that stay on the chip.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_partly_kept_bf16() { return kernel_of<PartlyKeptBf16, 1, 2>(); }

}  // namespace headroom::streamed
