// The trainer of `cuda-streamed`, whose kernel is compiled at set-up (compiled.h): networks whose weights do not fit on the chip: each is read once forward, and read and written once
// backward, where its gradient and update happen in registers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/ready_kernel.h"
#include "streamed/plan.h"

namespace headroom {

namespace streamed {

/// Makes the kernel of a plan, whose argument is Arguments (arguments.h).
using MakeKernel = std::function<jit::ReadyKernel(const KernelShape&)>;

Limits limits_of(int device);

}  // namespace streamed

/// Why CUDA device `device` cannot run cuda-streamed; nullopt if it can.
std::optional<std::string> streamed_unavailable(int device);

/// For tests: everybody else takes the defaults.
struct StreamedOptions {
  double wait_seconds = 2;  ///< longest wait for other thread blocks; a longer one fails the training
  int lost_barrier = -1;    ///< a barrier of each launch at which one thread block does not arrive
  bool hold = false;        ///< not in fp32: hints for the L2 whatever the masters and it measure
  int most_members = 0;     ///< thread blocks at most; 0: one a multiprocessor
  int told = -1;  ///< of kernels with slots: what the L2 is told (slots.cuh); -1: as the plan has it
  int held = -1;  ///< of those: tiles of masters out of 256 that the L2 is to hold
};

/// Throws UnsupportedError with one of the reasons above, InputError if the data does not fit the workload,
/// OutOfMemoryError, and what `make` throws: compiled.h has the one of the row.
std::unique_ptr<Trainer> make_streamed_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const StreamedOptions& options,
                                               const streamed::MakeKernel& make);

}  // namespace headroom
