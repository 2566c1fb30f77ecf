// The launchers of cuda-fused and what they are told; each is asynchronous on its stream.
//
// A step is two or three kernels: the chain takes tiles of rows through forward, loss and backward; weight gradients
// of layers that the chain does not keep on the SM are summed by the gradient kernel; the update adds up what all
// thread blocks have summed, in a fixed order, and trains.
#pragma once

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
#include <cuda_runtime_api.h>

#include <vector>
#endif

#include <cstdint>

#include "fused/plan.h"
#include "machine/panels.h"
#include "rules/optimizer.cuh"

namespace headroom::fused {

/// Whether outputs are compared with fp32 targets. A kernel compiled with FUSED_PLAIN is for cross-entropy, ReLU and plain SGD alone.
MACHINE_BOTH constexpr bool has_targets([[maybe_unused]] const Plan& plan) {
#ifdef FUSED_PLAIN
  return false;
#else
  return plan.loss != static_cast<std::int32_t>(Loss::kCrossEntropy);
#endif
}
/// Whether the optimizer has slots; likewise.
MACHINE_BOTH constexpr bool has_slots([[maybe_unused]] const Plan& plan) {
#ifdef FUSED_PLAIN
  return false;
#else
  return plan.slots > 0;
#endif
}
/// Floats of a sample's targets.
inline constexpr int kTargetStride = 16;

/// Which step is trained next; lives on the device, so that a captured step finds its batch.
struct StepState {
  std::int64_t step, batch;  ///< batch = step mod batches
};

/// Where things lie in the chain's shared memory, in bytes.
struct ChainLayout {
  std::int32_t resident_bytes;  ///< the image from hidden_begin on, at the start
  std::int32_t ring_begin,
      stages;  ///< a stage: one panel of inputs for both warpgroups, and of first weights
  std::int32_t staging_begin, narrow_staging_begin, mask_begin, barrier_begin, shared_bytes;
};

struct ChainArguments {
  Plan plan;
  ChainLayout layout;
  const unsigned char* image;
  const unsigned char* inputs;  ///< [batches][tiles] of input_tile_bytes(), panels one after the other
  const std::int32_t* labels;   ///< [batches * batch]
  const StepState* state;
  unsigned char* activations;       ///< [hidden][tiles][width_panels] panels
  unsigned char* gradients;         ///< the same, of the sums before the ReLU
  unsigned char* output_gradients;  ///< [tiles][class_panels] panels, if there are more than 16 classes
  float* output_partials;           ///< else: [blocks] of output_partial_floats(), see LogitSums
  float* block_losses;              ///< [blocks]
  float gradient_scale;             ///< of the loss: 1 / batch and fp16's loss scale
  std::int32_t passing_panels;      ///< so many panels of inputs are to leave the L2 first
};

/// Of a thread block of the chain: eight rows for each 64 of the width, and one of biases; see Segment.
MACHINE_BOTH constexpr int output_partial_floats(int width) {
  return ((width > 64 ? 2 : 1) * 8 + 1) * kWarpgroup;
}

struct PipelineArguments {
  Plan plan;
  const unsigned char* image;
  const unsigned char* inputs;  ///< [batches][tiles] panels
  const std::int32_t* labels;   ///< [batches * batch]
  const StepState* state;
  float* partials;  ///< [blocks][rows][128]: kOwnerRows an owner, then those of the output layer; see Segment
  float* block_losses;  ///< [blocks]
  float gradient_scale;
  std::int32_t all_tiles;      ///< of all batches
  const float* targets;        ///< [batches * batch][kTargetStride], of the pipeline with a loss over targets
  std::int64_t* trained_step;  ///< the step's number, for its update
  unsigned char* kept;  ///< [pairs][kKeptTiles][kKeptTileBytes], of pairs only: what waits for its gradient
};
/// The plan that a kernel goes by: its argument's, or a constant that is made of the words that FUSED_PLAN holds. Which of the two,
/// compiled.h says.
#ifdef FUSED_PLAN
struct PlanWords {
  std::uint32_t words[sizeof(Plan) / sizeof(std::uint32_t)];
};
template <class Arguments>
MACHINE_BOTH constexpr Plan plan_of(const Arguments&) {
  return __builtin_bit_cast(Plan, PlanWords{{FUSED_PLAN}});
}
#else
template <class Arguments>
MACHINE_BOTH const Plan& plan_of(const Arguments& arguments) {
  return arguments.plan;
}
#endif

/// Tiles that a pair keeps, and of each H1 and a bit for every value of H2.
inline constexpr int kKeptTiles = 8, kKeptTileBytes = 64 * 128 * 2 + 64 * 128 / 8;
inline constexpr int kOwnerRows = 34;
MACHINE_BOTH constexpr int pipeline_partial_floats(int hidden) {
  return (hidden * kOwnerRows + 8 + 1) * kWarpgroup;
}

/// The same for the cluster form: an owner's two halves, then those of the output layer.
inline constexpr int kWideOwnerRows = 66;
MACHINE_BOTH constexpr int cluster_partial_floats(int hidden) {
  return (hidden * 2 * kWideOwnerRows + 2 * 8 + 1) * kWarpgroup;
}

/// A warp that keeps all sums takes 16 rows of a tile at a time.
inline constexpr int kPieceRows = 16, kPiecesPerTile = kTileRows / kPieceRows;
/// Rows of an SM's partial sums there, 128 floats each: eight a hidden layer, four of the output layer, two of hidden
/// layers' biases and one of the output layer's; see Kind::kLanes.
MACHINE_BOTH constexpr int warp_partial_rows(int hidden) { return hidden * 8 + 4 + 2 + 1; }

/// Thread blocks of the gradient kernel come in pairs, a cluster each.
inline constexpr int kGradientPair = 2;
/// Bytes of all stages of its ring, at most: what is loaded, and with ones beside it what they take up in shared memory.
inline constexpr int kGradientLoadedBytes = 4 * (4 * kTilePanelBytes + kNarrowTileBytes),
                     kGradientRingBytes = 24 * kTilePanelBytes,
                     kMostGradientStages = kGradientLoadedBytes / (kTilePanelBytes + kNarrowTileBytes);
/// What one thread block of the gradient kernel sums: up to two panels of a layer's outputs by as many of its inputs and
/// the narrow one, over tiles first_tile to end_tile - 1.
struct GradientBlock {
  const unsigned char *outputs, *inputs;  ///< the first panel in tile 0
  std::int64_t output_tile_bytes, input_tile_bytes;
  std::int32_t output_columns, input_columns;  ///< of whole panels: 128 or 64; inputs, if with_narrow, also 0
  /// The narrow panel lies behind the others. of_batch: inputs is that of batch 0.
  std::int32_t with_narrow, with_bias, of_batch;
  /// A stage of the ring, in bytes: outputs first, whole panels of inputs, one of ones for the biases, the narrow panel. Both
  /// blocks of a pair have the same stages.
  std::int32_t inputs_at, ones_at, narrow_at, stage_bytes, stages;
  std::int32_t same_outputs;  ///< the other block of the pair has the same outputs and tiles
  std::int32_t first_tile, end_tile;
  std::int64_t partial;  ///< where its sums go, in floats; one warpgroup's after the other's
};

/// Partial sums of one warpgroup: rows of 128 floats, one a thread; weight rows first, then bias rows. Row r of thread
/// 32w + 4g + t is of m = 16w + g + 8 * (r / 2 mod 2) and n = 8 * (r / 4) + 2t + r mod 2.
/// kQuads: weights of output m and input n, but a thread's rows lie in fours next to each other, one thread's after the
/// other's; then two rows of bias gradients of outputs 16w + g and 16w + g + 8, in threads with t = 0.
/// kTurned: weights of input m and output n, row by row. kOutputBias: one row, the bias of output `thread`.
/// kLanes, of warps: rows are of 16 outputs and 8 inputs, inputs first; lane 4g + t has outputs g and g + 8 and inputs 2t
/// and 2t + 1. kLaneBiases: the same of 16 outputs, where the columns are layers. kLaneOutputBias: a row of t and outputs.
enum class Kind : std::int32_t { kQuads, kTurned, kOutputBias, kLanes, kLaneBiases, kLaneOutputBias };
struct Segment {
  Kind kind;
  std::int32_t layer, first_output, first_input;
  std::int32_t weight_rows, bias_rows, splits;
  std::int64_t partial, split_stride;  ///< in floats
};
/// A parameter by its place; in < 0: a bias. Layer < 0: none.
struct Target {
  int layer = -1, out = 0, in = 0;
};
/// The parameter whose gradient is in column `column` of 128 of row `row` of a segment.
MACHINE_BOTH Target target_of(const Plan& plan, const Segment& segment, int row, int column) {
  if (segment.kind == Kind::kQuads && row < segment.weight_rows) {
    const int place = row * kWarpgroup + column;
    column = place / 4 % kWarpgroup;
    row = place / (4 * kWarpgroup) * 4 + place % 4;
  }
  const int lane = column % 32;
  Target target{segment.layer, column, -1};
  if (segment.kind == Kind::kLanes || segment.kind == Kind::kLaneBiases ||
      segment.kind == Kind::kLaneOutputBias) {
    const int of_lane = column / 4, g = of_lane / 4, t = of_lane % 4, up = column / 2 % 2 * 8,
              odd = column % 2;
    if (segment.kind == Kind::kLanes) {
      target.out = row / 4 * 16 + g + up;
      target.in = row % 4 * 8 + 2 * t + odd;
    } else if (segment.kind == Kind::kLaneBiases) {
      target.out = row * 16 + g + up;
      target.layer = 2 * t + odd < plan.hidden ? 2 * t + odd : -1;
    } else {
      target.out = 2 * t + odd + up;
      if (g > 0) target.layer = -1;
    }
  } else if (segment.kind != Kind::kOutputBias) {
    const bool is_bias = row >= segment.weight_rows;
    const int half = is_bias ? row - segment.weight_rows : row / 2 % 2;
    const int m = column / 32 * 16 + lane / 4 + 8 * half, n = row / 4 * 8 + 2 * (lane % 4) + row % 2;
    const bool is_turned = segment.kind == Kind::kTurned;
    target.out = segment.first_output + (is_turned ? n : m);
    if (!is_bias) target.in = segment.first_input + (is_turned ? m : n);
    if (is_bias && lane % 4 != 0) target.layer = -1;
  }
  if (target.layer >= 0 &&
      (target.out >= plan.widths[target.layer + 1] || target.in >= plan.widths[target.layer]))
    target.layer = -1;
  return target;
}
/// Its place in the flat parameters.
MACHINE_BOTH std::int64_t parameter_index(const Plan& plan, const Target& target) {
  const int ins = plan.widths[target.layer], outs = plan.widths[target.layer + 1];
  return plan.parameter_begin[target.layer] +
         (target.in < 0 ? ins * outs + target.out : target.out * ins + target.in);
}

/// Rows of partial sums that a thread block of the update adds up, weight rows or bias rows of a segment. The update
/// finds these and the places of parameters in tables: to work them out took it as long as the sums.
struct alignas(16) UpdateRows {
  std::int32_t partial, split_stride;  ///< in floats
  std::int32_t splits, count;
};
/// A parameter by its place in the flat parameters, and the bytes of the image where its value goes; < 0: none.
/// Weights have up to two places; a bias, flagged, has one.
struct alignas(16) UpdatePlaces {
  std::int32_t parameter, bytes[2];
};
inline constexpr std::int32_t kBiasFlag = 1 << 30;

/// What a thread block of the update has, so that SMs have the same to read: several rows where each has few partial
/// sums, a part of one where it has many. Single rows of more than kFewSplits partial sums may be among the former.
struct UpdateShare {
  int rows, parts, threads;
};
/// kPairSplits: of pairs of SMs.
inline constexpr int kFewSplits = 20, kPairSplits = 72;
MACHINE_BOTH constexpr UpdateShare update_share(int splits) {
  return splits <= kFewSplits    ? UpdateShare{4, 1, 32 * kFewSplits}
         : splits <= 64          ? UpdateShare{1, 1, 512}
         : splits <= kPairSplits ? UpdateShare{1, 4, 96}
                                 : UpdateShare{1, 4, 256};
}

struct UpdateArguments {
  Plan plan;
  const UpdateRows* rows;      ///< [row_blocks]
  const UpdatePlaces* places;  ///< [row_blocks][parts][rows][128 / parts]; see UpdateShare
  std::int32_t row_blocks;
  UpdateShare share;
  const float* partials;
  float* parameters;  ///< flat
  unsigned char* image;
  float update_factor;  ///< -learning rate / loss scale; of plain SGD
  // Of the others: slots [parameters], and factors of the first steps, of which the last hold for all steps behind.
  float* slots[2];
  const rules::UpdateFactors* factors;
  std::int64_t factor_count;
  const std::int64_t* trained_step;
  float inverse_loss_scale;
  float mean_of;  ///< what the sum of losses is divided by
  const float* block_losses;
  std::int32_t loss_blocks;
  float* losses;
  std::int64_t loss_slots, batches;
  StepState* state;
};

#ifndef HEADROOM_COMPILED_ALONE
/// stages < 2: the network leaves no room for a ring.
ChainLayout chain_layout(const Plan& plan, int shared_limit);

/// How the kernel that takes tiles is launched: threads of a thread block, bytes of its shared memory, and how many of them take tiles
/// together, as a cluster. `shared_limit`: what a thread block may have.
struct BlockShape {
  int threads, shared_bytes, cluster;
};
BlockShape block_shape(const Plan& plan, int shared_limit);

/// blocks: on the device.
void launch_gradients(Precision precision, const GradientBlock* blocks, int count, std::int64_t batch_bytes,
                      const StepState* state, float* partials, cudaStream_t stream);
void launch_update(Precision precision, const UpdateArguments& arguments, cudaStream_t stream);

/// rows [batches * batch, inputs] fp32 into the panels that `inputs` of ChainArguments describes.
void pack_inputs(Precision precision, const Plan& plan, const float* rows, std::int64_t batches,
                 unsigned char* panels, cudaStream_t stream);
/// rows [samples, outputs] into `targets` of PipelineArguments.
void pack_targets(const float* rows, int outputs, std::int64_t samples, float* targets, cudaStream_t stream);
/// Flat parameters into the image, padding included.
void make_image(Precision precision, const Plan& plan, const float* parameters, unsigned char* image,
                cudaStream_t stream);
void set_step(StepState* state, std::int64_t step, std::int64_t batches, cudaStream_t stream);
#endif

}  // namespace headroom::fused
