// Ordinary loads of another member's shared memory, by remote_address() (cluster.cuh). cluster_sync() orders them.
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
}  // namespace headroom::machine
