// Gradients of the weights to up to 16 logits, summed over the tiles of a thread block of the chain.
//
// They are products over rows, dW^T [width, 16] = H^T * dZ, so both factors are read from shared memory, across the rows in
// which a tile's last activations and its logits' gradients are staged. A warpgroup sums its own tiles.
#pragma once

#include "fused/kernels.h"
#include "fused/warpgroup.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

template <int kPanels>
struct LogitSums {
  float weights[kPanels][8] = {}, bias[4] = {};

  /// Adds a tile to the weights' gradients: activations [64, 64 * kPanels], `panel_stride` bytes from one panel to the next, and
  /// gradients [64, 16]. Starts products and does not wait for them.
  template <class Format>
  MACHINE_DEVICE void add(std::uint32_t activations, std::uint32_t panel_stride, std::uint32_t gradients) {
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int k = 0; k < kTileRows / 16; ++k)
        wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(
            weights[panel],
            describe(activations + static_cast<std::uint32_t>(panel) * panel_stride) + k * kAcross,
            describe_narrow(gradients) + k * kAcrossNarrow, 1);
    wgmma_commit();
  }
  MACHINE_DEVICE void are_final() {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) wgmma_sums_are_final(weights[panel]);
  }

  /// A warpgroup's sums to shared memory: weights [64 * kPanels / 8 rows, 128 threads] and biases [4 warps, 16].
  MACHINE_DEVICE void leave_weights(float* to, const Lane& at) const {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        to[(panel * 8 + i) * kWarpgroup + at.warp * 32 + at.lane] = weights[panel][i];
  }
  MACHINE_DEVICE void leave_biases(float* to, const Lane& at) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2)
#pragma unroll
      for (int i = 0; i < 4; ++i) bias[i] += shuffle_xor(bias[i], distance);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (at.lane < 4) to[at.warp * kNarrowColumns + i / 2 * 8 + at.first_column() + i % 2] = bias[i];
  }
  /// What two warpgroups have left, the first's plus the second's, to the block's partial sums, as Kind::kTurned and
  /// Kind::kOutputBias have them. By a warp.
  MACHINE_DEVICE static void store(float* partial, const float* first, const float* second,
                                   const float* first_biases, const float* second_biases, int lane) {
#pragma unroll
    for (int row = 0; row < kPanels * 8; ++row) {
      const int quad = row * (kWarpgroup / 4) + lane;
      const float4 a = reinterpret_cast<const float4*>(first)[quad],
                   b = reinterpret_cast<const float4*>(second)[quad];
      reinterpret_cast<float4*>(partial)[quad] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    float sum = 0;
    if (lane < kNarrowColumns) {
      for (int warp = 0; warp < 4; ++warp) sum += first_biases[warp * kNarrowColumns + lane];
      for (int warp = 0; warp < 4; ++warp) sum += second_biases[warp * kNarrowColumns + lane];
    }
    float* biases = partial + kPanels * 8 * kWarpgroup + lane;
#pragma unroll
    for (int part = 0; part < 4; ++part) biases[32 * part] = part == 0 ? sum : 0.0f;
  }
};

}  // namespace headroom::fused
