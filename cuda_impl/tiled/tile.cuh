// A thread block of cuda-tiled (step.cuh): its shared memory, its list, and what a multiplying thread does for every tile, whatever it
// is of: take its turn, multiply the slabs of a task, store the tile and say so.
#pragma once

#include <cuda_runtime_api.h>

#include "machine/barriers.cuh"
#include "machine/copy.cuh"
#include "machine/formats.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"
#include "tiled/arguments.h"
#include "tiled/list.cuh"
#include "tiled/waits.cuh"

namespace headroom::tiled {

using machine::Factor;
using machine::kTilePanelBytes;
using machine::shared_address;

/// One of kTilings, and what a thread block is made of with it.
template <int kGroupsOfTeam, int kTileColumns, int kTeamsOfBlock>
struct Shape {
  static constexpr Tiling kTiling{kGroupsOfTeam, kTileColumns, kTeamsOfBlock};
  static constexpr int kGroups = kGroupsOfTeam, kColumns = kTileColumns, kTeams = kTeamsOfBlock;
  static constexpr int kRows = kTiling.rows(), kTeam = kTiling.team_threads(),
                       kConsumers = kTiling.consumers();
  static constexpr int kWarpgroups = kGroups * kTeams;
  // Two warps fetch, but registers are handed out, and handed on, by warpgroups.
  static constexpr int kThreads = kConsumers + machine::kWarpgroup;
  static constexpr int kSums = kColumns / 2;   // of a thread
  static constexpr int kPairs = kColumns / 4;  // packed
  static constexpr int kRowPanels = kRows / kPanel, kColumnPanels = kColumns / kPanel;

  // Shared memory.
  static constexpr int kStageBytes = (kRowPanels + kColumnPanels) * kTilePanelBytes;
  static constexpr int kStagingBytes = kColumnPanels * kTilePanelBytes;
  static constexpr int kOnesBytes = 8 * machine::kPanelRowBytes;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kLimit =
      232448 - 1024;  // of a thread block on sm_90, and to begin at a multiple of 1024
  static constexpr int kFitting =
      (kLimit - kWarpgroups * kStagingBytes - kOnesBytes - kBarrierBytes) / kStageBytes;
  static constexpr int kStages = kFitting < 12 ? kFitting : 12;
  static_assert(kStages >= 4 && (kTeams == 1 || kGroups == 1));
};

template <class S>
struct SharedMemory {
  unsigned char ring[S::kStages]
                    [S::kStageBytes];  // a stage: panels of the rows' factor, then of the columns'
  unsigned char staging[S::kWarpgroups][S::kStagingBytes];
  std::uint32_t ones[S::kOnesBytes / 4];  // a factor, in pairs
  std::uint64_t full[S::kStages], free[S::kStages], turn[2];
  float sums[S::kWarpgroups][8];  // of warps
  unsigned char rest[S::kBarrierBytes - (2 * S::kStages + 2) * 8 - S::kWarpgroups * 32];
};

// ---- the multiplying threads

/// A thread of a team: who it is, and where it is in the ring.
template <class S>
struct Worker {
  SharedMemory<S>& memory;
  machine::RingPlace ring;
  std::uint32_t turn;
  Waiter waiter;
  int timed = -1;  // the task at hand, if this thread keeps its times

  MACHINE_DEVICE Worker(const Arguments& a, SharedMemory<S>& shared)
      : memory(shared), turn(static_cast<std::uint32_t>(team() ^ 1)), waiter{a} {}

  // Worked out anew wherever they are asked for: there are no registers to keep them in.
  MACHINE_DEVICE int thread() const { return machine::thread_index_here() % S::kTeam; }  // of the team
  MACHINE_DEVICE int team() const { return S::kTeams == 1 ? 0 : machine::thread_index_here() / S::kTeam; }
  MACHINE_DEVICE int warpgroup() const { return machine::thread_index_here() / machine::kWarpgroup; }
  MACHINE_DEVICE int group() const { return S::kGroups == 1 ? 0 : warpgroup(); }  // warpgroup of the team
  MACHINE_DEVICE machine::Lane lane() const {
    return machine::Lane(machine::thread_index_here() % machine::kWarpgroup);
  }
  MACHINE_DEVICE std::uint32_t staging() const { return shared_address(memory.staging[warpgroup()]); }

  MACHINE_DEVICE int row_of_tile() const {
    return machine::kTileRows * group() + lane().first_row();
  }  // and 8 more
  MACHINE_DEVICE bool leads() const { return machine::thread_index_here() % machine::kWarpgroup == 0; }
  MACHINE_DEVICE void meet() const { machine::named_barrier<machine::kWarpgroup>(1 + warpgroup()); }
  MACHINE_DEVICE void skip(int slabs) {
    ring.stage += slabs;
    while (ring.stage >= S::kStages) ring.stage -= S::kStages, ring.parity ^= 1;
  }
  /// Teams multiply in turn. A team that went ahead would take a stage's last phase for its next one.
  MACHINE_DEVICE void take_turn() {
    if constexpr (S::kTeams == 1) return;
    wait_for_barrier(waiter, WaitFor::kTurn, shared_address(memory.turn) + 8 * team(), turn);
    turn ^= 1;
  }
  /// Lanes that still wait for this turn have to see it before the next one can begin.
  MACHINE_DEVICE void pass_turn() {
    machine::warp_sync();
    if (S::kTeams == 2 && lane().lane == 0)
      machine::barrier_arrive(shared_address(memory.turn) + 8 * (team() ^ 1));
  }
};

template <class S>
MACHINE_DEVICE void mark(const Worker<S>& worker, std::uint64_t TaskTimes::* time) {
  if (worker.timed >= 0) worker.waiter.arguments.times[worker.timed].*time = machine::nanoseconds();
}

/// sums = product over all slabs of a task. With kSumsRows also of the rows' factor with ones: the sums of a bias's gradient. `ready` is
/// called once, when the first slab is there.
template <class S, class Format, Factor kA, Factor kB, bool kSumsRows, int kCount, class Ready>
MACHINE_DEVICE void multiply_slabs(Worker<S>& worker, int slabs, float (&sums)[kCount], float (&row_sums)[4],
                                   const Ready& ready) {
  constexpr int kStepA = kA == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr int kStepB = kB == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr std::uint32_t kNextPanel = kB == Factor::kPlain ? 16 : kTilePanelBytes;
  const std::uint32_t ring = shared_address(worker.memory.ring);
  // Descriptions are the same for the whole warp, and the compiler shall know.
  const auto described = [](std::uint32_t address, std::uint32_t panel_stride) {
    return machine::Panels{static_cast<std::uint32_t>(
        machine::uniform(static_cast<int>(machine::describe(address, panel_stride).low)))};
  };
  const machine::Panels a_begin = described(ring + worker.group() * kTilePanelBytes, 16);
  const machine::Panels b_begin = described(ring + S::kRowPanels * kTilePanelBytes, kNextPanel);
  const machine::Panels ones = described(shared_address(worker.memory.ones), 16);
  const std::uint32_t full = shared_address(worker.memory.full), free = shared_address(worker.memory.free);
  const bool releases = worker.lane().lane == 0;  // a stage, for its warp
  std::uint32_t before = 0;
  const auto multiply = [&](bool first) {
    wait_for_barrier(worker.waiter, WaitFor::kFullStage, full + 8 * worker.ring.stage, worker.ring.parity);
    if (first) ready();
    const int stage = worker.ring.stage * (S::kStageBytes >> 4);
    const machine::Panels a = a_begin + stage, b = b_begin + stage;
    machine::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSlab / 16; ++k) {
      const int accumulate = first && k == 0 ? 0 : 1;
      machine::wgmma_shared<Format, kA, kB>(sums, a + k * kStepA, b + k * kStepB, accumulate);
      if constexpr (kSumsRows)
        machine::wgmma_shared<Format, kA, Factor::kPlain>(row_sums, a + k * kStepA, ones, accumulate);
    }
    machine::wgmma_commit();
    if (!first) {
      machine::wgmma_wait<1>();
      if (releases) machine::barrier_arrive(before);
    }
    before = free + 8 * worker.ring.stage;
    worker.ring.advance(S::kStages);
  };
  multiply(true);
#pragma unroll 1
  for (int slab = 1; slab < slabs; ++slab) multiply(false);
  machine::wgmma_wait<0>();
  machine::wgmma_sums_are_final(sums);
  if constexpr (kSumsRows) machine::wgmma_sums_are_final(row_sums);
  if (releases) machine::barrier_arrive(before);
}

/// sums = held * the columns' factor of one slab, turned; held: the warpgroup's rows, packed, of the slab's first inner indices, 16 for
/// every four words.
template <class S, class Format, int kWords>
MACHINE_DEVICE void multiply_held_slab(Worker<S>& worker, std::uint32_t (&held)[kWords],
                                       float (&sums)[S::kSums]) {
  const std::uint32_t full = shared_address(worker.memory.full), free = shared_address(worker.memory.free);
  const machine::Panels b{static_cast<std::uint32_t>(machine::uniform(
      static_cast<int>(machine::describe(shared_address(worker.memory.ring[worker.ring.stage]) +
                                             S::kRowPanels * kTilePanelBytes,
                                         kTilePanelBytes)
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
  const CUtensorMap& map;
  int slice, row, column, columns_of_matrix;
};
/// The warpgroup's 64 rows, packed in `held`, to their place.
template <class S, int kWords>
MACHINE_DEVICE void store_tile(const Worker<S>& worker, const std::uint32_t (&held)[kWords],
                               const Place& place) {
  worker.meet();  // the staging is free
  machine::store_rows<kWords / 4>(worker.staging(), held, worker.lane());
  machine::fence_proxy_async_shared();
  worker.meet();
  if (!worker.leads()) return;
#pragma unroll
  for (int panel = 0; panel < (kWords + 15) / 16; ++panel)
    if (place.column + kPanel * panel < place.columns_of_matrix)
      machine::tensor_store(&place.map, place.column + kPanel * panel, place.row + kPanel * worker.group(),
                            place.slice, worker.staging() + panel * kTilePanelBytes);
  machine::bulk_store_commit();
  machine::bulk_store_wait();
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

}  // namespace headroom::tiled
