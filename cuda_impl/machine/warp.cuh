// What one warp asks the machine for, the same in cuda-resident, cuda-streamed and cuda-layered: transposes, the precision
// contract's roundings, and products on the tensor cores. Products are not volatile: the compiler may move and overlap them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define MACHINE_DEVICE __device__ __forceinline__

namespace headroom::machine {

/// An 8x8 matrix of 16-bit values, two neighbours of row lane / 4 a lane, transposed.
MACHINE_DEVICE std::uint32_t transpose8x8(std::uint32_t word) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(word));
  return transposed;
}
/// Bytes of (low, high), counted from low's lowest, chosen by the digits of `order`.
MACHINE_DEVICE std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t order) {
  return __byte_perm(low, high, order);
}

MACHINE_DEVICE float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
MACHINE_DEVICE std::uint32_t float_to_bits(float value) { return __float_as_uint(value); }
MACHINE_DEVICE std::uint32_t pack_fp16(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
MACHINE_DEVICE std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}
MACHINE_DEVICE float fp16_value(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
/// Ties to even, as the oracle: an input that is rounded the other way moves a whole sum by 2^-11 of one term and flips
/// ReLUs that fp32 summation would leave alone.
MACHINE_DEVICE float round_tf32(float value) {
  std::uint32_t bits;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}
/// NaN stays NaN, so that a broken network is seen; never a zero with a sign.
MACHINE_DEVICE float relu(float value) {
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(value));
  return result;
}

// c [16, 8] += a [16, k] * b [k, 8]

#define MACHINE_PRODUCT(name, instruction)                                                                   \
  template <class Sums> /* float[4], or where four of them begin */                                          \
  MACHINE_DEVICE void name(Sums&& c, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3, \
                           std::uint32_t b0, std::uint32_t b1) {                                             \
    asm(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                       \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                             \
  }
MACHINE_PRODUCT(product_fp16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
MACHINE_PRODUCT(product_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
MACHINE_PRODUCT(product_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef MACHINE_PRODUCT

}  // namespace headroom::machine
