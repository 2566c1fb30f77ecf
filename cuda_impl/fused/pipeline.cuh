// A whole step's work on an SM for networks of 33 to 64: every warpgroup owns a hidden layer, and tiles flow past.
//
// An owner keeps the sums of its layer's weight gradient in registers, and all but the last one their weights, as left
// factors: products are of transposes, sums [features, rows] = weights [features, features] * activations^T, and what
// they leave in registers, rounded, is again a left factor. So a gradient enters dW = dZ^T * H without going through
// shared memory. Activations and gradients go to the neighbours through rings of tiles in shared memory; a tile lies
// there row by row, which is how the right factor wants it in forward, backward and weight gradient alike.
//
//                 inputs        H1             H2             H3
//   device memory ------> [ 1 ] ------> [ 2 ] ------> [ 3 ] ------> [ 4 ] logits, softmax, loss, dW5
//                           dW1 <------   dW2 <------   dW3 <------   dW4
//                                 dZ2           dZ3           dZ4
//
//   waits:  full and free of each buffer of a ring. Inputs that fill the ring at the start are loaded by a warp of the
//           last owner, the others by the owner before it. Owner u runs lead(u) tiles ahead with its forward work, which
//           is how many tiles must find room between forward and backward; the ring behind it is that deep.
//   start:  weights come from the L2, to all SMs at once. The first inputs and labels are asked for before these are
//           there, and these inputs have been fetched into the L2 in the step before; the other inputs only when the last
//           owner's weights have come, and the weights of the way back only behind the forward work ahead.
//   last:   the last owner has most to do for a tile. Its forward products are not of transposes: rows are rows, so the
//           activations are the left factor of the logits as they are, and its warps meet once a tile, when the logits'
//           gradient is there. Then they read the activations back as the other owners hold theirs. Its weight gradient
//           is summed beside the next tile's ReLU and logits.
//   biases: where an owner's sums begin. Of the last one, whose rows are rows, a thread has 16 biases and no registers for
//           them: there they are a product more of 16 columns, three rounded parts of each, side by side, times ones.
//   bits:   each owner adds up its tiles in order; the update adds up thread blocks in order.
#pragma once

#include "fused/chain.cuh"
#include "machine/barriers.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/masks.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

template <int kHidden>
struct PipelineMap {
  MACHINE_BOTH static constexpr int lead(int owner) { return owner == kHidden - 1 ? 0 : kHidden - owner; }
  // Rings, in tiles: inputs, H of owner u to u + 1, dZ of owner u + 1 to u.
  MACHINE_BOTH static constexpr int input_depth() { return lead(0) + 3; }
  /// So many of a step's inputs are asked for before its weights.
  static constexpr int kFirstInputs = 2;
  MACHINE_BOTH static constexpr int depth_into(int owner) {
    return owner == 0 ? input_depth() : lead(owner - 1) + 1;
  }
  /// The last owner and the second, who store here, do not wait until their tile before has been used.
  MACHINE_BOTH static constexpr int gradient_depth(int owner) {
    return owner == kHidden - 2 || owner == 0 ? 2 : 1;
  }

  MACHINE_BOTH static constexpr int ring_into(int owner) {  // bytes from the start
    int tiles = 0;
    for (int u = 0; u < owner; ++u) tiles += depth_into(u);
    return tiles * kTilePanelBytes;
  }
  MACHINE_BOTH static constexpr int gradient_ring(int owner) {
    int tiles = 0;
    for (int u = 0; u < owner; ++u) tiles += gradient_depth(u);
    return ring_into(kHidden) + tiles * kTilePanelBytes;
  }
  static constexpr int kLastActivations = gradient_ring(kHidden - 1);
  // The logits' gradient in the first 16 columns; in the next ones the last owner's biases, see spread_biases().
  static constexpr int kLogitGradients = kLastActivations + kTilePanelBytes, kBiasColumn = 16;
  static constexpr int kOnes = kLogitGradients + kTilePanelBytes;
  static constexpr int kLastWeights = kOnes + 16 * kPanelRowBytes;
  static constexpr int kOutputWeights = kLastWeights + kTilePanelBytes;
  static constexpr int kSums =
      kOutputWeights + 16 * kPanelRowBytes;  // what the last owner's warps add up at the end
  static constexpr int kBarriers = kSums + 4 * (16 + 1) * 4 + 15 & ~15;
  /// Pairs of barriers, full and free, a buffer of a ring each; then one for the weights, and one that the last owner's
  /// warps arrive at when they have read a tile's activations and logits' gradient.
  MACHINE_BOTH static constexpr int barriers_into(int owner) {
    return kBarriers + ring_into(owner) / kTilePanelBytes * 16;
  }
  MACHINE_BOTH static constexpr int gradient_barriers(int owner) {
    return kBarriers + gradient_ring(owner) / kTilePanelBytes * 16;
  }
  static constexpr int kBufferCount = kLastActivations / kTilePanelBytes;
  static constexpr int kWeightsBarrier = kBarriers + kBufferCount * 16;
  static constexpr int kReadBarrier = kWeightsBarrier + 8;
  static constexpr int kSharedBytes = kWeightsBarrier + 16;
  static_assert(kSharedBytes <= kFormBytes);
};

/// A place in a ring of tiles: the buffer's offset, and in bit 0 the parity of its phase.
template <int kDepth>
struct TileRing {
  std::uint32_t at = 0;
  MACHINE_DEVICE std::uint32_t offset() const { return at & ~1u; }
  MACHINE_DEVICE std::uint32_t parity() const { return at & 1; }
  /// Of the buffer's pair of barriers, from the ring's first.
  MACHINE_DEVICE std::uint32_t barriers() const { return offset() / (kTilePanelBytes / 16); }
  MACHINE_DEVICE void advance() {
    at += kTilePanelBytes;
    if (offset() == kDepth * kTilePanelBytes) at = parity() ^ 1;
  }
};

/// A thread block's tiles of a batch.
struct BlockTiles {
  int first, stride, count;
  MACHINE_DEVICE explicit BlockTiles(const Plan& plan)
      : first(static_cast<int>(blockIdx.x)),
        stride(static_cast<int>(gridDim.x)),
        count((plan.tiles - first + stride - 1) / stride) {}
};
/// The first of them among all batches' tiles.
MACHINE_DEVICE int first_of_batches(const Plan& plan, std::int64_t batch) {
  return static_cast<int>(batch) * plan.tiles + static_cast<int>(blockIdx.x);
}

/// By one thread: the thread block's tile `tile`, of those from `first_of_batches` on.
MACHINE_DEVICE void load_inputs(const PipelineArguments& arguments, int first_of_batches, int tile,
                                std::uint32_t buffer, std::uint32_t barrier) {
  const std::int64_t of_batches = first_of_batches + tile * static_cast<int>(gridDim.x);
  barrier_arrive_expect(barrier, kTilePanelBytes);
  bulk_load(buffer, arguments.inputs + of_batches * kTilePanelBytes, kTilePanelBytes, barrier);
}

/// Where a thread's part of a tile of features lies that a product of transposes left: features 16 * warp to
/// 16 * warp + 15 of 16 rows a step. A warp that reads back what it stored waits for nobody.
struct FeaturePlaces {
  std::uint32_t place;
  MACHINE_DEVICE explicit FeaturePlaces(const Lane& at)
      : place(static_cast<std::uint32_t>((8 * (at.lane >> 4) + (at.lane & 7)) * kPanelRowBytes +
                                         (((2 * at.warp + (at.lane >> 3 & 1)) ^ (at.lane & 7)) << 4))) {}
  MACHINE_DEVICE void store(std::uint32_t tile, const std::uint32_t* held) const {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      store_matrices_transposed(tile + place + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                                held + 4 * step);
  }
  MACHINE_DEVICE void load(std::uint32_t tile, std::uint32_t* held) const {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      load_matrices_transposed(tile + place + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                               held + 4 * step);
  }
};

/// For what the whole warp has stored, or has read.
MACHINE_DEVICE void arrive_for_warp(std::uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}

/// A left factor of 64 columns, as fragments in the image.
MACHINE_DEVICE void load_fragments(std::uint32_t (&words)[16], const unsigned char* image, int thread) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(image) + step * kWarpgroup + thread);
    words[4 * step] = four.x;
    words[4 * step + 1] = four.y;
    words[4 * step + 2] = four.z;
    words[4 * step + 3] = four.w;
  }
}

/// The last owner's biases [64] into 16 columns of a panel, features are rows: three rounded parts of each, whose sum is the
/// bias to 2^-24 of it or, in fp16, to 2^-25, which is half of the least that two activations can differ by. By its
/// warpgroup, which meets at `meeting`. In fp16 a bias of 65520 and more makes its unit's activations NaN.
template <class Format>
MACHINE_DEVICE void spread_biases(const float* biases, unsigned char* panel, int first_column, int meeting,
                                  int thread) {
  if (thread < 64) {
    const float bias = __ldg(biases + thread);
    const float high = Format::unpack(Format::pack(bias, 0)).x;
    const float middle = Format::unpack(Format::pack(bias - high, 0)).x;
    *reinterpret_cast<uint4*>(panel + panel_offset(thread, first_column)) = {
        Format::pack(high, middle), Format::pack(bias - high - middle, 0), 0, 0};
    *reinterpret_cast<uint4*>(panel + panel_offset(thread, first_column + 8)) = {0, 0, 0, 0};
  }
  fence_proxy_async_shared();
  named_barrier_aligned(meeting, kWarpgroup);
}

/// gradient += held * inputs, and in column 64 the sums of held; held: 64 rows of the tile, as columns.
template <class Format>
MACHINE_DEVICE void weight_gradient_products(float (&gradient)[36], const std::uint32_t (&held)[16],
                                             std::uint32_t inputs, std::uint32_t ones) {
  const Panels inputs_and_ones = describe_both(inputs, ones);
#pragma unroll
  for (int k = 0; k < 4; ++k)
    wgmma_held<Format, Factor::kTurned>(gradient, held + 4 * k, inputs_and_ones + k * kAcrossFirst, 1);
  wgmma_commit();
}

/// By one thread of the owner before the last, in its tile `tile`: next inputs go where the first owner has used up
/// others, some tiles before. Behind the last tile it is the next batch's first ones, into the L2.
template <int kHidden>
MACHINE_DEVICE void refill_inputs(const PipelineArguments& arguments, const BlockTiles& tiles, int tile,
                                  int first_of_batches) {
  using Map = PipelineMap<kHidden>;
  constexpr int kDepth = Map::input_depth(), kBefore = kHidden > 3 ? kHidden - 2 : 1;
  const int used = tile - kBefore, next = used + kDepth;
  if (used < 0) return;
  if (next >= tiles.count) {
    const int of_following = next - tiles.count;
    const int following = static_cast<int>(compute_from_here(static_cast<std::uint32_t>(first_of_batches))) +
                          plan_of(arguments).tiles;
    const std::int64_t of_batches = (following < arguments.all_tiles ? following : tiles.first) +
                                    of_following * static_cast<int>(gridDim.x);
    if (of_following < tiles.count)
      bulk_prefetch(arguments.inputs + of_batches * kTilePanelBytes, kTilePanelBytes);
    return;
  }
  const std::uint32_t buffer = static_cast<std::uint32_t>(used % kDepth);
  const std::uint32_t barrier = kSharedBegin + Map::barriers_into(0) + buffer * 16;
  barrier_wait_unbounded(barrier + 8, static_cast<std::uint32_t>(used / kDepth & 1));
  load_inputs(arguments, first_of_batches, next, kSharedBegin + buffer * kTilePanelBytes, barrier);
}

/// Owner kOwner of kHidden, not the last, over all tiles of its thread block.
template <class Format, int kHidden, int kOwner>
MACHINE_DEVICE void own_layer(const PipelineArguments& arguments) {
  using Map = PipelineMap<kHidden>;
  constexpr bool kFirst = kOwner == 0, kRefills = kOwner == kHidden - 2;
  constexpr int kLead = Map::lead(kOwner);
  constexpr std::uint32_t shared = kSharedBegin;
  const Plan& plan = plan_of(arguments);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const FeaturePlaces features{Lane(thread)};
  const BlockTiles tiles(plan);

  const std::uint32_t ring_in = shared + Map::ring_into(kOwner),
                      barriers_in = shared + Map::barriers_into(kOwner);
  const int of_batches = kRefills ? first_of_batches(plan, next_batch(arguments.state)) : 0;
  wait_for_kernel_before();
  let_next_kernel_start();
  // The layer's weights; biases of the thread's two features.
  std::uint32_t forward[16];
  load_fragments(forward, arguments.image + forward_fragments(64, kOwner), thread);
  const float* biases = reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kOwner * 64 +
                        16 * (thread / 32) + lane / 4;
  const float bias[2] = {__ldg(biases), __ldg(biases + 8)};

  float gradient[36];  // of the layer's weights, and of its bias in column 64
#pragma unroll
  for (float& sum : gradient) sum = 0;

  TileRing<Map::depth_into(kOwner)> forward_in, backward_in;
  TileRing<Map::depth_into(kOwner + 1)> forward_out;
  TileRing<Map::gradient_depth(kOwner)> gradient_in;
  TileRing<Map::gradient_depth(kOwner - 1)> gradient_out;

  float sums[32];
  std::uint32_t held[16];
  // Forward, kLead tiles ahead of `tile`.
  const auto go_ahead = [&](int tile) {
    if (tile + kLead < tiles.count) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[i] = bias[i >> 1 & 1];
      wgmma_sums_are_final(sums);
      barrier_wait_unbounded(barriers_in + forward_in.barriers(), forward_in.parity());
      const Panels rows = describe(ring_in + forward_in.offset());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_held<Format, Factor::kPlain>(sums, forward + 4 * k, rows + k * kAlong, 1);
      wgmma_commit();
      forward_in.advance();
      wgmma_wait<0>();
      wgmma_sums_are_final(sums);
      relu<Format>(sums, held);
      const std::uint32_t barriers = shared + Map::barriers_into(kOwner + 1) + forward_out.barriers();
      barrier_wait_unbounded(barriers + 8, forward_out.parity() ^ 1);
      features.store(shared + Map::ring_into(kOwner + 1) + forward_out.offset(), held);
      fence_proxy_async_shared();
      arrive_for_warp(barriers, lane);
    }
    forward_out.advance();  // so this is now the place of this very tile
  };
#pragma unroll 1
  for (int tile = -kLead; tile < 0; ++tile) go_ahead(tile);

  // Weights of the layer behind it, turned.
  std::uint32_t backward[16];
  load_fragments(backward, arguments.image + backward_fragments(64, kHidden, kOwner + 1), thread);

#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    go_ahead(tile);
    // Back: the gradient of the layer's activations from the next owner's, masked by what this warp stored of them.
    if (kRefills && thread == 0) refill_inputs<kHidden>(arguments, tiles, tile, of_batches);
    if constexpr (kRefills) __syncwarp();
    const std::uint32_t barriers = shared + Map::gradient_barriers(kOwner) + gradient_in.barriers();
    barrier_wait_unbounded(barriers, gradient_in.parity());
    const Panels rows = describe(shared + Map::gradient_ring(kOwner) + gradient_in.offset());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_held<Format, Factor::kPlain>(sums, backward + 4 * k, rows + k * kAlong, k > 0);
    wgmma_commit();
    features.load(shared + Map::ring_into(kOwner + 1) + forward_out.offset(), held);
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    if (lane == 0) barrier_arrive(barriers + 8);
    gradient_in.advance();
    masked_by<Format>(sums, held, held);

    // It goes to the owner before this one and into the weight gradient. It is handed over when the products have been
    // started, by which time it has been written.
    const std::uint32_t barriers_out =
        shared + Map::gradient_barriers(kFirst ? 0 : kOwner - 1) + gradient_out.barriers();
    if constexpr (!kFirst) {
      barrier_wait_unbounded(barriers_out + 8, gradient_out.parity() ^ 1);
      features.store(shared + Map::gradient_ring(kOwner - 1) + gradient_out.offset(), held);
    }
    wgmma_fence();
    weight_gradient_products<Format>(gradient, held, ring_in + backward_in.offset(), shared + Map::kOnes);
    if constexpr (!kFirst) {
      fence_proxy_async_shared();
      arrive_for_warp(barriers_out, lane);
      gradient_out.advance();
    }
    wgmma_wait<0>();
    wgmma_sums_are_final(gradient);
    if (lane == 0) barrier_arrive(barriers_in + backward_in.barriers() + 8);
    backward_in.advance();
  }
  wgmma_sums_are_final(gradient);
  store_layer_sums(
      arguments.partials + blockIdx.x * pipeline_partial_floats(kHidden) + kOwner * kOwnerRows * kWarpgroup,
      gradient, static_cast<int>(compute_from_here(static_cast<std::uint32_t>(thread))));
}

/// The last owner: also logits, softmax, loss and the output layer's gradients.
template <class Format, int kHidden>
MACHINE_DEVICE void own_last_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PipelineMap<kHidden>;
  constexpr bool kFirst = kHidden == 1;
  constexpr int kOwner = kHidden - 1;
  constexpr std::uint32_t shared = kSharedBegin;
  const Plan& plan = plan_of(arguments);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const Lane at(thread);
  const FeaturePlaces features(at);
  const BlockTiles tiles(plan);

  const std::uint32_t ring_in = shared + Map::ring_into(kOwner),
                      barriers_in = shared + Map::barriers_into(kOwner);
  // Inputs and labels stay as they are, so they need not wait for the kernel before. What else fills the ring is asked for
  // when weights have come: what has to come from device memory would hold them up.
  const std::int64_t batch = next_batch(arguments.state);
  const int of_batches = first_of_batches(plan, batch);
  const auto load_first_inputs = [&](int begin, int end) {
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile)
      if (static_cast<int>(blockIdx.x + tile * gridDim.x) < plan.tiles)
        load_inputs(arguments, of_batches, tile, shared + tile * kTilePanelBytes,
                    shared + Map::barriers_into(0) + tile * 16);
  };
  if (thread == 32) load_first_inputs(0, Map::kFirstInputs);
  // Of the tile at hand; those of the next are on their way while a tile goes back. Behind the last one there are none. With targets
  // there are no labels.
  const std::int32_t* labels = arguments.labels + batch * plan.batch;
  int label[2], sample = tiles.first * kTileRows + at.first_row();
  const auto is_sample = [&](int half) {
    return sample - tiles.stride * kTileRows + 8 * half < plan.batch;  // behind load_labels()
  };
  const auto load_labels = [&] {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      label[half] =
          !has_targets(plan) && sample + 8 * half < plan.batch ? __ldg(labels + sample + 8 * half) : -1;
    sample += tiles.stride * kTileRows;
  };
  load_labels();
  // Each thread copies the targets of its own outputs, a tile ahead, to where it alone reads them: behind the biases' columns of the
  // logits' gradient. There are no registers for them.
  const std::uint32_t own_targets =
      shared + Map::kLogitGradients +
      static_cast<std::uint32_t>(panel_offset(thread / 2, kPanelColumns / 2 + thread % 2 * 16));
  const std::uint32_t own_further_targets = own_targets ^ 16;
  const float* next_targets = arguments.targets;
  if (has_targets(plan))
    next_targets += (batch * plan.batch + tiles.first * kTileRows + at.first_row()) * kTargetStride +
                    at.first_column();
  const auto fetch_targets = [&] {
    if (has_targets(plan)) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (is_sample(i / 2 % 2))
          copy_async4((i < 4 ? own_targets : own_further_targets) + 4 * static_cast<std::uint32_t>(i % 4),
                      next_targets + i / 2 % 2 * 8 * kTargetStride + i / 4 * 8 + i % 2);
      next_targets += tiles.stride * kTileRows * kTargetStride;
    }
  };
  fetch_targets();

  wait_for_kernel_before();
  let_next_kernel_start();
  if (has_slots(plan) && thread == 32 && blockIdx.x == 0)
    *arguments.trained_step = __ldcg(&arguments.state->step);
  if (thread == 0) {
    const std::uint32_t barrier = shared + Map::kWeightsBarrier;
    constexpr std::uint32_t kOutputBytes = 16 * kPanelRowBytes;
    barrier_arrive_expect(barrier, kTilePanelBytes + kOutputBytes);
    bulk_load(shared + Map::kLastWeights, arguments.image + last_panel(kHidden), kTilePanelBytes, barrier);
    bulk_load(shared + Map::kOutputWeights, arguments.image + output_tile(64, kHidden), kOutputBytes,
              barrier);
  }
  const float* biases = reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kOwner * 64;
  if (has_targets(plan) && thread < 16)
    reinterpret_cast<float*>(memory + Map::kSums)[thread] = __ldg(biases + 64 + thread);
  spread_biases<Format>(biases, memory + Map::kLogitGradients, Map::kBiasColumn, 1 + kOwner, thread);
  // Of logits and their biases as exponents of 2, as softmax takes them.
  const float exponent = has_targets(plan) ? 1.0f : kLog2E;
  float output_biases[4];  // of the thread's columns
#pragma unroll
  for (int i = 0; i < 4; ++i)
    output_biases[i] = exponent * __ldg(biases + 64 + at.first_column() + (i & 1) + 8 * (i >> 1));
  // With targets they are read from shared memory, as registers are few.
  const auto output_bias = [&](int i) {
    if (has_targets(plan))
      return load_shared_float(shared + Map::kSums +
                               4 * static_cast<std::uint32_t>(at.first_column() + (i & 1) + 8 * (i >> 2)));
    return output_biases[(i & 1) + 2 * (i >> 2)];
  };
  if (thread == 32) {
    barrier_wait_unbounded(shared + Map::kWeightsBarrier, 0);
    load_first_inputs(Map::kFirstInputs, Map::input_depth());
  }
  __syncwarp();

  float gradient[36];  // of the layer's weights, and of its bias in column 64
#pragma unroll
  for (float& sum : gradient) sum = 0;
  float output_gradient[8] = {}, output_bias_gradient[4] = {}, loss = 0;

  TileRing<Map::depth_into(kOwner)> forward_in, backward_in;
  TileRing<Map::gradient_depth(kHidden - 2)> gradient_out;
  barrier_wait_unbounded(shared + Map::kWeightsBarrier, 0);

  // The next tile's sums before the ReLU; a row of the tile is a row.
  float next_sums[32];
  const auto wait_for_inputs = [&] {
    barrier_wait_unbounded(barriers_in + forward_in.barriers(), forward_in.parity());
  };
  const auto forward_products = [&] {
    const Panels rows = describe(ring_in + forward_in.offset());
    wgmma_shared<Format, Factor::kTurned, Factor::kPlain>(
        next_sums, describe(shared + Map::kOnes),
        describe(shared + Map::kLogitGradients) + Map::kBiasColumn / 16 * kAlong, 0);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(
          next_sums, rows + k * kAlong, describe(shared + Map::kLastWeights) + k * kAlong, 1);
    wgmma_commit();
    forward_in.advance();
  };
  wait_for_inputs();
  wgmma_fence();
  forward_products();
  wgmma_wait<0>();
  wgmma_sums_are_final(next_sums);

  std::uint32_t held[16] = {};
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    const std::uint32_t parity = static_cast<std::uint32_t>(tile & 1);
    std::uint32_t activations[16];
    relu<Format>(next_sums, activations);
    float logits[8];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_held<Format, Factor::kPlain>(logits, activations + 4 * k,
                                         describe(shared + Map::kOutputWeights) + k * kAlong, k > 0);
    wgmma_commit();
    // Where all warps have read the tile before.
    barrier_wait_unbounded(shared + Map::kReadBarrier, parity ^ 1);
    store_rows<4>(shared + Map::kLastActivations, activations, at);
    wgmma_wait<0>();
    wgmma_sums_are_final(logits);
    // With the logits' products the weight gradient's of the tile before have ended.
    wgmma_sums_are_final(gradient);
    wgmma_words_are_final(held);
    if (tile > 0) {
      if (lane == 0) barrier_arrive(barriers_in + backward_in.barriers() + 8);
      backward_in.advance();
    }
    std::uint32_t logit_gradient[4];
    float totals[2];
#pragma unroll
    for (int i = 0; i < 8; ++i) logits[i] = fmaf(logits[i], exponent, output_bias(i));
    if (has_targets(plan)) {
      copy_async_wait_all();
      const float4 low = load_shared_floats(own_targets), high = load_shared_floats(own_further_targets);
      const float2 targets[4] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
      const int there[2] = {is_sample(0) ? 0 : -1, is_sample(1) ? 0 : -1};
      target_gradient<Format>(static_cast<Loss>(plan.loss), logits, targets, there, plan.classes,
                              arguments.gradient_scale, at.first_column(), logit_gradient);
    } else {
      narrow_gradient<Format>(logits, label, arguments.gradient_scale, at.first_column(), logit_gradient,
                              totals);
    }
    if (kFirst && thread == 0) refill_inputs<kHidden>(arguments, tiles, tile, of_batches);
    if constexpr (kFirst) __syncwarp();
    store_rows<1>(shared + Map::kLogitGradients, logit_gradient, at);
    fence_proxy_async_shared();
    named_barrier_aligned(1 + kOwner,
                          kWarpgroup);  // the tile's activations and its logits' gradient are whole

    features.load(shared + Map::kLastActivations, held);
    float sums[32];
    const Panels rows = describe(shared + Map::kLogitGradients);
    wgmma_fence();
    wgmma_shared<Format, Factor::kTurned, Factor::kPlain>(sums, describe(shared + Map::kOutputWeights), rows,
                                                          0);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_held<Format, Factor::kTurned>(output_gradient, held + 4 * k, rows + k * kAcross, 1);
    wgmma_commit();
    // Beside these products what nobody waits for, which the compiler must not put before them.
    wgmma_sums_are_final(logits);
    if (!has_targets(plan)) wgmma_sums_are_final(totals);
    wgmma_words_are_final(logit_gradient);
    if (has_targets(plan))
#pragma unroll
      for (const float of_output : logits) loss += of_output;
    else
      loss += losses_of_rows(logits, totals, label, at.first_column());
    add_bias_gradient<Format>(logit_gradient, output_bias_gradient);
    wgmma_sums_are_final(output_bias_gradient);
    load_labels();
    fetch_targets();
    if (tile + 1 < tiles.count) wait_for_inputs();
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    wgmma_sums_are_final(output_gradient);
    arrive_for_warp(shared + Map::kReadBarrier, lane);
    masked_by<Format>(sums, held, held);

    const std::uint32_t barriers_out =
        shared + Map::gradient_barriers(kFirst ? 0 : kOwner - 1) + gradient_out.barriers();
    if constexpr (!kFirst) {
      barrier_wait_unbounded(barriers_out + 8, gradient_out.parity() ^ 1);
      features.store(shared + Map::gradient_ring(kOwner - 1) + gradient_out.offset(), held);
    }
    wgmma_fence();
    forward_products();  // behind the last tile: of whatever lies there, and for nothing
    weight_gradient_products<Format>(gradient, held, ring_in + backward_in.offset(), shared + Map::kOnes);
    if constexpr (!kFirst) {
      fence_proxy_async_shared();
      arrive_for_warp(barriers_out, lane);
      gradient_out.advance();
    }
    wgmma_wait<1>();
    wgmma_sums_are_final(next_sums);
  }
  wgmma_wait<0>();
  wgmma_sums_are_final(gradient);
  wgmma_words_are_final(held);

  float* partial =
      arguments.partials + blockIdx.x * pipeline_partial_floats(kHidden) + kOwner * kOwnerRows * kWarpgroup;
  store_layer_sums(partial, gradient, thread);
  partial += kOwnerRows * kWarpgroup + thread;
#pragma unroll
  for (int row = 0; row < 8; ++row) partial[row * kWarpgroup] = output_gradient[row];
  // Over the rows of a warp, then over warps.
  float* sums = reinterpret_cast<float*>(memory + Map::kSums);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
  if (lane == 0) sums[4 * 16 + at.warp] = loss;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float sum = output_bias_gradient[i];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) sum += shuffle_xor(sum, distance);
    if (lane < 4) sums[at.warp * 16 + at.first_column() + (i & 1) + 8 * (i >> 1)] = sum;
  }
  named_barrier_aligned(1 + kOwner, kWarpgroup);
  if (thread < 16)
    partial[8 * kWarpgroup] = (sums[thread] + sums[16 + thread]) + (sums[32 + thread] + sums[48 + thread]);
  if (thread == 0) {
    const float* losses = sums + 4 * 16;
    arguments.block_losses[blockIdx.x] = (losses[0] + losses[1]) + (losses[2] + losses[3]);
  }
}

/// Owner `owner`, which is kOwner or a later one.
template <class Format, int kHidden, int kOwner>
MACHINE_DEVICE void start_owner(int owner, const PipelineArguments& arguments, unsigned char* memory) {
  if constexpr (kOwner + 1 == kHidden) {
    own_last_layer<Format, kHidden>(arguments, memory);
  } else if (owner == kOwner) {
    own_layer<Format, kHidden, kOwner>(arguments);
  } else {
    start_owner<Format, kHidden, kOwner + 1>(owner, arguments, memory);
  }
}

template <class Format, int kHidden>
__global__ void __launch_bounds__(kHidden* kWarpgroup, 1)
    pipeline_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = PipelineMap<kHidden>;
  extern __shared__ __align__(1024) unsigned char memory[];
  constexpr std::uint32_t shared = kSharedBegin;
  if (shared_address(memory) != shared) __trap();
  const int owner = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  // A thread of each owner prepares barriers, since all others wait for them.
  if (threadIdx.x % kWarpgroup == 0) {
#pragma unroll
    for (int by = 0; by < kHidden; ++by)
      if (owner == by)
#pragma unroll
        for (int buffer = by; buffer < Map::kBufferCount; buffer += kHidden) {
          const bool of_inputs = buffer < Map::input_depth();
          barrier_init(shared + Map::kBarriers + static_cast<std::uint32_t>(buffer) * 16, of_inputs ? 1 : 4);
          barrier_init(shared + Map::kBarriers + static_cast<std::uint32_t>(buffer) * 16 + 8, 4);
        }
    if (owner == kHidden - 1) {
      barrier_init(shared + Map::kWeightsBarrier, 1);
      barrier_init(shared + Map::kReadBarrier, 4);
    }
    barrier_init_fence();
  }
  if (threadIdx.x < 16 * kPanelRowBytes / 16) {
    const std::uint32_t ones = Format::pack(1, 1);
    reinterpret_cast<uint4*>(memory + Map::kOnes)[threadIdx.x] = {ones, ones, ones, ones};
  }
  fence_proxy_async_shared();
  __syncthreads();
  start_owner<Format, kHidden, 0>(owner, arguments, memory);
}

}  // namespace headroom::fused
