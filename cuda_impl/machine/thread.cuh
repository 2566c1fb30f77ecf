// A thread, its warp and its thread block: who it is, what it tells the others of its warp, and where they all meet.
#pragma once

#include <cstdint>

#define MACHINE_DEVICE __device__ __forceinline__
#define MACHINE_DEVICE_CALLED inline __device__ __noinline__  // a place of its own, out of the way

namespace headroom::machine {

MACHINE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
/// The same, read anew at every call: otherwise the compiler may work out all that follows from it before a loop and keep it in
/// local memory, from where it comes slower than it is worked out.
MACHINE_DEVICE int thread_index_here() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
MACHINE_DEVICE std::uint32_t block_index() { return blockIdx.x; }
/// The thread block's dynamic shared memory.
MACHINE_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// ---- a warp

MACHINE_DEVICE void warp_sync() { __syncwarp(); }
MACHINE_DEVICE bool warp_all(bool value) { return __all_sync(~0u, value) != 0; }
MACHINE_DEVICE bool warp_any(bool value) { return __any_sync(~0u, value) != 0; }
MACHINE_DEVICE std::uint32_t warp_ballot(bool value) { return __ballot_sync(~0u, value); }
MACHINE_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
/// What `lane` has; lanes may ask for different ones.
MACHINE_DEVICE std::uint32_t shuffle_from(std::uint32_t value, int lane) {
  return __shfl_sync(~0u, value, lane);
}
/// A value that all lanes have alike. The compiler knows it now: loops that depend on it need no care for lanes that part.
MACHINE_DEVICE int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// ---- a thread block

MACHINE_DEVICE void block_sync() { __syncthreads(); }
MACHINE_DEVICE bool block_sync_or(bool value) { return __syncthreads_or(value) != 0; }
/// The same, and the compiler knows that all lanes of a warp get the same.
MACHINE_DEVICE bool block_sync_or_uniform(bool value) { return warp_any(__syncthreads_or(value)); }
/// Waits for `threads` threads of this block, a multiple of 32, that name the same barrier; 0 is block_sync()'s. All of them
/// come to it at the same place of the program.
MACHINE_DEVICE void named_barrier_aligned(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
/// The same by whole warps that may come from different places of the program. (compute-sanitizer's synccheck holds a kernel with
/// the aligned form to its promise.)
template <int kThreads>
MACHINE_DEVICE void named_barrier(int which) {
  asm volatile("barrier.sync %0, %1;" ::"r"(which), "n"(kThreads) : "memory");
}

/// Registers of each thread of this warpgroup from here on, out of what the thread block was started with: setmaxnreg. A multiple
/// of 8 from 24 to 240. Other machines than sm_90a leave them as they are.
template <int kRegisters>
MACHINE_DEVICE void registers_increase() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
MACHINE_DEVICE void registers_decrease() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// ---- a multiprocessor's clock

MACHINE_DEVICE std::uint32_t cycles() {
  std::uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}
MACHINE_DEVICE void wait_cycles(std::uint32_t count) {
  for (const std::uint32_t begin = cycles(); cycles() - begin < count;) {
  }
}

}  // namespace headroom::machine
