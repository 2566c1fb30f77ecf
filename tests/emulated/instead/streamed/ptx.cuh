// Stands in for cuda_impl/streamed/ptx.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include "machine/lanes.cuh"
#include "machine/memory.cuh"
#include "machine/wait.cuh"
#include "machine/warp.cuh"

#define STREAMED_DEVICE inline

namespace headroom::streamed {

using namespace machine;

STREAMED_DEVICE int thread_index() { return static_cast<int>(emulated::place().thread); }
STREAMED_DEVICE int uniform_warp_index() { return emulated::shuffle(thread_index() / emulated::kWarp, 0); }
STREAMED_DEVICE int block_index() { return static_cast<int>(emulated::place().block); }
STREAMED_DEVICE unsigned char* shared_memory() { return emulated::shared_memory(); }

STREAMED_DEVICE volatile int* words_of_warp() {
  return emulated::block_variable<int[64]>([] {}) + thread_index() / emulated::kWarp * 4;
}

STREAMED_DEVICE void block_sync() { emulated::block_barrier(0, 0); }
STREAMED_DEVICE bool block_sync_or(bool value) { return emulated::block_any(value); }
STREAMED_DEVICE void warp_sync() { emulated::warp_sync(); }
STREAMED_DEVICE float shuffle_xor(float value, int mask) { return emulated::shuffle_xor(value, mask); }
STREAMED_DEVICE std::uint32_t shuffle_index(std::uint32_t value, int lane) {
  return emulated::shuffle(value, lane);
}

// ---- shared and global memory: addresses are of 32 bits there, here the pointer's bits

STREAMED_DEVICE int shared_address(const void* pointer) {
  return static_cast<int>(emulated::shared_address(pointer));
}
template <class Value>
Value& at_shared(int address) {
  return emulated::shared_value<Value>(static_cast<std::uint32_t>(address));
}
template <class Value>
Value& at_global(std::uint64_t address) {
  return emulated::value_at<Value>(reinterpret_cast<void*>(address));
}
STREAMED_DEVICE float4 load_shared_floats(int address) { return at_shared<float4>(address); }
STREAMED_DEVICE void add_product(float& sum, float a, float b) { sum = std::fmaf(a, b, sum); }
STREAMED_DEVICE float add_here(float a, float b) { return a + b; }
STREAMED_DEVICE int kept_whole(int value) { return value; }
STREAMED_DEVICE int kept_by_lane(int value) { return emulated::shuffle(value, emulated::lane()); }
STREAMED_DEVICE std::uint64_t global_address(const void* address) {
  return reinterpret_cast<std::uint64_t>(address);
}
STREAMED_DEVICE std::uint64_t kept_whole(std::uint64_t value) { return value; }
template <bool kShareHeld>
STREAMED_DEVICE void store_global_floats(std::uint64_t address, float4 value) {
  at_global<float4>(address) = value;
}
STREAMED_DEVICE uint4 load_shared16(const void* address) { return emulated::value_at<uint4>(address); }
STREAMED_DEVICE float4 load_shared_floats(const void* address) { return emulated::value_at<float4>(address); }
STREAMED_DEVICE void store_shared16(void* address, uint4 value) {
  emulated::value_at<uint4>(address) = value;
}
STREAMED_DEVICE uint4 load_shared16(int address) { return at_shared<uint4>(address); }
STREAMED_DEVICE void store_shared16(int address, uint4 value) { at_shared<uint4>(address) = value; }
STREAMED_DEVICE float load_shared_float(int address) { return at_shared<float>(address); }
STREAMED_DEVICE void store_shared_float(int address, float value) { at_shared<float>(address) = value; }
template <bool kHere = false>
STREAMED_DEVICE uint4 load_global16(const void* address) {
  return emulated::value_at<uint4>(address);
}
template <bool kHere = false>
STREAMED_DEVICE float load_global(const float* address) {
  return *address;
}
template <bool kHere = false>
STREAMED_DEVICE std::uint16_t load_global(const std::uint16_t* address) {
  return *address;
}
STREAMED_DEVICE std::int64_t load_global(const std::uint64_t* address) {
  return static_cast<std::int64_t>(*address);
}
STREAMED_DEVICE void store_global16(void* address, uint4 value) {
  emulated::value_at<uint4>(address) = value;
}

STREAMED_DEVICE std::uint32_t load_acquire(const std::uint32_t* address) {
  return emulated::load_polled<std::uint32_t>(address);
}
STREAMED_DEVICE void add_release(std::uint32_t* address, std::uint32_t value) {
  emulated::add_seen(address, value);
}
STREAMED_DEVICE void add_relaxed(std::uint64_t* address, std::uint64_t value) {
  emulated::add_seen(address, value);
}
STREAMED_DEVICE std::int64_t nearest_integer(float value) { return std::llrint(value); }

STREAMED_DEVICE void copy_async16(int destination, std::uint64_t source) {
  emulated::copy_async16(static_cast<std::uint32_t>(destination), reinterpret_cast<const void*>(source));
}
STREAMED_DEVICE void copy_async16(void* destination, const void* source) {
  copy_async16(shared_address(destination), global_address(source));
}
STREAMED_DEVICE void copy_async16_if(bool copies, int destination, std::uint64_t source) {
  if (copies) copy_async16(destination, source);
}
STREAMED_DEVICE void copy_async16_share_held(int destination, std::uint64_t source) {
  copy_async16(destination, source);
}
STREAMED_DEVICE void copy_async16_held(int destination, const void* source) {
  copy_async16(destination, global_address(source));
}
STREAMED_DEVICE void store_global16_held(void* address, uint4 value) { store_global16(address, value); }
STREAMED_DEVICE void copy_async16_passing(int destination, const void* source) {
  copy_async16(destination, global_address(source));
}
STREAMED_DEVICE void store_global16_passing(void* address, uint4 value) { store_global16(address, value); }
STREAMED_DEVICE void copy_async_commit() { emulated::commit_group(); }
template <int kNewest>
STREAMED_DEVICE void copy_async_wait() {
  emulated::wait_for_groups(kNewest);
}

STREAMED_DEVICE std::uint32_t bits_behind(std::uint32_t high, std::uint32_t low, int bits) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  return static_cast<std::uint32_t>(both << (bits & 31) >> 32);
}
STREAMED_DEVICE std::uint32_t bits_behind_here(std::uint32_t high, std::uint32_t low, int bits) {
  return bits_behind(high, low, bits);
}
STREAMED_DEVICE std::uint32_t extend_lower(std::uint32_t word) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(word << 16) >> 16);
}
STREAMED_DEVICE std::uint32_t extend_upper(std::uint32_t word) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(word) >> 16);
}

// ---- roundings of the precision contract

STREAMED_DEVICE float exponential(float value) { return std::exp(value); }
STREAMED_DEVICE float logarithm(float value) { return std::log(value); }
STREAMED_DEVICE float divide(float a, float b) { return a / b; }

}  // namespace headroom::streamed
