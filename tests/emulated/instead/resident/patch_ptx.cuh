// Stands in for cuda_impl/resident/patch_ptx.cuh where the CPU plays the GPU.
#pragma once

#include "resident/ptx.cuh"

namespace headroom::resident {

RESIDENT_DEVICE void copy_async_wait_all() { emulated::wait_for_groups(0); }
RESIDENT_DEVICE void load_whole16_if(bool wanted, uint4& value, const void* address) {
  if (wanted) value = load_polled<uint4>(address);
}
RESIDENT_DEVICE void store_relaxed(std::uint32_t* address, std::uint32_t value) {
  store_seen(address, value);
}

}  // namespace headroom::resident
