// Sums of four values at once, in an order that depends on nothing but how many parts there are: the same bits every time.
#pragma once

#include "machine/thread.cuh"

namespace headroom::resident {

using namespace machine;

MACHINE_DEVICE float4 add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// Neighbours first, then sums of neighbours: few additions wait for each other. `part` is used up.
template <int kCount>
MACHINE_DEVICE float4 add_up(float4 (&part)[kCount]) {
  static_assert((kCount & (kCount - 1)) == 0);
#pragma unroll
  for (int distance = 1; distance < kCount; distance *= 2)
#pragma unroll
    for (int from = 0; from < kCount; from += 2 * distance)
      part[from] = add(part[from], part[from + distance]);
  return part[0];
}
/// The same of parts that lie `stride` apart.
template <int kCount>
MACHINE_DEVICE float4 add_up(const float4* first, int stride) {
  float4 part[kCount];
#pragma unroll
  for (int from = 0; from < kCount; ++from) part[from] = first[from * stride];
  return add_up(part);
}

}  // namespace headroom::resident
