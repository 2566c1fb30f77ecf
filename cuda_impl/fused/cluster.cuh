// A whole step's work in a cluster of SMs for networks of 65 to 128: every SM owns a hidden layer, and tiles flow past.
//
// The same idea as pipeline.cuh, with room for layers four times as large: an owner's two warpgroups each hold half of
// the layer's outputs, its weights and those of the layer behind it as left factors in registers, and the sums of its
// weight gradient. Activations and gradients of a tile go to the neighbour's shared memory by bulk copies, which
// its barrier counts. In the last rank a third warpgroup makes logits, loss and the output layer's gradient, one tile
// ahead of the owner's way back.
//
//   in:    rank 0 loads inputs, for the forward pass and again for the weight gradient; rank r > 0 gets H of rank r - 1
//   out:   H to rank r + 1, dZ to rank r - 1; a tile is two panels, each made and sent by one warpgroup
//   waits: full: into (a local thread announces the tile's bytes), again (rank 0's second ring), gradient. Room over there:
//          out free (the neighbour has used up the tile before), gradient out free. Staging: out sent (the
//          tile has landed; a thread of its own over there says so, in the last rank an owner that begins with it), gradient
//          sent (the neighbour has begun with it). In the last rank also last and logit, full and free
//   scope: full barriers of tiles from a neighbour are waited for with acquire in the cluster, which meets the release of the
//          copies' completion. Room and staging are not: those arrivals are relaxed and hand on nothing that was written,
//          only that reads are over, and each is issued behind a wait for those reads
//   order: up to three products of different tiles are under way one behind the other, and what one of them has made is
//          rounded and sent while the next runs
#pragma once

#include <type_traits>

#include "fused/pipeline.cuh"
#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/masks.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

constexpr int kClusterTileBytes = 2 * kTilePanelBytes, kClusterThreads = 3 * kWarpgroup;
constexpr int kOwnerRegisters = 240, kLoadRegisters = 24, kLastOwnerRegisters = 208, kLossRegisters = 88;

template <int kHidden>
struct ClusterMap {
  static_assert(kHidden >= 2 && kHidden <= 4);
  /// Tiles that rank `rank` is ahead with its forward work. Two ranks' leads differ by two: a tile's way to the
  /// neighbour and its gradient's way back take longer than the work on one tile.
  MACHINE_BOTH static constexpr int lead(int rank) { return 2 * (kHidden - rank); }
  /// Rank 0 reads its inputs twice, for the forward pass and for the weight gradient, in two rings.
  static constexpr int kInputDepth = 3;
  MACHINE_BOTH static constexpr int depth_into(int rank) { return rank == 0 ? kInputDepth : lead(rank) + 2; }
  static constexpr int kDepth = 2;  // of the other rings, but one of what waits to be sent back
  // Tiles from the start.
  static constexpr int kInto = 0, kAgain = kInputDepth,
                       kGradientOut = 2 * kHidden > 2 * kInputDepth ? 2 * kHidden : 2 * kInputDepth,
                       kOut = kGradientOut + 1, kGradientInto = 11;
  static_assert(kOut + kDepth <= kGradientInto);
  /// H waits in the sender's shared memory until it has landed; next to the last rank, until it is used there.
  MACHINE_BOTH static constexpr bool before_last(int rank) { return rank == kHidden - 2; }
  MACHINE_BOTH static constexpr int out_depth(int rank) { return before_last(rank) ? 4 : kDepth; }
  MACHINE_BOTH static constexpr int out(int rank) {
    return !before_last(rank) ? kOut : rank == 0 ? 2 * kInputDepth : depth_into(rank);
  }
  MACHINE_BOTH static constexpr int gradient_out(int rank) {
    return before_last(rank) ? out(rank) + out_depth(rank) : kGradientOut;
  }
  static_assert(gradient_out(kHidden - 2) < kGradientInto);
  static_assert(depth_into(1) <= kGradientOut);
  // The last rank's: its activations, two panels of logits' gradients, the output weights.
  static constexpr int kLastDepth = 3, kLastActivations = kOut;
  static constexpr int kLogitGradients = (kLastActivations + kLastDepth) * kClusterTileBytes;
  static constexpr int kOutputWeights = depth_into(kHidden - 1) * kClusterTileBytes;
  static_assert(depth_into(kHidden - 1) < kGradientOut);
  static constexpr int kMasks = (kGradientInto + kDepth) * kClusterTileBytes;
  static constexpr int kSums = kMasks + (lead(0) + 2) * 2 * kWarpgroup * 4;
  static constexpr int kBarriers = kSums + 4 * (16 + 1) * 4 + 15 & ~15;
  static constexpr int kIntoFull = kBarriers, kIntoFree = kIntoFull + 64, kAgainFull = kIntoFree + 64,
                       kAgainFree = kAgainFull + 32, kOutFree = kAgainFree + 32, kOutSent = kOutFree + 64,
                       kGradientFull = kOutSent + 32, kGradientOutFree = kGradientFull + 16,
                       kGradientSent = kGradientOutFree + 16, kLastFull = kGradientSent + 16,
                       kLastFree = kLastFull + 32, kLogitFull = kLastFree + 32, kLogitFree = kLogitFull + 16,
                       kWeights = kLogitFree + 16;
  static constexpr int kSharedBytes = kWeights + 16;
  static_assert(kSharedBytes <= kFormBytes);
};

/// A place in a ring: its slot in the upper bits, the parity of its phase in bit 0.
template <int kDepth>
struct SlotRing {
  std::uint32_t at = 0;
  MACHINE_DEVICE std::uint32_t slot() const { return at >> 1; }
  MACHINE_DEVICE std::uint32_t parity() const { return at & 1; }
  MACHINE_DEVICE void advance() {
    at += 2;
    if (slot() == kDepth) at = parity() ^ 1;
  }
};

/// Which tiles a cluster takes: `cluster`, `cluster` + `clusters`, ...
template <int kHidden>
struct ClusterTiles {
  int cluster, clusters, count;
  MACHINE_DEVICE explicit ClusterTiles(const Plan& plan)
      : cluster(static_cast<int>(blockIdx.x) / kHidden), clusters(static_cast<int>(gridDim.x) / kHidden) {
    count = (plan.tiles - cluster + clusters - 1) / clusters;
  }
  MACHINE_DEVICE int of_batch(int tile) const { return cluster + tile * clusters; }
};

MACHINE_DEVICE std::uint32_t slot_barrier(std::uint32_t first, std::uint32_t slot) {
  return first + slot * 8;
}
/// This warp's arrival, after its writes and reads.
MACHINE_DEVICE void warp_arrive(std::uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

/// A warp of rank 0: inputs into one of its rings, whose barriers are `full` and `free`.
template <int kHidden>
MACHINE_DEVICE void load_wide_inputs(const PipelineArguments& arguments, std::int64_t batch,
                                     std::uint32_t ring, std::uint32_t full, std::uint32_t free) {
  using Map = ClusterMap<kHidden>;
  const ClusterTiles<kHidden> tiles(plan_of(arguments));
  const unsigned char* inputs =
      arguments.inputs + (batch * plan_of(arguments).tiles + tiles.of_batch(0)) * kClusterTileBytes;
  SlotRing<Map::kInputDepth> place;
  for (int tile = 0; tile < tiles.count; ++tile, place.advance()) {
    barrier_wait_unbounded(slot_barrier(free, place.slot()), place.parity() ^ 1);
    barrier_arrive_expect(slot_barrier(full, place.slot()), kClusterTileBytes);
    bulk_load(ring + place.slot() * kClusterTileBytes, inputs, kClusterTileBytes,
              slot_barrier(full, place.slot()));
    inputs += std::int64_t{tiles.clusters} * kClusterTileBytes;
  }
}

/// A thread of a rank in the middle: as soon as a tile has landed, the sender hears of it and the next may come.
template <int kHidden>
MACHINE_DEVICE void acknowledge_inputs(const PipelineArguments& arguments, std::uint32_t shared, int rank) {
  using Map = ClusterMap<kHidden>;
  const ClusterTiles<kHidden> tiles(plan_of(arguments));
  const int depth = Map::lead(rank) + 2, sender_depth = Map::out_depth(rank - 1);
  std::uint32_t slot = 0, parity = 0, sent = 0;
  for (int tile = 0; tile < tiles.count; ++tile) {
    barrier_wait_unbounded(slot_barrier(shared + Map::kIntoFull, slot), parity);
    barrier_arrive_expect(slot_barrier(shared + Map::kIntoFull, slot), kClusterTileBytes);
    barrier_arrive_remote_relaxed(
        remote_address(slot_barrier(shared + Map::kOutSent, sent), static_cast<std::uint32_t>(rank - 1)));
    if (static_cast<int>(++slot) == depth) {
      slot = 0;
      parity ^= 1;
    }
    if (static_cast<int>(++sent) == sender_depth) sent = 0;
  }
}

/// The two warpgroups of rank kRank of kHidden, over all tiles of the cluster.
template <class Format, int kHidden, int kRank>
MACHINE_DEVICE void own_wide_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = ClusterMap<kHidden>;
  constexpr bool kFirst = kRank == 0, kLast = kRank == kHidden - 1;
  constexpr int kLead = Map::lead(kRank), kSteps = 8, kOwnerThreads = 2 * kWarpgroup;
  const Plan& plan = plan_of(arguments);
  const ClusterTiles<kHidden> tiles(plan);
  const int half = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);  // of the layer's outputs
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory);
  const bool leads_block = threadIdx.x == 0;
  const auto tile_address = [&](int first, std::uint32_t slot) {
    return shared + (static_cast<std::uint32_t>(first) + slot) * kClusterTileBytes;
  };
  const auto barrier = [&](int first, std::uint32_t slot) {
    return slot_barrier(shared + static_cast<std::uint32_t>(first), slot);
  };
  const auto of_rank = [&](std::uint32_t address, int rank) {
    return remote_address(address, static_cast<std::uint32_t>(rank));
  };
  if (leads_block) {
    for (int slot = 0; slot < Map::depth_into(kRank) && !kFirst; ++slot)
      barrier_arrive_expect(barrier(Map::kIntoFull, slot), kClusterTileBytes);
    for (int slot = 0; slot < Map::kDepth && !kLast; ++slot)
      barrier_arrive_expect(barrier(Map::kGradientFull, slot), kClusterTileBytes);
  }
  __syncwarp();

  std::uint32_t forward[4 * kSteps], backward[kLast ? 4 : 4 * kSteps];
  const auto load_fragments = [&](std::uint32_t* words, int offset, int steps) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const uint4 four = __ldg(reinterpret_cast<const uint4*>(arguments.image + offset) +
                               (half * steps + step) * kWarpgroup + thread);
      words[4 * step] = four.x;
      words[4 * step + 1] = four.y;
      words[4 * step + 2] = four.z;
      words[4 * step + 3] = four.w;
    }
  };
  load_fragments(forward, forward_fragments(128, kRank), kSteps);
  load_fragments(backward,
                 kLast ? output_fragments(128, kHidden) : backward_fragments(128, kHidden, kRank + 1),
                 kLast ? 1 : kSteps);
  const float* biases =
      reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kRank * 128 + half * 64;
  const float bias[2] = {__ldg(biases + at.first_row()), __ldg(biases + at.first_row() + 8)};

  float gradient[64], bias_gradient[2] = {0, 0};
#pragma unroll
  for (float& sum : gradient) sum = 0;

  const std::uint32_t stored =
      static_cast<std::uint32_t>(half * kTilePanelBytes + (8 * (lane >> 4) + (lane & 7)) * kPanelRowBytes +
                                 (((2 * at.warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
  const auto store_features = [&](std::uint32_t tile, const std::uint32_t* held) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      store_matrices_transposed(tile + stored + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                                held + 4 * step);
    fence_proxy_async_shared();
  };
  // This warpgroup's panel of a staged tile into rank `rank`'s shared memory, as soon as there is room.
  const auto send = [&](std::uint32_t staged, std::uint32_t room, std::uint32_t room_parity,
                        std::uint32_t tile, std::uint32_t full, int rank) {
    named_barrier_aligned(1 + half, kWarpgroup);
    if (thread == 0) {
      const std::uint32_t panel = static_cast<std::uint32_t>(half * kTilePanelBytes);
      barrier_wait_unbounded(room, room_parity);
      bulk_send(of_rank(tile + panel, rank), staged + panel, kTilePanelBytes, of_rank(full, rank));
    }
    __syncwarp();
  };
  // The product of 64 outputs with all 128 features of a tile.
  const auto products = [&](float (&sums)[32], const std::uint32_t* weights, std::uint32_t tile) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      wgmma_held<Format, Factor::kPlain>(sums, weights + 4 * k,
                                         describe(tile) + (k >> 2) * kNextPanel + (k & 3) * kAlong, k > 0);
  };

  SlotRing<Map::depth_into(kRank)> forward_in, backward_in;
  SlotRing<kLast ? Map::kLastDepth : Map::depth_into(kLast ? 0 : kRank + 1)> forward_out;
  SlotRing<Map::out_depth(kRank)> staged;
  SlotRing<kLast ? Map::out_depth(kHidden - 2) : 1> received;
  SlotRing<Map::kDepth> gradient_ring;    // in and out
  SlotRing<kLead + 2> mask_in, mask_out;  // rank 0; the others' masks are found as their inputs are
  const auto mask_word = [&](const auto& input, const auto& mask) -> std::uint32_t& {
    return *(reinterpret_cast<std::uint32_t*>(memory + Map::kMasks) +
             (kFirst ? mask.slot() : input.slot()) * kOwnerThreads + threadIdx.x);
  };
  // A tile's weight gradient is made: its place may be filled again.
  const auto release_inputs = [&] {
    __syncwarp();
    if (lane == 0) {
      if constexpr (kFirst)
        barrier_arrive(barrier(Map::kAgainFree, backward_in.slot()));
      else
        barrier_arrive_remote_relaxed(of_rank(barrier(Map::kOutFree, backward_in.slot()), kRank - 1));
    }
    __syncwarp();
    backward_in.advance();
  };
  const auto wait_for_tile = [&](std::uint32_t full, std::uint32_t parity) {
    if constexpr (kFirst)
      barrier_wait_unbounded(full, parity);
    else
      barrier_wait_cluster_unbounded(full, parity);
  };
  const auto start_forward = [&](float (&sums)[32]) {
    wait_for_tile(barrier(Map::kIntoFull, forward_in.slot()), forward_in.parity());
    if constexpr (kLast) {  // the next tile in this place, and room in the neighbour's staging
      if (leads_block) {
        barrier_arrive_expect(barrier(Map::kIntoFull, forward_in.slot()), kClusterTileBytes);
        barrier_arrive_remote_relaxed(of_rank(barrier(Map::kOutSent, received.slot()), kRank - 1));
      }
      received.advance();
      __syncwarp();
    }
    wgmma_fence();
    products(sums, forward, tile_address(Map::kInto, forward_in.slot()));
    wgmma_commit();
  };
  // Bias, ReLU and rounding of a tile's sums, and on to where its next product is made.
  const auto finish_forward = [&](float (&sums)[32]) {
    wgmma_sums_are_final(sums);
    if constexpr (kFirst) {
      __syncwarp();
      if (lane == 0) barrier_arrive(barrier(Map::kIntoFree, forward_in.slot()));
    }
    std::uint32_t held[16];
    relu_values<Format>(sums, bias, held);
    mask_word(forward_in, mask_in) = positive(held).word[0];
    if constexpr (kLast) {
      barrier_wait_unbounded(barrier(Map::kLastFree, forward_out.slot()), forward_out.parity() ^ 1);
      store_features(tile_address(Map::kLastActivations, forward_out.slot()), held);
      warp_arrive(barrier(Map::kLastFull, forward_out.slot()));
    } else {
      barrier_wait_unbounded(barrier(Map::kOutSent, staged.slot()), staged.parity() ^ 1);
      const std::uint32_t from = tile_address(Map::out(kRank), staged.slot());
      store_features(from, held);
      send(from, barrier(Map::kOutFree, forward_out.slot()), forward_out.parity() ^ 1,
           tile_address(Map::kInto, forward_out.slot()), barrier(Map::kIntoFull, forward_out.slot()),
           kRank + 1);
    }
    forward_in.advance();
    mask_in.advance();
    staged.advance();
    forward_out.advance();
  };

#pragma unroll 1
  for (int tile = 0; tile < min(kLead, tiles.count); ++tile) {
    float sums[32];
    start_forward(sums);
    wgmma_wait<0>();
    finish_forward(sums);
  }

  std::uint32_t held[16];
  // Under way when a tile's turn comes: the weight gradient of the tile before. Then this order of products: forward of
  // the tile that is kLead further, gradient of the activations, weight gradient; each is waited for when the one
  // after it has been started.
  const auto work_on = [&](auto with_forward, bool is_first) {
    constexpr bool kForward = decltype(with_forward)::value;
    float forward_sums[32];
    if constexpr (kForward) start_forward(forward_sums);
    wgmma_wait<kForward ? 1 : 0>();
    wgmma_sums_are_final(gradient);
    if (!is_first) release_inputs();

    // The gradient of the layer's activations, from the next owner's or from that of the logits.
    float sums[32];
    if constexpr (kLast) {
      barrier_wait_unbounded(barrier(Map::kLogitFull, gradient_ring.slot()), gradient_ring.parity());
      wgmma_fence();
      wgmma_held<Format, Factor::kPlain>(
          sums, backward, describe(shared + Map::kLogitGradients + gradient_ring.slot() * kTilePanelBytes),
          0);
    } else {
      barrier_wait_cluster_unbounded(barrier(Map::kGradientFull, gradient_ring.slot()),
                                     gradient_ring.parity());
      if (leads_block) {
        barrier_arrive_expect(barrier(Map::kGradientFull, gradient_ring.slot()), kClusterTileBytes);
        barrier_arrive_remote_relaxed(of_rank(shared + Map::kGradientSent, kRank + 1));
      }
      __syncwarp();
      wgmma_fence();
      products(sums, backward, tile_address(Map::kGradientInto, gradient_ring.slot()));
    }
    wgmma_commit();
    if constexpr (kForward) {
      wgmma_wait<1>();
      finish_forward(forward_sums);
    }
    const Mask<16> mask{{mask_word(backward_in, mask_out)}};
    mask_out.advance();
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    if constexpr (kLast)
      warp_arrive(barrier(Map::kLogitFree, gradient_ring.slot()));
    else if (lane == 0)
      barrier_arrive_remote_relaxed(of_rank(barrier(Map::kGradientOutFree, gradient_ring.slot()), kRank + 1));
    __syncwarp();
    masked<Format>(sums, mask, held);

    // Into the weight gradient, and to the owner before this one.
    if constexpr (kFirst)
      barrier_wait_unbounded(barrier(Map::kAgainFull, backward_in.slot()), backward_in.parity());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_held<Format, Factor::kTurned>(
          gradient, held + 4 * k,
          describe(tile_address(kFirst ? Map::kAgain : Map::kInto, backward_in.slot()), kTilePanelBytes) +
              k * kAcross,
          1);
    wgmma_commit();
    if constexpr (!kFirst) {
      barrier_wait_unbounded(shared + Map::kGradientSent, gradient_ring.slot() ^ 1);
      const std::uint32_t from = tile_address(Map::gradient_out(kRank), 0);
      store_features(from, held);
      send(from, barrier(Map::kGradientOutFree, gradient_ring.slot()), gradient_ring.parity() ^ 1,
           tile_address(Map::kGradientInto, gradient_ring.slot()),
           barrier(Map::kGradientFull, gradient_ring.slot()), kRank - 1);
    }
    gradient_ring.advance();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 pair = Format::unpack(held[i]);
      bias_gradient[i & 1] += pair.x + pair.y;
    }
  };
  int tile = 0;
#pragma unroll 1
  for (; tile + kLead < tiles.count; ++tile) work_on(std::true_type{}, tile == 0);
#pragma unroll 1
  for (; tile < tiles.count; ++tile) work_on(std::false_type{}, tile == 0);
  wgmma_wait<0>();
  wgmma_sums_are_final(gradient);

  float* partial = arguments.partials +
                   static_cast<std::int64_t>(tiles.cluster) * cluster_partial_floats(kHidden) +
                   (kRank * 2 + half) * kWideOwnerRows * kWarpgroup;
  store_quads<64>(partial, gradient, thread);
#pragma unroll
  for (int row = 0; row < 2; ++row) partial[(64 + row) * kWarpgroup + thread] = quad_sum(bias_gradient[row]);
}

/// What the warpgroup of the loss has added up besides weights, over the rows of a warp and then over warps: output
/// biases to row 16 of `partial`, and the loss. sums: [4 * 17] in shared memory.
MACHINE_DEVICE void sum_output_bias(const PipelineArguments& arguments, float* partial,
                                    const float (&output_bias)[4], float loss, float* sums, const Lane& at,
                                    int thread, int cluster, int barrier) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
  if (at.lane == 0) sums[4 * 16 + at.warp] = loss;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = output_bias[i];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += shuffle_xor(sum, distance);
    if (at.lane < 4) sums[at.warp * 16 + at.first_column() + (i & 1) + 8 * (i >> 1)] = sum;
  }
  named_barrier_aligned(barrier, kWarpgroup);
  if (thread < 16)
    partial[16 * kWarpgroup] = (sums[thread] + sums[16 + thread]) + (sums[32 + thread] + sums[48 + thread]);
  if (thread == 0) arguments.block_losses[cluster] = (sums[64] + sums[65]) + (sums[66] + sums[67]);
}

/// The third warpgroup of the last rank: logits, loss and its gradient, and the gradient of the output layer.
template <class Format, int kHidden>
MACHINE_DEVICE void own_loss(const PipelineArguments& arguments, std::int64_t batch, unsigned char* memory) {
  using Map = ClusterMap<kHidden>;
  const Plan& plan = plan_of(arguments);
  const ClusterTiles<kHidden> tiles(plan);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory);
  const auto barrier = [&](int first, std::uint32_t slot) {
    return slot_barrier(shared + static_cast<std::uint32_t>(first), slot);
  };
  if (thread == 0) {
    constexpr std::uint32_t kBytes = 2 * 16 * kPanelRowBytes;
    barrier_arrive_expect(shared + Map::kWeights, kBytes);
    bulk_load(shared + Map::kOutputWeights, arguments.image + output_tile(128, kHidden), kBytes,
              shared + Map::kWeights);
  }
  __syncwarp();
  const float* biases =
      reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kHidden * 128 + at.first_column();
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bias[i] = __ldg(biases + (i & 1) + 8 * (i >> 1));
  const std::int32_t* labels = arguments.labels + batch * plan.batch;
  int label[2];  // of the tile at hand; those of the next are on their way while its gradient is made
  const auto load_labels = [&](int tile) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int sample = tiles.of_batch(tile) * kTileRows + at.first_row() + 8 * h;
      label[h] = sample < plan.batch ? __ldg(labels + sample) : -1;
    }
  };
  load_labels(0);
  float output_gradient[2][8] = {}, output_bias[4] = {}, loss = 0;
  SlotRing<Map::kLastDepth> place;
  SlotRing<Map::kDepth> logit_place;
  barrier_wait_unbounded(shared + Map::kWeights, 0);

  // A tile's part of the output layer's gradient is made while the next tile's logits are.
  std::uint32_t features = 0, before = 0;  // where the activations and the gradient are for it
  const auto weight_products = [&] {
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(
            output_gradient[half], describe(features) + half * kNextPanel + k * kAcross,
            describe(before) + k * kAcross, 1);
    wgmma_commit();
  };
  std::uint32_t freed = 0;  // the barrier to say so at
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    const std::uint32_t activations =
        shared + (static_cast<std::uint32_t>(Map::kLastActivations) + place.slot()) * kClusterTileBytes;
    const std::uint32_t own = shared + Map::kLogitGradients + logit_place.slot() * kTilePanelBytes;
    barrier_wait_unbounded(barrier(Map::kLastFull, place.slot()), place.parity());
    float logits[8];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(
          logits, describe(activations) + (k >> 2) * kNextPanel + (k & 3) * kAlong,
          describe(shared + Map::kOutputWeights) + (k >> 2) * (16 * kPanelRowBytes >> 4) + (k & 3) * kAlong,
          k > 0);
    wgmma_commit();
    if (tile > 0) {
      weight_products();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    wgmma_sums_are_final(logits);
#pragma unroll
    for (int i = 0; i < 8; ++i) logits[i] += bias[(i & 1) + 2 * (i >> 2)];
    std::uint32_t gradient[4];
    loss += narrow_loss<Format>(logits, label, arguments.gradient_scale, at.first_column(), gradient,
                                output_bias);
    if (tile + 1 < tiles.count) load_labels(tile + 1);
    // Before this warp says that its rows are there: behind that, another may already write where these products read.
    wgmma_wait<0>();
    wgmma_sums_are_final(output_gradient[0]);
    wgmma_sums_are_final(output_gradient[1]);
    if (tile > 0) warp_arrive(freed);
    barrier_wait_unbounded(barrier(Map::kLogitFree, logit_place.slot()), logit_place.parity() ^ 1);
    store_rows<1>(own, gradient, at);
    fence_proxy_async_shared();
    warp_arrive(barrier(Map::kLogitFull, logit_place.slot()));
    barrier_wait_unbounded(barrier(Map::kLogitFull, logit_place.slot()), logit_place.parity());
    features = activations;
    before = own;
    freed = barrier(Map::kLastFree, place.slot());
    place.advance();
    logit_place.advance();
  }
  weight_products();
  wgmma_wait<0>();
  wgmma_sums_are_final(output_gradient[0]);
  wgmma_sums_are_final(output_gradient[1]);

  float* partial = arguments.partials +
                   static_cast<std::int64_t>(tiles.cluster) * cluster_partial_floats(kHidden) +
                   kHidden * 2 * kWideOwnerRows * kWarpgroup + thread;
#pragma unroll
  for (int row = 0; row < 16; ++row) partial[row * kWarpgroup] = output_gradient[row / 8][row % 8];
  sum_output_bias(arguments, partial, output_bias, loss, reinterpret_cast<float*>(memory + Map::kSums), at,
                  thread, tiles.cluster, 3);
}

template <class Format, int kHidden>
__global__ void __launch_bounds__(kClusterThreads, 1)
    cluster_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = ClusterMap<kHidden>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(blockIdx.x) % kHidden;
  if (threadIdx.x == 0) {
    for (std::uint32_t slot = 0; slot < 8; ++slot) {
      barrier_init(shared + Map::kIntoFull + slot * 8, 1);
      barrier_init(shared + Map::kIntoFree + slot * 8, 8);
      barrier_init(shared + Map::kOutFree + slot * 8, 8);
      if (slot < 4) barrier_init(shared + Map::kOutSent + slot * 8, 1);
    }
    for (std::uint32_t slot = 0; slot < Map::kLastDepth; ++slot) {
      barrier_init(shared + Map::kLastFull + slot * 8, 8);
      barrier_init(shared + Map::kLastFree + slot * 8, 4);
    }
    for (std::uint32_t slot = 0; slot < Map::kInputDepth; ++slot) {
      barrier_init(shared + Map::kAgainFull + slot * 8, 1);
      barrier_init(shared + Map::kAgainFree + slot * 8, 8);
    }
    for (std::uint32_t slot = 0; slot < Map::kDepth; ++slot) {
      barrier_init(shared + Map::kGradientFull + slot * 8, 1);
      barrier_init(shared + Map::kGradientOutFree + slot * 8, 8);
      barrier_init(shared + Map::kLogitFull + slot * 8, 4);
      barrier_init(shared + Map::kLogitFree + slot * 8, 8);
    }
    barrier_init(shared + Map::kGradientSent, 1);
    barrier_init(shared + Map::kWeights, 1);
    barrier_init_fence();
  }
  cluster_sync();
  const std::int64_t batch = next_batch(arguments.state);
  // Inputs stay as they are, so those who load them need not wait.
  const bool loads_inputs = rank == 0 && threadIdx.x / kWarpgroup == 2;
  if (!loads_inputs) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  if (rank == kHidden - 1) {
    if (threadIdx.x / kWarpgroup == 2) {
      registers_decrease<kLossRegisters>();
      own_loss<Format, kHidden>(arguments, batch, memory);
    } else {
      registers_increase<kLastOwnerRegisters>();
      own_wide_layer<Format, kHidden, kHidden - 1>(arguments, memory);
    }
  } else if (threadIdx.x / kWarpgroup == 2) {
    registers_decrease<kLoadRegisters>();
    if (rank == 0 && threadIdx.x == 2 * kWarpgroup)
      load_wide_inputs<kHidden>(arguments, batch, shared + Map::kInto * kClusterTileBytes,
                                shared + Map::kIntoFull, shared + Map::kIntoFree);
    if (rank == 0 && threadIdx.x == 2 * kWarpgroup + 32)
      load_wide_inputs<kHidden>(arguments, batch, shared + Map::kAgain * kClusterTileBytes,
                                shared + Map::kAgainFull, shared + Map::kAgainFree);
    if (rank > 0 && threadIdx.x == 2 * kWarpgroup) acknowledge_inputs<kHidden>(arguments, shared, rank);
    __syncwarp();
  } else {
    registers_increase<kOwnerRegisters>();
    if (rank == 0) own_wide_layer<Format, kHidden, 0>(arguments, memory);
    if constexpr (kHidden > 2)
      if (rank == 1) own_wide_layer<Format, kHidden, 1>(arguments, memory);
    if constexpr (kHidden > 3)
      if (rank == 2) own_wide_layer<Format, kHidden, 2>(arguments, memory);
  }
  cluster_sync();  // nobody leaves while a neighbour may still write to its barriers
}

}  // namespace headroom::fused
