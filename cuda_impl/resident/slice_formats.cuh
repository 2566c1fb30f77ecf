// The four precisions of the slice kernel: one layout of tiles and masters, and two products built on it.
//
// Everything is blocks of 8 x 8: lane 4 * g + t holds row g, columns 2t and 2t + 1. A tile [32 rows, 8 columns] is four
// blocks below each other, so a lane has 8 values: value 2i + j is row g + 8i, column 2t + j. That is how tensor cores
// leave their sums and, since a product may sum its columns in any order, also how they take their operands: a
// tile goes from the sums of one member through an exchange into the products of all with nothing rearranged. For a
// weight gradient, which sums over rows, blocks are transposed in registers.
//
// Masters come in pairs of slices: fp32 [16 columns, 8 outputs], lane 4 * g + t holds outputs 2t and 2t + 1 of columns g
// and g + 8. fp32 keeps the layouts and multiplies by fused multiply-adds; there a lane takes the four lanes of a
// row in an order that begins with its own, so that no two lanes of a quad read the same bank, and sums over a quad
// or over rows end in the right lane without selecting.
#pragma once

#include "machine/bits.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/eight.cuh"
#include "resident/slice_plan.h"

namespace headroom::resident {

MACHINE_DEVICE uint4 load_part(const unsigned char* tile, int part, int lane) {
  return load_shared16(tile + part * 512 + lane * 16);
}
template <int kWordCount>
MACHINE_DEVICE Eight<kWordCount> load_tile(const unsigned char* tile, int lane) {
  Eight<kWordCount> values;
#pragma unroll
  for (int part = 0; part < kWordCount / 4; ++part) assign(values, part, load_part(tile, part, lane));
  return values;
}
template <int kWordCount>
MACHINE_DEVICE void store_tile(unsigned char* tile, const Eight<kWordCount>& values, int lane) {
#pragma unroll
  for (int part = 0; part < kWordCount / 4; ++part)
    *reinterpret_cast<uint4*>(tile + part * 512 + lane * 16) = part_of(values, part);
}

/// A lane's values in rows g and g + 8 of a tile, or in rows g + 16 and g + 24.
template <int kWordCount>
using HalfOf = Eight<kWordCount / 2>;
template <int kWordCount>
MACHINE_DEVICE HalfOf<kWordCount> load_half(const unsigned char* tile, int half, int lane) {
  HalfOf<kWordCount> values;
  const std::uint32_t* words =
      reinterpret_cast<const std::uint32_t*>(tile + lane * 16 + half * (kWordCount == 4 ? 8 : 512));
#pragma unroll
  for (int i = 0; i < kWordCount / 2; ++i) values.word[i] = words[i];
  return values;
}

/// tf32's second form of a tile of the member's own, transposed and rounded as updates take it: where 16 bytes of rows 2q and 2q + 1 of its blocks of 8 lie, of one
/// column. In an order in which neither who reads 16 bytes of each lane nor who writes them meets a bank twice.
MACHINE_DEVICE constexpr int column_byte(int column, int q) {
  return ((column * 4 + q) ^ (column >> 1)) * 16;
}

/// What one of 32 lanes adds up, rounds and publishes of half a tile: two warps share a tile by positions, those of lanes
/// 0 to 15 and of 16 to 31; in a warp, lanes 0 to 15 have the first half of their position's values, the others the second.
struct Publisher {
  int position, half;
  MACHINE_DEVICE static Publisher of(int warp, int lane) {
    return {16 * (warp & 1) + (lane & 15), lane >> 4};
  }
  /// The 16 bytes at byte() of a tile that this lane publishes; of 16-bit values two lanes hold the same.
  MACHINE_DEVICE uint4 packet(const Eight<2>& own) const {
    const std::uint32_t first = exchange_halves(own.word[0]), second = exchange_halves(own.word[1]);
    return half == 0 ? make_uint4(own.word[0], own.word[1], first, second)
                     : make_uint4(first, second, own.word[0], own.word[1]);
  }
  MACHINE_DEVICE uint4 packet(const Eight<4>& own) const { return part_of(own, 0); }
  template <int kParts>
  MACHINE_DEVICE int byte() const {
    return position * 16 + (kParts == 2 ? half * 512 : 0);
  }
  template <int kParts>
  MACHINE_DEVICE bool stores() const {
    return kParts == 2 || half == 0;
  }
  /// Into a tile of the member's own.
  template <int kParts>
  MACHINE_DEVICE void keep(unsigned char* tile, const uint4& packet) const {
    if (stores<kParts>()) *reinterpret_cast<uint4*>(tile + byte<kParts>()) = packet;
  }
  /// tf32: as columns, into the tile's second form. A lane's values are two rows of two columns; with those of the row
  /// beside it, four rows of one.
  MACHINE_DEVICE uint4 columns(const uint4& packet) const {
    const bool odd = (position & 4) != 0;
    const std::uint32_t first = exchange_rows(odd ? packet.x : packet.z),
                        second = exchange_rows(odd ? packet.y : packet.w);
    return odd ? make_uint4(first, packet.z, second, packet.w)
               : make_uint4(packet.x, first, packet.y, second);
  }
  /// The lane that takes them when it reads a whole tile.
  MACHINE_DEVICE int column_lane() const {
    return 4 * (2 * (position & 3) + (position >> 2 & 1)) + (position >> 3);
  }
  /// The same of two tiles of the member's own as turned masters' sums take them (Tf32Slices::TurnedOwn); this is `own`.
  MACHINE_DEVICE void keep_turned(unsigned char* place, int own, const uint4& packet) const {
    const int q = position >> 3, column = 2 * (position & 3);
    unsigned char* begin = place + half * 2048 + 4 * own + 8 * (position >> 2 & 1);
    const auto keep = [&](int byte, std::uint32_t word) {
      *reinterpret_cast<std::uint32_t*>(begin + byte) = word;
    };
    keep(column_byte(column, q), packet.x);
    keep(column_byte(column, q) + 512, packet.y);
    keep(column_byte(column + 1, q), packet.z);
    keep(column_byte(column + 1, q) + 512, packet.w);
  }
  MACHINE_DEVICE void keep_columns(unsigned char* place, const uint4& columns) const {
    *reinterpret_cast<uint4*>(place + half * 512 + column_byte(column_lane() >> 2, column_lane() & 3)) =
        columns;
  }

 private:
  MACHINE_DEVICE static std::uint32_t exchange_halves(std::uint32_t word) {
    return float_to_bits(shuffle_xor(bits_to_float(word), 16));
  }
  MACHINE_DEVICE static std::uint32_t exchange_rows(std::uint32_t word) {
    return float_to_bits(shuffle_xor(bits_to_float(word), 4));
  }
};

/// Sums of the tensor-core formats: [32 rows, 8 outputs] in two chains, so that instructions need not wait for the one
/// before, and [16 columns, 8 outputs] of a weight gradient.
struct TensorSums {
  float chain[2][2][4];
  MACHINE_DEVICE void finish(float (&value)[8], int /*lane*/) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < 4; ++c) value[4 * half + c] = chain[0][half][c] + chain[1][half][c];
  }
};

/// The second tile of the last layer's masters keeps only those lanes of a quad that hold classes.
struct SecondTile {
  const float4* pair;
  int lanes;
  MACHINE_DEVICE bool holds(int lane) const { return (lane & 3) < lanes; }
  MACHINE_DEVICE float4 load(int lane) const {
    return holds(lane) ? pair[(lane >> 2) * lanes + (lane & 3)] : make_float4(0, 0, 0, 0);
  }
  MACHINE_DEVICE void store(int lane, const float4& value) const {
    if (holds(lane)) const_cast<float4*>(pair)[(lane >> 2) * lanes + (lane & 3)] = value;
  }
  MACHINE_DEVICE float4* place(int lane) const {
    return const_cast<float4*>(pair) + (lane >> 2) * lanes + (lane & 3);
  }
};

/// What both tensor-core kinds do with it: as with the first tile.
template <class Format, class FormatWeights>
struct TensorLastLayer {
  static constexpr bool kUpdatesTwo = false;  // of the second tile's outputs on their own
  MACHINE_DEVICE static FormatWeights load_second(const SecondTile& tile, int lane) {
    return Format::weights(tile.load(lane));
  }
  template <class Values, class Weights>
  MACHINE_DEVICE static void multiply_second(TensorSums& sums, int chain, const Values& a, const Values& b,
                                             const Weights& w, int lane) {
    Format::multiply(sums, chain, a, b, w, lane);
  }
  MACHINE_DEVICE static void finish_second(const TensorSums& sums, float (&value)[8], int lane) {
    sums.finish(value, lane);
  }
};

/// `Type` gives the roundings and the instruction [16, 16] x [16, 8].
template <class Type>
struct SixteenBitSlices : TensorLastLayer<SixteenBitSlices<Type>, Eight<2>> {
  static constexpr Precision kPrecision = Type::kPrecision;
  static constexpr int kParts = 1, kWords = 4;
  static constexpr bool kSpareBit = false, kFirstInRegisters = true;
  using Values = Eight<4>;
  using Half = HalfOf<4>;
  using Sums = TensorSums;
  using Weights = Eight<2>;    // of a pair
  using Own = Values;          // transposed
  using Fragments = Eight<8>;  // of a pair of input tiles, in the order in which instructions take them
  using ReadyWeights = Weights;

  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    return {{Type::pack(v[0], v[1]), Type::pack(v[2], v[3]), Type::pack(v[4], v[5]), Type::pack(v[6], v[7])}};
  }
  MACHINE_DEVICE static Half round_half(const float (&v)[4]) {
    return {{Type::pack(v[0], v[1]), Type::pack(v[2], v[3])}};
  }
  /// A gradient where the hidden value is positive, as its owner keeps it; operand() is what products take of it.
  MACHINE_DEVICE static Values masked(const float (&v)[8], const Values& hidden) {
    Values values = round(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) values.word[i] &= Type::positive(hidden.word[i]);
    return values;
  }
  MACHINE_DEVICE static Half masked_half(const float (&v)[4], const Half& hidden) {
    Half values = round_half(v);
#pragma unroll
    for (int i = 0; i < 2; ++i) values.word[i] &= Type::positive(hidden.word[i]);
    return values;
  }
  template <class Kept>
  MACHINE_DEVICE static Kept operand(const Kept& kept) {
    return kept;
  }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return Type::value(values.word[index / 2], index % 2);
  }
  MACHINE_DEVICE static Fragments row_fragments(const Values& a, const Values& b) {
    return {{a.word[0], a.word[1], b.word[0], b.word[1], a.word[2], a.word[3], b.word[2], b.word[3]}};
  }
  /// Of transposed tiles.
  MACHINE_DEVICE static Fragments column_fragments(const Values& a, const Values& b) {
    return {{a.word[0], b.word[0], a.word[1], b.word[1], a.word[2], b.word[2], a.word[3], b.word[3]}};
  }
  MACHINE_DEVICE static Values transposed(const Values& v) {
    return {
        {transpose8x8(v.word[0]), transpose8x8(v.word[1]), transpose8x8(v.word[2]), transpose8x8(v.word[3])}};
  }
  /// Values 2i and 2i + 1 of a kept tile.
  MACHINE_DEVICE static void store_two(unsigned char* tile, int i, int lane, float first, float second) {
    *reinterpret_cast<std::uint32_t*>(tile + lane * 16 + 4 * i) = Type::pack(first, second);
  }

  MACHINE_DEVICE static Weights weights(const float4& m) {
    return {{transpose8x8(Type::pack_weights(m.x, m.y)), transpose8x8(Type::pack_weights(m.z, m.w))}};
  }
  MACHINE_DEVICE static Weights load_weights(const float4* pair, int lane) { return weights(pair[lane]); }
  MACHINE_DEVICE static void multiply(Sums& sums, int chain, const Values& a, const Values& b,
                                      const Weights& w, int /*lane*/) {
    Type::product(sums.chain[chain][0], a.word[0], a.word[1], b.word[0], b.word[1], w.word[0], w.word[1]);
    Type::product(sums.chain[chain][1], a.word[2], a.word[3], b.word[2], b.word[3], w.word[0], w.word[1]);
  }
  MACHINE_DEVICE static void multiply_inputs(Sums& sums, int chain, const Fragments& f, const Weights& w,
                                             int /*lane*/) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      Type::product(sums.chain[chain][half], f.word[4 * half], f.word[4 * half + 1], f.word[4 * half + 2],
                    f.word[4 * half + 3], w.word[0], w.word[1]);
  }
  struct Across {
    Values tile[2];
  };
  /// Of a pair: both slices, for classes below 8 and above.
  struct AcrossWeights {
    std::uint32_t low[2], high[2];
  };
  MACHINE_DEVICE static AcrossWeights load_across_weights(const float4* first, const SecondTile& second,
                                                          int lane) {
    const float4 low = first[lane], high = second.load(lane);
    return {{Type::pack_weights(low.x, low.y), Type::pack_weights(low.z, low.w)},
            {Type::pack_weights(high.x, high.y), Type::pack_weights(high.z, high.w)}};
  }
  /// What whole sums are made of (slice_whole.cuh).
  MACHINE_DEVICE static AcrossWeights across_weights(const float4& low, const float4& high) {
    return {{Type::pack_weights(low.x, low.y), Type::pack_weights(low.z, low.w)},
            {Type::pack_weights(high.x, high.y), Type::pack_weights(high.z, high.w)}};
  }
  MACHINE_DEVICE static void product(float (&c)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
    Type::product(c, a.x, a.y, a.z, a.w, b0, b1);
  }
  MACHINE_DEVICE static std::uint32_t pack(float a, float b) { return Type::pack(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_weights(float a, float b) { return Type::pack_weights(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_finite_weights(float a, float b) {
    return Type::pack_finite_weights(a, b);
  }
  MACHINE_DEVICE static std::uint32_t positive(std::uint32_t word) { return Type::positive(word); }
  MACHINE_DEVICE static Across load_across(const unsigned char* tiles, int lane) {
    return {{load_tile<4>(tiles, lane), load_tile<4>(tiles + 512, lane)}};
  }
  /// result[slice] [32 rows, 8 columns] = gradient [32, 16 classes] * weights [16 classes, 8 columns], both slices.
  MACHINE_DEVICE static void multiply_across(float (&result)[2][8], const Across& gradient,
                                             const AcrossWeights& w, int /*lane*/) {
    const Values &p = gradient.tile[0], &q = gradient.tile[1];
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
      float upper[4] = {}, lower[4] = {};
      Type::product(upper, p.word[0], p.word[1], q.word[0], q.word[1], w.low[slice], w.high[slice]);
      Type::product(lower, p.word[2], p.word[3], q.word[2], q.word[3], w.low[slice], w.high[slice]);
#pragma unroll
      for (int c = 0; c < 4; ++c) result[slice][c] = upper[c], result[slice][4 + c] = lower[c];
    }
  }

  MACHINE_DEVICE static Own load_own(const unsigned char* tile, int lane) {
    return transposed(load_tile<4>(tile, lane));
  }
  /// Of columns 2t and 2t + 1, in every lane: a product with ones. Additions over lanes are more instructions, which wait for
  /// each other.
  MACHINE_DEVICE static float2 sum_of_rows(const Own& own) {
    const std::uint32_t ones = Type::pack(1.0f, 1.0f);
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < 4; s += 2) Type::product(sum, ones, ones, ones, ones, own.word[s], own.word[s + 1]);
    return make_float2(sum[0], sum[1]);
  }
  /// [16 columns, 8 outputs] = columns^T * own over 32 rows, in the order of a pair of masters.
  MACHINE_DEVICE static float4 outer(const Values& a, const Values& b, const Own& own, int /*lane*/) {
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < 4; s += 2)
      Type::product(sum, a.word[s], b.word[s], a.word[s + 1], b.word[s + 1], own.word[s], own.word[s + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  MACHINE_DEVICE static float4 outer_inputs(const Fragments& f, const Own& own, int /*lane*/) {
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < 4; s += 2)
      Type::product(sum, f.word[2 * s], f.word[2 * s + 1], f.word[2 * s + 2], f.word[2 * s + 3], own.word[s],
                    own.word[s + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  /// Both own slices as columns: two row operands of [16 outputs, 16 rows of the batch] (slice_turned.cuh).
  struct TurnedOwn {
    uint4 rows[2];
    MACHINE_DEVICE static TurnedOwn load(const unsigned char* tiles, int lane) {
      return {{load_part(tiles, 0, lane), load_part(tiles, 1, lane)}};
    }
  };
  /// [16 outputs, 8 columns], in the order of turned masters; `a` as columns.
  MACHINE_DEVICE static float4 outer_turned(const Values& a, const TurnedOwn& own) {
    float sum[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) product(sum, own.rows[half], a.word[2 * half], a.word[2 * half + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  /// Of both slices, outputs g in every lane: a product with ones.
  MACHINE_DEVICE static float2 sums_of_rows(const TurnedOwn& own) {
    const std::uint32_t ones = Type::pack(1.0f, 1.0f);
    float sum[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) product(sum, own.rows[half], ones, ones);
    return make_float2(sum[0], sum[2]);
  }
  /// Of column_fragments().
  MACHINE_DEVICE static Values tile_of(const Fragments& f, int slice) {
    return {{f.word[slice], f.word[2 + slice], f.word[4 + slice], f.word[6 + slice]}};
  }
  /// Of turned masters of a pair's slices, those of one of the member's own: nothing is transposed.
  MACHINE_DEVICE static Weights turned_weights(const float4& low, const float4& high, int own) {
    return own == 0 ? Weights{{Type::pack_weights(low.x, low.y), Type::pack_weights(high.x, high.y)}}
                    : Weights{{Type::pack_weights(low.z, low.w), Type::pack_weights(high.z, high.w)}};
  }
  MACHINE_DEVICE static int master_lane(int lane) { return lane; }
};

struct Fp16Type {
  static constexpr Precision kPrecision = Precision::kFp16;
  MACHINE_DEVICE static std::uint32_t pack(float a, float b) { return pack_fp16(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_weights(float a, float b) { return pack_fp16(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_finite_weights(float a, float b) { return pack_fp16(a, b); }
  MACHINE_DEVICE static float value(std::uint32_t word, int half) { return fp16_value(word >> (16 * half)); }
  MACHINE_DEVICE static std::uint32_t positive(std::uint32_t word) { return positive_fp16(word); }
  MACHINE_DEVICE static void product(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    mma_fp16(c, a0, a1, a2, a3, b0, b1);
  }
};
struct Bf16Type {
  static constexpr Precision kPrecision = Precision::kBf16;
  MACHINE_DEVICE static std::uint32_t pack(float a, float b) { return pack_bf16(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_weights(float a, float b) { return pack_bf16_weights(a, b); }
  MACHINE_DEVICE static std::uint32_t pack_finite_weights(float a, float b) {
    return pack_finite_bf16_weights(a, b);
  }
  MACHINE_DEVICE static float value(std::uint32_t word, int half) {
    return bits_to_float(half == 0 ? word << 16 : word & 0xffff0000u);
  }
  MACHINE_DEVICE static std::uint32_t positive(std::uint32_t word) { return positive_bf16(word); }
  MACHINE_DEVICE static void product(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
    mma_bf16(c, a0, a1, a2, a3, b0, b1);
  }
};

/// Rounds weights by two instructions less a pair.
struct FiniteBf16Type : Bf16Type {
  MACHINE_DEVICE static std::uint32_t pack_weights(float a, float b) { return pack_finite_weights(a, b); }
};

MACHINE_DEVICE void transpose_two(std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t low = transpose8x8(choose_bytes(first, second, 0x5410));
  const std::uint32_t high = transpose8x8(choose_bytes(first, second, 0x7632));
  first = choose_bytes(low, high, 0x5410);
  second = choose_bytes(low, high, 0x7632);
}

/// A member keeps its own gradients as they came, because the bias sum sees them unrounded, and rounds them as operands.
/// Words are in the order of the row operand: of two rows the first column, then of both the second.
struct Tf32Slices : TensorLastLayer<Tf32Slices, Eight<4>> {
  static constexpr Precision kPrecision = Precision::kTf32;
  static constexpr int kParts = 2, kWords = 8;
  static constexpr bool kSpareBit = true, kFirstInRegisters = true;
  using Values = Eight<8>;
  using Half = HalfOf<8>;
  using Sums = TensorSums;
  using Weights = Eight<4>;
  using ReadyWeights = Weights;
  using Own = Values;
  using Fragments = Eight<16>;
  /// Where value `index` (2i + j: row g + 8i, column 2t + j) lies.
  MACHINE_DEVICE static constexpr int word_of(int index) {
    return (index & 4) | (index & 1) << 1 | (index >> 1 & 1);
  }

  MACHINE_DEVICE static std::uint32_t rounded(float value) { return float_to_bits(round_tf32(value)); }
  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[word_of(i)] = rounded(v[i]);
    return values;
  }
  MACHINE_DEVICE static Values masked(const float (&v)[8], const Values& hidden) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[word_of(i)] = at(hidden, i) > 0 ? float_to_bits(v[i]) : 0;
    return values;
  }
  MACHINE_DEVICE static Half round_half(const float (&v)[4]) {
    Half values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.word[word_of(i)] = rounded(v[i]);
    return values;
  }
  MACHINE_DEVICE static Half masked_half(const float (&v)[4], const Half& hidden) {
    Half values;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      values.word[word_of(i)] = bits_to_float(hidden.word[word_of(i)]) > 0 ? float_to_bits(v[i]) : 0;
    return values;
  }
  MACHINE_DEVICE static Fragments row_fragments(const Values& a, const Values& b) {
    Fragments f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.word[i] = a.word[i], f.word[8 + i] = b.word[i];
    return f;
  }
  MACHINE_DEVICE static Fragments column_fragments(const Values& a, const Values& b) {
    Fragments f;
#pragma unroll
    for (int i = 0; i < 8; ++i) f.word[2 * i] = a.word[i], f.word[2 * i + 1] = b.word[i];
    return f;
  }
  template <int kWordCount>
  MACHINE_DEVICE static Eight<kWordCount> operand(const Eight<kWordCount>& kept) {
    Eight<kWordCount> values;
#pragma unroll
    for (int i = 0; i < kWordCount; ++i) values.word[i] = rounded(bits_to_float(kept.word[i]));
    return values;
  }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return bits_to_float(values.word[word_of(index)]);
  }
  /// Words 2i and 2i + 1: rows 8i + 2t and the next of column g.
  MACHINE_DEVICE static Values transposed(const Values& v) {
    Values result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      result.word[2 * i] = v.word[word_of(2 * i)], result.word[2 * i + 1] = v.word[word_of(2 * i + 1)];
      transpose_two(result.word[2 * i], result.word[2 * i + 1]);
    }
    return result;
  }
  MACHINE_DEVICE static void store_two(unsigned char* tile, int i, int lane, float first, float second) {
    float* place = reinterpret_cast<float*>(tile + (i >> 1) * 512 + lane * 16) + (i & 1);
    place[0] = first, place[2] = second;
  }
  /// The same into a tile's second form: of rows g and g + 1 one column.
  MACHINE_DEVICE static void store_two_columns(unsigned char* columns, int i, int lane, float first,
                                               float second) {
    const int t = lane & 3;
    const bool odd = (lane & 4) != 0;
    const float other = shuffle_xor(odd ? first : second, 4);
    const float2 two = odd ? make_float2(other, second) : make_float2(first, other);
    *reinterpret_cast<float2*>(columns + (i >> 1) * 512 + column_byte(2 * t + odd, lane >> 3) + (i & 1) * 8) =
        make_float2(round_tf32(two.x), round_tf32(two.y));
  }

  MACHINE_DEVICE static Weights weights(const float4& m) {
    Weights w = {{rounded(m.x), rounded(m.y), rounded(m.z), rounded(m.w)}};
    transpose_two(w.word[0], w.word[1]);
    transpose_two(w.word[2], w.word[3]);
    return w;
  }
  MACHINE_DEVICE static Weights load_weights(const float4* pair, int lane) { return weights(pair[lane]); }
  MACHINE_DEVICE static void product(float (&sums)[2][4], const Values& a, std::uint32_t b0,
                                     std::uint32_t b1) {
    mma_tf32(sums[0], a.word[0], a.word[1], a.word[2], a.word[3], b0, b1);
    mma_tf32(sums[1], a.word[4], a.word[5], a.word[6], a.word[7], b0, b1);
  }
  /// Of whole sums.
  MACHINE_DEVICE static void product(float (&c)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
    mma_tf32(c, a.x, a.y, a.z, a.w, b0, b1);
  }
  MACHINE_DEVICE static void multiply(Sums& sums, int chain, const Values& a, const Values& b,
                                      const Weights& w, int /*lane*/) {
    product(sums.chain[chain], a, w.word[0], w.word[1]);
    product(sums.chain[chain], b, w.word[2], w.word[3]);
  }
  MACHINE_DEVICE static void multiply_inputs(Sums& sums, int chain, const Fragments& f, const Weights& w,
                                             int /*lane*/) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      mma_tf32(sums.chain[chain][i & 1], f.word[4 * i], f.word[4 * i + 1], f.word[4 * i + 2],
               f.word[4 * i + 3], w.word[i & 2], w.word[(i & 2) + 1]);
  }
  struct Across {
    Values tile[2];
  };
  struct AcrossWeights {
    float4 tile[2];
  };
  MACHINE_DEVICE static AcrossWeights load_across_weights(const float4* first, const SecondTile& second,
                                                          int lane) {
    AcrossWeights w = {{first[lane], second.load(lane)}};
#pragma unroll
    for (float4& m : w.tile)
      m = make_float4(round_tf32(m.x), round_tf32(m.y), round_tf32(m.z), round_tf32(m.w));
    return w;
  }
  MACHINE_DEVICE static Across load_across(const unsigned char* tiles, int lane) {
    return {{operand(load_tile<8>(tiles, lane)), operand(load_tile<8>(tiles + 1024, lane))}};
  }
  MACHINE_DEVICE static void multiply_across(float (&result)[2][8], const Across& gradient,
                                             const AcrossWeights& w, int /*lane*/) {
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
      float sums[2][4] = {};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        product(sums, gradient.tile[tile], float_to_bits(slice == 0 ? w.tile[tile].x : w.tile[tile].z),
                float_to_bits(slice == 0 ? w.tile[tile].y : w.tile[tile].w));
#pragma unroll
      for (int c = 0; c < 8; ++c) result[slice][c] = sums[c / 4][c % 4];
    }
  }

  MACHINE_DEVICE static Own load_own(const unsigned char* tile, int lane) {
    return columns(load_tile<8>(tile, lane));
  }
  /// Out of a tile's second form.
  MACHINE_DEVICE static Own load_own_columns(const unsigned char* columns, int lane) {
    return load_tile<8>(columns, columns_lane(lane));
  }
  /// What publishers keep of a part of a tile, by one warp that has the whole.
  MACHINE_DEVICE static Values columns(const Values& kept) { return transposed(operand(kept)); }
  MACHINE_DEVICE static void store_columns(unsigned char* place, const Values& columns, int lane) {
    store_tile(place, columns, columns_lane(lane));
  }
  MACHINE_DEVICE static int columns_lane(int lane) { return column_byte(lane >> 2, lane & 3) / 16; }
  MACHINE_DEVICE static float4 outer(const Values& a, const Values& b, const Own& own, int /*lane*/) {
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < 8; s += 2)
      mma_tf32(sum, a.word[s], b.word[s], a.word[s + 1], b.word[s + 1], own.word[s], own.word[s + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  /// Of both own slices, transposed: four row operands of [16 outputs, 8 rows of the batch]. In the second forms of their tiles,
  /// two in each.
  struct TurnedOwn {
    uint4 rows[4];
    MACHINE_DEVICE static int byte(int i, int lane) {
      return (i >> 1) * 2048 + 1024 + (i & 1) * 512 + columns_lane(lane) * 16;
    }
    MACHINE_DEVICE static TurnedOwn of(const Values& first, const Values& second) {
      TurnedOwn own;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        own.rows[i] =
            make_uint4(first.word[2 * i], second.word[2 * i], first.word[2 * i + 1], second.word[2 * i + 1]);
      return own;
    }
    MACHINE_DEVICE static TurnedOwn load(const unsigned char* tiles, int lane) {
      TurnedOwn own;
#pragma unroll
      for (int i = 0; i < 4; ++i) own.rows[i] = load_shared16(tiles + byte(i, lane));
      return own;
    }
  };
  /// [16 outputs, 8 columns], in the order of turned masters.
  MACHINE_DEVICE static float4 outer_turned(const Values& a, const TurnedOwn& own) {
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      mma_tf32(sum, own.rows[i].x, own.rows[i].y, own.rows[i].z, own.rows[i].w, a.word[2 * i],
               a.word[2 * i + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  /// Of a pair of tiles of inputs, packed one after the other.
  MACHINE_DEVICE static Values tile_of(const Fragments& f, int slice) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = f.word[8 * slice + i];
    return values;
  }
  /// Of turned masters of a pair's slices, those of one of the member's own.
  MACHINE_DEVICE static Weights turned_weights(const float4& low, const float4& high, int own) {
    return own == 0 ? Weights{{rounded(low.x), rounded(low.y), rounded(high.x), rounded(high.y)}}
                    : Weights{{rounded(low.z), rounded(low.w), rounded(high.z), rounded(high.w)}};
  }
  MACHINE_DEVICE static float4 outer_inputs(const Fragments& f, const Own& own, int /*lane*/) {
    float sum[4] = {};
#pragma unroll
    for (int s = 0; s < 8; s += 2)
      mma_tf32(sum, f.word[2 * s], f.word[2 * s + 1], f.word[2 * s + 2], f.word[2 * s + 3], own.word[s],
               own.word[s + 1]);
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  MACHINE_DEVICE static int master_lane(int lane) { return lane; }
};

/// Adds up `value` over the four lanes of a quad, always as (0 + 2) + (1 + 3); lane t keeps values 2t and 2t + 1.
MACHINE_DEVICE float2 sum_quad(const float (&value)[8], int lane) {
  const bool upper = (lane & 2) != 0, odd = (lane & 1) != 0;
  float half[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    half[i] = (upper ? value[i + 4] : value[i]) + shuffle_xor(upper ? value[i] : value[i + 4], 2);
  const float first = (odd ? half[2] : half[0]) + shuffle_xor(odd ? half[0] : half[2], 1);
  const float second = (odd ? half[3] : half[1]) + shuffle_xor(odd ? half[1] : half[3], 1);
  return make_float2(first, second);
}

/// Multiply-adds. In a product lane (g, t) sums its own columns for its rows and all outputs; pair j of a lane's sums
/// are outputs 2 * (j ^ t) and the next, so that adding up a quad leaves outputs 2t and 2t + 1 in lane t. In a weight
/// gradient it sums its own rows for its columns and all outputs, pair j being outputs 2 * (j ^ (g >> 1)): adding up the
/// 8 rows leaves lane (g, t) with column 2t + (g & 1) and outputs 2 * (g >> 1) and the next.
struct Fp32Slices {
  static constexpr Precision kPrecision = Precision::kFp32;
  static constexpr int kParts = 2, kWords = 8;
  static constexpr bool kSpareBit = false, kFirstInRegisters = false;
  using Values = Eight<8>;

  MACHINE_DEVICE static Values round(const float (&v)[8]) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = float_to_bits(v[i]);
    return values;
  }
  MACHINE_DEVICE static Values masked(const float (&v)[8], const Values& hidden) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = at(hidden, i) > 0 ? float_to_bits(v[i]) : 0;
    return values;
  }
  using Half = HalfOf<8>;
  MACHINE_DEVICE static Half round_half(const float (&v)[4]) {
    Half values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.word[i] = float_to_bits(v[i]);
    return values;
  }
  MACHINE_DEVICE static Half masked_half(const float (&v)[4], const Half& hidden) {
    Half values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.word[i] = bits_to_float(hidden.word[i]) > 0 ? float_to_bits(v[i]) : 0;
    return values;
  }
  template <class Kept>
  MACHINE_DEVICE static Kept operand(const Kept& kept) {
    return kept;
  }
  MACHINE_DEVICE static float at(const Values& values, int index) {
    return bits_to_float(values.word[index]);
  }
  /// A pair of input tiles, one after the other.
  using Fragments = Eight<16>;
  MACHINE_DEVICE static Fragments row_fragments(const Values& a, const Values& b) {
    return Tf32Slices::row_fragments(a, b);
  }
  MACHINE_DEVICE static Fragments column_fragments(const Values& a, const Values& b) {
    return row_fragments(a, b);
  }
  MACHINE_DEVICE static Values tile_of(const Fragments& f, int slice) {
    Values values;
#pragma unroll
    for (int i = 0; i < 8; ++i) values.word[i] = f.word[8 * slice + i];
    return values;
  }
  MACHINE_DEVICE static Values transposed(const Values& v) { return v; }  // outer() takes rows as they are
  MACHINE_DEVICE static void store_two(unsigned char* tile, int i, int lane, float first, float second) {
    *reinterpret_cast<float2*>(tile + (i >> 1) * 512 + lane * 16 + (i & 1) * 8) = make_float2(first, second);
  }

  struct Sums {
    float row[4][8];
    MACHINE_DEVICE void finish(float (&value)[8], int /*lane*/) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float half[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) half[e] = row[i][e] + shuffle_xor(row[i][4 + e], 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) value[2 * i + e] = half[e] + shuffle_xor(half[2 + e], 1);
      }
    }
  };
  /// Of columns 2t + e of both slices of a pair, pair j of the sums.
  MACHINE_DEVICE static void add_products(Sums& sums, const Values& a, const Values& b, int e, int j,
                                          float4 w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.row[i][2 * j] = fmaf(at(b, 2 * i + e), w.z, fmaf(at(a, 2 * i + e), w.x, sums.row[i][2 * j]));
      sums.row[i][2 * j + 1] =
          fmaf(at(b, 2 * i + e), w.w, fmaf(at(a, 2 * i + e), w.y, sums.row[i][2 * j + 1]));
    }
  }
  using Weights = const float4*;  // too many for registers: read when they are needed
  MACHINE_DEVICE static Weights load_weights(const float4* pair, int /*lane*/) { return pair; }
  MACHINE_DEVICE static void multiply(Sums& sums, int /*chain*/, const Values& a, const Values& b,
                                      Weights pair, int lane) {
    const int t = lane & 3;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) add_products(sums, a, b, e, j, pair[(2 * t + e) * 4 + (j ^ t)]);
  }

  /// A lane's weights of a pair in registers, in the order in which it multiplies by them.
  struct ReadyWeights {
    float4 w[2][4];
  };
  MACHINE_DEVICE static ReadyWeights ready(Weights pair, int lane) {
    const int t = lane & 3;
    ReadyWeights held;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) held.w[e][j] = pair[(2 * t + e) * 4 + (j ^ t)];
    return held;
  }
  MACHINE_DEVICE static void multiply(Sums& sums, int /*chain*/, const Values& a, const Values& b,
                                      const ReadyWeights& held, int /*lane*/) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) add_products(sums, a, b, e, j, held.w[e][j]);
  }
  /// The same of a pair's first slice, where a warp has no more.
  struct ReadySlice {
    float2 w[2][4];
  };
  MACHINE_DEVICE static ReadySlice ready_slice(Weights pair, int lane) {
    const int t = lane & 3;
    ReadySlice held;
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) held.w[e][j] = first_slice(pair[(2 * t + e) * 4 + (j ^ t)]);
    return held;
  }
  MACHINE_DEVICE static const float2& first_slice(const float4& pair) {
    return reinterpret_cast<const float2&>(pair);
  }
  template <int kSlices>
  MACHINE_DEVICE static const auto& slices_of(const float4& pair) {
    if constexpr (kSlices == 1)
      return first_slice(pair);
    else
      return pair;
  }
  MACHINE_DEVICE static void multiply_slice(Sums& sums, const Values& a, const ReadySlice& held) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) add_products(sums, a, e, j, held.w[e][j]);
  }
  MACHINE_DEVICE static void add_products(Sums& sums, const Values& a, int e, int j, const float2& w) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums.row[i][2 * j] = fmaf(at(a, 2 * i + e), w.x, sums.row[i][2 * j]);
      sums.row[i][2 * j + 1] = fmaf(at(a, 2 * i + e), w.y, sums.row[i][2 * j + 1]);
    }
  }
  MACHINE_DEVICE static void multiply_inputs(Sums& sums, int chain, const Fragments& f, Weights pair,
                                             int lane) {
    multiply(sums, chain, tile_of(f, 0), tile_of(f, 1), pair, lane);
  }

  /// The second tile has few outputs: in their own order, so that a warp leaves out those that are not there.
  MACHINE_DEVICE static SecondTile load_second(const SecondTile& tile, int /*lane*/) { return tile; }
  MACHINE_DEVICE static void multiply_second(Sums& sums, int /*chain*/, const Values& a, const Values& b,
                                             const SecondTile& tile, int lane) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= tile.lanes) break;
#pragma unroll
      for (int e = 0; e < 2; ++e)
        add_products(sums, a, b, e, j, tile.pair[(2 * (lane & 3) + e) * tile.lanes + j]);
    }
  }
  /// The same two outputs after two, stored where finish_second() would leave them: lane (g, t) ends with row g + 8t. `tiles`: of
  /// a pair, or of its first slice.
  template <int kTiles>
  MACHINE_DEVICE static void store_second(float4* places, const Values (&tiles)[kTiles],
                                          const SecondTile& tile, int lane) {
    const int t = lane & 3;
#pragma unroll 1
    for (int j = 0; j < tile.lanes; ++j) {
      float sum[4][2] = {};  // row, output
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 w = tile.pair[(2 * t + e) * tile.lanes + j];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[i][0] = fmaf(at(tiles[0], 2 * i + e), w.x, sum[i][0]);
          sum[i][1] = fmaf(at(tiles[0], 2 * i + e), w.y, sum[i][1]);
          if constexpr (kTiles == 2) {
            sum[i][0] = fmaf(at(tiles[1], 2 * i + e), w.z, sum[i][0]);
            sum[i][1] = fmaf(at(tiles[1], 2 * i + e), w.w, sum[i][1]);
          }
        }
      }
      float half[2][2], own[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int n = 0; n < 2; ++n)
          half[i][n] =
              (t < 2 ? sum[i][n] : sum[2 + i][n]) + shuffle_xor(t < 2 ? sum[2 + i][n] : sum[i][n], 2);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        own[n] =
            (t % 2 == 0 ? half[0][n] : half[1][n]) + shuffle_xor(t % 2 == 0 ? half[1][n] : half[0][n], 1);
      reinterpret_cast<float2*>(places + 2 * j)[t] = make_float2(own[0], own[1]);
    }
  }
  MACHINE_DEVICE static void finish_second(const Sums& sums, float (&value)[8], int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = sum_quad(sums.row[i], lane);
      value[2 * i] = two.x, value[2 * i + 1] = two.y;
    }
  }

  struct Own {
    float value[4][8];  // rows g + 8i
  };
  struct Across {
    Own first;
    const unsigned char* second;
  };
  MACHINE_DEVICE static Across load_across(const unsigned char* tiles, int lane) {
    return {load_rows(tiles, lane, lane & 3), tiles + 1024};
  }
  struct AcrossWeights {
    const float4* first;
    SecondTile second;
  };
  MACHINE_DEVICE static AcrossWeights load_across_weights(const float4* first, const SecondTile& second,
                                                          int /*lane*/) {
    return {first, second};
  }
  /// Of a pair, or of its first slice.
  template <int kSlices>
  MACHINE_DEVICE static void multiply_across(float (&result)[kSlices][8], const Across& gradient,
                                             const AcrossWeights& weights, int lane) {
    const float4* first = weights.first;
    const SecondTile& second = weights.second;
    const int t = lane & 3;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
      for (int c = 0; c < 8; ++c) result[slice][c] = 0;
    const auto add = [&](const auto& w, int e, int i, float low, float high) {
      result[0][2 * i + e] = fmaf(high, w.y, fmaf(low, w.x, result[0][2 * i + e]));
      if constexpr (kSlices == 2)
        result[1][2 * i + e] = fmaf(high, w.w, fmaf(low, w.z, result[1][2 * i + e]));
    };
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const auto w = slices_of<kSlices>(first[(2 * t + e) * 4 + (j ^ t)]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          add(w, e, i, gradient.first.value[i][2 * j], gradient.first.value[i][2 * j + 1]);
      }
#pragma unroll 1
    for (int j = 0; j < second.lanes; ++j)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 rows = load_part(gradient.second, part, (lane & ~3) + j);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto w = slices_of<kSlices>(second.pair[(2 * t + e) * second.lanes + j]);
          add(w, e, 2 * part, bits_to_float(rows.x), bits_to_float(rows.y));
          add(w, e, 2 * part + 1, bits_to_float(rows.z), bits_to_float(rows.w));
        }
      }
  }

  MACHINE_DEVICE static Own load_own(const unsigned char* tile, int lane) {
    return load_rows(tile, lane, lane >> 3);
  }
  /// Rows g + 8i of a tile, output pairs in the order j ^ first.
  MACHINE_DEVICE static Own load_rows(const unsigned char* tile, int lane, int first) {
    Own own;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint4 four = load_part(tile, part, (lane & ~3) + (j ^ first));
        own.value[2 * part][2 * j] = bits_to_float(four.x);
        own.value[2 * part][2 * j + 1] = bits_to_float(four.y);
        own.value[2 * part + 1][2 * j] = bits_to_float(four.z);
        own.value[2 * part + 1][2 * j + 1] = bits_to_float(four.w);
      }
    return own;
  }
  MACHINE_DEVICE static float2 outer_slice(const Values& a, const Own& own, int lane) {
    float sum[2][8];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        sum[e][n] = at(a, e) * own.value[0][n];
#pragma unroll
        for (int i = 1; i < 4; ++i) sum[e][n] = fmaf(at(a, 2 * i + e), own.value[i][n], sum[e][n]);
      }
    float half[2][4], quarter[2][2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int n = 0; n < 4; ++n) half[e][n] = sum[e][n] + shuffle_xor(sum[e][4 + n], 16);
#pragma unroll
      for (int n = 0; n < 2; ++n) quarter[e][n] = half[e][n] + shuffle_xor(half[e][2 + n], 8);
    }
    const bool odd = (lane & 4) != 0;
    return make_float2(
        (odd ? quarter[1][0] : quarter[0][0]) + shuffle_xor(odd ? quarter[0][0] : quarter[1][0], 4),
        (odd ? quarter[1][1] : quarter[0][1]) + shuffle_xor(odd ? quarter[0][1] : quarter[1][1], 4));
  }
  MACHINE_DEVICE static float4 outer(const Values& a, const Values& b, const Own& own, int lane) {
    const float2 first = outer_slice(a, own, lane), second = outer_slice(b, own, lane);
    return make_float4(first.x, first.y, second.x, second.y);
  }
  /// A weight gradient of tiles in shared memory: lane (quarter of the rows, slice, half of its columns, half of the outputs) has
  /// 8 rows, 4 columns and 4 outputs, so sums are added up over four lanes and not over eight. It takes its rows in the order
  /// k ^ slice(), so that no lanes meet in a bank, and begins with those two columns and two outputs that it ends with.
  struct QuarterOwn {
    float value[4][2][4];

    MACHINE_DEVICE static int outputs(int lane) { return 2 * (lane & 1) + (lane >> 3 & 1); }
    MACHINE_DEVICE static int columns(int lane) { return 2 * (lane >> 1 & 1) + (lane >> 4); }
    MACHINE_DEVICE static int slice(int lane) { return lane >> 2 & 1; }
    /// The k-th rows of a tile, two of them.
    MACHINE_DEVICE static int byte(int k, int lane) {
      return (lane >> 4) * 512 + (lane >> 3 & 1) * 256 + (k ^ slice(lane)) * 64;
    }
    MACHINE_DEVICE static QuarterOwn load(const unsigned char* tile, int lane) {
      QuarterOwn own;
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const uint4 four = load_shared16(tile + byte(k, lane) + (outputs(lane) ^ n) * 16);
          own.value[k][0][2 * n] = bits_to_float(four.x), own.value[k][0][2 * n + 1] = bits_to_float(four.y);
          own.value[k][1][2 * n] = bits_to_float(four.z), own.value[k][1][2 * n + 1] = bits_to_float(four.w);
        }
      return own;
    }
    /// masters += factor * tiles^T * own, of a pair of tiles.
    MACHINE_DEVICE void update(float4* masters, const unsigned char* tiles, float factor, int lane) const {
      float sum[2][2][4];  // pair of columns, column, output
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint4 four =
              load_shared16(tiles + slice(lane) * 1024 + byte(k, lane) + (columns(lane) ^ j) * 16);
          const float first[2] = {bits_to_float(four.x), bits_to_float(four.y)},
                      second[2] = {bits_to_float(four.z), bits_to_float(four.w)};
#pragma unroll
          for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              float& to = sum[j][e][n];
              to = k == 0 ? first[e] * value[0][0][n] : fmaf(first[e], value[k][0][n], to);
              to = fmaf(second[e], value[k][1][n], to);
            }
        }
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[0][e][n] += shuffle_xor(sum[1][e][n], 16);
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int n = 0; n < 2; ++n) sum[0][e][n] += shuffle_xor(sum[0][e][2 + n], 8);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float2& master =
            reinterpret_cast<float2*>(masters + (2 * columns(lane) + e) * 4 + outputs(lane))[slice(lane)];
        master = make_float2(fmaf(factor, sum[0][e][0], master.x), fmaf(factor, sum[0][e][1], master.y));
      }
    }
  };
  /// A second tile of 9 or 10 classes: its two outputs for rows g + 8i.
  static constexpr bool kUpdatesTwo = true;
  struct OwnTwo {
    float2 value[4];
  };
  MACHINE_DEVICE static OwnTwo load_own_two(const unsigned char* tile, int lane) {
    OwnTwo own;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint4 four = load_part(tile, part, lane & ~3);
      own.value[2 * part] = make_float2(bits_to_float(four.x), bits_to_float(four.y));
      own.value[2 * part + 1] = make_float2(bits_to_float(four.z), bits_to_float(four.w));
    }
    return own;
  }
  /// Of the eight sums that a lane finds, those of all rows meet in one lane each, which updates that master.
  MACHINE_DEVICE static void update_two(const SecondTile& tile, const Values& a, const Values& b,
                                        const OwnTwo& own, float factor, bool exists, int lane) {
    float sum[2][2][2];  // slice, output, column
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        const Values& values = slice == 0 ? a : b;
        sum[slice][0][e] = at(values, e) * own.value[0].x;
        sum[slice][1][e] = at(values, e) * own.value[0].y;
#pragma unroll
        for (int i = 1; i < 4; ++i) {
          sum[slice][0][e] = fmaf(at(values, 2 * i + e), own.value[i].x, sum[slice][0][e]);
          sum[slice][1][e] = fmaf(at(values, 2 * i + e), own.value[i].y, sum[slice][1][e]);
        }
      }
    const bool slice = (lane & 16) != 0, output = (lane & 8) != 0, column = (lane & 4) != 0;
    float half[2][2], quarter[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        half[n][e] =
            (slice ? sum[1][n][e] : sum[0][n][e]) + shuffle_xor(slice ? sum[0][n][e] : sum[1][n][e], 16);
#pragma unroll
    for (int e = 0; e < 2; ++e)
      quarter[e] = (output ? half[1][e] : half[0][e]) + shuffle_xor(output ? half[0][e] : half[1][e], 8);
    const float total = (column ? quarter[1] : quarter[0]) + shuffle_xor(column ? quarter[0] : quarter[1], 4);
    float* place =
        reinterpret_cast<float*>(const_cast<float4*>(tile.pair) + (2 * (lane & 3) + column) * tile.lanes) +
        2 * slice + output;
    if (exists) *place = fmaf(factor, total, *place);
  }
  /// The same of a pair's first slice.
  MACHINE_DEVICE static void update_two_slice(const SecondTile& tile, const Values& a, const OwnTwo& own,
                                              float factor, bool exists, int lane) {
    float sum[2][2];  // output, column
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      sum[0][e] = at(a, e) * own.value[0].x;
      sum[1][e] = at(a, e) * own.value[0].y;
#pragma unroll
      for (int i = 1; i < 4; ++i) {
        sum[0][e] = fmaf(at(a, 2 * i + e), own.value[i].x, sum[0][e]);
        sum[1][e] = fmaf(at(a, 2 * i + e), own.value[i].y, sum[1][e]);
      }
    }
    const bool output = (lane & 8) != 0, column = (lane & 4) != 0;
    float half[2];
#pragma unroll
    for (int e = 0; e < 2; ++e)
      half[e] = (output ? sum[1][e] : sum[0][e]) + shuffle_xor(output ? sum[0][e] : sum[1][e], 8);
    float total = (column ? half[1] : half[0]) + shuffle_xor(column ? half[0] : half[1], 4);
    total += shuffle_xor(total, 16);
    float* place =
        reinterpret_cast<float*>(const_cast<float4*>(tile.pair) + (2 * (lane & 3) + column) * tile.lanes) +
        output;
    if (exists && lane < 16) *place = fmaf(factor, total, *place);
  }
  MACHINE_DEVICE static float4 outer_inputs(const Fragments& f, const Own& own, int lane) {
    return outer(tile_of(f, 0), tile_of(f, 1), own, lane);
  }
  MACHINE_DEVICE static int master_lane(int lane) {
    return (2 * (lane & 3) + (lane >> 2 & 1)) * 4 + (lane >> 3);
  }
};

using SliceFp16 = SixteenBitSlices<Fp16Type>;
using SliceBf16 = SixteenBitSlices<Bf16Type>;
using SliceFiniteBf16 = SixteenBitSlices<FiniteBf16Type>;
using SliceTf32 = Tf32Slices;
using SliceFp32 = Fp32Slices;

}  // namespace headroom::resident
