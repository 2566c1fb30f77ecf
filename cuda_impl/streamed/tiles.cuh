// What all formats share: where a sum belongs, and tiles of activations on their way out.
#pragma once

#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "streamed/plan.h"

namespace headroom::streamed {

using namespace machine;

/// Thread blocks are members of one grid that trains together. Members and addresses of shared memory are counted in int, as the
/// places are that they are added to.
MACHINE_DEVICE int member_index() { return static_cast<int>(block_index()); }
MACHINE_DEVICE int shared_place(const void* pointer) { return static_cast<int>(shared_address(pointer)); }

/// A feature of the tiles that a warp sums up, and a row of the batch.
struct Place {
  int feature, row;
};

struct Words {
  std::uint32_t word[4];
};
MACHINE_DEVICE Words words_of(uint4 v) { return {{v.x, v.y, v.z, v.w}}; }
MACHINE_DEVICE uint4 vector_of(const Words& w) {
  return make_uint4(w.word[0], w.word[1], w.word[2], w.word[3]);
}

/// Features of one tile and one group of rows in shared memory, on their way out: fp32 [16 features][33].
inline constexpr int kValuesPitch = kGroupRows + 1;
MACHINE_DEVICE float value_at(const float* values, int feature, int row) {
  return values[feature * kValuesPitch + row];
}

template <int kCount>
MACHINE_DEVICE void copy_sums(const float (&sums)[kCount], float (&kept)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) kept[i] = sums[i];
}

/// 32-bit masters: w += factor * gradient.
MACHINE_DEVICE std::uint32_t updated(std::uint32_t master, float gradient, float factor) {
  return float_to_bits(fmaf(factor, gradient, bits_to_float(master)));
}

/// What a format has of its own where nothing is said: sweeps work out the places of their copies, values take words of their own, and
/// all masters are in memory, about which the L2 is told nothing.
struct FormatOfMemory {
  static constexpr bool kWalks = false;  ///< sweeps keep the places of their copies in registers
  static constexpr bool kPacks =
      false;  ///< several rows of activations and gradients in a word: only with joined logits
  static constexpr Kept kKept = Kept::kNothing;
  static constexpr int kHeldParts = 0;
};
/// With masters on the chip, and with words to the L2 about which masters to hold: of the first kHeld of a tile's two parts, or in fp32 a
/// share of the lines.
template <class Base, Kept kWhat, int kHeld>
struct Placed : Base {
  static constexpr Kept kKept = kWhat;
  static constexpr int kHeldParts = kHeld;
};

/// Where a tile of masters goes back to: its two parts, and with hints whether the L2 is to hold them.
using Parts = unsigned char* const[2];
template <int kHeldParts>  // the first so many
struct HeldParts {
  unsigned char* part[2];
  bool held;
};
MACHINE_DEVICE void store_part(Parts& parts, int index, std::int64_t offset, uint4 value) {
  store_global16(parts[index] + offset, value);
}
template <int kHeldParts>
MACHINE_DEVICE void store_part(const HeldParts<kHeldParts>& parts, int index, std::int64_t offset,
                               uint4 value) {
  if (index < kHeldParts && parts.held)
    store_global16_evict_last(parts.part[index] + offset, value);
  else
    store_global16_evict_first(parts.part[index] + offset, value);
}

/// A tile of masters whose parts from kFirst on may be kept in shared memory, one after the other there.
template <class Out, int kFirst>
struct MaybeKept {
  const Out& out;
  int there;
  bool kept;
};
template <class Out, int kFirst>
MACHINE_DEVICE void store_part(const MaybeKept<Out, kFirst>& parts, int index, std::int64_t offset,
                               uint4 value) {
  if (index >= kFirst && parts.kept)
    store_shared16(parts.there + (index - kFirst) * 512 + static_cast<int>(offset), value);
  else
    store_part(parts.out, index, offset, value);
}

}  // namespace headroom::streamed
