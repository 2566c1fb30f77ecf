// Narrow networks with every activation, loss and optimizer, in every precision: the trainer behind a kernel that has the network as
// constants. compiled.h compiles one.
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
#include "narrow/arguments.h"
#include "narrow/plan.h"

namespace headroom {

namespace narrow {
/// narrow_kernel of one plan.
class StepKernel {
 public:
  virtual ~StepKernel() = default;
  /// Asynchronous.
  virtual void launch(const Arguments& arguments, Stream& stream) const = 0;
  virtual const Plan& plan() const = 0;
  virtual bool was_kept() const = 0;     ///< whether the cache had it
  virtual std::string note() const = 0;  ///< how it came about
};
/// Compiles the kernel of the best plan for a device with these limits, or of `chosen`.
using CompileStep = std::function<std::unique_ptr<StepKernel>(
    const Workload& workload, Precision precision, const Limits& limits, const std::optional<Plan>& chosen)>;

Limits limits_of(int device);

/// For tests and measurements: another plan than make_plan()'s, of the same workload; where a kernel with traces writes them, in
/// device memory.
struct Options {
  std::optional<Plan> plan;
  std::uint32_t* trace = nullptr;
};
}  // namespace narrow

/// Throws UnsupportedError with narrow::refusal()'s reason or the device's; InputError if the data does not fit the workload;
/// OutOfMemoryError; and what `compile` throws.
std::unique_ptr<Trainer> make_narrow_trainer(const Workload& workload, Precision precision,
                                             const DatasetView& data, const Parameters& initial, int device,
                                             const narrow::CompileStep& compile,
                                             const narrow::Options& options = {});

}  // namespace headroom
