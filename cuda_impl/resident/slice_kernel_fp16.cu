// The slice kernel in fp16.
#include "resident/slice_whole.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_fp16(Form form, int pairs, int own, bool whole) {
  if (whole) return slice_whole_kernel_of<SliceFp16>();
  return own == 2 ? slice_pair_kernel_of<SliceFp16>() : slice_kernel_of<SliceFp16>(form, pairs);
}

}  // namespace headroom::resident
