// Words of 32 bits: chosen bytes, joined shifts, and one bit spread over many.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// Bytes of (low, high), counted from low's lowest, chosen by the digits of `order`.
MACHINE_DEVICE std::uint32_t choose_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t order) {
  return __byte_perm(low, high, order);
}
/// The upper 32 bits of (high, low) shifted left by `bits` (0 to 31).
MACHINE_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low, int bits) {
  return __funnelshift_l(low, high, static_cast<unsigned>(bits));
}
/// The same, worked out where it is written: not once for a loop.
MACHINE_DEVICE std::uint32_t shift_joined_here(std::uint32_t high, std::uint32_t low, int bits) {
  std::uint32_t result;
  asm volatile("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(bits));
  return result;
}
/// The same by a constant. In C++ ptxas sees through the shift of `low` and takes three instructions.
template <int kBits>
MACHINE_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low) {
  std::uint32_t result;
  asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "n"(kBits));
  return result;
}
/// The signed lower or upper half of a word.
MACHINE_DEVICE std::uint32_t extend_lower(std::uint32_t word) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, 0, 0x9910;" : "=r"(result) : "r"(word));
  return result;
}
MACHINE_DEVICE std::uint32_t extend_upper(std::uint32_t word) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, 0, 0xbb32;" : "=r"(result) : "r"(word));
  return result;
}
/// The top bit of byte 1 or 0 and of byte 3 or 2, spread over the lower and the upper half.
template <bool kUpperBytes>
MACHINE_DEVICE std::uint32_t spread_tops(std::uint32_t word) {
  std::uint32_t halves;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(halves) : "r"(word), "n"(kUpperBytes ? 0xbb99 : 0xaa88));
  return halves;
}

}  // namespace headroom::machine
