// Ordinary loads and stores of another member's shared memory, by remote_address() (cluster.cuh). cluster_sync() orders them.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE float4 load_remote_floats(std::uint32_t remote) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(remote)
               : "memory");
  return v;
}
MACHINE_DEVICE float load_remote_float(std::uint32_t remote) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
MACHINE_DEVICE void store_remote(std::uint32_t remote, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}
MACHINE_DEVICE void store_remote(std::uint32_t remote, std::uint16_t value) {
  asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(remote), "h"(value) : "memory");
}

}  // namespace headroom::machine
