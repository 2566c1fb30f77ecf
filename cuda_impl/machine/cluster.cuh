// Thread block clusters: where members meet, and what one stores into another's shared memory.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// All threads of the cluster; what they wrote before it is seen behind it.
MACHINE_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The same without handing anything on: it does not wait for what a thread has stored.
MACHINE_DEVICE void cluster_sync_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
/// The address of the same place in another member's shared memory.
MACHINE_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  std::uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  return remote;
}
/// 16 bytes into another member's shared memory, counted by that member's barrier (st.async).
MACHINE_DEVICE void store_async16(std::uint32_t remote, uint4 value, std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          remote),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(remote_barrier)
      : "memory");
}
/// 8 bytes.
MACHINE_DEVICE void store_async8(std::uint32_t remote, uint2 value, std::uint32_t remote_barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(remote),
      "r"(value.x), "r"(value.y), "r"(remote_barrier)
      : "memory");
}
/// A multiple of 16 bytes from this thread block's shared memory to another member's, counted by a barrier there.
MACHINE_DEVICE void bulk_send(std::uint32_t remote, std::uint32_t shared, std::uint32_t bytes,
                              std::uint32_t remote_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          remote),
      "r"(shared), "r"(bytes), "r"(remote_barrier)
      : "memory");
}

}  // namespace headroom::machine
