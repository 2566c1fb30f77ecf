// The slice kernel in tf32.
#include "resident/slice_step.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_tf32(Form form, int pairs, int layers, int team, int own) {
  if (form == Form::kCluster) return slice_steps_kernel<SliceTf32, SliceCluster, 1>();
  if (own == 2) return slice_pair_kernel_of<SliceTf32>();
  if (team == 4) return slice_steps_kernel<SliceTf32, SliceGrid, 1, 0, 4>();
  if (pairs == 1) return slice_steps_kernel<SliceTf32, SliceGrid, 1, 0, 2>();
  // Of four layers, the depth that is measured, with its loop over layers unrolled.
  return layers == 4 ? slice_steps_kernel<SliceTf32, SliceGrid, 2, 4, 2>()
                     : slice_steps_kernel<SliceTf32, SliceGrid, 2, 0, 2>();
}

}  // namespace headroom::resident
