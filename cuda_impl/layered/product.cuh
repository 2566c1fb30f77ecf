// The tile product that forward, input gradient and weight gradient share:
// C = A * B summed over an inner index.
//
// A block owns one kRows x kColumns tile of C and walks along its part of the inner index in slabs, which it copies to shared
// memory ahead of the arithmetic. ring_walk.cuh does that for tensor cores and for products of few rows, turned_walk.cuh
// for large products in fp32.
// With batch 32 a layer has few tiles and each walks far. So the walk is split twice: among the warps of a
// block (RingTile's kWarpsInner), whose sums meet in shared memory, and among blocks, whose sums meet in device memory,
// where the block that arrives last adds them up (SplitSums). Both add in a fixed order, so the result has
// the same bits every time.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "device/check.h"
#include "layered/formats.h"
#include "layered/kernels.h"
#include "layered/ring_walk.cuh"
#include "layered/shapes.h"
#include "layered/turned_walk.cuh"

namespace headroom::layered {

/// Narrow: 32 rows hold the whole batch at batch 32, and six stages keep 40 KB of weights on their way for
/// each block. Wide: the same for twice the columns, so that the other factor is fetched from the L2 half as
/// often. Large: 32 multiply-adds for each value that it stages, and long runs of writing for weight
/// gradients. LargeForward: where both factors pass registers on their way, 8 x 8 sums a thread
/// leave too few of them. Tall: for results of few columns, and where Large would leave multiprocessors without work. All stay
/// under the 99 KB of shared memory that a block may have on every GPU from sm_80 on.
template <class Format>
struct Tiles {
  using Narrow = RingTile<32, 64, 128, 1, 2, 4, 6>;
  using Wide = RingTile<32, 128, 128, 1, 4, 2, 4>;
  using Large = RingTile<128, 128, 64, 4, 2, 1, 4>;
  using LargeForward = Large;
};
template <>
struct Tiles<Fp32> {
  using Narrow = RingTile<32, 64, 128, 1, 1, 8, 6>;
  using Large = TurnedTile<128, 128, 8, 2>;
  using LargeForward = TurnedTile<128, 128, 16, 2>;
  using Tall = TurnedTile<128, 64, 8, 3>;
};

/// Of a product whose elements are its sums.
struct Nothing {};
struct FetchNothing {
  __device__ Nothing operator()(int /*row*/, int /*column*/) const { return {}; }
};

template <class Format, class Tile_, Storage kStorageA, Storage kStorageB>
struct Product {
  using Value = typename Format::Value;
  using T = Tile_;
  using Walk = std::conditional_t<T::kTurned, TurnedWalk<T, kStorageA, kStorageB>,
                                  RingWalk<Format, T, kStorageA, kStorageB>>;
  using TileA = typename Walk::TileA;
  static constexpr bool kTensorCores = Format::kTensorCores;
  static constexpr int kInner = Walk::kInner;
  static constexpr int kSumBytes = Walk::kSums * T::kRows * Walk::kSumPitch * static_cast<int>(sizeof(float));
  static_assert(Walk::kStages * Walk::kStageBytes <= 99 * 1024 && kSumBytes <= 99 * 1024);

  /// Dynamic shared memory for a walk over `inner` indices: short walks need fewer stages, and then more
  /// blocks fit.
  static int shared_bytes(std::int64_t inner) {
    const std::int64_t slabs = (inner + kInner - 1) / kInner;
    const int stages = slabs < Walk::kStages ? static_cast<int>(slabs) : Walk::kStages;
    return std::max(stages * Walk::kStageBytes, kSumBytes);
  }

  /// The grid of a product whose rows are the batch, and where its blocks' tiles begin. Blocks that begin together read
  /// the same rows of A if kColumnsFirst, else the same rows of B.
  static dim3 grid(std::int64_t rows, std::int64_t columns, int parts) {
    const auto down = static_cast<unsigned>(tiles(rows, T::kRows)),
               across = static_cast<unsigned>(tiles(columns, T::kColumns));
    return T::kColumnsFirst ? dim3(across, down, static_cast<unsigned>(parts))
                            : dim3(down, across, static_cast<unsigned>(parts));
  }
  __device__ static std::int64_t first_row() {
    return std::int64_t{T::kColumnsFirst ? blockIdx.y : blockIdx.x} * T::kRows;
  }
  __device__ static std::int64_t first_column() {
    return std::int64_t{T::kColumnsFirst ? blockIdx.x : blockIdx.y} * T::kColumns;
  }

  /// Computes the tile at (row_begin, column_begin) over [inner_begin, inner_end). on_slab(slab of A):
  /// called once a slab by all threads, between its barriers. Of four neighbouring elements of the tile, column a multiple
  /// of 4: fetch(row, column) returns what is read for them, and on_sums(row, column, float4, what was read) ends them. A
  /// thread fetches for several quads before it ends the first, so that it waits for memory once.
  template <class OnSlab, class Fetch, class OnSums>
  __device__ static void run(const Operand<Value>& a, const Operand<Value>& b, std::int64_t row_begin,
                             std::int64_t column_begin, std::int64_t inner_begin, std::int64_t inner_end,
                             OnSlab&& on_slab, Fetch&& fetch, OnSums&& on_sums) {
    extern __shared__ __align__(16) unsigned char shared[];
    Walk::run(shared, a, b, row_begin, column_begin, inner_begin, inner_end, on_slab);
    finish(fetch, on_sums, Walk::kSums, [&](int part, int quad) {
      return Walk::sums_at(shared, part, quad / kQuadsPerRow, quad % kQuadsPerRow * 4);
    });
  }

  /// run() of part blockIdx.z of gridDim.z along the inner index; fetch and on_sums are called by the block that arrives
  /// last, with the sum of all parts.
  template <class Fetch, class OnSums>
  __device__ static void run_split(const Operand<Value>& a, const Operand<Value>& b, std::int64_t row_begin,
                                   std::int64_t column_begin, std::int64_t inner, const SplitSums& split,
                                   Fetch&& fetch, OnSums&& on_sums) {
    const std::int64_t slabs = (inner + kInner - 1) / kInner;
    const std::int64_t part_size = (slabs + gridDim.z - 1) / gridDim.z * kInner;
    const std::int64_t begin = blockIdx.z * part_size;
    const std::int64_t end = begin + part_size < inner ? begin + part_size : inner;
    const auto ignore_slab = [](const Value*) {};
    if (gridDim.z == 1) {
      run(a, b, row_begin, column_begin, begin, end, ignore_slab, fetch, on_sums);
      return;
    }
    const unsigned tile_index = blockIdx.y * gridDim.x + blockIdx.x;
    float4* parts = reinterpret_cast<float4*>(split.values) + std::int64_t{tile_index} * gridDim.z * kQuads;
    run(a, b, row_begin, column_begin, begin, end, ignore_slab, FetchNothing{},
        [&](int row, int column, float4 sum, Nothing) {
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
    finish(fetch, on_sums, static_cast<int>(gridDim.z),
           [&](int part, int quad) { return __ldcg(parts + part * kQuads + quad); });
  }

 private:
  static constexpr int kQuadsPerRow = T::kColumns / 4;
  static constexpr int kQuads = T::kRows * kQuadsPerRow;
  static constexpr int kQuadsAtOnce = Walk::kQuadsAtOnce;
  static_assert(kQuads % (kQuadsAtOnce * T::kThreads) == 0);

  /// Ends the tile, whose elements are sums of `parts` values of part_of(part, quad).
  template <class Fetch, class OnSums, class PartOf>
  __device__ static void finish(Fetch&& fetch, OnSums&& on_sums, int parts, PartOf&& part_of) {
    for (int first = static_cast<int>(threadIdx.x); first < kQuads; first += kQuadsAtOnce * T::kThreads) {
      decltype(fetch(0, 0)) fetched[kQuadsAtOnce];
      float4 sums[kQuadsAtOnce];
#pragma unroll
      for (int n = 0; n < kQuadsAtOnce; ++n) {
        const int quad = first + n * T::kThreads;
        fetched[n] = fetch(quad / kQuadsPerRow, quad % kQuadsPerRow * 4);
        sums[n] = part_of(0, quad);
      }
      for (int part = 1; part < parts; ++part)
#pragma unroll
        for (int n = 0; n < kQuadsAtOnce; ++n) add(sums[n], part_of(part, first + n * T::kThreads));
#pragma unroll
      for (int n = 0; n < kQuadsAtOnce; ++n) {
        const int quad = first + n * T::kThreads;
        on_sums(quad / kQuadsPerRow, quad % kQuadsPerRow * 4, sums[n], fetched[n]);
      }
    }
  }

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

/// Parts of the inner index for a product of `blocks` tiles: none where the tiles alone fill the GPU, else
/// two blocks a multiprocessor. Only for walks of some length, and with no part so short that meeting again
/// costs more than the walking that it saves.
template <class P>
int inner_splits(std::int64_t blocks, std::int64_t inner) {
  constexpr std::int64_t kLeastBytes = P::T::kTurned ? 1024 : 2048, kLeastPartBytes = 512, kMostParts = 32;
  const std::int64_t bytes = inner * static_cast<std::int64_t>(sizeof(typename P::Value));
  const std::int64_t processors = multiprocessors();
  // Plain multiply-adds want the second block even where every multiprocessor has one.
  const bool full = P::kTensorCores && blocks * 10 >= processors * 9;
  if (full || bytes < kLeastBytes) return 1;
  const std::int64_t wanted = P::T::kBlocks * processors / blocks;
  const std::int64_t parts =
      std::clamp<std::int64_t>(std::min(wanted, bytes / kLeastPartBytes), 1, kMostParts);
  const std::int64_t slabs = tiles(inner, P::kInner);
  return static_cast<int>(
      tiles(slabs, static_cast<int>(tiles(slabs, static_cast<int>(parts)))));  // none is empty
}

/// Whether a product whose rows are the batch keeps the GPU busy with 128 x `tile_columns` tiles.
inline bool use_large_batch_tile(std::int64_t rows, std::int64_t columns, int tile_columns = 128) {
  return rows > 64 && tiles(rows, 128) * tiles(columns, tile_columns) * 2 >= multiprocessors();
}

/// Whether a product of at most 32 rows takes wide tiles: where half as many tiles as multiprocessors are left,
/// each walk in two parts then. With narrow tiles such a product is bound by what the L2 delivers, of which one
/// third is the narrow factor again and again. Plain multiply-adds are bound elsewhere and gain nothing.
inline bool use_wide_tile(std::int64_t rows, std::int64_t columns) {
  return rows <= 32 && tiles(columns, 128) * 20 >= multiprocessors() * 9;
}

/// The time of `blocks` turned tiles on the multiprocessor that has most of them; 1 is a tile's where all have company.
template <class Tile>
double turns(std::int64_t blocks) {
  const std::int64_t most = tiles(blocks, multiprocessors()), rest = most % Tile::kBlocks;
  return static_cast<double>(most - rest) +
         (rest == 0 ? 0 : std::max(static_cast<double>(rest), Tile::kAlone));
}

/// Into how many parts a product in turned tiles is cut, and its time, in multiply-adds of a multiprocessor.
struct Parts {
  int count;
  double time;
};
template <class P>
Parts fastest_parts(std::int64_t rows, std::int64_t columns, std::int64_t inner) {
  constexpr std::int64_t kMeeting = 55;  // what meeting again takes, in inner indices
  const std::int64_t blocks = tiles(rows, P::T::kRows) * tiles(columns, P::T::kColumns);
  const auto with = [&](int parts) {
    const std::int64_t walked = tiles(inner, parts) + (parts > 1 ? kMeeting : 0);
    return Parts{parts, P::T::kCost * P::T::kRows * P::T::kColumns * turns<typename P::T>(blocks * parts) *
                            static_cast<double>(walked)};
  };
  const Parts one = with(1), many = with(inner_splits<P>(blocks, inner));
  return one.time <= many.time ? one : many;
}

/// Calls launch(tile, parts of the inner index) for a product whose rows are the batch; ProductOf<tile> is that product,
/// LargeTile what it takes for large.
template <class Format, template <class, class> class ProductOf, class LargeTile, class Launch>
void with_product_tile(std::int64_t rows, std::int64_t columns, std::int64_t inner, Launch&& launch) {
  using Some = Tiles<Format>;
  const auto with_parts = [&](auto tile) {
    using Tile = decltype(tile);
    launch(tile, inner_splits<ProductOf<Format, Tile>>(
                     tiles(rows, Tile::kRows) * tiles(columns, Tile::kColumns), inner));
  };
  if constexpr (Format::kTensorCores) {
    if (use_large_batch_tile(rows, columns)) return with_parts(LargeTile{});
    if (use_wide_tile(rows, columns)) return with_parts(typename Some::Wide{});
  } else if (use_large_batch_tile(rows, columns, Some::Tall::kColumns)) {
    const Parts large = fastest_parts<ProductOf<Format, LargeTile>>(rows, columns, inner);
    const Parts tall = fastest_parts<ProductOf<Format, typename Some::Tall>>(rows, columns, inner);
    if (tall.time < large.time) return launch(typename Some::Tall{}, tall.count);
    return launch(LargeTile{}, large.count);
  }
  with_parts(typename Some::Narrow{});
}

/// An activation that a kernel is told, and one that it is compiled for. Turned tiles end in loops that are unrolled, and
/// the code of four activations in each of their turns is more than a multiprocessor's cache of instructions holds.
struct AnyActivation {
  Activation value;
};
template <Activation kValue>
struct KnownActivation {
  static constexpr Activation value = kValue;
};
/// Calls launch(activation) with the one that kernels of Tile take: launch() for ReLU, which they have built in.
template <class Tile, class Launch>
void with_activation(Activation activation, Launch&& launch) {
  if (activation == Activation::kRelu) return launch();
  if constexpr (Tile::kTurned) {
    const auto launch_if = [&]<Activation kKnown>(KnownActivation<kKnown> known) {
      if constexpr (kKnown != Activation::kRelu)
        if (kKnown == activation) launch(known);
    };
    [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
      (launch_if(KnownActivation<kAllActivations[kIndices]>{}), ...);
    }(std::make_index_sequence<kAllActivations.size()>{});
  } else {
    launch(AnyActivation{activation});
  }
}

/// Launches `kernel` with more than 48 KB of shared memory where it needs that.
template <class... Parameters, class... Arguments>
void launch_product(void (*kernel)(Parameters...), dim3 grid, int threads, int shared_bytes, Stream& stream,
                    Arguments... arguments) {
  CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  kernel<<<grid, threads, shared_bytes, stream.get()>>>(arguments...);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace headroom::layered
