// A thread block of cuda-tiled (step.cuh): its shared memory, its list, and what a multiplying thread does for every tile, whatever it
// is of: take its turn, multiply the slabs of a task, store the tile and say so.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>

#include "machine/barriers.cuh"
#include "machine/copy.cuh"
#include "machine/formats.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"
#include "tiled/arguments.h"
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

/// Where in its list a thread is, and the next task, which is asked for a task ahead.
class List {
 public:
  MACHINE_DEVICE List(const Arguments& a, int first, int stride)
      : tasks_(a.tasks),
        begin_(a.first_task[machine::block_index()]),
        end_(a.first_task[machine::block_index() + 1]) {
    stride_ = stride;
    begin_ += first;
    at_ = begin_;
    if (at_ < end_) load(at_);
  }
  MACHINE_DEVICE bool empty() const { return begin_ >= end_; }
  MACHINE_DEVICE int index() const { return at_; }  // of the task that take() gave
  /// The next task of this step; the one behind it, or the first again, is on its way.
  MACHINE_DEVICE Task take() {
    Task task;
    memcpy(&task, words_, sizeof task);
    at_ = next_;
    const int following = at_ + stride_;
    next_ = following < end_ ? following : begin_;
    load(next_);
    return task;
  }
  MACHINE_DEVICE bool step_ends() const { return next_ == begin_; }

 private:
  MACHINE_DEVICE void load(int index) {
    next_ = index;
    const auto* words = reinterpret_cast<const uint4*>(tasks_ + index);
#pragma unroll
    for (int i = 0; i < 3; ++i) words_[i] = machine::load_constant16(words + i);
  }
  const Task* tasks_;
  int begin_, end_, stride_, at_, next_ = 0;
  uint4 words_[3];
};

/// The steps of a launch, and what changes from one to the next.
struct StepPlace {
  int of_launch = 0, parity, batch;
  MACHINE_DEVICE explicit StepPlace(const Arguments& a)
      : parity(a.parity), batch(static_cast<int>(a.first_step % a.batches)) {}
  MACHINE_DEVICE void advance(const Arguments& a) {
    ++of_launch;
    parity ^= 1;
    if (++batch == a.batches) batch = 0;
  }
};

/// Stamps `time` if the launch keeps times.
MACHINE_DEVICE void mark(std::uint64_t& time, const Arguments& a) {
  if (a.times != nullptr) time = machine::nanoseconds();
}

// ---- the multiplying threads

/// A thread of a team: who it is, and where it is in the ring.
template <class S>
struct Worker {
  int thread, team, warpgroup, group;  // thread of the team; warpgroup of the block, and of the team
  machine::Lane lane;                  // of the warpgroup
  std::uint32_t staging;
  SharedMemory<S>& memory;
  machine::RingPlace ring;
  std::uint32_t turn;
  Waiter waiter;

  MACHINE_DEVICE Worker(const Arguments& a, SharedMemory<S>& shared)
      : thread(machine::thread_index() % S::kTeam),
        team(machine::thread_index() / S::kTeam),
        warpgroup(machine::thread_index() / machine::kWarpgroup),
        group(thread / machine::kWarpgroup),
        lane(thread % machine::kWarpgroup),
        staging(shared_address(shared.staging[machine::uniform(warpgroup)])),
        memory(shared),
        turn(static_cast<std::uint32_t>(team ^ 1)),
        waiter{a.report, a.wait_nanoseconds, 0} {}

  MACHINE_DEVICE int row_of_tile() const {
    return machine::kTileRows * group + lane.first_row();
  }  // and 8 more
  MACHINE_DEVICE bool leads() const { return thread % machine::kWarpgroup == 0; }
  MACHINE_DEVICE void meet() const { machine::named_barrier<machine::kWarpgroup>(1 + warpgroup); }
  MACHINE_DEVICE void skip(int slabs) {
    ring.stage += slabs;
    while (ring.stage >= S::kStages) ring.stage -= S::kStages, ring.parity ^= 1;
  }
  /// Teams multiply in turn. A team that went ahead would take a stage's last phase for its next one.
  MACHINE_DEVICE void take_turn() {
    if constexpr (S::kTeams == 1) return;
    wait_for_barrier(waiter, WaitFor::kTurn, shared_address(memory.turn) + 8 * team, turn);
    turn ^= 1;
  }
  MACHINE_DEVICE void pass_turn() {
    if (S::kTeams == 2 && lane.lane == 0)
      machine::barrier_arrive(shared_address(memory.turn) + 8 * (team ^ 1));
  }
};

/// sums = product over all slabs of a task. With kSumsRows also of the rows' factor with ones: the sums of a bias's gradient. `ready` is
/// called once, when the first slab is there.
template <class S, class Format, Factor kA, Factor kB, bool kSumsRows, class Ready>
MACHINE_DEVICE void multiply_slabs(Worker<S>& worker, int slabs, float (&sums)[S::kSums],
                                   float (&row_sums)[4], const Ready& ready) {
  constexpr int kStepA = kA == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr int kStepB = kB == Factor::kPlain ? machine::kAlong : machine::kAcross;
  constexpr std::uint32_t kNextPanel = kB == Factor::kPlain ? 16 : kTilePanelBytes;
  const std::uint32_t ring = shared_address(worker.memory.ring);
  // Descriptions are the same for the whole warp, and the compiler shall know.
  const auto described = [](std::uint32_t address, std::uint32_t panel_stride) {
    return machine::Panels{static_cast<std::uint32_t>(
        machine::uniform(static_cast<int>(machine::describe(address, panel_stride).low)))};
  };
  const machine::Panels a_begin = described(ring + worker.group * kTilePanelBytes, 16);
  const machine::Panels b_begin = described(ring + S::kRowPanels * kTilePanelBytes, kNextPanel);
  const machine::Panels ones = described(shared_address(worker.memory.ones), 16);
  const std::uint32_t full = shared_address(worker.memory.full), free = shared_address(worker.memory.free);
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
      if (worker.lane.lane == 0) machine::barrier_arrive(before);
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
  if (worker.lane.lane == 0) machine::barrier_arrive(before);
}

/// This warpgroup is done with its part of the task: what its threads have written, and what the copy engine has, is there for all
/// who see the counters.
template <class S>
MACHINE_DEVICE void signal(const Arguments& a, const Task& task) {
  machine::fence_acq_rel_gpu();
#pragma unroll
  for (const std::int32_t counter : task.signals)
    if (counter >= 0) machine::add_relaxed_gpu(a.counters + std::int64_t{kCounterStride} * counter, 1u);
}

/// The warpgroup's 64 rows, packed, to `map`, of which the tile begins at (row, column) of `slice`.
template <class S>
MACHINE_DEVICE void store_tile(const Arguments& a, const Task& task, const Worker<S>& worker,
                               const std::uint32_t (&held)[S::kPairs], const CUtensorMap& map, int slice,
                               int row, int column, int columns_of_matrix) {
  worker.meet();  // the staging is free
  machine::store_rows<S::kColumns / 16>(worker.staging, held, worker.lane);
  machine::fence_proxy_async_shared();
  worker.meet();
  if (!worker.leads()) return;
#pragma unroll
  for (int panel = 0; panel < S::kColumnPanels; ++panel)
    if (column + kPanel * panel < columns_of_matrix)
      machine::tensor_store(&map, column + kPanel * panel, row + kPanel * worker.group, slice,
                            worker.staging + panel * kTilePanelBytes);
  machine::bulk_store_commit();
  machine::bulk_store_wait();
  signal<S>(a, task);
}

/// Biases of a thread's columns of the tile.
template <class S>
struct Biases {
  float2 of[S::kColumns / 8];
  MACHINE_DEVICE void load(const LayerArguments& layer, const Task& task, const Worker<S>& worker) {
    const float* from = layer.bias + S::kColumns * task.column + worker.lane.first_column();
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j) of[j] = __ldcg(reinterpret_cast<const float2*>(from + 8 * j));
  }
};

}  // namespace headroom::tiled
