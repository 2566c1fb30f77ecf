// The walk of a tile product along its inner index with plain multiply-adds, for products of many rows in fp32.
//
// A slab of a factor lies in shared memory turned: all values of an inner index side by side, a line of them, however the
// matrix is stored. So a thread reads what it needs of an inner index with few 16-byte loads, at places that are constants
// beside one register a factor.
// What surprises: sums leave their registers with neighbours swapped. A multiply-add reads two registers, a value of B and a
// sum (the value of A is at hand from the one before), and both in one cycle only from different banks, which are even and
// odd registers. Vectors that are loaded and stored have their first value in an even register. So sums are stored as vectors
// whose first value is the second one's sum.
//   A and B as they are stored: with the outer index contiguous, asynchronous copies put the slab there as it is. With the
//            inner one contiguous it passes registers, four inner indices of a row at a time.
//   on chip: two slabs of 16 inner indices of A and B; 8 x 8 or 8 x 16 sums a thread in registers, and two sets of pieces of
//            A and B: those of the next inner index are read while the ones at hand are multiplied
//   waits:   one barrier a slab, before its last inner index: all have put their share of the next slab, and nobody reads
//            the slab at hand any more
#pragma once

#include "layered/staging.cuh"
#include "machine/copy.cuh"

namespace headroom::layered {

/// A thread has 8 x kLaneColumns sums, a multiprocessor kBlocks blocks.
template <int kRows_, int kColumns_, int kLaneColumns_, int kBlocks_>
struct TurnedTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kBlocks = kBlocks_;
  static constexpr int kLaneRows = 8, kLaneColumns = kLaneColumns_;
  static constexpr int kLanesAcross = 64 / kLaneColumns, kLanesDown = 32 / kLanesAcross;
  static constexpr int kWarpRows = kLanesDown * kLaneRows, kWarpColumns = kLanesAcross * kLaneColumns;
  static constexpr int kWarpsAcross = kColumns / kWarpColumns;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * kWarpsAcross;
  /// By one H200: the time of a multiply-add beside a large tile's, and that of the only tile of a multiprocessor beside
  /// one's in company.
  static constexpr double kCost = kColumns == 128 ? 1 : 1.04, kAlone = kLaneColumns == 16 ? 1.65
                                                                       : kColumns == 128  ? 1.05
                                                                                          : 1.15;
  /// Product::grid(): few columns, so the rows of A are read once.
  static constexpr bool kColumnsFirst = true;
  static constexpr bool kTurned = true;
  static_assert(kRows % kWarpRows == 0 && kColumns % kWarpColumns == 0);
};

/// A slab of a factor in shared memory: kInner lines of kOuter values. After every four lines some room, so that a
/// warp whose lanes hold four inner indices each of 8 rows meets no bank twice when it puts them.
template <int kOuter, int kInner>
struct TurnedSlab {
  static constexpr int kRoom = 128 / kInner;
  static constexpr int kValues = kInner * kOuter + kInner / 4 * kRoom;

  __device__ static constexpr int at(int outer, int inner) {
    return inner * kOuter + inner / 4 * kRoom + outer;
  }
};

/// Brings one slab after another. fetch(): begins with the next slab, for `slab` in shared memory; what lies outside the
/// matrix or past the inner end becomes zero. put(n), n < kPuts: stores what fetch() has left in registers.
template <Storage kStorage, int kOuter, int kInner, int kThreads>
class TurnedLoader {
  using Slab = TurnedSlab<kOuter, kInner>;
  static constexpr int kVectorsPerRow = kInner / 4;
  static constexpr int kRowsPerPass = kThreads / kVectorsPerRow;
  static_assert(kStorage == Storage::kInnerContiguous && kOuter % kRowsPerPass == 0);

 public:
  static constexpr int kPuts = kOuter / kRowsPerPass;

  __device__ TurnedLoader(const Operand<float>& operand, std::int64_t outer_begin, std::int64_t inner_begin,
                          std::int64_t inner_end)
      : row_(static_cast<int>(threadIdx.x) / kVectorsPerRow),
        column_(static_cast<int>(threadIdx.x) % kVectorsPerRow * 4),
        inner_left_(static_cast<int>(inner_end - inner_begin) - column_),
        source_(operand.data + outer_begin * operand.pitch + inner_begin + column_) {
    const std::int64_t last = operand.outer - 1 - outer_begin;
#pragma unroll
    for (int pass = 0; pass < kPuts; ++pass)
      offsets_[pass] = static_cast<int>(min(std::int64_t{row_ + pass * kRowsPerPass}, last) * operand.pitch);
  }

  __device__ void fetch(float* /*slab*/) {
    if (inner_left_ >= 4) {
#pragma unroll
      for (int pass = 0; pass < kPuts; ++pass)
        values_[pass] = *reinterpret_cast<const float4*>(source_ + offsets_[pass]);
    } else {
#pragma unroll
      for (int pass = 0; pass < kPuts; ++pass) {
        const float* const from = source_ + offsets_[pass];
        values_[pass] = {inner_left_ > 0 ? from[0] : 0, inner_left_ > 1 ? from[1] : 0,
                         inner_left_ > 2 ? from[2] : 0, 0};
      }
    }
    source_ += kInner;
    inner_left_ -= kInner;
  }

  __device__ void put(float* slab, int n) const {
    float* const to = slab + Slab::at(row_, column_) + n * kRowsPerPass;
    to[0] = values_[n].x, to[kOuter] = values_[n].y;
    to[2 * kOuter] = values_[n].z, to[3 * kOuter] = values_[n].w;
  }

 private:
  const int row_, column_;
  int inner_left_;
  const float* source_;
  int offsets_
      [kPuts];  // of the thread's rows in a tile; below the matrix of its last row, whose product nobody keeps
  float4 values_[kPuts];
};

template <int kOuter, int kInner, int kThreads>
class TurnedLoader<Storage::kOuterContiguous, kOuter, kInner, kThreads> {
  using Slab = TurnedSlab<kOuter, kInner>;
  static constexpr int kVectorsPerRow = kOuter / 4;
  static constexpr int kRowsPerPass = kThreads / kVectorsPerRow;
  static_assert(kInner % kRowsPerPass == 0);

 public:
  static constexpr int kPuts = 0;

  __device__ TurnedLoader(const Operand<float>& operand, std::int64_t outer_begin, std::int64_t inner_begin,
                          std::int64_t inner_end)
      : row_(static_cast<int>(threadIdx.x) / kVectorsPerRow),
        column_(static_cast<int>(threadIdx.x) % kVectorsPerRow * 4),
        bytes_(4 * static_cast<int>(
                       max(min(operand.outer - outer_begin - column_, std::int64_t{4}), std::int64_t{0}))),
        inner_left_(static_cast<int>(inner_end - inner_begin) - row_),
        pass_step_(kRowsPerPass * operand.pitch),
        source_(operand.data + (inner_begin + row_) * operand.pitch + outer_begin + column_) {}

  __device__ void fetch(float* slab) {
#pragma unroll
    for (int pass = 0; pass < kInner / kRowsPerPass; ++pass)
      machine::copy_async16_zero_rest(slab + Slab::at(column_, row_ + pass * kRowsPerPass),
                                      source_ + pass * pass_step_,
                                      pass * kRowsPerPass < inner_left_ ? bytes_ : 0);
    source_ += kInner / kRowsPerPass * pass_step_;
    inner_left_ -= kInner;
  }

  __device__ void put(float* /*slab*/, int /*n*/) const {}

 private:
  const int row_, column_, bytes_;
  int inner_left_;
  const std::int64_t pass_step_;
  const float* source_;
};

template <class T, Storage kStorageA, Storage kStorageB>
struct TurnedWalk {
  static constexpr int kInner = 16;
  using TileA = TurnedSlab<T::kRows, kInner>;
  using TileB = TurnedSlab<T::kColumns, kInner>;
  using LoaderA = TurnedLoader<kStorageA, T::kRows, kInner, T::kThreads>;
  using LoaderB = TurnedLoader<kStorageB, T::kColumns, kInner, T::kThreads>;
  static constexpr int kLanesDown = T::kLanesDown, kLanesAcross = T::kLanesAcross, kLaneRows = T::kLaneRows,
                       kLaneColumns = T::kLaneColumns;

  static constexpr int kQuadsAtOnce = 4;             ///< of a thread, when it ends the tile
  static constexpr int kSums = 1;                    ///< tiles of sums that run() leaves
  static constexpr int kSumPitch = T::kColumns + 4;  ///< four lanes below each other store to different banks
  static constexpr int kStageValues = TileA::kValues + TileB::kValues;
  static constexpr int kStageBytes = kStageValues * static_cast<int>(sizeof(float));
  static constexpr int kStages = 2;

  /// As Product::run(); leaves the tile with kSumPitch in `shared`, behind a barrier.
  template <class OnSlab>
  __device__ static void run(unsigned char* shared, const Operand<float>& a, const Operand<float>& b,
                             std::int64_t row_begin, std::int64_t column_begin, std::int64_t inner_begin,
                             std::int64_t inner_end, OnSlab&& on_slab) {
    float* const stages = reinterpret_cast<float*>(shared);
    LoaderA loader_a(a, row_begin, inner_begin, inner_end);
    LoaderB loader_b(b, column_begin, inner_begin, inner_end);
    const auto fetch = [&](float* stage) {
      loader_a.fetch(stage);
      loader_b.fetch(stage + TileA::kValues);
      machine::copy_async_commit();
    };
    constexpr int kPuts = LoaderA::kPuts + LoaderB::kPuts;
    const auto put = [&](float* stage, int n) {
      if (n < LoaderA::kPuts)
        loader_a.put(stage, n);
      else
        loader_b.put(stage + TileA::kValues, n - LoaderA::kPuts);
    };

    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int row = warp / T::kWarpsAcross * T::kWarpRows + 4 * (lane / kLanesAcross);
    const int column = warp % T::kWarpsAcross * T::kWarpColumns + 4 * (lane % kLanesAcross);
    const auto read = [&](Pieces& pieces, const float* stage, int inner) {
      read_line<kLanesDown>(pieces.rows, stage + TileA::at(row, inner));
      read_line<kLanesAcross>(pieces.columns, stage + TileA::kValues + TileB::at(column, inner));
    };

    fetch(stages);
#pragma unroll
    for (int n = 0; n < kPuts; ++n) put(stages, n);
    machine::copy_async_wait<0>();
    __syncthreads();
    float sums[kLaneRows][kLaneColumns] = {};
    Pieces pieces[2];
    read(pieces[0], stages, 0);
    float *now = stages, *next = stages + kStageValues;
    const int slabs = static_cast<int>((inner_end - inner_begin + kInner - 1) / kInner);
    for (int left = slabs; left > 0; --left) {
      const bool more = left > 1;
      if (more) fetch(next);
      on_slab(now);
#pragma unroll
      for (int inner = 0; inner < kInner; ++inner) {
        if (inner + 1 < kInner) {
          read(pieces[(inner + 1) % 2], now, inner + 1);
          // The second half of a slab: by then what was fetched has come.
          // As late as that is possible at one or two a step.
          constexpr int kPerStep = kPuts <= kInner / 2 ? 1 : 2, kSteps = (kPuts + kPerStep - 1) / kPerStep;
          const int first = (inner - (kInner - 1 - kSteps)) * kPerStep;
          if (first >= 0 && more) {
            put(next, first);
            if (kPerStep == 2 && first + 1 < kPuts) put(next, first + 1);
          }
        } else if (more) {
          machine::copy_async_wait<0>();
          __syncthreads();
          read(pieces[0], next, 0);
        }
        add_products(sums, pieces[inner % 2]);
      }
      float* const free = now;
      now = next, next = free;
    }

    __syncthreads();  // the stages are free: their memory now takes the sums
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
      for (int j = 0; j < kLaneColumns; j += 4)
        *reinterpret_cast<float4*>(stages + (row + i / 4 * 4 * kLanesDown + i % 4) * kSumPitch + column +
                                   j * kLanesAcross) = {sums[i][j + 1], sums[i][j], sums[i][j + 3],
                                                        sums[i][j + 2]};
    __syncthreads();
  }

  /// Four neighbouring elements of what run() has left.
  __device__ static float4 sums_at(const unsigned char* shared, int /*part*/, int row, int column) {
    const float4 swapped =
        *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(shared) + row * kSumPitch + column);
    return {swapped.y, swapped.x, swapped.w, swapped.z};
  }

 private:
  /// Of one inner index: a lane's rows and columns, in runs of four that those of the other lanes lie between.
  struct Pieces {
    float rows[kLaneRows], columns[kLaneColumns];
  };

  template <int kLanes, int kCount>
  __device__ static void read_line(float (&values)[kCount], const float* line) {
#pragma unroll
    for (int n = 0; n < kCount; n += 4) {
      const float4 run = *reinterpret_cast<const float4*>(line + n * kLanes);
      values[n] = run.x, values[n + 1] = run.y, values[n + 2] = run.z, values[n + 3] = run.w;
    }
  }

  /// Columns forth and back, so that neighbouring multiply-adds always share an operand, which then need not be read
  /// from the registers again.
  __device__ static void add_products(float (&sums)[kLaneRows][kLaneColumns], const Pieces& pieces) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i)
#pragma unroll
      for (int step = 0; step < kLaneColumns; ++step) {
        const int j = i % 2 == 0 ? step : kLaneColumns - 1 - step;
        sums[i][j] = fmaf(pieces.rows[i], pieces.columns[j], sums[i][j]);
      }
  }
};

}  // namespace headroom::layered
