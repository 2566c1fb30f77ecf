// The first layer a step ahead, in fp32.
#include "resident/slice_ahead.cuh"

namespace headroom::resident {

SliceKernel slice_ahead_kernel_fp32(int team, int slices, int gram_teams) {
  return slice_ahead_kernel_of<SliceFp32>(team, slices, gram_teams);
}

}  // namespace headroom::resident
