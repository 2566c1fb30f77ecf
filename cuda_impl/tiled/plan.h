// What host and kernel of cuda-tiled agree on: tiles, the tasks that make them, and the counters by which tasks wait for each other.
//
// A step is a set of tasks, each of which makes one tile (a rectangle of a matrix) of one product. Every multiprocessor has a list of
// tasks and works through it, step after step. When a tile lies in device memory its task adds to counters; a task waits until the
// counters of what it reads say that all of it is there. Counters only grow during a launch: a task waits for a count a step, times
// the steps so far. So nothing is ever reset between steps, and no two multiprocessors need to be in the same step.
#pragma once

#include <cstdint>

#include "core/workload.h"
#include "machine/panels.h"

#ifndef HEADROOM_COMPILED_ALONE
#include <vector>
#endif

#ifdef __CUDACC__
#define TILED_BOTH __host__ __device__ constexpr
#else
#define TILED_BOTH constexpr
#endif

namespace headroom::tiled {

/// What a warpgroup makes of a tile, and the columns of a panel: a matrix moves in panels of 64 rows by 64 columns.
inline constexpr int kPanel = 64;
/// Inner indices of a product that tasks count in: of the wgmma kernel in tf32 half as many (Tiling::slab), so that a line of shared memory has
/// 128 bytes there as well.
inline constexpr int kSlab = 64, kTf32Slab = 32;
/// Outputs of the last layer up to which the loss is made in the registers that hold them.
inline constexpr int kOutputsOfTile = 16;
/// Columns of a task that updates weights from parts: few, so that many multiprocessors share them.
inline constexpr int kColumnsOfUpdate = 16;
/// Rows of a task of the loss where there are more: few, so that many multiprocessors share them.
inline constexpr int kRowsOfLoss = 8;

/// The tile of every product, and who makes it: constants of a kernel.
struct Tiling {
  int groups;  ///< warpgroups of a team, each of which has `group_rows` rows and tells counters when it is done
  int columns;  ///< 64 or 128; of the portable kernel also 32 and 16
  int teams;    ///< with two, one multiplies while the other stores its tile
  int group_rows = kPanel;
  /// Of weight gradients, where their tiles are others: only the portable kernel's, which has one group and one team.
  int own_weight_rows = 0, own_weight_columns = 0;
  bool portable = false;
  int slabs_of_stage =
      1;  ///< that are fetched and multiplied at once, a stage of the ring; of the portable kernel its own matter
  int slab = kSlab;

  TILED_BOTH int rows() const { return group_rows * groups; }
  constexpr int weight_rows() const { return own_weight_rows > 0 ? own_weight_rows : rows(); }
  constexpr int weight_columns() const { return own_weight_columns > 0 ? own_weight_columns : columns; }
  constexpr int team_threads() const { return 128 * groups; }
  constexpr int consumers() const { return team_threads() * teams; }
  bool operator==(const Tiling&) const = default;
};
constexpr Tiling wgmma_tiling(int groups, int columns, int teams, int slabs_of_stage, int slab = kSlab) {
  return {
      .groups = groups, .columns = columns, .teams = teams, .slabs_of_stage = slabs_of_stage, .slab = slab};
}
/// With larger tiles stages of two slabs would be too few: 64x128 took 57 us instead of 50 at width 1024 and batch 1024.
inline constexpr Tiling kTilings[] = {wgmma_tiling(1, 64, 2, 2), wgmma_tiling(1, 128, 2, 1),
                                      wgmma_tiling(2, 128, 1, 1)};
inline constexpr Tiling kTf32Tilings[] = {wgmma_tiling(1, 64, 2, 2, kTf32Slab),
                                          wgmma_tiling(1, 128, 2, 1, kTf32Slab),
                                          wgmma_tiling(2, 128, 1, 1, kTf32Slab)};

constexpr Tiling portable_tiling(int rows, int columns, int weight_rows, int weight_columns) {
  return {.groups = 1,
          .columns = columns,
          .teams = 1,
          .group_rows = rows,
          .own_weight_rows = weight_rows,
          .own_weight_columns = weight_columns,
          .portable = true};
}
/// Those of the kernel for every GPU, by the tensor cores. With small tiles a small batch keeps more multiprocessors busy; its weight gradients
/// have short products, and much to do behind them.
inline constexpr Tiling kPortableTilings[] = {
    portable_tiling(32, 32, 64, 64), portable_tiling(64, 64, 64, 64), portable_tiling(128, 64, 128, 64),
    portable_tiling(128, 128, 128, 128)};
/// Those of plain multiply-adds, which are slow: with the smallest ones more multiprocessors share a product.
inline constexpr Tiling kPlainTilings[] = {portable_tiling(32, 16, 64, 64), portable_tiling(32, 32, 64, 64),
                                           portable_tiling(64, 64, 64, 64), portable_tiling(128, 64, 128, 64),
                                           portable_tiling(128, 128, 128, 128)};
/// Stages of its ring, at most: as many as fit.
inline constexpr int kMostStages = 8;

#ifndef HEADROOM_COMPILED_ALONE
/// The network whose step is planned.
struct Network {
  std::vector<int> widths;  ///< inputs, hidden widths, outputs
  int batch = 0;            ///< of a rank
  int ranks = 1;            ///< GPUs that train it together, all by the same lists

  /// Rows of a step, over which weight gradients sum.
  int joined() const { return ranks * batch; }

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  int in(int layer) const { return widths[static_cast<std::size_t>(layer)]; }
  int out(int layer) const { return widths[static_cast<std::size_t>(layer) + 1]; }
};
#endif

enum class Form : std::int16_t {
  kForward,       ///< of a hidden layer: its activations
  kOutputLoss,    ///< of the last layer, all outputs in one tile: the loss and its gradient
  kOutputs,       ///< of the last layer: outputs
  kLossGradient,  ///< of the last hidden layer: the gradient of its sums, with outputs and loss on the way
  kLoss,  ///< of kRowsOfLoss rows of outputs for each group, `column` counts them: the loss and its gradient
  kInputGradient,       ///< of a hidden layer: the gradient of its sums
  kWeightGradient,      ///< of a layer: its weights, updated
  kWeightGradientPart,  ///< of a layer: sums over a part of the batch
  kUpdate,              ///< of a layer: its weights, updated, from the sums of all parts
  kPause,               ///< nothing
};
TILED_BOTH std::uint32_t bit_of(Form form) { return 1u << static_cast<int>(form); }
inline constexpr std::uint32_t kAllForms = 2 * bit_of(Form::kPause) - 1;

/// What a kernel is compiled for, beside its precision and its tiles: all constants of its code. Networks that agree in them share it.
struct KernelRules {
  Activation activation = Activation::kRelu;
  Loss loss = Loss::kCrossEntropy;
  std::int32_t slots = 0;
  std::uint32_t forms = kAllForms;  ///< bits of those that tasks may have
  /// The batch and the hidden widths are multiples of the tiles', so that what is stored of them needs no look at edges. Only the wgmma
  /// kernel makes use of it.
  bool whole_tiles = false;
  bool timed = true;    ///< it can tell when its tasks were done (Arguments::times)
  bool ranked = false;  ///< one of several ranks (ranks.cuh)

  TILED_BOTH bool may_have(Form form) const { return (forms & bit_of(form)) != 0; }
  bool operator==(const KernelRules&) const = default;
};
struct KernelShape {
  Precision precision;
  Tiling tiling;
  KernelRules rules;
};

/// Counters of `counter` have to say `need` times the steps begun so far; those of the step before if `of_last_step`.
struct Wait {
  std::int32_t counter = -1;  ///< -1: nothing is waited for
  std::uint32_t need : 31 = 0;
  std::uint32_t of_last_step : 1 = 0;
};

/// Of a task's signals, those from this one on are added to at all ranks.
inline constexpr int kFirstOfAllRanks = 1;
/// With several ranks such a counter is there twice, and steps, counted from the first launch on, use one or the other in turn (ranks.cuh says
/// why). So it has to say `need` times the steps that have used it.
TILED_BOTH int copy_of_counter(std::uint64_t step) { return static_cast<int>(step % 2); }
TILED_BOTH std::uint32_t steps_of_copy(std::uint64_t step) {
  return static_cast<std::uint32_t>(step / 2 + 1);
}
/// One tile. A task of a product fetches two factors, one for the tile's rows and one for its columns, each behind its own wait.
struct alignas(16) Task {
  Form form = Form::kPause;
  std::int16_t layer = 0;             ///< whose activations, gradient or weights it makes
  std::uint16_t row = 0, column = 0;  ///< of the tile, counted in tiles
  std::uint16_t first_slab = 0;       ///< of a part; otherwise 0
  std::uint16_t part = 0;   ///< of a weight gradient; of an update, which kColumnsOfUpdate of the tile
  std::uint16_t slabs = 0;  ///< of the product's inner index
  std::uint16_t stages_of_others = 0;  ///< that pass before this team's next task
  Wait rows, columns;
  /// Counters that every group of the team adds 1 to. The first one is this rank's alone; to the others each rank adds, at all ranks.
  std::int32_t signals[3] = {-1, -1, -1};
  std::int32_t order = 0;  ///< of the step's tasks, each of which comes after what it waits for
};
static_assert(sizeof(Task) == 48);

TILED_BOTH int divide_up(std::int64_t count, int by) { return static_cast<int>((count + by - 1) / by); }

/// Stages of the wgmma kernel's ring that a task takes. With the loss's gradient, the last is the second product's.
TILED_BOTH int stages_of(const Task& task, int slabs_of_stage) {
  const int second = task.form == Form::kLossGradient ? 1 : 0;
  return divide_up(task.slabs - second, slabs_of_stage) + second;
}

// ---- shared memory, in bytes

/// What a thread block of the wgmma kernel has: as many stages as fit on sm_90, the tiles of its warpgroups on their way out, and the rest.
struct WgmmaMemory {
  int rows_bytes, columns_bytes;  ///< of a stage
  int staging_bytes;              ///< of a warpgroup
  int stages;
  int all;  ///< with what it takes to begin at a multiple of kAlignment

  static constexpr int kOnesBytes = 8 * machine::kPanelRowBytes, kBarrierBytes = 1024, kAlignment = 1024;
  constexpr int stage_bytes() const { return rows_bytes + columns_bytes; }
};
constexpr WgmmaMemory wgmma_memory(const Tiling& tiling) {
  constexpr int kLimit = 232448;  // of a thread block on sm_90
  constexpr int kEnough = 12;
  WgmmaMemory memory{};
  const int panels = tiling.columns / kPanel, warpgroups = tiling.groups * tiling.teams;
  memory.rows_bytes = tiling.groups * tiling.slabs_of_stage * machine::kTilePanelBytes;
  memory.columns_bytes = panels * tiling.slabs_of_stage * machine::kTilePanelBytes;
  // tf32 goes out from registers; what is staged are sums of columns, of each warp.
  memory.staging_bytes =
      tiling.slab == kTf32Slab ? 4 * tiling.columns * 4 : panels * machine::kTilePanelBytes;
  const int rest = warpgroups * memory.staging_bytes + WgmmaMemory::kOnesBytes + WgmmaMemory::kBarrierBytes +
                   WgmmaMemory::kAlignment;
  const int fitting = (kLimit - rest) / memory.stage_bytes();
  memory.stages = fitting < kEnough ? fitting : kEnough;
  memory.all = memory.stages * memory.stage_bytes() + rest;
  return memory;
}

/// Of the portable kernel's precisions: how a stage's lines lie apart, and how a product is shared out.
struct PortableNumbers {
  int value_bytes;
  int inner_of_step;
  int most_groups;    ///< of warps that share out an inner index
  int apart;          ///< bytes between turned lines
  int apart_of_four;  ///< behind every four plain lines
  int least_stage;    ///< bytes of a stage: of small tiles as many slabs as fit
  int band_pad;       ///< values behind a row of a band
};
constexpr PortableNumbers portable_numbers(Precision precision) {
  if (precision == Precision::kFp32)
    return {.value_bytes = 4,
            .inner_of_step = 4,
            .most_groups = 8,
            .apart = 0,
            .apart_of_four = 16,
            .least_stage = 33792,
            .band_pad = 4};
  const int bytes = precision == Precision::kTf32 ? 4 : 2;
  return {.value_bytes = bytes,
          .inner_of_step = 32 / bytes,
          .most_groups = 4,
          .apart = bytes == 4 ? 32 : 0,
          .apart_of_four = 0,
          .least_stage = 0,
          .band_pad = 8};
}

/// How a tile's product is shared out among eight warps: warps beside each other have parts of the tile, groups of them every so many
/// steps of the inner index. Sums are handed on in bands.
struct PortableSplit {
  int least_groups, groups, warp_rows, warp_columns, bands, band_rows, band_pitch;
  constexpr int staged_floats() const { return groups * band_rows * band_pitch; }
};
constexpr PortableSplit portable_split(const PortableNumbers& numbers, int rows, int columns) {
  PortableSplit split{};
  split.least_groups = 8 / ((rows < 64 ? 1 : rows / 64) * (columns < 32 ? 1 : columns / 32));
  split.groups = split.least_groups < numbers.most_groups ? split.least_groups : numbers.most_groups;
  split.warp_rows = (rows < 64 ? rows : 64) * split.groups / split.least_groups;
  split.warp_columns = columns < 32 ? columns : 32;
  split.bands = split.warp_rows / 16;
  split.band_rows = rows / split.bands;
  split.band_pitch = columns + numbers.band_pad;  // neighbouring rows in other banks
  return split;
}

constexpr int larger(int a, int b) { return a < b ? b : a; }

/// What a thread block of the portable kernel has: a ring of stages, and what is beside it.
struct PortableMemory {
  int stage_bytes;
  int staged_floats;    ///< of a band, of each group of warps
  int beside_the_ring;  ///< with what it takes to begin at a multiple of kAlignment

  static constexpr int kAlignment = 128, kOutputsPitch = kOutputsOfTile + 4;
};
/// Of `lines` lines of a factor, turned or not.
constexpr int portable_part_bytes(const PortableNumbers& numbers, int lines) {
  return 128 * lines + 128 / numbers.value_bytes * numbers.apart + lines / 4 * numbers.apart_of_four;
}
constexpr PortableMemory portable_memory(Precision precision, const Tiling& tiling) {
  const PortableNumbers numbers = portable_numbers(precision);
  const auto stage_bytes = [&](int rows, int columns) {
    const int slab = portable_part_bytes(numbers, rows) + portable_part_bytes(numbers, columns);
    return larger(slab, numbers.least_stage / slab * slab);
  };
  PortableMemory memory{};
  memory.stage_bytes = larger(stage_bytes(tiling.rows(), tiling.columns),
                              stage_bytes(tiling.weight_rows(), tiling.weight_columns()));
  const PortableSplit weights = portable_split(numbers, tiling.weight_rows(), tiling.weight_columns());
  memory.staged_floats =
      larger(larger(portable_split(numbers, tiling.rows(), kOutputsOfTile).staged_floats(),
                    portable_split(numbers, tiling.rows(), tiling.columns).staged_floats()),
             weights.staged_floats());
  const int floats = memory.staged_floats + tiling.rows() * PortableMemory::kOutputsPitch +
                     weights.groups * tiling.weight_rows() + 8;
  const int bytes = 4 * floats + 16 * kMostStages;  // two barriers a stage
  memory.beside_the_ring = (bytes + 127) / 128 * 128 + PortableMemory::kAlignment;
  return memory;
}

/// Threads of a thread block: of the wgmma kernel two warps fetch, but registers are handed out, and handed on, by warpgroups.
constexpr int threads_of(const Tiling& tiling) {
  return (tiling.portable ? 256 : tiling.consumers()) + machine::kWarpgroup;
}

/// Where in a layer's weights, kept as the registers that sum up their gradients hold them, element (row, column) lies: tile by tile,
/// of which each thread has four values for every eight columns (machine/wgmma.cuh), a thread's beside the next one's. So a warp
/// reads and writes whole lines, and always the same thread the same weights.
TILED_BOTH std::int64_t place_of_weight(int tile_rows, int tile_columns, int column_tiles, int row,
                                        int column) {
  const std::int64_t tile = std::int64_t{row / tile_rows} * column_tiles + column / tile_columns;
  const int in_row = row % tile_rows, in_column = column % tile_columns;
  const int thread = in_row / 16 * 32 + in_row % 8 * 4 + in_column % 8 / 2;
  const int of_four = in_row / 8 % 2 * 2 + in_column % 2;
  return ((tile * (tile_columns / 8) + in_column / 8) * (2 * tile_rows) + thread) * 4 + of_four;
}

}  // namespace headroom::tiled
