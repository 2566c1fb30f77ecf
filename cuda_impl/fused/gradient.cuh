// Weight gradients of layers that the chain stored: dW = dZ^T * H over a range of tiles.
//
// A thread block sums 64 or 128 outputs (64 a warpgroup) by 64 or 128 inputs, and the 16 of a narrow panel, in registers
// over its tiles; panels of both factors come through a ring, loaded by a warp of their own, and are read across their
// rows. The bias gradient is a product with a panel of ones. Every block stores its sums; the update adds them up.
// Two blocks that need the same outputs' gradients are a cluster: each loads half of them for both, since what binds is
// what leaves the L2.
//   waits: full and free of each stage; free says that both blocks have read it if they share what is loaded
#pragma once

#include "fused/chain.cuh"
#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

/// So many stages of a batch's inputs are asked for before the kernel before has ended: more would stand in the way of its stores.
constexpr int kEarlyStages = 2;
constexpr int kGradientShared = kGradientRingBytes + 16 * kMostGradientStages;

MACHINE_DEVICE std::uint32_t pair_rank() { return blockIdx.x % kGradientPair; }

/// What a thread sums: its rows of whole panels of inputs, which ones follow for the biases, and of the narrow panel; see
/// Segment.
template <int kColumns, bool kWithNarrow, bool kWithBias>
struct GradientSums {
  static constexpr int kWeightRows = kColumns / 2, kBiasColumns = kWithBias ? 4 : 0,
                       kNarrowRows = kWithNarrow ? kNarrowColumns / 2 : 0,
                       kRows = kWeightRows + kNarrowRows + (kWithBias ? 2 : 0);
  float sums[kWeightRows + kBiasColumns] = {}, narrow[kWithNarrow ? kNarrowRows : 1] = {};

  /// 16 rows of the tile: gradients and inputs, both across them.
  template <class Format>
  MACHINE_DEVICE void add(Panels gradients, Panels inputs, NarrowPanel narrow_inputs) {
    wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(sums, gradients, inputs, 1);
    if constexpr (kWithNarrow)
      wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(narrow, gradients, narrow_inputs, 1);
  }
  MACHINE_DEVICE void are_final() {
    wgmma_sums_are_final(sums);
    wgmma_sums_are_final(narrow);
  }
  /// To where the update finds them.
  MACHINE_DEVICE void store(float* partial, int thread) const {
    store_quads<kWeightRows>(partial, sums, thread);
    if constexpr (kWithNarrow) store_quads<kNarrowRows>(partial + kWeightRows * kWarpgroup, narrow, thread);
    if constexpr (kWithBias) {
      float* biases = partial + (kWeightRows + kNarrowRows) * kWarpgroup + thread;
      biases[0] = sums[kWeightRows];
      biases[kWarpgroup] = sums[kWeightRows + 2];
    }
  }
};

/// Which sums is known here, as a round whose last products are not would end with an empty one.
template <class Format, class Sums>
MACHINE_DEVICE void gradient_compute(const GradientBlock& block, std::uint32_t shared,
                                     const ChainBarriers& barriers, float* partials, int warpgroup) {
  Sums sums;
  RingPlace ring;
  for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(barriers.stages)) {
    const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * block.stage_bytes);
    const Panels gradients = describe(stage + static_cast<std::uint32_t>(warpgroup * kTilePanelBytes)),
                 inputs = describe(stage + static_cast<std::uint32_t>(block.inputs_at), kTilePanelBytes);
    const NarrowPanel narrow = describe_narrow(stage + static_cast<std::uint32_t>(block.narrow_at));
    barrier_wait_cluster_unbounded(barriers.full(ring.stage),
                                   ring.parity);  // the other block's copies come here too
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTileRows / 16; ++k)
      sums.template add<Format>(gradients + k * kAcross, inputs + k * kAcross, narrow + k * kAcrossNarrow);
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(barriers.free(ring.stage));
      if (block.same_outputs)
        barrier_arrive_remote_relaxed(remote_address(barriers.free(ring.stage), pair_rank() ^ 1));
    }
  }
  sums.are_final();
  sums.store(partials + block.partial + std::int64_t{warpgroup} * (Sums::kRows * kWarpgroup),
             static_cast<int>(threadIdx.x) % kWarpgroup);
}

template <class Format>
__global__ void __launch_bounds__(kChainThreads, 1)
    gradient_kernel(const GradientBlock* blocks, std::int64_t batch_bytes, const StepState* state,
                    float* partials) {
  extern __shared__ __align__(1024) unsigned char memory[];
  // Blocks that begin late are waited for, so what they ask for is under way together.
  const std::int64_t batch = next_batch(state);
  const GradientBlock block = blocks[blockIdx.x];
  const std::uint32_t shared = shared_address(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int warpgroups = block.output_columns > kPanelColumns ? 2 : 1;
  const ChainBarriers barriers{shared + kGradientRingBytes - 8, block.stages};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < barriers.stages; ++stage) {
      barrier_init(barriers.full(stage), 1);
      barrier_init(barriers.free(stage),
                   static_cast<std::uint32_t>(4 * warpgroups * (block.same_outputs ? kGradientPair : 1)));
    }
    barrier_init_fence();
  }
  if (block.with_bias) {
    // Eight columns of them are read.
    const std::uint32_t ones = Format::pack(1, 1);
    for (int at = static_cast<int>(threadIdx.x); at < block.stages * kTileRows; at += kChainThreads)
      *reinterpret_cast<uint4*>(memory + at / kTileRows * block.stage_bytes + block.ones_at +
                                panel_offset(at % kTileRows, 0)) = {ones, ones, ones, ones};
  }
  fence_proxy_async_shared();
  __syncthreads();
  cluster_sync_relaxed();  // before the other block's copies count on these barriers
  const bool loads = warpgroup == kChainWarpgroups && threadIdx.x % 32 == 0;
  const std::uint32_t output_bytes = static_cast<std::uint32_t>(block.output_columns * kTileRows * 2),
                      panel_bytes = static_cast<std::uint32_t>(block.input_columns * kTileRows * 2),
                      narrow_bytes = block.with_narrow ? kNarrowTileBytes : 0;
  const auto load_inputs = [&](int stage, int tile) {
    const std::uint32_t to = shared + static_cast<std::uint32_t>(stage * block.stage_bytes);
    const std::uint32_t to_panels = to + static_cast<std::uint32_t>(block.inputs_at),
                        to_narrow = to + static_cast<std::uint32_t>(block.narrow_at);
    const unsigned char* panels = block.inputs + tile * block.input_tile_bytes;
    barrier_arrive_expect(barriers.full(stage), output_bytes + panel_bytes + narrow_bytes);
    if (!block.of_batch) return bulk_load(to_panels, panels, panel_bytes, barriers.full(stage));
    panels += batch * batch_bytes;
    if (panel_bytes > 0) bulk_load_evict_first(to_panels, panels, panel_bytes, barriers.full(stage));
    if (narrow_bytes > 0)
      bulk_load_evict_first(to_narrow, panels + panel_bytes, narrow_bytes, barriers.full(stage));
  };
  // A batch's inputs stay as they are, so they need not wait.
  const int early = loads && block.of_batch ? min(kEarlyStages, block.end_tile - block.first_tile) : 0;
  for (int stage = 0; stage < early; ++stage) load_inputs(stage, block.first_tile + stage);
  __syncwarp();
  wait_for_kernel_before();
  let_next_kernel_start();
  if (warpgroup < warpgroups) {
    const auto compute = [&]<class Sums>(std::type_identity<Sums>) {
      gradient_compute<Format, Sums>(block, shared, barriers, partials, warpgroup);
    };
    const auto compute_columns = [&]<int kColumns>(std::integral_constant<int, kColumns>) {
      const auto with = [&]<bool kNarrow>(std::bool_constant<kNarrow>) {
        block.with_bias ? compute(std::type_identity<GradientSums<kColumns, kNarrow, true>>{})
                        : compute(std::type_identity<GradientSums<kColumns, kNarrow, false>>{});
      };
      block.with_narrow ? with(std::true_type{}) : with(std::false_type{});
    };
    if (block.input_columns == 2 * kPanelColumns)
      compute_columns(std::integral_constant<int, 2 * kPanelColumns>{});
    else if (block.input_columns == kPanelColumns)
      compute_columns(std::integral_constant<int, kPanelColumns>{});
    else
      compute(std::type_identity<GradientSums<0, true, true>>{});
  } else if (loads) {
    RingPlace ring;
    for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(barriers.stages)) {
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * block.stage_bytes);
      // Inputs first: they come from device memory, the others from the L2.
      if (tile - block.first_tile >= early) {
        barrier_wait_unbounded(barriers.free(ring.stage), ring.parity ^ 1);
        load_inputs(ring.stage, tile);
      }
      const unsigned char* outputs = block.outputs + tile * block.output_tile_bytes;
      if (block.same_outputs) {
        const std::uint32_t share = output_bytes / kGradientPair, begin = pair_rank() * share;
        bulk_load_multicast((1 << kGradientPair) - 1, stage + begin, outputs + begin, share,
                            barriers.full(ring.stage));
      } else {
        bulk_load(stage, outputs, output_bytes, barriers.full(ring.stage));
      }
    }
  }
  __syncwarp();
  cluster_sync_relaxed();  // nobody leaves while the other may still arrive at its barriers
}

}  // namespace headroom::fused
