// fp32: products by plain multiply-adds, so what counts is how often a value read from shared memory is used, and how few
// instructions stand between the multiply-adds.
//
// A 16-byte read costs a warp four cycles of the shared memory's pipe even if all lanes want the same bytes, and the four
// schedulers together make four multiply-adds in a cycle: below four multiply-adds a lane for each word read, shared memory
// binds. So a lane's share is as large as 255 registers allow, with 8 warps a block:
//   forward: 8 outputs x 16 rows, 24 words for 128 multiply-adds; lanes left over divide the inputs
//   others:  4 own features x 16 rows in registers, activations and sums; each output (or input) that comes by is 16 + 4
//            words for 128 multiply-adds: 64 for the sums, 64 for the weights' gradients, which are then added up over the
//            lanes that divide the rows
// Weight tiles lie row by row, activation tiles feature by feature, 128 bytes each. Eight neighbouring lanes read 16 bytes at
// a time: where they read several features, they read different quads of rows of them, so that their banks differ.
#pragma once

#include <type_traits>

#include "machine/compiler.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "streamed/slots.cuh"
#include "streamed/tiles.cuh"

namespace headroom::streamed {

struct Fp32 : FormatOfMemory {
  static constexpr int kWarps = 8, kPanelTiles = 4;
  static constexpr bool kWalks = true;
  static constexpr int kForwardParts = 2, kMasterStride = 1024, kActivationBytes = 2048;
  static constexpr int kLaneRows = 16;

  MACHINE_DEVICE static float value_of(const float4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }
  /// Column j of row i of products that are gone through there and back, so that neighbours always share a factor.
  template <int kColumns>
  MACHINE_DEVICE static int there_and_back(int i, int j) {
    return i % 2 == 0 ? j : kColumns - 1 - j;
  }
  /// Halves what a lane has: the lane whose `mask` bit is clear gets both lanes' first half, the other the second.
  template <int kCount>
  MACHINE_DEVICE static void share(const float* sums /* [kCount] */, float* kept /* [kCount / 2] */, int lane,
                                   int mask) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
      kept[i] = (upper ? sums[i + kCount / 2] : sums[i]) +
                shuffle_xor(upper ? sums[i] : sums[i + kCount / 2], mask);
  }

  /// Rows of a lane: quad j of register quads is quad j ^ turn of its 16 rows.
  template <int kGroups>
  struct Rows {
    int first, turn;
    MACHINE_DEVICE Rows(int row_part, int its_turn) : first(row_part * kLaneRows), turn(its_turn) {}
    MACHINE_DEVICE int row(int j) const { return first + (j / 4 ^ turn) * 4 + j % 4; }
    /// Byte of quad `quad` of feature 0 in tiles that lie [groups].
    MACHINE_DEVICE int offset(int quad) const {
      return first / kGroupRows * kActivationBytes + first % kGroupRows * 4 + (quad ^ turn) * 16;
    }
  };
  /// This lane's 16 rows of one feature.
  MACHINE_DEVICE static void load_rows(float4 (&rows)[4], const unsigned char* const (&place)[4], int byte) {
#pragma unroll
    for (int j = 0; j < 4; ++j) rows[j] = load_shared_floats(place[j] + byte);
  }

  // ---- forward. Lane = (part of the inputs, outputs, rows), rows fastest; 8 outputs that are 2 * tiles apart, 16 rows.
  // Parts are whole chunks of 4 inputs, or halves of chunks if there are 8 parts.

  template <int kTiles, int kGroups>
  static constexpr int kForwardSums = 128;

  template <int kTiles, int kGroups>
  struct ForwardLane {
    static constexpr int kRowParts = 2 * kGroups, kApart = 2 * kTiles, kParts = 8 / (kTiles * kGroups);
    int row_part, output, part;
    MACHINE_DEVICE explicit ForwardLane(int lane)
        : row_part(lane % kRowParts), output(lane / kRowParts % kApart), part(lane / kRowParts / kApart) {}
    /// With 8 parts neighbouring lanes differ in the half of the chunk, otherwise in the chunk.
    MACHINE_DEVICE int half() const { return kParts == 8 ? part & 1 : 0; }
    MACHINE_DEVICE int chunk() const {
      return kParts == 8 ? part >> 1 : part ^ (kGroups == 1 ? output >> 1 & 1 : 0);
    }
    MACHINE_DEVICE Rows<kGroups> rows() const {
      return {row_part, kGroups > 1 ? row_part >> 1 : kParts == 8 ? part & 1 : output >> 1 & 1};
    }
  };

  /// `kInputs` inputs from `chunk` bytes on in rows of weights.
  template <int kApart, int kInputs>
  MACHINE_DEVICE static void multiply_chunk(float (&sums)[128], const unsigned char* weights,
                                            const unsigned char* const (&x_place)[4]) {
    float w[8][kInputs];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kInputs == 4) {
        const float4 four = load_shared_floats(weights + kApart * i * 64);
        w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
      } else {
        const float2 two = *reinterpret_cast<const float2*>(weights + kApart * i * 64);
        w[i][0] = two.x, w[i][1] = two.y;
      }
    }
    float4 x[2][4];
    load_rows(x[0], x_place, 0);
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      if (k + 1 < kInputs) load_rows(x[(k + 1) & 1], x_place, (k + 1) * 128);
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          const int r = there_and_back<16>(i, j);
          multiply_add_in_order(sums[16 * i + r], value_of(x[k & 1][r / 4], r % 4), w[i][k]);
        }
    }
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void forward(float (&sums)[128], const unsigned char* weights,
                                     const unsigned char* inputs, int lane) {
    using Lane = ForwardLane<kTiles, kGroups>;
    const Lane me(lane);
    const Rows<kGroups> rows = me.rows();
    const unsigned char* x_place[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x_place[j] = inputs + rows.offset(j) + me.chunk() * 512 + me.half() * 256;
    weights += me.output * 64 + me.chunk() * 16 + me.half() * 8;
    if constexpr (Lane::kParts == 8) {
      multiply_chunk<Lane::kApart, 2>(sums, weights, x_place);
    } else if constexpr (Lane::kParts == 4) {
      multiply_chunk<Lane::kApart, 4>(sums, weights, x_place);
    } else {
      static_assert(Lane::kParts == 2);  // the other chunk is two further, whichever the first
#pragma unroll 1
      for (int chunk = 0; chunk < 2; ++chunk) {
        multiply_chunk<Lane::kApart, 4>(sums, weights, x_place);
        weights += 32;
#pragma unroll
        for (int j = 0; j < 4; ++j) x_place[j] += 1024;
      }
    }
  }
  /// Adds up the parts of the inputs; a lane keeps 1 / parts of its sums.
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void settle_forward(const float (&sums)[128], float (&kept)[16 * kTiles * kGroups],
                                            int lane) {
    constexpr int kParts = ForwardLane<kTiles, kGroups>::kParts;
    if constexpr (kParts == 8) {
      // Lanes whose halves differ have each other's quads of rows side by side: both keep the even ones.
      float half[64], quarter[32];
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int index = i / 4 * 8 + i % 4;
        half[i] = sums[index] + shuffle_xor(sums[index + 4], 4);
      }
      share<64>(half, quarter, lane, 16);
      share<32>(quarter, kept, lane, 8);
    } else if constexpr (kParts == 4) {
      float half[64];
      share<128>(sums, half, lane, 16);
      share<64>(half, kept, lane, 8);
    } else {
      share<128>(sums, kept, lane, 16);
    }
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static Place forward_place(int index, int lane) {
    using Lane = ForwardLane<kTiles, kGroups>;
    const Lane me(lane);
    const Rows<kGroups> rows = me.rows();
    if constexpr (Lane::kParts == 8)
      return {me.output + Lane::kApart * (index / 8 + (me.part >> 1) * 2),
              rows.row(index / 4 % 2 * 8 + index % 4)};
    else
      return {me.output + Lane::kApart * (index / 16 + me.part * (8 / Lane::kParts)), rows.row(index % 16)};
  }

  // ---- own features in registers. Lane = (part of what comes by, four features, rows), rows fastest. Of its four features a
  // lane counts those two first whose gradients it will add up: feature i is i ^ 2 for lanes of odd parts of the rows.

  template <int kTiles, int kGroups>
  static constexpr int kPanelSums = 4 * kLaneRows;

  template <int kTiles, int kGroups, bool kFirst>
  struct Lane {
    static constexpr int kRowParts = 2 * kGroups, kParts = 4 / (kTiles * kGroups);
    int row_part, quad, part;  // which of the row parts, of the panel's four features, of what comes by
    MACHINE_DEVICE explicit Lane(int lane)
        : row_part(lane % kRowParts),
          quad(lane / kRowParts % (4 * kTiles)),
          part(lane / kRowParts / (4 * kTiles)) {}
    MACHINE_DEVICE int pair() const { return kFirst ? (row_part & 1) * 2 : 0; }
    MACHINE_DEVICE int feature(int i) const { return quad * 4 + (pair() ^ i); }
    MACHINE_DEVICE int tile() const { return quad >> 2; }
    MACHINE_DEVICE bool writes() const { return row_part < 2; }  // of lanes that add up the same
    /// In the first layer lanes of other features are at other inputs.
    MACHINE_DEVICE Rows<kGroups> rows() const {
      return {row_part, kGroups > 1 ? row_part >> 1 : kFirst ? quad & 3 : 0};
    }
  };
  template <int kTiles, int kGroups>
  struct Own {
    float row[4][kLaneRows];
  };
  template <int kTiles, int kGroups, bool kFirst>
  MACHINE_DEVICE static void load_features(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
    const Lane<kTiles, kGroups, kFirst> me(lane);
    const Rows<kGroups> rows = me.rows();
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int feature = me.feature(i);
        const uint4 x = load_l2_16(tiles + feature / kTileSide * (kGroups * kActivationBytes) +
                                   feature % kTileSide * 128 + rows.offset(j));
        own.row[i][4 * j] = bits_to_float(x.x);
        own.row[i][4 * j + 1] = bits_to_float(x.y);
        own.row[i][4 * j + 2] = bits_to_float(x.z);
        own.row[i][4 * j + 3] = bits_to_float(x.w);
      }
  }
  template <int kTiles, int kGroups, bool kHere = false>
  MACHINE_DEVICE static void load_own(Own<kTiles, kGroups>& own, const unsigned char* tiles, int lane) {
    load_features<kTiles, kGroups, false>(own, tiles, lane);
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void load_own_gradients(Own<kTiles, kGroups>& own, const unsigned char* tiles,
                                                int lane) {
    load_features<kTiles, kGroups, true>(own, tiles, lane);
  }
  /// Gradients of a lane's first two features: sums over the rows of all lanes, when the others give theirs.
  template <int kGroups>
  MACHINE_DEVICE static float2 total(const float (&sums)[4]) {
    float2 total = make_float2(sums[0] + shuffle_xor(sums[2], 1), sums[1] + shuffle_xor(sums[3], 1));
    if constexpr (kGroups > 1) {
#pragma unroll
      for (int mask = 2; mask < 2 * kGroups; mask *= 2) {
        total.x += shuffle_xor(total.x, mask);
        total.y += shuffle_xor(total.y, mask);
      }
    }
    return total;
  }
  template <int kTiles, int kGroups>
  MACHINE_DEVICE static void settle_panel(const float (&sums)[64], float (&kept)[16 * kTiles * kGroups],
                                          int lane) {
    constexpr int kParts = Lane<kTiles, kGroups, false>::kParts;
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
  template <int kTiles, int kGroups, bool kFirst>
  MACHINE_DEVICE static Place panel_place(int index, int lane) {
    const Lane<kTiles, kGroups, kFirst> me(lane);
    const int all = index + me.part * (64 / Lane<kTiles, kGroups, kFirst>::kParts);
    return {me.feature(all / 16), me.rows().row(all % 16)};
  }

  // ---- backward. Lanes take their outputs in pairs; of two lanes that divide the rows each begins with the output whose
  // weights it updates, so neighbours read different banks and exchange as many sums as they get.

  /// Where a lane reads its first pair in the first stage of its warp's ring, and where its updated weights go.
  template <int kTiles, int kGroups>
  struct Places {
    int weights[2], gradients[2], item_step;
    std::uint64_t updated;
    MACHINE_DEVICE Places(const unsigned char* ring, int weight_bytes, unsigned char* first_item, int step,
                          int lane)
        : item_step(step) {
      const Lane<kTiles, kGroups, false> me(lane);
      const int output = 2 * me.part + (me.row_part & 1), place = me.tile() * 1024 + me.quad % 4 * 16;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        weights[h] = kept_whole(shared_place(ring) + place + (output ^ h) * 64);
        gradients[h] = kept_whole(shared_place(ring) + weight_bytes + (output ^ h) * 128 +
                                  (kGroups > 1 ? 0 : me.rows().offset(0)));
      }
      updated = kept_whole(global_address(first_item + place + output * 64));
    }
  };

  /// `by`: a factor of the gradients, or with slots an ItemSlots, of which Places say where.
  template <int kTiles, int kGroups, bool kShareHeld, class Update>
  MACHINE_DEVICE static void backward(float (&sums)[64], const Own<kTiles, kGroups>& x,
                                      Places<kTiles, kGroups>& places, int stage, Update by, int lane) {
    using Lane = Lane<kTiles, kGroups, false>;
    const Lane me(lane);
    const Rows<kGroups> rows = me.rows();
    constexpr int kStep = 2 * Lane::kParts, kSteps = kTileSide / kStep;  // outputs from a pair to the next
    int w_byte[2], d_byte[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      w_byte[h] = kept_whole(places.weights[h] + stage);
      d_byte[h] = kept_whole(places.gradients[h] + stage);
    }
    std::uint64_t new_byte = places.updated;
    places.updated += static_cast<std::uint64_t>(std::int64_t{places.item_step});
    float4 d[2][4];
    const auto load_gradients = [&] {
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          d[h][j] = load_shared_floats(d_byte[h] + (kGroups > 1 ? rows.offset(j) : j * 16));
    };
    load_gradients();
#pragma unroll 1
    for (int step = 0; step < kSteps; ++step) {
      const float4 w[2] = {load_shared_floats(w_byte[0]), load_shared_floats(w_byte[1])};
#pragma unroll
      for (int h = 0; h < 2; ++h) w_byte[h] += kStep * 64;
      // Neighbouring products share a factor. This direction is the one that ptxas leaves as it is (docs/kernels/log/streamed.md).
      float gradient[2][4] = {};
#pragma unroll
      for (int r = 0; r < 16; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int i = there_and_back<4>(h + 1, n);
            multiply_add_in_order(gradient[h][i], x.row[i][r], value_of(d[h][r / 4], r % 4));
          }
      constexpr int kSlots = slots_of_update<Update>();
      [[maybe_unused]] float4 updated_row, states[kSlots == 0 ? 1 : kSlots];
      float found[4];  // of the other lane's rows, while products go on; then of all rows
#pragma unroll
      for (int i = 0; i < 4; ++i) found[i] = shuffle_xor(gradient[1][i], 1);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < 16; ++r)
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int i = there_and_back<4>(r, n);
            multiply_add_in_order(sums[16 * i + r], value_of(w[h], i), value_of(d[h][r / 4], r % 4));
          }
        if (h == 0) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            found[i] = add_in_order(gradient[0][i], found[i]);
#pragma unroll
            for (int mask = 2; mask < 2 * kGroups; mask *= 2) found[i] += shuffle_xor(found[i], mask);
          }
          if constexpr (kSlots > 0) {
            // Amid the products, which hide how long it takes. Behind the masters and the gradients lie the states, in the order of the masters.
            constexpr int kFurther = kTiles * 1024 + kGroups * kActivationBytes - kStep * 64;
            updated_row = w[0];
            by.template update_row<kTiles>(w_byte[0] + kFurther, updated_row, found, states);
          }
        }
      }
      if constexpr (std::is_same_v<Update, float>) {
        if (me.writes())
          store_global_floats<kShareHeld>(
              new_byte, make_float4(fmaf(by, found[0], w[0].x), fmaf(by, found[1], w[0].y),
                                    fmaf(by, found[2], w[0].z), fmaf(by, found[3], w[0].w)));
      } else {
        if (me.writes()) by.template store_row<kShareHeld>(updated_row, states, new_byte);
      }
      new_byte += kStep * 64;
      const int further = step + 1 < kSteps ? kStep * 128 : 0;  // after the last pair for nothing
#pragma unroll
      for (int h = 0; h < 2; ++h) d_byte[h] += further;
      load_gradients();
    }
  }

  template <int kTiles, int kGroups, bool kForward, class Update>
  MACHINE_DEVICE static void first(float (&sums)[64], const Own<kTiles, kGroups>& d, unsigned char* weights,
                                   const unsigned char* inputs, const unsigned char* next,
                                   unsigned char* const (&out)[2], std::int64_t tile_step, Update by,
                                   int lane) {
    using Lane = Lane<kTiles, kGroups, true>;
    const Lane me(lane);
    const Rows<kGroups> rows = me.rows();
    unsigned char* own = weights + me.tile() * 1024 + me.feature(0) % kTileSide * 64;
#pragma unroll 1
    for (int step = 0; step < 4 / Lane::kParts; ++step) {
      const int chunk = (me.part + Lane::kParts * step) ^ (me.quad & 3);
      const float4 old[2] = {load_shared_floats(own + chunk * 16), load_shared_floats(own + 64 + chunk * 16)};
      const float w[2][4] = {{old[0].x, old[0].y, old[0].z, old[0].w},
                             {old[1].x, old[1].y, old[1].z, old[1].w}};
      float mine[2][4];
      const unsigned char *x_place[4], *next_place[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x_place[j] = inputs + chunk * 512 + rows.offset(j);
        next_place[j] = next + chunk * 512 + rows.offset(j);
      }
      float4 x[2][4];  // the next input's rows are on their way while one's are used
      load_rows(x[0], x_place, 0);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < 3) load_rows(x[(k + 1) & 1], x_place, (k + 1) * 128);
        float gradient[4] = {};
#pragma unroll
        for (int r = 0; r < 16; ++r)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            multiply_add_in_order(gradient[i], d.row[i][r], value_of(x[k & 1][r / 4], r % 4));
        const float2 found = total<kGroups>(gradient);
        if constexpr (std::is_same_v<Update, float>) {
          mine[0][k] = fmaf(by, found.x, w[0][k]);
          mine[1][k] = fmaf(by, found.y, w[1][k]);
        } else {
          mine[0][k] = found.x;
          mine[1][k] = found.y;
        }
      }
      // With slots what was found are gradients so far.
      constexpr int kSlots = slots_of_update<Update>();
      [[maybe_unused]] float4 states[2][kSlots + 1];
      if constexpr (kSlots > 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
          by.template update_row_here<kTiles>(states[h], mine[h], old[h],
                                              static_cast<int>(own - weights) + h * 64 + chunk * 16);
      }
      if constexpr (kForward) {
        float theirs[2][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          theirs[0][k] = shuffle_xor(mine[0][k], 1);
          theirs[1][k] = shuffle_xor(mine[1][k], 1);
        }
        load_rows(x[0], next_place, 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (k < 3) load_rows(x[(k + 1) & 1], next_place, (k + 1) * 128);
          const float updated_weight[4] = {mine[0][k], mine[1][k], theirs[0][k], theirs[1][k]};
#pragma unroll
          for (int r = 0; r < 16; ++r)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const int i = there_and_back<4>(r, j);
              multiply_add_in_order(sums[16 * i + r], updated_weight[i], value_of(x[k & 1][r / 4], r % 4));
            }
        }
      }
      warp_sync();  // the chunk's old weights are read
      if (me.writes()) {
        *reinterpret_cast<float4*>(own + chunk * 16) =
            make_float4(mine[0][0], mine[0][1], mine[0][2], mine[0][3]);
        *reinterpret_cast<float4*>(own + 64 + chunk * 16) =
            make_float4(mine[1][0], mine[1][1], mine[1][2], mine[1][3]);
        if constexpr (kSlots > 0) {
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int s = 0; s < kSlots; ++s)
              *reinterpret_cast<float4*>(by.stage + s * (kTiles * kSlotTileBytes) + (own - weights) + h * 64 +
                                         chunk * 16) = states[h][s];
        }
      }
    }
    warp_sync();
    copy_out<kTiles>(weights, out, tile_step, lane);
    if constexpr (slots_of_update<Update>() > 0) by.template copy_out<kTiles>(tile_step, lane);
  }
  /// Updated tiles from shared memory, where lanes left parts of rows, to their place.
  template <int kTiles>
  MACHINE_DEVICE static void copy_out(const unsigned char* weights, unsigned char* const (&out)[2],
                                      std::int64_t tile_step, int lane) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        store_global16(out[p] + u * tile_step + lane * 16,
                       load_shared16(weights + u * 1024 + p * 512 + lane * 16));
  }

  // ---- single values and 16-byte chunks of tiles

  MACHINE_DEVICE static int slot(int output, int input) { return output * kTileSide + input; }
  MACHINE_DEVICE static void store_master(unsigned char* const (&part)[2], int slot, float value) {
    reinterpret_cast<float*>(part[slot / 128])[slot % 128] = value;
  }
  MACHINE_DEVICE static float load_master(const unsigned char* const (&part)[2], int slot) {
    return reinterpret_cast<const float*>(part[slot / 128])[slot % 128];
  }
  MACHINE_DEVICE static int offset(int row, int feature) { return feature * 128 + row * 4; }
  template <bool kHere>
  MACHINE_DEVICE static float activation(const unsigned char* tile, int row, int feature) {
    return load_l2<kHere>(reinterpret_cast<const float*>(tile + offset(row, feature)));
  }
  MACHINE_DEVICE static bool positive(float activation) { return activation > 0; }
  MACHINE_DEVICE static void store_gradient(unsigned char* tile, int row, int feature, float value) {
    *reinterpret_cast<float*>(tile + offset(row, feature)) = value;
  }
  MACHINE_DEVICE static float bias_term(float value) { return value; }
  template <bool kGradient>
  MACHINE_DEVICE static uint4 chunk(const float* values, int index) {
    const int feature = index / 8, row = index % 8 * 4;
    Words result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.word[i] = float_to_bits(value_at(values, feature, row + i));
    return vector_of(result);
  }
};

}  // namespace headroom::streamed
