// Which worker programs there are, and what a backend is to the driver. Which backends there are, their workers say.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/record.h"
#include "driver/plan/options.h"

namespace headroom {

/// A backend as its worker describes it (`hello` in PROTOCOL.md).
struct BackendRow {
  std::string name;
  std::string worker;  ///< empty: none that answered offers it, and some did not say what they offer
  Family family = Family::kOther;
  std::string description = {};
  bool compiles = false;   ///< when it is set up, which takes up to a minute
  bool in_all = false;     ///< whether "all" means it too
  bool reference = false;  ///< follows the oracle for others
  bool on_device = false;  ///< its worker has a CUDA device
  int min_devices = 1;     ///< for a workload of fewer "all" does not mean it
};

struct WorkerProgram {
  std::string name;
  std::vector<std::string> command;  ///< program first
  std::map<std::string, std::string> environment = {};
  std::optional<std::string> missing = {};  ///< why it cannot be started, found without starting it
  bool starts_slowly = false;               ///< it imports a framework, which takes seconds
  bool needs_device = false;                ///< nothing of it runs without a CUDA device
  bool needs_pytorch = false;               ///< to be built
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

/// The row called `name`; null if there is none.
const BackendRow* find_row(const std::vector<BackendRow>& table, std::string_view name);
/// The row called `name`, which must be there.
const BackendRow& row_of(const std::vector<BackendRow>& table, std::string_view name);
std::vector<WorkerProgram> worker_programs(const Installation& installation,
                                           const std::vector<WorkerOption>& options);

/// Has the workers make choices of their own again that were made before now.
void forget_choices(std::vector<WorkerProgram>& programs);

}  // namespace headroom
