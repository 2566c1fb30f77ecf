// The trainer of `cuda-fused`, whose kernels are compiled at set-up (compiled.h): narrow networks and large batches; activations stay on the SM from the first layer to the last and back.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "fused/plan.h"
#include "jit/ready_kernel.h"

namespace headroom {

namespace fused {
/// Makes the kernel that takes tiles through the network of a plan. Its argument is ChainArguments in the general form, PipelineArguments
/// in the others.
using MakeKernel = std::function<jit::ReadyKernel(const Plan& plan)>;
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
/// And what `make` throws: compiled.h has the one of the row.
std::unique_ptr<Trainer> make_fused_trainer(const Workload& workload, Precision precision,
                                            const DatasetView& data, const Parameters& initial, int device,
                                            const fused::MakeKernel& make);

}  // namespace headroom
