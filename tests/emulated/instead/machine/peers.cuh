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
MACHINE_DEVICE uint2 load_relaxed_sys_64(const void* address) {
  return emulated::load_polled<uint2>(address);
}
MACHINE_DEVICE void store_relaxed_sys_64(void* address, uint2 value) { emulated::store_seen(address, value); }
MACHINE_DEVICE uint4 load_relaxed_sys_128(const void* address) {
  return emulated::load_polled<uint4>(address);
}
MACHINE_DEVICE void store_relaxed_sys_128(void* address, uint4 value) {
  emulated::store_seen(address, value);
}

MACHINE_DEVICE std::uint32_t load_relaxed_sys(const std::uint32_t* address) {
  return emulated::load_polled<std::uint32_t>(address);
}
MACHINE_DEVICE void add_relaxed_sys(std::uint32_t* address, std::uint32_t value) {
  emulated::add_seen(address, value);
}

}  // namespace headroom::machine
