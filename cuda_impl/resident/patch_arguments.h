// What a launch of the patch kernel is given.
#pragma once

#include "resident/arguments.h"
#include "resident/patch_plan.h"

namespace headroom::resident {

struct PatchArguments {
  PatchPlan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float*
      mirror;  // the same order: of the last layer as the owners of its columns for gradients hold it, else the same
  const unsigned char* x_rows;     // [batches, columns of members] tiles [32 rows, kPatchInputs]
  const unsigned char* x_columns;  // not used: both products take the same tile
  const std::int32_t* labels;      // [batches * batch]
  float* losses;                   // ring of loss_slots, a power of two
  unsigned char* exchange;         // values in flight, all bytes 0xff at the start; the last layer's masters
  std::uint32_t* status;           // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::int32_t steps;
  std::int32_t lost_exchange;  // one that is never seen to be complete, for tests; else -1
  float update_factor;         // -learning rate / loss scale
  float gradient_scale;        // loss scale / batch size
};

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// inputs [batches * batch, in] fp32 -> tiles, rounded to the precision, padding zero. Asynchronous.
void pack_patches(const PatchPlan& plan, Precision precision, const float* features, std::int64_t batches,
                  unsigned char* x_rows, cudaStream_t stream);
#endif

}  // namespace headroom::resident
