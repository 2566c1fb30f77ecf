// Stands in for cuda_impl/machine/remote.cuh where the CPU plays the GPU: the same functions, in the same order.
#pragma once

#include <cstdint>

#include "machine/thread.cuh"
#include "values.h"

namespace headroom::machine {

MACHINE_DEVICE float4 load_remote_floats(std::uint32_t remote) {
  return emulated::shared_value<float4>(remote);
}
}  // namespace headroom::machine
