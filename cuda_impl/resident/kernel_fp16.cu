// The resident step in fp16.
#include "resident/step.cuh"

namespace headroom::resident {

const void* resident_kernel_fp16(Form form) { return kernel_of<Fp16>(form); }

}  // namespace headroom::resident
