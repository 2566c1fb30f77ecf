// What all formats share: where a sum belongs, and tiles of activations on their way out.
#pragma once

#include "streamed/plan.h"
#include "streamed/ptx.cuh"

namespace headroom::streamed {

/// A feature of the tiles that a warp sums up, and a row of the batch.
struct Place {
  int feature, row;
};

struct Words {
  std::uint32_t word[4];
};
STREAMED_DEVICE Words words_of(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
STREAMED_DEVICE uint4 vector_of(const Words& w) {
  return make_uint4(w.word[0], w.word[1], w.word[2], w.word[3]);
}

/// Features of one tile and one group of rows in shared memory, on their way out: fp32 [16 features][33].
inline constexpr int kValuesPitch = kGroupRows + 1;
STREAMED_DEVICE float value_at(const float* values, int feature, int row) {
  return values[feature * kValuesPitch + row];
}

template <int kCount>
STREAMED_DEVICE void copy_sums(const float (&sums)[kCount], float (&kept)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) kept[i] = sums[i];
}

/// 32-bit masters: w += factor * gradient.
STREAMED_DEVICE std::uint32_t updated(std::uint32_t master, float gradient, float factor) {
  return float_to_bits(fmaf(factor, gradient, bits_to_float(master)));
}

/// Where a tile of masters goes back to: its two parts, and with hints whether the L2 is to hold them.
using Parts = unsigned char* const[2];
template <int kHeldParts>  // the first so many
struct HeldParts {
  unsigned char* part[2];
  bool held;
};
STREAMED_DEVICE void store_part(Parts& parts, int index, std::int64_t offset, uint4 value) {
  store_global16(parts[index] + offset, value);
}
template <int kHeldParts>
STREAMED_DEVICE void store_part(const HeldParts<kHeldParts>& parts, int index, std::int64_t offset,
                                uint4 value) {
  if (index < kHeldParts && parts.held)
    store_global16_held(parts.part[index] + offset, value);
  else
    store_global16_passing(parts.part[index] + offset, value);
}

/// A tile of masters whose parts from kFirst on may be kept in shared memory, one after the other there.
template <class Out, int kFirst>
struct MaybeKept {
  const Out& out;
  int there;
  bool kept;
};
template <class Out, int kFirst>
STREAMED_DEVICE void store_part(const MaybeKept<Out, kFirst>& parts, int index, std::int64_t offset,
                                uint4 value) {
  if (index >= kFirst && parts.kept)
    store_shared16(parts.there + (index - kFirst) * 512 + static_cast<int>(offset), value);
  else
    store_part(parts.out, index, offset, value);
}

}  // namespace headroom::streamed
