// What a launch of the column kernel is given.
#pragma once

#include "resident/arguments.h"
#include "resident/column_plan.h"
#include "rules/optimizer.cuh"

namespace headroom::resident {

struct ColumnArguments {
  ColumnPlan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float* mirror;      // the same order, as the last cluster has them at the end
  float* slots[2];    // the optimizer's, in the same order; null where it has none
  const unsigned char* x_rows;               // [batches] [pairs of inputs] [halves] tiles
  const unsigned char* x_columns;            // the same with every block transposed
  const std::int32_t* labels;                // [batches * batch], or null
  const float* targets;                      // [batches * batch, outputs] for losses over targets, or null
  float* losses;                             // ring of loss_slots, a power of two
  unsigned char* exchange;                   // between clusters; all bytes 0xff at the start
  unsigned char* slot_memory;                // [members] slots that are not in shared memory, during a launch
  const rules::UpdateFactors* step_factors;  // of each step of the launch; null without slots
  std::uint32_t* status;                     // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::int32_t steps;
  std::int32_t lost_exchange;  // one that nobody publishes, for tests; else -1
  float update_factor;         // -learning rate / loss scale; plain sgd
  float gradient_scale;        // loss scale / what the mean of the loss divides by
  float inverse_loss_scale;
  rules::UpdateFactors factors;  // what is the same in every step: all but `rate` and `inverse_root` of Adam
};

#ifdef COLUMN_PLAN
/// The plan of the one network that this is compiled for (slice_arguments.h).
struct ColumnPlanWords {
  std::uint32_t word[sizeof(ColumnPlan) / sizeof(std::uint32_t)];
};
__constant__ constexpr ColumnPlan kColumnPlan =
    __builtin_bit_cast(ColumnPlan, ColumnPlanWords{{COLUMN_PLAN}});
__device__ constexpr const ColumnPlan& plan_of(const ColumnArguments&) { return kColumnPlan; }
#endif

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// inputs [batches * batch, in] fp32 -> both orders, rounded to the precision, padding zero. Asynchronous.
void pack_columns(const ColumnPlan& plan, Precision precision, const float* features, std::int64_t batches,
                  unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream);
#endif

}  // namespace headroom::resident
