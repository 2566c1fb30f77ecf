#include "driver/plan/backends.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "core/error.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

/// Seconds since 1970; choices that were kept before then are made again.
constexpr const char* kChoicesSince = "HEADROOM_CHOICES_SINCE";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string prepended(const std::string& first, const std::string& variable) {
  const std::string rest = environment(variable.c_str());
  return rest.empty() ? first : first + ":" + rest;
}

}  // namespace

Installation find_installation() {
  Installation installation;
  std::error_code ignored;
  installation.program_folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  installation.root = environment("HEADROOM_ROOT");
  if (installation.root.empty()) {
    fs::path folder = installation.program_folder;
    while (folder.has_relative_path() && !fs::exists(folder / "bench" / "suites", ignored))
      folder = folder.parent_path();
    installation.root = folder.has_relative_path() ? folder : fs::current_path(ignored);
  }
  installation.python = environment("HEADROOM_PYTHON");
  if (installation.python.empty()) installation.python = "python3";
  installation.jax_python = environment("HEADROOM_JAX_PYTHON");
  if (installation.jax_python.empty()) installation.jax_python = installation.python;
  installation.torch_library_path = environment("HEADROOM_TORCH_LIBRARY_PATH");
  return installation;
}

const BackendRow* find_row(const std::vector<BackendRow>& table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == name; });
  return found == table.end() ? nullptr : &*found;
}

const BackendRow& row_of(const std::vector<BackendRow>& table, std::string_view name) {
  const BackendRow* row = find_row(table, name);
  if (row == nullptr) throw std::logic_error(fmt::format("no backend is called {}", name));
  return *row;
}

void forget_choices(std::vector<WorkerProgram>& programs) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (WorkerProgram& program : programs)
    program.environment[kChoicesSince] = fmt::format("{:.6f}", std::chrono::duration<double>(now).count());
}

std::vector<WorkerProgram> worker_programs(const Installation& installation,
                                           const std::vector<WorkerOption>& options) {
  std::vector<WorkerProgram> programs;
  const auto add_native = [&](const char* name, const char* program) -> WorkerProgram& {
    const fs::path path = installation.program_folder / program;
    WorkerProgram& added = programs.emplace_back(WorkerProgram{.name = name, .command = {path.string()}});
    if (access(path.c_str(), X_OK) != 0) added.missing = fmt::format("{} was not built", program);
    return added;
  };
  add_native("oracle", "headroom-oracle-worker");
  add_native("cuda", "headroom-cuda-worker").needs_device = true;
  add_native("cublaslt", "headroom-cublaslt-worker").needs_device = true;
  add_native("libtorch", "headroom-torch-worker").needs_pytorch = true;
  if (!installation.torch_library_path.empty()) {
    for (WorkerProgram& program : programs)  // PyTorch's folders hold the vendor's libraries too
      if (program.name == "cublaslt" || program.name == "libtorch")
        program.environment["LD_LIBRARY_PATH"] =
            prepended(installation.torch_library_path, "LD_LIBRARY_PATH");
  }
  const fs::path package = installation.root / "torch_impl" / "python";
  const auto add_python = [&](const char* name, const std::string& interpreter, const char* module) {
    WorkerProgram& added =
        programs.emplace_back(WorkerProgram{.name = name, .command = {interpreter, "-m", module}});
    added.starts_slowly = true;
    added.environment["PYTHONPATH"] = package.string();
    added.environment["PYTHONSAFEPATH"] = "1";  // nothing is imported from the folder that we were called in
    std::error_code ignored;
    if (!fs::exists(package / module, ignored)) {
      added.missing =
          fmt::format("torch_impl/python/{} was not found; set HEADROOM_ROOT to the checkout", module);
    }
  };
  add_python("python", installation.python, "headroom_worker");
  add_python("jax", installation.jax_python, "headroom_jax");

  for (const WorkerOption& option : options) {
    const auto same_name = [&](const auto& other) { return other.name == option.name; };
    if (std::count_if(options.begin(), options.end(), same_name) > 1) {
      throw InputError(fmt::format("--worker {}: the name is there twice", option.name));
    }
    const auto found = std::find_if(programs.begin(), programs.end(), same_name);
    WorkerProgram& program = found == programs.end() ? programs.emplace_back() : *found;
    program.name = option.name;
    program.command = option.command;
    program.missing.reset();
    program.starts_slowly = program.needs_device = program.needs_pytorch = false;
  }
  return programs;
}

}  // namespace headroom
