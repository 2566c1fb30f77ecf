// cuda-resident with its kernel compiled for the network at hand: depth, widths, batch, classes and all places are constants in its
// code. For slices the kernels' sources are those that are compiled ahead; the column kernel is compiled in no other way.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/request.h"
#include "resident/plan.h"
#include "resident/trainer.h"

namespace headroom {

namespace resident {
/// Throw UnsupportedError if there is no kernel for such a plan.
jit::Request compiled_request(const SlicePlan& plan, Precision precision);
jit::Request compiled_request(const ColumnPlan& plan, Precision precision);
jit::Request compiled_request(const SlotPlan& plan, Precision precision);
}  // namespace resident

/// Throws what make_resident_trainer() throws, jit::CompileError, and UnsupportedError if there is no compiler. A kernel of slices that is
/// refused when it is compiled for the network, because it spills, is taken as it was compiled ahead.
/// `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<Trainer> make_compiled_resident_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device, const std::string& cache_folder = {},
                                                        const ResidentOptions& options = {});

/// What that would compile for a device with these limits, which need not be there, if everything that fits by its plan is resident;
/// into the cache. Throws UnsupportedError if no kernel trains this workload there, or if there is no compiler; jit::CompileError.
jit::Cubin compile_resident(const Workload& workload, Precision precision, const resident::Limits& limits,
                            const std::string& cache_folder, const ResidentOptions& options = {});

}  // namespace headroom
