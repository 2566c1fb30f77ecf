// Stands in for cuda_impl/fused/ptx.cuh where the CPU plays the GPU: the same functions, in the same order. What stmatrix has
// written has to be fenced before a copy or a product reads it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#include "machine/lanes.cuh"
#include "machine/memory.cuh"
#include "machine/tensor_map.cuh"
#include "machine/warp.cuh"

#define FUSED_DEVICE inline

namespace headroom::fused {

FUSED_DEVICE std::uint32_t shared_address(const void* pointer) { return emulated::shared_address(pointer); }

constexpr std::uint32_t kSharedBegin = 0;

// ---- barriers in shared memory

FUSED_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  emulated::counted_init(barrier, arrivals);
}
FUSED_DEVICE void barrier_init_fence() {}
FUSED_DEVICE void barrier_arrive(std::uint32_t barrier) { emulated::counted_arrive(barrier); }
FUSED_DEVICE void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulated::counted_expect(barrier, bytes);
}
FUSED_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (!emulated::counted_done(barrier, parity)) {
  }
}
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  FUSED_DEVICE void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

FUSED_DEVICE void named_barrier(int barrier, int threads) {
  emulated::block_barrier(barrier, static_cast<unsigned>(threads));
}

template <int kRegisters>
FUSED_DEVICE void registers_increase() {}
template <int kRegisters>
FUSED_DEVICE void registers_decrease() {}

// ---- kernels that may start before the one before them has ended

FUSED_DEVICE void wait_for_kernel_before() { emulated::wait_for_launch_before(); }
FUSED_DEVICE void let_next_kernel_start() { emulated::let_next_launch_begin(); }

// ---- bulk copies

FUSED_DEVICE void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                            std::uint32_t barrier) {
  emulated::copy_later(shared, global, bytes, barrier);
}
FUSED_DEVICE void bulk_load_passing(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                    std::uint32_t barrier) {
  bulk_load(shared, global, bytes, barrier);
}
FUSED_DEVICE void bulk_load_to(std::uint16_t ranks, std::uint32_t shared, const void* global,
                               std::uint32_t bytes, std::uint32_t barrier) {
  emulated::copy_later_to(ranks, shared, global, bytes, barrier);
}
FUSED_DEVICE void prefetch_line(const void*) {}
FUSED_DEVICE void bulk_prefetch(const void*, std::uint32_t) {}
FUSED_DEVICE void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  emulated::store_in_group(global, shared, bytes);
}
FUSED_DEVICE void bulk_store_kept(void* global, std::uint32_t shared, std::uint32_t bytes) {
  bulk_store(global, shared, bytes);
}
FUSED_DEVICE void bulk_store_commit() { emulated::commit_stores(); }
template <int kPending>
FUSED_DEVICE void bulk_stores_wait_read() {
  emulated::wait_until_stores_have_read(kPending);
}
FUSED_DEVICE void bulk_store_wait_read() { bulk_stores_wait_read<0>(); }
FUSED_DEVICE void bulk_store_wait() { emulated::wait_for_stores(); }

FUSED_DEVICE void shared_writes_to_async() { emulated::fence_written(); }
FUSED_DEVICE void writes_to_async() { emulated::fence_written(); }

// ---- single words

FUSED_DEVICE std::uint32_t load_word(std::uint32_t address) {
  return emulated::shared_value<std::uint32_t>(address);
}
FUSED_DEVICE void word_load(std::uint32_t shared, const void* global) {
  emulated::copy_in_group(&emulated::shared_value<std::uint32_t>(shared),
                          &emulated::value_at<std::uint32_t>(global), sizeof(std::uint32_t));
}
FUSED_DEVICE void word_loads_wait() {
  emulated::commit_group();
  emulated::wait_for_groups(0);
}

// ---- tensor copies

FUSED_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  return emulated::shared_address_in(local, rank);
}
FUSED_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row,
                              std::uint32_t barrier) {
  emulated::tensor_load(shared, map, column, row, barrier);
}
FUSED_DEVICE void tensor_load_to(std::uint16_t ranks, std::uint32_t shared, const void* map, int column,
                                 int row, std::uint32_t barrier) {
  for (std::uint32_t rank = 0; ranks >> rank != 0; ++rank)
    if ((ranks >> rank & 1) != 0)
      tensor_load(remote_address(shared, rank), map, column, row, remote_address(barrier, rank));
}
FUSED_DEVICE void tensor_store(const void* map, int column, int row, std::uint32_t shared) {
  emulated::tensor_store(map, column, row, shared);
}

// ---- clusters

FUSED_DEVICE void cluster_sync() { emulated::cluster_barrier(); }
FUSED_DEVICE void cluster_meet() { emulated::cluster_barrier(); }
FUSED_DEVICE void barrier_arrive_remote(std::uint32_t remote_barrier) {
  emulated::counted_arrive(remote_barrier);
}
FUSED_DEVICE void barrier_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  barrier_wait(barrier, parity);
}
FUSED_DEVICE void bulk_send(std::uint32_t remote, std::uint32_t shared, std::uint32_t bytes,
                            std::uint32_t remote_barrier) {
  emulated::read_by_the_way(shared, bytes);
  emulated::copy_later(remote, emulated::shared_pointer(shared, bytes), bytes, remote_barrier);
}

// ---- roundings of the precision contract

FUSED_DEVICE std::uint32_t pack_fp16(float low, float high) { return machine::pack_fp16(low, high); }
FUSED_DEVICE std::uint32_t pack_fp16_relu(float low, float high) {
  return pack_fp16(machine::relu(low), machine::relu(high));
}
FUSED_DEVICE std::uint32_t pack_bf16(float low, float high) { return machine::pack_bf16(low, high); }
FUSED_DEVICE std::uint32_t pack_bf16_relu(float low, float high) {
  return pack_bf16(machine::relu(low), machine::relu(high));
}

template <bool kUpperBytes>
FUSED_DEVICE std::uint32_t spread(std::uint32_t word) {
  const std::uint32_t lower = word >> (kUpperBytes ? 15 : 7) & 1, upper = word >> (kUpperBytes ? 31 : 23) & 1;
  return lower * 0xffffu | upper * 0xffff0000u;
}
template <class Word>
FUSED_DEVICE Word worked_out_here(Word value) {
  return value;
}

// ---- products of a warp

#define FUSED_ROWS(name, product)                                                                      \
  FUSED_DEVICE void name(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1, \
                         float s0, float s1, float s2, float s3) {                                     \
    float start[4] = {s0, s1, s2, s3};                                                                 \
    machine::product(start, a[0], a[1], a[2], a[3], b0, b1);                                           \
    std::copy(start, start + 4, sums);                                                                 \
  }
FUSED_ROWS(multiply_rows_fp16, product_fp16)
FUSED_ROWS(multiply_rows_bf16, product_bf16)
#undef FUSED_ROWS

// ---- products of a warpgroup (wgmma.cuh); here each warp makes its own quarter

namespace internal {
/// Once for the warp.
template <class Work>
void of_warp(const char* instruction, const Work& work) {
  int nothing = 0;
  emulated::with_warp(instruction, nothing, [&](int* const*) { work(); });
}
}  // namespace internal
FUSED_DEVICE void products_begin() {}
FUSED_DEVICE void products_commit() {
  internal::of_warp("wgmma.commit_group", [] { emulated::commit_warp_work(); });
}
template <int kPending>
FUSED_DEVICE void products_wait() {
  internal::of_warp("wgmma.wait_group", [] { emulated::wait_for_warp_work(kPending); });
}
template <int kCount>
FUSED_DEVICE void sums_are_final(float (&)[kCount]) {}
template <int kCount>
FUSED_DEVICE void words_are_final(std::uint32_t (&)[kCount]) {}

FUSED_DEVICE void store_matrices(std::uint32_t row, const std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {words[0], words[1], words[2], words[3]}};
  emulated::move_matrices<false, true>("stmatrix", mine);
  emulated::written(row, 16);
}
FUSED_DEVICE void store_matrices_turned(std::uint32_t row, const std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {words[0], words[1], words[2], words[3]}};
  emulated::move_matrices<true, true>("stmatrix.trans", mine);
  emulated::written(row, 16);
}
FUSED_DEVICE void load_matrices(std::uint32_t row, std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {}};
  emulated::move_matrices<false, false>("ldmatrix", mine);
  std::copy(mine.words, mine.words + 4, words);
}
FUSED_DEVICE void load_matrices_turned(std::uint32_t row, std::uint32_t* words) {
  emulated::Matrices mine{emulated::shared_pointer(row, 16), {}};
  emulated::move_matrices<true, false>("ldmatrix.trans", mine);
  std::copy(mine.words, mine.words + 4, words);
}

FUSED_DEVICE float exponential2(float value) { return std::exp2(value); }
FUSED_DEVICE float reciprocal(float value) { return 1 / value; }
FUSED_DEVICE float logarithm2(float value) { return std::log2(value); }
FUSED_DEVICE float shuffle_xor(float value, int mask) { return emulated::shuffle_xor(value, mask); }

}  // namespace headroom::fused
