// Stands in for cuda_impl/machine/compiler.cuh where the CPU plays the GPU: no word to nvcc is one to another compiler.
#pragma once

#include <cmath>
#include <cstdint>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void compute_now(std::uint32_t&) {}
MACHINE_DEVICE void compute_now(int&) {}
MACHINE_DEVICE void compute_now(unsigned char*&) {}
template <class Word>
MACHINE_DEVICE Word compute_from_here(Word value) {
  return value;
}
MACHINE_DEVICE int kept_whole(int value) { return value; }
MACHINE_DEVICE std::uint64_t kept_whole(std::uint64_t value) { return value; }
MACHINE_DEVICE int kept_by_lane(int value) { return emulated::shuffle(value, emulated::lane()); }
MACHINE_DEVICE void multiply_add_in_order(float& sum, float a, float b) { sum = std::fmaf(a, b, sum); }
MACHINE_DEVICE float add_in_order(float a, float b) { return a + b; }

}  // namespace headroom::machine
