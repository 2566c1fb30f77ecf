// cuda-fused with the kernel that takes tiles compiled for the network at hand: the plan (depth, widths, batch, classes, all
// places) is a constant in its code. The kernel's source is the same, and so is everything else of the step. What cuda-fused refuses,
// other activations, losses, optimizers and precisions among it, the kernel of narrow/ trains.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "fused/plan.h"
#include "jit/kernel.h"
#include "jit/request.h"

namespace headroom {

namespace fused {
jit::Request compiled_request(const Plan& plan, Precision precision);
/// How the kernel of this plan is launched by so many workers: thread blocks, or clusters of some. Also of kernels compiled
/// ahead. `shared_limit`: what a thread block may have.
jit::LaunchShape launch_shape(const Plan& plan, int workers, int shared_limit);
}  // namespace fused

/// Throws what make_narrow_trainer() throws, jit::CompileError, and UnsupportedError if there is no compiler.
/// `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<Trainer> make_compiled_fused_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     int device, const std::string& cache_folder = {});

/// What that would compile for a device with these limits, which need not be there; into the cache. Throws
/// UnsupportedError if this workload is not trained there, or if there is no compiler; jit::CompileError.
jit::Cubin compile_fused(const Workload& workload, Precision precision, const fused::Limits& limits,
                         const std::string& cache_folder);

}  // namespace headroom
