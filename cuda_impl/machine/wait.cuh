// What a wait with a bound asks the machine for: the time, and a word in device memory in which the first thread that has waited
// too long says where. Whoever finds something there waits for nothing any more.
#pragma once

#include <cstdint>

#include "machine/warp.cuh"

namespace headroom::machine {

MACHINE_DEVICE std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
MACHINE_DEVICE std::uint32_t load_relaxed(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
/// `status`: 0, or what the first one has said.
MACHINE_DEVICE void report_once(std::uint32_t* status, std::uint32_t value) { atomicCAS(status, 0u, value); }
/// The same where the last one may stay, in fewer instructions.
MACHINE_DEVICE void report(std::uint32_t* status, std::uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(status), "r"(value) : "memory");
}
/// Whether somebody has.
MACHINE_DEVICE bool is_given_up(const std::uint32_t* status) { return load_relaxed(status) != 0; }

}  // namespace headroom::machine
