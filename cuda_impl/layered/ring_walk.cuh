// The walk of a tile product along its inner index through a ring of slabs, for tensor cores, and for products of few rows.
//
//   on chip: a ring of kStages slabs of A and B in shared memory, 64 or 128 bytes a row, filled by asynchronous copies
//            kStages - 1 slabs ahead of the arithmetic; sums in registers
//   waits:   one barrier a slab. It says both that the slab has landed for all threads and that everybody is
//            done with the slab before it, whose place the next copy takes.
#pragma once

#include <type_traits>

#include "layered/staging.cuh"
#include "layered/warp_fma.cuh"
#include "layered/warp_tensor.cuh"
#include "machine/copy.cuh"

namespace headroom::layered {

template <int kRows_, int kColumns_, int kSlabBytes_, int kWarpsDown_, int kWarpsAcross_, int kWarpsInner_,
          int kStages_>
struct RingTile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kSlabBytes = kSlabBytes_,
                       kWarpsDown = kWarpsDown_, kWarpsAcross = kWarpsAcross_, kWarpsInner = kWarpsInner_,
                       kStages = kStages_;
  static constexpr int kThreads = 256;
  static constexpr bool kTurned = false;
  static constexpr bool kColumnsFirst = false;  ///< Product::grid()
  static constexpr int kBlocks = 2;  ///< of a multiprocessor: while one waits, the other multiplies
  static_assert(kWarpsDown * kWarpsAcross * kWarpsInner * 32 == kThreads);
};

template <class Format, class T, Storage kStorageA, Storage kStorageB>
struct RingWalk {
  using Value = typename Format::Value;
  static constexpr int kInner = T::kSlabBytes / static_cast<int>(sizeof(Value));
  using TileA = StagedTile<Value, kStorageA, T::kRows, kInner>;
  using TileB = StagedTile<Value, kStorageB, T::kColumns, kInner>;
  static constexpr int kWarpRows = T::kRows / T::kWarpsDown;
  static constexpr int kWarpColumns = T::kColumns / T::kWarpsAcross;
  using Warp =
      std::conditional_t<Format::kTensorCores,
                         WarpTensor<Format, kStorageA, kStorageB, TileA, TileB, kWarpRows, kWarpColumns>,
                         WarpFma<kStorageA, kStorageB, TileA, TileB, kWarpRows, kWarpColumns>>;

  static constexpr int kQuadsAtOnce = 1;        ///< of a thread, when it ends the tile
  static constexpr int kSums = T::kWarpsInner;  ///< tiles of sums that run() leaves
  // 8 more than the tile, so that the 8-byte stores of a tensor-core fragment meet no bank twice.
  static constexpr int kSumPitch = T::kColumns + 8;
  static constexpr int kStageValues = TileA::kValues + TileB::kValues;
  static constexpr int kStageBytes = kStageValues * static_cast<int>(sizeof(Value));
  static constexpr int kStages = T::kStages;
  static_assert(kInner % Warp::kInnerStep == 0);
  static_assert(kStageBytes % 16 == 0);

  /// As Product::run(); leaves kSums tiles of kSumPitch in `shared`, behind a barrier, of which the product is the sum.
  template <class OnSlab>
  __device__ static void run(unsigned char* shared, const Operand<Value>& a, const Operand<Value>& b,
                             std::int64_t row_begin, std::int64_t column_begin, std::int64_t inner_begin,
                             std::int64_t inner_end, OnSlab&& on_slab) {
    Value* stages = reinterpret_cast<Value*>(shared);
    const typename TileA::template Loader<T::kThreads> loader_a(a, row_begin, inner_begin, inner_end);
    const typename TileB::template Loader<T::kThreads> loader_b(b, column_begin, inner_begin, inner_end);
    const int slabs = static_cast<int>((inner_end - inner_begin + kInner - 1) / kInner);
    // Blocks side by side read the same slabs of A. If all began with the first, they would ask the same few
    // lines of the L2 at the same time; so each begins elsewhere and goes round. Not where they share the
    // rows of B as well: those are better read together.
    const int first_slab = kStorageB == Storage::kInnerContiguous
                               ? static_cast<int>(static_cast<std::int64_t>(blockIdx.y) * slabs / gridDim.y)
                               : 0;
    const auto load = [&](int step, int stage) {
      const int slab = first_slab + step < slabs ? first_slab + step : first_slab + step - slabs;
      loader_a.load(stages + stage * kStageValues, slab);
      loader_b.load(stages + stage * kStageValues + TileA::kValues, slab);
    };

    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_inner = warp / (T::kWarpsDown * T::kWarpsAcross);
    const int warp_row = warp / T::kWarpsAcross % T::kWarpsDown * kWarpRows;
    const int warp_column = warp % T::kWarpsAcross * kWarpColumns;
    Warp sums;

    // A group is closed for every slab, also for those past the end: then "all but the latest kStages - 2"
    // always means that the slab about to be used has landed.
#pragma unroll
    for (int slab = 0; slab < T::kStages - 1; ++slab) {
      if (slab < slabs) load(slab, slab);
      machine::copy_async_commit();
    }
    int stage = 0, free_stage = T::kStages - 1;
    for (int slab = 0; slab < slabs; ++slab) {
      machine::copy_async_wait<T::kStages - 2>();
      __syncthreads();
      if (slab + T::kStages - 1 < slabs) load(slab + T::kStages - 1, free_stage);
      machine::copy_async_commit();
      const Value* slab_a = stages + stage * kStageValues;
      on_slab(slab_a);
#pragma unroll
      for (int step = 0; step < kInner / Warp::kInnerStep; step += T::kWarpsInner)
        sums.multiply(slab_a, slab_a + TileA::kValues, warp_row, warp_column,
                      (step + warp_inner) * Warp::kInnerStep);
      free_stage = stage;
      stage = stage + 1 == T::kStages ? 0 : stage + 1;
    }
    machine::copy_async_wait<0>();
    __syncthreads();  // the stages are free: their memory now takes the sums

    float* tile = reinterpret_cast<float*>(shared);
    sums.store(tile + warp_inner * T::kRows * kSumPitch, kSumPitch, warp_row, warp_column);
    __syncthreads();
  }

  /// Four neighbouring elements of tile `part` of what run() has left.
  __device__ static float4 sums_at(const unsigned char* shared, int part, int row, int column) {
    return *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(shared) +
                                            (part * T::kRows + row) * kSumPitch + column);
  }
};

}  // namespace headroom::layered
