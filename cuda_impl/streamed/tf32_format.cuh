// tf32: products by mma.sync m16n8k8, masters and activations in fp32.
//
// A lane holds the same elements of every tile as in the 16-bit formats; the order in which a product sums is free as
// long as both operands follow it, so neighbouring inputs 2t and 2t + 1 stand for the instruction's columns t and t + 4.
// There is no instruction that transposes 32-bit blocks: what the backward products need across is read from shared
// memory value by value. The orders are chosen so that all but the first layer's inputs come without bank conflicts.
// Activations and gradients are stored rounded, weights are rounded when a product reads them.
#pragma once

#include "machine/memory.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "streamed/sixteen_bit_formats.cuh"

namespace headroom::streamed {

struct Tf32 : TensorSums {
  static constexpr int kWarps = 16, kPanelTiles = 2;
  static constexpr int kForwardParts = 2, kMasterStride = 1024, kActivationBytes = 2048;

  MACHINE_DEVICE static std::uint32_t rounded(std::uint32_t bits) {
    return float_to_bits(round_tf32(bits_to_float(bits)));
  }
  MACHINE_DEVICE static std::uint32_t shared_word(const unsigned char* address) {
    return *reinterpret_cast<const std::uint32_t*>(address);
  }
  template <bool kHere>
  MACHINE_DEVICE static std::uint32_t global_word(const unsigned char* address) {
    return float_to_bits(load_l2<kHere>(reinterpret_cast<const float*>(address)));
  }

  /// Row operands of the two steps of 8 inputs: words 0, 1: outputs g, g + 8, input 2t; 2, 3: input 2t + 1.
  struct RowOperand {
    Words step[2];
  };
  MACHINE_DEVICE static RowOperand row_operand(const Words (&part)[2]) {
    RowOperand a;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) a.step[h].word[i] = rounded(part[h].word[i]);
    return a;
  }
  MACHINE_DEVICE static void product(float* c, const Words& a, std::uint32_t b0, std::uint32_t b1) {
    mma_tf32(c, a.word[0], a.word[1], a.word[2], a.word[3], b0, b1);
  }

  /// Rows of weights times a tile of inputs.
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void multiply_along(float (&sums)[16 * kTiles * kGroups],
                                            const RowOperand (&a)[kTiles], const unsigned char* inputs,
                                            int lane) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Words x = words_of(load_shared16(inputs + group * kActivationBytes + j * 512 + lane * 16));
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            product(sums + 16 * (m * kGroups + group) + 4 * j, a[m].step[h], x.word[2 * h],
                    x.word[2 * h + 1]);
      }
  }

  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void forward(float (&sums)[16 * kTiles * kGroups], const unsigned char* weights,
                                     const unsigned char* inputs, int lane) {
    RowOperand a[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const Words part[2] = {words_of(load_shared16(weights + m * 1024 + lane * 16)),
                             words_of(load_shared16(weights + m * 1024 + 512 + lane * 16))};
      a[m] = row_operand(part);
    }
    multiply_along<kTiles, kGroups>(sums, a, inputs, lane);
  }

  /// For products over rows 8s + t and 8s + t + 4: own activations as column operands, own gradients as row operands.
  template <int kTiles, int kGroups>
  struct Own {
    std::uint32_t word[kTiles][kGroups][4][4];
  };
  /// word[s]: features g (0, 1) and g + 8 (2, 3), rows 8s + t (0, 2) and 8s + t + 4 (1, 3).
  template <int kTiles, int kGroups, bool kHere = false>
  MACHINE_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            own.word[u][group][s][i] =
                global_word<kHere>(tiles + (u * kGroups + group) * kActivationBytes +
                                   offset(8 * s + (lane & 3) + 4 * (i % 2), (lane >> 2) + 8 * (i / 2)));
  }
  /// word[s]: outputs g (0, 2) and g + 8 (1, 3), rows 8s + t (0, 1) and 8s + t + 4 (2, 3).
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                int lane) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            own.word[u][group][s][i] = global_word<false>(
                tiles + (u * kGroups + group) * kActivationBytes +
                gradient_offset(8 * s + (lane & 3) + 4 * (i / 2), (lane >> 2) + 8 * (i % 2)));
  }

  template <int kTiles, int kGroups, class Out, class Update>
  MACHINE_DEVICE static void backward(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& x,
                                      unsigned char* weights, const unsigned char* gradients, const Out& out,
                                      std::int64_t tile_step, Update by, int lane) {
    const int g = lane >> 2, t = lane & 3;
    // Outputs 2c + t % 2 + 8 * (t / 2) stand for columns of the instruction: c even the first four, c odd the last.
    // Their inputs g and g + 8 lie 512 bytes apart, the next c 128.
    const unsigned char* across = weights + 4 * slot((t & 1) + 8 * (t >> 1), g);
    Words turned[kTiles][2];
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          turned[u][c / 2].word[c % 2 * 2 + half] =
              rounded(shared_word(across + u * 1024 + c * 128 + half * 512));
    const unsigned char* along = gradients + (g * 4 + (t ^ (g & 2))) * 16;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const Words d = words_of(load_shared16(along + group * kActivationBytes + j * 512));
#pragma unroll
        for (int u = 0; u < kTiles; ++u)
#pragma unroll
          for (int s = 0; s < 2; ++s)
            product(sums + 16 * (u * kGroups + group) + 4 * j, turned[u][s], d.word[2 * s],
                    d.word[2 * s + 1]);
      }
    // Rows 8s + t, outputs g and g + 8; rows 4 further lie 256 bytes apart, the next s 512.
    const unsigned char* rows[2] = {gradients + gradient_offset(t, g), gradients + gradient_offset(t, g + 8)};
    float gradient[kTiles][8] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        Words d;
#pragma unroll
        for (int i = 0; i < 4; ++i)
          d.word[i] = shared_word(rows[i % 2] + group * kActivationBytes + s * 512 + i / 2 * 256);
#pragma unroll
        for (int u = 0; u < kTiles; ++u)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            product(gradient[u] + 4 * half, d, x.word[u][group][s][2 * half],
                    x.word[u][group][s][2 * half + 1]);
      }
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
      update_tile(weights + u * 1024, gradient[u], out, u * tile_step, by, lane);
  }

  template <int kTiles, int kGroups, bool kForward, class Out, class Update>
  MACHINE_DEVICE static void first(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& d,
                                   unsigned char* weights, const unsigned char* inputs,
                                   const unsigned char* next, const Out& out, std::int64_t tile_step,
                                   Update by, int lane) {
    // Inputs g and g + 8 lie 8 bytes apart, rows 8s + t and 8s + t + 4 256, the next s 512.
    const unsigned char* across = inputs + offset(lane & 3, lane >> 2);
    float gradient[kTiles][8] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned char* x = across + group * kActivationBytes + s * 512 + half * 8;
          const std::uint32_t b0 = shared_word(x), b1 = shared_word(x + 256);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            const std::uint32_t* a = d.word[m][group][s];
            product(gradient[m] + 4 * half, Words{{a[0], a[1], a[2], a[3]}}, b0, b1);
          }
        }
    RowOperand a[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
      a[m] = row_operand(update_tile(weights + m * 1024, gradient[m], out, m * tile_step, by, lane).part);
    if constexpr (kForward) multiply_along<kTiles, kGroups>(sums, a, next, lane);
  }

  struct Tile {
    Words part[2];
  };
  /// Of the gradients that a lane has, that of its master i.
  MACHINE_DEVICE static constexpr int gradient_of(int i) { return i / 4 * 4 + i % 2 * 2 + i % 4 / 2; }
  /// The updated masters, which also go to `out`: by a factor of the gradients, or with slots by ItemSlots.
  template <class Out, class Update>
  MACHINE_DEVICE static Tile update_tile(const unsigned char* tile, const float (&gradient)[8],
                                         const Out& out, std::int64_t offset_of_tile, Update by, int lane) {
    Tile w;
    if constexpr (std::is_same_v<Update, float>) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        w.part[p] = words_of(load_shared16(tile + p * 512 + lane * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w.part[p].word[i] = updated(w.part[p].word[i], gradient[gradient_of(4 * p + i)], by);
        store_part(out, p, offset_of_tile + lane * 16, vector_of(w.part[p]));
      }
    } else {
#pragma unroll
      for (int p = 0; p < 2; ++p) w.part[p] = words_of(load_shared16(tile + p * 512 + lane * 16));
      by.update_tile(lane, [&](const auto& next) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          std::uint32_t& word = w.part[i / 4].word[i % 4];
          word = float_to_bits(next(i, bits_to_float(word), gradient[gradient_of(i)]));
        }
      });
#pragma unroll
      for (int p = 0; p < 2; ++p) store_part(out, p, offset_of_tile + lane * 16, vector_of(w.part[p]));
    }
    return w;
  }

  /// As in the 16-bit formats, but a lane's four words of a part in the order of the instruction's row operand.
  MACHINE_DEVICE static int slot(int output, int input) {
    return input / 8 * 128 + (output % 8 * 4 + input % 8 / 2) * 4 + input % 2 * 2 + output / 8;
  }
  MACHINE_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    Fp16::store_master(part, slot, value);
  }
  MACHINE_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    return Fp16::load_master(part, slot);
  }
  /// Of an activation: plane row / 8, lane by row and feature.
  MACHINE_DEVICE static int offset(int row, int feature) {
    return row / 8 * 512 + (row % 8 * 4 + feature % 8 / 2) * 16 + (feature / 8 * 2 + feature % 2) * 4;
  }
  /// Of a gradient: a lane's 16 bytes hold outputs that are 2 apart. The exclusive or spreads what products over rows
  /// read at once over all banks.
  MACHINE_DEVICE static int gradient_offset(int row, int output) {
    const int g = row % 8, t = output % 2 + output / 8 * 2;
    return row / 8 * 512 + (g * 4 + (t ^ (g & 2))) * 16 + output % 8 / 2 * 4;
  }
  template <bool kHere>
  MACHINE_DEVICE static float activation(const unsigned char* tile, int row, int feature) {
    return load_l2<kHere>(reinterpret_cast<const float*>(tile + offset(row, feature)));
  }
  MACHINE_DEVICE static bool positive(float activation) { return activation > 0; }
  MACHINE_DEVICE static void store_gradient(unsigned char* tile, int row, int feature, float value) {
    *reinterpret_cast<float*>(tile + gradient_offset(row, feature)) = round_tf32(value);
  }
  MACHINE_DEVICE static float bias_term(float value) { return value; }
  template <bool kGradient>
  MACHINE_DEVICE static uint4 chunk(const float* values, int index) {
    const int g = index % 32 / 4, row = index / 32 * 8 + g;
    const int t = kGradient ? index % 4 ^ (g & 2) : index % 4;
    Words result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int feature = kGradient ? 2 * i + t % 2 + t / 2 * 8 : 2 * t + i / 2 * 8 + i % 2;
      result.word[i] = float_to_bits(round_tf32(value_at(values, feature, row)));
    }
    return vector_of(result);
  }
};

}  // namespace headroom::streamed
