// What perturbed copies of the oracle's step found: how far code may be off that is as right as the oracle, but sums in another order.
#pragma once

#include <cstddef>
#include <vector>

#include "core/workload.h"

namespace headroom {

/// How many copies of a step are made, and of the free steps.
inline constexpr int kCopies = 16, kFreeCopies = 4;

/// What each copy adds to each tensor (of each slot, or of the parameters where there are no slots), beside what the reference adds.
struct Copies {
  int count = 0;
  std::vector<float> distances;  ///< [count, tensors]: |copy's - reference's|, Frobenius
  std::vector<float>
      scales;  ///< [count, tensors]: <copy's - reference's, reference's> / |reference's|^2; 0 where that is 0

  /// [count, tensors] with momentum, else empty: <copy's - reference's, velocity at the start> / |velocity at the start|^2; 0 where
  /// that is 0.
  std::vector<float> decays{};

  std::size_t tensors() const { return count == 0 ? 0 : distances.size() / static_cast<std::size_t>(count); }
};

/// How many tensors are compared: of the slots where there are some, else of the parameters.
std::size_t compared_tensors(const Workload& workload);

}  // namespace headroom
