// The slice kernel in tf32.
#include "resident/slice_step.cuh"

namespace headroom::resident {

const void* slice_kernel_tf32(Form form, int pairs, int layers) {
  return slice_kernel_of<SliceTf32>(form, pairs, layers);
}

}  // namespace headroom::resident
