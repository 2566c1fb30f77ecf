// A whole step's work on an SM for networks up to 32 wide: a warp takes its rows through all layers and keeps the sums of all
// weight gradients in its registers.
//
// Products are those of a warp (mma.sync, 16 rows): they wait for nobody else, and what one leaves in registers, rounded, is
// the next one's left factor. Weights lie in shared memory and serve forwards as they are and backwards turned. A row of a tile holds two
// samples of 32 features, so a warp's 16 rows are 32 samples, two products beside each other with the same weights.
// Weight gradients are products over samples, so both factors are needed turned: activations and gradients pass
// through 2 KB each of shared memory that only the warp itself sees.
//
//   in:     inputs in tiles, labels, image; see kernels.h
//   out:    partial sums of an SM, its warps' added in order; block_losses
//   waits:  weights; a ring of inputs, each warp its own
#pragma once

#include "fused/chain.cuh"
#include "machine/barriers.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/mma.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"

namespace headroom::fused {

constexpr int kWarps = 8, kWarpThreads = 32 * kWarps;

template <int kHidden>
struct WarpMap {
  // The image as it lies in device memory; a layer is a panel of 32 rows.
  static constexpr int kLayerBytes = 32 * kPanelRowBytes;
  static constexpr int kOutputWeights = kHidden * kLayerBytes,
                       kImageBiases = kOutputWeights + 16 * kPanelRowBytes,
                       kImageBytes = kImageBiases + 4 * (kHidden * 32 + 16);
  // Of a product of 8 columns the biases as its sums begin, a float4 for each of four lanes.
  static constexpr int kBiases = (kImageBytes + 15) / 16 * 16, kBiasCount = (kHidden * 4 + 2) * 4;
  // Of a warp: its ring of inputs, a piece of each layer's activations and one of gradients.
  static constexpr int kPieceBytes = kPieceRows * kPanelRowBytes, kInputDepth = 3;
  static constexpr int kPieces = (kBiases + 16 * kBiasCount + 1023) / 1024 * 1024,
                       kWarpPieces = kInputDepth + kHidden + 1;
  // At the end a warp's sums lie where its pieces were.
  static constexpr int kPiecesBytes = kWarpPieces * kPieceBytes,
                       kSumBytes = warp_partial_rows(kHidden) * kWarpgroup * 4,
                       kWarpBytes =
                           ((kPiecesBytes > kSumBytes ? kPiecesBytes : kSumBytes) + 1023) / 1024 * 1024;
  MACHINE_BOTH static constexpr int pieces(int warp) { return kPieces + warp * kWarpBytes; }
  MACHINE_BOTH static constexpr int activations(int layer) { return (kInputDepth + layer) * kPieceBytes; }
  static constexpr int kGradients = (kInputDepth + kHidden) * kPieceBytes;
  static constexpr int kBarriers = kPieces + kWarps * kWarpBytes;
  static constexpr int kWeightsFull = kBarriers;
  MACHINE_BOTH static constexpr int inputs_full(int warp, int slot) {
    return kBarriers + 8 * (1 + warp * kInputDepth + slot);
  }
  // What a thread adds to once a tile: registers for it there are none.
  static constexpr int kBiasSums = (kBarriers + 8 * (1 + kWarps * kInputDepth) + 15) / 16 * 16,
                       kLosses = kBiasSums + 16 * kWarpThreads;
  static constexpr int kSharedBytes = kLosses + 4 * kWarpThreads;
  static_assert(kSharedBytes <= kFormBytes);
};

/// sums = start + a [16, 16] * b [16, 8]
template <class Format>
MACHINE_DEVICE void multiply_rows(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0,
                                  std::uint32_t b1, float s0, float s1, float s2, float s3) {
  if constexpr (Format::kIsBf16)
    mma_bf16_from(sums, a, b0, b1, s0, s1, s2, s3);
  else
    mma_fp16_from(sums, a, b0, b1, s0, s1, s2, s3);
}
template <class Format>
MACHINE_DEVICE void add_rows(float (&sums)[4], const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1) {
  multiply_rows<Format>(sums, a, b0, b1, sums[0], sums[1], sums[2], sums[3]);
}

/// Piece `piece` of all inputs into slot `slot` of a warp's ring.
template <int kHidden>
MACHINE_DEVICE void load_piece(const PipelineArguments& arguments, std::uint32_t shared, int warp, int slot,
                               std::int64_t piece) {
  using Map = WarpMap<kHidden>;
  const std::uint32_t full = shared + static_cast<std::uint32_t>(Map::inputs_full(warp, slot));
  barrier_arrive_expect(full, Map::kPieceBytes);
  bulk_load(shared + static_cast<std::uint32_t>(Map::pieces(warp) + slot * Map::kPieceBytes),
            arguments.inputs + piece * Map::kPieceBytes, Map::kPieceBytes, full);
}

/// A thread's share of a warp's sums: of weights 16 outputs by 8 inputs each, of biases 16 outputs, layer l in column l.
template <int kHidden>
struct WarpSums {
  float hidden[kHidden][2][4][4] = {}, output[4][4] = {}, bias[2][4] = {};
};

/// A batch in pieces: a warp takes every so many-th, from its own number on.
struct WarpPieces {
  int first, stride, end;
  MACHINE_DEVICE WarpPieces(const Plan& plan, int warp)
      : first(static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x)),
        stride(kWarps * static_cast<int>(gridDim.x)),
        end(plan.tiles * kPiecesPerTile) {}
};

template <class Format, int kHidden>
MACHINE_DEVICE void take_pieces(const PipelineArguments& arguments, unsigned char* memory, int warp,
                                const WarpPieces& pieces, WarpSums<kHidden>& total) {
  using Map = WarpMap<kHidden>;
  const Plan& plan = plan_of(arguments);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t shared = shared_address(memory);
  const std::uint32_t own = shared + static_cast<std::uint32_t>(Map::pieces(warp)),
                      full = shared + static_cast<std::uint32_t>(Map::inputs_full(warp, 0));
  const int batch = static_cast<int>(next_batch(arguments.state));
  // Where a batch begins is worked out where it is needed, as registers are few.
  const auto batch_here = [&] { return compute_from_here(batch); };
  // Where the row of eight values lies that this lane names to ldmatrix and stmatrix: of 16 rows and 16 columns; of 8
  // rows of weights and all their columns; of all their rows and 8 columns.
  const std::uint32_t in_piece =
      static_cast<std::uint32_t>((lane & 15) * kPanelRowBytes + (((lane >> 4) ^ (lane & 7)) << 4));
  const std::uint32_t in_weights =
      shared + static_cast<std::uint32_t>((lane & 7) * kPanelRowBytes + (((lane >> 3) ^ (lane & 7)) << 4));
  const std::uint32_t in_turned =
      shared + static_cast<std::uint32_t>(lane * kPanelRowBytes + ((lane & 7) << 4));
  const std::uint32_t own_piece = own + in_piece;
  // Of gradients, turned, a left factor wants the next columns before the next rows.
  const std::uint32_t own_left = own + Map::kGradients +
                                 static_cast<std::uint32_t>(((lane & 7) + (lane >> 4) * 8) * kPanelRowBytes +
                                                            (((lane >> 3 & 1) ^ (lane & 7)) << 4));
  const auto piece = [&](std::uint32_t begin, int step) {
    return (own_piece + begin) ^ static_cast<std::uint32_t>(step << 5);
  };
  const float4* biases = reinterpret_cast<const float4*>(memory + Map::kBiases) + lane % 4;
  const std::uint32_t ones = Format::pack(1, 1);

  RingPlace input;
#pragma unroll 1
  for (int at = pieces.first; at < pieces.end; at += pieces.stride) {
    const std::int32_t* labels = arguments.labels + std::int64_t{batch_here()} * plan.batch;
    int label[2][2];
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int sample = (at * kPieceRows + (lane >> 2) + 8 * half) * 2 + part;
        label[part][half] = sample < plan.batch ? __ldg(labels + sample) : -1;
      }
    const std::uint32_t inputs = static_cast<std::uint32_t>(input.stage * Map::kPieceBytes);
    barrier_wait_unbounded(full + 8 * static_cast<std::uint32_t>(input.stage), input.parity);
    std::uint32_t held[16];  // of both samples of a row, 16 columns a step
    float sums[2][4][4];     // of both samples, 8 columns each
#pragma unroll
    for (int step = 0; step < 4; ++step) load_matrices(piece(inputs, step), held + 4 * step);

#pragma unroll
    for (int layer = 0; layer < kHidden; ++layer) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        std::uint32_t weights[4];
        load_matrices(
            in_weights + static_cast<std::uint32_t>(layer * Map::kLayerBytes + j * 8 * kPanelRowBytes),
            weights);
        const float4 bias = biases[(layer * 4 + j) * 4];
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          multiply_rows<Format>(sums[part][j], held + 8 * part, weights[0], weights[1], bias.x, bias.y,
                                bias.z, bias.w);
          add_rows<Format>(sums[part][j], held + 8 * part + 4, weights[2], weights[3]);
        }
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* pair = sums[i / 8][i % 8 / 2] + 2 * (i % 2);
        held[i] = Format::pack_relu(pair[0], pair[1]);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step)
        store_matrices(piece(static_cast<std::uint32_t>(Map::activations(layer)), step), held + 4 * step);
    }

    std::uint32_t logit_gradient[2][4];
    {
      float logits[2][8];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        std::uint32_t weights[4];
        load_matrices(in_weights + static_cast<std::uint32_t>(Map::kOutputWeights + j * 8 * kPanelRowBytes),
                      weights);
        const float4 bias = biases[(kHidden * 4 + j) * 4];
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          float four[4];
          multiply_rows<Format>(four, held + 8 * part, weights[0], weights[1], bias.x, bias.y, bias.z,
                                bias.w);
          add_rows<Format>(four, held + 8 * part + 4, weights[2], weights[3]);
#pragma unroll
          for (int i = 0; i < 4; ++i) logits[part][4 * j + i] = four[i];
        }
      }
      float bias_sums[4] = {}, loss = 0;
#pragma unroll
      for (int part = 0; part < 2; ++part)
        loss += narrow_loss<Format, true>(logits[part], label[part], arguments.gradient_scale, 2 * (lane & 3),
                                          logit_gradient[part], bias_sums);
      float4& bias_so_far = reinterpret_cast<float4*>(memory + Map::kBiasSums)[threadIdx.x];
      bias_so_far = make_float4(bias_so_far.x + bias_sums[0], bias_so_far.y + bias_sums[1],
                                bias_so_far.z + bias_sums[2], bias_so_far.w + bias_sums[3]);
      reinterpret_cast<float*>(memory + Map::kLosses)[threadIdx.x] += loss;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) store_matrices(piece(Map::kGradients, part), logit_gradient[part]);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      std::uint32_t weights[4];
      load_matrices_transposed(
          (shared + Map::kOutputWeights + in_piece) ^ static_cast<std::uint32_t>(step << 5), weights);
#pragma unroll
      for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          multiply_rows<Format>(sums[part][2 * step + j], logit_gradient[part], weights[2 * j],
                                weights[2 * j + 1], 0, 0, 0, 0);
    }
    __syncwarp();
    const auto load_left = [&](int step, std::uint32_t (&left)[4]) {
      load_matrices_transposed(own_left ^ static_cast<std::uint32_t>(step << 5), left);
    };
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      std::uint32_t left[4];
      load_left(part, left);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t right[4];
        load_matrices_transposed(
            piece(static_cast<std::uint32_t>(Map::activations(kHidden - 1)), 2 * part + half), right);
        add_rows<Format>(total.output[2 * half], left, right[0], right[1]);
        add_rows<Format>(total.output[2 * half + 1], left, right[2], right[3]);
      }
    }

#pragma unroll
    for (int layer = kHidden - 1; layer >= 0; --layer) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        std::uint32_t positive[4];
        load_matrices(piece(static_cast<std::uint32_t>(Map::activations(layer)), step), positive);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = sums[step / 2][2 * (step % 2) + i / 2] + 2 * (i % 2);
          held[4 * step + i] = Format::pack(pair[0], pair[1]) & Format::positive(positive[i]);
        }
      }
      __syncwarp();  // the gradients before these have been read
#pragma unroll
      for (int step = 0; step < 4; ++step) store_matrices(piece(Map::kGradients, step), held + 4 * step);
      if (layer > 0) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          std::uint32_t weights[4];
          load_matrices_transposed((in_turned ^ static_cast<std::uint32_t>(j << 4)) +
                                       static_cast<std::uint32_t>(layer * Map::kLayerBytes),
                                   weights);
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            multiply_rows<Format>(sums[part][j], held + 8 * part, weights[0], weights[1], 0, 0, 0, 0);
            add_rows<Format>(sums[part][j], held + 8 * part + 4, weights[2], weights[3]);
          }
        }
      }
      __syncwarp();
      const std::uint32_t before =
          layer == 0 ? inputs : static_cast<std::uint32_t>(Map::activations(layer == 0 ? 0 : layer - 1));
      const std::uint32_t layer_ones = lane >> 2 == layer ? ones : 0;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        std::uint32_t left[2][4];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          load_left(2 * part + m, left[m]);
          add_rows<Format>(total.bias[m], left[m], layer_ones, layer_ones);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t right[4];
          load_matrices_transposed(piece(before, 2 * part + half), right);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            add_rows<Format>(total.hidden[layer][m][2 * half], left[m], right[0], right[1]);
            add_rows<Format>(total.hidden[layer][m][2 * half + 1], left[m], right[2], right[3]);
          }
        }
      }
    }
    __syncwarp();  // the inputs have been read, and everything else
    if (lane == 0 && at + Map::kInputDepth * pieces.stride < pieces.end)
      load_piece<kHidden>(arguments, shared, warp, input.stage,
                          std::int64_t{batch_here()} * pieces.end + at + Map::kInputDepth * pieces.stride);
    __syncwarp();
    input.advance(Map::kInputDepth);
  }
}

/// A warp's labels into the L2, before any inputs are asked for: behind those they would come after the first loss wants
/// them. Of a piece they are a line.
MACHINE_DEVICE void ask_for_labels(const PipelineArguments& arguments, const WarpPieces& pieces) {
  const Plan& plan = plan_of(arguments);
  const std::int32_t* labels = arguments.labels + next_batch(arguments.state) * plan.batch;
  for (int at = pieces.first + static_cast<int>(threadIdx.x) % 32 * pieces.stride; at < pieces.end;
       at += 32 * pieces.stride) {
    const int sample = at * kPieceRows * 2;
    if (sample < plan.batch) prefetch_line(labels + sample);
  }
}

/// All warps' sums, added up in their order; see Kind::kLanes.
template <int kHidden>
MACHINE_DEVICE void store_warp_sums(const PipelineArguments& arguments, unsigned char* memory, int warp,
                                    int warps, WarpSums<kHidden>& total) {
  using Map = WarpMap<kHidden>;
  constexpr int kRows = warp_partial_rows(kHidden);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* losses = reinterpret_cast<float*>(memory + Map::kLosses);
  const float4 bias_sums = reinterpret_cast<const float4*>(memory + Map::kBiasSums)[threadIdx.x];
  float loss = losses[threadIdx.x];
  if (warp < warps) {
    float4* own = reinterpret_cast<float4*>(memory + Map::pieces(warp)) + lane;
    int row = 0;
    const auto keep = [&](const float (&four)[4]) {
      own[row++ * 32] = make_float4(four[0], four[1], four[2], four[3]);
    };
#pragma unroll
    for (int layer = 0; layer < kHidden; ++layer)
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j) keep(total.hidden[layer][m][j]);
#pragma unroll
    for (int j = 0; j < 4; ++j) keep(total.output[j]);
#pragma unroll
    for (int m = 0; m < 2; ++m) keep(total.bias[m]);
    float output_bias[4] = {bias_sums.x, bias_sums.y, bias_sums.z, bias_sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2)
        output_bias[i] += shuffle_xor(output_bias[i], distance);
    keep(output_bias);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
    if (lane == 0) losses[threadIdx.x] = loss;
  }
  __syncthreads();
  float4* partial =
      reinterpret_cast<float4*>(arguments.partials + std::int64_t{blockIdx.x} * (kRows * kWarpgroup));
  for (int at = static_cast<int>(threadIdx.x); at < kRows * 32; at += kWarpThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int of = 0; of < kWarps; ++of) {
      if (of >= warps) break;
      const float4 more = reinterpret_cast<const float4*>(memory + Map::pieces(of))[at];
      sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
    }
    partial[at] = sum;
  }
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int of = 0; of < warps; ++of) sum += losses[32 * of];
    arguments.block_losses[blockIdx.x] = sum;
  }
}

template <class Format, int kHidden>
__global__ void __launch_bounds__(kWarpThreads, 1)
    warp_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = WarpMap<kHidden>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const WarpPieces pieces(plan_of(arguments), warp);
  const bool first_lane = threadIdx.x % 32 == 0;
  const std::int64_t first_piece = next_batch(arguments.state) * pieces.end + pieces.first;
  const auto load_first = [&](int slot) {
    if (pieces.first + slot * pieces.stride < pieces.end)
      load_piece<kHidden>(arguments, shared, warp, slot, first_piece + slot * pieces.stride);
  };
  ask_for_labels(arguments, pieces);
  if (first_lane) {
    for (int slot = 0; slot < Map::kInputDepth; ++slot)
      barrier_init(shared + static_cast<std::uint32_t>(Map::inputs_full(warp, slot)), 1);
    if (warp == 0) barrier_init(shared + Map::kWeightsFull, 1);
    barrier_init_fence();
    load_first(0);  // inputs stay as they are, so they need not wait for the update
  }
  reinterpret_cast<float4*>(memory + Map::kBiasSums)[threadIdx.x] = make_float4(0, 0, 0, 0);
  reinterpret_cast<float*>(memory + Map::kLosses)[threadIdx.x] = 0;
  __syncthreads();
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    barrier_arrive_expect(shared + Map::kWeightsFull, Map::kImageBytes);
    bulk_load(shared, arguments.image, Map::kImageBytes, shared + Map::kWeightsFull);
  }
  __syncwarp();
  barrier_wait_unbounded(shared + Map::kWeightsFull, 0);
  if (first_lane)  // not before the weights are there, which would wait behind them
    for (int slot = 1; slot < Map::kInputDepth; ++slot) load_first(slot);
  if (threadIdx.x < Map::kBiasCount) {
    const float* bias = reinterpret_cast<const float*>(memory + Map::kImageBiases) +
                        static_cast<int>(threadIdx.x) / 4 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4);
    reinterpret_cast<float4*>(memory + Map::kBiases)[threadIdx.x] =
        make_float4(bias[0], bias[1], bias[0], bias[1]);
  }
  __syncthreads();
  WarpSums<kHidden> total;
  take_pieces<Format>(arguments, memory, warp, pieces, total);
  const int blocks = static_cast<int>(gridDim.x);
  const int warps = min(kWarps, (pieces.end - static_cast<int>(blockIdx.x) + blocks - 1) / blocks);
  store_warp_sums(arguments, memory, warp, warps, total);
}

}  // namespace headroom::fused
