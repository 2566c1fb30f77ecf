// Stands in for cuda_impl/machine/copy_arrival.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

/// The copies land right now, which is one of the orders there are.
MACHINE_DEVICE void copy_async_arrive(std::uint32_t barrier) {
  emulated::commit_group();
  emulated::wait_for_groups(0);
  emulated::counted_arrive(barrier);
}
MACHINE_DEVICE bool barrier_is_complete(std::uint32_t barrier, std::uint32_t parity) {
  return emulated::counted_done(barrier, parity);
}

}  // namespace headroom::machine
