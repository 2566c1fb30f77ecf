// Barriers in shared memory (mbarrier): a phase is complete after its arrivals and the bytes announced to it, and the next one
// begins. A barrier is named by its address (shared_address()), 8 bytes on a multiple of 8.
//
// An arrival at a barrier of the own thread block releases, a wait acquires, both within the thread block; the names of the others say
// what they do. No wait here has a bound: `unbounded` ones come back when the phase is complete and not before. wait.cuh has those
// that give up.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to bulk copies and to the cluster; a block_sync() or a cluster_sync() must follow.
MACHINE_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MACHINE_DEVICE void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and announces bytes that copies will bring.
MACHINE_DEVICE void barrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// At a barrier of another member of the cluster (cluster.cuh, remote_address()), where nothing that this thread wrote is handed on, as when
/// it says that a place was read: a release would wait for its stores.
MACHINE_DEVICE void barrier_arrive_remote_relaxed(std::uint32_t remote_barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_barrier)
               : "memory");
}

/// Whether the phase of this parity is complete; may wait a little itself. Enough for what came from this thread block or by copies
/// from device memory, and for relaxed arrivals.
MACHINE_DEVICE bool barrier_try_wait(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
/// The same for what other members of the cluster have sent.
MACHINE_DEVICE bool barrier_try_wait_cluster(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
MACHINE_DEVICE void barrier_wait_unbounded(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}
MACHINE_DEVICE void barrier_wait_cluster_unbounded(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait_cluster(barrier, parity)) {
  }
}

/// Where a ring of stages is: its stage, and the parity of the phase that the stage is in.
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
