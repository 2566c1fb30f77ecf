// `cuda-fused`: the kernel that takes tiles is compiled when a trainer is set up. What it refuses, other activations, losses, optimizers and
// precisions among it, the kernel of narrow/ trains.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "fused/plan.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/request.h"

namespace headroom {

namespace fused {
/// How a kernel has its plan: depth, widths, batch, classes and all places as constants in its code, or in its argument, so that networks
/// of one form and depth share it.
enum class PlanAs { kConstants, kArgument };

/// What is faster, as measured on an H200 (docs/kernels/log/fused.md#compiled-for-the-network).
PlanAs plan_as(const Plan& plan);

jit::Request compiled_request(const Plan& plan, Precision precision, PlanAs as);
/// From the cache, else compiled: as plan_as() has it, and with the plan as an argument if that kernel is refused. Throws as
/// jit::compile() does.
jit::Cubin compile_plan(const Plan& plan, Precision precision, const jit::Architecture& architecture,
                        const jit::Compiler* compiler, const jit::Cache& cache);
}  // namespace fused

/// Throws what make_fused_trainer() and make_narrow_trainer() throw, jit::CompileError, and UnsupportedError if there is no compiler
/// and no kernel that was kept. `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<Trainer> make_compiled_fused_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     int device, const std::string& cache_folder = {});

/// What that would compile for a device with these limits, which need not be there; into the cache. Throws
/// UnsupportedError if this workload is not trained there, or if there is no compiler; jit::CompileError.
jit::Cubin compile_fused(const Workload& workload, Precision precision, const fused::Limits& limits,
                         const std::string& cache_folder);

}  // namespace headroom
