// What the launches of all kernels share: where a kernel finds its plan, and what it says when a wait ran out.
#pragma once

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <cuda_runtime_api.h>
#endif

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

/// The plan that a kernel's arguments hold. A kernel that is compiled for its network has an overload for its own arguments, whose plan
/// is a constant.
template <class AnyArguments>
__host__ __device__ constexpr const auto& plan_of(const AnyArguments& arguments) {
  return arguments.plan;
}

/// A wait that ran out: 1 + exchange (or kWaitFree, kWaitTeam), then member, warp.
inline constexpr std::uint32_t kWaitFree = 62, kWaitTeam = 63;
__host__ __device__ constexpr std::uint32_t wait_status(std::uint32_t exchange, std::uint32_t member,
                                                        std::uint32_t warp) {
  return 1 + exchange + (member << 8) + (warp << 24);
}

}  // namespace headroom::resident
