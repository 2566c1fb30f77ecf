// Stands in for cuda_impl/machine/bits.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t order) {
  const std::uint64_t both = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t chosen = 0;
  for (int byte = 0; byte < 4; ++byte)
    chosen |= static_cast<std::uint32_t>(both >> 8 * (order >> 4 * byte & 7) & 0xff) << 8 * byte;
  return chosen;
}
MACHINE_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low, int bits) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  return static_cast<std::uint32_t>(both << (bits & 31) >> 32);
}
MACHINE_DEVICE std::uint32_t shift_joined_here(std::uint32_t high, std::uint32_t low, int bits) {
  return shift_joined(high, low, bits);
}
template <int kBits>
MACHINE_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low) {
  return shift_joined(high, low, kBits);
}
MACHINE_DEVICE std::uint32_t extend_lower(std::uint32_t word) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(word << 16) >> 16);
}
MACHINE_DEVICE std::uint32_t extend_upper(std::uint32_t word) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(word) >> 16);
}
template <bool kUpperBytes>
MACHINE_DEVICE std::uint32_t spread_tops(std::uint32_t word) {
  const std::uint32_t lower = word >> (kUpperBytes ? 15 : 7) & 1, upper = word >> (kUpperBytes ? 31 : 23) & 1;
  return lower * 0xffffu | upper * 0xffff0000u;
}

}  // namespace headroom::machine
