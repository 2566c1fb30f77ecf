// Stands in for cuda_impl/machine/fragments.cuh where the CPU plays the GPU.
#pragma once

#include <cstdint>

#include "machine/memory.cuh"

namespace headroom::machine {

MACHINE_DEVICE float2 load_shared_pair(std::uint32_t address) {
  return emulated::shared_value<float2>(address);
}

}  // namespace headroom::machine
