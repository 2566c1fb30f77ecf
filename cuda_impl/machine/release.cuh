// The two halves of an order between thread blocks, where one fence does for several accesses; and their order with the copy engine.
//
//   writer: stores; a barrier of those who stored; then one thread: fence_release_gpu(); add_relaxed_gpu(counter)
//   reader: load_relaxed_gpu(counter) until it says so; fence_acquire_gpu(); fence_proxy_async_global(); tensor_load()
// Between GPUs the same at system scope (peers.cuh has the counters' accesses). An order goes on from one scope to the other: what a
// thread has seen at either of them comes before what it releases at either of them.
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

// GPUs before sm_90 have one fence for both.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MACHINE_FENCE(half, scope) "fence.acq_rel." scope ";"
#else
#define MACHINE_FENCE(half, scope) "fence." half "." scope ";"
#endif
/// What this thread has written and seen comes before its later relaxed stores and additions. It waits until all of that is in the L2.
MACHINE_DEVICE void fence_release_gpu() { asm volatile(MACHINE_FENCE("release", "gpu")::: "memory"); }
/// What its earlier relaxed loads have seen comes before all that it reads from now on.
MACHINE_DEVICE void fence_acquire_gpu() { asm volatile(MACHINE_FENCE("acquire", "gpu")::: "memory"); }
/// The same for all GPUs: it waits until what was stored to a peer's memory is there.
MACHINE_DEVICE void fence_release_sys() { asm volatile(MACHINE_FENCE("release", "sys")::: "memory"); }
MACHINE_DEVICE void fence_acquire_sys() { asm volatile(MACHINE_FENCE("acquire", "sys")::: "memory"); }
#undef MACHINE_FENCE
/// Of device memory between ordinary accesses and copies. fence_proxy_async(), of all memory, waits for the L2 as well.
MACHINE_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace headroom::machine
