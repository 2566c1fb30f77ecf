// A thread block of cuda-tiled (step.cuh): its shared memory, its list, and what a multiplying thread does for every tile, whatever it
// is of: take its turn, multiply the slabs of a task, store the tile and say so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "machine/barriers.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/formats.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/thread.cuh"
#include "machine/uniform.cuh"
#include "machine/wgmma.cuh"
#include "tiled/arguments.h"
#include "tiled/list.cuh"
#include "tiled/ranks.cuh"
#include "tiled/waits.cuh"

namespace headroom::tiled {

using machine::Factor;
using machine::kTilePanelBytes;
using machine::shared_address;

/// A tiling, and what a thread block is made of with it.
template <Tiling kTilingOfBlock, bool kIsTimed, bool kHasWholeTiles, bool kIsRanked>
struct Shape {
  static constexpr Tiling kTiling = kTilingOfBlock;
  static constexpr bool kTimed = kIsTimed, kWholeTiles = kHasWholeTiles,
                        kRanked = kIsRanked;  // as KernelRules says
  static constexpr int kSlabs = kTiling.slabs_of_stage;
  static constexpr int kGroups = kTiling.groups, kColumns = kTiling.columns, kTeams = kTiling.teams;
  static constexpr int kRows = kTiling.rows(), kTeam = kTiling.team_threads(),
                       kConsumers = kTiling.consumers();
  static constexpr int kWarpgroups = kGroups * kTeams;
  static constexpr int kThreads = threads_of(kTiling);
  static constexpr int kSums = kColumns / 2;   // of a thread
  static constexpr int kPairs = kColumns / 4;  // packed
  static constexpr bool kTf32 = kTiling.slab == kTf32Slab;
  static constexpr int kWordsOfPair = kTf32 ? 2 : 1;  // of values as they enter products
  static constexpr int kWords = kWordsOfPair * kPairs;
  static constexpr Factor kAcross = kTf32 ? Factor::kPlain : Factor::kTurned;  // a factor that lies turned
  static constexpr int kRowPanels = kRows / kPanel, kColumnPanels = kColumns / kPanel;

  static constexpr WgmmaMemory kMemory = wgmma_memory(kTiling);
  static constexpr int kRowsBytes = kMemory.rows_bytes, kColumnsBytes = kMemory.columns_bytes,
                       kStageBytes = kMemory.stage_bytes(), kStages = kMemory.stages;
  static_assert(kStages >= 4 && (kTeams == 1 || kGroups == 1));
};

template <class S>
struct SharedMemory {
  unsigned char ring[S::kStages]
                    [S::kStageBytes];  // a stage: panels of the rows' factor, then of the columns'
  unsigned char staging[S::kWarpgroups][S::kMemory.staging_bytes];
  std::uint32_t ones[WgmmaMemory::kOnesBytes / 4];  // a factor, in pairs
  std::uint64_t full[S::kStages], free[S::kStages], turn[2];
  float sums[S::kWarpgroups][8];  // of warps
  unsigned char rest[WgmmaMemory::kBarrierBytes - (2 * S::kStages + 2) * 8 - S::kWarpgroups * 32];
};

// ---- the multiplying threads

/// A thread of a team: who it is, and where it is in the ring.
template <class S>
struct Worker {
  SharedMemory<S>& memory;
  machine::RingPlace ring;
  Waiter waiter;
  int timed = -1;  // the task at hand, if this thread keeps its times

  // Kept: the compiler would make both anew, from special registers, wherever they are asked for.
  const std::uint32_t thread_of_block;
  const std::uint32_t begin;  // address of the shared memory
  std::uint32_t turn;

  MACHINE_DEVICE Worker(const Arguments& a, SharedMemory<S>& shared)
      : memory(shared),
        waiter{a},
        thread_of_block(static_cast<std::uint32_t>(machine::kept_by_lane(machine::thread_index()))),
        begin(static_cast<std::uint32_t>(machine::kept_by_lane(static_cast<int>(shared_address(&shared))))),
        turn(static_cast<std::uint32_t>(team() ^ 1)) {}

  MACHINE_DEVICE int thread() const { return static_cast<int>(thread_of_block % S::kTeam); }  // of the team
  MACHINE_DEVICE int team() const {
    return S::kTeams == 1 ? 0 : static_cast<int>(thread_of_block / S::kTeam);
  }
  MACHINE_DEVICE int warpgroup() const { return static_cast<int>(thread_of_block / machine::kWarpgroup); }
  MACHINE_DEVICE int group() const { return S::kGroups == 1 ? 0 : warpgroup(); }  // warpgroup of the team
  MACHINE_DEVICE machine::Lane lane() const {
    return machine::Lane(static_cast<int>(thread_of_block % machine::kWarpgroup));
  }
  MACHINE_DEVICE std::uint32_t staging() const {
    return begin + offsetof(SharedMemory<S>, staging) + S::kMemory.staging_bytes * warpgroup();
  }
  MACHINE_DEVICE std::uint32_t full() const { return begin + offsetof(SharedMemory<S>, full); }
  MACHINE_DEVICE std::uint32_t free() const { return begin + offsetof(SharedMemory<S>, free); }
  MACHINE_DEVICE std::uint32_t turn_of(int team) const {
    return begin + offsetof(SharedMemory<S>, turn) + 8 * team;
  }

  MACHINE_DEVICE int row_of_tile() const {
    return machine::kTileRows * group() + lane().first_row();
  }  // and 8 more
  MACHINE_DEVICE bool leads() const { return thread_of_block % machine::kWarpgroup == 0; }
  MACHINE_DEVICE void meet() const { machine::named_barrier<machine::kWarpgroup>(1 + warpgroup()); }
  MACHINE_DEVICE void skip(int stages) {
    ring.stage += stages;
    while (ring.stage >= S::kStages) ring.stage -= S::kStages, ring.parity ^= 1;
  }
  /// Teams multiply in turn. A team that went ahead would take a stage's last phase for its next one.
  MACHINE_DEVICE void take_turn() {
    if constexpr (S::kTeams == 1) return;
    wait_for_barrier(waiter, WaitFor::kTurn, turn_of(team()), turn);
    turn ^= 1;
  }
  /// Lanes that still wait for this turn have to see it before the next one can begin.
  MACHINE_DEVICE void pass_turn() {
    machine::warp_sync();
    if (S::kTeams == 2 && lane().lane == 0) machine::barrier_arrive(turn_of(team() ^ 1));
  }
};

template <class S>
MACHINE_DEVICE void mark(const Worker<S>& worker, std::uint64_t TaskTimes::* time) {
  if constexpr (!S::kTimed) return;
  if (worker.timed >= 0) worker.waiter.arguments.times[worker.timed].*time = machine::nanoseconds();
}

/// A slab's line has 128 bytes, and a product takes 32 of them.
inline constexpr int kProductsOfSlab = 4;

/// Groups of products, a stage each, that are under way before the oldest has to be done.
template <class S>
inline constexpr int kUnderWay = S::kSlabs == 1 ? 2 : 1;

/// sums = product over all slabs of a task. With kSumsRows also of the rows' factor with ones: the sums of a bias's gradient. ready() is
/// called once, when the first stage is there and its products have begun.
///
/// A slab of a small tile is 128 cycles of the tensor cores. So what is done for each has to be short, and nothing in it waits for products
/// that were just begun: where a stage lies is the same for the whole warp, and the compiler is told so, because descriptions in registers
/// of their own would be moved one by one, each behind the product before; and a stage is given back some slabs later.
template <class S, class Format, Factor kA, Factor kB, bool kSumsRows, int kCount, class Ready>
MACHINE_DEVICE void multiply_slabs(Worker<S>& worker, int slabs, float (&sums)[kCount], float (&row_sums)[4],
                                   const Ready& ready) {
  static_assert(kUnderWay<S> < S::kStages);
  // Of a factor in its stage: from 16 inner indices to the next, from a slab to the next, and from a warpgroup's rows to the next's.
  constexpr int kStepA = kA == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr int kStepB = kB == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr int kSlabA =
      kA == Factor::kPlain ? S::kRows * machine::kPanelRowBytes / 16 : 4 * machine::kAcross;
  constexpr int kSlabB =
      kB == Factor::kPlain ? S::kColumns * machine::kPanelRowBytes / 16 : 4 * machine::kAcross;
  constexpr int kGroupBytes = (kA == Factor::kPlain ? 1 : S::kSlabs) * kTilePanelBytes;
  constexpr std::uint32_t kNextPanel = kB == Factor::kPlain ? 16 : S::kSlabs * kTilePanelBytes;
  const std::uint32_t ring = worker.begin;
  const auto described = [](std::uint32_t address, std::uint32_t panel_stride) {
    return machine::Panels{static_cast<std::uint32_t>(
        machine::uniform(static_cast<int>(machine::describe(address, panel_stride).low)))};
  };
  const machine::Panels a_begin = described(ring + worker.group() * kGroupBytes, 16);
  const machine::Panels b_begin = described(ring + S::kRowsBytes, kNextPanel);
  const machine::Panels ones = described(worker.begin + offsetof(SharedMemory<S>, ones), 16);
  const std::uint32_t full = worker.full(), free = worker.free();
  const bool releases = worker.lane().lane == 0;  // a stage, for its warp
  machine::RingPlace place{
      machine::uniform(worker.ring.stage),
      static_cast<std::uint32_t>(machine::uniform(static_cast<int>(worker.ring.parity)))};
  const auto release = [&](int stages_ago) {
    int stage = place.stage - stages_ago;
    if (stage < 0) stage += S::kStages;
    if (releases) machine::barrier_arrive(free + 8 * stage);
  };
  const auto of_stage = [&](machine::Panels begin) {
    const machine::Panels panels = begin + place.stage * (S::kStageBytes >> 4);
    return machine::Panels{machine::in_warp_register(panels.low)};
  };
  const auto multiply_slab = [&](machine::Panels a, machine::Panels b, int accumulate_first) {
#pragma unroll
    for (int k = 0; k < kProductsOfSlab; ++k) {
      const int accumulate = k == 0 ? accumulate_first : 1;
      machine::wgmma_shared<Format, kA, kB>(sums, a + k * kStepA, b + k * kStepB, accumulate);
      if constexpr (kSumsRows)
        machine::wgmma_shared<Format, kA, Factor::kPlain>(row_sums, a + k * kStepA, ones, accumulate);
    }
  };
  const auto wait = [&] {
    wait_for_barrier(worker.waiter, WaitFor::kFullStage, full + 8 * place.stage, place.parity);
  };
  const auto multiply_stage = [&](int first) {
    const machine::Panels a = of_stage(a_begin), b = of_stage(b_begin);
    wait();
    machine::wgmma_fence();
    multiply_slab(a, b, first == 0 ? 0 : 1);
    if constexpr (S::kSlabs == 2) {  // the fences are where the compiler would put them, and say so
      if (first + 1 < slabs) {
        machine::wgmma_fence();
        multiply_slab(a + kSlabA, b + kSlabB, 1);
      }
      machine::wgmma_fence();
    }
    machine::wgmma_commit();
  };
  multiply_stage(0);
  ready();
#pragma unroll 1
  for (int first = S::kSlabs; first < slabs; first += S::kSlabs) {
    place.advance(S::kStages);
    multiply_stage(first);
    machine::wgmma_wait<kUnderWay<S>>();
    if (first >= S::kSlabs * kUnderWay<S>) release(kUnderWay<S>);
  }
  machine::wgmma_wait<0>();
  machine::wgmma_sums_are_final(sums);
  if constexpr (kSumsRows) machine::wgmma_sums_are_final(row_sums);
#pragma unroll
  for (int ago = kUnderWay<S> - 1; ago >= 0; --ago)
    if (S::kSlabs * ago < slabs) release(ago);
  place.advance(S::kStages);
  worker.ring = place;
}

/// sums = held * the columns' factor of one slab, turned; held: the warpgroup's rows, packed, of the slab's first inner indices, 16 for
/// every four words.
template <class S, class Format, int kWords>
MACHINE_DEVICE void multiply_held_slab(Worker<S>& worker, std::uint32_t (&held)[kWords],
                                       float (&sums)[S::kSums]) {
  const std::uint32_t full = worker.full(), free = worker.free();
  const machine::Panels b{static_cast<std::uint32_t>(machine::uniform(
      static_cast<int>(machine::describe(worker.begin + S::kStageBytes * worker.ring.stage + S::kRowsBytes,
                                         S::kSlabs * kTilePanelBytes)
                           .low)))};
  wait_for_barrier(worker.waiter, WaitFor::kFullStage, full + 8 * worker.ring.stage, worker.ring.parity);
  machine::wgmma_words_are_final(held);
  machine::wgmma_fence();
#pragma unroll
  for (int k = 0; k < kWords / 4; ++k)
    machine::wgmma_held<Format, Factor::kTurned>(sums, held + 4 * k, b + k * machine::kAcross,
                                                 k == 0 ? 0 : 1);
  machine::wgmma_commit();
  machine::wgmma_wait<0>();
  machine::wgmma_sums_are_final(sums);
  if (worker.lane().lane == 0) machine::barrier_arrive(free + 8 * worker.ring.stage);
  worker.ring.advance(S::kStages);
}

/// Rows of a matrix in device memory that a warpgroup stores: from (row, column) of `slice`, as far as the matrix goes.
struct Place {
  const Rows& matrix;
  int slice, row, column, rows_of_matrix, columns_of_matrix;
  const Rows& turned;  ///< in tf32: the turned copy, which has the same slices
};
/// tf32 as products read it, in words. Which sums are which pairs is the same for all formats.
struct Tf32 : machine::Tf32 {
  static constexpr bool kIsBf16 = false;
};
/// Pair `i` of a tile's sums as it enters products.
template <class Format, int kWords>
MACHINE_DEVICE void put_pair(std::uint32_t (&held)[kWords], int i, float x, float y) {
  if constexpr (machine::kHasTf32Factors<Format>) {
    held[2 * i] = machine::float_to_bits(machine::round_tf32(x));
    held[2 * i + 1] = machine::float_to_bits(machine::round_tf32(y));
  } else {
    held[i] = Format::pack(x, y);
  }
}
/// As store_tile(), in tf32: straight from registers. Eight lanes have eight rows of a column, four have eight columns of a row, so
/// both copies are written in whole sectors.
template <bool kWhole, class S, int kWords>
MACHINE_DEVICE void store_values(const Worker<S>& worker, const std::uint32_t (&held)[kWords],
                                 const Place& place) {
  auto* plain = static_cast<std::uint32_t*>(place.matrix.values) + place.slice * place.matrix.slice;
  auto* turned = static_cast<std::uint32_t*>(place.turned.values) + place.slice * place.turned.slice;
#pragma unroll
  for (int j = 0; j < kWords / 4; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = place.row + worker.row_of_tile() + 8 * half,
                column = place.column + 8 * j + worker.lane().first_column();
      if (!kWhole && (row >= place.rows_of_matrix || column >= place.columns_of_matrix)) continue;
      const bool both = kWhole || column + 1 < place.columns_of_matrix;
      const std::uint32_t x = held[4 * j + 2 * half], y = both ? held[4 * j + 2 * half + 1] : 0;
      __stcg(reinterpret_cast<uint2*>(plain + std::int64_t{row} * place.matrix.pitch + column),
             make_uint2(x, y));
      __stcg(turned + std::int64_t{column} * place.turned.pitch + row, x);
      if (both) __stcg(turned + std::int64_t{column + 1} * place.turned.pitch + row, y);
    }
  worker.meet();
}
/// Of values of a tile's columns [8 (kCount / 4)], in the order of sums, the sums over the warpgroup's rows, to their unit.
template <class S, int kCount>
MACHINE_DEVICE void keep_column_sums(const TurnedLayer& layer, const Worker<S>& worker,
                                     const float (&values)[kCount], int first_row, int first_column) {
  auto* of_warps = reinterpret_cast<float*>(worker.memory.staging[worker.warpgroup()]);
  constexpr int kColumns = 2 * kCount;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = values[4 * j + i] + values[4 * j + 2 + i];
#pragma unroll
      for (int distance = 16; distance >= 4; distance /= 2) sum += machine::shuffle_xor(sum, distance);
      if (worker.lane().lane < 4)
        of_warps[worker.lane().warp * kColumns + 8 * j + worker.lane().first_column() + i] = sum;
    }
  worker.meet();
  const int column = worker.thread() % machine::kWarpgroup;
  if (column < kColumns && first_column + column < layer.bias_pitch)
    __stcg(layer.bias_sums + std::int64_t{first_row / layer.bias_unit} * layer.bias_pitch + first_column +
               column,
           (of_warps[column] + of_warps[kColumns + column]) +
               (of_warps[2 * kColumns + column] + of_warps[3 * kColumns + column]));
}
/// Zeros from value `columns` of eight on: what lies behind a matrix's last column is read with it.
MACHINE_DEVICE void keep_columns(uint4& words, int columns) {
  if (columns >= 8) return;
  const auto kept = [&](std::uint32_t word, int first) {
    return columns > first + 1 ? word : columns > first ? word & 0xffffu : 0u;
  };
  words = make_uint4(kept(words.x, 0), kept(words.y, 2), kept(words.z, 4), kept(words.w, 6));
}
/// The warpgroup's 64 rows, staged in shared memory by their warps, to their place in a matrix that begins at `values`: kWords words of a
/// thread. kWhole: they end where the matrix does, or before.
template <bool kWhole, int kWords, class S>
MACHINE_DEVICE void store_staged(const Worker<S>& worker, const machine::Lane& lane, std::uint32_t staging,
                                 void* values, const Place& place) {
  std::uint16_t* matrix = static_cast<std::uint16_t*>(values) + place.slice * place.matrix.slice;
#pragma unroll
  for (int panel = 0; panel < (kWords + 15) / 16; ++panel) {
    constexpr int kPieces = kWords < 16 ? kWords / 2 : 8;  // of 16 bytes of a row
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      const int of_warp = 32 * i + lane.lane, row = 16 * lane.warp + of_warp / kPieces,
                piece = of_warp % kPieces;
      uint4 words = machine::load_shared16(
          staging + panel * kTilePanelBytes +
          static_cast<std::uint32_t>(row * machine::kPanelRowBytes + ((piece ^ (row & 7)) << 4)));
      const int to_row = place.row + kPanel * worker.group() + row,
                to_column = place.column + kPanel * panel + 8 * piece;
      if constexpr (!kWhole) keep_columns(words, place.columns_of_matrix - to_column);
      if (kWhole || (to_row < place.rows_of_matrix && to_column < place.columns_of_matrix))
        __stcg(reinterpret_cast<uint4*>(matrix + std::int64_t{to_row} * place.matrix.pitch + to_column),
               words);
    }
  }
}
/// The same, packed in `held`.
template <bool kWhole, class S, int kWords>
MACHINE_DEVICE void store_packed(const Worker<S>& worker, const std::uint32_t (&held)[kWords],
                                 const Place& place) {
  const machine::Lane lane = worker.lane();
  const std::uint32_t staging = worker.staging();
  machine::warp_sync();
  machine::store_rows<kWords / 4>(staging, held, lane);
  machine::warp_sync();
  store_staged<kWhole, kWords>(worker, lane, staging, place.matrix.values, place);
  worker.meet();
}

template <bool kWhole, class S, int kWords>
MACHINE_DEVICE void store_tile(const Worker<S>& worker, const std::uint32_t (&held)[kWords],
                               const Place& place) {
  if constexpr (S::kTf32)
    store_values<kWhole>(worker, held, place);
  else
    store_packed<kWhole>(worker, held, place);
}

/// With several ranks: what store_tile() has just stored, to the peers' memory. It lies in shared memory yet.
template <bool kWhole, int kWords, class S>
MACHINE_DEVICE void send_tile(const Arguments& a, const Worker<S>& worker, const PeerRows& to,
                              const Place& place) {
  static_assert(!S::kTf32, "no shared memory holds its tiles");
#pragma unroll 1
  for (int peer = 0; peer < a.ranks.peers; ++peer)
    store_staged<kWhole, kWords>(worker, worker.lane(), worker.staging(), to.values[peer], place);
}
/// Behind it.
template <class S>
MACHINE_DEVICE void tell_peers(const Arguments& a, const Worker<S>& worker, const Task& task,
                               int last_signal) {
  worker.meet();
  if (worker.leads()) signal_peers(a, task, worker.waiter.step, last_signal);
}

/// A warpgroup waits for a counter, by the first lane of each warp, and then sees what was written before that was added to.
template <class S>
MACHINE_DEVICE void wait_together(const Arguments& a, const Worker<S>& worker, WaitFor what, const Wait& wait,
                                  const StepPlace& step) {
  if (worker.lane().lane == 0) wait_for_counter<S::kRanked>(worker.waiter, what, a, wait, step.of_launch);
  worker.meet();
}

/// Biases of a thread's columns of the tile.
template <class S>
struct Biases {
  float2 of[S::kColumns / 8];
  MACHINE_DEVICE void load(const LayerArguments& layer, const Task& task, const Worker<S>& worker) {
    const float* from = layer.bias + S::kColumns * task.column + worker.lane().first_column();
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j) of[j] = __ldcg(reinterpret_cast<const float2*>(from + 8 * j));
  }
};

/// A tile of a layer's sums, with its biases, in this team's turn.
template <class S, class Format>
MACHINE_DEVICE void forward_sums(const LayerArguments& layer, const Task& task, Worker<S>& worker,
                                 float (&sums)[S::kSums]) {
  float none[4];
  Biases<S> biases;
  worker.take_turn();
  multiply_slabs<S, Format, Factor::kPlain, Factor::kPlain, false>(worker, machine::uniform(task.slabs), sums,
                                                                   none, [&] {
                                                                     mark(worker, &TaskTimes::first_slab);
                                                                     biases.load(layer, task, worker);
                                                                   });
  worker.pass_turn();
  mark(worker, &TaskTimes::products);
#pragma unroll
  for (int j = 0; j < S::kColumns / 8; ++j) {
    float* z = sums + 4 * j;
    z[0] += biases.of[j].x, z[1] += biases.of[j].y, z[2] += biases.of[j].x, z[3] += biases.of[j].y;
  }
}

}  // namespace headroom::tiled
