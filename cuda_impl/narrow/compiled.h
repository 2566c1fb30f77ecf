// The kernel for narrow networks compiled for the network at hand.
#pragma once

#include <memory>
#include <string>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/trainer.h"
#include "core/workload.h"
#include "jit/cache.h"
#include "jit/compiler.h"
#include "jit/request.h"
#include "narrow/plan.h"
#include "narrow/trainer.h"

namespace headroom {

namespace narrow {
jit::Request compiled_request(const Plan& plan, const std::string& workload);
}  // namespace narrow

/// Throws what make_narrow_trainer() throws, jit::CompileError, and UnsupportedError if there is no compiler (null) and the kernel
/// was not kept.
std::unique_ptr<Trainer> make_compiled_narrow_trainer(const Workload& workload, Precision precision,
                                                      const DatasetView& data, const Parameters& initial,
                                                      int device, const jit::Compiler* compiler,
                                                      const jit::Cache& cache,
                                                      const narrow::Options& options = {});

/// What that would compile for a device with these limits, which need not be there. Throws the same.
jit::Cubin compile_narrow(const Workload& workload, Precision precision, const narrow::Limits& limits,
                          const jit::Compiler* compiler, const jit::Cache& cache);

}  // namespace headroom
