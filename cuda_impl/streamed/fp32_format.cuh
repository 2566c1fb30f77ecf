// fp32: products by plain multiply-adds, so what counts is how often a value read from shared memory is used.
//
// A 16-byte read costs a warp four cycles of the shared memory's pipe even if all lanes want the same bytes, and the four
// schedulers together make four multiply-adds in a cycle: below four multiply-adds a lane for each word read, shared memory
// binds. So a lane's share is as square as its registers allow:
//   forward: 8 outputs x 8 rows, 16 words for 64 multiply-adds; lanes left over divide the inputs
//   others:  4 own features x 8 rows (16 rows for large batches) in registers, activations and sums; each output (or input)
//            that comes by is 8 + 4 words for 64 multiply-adds: 32 for the sums, 32 for the weights' gradients, which
//            are then added up over the lanes that divide the rows
// Weight tiles lie row by row, activation tiles feature by feature.
#pragma once

#include "streamed/tiles.cuh"

namespace headroom::streamed {

struct Fp32 {
  static constexpr int kForwardParts = 2, kMasterStride = 1024, kActivationBytes = 2048;

  /// sums[4] += w * x[4].
  STREAMED_DEVICE static void multiply(float* sums, float w, float4 x) {
    sums[0] = fmaf(w, x.x, sums[0]);
    sums[1] = fmaf(w, x.y, sums[1]);
    sums[2] = fmaf(w, x.z, sums[2]);
    sums[3] = fmaf(w, x.w, sums[3]);
  }
  /// sum += a . x
  STREAMED_DEVICE static void multiply_rows(float& sum, const float* a /* [4] */, float4 x) {
    sum = fmaf(x.x, a[0], sum);
    sum = fmaf(x.y, a[1], sum);
    sum = fmaf(x.z, a[2], sum);
    sum = fmaf(x.w, a[3], sum);
  }
  /// Halves what a lane has: the lane whose `mask` bit is clear gets both lanes' first half, the other the second.
  template <int kCount>
  STREAMED_DEVICE static void share(const float* sums /* [kCount] */, float* kept /* [kCount / 2] */,
                                    int lane, int mask) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      kept[i] = (upper ? sums[i + kCount / 2] : sums[i]) +
                shuffle_xor(upper ? sums[i] : sums[i + kCount / 2], mask);
  }

  // ---- forward. Lane = (part of the inputs, outputs, rows), rows fastest; 8 outputs that are 2 * tiles apart, 8 rows.

  template <int kTiles, int kGroups>
  static constexpr int kForwardSums = 64;
  template <int kTiles, int kGroups>
  static constexpr int kInputParts = 4 / (kTiles * kGroups);

  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void forward(float (&sums)[64], const unsigned char* weights,
                                      const unsigned char* inputs, int lane) {
    constexpr int kRowParts = 4 * kGroups, kApart = 2 * kTiles, kParts = kInputParts<kTiles, kGroups>;
    const int row = lane % kRowParts * 8, output = lane / kRowParts % kApart,
              part = lane / kRowParts / kApart;
    const unsigned char* rows = inputs + row / kGroupRows * kActivationBytes + row % kGroupRows * 4;
#pragma unroll 1
    for (int chunk = part; chunk < 4; chunk += kParts) {
      float w[8][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 four = load_shared_floats(weights + (output + kApart * i) * 64 + chunk * 16);
        w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const unsigned char* x = rows + (4 * chunk + k) * 128;
        const float4 first = load_shared_floats(x), second = load_shared_floats(x + 16);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          multiply(sums + 8 * i, w[i][k], first);
          multiply(sums + 8 * i + 4, w[i][k], second);
        }
      }
    }
  }
  /// Adds up the parts of the inputs; a lane keeps 8 / parts of its outputs.
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void settle_forward(const float (&sums)[64], float (&kept)[16 * kTiles * kGroups],
                                             int lane) {
    constexpr int kParts = kInputParts<kTiles, kGroups>;
    if constexpr (kParts == 4) {
      float half[32];
      share<64>(sums, half, lane, 16);
      share<32>(half, kept, lane, 8);
    } else if constexpr (kParts == 2) {
      share<64>(sums, kept, lane, 16);
    } else {
#pragma unroll
      for (int i = 0; i < 64; ++i) kept[i] = sums[i];
    }
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static Place forward_place(int index, int lane) {
    constexpr int kRowParts = 4 * kGroups, kApart = 2 * kTiles, kParts = kInputParts<kTiles, kGroups>;
    const int part = lane / kRowParts / kApart;
    return {lane / kRowParts % kApart + kApart * (index / 8 + part * (8 / kParts)),
            lane % kRowParts * 8 + index % 8};
  }

  // ---- own features in registers. Lane = (part of what comes by, features, rows), rows fastest. Of its four features a
  // lane counts the one first whose gradients it will add up: feature i is quad ^ i for a lane of the quad'th rows.

  template <int kGroups>
  static constexpr int kRowParts = kGroups == 1 ? 4 : 8;
  template <int kGroups>
  static constexpr int kLaneRows = kGroupRows * kGroups / kRowParts<kGroups>;
  template <int kTiles, int kGroups>
  static constexpr int kPanelParts = 32 / (4 * kTiles * kRowParts<kGroups>);
  template <int kTiles, int kGroups>
  static constexpr int kPanelSums = 4 * kLaneRows<kGroups>;

  template <int kTiles, int kGroups>
  struct Lane {
    int rows, features, part;  // first of its rows; first of its four features; part of what comes by
    int quad;                  // rows % 4 parts: which of the four features' gradients it adds up
    bool writes;               // of lanes that add up the same, one writes
    STREAMED_DEVICE explicit Lane(int lane)
        : rows(lane % kRowParts<kGroups> * kLaneRows<kGroups>),
          features(lane / kRowParts<kGroups> % (4 * kTiles) * 4),
          part(lane / kRowParts<kGroups> / (4 * kTiles)),
          quad(lane & 3),
          writes(lane % kRowParts<kGroups> < 4) {}
    STREAMED_DEVICE int feature(int i) const { return features + (quad ^ i); }
    /// Byte of this lane's rows of feature `feature` of tiles that lie [groups].
    STREAMED_DEVICE int row_offset(int feature) const {
      return rows / kGroupRows * kActivationBytes + feature * 128 + rows % kGroupRows * 4;
    }
  };
  template <int kTiles, int kGroups>
  struct Own {
    float row[4][kLaneRows<kGroups>];
  };
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
    const Lane<kTiles, kGroups> me(lane);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int quad = 0; quad < kLaneRows<kGroups>; quad += 4) {
        const int feature = me.feature(i);
        const uint4 x = load_global16(tiles + feature / kTileSide * (kGroups * kActivationBytes) +
                                      me.row_offset(feature % kTileSide) + quad * 4);
        own.row[i][quad] = bits_to_float(x.x);
        own.row[i][quad + 1] = bits_to_float(x.y);
        own.row[i][quad + 2] = bits_to_float(x.z);
        own.row[i][quad + 3] = bits_to_float(x.w);
      }
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                 int lane) {
    load_own<kTiles, kGroups>(own, tiles, lane);
  }
  /// Sum over the rows of all lanes of what this one found for its first feature, when the others give theirs.
  template <int kGroups>
  STREAMED_DEVICE static float total(float (&sums)[4]) {
    if constexpr (kRowParts<kGroups> == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += shuffle_xor(sums[i], 4);
    }
    const float first = sums[0] + shuffle_xor(sums[2], 2), second = sums[1] + shuffle_xor(sums[3], 2);
    return first + shuffle_xor(second, 1);
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void settle_panel(const float (&sums)[kPanelSums<kTiles, kGroups>],
                                           float (&kept)[16 * kTiles * kGroups], int lane) {
    if constexpr (kPanelParts<kTiles, kGroups> == 2) {
      share<kPanelSums<kTiles, kGroups>>(sums, kept, lane, 16);
    } else {
#pragma unroll
      for (int i = 0; i < 16 * kTiles * kGroups; ++i) kept[i] = sums[i];
    }
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static Place panel_place(int index, int lane) {
    const Lane<kTiles, kGroups> me(lane);
    const int all = index + me.part * (kPanelSums<kTiles, kGroups> / kPanelParts<kTiles, kGroups>);
    return {me.feature(all / kLaneRows<kGroups>), me.rows + all % kLaneRows<kGroups>};
  }

  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void backward(float (&sums)[kPanelSums<kTiles, kGroups>],
                                       const Own<kTiles, kGroups>& x, unsigned char* weights,
                                       const unsigned char* gradients, unsigned char* const (&out)[2],
                                       std::int64_t tile_step, float factor, int lane) {
    constexpr int kRows = kLaneRows<kGroups>, kParts = kPanelParts<kTiles, kGroups>;
    const Lane<kTiles, kGroups> me(lane);
    constexpr int kOfPair = 2 / kParts;  // of two neighbouring outputs, how many a lane takes
    // The second tile's lanes take odd outputs while the first one's take even ones: their weights lie in other banks.
    const int tile = me.features / kTileSide;
    const unsigned char *w_place[kOfPair][4], *d_place[kOfPair];
    unsigned char* new_place[kOfPair];
#pragma unroll
    for (int h = 0; h < kOfPair; ++h) {
      const int output = (kParts == 2 ? me.part : h) ^ tile, row = output * 64 + me.features % kTileSide * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) w_place[h][i] = weights + tile * 1024 + row + (me.quad ^ i) * 4;
      d_place[h] = gradients + me.row_offset(output);
      new_place[h] = out[0] + tile * tile_step + row + me.quad * 4;
    }
#pragma unroll 2
    for (int pair = 0; pair < kTileSide / 2; ++pair)
#pragma unroll
      for (int h = 0; h < kOfPair; ++h) {
        float w[4], gradient[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = *reinterpret_cast<const float*>(w_place[h][i] + pair * 128);
#pragma unroll
        for (int quad = 0; quad < kRows; quad += 4) {
          const float4 d = load_shared_floats(d_place[h] + pair * 256 + quad * 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            multiply(sums + i * kRows + quad, w[i], d);
            multiply_rows(gradient[i], x.row[i] + quad, d);
          }
        }
        const float updated_weight = fmaf(factor, total<kGroups>(gradient), w[0]);
        if (me.writes) *reinterpret_cast<float*>(new_place[h] + pair * 128) = updated_weight;
      }
  }

  template <int kTiles, int kGroups, bool kForward>
  STREAMED_DEVICE static void first(float (&sums)[kPanelSums<kTiles, kGroups>], const Own<kTiles, kGroups>& d,
                                    unsigned char* weights, const unsigned char* inputs,
                                    const unsigned char* next, unsigned char* const (&out)[2],
                                    std::int64_t tile_step, float factor, int lane) {
    constexpr int kRows = kLaneRows<kGroups>, kParts = kPanelParts<kTiles, kGroups>;
    const Lane<kTiles, kGroups> me(lane);
    unsigned char* tile = weights + me.features / kTileSide * 1024;
#pragma unroll 1
    for (int chunk = me.part; chunk < 4; chunk += kParts) {
      float w[4][4], mine[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 four = load_shared_floats(tile + me.feature(i) % kTileSide * 64 + chunk * 16);
        w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int begin = me.row_offset(4 * chunk + k);
        float gradient[4] = {};
#pragma unroll
        for (int quad = 0; quad < kRows; quad += 4) {
          const float4 x = load_shared_floats(inputs + begin + quad * 4);
#pragma unroll
          for (int i = 0; i < 4; ++i) multiply_rows(gradient[i], d.row[i] + quad, x);
        }
        mine[k] = fmaf(factor, total<kGroups>(gradient), w[0][k]);
        if constexpr (kForward) {
          const float beside = shuffle_xor(mine[k], 1);
          const float updated_weight[4] = {mine[k], beside, shuffle_xor(mine[k], 2), shuffle_xor(beside, 2)};
#pragma unroll
          for (int quad = 0; quad < kRows; quad += 4) {
            const float4 x = load_shared_floats(next + begin + quad * 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) multiply(sums + i * kRows + quad, updated_weight[i], x);
          }
        }
      }
      warp_sync();  // the chunk's old weights are read
      if (me.writes)
        *reinterpret_cast<float4*>(tile + me.feature(0) % kTileSide * 64 + chunk * 16) =
            make_float4(mine[0], mine[1], mine[2], mine[3]);
    }
    warp_sync();
    copy_out<kTiles>(weights, out, tile_step, lane);
  }
  /// Updated tiles from shared memory, where lanes left parts of rows, to their place.
  template <int kTiles>
  STREAMED_DEVICE static void copy_out(const unsigned char* weights, unsigned char* const (&out)[2],
                                       std::int64_t tile_step, int lane) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        store_global16(out[p] + u * tile_step + lane * 16,
                       load_shared16(weights + u * 1024 + p * 512 + lane * 16));
  }

  // ---- single values and 16-byte chunks of tiles

  STREAMED_DEVICE static int slot(int output, int input) { return output * kTileSide + input; }
  STREAMED_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    reinterpret_cast<float*>(part[slot / 128])[slot % 128] = value;
  }
  STREAMED_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    return reinterpret_cast<const float*>(part[slot / 128])[slot % 128];
  }
  STREAMED_DEVICE static int offset(int row, int feature) { return feature * 128 + row * 4; }
  STREAMED_DEVICE static float activation(const unsigned char* tile, int row, int feature) {
    return load_global(reinterpret_cast<const float*>(tile + offset(row, feature)));
  }
  STREAMED_DEVICE static bool positive(float activation) { return activation > 0; }
  STREAMED_DEVICE static void store_gradient(unsigned char* tile, int row, int feature, float value) {
    *reinterpret_cast<float*>(tile + offset(row, feature)) = value;
  }
  STREAMED_DEVICE static float bias_term(float value) { return value; }
  template <bool kGradient>
  STREAMED_DEVICE static uint4 chunk(const float* values, int index) {
    const int feature = index / 8, row = index % 8 * 4;
    Words result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.word[i] = float_to_bits(value_at(values, feature, row + i));
    return vector_of(result);
  }
};

}  // namespace headroom::streamed
