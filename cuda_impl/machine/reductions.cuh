// Values that lanes of a warp make of each other's. A quad is four lanes next to each other: those that hold a row of a product's sums
// (mma.cuh, wgmma.cuh). All of them get the result, and in the same bits every time.
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE float quad_maximum(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}
MACHINE_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

}  // namespace headroom::machine
