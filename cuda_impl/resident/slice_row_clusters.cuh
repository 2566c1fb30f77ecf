// What slice_whole_rows.cuh and slice_wide_rows.cuh share: four clusters of 16, in tf32, each of which makes the hidden layers and the loss of
// eight rows of the batch.
//
// A lane 4 * g + t of a warp of the chain has of row g columns 2t and 2t + 1 of each tile [8 rows, 8 columns].
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_exchange.cuh"
#include "resident/slice_whole_loss.cuh"

namespace headroom::resident {

template <class Format>
class RowClusters {
 protected:
  // ---- the board, in the L2: 8 or 16 bytes of each lane, with a mark in the last bit

  MACHINE_DEVICE static std::uint32_t mark(int step) { return step >> 1 & 1; }
  MACHINE_DEVICE static void store_marked(unsigned char* place, std::uint32_t first, std::uint32_t second,
                                          std::uint32_t mark) {
    store_relaxed_gpu_64(place, make_uint2(first, (second & ~1u) | mark));
  }

  // ---- exchanges in the cluster

  /// Columns 2t and 2t + 1 of row g.
  struct Two {
    std::uint32_t first, second;
  };
  /// Where this lane publishes, known before there is anything to publish: 16 bytes of the tile, to every other member, with the
  /// lane 16 further, which holds the same.
  struct Publication {
    std::uint32_t tile, barrier, to[kMaxCluster / 2];
    bool lost;
  };
  MACHINE_DEVICE static void publish(const Publication& publication, const Two& two, int lane) {
    const int from = 2 * (lane & 15);
    const uint4 packet = make_uint4(shuffle_from(two.first, from), shuffle_from(two.second, from),
                                    shuffle_from(two.first, from + 1), shuffle_from(two.second, from + 1));
    if (publication.lost) return;
#pragma unroll
    for (const std::uint32_t to : publication.to)
      store_async16(publication.tile + to, packet, publication.barrier + to);
  }
  /// Tiles of an exchange that was waited for; `first`: this lane's place in the first.
  template <int kCount>
  MACHINE_DEVICE static void take(Two (&tiles)[kCount], const uint2* first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint2 two = first[i * (WholeRows::kTile / 8)];
      tiles[i] = Two{two.x, two.y};
    }
  }

  // ---- products

  template <int kCount>
  struct Product {
    uint4 weights[kCount / 2];  // of a pair of slices
  };
  /// Of kCount tiles from `first` on; `begin`: this lane's place in those of the first pair of all.
  template <int kCount>
  MACHINE_DEVICE static Product<kCount> product_at(const uint4* begin, int first) {
    Product<kCount> product;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) product.weights[i] = begin[(first / 2 + i) * 32];
    return product;
  }
  /// In kChains chains of instructions that wait for each other. An instruction has 16 rows, of which there are eight: one takes the first
  /// columns of two tiles and leaves its sums in the upper half, the next the second columns, which lie in the lower half of the
  /// same operand. Nothing has to be moved, and what is in the other halves is for nobody.
  template <int kChains>
  struct Sums {
    float upper[kChains][4] = {}, lower[kChains][4] = {};
    template <int kCount>
    MACHINE_DEVICE void add(const Two (&tiles)[kCount], const Product<kCount>& product) {
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i)
        multiply_add(upper[i % kChains], lower[i % kChains],
                     make_uint4(tiles[2 * i].first, tiles[2 * i].second, tiles[2 * i + 1].first,
                                tiles[2 * i + 1].second),
                     product.weights[i]);
    }
    MACHINE_DEVICE float2 total() const {
      float2 sum[kChains];
#pragma unroll
      for (int i = 0; i < kChains; ++i)
        sum[i] = make_float2(upper[i][0] + lower[i][2], upper[i][1] + lower[i][3]);
      return added(sum);
    }
  };
  /// x: of a row columns 2t and 2t + 1 of two tiles. w: what those columns have to be multiplied with, first columns first.
  MACHINE_DEVICE static void multiply_add(float (&upper)[4], float (&lower)[4], const uint4& x,
                                          const uint4& w) {
    Format::product(upper, x, w.x, w.y);
    Format::product(lower, x, w.z, w.w);
  }
  template <int kChains, int kCount>
  MACHINE_DEVICE static float2 multiply(const Two (&tiles)[kCount], const Product<kCount>& product) {
    Sums<kChains> sums;
    sums.add(tiles, product);
    return sums.total();
  }
  /// As a tree.
  template <int kCount>
  MACHINE_DEVICE static float2 added(float2 (&part)[kCount]) {
#pragma unroll
    for (int distance = 1; distance < kCount; distance *= 2)
#pragma unroll
      for (int from = 0; from < kCount; from += 2 * distance) {
        part[from].x += part[from + distance].x;
        part[from].y += part[from + distance].y;
      }
    return part[0];
  }
  /// part_of(i): what the i-th warp of the chain has made of a divided sum.
  template <class PartOf>
  MACHINE_DEVICE static float2 sum_of_parts(const PartOf& part_of) {
    float2 part[WholeRows::kChainWarps];
#pragma unroll
    for (int i = 0; i < WholeRows::kChainWarps; ++i) part[i] = part_of(i);
    return added(part);
  }

  // ---- what happens to sums

  MACHINE_DEVICE static Two operand(const float2& value) {
    return {Format::rounded(value.x), Format::rounded(value.y)};
  }
  MACHINE_DEVICE static Two hidden(const float2& sum, const float2& bias) {
    return operand(make_float2(relu(sum.x + bias.x), relu(sum.y + bias.y)));
  }
  MACHINE_DEVICE static float2 masked(const float2& value, const Two& hidden) {
    return without_mark(make_float2(bits_to_float(hidden.first) > 0 ? value.x : 0,
                                    bits_to_float(hidden.second) > 0 ? value.y : 0));
  }
  /// What others are told of a gradient has no last bit: so that everybody rounds the same, its own cluster does without it, too.
  MACHINE_DEVICE static float2 without_mark(const float2& value) {
    return make_float2(bits_to_float(float_to_bits(value.x) & ~1u),
                       bits_to_float(float_to_bits(value.y) & ~1u));
  }

  // ---- the loss

  /// Of eight rows: the gradient of the logits, unrounded and as operands.
  struct Loss {
    RowsOfLoss<1> rows;
    float2 logits_gradient[2];
    Two low, high;
  };
  template <class Bias>
  MACHINE_DEVICE static Loss loss_of(const float2& low, const float2& high, const Bias& bias, int label,
                                     int row, int batch, float gradient_scale, int t) {
    Loss of_loss;
    of_loss.rows = RowsOfLoss<1>::of({low.x + bias.low.x, low.y + bias.low.y},
                                     {high.x + bias.high.x, high.y + bias.high.y}, {label}, {row}, batch,
                                     gradient_scale, t);
    const auto& gradient = of_loss.rows.gradient[0];
    of_loss.logits_gradient[0] = without_mark(make_float2(gradient[0], gradient[1]));
    of_loss.logits_gradient[1] = without_mark(make_float2(gradient[2], gradient[3]));
    of_loss.low = operand(of_loss.logits_gradient[0]);
    of_loss.high = operand(of_loss.logits_gradient[1]);
    return of_loss;
  }
  /// Of a slice, `second` of its pair: the gradient of the rows, from that of the logits.
  MACHINE_DEVICE static float2 below_last(const Loss& of_loss, const uint4& low_weight,
                                          const uint4& high_weight, int second) {
    float upper[4] = {}, lower[4] = {};
    const uint4 x =
        make_uint4(of_loss.low.first, of_loss.low.second, of_loss.high.first, of_loss.high.second);
    multiply_add(upper, lower, x,
                 second == 0 ? make_uint4(low_weight.x, high_weight.x, low_weight.y, high_weight.y)
                             : make_uint4(low_weight.z, high_weight.z, low_weight.w, high_weight.w));
    return make_float2(upper[0] + lower[2], upper[1] + lower[3]);
  }
};

}  // namespace headroom::resident
