// The slice kernel in fp32.
#include "resident/slice_step.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_fp32(int pairs, int team) {
  if (team == 4) return slice_steps_kernel<SliceFp32, SliceGrid, 1, 0, 4>();
  return pairs == 1 ? slice_steps_kernel<SliceFp32, SliceGrid, 1, 0, 2>()
                    : slice_steps_kernel<SliceFp32, SliceGrid, 2, 0, 2>();
}

}  // namespace headroom::resident
