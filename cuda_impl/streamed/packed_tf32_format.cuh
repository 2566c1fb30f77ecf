// tf32 with packed activations and gradients: 1280 bytes a tile instead of 2048 out of the L2 and through shared memory, of the same values.
//
// What follows a value's 19 bits in a register the tensor core does not look at, so an operand costs at most one shift a value. A product over
// features takes a lane's own packets of a tile, one over rows (t, g) and (t + 4, g): nothing is read that is not used, and without bank conflicts.
// Forward the weights are the column operand and rows of the batch the rows of the sums, backward the inputs are; so masters, activations and
// gradients all come as operands in the order in which they lie.
// Several rows share a word, so this is for joined logits only: their gradients every block makes for itself (packed_tiles.h, step.cuh).
#pragma once

#include "machine/bits.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "streamed/packed_tiles.h"
#include "streamed/tf32_format.cuh"

namespace headroom::streamed {

/// Where a lane's first 16 bytes of a backward item's masters go back to, in global memory.
template <bool kHinted>
struct OwnPlace {
  std::uint64_t address;
  bool held;  // with hints
};
template <bool kHinted>
MACHINE_DEVICE void store_own(const OwnPlace<kHinted>& out, int byte, uint4 v) {
  void* const there = reinterpret_cast<void*>(out.address + static_cast<std::uint64_t>(byte));
  if constexpr (!kHinted)
    store_global_floats<false>(
        out.address + static_cast<std::uint64_t>(byte),
        {bits_to_float(v.x), bits_to_float(v.y), bits_to_float(v.z), bits_to_float(v.w)});
  else if (out.held)
    store_global16_evict_last(there, v);
  else
    store_global16_evict_first(there, v);
}
template <class Out>
inline constexpr bool kIsOwnPlace =
    std::is_same_v<Out, OwnPlace<true>> || std::is_same_v<Out, OwnPlace<false>>;

struct PackedTf32 : Tf32 {
  static constexpr bool kPacks = true;
  static constexpr int kActivationBytes = packed::kTileBytes;

  struct Packet {
    std::uint32_t word[5];
  };
  /// An operand of a packet.
  MACHINE_DEVICE static Words operand(const Packet& packet, int half) {
    const std::uint32_t* w = packet.word;
    if (half == 0) return {{w[0] & 0xffffe000u, w[1] << 6, w[2] & 0xffffe000u, w[3] << 6}};
    return {{shift_joined(w[0], w[1], 19), shift_joined(w[2], w[3], 19), shift_joined(w[3], w[4], 25),
             w[4] << 12}};
  }
  MACHINE_DEVICE static Packet packet_of(uint4 first, std::uint32_t fifth) {
    return {{first.x, first.y, first.z, first.w, fifth}};
  }
  /// What a product over features takes of a tile.
  MACHINE_DEVICE static void load_along(Packet (&packet)[2], const unsigned char* tile, int lane) {
    const int own = packed::own_bytes(lane);
    const uint2 fifth = *reinterpret_cast<const uint2*>(tile + packed::kFifths + 8 * lane);
    packet[0] = packet_of(load_shared16(tile + own), fifth.x);
    packet[1] = packet_of(load_shared16(tile + 512 + (own ^ 16)), fifth.y);
  }
  // From a packet to that of four rows further.
  static constexpr int kFirstStep = 256, kFifthStep = 128;
  /// What a product over rows takes: rows t and so on, rows t + 4 and so on, of the features g and g + 8.
  MACHINE_DEVICE static void load_across(Packet (&packet)[2], const unsigned char* tile, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const unsigned char* first = tile + packed::first_words(t, g);
    const unsigned char* fifth = tile + packed::fifth_word(t, g);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      packet[i] = packet_of(load_shared16(first + i * kFirstStep), shared_word(fifth + i * kFifthStep));
  }
  MACHINE_DEVICE static int bytes_across(int lane) {
    return 4 * packed::slot(2 * (lane & 3), packed::feature_of(lane >> 2));
  }
  /// Of the tiles that a thread block owns, the packets across. Two tiles stay packed, in 20 registers instead of 32, and become operands anew for
  /// every item.
  template <int kTiles, int kGroups>
  struct Own {
    static constexpr bool kPacked = kTiles > 1;
    std::uint32_t word[kTiles][kGroups][4][4];
    Packet packet[kTiles][kGroups][2];
    /// A row operand of a product over rows.
    MACHINE_DEVICE Words at(int u, int group, int s) const {
      if constexpr (kPacked) {
        const std::uint32_t* w = packet[u][group][s / 2].word;
        if (s % 2 == 0) return {{w[0], w[2], shift_joined_here(w[1], 0, 6), shift_joined_here(w[3], 0, 6)}};
        return {{shift_joined_here(w[0], w[1], 19), shift_joined_here(w[3], w[4], 25),
                 shift_joined_here(w[2], w[3], 19), shift_joined_here(w[4], 0, 12)}};
      } else {
        const std::uint32_t* w = word[u][group][s];
        return {{w[0], w[1], w[2], w[3]}};
      }
    }
    MACHINE_DEVICE void set(int u, int group, int i, const Packet& loaded) {
      if constexpr (kPacked) {
        packet[u][group][i] = loaded;
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Words values = operand(loaded, half);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            word[u][group][2 * i + half][e] = values.word[e % 2 * 2 + e / 2] & 0xffffe000u;
        }
      }
    }
  };
  template <int kTiles, int kGroups, bool kHere = false>
  MACHINE_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
    const int p = packed::feature_of(lane >> 2), t = lane & 3;
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const unsigned char* tile = tiles + (u * kGroups + group) * kActivationBytes;
        const unsigned char* first = tile + packed::first_words(t, p);
        const unsigned char* fifth = tile + packed::fifth_word(t, p);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          own.set(u, group, i,
                  packet_of(load_l2_16<kHere>(first + i * kFirstStep),
                            global_word<kHere>(fifth + i * kFifthStep)));
      }
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                int lane) {
    load_own(own, tiles, lane);
  }

  /// sums[16 * (tile * groups + group) + 8 * m + 4 * n + c]: rows 16m + g (+ 8) of what stands for columns 2t (+ 1), 8n further.
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static Place forward_place(int index, int lane) {
    const int c = index % 4, n = index / 4 % 2, m = index / 8 % 2;
    return {index / 16 / kGroups * kTileSide + 8 * n + packed::feature_of(2 * (lane & 3) + (c & 1)),
            index / 16 % kGroups * kGroupRows + 16 * m + (lane >> 2) + 8 * (c >> 1)};
  }
  template <int kTiles, int kGroups, bool kFirst>
  MACHINE_DEVICE static Place panel_place(int index, int lane) {
    return forward_place<kTiles, kGroups>(index, lane);
  }
  MACHINE_DEVICE static int slot(int output, int input) { return packed::slot(output, input); }

  /// The totals of a tile, one a thread, packet by packet.
  struct Totals {
    static constexpr int kChains = 4;  // of a total, added up side by side
    static constexpr int kTerms = 8;   // of a feature, what neighbours have added up
    MACHINE_DEVICE static int row(int warp, int lane) { return packed::row_of_total(warp, lane); }
    MACHINE_DEVICE static int feature(int warp, int lane) { return packed::feature_of_total(warp, lane); }
    MACHINE_DEVICE static int swizzle(int sum) { return packed::total_swizzle(sum); }
    MACHINE_DEVICE static int place(int warp, int lane) { return packed::place_of_total(warp, lane); }
    MACHINE_DEVICE static void store(float value, unsigned char* tile) {
      const auto thread = static_cast<std::uint32_t>(thread_index_here());
      const int warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
      const std::uint32_t bits = float_to_bits(round_tf32(value));
      const int word = lane & 7, packet = lane & ~7, left = packed::left_of_word(word);
      const auto of_place = [&](int its_place) { return shuffle_from(bits, packet | its_place); };
      const std::uint32_t first = of_place(packed::first_of_word(word)),
                          second = of_place(packed::second_of_word(word)),
                          third = of_place(packed::place_of_value(6));
      const std::uint32_t made = first << left | second >> (19 - left) | (word == 3 ? third >> 25 : 0);
      const int g = warp >> 1, p = packed::feature_of((lane >> 3) * 2 + (warp & 1));
      const int byte = word < 4 ? packed::first_words(g, p) + word * 4 : packed::fifth_word(g, p);
      if (word < 5) *reinterpret_cast<std::uint32_t*>(tile + byte) = made;
    }
    MACHINE_DEVICE static float sum_of_neighbours(float value) {
      const float two = value + shuffle_xor(value, 1);
      return two + shuffle_xor(two, 4);
    }
    MACHINE_DEVICE static bool has_term(int lane) { return (lane & 5) == 0; }
    MACHINE_DEVICE static int term(int warp, int /*lane*/) { return warp >> 1; }
    MACHINE_DEVICE static float sum_of_terms(const float* terms, int pitch, int /*lane*/) {
      float sum = terms[0];
#pragma unroll
      for (int i = 1; i < kTerms; ++i) sum += terms[i * pitch];
      return sum;
    }
  };

  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void multiply_along(float (&sums)[16 * kTiles * kGroups],
                                            const RowOperand (&w)[kTiles], const unsigned char* inputs,
                                            int lane) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Packet x[2];
      load_along(x, inputs + group * kActivationBytes, lane);
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int m = 1; m >= 0; --m) {
          const Words a = operand(x[s], m);
#pragma unroll
          for (int u = 0; u < kTiles; ++u)
#pragma unroll
            for (int n = 0; n < 2; ++n)
              product(sums + 16 * (u * kGroups + group) + 8 * m + 4 * n, a, w[u].step[s].word[2 * n],
                      w[u].step[s].word[2 * n + 1]);
        }
    }
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void forward(float (&sums)[16 * kTiles * kGroups], const unsigned char* weights,
                                     const unsigned char* inputs, int lane) {
    RowOperand w[kTiles];
    const unsigned char* own = weights + packed::own_bytes(lane);
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      const Words part[2] = {words_of(load_shared16(own + u * 1024)),
                             words_of(load_shared16(own + u * 1024 + 512))};
      w[u] = row_operand(part);
    }
    multiply_along<kTiles, kGroups>(sums, w, inputs, lane);
  }

  template <int kTiles, int kGroups, class Out>
  MACHINE_DEVICE static void backward(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& x,
                                      unsigned char* weights, const unsigned char* gradients, const Out& out,
                                      std::int64_t tile_step, float factor, int lane) {
    float gradient[kTiles][8] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Packet d[2];
      load_across(d, gradients + group * kActivationBytes, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int s = i ^ 1;
        const Words b = operand(d[s / 2], s % 2);
#pragma unroll
        for (int u = 0; u < kTiles; ++u) {
          const Words a = x.at(u, group, s);
#pragma unroll
          for (int h = 0; h < 2; ++h) product(gradient[u] + 4 * h, a, b.word[2 * h], b.word[2 * h + 1]);
        }
      }
    }
    // Outputs 2t (+ 1 in the second step) and 8 further of this lane's inputs: the weights of a column operand, and those whose gradient it has.
    const int across = bytes_across(lane);
    const auto masters_at = [&](int u, int s) {
      return words_of(load_shared16(weights + u * 1024 + across + 4 * packed::kSecondStep * s));
    };
    const auto update = [&](int u, int s, Words masters) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        masters.word[e] = updated(masters.word[e], gradient[u][e / 2 * 4 + e % 2 * 2 + s], factor);
      const int byte = 4 * packed::kSecondStep * s;
      if constexpr (kIsOwnPlace<Out>)
        store_own(out, u * 1024 + byte, vector_of(masters));
      else
        store_part(out, 0, u * tile_step + across + byte, vector_of(masters));
    };
    RowOperand w[kTiles];
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const Words masters = masters_at(u, s);
#pragma unroll
        for (int e = 0; e < 4; ++e) w[u].step[s].word[e % 2 * 2 + e / 2] = rounded(masters.word[e]);
        if constexpr (kTiles == 1) update(u, s, masters);
      }
    multiply_along<kTiles, kGroups>(sums, w, gradients, lane);
    // Two tiles' masters are read again: there are no registers for them.
    if constexpr (kTiles > 1)
#pragma unroll
      for (int u = 0; u < kTiles; ++u)
#pragma unroll
        for (int s = 0; s < 2; ++s)
          update(u, s,
                 words_of(
                     load_shared16(shared_place(weights) + u * 1024 + across + 4 * packed::kSecondStep * s)));
  }

  template <int kTiles, int kGroups, bool kForward, class Out>
  MACHINE_DEVICE static void first(float (&sums)[16 * kTiles * kGroups], const Own<kTiles, kGroups>& d,
                                   unsigned char* weights, const unsigned char* inputs,
                                   const unsigned char* next, const Out& out, std::int64_t tile_step,
                                   float factor, int lane) {
    float gradient[kTiles][8] = {};
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      Packet x[2];
      load_across(x, inputs + group * kActivationBytes, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int s = i ^ 1;
        const Words b = operand(x[s / 2], s % 2);
        Words a[kTiles];
#pragma unroll
        for (int u = 0; u < kTiles; ++u) a[u] = d.at(u, group, s);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int u = 0; u < kTiles; ++u) {
            product(gradient[u] + 4 * h, a[u], b.word[2 * h], b.word[2 * h + 1]);
          }
      }
    }
    RowOperand w[kTiles];
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
      w[u] = row_operand(update_own(weights + u * 1024, gradient[u], out, u * tile_step, factor, lane).part);
    if constexpr (kForward) multiply_along<kTiles, kGroups>(sums, w, next, lane);
  }

  /// The updated masters, which also go to `out`.
  template <class Out>
  MACHINE_DEVICE static Tile update_own(const unsigned char* tile, const float (&gradient)[8], const Out& out,
                                        std::int64_t offset_of_tile, float factor, int lane) {
    const int own = packed::own_bytes(lane);
    Tile w;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      w.part[p] = words_of(load_shared16(tile + p * 512 + own));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w.part[p].word[i] = updated(w.part[p].word[i], gradient[i % 2 * 4 + i / 2 * 2 + p], factor);
      store_part(out, p, offset_of_tile + own, vector_of(w.part[p]));
    }
    return w;
  }

  /// The words in which a value lies, and where it begins there.
  struct Found {
    std::uint32_t high, low;
    int shift;
  };
  template <bool kHere>
  MACHINE_DEVICE static Found activation(const unsigned char* tile, int row, int feature) {
    const int g = row % 8, p = feature % 8;
    const int bit = packed::value_bit(packed::value_of(packed::place_of(row / 8, feature / 8))),
              word = bit / 32;
    const unsigned char* first = tile + packed::first_words(g, p);
    const unsigned char* fifth = tile + packed::fifth_word(g, p);
    return {global_word<kHere>(word < 4 ? first + word * 4 : fifth),
            global_word<kHere>(word < 3 ? first + word * 4 + 4 : fifth), bit % 32};
  }
  /// An activation has a sign only if it is a NaN.
  MACHINE_DEVICE static bool positive(const Found& found) {
    const std::uint32_t bits = shift_joined(found.high, found.low, found.shift) >> 13;
    return bits != 0 && bits <= 0x7f800000u >> 13;
  }
  /// Chunks of 16 bytes: four words of a packet, or the fifth of four.
  template <bool kGradient>
  MACHINE_DEVICE static uint4 chunk(const float* values, int index) {
    // Value i of a packet.
    const auto bits = [&](int g, int p, int i) {
      const int place = packed::place_of_value(i), e = place % 4;
      const int j = place / 4 * 2 + e % 2, h = e / 2;
      return float_to_bits(round_tf32(value_at(values, p + h * 8, j * 8 + g)));
    };
    Words result;
    if (index < packed::kPackets) {
      const int part = index / 32, g = index % 32 / 4, t = index % 4 ^ (g & 2);
      const int p = (t ^ part) * 2 + part;
      const std::uint32_t b1 = bits(g, p, 1), b4 = bits(g, p, 4);
      result.word[0] = bits(g, p, 0) | b1 >> 19;
      result.word[1] = b1 << 13 | bits(g, p, 2) >> 6;
      result.word[2] = bits(g, p, 3) | b4 >> 19;
      result.word[3] = b4 << 13 | bits(g, p, 5) >> 6 | bits(g, p, 6) >> 25;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int place = (index - packed::kPackets) * 4 + i, g = place / 8, p = place % 8;
        result.word[i] = bits(g, p, 6) << 7 | bits(g, p, 7) >> 12;
      }
    }
    return vector_of(result);
  }
};

}  // namespace headroom::streamed
