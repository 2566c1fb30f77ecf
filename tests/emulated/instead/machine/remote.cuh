// Stands in for cuda_impl/machine/remote.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"
#include "values.h"

namespace headroom::machine {

MACHINE_DEVICE float4 load_remote_floats(std::uint32_t remote) {
  return emulated::shared_value<float4>(remote);
}
MACHINE_DEVICE float load_remote_float(std::uint32_t remote) { return emulated::shared_value<float>(remote); }
MACHINE_DEVICE void store_remote(std::uint32_t remote, float value) {
  emulated::shared_value<float>(remote) = value;
}
MACHINE_DEVICE void store_remote(std::uint32_t remote, std::uint16_t value) {
  emulated::shared_value<std::uint16_t>(remote) = value;
}

}  // namespace headroom::machine
