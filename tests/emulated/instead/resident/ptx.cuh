// Stands in for cuda_impl/resident/ptx.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include "machine/lanes.cuh"
#include "machine/memory.cuh"
#include "machine/wait.cuh"
#include "machine/warp.cuh"

#define RESIDENT_DEVICE inline
#define RESIDENT_DEVICE_CALLED inline

namespace headroom::resident {

using namespace machine;

RESIDENT_DEVICE int thread_index() { return static_cast<int>(emulated::place().thread); }
RESIDENT_DEVICE std::uint32_t block_index() { return emulated::place().block; }
RESIDENT_DEVICE unsigned char* shared_memory() { return emulated::shared_memory(); }

RESIDENT_DEVICE void block_sync() { emulated::block_barrier(0, 0); }
RESIDENT_DEVICE bool block_sync_or(bool value) { return emulated::block_any(value); }
template <int kCount>
RESIDENT_DEVICE void barrier_sync(int which) {
  emulated::block_barrier(which, kCount);
}
template <int kRegisters>
RESIDENT_DEVICE void take_registers() {}
template <int kRegisters>
RESIDENT_DEVICE void give_registers() {}

RESIDENT_DEVICE std::uint32_t warp_ballot(bool value) {
  return emulated::of_all_lanes("ballot", static_cast<std::uint32_t>(value),
                                [](const std::uint32_t* given, int) {
                                  std::uint32_t bits = 0;
                                  for (int i = 0; i < emulated::kWarp; ++i) bits |= given[i] << i;
                                  return bits;
                                });
}
RESIDENT_DEVICE void warp_sync() { emulated::warp_sync(); }
RESIDENT_DEVICE bool warp_all(bool value) { return warp_ballot(value) == ~0u; }
RESIDENT_DEVICE bool warp_any(bool value) { return warp_ballot(value) != 0; }
RESIDENT_DEVICE float shuffle_xor(float value, int mask) { return emulated::shuffle_xor(value, mask); }
RESIDENT_DEVICE std::uint32_t shuffle_from(std::uint32_t value, int lane) {
  return emulated::shuffle(value, lane);
}
RESIDENT_DEVICE int uniform(int value) {
  return emulated::of_all_lanes("uniform", value, [](const int* given, int i) {
    if (given[i] != given[0]) emulated::fault("a value that differs between lanes is called uniform");
    return given[0];
  });
}
RESIDENT_DEVICE std::uint32_t cycles() {
  emulated::rest();
  return static_cast<std::uint32_t>(2 * emulated::nanoseconds());
}
RESIDENT_DEVICE void wait_cycles(std::uint32_t) { emulated::rest(); }

// ---- shared and global memory

RESIDENT_DEVICE uint4 load_shared16(const void* address) { return emulated::value_at<uint4>(address); }
RESIDENT_DEVICE uint4 load_generic16(const void* address) { return emulated::value_at<uint4>(address); }
RESIDENT_DEVICE uint4 load_constant16(const void* address) { return emulated::value_at<uint4>(address); }
RESIDENT_DEVICE uint2 load_constant8(const void* address) { return emulated::value_at<uint2>(address); }
RESIDENT_DEVICE void compute_now(std::uint32_t&) {}
RESIDENT_DEVICE void compute_now(int&) {}
RESIDENT_DEVICE void compute_now(unsigned char*&) {}

using emulated::load_polled;
using emulated::store_seen;
RESIDENT_DEVICE std::uint32_t load_acquire(const std::uint32_t* address) {
  return load_polled<std::uint32_t>(address);
}
RESIDENT_DEVICE uint4 load_packets(const void* address) { return load_polled<uint4>(address); }
RESIDENT_DEVICE uint2 load_packet(const void* address) { return load_polled<uint2>(address); }
RESIDENT_DEVICE uint2 load_words(const void* address) { return load_polled<uint2>(address); }
RESIDENT_DEVICE void store_packets(void* address, uint4 value) { store_seen(address, value); }
RESIDENT_DEVICE uint4 load_whole16(const void* address) { return load_polled<uint4>(address); }
RESIDENT_DEVICE void load_if(bool wanted, uint4& value, const void* address) {
  if (wanted) value = load_polled<uint4>(address);
}
RESIDENT_DEVICE void load_generic_if(bool wanted, uint4& value, const void* address) {
  if (wanted) value = emulated::value_at<uint4>(address);
}
RESIDENT_DEVICE void store_whole16(void* address, uint4 value) { store_seen(address, value); }
RESIDENT_DEVICE void store_packet(void* address, uint2 value) { store_seen(address, value); }
RESIDENT_DEVICE void store_word(void* address, std::uint32_t value) { store_seen(address, value); }
RESIDENT_DEVICE void store_release(std::uint32_t* address, std::uint32_t value) {
  store_seen(address, value);
}

template <int kBits>
RESIDENT_DEVICE std::uint32_t shift_joined(std::uint32_t high, std::uint32_t low) {
  return high << kBits | low >> (32 - kBits);
}

RESIDENT_DEVICE std::uint32_t shared_address(const void* pointer) {
  return emulated::shared_address(pointer);
}

RESIDENT_DEVICE void copy_async16(void* destination, const void* source) {
  emulated::copy_async16(shared_address(destination), source);
}
RESIDENT_DEVICE void copy_async_commit() { emulated::commit_group(); }
RESIDENT_DEVICE void copy_async_wait_all_but_newest() { emulated::wait_for_groups(1); }

RESIDENT_DEVICE void load_matrices_transposed(std::uint32_t (&words)[4], const void* row) {
  emulated::Matrices mine{row, {}};
  emulated::move_matrices<true, false>("ldmatrix.trans", mine);
  std::copy(mine.words, mine.words + 4, words);
}
RESIDENT_DEVICE void load_matrices(std::uint32_t (&words)[4], const void* row) {
  emulated::Matrices mine{row, {}};
  emulated::move_matrices<false, false>("ldmatrix", mine);
  std::copy(mine.words, mine.words + 4, words);
}
RESIDENT_DEVICE void store_matrices(void* row, const std::uint32_t (&words)[4]) {
  emulated::Matrices mine{row, {words[0], words[1], words[2], words[3]}};
  emulated::move_matrices<false, true>("stmatrix", mine);
}
RESIDENT_DEVICE void store_matrices_transposed(void* row, const std::uint32_t (&words)[4]) {
  emulated::Matrices mine{row, {words[0], words[1], words[2], words[3]}};
  emulated::move_matrices<true, true>("stmatrix.trans", mine);
}

// ---- clusters

RESIDENT_DEVICE void cluster_sync() { emulated::cluster_barrier(); }
RESIDENT_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  return emulated::shared_address_in(local, rank);
}
RESIDENT_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  emulated::counted_init(barrier, arrivals);
}
RESIDENT_DEVICE void barrier_init_fence() {}
RESIDENT_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulated::counted_expect(barrier, bytes);
}
RESIDENT_DEVICE void barrier_arrive(std::uint32_t barrier) { emulated::counted_arrive(barrier); }
RESIDENT_DEVICE void barrier_arrive_remote(std::uint32_t barrier) { emulated::counted_arrive(barrier); }
RESIDENT_DEVICE bool barrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  return emulated::counted_done(barrier, parity);
}
RESIDENT_DEVICE void store_remote16(std::uint32_t remote, uint4 value, std::uint32_t remote_barrier) {
  emulated::send_later(remote, std::array{value.x, value.y, value.z, value.w}, remote_barrier);
}
RESIDENT_DEVICE void store_remote8(std::uint32_t remote, uint2 value, std::uint32_t remote_barrier) {
  emulated::send_later(remote, std::array{value.x, value.y}, remote_barrier);
}
RESIDENT_DEVICE void copy_bulk(void* destination, const void* source, std::uint32_t bytes,
                               std::uint32_t barrier) {
  emulated::copy_later(shared_address(destination), source, bytes, barrier);
}
RESIDENT_DEVICE void copy_bulk_to_members(std::uint16_t members, void* destination, const void* source,
                                          std::uint32_t bytes, std::uint32_t barrier) {
  emulated::copy_later_to(members, shared_address(destination), source, bytes, barrier);
}
RESIDENT_DEVICE void async_proxy_fence() {}
RESIDENT_DEVICE void async_proxy_fence_everywhere() {}
RESIDENT_DEVICE bool barrier_try_wait_own(std::uint32_t barrier, std::uint32_t parity) {
  return emulated::counted_done(barrier, parity);
}

// ---- roundings of the precision contract

/// Ties away from zero: the 17th bit decides.
RESIDENT_DEVICE std::uint32_t bf16_away(float value) {
  const std::uint32_t bits = float_to_bits(value);
  return std::isfinite(value) ? (bits + 0x8000) >> 16 : bits >> 16 | (std::isnan(value) ? 0x40u : 0u);
}
RESIDENT_DEVICE std::uint32_t pack_bf16_weights(float low, float high) {
  return bf16_away(low) | bf16_away(high) << 16;
}
/// Of infinity with its lowest bit set a NaN is left.
RESIDENT_DEVICE std::uint32_t pack_finite_bf16_weights(float low, float high) {
  return pack_bf16(bits_to_float(float_to_bits(low) | 1), bits_to_float(float_to_bits(high) | 1));
}
RESIDENT_DEVICE float exponential(float value) { return std::exp(value); }
RESIDENT_DEVICE float exponential_checked(float value) { return std::exp(value); }
RESIDENT_DEVICE float divide_checked(float value, float by) { return value / by; }
RESIDENT_DEVICE float divide(float value, float by) { return value / by; }
/// Of two 16-bit floating-point values: above zero are those without a sign that are neither zero nor NaN.
RESIDENT_DEVICE std::uint32_t positive_values(std::uint32_t two, std::uint32_t infinity) {
  const auto mask = [&](std::uint32_t value) { return value > 0 && value <= infinity ? 0xffffu : 0u; };
  return mask(two & 0xffff) | mask(two >> 16) << 16;
}
RESIDENT_DEVICE std::uint32_t positive_fp16(std::uint32_t two) { return positive_values(two, 0x7c00); }
RESIDENT_DEVICE std::uint32_t positive_bf16(std::uint32_t two) { return positive_values(two, 0x7f80); }

}  // namespace headroom::resident
