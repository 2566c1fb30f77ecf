// Which PyTorch this is, and what it can use here. Free of PyTorch's headers, so that the worker's main stays
// cheap to compile.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace headroom::libtorch {

/// "torch", and what it was built with: "torch_cuda" and "cudnn".
std::map<std::string, std::string> software();

/// Why PyTorch cannot use CUDA device `device`; nullopt if it can. Never throws.
std::optional<std::string> device_missing(int device);

}  // namespace headroom::libtorch
