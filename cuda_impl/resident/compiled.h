// cuda-resident with its kernel compiled when it is set up, for the network at hand or for all of its kind (requests.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/request.h"
#include "resident/plan.h"
#include "resident/trainer.h"

namespace headroom {

/// Throws what make_resident_trainer() of resident/trainer.h throws, jit::CompileError, and UnsupportedError if there is no compiler
/// and the kernel was not kept. A kernel of slices that is refused with its plan as constants, because it spills, has it as an argument;
/// so has one that was not kept with constants, where there is no compiler.
/// `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               const std::string& cache_folder = {},
                                               const ResidentOptions& options = {});

/// The same on several devices of one host, a rank each: see resident/trainer.h.
std::unique_ptr<Trainer> make_resident_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial,
                                               const std::vector<int>& devices,
                                               const std::string& cache_folder = {},
                                               const ResidentOptions& options = {});

/// What that would compile for a device with these limits, which need not be there, if everything that fits by its plan is resident;
/// into the cache. Throws UnsupportedError if no kernel trains this workload there, or if there is no compiler; jit::CompileError.
jit::Cubin compile_resident(const Workload& workload, Precision precision, const resident::Limits& limits,
                            const std::string& cache_folder, const ResidentOptions& options = {});

}  // namespace headroom
