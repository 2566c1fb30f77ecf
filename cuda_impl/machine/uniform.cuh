// Values that a warp has alike, where all of its instructions can read them.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// A value that all lanes have alike, in a register of the warp (uniform()'s is in one of each lane). What follows from it is worked out
/// once for the warp, and descriptions of products need no move of their own.
MACHINE_DEVICE std::uint32_t in_warp_register(std::uint32_t value) { return __reduce_min_sync(~0u, value); }

}  // namespace headroom::machine
