// Every CUDA call's error becomes an exception that shows the call, its place and CUDA's own words.
//
// Running out of device memory has a type of its own (OutOfMemoryError), because it costs one record and no
// more.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace headroom {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const std::string& message) : std::runtime_error(message), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

/// Returns if `code` is cudaSuccess, else throws OutOfMemoryError or CudaError. An error that the runtime
/// would report again with the next launch is cleared.
void check_cuda(cudaError_t code, const char* call, const char* file, int line);

}  // namespace headroom

#define CUDA_CHECK(call) ::headroom::check_cuda((call), #call, __FILE__, __LINE__)
