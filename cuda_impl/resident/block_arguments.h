// What a launch of the block kernel is given.
#pragma once

#include "resident/arguments.h"
#include "resident/block_plan.h"

namespace headroom::resident {

struct BlockArguments {
  BlockPlan plan;
  float* parameters;  // flat, as core/parameters.h orders them; read at the start, written at the end
  float* mirror;  // the same order: weights; of the last layer, as the owners of outputs hold them at the end
  const unsigned char* x_rows;     // [batches, ranks] tiles
  const unsigned char* x_columns;  // not used: a tile serves both products
  const std::int32_t* labels;      // [batches * batch]
  float* losses;                   // ring of loss_slots, a power of two
  unsigned char* exchange;         // tiles in flight; all bytes 0xff at the start
  std::uint32_t* status;           // 0, or where a wait ran out (see describe_status)
  std::int64_t first_step, batches, loss_slots;
  std::int64_t wait_nanoseconds;  // longest wait
  std::int32_t steps;
  std::int32_t lost_exchange;  // one that nobody publishes, for tests; else -1
  float update_factor;         // -learning rate / loss scale
  float gradient_scale;        // loss scale / batch size
};

inline constexpr int kBlockStepThreads = 32 * kBlockWarps;

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// inputs [batches * batch, in] fp32 -> tiles, padding zero. Asynchronous.
void pack_blocks(const BlockPlan& plan, const float* features, std::int64_t batches, unsigned char* x_tiles,
                 cudaStream_t stream);
#endif

}  // namespace headroom::resident
