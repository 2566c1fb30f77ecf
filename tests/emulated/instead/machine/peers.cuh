// Stands in for cuda_impl/machine/peers.cuh where the CPU plays the GPU: the same functions, in the same order. All GPUs share its memory.
#pragma once

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE uint4 load_relaxed_sys_2x64(const void* address) {
  return emulated::load_polled<uint4>(address);
}
MACHINE_DEVICE void store_relaxed_sys_2x64(void* address, uint4 value) {
  emulated::store_seen(address, value);
}

}  // namespace headroom::machine
