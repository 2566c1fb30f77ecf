// The step of cuda-tiled for every GPU of compute capability 8.0 and newer, and in all four precisions: the same lists, counters and
// rules as in step.cuh, with cp.async in place of the copy engine, and mma.sync or plain multiply-adds in place of wgmma.
//
// Eight warps work on a tile; four fetch. A small tile has too few sums for eight warps, so groups of warps share out its inner index.
// When the product is done, the sums go through shared memory, band by band: there groups are added up, and each thread gets
// four columns next to each other of a row. So everything in device memory lies in rows, and is read and written as it lies there.
//   forward          H_l  = activated(H_(l-1) W_l^T + b_l)   rows plain,  columns plain
//   input gradient   dZ_l = (dZ_(l+1) W_(l+1)) * slope_l     rows plain,  columns turned
//   weight gradient  W_l -= rate * dZ_l^T H_(l-1)            rows turned, columns turned (fp32: also in parts of the batch)
//   on chip: the ring, a.stages of one to five slabs of 32 inner indices (16 bit: 64); sums in registers, 64 x 32 a warp; a band of them, about 20 KB
//   bytes:   (rows + columns) * 128 of the L2 a slab
//   waits:   counters in the L2 (fetching warps, and the loss of many outputs), full and free stages
// A tile whose rows or columns end inside of it is padded here and nowhere else: what is fetched from outside of a matrix becomes zero.
//
// Order between thread blocks: all threads store, a barrier, then one fences and adds to the counters. Of a fetching warp one lane
// acquires the counter and the others are behind its warp_sync(); its arrival at the stage's barrier hands on what it has seen to
// those who multiply, who read slopes and biases.
#pragma once

#include "rules/activation.cuh"
#include "rules/optimizer.cuh"
#include "tiled/loss_rows.cuh"
#include "tiled/portable_fetch.cuh"
#include "tiled/ranks.cuh"
#include "tiled/update.cuh"

namespace headroom::tiled {

/// A multiplying thread: who it is, and where it is in the ring.
template <class S>
struct PortableWorker {
  PortableBlock<S>& memory;
  machine::RingPlace ring;
  Waiter waiter;
  int timed = -1;  // the task at hand, if this thread keeps its times
  int thread, warp, lane;

  MACHINE_DEVICE PortableWorker(const Arguments& a, PortableBlock<S>& shared)
      : memory(shared),
        waiter{a},
        thread(machine::thread_index()),
        warp(machine::uniform(machine::thread_index() / 32)),
        lane(machine::thread_index() % 32) {}

  MACHINE_DEVICE void meet() const { machine::named_barrier<S::kWorkers>(1); }
  MACHINE_DEVICE void mark(std::uint64_t TaskTimes::* time) const {
    if constexpr (!S::kTimed) return;
    if (timed >= 0) waiter.arguments.times[timed].*time = machine::nanoseconds();
  }
  /// All is stored: the task's counters from `first` to `last` may say so.
  MACHINE_DEVICE void tell(const Task& task, int first, int last) const {
    meet();
    if (thread == 0) signal<S::kRanked>(waiter.arguments, task, waiter.step, first, last);
  }
  /// With several ranks, behind tell(): what this thread block has stored of a matrix, to the peers.
  MACHINE_DEVICE void send(const Rows& from, const PeerRows& to, const Rectangle& what) const {
    send_rectangle<S::kValueBytes>(waiter.arguments, from, to, what, thread, S::kWorkers);
  }
  MACHINE_DEVICE void tell_peers(const Task& task, int last) const {
    meet();
    if (thread == 0) signal_peers(waiter.arguments, task, waiter.step, last);
  }
  MACHINE_DEVICE void wait_for_stage() const {
    wait_until(waiter, WaitFor::kFullStage, [&] {
      return machine::barrier_is_complete(machine::shared_address(&memory.full[ring.stage]), ring.parity);
    });
  }
  MACHINE_DEVICE void release_stage() {
    machine::warp_sync();
    if (lane == 0) machine::barrier_arrive(machine::shared_address(&memory.free[ring.stage]));
    ring.advance(waiter.arguments.stages);
  }
};

/// This warp's part of a tile.
template <class T>
struct WarpPart {
  int group, row, column;  // of warps; of the tile
  MACHINE_DEVICE explicit WarpPart(int warp)
      : group(warp / T::kWarps),
        row(warp % T::kWarps / T::kAcross * T::kWarpRows),
        column(warp % T::kAcross * T::kWarpColumns) {}
};

/// How the product of a stage's first kInner inner indices lies in it, and in what steps it is made.
template <class S, class T, bool kAreRowsTurned, bool kAreColumnsTurned, bool kWithRowSums, int kInner>
struct StageProduct {
  static constexpr bool kRowsTurned = kAreRowsTurned, kColumnsTurned = kAreColumnsTurned;
  static constexpr bool kSumsRows = kWithRowSums;
  static constexpr int kRowsBytes = S::template kRowsBytes<T>;
  static constexpr int kSteps = kInner / S::Format::kInnerOfStep;
  template <int kGroups>
  static constexpr int kStepsOfGroup = (kSteps + kGroups - 1) / kGroups;
  static_assert(kSteps % T::kGroups == 0 || kSteps < T::kGroups);
  // Of a group's step number `before` / groups: its slab's place in the stage, and its number in the slab.
  MACHINE_DEVICE static int slab(int before) { return before / S::kSteps * S::template kSlabBytes<T>; }
  MACHINE_DEVICE static int step(int group, int before) { return group + before % S::kSteps; }
};

/// Adds the product of the stage at hand, as far as it is this warp's.
template <class S, class T, bool kRowsTurned, bool kColumnsTurned, bool kSumsRows, int kInner, class Sums>
MACHINE_DEVICE void multiply_stage(PortableWorker<S>& worker, const WarpPart<T>& part, Sums& sums) {
  using Stage = StageProduct<S, T, kRowsTurned, kColumnsTurned, kSumsRows, kInner>;
  if (Stage::kSteps < T::kGroups && part.group >= Stage::kSteps) return;
  sums.template multiply<Stage>(worker.memory.stage(worker.ring.stage), part.row, part.column, part.group,
                                worker.lane);
}

/// ready() is called when the first stage is there.
template <class S, class T, bool kRowsTurned, bool kColumnsTurned, bool kSumsRows, class Sums, class Ready>
MACHINE_DEVICE void multiply_stages(PortableWorker<S>& worker, int inner, Sums& sums, const Ready& ready) {
  const WarpPart<T> part(worker.warp);
  const int stages = S::template stages<T>(inner);
  sums.clear();
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    worker.wait_for_stage();
    if (stage == 0) worker.mark(&TaskTimes::first_slab), ready();
    multiply_stage<S, T, kRowsTurned, kColumnsTurned, kSumsRows, S::template kSlabs<T> * S::kDepth>(
        worker, part, sums);
    worker.release_stage();
  }
}

/// What a thread has of a tile in whose finishing it takes part: kItems times four columns of a row in each band.
template <class S, class T>
struct Share {
  static constexpr int kAcross = T::kColumns / 4;
  static constexpr int kRowsAtOnce = S::kWorkers / kAcross;
  static constexpr int kItems = (T::kBandRows + kRowsAtOnce - 1) / kRowsAtOnce;
  int column, first;  // of the tile; row of a band
  bool takes_part;
  MACHINE_DEVICE explicit Share(int thread)
      : column(thread % kAcross * 4),
        first(thread / kAcross),
        takes_part(T::kBandRows % kRowsAtOnce == 0 || first < T::kBandRows) {}
  MACHINE_DEVICE int row(int band, int item) const {
    return S::Format::template row_of_band<T>(band, first + kRowsAtOnce * item);
  }
};

/// What finishing a tile takes from device memory, asked for before it is wanted: all at once where there are registers, else a band
/// ahead. load(row of the tile, first of four columns) gives a Loaded.
template <class S, class T, class Loaded>
struct Asked {
  using Shares = Share<S, T>;
  static constexpr int kWords = sizeof(Loaded) / 4 * Shares::kItems;  // of a band
  static constexpr bool kAll = kWords * T::kBands <= 64, kEarly = kWords * T::kBands <= 16;
  Loaded of[kAll ? T::kBands : 2][Shares::kItems]{};

  template <class Load>
  MACHINE_DEVICE void ask(const Shares& share, int band, const Load& load) {
#pragma unroll
    for (int item = 0; item < Shares::kItems; ++item)
      if (share.takes_part)
        of[band % (kAll ? T::kBands : 2)][item] = load(share.row(band, item), share.column);
  }
  template <class Load>
  MACHINE_DEVICE void ask_all(const PortableWorker<S>& worker, const Load& load) {
    const Shares share(worker.thread);
#pragma unroll
    for (int band = 0; band < (kAll ? T::kBands : 1); ++band) ask(share, band, load);
  }
  /// Before the product: what there are registers for beside it.
  template <class Load>
  MACHINE_DEVICE void ask_early(const PortableWorker<S>& worker, const Load& load) {
    if constexpr (kEarly) ask_all(worker, load);
  }
  template <class Load>
  MACHINE_DEVICE void ask_late(const PortableWorker<S>& worker, const Load& load) {
    if constexpr (!kEarly) ask_all(worker, load);
  }
};

/// Brings a tile's sums to the threads that finish them: finish(row of the tile, first of four columns, sums, what was asked for).
template <class S, class T, class Sums, class Loaded, class Load, class Finish>
MACHINE_DEVICE void finish_tile(const PortableWorker<S>& worker, const Sums& sums, Asked<S, T, Loaded>& asked,
                                const Load& load, const Finish& finish) {
  using Shares = Share<S, T>;
  const WarpPart<T> part(worker.warp);
  const Shares share(worker.thread);
  float* staged = worker.memory.staged;
  const auto finish_band = [&](int band) {
    sums.store_band(band, staged + part.group * (T::kBandRows * T::kBandPitch), part.row, part.column,
                    worker.lane);
    if (!Asked<S, T, Loaded>::kAll && band + 1 < T::kBands) asked.ask(share, band + 1, load);
    worker.meet();
#pragma unroll
    for (int item = 0; item < Shares::kItems; ++item) {
      if (!share.takes_part) break;
      const float* from = staged + (share.first + Shares::kRowsAtOnce * item) * T::kBandPitch + share.column;
      float4 sum = machine::load_shared_floats(from);
#pragma unroll
      for (int group = 1; group < T::kGroups; ++group) {
        const float4 more = machine::load_shared_floats(from + group * (T::kBandRows * T::kBandPitch));
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      finish(share.row(band, item), share.column, sum,
             asked.of[band % (Asked<S, T, Loaded>::kAll ? T::kBands : 2)][item]);
    }
    worker.meet();
  };
#pragma unroll
  for (int band = 0; band < T::kBands; ++band) finish_band(band);
}

/// The same where nothing is asked for.
struct Nothing {};
template <class S, class T, class Sums, class Finish>
MACHINE_DEVICE void finish_tile(const PortableWorker<S>& worker, const Sums& sums, const Finish& finish) {
  Asked<S, T, Nothing> asked;
  finish_tile<S, T>(
      worker, sums, asked, [](int, int) { return Nothing{}; },
      [&](int row, int column, float4 sum, Nothing) { finish(row, column, sum); });
}

/// The task's tile of a matrix of this rank's rows, as far as the matrix goes.
template <class S>
MACHINE_DEVICE Rectangle tile_of(const Arguments& a, const Task& task, int slice, int columns_of_matrix) {
  const int first_row = S::kRows * task.row, first_column = S::kColumns * task.column;
  const auto rest = [](int all, int most) { return all < most ? all : most; };
  return {slice, first_row, rest(a.batch - first_row, S::kRows), first_column,
          rest(columns_of_matrix - first_column, S::kColumns)};
}

template <class Value>
MACHINE_DEVICE Value* place_in(const Rows& matrix, int slice, int row, int column) {
  return static_cast<Value*>(matrix.values) + slice * matrix.slice + std::int64_t{row} * matrix.pitch +
         column;
}

/// Biases of this thread's columns of a tile.
template <class S>
MACHINE_DEVICE float4 biases_of(const LayerArguments& layer, const Task& task,
                                const PortableWorker<S>& worker) {
  return __ldcg(reinterpret_cast<const float4*>(layer.bias + S::kColumns * task.column +
                                                worker.thread % (S::kColumns / 4) * 4));
}
MACHINE_DEVICE float4 sum_of(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// ---- forward and input gradient

template <Activation kActivation>
MACHINE_DEVICE float4 activated_here(float4 z) {
  return make_float4(rules::activated(kActivation, z.x), rules::activated(kActivation, z.y),
                     rules::activated(kActivation, z.z), rules::activated(kActivation, z.w));
}
template <Activation kActivation>
MACHINE_DEVICE float4 passed_back_here(float4 kept, float4 sum) {
  return make_float4(
      rules::passed_back(kActivation, kept.x, sum.x), rules::passed_back(kActivation, kept.y, sum.y),
      rules::passed_back(kActivation, kept.z, sum.z), rules::passed_back(kActivation, kept.w, sum.w));
}
/// Activations other than ReLU are functions of their own: written out in every tile's finishing they would be most of the kernel.
template <Activation kActivation>
MACHINE_DEVICE_CALLED float4 activated_apart(float4 z) {
  return activated_here<kActivation>(z);
}
template <Activation kActivation>
MACHINE_DEVICE_CALLED float4 passed_back_apart(float4 kept, float4 sum) {
  return passed_back_here<kActivation>(kept, sum);
}
template <Activation kActivation>
MACHINE_DEVICE float4 activated_four(float4 z) {
  if constexpr (kActivation == Activation::kRelu)
    return make_float4(machine::relu(z.x), machine::relu(z.y), machine::relu(z.z), machine::relu(z.w));
  else
    return activated_apart<kActivation>(z);
}
template <Activation kActivation>
MACHINE_DEVICE float4 passed_back_four(float4 kept, float4 sum) {
  if constexpr (kActivation == Activation::kRelu)
    return passed_back_here<kActivation>(kept, sum);
  else
    return passed_back_apart<kActivation>(kept, sum);
}

template <class S, Activation kActivation>
MACHINE_DEVICE void forward_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                 const StepPlace& step) {
  using Format = typename S::Format;
  using T = typename S::Chain;
  const LayerArguments& layer = a.layer[task.layer];
  const Rows& to = a.layer[task.layer + 1].input_rows;
  typename Format::template Sums<T> sums;
  float4 bias;
  multiply_stages<S, T, false, false, false>(worker, inner_of<S>(a, task), sums,
                                             [&] { bias = biases_of(layer, task, worker); });
  worker.mark(&TaskTimes::products);
  finish_tile<S, T>(worker, sums, [&](int row_of_tile, int column_of_tile, float4 sum) {
    const int row = S::kRows * task.row + row_of_tile, column = S::kColumns * task.column + column_of_tile;
    if (row >= a.batch || column >= layer.out) return;
    float4 z = sum_of(sum, bias);
    const auto keep = [&] {
      Format::store_unrounded(place_in<typename S::Value>(layer.kept_rows, 0, row, column), z);
    };
    constexpr bool kKeepsApart = kActivation != Activation::kRelu && !Format::kKeepsRounded;
    if constexpr (keeps_sums(kActivation)) keep();
    z = activated_four<kActivation>(z);
    if constexpr (keeps_outputs(kActivation) && kKeepsApart) keep();
    Format::store(place_in<typename S::Value>(to, step.parity, row, column), z);
  });
  worker.tell(task, 0, 1);
  if constexpr (S::kRanked) {
    worker.send(to, a.ranks.inputs[task.layer + 1], tile_of<S>(a, task, step.parity, layer.out));
    worker.tell_peers(task, 1);
  }
}

/// A tile of a hidden layer's gradient. Slopes come from the activations, or from what is kept beside them.
template <class S, Activation kActivation>
struct InputGradient {
  using Format = typename S::Format;
  using T = typename S::Chain;
  const Arguments& a;
  const Task& task;
  const PortableWorker<S>& worker;
  int parity, slice;  // slice: of the gradients
  Asked<S, T, float4> asked;

  MACHINE_DEVICE InputGradient(const Arguments& arguments, const Task& of, const PortableWorker<S>& by,
                               const StepPlace& step)
      : a(arguments), task(of), worker(by), parity(step.parity), slice(gradient_slice<S::kRanked>(step)) {}

  MACHINE_DEVICE bool inside(int row, int column) const {
    return S::kRows * task.row + row < a.batch &&
           S::kColumns * task.column + column < a.layer[task.layer].out;
  }
  MACHINE_DEVICE typename S::Value* place(const Rows& matrix, int slice, int row, int column) const {
    return place_in<typename S::Value>(matrix, slice, S::kRows * task.row + row,
                                       S::kColumns * task.column + column);
  }
  MACHINE_DEVICE float4 load(int row, int column) const {
    if (!inside(row, column)) return make_float4(0, 0, 0, 0);
    constexpr bool kAreActivations =
        kActivation == Activation::kRelu || (keeps_outputs(kActivation) && Format::kKeepsRounded);
    if constexpr (kAreActivations)
      return Format::load(place(a.layer[task.layer + 1].input_rows, parity, row, column));
    else
      return Format::load(place(a.layer[task.layer].kept_rows, 0, row, column));
  }
  /// When what the forward pass has stored is there: with the product's first stage.
  MACHINE_DEVICE void ask_early() {
    asked.ask_early(worker, [&](int row, int column) { return load(row, column); });
  }
  template <class Sums>
  MACHINE_DEVICE void finish(const Sums& sums) {
    const auto load_one = [&](int row, int column) { return load(row, column); };
    asked.ask_late(worker, load_one);
    finish_tile<S, T>(worker, sums, asked, load_one, [&](int row, int column, float4 sum, float4 kept) {
      if (!inside(row, column)) return;
      Format::store_unrounded(place(a.layer[task.layer].gradient_rows, slice, row, column),
                              passed_back_four<kActivation>(kept, sum));
    });
  }
  MACHINE_DEVICE void send() const {
    worker.send(a.layer[task.layer].gradient_rows, a.ranks.gradients[task.layer],
                tile_of<S>(a, task, slice, a.layer[task.layer].out));
  }
};

template <class S, Activation kActivation>
MACHINE_DEVICE void input_gradient_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                        const StepPlace& step) {
  using T = typename S::Chain;
  typename S::Format::template Sums<T> sums;
  InputGradient<S, kActivation> gradient(a, task, worker, step);
  multiply_stages<S, T, false, true, false>(worker, inner_of<S>(a, task), sums,
                                            [&] { gradient.ask_early(); });
  worker.mark(&TaskTimes::products);
  gradient.finish(sums);
  worker.tell(task, 0, 1);
  if constexpr (S::kRanked) {
    gradient.send();
    worker.tell_peers(task, 1);
  }
}

// ---- outputs and loss

/// The sum over all threads, of values of warps, in all of them.
template <class S>
MACHINE_DEVICE float sum_of_warps(const PortableWorker<S>& worker, float of_warp) {
  worker.meet();  // whoever read them before has
  if (worker.lane == 0) worker.memory.sums[worker.warp] = of_warp;
  worker.meet();
  const float* of = worker.memory.sums;
  return ((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]));
}

/// Outputs that fit one tile: the loss and its gradient. With Form::kLossGradient, also the gradient of the last hidden layer: a second
/// product, whose rows' factor is written into the stage that has the columns' (step.cuh says why).
template <class S, Activation kActivation, Loss kLoss, bool kGoesOn>
MACHINE_DEVICE void outputs_and_loss_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                          const StepPlace& step) {
  using Format = typename S::Format;
  using Value = typename S::Value;
  const bool stores_loss = machine::uniform(task.column) == 0;
  const LayerArguments& last = a.layer[a.layers - 1];
  float* outputs = worker.memory.outputs;
  {
    using T = typename S::Outputs;
    typename Format::template Sums<T> sums;
    multiply_stages<S, T, false, false, false>(worker, inner_of<S>(a, task), sums, [] {});
    finish_tile<S, T>(worker, sums, [&](int row, int column, float4 sum) {
      *reinterpret_cast<float4*>(outputs + row * S::kOutputsPitch + column) = sum;
    });  // ends with a meeting
  }
  if constexpr (kGoesOn) worker.wait_for_stage();
  unsigned char* stage = worker.memory.stage(worker.ring.stage);
  constexpr int kPieces = kOutputsOfTile / 8;  // two columns of a row each
  const int first = worker.lane % 4 * 2;
  float loss = 0;
  for (int of_tile = worker.thread / 4; of_tile < S::kRows; of_tile += S::kWorkers / 4) {
    const SampleRow row(a, step, S::kRows * task.row + of_tile, joined_rows<S::kRanked>(a));
    float2 z[kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      z[j] = *reinterpret_cast<const float2*>(outputs + of_tile * S::kOutputsPitch + 8 * j + first);
      const float2 bias = __ldcg(reinterpret_cast<const float2*>(last.bias + 8 * j + first));
      z[j].x += bias.x, z[j].y += bias.y;
    }
    float of_row;
    if constexpr (kLoss == Loss::kCrossEntropy)
      of_row = cross_entropy_of_row(z, last.out, first, a.labels[row.sample], a.gradient_scale);
    else
      of_row = loss_of_row<kLoss>(z, last.out, first, a.targets + row.sample * last.out, a.gradient_scale);
    if (row.inside && first == 0) loss += of_row;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int column = 8 * j + first;
      if constexpr (kGoesOn) {
        const int piece = column * S::kValueBytes / 16;
        const int place = Format::template place_of_piece<false, 8>(of_tile, piece);
        Format::store_two(
            reinterpret_cast<Value*>(stage + of_tile * 128 + place * 16) + column % (16 / S::kValueBytes),
            z[j].x, z[j].y);
      }
      if ((!kGoesOn || stores_loss) && row.inside && column < last.gradient_rows.pitch)
        Format::store_two(
            place_in<Value>(last.gradient_rows, gradient_slice<S::kRanked>(step), row.row, column), z[j].x,
            z[j].y);
    }
  }
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) loss += machine::shuffle_xor(loss, distance);
  const float of_tile = sum_of_warps(worker, loss);  // behind its meetings the stage is whole
  if (worker.thread == 0 && (!kGoesOn || stores_loss))
    a.loss_sums[std::int64_t{step.parity} * a.loss_parts + task.row] = of_tile;
  [[maybe_unused]] const auto send_loss = [&] {
    Rectangle rows = tile_of<S>(a, task, gradient_slice<S::kRanked>(step), last.out);
    rows.first_column = 0, rows.columns = last.out;
    worker.send(last.gradient_rows, a.ranks.gradients[a.layers - 1], rows);
  };
  if constexpr (kGoesOn) {
    using T = typename S::Chain;
    typename Format::template Sums<T> sums;
    InputGradient<S, kActivation> gradient(a, task, worker, step);
    gradient.ask_early();
    sums.clear();
    multiply_stage<S, T, false, true, false, kOutputsOfTile>(worker, WarpPart<T>(worker.warp), sums);
    worker.release_stage();
    worker.mark(&TaskTimes::products);
    gradient.finish(sums);
    worker.tell(task, 0, 2);
    if constexpr (S::kRanked) {
      gradient.send();
      if (stores_loss) send_loss();
      worker.tell_peers(task, 2);
    }
  } else {
    worker.mark(&TaskTimes::products);
    worker.tell(task, 0, 1);
    if constexpr (S::kRanked) {
      send_loss();
      worker.tell_peers(task, 1);
    }
  }
}

/// A tile of many outputs, to device memory.
template <class S>
MACHINE_DEVICE void outputs_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker) {
  using T = typename S::Chain;
  const LayerArguments& layer = a.layer[task.layer];
  typename S::Format::template Sums<T> sums;
  float4 bias;
  multiply_stages<S, T, false, false, false>(worker, inner_of<S>(a, task), sums,
                                             [&] { bias = biases_of(layer, task, worker); });
  worker.mark(&TaskTimes::products);
  finish_tile<S, T>(worker, sums, [&](int row_of_tile, int column_of_tile, float4 sum) {
    const int row = S::kRows * task.row + row_of_tile, column = S::kColumns * task.column + column_of_tile;
    if (row < a.batch && column < a.outputs_pitch)
      __stcg(reinterpret_cast<float4*>(a.outputs + std::int64_t{row} * a.outputs_pitch + column),
             sum_of(sum, bias));
  });
  worker.tell(task, 0, 1);
}

/// Loss and gradient of kRowsOfLoss rows of many outputs, a warp each.
template <class S, Loss kLoss>
MACHINE_DEVICE void loss_of_rows(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                 const StepPlace& step) {
  static_assert(kRowsOfLoss == 8);
  const LayerArguments& layer = a.layer[task.layer];
  const int first_row = S::kRows * task.row + kRowsOfLoss * task.column;
  if (worker.lane == 0)
    wait_for_counter<S::kRanked>(worker.waiter, WaitFor::kOutputs, a, task.rows, step.of_launch);
  worker.meet();
  worker.mark(&TaskTimes::first_slab);
  const SampleRow row(a, step, first_row + worker.warp, joined_rows<S::kRanked>(a));
  float loss = 0;
  if (row.inside)
    loss = loss_of_outputs<kLoss>(
        a, row, layer.out, worker.lane, [&](int column, float x, float y, float z, float w) {
          S::Format::store_unrounded(
              place_in<typename S::Value>(layer.gradient_rows, gradient_slice<S::kRanked>(step), row.row,
                                          column),
              make_float4(x, y, z, w));
        });
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) loss += machine::shuffle_xor(loss, distance);
  worker.mark(&TaskTimes::products);
  const float of_rows = sum_of_warps(worker, loss);
  if (worker.thread == 0 && first_row < a.batch)
    a.loss_sums[std::int64_t{step.parity} * a.loss_parts + first_row / kRowsOfLoss] = of_rows;
  worker.tell(task, 0, 1);
  if constexpr (S::kRanked) {
    const int rows = a.batch - first_row < kRowsOfLoss ? a.batch - first_row : kRowsOfLoss;
    worker.send(layer.gradient_rows, a.ranks.gradients[task.layer],
                {gradient_slice<S::kRanked>(step), first_row, rows, 0, layer.out});
    worker.tell_peers(task, 1);
  }
}

/// The step's loss from its parts, in an order that is always the same. By the task that is the first to know that all are there.
template <class S>
MACHINE_DEVICE void finish_loss(const Arguments& a, const PortableWorker<S>& worker, const StepPlace& step) {
  const float* parts = a.loss_sums + std::int64_t{step.parity} * a.loss_parts;
  float sum = 0;
  for (int part = worker.thread; part < a.loss_parts; part += S::kWorkers) sum += __ldcg(parts + part);
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += machine::shuffle_xor(sum, distance);
  const float of_step = sum_of_warps(worker, sum);
  if (worker.thread == 0)
    a.losses[(a.first_step + step.of_launch) % a.loss_slots] = of_step / static_cast<float>(a.batch);
}

// ---- weight gradient and update

/// Four weights of a row, and their slots.
template <int kSlots>
struct FourWeights {
  float4 weights, slots[kSlots == 0 ? 1 : kSlots];
};

/// A tile of weights with their slots, updated.
template <class S, int kSlots>
struct WeightsTile {
  using Format = typename S::Format;
  using T = typename S::Weights;
  const Task& task;
  const LayerArguments& layer;
  int parity;
  Asked<S, T, FourWeights<kSlots>> asked;

  MACHINE_DEVICE WeightsTile(const Arguments& a, const Task& of, const StepPlace& step)
      : task(of), layer(a.layer[of.layer]), parity(step.parity) {}

  MACHINE_DEVICE std::int64_t place(int row, int column) const {  // -1: outside
    row += S::kWeightRows * task.row, column += S::kWeightColumns * task.column;
    return row < layer.out && column < layer.in ? std::int64_t{row} * layer.weight_rows.pitch + column : -1;
  }
  MACHINE_DEVICE typename S::Value* factors(int slice, std::int64_t at) const {
    return static_cast<typename S::Value*>(layer.weight_rows.values) + slice * layer.weight_rows.slice + at;
  }
  MACHINE_DEVICE float* masters(std::int64_t at) const {
    if constexpr (Format::kMastersAreFactors)
      return factors(parity, at);
    else
      return reinterpret_cast<float*>(layer.masters) + at;
  }
  MACHINE_DEVICE float4* slot_of(int slot, std::int64_t at) const {
    return reinterpret_cast<float4*>(reinterpret_cast<float*>(layer.slots[slot]) + at);
  }
  MACHINE_DEVICE FourWeights<kSlots> load(int row, int column) const {
    FourWeights<kSlots> four{};
    const std::int64_t at = place(row, column);
    if (at < 0) return four;
    four.weights = __ldcg(reinterpret_cast<const float4*>(masters(at)));
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) four.slots[slot] = __ldcg(slot_of(slot, at));
    return four;
  }
  MACHINE_DEVICE void ask_early(const PortableWorker<S>& worker) {
    asked.ask_early(worker, [&](int row, int column) { return load(row, column); });
  }
  template <class Sums>
  MACHINE_DEVICE void finish(const Arguments& a, const StepPlace& step, const PortableWorker<S>& worker,
                             const Sums& sums, bool was_asked) {
    const auto load_one = [&](int row, int column) { return load(row, column); };
    if (was_asked)
      asked.ask_late(worker, load_one);
    else
      asked.ask_all(worker, load_one);
    const rules::UpdateFactors factors_of_step = factors_of(a, step);
    finish_tile<S, T>(worker, sums, asked, load_one,
                      [&](int row, int column, float4 sum, const FourWeights<kSlots>& four) {
                        update_four(a, factors_of_step, row, column, sum, four);
                      });
  }
  MACHINE_DEVICE void update_four(const Arguments& a, const rules::UpdateFactors& factors_of_step, int row,
                                  int column, float4 sum, FourWeights<kSlots> four) const {
    const std::int64_t at = place(row, column);
    if (at < 0) return;
    const float scale = a.inverse_loss_scale;
    float4 &w = four.weights, &m = four.slots[0], &v = four.slots[kSlots > 1 ? 1 : 0];
    update<kSlots>(factors_of_step, scale * sum.x, w.x, m.x, v.x);
    update<kSlots>(factors_of_step, scale * sum.y, w.y, m.y, v.y);
    update<kSlots>(factors_of_step, scale * sum.z, w.z, m.z, v.z);
    update<kSlots>(factors_of_step, scale * sum.w, w.w, m.w, v.w);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) __stcg(slot_of(slot, at), four.slots[slot]);
    if constexpr (!Format::kMastersAreFactors) __stcg(reinterpret_cast<float4*>(masters(at)), w);
    Format::store_weights(factors(parity ^ 1, at), w);
  }
};

/// What the groups of warps have left in shared memory of the sum of a row of the gradient.
template <class S>
MACHINE_DEVICE float sum_of_row(const PortableWorker<S>& worker, int row) {
  float sum = worker.memory.row_sums[row];
#pragma unroll
  for (int group = 1; group < S::Weights::kGroups; ++group)
    sum += worker.memory.row_sums[group * S::kWeightRows + row];
  return sum;
}

/// The biases of the tile's rows, a thread each: sum_of(row) is what their gradient sums up to.
template <class S, int kSlots, class SumOf>
MACHINE_DEVICE void update_biases(const Arguments& a, const Task& task, const PortableWorker<S>& worker,
                                  const StepPlace& step, const SumOf& sum_of) {
  const LayerArguments& layer = a.layer[task.layer];
  const int row = S::kWeightRows * task.row + worker.thread;
  if (worker.thread >= S::kWeightRows || row >= layer.out) return;
  const rules::UpdateFactors factors = factors_of(a, step);
  const float sum = sum_of(worker.thread);
  float value = __ldcg(layer.bias + row), slots[2] = {};
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) slots[slot] = __ldcg(layer.bias_slots[slot] + row);
  update<kSlots>(factors, a.inverse_loss_scale * sum, value, slots[0], slots[1]);
  __stcg(layer.bias + row, value);
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) __stcg(layer.bias_slots[slot] + row, slots[slot]);
}

/// The product of a weight gradient over samples() of them; in tiles of the first column also the sums of the gradient's rows.
template <class S, class Sums, class Samples>
MACHINE_DEVICE void multiply_weights(PortableWorker<S>& worker, const Samples& samples, bool with_bias,
                                     Sums& sums) {
  using T = typename S::Weights;
  if (with_bias) {
    multiply_stages<S, T, true, true, true>(worker, samples(), sums, [] {});
    const WarpPart<T> part(worker.warp);
    if (part.column == 0)
      sums.for_row_sums(part.row, worker.lane, [&](int row, float sum) {
        worker.memory.row_sums[part.group * S::kWeightRows + row] = sum;
      });
  } else {
    multiply_stages<S, T, true, true, false>(worker, samples(), sums, [] {});
  }
  worker.mark(&TaskTimes::products);
}

template <class S, int kSlots>
MACHINE_DEVICE void weight_gradient_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                         const StepPlace& step) {
  using T = typename S::Weights;
  typename S::Format::template Sums<T> sums;
  const bool with_bias = machine::uniform(task.column) == 0;
  WeightsTile<S, kSlots> tile(a, task, step);
  if constexpr (kSlots == 0) tile.ask_early(worker);
  multiply_weights(worker, [&] { return inner_of<S>(a, task); }, with_bias, sums);
  tile.finish(a, step, worker, sums, kSlots == 0);
  if (with_bias)  // behind the tile's meetings
    update_biases<S, kSlots>(a, task, worker, step, [&](int row) { return sum_of_row(worker, row); });
  worker.tell(task, 0, 1);
  if (task.layer == a.layers - 1 && task.row == 0 && task.column == 0) finish_loss<S>(a, worker, step);
}

// ---- weight gradients in parts

/// Where the sums of parts lie in device memory: [tile][parts], of each the tile in rows, then the sums of the gradient's rows.
template <class S>
struct PartSums {
  static constexpr int kTile = S::kWeightRows * S::kWeightColumns, kFloats = kTile + S::kWeightRows;
  float* of_tile;
  int parts;
  MACHINE_DEVICE PartSums(const LayerArguments& layer, const Task& task) : parts(layer.parts) {
    const std::int64_t across = divide_up(layer.in, S::kWeightColumns);
    of_tile = reinterpret_cast<float*>(layer.part_sums) + (task.row * across + task.column) * parts * kFloats;
  }
  MACHINE_DEVICE float* of(int part) const { return of_tile + std::int64_t{part} * kFloats; }
};

template <class S>
MACHINE_DEVICE void weight_gradient_part(const Arguments& a, const Task& task, PortableWorker<S>& worker) {
  using T = typename S::Weights;
  typename S::Format::template Sums<T> sums;
  const bool with_bias = machine::uniform(task.column) == 0;
  multiply_weights(worker, [&] { return PartOfBatch<S>(a, task).count; }, with_bias, sums);
  float* to = PartSums<S>(a.layer[task.layer], task).of(task.part);
  finish_tile<S, T>(worker, sums, [&](int row, int column, float4 sum) {
    __stcg(reinterpret_cast<float4*>(to + row * S::kWeightColumns + column), sum);
  });
  if (with_bias && worker.thread < S::kWeightRows)  // behind the tile's meetings
    __stcg(to + PartSums<S>::kTile + worker.thread, sum_of_row(worker, worker.thread));
  worker.tell(task, 0, 1);
}

/// kColumnsOfUpdate columns of a tile of weights, from the sums of all parts in the parts' order.
template <class S, int kSlots>
MACHINE_DEVICE void update_from_parts(const Arguments& a, const Task& task, const PortableWorker<S>& worker,
                                      const StepPlace& step) {
  constexpr int kAcross = kColumnsOfUpdate / 4, kRowsAtOnce = S::kWorkers / kAcross;
  const PartSums<S> parts(a.layer[task.layer], task);
  const WeightsTile<S, kSlots> tile(a, task, step);
  const rules::UpdateFactors factors = factors_of(a, step);
  const int column = kColumnsOfUpdate * task.part + worker.thread % kAcross * 4;
#pragma unroll 1
  for (int row = worker.thread / kAcross; row < S::kWeightRows; row += kRowsAtOnce) {
    if (tile.place(row, column) < 0) continue;
    FourWeights<kSlots> four = tile.load(row, column);
    const float* from = parts.of_tile + row * S::kWeightColumns + column;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int part = 0; part < parts.parts; ++part, from += PartSums<S>::kFloats)
      sum = sum_of(sum, __ldcg(reinterpret_cast<const float4*>(from)));
    tile.update_four(a, factors, row, column, sum, four);
  }
  if (task.column == 0 && task.part == 0)
    update_biases<S, kSlots>(a, task, worker, step, [&](int row) {
      float sum = 0;
      for (int part = 0; part < parts.parts; ++part) sum += __ldcg(parts.of(part) + PartSums<S>::kTile + row);
      return sum;
    });
}
template <class S, int kSlots>
MACHINE_DEVICE void update_tile(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                                const StepPlace& step) {
  if (worker.lane == 0)
    wait_for_counter<S::kRanked>(worker.waiter, WaitFor::kParts, a, task.rows, step.of_launch);
  worker.meet();
  worker.mark(&TaskTimes::first_slab);
  worker.mark(&TaskTimes::products);
  update_from_parts<S, kSlots>(a, task, worker, step);
  worker.tell(task, 0, 1);
  if (task.layer == a.layers - 1 && task.row == 0 && task.column == 0 && task.part == 0)
    finish_loss<S>(a, worker, step);
}

// ---- the kernel

/// One task. There is no code for forms that no task has.
template <class S, KernelRules kRules>
MACHINE_DEVICE void make(const Arguments& a, const Task& task, PortableWorker<S>& worker,
                         const StepPlace& step) {
  constexpr Activation kActivation = kRules.activation;
  constexpr Loss kLoss = kRules.loss;
  constexpr int kSlots = kRules.slots;
  switch (static_cast<Form>(machine::uniform(static_cast<int>(task.form)))) {
    case Form::kForward:
      return if_it_may_come<kRules, Form::kForward>(
          [&] { forward_tile<S, kActivation>(a, task, worker, step); });
    case Form::kOutputLoss:
      return if_it_may_come<kRules, Form::kOutputLoss>(
          [&] { outputs_and_loss_tile<S, kActivation, kLoss, false>(a, task, worker, step); });
    case Form::kLossGradient:
      return if_it_may_come<kRules, Form::kLossGradient>(
          [&] { outputs_and_loss_tile<S, kActivation, kLoss, true>(a, task, worker, step); });
    case Form::kOutputs:
      return if_it_may_come<kRules, Form::kOutputs>([&] { outputs_tile<S>(a, task, worker); });
    case Form::kLoss:
      return if_it_may_come<kRules, Form::kLoss>([&] { loss_of_rows<S, kLoss>(a, task, worker, step); });
    case Form::kInputGradient:
      return if_it_may_come<kRules, Form::kInputGradient>(
          [&] { input_gradient_tile<S, kActivation>(a, task, worker, step); });
    case Form::kWeightGradient:
      return if_it_may_come<kRules, Form::kWeightGradient>(
          [&] { weight_gradient_tile<S, kSlots>(a, task, worker, step); });
    case Form::kWeightGradientPart:  // this and the next one are in the lists of fp32 only
      return if_it_may_come<kRules, Form::kWeightGradientPart>([&] {
        if constexpr (S::Format::kHasParts) weight_gradient_part<S>(a, task, worker);
      });
    case Form::kUpdate:
      return if_it_may_come<kRules, Form::kUpdate>([&] {
        if constexpr (S::Format::kHasParts) update_tile<S, kSlots>(a, task, worker, step);
      });
    case Form::kPause:
      return;
  }
  __builtin_unreachable();
}

template <class S, KernelRules kRules>
MACHINE_DEVICE void work(const Arguments& a, PortableBlock<S>& memory) {
  PortableWorker<S> worker(a, memory);
  List<true> list(a, 0, 1);
  for (StepPlace step(a); step.of_launch < a.steps; step.advance(a)) {
    do {
      const Task task = list.take();
      worker.waiter.step = step.of_launch, worker.waiter.order = task.order;
      if constexpr (S::kTimed) {
        const bool timed = a.times != nullptr && worker.thread == 0 && step.of_launch == a.steps - 1;
        worker.timed = timed ? list.index() : -1;
      }
      worker.mark(&TaskTimes::begin);
      make<S, kRules>(a, task, worker, step);
      worker.mark(&TaskTimes::end);
    } while (!list.step_ends());
  }
}

template <Tiling kTiling, class Format, KernelRules kRules>
__global__ void __launch_bounds__(threads_of(kTiling), 1)
    train_portable_kernel(const __grid_constant__ Arguments a) {
  using S = PortableShape<Format, kTiling, kRules.timed, kRules.ranked>;
  static_assert(sizeof(PortableBlock<S>) ==
                S::kMemory.beside_the_ring);  // `ring` takes as many as kAlignment
  unsigned char* begin = machine::shared_memory();
  begin += (0u - machine::shared_address(begin)) & (PortableMemory::kAlignment - 1u);
  auto& memory = *reinterpret_cast<PortableBlock<S>*>(begin);
  if (machine::thread_index() == 0)
    for (int stage = 0; stage < a.stages; ++stage) {
      machine::barrier_init(machine::shared_address(&memory.full[stage]),
                            4 * (32 + 1));                                     // the fetching warps
      machine::barrier_init(machine::shared_address(&memory.free[stage]), 8);  // the warps that multiply
    }
  machine::block_sync();
  const int warp = machine::uniform(machine::thread_index() / 32);
  const int fetcher = warp - S::kWorkers / 32;
  if (fetcher >= 2) return fetch_columns<S>(a, memory, fetcher % 2);
  if (fetcher >= 0) return fetch_rows<S>(a, memory, fetcher % 2);

  work<S, kRules>(a, memory);
}

}  // namespace headroom::tiled
