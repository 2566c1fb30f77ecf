// Who makes which tile of a wide product and where everything lies, as plain functions that tests can call without
// a GPU.
//
// A unit is one tile over one part of the inner index, or, with clusters, the tiles of a cluster: one below the
// other, so that they share the columns' factor. Clusters take units in turn. Units that run at the same time should
// read the same rows and columns of the factors, so the tiles are numbered down bands of 16 tiles: 132
// multiprocessors then work on about 16 x 8 tiles, 2048 x 2048 elements.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define WIDE_BOTH __host__ __device__ constexpr
#else
#define WIDE_BOTH constexpr
#endif

// 1 or 2 blocks in a cluster; a compile definition, to measure one against the other.
#ifndef HEADROOM_WIDE_CLUSTER
#define HEADROOM_WIDE_CLUSTER 2
#endif

namespace headroom::layered {

inline constexpr int kWideRows = 128, kWideColumns = 256, kWideInner = 64;  // a tile, and a slab of its walk
inline constexpr int kWideCluster = HEADROOM_WIDE_CLUSTER;
inline constexpr int kWideBand = 16 / kWideCluster;  // units from top to bottom of a band
inline constexpr int kWideConsumers = 256;           // threads that hold a tile's sums
static_assert(kWideCluster == 1 || kWideCluster == 2);

/// A block: its threads, and its shared memory from the beginning.
struct Wide {
  static constexpr int kStages = 4;
  static constexpr int kConsumerWarps = kWideConsumers / 32;
  // Nine warps would do, but registers are handed out, and handed on, by warpgroups: with the loading one as a whole
  // warpgroup that gives up its own, a multiplying thread has room for its sums and for 64 masters.
  static constexpr int kThreads = kWideConsumers + 128;
  static constexpr int kConsumerRegisters = 232, kLoaderRegisters = 40;
  static constexpr int kRowBytes = 128;
  static constexpr int kFetchBytes = 128 * kRowBytes;         // 128 rows, or 128 columns in two panels
  static constexpr int kPanelBytes = kWideInner * kRowBytes;  // a panel of a turned factor
  static constexpr int kStageBytes = 3 * kFetchBytes;         // the rows' factor, then the columns'
  static constexpr int kResultBytes = 16 * kRowBytes;         // 16 rows of 64 columns, two for each warp
  static constexpr int kOnesBytes = 8 * kRowBytes;
  // Where everything begins; the ring at 0:
  static constexpr int kResults = kStages * kStageBytes;
  static constexpr int kOnes = kResults + 2 * kConsumerWarps * kResultBytes;
  static constexpr int kBarriers = kOnes + kOnesBytes;
  static constexpr int kSharedBytes = kBarriers + 2 * 8 * kStages;
  static_assert(kSharedBytes <= 227 * 1024);
};
/// Columns of a tile of a weight gradient: fewer where that leaves less of the last tile over. 784 columns are 3.9
/// tiles of 200, and 3.1 of 256.
inline constexpr int kNarrowerColumns = 200;
WIDE_BOTH int gradient_columns(std::int64_t columns) {
  const auto made = [&](int tile) { return (columns + tile - 1) / tile * tile; };
  return made(kNarrowerColumns) < made(kWideColumns) ? kNarrowerColumns : kWideColumns;
}

struct WideWalk {
  int rows;        // units from top to bottom
  int columns;     // tiles from left to right
  int slabs;       // of kWideInner inner indices
  int parts;       // of the walk along them
  int part_slabs;  // in each part but the last, which is not empty
};

WIDE_BOTH WideWalk wide_walk(std::int64_t rows, std::int64_t columns, std::int64_t inner, int parts,
                             int tile_columns = kWideColumns) {
  const auto count = [](std::int64_t extent, std::int64_t size) {
    return static_cast<int>((extent + size - 1) / size);
  };
  WideWalk walk{};
  walk.rows = count(rows, kWideRows * kWideCluster);
  walk.columns = count(columns, tile_columns);
  walk.slabs = count(inner, kWideInner);
  walk.part_slabs = count(walk.slabs, parts);
  walk.parts = count(walk.slabs, walk.part_slabs);
  return walk;
}
WIDE_BOTH int wide_units(const WideWalk& walk) { return walk.rows * walk.columns * walk.parts; }

struct WideUnit {
  int row, column;            // row: in units, kWideCluster tiles each
  int part;                   // of the inner index,
  int first_slab, slabs_end;  // its slabs
};

WIDE_BOTH WideUnit wide_unit(const WideWalk& walk, int index) {
  WideUnit unit{};
  unit.part = index / (walk.rows * walk.columns);
  index -= unit.part * walk.rows * walk.columns;
  const int band_start = index / (kWideBand * walk.columns) * kWideBand;
  const int band_rows = walk.rows - band_start < kWideBand ? walk.rows - band_start : kWideBand;
  index -= band_start * walk.columns;
  unit.row = band_start + index % band_rows;
  unit.column = index / band_rows;
  unit.first_slab = unit.part * walk.part_slabs;
  unit.slabs_end = unit.first_slab + walk.part_slabs;
  if (unit.slabs_end > walk.slabs) unit.slabs_end = walk.slabs;
  return unit;
}

/// The bias gradient is a sum over all slabs that each tile of a row could make: tile `column` adds up every
/// walk.columns-th, so that none is slower than the others. The first of a unit's; it may lie behind the unit's end.
WIDE_BOTH int first_bias_slab(const WideWalk& walk, const WideUnit& unit) {
  return unit.first_slab + (unit.column + walk.columns - unit.first_slab % walk.columns) % walk.columns;
}

/// Which element of the tile thread `thread` (of kWideConsumers) holds in sum `sum` (of 128): the layout of a
/// warpgroup's product, 64 rows of 256 columns each.
WIDE_BOTH int wide_row(int thread, int sum) { return thread / 32 * 16 + thread % 32 / 4 + sum % 4 / 2 * 8; }
WIDE_BOTH int wide_column(int thread, int sum) { return sum / 4 * 8 + thread % 4 * 2 + sum % 2; }

/// Whether hidden values are positive, a bit each, as the product that makes them leaves it for the one that takes
/// their gradient: both have the same tiles, so a thread writes 16 bytes that one thread will read.
/// Words that a matrix of hidden values needs:
WIDE_BOTH std::int64_t positive_words(std::int64_t batch, std::int64_t columns) {
  const WideWalk walk = wide_walk(batch, columns, 1, 1);
  return std::int64_t{walk.rows} * kWideCluster * walk.columns * kWideConsumers * 4;
}
/// First of a thread's four words.
WIDE_BOTH std::int64_t positive_word(const WideWalk& walk, int tile_row, int tile_column, int thread) {
  return ((std::int64_t{tile_row} * walk.columns + tile_column) * kWideConsumers + thread) * 4;
}

}  // namespace headroom::layered
