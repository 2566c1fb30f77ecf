// What a warpgroup does with one tile of 64 rows, in steps that have names: products of a layer, ReLU,
// partial sums. Panels, their descriptions and masks of signs are in machine/.
//
// A warp's lane is 4 * g + t. Sums of a product: warp w holds rows 16w + g and 16w + g + 8 and of every 8 columns
// 2t and 2t + 1. Packed to 16 bits these registers are, in the same order, the left factor of the next product, so a
// tile goes from layer to layer without leaving its warp's registers.
#pragma once

#include "fused/plan.h"
#include "machine/bits.cuh"
#include "machine/masks.cuh"
#include "machine/matrices.cuh"
#include "machine/numbers.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

using namespace machine;

/// sums = the bias of each column; bias [columns] fp32 in shared memory.
template <int kCount>
MACHINE_DEVICE void begin_with_bias(float (&sums)[kCount], const float* bias, const Lane& at) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(bias + 8 * j + at.first_column());
    sums[4 * j] = sums[4 * j + 2] = pair.x;
    sums[4 * j + 1] = sums[4 * j + 3] = pair.y;
  }
}

/// sums += held * weights^T; held: 16 * kSteps columns, weights in panels of `rows` rows.
template <class Format, int kSteps, int kCount>
MACHINE_DEVICE void forward_products(float (&sums)[kCount], const std::uint32_t* held, std::uint32_t weights,
                                     int panel_bytes) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    wgmma_held<Format, Factor::kPlain>(
        sums, held + 4 * k, describe(weights) + (k >> 2) * (panel_bytes >> 4) + (k & 3) * kAlong, 1);
}

/// sums (+)= held * weights; held: as many columns as weights have rows, 16 * kSteps.
template <class Format, int kSteps, int kCount>
MACHINE_DEVICE void backward_products(float (&sums)[kCount], const std::uint32_t* held, std::uint32_t weights,
                                      int panel_bytes, int add) {
  const Panels rows = describe(weights, static_cast<std::uint32_t>(panel_bytes));
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    wgmma_held<Format, Factor::kTurned>(sums, held + 4 * k, rows + k * kAcross, k > 0 ? 1 : add);
}

/// held = max(sums + bias, 0), rounded; bias: of the thread's rows, every second pair its second.
template <class Format, int kPairs>
MACHINE_DEVICE void relu_values(const float (&sums)[2 * kPairs], const float (&bias)[2],
                                std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    held[i] = Format::pack_relu(sums[2 * i] + bias[i & 1], sums[2 * i + 1] + bias[i & 1]);
}

template <class Format, int kPairs>
MACHINE_DEVICE void relu(const float (&sums)[2 * kPairs], std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) held[i] = Format::pack_relu(sums[2 * i], sums[2 * i + 1]);
}

/// The first kCount of this thread's sums to a warpgroup's partial sums, 16 bytes at a time; see Kind::kQuads.
template <int kCount, int kHeld>
MACHINE_DEVICE void store_quads(float* partial, const float (&sums)[kHeld], int thread) {
  static_assert(kCount % 4 == 0 && kCount <= kHeld);
#pragma unroll
  for (int quad = 0; quad < kCount / 4; ++quad)
    reinterpret_cast<float4*>(partial)[quad * kWarpgroup + thread] =
        make_float4(sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]);
}

/// A layer of 64: the weights', then the biases', which are column 64 of the sums.
MACHINE_DEVICE void store_layer_sums(float* partial, const float (&sums)[36], int thread) {
  store_quads<32>(partial, sums, thread);
  partial[32 * kWarpgroup + thread] = sums[32];
  partial[33 * kWarpgroup + thread] = sums[34];
}

}  // namespace headroom::fused
