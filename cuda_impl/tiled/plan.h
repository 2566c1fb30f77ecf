// What host and kernel of cuda-tiled agree on: tiles, the tasks that make them, and the counters by which tasks wait for each other.
//
// A step is a set of tasks, each of which makes one tile (a rectangle of a matrix) of one product. Every multiprocessor has a list of
// tasks and works through it, step after step. When a tile lies in device memory its task adds to counters; a task waits until the
// counters of what it reads say that all of it is there. Counters only grow during a launch: a task waits for a count a step, times
// the steps so far. So nothing is ever reset between steps, and no two multiprocessors need to be in the same step.
#pragma once

#include <cstdint>
#include <vector>

#ifdef __CUDACC__
#define TILED_BOTH __host__ __device__ constexpr
#else
#define TILED_BOTH constexpr
#endif

namespace headroom::tiled {

/// What a warpgroup makes of a tile, and the columns of a panel: a matrix moves in panels of 64 rows by 64 columns.
inline constexpr int kPanel = 64;
/// Inner indices of a product that tasks count in.
inline constexpr int kSlab = 64;
/// Outputs of the last layer up to which the loss is made in the registers that hold them.
inline constexpr int kOutputsOfTile = 16;
/// Columns of a task that updates weights from parts: few, so that many multiprocessors share them.
inline constexpr int kColumnsOfUpdate = 16;
/// Rows of a task of the loss where there are more: few, so that many multiprocessors share them.
inline constexpr int kRowsOfLoss = 8;

/// The tile of every product, and who makes it. One kernel is compiled for each.
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

  TILED_BOTH int rows() const { return group_rows * groups; }
  constexpr int weight_rows() const { return own_weight_rows > 0 ? own_weight_rows : rows(); }
  constexpr int weight_columns() const { return own_weight_columns > 0 ? own_weight_columns : columns; }
  constexpr int team_threads() const { return 128 * groups; }
  constexpr int consumers() const { return team_threads() * teams; }
  bool operator==(const Tiling&) const = default;
};
constexpr Tiling wgmma_tiling(int groups, int columns, int teams, int slabs_of_stage) {
  return {.groups = groups, .columns = columns, .teams = teams, .slabs_of_stage = slabs_of_stage};
}
/// With larger tiles stages of two slabs would be too few: 64x128 took 57 us instead of 50 at width 1024 and batch 1024.
inline constexpr Tiling kTilings[] = {wgmma_tiling(1, 64, 2, 2), wgmma_tiling(1, 128, 2, 1),
                                      wgmma_tiling(2, 128, 1, 1)};

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

/// Whether there is a kernel: the functions of other activations than ReLU, for every value a thread holds, are most of what a compiler
/// has to do, so they have the smallest tile and the largest one alone.
constexpr bool has_kernel(const Tiling& tiling, bool relu) {
  return relu || tiling.portable || tiling != kTilings[1];
}

/// The network whose step is planned.
struct Network {
  std::vector<int> widths;  ///< inputs, hidden widths, outputs
  int batch = 0;

  int layers() const { return static_cast<int>(widths.size()) - 1; }
  int in(int layer) const { return widths[static_cast<std::size_t>(layer)]; }
  int out(int layer) const { return widths[static_cast<std::size_t>(layer) + 1]; }
};

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

/// Counters of `counter` have to say `need` times the steps begun so far; those of the step before if `of_last_step`.
struct Wait {
  std::int32_t counter = -1;  ///< -1: nothing is waited for
  std::uint32_t need : 31 = 0;
  std::uint32_t of_last_step : 1 = 0;
};

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
  std::int32_t signals[3] = {-1, -1, -1};  ///< counters that every group of the team adds 1 to
  std::int32_t order = 0;  ///< of the step's tasks, each of which comes after what it waits for
};
static_assert(sizeof(Task) == 48);

TILED_BOTH int divide_up(std::int64_t count, int by) { return static_cast<int>((count + by - 1) / by); }

/// Stages of the wgmma kernel's ring that a task takes. With the loss's gradient, the last is the second product's.
TILED_BOTH int stages_of(const Task& task, int slabs_of_stage) {
  const int second = task.form == Form::kLossGradient ? 1 : 0;
  return divide_up(task.slabs - second, slabs_of_stage) + second;
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
