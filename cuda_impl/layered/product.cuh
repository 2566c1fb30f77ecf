// The tile product that forward, input gradient and weight gradient share: C = A * B summed over an inner
// index.
//
// A block owns one kRows x kColumns tile of C and walks along the inner index in slabs of 64 or 128 bytes a
// row.
//   on chip: a ring of kStages slabs of A and B in shared memory, filled by asynchronous copies kStages - 1
//   slabs
//            ahead of the arithmetic; sums in registers (64 a thread in the largest tile)
//   waits:   one barrier a slab. It says both that the slab has landed for all threads and that everybody is
//   done
//            with the slab before it, whose place the next copy takes.
// With batch 32 a layer has few tiles and each walks far: there the 8 warps of a block also split the inner
// index (kWarpsInner), so that every multiprocessor has enough multiply-adds and copies under way without a
// second kernel. Their sums meet in shared memory and are added in the order of the warps, so the result has
// the same bits every time. The large tile takes the same way out, with one warp's sums for each element:
// that gives whole 16-byte stores.
#pragma once

#include <stdexcept>
#include <string>

#include "device/check.h"
#include "layered/formats.h"
#include "layered/staging.cuh"
#include "layered/warp_fma.cuh"
#include "layered/warp_tensor.cuh"

namespace headroom::layered {

inline constexpr int kThreads = 256;

template <int kRows_, int kColumns_, int kSlabBytes_, int kWarpsDown_, int kWarpsAcross_, int kWarpsInner_,
          int kStages_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kSlabBytes = kSlabBytes_,
                       kWarpsDown = kWarpsDown_, kWarpsAcross = kWarpsAcross_, kWarpsInner = kWarpsInner_,
                       kStages = kStages_;
  static_assert(kWarpsDown * kWarpsAcross * kWarpsInner * 32 == kThreads);
};

/// 32 rows hold the whole batch at batch 32; 64 columns halve the reading of A against 32 columns, which make
/// more blocks. Six stages keep 40 KB of weights on their way into each multiprocessor. The large tile does
/// 32 multiply-adds for each value that it stages. All stay under the 99 KB of shared memory that every GPU
/// from sm_80 on has.
template <class Format>
struct Tiles {
  static constexpr bool kTensor = Format::kTensorCores;
  using Short = Tile<32, 32, 128, 1, kTensor ? 2 : 1, kTensor ? 4 : 8, 6>;
  using Wide = Tile<32, 64, 128, 1, kTensor ? 2 : 1, kTensor ? 4 : 8, 6>;
  using Large = Tile<128, 128, 64, 4, 2, 1, 4>;
};

template <class Format, class Tile_, Storage kStorageA, Storage kStorageB>
struct Product {
  using Value = typename Format::Value;
  using T = Tile_;
  static constexpr int kInner = T::kSlabBytes / static_cast<int>(sizeof(Value));
  using TileA = StagedTile<Value, kStorageA, T::kRows, kInner>;
  using TileB = StagedTile<Value, kStorageB, T::kColumns, kInner>;
  static constexpr int kWarpRows = T::kRows / T::kWarpsDown;
  static constexpr int kWarpColumns = T::kColumns / T::kWarpsAcross;
  template <bool kTensor, class = void>
  struct Choose {
    using Warp = WarpFma<kStorageA, kStorageB, TileA, TileB, kWarpRows, kWarpColumns>;
  };
  template <class Unused>
  struct Choose<true, Unused> {
    using Warp = WarpTensor<Format, kStorageA, kStorageB, TileA, TileB, kWarpRows, kWarpColumns>;
  };
  using Warp = typename Choose<Format::kTensorCores>::Warp;

  static constexpr int kStageValues = TileA::kValues + TileB::kValues;
  static constexpr int kStageBytes = kStageValues * static_cast<int>(sizeof(Value));
  // 8 more than the tile, so that the 8-byte stores of a tensor-core fragment meet no bank twice.
  static constexpr int kSumPitch = T::kColumns + 8;
  static constexpr int kSumBytes = T::kWarpsInner * T::kRows * kSumPitch * static_cast<int>(sizeof(float));
  static_assert(kInner % Warp::kInnerStep == 0);
  static_assert(kStageBytes % 16 == 0 && T::kStages * kStageBytes <= 99 * 1024 && kSumBytes <= 99 * 1024);

  /// Dynamic shared memory for a walk over `inner` indices: short walks need fewer stages, and then more
  /// blocks fit.
  static int shared_bytes(std::int64_t inner) {
    const std::int64_t slabs = (inner + kInner - 1) / kInner;
    const int stages = slabs < T::kStages ? static_cast<int>(slabs) : T::kStages;
    return stages * kStageBytes > kSumBytes ? stages * kStageBytes : kSumBytes;
  }

  /// Computes the tile at (row_begin, column_begin) over [inner_begin, inner_end).
  /// on_slab(slab of A, first inner index of it): called once a slab by all threads, between its barriers.
  /// on_sums(row, column, float4): four neighbouring elements of C, column a multiple of 4; may lie outside
  /// C.
  template <class OnSlab, class OnSums>
  __device__ static void run(const Operand<Value>& a, const Operand<Value>& b, std::int64_t row_begin,
                             std::int64_t column_begin, std::int64_t inner_begin, std::int64_t inner_end,
                             OnSlab&& on_slab, OnSums&& on_sums) {
    extern __shared__ __align__(16) unsigned char shared[];
    Value* stages = reinterpret_cast<Value*>(shared);
    const int slabs = static_cast<int>((inner_end - inner_begin + kInner - 1) / kInner);
    const auto load = [&](int slab) {
      Value* stage = stages + slab % T::kStages * kStageValues;
      const std::int64_t inner = inner_begin + static_cast<std::int64_t>(slab) * kInner;
      TileA::template load<kThreads>(stage, a, row_begin, inner, inner_end);
      TileB::template load<kThreads>(stage + TileA::kValues, b, column_begin, inner, inner_end);
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
      if (slab < slabs) load(slab);
      close_copy_group();
    }
    for (int slab = 0; slab < slabs; ++slab) {
      wait_for_copy_groups<T::kStages - 2>();
      __syncthreads();
      if (slab + T::kStages - 1 < slabs) load(slab + T::kStages - 1);
      close_copy_group();
      const Value* stage = stages + slab % T::kStages * kStageValues;
      on_slab(stage, inner_begin + static_cast<std::int64_t>(slab) * kInner);
#pragma unroll
      for (int step = 0; step < kInner / Warp::kInnerStep; step += T::kWarpsInner)
        sums.multiply(stage, stage + TileA::kValues, warp_row, warp_column,
                      (step + warp_inner) * Warp::kInnerStep);
    }
    wait_for_copy_groups<0>();
    __syncthreads();  // the stages are free: their memory now takes the sums

    float* tile = reinterpret_cast<float*>(shared);
    sums.store(tile + warp_inner * T::kRows * kSumPitch, kSumPitch, warp_row, warp_column);
    __syncthreads();
    constexpr int kQuadsPerRow = T::kColumns / 4;
    for (int quad = static_cast<int>(threadIdx.x); quad < T::kRows * kQuadsPerRow; quad += kThreads) {
      const int row = quad / kQuadsPerRow;
      const int column = quad % kQuadsPerRow * 4;
      float4 total = *reinterpret_cast<const float4*>(tile + row * kSumPitch + column);
#pragma unroll
      for (int part = 1; part < T::kWarpsInner; ++part) {
        const float4 more =
            *reinterpret_cast<const float4*>(tile + (part * T::kRows + row) * kSumPitch + column);
        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
      }
      on_sums(row_begin + row, column_begin + column, total);
    }
  }
};

/// Four values of a padded row, rounded and stored as one vector.
__device__ inline void store_quad(float* destination, float4 values) {
  *reinterpret_cast<float4*>(destination) = values;
}
template <class Format>
__device__ void store_rounded_quad(typename Format::Value* destination, float4 values) {
  using Value = typename Format::Value;
  struct alignas(4 * sizeof(Value)) Quad {
    Value value[4];
  };
  *reinterpret_cast<Quad*>(destination) = {
      {Format::round(values.x), Format::round(values.y), Format::round(values.z), Format::round(values.w)}};
}

enum class TileChoice { kShort, kWide, kLarge };

inline int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

inline std::int64_t tiles(std::int64_t extent, int size) { return (extent + size - 1) / size; }

/// The tile for a product whose rows are the batch.
inline TileChoice choose_batch_tile(std::int64_t rows, std::int64_t columns) {
  const std::int64_t processors = multiprocessors();
  if (rows > 64 && tiles(rows, 128) * tiles(columns, 128) * 2 >= processors) return TileChoice::kLarge;
  // Within a tenth of one block on every multiprocessor the wide tile wins by reading A half as often.
  return tiles(rows, 32) * tiles(columns, 64) * 10 >= processors * 9 ? TileChoice::kWide : TileChoice::kShort;
}

/// Launches `kernel` with more than 48 KB of shared memory where it needs that.
template <class... Parameters, class... Arguments>
void launch_product(void (*kernel)(Parameters...), dim3 grid, int shared_bytes, Stream& stream,
                    Arguments... arguments) {
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<grid, kThreads, shared_bytes, stream.get()>>>(arguments...);
  CUDA_CHECK(cudaGetLastError());
}

inline void require_shape(bool fits, const char* what, std::int64_t found, std::int64_t expected) {
  if (!fits)
    throw std::invalid_argument(std::string(what) + ": found " + std::to_string(found) + ", expected " +
                                std::to_string(expected));
}
inline void require_equal(const char* what, std::int64_t found, std::int64_t expected) {
  require_shape(found == expected, what, found, expected);
}

}  // namespace headroom::layered
