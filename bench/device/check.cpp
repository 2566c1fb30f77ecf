#include "device/check.h"

#include <string_view>

#include "core/error.h"

namespace headroom {
namespace {

/// The last folder and the file: enough to find the place, and the same on every machine.
std::string_view short_path(std::string_view file) {
  const auto name = file.rfind('/');
  if (name == std::string_view::npos || name == 0) return file;
  const auto folder = file.rfind('/', name - 1);
  return folder == std::string_view::npos ? file : file.substr(folder + 1);
}

}  // namespace

void check_cuda(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  const std::string message = std::string(call) + " at " + std::string(short_path(file)) + ":" +
                              std::to_string(line) + ": " + cudaGetErrorName(code) + ": " +
                              cudaGetErrorString(code);
  if (code == cudaErrorMemoryAllocation) throw OutOfMemoryError(message);
  throw CudaError(code, message);
}

}  // namespace headroom
