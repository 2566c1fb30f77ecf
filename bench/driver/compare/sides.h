// The two sides of a comparison, each with worker processes of its own build.
#pragma once

#include <array>
#include <string>

#include "driver/run/worker_pool.h"

namespace headroom {

enum class Side { kBase = 0, kHead = 1 };
inline constexpr std::array<Side, 2> kSides = {Side::kBase, Side::kHead};
const char* to_string(Side side);  ///< "base", "head"

/// Of base and of head.
using SidePools = std::array<WorkerPool, 2>;
inline WorkerPool& pool_of(SidePools& pools, Side side) { return pools[static_cast<std::size_t>(side)]; }

/// Starts `worker` (a program's name) on both sides at the same time, where it does not run. What goes wrong is kept in its
/// greeting. Throws NotComparableError if one speaks another version of the protocol.
void start_on_both(SidePools& pools, const std::string& worker);

/// Ends all processes at once: two processes of the same build differ too, so every launch has fresh ones.
void end_on_both(SidePools& pools);

}  // namespace headroom
