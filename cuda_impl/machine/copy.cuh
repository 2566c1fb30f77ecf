// Copies between device memory and shared memory that threads do not wait for, and the fences between them and ordinary accesses.
//
//   copy_async     cp.async, sm_80: each thread its own 4 or 16 bytes, in groups of the thread
//   bulk_load ...  cp.async.bulk, sm_90: one thread a multiple of 16 bytes on 16 bytes; loads are counted by a barrier (barriers.cuh),
//                  stores are in groups of the thread
//   tensor_load ...  the same of a box of a matrix, laid out as its tensor map says (tensor_map.h)
#pragma once

#include <cstdint>

#include "machine/cluster.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

// ---- cp.async

/// Four bytes.
MACHINE_DEVICE void copy_async4(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}
MACHINE_DEVICE void copy_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
/// By addresses: shared_address()'s, and global_address()'s.
MACHINE_DEVICE void copy_async16(std::uint32_t shared, std::uint64_t global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/// By some lanes, without a branch.
MACHINE_DEVICE void copy_async16_if(bool copies, std::uint32_t shared, std::uint64_t global) {
  asm volatile(
      "{.reg .pred copies; setp.ne.s32 copies, %2, 0; @copies cp.async.cg.shared.global [%0], [%1], 16;}" ::
          "r"(shared),
      "l"(global), "r"(static_cast<int>(copies))
      : "memory");
}
/// The first `bytes` are read, the rest of the 16 become zero.
MACHINE_DEVICE void copy_async16_zero_rest(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
MACHINE_DEVICE void copy_async16_keep_sixteenth(std::uint32_t shared, std::uint64_t global) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "l"(policy_keep_sixteenth())
               : "memory");
}
// With a word to the L2 about whether the line will be wanted again. ptxas 13.0 makes malformed instructions of such copies if their
// policy is chosen at run time or if their destination is a register and a uniform one, so: one constant policy an instruction, and
// a destination that comes from kept_by_lane().
#define MACHINE_COPY_HINTED(priority)                                                                       \
  MACHINE_DEVICE void copy_async16_##priority(std::uint32_t shared, const void* global) {                   \
    std::uint64_t policy;                                                                                   \
    asm("createpolicy.fractional.L2::" #priority ".b64 %0;" : "=l"(policy));                                \
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), \
                 "l"(policy)                                                                                \
                 : "memory");                                                                               \
  }
MACHINE_COPY_HINTED(evict_last)
MACHINE_COPY_HINTED(evict_first)
#undef MACHINE_COPY_HINTED
MACHINE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All groups of this thread but the newest `kNewest` have landed.
template <int kNewest>
MACHINE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
}
/// All copies of this thread have landed, in groups or not.
MACHINE_DEVICE void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- bulk loads

MACHINE_DEVICE void bulk_load(std::uint32_t shared, const void* global, std::uint32_t bytes,
                              std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
MACHINE_DEVICE void bulk_load(void* shared, const void* global, std::uint32_t bytes, std::uint32_t barrier) {
  bulk_load(shared_address(shared), global, bytes, barrier);
}
/// Of what passes through the L2: it is to leave it before anything else does.
MACHINE_DEVICE void bulk_load_evict_first(std::uint32_t shared, const void* global, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// To the same place in several members of the cluster, one a bit of `members`, each counted by its own barrier. As one copy where
/// there is such an instruction that does not warn of being slow: sm_90a.
MACHINE_DEVICE void bulk_load_multicast(std::uint16_t members, std::uint32_t shared, const void* global,
                                        std::uint32_t bytes, std::uint32_t barrier) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(members)
      : "memory");
#else
  for (std::uint32_t member = 0; member < 16; ++member)
    if (members >> member & 1)
      bulk_load(remote_address(shared, member), global, bytes, remote_address(barrier, member));
#endif
}
MACHINE_DEVICE void bulk_load_multicast(std::uint16_t members, void* shared, const void* global,
                                        std::uint32_t bytes, std::uint32_t barrier) {
  bulk_load_multicast(members, shared_address(shared), global, bytes, barrier);
}
/// The line at `global` into the L2.
MACHINE_DEVICE void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global) : "memory");
}
/// The same of a multiple of 16 bytes.
MACHINE_DEVICE void bulk_prefetch(const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// ---- bulk stores

MACHINE_DEVICE void bulk_store(void* global, std::uint32_t shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}
/// Of what is read again soon and then written anew: it is to leave the L2 last.
MACHINE_DEVICE void bulk_store_evict_last(void* global, std::uint32_t shared, std::uint32_t bytes) {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(global),
               "r"(shared), "r"(bytes), "l"(policy)
               : "memory");
}
MACHINE_DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// This thread's stores, but for the newest kNewest groups, have read their shared memory.
template <int kNewest>
MACHINE_DEVICE void bulk_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNewest) : "memory");
}
/// This thread's stores are in device memory.
MACHINE_DEVICE void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- tensor copies: a box of a matrix whose tensor map says where the matrix ends; what lies outside is read as zero and not
// written. `map` lies in the kernel's parameters (__grid_constant__); column and row are of the box's first element.

MACHINE_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
/// To the same place in several members of the cluster, one a bit of `members`, each counted by its own barrier. sm_90a.
MACHINE_DEVICE void tensor_load_multicast(std::uint16_t members, std::uint32_t shared, const void* map,
                                          int column, int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(members)
      : "memory");
}
/// In a group of the thread, as bulk_store().
MACHINE_DEVICE void tensor_store(const void* map, int column, int row, std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(column), "r"(row), "r"(shared)
               : "memory");
}
// The same of one of several matrices that a tensor map describes; `slice` counts them.

MACHINE_DEVICE void tensor_load(std::uint32_t shared, const void* map, int column, int row, int slice,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(slice), "r"(barrier)
      : "memory");
}
/// Of a map of panels: from `row` and `panel` on.
MACHINE_DEVICE void tensor_load_panels(std::uint32_t shared, const void* map, int row, int panel, int slice,
                                       std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared),
      "l"(map), "r"(0), "r"(row), "r"(panel), "r"(slice), "r"(barrier)
      : "memory");
}
MACHINE_DEVICE void tensor_store(const void* map, int column, int row, int slice, std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
               "r"(column), "r"(row), "r"(slice), "r"(shared)
               : "memory");
}

// ---- fences between ordinary accesses and what reads or writes by itself (bulk and tensor copies, wgmma)

/// Of shared memory: before a barrier, by every thread that wrote what copies or products read next.
MACHINE_DEVICE void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Of all memory, the device's as well; and between what copies have written and what copies read.
MACHINE_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace headroom::machine
