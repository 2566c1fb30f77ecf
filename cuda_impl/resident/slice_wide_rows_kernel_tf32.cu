// Whole sums in four clusters that divide the rows of the batch, two slices a thread block, in tf32.
#include "resident/slice_wide_rows.cuh"

namespace headroom::resident {

SliceKernel slice_wide_rows_kernel_tf32() { return slice_wide_rows_kernel_of<SliceTf32>(); }

}  // namespace headroom::resident
