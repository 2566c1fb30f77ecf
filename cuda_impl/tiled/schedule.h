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
  std::vector<int> parts;  ///< of each layer's weight gradients
  double cycles = 0;       ///< what the scheduler thinks a step takes

  std::size_t longest() const;
};

/// A weight gradient sums over the whole batch. Where a layer has few weights and the batch is large, its tiles are too few for all
/// multiprocessors, and each takes long. Then the batch is divided: several tasks make the sums of a part each, and another one adds
/// them up, in the order of the parts, and updates. The fewest slabs of a part: what is tried, and no parts at all.
inline constexpr int kSlabsOfPart[] = {12, 24}, kSlabsOfTf32Part[] = {24, 48},
                     kSlabsOfPortablePart[] = {4, 8, 16};
inline constexpr int kNoParts = 0;
/// Of the portable kernel's precisions only fp32 has parts.
constexpr bool has_parts(const Tiling& tiling, Precision precision) {
  return !tiling.portable || precision == Precision::kFp32;
}
/// Those of the wgmma kernel.
inline std::span<const Tiling> wgmma_tilings(Precision precision) {
  if (precision == Precision::kTf32) return kTf32Tilings;
  return kTilings;
}
/// The one with which the scheduler thinks that the step is the shortest.
int choose_parts(const Network& network, const Tiling& tiling, int multiprocessors,
                 Precision precision = Precision::kBf16);

/// Those of the kernel for every GPU in this precision.
inline std::span<const Tiling> portable_tilings(Precision precision) {
  if (precision == Precision::kFp32) return kPlainTilings;
  return kPortableTilings;
}

/// Whether tiles are among those to choose from. With other activations 64x128 was the slower one in all of three networks that were
/// measured (docs/kernels/log/tiled.md).
constexpr bool may_choose(const Tiling& tiling, bool relu) {
  return relu || tiling.portable || (tiling != kTilings[1] && tiling != kTf32Tilings[1]);
}
/// Of `tilings` that may be chosen the one whose step the scheduler thinks to be the shortest. (So it was, or within 4 %, in all cells that were
/// measured on an H200, though its steps are a fifth too short: docs/kernels/log/tiled.md.)
Tiling choose_tiling(const Network& network, bool relu, int multiprocessors,
                     std::span<const Tiling> tilings = kTilings, Precision precision = Precision::kBf16);

/// Whether the last hidden layer's gradient is made with the loss (Form::kLossGradient): few outputs, and so few tiles that all can make
/// them at once.
bool makes_loss_gradients(const Network& network, const Tiling& tiling, int multiprocessors);

/// Why there are no lists for this network; nullopt if there are.
std::optional<std::string> schedule_refusal(const Network& network, const Tiling& tiling);

/// With several ranks (Network) the lists are those of each of them. `precision` is for what tasks cost. Weight gradients are in parts of at least `slabs_of_part` slabs where their tiles are few; with
/// kNoParts, and without has_parts(): never. Throws std::invalid_argument with schedule_refusal()'s reason.
Schedule make_schedule(const Network& network, const Tiling& tiling, int multiprocessors,
                       Precision precision = Precision::kBf16, int slabs_of_part = kNoParts);

/// What is decided before anything is allocated or compiled.
struct StepPlan {
  Network network;
  Schedule schedule;
  KernelShape kernel;
};
/// `tiling`, `slabs_of_part`: instead of choose_tiling()'s and choose_parts()'s. `portable`: choose among portable_tilings(). Throws
/// UnsupportedError with schedule_refusal()'s reason.
StepPlan plan_step(const Workload& workload, Precision precision, bool portable, int multiprocessors,
                   const std::optional<Tiling>& tiling = {}, const std::optional<int>& slabs_of_part = {});

/// Whether the portable kernel's step is the shorter one by the scheduler's costs, where the device could have either. In tf32 alone: there
/// wgmma wants every factor along its rows, so tiles are stored twice, which small networks do not make up for.
bool portable_is_faster(const Workload& workload, Precision precision, int multiprocessors);

/// "input gradient of layer 2, tile row 0, column 5".
std::string describe(const Task& task);

}  // namespace headroom::tiled
