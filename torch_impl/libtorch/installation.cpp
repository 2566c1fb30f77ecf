#include "libtorch/installation.h"

#include <ATen/Context.h>
#include <torch/version.h>

#include "device/device.h"

namespace headroom::libtorch {
namespace {

// cuDNN writes 9.1.2 as 90102 and before version 9 as 8907; CUDA writes 13.0 as 13000.
std::string cudnn_version(long number) {
  const long major = number >= 90000 ? number / 10000 : number / 1000;
  const long rest = number - major * (number >= 90000 ? 10000 : 1000);
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

}  // namespace

std::map<std::string, std::string> software() {
  std::map<std::string, std::string> versions = {{"torch", TORCH_VERSION}};
  const at::CUDAHooksInterface& cuda = at::detail::getCUDAHooks();
  if (cuda.hasCUDART()) {
    const long number = cuda.versionCUDART();
    versions["torch_cuda"] = std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  }
  if (cuda.hasCuDNN()) versions["cudnn"] = cudnn_version(cuda.versionCuDNN());
  return versions;
}

std::optional<std::string> device_missing(int device) {
  if (const std::optional<std::string> reason = headroom::device_missing(device)) return reason;
  if (!at::hasCUDA()) return "PyTorch " TORCH_VERSION " finds no CUDA device";
  return std::nullopt;
}

}  // namespace headroom::libtorch
