// Formats of factors, by the precision contract: how pairs of values are rounded and packed, for what is the same in fp16 and bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "machine/numbers.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

struct Fp16 {
  static constexpr bool kIsBf16 = false;
  /// Rounded to nearest, ties to even; `low` in the lower half.
  MACHINE_DEVICE static std::uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  /// The same of max(value, 0); NaN stays NaN.
  MACHINE_DEVICE static std::uint32_t pack_relu(float low, float high) { return pack_fp16_relu(low, high); }
  /// All bits of a half that is positive, none of another.
  MACHINE_DEVICE static std::uint32_t positive(std::uint32_t pair) { return positive_fp16(pair); }
  MACHINE_DEVICE static float2 unpack(std::uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
  MACHINE_DEVICE static unsigned short round_weight(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  MACHINE_DEVICE static unsigned short round(float value) { return round_weight(value); }
};

struct Bf16 {
  static constexpr bool kIsBf16 = true;
  MACHINE_DEVICE static std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  MACHINE_DEVICE static std::uint32_t pack_relu(float low, float high) { return pack_bf16_relu(low, high); }
  MACHINE_DEVICE static std::uint32_t positive(std::uint32_t pair) { return positive_bf16(pair); }
  MACHINE_DEVICE static float2 unpack(std::uint32_t pair) {
    return make_float2(bits_to_float(pair << 16), bits_to_float(pair & 0xffff0000u));
  }
  /// Ties away from zero, as the high halves of an exact split would be.
  MACHINE_DEVICE static unsigned short round_weight(float value) {
    const std::uint32_t bits = float_to_bits(value);
    // A NaN with a full mantissa would carry into the sign and come out as -0: keep it a NaN.
    return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (bits + 0x8000u) >> 16);
  }
  MACHINE_DEVICE static unsigned short round(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

/// For wgmma's template alone: a value of tf32 is a word that round_tf32() has rounded.
struct Tf32 {
  static constexpr bool kIsBf16 = false, kIsTf32 = true;
};

}  // namespace headroom::machine
