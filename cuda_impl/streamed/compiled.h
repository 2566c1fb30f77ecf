// `cuda-streamed`: its kernel is compiled when a trainer is set up, one for each kind of plan. The plan itself is the kernel's argument, so networks of
// one kind share a kernel.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/request.h"
#include "streamed/plan.h"
#include "streamed/trainer.h"

namespace headroom {

namespace streamed {
jit::Request compiled_request(const KernelShape& shape);
}  // namespace streamed

/// Throws what make_streamed_trainer() throws, jit::CompileError, and UnsupportedError if there is no compiler and no kernel that was
/// kept. `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<Trainer> make_compiled_streamed_trainer(const Workload& workload, Precision precision,
                                                        const DatasetView& data, const Parameters& initial,
                                                        int device, const std::string& cache_folder = {},
                                                        const StreamedOptions& options = {});

/// What that would compile for a device with these limits, which need not be there, and an L2 of `l2_bytes`; into the cache. Throws the same.
jit::Cubin compile_streamed(const Workload& workload, Precision precision, const streamed::Limits& limits,
                            const std::string& cache_folder, std::int64_t l2_bytes = streamed::kUsualL2Bytes,
                            const StreamedOptions& options = {});

}  // namespace headroom
