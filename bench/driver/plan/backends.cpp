#include "driver/plan/backends.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string prepended(const std::string& first, const std::string& variable) {
  const std::string rest = environment(variable.c_str());
  return rest.empty() ? first : first + ":" + rest;
}

}  // namespace

std::string_view to_string(Family family) {
  switch (family) {
    case Family::kReference:
      return "reference";
    case Family::kPytorch:
      return "pytorch";
    case Family::kLibtorch:
      return "libtorch";
    case Family::kJax:
      return "jax";
    case Family::kVendor:
      return "vendor";
    case Family::kCuda:
      return "cuda";
    case Family::kOther:
      break;
  }
  return "other";
}

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

std::vector<BackendRow> backend_table() {
  return {
      {"oracle", "oracle", Family::kReference, "CPU, double precision with the contract's roundings"},
      {"oracle-cuda", "cuda", Family::kReference, "the same arithmetic on the GPU, for large workloads"},
      {"pytorch-eager", "python", Family::kPytorch, "PyTorch from Python, operation by operation"},
      {"pytorch-graph", "python", Family::kPytorch, "pytorch-eager's step, captured in a CUDA graph"},
      {"pytorch-compile", "python", Family::kPytorch,
       "torch.compile (max-autotune) of the loss and of the update", true},
      {"pytorch-compile-graph", "python", Family::kPytorch,
       "loss, gradients and update compiled as one function, whole steps in a CUDA graph", true},
      {"libtorch-eager", "libtorch", Family::kLibtorch, "PyTorch from C++, operation by operation"},
      {"libtorch-graph", "libtorch", Family::kLibtorch, "libtorch-eager's step, captured in a CUDA graph"},
      {"libtorch-expert", "libtorch", Family::kLibtorch,
       "a step written by hand in PyTorch's operations, in a CUDA graph"},
      {"jax-jit", "jax", Family::kJax, "JAX, one compiled step a call"},
      {"jax-scan", "jax", Family::kJax, "JAX, all steps of a block in one compiled loop"},
      {"cublaslt-graph", "cublaslt", Family::kVendor,
       "the vendor's products and their epilogues without a framework, in a CUDA graph"},
      {"cuda-layered", "cuda", Family::kCuda, "our kernels, one for each operation, in a CUDA graph"},
      {"cuda-resident", "cuda", Family::kCuda,
       "our kernel for small networks: weights stay on the chip, many steps a launch"},
      {"cuda-streamed", "cuda", Family::kCuda,
       "our kernel for large weights: each is read once forward, and read and written once backward"},
      {"cuda-fused", "cuda", Family::kCuda,
       "our kernels for narrow networks: activations stay on the chip, forward to backward"},
      {"cuda-fused-compiled", "cuda", Family::kCuda,
       "cuda-fused with its kernel compiled for the network; not in 'all'", true, true},
      {.name = "cuda",
       .worker = "cuda",
       .family = Family::kCuda,
       .description = "the one of ours that is the fastest for the workload; not in 'all'",
       .repeats = true},
  };
}

const BackendRow& row_of(const std::vector<BackendRow>& table, std::string_view name) {
  return *std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == name; });
}

std::vector<std::string> calibrating_workers() { return {"cuda", "cublaslt"}; }

std::vector<WorkerProgram> worker_programs(const Installation& installation,
                                           const std::vector<WorkerOption>& options) {
  std::vector<WorkerProgram> programs;
  const auto add_native = [&](const char* name, const char* program) -> WorkerProgram& {
    const fs::path path = installation.program_folder / program;
    WorkerProgram& added = programs.emplace_back(WorkerProgram{name, {path.string()}, {}, {}});
    if (access(path.c_str(), X_OK) != 0) added.missing = fmt::format("{} was not built", program);
    return added;
  };
  add_native("oracle", "headroom-oracle-worker");
  add_native("cuda", "headroom-cuda-worker");
  add_native("cublaslt", "headroom-cublaslt-worker");
  add_native("libtorch", "headroom-torch-worker");
  if (!installation.torch_library_path.empty()) {
    for (WorkerProgram& program : programs)  // PyTorch's folders hold the vendor's libraries too
      if (program.name == "cublaslt" || program.name == "libtorch")
        program.environment["LD_LIBRARY_PATH"] =
            prepended(installation.torch_library_path, "LD_LIBRARY_PATH");
  }
  const fs::path package = installation.root / "torch_impl" / "python";
  const auto add_python = [&](const char* name, const std::string& interpreter, const char* module) {
    WorkerProgram& added = programs.emplace_back(WorkerProgram{name, {interpreter, "-m", module}, {}, {}});
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
  }
  return programs;
}

}  // namespace headroom
