// The slice kernel in fp32.
#include "resident/slice_stream.cuh"

namespace headroom::resident {

SliceKernel slice_kernel_fp32(Form form, int pairs, int team, int own) {
  return slice_stream_kernel_of<SliceFp32>(form, pairs, team, own);
}

}  // namespace headroom::resident
