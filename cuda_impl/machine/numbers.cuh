// Numeric formats: the precision contract's roundings, and functions to fewer bits than the C library's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE float bits_to_float(std::uint32_t bits) { return __uint_as_float(bits); }
MACHINE_DEVICE std::uint32_t float_to_bits(float value) { return __float_as_uint(value); }
MACHINE_DEVICE std::int64_t nearest_integer(float value) { return __float2ll_rn(value); }

/// NaN stays NaN, so that a broken network is seen; never a zero with a sign.
MACHINE_DEVICE float relu(float value) {
  float result;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(value));
  return result;
}

// Two values rounded to nearest, ties to even, `low` in the lower half; _relu: of max(value, 0), where NaN stays NaN.

#define MACHINE_PACK(name, instruction)                                 \
  MACHINE_DEVICE std::uint32_t name(float low, float high) {            \
    std::uint32_t pair;                                                 \
    asm(instruction " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)); \
    return pair;                                                        \
  }
MACHINE_PACK(pack_fp16, "cvt.rn.f16x2.f32")
MACHINE_PACK(pack_fp16_relu, "cvt.rn.relu.f16x2.f32")
MACHINE_PACK(pack_bf16, "cvt.rn.bf16x2.f32")
MACHINE_PACK(pack_bf16_relu, "cvt.rn.relu.bf16x2.f32")
#undef MACHINE_PACK

MACHINE_DEVICE float fp16_value(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
/// For two 16-bit values: all bits of those that are above zero.
MACHINE_DEVICE std::uint32_t positive_fp16(std::uint32_t pair) {
  return __hgt2_mask(*reinterpret_cast<const __half2*>(&pair), __half2half2(__ushort_as_half(0)));
}
MACHINE_DEVICE std::uint32_t positive_bf16(std::uint32_t pair) {
  return __hgt2_mask(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                     __bfloat162bfloat162(__ushort_as_bfloat16(0)));
}

/// Ties away from zero, as the high halves of an exact split would be: a tie has its 16th bit set, and with the lowest
/// set as well it is none any more. Infinities and NaN stay what they are.
MACHINE_DEVICE std::uint32_t pack_bf16_weights(float low, float high) {
  const auto without_tie = [](float value) {
    const std::uint32_t bits = float_to_bits(value);
    return bits_to_float(bits | (bits >> 15 & 1u));
  };
  return pack_bf16(without_tie(low), without_tie(high));
}
/// The same with two instructions less: with the lowest bit always set no tie is left, and nothing else is rounded differently,
/// but an infinity becomes a NaN. So the loss is NaN in the first step that multiplies an infinite weight. By the contract it may
/// be finite for that step: where ReLU cuts minus infinity off, or softmax does.
MACHINE_DEVICE std::uint32_t pack_finite_bf16_weights(float low, float high) {
  return pack_bf16(bits_to_float(float_to_bits(low) | 1), bits_to_float(float_to_bits(high) | 1));
}

/// The nearest tf32 value, ties to even, as the oracle: an input that is rounded the other way moves a whole sum by 2^-11 of one term
/// and flips ReLUs that fp32 summation would leave alone. The instruction came with sm_90; the one that sm_80 has rounds ties away
/// from zero.
MACHINE_DEVICE float round_tf32(float value) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t bits;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
#else
  const std::uint32_t bits = __float_as_uint(value);
  if (value != value) return value;  // adding to the bits of a NaN can carry into the sign
  return __uint_as_float((bits + 0xfff + ((bits >> 13) & 1)) & ~0x1fffu);
#endif
}

// To about 2^-21. Those of no other name take no subnormal values and make none, which the compiler's own scale first.

MACHINE_DEVICE float exponential2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
MACHINE_DEVICE float logarithm2(float value) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
MACHINE_DEVICE float reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
MACHINE_DEVICE float exponential(float value) { return exponential2(value * 1.44269504f); }
MACHINE_DEVICE float divide(float value, float by) { return value * reciprocal(by); }
/// With the cases that a loss does not need.
MACHINE_DEVICE float exponential_checked(float value) { return __expf(value); }
MACHINE_DEVICE float logarithm_checked(float value) { return __logf(value); }
MACHINE_DEVICE float divide_checked(float value, float by) { return __fdividef(value, by); }

}  // namespace headroom::machine
