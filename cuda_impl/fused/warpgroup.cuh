// What a warpgroup does with one tile of 64 rows, in steps that have names: products of a layer, ReLU and its mask,
// storing a tile into panels.
//
// A warp's lane is 4 * g + t. Sums of a product: warp w holds rows 16w + g and 16w + g + 8 and of every 8 columns
// 2t and 2t + 1. Packed to 16 bits these registers are, in the same order, the left factor of the next product, so a
// tile goes from layer to layer without leaving its warp's registers.
#pragma once

#include "fused/formats.cuh"
#include "fused/plan.h"
#include "fused/ptx.cuh"
#include "fused/wgmma.cuh"

namespace headroom::fused {

/// The upper bits of an address in shared memory name the rank in the cluster; a description has no room for them.
FUSED_DEVICE std::uint32_t described_address(std::uint32_t address) { return (address & 0x3ffff) >> 4; }
/// A matrix in panels as wgmma wants it described. `panel_stride`: bytes from one panel to the next, used where a
/// turned factor is wider than a panel. Panels begin at multiples of 1024 bytes.
FUSED_DEVICE Panels describe(std::uint32_t address, std::uint32_t panel_stride = 16) {
  return {described_address(address) + (panel_stride >> 4 << 16)};
}
/// Two panels, wherever the second lies behind the first.
FUSED_DEVICE Panels describe_both(std::uint32_t first, std::uint32_t second) {
  const std::uint32_t begin = described_address(first);
  return {begin + (described_address(second) - begin << 16)};
}
FUSED_DEVICE NarrowPanel describe_narrow(std::uint32_t address) { return {described_address(address)}; }
// How far a description moves on for 16 more k: along the rows 32 bytes, across them 16 rows.
constexpr int kAlong = 32 >> 4, kAcross = 16 * kPanelRowBytes >> 4, kAcrossNarrow = 16 * kNarrowRowBytes >> 4;
// To the same columns of the next panel, and what describe_both() moves on by if the second panel stays.
constexpr int kNextPanel = kTilePanelBytes >> 4, kAcrossFirst = kAcross - (kAcross << 16);

/// Which rows and pieces of a panel this thread addresses in stmatrix.
struct Lane {
  int lane, warp;            // warp of the warpgroup
  std::uint32_t row, piece;  // byte of its row; 0 or 1
  FUSED_DEVICE explicit Lane(int thread) : lane(thread & 31), warp(thread >> 5) {
    row = static_cast<std::uint32_t>((warp * 16 + (lane & 15)) * kPanelRowBytes);
    piece = static_cast<std::uint32_t>(lane >> 4);
  }
  /// Of 16 columns beginning with column 16 * step.
  FUSED_DEVICE std::uint32_t place(int step) const {
    return static_cast<std::uint32_t>(step >> 2) * kTilePanelBytes + row +
           (((2 * (static_cast<std::uint32_t>(step) & 3) + piece) ^ (static_cast<std::uint32_t>(lane) & 7))
            << 4);
  }
  /// Of a narrow panel's 16 columns.
  FUSED_DEVICE std::uint32_t narrow_place() const {
    const int own_row = warp * 16 + (lane & 15);
    return static_cast<std::uint32_t>(own_row * kNarrowRowBytes) +
           ((piece ^ (static_cast<std::uint32_t>(own_row) >> 2 & 1)) << 4);
  }
  FUSED_DEVICE int first_row() const { return warp * 16 + (lane >> 2); }
  FUSED_DEVICE int first_column() const { return 2 * (lane & 3); }
};

/// sums = the bias of each column; bias [columns] fp32 in shared memory.
template <int kCount>
FUSED_DEVICE void begin_with_bias(float (&sums)[kCount], const float* bias, const Lane& at) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    const float2 pair = *reinterpret_cast<const float2*>(bias + 8 * j + at.first_column());
    sums[4 * j] = sums[4 * j + 2] = pair.x;
    sums[4 * j + 1] = sums[4 * j + 3] = pair.y;
  }
}

/// sums += held * weights^T; held: 16 * kSteps columns, weights in panels of `rows` rows.
template <class Format, int kSteps, int kCount>
FUSED_DEVICE void forward_products(float (&sums)[kCount], const std::uint32_t* held, std::uint32_t weights,
                                   int panel_bytes) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    multiply_held<Format, Factor::kPlain>(
        sums, held + 4 * k, describe(weights) + (k >> 2) * (panel_bytes >> 4) + (k & 3) * kAlong, 1);
}

/// sums (+)= held * weights; held: as many columns as weights have rows, 16 * kSteps.
template <class Format, int kSteps, int kCount>
FUSED_DEVICE void backward_products(float (&sums)[kCount], const std::uint32_t* held, std::uint32_t weights,
                                    int panel_bytes, int add) {
  const Panels rows = describe(weights, static_cast<std::uint32_t>(panel_bytes));
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    multiply_held<Format, Factor::kTurned>(sums, held + 4 * k, rows + k * kAcross, k > 0 ? 1 : add);
}

/// One bit a value, whether it is positive: up to 16 registers of pairs a word, the first pair in the highest bits of
/// both halves that are used.
template <int kPairs>
struct Mask {
  static constexpr int kWords = (kPairs + 15) / 16;
  std::uint32_t word[kWords];
};

/// held = max(sums + bias, 0), rounded; bias: of the thread's rows, every second pair its second.
template <class Format, int kPairs>
FUSED_DEVICE void relu_values(const float (&sums)[2 * kPairs], const float (&bias)[2],
                              std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    held[i] = Format::pack_relu(sums[2 * i] + bias[i & 1], sums[2 * i + 1] + bias[i & 1]);
}

/// No half of `held` is negative, so the smaller of it and 1 is whether it is positive.
template <int kPairs>
FUSED_DEVICE Mask<kPairs> positive(const std::uint32_t (&held)[kPairs]) {
  Mask<kPairs> mask{};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    std::uint32_t& word = mask.word[i / 16];
    word = word + word + __vminu2(held[i], 0x00010001u);
  }
  return mask;
}

template <class Format, int kPairs>
FUSED_DEVICE void relu(const float (&sums)[2 * kPairs], std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) held[i] = Format::pack_relu(sums[2 * i], sums[2 * i + 1]);
}

/// held = sums where the mask is set, else 0. A shift brings two pairs' bits to the tops of bytes.
template <class Format, int kPairs>
FUSED_DEVICE void masked(const float (&sums)[2 * kPairs], const Mask<kPairs>& mask,
                         std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const std::uint32_t tops = mask.word[i / 16] << (i % 8);
    const bool upper = kPairs >= 16 && i % 16 < 8;
    held[i] = Format::pack(sums[2 * i], sums[2 * i + 1]) & (upper ? spread<true>(tops) : spread<false>(tops));
  }
}

/// held = sums where `activations` are positive, else 0.
template <class Format, int kPairs>
FUSED_DEVICE void masked_by(const float (&sums)[2 * kPairs], const std::uint32_t (&activations)[kPairs],
                            std::uint32_t (&held)[kPairs]) {
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
    held[i] = Format::pack(sums[2 * i], sums[2 * i + 1]) & Format::positive(activations[i]);
}

/// 16 * kSteps columns of the warp's 16 rows into panels, from column 16 * first_step on.
template <int kSteps>
FUSED_DEVICE void store_rows(std::uint32_t panels, const std::uint32_t* held, const Lane& at,
                             int first_step = 0) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step)
    store_matrices(panels + at.place(first_step + step), held + 4 * step);
}

/// The first kCount of this thread's sums to a warpgroup's partial sums, 16 bytes at a time; see Kind::kQuads.
template <int kCount, int kHeld>
FUSED_DEVICE void store_quads(float* partial, const float (&sums)[kHeld], int thread) {
  static_assert(kCount % 4 == 0 && kCount <= kHeld);
#pragma unroll
  for (int quad = 0; quad < kCount / 4; ++quad)
    reinterpret_cast<float4*>(partial)[quad * kWarpgroup + thread] =
        make_float4(sums[4 * quad], sums[4 * quad + 1], sums[4 * quad + 2], sums[4 * quad + 3]);
}

/// A layer of 64: the weights', then the biases', which are column 64 of the sums.
FUSED_DEVICE void store_layer_sums(float* partial, const float (&sums)[36], int thread) {
  store_quads<32>(partial, sums, thread);
  partial[32 * kWarpgroup + thread] = sums[32];
  partial[33 * kWarpgroup + thread] = sums[34];
}

}  // namespace headroom::fused
