// The block kernel's products, by fused multiply-adds.
//
// What a warp multiplies is read from shared memory in 16 bytes a lane, which takes the multiprocessor four cycles (two where
// lanes beside each other read the same), and its schedulers could issue 16 multiply-adds meanwhile: so lanes have as
// many sums as registers allow, and in products a group of lanes divides what is summed over. Those add up at the end, each
// lane going on with a part of the sums.
//
// A tile [32 rows, columns] consists of packets of 16 bytes: rows r, r + 8, r + 16 and r + 24 of a column. That is what a lane
// has of sums and takes of operands: a packet goes from the sums of one thread block through an exchange into
// products of another with nothing rearranged. Packets lie [column, r ^ column], so that eight of a column, and eight
// columns of the same rows, are in different banks.
#pragma once

#include "machine/masks.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/block_plan.h"
#include "resident/sums.cuh"

namespace headroom::resident {

using namespace machine;

/// Rows r, r + 8, r + 16 and r + 24 of one column: chunk r of it.
using FourRows = float4;

__host__ __device__ constexpr int packet_place(int column, int chunk) {
  return column * 128 + ((chunk ^ column) & 7) * 16;
}
MACHINE_DEVICE FourRows load_rows(const unsigned char* tile, int column, int chunk) {
  return *reinterpret_cast<const FourRows*>(tile + packet_place(column, chunk));
}
MACHINE_DEVICE uint4 packet_bits(const FourRows& v) {
  return make_uint4(float_to_bits(v.x), float_to_bits(v.y), float_to_bits(v.z), float_to_bits(v.w));
}
MACHINE_DEVICE FourRows rows_of(const uint4& packet) {
  return make_float4(bits_to_float(packet.x), bits_to_float(packet.y), bits_to_float(packet.z),
                     bits_to_float(packet.w));
}
MACHINE_DEVICE FourRows masked(const FourRows& gradient, const FourRows& hidden) {
  return make_float4(hidden.x > 0 ? gradient.x : 0, hidden.y > 0 ? gradient.y : 0,
                     hidden.z > 0 ? gradient.z : 0, hidden.w > 0 ? gradient.w : 0);
}
MACHINE_DEVICE float sum_of_products(float sum, const FourRows& a, const FourRows& b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// A scheduler reads two registers a cycle, an even and an odd one, and what a multiply-add shares with the one before it need
// not be read again. Registers of a 16-byte load are four in a row, so their parities are known: sums begin as such a load, of
// zeros, and every factor that changes from one multiply-add to the next meets sums of the other parity.

/// The compiler is not to know that it is zero.
MACHINE_DEVICE float4 load_zero(const float4& zero) { return zero; }

/// Sums of rows in the order r + 8, r, r + 24 and r + 16: each has the other parity than the row that is multiplied.
struct TurnedRows {
  float4 sum;

  template <bool kBackwards>
  MACHINE_DEVICE void add_product(const FourRows& rows, float by) {
    if constexpr (kBackwards) {
      sum.z = fmaf(rows.w, by, sum.z), sum.w = fmaf(rows.z, by, sum.w);
      sum.x = fmaf(rows.y, by, sum.x), sum.y = fmaf(rows.x, by, sum.y);
    } else {
      sum.y = fmaf(rows.x, by, sum.y), sum.x = fmaf(rows.y, by, sum.x);
      sum.w = fmaf(rows.z, by, sum.w), sum.z = fmaf(rows.w, by, sum.z);
    }
  }
};
MACHINE_DEVICE FourRows turned_back(const float4& turned) {
  return make_float4(turned.y, turned.x, turned.w, turned.z);
}
template <int kIndex>
MACHINE_DEVICE float element(const float4& v) {
  return kIndex == 0 ? v.x : kIndex == 1 ? v.y : kIndex == 2 ? v.z : v.w;
}

/// Lane and lane ^ mask have both values of two sums: one goes on with the low one, the other with the high one.
MACHINE_DEVICE float keep_half(float low, float high, bool keeps_high, int mask) {
  return (keeps_high ? high : low) + shuffle_xor(keeps_high ? low : high, mask);
}
MACHINE_DEVICE float4 keep_half(const float4& low, const float4& high, bool keeps_high, int mask) {
  return make_float4(keep_half(low.x, high.x, keeps_high, mask), keep_half(low.y, high.y, keeps_high, mask),
                     keep_half(low.z, high.z, keeps_high, mask), keep_half(low.w, high.w, keeps_high, mask));
}
/// Both lanes get the same sum, because an addition may be turned round.
MACHINE_DEVICE float4 add_lanes(const float4& own, int mask) {
  return add(own, make_float4(shuffle_xor(own.x, mask), shuffle_xor(own.y, mask), shuffle_xor(own.z, mask),
                              shuffle_xor(own.w, mask)));
}

/// Sums over columns, of 8 or 9 outputs by a warp. While it sums, lane g + 8t has chunk g of the rows and four of
/// every 16 columns; then two of the first eight outputs, and all four have the ninth.
template <int kOutputs>
struct OutputSums {
  FourRows sum[2], ninth;

  /// Weights of the warp's first output and column; from one of its outputs to the next it is kNext floats. The columns begin
  /// at `first_column` of the tile, a multiple of 16.
  template <int kNext>
  MACHINE_DEVICE void add_columns(const float* weights, const unsigned char* tile, int first_column,
                                  int sixteens, int lane, const float4& zero) {
    const int g = lane & 7, t = lane >> 3;
    TurnedRows part[kOutputs];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) part[o].sum = load_zero(zero);
    const float* own = weights + 4 * t;
    const unsigned char* columns = tile + (first_column + 4 * t) * 128;
#pragma unroll 2
    for (int i = 0; i < sixteens; ++i) {
      FourRows rows[4];
      float4 w[kOutputs];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        rows[e] = *reinterpret_cast<const FourRows*>(columns + packet_place(e, g ^ 4 * t));
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) w[o] = *reinterpret_cast<const float4*>(own + o * kNext);
      add_column<0>(part, rows, w), add_column<1>(part, rows, w);
      add_column<2>(part, rows, w), add_column<3>(part, rows, w);
      own += 16, columns += 16 * 128;
    }
    float4 half[4];
#pragma unroll
    for (int o = 0; o < 4; ++o) half[o] = keep_half(part[o].sum, part[o + 4].sum, (t & 1) != 0, 8);
#pragma unroll
    for (int o = 0; o < 2; ++o) sum[o] = turned_back(keep_half(half[o], half[o + 2], (t & 2) != 0, 16));
    if constexpr (kOutputs == 9) ninth = turned_back(add_lanes(add_lanes(part[8].sum, 8), 16));
  }
  /// Calls visit(which of the warp's outputs, sum) for what this lane is to go on with.
  template <class Visit>
  MACHINE_DEVICE void for_own(int lane, Visit&& visit) const {
    const int t = lane >> 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) visit(i + (t & 2) + 4 * (t & 1), sum[i]);
    if constexpr (kOutputs == 9)
      if (t == 0) visit(8, ninth);
  }

 private:
  /// There and back, so that neighbours share rows where they do not share the weight.
  template <int kColumn>
  MACHINE_DEVICE static void add_column(TurnedRows (&part)[kOutputs], const FourRows (&rows)[4],
                                        const float4 (&w)[kOutputs]) {
#pragma unroll
    for (int o = 0; o < kOutputs; o += 2) {
      part[o].template add_product<false>(rows[kColumn], element<kColumn>(w[o]));
      if (o + 1 < kOutputs) part[o + 1].template add_product<true>(rows[kColumn], element<kColumn>(w[o + 1]));
    }
  }
};

/// Sums over all outputs of a cluster, of 16 columns by a warp. While it sums, lane p + 2q + 8k' has chunks q and q + 4 of the
/// rows, columns 4p.. and 8 + 4p.., and two of every 8 outputs, k being k' with its bits turned round: so in either half of the
/// warp lanes beside each other read the same, and others other banks. Then it has chunk q + 4 (k & 1) of four columns.
struct ColumnSums {
  FourRows sum[4];

  MACHINE_DEVICE void add_outputs(const float* weights /* of the warp's first column */,
                                  const unsigned char* gradient, int lane, const float4& zero) {
    const int p = lane & 1, q = lane >> 1 & 3, k = (lane >> 4) + (lane >> 2 & 2);
    TurnedRows part[2][8];  // of chunks, of columns
#pragma unroll
    for (int i = 0; i < 8; ++i) part[0][i].sum = load_zero(zero), part[1][i].sum = load_zero(zero);
    const float* own = weights + 2 * k * kBlockPitch + 4 * p;
    const unsigned char* rows = gradient + 2 * k * 128;
#pragma unroll 3
    for (int m = 0; m < kBlockOutputs / 8; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const FourRows low = load_rows(rows, i, q ^ 2 * k), high = load_rows(rows, i, 4 ^ q ^ 2 * k);
        const float4 w = *reinterpret_cast<const float4*>(own + i * kBlockPitch);
        const float4 v = *reinterpret_cast<const float4*>(own + i * kBlockPitch + 8);
        const float by[8] = {w.x, w.y, w.z, w.w, v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          part[0][c].template add_product<false>(low, by[c]);
          part[1][c].template add_product<true>(high, by[c]);
        }
      }
      own += 8 * kBlockPitch, rows += 8 * 128;
    }
    float4 half[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) half[i] = keep_half(part[0][i].sum, part[1][i].sum, (k & 1) != 0, 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = turned_back(keep_half(half[i], half[i + 4], (k & 2) != 0, 8));
  }
  MACHINE_DEVICE static int chunk(int lane) { return (lane >> 1 & 3) + (lane >> 2 & 4); }
  /// Of the first of the four, among the warp's 16.
  MACHINE_DEVICE static int column(int lane) { return 4 * (lane & 1) + (lane & 8); }
};

/// A weight gradient over 32 rows, of kOutputs outputs, each the eighth after the one before, and four columns a lane,
/// each kNext after the one before: 1 or a multiple of 4. Rows r and r + 16 have sums of their own (see above).
template <int kOutputs, int kNext>
struct WeightSums {
  float4 sum[kOutputs][2];  // of two columns each: rows r + 8 and r + 24, then r and r + 16

  MACHINE_DEVICE explicit WeightSums(const float4& zero) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) sum[o][0] = load_zero(zero), sum[o][1] = load_zero(zero);
  }
  /// Of chunks `first` to `end`.
  MACHINE_DEVICE void add_rows(const unsigned char* gradient, int output, const unsigned char* activations,
                               int column, int first, int end) {
    int places[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) places[c] = packet_place(column + c * kNext, 0);
    const int place = packet_place(output, 0);
#pragma unroll 2
    for (int chunk = first; chunk < end; ++chunk) {
      const int turn = chunk * 16;  // of a column's packets
      FourRows own[kOutputs], rows[4];
#pragma unroll
      for (int c = 0; c < 4; ++c)
        rows[c] = *reinterpret_cast<const FourRows*>(activations + (places[c] ^ turn));
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
        own[o] = *reinterpret_cast<const FourRows*>(gradient + (place ^ turn) + o * 8 * 128);
      add_row<0>(own, rows), add_row<1>(own, rows), add_row<2>(own, rows), add_row<3>(own, rows);
    }
  }
  /// `weights` of the lane's first output and column.
  template <int kPitch>
  MACHINE_DEVICE void apply(float* weights, float factor) const {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float* own = weights + o * 8 * kPitch;
      const float gradient[4] = {sum[o][0].x + sum[o][0].y, sum[o][0].z + sum[o][0].w,
                                 sum[o][1].x + sum[o][1].y, sum[o][1].z + sum[o][1].w};
      if constexpr (kNext == 1) {
        float4& w = *reinterpret_cast<float4*>(own);
        w = make_float4(fmaf(factor, gradient[0], w.x), fmaf(factor, gradient[1], w.y),
                        fmaf(factor, gradient[2], w.z), fmaf(factor, gradient[3], w.w));
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) own[c * kNext] = fmaf(factor, gradient[c], own[c * kNext]);
      }
    }
  }

 private:
  template <int kRow>
  MACHINE_DEVICE void add_row(const FourRows (&own)[kOutputs], const FourRows (&rows)[4]) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = o % 2 == 0 ? i : 3 - i;
        float4& both = sum[o][c / 2];
        float& s = kRow % 2 == 1 ? (c % 2 == 0 ? both.x : both.z) : (c % 2 == 0 ? both.y : both.w);
        s = fmaf(element<kRow>(rows[c]), element<kRow>(own[o]), s);
      }
  }
};

}  // namespace headroom::resident
