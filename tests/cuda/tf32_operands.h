// What cuda-streamed's packed tf32 activations assume of the tensor core, which PTX does not promise.
#pragma once

#include <cstdint>

namespace headroom {

/// Of 2.7e8 sums of random tf32 products (mma.sync.m16n8k8), how many differ in any bit if the lower 13 bits of the
/// operands' registers are random instead of zero; `special`: with zeros, subnormals and infinities among the values.
/// Throws CudaError if the kernel cannot run.
std::int64_t sums_that_lower_bits_change(std::uint32_t seed, bool special);

}  // namespace headroom
