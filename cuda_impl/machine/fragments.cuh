// Loads of shared memory that stay as they are written: of two neighbouring ones the compiler would make one, and so read ahead what
// there are no registers for.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"

namespace headroom::machine {

MACHINE_DEVICE float2 load_shared_pair(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address));
  return v;
}

}  // namespace headroom::machine
