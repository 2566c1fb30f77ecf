// A whole training step of a multilayer perceptron as tile tasks of one persistent kernel.
//
// A thread block, one a multiprocessor, works through its list of tasks (schedule.h), step after step. One warp fetches the factor of
// the tiles' rows and one that of their columns, each by one thread: it waits for the counter of what it fetches, then fills its part
// of the ring's stages. So a factor that is there early lies in the ring when the late one arrives, and the list is all that decides
// what is fetched ahead. A team multiplies, finishes the tile in registers and stores it; with two teams, one multiplies its task while
// the other finishes its own.
//   forward          H_l  = activated(H_(l-1) W_l^T + b_l)   rows plain,  columns plain   (Factor, machine/wgmma.cuh)
//   input gradient   dZ_l = (dZ_(l+1) W_(l+1)) * slope_l     rows plain,  columns turned
//   weight gradient  W_l -= rate * dZ_l^T H_(l-1)            rows turned, columns turned
//   on chip: the ring; for each warpgroup its tile on the way out; sums in registers, 64 rows a warpgroup
//   bytes:   (rows + columns) * 128 of the L2 for each slab of 64 inner indices
//   waits:   counters in the L2 (fetching threads, and the loss of many outputs), full and free stages, turns of the teams
// A tile whose rows or columns end inside of it is padded here and nowhere else: tensor maps read zeros outside of a matrix, and do
// not write there. The data set is described as [batches][batch][in], so that a tile sees no sample of the next batch.
//
// Order between thread blocks: tiles are stored by the copy engine, whose thread waits until they are written, fences and adds to the
// counters. What other threads of its warpgroup wrote lies before that by their barrier. Whoever fetches acquires the counter and
// fences between it and the copy engine's reads; whoever multiplies is behind the barrier that the copies count down.
#pragma once

#include <cstddef>

#include "machine/compiler.cuh"
#include "machine/masks.cuh"
#include "rules/rounded_activation.cuh"
#include "tiled/loss.cuh"
#include "tiled/tile.cuh"
#include "tiled/update.cuh"

namespace headroom::tiled {

// ---- the fetching threads

/// A factor in device memory. `first`: of the tile's rows or columns.
struct Source {
  const Factors* of;
  int slice, first;
  bool turned;

  /// A stage of it, from a slab on. The thread waits some 250 cycles until its instruction is taken, however much that fetches.
  template <class S, int kPanels>
  MACHINE_DEVICE void load(std::uint32_t to, int slab, std::uint32_t barrier) const {
    static_assert(S::kSlabs == 1 || kPanels == 1);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const std::uint32_t place = to + panel * kTilePanelBytes;
      const int across = first + kPanel * panel;
      if constexpr (S::kTf32)
        machine::tensor_load_panels(place, turned ? &of->turned : &of->plain, across, slab, slice, barrier);
      else if (turned)
        machine::tensor_load(place, &of->turned, across, kSlab * slab, slice, barrier);
      else
        machine::tensor_load_panels(place, &of->plain, across, slab, slice, barrier);
    }
  }
};
MACHINE_DEVICE Source input_of(const Arguments& a, int layer, const StepPlace& step, int first, bool turned) {
  return {&a.layer[layer].input, layer == 0 ? step.batch : step.parity, first, turned};
}
template <class S>
MACHINE_DEVICE Source rows_of(const Arguments& a, const Task& task, const StepPlace& step) {
  const int first = S::kRows * task.row, slice = gradient_slice<S::kRanked>(step);
  if (is_weight_gradient(task)) return {&a.layer[task.layer].gradient, slice, first, true};
  if (task.form == Form::kInputGradient) return {&a.layer[task.layer + 1].gradient, slice, first, false};
  return input_of(a, task.form == Form::kLossGradient ? task.layer + 1 : task.layer, step, first, false);
}
template <class S>
MACHINE_DEVICE Source columns_of(const Arguments& a, const Task& task, const StepPlace& step) {
  const int first = S::kColumns * task.column;
  if (is_weight_gradient(task)) return input_of(a, task.layer, step, first, true);
  if (task.form == Form::kInputGradient || task.form == Form::kLossGradient)
    return {&a.layer[task.layer + 1].weights, step.parity, first, true};
  return {&a.layer[task.layer].weights, step.parity, first, false};
}

/// The thread that fetches the rows' factors, or the columns', of all tasks. A slab of a small tile is multiplied in 128 cycles, and this
/// loop has to be as quick: the address of shared memory is kept, since the compiler would make it anew from the thread block's rank.
template <class S, bool kRowsFactor, bool kHasLossGradients>
MACHINE_DEVICE void fetch(const Arguments& a, SharedMemory<S>& memory) {
  constexpr int kPanels = kRowsFactor ? S::kRowPanels : S::kColumnPanels;
  constexpr WaitFor kWhat = kRowsFactor ? WaitFor::kRows : WaitFor::kColumns;
  const auto base =
      static_cast<std::uint32_t>(machine::kept_whole(static_cast<int>(shared_address(&memory))));
  const std::uint32_t begin = base + (kRowsFactor ? 0 : S::kRowsBytes);
  const std::uint32_t full = base + offsetof(SharedMemory<S>, full),
                      free = base + offsetof(SharedMemory<S>, free);
  List<false> list(a, 0, 1);
  machine::RingPlace ring;
  Waiter waiter{a};
  const auto fill = [&](auto fetches, const Source& source, int slabs, int first = 0) {
#pragma unroll 1
    for (int slab = first; slab < first + slabs; slab += S::kSlabs, ring.advance(S::kStages)) {
      const std::uint32_t barrier = full + 8 * ring.stage;
      wait_for_barrier(waiter, WaitFor::kFreeStage, free + 8 * ring.stage, ring.parity ^ 1);
      if constexpr (!decltype(fetches)::value) {
        machine::barrier_arrive(barrier);
      } else {
        machine::barrier_arrive_expect(barrier, kRowsFactor ? S::kRowsBytes : S::kColumnsBytes);
        if (machine::first_lane_alone())
          source.template load<S, kPanels>(begin + ring.stage * S::kStageBytes, slab, barrier);
      }
    }
  };
  using Fetches = Constant<true>;
  for (StepPlace step(a); step.of_launch < a.steps; step.advance(a)) {
    do {
      const Task task = list.take();
      if (task.slabs == 0) continue;
      waiter.step = step.of_launch, waiter.order = task.order;
      const Source source = kRowsFactor ? rows_of<S>(a, task, step) : columns_of<S>(a, task, step);
      wait_for_counter<S::kRanked>(waiter, kWhat, a, kRowsFactor ? task.rows : task.columns, step.of_launch,
                                   is_weight_gradient(task));
      machine::fence_proxy_async_global();  // between the counter and what the copy engine reads
      if (!kHasLossGradients || task.form != Form::kLossGradient) {
        fill(Fetches{}, source, task.slabs, task.first_slab);
      } else if constexpr (kRowsFactor) {  // of the outputs; the second product's lies in registers
        fill(Fetches{}, source, task.slabs - 1);
        fill(Constant<false>{}, source, 1);
      } else {  // all outputs' weights as rows, then as inner indices those of the tile's columns
        fill(Fetches{}, Source{source.of, source.slice, 0, false}, task.slabs - 1);
        fill(Fetches{}, source, 1);
      }
    } while (!list.step_ends());
  }
}

// ---- forward and input gradient

// What is kept for the slope: see LayerArguments.

template <class S>
MACHINE_DEVICE std::uint32_t* kept_bits(const LayerArguments& layer, const Task& task,
                                        const Worker<S>& worker, int word) {
  const std::int64_t tile = std::int64_t{task.row} * layer.out_tiles + task.column;
  return layer.kept + (tile * S::kColumnPanels + word) * S::kTeam + worker.thread();
}
template <class S>
MACHINE_DEVICE uint4* kept_values(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                                  int quad) {
  const std::int64_t tile = std::int64_t{task.row} * layer.out_tiles + task.column;
  return reinterpret_cast<uint4*>(layer.kept) + (tile * (S::kWords / 4) + quad) * S::kTeam + worker.thread();
}

/// What is kept for the slopes, of sums that become activations: a bit a value of ReLU, else the values before they are rounded.
template <class S, Activation kActivation>
MACHINE_DEVICE void keep_and_activate(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                                      float (&sums)[S::kSums]) {
  if constexpr (kActivation == Activation::kRelu) {
#pragma unroll
    for (int word = 0; word < S::kColumnPanels; ++word) {
      std::uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& value = sums[32 * word + i];
        if (!(value <= 0)) bits |= 1u << i;
        value = rules::activated(kActivation, value);
      }
      __stcg(kept_bits<S>(layer, task, worker, word), bits);
    }
  } else {
#pragma unroll
    for (int quad = 0; quad < S::kSums / 4; ++quad) {
      std::uint32_t kept[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = sums[4 * quad + i];
        if (!keeps_outputs(kActivation)) kept[i] = machine::float_to_bits(value);
        value = rules::activated(kActivation, value);
        if (keeps_outputs(kActivation)) kept[i] = machine::float_to_bits(value);
      }
      __stcg(kept_values<S>(layer, task, worker, quad), make_uint4(kept[0], kept[1], kept[2], kept[3]));
    }
  }
}

template <class S, class Format, Activation kActivation>
MACHINE_DEVICE void forward_tile(const Arguments& a, const Task& task, Worker<S>& worker,
                                 const StepPlace& step) {
  const LayerArguments& layer = a.layer[task.layer];
  float sums[S::kSums];
  forward_sums<S, Format>(layer, task, worker, sums);
  std::uint32_t held[S::kWords];
  if constexpr (S::kTf32) {
    keep_and_activate<S, kActivation>(layer, task, worker, sums);
#pragma unroll
    for (int i = 0; i < S::kPairs; ++i) put_pair<Format>(held, i, sums[2 * i], sums[2 * i + 1]);
  } else if constexpr (kActivation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < S::kPairs; ++i) held[i] = Format::pack_relu(sums[2 * i], sums[2 * i + 1]);
    const auto mask = machine::positive(held);
#pragma unroll
    for (int word = 0; word < S::kColumnPanels; ++word)
      __stcg(kept_bits<S>(layer, task, worker, word), mask.word[word]);
  } else {
    constexpr bool kKeepsOutputs = keeps_outputs(kActivation);
#pragma unroll
    for (int quad = 0; quad < S::kColumns / 16; ++quad) {
      std::uint32_t kept[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = sums[8 * quad + 2 * i];
        float& y = sums[8 * quad + 2 * i + 1];
        if (!kKeepsOutputs) kept[i] = Format::pack(x, y);
        x = rules::activated_roughly(kActivation, x), y = rules::activated_roughly(kActivation, y);
        held[4 * quad + i] = Format::pack(x, y);
        if (kKeepsOutputs) kept[i] = held[4 * quad + i];
      }
      __stcg(kept_values<S>(layer, task, worker, quad), make_uint4(kept[0], kept[1], kept[2], kept[3]));
    }
  }
  const Place place{a.layer[task.layer + 1].input_rows, step.parity, S::kRows * task.row,
                    S::kColumns * task.column,          a.batch,     layer.out,
                    a.turned[task.layer + 1].input};
  store_tile<S::kWholeTiles>(worker, held, place);
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, 1);
  if constexpr (S::kRanked) {
    send_tile<S::kWholeTiles, S::kWords>(a, worker, a.ranks.inputs[task.layer + 1], place);
    tell_peers(a, worker, task, 1);
  }
}

/// The slopes of a thread's values of a tile, or what they are taken from: asked for with the first slab where there are registers.
template <class S, Activation kActivation>
struct Slopes {
  static constexpr bool kRelu = kActivation == Activation::kRelu;
  static constexpr int kQuads = S::kWords / 4;
  static constexpr bool kEarly = kQuads <= 4;
  machine::Mask<S::kPairs> mask;
  uint4 kept[kEarly ? kQuads : 1];

  MACHINE_DEVICE void load(const LayerArguments& layer, const Task& task, const Worker<S>& worker) {
    if constexpr (kRelu) {
#pragma unroll
      for (int word = 0; word < S::kColumnPanels; ++word)
        mask.word[word] = __ldcg(kept_bits<S>(layer, task, worker, word));
    } else if constexpr (kEarly) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad)
        kept[quad] = __ldcg(kept_values<S>(layer, task, worker, quad));
    }
  }
  /// sums times slopes, in tf32.
  MACHINE_DEVICE void apply(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                            float (&sums)[S::kSums]) const {
    if constexpr (kRelu) {
#pragma unroll
      for (int i = 0; i < S::kSums; ++i)
        if ((mask.word[i / 32] >> i % 32 & 1) == 0) sums[i] = 0;
    } else {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const uint4 of_quad =
            kEarly ? kept[kEarly ? quad : 0] : __ldcg(kept_values<S>(layer, task, worker, quad));
        const std::uint32_t words[4] = {of_quad.x, of_quad.y, of_quad.z, of_quad.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& sum = sums[4 * quad + i];
          sum = rules::passed_back(kActivation, machine::bits_to_float(words[i]), sum);
        }
      }
    }
  }
  /// held = sums times slopes, rounded.
  template <class Format>
  MACHINE_DEVICE void apply(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                            const float (&sums)[S::kSums], std::uint32_t (&held)[S::kPairs]) const {
    if constexpr (kRelu) {
      machine::masked<Format>(sums, mask, held);
    } else {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        const uint4 of_quad =
            kEarly ? kept[kEarly ? quad : 0] : __ldcg(kept_values<S>(layer, task, worker, quad));
        const std::uint32_t words[4] = {of_quad.x, of_quad.y, of_quad.z, of_quad.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 from = Format::unpack(words[i]);
          const float* sum = sums + 8 * quad + 2 * i;
          held[4 * quad + i] = Format::pack(rules::passed_back_roughly(kActivation, from.x, sum[0]),
                                            rules::passed_back_roughly(kActivation, from.y, sum[1]));
        }
      }
    }
  }
};

/// The gradient's tile from the sums of its product, and what signals up to `last_signal` say; to peers, which are told later.
template <class S, class Format, Activation kActivation>
MACHINE_DEVICE void finish_input_gradient(const Arguments& a, const Task& task, const Worker<S>& worker,
                                          const StepPlace& step, const Slopes<S, kActivation>& slopes,
                                          float (&sums)[S::kSums], int last_signal) {
  const LayerArguments& layer = a.layer[task.layer];
  std::uint32_t held[S::kWords];
  if constexpr (S::kTf32) {
    slopes.apply(layer, task, worker, sums);
    keep_column_sums(a.turned[task.layer], worker, sums,
                     S::kRows * task.row + machine::kTileRows * worker.group(), S::kColumns * task.column);
#pragma unroll
    for (int i = 0; i < S::kPairs; ++i) put_pair<Format>(held, i, sums[2 * i], sums[2 * i + 1]);
  } else {
    slopes.template apply<Format>(layer, task, worker, sums, held);
  }
  const Place place{layer.gradient_rows,
                    gradient_slice<S::kRanked>(step),
                    S::kRows * task.row,
                    S::kColumns * task.column,
                    a.batch,
                    layer.out,
                    a.turned[task.layer].gradient};
  store_tile<S::kWholeTiles>(worker, held, place);
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, last_signal);
  if constexpr (S::kRanked)
    send_tile<S::kWholeTiles, S::kWords>(a, worker, a.ranks.gradients[task.layer], place);
}

template <class S, class Format, Activation kActivation>
MACHINE_DEVICE void input_gradient_tile(const Arguments& a, const Task& task, Worker<S>& worker,
                                        const StepPlace& step) {
  float sums[S::kSums], none[4];
  Slopes<S, kActivation> slopes;
  worker.take_turn();
  multiply_slabs<S, Format, Factor::kPlain, S::kAcross, false>(
      worker, machine::uniform(task.slabs), sums, none, [&] {
        mark(worker, &TaskTimes::first_slab);
        slopes.load(a.layer[task.layer], task, worker);
      });
  worker.pass_turn();
  mark(worker, &TaskTimes::products);
  finish_input_gradient<S, Format>(a, task, worker, step, slopes, sums, 1);
  if constexpr (S::kRanked) tell_peers(a, worker, task, 1);
}

/// Outputs that fit one tile: the loss and its gradient in registers. With Form::kLossGradient, also the gradient of the last hidden layer:
/// a second product, whose left factor is the loss's gradient where it is. So nobody waits for that by way of device memory, but every
/// tile of a row makes the outputs anew, which takes no longer than one of them does; the first one stores the loss. kGoesOn: of that form.
template <class S, class Format, Activation kActivation, Loss kLoss, bool kGoesOn>
MACHINE_DEVICE void outputs_and_loss_tile(const Arguments& a, const Task& task, Worker<S>& worker,
                                          const StepPlace& step) {
  const LayerArguments& last = a.layer[a.layers - 1];
  OutputRows<S, kLoss> rows(a, task, worker, step);
  Slopes<S, kActivation> slopes;
  float outputs[kOutputsOfTile / 2], none[4];
  worker.take_turn();
  multiply_slabs<S, Format, Factor::kPlain, Factor::kPlain, false>(
      worker, machine::uniform(task.slabs) - (kGoesOn ? 1 : 0), outputs, none, [&] {
        mark(worker, &TaskTimes::first_slab);
        rows.load(a, last);
        if constexpr (kGoesOn) slopes.load(a.layer[task.layer], task, worker);
      });
  std::uint32_t held[S::kWordsOfPair * kOutputsOfTile / 4];
  float exact[kOutputsOfTile / 2];
  const float loss = rows.template finish<Format>(a, last, outputs, held, exact);
  if constexpr (S::kTf32)
    keep_column_sums(a.turned[a.layers - 1], worker, exact,
                     S::kRows * task.row + machine::kTileRows * worker.group(), 0);
  if constexpr (kGoesOn && !S::kTf32) {  // in tf32 there are no such tasks
    float sums[S::kSums];
    multiply_held_slab<S, Format>(worker, held, sums);
    worker.pass_turn();
    mark(worker, &TaskTimes::products);
    const bool stores_loss = machine::uniform(task.column) == 0;
    finish_input_gradient<S, Format>(a, task, worker, step, slopes, sums, stores_loss ? 1 : 2);
    if (!stores_loss) {
      if constexpr (S::kRanked) tell_peers(a, worker, task, 2);
      return;
    }
  } else {
    worker.pass_turn();
    mark(worker, &TaskTimes::products);
  }
  keep_loss<S>(a, worker, step, S::kRows * task.row + machine::kTileRows * worker.group(), machine::kTileRows,
               loss);
  const Place place{last.gradient_rows, gradient_slice<S::kRanked>(step), S::kRows * task.row, 0, a.batch,
                    last.out,           a.turned[a.layers - 1].gradient};
  store_tile<false>(worker, held, place);
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, kGoesOn ? 2 : 0, kGoesOn ? 2 : 1);
  if constexpr (S::kRanked) {
    send_tile<false, S::kWordsOfPair * kOutputsOfTile / 4>(a, worker, a.ranks.gradients[a.layers - 1], place);
    tell_peers(a, worker, task, kGoesOn ? 2 : 1);
  }
}

// ---- weight gradient and update

/// A thread's weights of a tile with their slots, in quads of 2 rows by 2 columns: what the same thread has written in the step before.
/// All are asked for before the product where there are registers for them; else, with slots, a part of them, and each part while the one before
/// it is updated.
template <class S, int kSlots, int kColumns = S::kColumns>
struct Weights {
  static constexpr int kQuads = kColumns / 8;
  static constexpr bool kAllEarly = kSlots == 0 || kColumns <= kColumnsOfUpdate;
  static constexpr int kPart = kAllEarly ? kQuads : S::kTeams == 1 ? 4 : 2, kParts = kAllEarly ? 1 : 2;
  struct Part {
    float4 masters[kPart], slots[kSlots == 0 ? 1 : kSlots][kPart];
    MACHINE_DEVICE void load(const Weights& weights, const LayerArguments& layer, int first) {
      weights.load_quads(layer.masters, first, masters);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) weights.load_quads(layer.slots[slot], first, slots[slot]);
    }
  };
  Part parts[kParts];
  std::int64_t begin;

  /// From column `first_column` of the tile on.
  MACHINE_DEVICE void load(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                           int first_column) {
    const std::int64_t tile = std::int64_t{task.row} * layer.in_tiles + task.column;
    begin = (tile * (S::kColumns / 8) + first_column / 8) * S::kTeam + worker.thread();
    parts[0].load(*this, layer, 0);
  }

  /// held: the new weights as they enter products.
  template <class Format>
  MACHINE_DEVICE void update_all(const Arguments& a, const LayerArguments& layer,
                                 const rules::UpdateFactors& factors, const float (&sums)[4 * kQuads],
                                 std::uint32_t (&held)[S::kWordsOfPair * 2 * kQuads]) {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (j % kPart == 0 && j + kPart < kQuads) parts[(j / kPart + 1) % kParts].load(*this, layer, j + kPart);
      Part& part = parts[j / kPart % kParts];
      update_quad<Format>(a, layer, factors, sums, held, j, part.masters[j % kPart], part.slots[0][j % kPart],
                          part.slots[kSlots > 1 ? 1 : 0][j % kPart]);
    }
  }

 private:
  MACHINE_DEVICE void load_quads(const float4* from, int first, float4 (&quads)[kPart]) const {
#pragma unroll
    for (int j = 0; j < kPart; ++j) quads[j] = __ldcg(from + begin + (first + j) * S::kTeam);
  }
  template <class Format>
  MACHINE_DEVICE void update_quad(const Arguments& a, const LayerArguments& layer,
                                  const rules::UpdateFactors& factors, const float (&sums)[4 * kQuads],
                                  std::uint32_t (&held)[S::kWordsOfPair * 2 * kQuads], int j, float4& weight,
                                  float4& first, float4& second) const {
    const auto put = [&](int i, float low, float high) {
      if constexpr (S::kTf32)
        put_pair<Format>(held, i, low, high);
      else if constexpr (Format::kIsBf16)
        held[i] = machine::pack_bf16_weights(low, high);
      else
        held[i] = machine::pack_fp16(low, high);
    };
    const float scale = a.inverse_loss_scale;
    update<kSlots>(factors, scale * sums[4 * j], weight.x, first.x, second.x);
    update<kSlots>(factors, scale * sums[4 * j + 1], weight.y, first.y, second.y);
    update<kSlots>(factors, scale * sums[4 * j + 2], weight.z, first.z, second.z);
    update<kSlots>(factors, scale * sums[4 * j + 3], weight.w, first.w, second.w);
    const std::int64_t at = begin + j * S::kTeam;
    __stcg(layer.masters + at, weight);
    if constexpr (kSlots > 0) __stcg(layer.slots[0] + at, first);
    if constexpr (kSlots > 1) __stcg(layer.slots[1] + at, second);
    put(2 * j, weight.x, weight.y), put(2 * j + 1, weight.z, weight.w);
  }
};

/// The biases of the tile's rows with their slots, in the lanes that hold their gradients' first sums.
template <class S, int kSlots>
struct RowBiases {
  float values[2] = {}, slots[kSlots == 0 ? 1 : kSlots][2] = {};

  MACHINE_DEVICE static bool are_here(const Worker<S>& worker) { return worker.lane().first_column() == 0; }
  MACHINE_DEVICE static int row(const Task& task, const Worker<S>& worker, int half) {
    return S::kRows * task.row + worker.row_of_tile() + 8 * half;
  }
  MACHINE_DEVICE void load(const LayerArguments& layer, const Task& task, const Worker<S>& worker) {
    if (!are_here(worker)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // all rows of tiles have a place
      const int at = row(task, worker, half);
      values[half] = __ldcg(layer.bias + at);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) slots[slot][half] = __ldcg(layer.bias_slots[slot] + at);
    }
  }
  MACHINE_DEVICE void update_all(const Arguments& a, const LayerArguments& layer, const Task& task,
                                 const Worker<S>& worker, const rules::UpdateFactors& factors,
                                 const float (&row_sums)[4]) {
    if (!are_here(worker)) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row(task, worker, half);
      if (at >= layer.out) continue;
      update<kSlots>(factors, a.inverse_loss_scale * row_sums[2 * half], values[half], slots[0][half],
                     slots[kSlots > 1 ? 1 : 0][half]);
      __stcg(layer.bias + at, values[half]);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) __stcg(layer.bias_slots[slot] + at, slots[slot][half]);
    }
  }
};

/// The step's loss from its parts, in an order that is always the same. By the task that is the first to know that all are there.
template <class S>
MACHINE_DEVICE void finish_loss(const Arguments& a, const Worker<S>& worker, const StepPlace& step) {
  const float* parts = a.loss_sums + std::int64_t{step.parity} * a.loss_parts;
  const int thread = worker.thread() % machine::kWarpgroup;
  float sum = 0;
  for (int part = thread; part < a.loss_parts; part += machine::kWarpgroup) sum += __ldcg(parts + part);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
  float* of_warps = worker.memory.sums[worker.warpgroup()];
  if (worker.lane().lane == 0) of_warps[worker.lane().warp] = sum;
  worker.meet();
  if (worker.leads())
    a.losses[(a.first_step + step.of_launch) % a.loss_slots] =
        (of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3]) / static_cast<float>(a.batch);
}

/// Tiles of the first column make the biases' gradients as well.
MACHINE_DEVICE bool has_biases(const Task& task) { return machine::uniform(task.column) == 0; }

template <class S, class Format>
MACHINE_DEVICE void multiply_for_weights(const Task& task, Worker<S>& worker, float (&sums)[S::kSums],
                                         float (&row_sums)[4]) {
  worker.take_turn();
  const auto multiply = [&](auto sums_rows) {
    multiply_slabs<S, Format, S::kAcross, S::kAcross, decltype(sums_rows)::value>(
        worker, machine::uniform(task.slabs), sums, row_sums, [&] { mark(worker, &TaskTimes::first_slab); });
  };
  if constexpr (S::kTf32) {  // its biases' gradients are sums of what was not rounded
    multiply(Constant<false>{});
  } else {
    if (has_biases(task))
      multiply(Constant<true>{});
    else
      multiply(Constant<false>{});
  }
  worker.pass_turn();
  mark(worker, &TaskTimes::products);
}

/// A thread's sums of a part of the task's tile.
template <class S>
MACHINE_DEVICE float4* part_sums(const LayerArguments& layer, const Task& task, const Worker<S>& worker,
                                 int part) {
  const std::int64_t tile = std::int64_t{task.row} * layer.in_tiles + task.column;
  return layer.part_sums + (tile * layer.parts + part) * (S::kColumns / 8 + 1) * S::kTeam + worker.thread();
}

template <class S, class Format>
MACHINE_DEVICE void weight_gradient_part(const Arguments& a, const Task& task, Worker<S>& worker) {
  float sums[S::kSums], row_sums[4];
  multiply_for_weights<S, Format>(task, worker, sums, row_sums);
  float4* to = part_sums(a.layer[task.layer], task, worker, task.part);
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j)
    __stcg(to + j * S::kTeam, make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
  if (!S::kTf32 && has_biases(task))
    __stcg(to + S::kColumns / 8 * S::kTeam, make_float4(row_sums[0], row_sums[1], row_sums[2], row_sums[3]));
  worker.meet();
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, 1);
}

/// What an update takes beside gradients: asked for before the product, as a round trip to the L2 behind it would be for nothing else.
template <class S, int kSlots, int kColumns>
struct UpdateInputs {
  rules::UpdateFactors factors;
  Weights<S, kSlots, kColumns> weights;
  RowBiases<S, kSlots> biases;
  int first_column;

  MACHINE_DEVICE UpdateInputs(const Arguments& a, const Task& task, const Worker<S>& worker,
                              const StepPlace& step, int first_column_of_tile)
      : factors(factors_of(a, step)), first_column(first_column_of_tile) {
    const LayerArguments& layer = a.layer[task.layer];
    weights.load(layer, task, worker, first_column);
    if (has_biases(task) && first_column == 0) biases.load(layer, task, worker);
  }
};

/// In tf32: the gradients of the biases of the tile's rows, from the sums of their units.
template <class S>
MACHINE_DEVICE void add_bias_sums(const Arguments& a, const Task& task, const Worker<S>& worker,
                                  float (&row_sums)[4]) {
  const TurnedLayer& layer = a.turned[task.layer];
  const int units = divide_up(a.batch, layer.bias_unit);
  const float* from = layer.bias_sums + S::kRows * task.row + worker.row_of_tile();
  float sums[2] = {};
#pragma unroll 8
  for (int unit = worker.lane().lane % 4; unit < units; unit += 4)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sums[half] += __ldcg(from + std::int64_t{unit} * layer.bias_pitch + 8 * half);
#pragma unroll
  for (int half = 0; half < 2; ++half) row_sums[2 * half] = machine::quad_sum(sums[half]);
}

/// Columns of a tile's weights, and the biases of its rows, by their gradients' sums.
template <class S, class Format, int kSlots, int kColumns>
MACHINE_DEVICE void update_columns(const Arguments& a, const Task& task, const Worker<S>& worker,
                                   const StepPlace& step, UpdateInputs<S, kSlots, kColumns>& inputs,
                                   const float (&sums)[kColumns / 2], float (&row_sums)[4]) {
  const LayerArguments& layer = a.layer[task.layer];
  std::uint32_t held[S::kWordsOfPair * kColumns / 4];
  inputs.weights.template update_all<Format>(a, layer, inputs.factors, sums, held);
  const bool is_first = inputs.first_column == 0;
  if constexpr (S::kTf32)
    if (has_biases(task) && is_first) add_bias_sums(a, task, worker, row_sums);
  if (has_biases(task) && is_first)
    inputs.biases.update_all(a, layer, task, worker, inputs.factors, row_sums);
  store_tile<false>(worker, held,
                    Place{layer.weight_rows, step.parity ^ 1, S::kRows * task.row,
                          S::kColumns * task.column + inputs.first_column, layer.out, layer.in,
                          a.turned[task.layer].weights});
  if (worker.leads()) signal<S::kRanked>(a, task, worker.waiter.step, 0, 1);
  if (task.layer == a.layers - 1 && task.row == 0 && task.column == 0 && is_first && worker.group() == 0)
    finish_loss<S>(a, worker, step);
}

template <class S, class Format, int kSlots>
MACHINE_DEVICE void weight_gradient_tile(const Arguments& a, const Task& task, Worker<S>& worker,
                                         const StepPlace& step) {
  float sums[S::kSums], row_sums[4];
  UpdateInputs<S, kSlots, S::kColumns> inputs(a, task, worker, step, 0);
  multiply_for_weights<S, Format>(task, worker, sums, row_sums);
  update_columns<S, Format>(a, task, worker, step, inputs, sums, row_sums);
}

/// The update of a few columns of a tile from the sums of its parts, which are added in their order, whichever came first.
template <class S, class Format, int kSlots>
MACHINE_DEVICE void update_from_parts(const Arguments& a, const Task& task, Worker<S>& worker,
                                      const StepPlace& step) {
  constexpr int kQuads = kColumnsOfUpdate / 8, kAtOnce = 4;
  const LayerArguments& layer = a.layer[task.layer];
  const int first_column = kColumnsOfUpdate * task.part;
  worker.take_turn();
  worker.pass_turn();
  wait_together(a, worker, WaitFor::kParts, task.rows, step);
  mark(worker, &TaskTimes::first_slab);
  UpdateInputs<S, kSlots, kColumnsOfUpdate> inputs(a, task, worker, step, first_column);
  float sums[4 * kQuads] = {}, row_sums[4] = {};
  const auto add = [](float* to, const float4& part) {
    to[0] += part.x, to[1] += part.y, to[2] += part.z, to[3] += part.w;
  };
  const int parts = layer.parts;
#pragma unroll 1
  for (int first = 0; first < parts; first += kAtOnce) {
    float4 quads[kAtOnce][kQuads];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kQuads; ++j)
        quads[i][j] =
            first + i < parts
                ? __ldcg(part_sums(layer, task, worker, first + i) + (first_column / 8 + j) * S::kTeam)
                : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int j = 0; j < kQuads; ++j) add(sums + 4 * j, quads[i][j]);
  }
  if (!S::kTf32 && has_biases(task) && first_column == 0)
    for (int part = 0; part < parts; ++part)
      add(row_sums, __ldcg(part_sums(layer, task, worker, part) + S::kColumns / 8 * S::kTeam));
  mark(worker, &TaskTimes::products);
  update_columns<S, Format>(a, task, worker, step, inputs, sums, row_sums);
}

// ---- the kernel

/// One task. There is no code for forms that no task has.
template <class S, class Format, KernelRules kRules>
MACHINE_DEVICE void make(const Arguments& a, const Task& task, Worker<S>& worker, const StepPlace& step) {
  constexpr Activation kActivation = kRules.activation;
  constexpr Loss kLoss = kRules.loss;
  constexpr int kSlots = kRules.slots;
  switch (static_cast<Form>(machine::uniform(static_cast<int>(task.form)))) {
    case Form::kForward:
      return if_it_may_come<kRules, Form::kForward>(
          [&] { forward_tile<S, Format, kActivation>(a, task, worker, step); });
    case Form::kOutputLoss:
      return if_it_may_come<kRules, Form::kOutputLoss>(
          [&] { outputs_and_loss_tile<S, Format, kActivation, kLoss, false>(a, task, worker, step); });
    case Form::kLossGradient:
      return if_it_may_come<kRules, Form::kLossGradient>(
          [&] { outputs_and_loss_tile<S, Format, kActivation, kLoss, true>(a, task, worker, step); });
    case Form::kOutputs:
      return if_it_may_come<kRules, Form::kOutputs>([&] { outputs_tile<S, Format>(a, task, worker); });
    case Form::kLoss:
      return if_it_may_come<kRules, Form::kLoss>([&] {
        worker.take_turn();
        worker.pass_turn();
        loss_of_rows<S, Format, kLoss>(a, task, worker, step);
      });
    case Form::kInputGradient:
      return if_it_may_come<kRules, Form::kInputGradient>(
          [&] { input_gradient_tile<S, Format, kActivation>(a, task, worker, step); });
    case Form::kWeightGradient:
      return if_it_may_come<kRules, Form::kWeightGradient>(
          [&] { weight_gradient_tile<S, Format, kSlots>(a, task, worker, step); });
    case Form::kWeightGradientPart:
      return if_it_may_come<kRules, Form::kWeightGradientPart>(
          [&] { weight_gradient_part<S, Format>(a, task, worker); });
    case Form::kUpdate:
      return if_it_may_come<kRules, Form::kUpdate>(
          [&] { update_from_parts<S, Format, kSlots>(a, task, worker, step); });
    case Form::kPause:
      return if_it_may_come<kRules, Form::kPause>([&] {
        worker.take_turn();
        worker.pass_turn();
      });
  }
  __builtin_unreachable();
}

template <class S, class Format, KernelRules kRules>
MACHINE_DEVICE void work(const Arguments& a, SharedMemory<S>& memory) {
  Worker<S> worker(a, memory);
  List<true> list(a, worker.team(), S::kTeams);
  if (worker.team() == 1) worker.skip(stages_of(a.tasks[a.first_task[machine::block_index()]], S::kSlabs));
  for (StepPlace step(a); step.of_launch < a.steps; step.advance(a)) {
    do {
      const Task task = list.take();
      worker.waiter.step = step.of_launch, worker.waiter.order = task.order;
      if constexpr (S::kTimed) {
        const bool timed = a.times != nullptr && worker.thread() == 0 && step.of_launch == a.steps - 1;
        worker.timed = timed ? list.index() : -1;
      }
      mark(worker, &TaskTimes::begin);
      make<S, Format, kRules>(a, task, worker, step);
      mark(worker, &TaskTimes::end);
      worker.skip(task.stages_of_others);
    } while (!list.step_ends());
  }
}

template <Tiling kTiling, class Format, KernelRules kRules>
__global__ void __launch_bounds__(threads_of(kTiling), 1) train_kernel(const __grid_constant__ Arguments a) {
  using S = Shape<kTiling, kRules.timed, kRules.whole_tiles, kRules.ranked>;
  static_assert(sizeof(SharedMemory<S>) + WgmmaMemory::kAlignment == S::kMemory.all);
  constexpr bool kHasLossGradients = kRules.may_have(Form::kLossGradient);
  unsigned char* begin = machine::shared_memory();
  begin += (0u - shared_address(begin)) & (WgmmaMemory::kAlignment - 1u);
  auto& memory = *reinterpret_cast<SharedMemory<S>*>(begin);
  if (machine::thread_index() == 0) {
    for (int stage = 0; stage < S::kStages; ++stage) {
      machine::barrier_init(shared_address(&memory.full[stage]), 2);               // both fetching threads
      machine::barrier_init(shared_address(&memory.free[stage]), 4 * S::kGroups);  // the warps of a team
    }
    for (std::uint64_t& turn : memory.turn) machine::barrier_init(shared_address(&turn), 4);
    machine::barrier_init_fence();
  }
  if constexpr (!S::kTf32)
    for (int i = machine::thread_index(); i < WgmmaMemory::kOnesBytes / 4; i += S::kThreads)
      memory.ones[i] = Format::pack(1, 1);
  machine::fence_proxy_async_shared();
  machine::block_sync();
  const int consumer = machine::uniform(machine::thread_index() / 32) * 32;
  if (consumer >= S::kConsumers) {
    machine::registers_decrease<40>();
    if (machine::thread_index() == S::kConsumers) fetch<S, true, kHasLossGradients>(a, memory);
    if (machine::thread_index() == S::kConsumers + 32) fetch<S, false, kHasLossGradients>(a, memory);
    return;
  }
  machine::registers_increase<232>();
  work<S, Format, kRules>(a, memory);
}

}  // namespace headroom::tiled
