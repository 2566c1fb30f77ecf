// Whole comparisons made up from a model of what disturbs them, and judged by the real rule.
//
// The model has what was measured on a GPU: two processes of the same build differ (drawn once for a process), the
// machine drifts under both sides alike and slowly (an autoregressive walk from block to block), and each block has
// noise of its own, now and then far more than usual.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "analysis/gate.h"

namespace headroom {

/// Standard deviations of the logarithm of a step time.
struct Noise {
  double process = 0;
  double block = 0;
  double drift = 0;              ///< of the drift itself, once it has settled
  double drift_correlation = 0;  ///< from one block to the next
  double spike_probability = 0;  ///< of a block that something else disturbed
  double spike = 0;              ///< how much longer it takes, relative
};

struct Shape {
  int cells = 8, launches = 3, pairs = 4;
};

struct Rates {
  int suites = 0, cells = 0;
  int suites_with_regression = 0, suites_with_improvement = 0;
  int regressions = 0, improvements = 0, equivalent = 0, inconclusive = 0;  ///< cells
};

/// `slowdowns`: of head, by cell in turn (1 for none).
Rates simulate(const Noise& noise, const Shape& shape, const std::vector<double>& slowdowns, int suites,
               const GateRule& rule, std::uint64_t seed);

}  // namespace headroom
