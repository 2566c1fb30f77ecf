// The lists of tasks: which multiprocessor makes which tiles, in which order. Plain functions, which tests call without a GPU.
//
// A list scheduler walks through an imagined step: whichever multiprocessor is free next takes the most urgent task of which all that
// it reads is made by then. So every list is in an order in which each task comes after what it waits for, and multiprocessors that
// work through their lists in order never wait in a circle. Costs are rough: they decide who waits how long, never whether a result
// is right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/workload.h"
#include "tiled/plan.h"

namespace headroom::tiled {

struct Schedule {
  /// Of each multiprocessor that has work; with two teams tasks are theirs in turn, an even number of them.
  std::vector<std::vector<Task>> lists;
  int counters = 0;
  double cycles = 0;  ///< what the scheduler thinks a step takes

  std::size_t longest() const;
};

/// Of `tilings` with a kernel the one whose step the scheduler thinks to be the shortest. (So it was in all cells that were measured on an
/// H200, though its steps are a third too short: docs/kernels/log/tiled.md.)
Tiling choose_tiling(const Network& network, bool relu, int multiprocessors,
                     std::span<const Tiling> tilings = kTilings, Precision precision = Precision::kBf16);

/// Whether the last hidden layer's gradient is made with the loss (Form::kLossGradient): few outputs, and so few tiles that all can make
/// them at once.
bool makes_loss_gradients(const Network& network, const Tiling& tiling, int multiprocessors);

/// Why there are no lists for this network; nullopt if there are.
std::optional<std::string> schedule_refusal(const Network& network, const Tiling& tiling);

/// `precision` is for what tasks cost. Throws std::invalid_argument with schedule_refusal()'s reason.
Schedule make_schedule(const Network& network, const Tiling& tiling, int multiprocessors,
                       Precision precision = Precision::kBf16);

/// "input gradient of layer 2, tile row 0, column 5".
std::string describe(const Task& task);

}  // namespace headroom::tiled
