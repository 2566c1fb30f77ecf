// machine/roots.cuh for the CPU.
#pragma once

#include <cmath>

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE float square_root(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? 0 : std::sqrt(value);
}

}  // namespace headroom::machine
