// Which units of a sum a warp adds up.
#pragma once

#include "resident/plan.h"
#include "resident/ptx.cuh"

namespace headroom::resident {

/// The units of columns that one warp sums over: neighbouring, and as even as can be.
struct UnitRange {
  int begin, end;
  RESIDENT_DEVICE static UnitRange of(int units, int warp) {
    const int base = units / kWarps, extra = units % kWarps;
    const int begin = warp * base + min(warp, extra);
    return {begin, begin + base + (warp < extra ? 1 : 0)};
  }
  /// The warp whose range holds `unit`.
  RESIDENT_DEVICE static int warp_of(int units, int unit) {
    const int base = units / kWarps, extra = units % kWarps;
    return unit < extra * (base + 1) ? unit / (base + 1) : extra + (unit - extra * (base + 1)) / base;
  }
};

}  // namespace headroom::resident
