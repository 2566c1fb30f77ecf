// What a launch of the streamed kernel is given, and how the host asks for one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "rules/optimizer.cuh"
#include "streamed/plan.h"

namespace headroom::streamed {

/// The master weights: tile t begins at part[p] + t * stride; what the two parts of 512 bytes hold is the format's business.
struct Masters {
  unsigned char* part[2];
};

inline constexpr int kBarrierCounters = 4, kCounterSpacing = 32;  // a 128-byte line each

/// Everything the kernel reads that is not its own. Kernel parameter, so under 4 KB.
struct Arguments {
  Plan plan;
  Masters masters;
  float* biases;
  const unsigned char* inputs;  // tiles [batches, input_tiles, groups]
  const std::int32_t* labels;   // [batches * batch]
  unsigned char* hidden;        // tiles [output_tiles, groups]
  unsigned char* gradients;     // tiles [output_tiles, groups]; zero at the start
  float* logit_parts;           // [logit_parts, groups * 32, logit_columns]; not with joined logits
  std::uint64_t*
      logit_sums;  // joined logits (logit_sums.h): [kLogitSumSets][kLogitSumsPitch]; zero at the start of a launch
  float* bias_terms;        // [batch, logit_columns]: the logits' gradient as the bias sum sees it
  float* row_losses;        // [batch]
  float* losses;            // ring of loss_slots, a power of two
  std::uint32_t* counters;  // arrivals at barriers; zero at the start of a launch
  std::uint32_t* status;    // 0, or 1 + barrier at which a wait ran out + (member << 16)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::int32_t steps;
  std::int32_t lost_barrier;  // for a test: member 0 does not arrive there; -1: everybody arrives
  float update_factor;        // -learning rate / loss scale
  float gradient_scale;       // loss scale / batch size
  std::int32_t held;          // with hints: tiles of masters out of 256 that the L2 is to hold
  // Of an optimizer with slots (slots.cuh); behind everything else, so that no other kernel reads from another place.
  unsigned char* slots[2];              // tile t of the masters has its states at t * 1024
  float* bias_slots[2];                 // as the biases
  const rules::UpdateFactors* factors;  // of each step of the launch, and of one more
  rules::UpdateFactors rule;            // what is the same in all steps
  const float* targets;  // [batches * batch, classes], of a loss over targets, which has no labels
  float inverse_loss_scale;
};
static_assert(sizeof(Arguments) < 4096);

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// How values lie in tiles.
struct Layout {
  Precision precision;
  bool packs = false;  // packs_activations()
};
/// Of an optimizer's states beside masters of a precision (slots.cuh): in 16 bits as fp16's masters lie.
inline Layout slot_layout(Precision precision) {
  return {precision == Precision::kBf16 ? Precision::kFp16 : precision};
}

/// Threads of a block; bytes of a tile of activations, and between two tiles of masters in one part.
int block_threads(Precision precision);
int activation_bytes(const Layout& layout);
int master_stride(Precision precision);

/// inputs [batches * batch, in] fp32 -> tiles, rounded to the precision, padding zero. Asynchronous.
void pack_inputs(const Plan& plan, const Layout& layout, const float* features, std::int64_t batches,
                 unsigned char* inputs, cudaStream_t stream);
/// Rows first_row to first_row + rows - 1 of a layer's weight [out, in] fp32 -> masters. Asynchronous.
void pack_weights(const Plan& plan, int layer, const Layout& layout, const float* rows_of_weight,
                  int first_row, int rows, const Masters& masters, cudaStream_t stream);
/// The way back.
void unpack_weights(const Plan& plan, int layer, const Layout& layout, const Masters& masters, int first_row,
                    int rows, float* rows_of_weight, cudaStream_t stream);
#endif

}  // namespace headroom::streamed
