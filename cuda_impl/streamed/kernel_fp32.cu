// The streamed step in fp32; with hints for the L2 in kernels of their own.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_fp32(int groups) {
  return groups > 1 ? kernel_of<Fp32, kMostGroups, 0>() : kernel_of<Fp32, 1, 0>();
}
const void* streamed_kernel_held_fp32() { return kernel_of<HeldFp32, 1, 0>(); }

}  // namespace headroom::streamed
