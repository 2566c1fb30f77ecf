// The resident step in bf16.
#include "resident/step.cuh"

namespace headroom::resident {

const void* resident_kernel_bf16(Form form) { return kernel_of<Bf16>(form); }

}  // namespace headroom::resident
