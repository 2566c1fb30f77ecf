// Whole sums in four clusters that divide the rows of the batch, in tf32.
#include "resident/slice_whole_rows.cuh"

namespace headroom::resident {

SliceKernel slice_whole_rows_kernel_tf32() { return slice_whole_rows_kernel_of<SliceTf32>(); }

}  // namespace headroom::resident
