// What a wait with a bound (wait.cuh) asks the machine for: the time, and a word in device memory in which the first thread that has waited
// too long says where. Whoever finds something there waits for nothing any more.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
/// `status`: 0, or what the first one has said.
MACHINE_DEVICE void report_once(std::uint32_t* status, std::uint32_t value) { atomicCAS(status, 0u, value); }
/// The same where the last one may stay, in fewer instructions.
MACHINE_DEVICE void report(std::uint32_t* status, std::uint32_t value) { store_relaxed_gpu(status, value); }

/// The least of what has been said. `word`: all ones before.
MACHINE_DEVICE std::uint64_t report_least(std::uint64_t* word, std::uint64_t value) {
  auto* least = reinterpret_cast<unsigned long long*>(word);
  const unsigned long long before = atomicMin(least, static_cast<unsigned long long>(value));
  return before < value ? before : value;
}
/// Into the host's memory, where it outlives a launch that ends with an error.
MACHINE_DEVICE void report_to_host(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  __threadfence_system();
}
/// For all its thread blocks, and the process's use of the device.
[[noreturn]] MACHINE_DEVICE void end_launch_with_error() {
  __trap();
  __builtin_unreachable();
}

}  // namespace headroom::machine
