// A whole step's work on an SM for networks of 33 to 64 and batches that leave an SM few tiles: two warpgroups take a tile each
// through all layers, two others sum the weight gradients.
//
// With a tile or two an SM the time is a tile's way, step after step. So nothing else is on it: activations stay in registers as
// the next product's left factor, and what the sums need, rounded, is stored beside the product that runs. Weights lie in shared
// memory once, as they do in device memory, a barrier for each layer, since the first is needed first. Weight gradients are
// products over rows, dW = dZ^T * H, of which both factors are read from shared memory, across the rows; layers are shared out to the
// two warpgroups in turns, and the sums of a layer leave as soon as the last tile has passed it.
//
//   in:     inputs in tiles, labels, image; see kernels.h
//   out:    partial sums of an SM; block_losses
//   waits:  weights of each layer; inputs, a ring of two a chain; of each chain and layer, both factors are stored (full) and
//           read (free)
//   bits:   a warpgroup adds up a layer's tiles in order, the first chain's before the second's.
// A tile beyond the last is loaded as the last one is; none of its rows is of the batch, so its gradients are zero.
#pragma once

#include "fused/chain.cuh"
#include "machine/barriers.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

constexpr int kApartChains = 2, kApartSides = 2, kApartThreads = (kApartChains + kApartSides) * kWarpgroup;

template <int kHidden>
struct ApartMap {
  // The image as it lies in device memory.
  static constexpr int kOutputWeights = kHidden * kTilePanelBytes,
                       kBiases = kOutputWeights + 16 * kPanelRowBytes, kBiasBytes = 4 * (kHidden * 64 + 16);
  // Of a chain, in panels: its ring of inputs, each layer's activations and gradients; then the logits' gradients.
  static constexpr int kInputDepth = 2;
  static constexpr int kChains = (kBiases + kBiasBytes + 1023) / 1024 * 1024;
  static constexpr int kLogitGradients = (kInputDepth + 2 * kHidden) * kTilePanelBytes,
                       kChainBytes = kLogitGradients + kNarrowTileBytes;
  MACHINE_BOTH static constexpr int chain(int of) { return kChains + of * kChainBytes; }
  MACHINE_BOTH static constexpr int activations(int layer) { return (kInputDepth + layer) * kTilePanelBytes; }
  MACHINE_BOTH static constexpr int gradients(int layer) {
    return (kInputDepth + kHidden + layer) * kTilePanelBytes;
  }
  static constexpr int kOnes = kChains + kApartChains * kChainBytes;
  static constexpr int kSums = kOnes + 16 * kPanelRowBytes;  // what the chains' warps add up at the end
  static constexpr int kBarriers = kSums + 4 * kApartChains * (16 + 1) * 4;
  MACHINE_BOTH static constexpr int weights_full(int layer) { return kBarriers + 8 * layer; }
  MACHINE_BOTH static constexpr int inputs_full(int chain, int slot) {
    return weights_full(kHidden + 1) + 8 * (chain * kInputDepth + slot);
  }
  /// Behind the last layer: what the output layer's gradients are made of.
  MACHINE_BOTH static constexpr int full(int chain, int layer) {
    return inputs_full(kApartChains, 0) + 16 * (chain * (kHidden + 1) + layer);
  }
  MACHINE_BOTH static constexpr int free(int chain, int layer) { return full(chain, layer) + 8; }
  static constexpr int kSharedBytes = full(kApartChains, 0);
  static_assert(kBarriers % 16 == 0 && kSharedBytes <= kFormBytes);
};

/// A block's rounds: in each a chain takes a tile.
struct ApartRounds {
  int count;
  MACHINE_DEVICE explicit ApartRounds(const Plan& plan)
      : count((plan.tiles - static_cast<int>(blockIdx.x) + kApartChains * static_cast<int>(gridDim.x) - 1) /
              (kApartChains * static_cast<int>(gridDim.x))) {}
  MACHINE_DEVICE static int tile(int round, int chain) {
    return (kApartChains * round + chain) * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  }
};

template <int kHidden>
MACHINE_DEVICE void load_apart_inputs(const PipelineArguments& arguments, std::int64_t batch,
                                      std::uint32_t shared, int round, int chain) {
  using Map = ApartMap<kHidden>;
  const int slot = round % Map::kInputDepth,
            tile = min(ApartRounds::tile(round, chain), plan_of(arguments).tiles - 1);
  const std::uint32_t full = shared + static_cast<std::uint32_t>(Map::inputs_full(chain, slot));
  barrier_arrive_expect(full, kTilePanelBytes);
  bulk_load(shared + static_cast<std::uint32_t>(Map::chain(chain) + slot * kTilePanelBytes),
            arguments.inputs + (batch * plan_of(arguments).tiles + tile) * kTilePanelBytes, kTilePanelBytes,
            full);
}

/// A warpgroup that takes tiles through all layers.
template <class Format, int kHidden>
MACHINE_DEVICE void take_tiles(const PipelineArguments& arguments, std::int64_t batch, unsigned char* memory,
                               int chain) {
  using Map = ApartMap<kHidden>;
  const Plan& plan = plan_of(arguments);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory),
                      own = shared + static_cast<std::uint32_t>(Map::chain(chain));
  const float* biases = reinterpret_cast<const float*>(memory + Map::kBiases);
  const ApartRounds rounds(plan);
  const std::int32_t* labels = arguments.labels + batch * plan.batch;
  const auto weights = [&](int layer) {
    return shared + static_cast<std::uint32_t>(layer * kTilePanelBytes);
  };
  const auto wait_for_weights = [&](int layer) {
    barrier_wait_unbounded(shared + static_cast<std::uint32_t>(Map::weights_full(layer)), 0);
  };
  const auto wait_for_room = [&](int round, int layer) {
    barrier_wait_unbounded(shared + static_cast<std::uint32_t>(Map::free(chain, layer)),
                           static_cast<std::uint32_t>(round & 1) ^ 1);
  };
  const auto hand_over = [&](int layer) {
    fence_proxy_async_shared();
    __syncwarp();
    if (at.lane == 0) barrier_arrive(shared + static_cast<std::uint32_t>(Map::full(chain, layer)));
  };
  float output_bias[4] = {}, loss = 0;

#pragma unroll 1
  for (int round = 0; round < rounds.count; ++round) {
    int label[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int sample = ApartRounds::tile(round, chain) * kTileRows + at.first_row() + 8 * half;
      label[half] = sample < plan.batch ? __ldg(labels + sample) : -1;
    }
    float sums[2][32], logits[8];
    std::uint32_t held[16];

    // Forward. The biases are where the next product's sums begin.
    wait_for_weights(0);
    begin_with_bias(sums[0], biases, at);
    const int slot = round % Map::kInputDepth;
    barrier_wait_unbounded(shared + static_cast<std::uint32_t>(Map::inputs_full(chain, slot)),
                           static_cast<std::uint32_t>(round / Map::kInputDepth & 1));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(
          sums[0], describe(own + static_cast<std::uint32_t>(slot * kTilePanelBytes)) + k * kAlong,
          describe(weights(0)) + k * kAlong, 1);
    wgmma_commit();
#pragma unroll
    for (int layer = 1; layer <= kHidden; ++layer) {
      float (&made)[32] = sums[(layer - 1) % 2];
      float (&next)[32] = sums[layer % 2];
      if (layer < kHidden)
        begin_with_bias(next, biases + layer * 64, at);
      else
        begin_with_bias(logits, biases + layer * 64, at);
      wait_for_weights(layer);
      wgmma_wait<0>();
      wgmma_sums_are_final(made);
      relu<Format>(made, held);
      wgmma_fence();
      if (layer < kHidden)
        forward_products<Format, 4>(next, held, weights(layer), kTilePanelBytes);
      else
        forward_products<Format, 4>(logits, held, weights(layer), kTilePanelBytes);
      wgmma_commit();
      wait_for_room(round, layer);
      store_rows<4>(own + static_cast<std::uint32_t>(Map::activations(layer - 1)), held, at);
    }
    wgmma_wait<0>();
    wgmma_sums_are_final(logits);

    std::uint32_t logit_gradient[4];
    loss += narrow_loss<Format, true>(logits, label, arguments.gradient_scale, at.first_column(),
                                      logit_gradient, output_bias);

    // Backward.
    wgmma_fence();
    backward_products<Format, 1>(sums[0], logit_gradient, weights(kHidden), kTilePanelBytes, 0);
    wgmma_commit();
    store_matrices(own + Map::kLogitGradients + at.narrow_place(), logit_gradient);
    hand_over(kHidden);
    std::uint32_t positive[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) positive[i] = Format::positive(held[i]);
#pragma unroll
    for (int layer = kHidden - 1; layer >= 0; --layer) {
      wgmma_wait<0>();
      wgmma_sums_are_final(sums[0]);
#pragma unroll
      for (int i = 0; i < 16; ++i) held[i] = Format::pack(sums[0][2 * i], sums[0][2 * i + 1]) & positive[i];
      if (layer > 0) {
        wgmma_fence();
        backward_products<Format, 4>(sums[0], held, weights(layer), kTilePanelBytes, 0);
        wgmma_commit();
      } else {
        wait_for_room(round, 0);
      }
      store_rows<4>(own + static_cast<std::uint32_t>(Map::gradients(layer)), held, at);
      hand_over(layer);
      if (layer > 0) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
          load_matrices(own + static_cast<std::uint32_t>(Map::activations(layer - 1)) + at.place(step),
                        positive + 4 * step);
#pragma unroll
        for (int i = 0; i < 16; ++i) positive[i] = Format::positive(positive[i]);
      }
    }
  }

  // Over the rows of a warp, then over warps.
  float* warp_sums = reinterpret_cast<float*>(memory + Map::kSums);
  constexpr int kChainWarps = 4 * kApartChains;
  const int warp = chain * 4 + at.warp;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
  if (at.lane == 0) warp_sums[kChainWarps * 16 + warp] = loss;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = output_bias[i];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += shuffle_xor(sum, distance);
    if (at.lane < 4) warp_sums[warp * 16 + at.first_column() + (i & 1) + 8 * (i >> 1)] = sum;
  }
  named_barrier_aligned(1, kApartChains * kWarpgroup);
  if (chain != 0) return;
  if (thread < 16) {
    float sum = 0;
#pragma unroll
    for (int of = 0; of < kChainWarps; ++of) sum += warp_sums[of * 16 + thread];
    arguments.partials[blockIdx.x * pipeline_partial_floats(kHidden) +
                       (kHidden * kOwnerRows + 8) * kWarpgroup + thread] = sum;
  }
  if (thread == 32) {
    float sum = 0;
#pragma unroll
    for (int of = 0; of < kChainWarps; ++of) sum += warp_sums[kChainWarps * 16 + of];
    arguments.block_losses[blockIdx.x] = sum;
  }
}

/// A warpgroup that sums weight gradients: of the output layer and every second before it (kSide 0), or of the others.
template <class Format, int kHidden, int kSide>
MACHINE_DEVICE void sum_gradients(const PipelineArguments& arguments, std::int64_t batch,
                                  unsigned char* memory) {
  using Map = ApartMap<kHidden>;
  constexpr int kLayers = (kHidden + 1) / 2;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const std::uint32_t shared = shared_address(memory);
  const ApartRounds rounds(plan_of(arguments));
  float* partial = arguments.partials + blockIdx.x * pipeline_partial_floats(kHidden);
  float gradient[kLayers][36], output[8];  // biases' in column 64
#pragma unroll
  for (int of = 0; of < kLayers; ++of)
#pragma unroll
    for (float& sum : gradient[of]) sum = 0;
#pragma unroll
  for (float& sum : output) sum = 0;

#pragma unroll 1
  for (int round = 0; round < rounds.count; ++round) {
    const std::uint32_t parity = static_cast<std::uint32_t>(round & 1);
    const auto both_chains = [&](int layer, const auto& multiply) {
#pragma unroll
      for (int chain = 0; chain < kApartChains; ++chain) {
        barrier_wait_unbounded(shared + static_cast<std::uint32_t>(Map::full(chain, layer)), parity);
        wgmma_fence();
        multiply(shared + static_cast<std::uint32_t>(Map::chain(chain)));
        wgmma_commit();
      }
      wgmma_wait<0>();
    };
    const auto give_room = [&](int layer) {
      if (lane == 0)
#pragma unroll
        for (int chain = 0; chain < kApartChains; ++chain)
          barrier_arrive(shared + static_cast<std::uint32_t>(Map::free(chain, layer)));
    };
    const bool is_last = round + 1 == rounds.count;
    if constexpr (kSide == 0) {
      both_chains(kHidden, [&](std::uint32_t tile) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(
              output,
              describe(tile + static_cast<std::uint32_t>(Map::activations(kHidden - 1))) + k * kAcross,
              describe_narrow(tile + Map::kLogitGradients) + k * kAcrossNarrow, 1);
      });
      wgmma_sums_are_final(output);
      give_room(kHidden);
      if (is_last)
#pragma unroll
        for (int row = 0; row < 8; ++row)
          partial[(kHidden * kOwnerRows + row) * kWarpgroup + thread] = output[row];
    }
#pragma unroll
    for (int layer = kHidden - 1; layer >= 0; --layer) {
      if ((kHidden - layer) % 2 != kSide) continue;
      float (&sums)[36] = gradient[layer / 2];
      both_chains(layer, [&](std::uint32_t tile) {
        const std::uint32_t before =
            tile + static_cast<std::uint32_t>(layer == 0 ? round % Map::kInputDepth * kTilePanelBytes
                                                         : Map::activations(layer - 1));
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(
              sums, describe(tile + static_cast<std::uint32_t>(Map::gradients(layer))) + k * kAcross,
              describe_both(before, shared + Map::kOnes) + k * kAcrossFirst, 1);
      });
      wgmma_sums_are_final(sums);
      give_room(layer);
      if (is_last) {
        store_layer_sums(partial + layer * kOwnerRows * kWarpgroup, sums, thread);
      } else if (layer == 0 && thread == 0 && round + Map::kInputDepth < rounds.count) {
#pragma unroll
        for (int chain = 0; chain < kApartChains; ++chain) {
          barrier_wait_unbounded(shared + static_cast<std::uint32_t>(Map::free(chain, 0)), parity);
          load_apart_inputs<kHidden>(arguments, batch, shared, round + Map::kInputDepth, chain);
        }
      }
      __syncwarp();
    }
  }
}

template <class Format, int kHidden>
__global__ void __launch_bounds__(kApartThreads, 1)
    apart_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = ApartMap<kHidden>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const bool first_thread = threadIdx.x % kWarpgroup == 0;
  const std::int64_t batch = next_batch(arguments.state);  // asked for before barriers are prepared
  if (first_thread && warpgroup < kApartChains) {
#pragma unroll
    for (int layer = 0; layer <= kHidden; ++layer) {
      barrier_init(shared + static_cast<std::uint32_t>(Map::full(0, layer) +
                                                       warpgroup * (Map::full(1, 0) - Map::full(0, 0))),
                   4);
      barrier_init(shared + static_cast<std::uint32_t>(Map::free(0, layer) +
                                                       warpgroup * (Map::full(1, 0) - Map::full(0, 0))),
                   4);
    }
    barrier_init_fence();
  } else if (first_thread) {
    if (warpgroup == kApartChains) {
#pragma unroll
      for (int slot = 0; slot < kApartChains * Map::kInputDepth; ++slot)
        barrier_init(shared + static_cast<std::uint32_t>(Map::inputs_full(0, slot)), 1);
    } else {
#pragma unroll
      for (int layer = 0; layer <= kHidden; ++layer)
        barrier_init(shared + static_cast<std::uint32_t>(Map::weights_full(layer)), 1);
    }
    barrier_init_fence();
  }
  if (threadIdx.x < 16 * kPanelRowBytes / 16) {
    const std::uint32_t ones = Format::pack(1, 1);
    reinterpret_cast<uint4*>(memory + Map::kOnes)[threadIdx.x] = {ones, ones, ones, ones};
  }
  fence_proxy_async_shared();
  __syncthreads();
  // Inputs stay as they are, so they need not wait.
  if (threadIdx.x == kApartChains * kWarpgroup) {
    const ApartRounds rounds(plan_of(arguments));
#pragma unroll
    for (int round = 0; round < Map::kInputDepth; ++round)
#pragma unroll
      for (int chain = 0; chain < kApartChains; ++chain)
        if (round < rounds.count) load_apart_inputs<kHidden>(arguments, batch, shared, round, chain);
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x == (kApartChains + 1) * kWarpgroup) {
#pragma unroll
    for (int layer = 0; layer <= kHidden; ++layer) {
      const std::uint32_t full = shared + static_cast<std::uint32_t>(Map::weights_full(layer));
      const std::uint32_t bytes = layer < kHidden ? kTilePanelBytes : 16 * kPanelRowBytes;
      barrier_arrive_expect(full, bytes + (layer == 0 ? Map::kBiasBytes : 0));
      if (layer == 0) bulk_load(shared + Map::kBiases, arguments.image + Map::kBiases, Map::kBiasBytes, full);
      bulk_load(shared + static_cast<std::uint32_t>(layer * kTilePanelBytes),
                arguments.image + layer * kTilePanelBytes, bytes, full);
    }
  }
  __syncwarp();
  if (warpgroup < kApartChains)
    take_tiles<Format, kHidden>(arguments, batch, memory, warpgroup);
  else if (warpgroup == kApartChains)
    sum_gradients<Format, kHidden, 0>(arguments, batch, memory);
  else
    sum_gradients<Format, kHidden, 1>(arguments, batch, memory);
}

}  // namespace headroom::fused
