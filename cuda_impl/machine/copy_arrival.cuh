// Copies of cp.async that a barrier counts, and a wait for a barrier, on sm_80 and newer: barriers.cuh's own wait came with sm_90.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// Arrives at the barrier when all copies that this thread has begun by now have landed. One of the arrivals that the barrier expects.
/// What the thread itself has read and written is not handed on by it.
MACHINE_DEVICE void copy_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Whether the phase of this parity is complete. Acquires within the thread block; may wait a little itself on sm_90 and newer.
MACHINE_DEVICE bool barrier_is_complete(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

}  // namespace headroom::machine
