// Where tf32's values lie if each takes the 19 bits that a rounded one has: tiles of activations and gradients, and the masters that suit them.
//
// Eight values are a packet of five words: rows g, g + 8, g + 16, g + 24 of feature p, and the same rows of feature p + 8. Four words of every packet
// come first, then the fifth of all. In registers the four become one operand where they are, two of them as they are and two shifted, and
// with the fifth a second one.
#pragma once

#include "streamed/plan.h"

namespace headroom::streamed::packed {

inline constexpr int kPackets = kGroupRows * kTileSide / 8, kFifths = kPackets * 16,
                     kTileBytes = kFifths + kPackets * 4;
inline constexpr int kValueBits = 19;

/// Where value i of a packet begins: so that values 0 and 3 lead a word.
STREAMED_BOTH constexpr int value_bit(int i) { return i * kValueBits + (i < 3 ? 0 : 7); }
/// Which value is number `place` in the two operands, and the other way round.
STREAMED_BOTH constexpr int value_of(int place) { return 0x76415320 >> 4 * place & 15; }
STREAMED_BOTH constexpr int place_of_value(int i) { return 0x76352140 >> 4 * i & 15; }
/// What number rows 8j + g of feature p + 8h have: a row operand of a product over features as they come, column operands of one over rows.
STREAMED_BOTH constexpr int place_of(int j, int h) { return j / 2 * 4 + h * 2 + j % 2; }

/// A lane's own 16 bytes of one of two parts of 512; what lanes read across comes from other banks then.
STREAMED_BOTH constexpr int own_bytes(int lane) { return (lane ^ (lane >> 2 & 2)) * 16; }
/// Bytes of a tile at which a packet's four words and its fifth are. Lane 4g + t's own are the packets (g, 2t) and (g, 2t + 1).
STREAMED_BOTH constexpr int first_words(int g, int p) {
  return (p & 1) * 512 + (own_bytes(g * 4 + (p >> 1)) ^ (p & 1) * 16);
}
STREAMED_BOTH constexpr int fifth_word(int g, int p) { return kFifths + (g * 8 + p) * 4; }

/// The feature of eight that stands for an operand's g, and for a sum's column g; so that what is a lane's own 16 bytes of masters across are another lane's along.
STREAMED_BOTH constexpr int feature_of(int g) { return (g & 3) * 2 + (g >> 2); }
STREAMED_BOTH constexpr int place_of_feature(int feature) { return feature / 2 + feature % 2 * 4; }
/// Of a tile of masters, counted in words. Lane 4g + t's own are outputs feature_of(g) and 8 further of the inputs 2t and 2t + 8 in part 0, 2t + 1 and
/// 2t + 9 in part 1.
STREAMED_BOTH constexpr int slot(int output, int input) {
  return input % 2 * 128 + own_bytes(place_of_feature(output % 8) * 4 + input % 8 / 2) / 4 + output / 8 * 2 +
         input / 8;
}
/// Across they are outputs 2t and 2t + 8, in the second step 2t + 1 and 2t + 9, of the inputs feature_of(g) and 8 further: so many words from 16 bytes
/// to those of the second step.
inline constexpr int kSecondStep = 64;

// The totals of a tile's 512 sums, one a thread: a warp has four packets of eight neighbouring lanes, rows g, g + 8, g + 16, g + 24 with g = warp / 2;
// the lane of a value is its place (place_of).
STREAMED_BOTH constexpr int row_of_total(int warp, int lane) {
  return (warp >> 1) + 8 * ((lane >> 1 & 2) + (lane & 1));
}
STREAMED_BOTH constexpr int feature_of_total(int warp, int lane) {
  return feature_of((lane >> 3) * 2 + (warp & 1)) + (lane >> 1 & 1) * 8;
}
/// Sum 8m + 4n + 2r + s of lane 4g + t: rows 16m + 8r + g, column 2t + s of the n-th eight. Where it lies among 32, so that both who writes and who
/// adds up use all banks; and in which word a thread's total begins.
STREAMED_BOTH constexpr int total_swizzle(int sum) { return (sum >> 1) * 4; }
STREAMED_BOTH constexpr int place_of_total(int warp, int lane) {
  const int sum = (lane & 7) * 2 + (warp & 1);
  return sum * 32 + (((warp >> 1) * 4 + (lane >> 3)) ^ total_swizzle(sum));
}
/// Where in a packet the values of a word are, by their places; the first is shifted left, the second 19 bits less to the right, and in word 3 value 6
/// follows, 25 bits to the right.
STREAMED_BOTH constexpr int first_of_word(int word) { return 0x65240 >> 4 * word & 7; }
STREAMED_BOTH constexpr int second_of_word(int word) { return 0x73514 >> 4 * word & 7; }
STREAMED_BOTH constexpr int left_of_word(int word) { return 0x7d0d0 >> 4 * word & 15; }

}  // namespace headroom::streamed::packed
