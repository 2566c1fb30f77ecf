// A run as cells: which backends train which workload in which precision, in the order they will run.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "driver/plan/backends.h"
#include "driver/plan/options.h"
#include "driver/plan/suite.h"

namespace headroom {

/// All backends that are measured together on one (workload, precision), their blocks interleaved.
struct Group {
  Precision precision = Precision::kFp32;
  std::vector<std::string> backends;
};

struct PlannedWorkload {
  Workload workload;
  std::vector<Group> groups;  ///< fp32 first: later groups compare their loss curves with it
  std::string about = {};     ///< as in SuiteWorkload
};

struct Plan {
  std::optional<std::string> suite;  ///< nullopt if workloads were named on the command line
  std::vector<PlannedWorkload> workloads;
  std::optional<std::vector<Precision>> precisions_without_gpu;
  std::int64_t loss_steps = 0;
  std::vector<std::uint64_t> loss_seeds;

  std::int64_t cells() const;
};

/// "mlp-784x10-b32/cuda-layered/fp16": the name Google Benchmark knows a cell by.
std::string cell_name(const std::string& workload, const std::string& backend, Precision precision);

/// The backends that there are, where these were asked for: names, "all", or after a '-' what is left out of it.
using OfferedBackends = std::function<const std::vector<BackendRow>&(const std::vector<std::string>& asked)>;

/// Throws InputError for unknown names (with the nearest one), an empty selection, data that does not fit a
/// workload, a number that a workload's optimizer does not have. `offered` is called once, when everything else was checked.
Plan make_plan(const RunOptions& options, const Installation& installation, const OfferedBackends& offered);

/// The names of the worker programs that serve the planned backends.
std::set<std::string> serving_workers(const Plan& plan, const std::vector<BackendRow>& table);

}  // namespace headroom
