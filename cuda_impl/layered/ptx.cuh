// The machine's instructions of the portable kernels, one small function each: copies into shared memory, and what a warp's
// products on the tensor cores take. All are sm_80's, but for one rounding.
#pragma once

#include "layered/formats.h"
#include "machine/warp.cuh"

namespace headroom::layered {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// Starts a copy of 16 bytes of which the first `bytes` are read and the rest become zero.
__device__ inline void copy_async(void* destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(shared_address(destination)),
               "l"(source), "r"(bytes)
               : "memory");
}
__device__ inline void close_copy_group() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most `kPending` of this thread's latest groups are still under way.
template <int kPending>
__device__ inline void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ inline void load_blocks(unsigned (&blocks)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_blocks_transposed(unsigned (&blocks)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The nearest tf32 value, ties to even. The instruction for it came with sm_90; the one that sm_80 has rounds
/// ties away from zero, and the contract does not.
__device__ inline unsigned round_to_tf32(float value) {
#if __CUDA_ARCH__ >= 900
  return __float_as_uint(machine::round_tf32(value));
#else
  const unsigned bits = __float_as_uint(value);
  if (value != value) return bits;  // adding to the bits of a NaN can carry into the sign
  return (bits + 0xfff + ((bits >> 13) & 1)) & ~0x1fffu;
#endif
}

/// sums [16, 8] += a [16, inner] * b [inner, 8]; which lane holds what is said in warp_tensor.cuh.
template <class Format>
__device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (Format::kPrecision == Precision::kTf32)
    machine::product_tf32(sums, a[0], a[1], a[2], a[3], b0, b1);
  else if constexpr (Format::kPrecision == Precision::kFp16)
    machine::product_fp16(sums, a[0], a[1], a[2], a[3], b0, b1);
  else
    machine::product_bf16(sums, a[0], a[1], a[2], a[3], b0, b1);
}

}  // namespace headroom::layered
