// Words to the compiler: where a value is worked out, and what it may not look through. None of these does anything by itself.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// The value is worked out above this place: behind a barrier it would be waited for.
MACHINE_DEVICE void compute_now(std::uint32_t& value) { asm volatile("" : "+r"(value)); }
MACHINE_DEVICE void compute_now(int& value) { asm volatile("" : "+r"(value)); }
MACHINE_DEVICE void compute_now(unsigned char*& value) { asm volatile("" : "+l"(value)); }

/// What follows from the value is worked out behind this place: the compiler would do it before a loop and keep it in registers
/// that nobody has.
template <class Word>
MACHINE_DEVICE Word compute_from_here(Word value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// A value that the compiler keeps as it is, instead of working it out again from its parts wherever it is used.
MACHINE_DEVICE int kept_whole(int value) {
  asm("" : "+r"(value));
  return value;
}
MACHINE_DEVICE std::uint64_t kept_whole(std::uint64_t value) {
  asm("" : "+l"(value));
  return value;
}
/// The same for ptxas, which sees through the above: to it, this may be any lane's.
MACHINE_DEVICE int kept_by_lane(int value) { return __shfl_sync(~0u, value, thread_index_here() % 32); }

/// sum += a * b. Not moved across one another by the compiler, so that neighbours share an operand: a multiply-add reads three
/// registers, a scheduler two a cycle and what it has kept.
MACHINE_DEVICE void multiply_add_in_order(float& sum, float a, float b) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a), "f"(b));
}
/// a + b, where it is written among such.
MACHINE_DEVICE float add_in_order(float a, float b) {
  float sum;
  asm volatile("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}

}  // namespace headroom::machine
