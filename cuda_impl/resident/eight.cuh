// Eight values of a lane, as words.
#pragma once

#include "machine/thread.cuh"

namespace headroom::resident {

using namespace machine;

/// 8 values: 4 words of two, or 8 words of one. Half of them: 2 or 4 words.
template <int kWordCount>
struct Eight {
  std::uint32_t word[kWordCount];
};

template <int kWordCount>
MACHINE_DEVICE void assign(Eight<kWordCount>& eight, int part, uint4 value) {
  eight.word[4 * part] = value.x;
  eight.word[4 * part + 1] = value.y;
  eight.word[4 * part + 2] = value.z;
  eight.word[4 * part + 3] = value.w;
}
template <int kWordCount>
MACHINE_DEVICE uint4 part_of(const Eight<kWordCount>& eight, int part) {
  return make_uint4(eight.word[4 * part], eight.word[4 * part + 1], eight.word[4 * part + 2],
                    eight.word[4 * part + 3]);
}

}  // namespace headroom::resident
