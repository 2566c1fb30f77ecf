// Stands in for cuda_impl/machine/barriers.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  emulated::counted_init(barrier, arrivals);
}
MACHINE_DEVICE void barrier_init_fence() {}
MACHINE_DEVICE void barrier_arrive(std::uint32_t barrier) { emulated::counted_arrive(barrier); }
MACHINE_DEVICE void barrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  emulated::counted_expect(barrier, bytes);
}
MACHINE_DEVICE void barrier_arrive_remote_relaxed(std::uint32_t remote_barrier) {
  emulated::counted_arrive(remote_barrier);
}
MACHINE_DEVICE bool barrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  return emulated::counted_done(barrier, parity);
}
MACHINE_DEVICE bool barrier_try_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  return emulated::counted_done(barrier, parity);
}
MACHINE_DEVICE void barrier_wait_unbounded(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}
MACHINE_DEVICE void barrier_wait_cluster_unbounded(std::uint32_t barrier, std::uint32_t parity) {
  barrier_wait_unbounded(barrier, parity);
}
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  MACHINE_DEVICE void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace headroom::machine
