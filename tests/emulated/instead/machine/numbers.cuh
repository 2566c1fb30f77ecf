// Stands in for cuda_impl/machine/numbers.cuh where the CPU plays the GPU. Roundings are written from their definitions, PTX ISA 9.0
// ("cvt").
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE float bits_to_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
MACHINE_DEVICE std::uint32_t float_to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
MACHINE_DEVICE std::int64_t nearest_integer(float value) { return std::llrint(value); }

/// The NaN that a GPU's instructions make, whatever they were given. What is written as plain C++ keeps the CPU's.
inline constexpr std::uint32_t kNaN = 0x7fffffffu;
MACHINE_DEVICE float relu(float value) {
  return std::isnan(value) ? bits_to_float(kNaN) : value > 0 ? value : 0.0f;
}

MACHINE_DEVICE std::uint32_t pack_fp16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
MACHINE_DEVICE std::uint32_t pack_fp16_relu(float low, float high) {
  return pack_fp16(relu(low), relu(high));
}
MACHINE_DEVICE std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
MACHINE_DEVICE std::uint32_t pack_bf16_relu(float low, float high) {
  return pack_bf16(relu(low), relu(high));
}

MACHINE_DEVICE float fp16_value(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
/// Above zero are those without a sign that are neither zero nor NaN.
MACHINE_DEVICE std::uint32_t positive_values(std::uint32_t pair, std::uint32_t infinity) {
  const auto mask = [&](std::uint32_t value) { return value > 0 && value <= infinity ? 0xffffu : 0u; };
  return mask(pair & 0xffff) | mask(pair >> 16) << 16;
}
MACHINE_DEVICE std::uint32_t positive_fp16(std::uint32_t pair) { return positive_values(pair, 0x7c00); }
MACHINE_DEVICE std::uint32_t positive_bf16(std::uint32_t pair) { return positive_values(pair, 0x7f80); }

/// Ties away from zero: the 17th bit decides.
MACHINE_DEVICE std::uint32_t bf16_away(float value) {
  const std::uint32_t bits = float_to_bits(value);
  return std::isfinite(value) ? (bits + 0x8000) >> 16 : bits >> 16 | (std::isnan(value) ? 0x40u : 0u);
}
MACHINE_DEVICE std::uint32_t pack_bf16_weights(float low, float high) {
  return bf16_away(low) | bf16_away(high) << 16;
}
/// Of infinity with its lowest bit set a NaN is left.
MACHINE_DEVICE std::uint32_t pack_finite_bf16_weights(float low, float high) {
  return pack_bf16(bits_to_float(float_to_bits(low) | 1), bits_to_float(float_to_bits(high) | 1));
}
/// Ties to even; 13 bits are cut.
MACHINE_DEVICE float round_tf32(float value) {
  if (std::isnan(value)) return bits_to_float(kNaN);
  if (std::isinf(value)) return value;
  const std::uint32_t bits = float_to_bits(value);
  return bits_to_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

MACHINE_DEVICE float exponential2(float value) { return std::exp2(value); }
MACHINE_DEVICE float logarithm2(float value) { return std::log2(value); }
MACHINE_DEVICE float reciprocal(float value) { return 1 / value; }
MACHINE_DEVICE float exponential(float value) { return std::exp(value); }
MACHINE_DEVICE float divide(float value, float by) { return value / by; }
MACHINE_DEVICE float exponential_checked(float value) { return std::exp(value); }
MACHINE_DEVICE float logarithm_checked(float value) { return std::log(value); }
MACHINE_DEVICE float divide_checked(float value, float by) { return value / by; }

}  // namespace headroom::machine
