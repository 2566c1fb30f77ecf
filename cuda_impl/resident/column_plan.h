// Clusters that hold all hidden layers, of any depth: what the column kernel (column_step.cuh) is compiled for, and where
// every byte of a member lies.
//
// A member (thread block) owns 16 columns of every hidden layer. Of the weights between two hidden layers it has the masters of
// those that start from its own columns, 16 columns of the matrix, and nothing else: it updates them, rounds them, and hands the others
// the rows that they multiply by. So the optimizer's slots are held once, too, with the master that they belong to. What of them does
// not fit into shared memory lies in device memory, that is in the L2: only the thread that updates a master reads and writes them.
#pragma once

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

inline constexpr int kColumnOwn = 16;                         ///< columns of a layer that a member owns
inline constexpr int kColumnClasses = 16, kColumnGroups = 4;  // of 8 rows, of half a batch
inline constexpr int kMostColumnRows = 2 * kGroupRows;
/// Of a thread block. Registers are handed over by four warps together; of the last four one has work.
inline constexpr int kColumnThreads = kThreads + 32 * (kColumnGroups + 4);
inline constexpr int kMostColumnPairs = 14;  ///< of 16 inputs each, of a cluster
/// Clusters that divide the inputs where one has no room for them; and those of 8 members where the optimizer has slots.
inline constexpr int kMostColumnClusters = 4, kSlotColumnClusters = 8;
inline constexpr int kMostHidden = kMaxLayers - 1;

/// What the kernel is compiled for; everything else of a network is zero padding, or a number in the plan.
struct ColumnShape {
  std::int32_t hidden;       ///< hidden layers, 1 to 7
  std::int32_t members;      ///< of a cluster, 8 or 16: hidden layers of up to 128 or 256 columns
  std::int32_t clusters;     ///< 1, 4 or 8, which hold the same hidden layers and divide the inputs
  std::int32_t input_pairs;  ///< groups of 16 inputs, of all clusters
  std::int32_t
      register_masters;    ///< matrices whose masters are in registers, counted from the second layer's
  std::int32_t slots = 0;  ///< of the optimizer, for every parameter: 0, 1 or 2
  /// Matrices whose slots are in device memory, counted from the last layer's down; hidden + 1: the first layer's, too.
  std::int32_t memory_slots = 0;
  std::int32_t activation = 0, loss = 0;  ///< core/workload.h's, by their numbers
  std::int32_t halves = 1;                ///< of the batch, 32 rows each: 1, or 2 with batches over 32

  /// Whether the way back takes the sums before the activation (core/training_rules.h), and not its outputs.
  constexpr bool keeps_sums() const {
    return activation == static_cast<int>(Activation::kSilu) ||
           activation == static_cast<int>(Activation::kGelu);
  }
  /// A member's own, of each layer but the last; and everybody's, of the last, which travel beside its outputs.
  constexpr int own_sum_tiles() const { return keeps_sums() ? hidden - 1 : 0; }
  constexpr int last_sum_buffers() const { return keeps_sums() && hidden > 1 ? 1 : 0; }
  constexpr int rows() const { return kGroupRows * halves; }
  constexpr int groups() const { return kColumnGroups * halves; }  ///< of 8 rows
  constexpr int cluster_pairs() const { return (input_pairs + clusters - 1) / clusters; }
  /// 16-bit values [rows, all columns]: one exchange.
  constexpr int tiles() const { return rows() * members * kColumnOwn * 2; }
  /// 16-bit weights [16 own columns, all columns of the other layer], or [16 classes, all columns].
  constexpr int matrix() const { return members * kColumnOwn * kColumnOwn * 2; }
  /// Buffers of hidden activations: below the last hidden layer two in turn; the last layer's until the weights above it are
  /// updated, and two in turn if a step has no other exchange.
  constexpr int lower_buffers() const { return hidden >= 3 ? 2 : hidden - 1; }
  constexpr int last_buffers() const { return hidden == 1 ? 2 : 1; }
  /// With two halves the first of the gradients' buffers is that of h(2): 256 columns in three layers would not fit else.
  constexpr bool shares_a_buffer() const { return halves > 1 && hidden >= 3; }
  /// Of gradients: three in turn, the first for the layer that nobody publishes.
  constexpr int gradient_buffers() const {
    return (hidden >= 4 ? 3 : hidden - 1) - (shares_a_buffer() ? 1 : 0);
  }
  /// Whether inputs as columns are staged in shared memory, or each warp reads its own from the L2.
  constexpr bool stages_columns() const { return halves == 1 || members == 8; }
  /// Exchanges of a step: activations h(1) to h(hidden), then gradients d(hidden - 1) to d(2).
  constexpr int exchanges() const { return hidden == 1 ? 1 : 2 * hidden - 2; }
  /// fp32 values [16 own columns, all columns of the other layer], or [16 own columns, the inputs of a cluster].
  constexpr int matrix_values() const { return 2 * matrix(); }
  constexpr int first_values() const { return cluster_pairs() * kColumnOwn * 16 * 4; }
  constexpr int shared_slot_matrices() const {
    return hidden - (memory_slots < hidden ? memory_slots : hidden);
  }
  constexpr bool first_slots_are_shared() const { return memory_slots <= hidden; }
  /// Of all slots of a member, without those of biases, which are in shared memory.
  constexpr int shared_slot_bytes() const {
    return slots *
           (shared_slot_matrices() * matrix_values() + (first_slots_are_shared() ? first_values() : 0));
  }
  constexpr int memory_slot_bytes() const {
    return slots * (hidden * matrix_values() + first_values()) - shared_slot_bytes();
  }
  constexpr bool operator==(const ColumnShape&) const = default;
};

/// Bytes from the start of a member's shared memory. kSplit: whether a master is its rounded weight and 16 bits more (bf16), in
/// registers; else masters are fp32.
template <ColumnShape kShape, bool kSplit>
struct ColumnPlaces {
  static constexpr int kHidden = kShape.hidden, kTiles = kShape.tiles(), kMatrix = kShape.matrix();
  static constexpr int kPairBytes = kShape.rows() * 16 * 2,  // of a pair of inputs in one order
      kPairWeights = kColumnOwn * 16 * 2, kOwnTile = kShape.rows() * kColumnOwn * 2;

  static constexpr int kLower = 0;  // tiles
  static constexpr int kLast = kLower + kShape.lower_buffers() * kTiles;
  static constexpr int kLastSums = kLast + kShape.last_buffers() * kTiles;
  static constexpr int kGradients = kLastSums + kShape.last_sum_buffers() * kTiles;
  static constexpr int kColumns = kGradients + kShape.gradient_buffers() * kTiles;  // weights [hidden]
  static constexpr int kRows = kColumns + kHidden * kMatrix;                        // [hidden - 1]
  static constexpr int kMasters = kRows + (kHidden - 1) * kMatrix;
  static constexpr int kSharedMasters = kSplit ? 0 : kHidden - kShape.register_masters;
  static constexpr int kSlots =
      kMasters + kSharedMasters * 2 * kMatrix;  // [matrix] [slot], then the first layer's [slot]
  static constexpr int kFirstWeights = kSlots + kShape.shared_slot_bytes();
  static constexpr int kInputRows = kFirstWeights + kShape.cluster_pairs() * kPairWeights;
  static constexpr int kInputColumns = kInputRows + kShape.cluster_pairs() * kPairBytes;
  static constexpr int kOwnHidden =
      kInputColumns +
      (kShape.stages_columns() ? kShape.cluster_pairs() * kPairBytes : 0);               // [hidden], h1 twice
  static constexpr int kOwnSums = kOwnHidden + (kHidden == 1 ? 0 : kHidden) * kOwnTile;  // [hidden - 1]
  static constexpr int kFirstGradient = kOwnSums + kShape.own_sum_tiles() * kOwnTile;
  static constexpr int kDlogits = kFirstGradient + kOwnTile;
  static constexpr int kBiases = kDlogits + kOwnTile;  // fp32 [1 + slots] [hidden + 1, 16]
  static constexpr int kFactors =
      kBiases + (1 + kShape.slots) * (kHidden + 1) * kColumnOwn * 4;  // [2 steps] 8 bytes
  static constexpr int kRowLosses = kFactors + 16;
  static constexpr int kBarriers = kRowLosses + kShape.rows() * 8;
  // mbarriers: of exchanges [exchanges and one more, groups], rows [hidden - 1], inputs [2], between warps [2, hidden] and 2
  static constexpr int kRowsBarriers = (kShape.exchanges() + (kHidden == 1 ? 1 : 0)) * kShape.groups();
  static constexpr int kStagingBarriers = kRowsBarriers + kHidden - 1;
  static constexpr int kTakenBarriers = kStagingBarriers + 2;
  static constexpr int kReadBarriers = kTakenBarriers + kHidden;
  static constexpr int kLastBarriers = kReadBarriers + kHidden;
  static constexpr int kBarrierCount = kLastBarriers + 2;
  static constexpr int kTimedOut = kBarriers + 8 * kBarrierCount;
  static constexpr int kSharedBytes = (kTimedOut + 4 * kColumnGroups + 15) / 16 * 16;
};

struct ColumnPlan {
  ColumnShape shape;
  std::int32_t classes;
  std::int32_t widths[kMaxLayers + 1];
  std::int32_t batch, exchanges, shared_bytes;
  Form form;
  std::int64_t
      exchange_bytes;       ///< of device memory: the first layer's sums on their way from cluster to cluster
  std::int64_t slot_bytes;  ///< of device memory: what of the slots is not in shared memory, of all members
  std::int64_t x_batch_bytes;                                     ///< of one batch in one order
  std::int64_t weight_begin[kMaxLayers], bias_begin[kMaxLayers];  ///< in the flat parameters
};

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Bytes of shared memory of a member; ColumnPlaces says the same.
int column_shared_bytes(const ColumnShape& shape, bool split);

/// Throws UnsupportedError with what does not fit: precision (fp16 and bf16), layers (2 to 8), batch (64), classes (16), widths (256),
/// inputs (896), thread blocks, or bytes. As many slots as fit are in shared memory.
ColumnPlan make_column_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::resident
