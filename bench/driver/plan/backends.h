// The two tables of the driver: which worker programs there are, and which backend each of them serves.
//
// Adding a backend is one row here and one in its worker. Workers named with --worker bring their own rows.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/plan/options.h"

namespace headroom {

/// Who a backend is compared with. A reference is measured where it is named, never compared as a competitor.
/// kJax and kVendor compete but are neither PyTorch nor ours; kOther comes with --worker.
enum class Family { kReference, kPytorch, kLibtorch, kJax, kVendor, kCuda, kOther };
std::string_view to_string(Family family);

struct BackendRow {
  std::string name;
  std::string worker;
  Family family = Family::kOther;
  std::string description;
  bool compiles = false;  ///< when it is set up, which takes up to a minute
  bool repeats = false;   ///< another row's work under its own name: "all" leaves it out
};

struct WorkerProgram {
  std::string name;
  std::vector<std::string> command;  ///< program first
  std::map<std::string, std::string> environment;
  std::optional<std::string> missing;  ///< why it cannot be started, found without starting it
};

/// Where this installation's parts are.
struct Installation {
  std::filesystem::path root;            ///< the checkout: HEADROOM_ROOT, else found from the program's path
  std::filesystem::path program_folder;  ///< of this program and the C++ workers
  std::string python;                    ///< HEADROOM_PYTHON, else python3
  std::string jax_python;                ///< HEADROOM_JAX_PYTHON, else `python`
  std::string torch_library_path;        ///< HEADROOM_TORCH_LIBRARY_PATH
};
Installation find_installation();

std::vector<BackendRow> backend_table();
/// The row called `name`, which must be there.
const BackendRow& row_of(const std::vector<BackendRow>& table, std::string_view name);
/// Worker programs that measure the device itself.
std::vector<std::string> calibrating_workers();
std::vector<WorkerProgram> worker_programs(const Installation& installation,
                                           const std::vector<WorkerOption>& options);

}  // namespace headroom
