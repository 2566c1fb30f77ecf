// Sums over the ranks that train a network together, the same bits on all of them.
#pragma once

#include "machine/thread.cuh"

namespace headroom::resident {

using namespace machine;

namespace internal {
/// Of the ranks whose numbers differ from this one's by kBegin to kBegin + kSize - 1; of this one `sums` has it.
template <int kBegin, int kSize, int kCount, class Part>
MACHINE_DEVICE void sum_of_ranks(float (&sums)[kCount][4], const Part& part) {
  if constexpr (kSize > 1) {
    sum_of_ranks<kBegin, kSize / 2>(sums, part);
    float others[kCount][4] = {};
    sum_of_ranks<kBegin + kSize / 2, kSize / 2>(others, part);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][c] += others[i][c];
  } else if constexpr (kBegin > 0) {
    part(kBegin - 1, sums);
  }
}
}  // namespace internal

/// sums += what peers have of them: part(peer, sums) adds those of the rank whose number differs in the bits of `peer` + 1. In pairs, and
/// pairs of pairs, of ranks whose numbers differ in one bit, so that all ranks add up the same values; an addition may be turned round.
template <int kRanks, int kCount, class Part>
MACHINE_DEVICE void add_peers(float (&sums)[kCount][4], const Part& part) {
  static_assert(kRanks == 2 || kRanks == 4 || kRanks == 8);
  internal::sum_of_ranks<0, kRanks>(sums, part);
}

}  // namespace headroom::resident
