// Suites are data: a JSON file that says which workloads, precisions and backends a run measures.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/workload.h"

namespace headroom {

/// Every backend that competes and repeats no other.
inline constexpr const char* kAllBackends = "all";

/// Each of the backends in each of the precisions.
struct SuiteCells {
  std::vector<Precision> precisions;  ///< the suite's unless the workload has its own
  std::vector<std::string> backends;  ///< names, or kAllBackends; after a '-' what is left out of it
};

struct SuiteWorkload {
  Workload workload;
  std::vector<SuiteCells>
      cells;               ///< of each entry of the file that means this workload; all of them are measured
  std::string about = {};  ///< where it comes from, in a sentence; may be empty
};

/// How many networks are drawn at random, and from what (drawn.h).
struct Drawing {
  int networks = 0, most_layers = 0, most_width = 0, most_batch = 0;
  SuiteCells cells = {};  ///< of each network one of the precisions
};

struct Suite {
  std::string name;
  std::string description;
  std::vector<SuiteWorkload> workloads;  ///< empty with `drawing`
  std::optional<Drawing> drawing;        ///< in place of workloads: a run draws them (workloads_of)
  /// Where there is no CUDA device only these are run; nullopt for no such limit.
  std::optional<std::vector<Precision>> precisions_without_gpu;
  std::int64_t loss_steps = 0;
  std::vector<std::uint64_t> loss_seeds;
  std::vector<std::string> python_worker_arguments;  ///< for the Python worker, which may then offer more
};

/// An entry of the file may stand for several workloads: its "batch_size" and its "devices" may be lists, and "H" among its "widths" stands for each
/// number of its list "H". A workload that several entries mean has the cells of all of them.
/// Throws InputError (`file: where: what, and what would be right`) for anything but a right suite:
/// unknown keys, missing keys, wrong types, duplicate names, workloads out of range.
Suite read_suite(const std::filesystem::path& file);

/// The suite's workloads; of a suite that draws them those of `word`. Throws InputError if it needs a word and that is empty.
std::vector<SuiteWorkload> workloads_of(const Suite& suite, const std::string& word);

/// Names of the suites in `folder`, sorted.
std::vector<std::string> suite_names(const std::filesystem::path& folder);

/// `name_or_file`: a name in `folder`, or a path (has a slash or ends in .json).
std::filesystem::path find_suite(const std::string& name_or_file, const std::filesystem::path& folder);

}  // namespace headroom
