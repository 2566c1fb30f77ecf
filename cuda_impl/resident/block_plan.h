// The plan of the block kernel: a wide network in two dimensions, so that every hidden weight is held once.
//
// A cluster owns a block of outputs of every hidden layer, a rank of a cluster a block of what is summed over, of every
// layer; the same in all clusters. Both are constants, so that every address is known when the kernel is compiled:
// a narrower network is padded with weights that are zero and stay so.
#pragma once

#include <cstdint>

#include "resident/plan.h"

namespace headroom::resident {

inline constexpr int kBlockRanks = 8;      // of a cluster
inline constexpr int kBlockOutputs = 72;   // of a cluster
inline constexpr int kBlockColumns = 128;  // of a rank
inline constexpr int kBlockInputs = 112;   // of a rank, at most
inline constexpr int kBlockClasses = 16;   // at most
inline constexpr int kBlockWidth = kBlockRanks * kBlockColumns;
inline constexpr int kBlockClusters = (kBlockWidth + kBlockOutputs - 1) / kBlockOutputs;
inline constexpr int kBlockLayers = 4, kBlockHidden = kBlockLayers - 1;
inline constexpr int kBlockWarps = 8;

// What a wait can be for, as a status names it: through the L2, then inside a cluster.
inline constexpr int kHiddenExchange = 0, kGradientExchange = kBlockHidden,
                     kSumExchange = kGradientExchange + kBlockLayers - 2, kLogitExchange = kSumExchange + 1,
                     kLossExchange = kSumExchange + 2, kGatherExchange = kSumExchange + 3,
                     kBlockExchanges = kSumExchange + 4;

struct BlockPlan {
  Form form;             // grid
  std::int32_t members;  // thread blocks
  std::int32_t batch, classes, exchanges;
  std::int32_t blocks;       // of hidden columns, that there are: at most one a rank
  std::int32_t clusters;     // with which all these columns are somebody's outputs
  std::int32_t rank_inputs;  // inputs of a rank; the last may have fewer
  std::int32_t widths[kBlockLayers + 1];
  std::int32_t shared_bytes;
  std::int64_t exchange_bytes;  // of global memory
  std::int64_t x_batch_bytes;
  std::int64_t weight_begin[kBlockLayers], bias_begin[kBlockLayers];  // in the flat parameters
};

/// A tile [32 rows, columns] consists of packets of 16 bytes: rows r, r + 8, r + 16 and r + 24 of a column.
constexpr int block_tile_bytes(int columns) { return columns * 128; }
inline constexpr int kBlockInputTile = block_tile_bytes(kBlockInputs);

/// Floats from one output's weights to the next one's. With these, eight outputs of a column lie in different banks; of the
/// other two matrices nobody takes more than one output at once.
inline constexpr int kBlockPitch = kBlockColumns + 4;

/// Where things lie in a thread block's shared memory, in bytes. What shares a place is never needed at the same time, nor
/// sent there by anybody before all have done with the other (block_step.cuh).
struct BlockLayout {
  int first_weights, weights;      // masters [72, 112] and, of the layers between, [2, 72, 128]
  int last_columns, last_outputs;  // masters [16, 128] and, as rows, [72, 16]
  int hidden, inputs;              // tiles of this rank's columns [3], [2 by the step's parity]
  int even_sums;                   // partial sums of the cluster for h1 and h3, in the third layer's tile
  int second_gradient;             // tile of this cluster's outputs; before that, partial logits
  int third_gradient;
  int first_gradient;  // before that, partial sums for h2, then the third layer's own activations
  int loss_gradient, row_loss;
  int own_hidden, bias, last_bias;  // packets of this rank's rows of the first two layers; biases of three
  int barriers, zero;               // 16 bytes that stay zero
  int bytes;
};
inline constexpr int kBlockMatrixBytes = kBlockOutputs * kBlockPitch * 4;
inline constexpr int kBlockSumBytes = kBlockRanks * kBlockOutputs * 16;
inline constexpr int kBlockBarriers = 8;

constexpr BlockLayout block_layout() {
  BlockLayout layout{};
  int end = 0;
  const auto take = [&](int bytes) {
    const int begin = end;
    end += (bytes + 127) / 128 * 128;
    return begin;
  };
  layout.first_weights = take(kBlockOutputs * kBlockInputs * 4);
  layout.weights = take((kBlockHidden - 1) * kBlockMatrixBytes);
  layout.last_columns = take(kBlockClasses * kBlockPitch * 4);
  layout.last_outputs = take(kBlockOutputs * kBlockClasses * 4);
  layout.hidden = take(kBlockHidden * block_tile_bytes(kBlockColumns));
  layout.inputs = take(2 * kBlockInputTile);
  layout.even_sums = layout.hidden + (kBlockHidden - 1) * block_tile_bytes(kBlockColumns);
  layout.second_gradient = take(block_tile_bytes(kBlockOutputs));
  layout.third_gradient = take(block_tile_bytes(kBlockOutputs));
  layout.first_gradient = take(block_tile_bytes(kBlockOutputs));
  layout.loss_gradient = take(block_tile_bytes(kBlockClasses));
  layout.row_loss = take(128);
  layout.own_hidden = take((kBlockHidden - 1) * kBlockOutputs * 16);
  layout.bias = take(kBlockHidden * kBlockOutputs * 4);
  layout.last_bias = take(kBlockClasses * 4);
  layout.barriers = take(kBlockBarriers * 8 + 16);
  layout.zero = layout.barriers + kBlockBarriers * 8;
  layout.bytes = end;
  return layout;
}

/// Bytes of a buffer of partial sums of a gradient in global memory.
inline constexpr int kBlockGradientBytes = kBlockClusters * kBlockWidth * 128;

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// Throws UnsupportedError with what does not fit: precision, layers, batch, classes, widths, or bytes.
BlockPlan make_block_plan(const Workload& workload, Precision precision, const Limits& limits);
#endif

}  // namespace headroom::resident
