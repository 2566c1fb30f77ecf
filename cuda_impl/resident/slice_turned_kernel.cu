// Turned masters, in 16 bits.
#include "resident/slice_turned.cuh"

namespace headroom::resident {

SliceKernel slice_turned_kernel(Precision precision) {
  return precision == Precision::kFp16 ? slice_turned_kernel_of<SliceFp16>()
                                       : slice_turned_kernel_of<SliceFiniteBf16>();
}

}  // namespace headroom::resident
