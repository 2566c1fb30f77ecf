// The slice kernel in fp16.
#include "resident/slice_step.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_fp16(Form form, int pairs, int layers, int own) {
  return own == 2 ? slice_pair_kernel_of<SliceFp16>(layers) : slice_kernel_of<SliceFp16>(form, pairs, layers);
}

}  // namespace headroom::resident
