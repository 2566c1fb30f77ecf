// Loads and stores of device memory that another GPU of the same host writes or reads: system scope.
//
// A pointer to a peer's memory is used like one to the own (cudaDeviceEnablePeerAccess). A packet is two values of 64 bits that are
// each written and read whole, which the memory model promises of a vector's elements at any scope; so each has a mark of its own. A value
// of 128 bits is one access, too, and has one mark.
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
MACHINE_DEVICE uint2 load_relaxed_sys_64(const void* address) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return make_uint2(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
}
MACHINE_DEVICE void store_relaxed_sys_64(void* address, uint2 value) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address), "l"(internal::joined(value.x, value.y))
               : "memory");
}
MACHINE_DEVICE uint4 load_relaxed_sys_128(const void* address) {
  std::uint64_t a, b;
  asm volatile("{\n.reg .b128 v;\nld.relaxed.sys.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
               : "=l"(a), "=l"(b)
               : "l"(address)
               : "memory");
  return internal::words(a, b);
}
MACHINE_DEVICE void store_relaxed_sys_128(void* address, uint4 value) {
  asm volatile(
      "{\n.reg .b128 v;\nmov.b128 v, {%1, %2};\nst.relaxed.sys.global.b128 [%0], v;\n}" ::"l"(address),
      "l"(internal::joined(value.x, value.y)), "l"(internal::joined(value.z, value.w))
      : "memory");
}

/// A counter that several GPUs add to: all of its accesses are of system scope, those of the GPU that holds it as well. Accesses of one
/// place whose scopes leave each other out would be a race.
MACHINE_DEVICE std::uint32_t load_relaxed_sys(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
MACHINE_DEVICE void add_relaxed_sys(std::uint32_t* address, std::uint32_t value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace headroom::machine
