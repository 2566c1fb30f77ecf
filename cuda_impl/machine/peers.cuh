// Loads and stores of device memory that another GPU of the same host writes or reads: system scope.
//
// A pointer to a peer's memory is used like one to the own (cudaDeviceEnablePeerAccess). A packet is two values of 64 bits that are
// each written and read whole, which the memory model promises of a vector's elements at any scope; so each has a mark of its own.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE uint4 load_relaxed_sys_2x64(const void* address) {
  std::uint64_t a, b;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(address) : "memory");
  return internal::words(a, b);
}
MACHINE_DEVICE void store_relaxed_sys_2x64(void* address, uint4 value) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(address),
               "l"(internal::joined(value.x, value.y)), "l"(internal::joined(value.z, value.w))
               : "memory");
}

}  // namespace headroom::machine
