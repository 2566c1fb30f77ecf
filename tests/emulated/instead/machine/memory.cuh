// Stands in for cuda_impl/machine/memory.cuh where the CPU plays the GPU: the same functions, in the same order. Memory is
// sequentially consistent here, whatever order a name has. Addresses of device memory are the pointers' bits.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"
#include "values.h"

namespace headroom::machine {

MACHINE_DEVICE std::uint32_t shared_address(const void* pointer) { return emulated::shared_address(pointer); }
MACHINE_DEVICE std::uint64_t global_address(const void* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}
constexpr std::uint32_t kSharedBegin = 0;

// ---- shared memory

MACHINE_DEVICE uint4 load_shared16(const void* pointer) { return emulated::value_at<uint4>(pointer); }
MACHINE_DEVICE float4 load_shared_floats(const void* pointer) { return emulated::value_at<float4>(pointer); }
MACHINE_DEVICE void store_shared16(void* pointer, uint4 value) { emulated::value_at<uint4>(pointer) = value; }
MACHINE_DEVICE uint4 load_shared16(std::uint32_t address) { return emulated::shared_value<uint4>(address); }
MACHINE_DEVICE float4 load_shared_floats(std::uint32_t address) {
  return emulated::shared_value<float4>(address);
}
MACHINE_DEVICE float load_shared_float(std::uint32_t address) {
  return emulated::shared_value<float>(address);
}
MACHINE_DEVICE std::uint32_t load_shared_word(std::uint32_t address) {
  return emulated::shared_value<std::uint32_t>(address);
}
MACHINE_DEVICE void store_shared16(std::uint32_t address, uint4 value) {
  emulated::shared_value<uint4>(address) = value;
}
MACHINE_DEVICE void store_shared_float(std::uint32_t address, float value) {
  emulated::shared_value<float>(address) = value;
}

// ---- wherever it is, and device memory that nobody writes meanwhile

MACHINE_DEVICE uint4 load_generic16(const void* pointer) { return emulated::value_at<uint4>(pointer); }
MACHINE_DEVICE void load_generic16_if(bool wanted, uint4& value, const void* pointer) {
  if (wanted) value = emulated::value_at<uint4>(pointer);
}
MACHINE_DEVICE uint4 load_constant16(const void* address) { return emulated::value_at<uint4>(address); }
MACHINE_DEVICE uint2 load_constant8(const void* address) { return emulated::value_at<uint2>(address); }
template <bool kHere = false>
MACHINE_DEVICE uint4 load_l2_16(const void* address) {
  return emulated::value_at<uint4>(address);
}
template <bool kHere = false>
MACHINE_DEVICE float load_l2(const float* address) {
  return *address;
}
template <bool kHere = false>
MACHINE_DEVICE std::uint16_t load_l2(const std::uint16_t* address) {
  return *address;
}
MACHINE_DEVICE std::uint64_t load_l2(const std::uint64_t* address) { return *address; }

MACHINE_DEVICE void store_global16(void* address, uint4 value) { emulated::value_at<uint4>(address) = value; }
MACHINE_DEVICE void store_global16_evict_last(void* address, uint4 value) { store_global16(address, value); }
MACHINE_DEVICE void store_global16_evict_first(void* address, uint4 value) { store_global16(address, value); }
template <bool kKeepSixteenth>
MACHINE_DEVICE void store_global_floats(std::uint64_t address, float4 value) {
  emulated::value_at<float4>(reinterpret_cast<void*>(address)) = value;
}

// ---- device memory that other thread blocks read and write meanwhile

MACHINE_DEVICE std::uint32_t load_acquire_gpu(const std::uint32_t* address) {
  return emulated::load_polled<std::uint32_t>(address);
}
MACHINE_DEVICE std::uint32_t load_relaxed_gpu(const std::uint32_t* address) {
  return emulated::load_polled<std::uint32_t>(address);
}
MACHINE_DEVICE uint2 load_relaxed_gpu_2x32(const void* address) {
  return emulated::load_polled<uint2>(address);
}
MACHINE_DEVICE uint2 load_relaxed_gpu_64(const void* address) {
  return emulated::load_polled<uint2>(address);
}
MACHINE_DEVICE uint4 load_relaxed_gpu_2x64(const void* address) {
  return emulated::load_polled<uint4>(address);
}
MACHINE_DEVICE uint4 load_relaxed_gpu_128(const void* address) {
  return emulated::load_polled<uint4>(address);
}
MACHINE_DEVICE void load_relaxed_gpu_128_if(bool wanted, uint4& value, const void* address) {
  if (wanted) value = emulated::load_polled<uint4>(address);
}
MACHINE_DEVICE void store_relaxed_gpu(std::uint32_t* address, std::uint32_t value) {
  emulated::store_seen(address, value);
}
MACHINE_DEVICE void store_relaxed_gpu_32(void* address, std::uint32_t value) {
  emulated::store_seen(address, value);
}
MACHINE_DEVICE void store_relaxed_gpu_64(void* address, uint2 value) { emulated::store_seen(address, value); }
MACHINE_DEVICE void store_relaxed_gpu_128(void* address, uint4 value) {
  emulated::store_seen(address, value);
}
MACHINE_DEVICE void add_release_gpu(std::uint32_t* address, std::uint32_t value) {
  emulated::add_seen(address, value);
}
MACHINE_DEVICE void add_relaxed_gpu(std::uint32_t* address, std::uint32_t value) {
  emulated::add_seen(address, value);
}
MACHINE_DEVICE void add_relaxed_gpu(std::uint64_t* address, std::uint64_t value) {
  emulated::add_seen(address, value);
}

}  // namespace headroom::machine
