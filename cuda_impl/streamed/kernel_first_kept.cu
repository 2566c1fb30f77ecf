// The streamed step with masters of the first layer that stay on the chip, in panels of 1 tile and, in fp16 with hints for the L2, of 2.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_first_kept(Precision precision, int panels) {
  if (precision == Precision::kTf32) return kernel_of<FirstKeptTf32, 1, 1>();
  return panels == 1 ? kernel_of<FirstKeptFp16, 1, 1>() : kernel_of<HeldFirstKeptFp16, 1, 2>();
}

}  // namespace headroom::streamed
