// The tile product that forward, input gradient and weight gradient share:
// C = A * B summed over an inner index.
//
// A block owns one kRows x kColumns tile of C and walks along its part of the inner index in slabs of
// 64 or 128 bytes a row.
//   on chip: a ring of kStages slabs of A and B in shared memory, filled by asynchronous copies kStages - 1
//            slabs ahead of the arithmetic; sums in registers (64 a thread in the largest tile)
//   waits:   one barrier a slab. It says both that the slab has landed for all threads and that everybody is
//            done with the slab before it, whose place the next copy takes.
// With batch 32 a layer has few tiles and each walks far. So the walk is split twice: among the warps of a
// block (kWarpsInner), whose sums meet in shared memory, and among blocks, whose sums meet in device memory,
// where the block that arrives last adds them up (SplitSums). Both add in a fixed order, so the result has
// the same bits every time.
#pragma once

#include <algorithm>

#include "device/check.h"
#include "layered/formats.h"
#include "layered/kernels.h"
#include "layered/shapes.h"
#include "layered/staging.cuh"
#include "layered/warp_fma.cuh"
#include "layered/warp_tensor.cuh"
#include "machine/copy.cuh"

namespace headroom::layered {

inline constexpr int kThreads = 256;
inline constexpr int kBlocksPerProcessor = 2;  // resident at once: while one waits, the other multiplies

template <int kRows_, int kColumns_, int kSlabBytes_, int kWarpsDown_, int kWarpsAcross_, int kWarpsInner_,
          int kStages_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kSlabBytes = kSlabBytes_,
                       kWarpsDown = kWarpsDown_, kWarpsAcross = kWarpsAcross_, kWarpsInner = kWarpsInner_,
                       kStages = kStages_;
  static_assert(kWarpsDown * kWarpsAcross * kWarpsInner * 32 == kThreads);
};

/// Narrow: 32 rows hold the whole batch at batch 32, and six stages keep 40 KB of weights on their way for
/// each block. Wide: the same for twice the columns, so that the other factor is fetched from the L2 half as
/// often. Large: 32 multiply-adds for each value that it stages, and long runs of writing for weight
/// gradients. All stay under the 99 KB of shared memory that a block may have on every GPU from sm_80 on.
template <class Format>
struct Tiles {
  static constexpr bool kTensor = Format::kTensorCores;
  using Narrow = Tile<32, 64, 128, 1, kTensor ? 2 : 1, kTensor ? 4 : 8, 6>;
  using Wide = Tile<32, 128, 128, 1, 4, 2, 4>;
  using Large = Tile<128, 128, 64, 4, 2, 1, 4>;
};

template <class Format, class Tile_, Storage kStorageA, Storage kStorageB>
struct Product {
  using Value = typename Format::Value;
  using T = Tile_;
  static constexpr bool kTensorCores = Format::kTensorCores;
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
    return std::max(stages * kStageBytes, kSumBytes);
  }

  /// Computes the tile at (row_begin, column_begin) over [inner_begin, inner_end). on_slab(slab of A):
  /// called once a slab by all threads, between its barriers. on_sums(row, column, float4): four
  /// neighbouring elements of the tile, column a multiple of 4.
  template <class OnSlab, class OnSums>
  __device__ static void run(const Operand<Value>& a, const Operand<Value>& b, std::int64_t row_begin,
                             std::int64_t column_begin, std::int64_t inner_begin, std::int64_t inner_end,
                             OnSlab&& on_slab, OnSums&& on_sums) {
    extern __shared__ __align__(16) unsigned char shared[];
    Value* stages = reinterpret_cast<Value*>(shared);
    const typename TileA::template Loader<kThreads> loader_a(a, row_begin, inner_begin, inner_end);
    const typename TileB::template Loader<kThreads> loader_b(b, column_begin, inner_begin, inner_end);
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
    for (int quad = static_cast<int>(threadIdx.x); quad < kQuads; quad += kThreads) {
      const int row = quad / kQuadsPerRow;
      const int column = quad % kQuadsPerRow * 4;
      float4 total = *reinterpret_cast<const float4*>(tile + row * kSumPitch + column);
#pragma unroll
      for (int part = 1; part < T::kWarpsInner; ++part)
        add(total, *reinterpret_cast<const float4*>(tile + (part * T::kRows + row) * kSumPitch + column));
      on_sums(row, column, total);
    }
  }

  /// run() of part blockIdx.z of gridDim.z along the inner index; on_sums is called by the block that arrives
  /// last, with the sum of all parts.
  template <class OnSums>
  __device__ static void run_split(const Operand<Value>& a, const Operand<Value>& b, std::int64_t row_begin,
                                   std::int64_t column_begin, std::int64_t inner, const SplitSums& split,
                                   OnSums&& on_sums) {
    const std::int64_t slabs = (inner + kInner - 1) / kInner;
    const std::int64_t part_size = (slabs + gridDim.z - 1) / gridDim.z * kInner;
    const std::int64_t begin = blockIdx.z * part_size;
    const std::int64_t end = begin + part_size < inner ? begin + part_size : inner;
    const auto ignore_slab = [](const Value*) {};
    if (gridDim.z == 1) {
      run(a, b, row_begin, column_begin, begin, end, ignore_slab, on_sums);
      return;
    }
    const unsigned tile_index = blockIdx.y * gridDim.x + blockIdx.x;
    float4* parts = reinterpret_cast<float4*>(split.values) + std::int64_t{tile_index} * gridDim.z * kQuads;
    run(a, b, row_begin, column_begin, begin, end, ignore_slab, [&](int row, int column, float4 sum) {
      parts[blockIdx.z * kQuads + row * kQuadsPerRow + column / 4] = sum;
    });

    // Every thread's stores are visible to the device before this block counts as arrived, and the block that
    // finds all others arrived reads only after that.
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = atomicAdd(split.arrivals + tile_index, 1u) == gridDim.z - 1;
      if (is_last) split.arrivals[tile_index] = 0;  // ready for the next product
      __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    for (int quad = static_cast<int>(threadIdx.x); quad < kQuads; quad += kThreads) {
      float4 total = __ldcg(parts + quad);
#pragma unroll 4
      for (unsigned part = 1; part < gridDim.z; ++part) add(total, __ldcg(parts + part * kQuads + quad));
      on_sums(quad / kQuadsPerRow, quad % kQuadsPerRow * 4, total);
    }
  }

 private:
  static constexpr int kQuadsPerRow = T::kColumns / 4;
  static constexpr int kQuads = T::kRows * kQuadsPerRow;

  __device__ static void add(float4& sum, float4 more) {
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
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

/// Whether a product whose rows are the batch keeps the GPU busy with 128 x 128 tiles.
inline bool use_large_batch_tile(std::int64_t rows, std::int64_t columns) {
  return rows > 64 && tiles(rows, 128) * tiles(columns, 128) * 2 >= multiprocessors();
}

/// Whether a product of at most 32 rows takes wide tiles: where half as many tiles as multiprocessors are left,
/// each walk in two parts then. With narrow tiles such a product is bound by what the L2 delivers, of which one
/// third is the narrow factor again and again. Plain multiply-adds are bound elsewhere and gain nothing.
inline bool use_wide_tile(std::int64_t rows, std::int64_t columns) {
  return rows <= 32 && tiles(columns, 128) * 20 >= multiprocessors() * 9;
}

/// Calls launch(tile) with the tile for a product whose rows are the batch.
template <class Format, class Launch>
void with_product_tile(std::int64_t rows, std::int64_t columns, Launch&& launch) {
  if (use_large_batch_tile(rows, columns)) return launch(typename Tiles<Format>::Large{});
  if constexpr (Format::kTensorCores)
    if (use_wide_tile(rows, columns)) return launch(typename Tiles<Format>::Wide{});
  launch(typename Tiles<Format>::Narrow{});
}

/// Parts of the inner index for a product of `blocks` tiles: none where the tiles alone fill the GPU, else
/// two blocks a multiprocessor. Only for walks of some length, and with no part so short that meeting again
/// costs more than the walking that it saves.
template <class P>
int inner_splits(std::int64_t blocks, std::int64_t inner) {
  constexpr std::int64_t kLeastBytes = 2048, kLeastPartBytes = 512, kMostParts = 32;
  const std::int64_t bytes = inner * static_cast<std::int64_t>(sizeof(typename P::Value));
  const std::int64_t processors = multiprocessors();
  // Plain multiply-adds want the second block even where every multiprocessor has one.
  const bool full = P::kTensorCores && blocks * 10 >= processors * 9;
  if (full || bytes < kLeastBytes) return 1;
  const std::int64_t wanted = kBlocksPerProcessor * processors / blocks;
  const std::int64_t parts =
      std::clamp<std::int64_t>(std::min(wanted, bytes / kLeastPartBytes), 1, kMostParts);
  const std::int64_t slabs = tiles(inner, P::kInner);
  return static_cast<int>(
      tiles(slabs, static_cast<int>(tiles(slabs, static_cast<int>(parts)))));  // none is empty
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

}  // namespace headroom::layered
