// Stands in for cuda_impl/machine/thread.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "intrinsics.h"
#include "lanes.h"
#include "machine.h"

#define MACHINE_DEVICE inline
#define MACHINE_DEVICE_CALLED inline

namespace headroom::machine {

MACHINE_DEVICE int thread_index() { return static_cast<int>(emulated::place().thread); }
MACHINE_DEVICE int thread_index_here() { return thread_index(); }
MACHINE_DEVICE std::uint32_t block_index() { return emulated::place().block; }
MACHINE_DEVICE unsigned char* shared_memory() { return emulated::shared_memory(); }

// ---- a warp

MACHINE_DEVICE void warp_sync() { emulated::warp_sync(); }
MACHINE_DEVICE std::uint32_t warp_ballot(bool value) {
  return emulated::of_all_lanes("ballot", static_cast<std::uint32_t>(value),
                                [](const std::uint32_t* given, int) {
                                  std::uint32_t bits = 0;
                                  for (int i = 0; i < emulated::kWarp; ++i) bits |= given[i] << i;
                                  return bits;
                                });
}
MACHINE_DEVICE bool warp_all(bool value) { return warp_ballot(value) == ~0u; }
MACHINE_DEVICE bool warp_any(bool value) { return warp_ballot(value) != 0; }
MACHINE_DEVICE float shuffle_xor(float value, int mask) { return emulated::shuffle_xor(value, mask); }
MACHINE_DEVICE std::uint32_t shuffle_from(std::uint32_t value, int lane) {
  return emulated::shuffle(value, lane);
}
MACHINE_DEVICE int uniform(int value) {
  return emulated::of_all_lanes("uniform", value, [](const int* given, int i) {
    if (given[i] != given[0]) emulated::fault("a value that differs between lanes is called uniform");
    return given[0];
  });
}

// ---- a thread block

MACHINE_DEVICE void block_sync() { emulated::block_barrier(0, 0); }
MACHINE_DEVICE bool block_sync_or(bool value) { return emulated::block_any(value); }
MACHINE_DEVICE bool block_sync_or_uniform(bool value) { return emulated::block_any(value); }
MACHINE_DEVICE void named_barrier_aligned(int which, int threads) {
  emulated::block_barrier(which, static_cast<unsigned>(threads));
}
template <int kThreads>
MACHINE_DEVICE void named_barrier(int which) {
  emulated::block_barrier(which, kThreads);
}
template <int kRegisters>
MACHINE_DEVICE void registers_increase() {}
template <int kRegisters>
MACHINE_DEVICE void registers_decrease() {}

// ---- a multiprocessor's clock

MACHINE_DEVICE std::uint32_t cycles() {
  emulated::rest();
  return static_cast<std::uint32_t>(2 * emulated::nanoseconds());
}
MACHINE_DEVICE void wait_cycles(std::uint32_t) { emulated::rest(); }

}  // namespace headroom::machine
