// The slice kernel in tf32.
#include "resident/slice_step.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_tf32(Form form, int pairs, int layers, int team, int own) {
  return slice_kernel_of<SliceTf32>(form, pairs, layers, team, own);
}

}  // namespace headroom::resident
