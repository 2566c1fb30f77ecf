#include "worker/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace headroom {
namespace {

constexpr std::array<std::string_view, 26> kLeftOut = {
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_",
    "CUBLAS",  // and CUBLASLT
    "CUDNN",
    "CUTLASS",
    "NVRTC",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "NCCL",
    "TORCH",  // and TORCHINDUCTOR, TORCHDYNAMO
    "PYTORCH",
    "ATEN",
    "C10",
    "TRITON",
    "XLA",
    "TF_XLA_FLAGS",
    "TF_CUDNN",
    "JAX",
    "ONEDNN",
    "DNNL",
    "MKL_",
    "MKLDNN",
    "PYTHON",
    "BENCHMARK_",
    // What `compare --plant` tells the trainers; it sets it itself.
    "HEADROOM_PLANTED_DELAY_PERCENT",
    // What `run --choose-again` tells the workers.
    "HEADROOM_CHOICES_SINCE",
};

constexpr std::array<std::string_view, 17> kKept = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_ROOT",
    "CUDA_CACHE_",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_INJECTION",  // how a profiler gets in
    "MKL_NUM_THREADS",
    "TORCH_HOME",
    "PYTHONNOUSERSITE",  // these two leave places out
    "PYTHONSAFEPATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPYCACHEPREFIX",
    "PYTHONUNBUFFERED",
    "PYTHONFAULTHANDLER",
};

std::string_view name_in(std::string_view entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

bool is_left_out(std::string_view name) {
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  // Images of containers say there what they hold; nothing reads it.
  if (name.ends_with("_VERSION")) return false;
  return std::any_of(kLeftOut.begin(), kLeftOut.end(), begins) &&
         std::none_of(kKept.begin(), kKept.end(), begins);
}

std::vector<std::string> left_out_names() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (is_left_out(name_in(*entry))) names.emplace_back(name_in(*entry));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> worker_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(name_in(*entry));
    if (!is_left_out(name) && added.count(name) == 0) result.emplace_back(*entry);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

}  // namespace headroom
