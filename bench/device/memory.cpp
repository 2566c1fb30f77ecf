#include "device/memory.h"

#include <atomic>

#include "core/error.h"

namespace headroom {
namespace {

std::atomic<std::int64_t> held{0};
std::atomic<std::int64_t> peak{0};

}  // namespace

std::int64_t DeviceMemory::held_bytes() { return held; }
std::int64_t DeviceMemory::peak_bytes() { return peak; }
void DeviceMemory::reset_peak() { peak = held.load(); }

namespace internal {

void* allocate_device(std::int64_t bytes) {
  if (bytes < 0) throw std::invalid_argument("device buffer of " + std::to_string(bytes) + " bytes");
  if (bytes == 0) return nullptr;
  void* pointer = nullptr;
  const cudaError_t code = cudaMalloc(&pointer, static_cast<std::size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw OutOfMemoryError("out of device memory: asked for " + std::to_string(bytes) +
                           " bytes while holding " + std::to_string(held.load()));
  }
  check_cuda(code, "cudaMalloc", __FILE__, __LINE__);
  const std::int64_t now = held += bytes;
  std::int64_t before = peak;
  while (before < now && !peak.compare_exchange_weak(before, now)) {
  }
  return pointer;
}

void free_device(void* pointer, std::int64_t bytes) noexcept {
  if (pointer == nullptr) return;
  (void)cudaFree(
      pointer);  // an error here was reported by an earlier call; a destructor has nowhere to report to
  held -= bytes;
}

}  // namespace internal
}  // namespace headroom
