// What a launch of the slice kernel is given.
#pragma once

#include "resident/arguments.h"
#include "resident/slice_plan.h"

namespace headroom::resident {

struct SliceArguments {
  SlicePlan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float*
      mirror;  // the same order: weights as the owners of columns, and the last member, hold them at the end
  const unsigned char* x_rows;     // [batches] [slices] tiles
  const unsigned char* x_columns;  // the same with every block transposed, if the format's products want that
  const std::int32_t* labels;      // [batches * batch]
  float* losses;                   // ring of loss_slots, a power of two
  unsigned char* exchange;         // grid: tiles in flight; all bytes 0xff at the start
  std::uint32_t* status;           // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::uint32_t slot_bytes;       // of one buffer of an exchange
  std::int32_t steps;
  std::int32_t lost_exchange;  // one that nobody publishes, for tests; else -1
  float update_factor;         // -learning rate / loss scale
  float gradient_scale;        // loss scale / batch size
  float* ahead;  // [members] tiles: the first layer's sums of the step after the last, if they are made ahead
  bool continues;  // whether they are of this launch's first step
};

#ifdef SLICE_PLAN
/// The plan of the one network that this is compiled for, out of the words that SLICE_PLAN holds (requests.h). In a constant
/// bank: some of it is indexed at run time.
struct SlicePlanWords {
  std::uint32_t word[sizeof(SlicePlan) / sizeof(std::uint32_t)];
};
__constant__ constexpr SlicePlan kSlicePlan = __builtin_bit_cast(SlicePlan, SlicePlanWords{{SLICE_PLAN}});
__device__ constexpr const SlicePlan& plan_of(const SliceArguments&) { return kSlicePlan; }
#endif

#ifndef HEADROOM_COMPILED_ALONE
/// inputs [batches * batch, in] fp32 -> both orders, rounded to the precision, padding zero. Asynchronous.
void pack_slices(const SlicePlan& plan, Precision precision, const float* features, std::int64_t batches,
                 unsigned char* x_rows, unsigned char* x_columns, cudaStream_t stream);
#endif

}  // namespace headroom::resident
