// Packed tiles, in tf32.
#include "resident/slice_packed.cuh"

namespace headroom::resident {

SliceKernel slice_packed_kernel_tf32() { return slice_packed_kernel_of<SliceTf32>(); }

}  // namespace headroom::resident
