// The resident step in fp32.
#include "resident/step.cuh"

namespace headroom::resident {

const void* resident_kernel_fp32(Form form) { return kernel_of<Fp32>(form); }

}  // namespace headroom::resident
