// The two halves of an order between thread blocks, where one fence does for several accesses; and their order with the copy engine.
//
//   writer: stores; a barrier of those who stored; then one thread: fence_release_gpu(); add_relaxed_gpu(counter)
//   reader: load_relaxed_gpu(counter) until it says so; fence_acquire_gpu(); fence_proxy_async_global(); tensor_load()
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

/// What this thread has written and seen comes before its later relaxed stores and additions. It waits until all of that is in the L2.
MACHINE_DEVICE void fence_release_gpu() { asm volatile("fence.release.gpu;" ::: "memory"); }
/// What its earlier relaxed loads have seen comes before all that it reads from now on.
MACHINE_DEVICE void fence_acquire_gpu() { asm volatile("fence.acquire.gpu;" ::: "memory"); }
/// Of device memory between ordinary accesses and copies. fence_proxy_async(), of all memory, waits for the L2 as well.
MACHINE_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace headroom::machine
