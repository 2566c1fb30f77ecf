// The slice kernel in bf16.
#include "resident/slice_whole.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_bf16(Form form, int pairs, int own, bool whole) {
  if (whole) return slice_whole_kernel_of<SliceBf16>();
  return own == 2 ? slice_pair_kernel_of<SliceBf16>() : slice_kernel_of<SliceBf16>(form, pairs);
}

}  // namespace headroom::resident
