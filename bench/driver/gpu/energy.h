// Energy of a step: an untimed stretch of steps between two readings of the GPU's energy counter.
//
// Apart from the timed blocks, because the counter of an H200 moves every 100 ms and a block lasts 30. For the same reason
// the readings that count are those at which it moves, the first and the last inside the stretch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/record.h"
#include "driver/gpu/nvml.h"

namespace headroom {

/// Mean power over `seconds` in which nothing runs, of all devices together; nullopt if it cannot be read.
std::optional<double> measure_idle_watts(const std::vector<const Nvml*>& devices, double seconds);

/// Trains for at least `seconds` on all devices: `train` trains so many steps and returns the wall seconds that they took, and a step took
/// `wall_step_seconds` in the blocks. nullopt if the counter cannot be read or moved less than twice. Throws what `train`
/// throws.
std::optional<Energy> measure_energy(const std::function<double(std::int64_t steps)>& train,
                                     double wall_step_seconds, double seconds,
                                     const std::vector<const Nvml*>& devices,
                                     std::optional<double> idle_watts);

}  // namespace headroom
