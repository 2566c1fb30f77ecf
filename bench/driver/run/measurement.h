// Timing through Google Benchmark: the blocks of all backends of one (workload, precision), interleaved at
// random.
//
// A repetition of a benchmark is a block, its manual time the device time that the worker measured, its
// iterations the steps. The library's own repetitions and order are used; the samples are kept here in full, and
// reports are made of the records (results/formats/google_benchmark.cpp).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/record.h"
#include "driver/gpu/gpu_monitor.h"
#include "driver/plan/options.h"
#include "worker/client.h"

namespace headroom {

/// A prepared trainer and what timing it gave.
struct TimedTrainer {
  std::string name;  ///< WORKLOAD/BACKEND/PRECISION
  WorkerClient* client = nullptr;
  std::int64_t next_step = 0;  ///< the training goes on from block to block
  std::int64_t steps_per_block = 0;
  double least_seconds = 0;       ///< of a block; one that comes out shorter is run again with more steps
  std::int64_t warmup_steps = 0;  ///< untimed ones before each block
  std::vector<Block> blocks;
  std::string failure;  ///< why it could not be timed to the end; empty if it was
};

/// Chooses steps per block (at least `block_seconds` and 50 steps) and warm-up (10 steps or 5 ms, whichever
/// is more) from a few untimed runs. Throws what the client throws, and std::runtime_error for a time that is
/// none.
void choose_block(TimedTrainer& trainer, double block_seconds);

/// Hands the library its flags. Once per process.
void initialize_google_benchmark(const GoogleBenchmarkOptions& options);

/// Times `blocks` blocks of each. A trainer that fails is left out of the rest; the others go on. With
/// `monitors`, one for each device of the workload, each block has the state of the GPUs while it ran.
void measure_interleaved(std::vector<TimedTrainer>& trainers, int blocks,
                         const std::function<void(const TimedTrainer&, std::int64_t order)>& before_block,
                         const std::vector<GpuMonitor*>& monitors = {});

}  // namespace headroom
