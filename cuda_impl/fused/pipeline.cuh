// A whole step's work on an SM for networks of 33 to 64: every warpgroup owns a hidden layer, and tiles flow past.
//
// The owner keeps its layer's weights in registers, as left factors, and so it keeps the sums of its weight gradient:
// products are of transposes, sums [features, rows] = weights [features, features] * activations^T, and what they
// leave in registers, rounded, is again a left factor. So a gradient enters dW = dZ^T * H without going through
// shared memory. Activations and gradients go to the neighbours through rings of tiles in shared memory; a tile lies
// there row by row, which is how the right factor wants it in forward, backward and weight gradient alike.
//
//                 inputs        H1             H2             H3
//   device memory ------> [ 1 ] ------> [ 2 ] ------> [ 3 ] ------> [ 4 ] logits, softmax, loss, dW5
//                           dW1 <------   dW2 <------   dW3 <------   dW4
//                                 dZ2           dZ3           dZ4
//
//   waits:  full and free of each buffer of a ring. The first owner's thread 0 also loads inputs, but those that fill
//           the ring at the start. Owner u runs lead(u) tiles ahead with its forward work, which is how many tiles
//           must find room between forward and backward; the ring behind it is that deep.
//   bits:   each owner adds up its tiles in order; the update adds up thread blocks in order.
#pragma once

#include "fused/chain.cuh"

namespace headroom::fused {

template <int kHidden>
struct PipelineMap {
  FUSED_BOTH static constexpr int lead(int owner) { return owner == kHidden - 1 ? 0 : kHidden - owner; }
  // Rings, in tiles: inputs, H of owner u to u + 1, dZ of owner u + 1 to u.
  FUSED_BOTH static constexpr int input_depth() { return lead(0) + 2; }
  FUSED_BOTH static constexpr int depth_into(int owner) {
    return owner == 0 ? input_depth() : lead(owner - 1) + 1;
  }
  static constexpr int kGradientDepth = 1;

  FUSED_BOTH static constexpr int ring_into(int owner) {  // bytes from the start
    int tiles = 0;
    for (int u = 0; u < owner; ++u) tiles += depth_into(u);
    return tiles * kTilePanelBytes;
  }
  FUSED_BOTH static constexpr int gradient_ring(int owner) {
    return ring_into(kHidden) + owner * kGradientDepth * kTilePanelBytes;
  }
  static constexpr int kLastActivations =
      ring_into(kHidden) + (kHidden - 1) * kGradientDepth * kTilePanelBytes;
  static constexpr int kLogitGradients = kLastActivations + kTilePanelBytes;
  static constexpr int kOnes = kLogitGradients + kTilePanelBytes;
  // With four owners the registers hold the first half of a turned layer's weights only; the rest is read here.
  static constexpr int kHeldSteps = kHidden == 4 ? 2 : 4;
  static constexpr int kReadBytes = (4 - kHeldSteps) * 16 * kPanelRowBytes;
  FUSED_BOTH static constexpr int turned_weights(int layer) {
    return kOnes + 16 * kPanelRowBytes + (layer - 1) * kReadBytes;
  }
  static constexpr int kOutputWeights = turned_weights(kHidden);
  static constexpr int kSums =
      kOutputWeights + 16 * kPanelRowBytes;  // what the last owner's warps add up at the end
  static constexpr int kBarriers = kSums + 4 * (16 + 1) * 4 + 15 & ~15;
  /// Pairs of barriers, full and free, a buffer of a ring each; then one for the output weights.
  FUSED_BOTH static constexpr int barriers_into(int owner) {
    return kBarriers + ring_into(owner) / kTilePanelBytes * 16;
  }
  FUSED_BOTH static constexpr int gradient_barriers(int owner) {
    return kBarriers + gradient_ring(owner) / kTilePanelBytes * 16;
  }
  static constexpr int kBufferCount = kLastActivations / kTilePanelBytes;
  static constexpr int kWeightsBarrier = kBarriers + kBufferCount * 16;
  static constexpr int kSharedBytes = kWeightsBarrier + 16;
  static_assert(kSharedBytes <= 227 * 1024);
};

constexpr int kOtherRegisters = 120, kLastRegisters = 152;

/// A place in a ring of tiles: the buffer's offset, and in bit 0 the parity of its phase.
template <int kDepth>
struct TileRing {
  std::uint32_t at = 0;
  FUSED_DEVICE std::uint32_t offset() const { return at & ~1u; }
  FUSED_DEVICE std::uint32_t parity() const { return at & 1; }
  /// Of the buffer's pair of barriers, from the ring's first.
  FUSED_DEVICE std::uint32_t barriers() const { return offset() / (kTilePanelBytes / 16); }
  FUSED_DEVICE void advance() {
    at += kTilePanelBytes;
    if (offset() == kDepth * kTilePanelBytes) at = parity() ^ 1;
  }
};

/// Of this thread block's tile `tile`, by one thread.
FUSED_DEVICE void load_inputs(const PipelineArguments& arguments, std::int64_t batch, int tile,
                              std::uint32_t buffer, std::uint32_t barrier) {
  const std::int64_t of_batch = batch * arguments.plan.tiles + blockIdx.x + tile * gridDim.x;
  barrier_expect(barrier, kTilePanelBytes);
  bulk_load(buffer, arguments.inputs + of_batch * kTilePanelBytes, kTilePanelBytes, barrier);
}

/// Owner kOwner of kHidden, over all tiles of its thread block.
template <class Format, int kHidden, int kOwner>
FUSED_DEVICE void own_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PipelineMap<kHidden>;
  constexpr bool kFirst = kOwner == 0, kLast = kOwner == kHidden - 1;
  constexpr int kForwardSteps = 4, kLead = Map::lead(kOwner), kBackwardSteps = kLast ? 1 : Map::kHeldSteps;
  const Plan& plan = arguments.plan;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory);
  const int first_tile = static_cast<int>(blockIdx.x), stride = static_cast<int>(gridDim.x);
  const int tiles = (plan.tiles - first_tile + stride - 1) / stride;

  const std::uint32_t ring_in = shared + Map::ring_into(kOwner),
                      barriers_in = shared + Map::barriers_into(kOwner);
  // The layer's weights, and those of the layer behind it, turned.
  std::uint32_t forward[4 * kForwardSteps], backward[4 * kBackwardSteps];
  const auto load_fragments = [&](std::uint32_t* words, int offset, int steps) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const uint4 four =
          __ldg(reinterpret_cast<const uint4*>(arguments.image + offset) + step * kWarpgroup + thread);
      words[4 * step] = four.x;
      words[4 * step + 1] = four.y;
      words[4 * step + 2] = four.z;
      words[4 * step + 3] = four.w;
    }
  };
  load_fragments(forward, forward_fragments(64, kOwner), kForwardSteps);
  load_fragments(backward,
                 kLast ? output_fragments(64, kHidden) : backward_fragments(64, kHidden, kOwner + 1),
                 kBackwardSteps);
  const float* biases = reinterpret_cast<const float*>(arguments.image + plan.bias_begin) + kOwner * 64;
  // For inputs and labels; who has neither does not wait for it.
  const std::int64_t batch = kFirst || kLast ? next_batch(arguments.state) : 0;

  float gradient[36];  // of the layer's weights, and of its bias in column 64
#pragma unroll
  for (float& sum : gradient) sum = 0;
  float output_gradient[kLast ? 8 : 1] = {}, output_bias[4] = {}, loss = 0;

  // Where this thread's part of a tile goes: features 16 * warp to 16 * warp + 15 of 16 rows a step.
  const std::uint32_t stored =
      static_cast<std::uint32_t>((8 * (lane >> 4) + (lane & 7)) * kPanelRowBytes +
                                 (((2 * at.warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4));
  const auto store_features = [&](std::uint32_t tile, const std::uint32_t* held) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      store_matrices_turned(tile + stored + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                            held + 4 * step);
  };
  // What store_features() stored: a warp needs only what it wrote itself.
  const auto load_features = [&](std::uint32_t tile, std::uint32_t* held) {
#pragma unroll
    for (int step = 0; step < 4; ++step)
      load_matrices_turned(tile + stored + static_cast<std::uint32_t>(step * 16 * kPanelRowBytes),
                           held + 4 * step);
  };
  const auto arrive = [&](std::uint32_t barrier) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  };
  TileRing<Map::depth_into(kOwner)> forward_in, backward_in;
  TileRing<kLast ? 1 : Map::depth_into(kLast ? 0 : kOwner + 1)> forward_out;
  TileRing<Map::kGradientDepth> gradient_in, gradient_out;
  barrier_wait(shared + Map::kWeightsBarrier, 0);
  const std::int32_t* labels = arguments.labels + (kLast ? batch * plan.batch : 0);

  // Of the tile at hand; those of the next are on their way while a tile goes back.
  int label[2];
  const auto load_labels = [&](int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int sample = (first_tile + tile * stride) * kTileRows + at.first_row() + 8 * half;
      label[half] = sample < plan.batch ? __ldg(labels + sample) : -1;
    }
  };
  if constexpr (kLast) load_labels(0);

  const auto wait_for_inputs = [&] {
    barrier_wait(barriers_in + forward_in.barriers(), forward_in.parity());
  };
  const auto forward_products = [&](float (&sums)[32]) {
    const Panels rows = describe(ring_in + forward_in.offset());
#pragma unroll
    for (int k = 0; k < kForwardSteps; ++k)
      multiply_held<Format, Factor::kPlain>(sums, forward + 4 * k, rows + k * kAlong, k > 0);
    products_commit();
    forward_in.advance();
  };
  // The last owner has most to do one after the other: its forward products are under way together with those of the
  // weight gradient of the tile before.
  float next_sums[32];
  if constexpr (kLast) {
    wait_for_inputs();
    products_begin();
    forward_products(next_sums);
    products_wait<0>();
    sums_are_final(next_sums);
  }

#pragma unroll 1
  for (int tile = -kLead; tile < tiles; ++tile) {
    float sums[32];
    std::uint32_t held[16];

    // Forward.
    if constexpr (kLast) {
      const float bias[2] = {__ldg(biases + at.first_row()), __ldg(biases + at.first_row() + 8)};
      relu_values<Format>(next_sums, bias, held);
    } else {
      if (tile + kLead < tiles) {
        wait_for_inputs();
        products_begin();
        forward_products(sums);
        const float bias[2] = {__ldg(biases + at.first_row()), __ldg(biases + at.first_row() + 8)};
        products_wait<0>();
        sums_are_final(sums);
        relu_values<Format>(sums, bias, held);
        const std::uint32_t barriers = shared + Map::barriers_into(kOwner + 1) + forward_out.barriers();
        barrier_wait(barriers + 8, forward_out.parity() ^ 1);
        store_features(shared + Map::ring_into(kOwner + 1) + forward_out.offset(), held);
        shared_writes_to_async();
        arrive(barriers);
      }
    }
    if constexpr (!kLast) forward_out.advance();  // so this is now the place of this very tile
    if (tile < 0) continue;

    // The gradient of the layer's activations: from the next owner's, or from the loss.
    if constexpr (kLast) {
      store_features(shared + Map::kLastActivations, held);
      shared_writes_to_async();
      named_barrier(1, kWarpgroup);  // the tile is whole
      float logits[8];
      {
        const Panels rows = describe(shared + Map::kLastActivations);
        const Panels weights = describe(shared + Map::kOutputWeights);
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          multiply_shared<Format, Factor::kPlain, Factor::kPlain>(logits, rows + k * kAlong,
                                                                  weights + k * kAlong, k > 0);
        products_commit();
      }
      const float* output_biases = reinterpret_cast<const float*>(arguments.image + plan.bias_begin) +
                                   kHidden * 64 + at.first_column();
      float output_bias_of[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) output_bias_of[i] = __ldg(output_biases + (i & 1) + 8 * (i >> 1));
      products_wait<0>();
      sums_are_final(logits);
      std::uint32_t logit_gradient[4];
#pragma unroll
      for (int i = 0; i < 8; ++i) logits[i] += output_bias_of[(i & 1) + 2 * (i >> 2)];
      loss += narrow_loss<Format>(logits, label, arguments.gradient_scale, at.first_column(), logit_gradient,
                                  output_bias);
      if (tile + 1 < tiles) load_labels(tile + 1);
      store_rows<1>(shared + Map::kLogitGradients, logit_gradient, at);
      shared_writes_to_async();
      named_barrier(1,
                    kWarpgroup);  // the logits' gradient is whole, and nobody reads the activations any more
      const Panels rows = describe(shared + Map::kLogitGradients);
      products_begin();
      multiply_held<Format, Factor::kPlain>(sums, backward, rows, 0);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        multiply_held<Format, Factor::kTurned>(output_gradient, held + 4 * k, rows + k * kAcross, 1);
      products_commit();
      products_wait<0>();
      sums_are_final(sums);
      sums_are_final(output_gradient);
      masked_by<Format>(sums, held, held);
    } else {
      const std::uint32_t barriers = shared + Map::gradient_barriers(kOwner) + gradient_in.barriers();
      barrier_wait(barriers, gradient_in.parity());
      const Panels rows = describe(shared + Map::gradient_ring(kOwner) + gradient_in.offset());
      products_begin();
#pragma unroll
      for (int k = 0; k < Map::kHeldSteps; ++k)
        multiply_held<Format, Factor::kPlain>(sums, backward + 4 * k, rows + k * kAlong, k > 0);
#pragma unroll
      for (int k = Map::kHeldSteps; k < 4; ++k)
        multiply_shared<Format, Factor::kTurned, Factor::kPlain>(
            sums, describe(shared + Map::turned_weights(kOwner + 1)) + (k - Map::kHeldSteps) * kAcross,
            rows + k * kAlong, 1);
      products_commit();
      load_features(shared + Map::ring_into(kOwner + 1) + forward_out.offset(), held);
      products_wait<0>();
      sums_are_final(sums);
      if (lane == 0) barrier_arrive(barriers + 8);
      gradient_in.advance();
      masked_by<Format>(sums, held, held);
    }

    // The gradient before the ReLU, to the owner before this one and into the weight gradient. It is handed over when
    // the products have been started, by which time it has been written.
    const std::uint32_t barriers_out =
        shared + Map::gradient_barriers(kFirst ? 0 : kOwner - 1) + gradient_out.barriers();
    if constexpr (!kFirst) {
      barrier_wait(barriers_out + 8, gradient_out.parity() ^ 1);
      store_features(shared + Map::gradient_ring(kOwner - 1) + gradient_out.offset(), held);
    }
    const Panels inputs_and_ones = describe_both(ring_in + backward_in.offset(), shared + Map::kOnes);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      multiply_held<Format, Factor::kTurned>(gradient, held + 4 * k, inputs_and_ones + k * kAcrossFirst, 1);
    products_commit();
    if constexpr (!kFirst) {
      shared_writes_to_async();
      arrive(barriers_out);
      gradient_out.advance();
    }
    if constexpr (kLast) {  // behind the last tile: with what lies there, and for nothing
      if (tile + 1 < tiles) wait_for_inputs();
      products_begin();
      forward_products(next_sums);
    }
    products_wait<0>();
    sums_are_final(gradient);
    if constexpr (kLast) sums_are_final(next_sums);
    if (lane == 0) barrier_arrive(barriers_in + backward_in.barriers() + 8);
    if constexpr (kFirst) {
      if (thread == 0 && tile + Map::input_depth() < tiles) {
        barrier_wait(barriers_in + backward_in.barriers() + 8, backward_in.parity());
        load_inputs(arguments, batch, tile + Map::input_depth(), ring_in + backward_in.offset(),
                    barriers_in + backward_in.barriers());
      }
      __syncwarp();
    }
    backward_in.advance();
  }
  sums_are_final(gradient);

  float* partial =
      arguments.partials + blockIdx.x * pipeline_partial_floats(kHidden) + kOwner * kOwnerRows * kWarpgroup;
  store_quads<32>(partial, gradient, thread);
  partial += thread;
  partial[32 * kWarpgroup] = gradient[32];
  partial[33 * kWarpgroup] = gradient[34];
  if constexpr (kLast) {
    partial += kOwnerRows * kWarpgroup;
#pragma unroll
    for (int row = 0; row < 8; ++row) partial[row * kWarpgroup] = output_gradient[row];
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
      partial[8 * kWarpgroup] = (sums[thread] + sums[16 + thread]) + (sums[32 + thread] + sums[48 + thread]);
    if (thread == 0) {
      const float* losses = sums + 4 * 16;
      arguments.block_losses[blockIdx.x] = (losses[0] + losses[1]) + (losses[2] + losses[3]);
    }
  }
}

/// Owner `owner`, which is kOwner or a later one. Of 512 threads the last owner's need more than 128 registers each,
/// the others' less.
template <class Format, int kHidden, int kOwner>
FUSED_DEVICE void start_owner(int owner, const PipelineArguments& arguments, unsigned char* memory) {
  if constexpr (kOwner + 1 == kHidden) {
    if constexpr (kHidden == 4) registers_increase<kLastRegisters>();
    own_layer<Format, kHidden, kOwner>(arguments, memory);
  } else if (owner == kOwner) {
    if constexpr (kHidden == 4) registers_decrease<kOtherRegisters>();
    own_layer<Format, kHidden, kOwner>(arguments, memory);
  } else {
    start_owner<Format, kHidden, kOwner + 1>(owner, arguments, memory);
  }
}

template <class Format, int kHidden>
__global__ void __launch_bounds__(kHidden* kWarpgroup, 1)
    pipeline_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = PipelineMap<kHidden>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
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
    if (owner == kHidden - 1) barrier_init(shared + Map::kWeightsBarrier, 1);
    barrier_init_fence();
  }
  if (threadIdx.x < 16 * kPanelRowBytes / 16) {
    const std::uint32_t ones = Format::pack(1, 1);
    reinterpret_cast<uint4*>(memory + Map::kOnes)[threadIdx.x] = {ones, ones, ones, ones};
  }
  shared_writes_to_async();
  __syncthreads();
  // Inputs stay as they are, so they need not wait. The ring is filled, by a warp of the last owner, which is needed
  // last; then every tile that has been used up makes room for another.
  if (threadIdx.x == (kHidden - 1) * kWarpgroup + 32) {
    const std::int64_t batch = next_batch(arguments.state);
#pragma unroll 1
    for (int tile = 0; tile < Map::input_depth(); ++tile)
      if (static_cast<int>(blockIdx.x + tile * gridDim.x) < arguments.plan.tiles)
        load_inputs(arguments, batch, tile, shared + tile * kTilePanelBytes,
                    shared + Map::barriers_into(0) + tile * 16);
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x == (kHidden - 1) * kWarpgroup) {
    const std::uint32_t barrier = shared + Map::kWeightsBarrier;
    constexpr std::uint32_t kOutputBytes = 16 * kPanelRowBytes;
    barrier_expect(barrier, kOutputBytes + (kHidden - 1) * Map::kReadBytes);
    bulk_load(shared + Map::kOutputWeights, arguments.image + output_tile(64, kHidden), kOutputBytes,
              barrier);
    if constexpr (Map::kReadBytes > 0)
      for (int layer = 1; layer < kHidden; ++layer)
        bulk_load(shared + Map::turned_weights(layer),
                  arguments.image + turned_panel(kHidden, layer) + kTilePanelBytes - Map::kReadBytes,
                  Map::kReadBytes, barrier);
  }
  start_owner<Format, kHidden, 0>(owner, arguments, memory);
}

}  // namespace headroom::fused
