// A whole step's work in pairs of SMs for networks of five layers of 65 to 128: each SM owns two hidden layers.
//
//                 inputs       H1, H2                      H3, H4
//   device memory ------> [ lower SM ] ------ H2 ------> [ upper SM ] logits, softmax, loss, dW5
//                           dW1, dW2   <----- dZ3 ------   dW3, dW4
//
// In each, four warpgroups: one makes activations, one takes gradients back, two keep the sums of a layer's weight gradient in
// registers (128 a thread; dW5's sums lie in shared memory). Weights stay in shared memory. Nobody is told how far to run ahead: a role takes its tiles in
// order, waits for what it reads and for room for what it writes, and so as many tiles are under way as there is room.
// H2's gradient is made, and masked, by the lower SM, so both have W3. That leaves eight tiles of room there, and more than that are on
// their way to the loss and back: H1 and the signs of H2 wait for their gradients in device memory (the L2), in a ring of a pair's own.
// H2 takes the place of the inputs that it was made from, dZ2 that of dZ3.
//
//   in:    the lower SM loads inputs, for the forward pass and again for dW1; the upper labels
//   out:   partial sums of a pair, as those of a cluster; see kernels.h
//   waits: full and free of each place. Room in the other SM's memory, and that a copy has left the sender's: relaxed arrivals, as in
//          cluster.cuh
#pragma once

#include "fused/cluster.cuh"
#include "machine/barriers.cuh"
#include "machine/bits.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/dependent_launch.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/panels.cuh"
#include "machine/panels.h"
#include "machine/thread.cuh"
#include "machine/wgmma.cuh"

namespace headroom::fused {

constexpr int kPairHidden = 4, kPairThreads = 4 * kWarpgroup;
constexpr int kChainRegisters = 96, kSumRegisters = 160;

struct PairMap {
  static constexpr int kLayerBytes = 2 * 128 * kPanelRowBytes;  // a layer's weights, two panels
  static constexpr int kTile = kClusterTileBytes,
                       kTiles = 2 * kLayerBytes;       // behind the upper SM's two layers
  static constexpr int kLowerTiles = 3 * kLayerBytes;  // behind the lower SM's three
  // The lower SM's places.
  static constexpr int kInputDepth = 2, kDz3Depth = 2;
  static constexpr int kInputs = kLowerTiles + 0 * kTile, kH1 = kLowerTiles + 2 * kTile,
                       kH1Again = kLowerTiles + 3 * kTile, kInputsAgain = kLowerTiles + 4 * kTile,
                       kDz3Into = kLowerTiles + 5 * kTile, kDz1 = kLowerTiles + 7 * kTile;
  // The upper SM's.
  static constexpr int kH2Depth = 3, kH3Depth = 2;
  static constexpr int kH2Into = kTiles + 0 * kTile, kH3 = kTiles + 3 * kTile, kH4 = kTiles + 5 * kTile,
                       kDz4 = kTiles + 6 * kTile, kDz3 = kTiles + 7 * kTile,
                       kLogitGradient = kTiles + 9 * kTile, kOutputWeights = kLogitGradient + kTilePanelBytes;
  static_assert(kLowerTiles + 8 * kTile == kTiles + 10 * kTile);
  static constexpr int kOutputWeightBytes = 2 * 16 * kPanelRowBytes;
  static constexpr int kOutputSums = kOutputWeights + kOutputWeightBytes;
  // In both SMs at the same place.
  static constexpr int kLabels = kTiles + 10 * kTile;  // two of each thread that makes the loss
  static constexpr int kBiases = kLabels + 8 * kWarpgroup, kBiasBytes = (2 * 128 + 16) * 4;
  // The loss of each thread, and at the end warps' sums.
  static constexpr int kSums = kBiases + kBiasBytes, kBarriers = kSums + 4 * kWarpgroup;
  static constexpr int kWeightsFull = kBarriers + 8 * 0;
  static constexpr int kInputsFull = kBarriers + 8 * 1, kAgainFull = kBarriers + 8 * 3,
                       kH2Sent = kBarriers + 8 * 4, kH2Room = kBarriers + 8 * 5, kH1Kept = kBarriers + 8 * 8,
                       kH1AgainFull = kBarriers + 8 * 16, kH1AgainFree = kBarriers + 8 * 17,
                       kDz3IntoFull = kBarriers + 8 * 18, kDz2Full = kBarriers + 8 * 20,
                       kDz1Full = kBarriers + 8 * 22, kDz1Free = kBarriers + 8 * 23;
  static constexpr int kH2Full = kBarriers + 8 * 24, kH3Free = kBarriers + 8 * 27,
                       kLogitFull = kBarriers + 8 * 29, kLogitFree = kBarriers + 8 * 30,
                       kDz4Full = kBarriers + 8 * 31, kDz4Free = kBarriers + 8 * 32,
                       kDz3Full = kBarriers + 8 * 33, kDz3Free = kBarriers + 8 * 35,
                       kDz3Room = kBarriers + 8 * 37;
  static constexpr int kSharedBytes = kBarriers + 8 * 39;
  static_assert(kOutputSums + 2 * 16 * kWarpgroup <= kLabels && kSharedBytes <= kFormBytes);
};

using PairTiles = ClusterTiles<2>;  // of one of two ranks

/// What a pair keeps in device memory: of tile t, in place t % kKeptTiles, H1 and whether H2 is positive, a bit each, as the
/// threads hold it. A ninth tile is not on its way: H2 of tile t - 1 is sent when dW3 of tile t - 4 is done, so dZ3 of tile t - 6 has
/// landed, where tile t - 8 has been used.
struct PairKept {
  unsigned char* place;
  MACHINE_DEVICE PairKept(const PipelineArguments& arguments, int cluster, int tile)
      : place(arguments.kept + (cluster * kKeptTiles + tile % kKeptTiles) * kKeptTileBytes) {}
  MACHINE_DEVICE uint2* positive(int thread) const {
    return reinterpret_cast<uint2*>(place + kClusterTileBytes) + thread;
  }
};
static_assert(kKeptTileBytes == kClusterTileBytes + 8 * kWarpgroup);
/// H1 of a tile has been kept, and the bits.
MACHINE_DEVICE void wait_kept(std::uint32_t first_barrier, int tile) {
  const std::uint32_t number = static_cast<std::uint32_t>(tile);
  barrier_wait_unbounded(slot_barrier(first_barrier, number % kKeptTiles), number / kKeptTiles & 1);
}

/// What every role knows.
struct PairRole {
  unsigned char* memory;
  std::uint32_t shared;
  int thread;  // of the warpgroup
  MACHINE_DEVICE explicit PairRole(unsigned char* memory)
      : memory(memory),
        shared(shared_address(memory)),
        thread(static_cast<int>(compute_from_here(threadIdx.x % kWarpgroup))) {}
  MACHINE_DEVICE Lane at() const {
    return Lane(static_cast<int>(compute_from_here(static_cast<std::uint32_t>(thread))));
  }
  MACHINE_DEVICE const float* biases(int layer) const {
    return reinterpret_cast<const float*>(memory + PairMap::kBiases) + layer * 128;
  }
  MACHINE_DEVICE std::uint32_t tile(int first, std::uint32_t slot) const {
    return shared + static_cast<std::uint32_t>(first) + slot * kClusterTileBytes;
  }
  MACHINE_DEVICE std::uint32_t barrier(int first, std::uint32_t slot = 0) const {
    return slot_barrier(shared + static_cast<std::uint32_t>(first), slot);
  }
  MACHINE_DEVICE std::uint32_t labels() const {
    return shared + PairMap::kLabels + static_cast<std::uint32_t>(thread * 8);
  }
  /// A warp has read what the other SM may overwrite then.
  MACHINE_DEVICE void arrive_remote(int first, std::uint32_t slot, int rank) const {
    __syncwarp();
    if (thread % 32 == 0)
      barrier_arrive_remote_relaxed(remote_address(barrier(first, slot), static_cast<std::uint32_t>(rank)));
    __syncwarp();
  }
};

/// sums (+)= tile * weights^T, or with turned weights tile * weights; both in shared memory.
template <class Format, Factor kWeights>
MACHINE_DEVICE void tile_products(float (&sums)[64], std::uint32_t tile, std::uint32_t weights, int add) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const Panels right =
        kWeights == Factor::kTurned
            ? describe(weights, PairMap::kLayerBytes / 2) + k * kAcross
            : describe(weights) + (k >> 2) * (PairMap::kLayerBytes / 2 >> 4) + (k & 3) * kAlong;
    wgmma_shared<Format, Factor::kPlain, kWeights>(
        sums, describe(tile) + (k >> 2) * kNextPanel + (k & 3) * kAlong, right, k > 0 ? 1 : add);
  }
}
/// Where this thread's piece of a tile's 16 columns from 16 * step on lies; `begin`: of step 0.
MACHINE_DEVICE std::uint32_t first_piece(std::uint32_t tile, const Lane& at) {
  return compute_from_here(tile + at.place(0));
}
MACHINE_DEVICE std::uint32_t piece(std::uint32_t begin, int step) {
  return (begin ^ static_cast<std::uint32_t>((step & 3) << 5)) +
         static_cast<std::uint32_t>((step >> 2) * kTilePanelBytes);
}

template <class Format>
MACHINE_DEVICE void round_relu(const float (&sums)[64], std::uint32_t (&held)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) held[i] = Format::pack_relu(sums[2 * i], sums[2 * i + 1]);
}
MACHINE_DEVICE void add_bias(float (&sums)[8], const float* bias, const Lane& at) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] += bias[at.first_column() + (i & 1) + 8 * (i >> 2)];
}
MACHINE_DEVICE void store_held(const std::uint32_t (&held)[32], std::uint32_t tile, const Lane& at) {
  const std::uint32_t begin = first_piece(tile, at);
#pragma unroll
  for (int step = 0; step < 8; ++step) store_matrices(piece(begin, step), held + 4 * step);
}
/// A tile's sums, rounded, to shared memory, 16 columns at a time: registers for all of it there are none.
template <class Format>
MACHINE_DEVICE void store_relu(const float (&sums)[64], std::uint32_t tile, const Lane& at) {
  const std::uint32_t begin = first_piece(tile, at);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    std::uint32_t held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      held[i] = Format::pack_relu(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]);
    store_matrices(piece(begin, step), held);
  }
  fence_proxy_async_shared();
}
/// The same, and which are positive; pairs are in the order of positive() and masked().
template <class Format>
MACHINE_DEVICE uint2 store_relu_signs(const float (&sums)[64], std::uint32_t tile, const Lane& at) {
  const std::uint32_t begin = first_piece(tile, at);
  std::uint32_t word[2] = {};
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    std::uint32_t held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      held[i] = Format::pack_relu(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]);
      word[step / 4] = word[step / 4] + word[step / 4] + __vminu2(held[i], 0x00010001u);
    }
    store_matrices(piece(begin, step), held);
  }
  fence_proxy_async_shared();
  return make_uint2(word[0], word[1]);
}
/// A tile's sums where `positive` has a bit, else 0.
template <class Format>
MACHINE_DEVICE void store_by_signs(const float (&sums)[64], uint2 positive, std::uint32_t tile,
                                   const Lane& at) {
  const std::uint32_t begin = first_piece(tile, at);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    std::uint32_t held[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = 4 * step + i;
      const std::uint32_t tops = (pair < 16 ? positive.x : positive.y) << (pair % 8);
      held[i] = Format::pack(sums[2 * pair], sums[2 * pair + 1]) &
                (pair % 16 < 8 ? spread_tops<true>(tops) : spread_tops<false>(tops));
    }
    store_matrices(piece(begin, step), held);
  }
  fence_proxy_async_shared();
}
/// The same where `activations` are positive, else 0; those of two steps are on their way while a step is rounded.
template <class Format>
MACHINE_DEVICE void store_masked(const float (&sums)[64], std::uint32_t activations, std::uint32_t tile,
                                 const Lane& at) {
  const std::uint32_t from = first_piece(activations, at), to = first_piece(tile, at);
  std::uint32_t masks[2][4], held[4];
  load_matrices(piece(from, 0), masks[0]);
  load_matrices(piece(from, 1), masks[1]);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      held[i] = Format::pack(sums[8 * step + 2 * i], sums[8 * step + 2 * i + 1]) &
                Format::positive(masks[step % 2][i]);
    if (step < 6) load_matrices(piece(from, step + 2), masks[step % 2]);
    store_matrices(piece(to, step), held);
  }
  fence_proxy_async_shared();
}

/// A thread's sums of dW5, four at a time: for these the warpgroup has no registers left. Logits' gradients take up the first
/// 32 bytes of each row of their panel; two threads have the rest of a row.
struct OutputSums {
  int thread;
  unsigned char* row;
  int first, swizzle;
  float4* last;
  MACHINE_DEVICE OutputSums(unsigned char* memory, int thread_)
      : thread(static_cast<int>(compute_from_here(static_cast<std::uint32_t>(thread_)))),
        row(memory + PairMap::kLogitGradient + thread / 2 * kPanelRowBytes),
        first(2 + thread % 2 * 3),
        swizzle(thread / 2 % 8),
        last(reinterpret_cast<float4*>(memory + PairMap::kOutputSums) + thread) {}
  MACHINE_DEVICE float4& four(int at) const {
    return at == 3 ? *last : *reinterpret_cast<float4*>(row + ((first + at ^ swizzle) << 4));
  }
  /// Of the output layer's biases.
  MACHINE_DEVICE float4& biases() const { return last[kWarpgroup]; }
  MACHINE_DEVICE float& loss() const {
    return reinterpret_cast<float*>(row - thread / 2 * kPanelRowBytes - PairMap::kLogitGradient +
                                    PairMap::kSums)[thread];
  }
  MACHINE_DEVICE void add(int at, const float (&more)[4]) const {
    const float4 sum = four(at);
    four(at) = make_float4(sum.x + more[0], sum.y + more[1], sum.z + more[2], sum.w + more[3]);
  }
};

/// The pair's first tile of inputs, counted over all batches; the next is tiles.clusters further.
MACHINE_DEVICE int pair_inputs(const PipelineArguments& arguments, const PairTiles& tiles) {
  return static_cast<int>(next_batch(arguments.state)) * plan_of(arguments).tiles + tiles.of_batch(0);
}
MACHINE_DEVICE void load_pair_inputs(const PipelineArguments& arguments, int first, const PairTiles& tiles,
                                     int tile, std::uint32_t place, std::uint32_t full) {
  barrier_arrive_expect(full, kClusterTileBytes);
  bulk_load(place, arguments.inputs + std::int64_t{first + tile * tiles.clusters} * kClusterTileBytes,
            kClusterTileBytes, full);
}

/// The lower SM's activations: H1 is kept for the way back, H2 goes to the upper SM.
template <class Format>
MACHINE_DEVICE void make_lower_activations(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairTiles tiles(plan_of(arguments));
  const PairRole own(memory);
  const int inputs = pair_inputs(arguments, tiles);
  SlotRing<Map::kInputDepth> input;
  SlotRing<Map::kH2Depth> room;
  barrier_wait_unbounded(own.barrier(Map::kWeightsFull), 0);
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    float sums[64];
    begin_with_bias(sums, own.biases(0), own.at());
    wgmma_sums_are_final(sums);
    barrier_wait_unbounded(own.barrier(Map::kInputsFull, input.slot()), input.parity());
    wgmma_fence();
    tile_products<Format, Factor::kPlain>(sums, own.tile(Map::kInputs, input.slot()), own.shared, 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    const std::uint32_t h1 = own.tile(Map::kH1, 0);
    store_relu<Format>(sums, h1, own.at());
    begin_with_bias(sums, own.biases(1), own.at());
    wgmma_sums_are_final(sums);
    named_barrier_aligned(1, kWarpgroup);  // the tile is whole, and the inputs are used
    wgmma_fence();
    tile_products<Format, Factor::kPlain>(sums, h1, own.shared + Map::kLayerBytes, 1);
    wgmma_commit();
    if (own.thread == 0) {
      bulk_store(PairKept(arguments, tiles.cluster, tile).place, h1, kClusterTileBytes);
      bulk_store_commit();
      if (tile > 0) {  // the next inputs come where H2 of the tile before lay
        barrier_wait_unbounded(own.barrier(Map::kH2Sent), (tile & 1) ^ 1);
        if (tile + 1 < tiles.count)
          load_pair_inputs(arguments, inputs, tiles, tile + 1, own.tile(Map::kInputs, input.slot() ^ 1),
                           own.barrier(Map::kInputsFull, input.slot() ^ 1));
      }
    }
    __syncwarp();
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    const std::uint32_t h2 = own.tile(Map::kInputs, input.slot());
    const uint2 positive = store_relu_signs<Format>(sums, h2, own.at());
    __stcg(PairKept(arguments, tiles.cluster, tile).positive(own.thread), positive);
    if (own.thread == 0) bulk_store_wait();
    __syncwarp();
    named_barrier_aligned(1, kWarpgroup);  // the tile is whole, H1 kept, and its place free
    if (own.thread == 0) {
      fence_proxy_async();
      barrier_arrive(own.barrier(Map::kH1Kept, static_cast<std::uint32_t>(tile) % kKeptTiles));
      barrier_wait_unbounded(own.barrier(Map::kH2Room, room.slot()), room.parity() ^ 1);
      bulk_send(remote_address(own.tile(Map::kH2Into, room.slot()), 1), h2, kClusterTileBytes,
                remote_address(own.barrier(Map::kH2Full, room.slot()), 1));
    }
    __syncwarp();
    input.advance();
    room.advance();
  }
}

/// The lower SM's way back: dZ2 from the dZ3 that the upper SM sends, and dZ1.
template <class Format>
MACHINE_DEVICE void make_lower_gradients(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairTiles tiles(plan_of(arguments));
  const PairRole own(memory);
  SlotRing<Map::kDz3Depth> into;
  barrier_wait_unbounded(own.barrier(Map::kWeightsFull), 0);
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile, into.advance()) {
    float sums[64];
    const std::uint32_t place = own.tile(Map::kDz3Into, into.slot());
    barrier_wait_cluster_unbounded(own.barrier(Map::kDz3IntoFull, into.slot()), into.parity());
    if (own.thread == 0) {  // the next tile in this place, and room in the sender's
      barrier_arrive_expect(own.barrier(Map::kDz3IntoFull, into.slot()), kClusterTileBytes);
      barrier_arrive_remote_relaxed(remote_address(own.barrier(Map::kDz3Free, into.slot()), 1));
    }
    __syncwarp();
    wgmma_fence();
    tile_products<Format, Factor::kTurned>(sums, place, own.shared + 2 * Map::kLayerBytes, 0);
    wgmma_commit();
    wait_kept(own.barrier(Map::kH1Kept), tile);
    const uint2 positive = __ldcg(PairKept(arguments, tiles.cluster, tile).positive(own.thread));
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    named_barrier_aligned(2, kWarpgroup);  // dZ3 is used
    store_by_signs<Format>(sums, positive, place, own.at());
    named_barrier_aligned(2, kWarpgroup);

    wgmma_fence();
    tile_products<Format, Factor::kTurned>(sums, place, own.shared + Map::kLayerBytes, 0);
    wgmma_commit();
    if (own.thread == 0) barrier_arrive(own.barrier(Map::kDz2Full, into.slot()));
    __syncwarp();
    barrier_wait_unbounded(own.barrier(Map::kH1AgainFull), tile & 1);
    barrier_wait_unbounded(own.barrier(Map::kDz1Free), (tile & 1) ^ 1);
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    own.arrive_remote(Map::kDz3Room, into.slot(), 1);
    store_masked<Format>(sums, own.tile(Map::kH1Again, 0), own.tile(Map::kDz1, 0), own.at());
    barrier_arrive(own.barrier(Map::kH1AgainFree));  // each thread: a copy comes next, see fused.md
    warp_arrive(own.barrier(Map::kDz1Full));
  }
}

/// The upper SM's activations, and the loss: H3 and H4 stay here.
template <class Format>
MACHINE_DEVICE void make_upper_activations(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const Plan& plan = plan_of(arguments);
  const PairTiles tiles(plan);
  const PairRole own(memory);
  SlotRing<Map::kH2Depth> second;
  // 32 bits will do: a sample takes up 256 bytes.
  const int first_label = static_cast<int>(next_batch(arguments.state)) * plan.batch;
  const auto output_sums = [&] { return OutputSums(memory, own.thread); };
  output_sums().biases() = make_float4(0, 0, 0, 0);
  output_sums().loss() = 0;
  barrier_wait_unbounded(own.barrier(Map::kWeightsFull), 0);
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    float sums[64];
    begin_with_bias(sums, own.biases(0), own.at());
    wgmma_sums_are_final(sums);
    barrier_wait_cluster_unbounded(own.barrier(Map::kH2Full, second.slot()), second.parity());
    if (own.thread == 0) {
      barrier_arrive_expect(own.barrier(Map::kH2Full, second.slot()), kClusterTileBytes);
      barrier_arrive_remote_relaxed(remote_address(own.barrier(Map::kH2Sent), 0));
    }
    __syncwarp();
    wgmma_fence();
    tile_products<Format, Factor::kPlain>(sums, own.tile(Map::kH2Into, second.slot()), own.shared, 1);
    wgmma_commit();
    // Labels are on their way until the loss, and in no registers.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int sample = tiles.of_batch(tile) * kTileRows + own.at().first_row() + 8 * h;
      if (sample < plan.batch) copy_async4(own.labels() + 4 * h, arguments.labels + first_label + sample);
    }
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    const std::uint32_t number = static_cast<std::uint32_t>(tile), third = number % Map::kH3Depth,
                        third_parity = number / Map::kH3Depth & 1;
    const std::uint32_t h3 = own.tile(Map::kH3, third), h4 = own.tile(Map::kH4, 0);
    barrier_wait_unbounded(own.barrier(Map::kH3Free, third), third_parity ^ 1);
    store_relu<Format>(sums, h3, own.at());
    begin_with_bias(sums, own.biases(1), own.at());
    wgmma_sums_are_final(sums);
    named_barrier_aligned(1, kWarpgroup);
    wgmma_fence();
    tile_products<Format, Factor::kPlain>(sums, h3, own.shared + Map::kLayerBytes, 1);
    wgmma_commit();
    barrier_wait_unbounded(own.barrier(Map::kLogitFree), (tile & 1) ^ 1);
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    // The logits' product has its left factor from registers, and runs while that is stored.
    std::uint32_t held[32];
    round_relu<Format>(sums, held);
    float logits[8];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      wgmma_held<Format, Factor::kPlain>(logits, held + 4 * k,
                                         describe(own.shared + Map::kOutputWeights) +
                                             (k >> 2) * (16 * kPanelRowBytes >> 4) + (k & 3) * kAlong,
                                         k > 0);
    wgmma_commit();
    store_held(held, h4, own.at());
    const float4 bias_before = output_sums().biases();
    copy_async_wait_all();
    int label[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int sample = tiles.of_batch(tile) * kTileRows + own.at().first_row() + 8 * h;
      label[h] = sample < plan.batch ? static_cast<int>(load_shared_word(own.labels() + 4 * h)) : -1;
    }
    wgmma_wait<0>();
    wgmma_sums_are_final(logits);
    add_bias(logits, own.biases(2), own.at());
    std::uint32_t gradient[4];
    float output_bias[4] = {bias_before.x, bias_before.y, bias_before.z, bias_before.w};
    const float loss = narrow_loss<Format, true>(logits, label, arguments.gradient_scale,
                                                 own.at().first_column(), gradient, output_bias);
    store_rows<1>(own.shared + Map::kLogitGradient, gradient, own.at());
    fence_proxy_async_shared();
    named_barrier_aligned(1, kWarpgroup);
    if (own.thread == 0) barrier_arrive(own.barrier(Map::kLogitFull));
    __syncwarp();
    output_sums().loss() += loss;
    output_sums().biases() = make_float4(output_bias[0], output_bias[1], output_bias[2], output_bias[3]);
    second.advance();
  }

  float* partial = arguments.partials +
                   static_cast<std::int64_t>(tiles.cluster) * cluster_partial_floats(kPairHidden) +
                   kPairHidden * 2 * kWideOwnerRows * kWarpgroup + own.thread;
  const float4 biases = output_sums().biases();
  const float output_bias[4] = {biases.x, biases.y, biases.z, biases.w};
  const float loss = output_sums().loss();
  named_barrier_aligned(1, kWarpgroup);  // these lie where the warps' sums go
  sum_output_bias(arguments, partial, output_bias, loss, reinterpret_cast<float*>(memory + Map::kSums),
                  own.at(), own.thread, tiles.cluster, 1);
}

/// The upper SM's way back: dZ4, and dZ3, which goes to the lower SM too.
template <class Format>
MACHINE_DEVICE void make_upper_gradients(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairTiles tiles(plan_of(arguments));
  const PairRole own(memory);
  SlotRing<Map::kH3Depth> third;
  SlotRing<Map::kDz3Depth> back;
  barrier_wait_unbounded(own.barrier(Map::kWeightsFull), 0);
#pragma unroll 1
  for (int tile = 0; tile < tiles.count; ++tile) {
    const std::uint32_t parity = tile & 1;
    float sums[64];
    barrier_wait_unbounded(own.barrier(Map::kLogitFull), parity);
    wgmma_fence();
    wgmma_shared<Format, Factor::kPlain, Factor::kTurned>(
        sums, describe(own.shared + Map::kLogitGradient),
        describe(own.shared + Map::kOutputWeights, 16 * kPanelRowBytes), 0);
    wgmma_commit();
    const std::uint32_t dz4 = own.tile(Map::kDz4, 0), dz3 = own.tile(Map::kDz3, back.slot());
    barrier_wait_unbounded(own.barrier(Map::kDz4Free), parity ^ 1);
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    store_masked<Format>(sums, own.tile(Map::kH4, 0), dz4, own.at());
    named_barrier_aligned(2, kWarpgroup);

    wgmma_fence();
    tile_products<Format, Factor::kTurned>(sums, dz4, own.shared + Map::kLayerBytes, 0);
    wgmma_commit();
    if (own.thread == 0) {
      barrier_arrive(own.barrier(Map::kDz4Full));
      barrier_arrive(own.barrier(Map::kLogitFree));
    }
    __syncwarp();
    barrier_wait_unbounded(own.barrier(Map::kDz3Free, back.slot()), back.parity() ^ 1);
    wgmma_wait<0>();
    wgmma_sums_are_final(sums);
    store_masked<Format>(sums, own.tile(Map::kH3, third.slot()), dz3, own.at());
    warp_arrive(own.barrier(Map::kH3Free, third.slot()));
    named_barrier_aligned(2, kWarpgroup);
    if (own.thread == 0) {
      barrier_arrive(own.barrier(Map::kDz3Full, back.slot()));
      barrier_wait_unbounded(own.barrier(Map::kDz3Room, back.slot()), back.parity() ^ 1);
      bulk_send(remote_address(own.tile(Map::kDz3Into, back.slot()), 0), dz3, kClusterTileBytes,
                remote_address(own.barrier(Map::kDz3IntoFull, back.slot()), 0));
    }
    __syncwarp();
    third.advance();
    back.advance();
  }
}

/// Where a thread finds its part of a tile's bias gradient: a pair of columns, and every row of the upper or lower 32. The two
/// halves of a warp have the same columns and rows that are four apart, which lie in different banks.
MACHINE_DEVICE std::uint32_t first_column_pair(int thread) {
  const int warp = thread / 32, lane = thread % 32, half = lane / 16, pair = lane % 16;
  return static_cast<std::uint32_t>(warp / 2 * kTilePanelBytes +
                                    panel_offset(half * (32 + 4), warp % 2 * 32 + 2 * pair));
}
template <class Format>
MACHINE_DEVICE void add_columns(float (&sums)[2], std::uint32_t first) {
#pragma unroll 1  // few instructions are fetched fast
  for (int row = 0; row < 8; ++row) {
    // The row's three lowest bits are in its place and in the swizzle.
    const std::uint32_t begin = first ^ static_cast<std::uint32_t>(row * (kPanelRowBytes + 16));
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const float2 pair = Format::unpack(load_shared_word(begin + eight * (8 * kPanelRowBytes)));
      sums[0] += pair.x;
      sums[1] += pair.y;
    }
  }
}

/// Weight and bias gradient of one layer, over all tiles of the pair. `begin(tile)` waits and returns where dZ and
/// the layer's inputs are; `end(tile)` says that they are used.
template <class Format, class Begin, class End>
MACHINE_DEVICE void sum_weight_gradient(const PipelineArguments& arguments, int layer, const Begin& begin,
                                        const End& end) {
  const int count = PairTiles(plan_of(arguments)).count;
  float sums[2][64], bias[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (float& sum : sums[half]) sum = 0;
#pragma unroll 1
  for (int tile = 0; tile < count; ++tile) {
    const uint2 factors = begin(tile);
    const Panels gradients = describe(factors.x), inputs = describe(factors.y, kTilePanelBytes);
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(
            sums[half], gradients + half * kNextPanel + k * kAcross, inputs + k * kAcross, 1);
    wgmma_commit();
    add_columns<Format>(
        bias, factors.x + first_column_pair(static_cast<int>(compute_from_here(threadIdx.x % kWarpgroup))));
    wgmma_wait<0>();
    end(tile);
  }
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  float* partial =
      arguments.partials +
      static_cast<std::int64_t>(PairTiles(plan_of(arguments)).cluster) * cluster_partial_floats(kPairHidden) +
      layer * 2 * kWideOwnerRows * kWarpgroup;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    wgmma_sums_are_final(sums[half]);
    store_quads<64>(partial + half * kWideOwnerRows * kWarpgroup, sums[half], thread);
  }
  // The other half of the rows, and each column to its place; see Segment.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = bias[i] + shuffle_xor(bias[i], 16);
    const int column = thread / 32 * 32 + 2 * (thread % 16) + i, m = column % 64;
    if (thread % 32 < 16)
      partial[(column / 64 * kWideOwnerRows + 64 + m / 8 % 2) * kWarpgroup + m / 16 * 32 + m % 8 * 4] = sum;
  }
}

template <class Format>
MACHINE_DEVICE void sum_first_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairTiles tiles(plan_of(arguments));
  const PairRole own(memory);
  const int inputs = pair_inputs(arguments, tiles);
  const std::uint32_t again = own.tile(Map::kInputsAgain, 0), full = own.barrier(Map::kAgainFull);
  sum_weight_gradient<Format>(
      arguments, 0,
      [&](int tile) {
        barrier_wait_unbounded(full, tile & 1);
        barrier_wait_unbounded(own.barrier(Map::kDz1Full), tile & 1);
        return make_uint2(own.tile(Map::kDz1, 0), again);
      },
      [&](int tile) {
        named_barrier_aligned(3, kWarpgroup);
        if (own.thread == 0) {
          barrier_arrive(own.barrier(Map::kDz1Free));
          if (tile + 1 < tiles.count) load_pair_inputs(arguments, inputs, tiles, tile + 1, again, full);
        }
        __syncwarp();
      });
}
/// H1 comes back for it; also for the signs that mask dZ1.
template <class Format>
MACHINE_DEVICE void sum_second_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairTiles tiles(plan_of(arguments));
  const PairRole own(memory);
  SlotRing<Map::kDz3Depth> into;
  const auto load_h1 = [&](int tile) {
    wait_kept(own.barrier(Map::kH1Kept), tile);
    fence_proxy_async();
    const std::uint32_t full = own.barrier(Map::kH1AgainFull);
    barrier_arrive_expect(full, kClusterTileBytes);
    bulk_load(own.tile(Map::kH1Again, 0), PairKept(arguments, tiles.cluster, tile).place, kClusterTileBytes,
              full);
  };
  if (own.thread == 0) load_h1(0);
  __syncwarp();
  sum_weight_gradient<Format>(
      arguments, 1,
      [&](int tile) {
        barrier_wait_unbounded(own.barrier(Map::kH1AgainFull), tile & 1);
        barrier_wait_unbounded(own.barrier(Map::kDz2Full, into.slot()), into.parity());
        return make_uint2(own.tile(Map::kDz3Into, into.slot()), own.tile(Map::kH1Again, 0));
      },
      [&](int tile) {
        own.arrive_remote(Map::kDz3Room, into.slot(), 1);
        warp_arrive(own.barrier(Map::kH1AgainFree));
        if (own.thread == 0 && tile + 1 < tiles.count) {
          barrier_wait_unbounded(own.barrier(Map::kH1AgainFree), tile & 1);
          load_h1(tile + 1);
        }
        __syncwarp();
        into.advance();
      });
}
template <class Format>
MACHINE_DEVICE void sum_third_layer(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairRole own(memory);
  SlotRing<Map::kH2Depth> second;
  SlotRing<Map::kDz3Depth> back;
  sum_weight_gradient<Format>(
      arguments, 2,
      [&](int) {
        barrier_wait_cluster_unbounded(own.barrier(Map::kH2Full, second.slot()), second.parity());
        barrier_wait_unbounded(own.barrier(Map::kDz3Full, back.slot()), back.parity());
        return make_uint2(own.tile(Map::kDz3, back.slot()), own.tile(Map::kH2Into, second.slot()));
      },
      [&](int) {
        warp_arrive(own.barrier(Map::kDz3Free, back.slot()));
        own.arrive_remote(Map::kH2Room, second.slot(), 0);
        second.advance();
        back.advance();
      });
}
/// And the output layer's weight gradient, a tile's sums at a time.
template <class Format>
MACHINE_DEVICE void sum_last_layers(const PipelineArguments& arguments, unsigned char* memory) {
  using Map = PairMap;
  const PairRole own(memory);
  const auto output_sums = [&] { return OutputSums(memory, own.thread); };
#pragma unroll
  for (int i = 0; i < 4; ++i) output_sums().four(i) = make_float4(0, 0, 0, 0);
  SlotRing<Map::kH3Depth> third;
  sum_weight_gradient<Format>(
      arguments, 3,
      [&](int tile) {
        barrier_wait_unbounded(own.barrier(Map::kLogitFull), tile & 1);
// Eight classes and 64 inputs at a time: there are registers for no more.
#pragma unroll 1
        for (int part = 0; part < 4; ++part) {
          const Panels features = describe(own.tile(Map::kH4, 0)) + part / 2 * kNextPanel,
                       logits = describe(own.shared + Map::kLogitGradient) + part % 2;
          float sums[4];
          wgmma_fence();
#pragma unroll
          for (int k = 0; k < 4; ++k)
            wgmma_shared<Format, Factor::kTurned, Factor::kTurned>(sums, features + k * kAcross,
                                                                   logits + k * kAcross, k > 0);
          wgmma_commit();
          wgmma_wait<0>();
          wgmma_sums_are_final(sums);
          output_sums().add(part, sums);
        }
        warp_arrive(own.barrier(Map::kLogitFree));
        barrier_wait_unbounded(own.barrier(Map::kDz4Full), tile & 1);
        return make_uint2(own.tile(Map::kDz4, 0), own.tile(Map::kH3, third.slot()));
      },
      [&](int) {
        warp_arrive(own.barrier(Map::kDz4Free));
        warp_arrive(own.barrier(Map::kH3Free, third.slot()));
        third.advance();
      });
  float* partial =
      arguments.partials +
      static_cast<std::int64_t>(PairTiles(plan_of(arguments)).cluster) * cluster_partial_floats(kPairHidden) +
      kPairHidden * 2 * kWideOwnerRows * kWarpgroup + own.thread;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 sum = output_sums().four(i);
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int row = 0; row < 4; ++row) partial[(4 * i + row) * kWarpgroup] = sums[row];
  }
}

/// By a thread of each role, which share them, before anybody uses them; the other SM's copies are announced here for
/// the first time.
MACHINE_DEVICE void init_pair_barriers(std::uint32_t shared, int rank, int role) {
  using Map = PairMap;
  const auto init = [&](int first, int count, std::uint32_t arrivals) {
    for (int i = 0; i < count; ++i)
      barrier_init(shared + static_cast<std::uint32_t>(first + 8 * i), arrivals);
  };
  constexpr std::uint32_t kOne = 1, kWarps = 4, kTwoRoles = 8;
  if (role == 0) {
    init(Map::kWeightsFull, 1, kOne);
    init(Map::kInputsFull, Map::kInputDepth, kOne);
    init(Map::kAgainFull, 1, kOne);
    init(Map::kDz3IntoFull, Map::kDz3Depth, kOne);
    init(Map::kH2Full, Map::kH2Depth, kOne);
  } else if (role == 1) {
    init(Map::kH1Kept, kKeptTiles, kOne);
    init(Map::kH1AgainFull, 1, kOne);
    init(Map::kH1AgainFree, 1, kWarpgroup + kWarps);
  } else if (role == 2) {
    init(Map::kH2Sent, 1, kOne);
    init(Map::kH2Room, Map::kH2Depth, kWarps);
    init(Map::kDz2Full, Map::kDz3Depth, kOne);
    init(Map::kDz1Full, 1, kWarps);
    init(Map::kDz1Free, 1, kOne);
    init(Map::kH3Free, Map::kH3Depth, kTwoRoles);
  } else {
    init(Map::kLogitFull, 1, kOne);
    init(Map::kLogitFree, 1, kOne + kWarps);
    init(Map::kDz4Full, 1, kOne);
    init(Map::kDz4Free, 1, kWarps);
    init(Map::kDz3Full, Map::kDz3Depth, kOne);
    init(Map::kDz3Free, Map::kDz3Depth, kOne + kWarps);
    init(Map::kDz3Room, Map::kDz3Depth, kTwoRoles);
  }
  barrier_init_fence();
  if (role != 0) return;  // who has prepared these
  if (rank == 0) {
    for (int slot = 0; slot < Map::kDz3Depth; ++slot)
      barrier_arrive_expect(shared + Map::kDz3IntoFull + 8 * slot, kClusterTileBytes);
  } else {
    for (int slot = 0; slot < Map::kH2Depth; ++slot)
      barrier_arrive_expect(shared + Map::kH2Full + 8 * slot, kClusterTileBytes);
  }
}

/// The upper SM's two layers and the output layer, or the lower one's two and W3 for the way back.
MACHINE_DEVICE void load_pair_weights(const PipelineArguments& arguments, std::uint32_t shared, int rank) {
  using Map = PairMap;
  const Plan& plan = plan_of(arguments);
  const std::uint32_t full = shared + Map::kWeightsFull;
  const std::uint32_t biases = rank == 0 ? 2 * 128 * 4 : Map::kBiasBytes;
  const int layers = rank == 0 ? 3 : 2;
  barrier_arrive_expect(full, layers * Map::kLayerBytes + biases + (rank == 0 ? 0 : Map::kOutputWeightBytes));
  for (int layer = 0; layer < layers; ++layer)
    bulk_load(shared + layer * Map::kLayerBytes, arguments.image + (2 * rank + layer) * Map::kLayerBytes,
              Map::kLayerBytes, full);
  bulk_load(shared + Map::kBiases, arguments.image + plan.bias_begin + rank * 2 * 128 * 4, biases, full);
  if (rank == 1)
    bulk_load(shared + Map::kOutputWeights, arguments.image + plan.output_begin, Map::kOutputWeightBytes,
              full);
}

template <class Format>
__global__ void __launch_bounds__(kPairThreads, 1)
    pair_kernel(const __grid_constant__ PipelineArguments arguments) {
  using Map = PairMap;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = shared_address(memory);
  const int rank = static_cast<int>(blockIdx.x) % 2;
  const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x % kWarpgroup == 0) init_pair_barriers(shared, rank, role);
  cluster_sync();
  if (threadIdx.x == 0 && rank == 0) {  // inputs stay as they are, so they need not wait
    const PairTiles tiles(plan_of(arguments));
    const int inputs = pair_inputs(arguments, tiles);
    for (int tile = 0; tile < min(Map::kInputDepth, tiles.count); ++tile)
      load_pair_inputs(arguments, inputs, tiles, tile, shared + Map::kInputs + tile * kClusterTileBytes,
                       shared + Map::kInputsFull + 8 * tile);
    load_pair_inputs(arguments, inputs, tiles, 0, shared + Map::kInputsAgain, shared + Map::kAgainFull);
  }
  __syncwarp();
  wait_for_kernel_before();
  let_next_kernel_start();
  if (threadIdx.x == 32) load_pair_weights(arguments, shared, rank);  // of a warp that has not loaded inputs
  __syncwarp();
  if (role < 2) {
    registers_decrease<kChainRegisters>();
    if (rank == 0) {
      if (role == 0)
        make_lower_activations<Format>(arguments, memory);
      else
        make_lower_gradients<Format>(arguments, memory);
    } else {
      if (role == 0)
        make_upper_activations<Format>(arguments, memory);
      else
        make_upper_gradients<Format>(arguments, memory);
    }
  } else {
    registers_increase<kSumRegisters>();
    if (rank == 0) {
      if (role == 2)
        sum_first_layer<Format>(arguments, memory);
      else
        sum_second_layer<Format>(arguments, memory);
    } else {
      if (role == 2)
        sum_third_layer<Format>(arguments, memory);
      else
        sum_last_layers<Format>(arguments, memory);
    }
  }
  cluster_sync();  // nobody leaves while the other may still write to its barriers
}

}  // namespace headroom::fused
