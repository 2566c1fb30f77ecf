// Stands in for cuda_impl/machine/copy.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine/cluster.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "tensor_copies.h"

namespace headroom::machine {

// ---- cp.async

MACHINE_DEVICE void copy_async4(std::uint32_t shared, const void* global) {
  emulated::copy_in_group(&emulated::shared_value<std::uint32_t>(shared),
                          &emulated::value_at<std::uint32_t>(global), sizeof(std::uint32_t));
}
MACHINE_DEVICE void copy_async16(void* shared, const void* global) {
  emulated::copy_async16(shared_address(shared), global);
}
MACHINE_DEVICE void copy_async16(std::uint32_t shared, std::uint64_t global) {
  emulated::copy_async16(shared, reinterpret_cast<const void*>(global));
}
MACHINE_DEVICE void copy_async16_if(bool copies, std::uint32_t shared, std::uint64_t global) {
  if (copies) copy_async16(shared, global);
}
MACHINE_DEVICE void copy_async16_zero_rest(void* shared, const void* global, int bytes) {
  unsigned char* to = emulated::shared_pointer(shared_address(shared), 16);
  std::memset(to + bytes, 0, static_cast<std::size_t>(16 - bytes));
  if (bytes > 0)
    emulated::copy_in_group(to, &emulated::value_at<uint4>(global), static_cast<std::size_t>(bytes));
}
MACHINE_DEVICE void copy_async16_keep_sixteenth(std::uint32_t shared, std::uint64_t global) {
  copy_async16(shared, global);
}
MACHINE_DEVICE void copy_async16_evict_last(std::uint32_t shared, const void* global) {
  emulated::copy_async16(shared, global);
}
MACHINE_DEVICE void copy_async16_evict_first(std::uint32_t shared, const void* global) {
  emulated::copy_async16(shared, global);
}
MACHINE_DEVICE void copy_async_commit() { emulated::commit_group(); }
template <int kNewest>
MACHINE_DEVICE void copy_async_wait() {
  emulated::wait_for_groups(kNewest);
}
MACHINE_DEVICE void copy_async_wait_all() {
  emulated::commit_group();
  emulated::wait_for_groups(0);
}

// ---- bulk copies

MACHINE_DEVICE void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                              std::uint32_t barrier) {
  emulated::copy_later(shared, global, bytes, barrier);
}
MACHINE_DEVICE void bulk_load(void* shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  bulk_load(shared_address(shared), global, bytes, barrier);
}
MACHINE_DEVICE void bulk_load_evict_first(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  bulk_load(shared, global, bytes, barrier);
}
MACHINE_DEVICE void bulk_load_multicast(std::uint16_t members, std::uint32_t shared, const void* global,
                                        std::uint32_t bytes, std::uint32_t barrier) {
  emulated::copy_later_to(members, shared, global, bytes, barrier);
}
MACHINE_DEVICE void bulk_load_multicast(std::uint16_t members, void* shared, const void* global,
                                        std::uint32_t bytes, std::uint32_t barrier) {
  bulk_load_multicast(members, shared_address(shared), global, bytes, barrier);
}
MACHINE_DEVICE void prefetch_line(const void*) {}
MACHINE_DEVICE void bulk_prefetch(const void*, std::uint32_t) {}
MACHINE_DEVICE void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  emulated::store_in_group(global, shared, bytes);
}
MACHINE_DEVICE void bulk_store_evict_last(void* global, std::uint32_t shared, std::uint32_t bytes) {
  bulk_store(global, shared, bytes);
}
MACHINE_DEVICE void bulk_store_commit() { emulated::commit_stores(); }
template <int kNewest>
MACHINE_DEVICE void bulk_store_wait_read() {
  emulated::wait_until_stores_have_read(kNewest);
}
MACHINE_DEVICE void bulk_store_wait() { emulated::wait_for_stores(); }

// ---- tensor copies

MACHINE_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row,
                                std::uint32_t barrier) {
  emulated::tensor_load(shared, map, column, row, 0, barrier);
}
MACHINE_DEVICE void tensor_load_multicast(std::uint16_t members, std::uint32_t shared, const void* map,
                                          int column, int row, std::uint32_t barrier) {
  for (std::uint32_t member = 0; members >> member != 0; ++member)
    if ((members >> member & 1) != 0)
      tensor_load(remote_address(shared, member), map, column, row, remote_address(barrier, member));
}
MACHINE_DEVICE void tensor_store(const void* map, int column, int row, std::uint32_t shared) {
  emulated::tensor_store(map, column, row, 0, shared);
}
MACHINE_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row, int slice,
                                std::uint32_t barrier) {
  emulated::tensor_load(shared, map, column, row, slice, barrier);
}
MACHINE_DEVICE void tensor_load_panels(std::uint32_t shared, const void* map, int row, int panel, int slice,
                                       std::uint32_t barrier) {
  emulated::tensor_load_panels(shared, map, row, panel, slice, barrier);
}
MACHINE_DEVICE void tensor_store(const void* map, int column, int row, int slice, std::uint32_t shared) {
  emulated::tensor_store(map, column, row, slice, shared);
}

// ---- fences

MACHINE_DEVICE void fence_proxy_async_shared() { emulated::fence_written(); }
MACHINE_DEVICE void fence_proxy_async() { emulated::fence_written(); }

}  // namespace headroom::machine
