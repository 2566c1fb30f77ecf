// Roots by the machine's own approximation, as the quotients of numbers.cuh.
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

/// To about 2^-22. Takes no subnormal values and makes none, which the compiler's own scales first.
MACHINE_DEVICE float square_root(float value) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

}  // namespace headroom::machine
