// The resident step in tf32.
#include "resident/step.cuh"

namespace headroom::resident {

const void* resident_kernel_tf32(Form form) { return kernel_of<Tf32>(form); }

}  // namespace headroom::resident
