// `cuda-streamed`: networks whose weights do not fit on the chip: each is read once forward, and read and written once
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
#include "streamed/plan.h"

namespace headroom {

namespace streamed {

/// A kernel of an optimizer with slots (slots.cuh), which is compiled when it is wanted.
class SlotKernel {
 public:
  virtual ~SlotKernel() = default;
  virtual const void* function() const = 0;  ///< as the runtime's launches take it
  virtual bool was_kept() const = 0;         ///< by an earlier compilation
  virtual std::string note() const = 0;
};
/// Throws what compiling throws.
using MakeSlotKernel = std::function<std::unique_ptr<SlotKernel>(const SlotKernelShape&)>;

Limits limits_of(int device);

}  // namespace streamed

/// Why CUDA device `device` cannot run cuda-streamed; nullopt if it can.
std::optional<std::string> streamed_unavailable(int device);

/// Why `device`, on which streamed_unavailable() says nothing, cannot train this workload; nullopt if it can.
std::optional<std::string> streamed_refuses(const Workload& workload, int device);

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
/// OutOfMemoryError. Optimizers with slots are trained by kernels that `make` makes, and by no other.
std::unique_ptr<Trainer> make_streamed_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const StreamedOptions& options = {},
                                               const streamed::MakeSlotKernel& make = {});

}  // namespace headroom
