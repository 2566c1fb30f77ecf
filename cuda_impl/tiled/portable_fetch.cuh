// A thread block of the portable kernel: its shared memory, and the warps that bring factors into the ring by cp.async, two those of
// the tiles' rows, two those of their columns.
#pragma once

#include "machine/barriers.cuh"
#include "machine/copy.cuh"
#include "machine/copy_arrival.cuh"
#include "tiled/list.cuh"
#include "tiled/portable_formats.cuh"
#include "tiled/ranks.cuh"
#include "tiled/waits.cuh"

namespace headroom::tiled {

/// A format with the tiles of the chain's products (forward, input gradient) and those of weight gradients.
template <class StepFormat, Tiling kTilingOfBlock, bool kIsTimed, bool kIsRanked>
struct PortableShape {
  using Format = StepFormat;
  using Value = typename Format::Value;
  static constexpr Tiling kTiling = kTilingOfBlock;
  static constexpr bool kTimed = kIsTimed, kRanked = kIsRanked;
  static constexpr int kRows = kTiling.rows(), kColumns = kTiling.columns;
  static constexpr int kWeightRows = kTiling.weight_rows(), kWeightColumns = kTiling.weight_columns();
  using Chain = Split<Format, kRows, kColumns>;
  using Weights = Split<Format, kWeightRows, kWeightColumns>;
  using Outputs = Split<Format, kRows, kOutputsOfTile>;

  static constexpr int kWorkers = 256, kThreads = threads_of(kTiling);
  static constexpr int kValueBytes = Format::kNumbers.value_bytes;
  static_assert(sizeof(Value) == kValueBytes);
  static constexpr int kDepth = 128 / kValueBytes;              // inner indices of a slab
  static constexpr int kSteps = kDepth / Format::kInnerOfStep;  // in which they are multiplied
  static constexpr int part_bytes(int lines) { return portable_part_bytes(Format::kNumbers, lines); }
  // A stage holds as many slabs of a product as fit: lines of the rows' factor, then of the columns', of each.
  template <class T>
  static constexpr int kRowsBytes = part_bytes(T::kRows);
  template <class T>
  static constexpr int kSlabBytes = part_bytes(T::kRows) + part_bytes(T::kColumns);
  static constexpr PortableMemory kMemory = portable_memory(Format::kPrecision, kTiling);
  static constexpr int kStageBytes = kMemory.stage_bytes;

  template <class T>
  static constexpr int kSlabs = kStageBytes / kSlabBytes<T>;
  template <class T>
  MACHINE_DEVICE static int stages(int inner) {
    return (inner + kSlabs<T> * kDepth - 1) / (kSlabs<T> * kDepth);
  }

  static constexpr int kOutputsPitch = PortableMemory::kOutputsPitch;
  static_assert(kSteps % Chain::kGroups == 0 && kSteps % Weights::kGroups == 0 &&
                kSteps % Outputs::kGroups == 0);
};

template <class S>
struct PortableBlock {
  float staged[S::kMemory.staged_floats];      // sums of a band, of each group of warps
  float outputs[S::kRows * S::kOutputsPitch];  // of a tile that holds all of them
  float row_sums[S::Weights::kGroups * S::kWeightRows];
  float sums[8];  // of warps
  alignas(8) std::uint64_t full[kMostStages], free[kMostStages];
  alignas(128) unsigned char ring[1];  // a.stages stages
  MACHINE_DEVICE unsigned char* stage(int which) { return ring + which * S::kStageBytes; }
};

/// A factor in device memory. Turned, it is read down its columns: the inner index counts lines.
struct Lines {
  const unsigned char* values;  // of the slice
  std::int64_t pitch;           // bytes
  int first;                    // row or column of the matrix with which the tile begins
  int across, inner;            // rows or columns of the matrix behind `first`, and length of the inner index

  MACHINE_DEVICE Lines(const Rows& matrix, int slice, int value_bytes, int first_of_tile, int extent,
                       int inner_extent)
      : values(static_cast<const unsigned char*>(matrix.values) + slice * matrix.slice * value_bytes),
        pitch(std::int64_t{matrix.pitch} * value_bytes),
        first(first_of_tile),
        across(extent - first_of_tile),
        inner(inner_extent) {}
  /// Turned: from a line on.
  MACHINE_DEVICE Lines from(int line) const {
    Lines rest = *this;
    rest.values += line * pitch;
    return rest;
  }
};

/// The lines of all ranks, of a factor that begins with this one's.
template <class S>
MACHINE_DEVICE Lines from_first_rank(const Arguments& a, const Lines& own) {
  if constexpr (S::kRanked)
    return own.from(-a.ranks.first_row);
  else
    return own;
}

/// A part of a weight gradient: its first sample, and how many.
template <class S>
struct PartOfBatch {
  int first, count;
  MACHINE_DEVICE PartOfBatch(const Arguments& a, const Task& task) : first(task.first_slab * kSlab) {
    const int left = joined_rows<S::kRanked>(a) - first;
    count = left < task.slabs * kSlab ? left : task.slabs * kSlab;
  }
};

/// The inner index of a task's product; with Form::kLossGradient of its first one.
template <class S>
MACHINE_DEVICE int inner_of(const Arguments& a, const Task& task) {
  if (task.form == Form::kWeightGradient) return joined_rows<S::kRanked>(a);
  if (task.form == Form::kInputGradient) return a.layer[task.layer + 1].out;
  return a.layer[task.form == Form::kLossGradient ? task.layer + 1 : task.layer].in;
}

/// What one warp fetches of a task: every other of the factor's lines, into its part of the ring's stages.
template <class S>
class Fetcher {
 public:
  MACHINE_DEVICE Fetcher(const Arguments& a, PortableBlock<S>& memory, bool rows, int which)
      : waiter_{a},
        memory_(memory),
        what_(rows ? WaitFor::kRows : WaitFor::kColumns),
        lane_(machine::thread_index() % 32),
        which_(which) {}

  MACHINE_DEVICE void begin(const Task& task, const Wait& wait, int step_of_launch) {
    waiter_.step = step_of_launch, waiter_.order = task.order;
    if (lane_ == 0)
      wait_for_counter<S::kRanked>(waiter_, what_, waiter_.arguments, wait, step_of_launch,
                                   is_weight_gradient(task));
    machine::warp_sync();
  }
  /// The rows' factor of a product in tiles of T, or the columns'.
  template <class T, bool kOfRows, bool kTurned>
  MACHINE_DEVICE void fill(const Lines& from, int stages) {
    constexpr int kTileLines = kOfRows ? T::kRows : T::kColumns;
    constexpr int kPart = kOfRows ? 0 : S::template kRowsBytes<T>;
    constexpr int kPieces = kTurned ? kTileLines * S::kValueBytes / 16 : 8;
    constexpr int kLines = kTurned ? S::kDepth : kTileLines, kAtOnce = 32 / kPieces;
    constexpr int kLineBytes = 16 * kPieces + (kTurned ? S::Format::kNumbers.apart : 0);
    static_assert(kPieces <= 32 && kLines % (2 * kAtOnce) == 0);
    const int piece = lane_ % kPieces, line = lane_ / kPieces + kAtOnce * which_;
    const unsigned char* source = from.values + 16 * piece;
    source += kTurned ? line * from.pitch + std::int64_t{from.first} * S::kValueBytes
                      : (from.first + line) * from.pitch;
    const std::int64_t next_slab = kTurned ? S::kDepth * from.pitch : 128,
                       next_lines = 2 * kAtOnce * from.pitch;
    int inner_left = from.inner;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      unsigned char* to = begin_stage() + kPart;
#pragma unroll 1
      for (int slab = 0; slab < S::template kSlabs<T>; ++slab) {
        // Bytes of this lane's pieces that are inside of the matrix, and how many of its lines.
        int bytes = (kTurned ? from.across : inner_left) * S::kValueBytes - 16 * piece;
        bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
        const int lines = kTurned ? inner_left : from.across;
        const unsigned char* of_line = source;
#pragma unroll 8
        for (int i = 0; i < kLines / kAtOnce / 2; ++i, of_line += next_lines) {
          const int at = line + 2 * kAtOnce * i;
          const int place = S::Format::template place_of_piece<kTurned, kPieces>(at, piece);
          machine::copy_async16_zero_rest(to + at * kLineBytes + place * 16, of_line, at < lines ? bytes : 0);
        }
        source += next_slab, inner_left -= S::kDepth, to += S::template kSlabBytes<T>;
      }
      end_stage();
    }
  }
  /// A stage of which the other factor is fetched, and this one is written by who multiplies.
  MACHINE_DEVICE void pass() {
    begin_stage();
    end_stage();
  }

 private:
  MACHINE_DEVICE unsigned char* begin_stage() {
    wait_until(waiter_, WaitFor::kFreeStage, [&] {
      return machine::barrier_is_complete(machine::shared_address(&memory_.free[ring_.stage]),
                                          ring_.parity ^ 1);
    });
    return memory_.stage(ring_.stage);
  }
  /// The copies' arrivals hand on what they bring, lane 0's own what it has seen behind its wait.
  MACHINE_DEVICE void end_stage() {
    const std::uint32_t barrier = machine::shared_address(&memory_.full[ring_.stage]);
    machine::copy_async_arrive(barrier);
    if (lane_ == 0) machine::barrier_arrive(barrier);
    ring_.advance(waiter_.arguments.stages);
  }

  Waiter waiter_;
  PortableBlock<S>& memory_;
  const WaitFor what_;
  const int lane_, which_;
  machine::RingPlace ring_;
};

template <class S>
MACHINE_DEVICE void fetch_rows(const Arguments& a, PortableBlock<S>& memory, int which) {
  using Chain = typename S::Chain;
  using Outputs = typename S::Outputs;
  using Weights = typename S::Weights;
  Fetcher<S> fetcher(a, memory, true, which);
  List<false> list(a, 0, 1);
  for (StepPlace step(a); step.of_launch < a.steps; step.advance(a)) {
    do {
      const Task task = list.take();
      if (task.form == Form::kLoss || task.form == Form::kPause) continue;
      if (S::Format::kHasParts && task.form == Form::kUpdate) continue;
      const int inner = inner_of<S>(a, task), first = S::kRows * task.row;
      fetcher.begin(task, task.rows, step.of_launch);
      const auto activations = [&](int layer) {
        return Lines(a.layer[layer].input_rows, layer == 0 ? step.batch : step.parity, S::kValueBytes, first,
                     a.batch, inner);
      };
      if constexpr (S::Format::kHasParts)
        if (task.form == Form::kWeightGradientPart) {
          const PartOfBatch<S> part(a, task);
          const LayerArguments& layer = a.layer[task.layer];
          fetcher.template fill<Weights, true, true>(
              from_first_rank<S>(a, Lines(layer.gradient_rows, gradient_slice<S::kRanked>(step),
                                          S::kValueBytes, S::kWeightRows * task.row, layer.out, part.count)
                                        .from(part.first)),
              S::template stages<Weights>(part.count));
          continue;
        }
      switch (task.form) {
        case Form::kWeightGradient:
          fetcher.template fill<Weights, true, true>(
              from_first_rank<S>(
                  a, Lines(a.layer[task.layer].gradient_rows, gradient_slice<S::kRanked>(step),
                           S::kValueBytes, S::kWeightRows * task.row, a.layer[task.layer].out, inner)),
              S::template stages<Weights>(inner));
          break;
        case Form::kInputGradient:
          fetcher.template fill<Chain, true, false>(
              Lines(a.layer[task.layer + 1].gradient_rows, gradient_slice<S::kRanked>(step), S::kValueBytes,
                    first, a.batch, inner),
              S::template stages<Chain>(inner));
          break;
        case Form::kOutputLoss:
        case Form::kLossGradient:
          fetcher.template fill<Outputs, true, false>(activations(a.layers - 1),
                                                      S::template stages<Outputs>(inner));
          if (task.form == Form::kLossGradient) fetcher.pass();
          break;
        default:
          fetcher.template fill<Chain, true, false>(activations(task.layer),
                                                    S::template stages<Chain>(inner));
          break;
      }
    } while (!list.step_ends());
  }
}

template <class S>
MACHINE_DEVICE void fetch_columns(const Arguments& a, PortableBlock<S>& memory, int which) {
  using Chain = typename S::Chain;
  using Outputs = typename S::Outputs;
  using Weights = typename S::Weights;
  Fetcher<S> fetcher(a, memory, false, which);
  List<false> list(a, 0, 1);
  for (StepPlace step(a); step.of_launch < a.steps; step.advance(a)) {
    do {
      const Task task = list.take();
      if (task.form == Form::kLoss || task.form == Form::kPause) continue;
      if (S::Format::kHasParts && task.form == Form::kUpdate) continue;
      const int inner = inner_of<S>(a, task), first = S::kColumns * task.column;
      fetcher.begin(task, task.columns, step.of_launch);
      const auto weights = [&](int layer, int first_row) {
        const LayerArguments& of = a.layer[layer];
        return Lines(of.weight_rows, step.parity, S::kValueBytes, first_row, of.out, of.in);
      };
      const auto turned_weights = [&](int layer) {
        const LayerArguments& of = a.layer[layer];
        return Lines(of.weight_rows, step.parity, S::kValueBytes, first, of.in, of.out);
      };
      if constexpr (S::Format::kHasParts)
        if (task.form == Form::kWeightGradientPart) {
          const PartOfBatch<S> part(a, task);
          const LayerArguments& layer = a.layer[task.layer];
          fetcher.template fill<Weights, false, true>(
              from_first_rank<S>(
                  a, Lines(layer.input_rows, task.layer == 0 ? step.batch : step.parity, S::kValueBytes,
                           S::kWeightColumns * task.column, layer.in, part.count)
                         .from(part.first)),
              S::template stages<Weights>(part.count));
          continue;
        }
      switch (task.form) {
        case Form::kWeightGradient: {
          const LayerArguments& layer = a.layer[task.layer];
          fetcher.template fill<Weights, false, true>(
              from_first_rank<S>(a, Lines(layer.input_rows, task.layer == 0 ? step.batch : step.parity,
                                          S::kValueBytes, S::kWeightColumns * task.column, layer.in, inner)),
              S::template stages<Weights>(inner));
          break;
        }
        case Form::kInputGradient:
          fetcher.template fill<Chain, false, true>(turned_weights(task.layer + 1),
                                                    S::template stages<Chain>(inner));
          break;
        case Form::kOutputLoss:
        case Form::kLossGradient:  // all outputs' weights, then as inner indices those of the tile's columns
          fetcher.template fill<Outputs, false, false>(weights(a.layers - 1, 0),
                                                       S::template stages<Outputs>(inner));
          if (task.form == Form::kLossGradient)
            fetcher.template fill<Chain, false, true>(turned_weights(a.layers - 1), 1);
          break;
        default:
          fetcher.template fill<Chain, false, false>(weights(task.layer, first),
                                                     S::template stages<Chain>(inner));
          break;
      }
    } while (!list.step_ends());
  }
}

}  // namespace headroom::tiled
