// The patch kernel in fp16.
#include "resident/patch_step.cuh"

namespace headroom::resident {

const void* patch_kernel_fp16() { return reinterpret_cast<const void*>(&patch_steps<Fp16Type>); }

}  // namespace headroom::resident
