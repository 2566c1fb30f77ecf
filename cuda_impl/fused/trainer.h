// `cuda-fused`: narrow networks and large batches; activations stay on the SM from the first layer to the last and back.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "device/stream.h"
#include "fused/kernels.h"
#include "fused/plan.h"

namespace headroom {

namespace fused {
/// The kernel that takes tiles through the network, where it was compiled for one plan (compiled/compiled.h).
class PlanKernel {
 public:
  virtual ~PlanKernel() = default;
  /// Asynchronous. `workers` as the trainer counts them: thread blocks, or clusters. The arguments are those of the plan's form.
  virtual void launch(const ChainArguments& arguments, int workers, Stream& stream) const = 0;
  virtual void launch(const PipelineArguments& arguments, int workers, Stream& stream) const = 0;
  virtual bool was_kept() const = 0;     ///< whether the cache had it
  virtual std::string note() const = 0;  ///< how it came about
};
using CompilePlan = std::function<std::unique_ptr<PlanKernel>(const Plan& plan, const Limits& limits)>;
}  // namespace fused

/// Why CUDA device `device` cannot run cuda-fused; nullopt if it can.
std::optional<std::string> fused_unavailable(int device);

/// Why cuda-fused does not train this workload in this precision on a device with these limits that fused_unavailable() has
/// nothing against; nullopt if it does.
std::optional<std::string> fused_refusal(const Workload& workload, Precision precision,
                                         const fused::Limits& limits);

/// Throws UnsupportedError with the reason of one of these two, or with how many thread blocks or bytes the device lacks;
/// InputError if the data does not fit the workload, OutOfMemoryError.
/// No wait of its kernels has a bound. The host watches their steps instead, and train() throws DeviceStuckError.
/// `compile` gives the kernel that takes tiles; without it that is the one compiled ahead.
std::unique_ptr<Trainer> make_fused_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial, int device,
                                            const fused::CompilePlan& compile = {});

}  // namespace headroom
