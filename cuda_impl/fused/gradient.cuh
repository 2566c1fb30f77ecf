// Weight gradients of layers that the chain stored: dW = dZ^T * H over a range of tiles.
//
// A thread block sums 64 or 128 outputs (64 a warpgroup) by 64 or 128 inputs in registers over its tiles; panels of
// both factors come through a ring, loaded by a warp of their own, and are read across their rows. The bias
// gradient is a product with a panel of ones. Every block stores its sums; the update adds them up.
//   waits: full and free of each stage
#pragma once

#include "fused/chain.cuh"

namespace headroom::fused {

constexpr int kGradientStages = 4, kGradientStageBytes = 4 * kTilePanelBytes;
constexpr int kOnesBytes = 8 * kPanelRowBytes;
constexpr int kGradientShared = kGradientStages * kGradientStageBytes + kOnesBytes + 16 * kGradientStages;

/// Sums of one warpgroup to where the update finds them; see Segment.
template <int kCount>
FUSED_DEVICE void store_partial(float* partial, const float (&sums)[kCount], const float (&bias)[4],
                                bool with_bias, int thread) {
#pragma unroll
  for (int row = 0; row < kCount; ++row) partial[row * kWarpgroup + thread] = sums[row];
  if (with_bias) {
    partial[kCount * kWarpgroup + thread] = bias[0];
    partial[(kCount + 1) * kWarpgroup + thread] = bias[2];
  }
}

template <class Format, int kPanels>
FUSED_DEVICE void gradient_compute(const GradientBlock& block, std::uint32_t shared,
                                   const ChainBarriers& barriers, float* partials, int warpgroup) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  float sums[kPanels * 32], bias[4] = {0, 0, 0, 0};
#pragma unroll
  for (float& sum : sums) sum = 0;
  const Panels ones = describe(shared + kGradientStages * kGradientStageBytes);
  RingPlace ring;
  for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(kGradientStages)) {
    const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * kGradientStageBytes);
    const Panels gradients = describe(stage + static_cast<std::uint32_t>(warpgroup * kTilePanelBytes));
    const Panels inputs = describe(stage + 2 * kTilePanelBytes, kTilePanelBytes);
    barrier_wait(barriers.full(ring.stage), ring.parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      multiply_shared<Format, Factor::kTurned, Factor::kTurned>(sums, gradients + k * kAcross,
                                                                inputs + k * kAcross, 1);
    if (block.with_bias) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_shared<Format, Factor::kTurned, Factor::kPlain>(bias, gradients + k * kAcross, ones, 1);
    }
    products_commit();
    products_wait<0>();
    if (threadIdx.x % 32 == 0) barrier_arrive(barriers.free(ring.stage));
  }
  sums_are_final(sums);
  sums_are_final(bias);
  const std::int64_t floats = (kPanels * 32 + (block.with_bias ? 2 : 0)) * kWarpgroup;
  store_partial(partials + block.partial + warpgroup * floats, sums, bias, block.with_bias, thread);
}

template <class Format>
__global__ void __launch_bounds__(kChainThreads, 1)
    gradient_kernel(const GradientBlock* blocks, std::int64_t batch_bytes, const StepState* state,
                    float* partials) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const GradientBlock block = blocks[blockIdx.x];
  const std::uint32_t shared = shared_address(memory);
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const ChainBarriers barriers{shared + kGradientStages * kGradientStageBytes + kOnesBytes - 8,
                               kGradientStages};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kGradientStages; ++stage) {
      barrier_init(barriers.full(stage), 1);
      barrier_init(barriers.free(stage), 4 * static_cast<std::uint32_t>(block.output_panels));
    }
    barrier_init_fence();
  }
  std::uint32_t* ones = reinterpret_cast<std::uint32_t*>(memory + kGradientStages * kGradientStageBytes);
  if (threadIdx.x < kOnesBytes / 4) ones[threadIdx.x] = Format::pack(1, 1);
  shared_writes_to_async();
  __syncthreads();
  const std::int64_t batch = next_batch(state);
  wait_for_kernel_before();
  let_next_kernel_start();
  if (warpgroup < block.output_panels) {
    if (block.input_panels == 2)
      gradient_compute<Format, 2>(block, shared, barriers, partials, warpgroup);
    else
      gradient_compute<Format, 1>(block, shared, barriers, partials, warpgroup);
  } else if (warpgroup == kChainWarpgroups && threadIdx.x % 32 == 0) {
    const std::uint32_t output_bytes = static_cast<std::uint32_t>(block.output_panels * kTilePanelBytes),
                        input_bytes = static_cast<std::uint32_t>(block.input_panels * kTilePanelBytes);
    const unsigned char* inputs = block.inputs + (block.of_batch ? batch * batch_bytes : 0);
    RingPlace ring;
    for (int tile = block.first_tile; tile < block.end_tile; ++tile, ring.advance(kGradientStages)) {
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(ring.stage * kGradientStageBytes);
      barrier_wait(barriers.free(ring.stage), ring.parity ^ 1);
      barrier_expect(barriers.full(ring.stage), output_bytes + input_bytes);
      bulk_load(stage, block.outputs + tile * block.output_tile_bytes, output_bytes,
                barriers.full(ring.stage));
      if (block.of_batch)
        bulk_load_passing(stage + 2 * kTilePanelBytes, inputs + tile * block.input_tile_bytes, input_bytes,
                          barriers.full(ring.stage));
      else
        bulk_load(stage + 2 * kTilePanelBytes, inputs + tile * block.input_tile_bytes, input_bytes,
                  barriers.full(ring.stage));
    }
  }
}

}  // namespace headroom::fused
