// The two 16-bit formats: how pairs of values are rounded and packed, by the precision contract.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "fused/ptx.cuh"

namespace headroom::fused {

struct Fp16 {
  static constexpr bool kIsBf16 = false;
  /// Rounded to nearest, ties to even; `low` in the lower half.
  FUSED_DEVICE static std::uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  /// The same of max(value, 0); NaN stays NaN.
  FUSED_DEVICE static std::uint32_t pack_relu(float low, float high) { return pack_fp16_relu(low, high); }
  /// All bits of a half that is positive, none of another.
  FUSED_DEVICE static std::uint32_t positive(std::uint32_t pair) {
    return __hgt2_mask(*reinterpret_cast<const __half2*>(&pair), __half2{});
  }
  FUSED_DEVICE static float2 unpack(std::uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
  FUSED_DEVICE static unsigned short round_weight(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  FUSED_DEVICE static unsigned short round(float value) { return round_weight(value); }
};

struct Bf16 {
  static constexpr bool kIsBf16 = true;
  FUSED_DEVICE static std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  FUSED_DEVICE static std::uint32_t pack_relu(float low, float high) { return pack_bf16_relu(low, high); }
  FUSED_DEVICE static std::uint32_t positive(std::uint32_t pair) {
    return __hgt2_mask(*reinterpret_cast<const __nv_bfloat162*>(&pair), __nv_bfloat162{});
  }
  FUSED_DEVICE static float2 unpack(std::uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
  /// Ties away from zero, as the high halves of an exact split would be.
  FUSED_DEVICE static unsigned short round_weight(float value) {
    const std::uint32_t bits = __float_as_uint(value);
    // A NaN with a full mantissa would carry into the sign and come out as -0: keep it a NaN.
    return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x8000u) >> 16);
  }
  FUSED_DEVICE static unsigned short round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

}  // namespace headroom::fused
