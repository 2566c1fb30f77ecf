// A whole step's work in a cluster of SMs for networks of 65 to 128: every SM owns a hidden layer, and tiles flow past.
//
// The same idea as pipeline.cuh, with room for layers four times as large: an owner's two warpgroups each hold half of
// the layer's outputs, its weights and those of the layer behind it as left factors in registers, and the sums of its
// weight gradient. Activations and gradients of a tile go to the neighbour's shared memory by bulk copies, which
// its barrier counts.
//
//   in:    rank 0 loads inputs; rank r > 0 gets H of rank r - 1
//   out:   H to rank r + 1, dZ to rank r - 1; a tile is two panels, each made and sent by one warpgroup
//   last:  both warpgroups of the last rank make all logits of a tile, as each needs their gradient
//   waits: into full (the tile has landed; a local thread announces its bytes), out free (the neighbour has used up the
//          tile before), out sent (a tile has left its staging buffer), gradient full, gradient out free
#pragma once

#include "fused/pipeline.cuh"

namespace headroom::fused {

constexpr int kClusterTileBytes = 2 * kTilePanelBytes, kClusterThreads = 2 * kWarpgroup;

template <int kHidden>
struct ClusterMap {
  static_assert(kHidden >= 2 && kHidden <= 4);
  /// Tiles that rank `rank` is ahead with its forward work.
  FUSED_BOTH static constexpr int lead(int rank) {
    const int behind = 2 * (kHidden - 1 - rank);
    return behind == 0 ? 0 : behind < 6 ? behind + 1 : 6;
  }
  FUSED_BOTH static constexpr int depth_into(int rank) {
    return rank == 0 ? lead(0) + 2 : lead(rank - 1) + 1;
  }
  static constexpr int kDepth = 2;  // of the other rings
  // Tiles from the start. Rank 0 has one tile more that comes in, and no gradient that goes out.
  static constexpr int kInto = 0, kGradientOut = 7, kOut = kGradientOut + kDepth,
                       kGradientInto = kOut + kDepth;
  static_assert(depth_into(0) <= kOut && depth_into(1) <= kGradientOut);
  // The last rank's: its activations, two tiles, and for each warpgroup a panel of the logits' gradient.
  static constexpr int kLastActivations = kOut, kLogitGradients = kGradientInto;
  static constexpr int kOutputWeights = (kLogitGradients + 1) * kClusterTileBytes;
  static constexpr int kMasks = (kGradientInto + kDepth) * kClusterTileBytes;
  static constexpr int kSums = kMasks + 7 * kClusterThreads * 4;
  static constexpr int kBarriers = kSums + 4 * (16 + 1) * 4 + 15 & ~15;
  static constexpr int kIntoFull = kBarriers, kIntoFree = kIntoFull + 64, kOutFree = kIntoFree + 64,
                       kOutSent = kOutFree + 64, kGradientFull = kOutSent + 16,
                       kGradientOutFree = kGradientFull + 16, kWeights = kGradientOutFree + 16;
  static constexpr int kSharedBytes = kWeights + 16;
  static_assert(kSharedBytes <= 227 * 1024);
};

/// A place in a ring: its slot in the upper bits, the parity of its phase in bit 0.
template <int kDepth>
struct SlotRing {
  std::uint32_t at = 0;
  FUSED_DEVICE std::uint32_t slot() const { return at >> 1; }
  FUSED_DEVICE std::uint32_t parity() const { return at & 1; }
  FUSED_DEVICE void advance() {
    at += 2;
    if (slot() == kDepth) at = parity() ^ 1;
  }
};

/// Rank kRank of kHidden, over all tiles of its cluster; `half`: of the layer's outputs, 64 * half on.
template <class Format, int kHidden, int kRank>
FUSED_DEVICE void own_wide_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = ClusterMap<kHidden>;
  constexpr bool kFirst = kRank == 0, kLast = kRank == kHidden - 1;
  constexpr int kLead = Map::lead(kRank), kSteps = 8;
  const Plan& plan = arguments.plan;
  const int half = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory);
  const int cluster = static_cast<int>(blockIdx.x) / kHidden,
            clusters = static_cast<int>(gridDim.x) / kHidden;
  const int tiles = (plan.tiles - cluster + clusters - 1) / clusters;
  const bool leads_block = threadIdx.x == 0;
  const auto tile_address = [&](int first, std::uint32_t slot) {
    return shared + (static_cast<std::uint32_t>(first) + slot) * kClusterTileBytes;
  };
  const auto barrier = [&](int first, std::uint32_t slot) {
    return shared + static_cast<std::uint32_t>(first) + slot * 8;
  };
  const auto of_rank = [&](std::uint32_t address, int rank) {
    return remote_address(address, static_cast<std::uint32_t>(rank));
  };

  const auto load_inputs = [&](int tile, std::uint32_t slot) {
    const std::int64_t of_batch =
        arguments.state->batch * plan.tiles + cluster + static_cast<std::int64_t>(tile) * clusters;
    barrier_expect(barrier(Map::kIntoFull, slot), kClusterTileBytes);
    bulk_load(tile_address(Map::kInto, slot), arguments.inputs + of_batch * kClusterTileBytes,
              kClusterTileBytes, barrier(Map::kIntoFull, slot));
  };
  if (leads_block) {
    for (int slot = 0; slot < Map::depth_into(kRank); ++slot) {
      if (!kFirst)
        barrier_expect(barrier(Map::kIntoFull, slot), kClusterTileBytes);
      else if (slot < tiles)
        load_inputs(slot, slot);
    }
    for (int slot = 0; slot < Map::kDepth && !kLast; ++slot)
      barrier_expect(barrier(Map::kGradientFull, slot), kClusterTileBytes);
    if (kLast) {
      constexpr std::uint32_t kBytes = 2 * 16 * kPanelRowBytes;
      barrier_expect(shared + Map::kWeights, kBytes);
      bulk_load(shared + Map::kOutputWeights, arguments.image + output_tile(128, kHidden, 1), kBytes,
                shared + Map::kWeights);
    }
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
  float output_gradient[kLast ? 8 : 1] = {}, output_bias[4] = {}, loss = 0;

  const std::uint32_t stored =
      static_cast<std::uint32_t>(half * kTilePanelBytes + (8 * (lane >> 4) + (lane & 7)) * kPanelRowBytes +
                                 (((2 * at.warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
  const auto store_features = [&](std::uint32_t tile, const std::uint32_t* held) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      store_matrices_turned(tile + stored + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                            held + 4 * step);
    shared_writes_to_async();
  };
  // This warpgroup's panel of a staged tile into rank `rank`'s shared memory.
  const auto send = [&](std::uint32_t staged, std::uint32_t tile, std::uint32_t full, int rank) {
    named_barrier(1 + half, kWarpgroup);
    if (thread == 0) {
      const std::uint32_t panel = static_cast<std::uint32_t>(half * kTilePanelBytes);
      bulk_send(of_rank(tile + panel, rank), staged + panel, kTilePanelBytes, of_rank(full, rank));
    }
    __syncwarp();
  };
  // The product of 64 outputs with all 128 features of a tile.
  const auto products = [&](float (&sums)[32], const std::uint32_t* weights, std::uint32_t tile) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      multiply_held<Format, Factor::kPlain>(
          sums, weights + 4 * k,
          describe(tile + static_cast<std::uint32_t>((k >> 2) * kTilePanelBytes)) + (k & 3) * kAlong, k > 0);
  };

  SlotRing<Map::depth_into(kRank)> forward_in, backward_in;
  SlotRing<kLast ? 1 : Map::depth_into(kLast ? 0 : kRank + 1)> forward_out;
  SlotRing<Map::kDepth> staged, gradient_in, gradient_out;
  const auto mask_word = [&]() -> std::uint32_t& {
    return *(reinterpret_cast<std::uint32_t*>(memory + Map::kMasks) + forward_out.slot() * kClusterThreads +
             threadIdx.x);
  };
  // The tile is used up: its place may be filled again.
  const auto release_inputs = [&](int tile) {
    if constexpr (kFirst) {
      if (lane == 0) barrier_arrive(barrier(Map::kIntoFree, backward_in.slot()));
      if (leads_block && tile + Map::depth_into(0) < tiles) {
        barrier_wait(barrier(Map::kIntoFree, backward_in.slot()), backward_in.parity());
        load_inputs(tile + Map::depth_into(0), backward_in.slot());
      }
      __syncwarp();
    } else {
      if (lane == 0) barrier_arrive_remote(of_rank(barrier(Map::kOutFree, backward_in.slot()), kRank - 1));
    }
    backward_in.advance();
  };
  if (kLast) barrier_wait(shared + Map::kWeights, 0);
  const std::int32_t* labels = arguments.labels + (kLast ? arguments.state->batch * plan.batch : 0);

#pragma unroll 1
  for (int tile = -kLead; tile < tiles; ++tile) {
    float sums[32];
    std::uint32_t held[16];
    Mask<16> mask;

    // Forward.
    if (tile + kLead < tiles) {
      barrier_wait_cluster(barrier(Map::kIntoFull, forward_in.slot()), forward_in.parity());
      if (!kFirst && leads_block) {  // the next tile in this place, and room in the neighbour's staging
        barrier_expect(barrier(Map::kIntoFull, forward_in.slot()), kClusterTileBytes);
        barrier_arrive_remote(of_rank(barrier(Map::kOutSent, staged.slot()), kRank - 1));
      }
      __syncwarp();
      products_begin();
      products(sums, forward, tile_address(Map::kInto, forward_in.slot()));
      products_commit();
      products_wait<0>();
      sums_are_final(sums);
      forward_in.advance();
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[i] += bias[i >> 1 & 1];
      mask = relu<Format>(sums, held);
      if constexpr (!kLast) {
        mask_word() = mask.word[0];
        barrier_wait_cluster(barrier(Map::kOutFree, forward_out.slot()), forward_out.parity() ^ 1);
        barrier_wait_cluster(barrier(Map::kOutSent, staged.slot()), staged.parity() ^ 1);
        const std::uint32_t from = tile_address(Map::kOut, staged.slot());
        store_features(from, held);
        send(from, tile_address(Map::kInto, forward_out.slot()), barrier(Map::kIntoFull, forward_out.slot()),
             kRank + 1);
      }
    }
    staged.advance();                             // of the owner before in the last rank
    if constexpr (!kLast) forward_out.advance();  // so this is now the place of this very tile
    if (tile < 0) continue;

    // The gradient of the layer's activations: from the next owner's, or from the loss.
    if constexpr (kLast) {
      const std::uint32_t activations =
          tile_address(Map::kLastActivations, static_cast<std::uint32_t>(tile & 1));
      store_features(activations, held);
      named_barrier(3, kClusterThreads);  // the tile is whole
      float logits[8];
      products_begin();
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        multiply_shared<Format, Factor::kPlain, Factor::kPlain>(
            logits,
            describe(activations + static_cast<std::uint32_t>((k >> 2) * kTilePanelBytes)) + (k & 3) * kAlong,
            describe(shared + Map::kOutputWeights +
                     static_cast<std::uint32_t>((k >> 2) * 16 * kPanelRowBytes)) +
                (k & 3) * kAlong,
            k > 0);
      products_commit();
      int label[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int sample = (cluster + tile * clusters) * kTileRows + at.first_row() + 8 * h;
        label[h] = sample < plan.batch ? __ldg(labels + sample) : -1;
      }
      const float* output_biases =
          reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kHidden * 128;
      float output_bias_of[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        output_bias_of[i] = __ldg(output_biases + at.first_column() + (i & 1) + 8 * (i >> 1));
      products_wait<0>();
      sums_are_final(logits);
#pragma unroll
      for (int i = 0; i < 8; ++i) logits[i] += output_bias_of[(i & 1) + 2 * (i >> 2)];
      std::uint32_t logit_gradient[4];
      loss += narrow_loss<Format>(logits, label, arguments.gradient_scale, at.first_column(), logit_gradient,
                                  output_bias);
      const std::uint32_t own =
          tile_address(Map::kLogitGradients, 0) + static_cast<std::uint32_t>(half * kTilePanelBytes);
      store_rows<1>(own, logit_gradient, at);
      shared_writes_to_async();
      named_barrier(1 + half, kWarpgroup);  // the warpgroup's copy of the logits' gradient is whole
      products_begin();
      multiply_held<Format, Factor::kPlain>(sums, backward, describe(own), 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_held<Format, Factor::kTurned>(output_gradient, held + 4 * k, describe(own) + k * kAcross, 1);
      products_commit();
      products_wait<0>();
      sums_are_final(sums);
      sums_are_final(output_gradient);
    } else {
      barrier_wait_cluster(barrier(Map::kGradientFull, gradient_in.slot()), gradient_in.parity());
      if (leads_block) barrier_expect(barrier(Map::kGradientFull, gradient_in.slot()), kClusterTileBytes);
      __syncwarp();
      products_begin();
      products(sums, backward, tile_address(Map::kGradientInto, gradient_in.slot()));
      products_commit();
      mask.word[0] = mask_word();
      products_wait<0>();
      sums_are_final(sums);
      if (lane == 0)
        barrier_arrive_remote(of_rank(barrier(Map::kGradientOutFree, gradient_in.slot()), kRank + 1));
      gradient_in.advance();
    }

    // The gradient before the ReLU, to the owner before this one and into the weight gradient.
    masked<Format>(sums, mask, held);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      multiply_held<Format, Factor::kTurned>(
          gradient, held + 4 * k,
          describe(tile_address(Map::kInto, backward_in.slot()), kTilePanelBytes) + k * kAcross, 1);
    products_commit();
    if constexpr (!kFirst) {
      barrier_wait_cluster(barrier(Map::kGradientOutFree, gradient_out.slot()), gradient_out.parity() ^ 1);
      const std::uint32_t from = tile_address(Map::kGradientOut, gradient_out.slot());
      store_features(from, held);
      send(from, tile_address(Map::kGradientInto, gradient_out.slot()),
           barrier(Map::kGradientFull, gradient_out.slot()), kRank - 1);
      gradient_out.advance();
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 pair = Format::unpack(held[i]);
      bias_gradient[i & 1] += pair.x + pair.y;
    }
    products_wait<0>();
    sums_are_final(gradient);
    release_inputs(tile);
  }

  float* partial =
      arguments.partials + static_cast<std::int64_t>(cluster) * cluster_partial_floats(kHidden) + thread;
  float* own_partial = partial + (kRank * 2 + half) * kWideOwnerRows * kWarpgroup;
#pragma unroll
  for (int row = 0; row < 64; ++row) own_partial[row * kWarpgroup] = gradient[row];
#pragma unroll
  for (int row = 0; row < 2; ++row) own_partial[(64 + row) * kWarpgroup] = quad_sum(bias_gradient[row]);
  if constexpr (kLast) {
    partial += kHidden * 2 * kWideOwnerRows * kWarpgroup;
#pragma unroll
    for (int row = 0; row < 8; ++row) partial[(half * 8 + row) * kWarpgroup] = output_gradient[row];
    if (half == 0) {
      // Over the rows of a warp, then over warps.
      float* sums = reinterpret_cast<float*>(memory + Map::kSums);
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
      if (lane == 0) sums[4 * 16 + at.warp] = loss;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = output_bias[i];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) sum += shuffle_xor(sum, distance);
        if (lane < 4) sums[at.warp * 16 + at.first_column() + (i & 1) + 8 * (i >> 1)] = sum;
      }
      named_barrier(1, kWarpgroup);
      if (thread < 16)
        partial[16 * kWarpgroup] =
            (sums[thread] + sums[16 + thread]) + (sums[32 + thread] + sums[48 + thread]);
      if (thread == 0) arguments.block_losses[cluster] = (sums[64] + sums[65]) + (sums[66] + sums[67]);
    }
  }
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
    }
    for (std::uint32_t slot = 0; slot < Map::kDepth; ++slot) {
      barrier_init(shared + Map::kOutSent + slot * 8, 1);
      barrier_init(shared + Map::kGradientFull + slot * 8, 1);
      barrier_init(shared + Map::kGradientOutFree + slot * 8, 8);
    }
    barrier_init(shared + Map::kWeights, 1);
    barrier_init_fence();
  }
  cluster_sync();
  wait_for_kernel_before();
  let_next_kernel_start();
  if (rank == 0) own_wide_layer<Format, kHidden, 0>(arguments, memory);
  if constexpr (kHidden > 2)
    if (rank == 1) own_wide_layer<Format, kHidden, 1>(arguments, memory);
  if constexpr (kHidden > 3)
    if (rank == 2) own_wide_layer<Format, kHidden, 2>(arguments, memory);
  if (rank == kHidden - 1) own_wide_layer<Format, kHidden, kHidden - 1>(arguments, memory);
  cluster_sync();  // nobody leaves while a neighbour may still write to its barriers
}

}  // namespace headroom::fused
