// The machine's instructions that only the patch kernel asks for; the others are in ptx.cuh.
#pragma once

#include "resident/ptx.cuh"

namespace headroom::resident {

/// All groups have landed.
RESIDENT_DEVICE void copy_async_wait_all() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
/// 16 bytes as one value, if they are wanted; else the value stays.
RESIDENT_DEVICE void load_whole16_if(bool wanted, uint4& value, const void* address) {
  std::uint64_t a = value.x | static_cast<std::uint64_t>(value.y) << 32,
                b = value.z | static_cast<std::uint64_t>(value.w) << 32;
  asm volatile(
      "{\n.reg .b128 v;\n.reg .pred p;\nmov.b128 v, {%0, %1};\nsetp.ne.u32 p, %3, 0;\n"
      "@p ld.relaxed.gpu.global.b128 v, [%2];\nmov.b128 {%0, %1}, v;\n}"
      : "+l"(a), "+l"(b)
      : "l"(address), "r"(static_cast<std::uint32_t>(wanted))
      : "memory");
  value = make_uint4(static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                     static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
}
RESIDENT_DEVICE void store_relaxed(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace headroom::resident
