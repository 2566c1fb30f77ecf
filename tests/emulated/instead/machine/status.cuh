// Stands in for cuda_impl/machine/status.cuh where the CPU plays the GPU.
#pragma once

#include "machine/memory.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE std::uint64_t nanoseconds() { return emulated::nanoseconds(); }
MACHINE_DEVICE void report_once(std::uint32_t* status, std::uint32_t value) {
  if (*status == 0) emulated::store_seen(status, value);
}
/// From then on barriers are arrived at in no order.
MACHINE_DEVICE void report(std::uint32_t* status, std::uint32_t value) {
  emulated::give_up_order();
  emulated::store_seen(status, value);
}

MACHINE_DEVICE std::uint64_t report_least(std::uint64_t* word, std::uint64_t value) {
  return *word = std::min(*word, value);
}
MACHINE_DEVICE void report_to_host(std::uint64_t* word, std::uint64_t value) { *word = value; }
[[noreturn]] MACHINE_DEVICE void end_launch_with_error() { __trap(); }

}  // namespace headroom::machine
