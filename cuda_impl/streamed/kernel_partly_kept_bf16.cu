// The streamed step in bf16 with some lower halves of masters that stay on the chip, in panels of 2 tiles with hints for the L2 and of 4
// without.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_partly_kept_bf16(bool holds) {
  return holds ? kernel_of<HeldPartlyKeptBf16, 1, 2>() : kernel_of<PartlyKeptBf16, 1, 4>();
}

}  // namespace headroom::streamed
