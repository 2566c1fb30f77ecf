// Stands in for cuda_impl/machine/cluster.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <array>
#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void cluster_sync() { emulated::cluster_barrier(); }
MACHINE_DEVICE void cluster_sync_relaxed() { emulated::cluster_barrier(); }
MACHINE_DEVICE std::uint32_t remote_address(std::uint32_t local, std::uint32_t rank) {
  return emulated::shared_address_in(local, rank);
}
MACHINE_DEVICE void store_async16(std::uint32_t remote, uint4 value, std::uint32_t remote_barrier) {
  emulated::send_later(remote, std::array{value.x, value.y, value.z, value.w}, remote_barrier);
}
MACHINE_DEVICE void store_async8(std::uint32_t remote, uint2 value, std::uint32_t remote_barrier) {
  emulated::send_later(remote, std::array{value.x, value.y}, remote_barrier);
}
MACHINE_DEVICE void bulk_send(std::uint32_t remote, std::uint32_t shared, std::uint32_t bytes,
                              std::uint32_t remote_barrier) {
  emulated::read_by_the_way(shared, bytes);
  emulated::copy_later(remote, emulated::shared_pointer(shared, bytes), bytes, remote_barrier);
}

}  // namespace headroom::machine
