// The slice kernel on several GPUs: what a launch is given besides, and its plan.
//
// A rank is one of the GPUs that train a network together, each with its own rows of every batch (column_peers.h is the same for columns).
#pragma once

#include <cstdint>

#include "resident/column_peers.h"
#include "resident/slice_arguments.h"

namespace headroom::resident {

/// Exchanges: the activations of each hidden layer, the gradients of each, and the gradient of the outputs, in the order of
/// column_peers.h. Each has four buffers, a step's modulo four.
inline constexpr int kRankStageShift = 2;
__host__ __device__ constexpr int rank_exchanges(int layers) { return outputs_kind(layers - 1) + 1; }
/// Tiles of a peer that a member has in shared memory: its own slice of each exchange, and two of the outputs.
__host__ __device__ constexpr int peer_tiles(int layers) { return rank_exchanges(layers) + 1; }

struct SliceRankArguments : SliceArguments {
  unsigned char* inbox;                     // [peers] of the plan's exchange_bytes: what each peer publishes
  unsigned char* outboxes[kMostRanks - 1];  // this rank's part of each peer's inbox
  std::uint32_t first_mark;                 // the number of the launch's first step since the trainer began
  std::int32_t rank;
  std::int32_t peer_tiles_offset;  // in shared memory: [peers] [peer_tiles()] tiles
};

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
struct SliceRankPlan {
  SlicePlan slices;  ///< of one rank's batch; its shared_bytes with the tiles of peers
  std::int32_t ranks, peer_tiles_offset;
};
/// `team`: thread blocks that own the same slices, 1, 2 or 4. In fp32, fp16 and bf16, of plain training. Throws UnsupportedError as make_slice_plan() does of a rank's part, and if there are not 2,
/// 4 or 8 devices.
SliceRankPlan make_slice_rank_plan(const Workload& workload, Precision precision, const Limits& limits,
                                   int team);
/// Pairs of slices that a warp has at most. In fp32 more of them would be a step that is longer than the instruction cache.
constexpr int most_rank_pairs(Precision precision) { return precision == Precision::kFp32 ? 4 : 8; }
#endif

}  // namespace headroom::resident
