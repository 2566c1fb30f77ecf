// What a launch of the kernel is given.
#pragma once

#include <cstdint>

#include "narrow/plan.h"
#include "rules/optimizer.cuh"

namespace headroom::narrow {

/// Cycles at which thread 0 of block 0 has come so far in the last step of a launch.
inline constexpr int kTraceMarks = 64;

struct Arguments {
  const unsigned char* inputs;   ///< [batches][tiles] of activation_bytes(plan, 0)
  const unsigned char* targets;  ///< [batches][tiles] of target_bytes(plan)
  float* partials;               ///< [sum_sets(plan)][sum_floats(plan)]; none where blocks are local
  float* block_losses;           ///< [blocks]
  float* masters;                ///< [sum_floats(plan)], in the order of sums
  float* slots[2];               ///< the optimizer's, likewise
  const std::int32_t* places;    ///< [sum_floats(plan)]: of each parameter in the image, in bytes; -1: none
  unsigned char* image;
  const rules::UpdateFactors* factors;  ///< of each step of the launch
  float* losses;                        ///< [loss_slots], a ring
  std::int64_t loss_slots;
  std::uint32_t* counter;  ///< of blocks that have come to a barrier, 0 when the launch begins
  std::uint32_t* status;   ///< see machine/wait.cuh
  std::int64_t wait_nanoseconds;
  std::int64_t first_step, steps, batches;
  std::uint32_t* trace;  ///< [kTraceMarks], of a kernel that is compiled with NARROW_TRACE
  float gradient_scale;  ///< of the loss: one over what the mean divides by, times fp16's loss scale
  float inverse_loss_scale;
};

}  // namespace headroom::narrow
