// What a warp has or does as one: values in its own registers, and one lane that acts for all.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// A value that all lanes have alike, in a register of the warp (uniform()'s is in one of each lane). What follows from it is worked out
/// once for the warp, and descriptions of products need no move of their own.
MACHINE_DEVICE std::uint32_t in_warp_register(std::uint32_t value) { return __reduce_min_sync(~0u, value); }

/// True; asked by the first lane of a warp, without the others. The compiler knows then that one lane is here: otherwise it issues a tensor
/// copy in a loop over all lanes that might want one with other operands, which takes 150 cycles.
MACHINE_DEVICE bool first_lane_alone() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 1;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

}  // namespace headroom::machine
