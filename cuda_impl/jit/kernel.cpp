#include "jit/kernel.h"

#include <string>
#include <utility>

#include "core/error.h"
#include "device/device.h"

namespace headroom::jit {

Kernel::Kernel(const Cubin& cubin) {
  CUDA_CHECK(cudaLibraryLoadData(&library_, cubin.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  const cudaError_t code = cudaLibraryGetKernel(&kernel_, library_, cubin.kernel.c_str());
  if (code != cudaSuccess) (void)cudaLibraryUnload(library_);
  check_cuda(code, ("cudaLibraryGetKernel of " + cubin.kernel).c_str(), __FILE__, __LINE__);
}
Kernel::~Kernel() {
  if (library_ != nullptr) (void)cudaLibraryUnload(library_);
}
Kernel::Kernel(Kernel&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)), kernel_(std::exchange(other.kernel_, nullptr)) {}
Kernel& Kernel::operator=(Kernel&& other) noexcept {
  std::swap(library_, other.library_);
  std::swap(kernel_, other.kernel_);
  return *this;
}

void Kernel::allow_shared_bytes(int bytes) const {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  const int there = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (bytes > there)
    throw UnsupportedError("a thread block needs " + std::to_string(bytes) +
                           " bytes of shared memory; the device has " + std::to_string(there));
  CUDA_CHECK(cudaFuncSetAttribute(handle(), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

void Kernel::launch_with(const LaunchShape& shape, cudaStream_t stream, void** arguments) const {
  cudaLaunchAttribute attributes[3]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    attributes[config.numAttrs].id = id;
    return attributes[config.numAttrs++].val;
  };
  if (shape.cluster > 1)
    add(cudaLaunchAttributeClusterDimension).clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  if (shape.is_cooperative) add(cudaLaunchAttributeCooperative).cooperative = 1;
  if (shape.overlaps_before)
    add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  CUDA_CHECK(cudaLaunchKernelExC(&config, handle(), arguments));
}

}  // namespace headroom::jit
