// The block kernel, in fp32.
#include "resident/block_step.cuh"

namespace headroom::resident {

const void* block_kernel() { return reinterpret_cast<const void*>(&block_steps); }

}  // namespace headroom::resident
