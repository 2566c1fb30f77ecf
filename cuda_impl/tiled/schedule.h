// The lists of tasks: which multiprocessor makes which tiles, in which order. Plain functions, which tests call without a GPU.
//
// A list scheduler walks through an imagined step: whichever multiprocessor is free next takes the most urgent task of which all that
// it reads is made by then. So every list is in an order in which each task comes after what it waits for, and multiprocessors that
// work through their lists in order never wait in a circle. Costs are rough: they decide who waits how long, never whether a result
// is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tiled/plan.h"

namespace headroom::tiled {

struct Schedule {
  /// Of each multiprocessor that has work; with two teams tasks are theirs in turn, an even number of them.
  std::vector<std::vector<Task>> lists;
  int counters = 0;
  double cycles = 0;  ///< what the scheduler thinks a step takes

  std::size_t longest() const;
};

/// The largest tile with a kernel of which the network's largest product still has about as many as there are multiprocessors.
Tiling choose_tiling(const Network& network, bool relu, int multiprocessors);

/// Why there are no lists for this network; nullopt if there are.
std::optional<std::string> schedule_refusal(const Network& network, const Tiling& tiling);

/// Throws std::invalid_argument with schedule_refusal()'s reason.
Schedule make_schedule(const Network& network, const Tiling& tiling, int multiprocessors);

/// "input gradient of layer 2, tile row 0, column 5".
std::string describe(const Task& task);

}  // namespace headroom::tiled
