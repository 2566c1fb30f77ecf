// bf16 and fp16: products of 16-bit values by mma.sync m16n8k16, the weights as its row operand.
//
// Everything lies in the order in which the tensor core wants it for the forward pass; lane 4g + t holds
//   a weight tile:      outputs g and g + 8, inputs 2t, 2t + 1, 2t + 8, 2t + 9: the row operand
//   an activation tile: rows g, g + 8, g + 16, g + 24, the same four features: column operands
// The backward products want the same 8x8 blocks transposed, which is one instruction a block, and their sums come
// out where the masters lie: a weight's gradient meets its master in a register.
#pragma once

#include <type_traits>

#include "machine/bits.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/mma.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "streamed/tiles.cuh"

namespace headroom::streamed {

/// Masters as two halves that together are exactly the fp32 value; products read the high one only.
struct Bf16Numbers {
  static constexpr int kForwardParts = 1, kMasterStride = 512;
  static constexpr std::uint32_t kNaN = 0x7fff7fffu;
  MACHINE_DEVICE static Words operand(const Words (&part)[2]) { return part[0]; }
  /// One fp32 master split; NaN stays NaN in the high half.
  MACHINE_DEVICE static std::uint32_t kept(std::uint32_t bits) {
    // The one NaN that arithmetic makes, 0x7fffffff, would round to a negative zero.
    return static_cast<std::int32_t>(bits) > 0x7fff7fff ? kNaN : bits;
  }
  /// Every master is next(i, its bits), in the order of the gradients.
  template <class Next>
  MACHINE_DEVICE static void change(Words (&part)[2], const Next& next) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const std::uint32_t high = part[0].word[r], low = part[1].word[r];
      const std::uint32_t first = kept(next(2 * r, (high << 16) + extend_lower(low)));
      const std::uint32_t second = kept(next(2 * r + 1, (high & 0xffff0000u) + extend_upper(low)));
      part[0].word[r] = choose_bytes(first + 0x8000u, second + 0x8000u, 0x7632);
      part[1].word[r] = choose_bytes(first, second, 0x5410);
    }
  }
  MACHINE_DEVICE static std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  MACHINE_DEVICE static float value(std::uint32_t bits) { return bits_to_float(bits << 16); }
  MACHINE_DEVICE static void product(float* c, const Words& a, std::uint32_t b0, std::uint32_t b1) {
    mma_bf16(c, a.word[0], a.word[1], a.word[2], a.word[3], b0, b1);
  }
  /// Element `slot` (see SixteenBit::slot) of the tile at part[0] and part[1].
  MACHINE_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    // A NaN that is given may have a sign as well, and its high half would round to 0.
    const std::uint32_t bits = value != value ? kNaN : float_to_bits(value);
    const int index = slot % 128 / 4 * 8 + slot / 128 * 4 + slot % 4;
    reinterpret_cast<std::uint16_t*>(part[0])[index] = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    reinterpret_cast<std::uint16_t*>(part[1])[index] = static_cast<std::uint16_t>(bits);
  }
  MACHINE_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    const int index = slot % 128 / 4 * 8 + slot / 128 * 4 + slot % 4;
    const std::uint32_t high = reinterpret_cast<const std::uint16_t*>(part[0])[index];
    return bits_to_float((high << 16) + extend_lower(reinterpret_cast<const std::uint16_t*>(part[1])[index]));
  }
};

/// fp32 masters, rounded when a product reads them.
struct Fp16Numbers {
  static constexpr int kForwardParts = 2, kMasterStride = 1024;
  MACHINE_DEVICE static Words operand(const Words (&part)[2]) {
    Words a;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      a.word[r] = pack_fp16(bits_to_float(part[r / 2].word[r % 2 * 2]),
                            bits_to_float(part[r / 2].word[r % 2 * 2 + 1]));
    return a;
  }
  template <class Next>
  MACHINE_DEVICE static void change(Words (&part)[2], const Next& next) {
#pragma unroll
    for (int i = 0; i < 8; ++i) part[i / 4].word[i % 4] = next(i, part[i / 4].word[i % 4]);
  }
  MACHINE_DEVICE static std::uint32_t pack(float low, float high) { return pack_fp16(low, high); }
  MACHINE_DEVICE static float value(std::uint32_t bits) { return fp16_value(bits); }
  MACHINE_DEVICE static void product(float* c, const Words& a, std::uint32_t b0, std::uint32_t b1) {
    mma_fp16(c, a.word[0], a.word[1], a.word[2], a.word[3], b0, b1);
  }
  MACHINE_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    reinterpret_cast<float*>(part[slot / 128])[slot % 128] = value;
  }
  MACHINE_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    return reinterpret_cast<const float*>(part[slot / 128])[slot % 128];
  }
};

/// sums[16 * (tile * groups + group) + 4 * j + c]: rows 8j + 2t and 8j + 2t + 1 of features g and g + 8. A lane keeps them while it
/// multiplies, and hands them on as they are.
struct TensorSums : FormatOfMemory {
  template <int kTiles, int kGroups>
  static constexpr int kForwardSums = 16 * kTiles * kGroups;
  template <int kTiles, int kGroups>
  static constexpr int kPanelSums = 16 * kTiles * kGroups;
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void settle_forward(const float (&sums)[16 * kTiles * kGroups],
                                            float (&kept)[16 * kTiles * kGroups], int /*lane*/) {
    copy_sums(sums, kept);
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void settle_panel(const float (&sums)[16 * kTiles * kGroups],
                                          float (&kept)[16 * kTiles * kGroups], int /*lane*/) {
    copy_sums(sums, kept);
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static Place forward_place(int index, int lane) {
    const int c = index % 4, j = index / 4 % 4, group = index / 16 % kGroups, tile = index / 16 / kGroups;
    return {tile * kTileSide + (lane >> 2) + 8 * (c >> 1),
            group * kGroupRows + 8 * j + 2 * (lane & 3) + (c & 1)};
  }
  template <int kTiles, int kGroups, bool kFirst>
  MACHINE_DEVICE static Place panel_place(int index, int lane) {
    return forward_place<kTiles, kGroups>(index, lane);
  }
};

template <class Numbers>
struct SixteenBit : Numbers, TensorSums {
  using Numbers::kForwardParts;
  static constexpr int kWarps = 16, kPanelTiles = 2, kActivationBytes = 1024;

  /// Masters of one tile, as one lane holds them.
  struct Tile {
    Words part[2];
  };
  /// The second part by a pointer or by an address of shared memory.
  template <class Second>
  MACHINE_DEVICE static Tile load_tile(const unsigned char* first, Second second, int lane) {
    return {{words_of(load_shared16(first + lane * 16)), words_of(load_shared16(second + lane * 16))}};
  }
  template <class Out>
  MACHINE_DEVICE static void store_tile(const Tile& tile, const Out& out, std::int64_t offset, int lane) {
    store_part(out, 0, offset + lane * 16, vector_of(tile.part[0]));
    store_part(out, 1, offset + lane * 16, vector_of(tile.part[1]));
  }
  /// By a factor of the gradients, or with slots by ItemSlots.
  template <class Update>
  MACHINE_DEVICE static void update(Words (&part)[2], const float (&gradient)[8], Update by, int lane) {
    if constexpr (std::is_same_v<Update, float>)
      Numbers::change(part, [&](int i, std::uint32_t master) { return updated(master, gradient[i], by); });
    else
      by.update_tile(lane, [&](const auto& next) {
        Numbers::change(part, [&](int i, std::uint32_t master) {
          return float_to_bits(next(i, bits_to_float(master), gradient[i]));
        });
      });
  }
  struct Activations {
    std::uint32_t word[8];  // 2j + h: row 8j + g, features 2t + 8h and 2t + 8h + 1
  };
  MACHINE_DEVICE static Activations load_activations(const unsigned char* tile, int lane) {
    const uint4 a = load_shared16(tile + lane * 16), b = load_shared16(tile + 512 + lane * 16);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  }
  MACHINE_DEVICE static Activations transposed(Activations a) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a.word[i] = transpose8x8(a.word[i]);
    return a;
  }

  /// sums [outputs, rows] += weights [tiles of outputs, 16 inputs] * inputs [16 inputs, rows].
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void forward(float (&sums)[16 * kTiles * kGroups], const unsigned char* weights,
                                     const unsigned char* inputs, int lane) {
    Words a[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      Words part[2];
#pragma unroll
      for (int p = 0; p < kForwardParts; ++p)
        part[p] = words_of(load_shared16(weights + (m * kForwardParts + p) * 512 + lane * 16));
      a[m] = Numbers::operand(part);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Activations x = load_activations(inputs + group * kActivationBytes, lane);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) multiply(sums + 16 * (m * kGroups + group), a[m], x);
    }
  }
  MACHINE_DEVICE static void multiply(float* sums /* [16] */, const Words& a, const Activations& x) {
#pragma unroll
    for (int j = 0; j < 4; ++j) Numbers::product(sums + 4 * j, a, x.word[2 * j], x.word[2 * j + 1]);
  }

  /// Activations (or gradients: both lie alike) of a thread block's own tiles, transposed, for products over rows.
  template <int kTiles, int kGroups>
  struct Own {
    Activations tile[kTiles][kGroups];
  };
  template <int kTiles, int kGroups, bool kHere = false>
  MACHINE_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const unsigned char* tile = tiles + (u * kGroups + group) * kActivationBytes;
        const uint4 a = load_l2_16<kHere>(tile + lane * 16), b = load_l2_16<kHere>(tile + 512 + lane * 16);
        own.tile[u][group] = transposed({{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}});
      }
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                int lane) {
    load_own<kTiles, kGroups>(own, tiles, lane);
  }
  /// gradient [16 outputs, 16 inputs] += d [rows, outputs]^T * x [rows, inputs], in the order of the masters.
  MACHINE_DEVICE static void multiply_rows(float (&gradient)[8], const Activations& d, const Activations& x) {
#pragma unroll
    for (int s = 0; s < 8; s += 4) {
      const Words a{{d.word[s], d.word[s + 1], d.word[s + 2], d.word[s + 3]}};
      Numbers::product(gradient, a, x.word[s], x.word[s + 2]);
      Numbers::product(gradient + 4, a, x.word[s + 1], x.word[s + 3]);
    }
  }

  /// sums [inputs, rows] += W^T [tiles of inputs, 16 outputs] * d [16 outputs, rows]; then W += factor * d^T x, to `out`.
  template <int kTiles, int kGroups, class Out, class Update>
  MACHINE_DEVICE static void backward(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& x,
                                      unsigned char* weights, const unsigned char* gradients, const Out& out,
                                      std::int64_t tile_step, Update by, int lane) {
    backward<kTiles, kGroups>(sums, x, weights, weights + 512, 1024, gradients, out, tile_step, by, lane);
  }
  /// The same with the second parts of the masters somewhere else, `second_step` from tile to tile.
  template <int kTiles, int kGroups, class Second, class Out, class Update>
  MACHINE_DEVICE static void backward(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& x,
                                      const unsigned char* first_parts, Second second_parts, int second_step,
                                      const unsigned char* gradients, const Out& out, std::int64_t tile_step,
                                      Update by, int lane) {
    Activations d[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      d[group] = load_activations(gradients + group * kActivationBytes, lane);
    Tile w[kTiles];
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      w[u] = load_tile(first_parts + u * 1024, second_parts + u * second_step, lane);
      const Words a = Numbers::operand(w[u].part);
      const Words turned{{transpose8x8(a.word[0]), transpose8x8(a.word[2]), transpose8x8(a.word[1]),
                          transpose8x8(a.word[3])}};
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        multiply(sums + 16 * (u * kGroups + group), turned, d[group]);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) d[group] = transposed(d[group]);
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      float gradient[8] = {};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) multiply_rows(gradient, d[group], x.tile[u][group]);
      update(w[u].part, gradient, by, lane);
      store_tile(w[u], out, u * tile_step, lane);
    }
  }

  /// W += factor * d^T x, to `out`; with kForward, sums [outputs, rows] += new W * next.
  template <int kTiles, int kGroups, bool kForward, class Out, class Update>
  MACHINE_DEVICE static void first(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& d,
                                   unsigned char* weights, const unsigned char* inputs,
                                   const unsigned char* next, const Out& out, std::int64_t tile_step,
                                   Update by, int lane) {
    Tile w[kTiles];
    float gradient[kTiles][8] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const Activations x = transposed(load_activations(inputs + group * kActivationBytes, lane));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) multiply_rows(gradient[m], d.tile[m][group], x);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      w[m] = load_tile(weights + m * 1024, weights + m * 1024 + 512, lane);
      update(w[m].part, gradient[m], by, lane);
      store_tile(w[m], out, m * tile_step, lane);
    }
    if constexpr (kForward) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const Activations x = load_activations(next + group * kActivationBytes, lane);
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
          multiply(sums + 16 * (m * kGroups + group), Numbers::operand(w[m].part), x);
      }
    }
  }

  // ---- single values and 16-byte chunks of tiles

  /// The totals of a tile, one a thread, in the order in which it lies in memory: a warp has two rows, 8 apart.
  struct Totals {
    // Everything is added up in the order of the kernels without this.
    static constexpr int kChains = 1;
    static constexpr int kTerms = kGroupRows;  // of a feature
    MACHINE_DEVICE static int row(int warp, int lane) {
      return (warp & 1) * 16 + (lane >> 2 & 1) * 8 + (warp >> 1);
    }
    MACHINE_DEVICE static int feature(int /*warp*/, int lane) {
      return (lane >> 3) * 2 + (lane & 1) + (lane >> 1 & 1) * 8;
    }
    /// Sum 4j + 2h + r of lane 4g + t: row 8j + 2t + r of feature g + 8h. Where it lies among 32, and in which word a thread's total begins.
    MACHINE_DEVICE static int swizzle(int sum) { return sum >> 1 & 3; }
    MACHINE_DEVICE static int place(int warp, int lane) {
      const int sum = (warp & 1) * 8 + (lane >> 2 & 1) * 4 + (lane & 2) + (warp >> 1 & 1);
      return sum * 32 + ((((lane >> 3) * 2 + (lane & 1)) * 4 + (warp >> 2)) ^ swizzle(sum));
    }
    MACHINE_DEVICE static void store(float value, unsigned char* tile) {
      const auto thread = static_cast<std::uint32_t>(thread_index_here());
      const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
      const std::uint32_t word = Numbers::pack(value, shuffle_xor(value, 1));
      if ((lane & 1) == 0)
        *reinterpret_cast<std::uint32_t*>(tile + (warp & 1) * 512 + (warp >> 1) * 64 + lane * 2) = word;
    }
    MACHINE_DEVICE static float sum_of_neighbours(float value) { return value; }
    MACHINE_DEVICE static bool has_term(int /*lane*/) { return true; }
    MACHINE_DEVICE static int term(int warp, int lane) { return row(warp, lane); }
    /// Half of the rows by this lane, half by the one 16 further: as warp_sum() of a row a lane.
    MACHINE_DEVICE static float sum_of_terms(const float* terms, int pitch, int lane) {
      float sum[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) sum[i] = terms[(2 * i + (lane >> 4)) * pitch];
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += sum[i + 8];
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += sum[i + 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) sum[i] += sum[i + 2];
      sum[0] += sum[1];
      return sum[0] + shuffle_xor(sum[0], 16);
    }
  };

  MACHINE_DEVICE static int slot(int output, int input) {
    return input / 8 * 128 + (output % 8 * 4 + input % 8 / 2) * 4 + output / 8 * 2 + input % 2;
  }
  MACHINE_DEVICE static int offset(int row, int feature) {
    return row / 16 * 512 + (row % 8 * 4 + feature % 8 / 2) * 16 + (row / 8 % 2 * 2 + feature / 8) * 4 +
           feature % 2 * 2;
  }
  template <bool kHere>
  MACHINE_DEVICE static std::uint16_t activation(const unsigned char* tile, int row, int feature) {
    return load_l2<kHere>(reinterpret_cast<const std::uint16_t*>(tile + offset(row, feature)));
  }
  /// A NaN is, too: what its gradient is multiplied with makes no difference any more.
  MACHINE_DEVICE static bool positive(std::uint16_t bits) { return bits != 0 && bits < 0x8000; }
  MACHINE_DEVICE static void store_gradient(unsigned char* tile, int row, int feature, float value) {
    *reinterpret_cast<std::uint16_t*>(tile + offset(row, feature)) =
        static_cast<std::uint16_t>(Numbers::pack(value, 0.0f));
  }
  /// A gradient as the bias sum sees it.
  MACHINE_DEVICE static float bias_term(float value) {
    return Numbers::value(Numbers::pack(value, 0.0f) & 0xffff);
  }
  template <bool kGradient>
  MACHINE_DEVICE static uint4 chunk(const float* values, int index) {
    const int plane = index / 32, g = index % 32 / 4, t = index % 4;
    Words result;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * plane + 8 * (i / 2) + g, feature = 2 * t + 8 * (i % 2);
      result.word[i] = Numbers::pack(value_at(values, feature, row), value_at(values, feature + 1, row));
    }
    return vector_of(result);
  }
};

using Bf16 = SixteenBit<Bf16Numbers>;
using Fp16 = SixteenBit<Fp16Numbers>;

}  // namespace headroom::streamed
