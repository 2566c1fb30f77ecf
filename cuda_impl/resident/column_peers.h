// The column kernel on several GPUs: what a launch is given besides, and where packets lie on their way from GPU to GPU.
//
// A rank is one of the GPUs that train a network together, each with its own rows of every batch. Ranks tell each other what the
// weight gradients are made of, the activations and gradients of their rows in 16 bits, and all sum over all rows.
#pragma once

#include <cstdint>

#include "resident/column_arguments.h"

namespace headroom::resident {

inline constexpr int kMostRanks = 8;
/// A rank's inbox has a place for each step modulo this, so that nobody writes what has not been read (column_peers.cuh).
inline constexpr int kInboxSteps = 4;

/// What ranks tell each other of a step, numbered: h(1) to h(hidden), d(1) to d(hidden), and the gradients of the logits.
__host__ __device__ constexpr int hidden_kind(int layer) { return layer - 1; }
__host__ __device__ constexpr int gradient_kind(int hidden, int layer) { return hidden + layer - 1; }
__host__ __device__ constexpr int outputs_kind(int hidden) { return 2 * hidden; }
/// Of one sender in an inbox: packets of 16 bytes, two words of data each, [steps] [kinds] [members] [groups of rows] [32 lanes].
constexpr std::int64_t peer_bytes(const ColumnShape& shape) {
  return std::int64_t{kInboxSteps} * (outputs_kind(shape.hidden) + 1) * shape.members * shape.groups() * 512;
}

/// Waits for a peer's packets in a report (arguments.h), and exchanges to lose for tests: kWaitPeers + 16 * (peer - 1) + kind. A rank's
/// peer number p is the rank whose number differs in the bits of p.
inline constexpr std::uint32_t kWaitPeers = 64;

struct RankArguments : ColumnArguments {
  unsigned char* inbox;                     // [peers] of peer_bytes(); zero before the first launch
  unsigned char* outboxes[kMostRanks - 1];  // this rank's part of each peer's inbox
  std::uint32_t first_mark;                 // of the launch's first step; every step of a trainer has another
  std::int32_t rank;
};

#ifdef COLUMN_PLAN
__device__ constexpr const ColumnPlan& plan_of(const RankArguments&) { return kColumnPlan; }
#endif

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Words behind a member's shared memory, one for each warp whose wait has run out.
inline constexpr int kRankWordsBytes = 64;

struct RankPlan {
  ColumnPlan columns;  ///< its batch is one rank's, its shared_bytes with kRankWordsBytes
  std::int32_t ranks;
  std::int64_t inbox_bytes;  ///< of device memory, of each rank
};

/// Throws UnsupportedError as make_column_plan() does of a rank's part, and if there are not 2, 4 or 8 devices, or each has more than 32
/// rows.
RankPlan make_rank_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::resident
