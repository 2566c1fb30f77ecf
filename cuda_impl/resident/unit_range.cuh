// Which units of a sum a warp adds up.
#pragma once

#include "machine/thread.cuh"
#include "resident/plan.h"

namespace headroom::resident {

using namespace machine;

/// The units of columns that one warp sums over: neighbouring, and as even as can be.
struct UnitRange {
  int begin, end;
  MACHINE_DEVICE static UnitRange of(int units, int warp) {
    const int base = units / kWarps, extra = units % kWarps;
    const int begin = warp * base + min(warp, extra);
    return {begin, begin + base + (warp < extra ? 1 : 0)};
  }
  /// The warp whose range holds `unit`.
  MACHINE_DEVICE static int warp_of(int units, int unit) {
    const int base = units / kWarps, extra = units % kWarps;
    return unit < extra * (base + 1) ? unit / (base + 1) : extra + (unit - extra * (base + 1)) / base;
  }
};

}  // namespace headroom::resident
