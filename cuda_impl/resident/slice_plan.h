// The shapes that the slice kernel trains, and where every byte of a member lies.
//
// A member (thread block) owns exactly one slice of 8 columns of every hidden layer, and the whole last layer, which
// must be narrow: so logits, loss and the gradient that leaves them need no exchange. That fixes every address and trip
// count in a launch but the number of layers.
#pragma once

#include <cstdint>

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <vector>

#include "resident/sharing.h"
#endif
#include "resident/plan.h"

namespace headroom::resident {

inline constexpr int kPairColumns = 16;
inline constexpr int kInputPairs = 7;      // the same of the inputs: up to 896
inline constexpr int kMostClasses = 16;    // two tiles of logits
inline constexpr int kTeamWarps = 4;       // that send to their team and wait for it
inline constexpr int kMasterPair = 512;    // bytes: fp32 [16 columns, 8 outputs]
inline constexpr int kPartialTile = 1024;  // bytes: fp32 [32 rows, 8 outputs]

inline constexpr int kMostWarps = 12, kMostAheadWarps = 16;  // of a thread block
/// Of weights as whole sums take them: of rows and columns of two layers and of the last layer's two tiles, 2 KB each,
/// and of the last layer backward.
inline constexpr int kFragmentBytes = 6 * 2048 + 4096;
/// Where two thread blocks that own a slice together divide the rows of the batch (slice_rows.cuh): it always has places for 64
/// slices. Bytes of rounded weights: of rows and columns of two layers and of the last layer's two tiles; behind them three
/// tiles of own activations and those of others that the update of the last layer takes.
inline constexpr int kRowsMembers = 64, kRowsPairs = kRowsMembers / 2 / kWarps / 2,
                     kRowsMatrixBytes = kRowsMembers / 2 * 256, kRowsWeightBytes = 6 * kRowsMatrixBytes;
inline constexpr int kRowsBarriers = 11, kRowsWarps = kWarps + 5;
/// What a first layer a step ahead takes (slice_ahead.cuh): four parts of a tile, the tile, and fp32 [32, 32]; and two of these
/// over the grid, each element beside the number of its step. Behind them, if teams of their own make it, of every team that takes
/// it four words: the last step whose two warps of two members have taken.
inline constexpr int kAheadBytes = 5 * 1024 + 4096, kGramBytes = 32 * 32 * 8, kTakenWords = 4;
inline constexpr int kAheadInputWarps = 4;  // that have the first layer
inline constexpr int kTeamBarrierBytes = 8 * (2 * kTeamWarps + 1);

// What tf32 does in teams so as to transpose less, where it was measured to be faster (docs/kernels/log/resident.md, version 19).

/// Whether a thread block keeps its own tiles as columns, too, as updates take them.
constexpr bool keeps_columns(Precision precision, int pairs, int team) {
  return precision == Precision::kTf32 && (team == 4 || (team == 2 && pairs >= 2));
}
/// Whether activations are published as columns, too, for the updates of the next step.
constexpr bool publishes_columns(Precision precision, int pairs, int team) {
  return precision == Precision::kTf32 && team > 1 && pairs >= 2;
}
/// Whether the first layer's sums are made a step ahead (slice_ahead.cuh), if there is room for what that takes. With three
/// layers a step is too short for it.
constexpr bool sums_ahead(Precision precision, int layers, int team, int pairs) {
  return precision == Precision::kFp32 && layers >= 4 && team > 2 && pairs == 1;
}
/// Parts of x x' then: each is made by one of the first thread blocks or, where so many teams more are resident beside the
/// members, by two warps of theirs.
inline constexpr int kGramParts = 64, kGramTeams = 3;
/// Whether a warp with hidden columns has one slice then, and not two. So few teams leave room for those that make x x', and have
/// no other kernel.
constexpr bool is_narrow_ahead(int team, int members) { return team == 4 && members <= 4 * team; }
/// Of how many layers, the highest, a warp keeps the activations that it took for the update of the next step, rather than
/// read them from the L2 a second time.
constexpr int kept_layers(bool ahead) { return ahead ? 3 : 0; }
/// Whether masters are turned: [16 outputs of both slices, 8 columns] instead of [16 columns, 8 outputs]. A gradient takes
/// as many instructions either way, and weights need no transposes then.
constexpr bool turns_masters(Precision precision, int own) {
  return precision == Precision::kTf32 && own == 2;
}

/// Whether in 16 bits masters are turned as well, and activations are published as columns, too (slice_turned.cuh).
constexpr bool turns_tiles(Precision precision, int layers, int team, int own) {
  return (precision == Precision::kFp16 || precision == Precision::kBf16) && layers == 4 && team == 2 &&
         own == 2;
}

/// Whether tiles and inputs travel as five words for eight values (packed_tf32.cuh, slice_packed.cuh).
constexpr bool packs_tiles(Precision precision, int layers, int team, int own) {
  return precision == Precision::kTf32 && layers == 4 && team == 2 && own == 2;
}
/// Bytes of a tile then: 16 a lane, and behind those of all tiles, two beside each other, 4 a lane.
inline constexpr int kPackedTile = 512 + 128;

/// Whether the thread blocks of a team divide the rows of the batch, and not the columns that are summed over.
constexpr bool divides_rows(Precision precision, int team, int own) {
  return (precision == Precision::kFp16 || precision == Precision::kBf16) && team == 2 && own == 1;
}

/// Pairs of slices that a warp sums over. In fp32, unrolled, a step with more of them is longer than the instruction cache.
constexpr int most_pairs(Precision precision, int team, int own) {
  if (own == 2 || precision == Precision::kFp16 || precision == Precision::kBf16) return 4;
  return team == 2 ? 2 : 1;
}
constexpr int widest_of_slices(Precision precision, int team, int own) {
  return most_pairs(precision, team, own) * kWarps * team * kPairColumns;
}

/// Every hidden layer is treated as if it were as wide as the widest: weights beyond its width are zero and stay so.
/// Offsets are bytes from the start of a member's shared memory. Tiles are [32 rows, 8 columns].
struct SlicePlan {
  Form form;
  std::int32_t members;  // slices that there are places for, even
  std::int32_t team;     // thread blocks that own the same slices, each for a part of every sum: 1 to 4;
                         // in pair clusters (in_pair_clusters()) clusters that do so: see clusters()
  std::int32_t own;      // slices of every layer that a thread block, or team, owns: 1 or 2
  std::int32_t layers, batch, classes;
  std::int32_t pairs;  // a warp's, of hidden columns: 1, 2 or 4, the kernel's
  std::int32_t input_pairs;
  std::int32_t member_input_pairs;  // of them a thread block's, at most
  std::int32_t exchanges;           // hidden activations, then gradients from the highest layer down
  std::int32_t stage_shift;         // 1 << stage_shift buffers an exchange
  std::int32_t tile;                // bytes
  std::int32_t last_lanes;          // of a quad, those that hold classes of the second tile of logits: 0 to 4
  std::int32_t widths[kMaxLayers + 1];

  std::int32_t first_offset;    // masters of the first layer [8 warps, 7 pairs], if not in registers; else -1
  std::int32_t rows_offset;     // [layers - 2] masters of own rows [8 warps, pairs]
  std::int32_t columns_offset;  // [layers - 2] masters of own columns [8 warps, pairs]
  std::int32_t last_offset[2];  // masters of the last layer, all rows; the second tile without empty lanes
  std::int32_t bias_offset;     // fp32 [layers - 1, 8]
  std::int32_t last_bias_offset;  // fp32 [16]
  std::int32_t
      hidden_offset;  // own tiles [layers - 1, 2 by the step's parity]; or weights, if sums are whole
  std::int32_t gradient_offset;      // own tiles [layers - 1]
  std::int32_t dlogits_offset;       // 2 tiles; kept activations [kept_layers(), 8 warps, 2 pairs]
  std::int32_t partial_offset;       // fp32 [2, 8 warps, 32, 8]
  std::int32_t last_partial_offset;  // of the second tile of logits, without empty lanes
  std::int32_t row_loss_offset;      // fp32 [32, 2]
  std::int32_t barrier_offset;       // cluster: mbarriers [exchanges, stages]; [2 halves] if sums are whole.
                                     // Divided rows: mbarriers; a word of each warp
  std::int32_t staging_barrier_offset;  // 2 mbarriers
  std::int32_t team_barrier_offset;     // team: mbarriers [2, 4 warps], and one; a word of each warp
  std::int32_t team_offset;  // team: [2, 4 warps, team - 1] sums of others, 512 bytes each; in clusters that
                             // divide rows [members] how far it is to the others' shared memory
  std::int32_t exchange_offset;  // cluster: [exchanges, stages, members] tiles; grid: what a first layer a
                                 // step ahead takes, if it is, else -1
  std::int32_t x_rows_offset, x_columns_offset;  // staged inputs of one batch; -1: read from the L2
  std::int32_t shared_bytes;
  std::int64_t exchange_bytes;                                    // grid: of global memory, and
  std::int64_t behind_tiles;                                      // where in it x x' begins; else -1
  std::int64_t x_batch_bytes;                                     // of one batch in one order
  std::int64_t weight_begin[kMaxLayers], bias_begin[kMaxLayers];  // in the flat parameters
};

/// Clusters of 16 whose members own two slices each, with whole sums (slice_whole_pair.cuh): everything but the inputs is as large
/// as for 256 columns, 896 inputs and 16 classes. Offsets are bytes from the start of a member's shared memory.
struct WholePair {
  static constexpr int kMostClusters = 4, kMembers = kMaxCluster, kPairs = 2, kGroups = 4;  // of 8 rows
  static constexpr int kColumns = kMembers * kPairColumns;
  static constexpr int kTiles = kGroupRows * kColumns * 2;     // of one exchange
  static constexpr int kMatrix = kColumns * kPairColumns * 2;  // 16-bit weights
  static constexpr int kBuffers = 6;      // two for the first exchanges, h1 and h2, one for the others
  static constexpr int kInputPairs = 14;  // of one cluster: up to 224 inputs, with four 896
  static constexpr int kInputPair = kGroupRows * kPairColumns * 2;
  static constexpr int kInputs = kInputPairs * kInputPair;

  static constexpr int kExchanges = 0;
  static constexpr int kWeights = kExchanges + kBuffers * kTiles;
  static constexpr int kThirdGradient = kWeights + 5 * kMatrix;
  static constexpr int kPairWeights = kPairColumns * kPairColumns * 2;  // 16-bit weights of a pair of inputs
  static constexpr int kFirstWeights = kThirdGradient + kTiles;
  static constexpr int kColumnsMasters =
      kFirstWeights + kInputPairs * kPairWeights;  // of the third layer; others are in registers
  static constexpr int kLastMasters = kColumnsMasters + 2 * kMatrix;
  static constexpr int kInputRows = kLastMasters + 2 * kMatrix;
  static constexpr int kInputColumns = kInputRows + kInputs;
  static constexpr int kFirstGradient = kInputColumns + kInputs;
  static constexpr int kDlogits = kFirstGradient + kGroupRows * kPairColumns * 2;
  static constexpr int kBiases = kDlogits + kGroupRows * kMostClasses * 2;
  static constexpr int kRowLosses = kBiases + 4 * kPairColumns * 4;
  static constexpr int kBarriers = kRowLosses + kGroupRows * 8;
  static constexpr int kTimedOut = kBarriers + 8 * (kBuffers * kGroups + 2 + 2);
  static constexpr int kSharedBytes = (kTimedOut + 4 * kGroups + 15) / 16 * 16;

  static constexpr std::int64_t kExchangeBytes =
      std::int64_t{2} * kMostClusters * kMembers * kGroups * 512;  // of global memory
};

/// Whether thread blocks own two slices each in clusters that hold all hidden layers (slice_whole_pair.cuh), by themselves.
constexpr bool in_pair_clusters(Form form, int own) { return form == Form::kCluster && own == 2; }
constexpr bool in_pair_clusters(const SlicePlan& plan) { return in_pair_clusters(plan.form, plan.own); }
/// Clusters that hold the same hidden layers then, and divide the inputs.
constexpr int clusters(const SlicePlan& plan) { return in_pair_clusters(plan) ? plan.team : 1; }

/// Clusters of 16 that divide the rows of the batch, with whole sums, in tf32 (slice_whole_rows.cuh). Bytes.
struct WholeRows {
  static constexpr int kClusters = 4, kRows = 8;        // rows of a cluster
  static constexpr int kChainWarps = 4, kUpdaters = 4;  // of a thread block, beside the eight
  static constexpr int kTile = kRows * kSliceColumns * 4, kAllRowsTile = kClusters * kTile;
  static constexpr int kExchange = kMaxCluster * kTile;
  static constexpr int kFragments = 6 * 4096 + 8192;           // weights as the chain takes them
  static constexpr int kParts = 3 * kChainWarps * kTile;       // of three sums
  static constexpr int kSignals = 7;                           // mbarriers between warps
  static constexpr int kInputPair = kRows * kPairColumns * 4;  // rows of a cluster
  /// Of global memory: what clusters tell each other of every slice, and the weights of pairs of slices that a cluster updates in each
  /// of its thread blocks.
  static constexpr int kTold = 6 * kMaxCluster + 3, kWeights = kWarps + kUpdaters;
  static constexpr std::int64_t kBoard =
      kTold * kAllRowsTile + kMaxCluster * kClusters * kWeights * kMasterPair;
};

/// The same with two slices a member, whose clusters divide the inputs, too (slice_wide_rows.cuh): everything is as large as for 256
/// columns, 896 inputs and 16 classes. Offsets are bytes from the start of a member's shared memory.
struct WideRows {
  static constexpr int kClusters = WholeRows::kClusters, kOwn = 2, kSlices = kOwn * kMaxCluster;
  static constexpr int kPairs = kSlices / 2,
                       kOwnPairs = kPairs / kClusters;  // of a matrix; that a cluster updates
  static constexpr int kTile = WholeRows::kTile, kAllRowsTile = WholeRows::kAllRowsTile;
  static constexpr int kExchange = kSlices * kTile, kExchanges = 4;
  static constexpr int kChainWarps = 4, kUpdaters = 4;         // of a thread block, beside the eight
  static constexpr int kMatrices = 5;                          // of weights behind the first layer
  static constexpr int kMatrixOfSlice = kPairs * kMasterPair;  // as the chain takes it
  static constexpr int kInputPairs = 14, kInputPair = 2 * kAllRowsTile;  // of a cluster

  static constexpr int kWeights = 0;
  static constexpr int kAcross = kWeights + kMatrices * kOwn * kMatrixOfSlice;  // the last layer's, backward
  static constexpr int kMasters = kAcross + kOwn * kMatrixOfSlice;
  static constexpr int kExchangeBuffers = kMasters + kMatrices * kOwnPairs * 2 * kMasterPair;
  static constexpr int kPartials = kExchangeBuffers + kExchanges * kExchange;
  static constexpr int kParts = kPartials + kWarps * kClusters * kOwn * kTile;  // of four sums
  static constexpr int kInputRows = kParts + 4 * kChainWarps * kTile;
  static constexpr int kInputColumns = kInputRows + kInputPairs * kInputPair;
  static constexpr int kBiases = kInputColumns + kInputPairs * kInputPair;  // of four layers
  static constexpr int kRowLosses = kBiases + 4 * kPairColumns * 4;
  static constexpr int kFirstGradient = kRowLosses + kGroupRows * 8;  // handed on to the eight
  static constexpr int kToldBytes = kFirstGradient + kOwn * kAllRowsTile;
  static constexpr int kWays = kToldBytes + 4 * 32;
  static constexpr int kSignals = 5 + kMatrices;  // mbarriers between warps
  static constexpr int kBarriers = kWays + 4 * kMaxCluster;
  static constexpr int kSharedBytes = (kBarriers + 8 * (kSignals + kExchanges + 2) + 15) / 16 * 16;

  /// Of global memory: what clusters tell each other of every slice, of the logits' gradient and of the loss; the weights that each
  /// updates in each of its thread blocks; and sums of the first layer.
  static constexpr int kTold = 6 * kSlices + kOwn + 1, kToldWeights = kMatrices * kOwnPairs * kOwn;
  static constexpr std::int64_t kBoardWeights = std::int64_t{kTold} * kAllRowsTile;
  static constexpr std::int64_t kBoardSums =
      kBoardWeights + std::int64_t{kMaxCluster} * kClusters * kToldWeights * kMasterPair;
  static constexpr std::int64_t kBoard =
      kBoardSums + std::int64_t{kMaxCluster} * kClusters * kOwn * kClusters * kTile;
};

/// Whether sums over hidden columns are whole in warps that do nothing else: in 16 bits in a cluster (slice_whole.cuh) or several
/// (slice_whole_pair.cuh) and over the grid in teams that divide rows (slice_rows.cuh), in tf32 in four clusters
/// (slice_whole_rows.cuh).
constexpr bool sums_whole(Precision precision, const SlicePlan& plan) {
  if (in_pair_clusters(plan)) return true;
  if (plan.form == Form::kGrid && divides_rows(precision, plan.team, plan.own)) return true;
  if (plan.layers != 4 || plan.members != kMaxCluster || plan.form != Form::kCluster) return false;
  return precision == Precision::kTf32 ? plan.team == WholeRows::kClusters : precision != Precision::kFp32;
}

/// Whether the first layer's sums are made a step ahead.
constexpr bool sums_ahead(const SlicePlan& plan) {
  return plan.form == Form::kGrid && plan.exchange_offset >= 0;
}
/// Teams behind the members that make x x' for them. They are told what was taken, behind both.
constexpr int gram_teams(const SlicePlan& plan) {
  return sums_ahead(plan) && plan.exchange_bytes > plan.behind_tiles + 2 * kGramBytes ? kGramTeams : 0;
}
/// Of a launch.
constexpr int thread_blocks(const SlicePlan& plan) {
  return (plan.members / plan.own + gram_teams(plan)) * plan.team;
}
/// Slices that a warp with hidden columns has then, of which a thread block has four, in teams of two eight; else 0.
constexpr int ahead_slices(const SlicePlan& plan) {
  if (!sums_ahead(plan)) return 0;
  return is_narrow_ahead(plan.team, plan.members) ? 1 : 2;
}

/// Grid: bytes of one exchange's buffer: tiles, then of each tile, by the two warps that published it, the bits that its marks displaced, marked.
/// Behind them, if updates take activations as columns, the tiles in that form.
constexpr std::int64_t slot_bytes(int members, int tile, bool columns) {
  return std::int64_t{members} * (tile + 16 + (columns ? tile : 0));
}

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Whether there is a slice kernel for such a plan: a kernel with teams, launched for a plan without, would store to thread blocks
/// that are not there.
bool has_slice_kernel(const SlicePlan& plan, Precision precision);
/// Of a thread block of that kernel, as its class has them (kThreadCount); a request compares both.
int slice_threads(const SlicePlan& plan, Precision precision);

/// The ways to share over the grid that a precision has kernels for, in the order in which they are tried. In 16 bits teams of one slice
/// divide rows.
std::vector<Sharing> slice_sharings(Precision precision);

/// Throws UnsupportedError with what does not fit: layers, batch, classes, widths, or bytes. gram_teams: 0, or kGramTeams, with
/// which the first layer's sums are made a step ahead or nothing is.
SlicePlan make_slice_plan(const Workload& workload, Precision precision, Form form, const Limits& limits,
                          int team = 1, int own = 1, int gram_teams = 0);
#endif

}  // namespace headroom::resident
