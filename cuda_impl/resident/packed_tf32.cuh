// Eight tf32 values of a lane in five words.
//
// A rounded value has 19 bits. Five of the eight lie in the upper bits of a word each and are used as they are: the tensor core
// does not look at the lower 13 bits of a register (PTX does not promise it; measured, and a test of cuda-streamed repeats it).
// The other three fill those lower bits, as follows, and take two instructions each.
//
//   word    bits 31 .. 13    bits 12 .. 0
//   0       value 0          value 2, its upper 13
//   1       value 1          12 .. 7: value 2, its lower 6; 0: mark
//   2       value 4          value 6, its upper 13
//   3       value 5          12 .. 7: value 6, its lower 6; 6 .. 0: value 7, its lower 7
//   4       value 3          12: mark; 11 .. 0: value 7, its upper 12
//
// Values 0 to 3 and 4 to 7 are the two parts of a tile, in the order of Tf32Slices. So who has a part makes two words and its share
// of the last. Words 0 to 3 are 16 bytes that are read and written whole, word 4 is read and written by itself: a mark each.
#pragma once

#include "machine/bits.cuh"
#include "machine/masks.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_formats.cuh"

namespace headroom::resident {

struct PackedTile {
  uint4 words;
  std::uint32_t last;
};

struct PackedTf32 {
  static constexpr std::uint32_t kMark = 1, kLastMark = 1u << 12;  // of words.y, of last
  static constexpr std::uint32_t kValue = 0xffffe000u;
  static constexpr std::uint32_t kThirdsRest = 0x1f80u, kFourthsRest = 0x7fu;  // of words.y and words.w

  /// What one part of a tile gives, its own two words and what it adds to the last. A NaN may have lower bits, in which others
  /// have theirs and the marks lie: with them it would be waited for in vain, or taken before the rest has come.
  struct Part {
    std::uint32_t first, second, last;
  };
  MACHINE_DEVICE static Part part(const uint4& rounded, bool upper) {
    const std::uint32_t z = rounded.z & kValue;
    return {(rounded.x & kValue) | z >> 19,
            (rounded.y & kValue) | (z >> 6 & ~kValue) | (upper ? rounded.w >> 13 & kFourthsRest : 0u),
            upper ? rounded.w >> 20 : rounded.w & kValue};
  }
  MACHINE_DEVICE static PackedTile pack(const Eight<8>& rounded) {
    const Part lower = part(part_of(rounded, 0), false), upper = part(part_of(rounded, 1), true);
    return {make_uint4(lower.first, lower.second, upper.first, upper.second), lower.last | upper.last};
  }
  /// By the two lanes that have the parts, 16 from each other: the lower one's order is right.
  MACHINE_DEVICE static PackedTile pack(const uint4& rounded, bool upper) {
    const Part own = part(rounded, upper);
    return {make_uint4(own.first, own.second, other_part(own.first), other_part(own.second)),
            own.last | other_part(own.last)};
  }
  /// As operands: below the 19 bits lies what happens to be there.
  MACHINE_DEVICE static Eight<8> operands(const PackedTile& tile) {
    const uint4& w = tile.words;
    return {{w.x, w.y, shift_joined<19>(w.x, w.y << 19), tile.last, w.z, w.w,
             shift_joined<19>(w.z, w.w << 19), shift_joined<20>(tile.last, w.w << 25)}};
  }
  /// Of activations, none of which is negative: where they are 0 what was made of them is 0, too.
  MACHINE_DEVICE static Eight<8> masked(const Eight<8>& made, const PackedTile& tile) {
    const uint4& w = tile.words;
    // Their bits where they lie, which is less than putting them together.
    const std::uint32_t bits[8] = {w.x & kValue,
                                   w.y & kValue,
                                   (w.x & ~kValue) | (w.y & kThirdsRest),
                                   tile.last & kValue,
                                   w.z & kValue,
                                   w.w & kValue,
                                   (w.z & ~kValue) | (w.w & kThirdsRest),
                                   (tile.last & (kLastMark - 1)) | (w.w & kFourthsRest)};
    Eight<8> result;
#pragma unroll
    for (int i = 0; i < 8; ++i) result.word[i] = bits[i] != 0 ? made.word[i] : 0;
    return result;
  }

 private:
  MACHINE_DEVICE static std::uint32_t other_part(std::uint32_t word) {
    return float_to_bits(shuffle_xor(bits_to_float(word), 16));
  }
};

}  // namespace headroom::resident
