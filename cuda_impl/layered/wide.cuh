// Products of 128 x 256 tiles for large batches of wide networks: forward, input gradient, weight gradient with update.
//
// The products of product.cuh feed the tensor cores from registers; from shared memory they take wider tiles, and
// nothing but addresses passes through a thread. One warp fetches, eight multiply, and they meet only at barriers.
//   block:   persistent, one a multiprocessor; takes units (wide_walk.h) in turn. Blocks come in clusters of
//            kWideCluster whose tiles lie one below the other: each fetches half of the columns' factor for both
//   on chip: a ring of 4 stages of 48 KB, a stage 128 rows and 256 columns of the factors over 64 inner indices;
//            sums in registers (128 a thread, 64 rows a warpgroup); 4 KB a warp for results on their way out.
//            A weight gradient's tile may have 200 columns instead: gradient_columns()
//   waits:   full (the copies of a stage have landed), free (every warp of the cluster is done with it). The ring runs
//            on from unit to unit: while a result is stored, the next unit's first four slabs arrive
//   bytes:   (128 + 256 / kWideCluster) * 128 a slab, which is 1024 cycles of products: 48 B or 32 B a cycle of the L2
// Factors lie in shared memory as wgmma wants them, in panels of 128-byte rows with their pieces swizzled, and the copy
// engine swizzles on the way. Rows of a factor run along the inner index (`plain`) or across it (`turned`): the
// instruction reads both, so nothing is ever transposed.
//   forward          x [batch, in] plain      * W [out, in] plain
//   input gradient   d [batch, out] plain     * W [out, in] turned
//   weight gradient  d [batch, out] turned    * x [batch, in] turned
// Remainders: the copy engine reads zeros outside a matrix, and does not write there. Of the data set only the current
// batch is meant, but the slab at a batch's end may hold samples of the next one: as rows, whose results are not
// stored; as inner indices, which meet the zeros of d.
#pragma once

#include <algorithm>
#include <type_traits>

#include "layered/kernels.h"
#include "layered/shapes.h"
#include "layered/sixteen.cuh"
#include "layered/wide.h"
#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/masks.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/tensor_map.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::layered {

using machine::Factor;
using machine::kPanelColumns;
using machine::RingPlace;

enum class WideForm { kForward, kInputGradient, kWeightUpdate, kWeightParts };

struct WideBarriers {
  std::uint32_t begin;
  __device__ std::uint32_t full(int stage) const { return begin + 8 * static_cast<std::uint32_t>(stage); }
  __device__ std::uint32_t free(int stage) const { return full(Wide::kStages + stage); }
};

template <WideForm kForm>
inline constexpr bool kIsWeightGradient = kForm == WideForm::kWeightUpdate || kForm == WideForm::kWeightParts;
template <WideForm kForm>
inline constexpr Factor kRowsFactor = kIsWeightGradient<kForm> ? Factor::kTurned : Factor::kPlain;
template <WideForm kForm>
inline constexpr Factor kColumnsFactor = kForm == WideForm::kForward ? Factor::kPlain : Factor::kTurned;

/// Calls work(unit) for the units of this block's cluster.
template <class Work>
MACHINE_DEVICE void for_each_unit(const WideWalk& walk, const Work& work) {
  const int clusters = static_cast<int>(gridDim.x) / kWideCluster;
  for (int index = static_cast<int>(blockIdx.x) / kWideCluster; index < wide_units(walk); index += clusters)
    work(wide_unit(walk, index));
}

// ---- the loading warp, one lane of it

/// 128 rows or columns of a factor, from `first`, over the 64 inner indices from `inner`; to every block in `ranks`.
template <Factor kFactor, bool kToCluster>
MACHINE_DEVICE void fetch(const CUtensorMap& map, int first, int inner, std::uint32_t place,
                          std::uint32_t barrier) {
  constexpr std::uint16_t kAllRanks = (1 << kWideCluster) - 1;
  const auto copy = [&](std::uint32_t to, int column, int row) {
    if constexpr (kToCluster)
      machine::tensor_load_multicast(kAllRanks, to, &map, column, row, barrier);
    else
      machine::tensor_load(to, &map, column, row, barrier);
  };
  if constexpr (kFactor == Factor::kPlain) {
    copy(place, inner, first);
  } else {
    copy(place, first, inner);
    copy(place + Wide::kPanelBytes, first + kPanelColumns, inner);
  }
}

template <WideForm kForm, int kColumns>
MACHINE_DEVICE void fetch_slabs(const WideArguments& arguments, std::uint32_t shared,
                                const WideBarriers& barriers, int rank) {
  constexpr Factor kA = kRowsFactor<kForm>, kB = kColumnsFactor<kForm>;
  const int sample =
      arguments.state != nullptr ? static_cast<int>(arguments.state->batch * arguments.batch) : 0;
  const int a_sample = kForm == WideForm::kForward ? sample : 0;  // of its rows
  const int b_sample = kIsWeightGradient<kForm> ? sample : 0;     // of its inner indices
  RingPlace ring;
  for_each_unit(arguments.walk, [&](const WideUnit& unit) {
    const int row = (unit.row * kWideCluster + rank) * kWideRows + a_sample;
    const int column = unit.column * kColumns;
    for (int slab = unit.first_slab; slab < unit.slabs_end; ++slab, ring.advance(Wide::kStages)) {
      const int inner = slab * kWideInner;
      const std::uint32_t a = shared + static_cast<std::uint32_t>(ring.stage * Wide::kStageBytes);
      const std::uint32_t b = a + Wide::kFetchBytes, full = barriers.full(ring.stage);
      if constexpr (kWideCluster > 1)
        machine::barrier_wait_cluster_unbounded(barriers.free(ring.stage), ring.parity ^ 1);
      else
        machine::barrier_wait_unbounded(barriers.free(ring.stage), ring.parity ^ 1);
      machine::barrier_arrive_expect(full, Wide::kStageBytes);
      fetch<kA, false>(arguments.a, row, inner, a, full);
      if constexpr (kWideCluster > 1) {
        fetch<kB, true>(arguments.b, column + 128 * rank, inner + b_sample,
                        b + static_cast<std::uint32_t>(rank * Wide::kFetchBytes), full);
      } else {
        fetch<kB, false>(arguments.b, column, inner + b_sample, b, full);
        fetch<kB, false>(arguments.b, column + 128, inner + b_sample, b + Wide::kFetchBytes, full);
      }
    }
  });
}

// ---- the multiplying warps

/// This warp is done with a stage, in every block that copies into it.
MACHINE_DEVICE void release(std::uint32_t free, int lane) {
  if constexpr (kWideCluster > 1) {
    if (lane < kWideCluster)
      machine::barrier_arrive_remote_relaxed(machine::remote_address(free, static_cast<std::uint32_t>(lane)));
  } else {
    if (lane == 0) machine::barrier_arrive(free);
  }
}

/// Where a warp's part of a tile lies in the result, and its buffers on the way there.
struct WarpPlace {
  int row, column;            // of the warp's 16 rows and 256 columns, first
  int tile_row, tile_column;  // of the tile
  std::uint32_t buffers;      // 2 * kResultBytes
  machine::Lane lane;
};

/// 64 columns of the warp's rows as `held`, packed, to the result; `panel` of four.
MACHINE_DEVICE void store_panel(const CUtensorMap& result, const WarpPlace& at, int panel,
                                const std::uint32_t (&held)[16]) {
  const std::uint32_t buffer = at.buffers + static_cast<std::uint32_t>(panel % 2 * Wide::kResultBytes);
  if (at.lane.lane == 0) machine::bulk_store_wait_read<1>();  // all but the latest: this buffer is free
  __syncwarp();
  machine::store_rows<4>(buffer, held, at.lane);
  machine::fence_proxy_async_shared();
  __syncwarp();
  if (at.lane.lane == 0) {
    machine::tensor_store(&result, at.column + kPanelColumns * panel, at.row, buffer);
    machine::bulk_store_commit();
  }
}

/// store_panel() without the copy engine, which would write beyond the first `columns` of a tile.
MACHINE_DEVICE void store_columns(const WideArguments& arguments, const WarpPlace& at, int panel,
                                  const std::uint32_t (&held)[16], int columns) {
  auto* result = static_cast<std::uint32_t*>(arguments.result_rows);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = at.row + wide_row(at.lane.lane, 2 * i);
    const int in_tile = kPanelColumns * panel + wide_column(at.lane.lane, 2 * i),
              column = at.column + in_tile;
    if (in_tile < columns && row < static_cast<int>(arguments.rows) &&
        column < static_cast<int>(arguments.pitch))
      result[(row * arguments.pitch + column) / 2] = held[i];
  }
}

/// The bias of a tile's columns, two of each panel a lane: fetched while the products are made.
struct TileBias {
  float2 pair[4];
  MACHINE_DEVICE TileBias(const WideArguments& arguments, int column, int lane, bool used) {
#pragma unroll
    for (int panel = 0; panel < 4; ++panel) {
      const int at = column + kPanelColumns * panel + 2 * lane;
      pair[panel] = used && at < static_cast<int>(arguments.pitch)
                        ? *reinterpret_cast<const float2*>(arguments.bias + at)
                        : make_float2(0, 0);
    }
  }
};

template <class Format>
MACHINE_DEVICE void store_hidden(const WideArguments& arguments, const float (&sums)[128],
                                 const WarpPlace& at, int thread, const TileBias& bias) {
  std::uint32_t positive[4];
#pragma unroll
  for (int panel = 0; panel < 4; ++panel) {
    std::uint32_t held[16];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int from = 4 * j + at.lane.lane % 4;
      const float x = __shfl_sync(~0u, bias.pair[panel].x, from),
                  y = __shfl_sync(~0u, bias.pair[panel].y, from);
      const float* quad = sums + 32 * panel + 4 * j;
      held[2 * j] = Sixteen<Format>::pack_relu(quad[0] + x, quad[1] + y);
      held[2 * j + 1] = Sixteen<Format>::pack_relu(quad[2] + x, quad[3] + y);
    }
    positive[panel] = machine::positive(held).word[0];
    store_panel(arguments.result, at, panel, held);
  }
  *reinterpret_cast<uint4*>(arguments.positive +
                            positive_word(arguments.walk, at.tile_row, at.tile_column, thread)) =
      make_uint4(positive[0], positive[1], positive[2], positive[3]);
}

template <class Format>
MACHINE_DEVICE void store_input_gradient(const WideArguments& arguments, const float (&sums)[128],
                                         const WarpPlace& at, uint4 positive) {
#pragma unroll
  for (int panel = 0; panel < 4; ++panel) {
    const machine::Mask<16> mask{{panel == 0   ? positive.x
                                  : panel == 1 ? positive.y
                                  : panel == 2 ? positive.z
                                               : positive.w}};
    float values[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) values[i] = sums[32 * panel + i];
    std::uint32_t held[16];
    machine::masked<Sixteen<Format>>(values, mask, held);
    store_panel(arguments.result, at, panel, held);
  }
}

/// A thread's two rows of an fp32 matrix [rows, pitch], from its first column in the tile on. Padding is inside,
/// and gets the zeros that the factors have there.
struct ThreadRows {
  float* row[2];
  int columns[2];  // how many are left in each row
  MACHINE_DEVICE ThreadRows(float* matrix, const WideArguments& arguments, const WarpPlace& at) {
    const int column = at.column + wide_column(at.lane.lane, 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = at.row + wide_row(at.lane.lane, 2 * half);
      row[half] = matrix + index * arguments.pitch + column;
      columns[half] = index < arguments.rows ? static_cast<int>(arguments.pitch) - column : 0;
    }
  }
  /// Of sums `sum` and `sum` + 1.
  MACHINE_DEVICE bool inside(int sum) const { return wide_column(0, sum) < columns[sum / 2 & 1]; }
  MACHINE_DEVICE float2& pair(int sum) const {
    return *reinterpret_cast<float2*>(row[sum / 2 & 1] + wide_column(0, sum));
  }
};

/// The tensor core adds with truncation, so its sums begin at zero and the master takes them with one fp32
/// multiply-add: a master that passed through it would drift. Masters come from device memory, 128 columns at once.
template <class Format, int kSums>
MACHINE_DEVICE void update_weights(const WideArguments& arguments, const float (&sums)[kSums],
                                   const WarpPlace& at) {
  const ThreadRows masters(arguments.masters, arguments, at);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float2 weights[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int sum = 64 * half + 2 * i;
      weights[i] = sum < kSums && masters.inside(sum) ? masters.pair(sum) : make_float2(0, 0);
    }
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      std::uint32_t held[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int sum = 64 * half + 32 * panel + 2 * i;
        held[i] = 0;
        if (sum >= kSums) continue;
        float2& pair = weights[16 * panel + i];
        pair.x = fmaf(-arguments.learning_rate, sums[sum] * arguments.inverse_loss_scale, pair.x);
        pair.y = fmaf(-arguments.learning_rate, sums[sum + 1] * arguments.inverse_loss_scale, pair.y);
        if (masters.inside(sum)) masters.pair(sum) = pair;
        held[i] = Sixteen<Format>::round_weight(pair.x) |
                  static_cast<std::uint32_t>(Sixteen<Format>::round_weight(pair.y)) << 16;
      }
      if constexpr (kSums == kWideColumns / 2)
        store_panel(arguments.result, at, 2 * half + panel, held);
      else
        store_columns(arguments, at, 2 * half + panel, held, kSums * 2);
    }
  }
}

template <int kSums>
MACHINE_DEVICE void store_parts(const WideArguments& arguments, const float (&sums)[kSums],
                                const WarpPlace& at, int part) {
  const ThreadRows parts(arguments.parts + part * arguments.rows * arguments.pitch, arguments, at);
#pragma unroll
  for (int sum = 0; sum < kSums; sum += 2)
    if (parts.inside(sum)) parts.pair(sum) = make_float2(sums[sum], sums[sum + 1]);
}

/// All eight columns of this product are the same: one lane of four stores its two rows.
MACHINE_DEVICE void store_bias_parts(const WideArguments& arguments, const float (&sums)[4],
                                     const WarpPlace& at, int part) {
  float* parts = arguments.bias_parts +
                 (std::int64_t{part} * arguments.walk.columns + at.tile_column) * arguments.bias_stride;
  const int row = at.row + wide_row(at.lane.lane, 0);
  if (at.lane.lane % 4 != 0) return;
  if (row < arguments.bias_stride) parts[row] = sums[0];
  if (row + 8 < arguments.bias_stride) parts[row + 8] = sums[2];
}

template <class Format, WideForm kForm, int kColumns>
MACHINE_DEVICE void multiply_slabs(const WideArguments& arguments, std::uint32_t shared,
                                   const WideBarriers& barriers, int rank) {
  constexpr Factor kA = kRowsFactor<kForm>, kB = kColumnsFactor<kForm>;
  constexpr int kNextA = kA == Factor::kPlain ? machine::kAlong : machine::kAcross;  // 16 inner indices on
  constexpr int kNextB = kB == Factor::kPlain ? machine::kAlong : machine::kAcross;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  // A warpgroup's 64 rows: rows of the plain factor, or a panel of the turned one. 8 KB either way.
  const std::uint32_t a_begin = shared + static_cast<std::uint32_t>(thread / 128 * Wide::kPanelBytes);
  const machine::Panels ones = machine::describe(shared + Wide::kOnes);
  const std::uint32_t buffers =
      shared + static_cast<std::uint32_t>(Wide::kResults + 2 * warp * Wide::kResultBytes);
  const machine::Lane lane(thread % 32);
  float sums[kColumns / 2], bias[4] = {0, 0, 0, 0};
#pragma unroll
  for (float& sum : sums) sum = 0;
  RingPlace ring;
  for_each_unit(arguments.walk, [&](const WideUnit& unit) {
    const int tile_row = unit.row * kWideCluster + rank;
    uint4 positive{};
    if constexpr (kForm == WideForm::kInputGradient)
      positive = *reinterpret_cast<const uint4*>(
          arguments.positive + positive_word(arguments.walk, tile_row, unit.column, thread));
    const TileBias tile_bias(arguments, unit.column * kColumns, lane.lane, kForm == WideForm::kForward);
    int stage_before = 0, slab = unit.first_slab;
    const auto multiply_slab = [&](auto with_bias) {
      const std::uint32_t stage = static_cast<std::uint32_t>(ring.stage * Wide::kStageBytes);
      const machine::Panels a = machine::describe(a_begin + stage);
      const machine::Panels b = machine::describe(shared + stage + Wide::kFetchBytes, Wide::kPanelBytes);
      machine::barrier_wait_unbounded(barriers.full(ring.stage), ring.parity);
      machine::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        machine::wgmma_shared<Sixteen<Format>, kA, kB>(sums, a + k * kNextA, b + k * kNextB,
                                                       k > 0 || slab > unit.first_slab);
      if constexpr (decltype(with_bias)::value)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          machine::wgmma_shared<Sixteen<Format>, kA, Factor::kPlain>(
              bias, a + k * kNextA, ones, k > 0 || slab >= unit.first_slab + arguments.walk.columns);
      machine::wgmma_commit();
      machine::wgmma_wait<1>();  // those of the slab before are done
      if (slab > unit.first_slab) release(barriers.free(stage_before), lane.lane);
      stage_before = ring.stage;
      ++slab, ring.advance(Wide::kStages);
    };
    if constexpr (kIsWeightGradient<kForm>) {
      // Two loops: if the compiler did not know which products are under way, it would wait for all in every slab.
      int bias_slab = first_bias_slab(arguments.walk, unit);
      if (bias_slab >= unit.slabs_end) bias[0] = bias[1] = bias[2] = bias[3] = 0;
      while (slab < unit.slabs_end) {
        const int end = bias_slab < unit.slabs_end ? bias_slab : unit.slabs_end;
        while (slab < end) multiply_slab(std::false_type{});
        if (slab == unit.slabs_end) break;
        multiply_slab(std::true_type{});
        bias_slab += arguments.walk.columns;
      }
    } else {
      while (slab < unit.slabs_end) multiply_slab(std::false_type{});
    }
    machine::wgmma_wait<0>();
    release(barriers.free(stage_before), lane.lane);
    machine::wgmma_sums_are_final(sums);
    if constexpr (kIsWeightGradient<kForm>) machine::wgmma_sums_are_final(bias);

    const WarpPlace at{
        tile_row * kWideRows + 16 * warp, unit.column * kColumns, tile_row, unit.column, buffers, lane};
    if constexpr (kForm == WideForm::kForward) store_hidden<Format>(arguments, sums, at, thread, tile_bias);
    if constexpr (kForm == WideForm::kInputGradient)
      store_input_gradient<Format>(arguments, sums, at, positive);
    if constexpr (kForm == WideForm::kWeightUpdate) update_weights<Format>(arguments, sums, at);
    if constexpr (kForm == WideForm::kWeightParts) store_parts(arguments, sums, at, unit.part);
    if constexpr (kIsWeightGradient<kForm>) store_bias_parts(arguments, bias, at, unit.part);
  });
  if (lane.lane == 0) machine::bulk_store_wait();
}

template <class Format, WideForm kForm, int kColumns>
__global__ void __launch_bounds__(Wide::kThreads, 1)
    wide_kernel(const __grid_constant__ WideArguments arguments) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = machine::shared_address(memory);
  const WideBarriers barriers{shared + Wide::kBarriers};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int rank = static_cast<int>(blockIdx.x) % kWideCluster;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Wide::kStages; ++stage) {
      machine::barrier_init(barriers.full(stage), 1);
      machine::barrier_init(barriers.free(stage), kWideCluster * Wide::kConsumerWarps);
    }
    machine::barrier_init_fence();
  }
  if constexpr (kIsWeightGradient<kForm>) {
    std::uint32_t* ones = reinterpret_cast<std::uint32_t*>(memory + Wide::kOnes);
    if (threadIdx.x < Wide::kOnesBytes / 4) ones[threadIdx.x] = Sixteen<Format>::pack(1, 1);
    machine::fence_proxy_async_shared();
  }
  __syncthreads();
  // Nobody copies into a block whose barriers are not there yet, and nobody leaves while others still copy to it.
  if constexpr (kWideCluster > 1) machine::cluster_sync();
  machine::wait_for_kernel_before();  // nothing above reads what it wrote
  machine::let_next_kernel_start();
  if (warp < Wide::kConsumerWarps) {
    machine::registers_increase<Wide::kConsumerRegisters>();
    multiply_slabs<Format, kForm, kColumns>(arguments, shared, barriers, rank);
  } else {
    machine::registers_decrease<Wide::kLoaderRegisters>();
    if (threadIdx.x == kWideConsumers) fetch_slabs<kForm, kColumns>(arguments, shared, barriers, rank);
  }
  __syncwarp();
  if constexpr (kWideCluster > 1) machine::cluster_sync();
}

// ---- set-up and launches

/// A launch with what the hardware needs to hear of it; blocks: a multiple of a cluster's.
struct WideLaunch {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  WideLaunch(int blocks, cudaStream_t stream, bool early) {
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {kWideCluster, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(Wide::kThreads);
    config.dynamicSmemBytes = Wide::kSharedBytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = early ? 2 : 1;
  }
  WideLaunch(const WideLaunch&) = delete;
  WideLaunch& operator=(const WideLaunch&) = delete;
};

/// As many blocks as run at once, and no more than there are units for: where multiprocessors are missing, some have no
/// neighbour to make a cluster with.
template <class Format, WideForm kForm, int kColumns = kWideColumns>
int prepare_wide(const WideWalk& walk) {
  const auto kernel = wide_kernel<Format, kForm, kColumns>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Wide::kSharedBytes));
  int clusters = 0;
  const WideLaunch launch(kWideCluster, nullptr, false);
  CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config));
  require_shape(clusters > 0, "wide product: clusters that fit on the device, at least", clusters, 1);
  return kWideCluster * std::min(clusters, wide_units(walk));
}

template <class Format, WideForm kForm, int kColumns = kWideColumns>
void launch_wide(const WideArguments& arguments, int blocks, Stream& stream, bool early = true) {
  const WideLaunch launch(blocks, stream.get(), early);
  CUDA_CHECK(cudaLaunchKernelEx(&launch.config, wide_kernel<Format, kForm, kColumns>, arguments));
}

template <class Format>
CUtensorMap tensor_map(Matrix<const typename Format::Value> matrix, int box_rows) {
  constexpr auto kElement =
      Format::kPrecision == Precision::kBf16 ? machine::Element::kBf16 : machine::Element::kFp16;
  return machine::tensor_map(kElement, matrix.data, matrix.rows, matrix.columns, matrix.pitch, box_rows);
}

/// A box of this many rows is what fetch() copies at once.
constexpr int box_rows(Factor factor) { return factor == Factor::kPlain ? 128 : kWideInner; }

template <class Format>
WideForward<Format>::WideForward(Matrix<const Value> inputs, const StepState* state,
                                 Matrix<const Value> weights, const float* bias, Matrix<Value> hidden,
                                 std::uint32_t* positive) {
  require_equal("wide forward: inputs of the layer against columns of the weights", inputs.columns,
                weights.columns);
  require_equal("wide forward: outputs of the layer against rows of the weights", hidden.columns,
                weights.rows);
  require_shape(state != nullptr ? hidden.rows > 0 && inputs.rows >= hidden.rows : inputs.rows == hidden.rows,
                "wide forward: rows of the inputs", inputs.rows, hidden.rows);
  arguments_.a = tensor_map<Format>(inputs, box_rows(kRowsFactor<WideForm::kForward>));
  arguments_.b = tensor_map<Format>(weights, box_rows(kColumnsFactor<WideForm::kForward>));
  arguments_.result = tensor_map<Format>({hidden.data, hidden.rows, hidden.columns, hidden.pitch}, 16);
  arguments_.walk = wide_walk(hidden.rows, hidden.columns, inputs.columns, 1);
  arguments_.state = state;
  arguments_.batch = hidden.rows;
  arguments_.bias = bias;
  arguments_.positive = positive;
  arguments_.pitch = hidden.pitch;
  blocks_ = prepare_wide<Format, WideForm::kForward>(arguments_.walk);
}

template <class Format>
void WideForward<Format>::queue(Stream& stream, bool early) const {
  launch_wide<Format, WideForm::kForward>(arguments_, blocks_, stream, early);
}

template <class Format>
WideInputGradient<Format>::WideInputGradient(Matrix<const Value> gradient, Matrix<const Value> weights,
                                             std::uint32_t* positive, Matrix<Value> input_gradient) {
  require_equal("wide input gradient: columns of the gradient against rows of the weights", gradient.columns,
                weights.rows);
  require_equal("wide input gradient: columns of the result against those of the weights",
                input_gradient.columns, weights.columns);
  require_equal("wide input gradient: rows of the result against the batch", input_gradient.rows,
                gradient.rows);
  arguments_.a = tensor_map<Format>(gradient, box_rows(kRowsFactor<WideForm::kInputGradient>));
  arguments_.b = tensor_map<Format>(weights, box_rows(kColumnsFactor<WideForm::kInputGradient>));
  arguments_.result = tensor_map<Format>(
      {input_gradient.data, input_gradient.rows, input_gradient.columns, input_gradient.pitch}, 16);
  arguments_.walk = wide_walk(input_gradient.rows, input_gradient.columns, gradient.columns, 1);
  arguments_.positive = positive;
  arguments_.pitch = input_gradient.pitch;
  blocks_ = prepare_wide<Format, WideForm::kInputGradient>(arguments_.walk);
}

template <class Format>
void WideInputGradient<Format>::queue(Stream& stream) const {
  launch_wide<Format, WideForm::kInputGradient>(arguments_, blocks_, stream);
}

template <class Format>
std::int64_t WideWeightUpdate<Format>::workspace_values(std::int64_t batch, std::int64_t out, std::int64_t in,
                                                        int parts) {
  const WideWalk walk = wide_walk(out, in, batch, parts, gradient_columns(in));
  return (walk.parts > 1 ? walk.parts * out * padded(in) : 0) + walk.parts * walk.columns * padded(out);
}

template <class Format>
WideWeightUpdate<Format>::WideWeightUpdate(Matrix<const Value> gradient, Matrix<const Value> inputs,
                                           const StepState* state, Matrix<float> masters, Matrix<Value> copy,
                                           float* bias, float learning_rate, float inverse_loss_scale,
                                           int parts, float* workspace)
    : copy_(copy.data), bias_(bias) {
  require_equal("wide weight update: rows of the masters against columns of the gradient", masters.rows,
                gradient.columns);
  require_equal("wide weight update: columns of the masters against those of the inputs", masters.columns,
                inputs.columns);
  require_equal("wide weight update: rows of the copy against those of the masters", copy.rows, masters.rows);
  require_equal("wide weight update: columns of the copy against those of the masters", copy.columns,
                masters.columns);
  require_shape(state != nullptr ? inputs.rows >= gradient.rows : inputs.rows == gradient.rows,
                "wide weight update: rows of the inputs", inputs.rows, gradient.rows);
  require_shape(parts >= 1, "wide weight update: parts of the batch, at least", parts, 1);
  arguments_.a = tensor_map<Format>(gradient, box_rows(kRowsFactor<WideForm::kWeightUpdate>));
  arguments_.b = tensor_map<Format>(inputs, box_rows(kColumnsFactor<WideForm::kWeightUpdate>));
  arguments_.result = tensor_map<Format>({copy.data, copy.rows, copy.columns, copy.pitch}, 16);
  arguments_.result_rows = copy.data;
  columns_ = gradient_columns(masters.columns);
  arguments_.walk = wide_walk(masters.rows, masters.columns, gradient.rows, parts, columns_);
  arguments_.state = state;
  arguments_.batch = gradient.rows;
  arguments_.rows = masters.rows;
  arguments_.pitch = masters.pitch;
  arguments_.masters = masters.data;
  arguments_.parts = workspace;
  arguments_.bias_parts = workspace;
  if (arguments_.walk.parts > 1)
    arguments_.bias_parts += arguments_.walk.parts * masters.rows * masters.pitch;
  arguments_.bias_stride = padded(masters.rows);
  arguments_.learning_rate = learning_rate;
  arguments_.inverse_loss_scale = inverse_loss_scale;
  with_kernel([&](auto form, auto columns) {
    blocks_ = prepare_wide<Format, decltype(form)::value, decltype(columns)::value>(arguments_.walk);
  });
}

/// work(form, columns of a tile), both as types.
template <class Format>
template <class Work>
void WideWeightUpdate<Format>::with_kernel(const Work& work) const {
  const auto with_form = [&](auto form) {
    if (columns_ == kNarrowerColumns)
      work(form, std::integral_constant<int, kNarrowerColumns>{});
    else
      work(form, std::integral_constant<int, kWideColumns>{});
  };
  if (arguments_.walk.parts == 1)
    with_form(std::integral_constant<WideForm, WideForm::kWeightUpdate>{});
  else
    with_form(std::integral_constant<WideForm, WideForm::kWeightParts>{});
}

template <class Format>
void WideWeightUpdate<Format>::queue_product(Stream& stream) const {
  with_kernel([&](auto form, auto columns) {
    launch_wide<Format, decltype(form)::value, decltype(columns)::value>(arguments_, blocks_, stream);
  });
}

template <class Format>
void WideWeightUpdate<Format>::queue_update(Stream& stream, std::optional<PartsUpdate<Format>> also) const {
  const WideArguments& of = arguments_;
  const std::int64_t count = of.rows * of.pitch;
  const PartsUpdate<Format> weights{of.masters, of.parts, of.walk.parts,
                                    count,      copy_,    of.walk.parts > 1 ? count : 0},
      bias{bias_, of.bias_parts, of.walk.parts * of.walk.columns, of.bias_stride, nullptr, of.bias_stride};
  update_from_parts<Format>({weights, bias, also.value_or(PartsUpdate<Format>{})}, of.learning_rate,
                            of.inverse_loss_scale, stream);
}

}  // namespace headroom::layered
