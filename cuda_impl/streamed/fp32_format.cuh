// fp32: products by plain multiply-adds, so what counts is how often a value read from shared memory is used.
//
// Lanes divide outputs (forward, first layer) or inputs (backward), and every lane takes all rows of the batch that it
// can hold: a value of an activation is read once for a warp, as one of four in a 16-byte broadcast, and meets two
// weights (forward) or one weight and one activation (backward). A weight is read by one lane.
//   forward:  lane = 2 outputs x 8 * tiles rows, 8 multiply-adds a 16-byte read
//   backward: lane = 1 input x 16 * tiles rows for both products, 8 multiply-adds a 16-byte read
// Weight tiles lie row by row, a row's four 16-byte chunks exchanged so that eight rows' chunks lie in different banks;
// activation tiles lie feature by feature.
#pragma once

#include "streamed/tiles.cuh"

namespace headroom::streamed {

struct Fp32 {
  static constexpr int kForwardParts = 2, kMasterStride = 1024, kActivationBytes = 2048;

  /// Byte of the 16-byte chunk `chunk` (of 4 inputs) of an output's row.
  STREAMED_DEVICE static int chunk_offset(int output, int chunk) {
    return output % kTileSide * 64 + (chunk ^ (output >> 1 & 3)) * 16;
  }

  template <int kTiles, int kGroups>
  STREAMED_DEVICE static Place forward_place(int index, int lane) {
    constexpr int kRows = 8 * kTiles;
    const int group = index / (2 * kRows), which = index / kRows % 2, row = index % kRows;
    return {lane % kRows + which * kRows, group * kGroupRows + lane / kRows * kRows + row};
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static Place panel_place(int index, int lane) {
    constexpr int kRows = 16 * kTiles;
    return {lane % kRows, index / kRows * kGroupRows + lane / kRows * kRows + index % kRows};
  }

  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void forward(float (&sums)[16 * kTiles * kGroups], const unsigned char* weights,
                                      const unsigned char* inputs, int lane) {
    constexpr int kRows = 8 * kTiles;  // of the batch a lane, and outputs from a lane's first to its second
    const int first = lane % kRows, second = first + kRows;
    const unsigned char* first_row = weights + first / kTileSide * 1024;
    const unsigned char* second_row = weights + second / kTileSide * 1024;
    const unsigned char* rows = inputs + lane / kRows * kRows * 4;
#pragma unroll 1
    for (int chunk = 0; chunk < 4; ++chunk) {
      const float4 a = load_shared_floats(first_row + chunk_offset(first, chunk));
      const float4 b = load_shared_floats(second_row + chunk_offset(second, chunk));
      const float wa[4] = {a.x, a.y, a.z, a.w}, wb[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int quad = 0; quad < kRows; quad += 4) {
            const float4 x =
                load_shared_floats(rows + group * kActivationBytes + (4 * chunk + i) * 128 + quad * 4);
            multiply(sums + group * 2 * kRows + quad, wa[i], x);
            multiply(sums + group * 2 * kRows + kRows + quad, wb[i], x);
          }
    }
  }
  STREAMED_DEVICE static void multiply(float* sums /* [4] */, float w, float4 x) {
    sums[0] = fmaf(w, x.x, sums[0]);
    sums[1] = fmaf(w, x.y, sums[1]);
    sums[2] = fmaf(w, x.z, sums[2]);
    sums[3] = fmaf(w, x.w, sums[3]);
  }

  /// Rows of one own feature.
  template <int kTiles, int kGroups>
  struct Own {
    float row[kGroups][16 * kTiles];
  };
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
    constexpr int kRows = 16 * kTiles;
    const int feature = lane % kRows;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int quad = 0; quad < kRows; quad += 4) {
        const uint4 x = load_global16(tiles + (feature / kTileSide * kGroups + group) * kActivationBytes +
                                      feature % kTileSide * 128 + lane / kRows * kRows * 4 + quad * 4);
        own.row[group][quad] = bits_to_float(x.x);
        own.row[group][quad + 1] = bits_to_float(x.y);
        own.row[group][quad + 2] = bits_to_float(x.z);
        own.row[group][quad + 3] = bits_to_float(x.w);
      }
  }
  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                 int lane) {
    load_own<kTiles, kGroups>(own, tiles, lane);
  }
  /// With the other half of the rows, if another lane has it.
  template <int kTiles>
  STREAMED_DEVICE static float total(float sum) {
    return kTiles == 1 ? sum + shuffle_xor(sum, 16) : sum;
  }

  template <int kTiles, int kGroups>
  STREAMED_DEVICE static void backward(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& x,
                                       unsigned char* weights, const unsigned char* gradients,
                                       unsigned char* const (&out)[2], std::int64_t tile_step, float factor,
                                       int lane) {
    constexpr int kRows = 16 * kTiles;
    const int feature = lane % kRows, input = feature % kTileSide;
    unsigned char* tile = weights + feature / kTileSide * 1024 + input % 4 * 4;
    const unsigned char* rows = gradients + lane / kRows * kRows * 4;
#pragma unroll 2
    for (int output = 0; output < kTileSide; ++output) {
      float* place = reinterpret_cast<float*>(tile + chunk_offset(output, input / 4));
      const float w = *place;
      float gradient = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int quad = 0; quad < kRows; quad += 4) {
          const float4 d = load_shared_floats(rows + group * kActivationBytes + output * 128 + quad * 4);
          multiply(sums + group * kRows + quad, w, d);
          multiply_rows(gradient, x.row[group] + quad, d);
        }
      const float change = total<kTiles>(gradient);
      if constexpr (kTiles == 1) warp_sync();  // two lanes read the weight that one of them replaces
      if (lane < kRows) *place = fmaf(factor, change, w);
    }
    warp_sync();
    copy_out<kTiles>(weights, out, tile_step, lane);
  }
  STREAMED_DEVICE static void multiply_rows(float& gradient, const float* x /* [4] */, float4 d) {
    gradient = fmaf(d.x, x[0], gradient);
    gradient = fmaf(d.y, x[1], gradient);
    gradient = fmaf(d.z, x[2], gradient);
    gradient = fmaf(d.w, x[3], gradient);
  }
  /// Updated tiles from shared memory, where lanes left single values, to their place.
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

  template <int kTiles, int kGroups, bool kForward>
  STREAMED_DEVICE static void first(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& d,
                                    unsigned char* weights, const unsigned char* inputs,
                                    const unsigned char* next, unsigned char* const (&out)[2],
                                    std::int64_t tile_step, float factor, int lane) {
    constexpr int kRows = 16 * kTiles;
    const int output = lane % kRows, rows = lane / kRows * kRows * 4;
    unsigned char* tile = weights + output / kTileSide * 1024;
#pragma unroll 1
    for (int chunk = 0; chunk < 4; ++chunk) {
      float4* place = reinterpret_cast<float4*>(tile + chunk_offset(output, chunk));
      const float4 old = *place;
      float w[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int begin = rows + (4 * chunk + i) * 128;
        float gradient = 0;
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
          for (int quad = 0; quad < kRows; quad += 4)
            multiply_rows(gradient, d.row[group] + quad,
                          load_shared_floats(inputs + group * kActivationBytes + begin + quad * 4));
        w[i] = fmaf(factor, total<kTiles>(gradient), w[i]);
        if constexpr (kForward) {
#pragma unroll
          for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int quad = 0; quad < kRows; quad += 4)
              multiply(sums + group * kRows + quad, w[i],
                       load_shared_floats(next + group * kActivationBytes + begin + quad * 4));
        }
      }
      warp_sync();  // both halves of a warp may have read the same weights
      if (lane < kRows) *place = make_float4(w[0], w[1], w[2], w[3]);
    }
    warp_sync();
    copy_out<kTiles>(weights, out, tile_step, lane);
  }

  STREAMED_DEVICE static int slot(int output, int input) {
    return chunk_offset(output, input / 4) / 4 + input % 4;
  }
  STREAMED_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    reinterpret_cast<float*>(part[slot / 128])[slot % 128] = value;
  }
  STREAMED_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    return reinterpret_cast<const float*>(part[slot / 128])[slot % 128];
  }
  STREAMED_DEVICE static int offset(int row, int feature) { return feature * 128 + row * 4; }
  STREAMED_DEVICE static bool positive(const unsigned char* tile, int row, int feature) {
    return load_global(reinterpret_cast<const float*>(tile + offset(row, feature))) > 0;
  }
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
