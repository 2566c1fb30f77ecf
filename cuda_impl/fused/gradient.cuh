// Weight gradients of layers that the chain stored: dW = dZ^T * H over a range of tiles.
//
// A thread block sums 64 or 128 outputs (64 a warpgroup) by 16, 64 or 128 inputs in registers over its tiles;
// panels of both factors come through a ring, loaded by a warp of their own, and are read across their rows. The bias
// gradient is a product with a panel of ones. Every block stores its sums; the update adds them up.
// Two blocks that need the same outputs' gradients are a cluster: each loads half of them for both, since what binds is
// what leaves the L2.
//   waits: full and free of each stage; free says that both blocks have read it if they share what is loaded
#pragma once

#include "fused/chain.cuh"

namespace headroom::fused {

constexpr int kGradientRingBytes = 16 * kTilePanelBytes;
constexpr int kOnesBytes = 8 * kPanelRowBytes;
/// A ring has as many stages as fit: 4 of the widest blocks, more of those that load less.
constexpr int kMostGradientStages = kGradientRingBytes / (kTilePanelBytes + kNarrowTileBytes);
/// So many stages of a batch's inputs are asked for before the kernel before has ended: more would stand in the way of its stores.
constexpr int kEarlyStages = 2;
constexpr int kGradientShared = kGradientRingBytes + kOnesBytes + 16 * kMostGradientStages;

FUSED_DEVICE int stage_bytes(const GradientBlock& block) {
  return (block.output_columns + block.input_columns) * kTileRows * 2;
}

FUSED_DEVICE std::uint32_t pair_rank() { return blockIdx.x % kGradientPair; }

/// Sums of one warpgroup to where the update finds them; see Segment.
template <bool kWithBias, int kCount>
FUSED_DEVICE void store_partial(float* partial, const float (&sums)[kCount], const float (&bias)[4],
                                int thread) {
#pragma unroll
  for (int quad = 0; quad < kCount / 4; ++quad)
    reinterpret_cast<float4*>(partial)[quad * kWarpgroup + thread] = {sums[4 * quad], sums[4 * quad + 1],
                                                                      sums[4 * quad + 2], sums[4 * quad + 3]};
  if constexpr (kWithBias) {
    partial[kCount * kWarpgroup + thread] = bias[0];
    partial[(kCount + 1) * kWarpgroup + thread] = bias[2];
  }
}

/// kWithBias is known here, as a round whose last products are not would end with an empty one.
template <class Format, int kColumns, bool kWithBias>
FUSED_DEVICE void gradient_compute(const GradientBlock& block, std::uint32_t shared,
                                   const ChainBarriers& barriers, float* partials, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  float sums[kColumns / 2], bias[4] = {0, 0, 0, 0};
#pragma unroll
  for (float& sum : sums) sum = 0;
  const Panels ones = describe(shared + kGradientRingBytes);
  const int output_bytes = block.output_columns * kTileRows * 2;
  RingPlace ring;
  for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(barriers.stages)) {
    const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * stage_bytes(block));
    const std::uint32_t stage_inputs = stage + static_cast<std::uint32_t>(output_bytes);
    const auto gradients = [&](int k) {
      return describe(stage + static_cast<std::uint32_t>(warpgroup * kTilePanelBytes)) + k * kAcross;
    };
    barrier_wait_cluster(barriers.full(ring.stage), ring.parity);  // the other block's copies come here too
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kColumns == kNarrowColumns)
        multiply_shared<Format, Factor::kTurned, Factor::kTurned>(
            sums, gradients(k), describe_narrow(stage_inputs) + k * kAcrossNarrow, 1);
      else
        multiply_shared<Format, Factor::kTurned, Factor::kTurned>(
            sums, gradients(k), describe(stage_inputs, kTilePanelBytes) + k * kAcross, 1);
    }
    if constexpr (kWithBias) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_shared<Format, Factor::kTurned, Factor::kPlain>(bias, gradients(k), ones, 1);
    }
    products_commit();
    products_wait<0>();
    if (threadIdx.x % 32 == 0) {
      barrier_arrive(barriers.free(ring.stage));
      if (block.same_outputs)
        barrier_arrive_remote(remote_address(barriers.free(ring.stage), pair_rank() ^ 1));
    }
  }
  sums_are_final(sums);
  sums_are_final(bias);
  constexpr std::int64_t kFloats = (kColumns / 2 + (kWithBias ? 2 : 0)) * kWarpgroup;
  store_partial<kWithBias>(partials + block.partial + warpgroup * kFloats, sums, bias, thread);
}

template <class Format>
__global__ void __launch_bounds__(kChainThreads, 1)
    gradient_kernel(const GradientBlock* blocks, std::int64_t batch_bytes, const StepState* state,
                    float* partials) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const GradientBlock block = blocks[blockIdx.x];
  const std::uint32_t shared = shared_address(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const int warpgroups = block.output_columns > kPanelColumns ? 2 : 1;
  const ChainBarriers barriers{shared + kGradientRingBytes + kOnesBytes - 8,
                               kGradientRingBytes / stage_bytes(block)};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < barriers.stages; ++stage) {
      barrier_init(barriers.full(stage), 1);
      barrier_init(barriers.free(stage),
                   static_cast<std::uint32_t>(4 * warpgroups * (block.same_outputs ? kGradientPair : 1)));
    }
    barrier_init_fence();
  }
  std::uint32_t* ones = reinterpret_cast<std::uint32_t*>(memory + kGradientRingBytes);
  if (threadIdx.x < kOnesBytes / 4) ones[threadIdx.x] = Format::pack(1, 1);
  shared_writes_to_async();
  __syncthreads();
  cluster_meet();  // before the other block's copies count on these barriers
  const std::int64_t batch = next_batch(state);
  const bool loads = warpgroup == kChainWarpgroups && threadIdx.x % 32 == 0;
  const std::uint32_t output_bytes = static_cast<std::uint32_t>(block.output_columns * kTileRows * 2),
                      input_bytes = static_cast<std::uint32_t>(block.input_columns * kTileRows * 2);
  const auto load_inputs = [&](int stage, int tile) {
    const std::uint32_t to = shared + static_cast<std::uint32_t>(stage * stage_bytes(block)) + output_bytes;
    barrier_expect(barriers.full(stage), output_bytes + input_bytes);
    if (block.of_batch)
      bulk_load_passing(to, block.inputs + batch * batch_bytes + tile * block.input_tile_bytes, input_bytes,
                        barriers.full(stage));
    else
      bulk_load(to, block.inputs + tile * block.input_tile_bytes, input_bytes, barriers.full(stage));
  };
  // A batch's inputs stay as they are, so they need not wait.
  const int early = loads && block.of_batch ? min(kEarlyStages, block.end_tile - block.first_tile) : 0;
  for (int stage = 0; stage < early; ++stage) load_inputs(stage, block.first_tile + stage);
  __syncwarp();
  wait_for_kernel_before();
  let_next_kernel_start();
  if (warpgroup < warpgroups) {
    const auto compute = [&](auto columns, auto with_bias) {
      gradient_compute<Format, decltype(columns)::value, decltype(with_bias)::value>(block, shared, barriers,
                                                                                     partials, warpgroup);
    };
    using Two = std::integral_constant<int, 2 * kPanelColumns>;
    using One = std::integral_constant<int, kPanelColumns>;
    using Narrow = std::integral_constant<int, kNarrowColumns>;
    if (block.input_columns == Two::value)
      block.with_bias ? compute(Two{}, std::true_type{}) : compute(Two{}, std::false_type{});
    else if (block.input_columns == One::value)
      block.with_bias ? compute(One{}, std::true_type{}) : compute(One{}, std::false_type{});
    else
      compute(Narrow{}, std::true_type{});  // the last of its outputs
  } else if (loads) {
    RingPlace ring;
    for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(barriers.stages)) {
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * stage_bytes(block));
      // Inputs first: they come from device memory, the others from the L2.
      if (tile - block.first_tile >= early) {
        barrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
        load_inputs(ring.stage, tile);
      }
      const unsigned char* outputs = block.outputs + tile * block.output_tile_bytes;
      if (block.same_outputs) {
        const std::uint32_t share = output_bytes / kGradientPair, begin = pair_rank() * share;
        bulk_load_to((1 << kGradientPair) - 1, stage + begin, outputs + begin, share,
                     barriers.full(ring.stage));
      } else {
        bulk_load(stage, outputs, output_bytes, barriers.full(ring.stage));
      }
    }
  }
  __syncwarp();
  cluster_meet();  // nobody leaves while the other may still arrive at its barriers
}

}  // namespace headroom::fused
