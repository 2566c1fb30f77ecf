// What a launch of cuda-tiled's kernel is given. Lives in the kernel's parameters, where the copy engine reads the tensor maps.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/workload.h"
#include "rules/optimizer.cuh"
#include "tiled/plan.h"

namespace headroom::tiled {

/// Times of a task, nanoseconds: begun, its first slab there, its products done, its tile stored.
struct TaskTimes {
  std::uint64_t begin, first_slab, products, end;
};

/// The bytes of the driver's CUtensorMap (machine/tensor_map.h). A type of our own, as NVRTC has not the driver's header, whose type is aligned
/// otherwise in another toolkit.
struct alignas(128) TensorMap {
  std::uint64_t words[16];
};

/// A matrix by its address, for what the copy engine does not do: [slices][rows][pitch] values of the factors' type.
struct Rows {
  void* values;
  std::int64_t slice;  ///< values from one to the next
  std::int32_t pitch;  ///< a multiple of 16 bytes
};

/// A matrix [slices][rows][columns] as factor of the wgmma kernel's products, a stage at a time: whose inner index runs along its rows, 64
/// rows of as many panels as a stage has slabs; and across them, in boxes of 64 columns by as many rows as a stage has inner indices.
/// In tf32 `turned` are panels of the turned copy.
struct Factors {
  TensorMap plain, turned;
};

/// A layer with its weights. Matrices that are written in every step while the step before is still read are there twice, and a step
/// uses one or the other by its parity.
struct LayerArguments {
  Factors weights;  ///< [2][out][in], as they enter products
  Factors input;  ///< of the first layer the data set, [batches][batch][in]; else activations, [2][batch][in]
  Factors gradient;                             ///< of the layer's sums, [1][batch][out]
  Rows weight_rows, input_rows, gradient_rows;  ///< the same
  Rows kept_rows;  ///< [1][batch][out], what slopes are taken from where that is not the activations
  /// fp32 weights by place_of_weight(); of the portable kernel as weight_rows, and null where those are the masters.
  float4* masters;
  float4* slots[2];  ///< the optimizer's, likewise; null where there are none
  /// Of parts of the weight gradient: [tile][parts][quads of a thread, and one of its bias's sums][thread of a team]; of the portable
  /// kernel as portable.cuh's PartSums says.
  float4* part_sums;
  std::int32_t parts;
  float* bias;  ///< [all rows of tiles], zeros behind the last
  float* bias_slots[2];
  /// What the slope of the layer's activation is taken from, for each tile as threads hold it: with ReLU a bit a value,
  /// [tile][columns / 64][thread] words, else the 16-bit values themselves, [tile][columns / 16][thread] of four words.
  std::uint32_t* kept;
  std::int32_t out, in;
  std::int32_t out_tiles, in_tiles;  ///< tiles across a product's outputs, and across the weights
};

/// What the wgmma kernel has in tf32 for each layer, as it reads factors along their rows only.
struct TurnedLayer {
  Rows weights, input, gradient;  ///< turned copies: [2][in][out], [batches or 2][in][batch], [1][out][batch]
  /// Of the layer's gradient before it was rounded, the sums of the columns over every `bias_unit` rows, [units][bias_pitch].
  float* bias_sums;
  std::int32_t bias_unit, bias_pitch;
};

/// GPUs that train a network together, at most.
inline constexpr int kMostRanks = 8;

/// Where this rank's rows of a matrix lie in each peer's memory: what Rows::values is in its own.
struct PeerRows {
  void* values[kMostRanks - 1];
};

/// What there is besides with several ranks (ranks.cuh). Rows and Factors::plain are of this rank's rows then, each slice of which lies among
/// those of all ranks; Factors::turned are of all ranks' rows; gradients are there twice, by the step's parity.
struct RankArguments {
  std::int32_t peers;                                  ///< other ranks
  std::int32_t joined;                                 ///< rows of all ranks
  std::int32_t first_row;                              ///< of this rank's, among them
  std::int32_t counters_of_copy;                       ///< from a counter of all ranks to its second copy
  std::uint64_t steps_before;                          ///< the launch: counters go on from launch to launch
  PeerRows inputs[kMaxLayers], gradients[kMaxLayers];  ///< inputs: of all layers but the first
  std::uint32_t* counters[kMostRanks - 1];             ///< of each peer
};

struct Arguments {
  LayerArguments layer[kMaxLayers];
  std::int32_t layers, batch, batches;
  const Task* tasks;
  const std::int32_t* first_task;  ///< [blocks + 1]: of each thread block, and behind the last
  std::uint32_t* counters;         ///< kCounterStride apart; with one rank zeros when the launch begins

  const std::int32_t* labels;  ///< [batches * batch]; with cross-entropy
  const float* targets;        ///< [batches * batch, outputs]; with the other losses
  float* outputs;              ///< [rows of tiles, outputs_pitch]; where there are more than kOutputsOfTile
  std::uint16_t* output_gradient;  ///< what layer[layers - 1].gradient describes, [batch, outputs_pitch]
  std::int32_t outputs_pitch;
  float* loss_sums;  ///< [2][loss_parts]: of every group's rows, by the step's parity
  std::int32_t loss_parts;
  float* losses;  ///< [loss_slots], a ring
  std::int64_t loss_slots;

  const rules::UpdateFactors* factors;  ///< of each step of the launch
  float gradient_scale;  ///< of the loss: one over what the mean divides by, times fp16's loss scale
  float inverse_loss_scale;

  std::int32_t stages;  ///< of the portable kernel's ring
  std::int64_t first_step;
  std::int32_t steps;
  std::int32_t parity;  ///< of the first step

  std::uint64_t wait_nanoseconds;
  std::uint64_t* least_report;  ///< of waits that have run out (waits.h); all ones before
  std::uint64_t* report;        ///< in the host's memory: 0, or the wait that ended the launch
  TaskTimes* times;  ///< [tasks], of the launch's last step; or null, as with a kernel that is not timed

  TurnedLayer turned[kMaxLayers];
  RankArguments ranks;
};

/// Counters in lines of their own.
inline constexpr int kCounterStride = 32;

}  // namespace headroom::tiled
