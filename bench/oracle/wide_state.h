// A trainer's state in double precision, and what a step makes of it: shared by the oracle's trajectory and its perturbed copies.
#pragma once

#include <cstdint>
#include <vector>

#include "core/parameters.h"
#include "core/workload.h"

namespace headroom {

using Values = std::vector<double, BulkAllocator<double>>;  ///< of all parameters, flat

struct WideState {
  Values parameters;
  std::vector<Values> slots;
};

void widen(const Parameters& parameters, Values& values);
WideState widened(const State& state);
/// Rounded to fp32.
Parameters rounded(const std::vector<int>& widths, const Values& values);
State rounded(const std::vector<int>& widths, const WideState& wide);

/// Step `step` with this gradient.
void update(const Optimizer& optimizer, std::int64_t step, const Values& gradient, WideState& state);
/// state - other, value by value.
void subtract(const WideState& other, WideState& state);

}  // namespace headroom
