// A compiled kernel on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "device/check.h"
#include "jit/request.h"

namespace headroom::jit {

/// How a kernel is launched. Three things go beyond blocks and threads:
///   cluster          blocks that run side by side and see each other's shared memory; 1: none
///   is_cooperative   all blocks are on the device at once, or the launch fails, so that they may wait for each other
///   overlaps_before  it may begin while the kernel before it in the stream ends, for which it waits itself
struct LaunchShape {
  int blocks = 1, threads = 1, shared_bytes = 0;
  int cluster = 1;
  bool is_cooperative = false, overlaps_before = false;
};

class Kernel {
 public:
  /// Loads it onto the current device. Throws CudaError.
  explicit Kernel(const Cubin& cubin);
  ~Kernel();
  Kernel(Kernel&& other) noexcept;
  Kernel& operator=(Kernel&& other) noexcept;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// For the runtime's functions that take a kernel's address.
  const void* handle() const { return reinterpret_cast<const void*>(kernel_); }
  /// Lets a thread block have so many bytes beside what the code declares. Throws UnsupportedError if the device has fewer.
  void allow_shared_bytes(int bytes) const;
  /// Asynchronous. The arguments have to be of the types that the kernel declares.
  template <class... Arguments>
  void launch(const LaunchShape& shape, cudaStream_t stream, Arguments... arguments) const {
    void* pointers[] = {static_cast<void*>(&arguments)..., nullptr};
    launch_with(shape, stream, pointers);
  }

 private:
  void launch_with(const LaunchShape& shape, cudaStream_t stream, void** arguments) const;

  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

}  // namespace headroom::jit
