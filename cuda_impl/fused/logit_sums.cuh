// Gradients of the weights to up to 16 logits, summed over the tiles of a thread block of the chain.
//
// They are products over rows, dW^T [width, 16] = H^T * dZ, so both factors are read from shared memory, across the rows in
// which a tile's last activations and its logits' gradients are staged. A warpgroup sums its own tiles.
#pragma once

#include "fused/kernels.h"
#include "fused/warpgroup.cuh"

namespace headroom::fused {

template <int kPanels>
struct LogitSums {
  float weights[kPanels][8] = {}, bias[4] = {};

  /// Adds a tile: activations [64, 64 * kPanels], gradients [64, 16] and the latter as this thread holds them. Starts
  /// products and does not wait for them.
  template <class Format>
  FUSED_DEVICE void add(std::uint32_t activations, std::uint32_t gradients, const std::uint32_t (&held)[4]) {
    products_begin();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int k = 0; k < kTileRows / 16; ++k)
        multiply_shared<Format, Factor::kTurned, Factor::kTurned>(
            weights[panel],
            describe(activations + static_cast<std::uint32_t>(panel * kTilePanelBytes)) + k * kAcross,
            describe_narrow(gradients) + k * kAcrossNarrow, 1);
    products_commit();
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const float2 rounded = Format::unpack(held[pair]);
      bias[pair / 2 * 2] += rounded.x;
      bias[pair / 2 * 2 + 1] += rounded.y;
    }
  }
  FUSED_DEVICE void are_final() {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) sums_are_final(weights[panel]);
  }

  /// Both warpgroups' sums to the block's partial sums, as Kind::kTurned and Kind::kOutputBias have them. weights_of_second
  /// [64 * kPanels, 16] is room that the second has for itself in shared memory, biases [2, 64, 16] room of each.
  FUSED_DEVICE void store(float* partial, float* weights_of_second, float* biases, int warpgroup,
                          const Lane& at) {
    const int thread = at.warp * 32 + at.lane;
    const auto bias_of = [&](int group, int warp, int output) -> float& {
      return biases[group * (kNarrowTileBytes / 4) + warp * kNarrowColumns + output];
    };
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (warpgroup == 1) weights_of_second[(panel * 8 + i) * kWarpgroup + thread] = weights[panel][i];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) bias[i] += shuffle_xor(bias[i], distance);
      if (at.lane < 4) bias_of(warpgroup, at.warp, i / 2 * 8 + at.first_column() + i % 2) = bias[i];
    }
    named_barrier(1, 2 * kWarpgroup);
    if (warpgroup == 1) return;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int at_row = (panel * 8 + i) * kWarpgroup + thread;
        partial[at_row] = weights[panel][i] + weights_of_second[at_row];
      }
    float sum = 0;
    if (thread < kNarrowColumns)
      for (int warp = 0; warp < 8; ++warp) sum += bias_of(warp / 4, warp % 4, thread);
    partial[kPanels * 8 * kWarpgroup + thread] = sum;
  }
};

}  // namespace headroom::fused
