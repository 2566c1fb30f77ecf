// `cuda-tiled`: its kernel is compiled when a trainer is set up, for tiles, a precision, and what is trained (KernelRules). Widths and batch
// are its arguments, so networks of one kind share a kernel.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/request.h"
#include "tiled/plan.h"
#include "tiled/trainer.h"

namespace headroom {

namespace tiled {
jit::Request compiled_request(const KernelShape& shape);
}  // namespace tiled

/// Throws what make_tiled_trainer() of trainer.h throws, jit::CompileError, and UnsupportedError if there is no compiler and no kernel
/// that was kept. `cache_folder`: where compiled code is kept; empty for nowhere.
std::unique_ptr<TiledTrainer> make_compiled_tiled_trainer(const Workload& workload, Precision precision,
                                                          const DatasetView& data, const Parameters& initial,
                                                          int device, const std::string& cache_folder = {},
                                                          const TiledOptions& options = {});
/// On as many devices as the workload says.
std::unique_ptr<Trainer> make_compiled_tiled_trainer(const Workload& workload, Precision precision,
                                                     const DatasetView& data, const Parameters& initial,
                                                     const std::vector<int>& devices,
                                                     const std::string& cache_folder = {},
                                                     const TiledOptions& options = {});

/// A GPU that need not be there.
struct TiledTarget {
  jit::Architecture architecture;
  int sm_count;
};
/// What that would ask a compiler for on `target`. Throws UnsupportedError if the target is too old for it.
jit::Request tiled_request(const Workload& workload, Precision precision, const TiledTarget& target,
                           const TiledOptions& options = {});
/// The same, compiled; into the cache. Throws UnsupportedError too if there is no compiler; jit::CompileError.
jit::Cubin compile_tiled(const Workload& workload, Precision precision, const TiledTarget& target,
                         const std::string& cache_folder, const TiledOptions& options = {});

}  // namespace headroom
