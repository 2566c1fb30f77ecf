// machine/uniform.cuh where the CPU plays the GPU.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

inline std::uint32_t in_warp_register(std::uint32_t value) {
  return static_cast<std::uint32_t>(uniform(static_cast<int>(value)));
}
inline bool first_lane_alone() { return true; }

}  // namespace headroom::machine
