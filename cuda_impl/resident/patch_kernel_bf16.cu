// The patch kernel in bf16.
#include "resident/patch_step.cuh"

namespace headroom::resident {

const void* patch_kernel_bf16() { return reinterpret_cast<const void*>(&patch_steps<Bf16Type>); }

}  // namespace headroom::resident
