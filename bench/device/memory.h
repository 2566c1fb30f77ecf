// Device memory that frees itself, and a count of how much of it this process holds.
//
// The only place that allocates: cudaMalloc and cudaFree appear nowhere else. The count is the sum of what
// was asked for; the driver's rounding and its own memory are not in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/check.h"

namespace headroom {

struct DeviceMemory {
  static std::int64_t held_bytes();
  static std::int64_t peak_bytes();
  /// The peak is counted anew from what is held now.
  static void reset_peak();
};

namespace internal {
/// Null for zero bytes. Throws OutOfMemoryError that says how much was asked for and how much was held.
void* allocate_device(std::int64_t bytes);
void free_device(void* pointer, std::int64_t bytes) noexcept;
}  // namespace internal

/// `size` values of T on the current device; uninitialised until written.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t size)
      : data_(static_cast<T*>(internal::allocate_device(size * static_cast<std::int64_t>(sizeof(T))))),
        size_(size) {}
  ~DeviceBuffer() { internal::free_device(data_, bytes()); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(T)); }

  /// Every byte of the buffer set to `byte`; 0xff makes floating-point values NaN.
  void fill_bytes(int byte) {
    if (size_ == 0) return;
    CUDA_CHECK(cudaMemset(data_, byte, static_cast<std::size_t>(bytes())));
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  /// Copies wait for the device. `values` must hold exactly size() values.
  void copy_from(std::span<const T> values) {
    require(static_cast<std::int64_t>(values.size()));
    if (size_ == 0) return;
    CUDA_CHECK(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
    // The call may return while the last piece is still on its way, and our streams do not wait for this one.
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
  }
  void copy_to(std::span<T> values) const {
    require(static_cast<std::int64_t>(values.size()));
    if (size_ > 0) CUDA_CHECK(cudaMemcpy(values.data(), data_, values.size_bytes(), cudaMemcpyDeviceToHost));
  }
  std::vector<T> to_host() const {
    std::vector<T> values(static_cast<std::size_t>(size_));
    copy_to(values);
    return values;
  }

 private:
  void require(std::int64_t count) const {
    if (count != size_)
      throw std::invalid_argument("device buffer of " + std::to_string(size_) + " values copied with " +
                                  std::to_string(count));
  }

  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace headroom
