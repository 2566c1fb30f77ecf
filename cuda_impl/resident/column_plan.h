// Clusters that hold all hidden layers, of any depth: what the column kernel (column_step.cuh) is compiled for, and where
// every byte of a member lies.
//
// A member (thread block) owns 16 columns of every hidden layer. Of the weights between two hidden layers it has the masters of
// those that start from its own columns, 16 columns of the matrix, and nothing else: it updates them, rounds them, and hands the others
// the rows that they multiply by.
#pragma once

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

inline constexpr int kColumnOwn = 16;  ///< columns of a layer that a member owns
inline constexpr int kColumnClasses = 16;
inline constexpr int kMostColumnClusters = 4, kMostColumnPairs = 14;  ///< pairs: of 16 inputs, of a cluster
inline constexpr int kMostHidden = kMaxLayers - 1;

/// What the kernel is compiled for; everything else of a network is zero padding, or a number in the plan.
struct ColumnShape {
  std::int32_t hidden;       ///< hidden layers, 1 to 7
  std::int32_t members;      ///< of a cluster, 8 or 16: hidden layers of up to 128 or 256 columns
  std::int32_t clusters;     ///< 1 or 4, which hold the same hidden layers and divide the inputs
  std::int32_t input_pairs;  ///< groups of 16 inputs, of all clusters
  std::int32_t
      register_masters;  ///< matrices whose masters are in registers, counted from the second layer's
  std::int32_t groups;   ///< of 8 rows of the batch, each a warp's: 4 or, up to 128 columns, 8

  constexpr int cluster_pairs() const { return (input_pairs + clusters - 1) / clusters; }
  constexpr int rows() const { return 8 * groups; }
  /// Of 32 rows: inputs lie so.
  constexpr int halves() const { return groups / 4; }
  /// Of a thread block: eight warps that own masters, one a group, and one for what is small; of four groups with three
  /// more beside it that do nothing, since registers are handed over by four warps together.
  constexpr int threads() const { return kThreads + 32 * (groups + (groups == 4 ? 4 : 1)); }
  /// 16-bit values [rows, all columns]: one exchange.
  constexpr int tiles() const { return rows() * members * kColumnOwn * 2; }
  /// 16-bit weights [16 own columns, all columns of the other layer], or [16 classes, all columns].
  constexpr int matrix() const { return members * kColumnOwn * kColumnOwn * 2; }
  /// Buffers of hidden activations: below the last hidden layer two in turn; the last layer's until the weights above it are
  /// updated, and two in turn if a step has no other exchange.
  constexpr int lower_buffers() const { return hidden >= 3 ? 2 : hidden - 1; }
  constexpr int last_buffers() const { return hidden == 1 ? 2 : 1; }
  /// Of gradients: three in turn, the first for the layer that nobody publishes.
  constexpr int gradient_buffers() const { return hidden >= 4 ? 3 : hidden - 1; }
  /// Exchanges of a step: activations h(1) to h(hidden), then gradients d(hidden - 1) to d(2).
  constexpr int exchanges() const { return hidden == 1 ? 1 : 2 * hidden - 2; }
  constexpr bool operator==(const ColumnShape&) const = default;
};

/// Bytes from the start of a member's shared memory. kSplit: whether a master is its rounded weight and 16 bits more (bf16), in
/// registers; else masters are fp32.
template <ColumnShape kShape, bool kSplit>
struct ColumnPlaces {
  static constexpr int kHidden = kShape.hidden, kTiles = kShape.tiles(), kMatrix = kShape.matrix();
  /// Of a pair of inputs in one order, 32 rows; of all of them.
  static constexpr int kPairBytes = kGroupRows * 16 * 2, kHalfBytes = kShape.cluster_pairs() * kPairBytes;
  static constexpr int kPairWeights = kColumnOwn * 16 * 2, kOwnTile = kShape.rows() * kColumnOwn * 2;

  static constexpr int kLower = 0;  // tiles
  static constexpr int kLast = kLower + kShape.lower_buffers() * kTiles;
  static constexpr int kGradients = kLast + kShape.last_buffers() * kTiles;
  static constexpr int kColumns = kGradients + kShape.gradient_buffers() * kTiles;  // weights [hidden]
  static constexpr int kRows = kColumns + kHidden * kMatrix;                        // [hidden - 1]
  static constexpr int kMasters = kRows + (kHidden - 1) * kMatrix;
  static constexpr int kSharedMasters = kSplit ? 0 : kHidden - kShape.register_masters;
  static constexpr int kFirstWeights = kMasters + kSharedMasters * 2 * kMatrix;
  static constexpr int kInputRows = kFirstWeights + kShape.cluster_pairs() * kPairWeights;
  static constexpr int kInputColumns = kInputRows + kShape.halves() * kHalfBytes;
  static constexpr int kOwnHidden = kInputColumns + kShape.halves() * kHalfBytes;  // [hidden], h1 twice
  static constexpr int kFirstGradient = kOwnHidden + (kHidden == 1 ? 0 : kHidden) * kOwnTile;
  static constexpr int kDlogits = kFirstGradient + kOwnTile;
  static constexpr int kBiases = kDlogits + kOwnTile;  // fp32 [hidden + 1, 16]
  static constexpr int kRowLosses = kBiases + (kHidden + 1) * kColumnOwn * 4;
  static constexpr int kBarriers = kRowLosses + kShape.rows() * 8;
  // mbarriers: of exchanges [exchanges and one more, groups], rows [hidden - 1], inputs [2], between warps [2, hidden] and 2
  static constexpr int kRowsBarriers = (kShape.exchanges() + (kHidden == 1 ? 1 : 0)) * kShape.groups;
  static constexpr int kStagingBarriers = kRowsBarriers + kHidden - 1;
  static constexpr int kTakenBarriers = kStagingBarriers + 2;
  static constexpr int kReadBarriers = kTakenBarriers + kHidden;
  static constexpr int kLastBarriers = kReadBarriers + kHidden;
  static constexpr int kBarrierCount = kLastBarriers + 2;
  static constexpr int kTimedOut = kBarriers + 8 * kBarrierCount;
  static constexpr int kSharedBytes = (kTimedOut + 4 * kShape.groups + 15) / 16 * 16;
};

struct ColumnPlan {
  ColumnShape shape;
  std::int32_t batch, classes;
  std::int32_t widths[kMaxLayers + 1];
  std::int32_t exchanges, shared_bytes;

  Form form;
  std::int64_t
      exchange_bytes;  ///< of device memory: the first layer's sums on their way from cluster to cluster
  std::int64_t x_batch_bytes;                                     ///< of one batch in one order
  std::int64_t weight_begin[kMaxLayers], bias_begin[kMaxLayers];  ///< in the flat parameters
};

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Bytes of shared memory of a member; ColumnPlaces says the same.
int column_shared_bytes(const ColumnShape& shape, bool split);

/// Throws UnsupportedError with what does not fit: precision (fp16 and bf16), layers (2 to 8), batch (64 up to 128 columns, else 32), classes (16), widths (256),
/// inputs (896), thread blocks, or bytes.
ColumnPlan make_column_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::resident
