// The plan of the patch kernel: wide networks in 16 bits, every hidden weight held once.
//
// A member (thread block) owns a patch of every weight of a hidden layer: a row of members shares a block of outputs, a
// column of members a block of what is summed over. Both are constants, and so every address is known when the kernel
// is compiled: a narrower network is padded with weights that are zero and stay so.
#pragma once

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

inline constexpr int kPatchRows = 16, kPatchColumns = 8;  // of members
inline constexpr int kPatchMembers = kPatchRows * kPatchColumns;
inline constexpr int kPatchWidth = 2048;
inline constexpr int kPatchOutputs = kPatchWidth / kPatchRows;    // of a member
inline constexpr int kPatchSummed = kPatchWidth / kPatchColumns;  // hidden columns that a member sums over
inline constexpr int kPatchInputTiles = 13;                       // the same of the inputs, in tiles of 8
inline constexpr int kPatchInputs = 8 * kPatchInputTiles;
inline constexpr int kPatchLayers = 4, kPatchHidden = kPatchLayers - 1;
inline constexpr int kPatchClasses = 16;
/// Outputs that a member adds up the partial sums of, for all rows of the batch.
inline constexpr int kPatchFinished = kPatchOutputs / kPatchColumns;

// What a wait can be for, as a status names it; of hidden activations and of gradients one for each layer.
inline constexpr int kPatchSums = 0, kPatchActivations = kPatchSums + kPatchHidden,
                     kPatchLogits = kPatchActivations + kPatchHidden, kPatchGradientSums = kPatchLogits + 1,
                     kPatchGradients = kPatchGradientSums + kPatchHidden - 1,
                     kPatchExchanges = kPatchGradients + kPatchHidden - 1;

/// Where things lie in a member's shared memory, in bytes. A pitch is such that eight rows lie in different banks.
struct PatchLayout {
  static constexpr int kInputPitch = kPatchInputs * 2, kHiddenPitch = kPatchSummed * 2 + 16,
                       kGradientPitch = kPatchOutputs * 2 + 16, kLossPitch = kPatchClasses * 2;
  static constexpr int kSecond = 0;                                          // masters of the second layer
  static constexpr int kFirst = kSecond + kPatchOutputs * kPatchSummed * 4;  // and of the first
  static constexpr int kInputs = kFirst + kPatchOutputs * kPatchInputs * 4;  // [2 by the step's parity]
  static constexpr int kInputTile = kGroupRows * kInputPitch;
  static constexpr int kGradient =
      kInputs + 2 * kInputTile;  // of this row's outputs; before, their activations
  static constexpr int kHidden =
      kGradient + kGroupRows * kGradientPitch;  // activations of this column, or sums
  static constexpr int kSumBytes = kWarps * 3 * 1024;
  static constexpr int kLoss = kHidden + kSumBytes;  // the logits' gradient
  static constexpr int kBias = kLoss + kGroupRows * kLossPitch;
  static constexpr int kLastBias = kBias + kPatchHidden * kPatchFinished * 4;
  static constexpr int kRowLoss = kLastBias + kPatchClasses * 4;
  static constexpr int kBytes = kRowLoss + kGroupRows * 8;
  static_assert(kGroupRows * kHiddenPitch <= kSumBytes);
};

/// Where an exchange lies in global memory, in bytes from the start of the half of it that a step's parity chooses.
struct PatchExchange {
  static constexpr std::int64_t kTile = kGroupRows * kPatchFinished * 4;  // partial sums for one finisher
  static constexpr std::int64_t kSumBytes = kPatchMembers * kPatchColumns * kTile;
  static constexpr std::int64_t kGradientSumBytes = kPatchMembers * kPatchRows * kTile;
  static constexpr std::int64_t kTileBytes = kPatchMembers * kTile / 2;  // of rounded values
  static constexpr std::int64_t kDisplaced = kTileBytes;                 // behind a gradient's
  static constexpr std::int64_t kDisplacedBytes = kPatchMembers * kWarps * 4;
  static constexpr std::int64_t kLogitBytes = kPatchMembers * kGroupRows * kPatchClasses * 4;

  static constexpr std::int64_t kGradientBytes = kTileBytes + kDisplacedBytes;
  // Those of the first layer; the next layers' follow.
  static constexpr std::int64_t kSums = 0;
  static constexpr std::int64_t kGradientSums = kSums + kPatchHidden * kSumBytes;
  static constexpr std::int64_t kActivations = kGradientSums + (kPatchHidden - 1) * kGradientSumBytes;
  static constexpr std::int64_t kGradients = kActivations + kPatchHidden * kTileBytes;
  static constexpr std::int64_t kLogits = kGradients + (kPatchHidden - 1) * kGradientBytes;
  static constexpr std::int64_t kParityBytes = kLogits + kLogitBytes;
  /// Behind both halves: what members have of the last layer, [16 classes, 256] and [16, 128], each by itself.
  static constexpr std::int64_t kLastMasterBytes =
      std::int64_t{kPatchMembers} * kPatchClasses * (kPatchSummed + kPatchOutputs) * 4;
};

struct PatchPlan {
  Form form;  // grid
  std::int32_t members, batch, classes, exchanges;
  std::int32_t column_inputs;  // inputs of a column of members; the last may have fewer
  std::int32_t widths[kPatchLayers + 1];
  std::int32_t shared_bytes;
  std::int64_t exchange_bytes;  // of global memory
  std::int64_t x_batch_bytes;
  std::int64_t weight_begin[kPatchLayers], bias_begin[kPatchLayers];  // in the flat parameters
};

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Throws UnsupportedError with what does not fit: precision, layers, batch, classes, widths, or bytes.
PatchPlan make_patch_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::resident
