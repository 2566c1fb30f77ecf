// A tile's way through any network that fits: forward, loss and backward on one SM; what its weight gradients need
// goes to device memory.
//
// A thread block: two warpgroups, each with a tile of 64 rows, and a warp that loads. All weights but the first
// layer's stay in shared memory, which is read by products only; a tile's activations stay in registers from layer
// to layer. The first layer streams: panels of 64 inputs and the weights to them come through a ring. The L2 has no room
// for all inputs beside what a step writes and reads again, so most are to leave it first, and what is written last. What all blocks store while a
// tile goes back is as much as the L2 takes in that time; so gradients of the weights to up to 16 logits are summed here, of
// the last activations as they are staged, and these do not leave. How soon the last hidden layer's gradient is on its way
// decides when a block ends: those sums are made behind it, beside the products of the layer before.
//   in:      inputs, labels, image; see kernels.h
//   out:     activations and gradients of every layer in panels, but for the above; output_partials; block_losses
//   waits:   resident (weights have landed), full and free of each stage; a warp stores its own 16 rows of a tile
//            by bulk copies and waits for the last one to have left before it writes the next; a warpgroup meets before
//            and behind the products that read the rows of all its warps; sums (all threads have left theirs for the loading
//            warp, which stores them)
// Rows beyond the batch have gradients of zero, so nobody has to leave them out.
#pragma once

#include <type_traits>

#include "fused/kernels.h"
#include "fused/logit_sums.cuh"
#include "fused/loss.cuh"
#include "fused/warpgroup.cuh"
#include "machine/barriers.cuh"
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

/// A warpgroup's own barrier is this one or the next.
constexpr int kMeetingBarrier = 2;
constexpr int kChainWarpgroups = 2, kChainThreads = kChainWarpgroups * kWarpgroup + 32;

/// Which batch is trained. The update says so before this kernel may start, so before the update has ended.
MACHINE_DEVICE std::int64_t next_batch(const StepState* state) { return __ldcg(&state->batch); }

/// Barriers in shared memory, by address.
struct ChainBarriers {
  std::uint32_t begin;
  int stages;
  MACHINE_DEVICE std::uint32_t resident() const { return begin; }
  MACHINE_DEVICE std::uint32_t full(int stage) const {
    return begin + 8 + 8 * static_cast<std::uint32_t>(stage);
  }
  MACHINE_DEVICE std::uint32_t free(int stage) const { return full(stages + stage); }
  MACHINE_DEVICE std::uint32_t sums() const { return full(2 * stages); }
};

template <int kWidth>
constexpr std::uint32_t kStageBytes = kChainWarpgroups * kTilePanelBytes + kWidth * kPanelRowBytes;

/// The loading warp, one lane of it.
template <int kWidth>
MACHINE_DEVICE void chain_load(const ChainArguments& arguments, std::int64_t batch, std::uint32_t shared,
                               const ChainBarriers& barriers) {
  const Plan& plan = plan_of(arguments);
  const int resident = arguments.layout.resident_bytes;
  barrier_arrive_expect(barriers.resident(), static_cast<std::uint32_t>(resident));
  for (int done = 0; done < resident; done += 32768)
    bulk_load(shared + static_cast<std::uint32_t>(done), arguments.image + plan.hidden_begin + done,
              static_cast<std::uint32_t>(min(32768, resident - done)), barriers.resident());
  const std::int64_t tile_bytes = input_tile_bytes(plan);
  const unsigned char* inputs = arguments.inputs + batch * plan.tiles * tile_bytes;
  RingPlace at;
  for (int pair = static_cast<int>(blockIdx.x); pair < plan.tiles / 2; pair += static_cast<int>(gridDim.x)) {
    const auto load_panel = [&](int panel, std::uint32_t row_bytes) {
      const std::uint32_t stage = shared + static_cast<std::uint32_t>(arguments.layout.ring_begin) +
                                  static_cast<std::uint32_t>(at.stage) * kStageBytes<kWidth>;
      barrier_wait_unbounded(barriers.free(at.stage), at.parity ^ 1);
      barrier_arrive_expect(barriers.full(at.stage), (kChainWarpgroups * kTileRows + kWidth) * row_bytes);
      for (int tile = 0; tile < kChainWarpgroups; ++tile) {
        const std::uint32_t rows = stage + static_cast<std::uint32_t>(tile * kTilePanelBytes);
        const unsigned char* of_tile = inputs + (2 * pair + tile) * tile_bytes + panel * kTilePanelBytes;
        if (panel < arguments.passing_panels)
          bulk_load_evict_first(rows, of_tile, kTileRows * row_bytes, barriers.full(at.stage));
        else
          bulk_load(rows, of_tile, kTileRows * row_bytes, barriers.full(at.stage));
      }
      bulk_load(stage + kChainWarpgroups * kTilePanelBytes,
                arguments.image + static_cast<std::int64_t>(panel) * kWidth * kPanelRowBytes,
                kWidth * row_bytes, barriers.full(at.stage));
      at.advance(barriers.stages);
    };
    for (int panel = 0; panel < plan.input_panels; ++panel) load_panel(panel, kPanelRowBytes);
    if (has_narrow_panel(plan)) load_panel(plan.input_panels, kNarrowRowBytes);
  }
}

/// Where the warpgroups leave their sums for the loading warp: of the gradients of the weights to up to 16 logits in the
/// first stage of the ring, each where only its own inputs lay; of the biases where its logits' gradients were; a loss a warp.
struct ChainSums {
  float *weights, *biases, *losses;
  MACHINE_DEVICE ChainSums(const ChainLayout& layout, unsigned char* memory)
      : weights(reinterpret_cast<float*>(memory + layout.ring_begin)),
        biases(reinterpret_cast<float*>(memory + layout.narrow_staging_begin)),
        losses(reinterpret_cast<float*>(memory + layout.barrier_begin) + 2 * (2 + 2 * layout.stages)) {}
  MACHINE_DEVICE float* weights_of(int warpgroup) const {
    return weights + warpgroup * (kTilePanelBytes / 4);
  }
  MACHINE_DEVICE float* biases_of(int warpgroup) const { return biases + warpgroup * (kNarrowTileBytes / 4); }
};

/// The loading warp, when it has loaded everything.
template <int kWidth, int kClassRows>
MACHINE_DEVICE void chain_store_sums(const ChainArguments& arguments, unsigned char* memory,
                                     const ChainBarriers& barriers) {
  const ChainSums left(arguments.layout, memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  barrier_wait_unbounded(barriers.sums(), 0);
  if constexpr (kClassRows == kNarrowColumns)
    LogitSums<(kWidth + 63) / 64>::store(
        arguments.output_partials + blockIdx.x * output_partial_floats(kWidth), left.weights_of(0),
        left.weights_of(1), left.biases_of(0), left.biases_of(1), lane);
  if (lane == 0) {
    float sum = 0;
    for (int warp = 0; warp < 4 * kChainWarpgroups; ++warp) sum += left.losses[warp];
    arguments.block_losses[blockIdx.x] = sum;
  }
}

/// One warpgroup, over all its tiles.
template <class Format, int kWidth, int kClassRows>
MACHINE_DEVICE void chain_compute(const ChainArguments& arguments, std::int64_t batch, unsigned char* memory,
                                  const ChainBarriers& barriers, int warpgroup) {
  constexpr int kPairs = kWidth / 4, kSteps = kWidth / 16, kPanels = (kWidth + 63) / 64;
  constexpr int kHiddenPanelBytes = kWidth * kPanelRowBytes, kOutputPanelBytes = kClassRows * kPanelRowBytes;
  constexpr bool kSumsOutputs = kClassRows == kNarrowColumns;
  const Plan& plan = plan_of(arguments);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const Lane at(thread);
  const std::uint32_t shared = shared_address(memory);
  const std::uint32_t staging = shared + static_cast<std::uint32_t>(arguments.layout.staging_begin +
                                                                    warpgroup * kPanels * kTilePanelBytes);
  const std::uint32_t output_weights =
      shared + static_cast<std::uint32_t>(plan.output_begin - plan.hidden_begin);
  const float* biases = reinterpret_cast<const float*>(memory + (plan.bias_begin - plan.hidden_begin));
  using Masks = Mask<kPairs>;
  std::uint32_t* masks = reinterpret_cast<std::uint32_t*>(memory + arguments.layout.mask_begin) +
                         warpgroup * plan.hidden * Masks::kWords * kWarpgroup + thread;
  const auto hidden_weights = [&](int layer) {
    return shared + static_cast<std::uint32_t>((layer - 1) * kPanels * kHiddenPanelBytes);
  };
  // The rows of this warp to a tile's panels in device memory.
  const auto publish = [&](unsigned char* panels, const std::uint32_t* held, auto steps, int panel_count,
                           int first_step) {
    if (at.lane == 0) bulk_store_wait_read<0>();
    __syncwarp();
    store_rows<decltype(steps)::value>(staging, held, at, first_step);
    fence_proxy_async_shared();
    __syncwarp();
    if (at.lane == 0) {
      for (int panel = 0; panel < panel_count; ++panel) {
        const int rows = panel * kTilePanelBytes + at.warp * 16 * kPanelRowBytes;
        bulk_store_evict_last(panels + rows, staging + static_cast<std::uint32_t>(rows), 16 * kPanelRowBytes);
      }
      bulk_store_commit();
    }
  };
  using WidthSteps = std::integral_constant<int, kSteps>;
  using ClassSteps = std::integral_constant<int, kClassRows / 16>;
  const auto panels_of = [&](unsigned char* all, int layer, int tile) {
    return all + (static_cast<std::int64_t>(layer) * plan.tiles + tile) * (kPanels * kTilePanelBytes);
  };

  [[maybe_unused]] const std::uint32_t narrow_staging =
      shared +
      static_cast<std::uint32_t>(arguments.layout.narrow_staging_begin + warpgroup * kNarrowTileBytes);
  [[maybe_unused]] LogitSums<kPanels> output_sums;

  barrier_wait_unbounded(barriers.resident(), 0);
  const std::int32_t* labels = arguments.labels + batch * plan.batch;
  float loss = 0;
  RingPlace ring;
  for (int pair = static_cast<int>(blockIdx.x); pair < plan.tiles / 2; pair += static_cast<int>(gridDim.x)) {
    const int tile = 2 * pair + warpgroup;
    float sums[2 * kPairs];
    std::uint32_t held[kPairs];

    RowLogits rows;  // the labels are needed much later, and are on their way until then
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile * kTileRows + at.first_row() + 8 * half;
      rows.label[half] = row < plan.batch ? labels[row] : -1;
    }

    // Forward: the first layer from the ring.
    begin_with_bias(sums, biases, at);
    const auto stage_rows = [&] {
      return shared + static_cast<std::uint32_t>(arguments.layout.ring_begin + warpgroup * kTilePanelBytes) +
             static_cast<std::uint32_t>(ring.stage) * kStageBytes<kWidth>;
    };
    const auto stage_weights = [&] {
      return stage_rows() + static_cast<std::uint32_t>((kChainWarpgroups - warpgroup) * kTilePanelBytes);
    };
#pragma unroll 1
    for (int panel = 0; panel < plan.input_panels; ++panel, ring.advance(barriers.stages)) {
      barrier_wait_unbounded(barriers.full(ring.stage), ring.parity);
      const Panels rows = describe(stage_rows()), weights = describe(stage_weights());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(sums, rows + k * kAlong, weights + k * kAlong,
                                                             1);
      wgmma_commit();
      wgmma_wait<0>();
      if (at.lane == 0) barrier_arrive(barriers.free(ring.stage));
    }
    if (has_narrow_panel(plan)) {
      barrier_wait_unbounded(barriers.full(ring.stage), ring.parity);
      wgmma_fence();
      wgmma_shared<Format, Factor::kPlain, Factor::kPlain>(sums, describe_narrow(stage_rows()),
                                                           describe_narrow(stage_weights()), 1);
      wgmma_commit();
      wgmma_wait<0>();
      if (at.lane == 0) barrier_arrive(barriers.free(ring.stage));
      ring.advance(barriers.stages);
    }
    wgmma_sums_are_final(sums);

    // Forward: the hidden layers, from registers. What the next product does not wait for is done beside it.
    const auto keep_mask = [&](int layer) {
      const Masks mask = positive(held);
#pragma unroll
      for (int word = 0; word < Masks::kWords; ++word)
        masks[(layer * Masks::kWords + word) * kWarpgroup] = mask.word[word];
    };
    const auto keep_activations = [&](int layer) {
      keep_mask(layer);
      publish(panels_of(arguments.activations, layer, tile), held, WidthSteps{}, kPanels, 0);
    };
#pragma unroll 1
    for (int layer = 0; layer + 1 < plan.hidden; ++layer) {
      relu<Format>(sums, held);
      begin_with_bias(sums, biases + (layer + 1) * kWidth, at);
      wgmma_fence();
      forward_products<Format, kSteps>(sums, held, hidden_weights(layer + 1), kHiddenPanelBytes);
      wgmma_commit();
      keep_activations(layer);
      wgmma_wait<0>();
      wgmma_sums_are_final(sums);
    }
    relu<Format>(sums, held);

    // Loss.
    float logits[kClassRows / 2];
    const auto start_logits = [&](int group) {
      begin_with_bias(logits, biases + plan.hidden * kWidth + group * kClassRows, at);
      wgmma_fence();
      forward_products<Format, kSteps>(
          logits, held, output_weights + static_cast<std::uint32_t>(group * kPanels * kOutputPanelBytes),
          kOutputPanelBytes);
      wgmma_commit();
    };
    const auto finish_logits_products = [&] {
      wgmma_wait<0>();
      wgmma_sums_are_final(logits);
    };
    const auto start_back = [&](int layer) {
      wgmma_fence();
      backward_products<Format, kSteps>(sums, held, hidden_weights(layer), kHiddenPanelBytes, 0);
      wgmma_commit();
    };
    const auto publish_gradient = [&](int layer) {
      publish(panels_of(arguments.gradients, layer, tile), held, WidthSteps{}, kPanels, 0);
    };
    const auto mask_sums = [&](int layer) {
      Masks mask;
#pragma unroll
      for (int word = 0; word < Masks::kWords; ++word)
        mask.word[word] = masks[(layer * Masks::kWords + word) * kWarpgroup];
      masked<Format>(sums, mask, held);
    };
    start_logits(0);
    if constexpr (kSumsOutputs) {
      // The activations stay in shared memory, for their mask and for the gradients of the logits' weights: in the second and
      // third stage of the ring, where only this warpgroup's inputs lay, if no more of them are to come.
      const bool is_last = pair + static_cast<int>(gridDim.x) >= plan.tiles / 2,
                 in_ring = is_last && barriers.stages > kPanels;
      const std::uint32_t stride = in_ring ? kStageBytes<kWidth> : kTilePanelBytes,
                          first_stage = shared + static_cast<std::uint32_t>(arguments.layout.ring_begin +
                                                                            warpgroup * kTilePanelBytes),
                          activations = in_ring ? first_stage + stride : staging;
      if (in_ring) {
        named_barrier_aligned(kMeetingBarrier + warpgroup, kWarpgroup);  // all have read these inputs
      } else {
        if (at.lane == 0) bulk_store_wait_read<0>();
        __syncwarp();
      }
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        store_rows<kSteps / kPanels>(activations + static_cast<std::uint32_t>(panel) * stride,
                                     held + panel * (kPairs / kPanels), at);
      finish_logits_products();
      std::uint32_t gradient[4];
      loss += narrow_loss<Format, true>(logits, rows.label, arguments.gradient_scale, at.first_column(),
                                        gradient, output_sums.bias);
      wgmma_fence();
      backward_products<Format, 1>(sums, gradient, output_weights, kOutputPanelBytes, 0);
      wgmma_commit();
      store_matrices(narrow_staging + at.narrow_place(), gradient);
      __syncwarp();
      wgmma_wait<0>();
      wgmma_sums_are_final(sums);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {  // 16 columns: no more of the activations in registers
        std::uint32_t own[4];
        load_matrices(activations + static_cast<std::uint32_t>(step / 4) * stride + at.place(step % 4), own);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          held[4 * step + i] =
              Format::pack(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]) & Format::positive(own[i]);
      }
      if (plan.hidden > 1) start_back(plan.hidden - 1);
      if (in_ring) publish_gradient(plan.hidden - 1);
      fence_proxy_async_shared();
      named_barrier_aligned(kMeetingBarrier + warpgroup, kWarpgroup);  // all rows are there
      output_sums.template add<Format>(activations, stride, narrow_staging);
      if (!in_ring) {  // the gradient is staged where they lie
        wgmma_wait<0>();
        named_barrier_aligned(kMeetingBarrier + warpgroup, kWarpgroup);
        publish_gradient(plan.hidden - 1);
      }
      wgmma_wait<1>();  // the products of the layer before
      wgmma_sums_are_final(sums);
      if (plan.hidden > 1) mask_sums(plan.hidden - 2);
      wgmma_wait<0>();
      output_sums.are_final();
      named_barrier_aligned(kMeetingBarrier + warpgroup, kWarpgroup);  // all rows have been read
#pragma unroll 1
      for (int layer = plan.hidden - 2; layer > 0; --layer) {
        start_back(layer);
        publish_gradient(layer);
        wgmma_wait<0>();
        wgmma_sums_are_final(sums);
        mask_sums(layer - 1);
      }
      if (plan.hidden > 1) publish_gradient(0);
    } else {
      keep_activations(plan.hidden - 1);
      finish_logits_products();
      add_logits(rows, logits, 0, at);
#pragma unroll 1
      for (int group = 1; group < plan.class_groups; ++group) {
        start_logits(group);
        finish_logits_products();
        add_logits(rows, logits, group * kClassRows, at);
      }
      loss += finish_logits(rows, at);

      // Backward: the gradient of the last hidden activations.
#pragma unroll 1
      for (int group = 0; group < plan.class_groups; ++group) {
        start_logits(group);  // or keep them in registers that there are not
        finish_logits_products();
        std::uint32_t gradient[kClassRows / 4];
        logit_gradient<Format>(rows, logits, group * kClassRows, arguments.gradient_scale, at, gradient);
        wgmma_fence();
        backward_products<Format, kClassRows / 16>(
            sums, gradient, output_weights + static_cast<std::uint32_t>(group * kPanels * kOutputPanelBytes),
            kOutputPanelBytes, group > 0);
        wgmma_commit();
        // Two groups of 32 share a panel, which leaves when both are there.
        const int column = group * kClassRows;
        const bool complete = group + 1 == plan.class_groups || (column + kClassRows) % kPanelColumns == 0;
        publish(arguments.output_gradients +
                    (static_cast<std::int64_t>(tile) * plan.class_panels + column / kPanelColumns) *
                        kTilePanelBytes,
                gradient, ClassSteps{}, complete ? 1 : 0, column % kPanelColumns / 16);
        wgmma_wait<0>();
        wgmma_sums_are_final(sums);
      }

      // Backward: the hidden layers.
      mask_sums(plan.hidden - 1);
#pragma unroll 1
      for (int layer = plan.hidden - 1; layer > 0; --layer) {
        start_back(layer);
        publish_gradient(layer);
        wgmma_wait<0>();
        wgmma_sums_are_final(sums);
        mask_sums(layer - 1);
      }
      publish_gradient(0);
    }
  }
  const ChainSums left(arguments.layout, memory);
  if constexpr (kSumsOutputs) {
    output_sums.leave_weights(left.weights_of(warpgroup), at);
    output_sums.leave_biases(left.biases_of(warpgroup), at);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
  if (at.lane == 0) left.losses[4 * warpgroup + at.warp] = loss;
  barrier_arrive(barriers.sums());  // each thread of what it has stored itself
  if (at.lane == 0) bulk_store_wait();
}

template <class Format, int kWidth, int kClassRows>
__global__ void __launch_bounds__(kChainThreads, 1)
    chain_kernel(const __grid_constant__ ChainArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  const ChainBarriers barriers{
      shared_address(memory) + static_cast<std::uint32_t>(arguments.layout.barrier_begin),
      arguments.layout.stages};
  if (threadIdx.x == 0) {
    barrier_init(barriers.resident(), 1);
    barrier_init(barriers.sums(), kChainWarpgroups * kWarpgroup);
    for (int stage = 0; stage < barriers.stages; ++stage) {
      barrier_init(barriers.full(stage), 1);
      barrier_init(barriers.free(stage), 4 * kChainWarpgroups);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const std::int64_t batch = next_batch(arguments.state);
  wait_for_kernel_before();
  let_next_kernel_start();
  if (warpgroup == kChainWarpgroups) {
    if (threadIdx.x % 32 == 0) chain_load<kWidth>(arguments, batch, shared_address(memory), barriers);
    __syncwarp();
    return chain_store_sums<kWidth, kClassRows>(arguments, memory, barriers);
  }
  chain_compute<Format, kWidth, kClassRows>(arguments, batch, memory, barriers, warpgroup);
}

}  // namespace headroom::fused
