// Teams of two that divide the rows of the batch, in 16 bits.
#include "resident/slice_rows.cuh"

namespace headroom::resident {

SliceKernel slice_rows_kernel(Precision precision) {
  return precision == Precision::kFp16 ? slice_rows_kernel_of<SliceFp16>()
                                       : slice_rows_kernel_of<SliceBf16>();
}

}  // namespace headroom::resident
