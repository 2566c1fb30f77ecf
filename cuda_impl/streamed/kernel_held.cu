// The streamed step for masters larger than the L2, which is told what to hold: kernels of their own, since choosing between
// hints costs 1 to 3 us at H = 2048, where all masters fit.
#include "streamed/step.cuh"

namespace headroom::streamed {

const void* streamed_kernel_held_bf16() { return kernel_of<HeldBf16, 1, 0>(); }
const void* streamed_kernel_held_fp16() { return kernel_of<HeldFp16, 1, 0>(); }
const void* streamed_kernel_held_tf32() { return kernel_of<HeldTf32, 1, 0>(); }

}  // namespace headroom::streamed
