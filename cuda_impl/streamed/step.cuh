// Training steps of a network whose weights stream through the chip: read once forward, read and written once backward.
//
// One thread block a multiprocessor, all alive for many steps. A block owns the same features of a layer throughout:
//   forward:  sums W[own outputs, all inputs] * x; its warps divide the inputs
//   backward: sums W[all outputs, own inputs]^T * d; its warps divide the outputs. While a tile is there, its
//             gradient d^T x is formed in registers and added, and the tile written back
//   first layer: updated and multiplied with the next step's inputs in the same pass
//   last layer of up to 64 classes: each block multiplies its own columns, so parts of logits meet in the L2
// Every warp streams its own tiles through its own ring of shared memory by cp.async: no barrier in the loops, and what
// does not depend on a grid-wide barrier is on its way before the barrier is waited for. After a loop the warps' sums
// are added up in the order of their numbers, so two runs give the same bits.
//
// Barriers of the grid, and what each protects, in the order of a step of layers 0 to L - 1:
//   activations of layer l, l < L - 1 (l < L - 2 with narrow logits): written by owners, read by all
//   parts of logits: written by all, read by the blocks that own rows of the batch; joined logits: added to by all, read by all
//   gradient of the logits: written by owners of rows, read by all; not with joined logits, whose loss every block makes
//   gradient of layer l, 0 < l < L - 1: written by owners, read by all. That of layer 0 is needed by its owner only
//   weights of layer 1: written by owners of columns, read by owners of rows in the next step. Not waited for on its own:
//   arrivals come in order, so the next barrier's wait covers it, and only their prefetch has to wait for it.
// Every buffer is written again a step later, behind at least one barrier that follows its last read.
#pragma once

#include <type_traits>

#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/status.cuh"
#include "machine/thread.cuh"
#include "rules/loss.cuh"
#include "streamed/arguments.h"
#include "streamed/fp32_format.cuh"
#include "streamed/logit_sums.h"
#include "streamed/packed_tf32_format.cuh"
#include "streamed/sixteen_bit_formats.cuh"
#include "streamed/slots.cuh"
#include "streamed/tf32_format.cuh"

namespace headroom::streamed {

/// Four words of shared memory for each warp, read and written where it is said.
MACHINE_DEVICE volatile int* words_of_warp() {
  __shared__ int words[64];
  return words + thread_index_here() / 32 * 4;
}

/// fp32's shuffles want to know that a warp's lanes stay together.
template <class Format>
MACHINE_DEVICE int warp_index() {
  if constexpr (Format::kWalks)
    return uniform(thread_index_here() / 32);
  else
    return thread_index_here() / 32;
}

template <int kA, int kB>
inline constexpr int kSmaller = kA < kB ? kA : kB;

inline constexpr int kMostStages = 6;

/// What stays on the chip, behind smaller rings that begin where sums are added up: anything; lower halves of masters, of whole layers or only
/// some; masters of the first layer, and whether all of them.
template <class Format>
inline constexpr bool kKeeps = Format::kKept != Kept::kNothing;
template <class Format>
inline constexpr bool kKeepsAllHalves = Format::kKept == Kept::kLowerHalves && Format::kHeldParts == 0;
template <class Format>
inline constexpr bool kKeepsSome = Format::kKept == Kept::kLowerHalves && Format::kHeldParts > 0;
template <class Format>
inline constexpr bool kKeepsFirst = Format::kKept == Kept::kFirstLayer;
template <class Format>
inline constexpr bool kKeepsAllFirst = kKeepsFirst<Format> && Format::kHeldParts == 0;
/// Whether the L2 is told which masters to hold; then an item's tiles lie in one square of 2 x 2. Or to hold a share of their lines, by one
/// policy for all of them.
template <class Format>
inline constexpr bool kHolds = Format::kHeldParts > 0 && !Format::kWalks;
template <class Format>
inline constexpr bool kHoldsAShare = Format::kHeldParts > 1 && Format::kWalks;
/// Whether sweeps keep the place of their first item and work out those of others from it: where tiles are packed, and in 16 bits with all
/// that is kept or with slots.
template <class Format>
inline constexpr bool kPoints =
    Format::kPacks || (!Format::kWalks && !std::is_base_of_v<Tf32, Format> &&
                       (kHasSlots<Format> || (kKeeps<Format> && Format::kHeldParts == 0)));
/// Whether a kernel has code for joined logits, and whether the last layer then goes through the loop of all layers instead of code of its
/// own, so that in fp32 a step fits the instruction cache (docs/kernels/log/streamed.md).
template <int kGroups>
inline constexpr bool kJoins = kGroups == 1;
template <class Format, int kGroups>
inline constexpr bool kJoinsInLoop = kJoins<kGroups> && Format::kWalks;
/// kPanels: the tiles of all a kernel's panels, 0 for one that takes any. Whether an epilogue asks for biases and activations before its sweep instead of behind it, and the last layer for its own activations before
/// the wait: in kernels for panels of one tile, which have registers for it, but for fp32's.
template <class Format, int kPanels>
inline constexpr bool kAsksEarly = kPanels == 1 && !Format::kWalks;
static_assert(Bf16::kPanelTiles == 2 && Fp16::kPanelTiles == 2 && Tf32::kPanelTiles == 2);
template <class Format>
inline constexpr int kRingsBytes =
    !kKeeps<Format>                                           ? kRingBytes
    : kKeepsFirst<Format> && kHolds<Format> && Format::kPacks ? kPackedRingBytes
    : kKeepsFirst<Format> || kKeepsSome<Format>               ? kMiddleRingBytes
                                                              : kSmallRingBytes;
template <class Format>
inline constexpr int kWarpRingBytes = kRingsBytes<Format> / Format::kWarps;

/// A warp's ring of copies in flight, in stages of kWeightBytes of weights, kInputBytes of what meets them, and states of kSlotTiles tiles.
template <class Format, int kWeights, int kInputs, int kSlotTiles = 0>
struct Stages {
  static constexpr int kWeightBytes = kWeights, kInputBytes = kInputs, kSlotsAt = kWeights + kInputs,
                       kBytes = kSlotsAt + kSlotTiles * slots_of<Format>() * kSlotTileBytes;
  static constexpr int kCount = kSmaller<kMostStages, kWarpRingBytes<Format> / kBytes>;
  static constexpr bool kPoints = streamed::kPoints<Format>;
};

template <class Format>
MACHINE_DEVICE unsigned char* ring_of_warp(int warp) {
  return shared_memory() + (kKeeps<Format> ? 0 : kReductionBytes) + warp * kWarpRingBytes<Format>;
}
template <class Format>
MACHINE_DEVICE unsigned char* kept_memory() {
  return shared_memory() + kRingsBytes<Format>;
}
MACHINE_DEVICE float* reduction_memory() { return reinterpret_cast<float*>(shared_memory()); }
/// A panel's values on their way out: in the rings, which are idle then, and behind what the first warp holds where sums are added up.
template <class Format>
MACHINE_DEVICE float* values_memory() {
  return reinterpret_cast<float*>(shared_memory() + (kKeeps<Format> ? 2048 : kReductionBytes));
}
static_assert(kTileSide * kValuesPitch * 4 + 2048 <= kWarpRingBytes<Placed<Bf16, Kept::kLowerHalves, 0>> &&
              2 * kTileSide * kValuesPitch * 4 + 2048 <= kWarpRingBytes<Placed<Bf16, Kept::kLowerHalves, 1>>);

/// `kBytes`, a multiple of 512, by one warp.
template <int kBytes>
MACHINE_DEVICE void copy_by_warp(unsigned char* destination, const unsigned char* source, int lane) {
#pragma unroll
  for (int byte = 0; byte < kBytes; byte += 512)
    copy_async16(destination + byte + lane * 16, source + byte + lane * 16);
}

/// `kBytes`, a multiple of 16, by one warp; both places are this lane's.
template <int kBytes>
MACHINE_DEVICE void copy_to_lane(int place, std::uint64_t from, int lane) {
#pragma unroll
  for (int byte = 0; byte < kBytes; byte += 512)
    if (byte + 512 <= kBytes)
      copy_async16(place + byte, from + static_cast<std::uint64_t>(byte));
    else
      copy_async16_if(lane * 16 < kBytes - byte, place + byte, from + static_cast<std::uint64_t>(byte));
}

/// Where a lane's 16 bytes of a sweep's items come from, kept whole instead of worked out for each item.
struct Walk {
  std::uint64_t first = 0;
  int step = 0;  // bytes from an item to the next
  MACHINE_DEVICE void begin(const unsigned char* item, int lane, int bytes) {
    first = kept_whole(global_address(item) + static_cast<std::uint64_t>(lane * 16));
    step = bytes;
  }
  MACHINE_DEVICE std::uint64_t at(int i) const {
    return first + static_cast<std::uint64_t>(std::int64_t{i} * step);
  }
  /// The same in one instruction.
  MACHINE_DEVICE std::uint64_t at_unsigned(int i) const {
    return first + std::uint64_t{static_cast<std::uint32_t>(i)} * static_cast<std::uint32_t>(step);
  }
};
/// `kBytes`, a multiple of 512, by one warp; both places are this lane's.
template <int kBytes, bool kShareHeld = false>
MACHINE_DEVICE void copy_by_lanes(int destination, std::uint64_t source) {
#pragma unroll
  for (int byte = 0; byte < kBytes; byte += 512)
    if constexpr (kShareHeld)
      copy_async16_keep_sixteenth(destination + byte, source + static_cast<std::uint64_t>(byte));
    else
      copy_async16(destination + byte, source + static_cast<std::uint64_t>(byte));
}

/// The same for tiles of masters that are one item's, with hints if there are any.
template <class Format, int kBytes>
MACHINE_DEVICE void copy_masters(int destination, std::uint64_t source, bool held) {
  if constexpr (!kHolds<Format>) {
    copy_by_lanes<kBytes>(destination, source);
  } else if (held) {
#pragma unroll
    for (int byte = 0; byte < kBytes; byte += 512)
      copy_async16_evict_last(destination + byte,
                              reinterpret_cast<const void*>(source + static_cast<std::uint64_t>(byte)));
  } else {
#pragma unroll
    for (int byte = 0; byte < kBytes; byte += 512)
      copy_async16_evict_first(destination + byte,
                               reinterpret_cast<const void*>(source + static_cast<std::uint64_t>(byte)));
  }
}

/// Items of a sweep, a warp's own: begin(i) asks for what does not depend on a barrier, finish(i) for the rest and ends the
/// group, use(stage) works on it. prefetch() and run() are apart so that a barrier fits between them.
template <class Shape, class Begin>
MACHINE_DEVICE void prefetch(int count, const Begin& begin) {
#pragma unroll 1
  for (int i = 0; i < Shape::kCount - 1; ++i)
    if (i < count) begin(i, Shape::kPoints ? i * Shape::kBytes : i);
}
/// Where sweeps point, stages are numbered by their first byte.
template <class Shape, class Begin, class Finish, class Use>
MACHINE_DEVICE void run(int count, unsigned char* ring, const Begin& begin, const Finish& finish,
                        const Use& use) {
  constexpr int kAhead = Shape::kCount - 1;
  const auto ask = [&](int i, int stage) {
    if (i < count) finish(i, stage);
    copy_async_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kAhead; ++i) ask(i, Shape::kPoints ? i * Shape::kBytes : i);
  if constexpr (Shape::kPoints && kAhead > 0) {
    // The stage that is free is the one before.
    int place = 0, before = kAhead * Shape::kBytes;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      copy_async_wait<kAhead - 1>();
      warp_sync();
      if (i + kAhead < count) {
        begin(i + kAhead, before);
        finish(i + kAhead, before);
      }
      copy_async_commit();
      use(ring + place);
      before = place;
      place = place == kAhead * Shape::kBytes ? 0 : place + Shape::kBytes;
    }
  } else {
    int stage = 0, free_stage = kAhead;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      if constexpr (kAhead > 0) copy_async_wait<(kAhead > 0 ? kAhead - 1 : 0)>();
      warp_sync();  // all lanes' copies of this stage are there, and nobody reads the stage before any more
      if (i + kAhead < count) begin(i + kAhead, free_stage);
      ask(i + kAhead, free_stage);
      if constexpr (kAhead == 0) {
        copy_async_wait<0>();
        warp_sync();
      }
      use(ring + stage * Shape::kBytes);
      if (++stage == Shape::kCount) stage = 0;
      if (++free_stage == Shape::kCount) free_stage = 0;
    }
  }
  copy_async_wait<0>();
  warp_sync();
}

/// A thread's numbers, as bits.
struct ThreadNumbers {
  int warp, lane;
  MACHINE_DEVICE ThreadNumbers() {
    const auto thread = static_cast<std::uint32_t>(thread_index_here());
    warp = static_cast<int>(thread / 32), lane = static_cast<int>(thread % 32);
  }
};
/// Whether a panel's totals can come in the order in which its tiles lie in memory (Format::Totals), so that warps pack and store what they added up.
template <class Format, int kGroups, int kSplit>
inline constexpr bool kHasOrder = kGroups == 1 && kSplit == 1 && requires { Format::Totals::kTerms; };
/// Adds up what the warps hold, in the order of their numbers. With kSplit > 1 the first kWarps / kSplit warps hold other
/// features than the next. totals[i * kSplit + s]: of split s, what lanes of this number have as sum i * kWarps + warp.
/// Without kSync the caller sees to it that all have read before anybody asks for copies or adds up again.
template <class Format, int kSums, int kSplit, bool kSync, bool kOrdered>
MACHINE_DEVICE void sum_over_warps(const float (&sums)[kSums],
                                   float (&totals)[kSums / Format::kWarps * kSplit]) {
  constexpr int kWarps = Format::kWarps, kWarpsOfSplit = kWarps / kSplit,
                kAtOnce = kSmaller<kSums, kReductionBytes / (kWarps * 32 * 4)>;
  // A warp's own part of the memory, also where that is the beginning of its ring.
  constexpr int kPitch = kKeeps<Format> ? kWarpRingBytes<Format> / 4 : kAtOnce * 32;
  if constexpr (kOrdered) {
    using Totals = typename Format::Totals;
    const ThreadNumbers own;
    const int parts = shared_place(reduction_memory()), to = parts + own.warp * (kPitch * 4) + own.lane * 4,
              from = parts + Totals::place(own.warp, own.lane) * 4;
    // So many tiles together as there is room for.
    constexpr int kTogether = kKeeps<Format> ? kSums : 16;
#pragma unroll
    for (int first = 0; first < kSums; first += kTogether) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        store_shared_float((to ^ Totals::swizzle(i % 16) * 4) + i * 128, sums[first + i]);
      block_sync();  // all parts are written
#pragma unroll
      for (int u = 0; u < kTogether / 16; ++u) {
        float total[Totals::kChains] = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
          total[w % Totals::kChains] += load_shared_float(from + w * (kPitch * 4) + u * 2048);
        if constexpr (Totals::kChains == 1)
          totals[first / 16 + u] = total[0];
        else
          totals[first / 16 + u] = (total[0] + total[1]) + (total[2] + total[3]);
      }
      if (first + kTogether < kSums) block_sync();  // all parts are read
    }
    if (kSync) block_sync();  // all parts are read
    return;
  }
  const int thread = thread_index_here(), warp = thread / 32, lane = thread % 32;
  float* parts = reduction_memory();
#pragma unroll
  for (int first = 0; first < kSums; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) parts[warp * kPitch + i * 32 + lane] = sums[first + i];
    block_sync();  // all parts are written
#pragma unroll
    for (int i = 0; i < kAtOnce / kWarps; ++i)
#pragma unroll
      for (int split = 0; split < kSplit; ++split) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kWarpsOfSplit; ++w)
          total += parts[(split * kWarpsOfSplit + w) * kPitch + i * kWarps * 32 + thread];
        totals[(first / kWarps + i) * kSplit + split] = total;
      }
    if (kSync || first + kAtOnce < kSums) block_sync();  // all parts are read
  }
}

// ---- the grid's barriers

/// Everything this block wrote is visible to whoever waits for barrier `barrier`, counted from 0. `synced`: nobody has written anything
/// since the last block_sync(). Without one here the compiler no longer knows that a warp's lanes are together, which fp32 pays for.
template <class Format>
MACHINE_DEVICE void arrive(const Arguments& a, int barrier, bool synced = false) {
  if (Format::kWalks || !synced) block_sync();
  if (thread_index_here() == 0 && !(barrier == a.lost_barrier && member_index() == 0))
    add_release_gpu(a.counters + barrier % kBarrierCounters * kCounterSpacing, 1);
}
/// By one thread: waits for a barrier. False if that took too long: then everybody leaves.
MACHINE_DEVICE bool poll(const Arguments& a, int barrier) {
  const std::uint32_t* counter = a.counters + barrier % kBarrierCounters * kCounterSpacing;
  const auto expected = static_cast<std::uint32_t>(a.plan.members) *
                        (static_cast<std::uint32_t>(barrier) / kBarrierCounters + 1);
  std::uint64_t deadline = 0;
  // One acquire behind the polls: each of them would empty the L1.
  for (int polls = 1; static_cast<std::int32_t>(load_relaxed_gpu(counter) - expected) < 0; ++polls) {
    if (polls % 64 != 0) continue;
    if (deadline == 0) deadline = nanoseconds() + static_cast<std::uint64_t>(a.wait_nanoseconds);
    if (nanoseconds() > deadline)
      report_once(a.status, 1 + (static_cast<std::uint32_t>(barrier) & 0x7fff) +
                                (static_cast<std::uint32_t>(member_index()) << 16));
    if (load_relaxed_gpu(a.status) != 0) return false;
  }
  load_acquire_gpu(counter);
  return true;
}
/// Waits for a barrier, false if that took too long. The warp that arrived polls, while the others ask for what does not depend on the
/// barrier; it asks when it knows, as copies would be in the way of its polls.
template <class Format, class Ask>
MACHINE_DEVICE bool wait(const Arguments& a, int barrier, const Ask& ask) {
  const bool polls = warp_index<Format>() == 0;
  if (!polls) ask();
  const bool failed = block_sync_or_uniform(thread_index_here() == 0 && !poll(a, barrier));
  if (polls) ask();
  return !failed;
}
/// The same with nothing to ask for, polled by another warp than the one that may still be arriving at the next barrier.
MACHINE_DEVICE bool wait(const Arguments& a, int barrier) {
  return !block_sync_or_uniform(thread_index_here() == 32 && !poll(a, barrier));
}

// ---- what a thread block owns

struct Range {
  int begin, end;
};
MACHINE_DEVICE Range owned_tiles(const LayerPlan& layer) {
  const int begin = member_index() * layer.owned, end = begin + layer.owned;
  return {begin < layer.out_tiles ? begin : layer.out_tiles, end < layer.out_tiles ? end : layer.out_tiles};
}
template <class Format, int kGroups>
MACHINE_DEVICE std::int64_t output_offset(const LayerPlan& layer, int tile) {
  return (layer.first_output + tile) * (kGroups * Format::kActivationBytes);
}
template <class Format>
MACHINE_DEVICE std::int64_t weight_offset(const LayerPlan& layer, int out_tile, int in_tile) {
  return (layer.first_tile + std::int64_t{out_tile} * layer.in_tiles + in_tile) * Format::kMasterStride;
}
MACHINE_DEVICE std::int64_t tile_number(const LayerPlan& layer, int out_tile, int in_tile) {
  return layer.first_tile + std::int64_t{out_tile} * layer.in_tiles + in_tile;
}

/// By what parameters change in a step: a factor of the gradients, or with slots the optimizer's rule.
template <class Format>
MACHINE_DEVICE auto update_of_step(const Arguments& a) {
  if constexpr (kHasSlots<Format>) {
    const volatile int* words = words_of_warp();
    const StepNumbers numbers{bits_to_float(static_cast<std::uint32_t>(words[0])),
                              bits_to_float(static_cast<std::uint32_t>(words[1]))};
    StepRule<typename Format::Rule> rule{a.rule, numbers, a.inverse_loss_scale, true};
    if constexpr (!std::is_base_of_v<Fp16, Format>) rule.inverse_scale = 1;
    return rule;
  } else {
    return a.update_factor;
  }
}
/// What of it changes from step to step, on its way from memory to where update_of_step() finds it. Read before the first layer's
/// update, which belongs to the step before, and kept behind it.
template <class Format>
struct NextStep {
  MACHINE_DEVICE NextStep(const Arguments&, int /*done*/) {}
  MACHINE_DEVICE void begin() const {}
};
template <class Format>
  requires kHasSlots<Format>
struct NextStep<Format> {
  rules::UpdateFactors factors;
  MACHINE_DEVICE NextStep(const Arguments& a, int done) : factors(a.rule) {
    factors.rate = load_l2<true>(&a.factors[done].rate);
    factors.inverse_root = load_l2<true>(&a.factors[done].inverse_root);
  }
  MACHINE_DEVICE void begin() const {
    warp_sync();  // all lanes have read those of the step before
    volatile int* words = words_of_warp();
    const StepNumbers numbers = Format::Rule::of_step(factors);
    words[0] = static_cast<int>(float_to_bits(numbers.first));
    words[1] = static_cast<int>(float_to_bits(numbers.second));
    warp_sync();
  }
};
template <class Format, int kGroups>
MACHINE_DEVICE const unsigned char* inputs_of_batch(const Arguments& a, std::int64_t batch) {
  return a.inputs + batch * a.plan.input_tiles * (kGroups * Format::kActivationBytes);
}
MACHINE_DEVICE std::int64_t next_batch(const Arguments& a, std::int64_t batch) {
  return batch + 1 == a.batches ? 0 : batch + 1;
}

/// The values of a panel, [groups][features][33] in shared memory, as tiles.
template <class Format, int kTiles, int kGroups, bool kGradient>
MACHINE_DEVICE void store_panel(const float* values, unsigned char* tiles) {
  constexpr int kChunks = Format::kActivationBytes / 16;
  for (int index = thread_index_here(); index < kTiles * kGroups * kChunks; index += Format::kWarps * 32) {
    const int chunk = index % kChunks, tile = index / kChunks, group = tile % kGroups;
    const float* tile_values = values + (group * kTiles + tile / kGroups) * kTileSide * kValuesPitch;
    store_global16(tiles + tile * Format::kActivationBytes + chunk * 16,
                   Format::template chunk<kGradient>(tile_values, chunk));
  }
}
template <int kTiles>
MACHINE_DEVICE int value_index(Place place) {
  return (place.row / kGroupRows * kTiles * kTileSide + place.feature) * kValuesPitch +
         place.row % kGroupRows;
}

/// Asks for one part of a tile of masters, 512 bytes, to `byte` of a warp's ring; with hints by this lane's place there.
template <class Format>
MACHINE_DEVICE void ask_part(const Arguments& a, const LayerPlan& layer, int part, int out_tile, int in_tile,
                             unsigned char* ring, int place, int byte, int lane) {
  const unsigned char* source =
      a.masters.part[part] + weight_offset<Format>(layer, out_tile, in_tile) + lane * 16;
  if constexpr (!kHolds<Format> && Format::kPacks)
    copy_async16(place + byte, global_address(source));
  else if constexpr (!kHolds<Format>)
    copy_async16(ring + byte + lane * 16, source);
  else if (part < Format::kHeldParts && is_held(a.held, out_tile, in_tile))
    copy_async16_evict_last(place + byte, source);
  else
    copy_async16_evict_first(place + byte, source);
}
/// use(where the tile goes back to); with hints also for the others of an item, up to 2, which are all held or all not.
template <class Format, class Use>
MACHINE_DEVICE void with_destination(const Arguments& a, const LayerPlan& layer, int out_tile, int in_tile,
                                     const Use& use) {
  const std::int64_t offset = weight_offset<Format>(layer, out_tile, in_tile);
  if constexpr (kHolds<Format>) {
    use(HeldParts<Format::kHeldParts>{{a.masters.part[0] + offset, a.masters.part[1] + offset},
                                      is_held(a.held, out_tile, in_tile)});
  } else {
    unsigned char* const out[2] = {a.masters.part[0] + offset, a.masters.part[1] + offset};
    use(out);
  }
}

/// Asks for what meets an item's weights, behind them in its stage: by the walk, or from source() where places are worked out.
template <class Format, class Shape, class Source>
MACHINE_DEVICE void ask_what_meets(unsigned char* ring, int ring_place, const Walk& walk, int i, int stage,
                                   int lane, const Source& source) {
  if constexpr (Format::kWalks)
    copy_by_lanes<Shape::kInputBytes>(ring_place + stage * Shape::kBytes + Shape::kWeightBytes, walk.at(i));
  else if constexpr (kPoints<Format>)
    copy_to_lane<Shape::kInputBytes>(ring_place + stage + Shape::kWeightBytes, walk.at_unsigned(i), lane);
  else
    copy_by_warp<Shape::kInputBytes>(ring + stage * Shape::kBytes + Shape::kWeightBytes, source(), lane);
}

// ---- forward

template <class Format, int kTiles, int kGroups>
using ForwardStages =
    Stages<Format, kTiles * Format::kForwardParts * 512, kGroups * Format::kActivationBytes>;

/// One panel of outputs times a range of tiles of inputs, divided among the warps.
template <class Format, int kTiles, int kGroups>
struct ForwardSweep {
  using Shape = ForwardStages<Format, kTiles, kGroups>;
  using Sums = float[Format::template kForwardSums<kTiles, kGroups>];
  const Arguments& a;
  const LayerPlan& layer;
  const unsigned char* inputs;  // tiles of the layer below
  int tile, in_begin, count, warp, lane, ring_place = 0;
  unsigned char* ring;
  Walk weight_walk, input_walk;

  MACHINE_DEVICE ForwardSweep(const Arguments& arguments, const LayerPlan& its_layer,
                              const unsigned char* its_inputs, int first_tile, Range in)
      : a(arguments),
        layer(its_layer),
        inputs(its_inputs),
        tile(first_tile),
        in_begin(in.begin),
        warp(warp_index<Format>()),
        lane(thread_index_here() % 32),
        ring(ring_of_warp<Format>(warp)) {
    count = (in.end - in.begin - warp + Format::kWarps - 1) / Format::kWarps;
    if constexpr (kHolds<Format> || kPoints<Format>)
      ring_place = kept_by_lane(shared_place(ring) + lane * 16);
    if constexpr (Format::kWalks) ring_place = kept_whole(shared_place(ring) + lane * 16);
    if constexpr (Format::kWalks || kPoints<Format>) {
      weight_walk.begin(a.masters.part[0] + weight_offset<Format>(layer, tile, in_tile(0)), lane,
                        Format::kWarps * Format::kMasterStride);
      input_walk.begin(inputs + std::int64_t{in_tile(0)} * Shape::kInputBytes, lane,
                       Format::kWarps * Shape::kInputBytes);
    }
  }
  MACHINE_DEVICE int in_tile(int i) const { return in_begin + warp + Format::kWarps * i; }
  MACHINE_DEVICE void ask_weights(int i, int stage) const {
    if constexpr (Format::kWalks) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        copy_by_lanes<1024, kHoldsAShare<Format>>(
            ring_place + stage * Shape::kBytes + m * 1024,
            weight_walk.at(i) + static_cast<std::uint64_t>(m * layer.in_tiles) * 1024);
    } else if constexpr (kPoints<Format>) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        copy_masters<Format, Format::kForwardParts * 512>(
            ring_place + stage + m * (Format::kForwardParts * 512),
            weight_walk.at_unsigned(i) +
                static_cast<std::uint64_t>(m * layer.in_tiles) * Format::kMasterStride,
            kHolds<Format> && is_held(a.held, tile + m, in_tile(i)));
    } else {
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int p = 0; p < Format::kForwardParts; ++p)
          ask_part<Format>(a, layer, p, tile + m, in_tile(i), ring, ring_place,
                           stage * Shape::kBytes + (m * Format::kForwardParts + p) * 512, lane);
    }
  }
  MACHINE_DEVICE void ask_inputs(int i, int stage) const {
    ask_what_meets<Format, Shape>(ring, ring_place, input_walk, i, stage, lane,
                                  [&] { return inputs + std::int64_t{in_tile(i)} * Shape::kInputBytes; });
  }
  MACHINE_DEVICE void prefetch_weights() const {
    prefetch<Shape>(count, [&](int i, int stage) { ask_weights(i, stage); });
  }
  MACHINE_DEVICE void multiply(Sums& sums) const {
    run<Shape>(
        count, ring, [&](int i, int stage) { ask_weights(i, stage); },
        [&](int i, int stage) { ask_inputs(i, stage); },
        [&](unsigned char* stage) {
          Format::template forward<kTiles, kGroups>(sums, stage, stage + Shape::kWeightBytes, lane);
        });
  }
};

/// Which place a sum has: in fp32 the three kinds of sweeps divide a panel differently among lanes.
enum class Lanes { kForward, kPanel, kFirst };
template <class Format, int kTiles, int kGroups, Lanes kLanes>
MACHINE_DEVICE Place place_of_sum(int index, int lane) {
  if constexpr (kLanes == Lanes::kForward)
    return Format::template forward_place<kTiles, kGroups>(index, lane);
  else
    return Format::template panel_place<kTiles, kGroups, kLanes == Lanes::kFirst>(index, lane);
}

/// Of the totals of a panel, what the warps' sums come to, a thread has so many. Each has its place.
template <class Format, int kWarpTiles, int kSplit, int kGroups>
inline constexpr int kTotals = 16 * kWarpTiles * kGroups / Format::kWarps * kSplit;
template <class Format, int kWarpTiles, int kSplit, int kGroups, Lanes kLanes, bool kOrdered>
MACHINE_DEVICE Place place_of_total(int i, int warp, int lane) {
  if constexpr (kOrdered)
    return {Format::Totals::feature(warp, lane) + i * kTileSide, Format::Totals::row(warp, lane)};
  Place place = place_of_sum<Format, kWarpTiles, kGroups, kLanes>(i / kSplit * Format::kWarps + warp, lane);
  place.feature += i % kSplit * (kWarpTiles * kTileSide);
  return place;
}

/// The warps' sums of a panel, each total handed by one thread to use(place, total, found), where found = look(i, place) of its i-th
/// total was asked for before the sums are added up.
template <class Format, int kWarpTiles, int kSplit, int kGroups, Lanes kLanes, bool kSync, bool kOrdered,
          class Sums, class Look, class Use>
MACHINE_DEVICE void for_each_total(const Sums& sums, const Look& look, const Use& use) {
  constexpr int kSums = 16 * kWarpTiles * kGroups, kCount = kTotals<Format, kWarpTiles, kSplit, kGroups>;
  int warp, lane;
  if constexpr (kOrdered) {
    const ThreadNumbers own;
    warp = own.warp, lane = own.lane;
  } else {
    warp = warp_index<Format>(), lane = thread_index_here() % 32;
  }
  const auto place_of = [&](int i) {
    return place_of_total<Format, kWarpTiles, kSplit, kGroups, kLanes, kOrdered>(i, warp, lane);
  };
  decltype(look(0, Place{})) found[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) found[i] = look(i, place_of(i));
  float settled[kSums], totals[kCount];
  if constexpr (kLanes == Lanes::kForward)
    Format::template settle_forward<kWarpTiles, kGroups>(sums, settled, lane);
  else
    Format::template settle_panel<kWarpTiles, kGroups>(sums, settled, lane);
  sum_over_warps<Format, kSums, kSplit, kSync, kOrdered>(settled, totals);
#pragma unroll
  for (int i = 0; i < kCount; ++i) use(place_of(i), totals[i], found[i]);
}

/// Nothing asked for before a sweep. Without members, since arrays that nobody uses give fp32 other machine code.
struct AskedLate {
  MACHINE_DEVICE AskedLate(const Arguments&, const LayerPlan&, int) {}
};
/// The biases of a panel's totals, asked for before its sweep.
template <class Format, int kWarpTiles, int kSplit, int kGroups, Lanes kLanes>
struct EarlyBiases {
  float bias[kTotals<Format, kWarpTiles, kSplit, kGroups>];
  MACHINE_DEVICE EarlyBiases(const Arguments& a, const LayerPlan& layer, int tile) {
    const float* first = a.biases + layer.bias + tile * kTileSide;
    const int warp = warp_index<Format>(), lane = thread_index_here() % 32;
#pragma unroll
    for (int i = 0; i < kTotals<Format, kWarpTiles, kSplit, kGroups>; ++i)
      bias[i] = load_l2<true>(
          first +
          place_of_total<Format, kWarpTiles, kSplit, kGroups, kLanes, kHasOrder<Format, kGroups, kSplit>>(
              i, warp, lane)
              .feature);
  }
};
/// Whether an epilogue takes them so: in kernels for panels of one tile, and in all with packed tiles.
template <class Format, int kGroups, int kSplit, class Early>
inline constexpr bool kOrders =
    kHasOrder<Format, kGroups, kSplit> && (Format::kPacks || !std::is_same_v<Early, AskedLate>);
/// Sums of a panel of a hidden layer -> activations.
template <class Format, int kWarpTiles, int kSplit, int kGroups, Lanes kLanes, class Sums, class Early>
MACHINE_DEVICE void finish_activations(const Arguments& a, const LayerPlan& layer, int tile, const Sums& sums,
                                       const Early& early) {
  constexpr int kTiles = kWarpTiles * kSplit;
  const float* bias = a.biases + layer.bias + tile * kTileSide;
  constexpr bool kOrdered = kOrders<Format, kGroups, kSplit, Early>;
  float* values = values_memory<Format>();
  [[maybe_unused]] unsigned char* to = a.hidden + output_offset<Format, kGroups>(layer, tile);
  for_each_total<Format, kWarpTiles, kSplit, kGroups, kLanes, false, kOrdered>(
      sums,
      [&](int i, Place place) {
        if constexpr (std::is_same_v<Early, AskedLate>)
          return load_l2(bias + place.feature);
        else
          return early.bias[i];
      },
      [&](Place place, float total, float its_bias) {
        if constexpr (kOrdered)
          Format::Totals::store(relu(total + its_bias), to), to += Format::kActivationBytes;
        else
          values[value_index<kTiles>(place)] = relu(total + its_bias);
      });
  if constexpr (kOrdered) {
    block_sync();  // all parts are read
    return;
  }
  block_sync();  // all values are there
  store_panel<Format, kTiles, kGroups, false>(values, a.hidden + output_offset<Format, kGroups>(layer, tile));
  block_sync();  // and read
}

/// Sums of a panel of the last layer -> part `part` of the logits.
template <class Format, int kTiles, int kGroups, class Sums>
MACHINE_DEVICE void finish_logits(const Arguments& a, int part, int tile, const Sums& sums) {
  float* logits =
      a.logit_parts + std::int64_t{part} * (kGroups * kGroupRows) * a.plan.logit_columns + tile * kTileSide;
  for_each_total<Format, kTiles, 1, kGroups, Lanes::kForward, true, false>(
      sums, [](int, Place) { return 0; },
      [&](Place place, float total, int) {
        logits[std::int64_t{place.row} * a.plan.logit_columns + place.feature] = total;
      });
}

/// The thread block that keeps the bias of joined logits and the loss: the last, which at most widths owns the least.
MACHINE_DEVICE bool keeps_loss(const Arguments& a) { return member_index() == a.plan.members - 1; }

/// The same with joined logits: to the sums that all blocks share. The bias is in the part of the block that keeps it.
template <class Format, class Sums>
MACHINE_DEVICE void add_logits(const Arguments& a, const LayerPlan& layer, std::uint64_t* shared,
                               const Sums& sums) {
  const bool keeps = keeps_loss(a);
  for_each_total<Format, 1, 1, 1, Lanes::kForward, true, false>(
      sums, [&](int, Place place) { return keeps ? load_l2(a.biases + layer.bias + place.feature) : 0.0f; },
      [&](Place place, float total, float bias) {
        if (place.row >= a.plan.batch || place.feature >= a.plan.classes) return;
        const float part = total + bias;
        if (can_be_added(part))
          add_relaxed_gpu(shared + place.row * kTileSide + place.feature,
                          static_cast<std::uint64_t>(nearest_integer(part * kLogitUnits)));
        else
          add_relaxed_gpu(shared + kLogitSums, 1);
      });
}

/// Asks for a panel's weights: of a layer's first panel by `before`, which waits for what else it takes.
template <class Before, class Ask>
MACHINE_DEVICE bool ask_weights(bool ready, const Before& before, const Ask& ask) {
  if (!ready) return before(ask);
  ask();
  return true;
}

/// All panels of a layer's outputs that this block owns: activations, or logits of a wide last layer. `before` waits for the
/// inputs, and is given what asks for the first weights.
template <class Format, int kTiles, int kGroups, bool kEarly, class Before>
MACHINE_DEVICE bool forward_rows(const Arguments& a, const LayerPlan& layer, const unsigned char* inputs,
                                 bool logits, const Before& before) {
  using Sweep = ForwardSweep<Format, kTiles, kGroups>;
  const Range own = owned_tiles(layer);
  bool ready = false;
  for (int tile = own.begin; tile < own.end; tile += kTiles) {
    const Sweep sweep(a, layer, inputs, tile, {0, layer.in_tiles});
    const std::conditional_t<kEarly, EarlyBiases<Format, kTiles, 1, kGroups, Lanes::kForward>, AskedLate>
        early(a, layer, tile);
    if (!ask_weights(ready, before, [&] { sweep.prefetch_weights(); })) return false;
    ready = true;
    typename Sweep::Sums sums = {};
    sweep.multiply(sums);
    if (logits)
      finish_logits<Format, kTiles, kGroups>(a, 0, tile, sums);
    else
      finish_activations<Format, kTiles, 1, kGroups, Lanes::kForward>(a, layer, tile, sums, early);
  }
  return ready || before([] {});
}

/// A narrow last layer by own columns: this block's part of every logit. Nobody else's activations are needed.
template <class Format, int kGroups, bool kJoined>
MACHINE_DEVICE void forward_own_columns(const Arguments& a, const LayerPlan& layer, const LayerPlan& below,
                                        const unsigned char* inputs, std::uint64_t* shared) {
  const Range own = owned_tiles(below);
  using Sweep = ForwardSweep<Format, 1, kGroups>;
  const bool joined = kJoined && (Format::kPacks || a.plan.joined != 0);
  if (joined && own.begin == own.end && !keeps_loss(a)) return;
  for (int tile = 0; tile < layer.out_tiles; ++tile) {
    const Sweep sweep(a, layer, inputs, tile, own);
    sweep.prefetch_weights();
    typename Sweep::Sums sums = {};
    sweep.multiply(sums);
    if constexpr (kJoined) {
      if (joined) {
        add_logits<Format>(a, layer, shared, sums);
        continue;
      }
    }
    finish_logits<Format, 1, kGroups>(a, member_index(), tile, sums);
  }
}

/// Calls `function` with the panel as a constant: kPanels, if the kernel knows no other.
template <int kGroups, int kPanels, class Function>
MACHINE_DEVICE bool with_panel(int panel, const Function& function) {
  if constexpr (kPanels == 0 && kGroups == 1) {
    if (panel == 4) return function(std::integral_constant<int, 4>());
    if (panel == 2) return function(std::integral_constant<int, 2>());
  }
  return function(std::integral_constant<int, kPanels == 0 ? 1 : kPanels>());
}

// ---- loss

/// Of the parts of a logit.
template <class Format>
inline constexpr int kSlices = Format::kWarps * 32 / kTileSide;

MACHINE_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}
MACHINE_DEVICE float warp_maximum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value = fmaxf(value, shuffle_xor(value, distance));
  return value;
}

/// The parts of a row's logits, in slices by all threads, to shared memory [tiles of classes][kSlices][16].
template <class Format, int kGroups>
MACHINE_DEVICE void add_up_slices(const Arguments& a, int row, float* slices) {
  const int columns = a.plan.logit_columns, thread = thread_index_here();
  const std::int64_t part_stride = std::int64_t{kGroups * kGroupRows} * columns;
  for (int first = 0; first < columns; first += kTileSide) {
    const float* parts = a.logit_parts + std::int64_t{row} * columns + first + thread % kTileSide;
    float sum = 0;
#pragma unroll 5
    for (int part = thread / kTileSide; part < a.plan.logit_parts; part += kSlices<Format>)
      sum += load_l2(parts + part * part_stride);
    slices[first * kSlices<Format> + thread] = sum;
  }
}
/// Logit c, its slices in the order of their numbers: half of them by this lane, half by the one 16 further.
template <class Format>
MACHINE_DEVICE float add_up_logit(const float* slices, int tile, int lane) {
  constexpr int kHalf = kSlices<Format> / 2;
  const float* half = slices + tile * (kTileSide * 2 * kHalf) + lane / kTileSide * (kTileSide * kHalf);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) sum += half[i * kTileSide + lane % kTileSide];
  return sum + shuffle_xor(sum, kTileSide);
}

/// Softmax, loss and gradient of one row, by one warp; logit(c) gives a logit.
template <class Format, int kGroups, class Logit>
MACHINE_DEVICE void row_loss(const Arguments& a, const LayerPlan& layer, int row, std::int32_t label,
                             int lane, const Logit& logit) {
  float* bias_terms = a.bias_terms + std::int64_t{row} * a.plan.logit_columns;
  float largest = -INFINITY, sum = 0;
  for (int c = lane; c < a.plan.classes; c += 32) largest = fmaxf(largest, logit(c));
  largest = warp_maximum(largest);
  for (int c = lane; c < a.plan.classes; c += 32) sum += exponential_checked(logit(c) - largest);
  sum = warp_sum(sum);
  for (int c = lane; c < a.plan.classes; c += 32) {
    const float probability = divide_checked(exponential_checked(logit(c) - largest), sum);
    const float gradient = (probability - (c == label ? 1.0f : 0.0f)) * a.gradient_scale;
    unsigned char* tile = a.gradients + output_offset<Format, kGroups>(layer, c / kTileSide) +
                          row / kGroupRows * Format::kActivationBytes;
    Format::store_gradient(tile, row % kGroupRows, c % kTileSide, gradient);
    bias_terms[c] = Format::bias_term(gradient);
    if (c == label) a.row_losses[row] = logarithm_checked(sum) - (logit(c) - largest);
  }
}

/// The same of one row's targets.
template <class Format, int kGroups, class Logit>
MACHINE_DEVICE void row_loss_of_targets(const Arguments& a, const LayerPlan& layer, int row,
                                        const float* targets, int lane, const Logit& logit) {
  float loss = 0;
  for (int c = lane; c < a.plan.classes; c += 32) {
    const rules::LossTerm term = rules::loss_term(Format::kLoss, logit(c), targets[c]);
    const float gradient = term.gradient * a.gradient_scale;
    unsigned char* tile = a.gradients + output_offset<Format, kGroups>(layer, c / kTileSide) +
                          row / kGroupRows * Format::kActivationBytes;
    Format::store_gradient(tile, row % kGroupRows, c % kTileSide, gradient);
    a.bias_terms[std::int64_t{row} * a.plan.logit_columns + c] = Format::bias_term(gradient);
    loss += term.loss;
  }
  loss = warp_sum(loss);
  if (lane == 0) a.row_losses[row] = loss / static_cast<float>(a.plan.classes);
}

template <class Format, int kGroups>
MACHINE_DEVICE void rows_of_loss(const Arguments& a, std::int64_t batch) {
  const LayerPlan& layer = a.plan.layer[a.plan.layers - 1];
  const int columns = a.plan.logit_columns, lane = thread_index_here() % 32;
  const std::int32_t* labels = a.labels + batch * a.plan.batch;
  const float* bias = a.biases + layer.bias;
  float* slices = reduction_memory();
  float* logits = slices + kNarrowTiles * kTileSide * kSlices<Format>;
  for (int row = member_index(); row < a.plan.batch; row += a.plan.members) {
    [[maybe_unused]] std::int32_t label = 0;
    if constexpr (!has_targets<Format>()) label = labels[row];
    const auto finish_row = [&](const auto& logit) {
      if constexpr (has_targets<Format>())
        row_loss_of_targets<Format, kGroups>(
            a, layer, row, a.targets + (batch * a.plan.batch + row) * a.plan.classes, lane, logit);
      else
        row_loss<Format, kGroups>(a, layer, row, label, lane, logit);
    };
    if (a.plan.narrow) add_up_slices<Format, kGroups>(a, row, slices);
    block_sync();  // the slices are there
    if (warp_index<Format>() == 0) {
      if (a.plan.narrow) {
        for (int tile = 0; tile < layer.out_tiles; ++tile) {
          const float own_bias = load_l2(bias + tile * kTileSide + lane % kTileSide);
          logits[tile * kTileSide + lane % kTileSide] = add_up_logit<Format>(slices, tile, lane) + own_bias;
        }
        warp_sync();
        finish_row([&](int c) { return logits[c]; });
      } else {
        const float* part = a.logit_parts + std::int64_t{row} * columns;
        finish_row([&](int c) { return load_l2(part + c) + load_l2(bias + c); });
      }
    }
    block_sync();  // and read
  }
}

/// Joined logits: the gradients of a batch's logits that one thread makes, of all 32 rows and 16 classes. Every block makes all of them.
template <class Format>
struct OwnLogits {
  static constexpr int kRows = Format::kWarps * 2, kCount = kGroupRows / kRows;
  float gradient[kCount];
  MACHINE_DEVICE static int row(int i) { return i * kRows + thread_index_here() / kTileSide; }
  MACHINE_DEVICE static int column() { return thread_index_here() % kTileSide; }
};

/// What a thread's output of a row is compared with: the row's label, or the output's target.
template <class Format>
using Target = std::conditional_t<has_targets<Format>(), float, std::int32_t>;
/// The loss over targets of all rows, as joined_loss().
template <class Format>
MACHINE_DEVICE void joined_loss_of_targets(const Arguments& a,
                                           const float (&targets)[OwnLogits<Format>::kCount],
                                           const std::uint64_t* shared, OwnLogits<Format>& own) {
  const int c = OwnLogits<Format>::column();
  std::int64_t found[OwnLogits<Format>::kCount];
#pragma unroll
  for (int i = 0; i < own.kCount; ++i) found[i] = load_l2(shared + own.row(i) * kTileSide + c);
  const bool broken = load_l2(shared + kLogitSums) != 0;
#pragma unroll
  for (int i = 0; i < own.kCount; ++i) {
    const int row = own.row(i);
    const bool real = row < a.plan.batch && c < a.plan.classes;
    const rules::LossTerm term =
        rules::loss_term(Format::kLoss, broken ? NAN : logit_of(found[i]), targets[i]);
    const float gradient = term.gradient * a.gradient_scale;
    own.gradient[i] = real ? gradient : 0.0f;
    if (!keeps_loss(a)) continue;
    float loss = real ? term.loss : 0.0f;
#pragma unroll
    for (int distance = kTileSide / 2; distance > 0; distance /= 2) loss += shuffle_xor(loss, distance);
    if (!real) continue;
    a.bias_terms[row * kTileSide + c] = Format::bias_term(gradient);
    if (c == 0) a.row_losses[row] = loss / static_cast<float>(a.plan.classes);
  }
}

/// Softmax, loss and gradient of all rows, half a warp a row. What a bias and the mean loss are added up from goes to memory, by one block.
template <class Format>
MACHINE_DEVICE void joined_loss(const Arguments& a, const Target<Format> (&labels)[OwnLogits<Format>::kCount],
                                const std::uint64_t* shared, OwnLogits<Format>& own) {
  if constexpr (has_targets<Format>()) return joined_loss_of_targets<Format>(a, labels, shared, own);
  const int c = OwnLogits<Format>::column();
  std::int64_t found[OwnLogits<Format>::kCount];
#pragma unroll
  for (int i = 0; i < own.kCount; ++i) found[i] = load_l2(shared + own.row(i) * kTileSide + c);
  const bool broken = load_l2(shared + kLogitSums) != 0;
#pragma unroll
  for (int i = 0; i < own.kCount; ++i) {
    const int row = own.row(i);
    const float logit = c >= a.plan.classes ? -INFINITY : broken ? NAN : logit_of(found[i]);
    float largest = logit;
#pragma unroll
    for (int distance = kTileSide / 2; distance > 0; distance /= 2)
      largest = fmaxf(largest, shuffle_xor(largest, distance));
    const float power = exponential_checked(logit - largest);
    float sum = power;
#pragma unroll
    for (int distance = kTileSide / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    const bool real = row < a.plan.batch && c < a.plan.classes;
    const float gradient = (divide_checked(power, sum) - (c == labels[i] ? 1.0f : 0.0f)) * a.gradient_scale;
    own.gradient[i] = real ? gradient : 0.0f;
    if (keeps_loss(a) && real) {
      a.bias_terms[row * kTileSide + c] = Format::bias_term(gradient);
      if (c == labels[i]) a.row_losses[row] = logarithm_checked(sum) - (logit - largest);
    }
  }
}

/// The batch's mean loss, and the bias of the last layer: sums over rows in a fixed order, a warp each; by all blocks, or with
/// joined logits by the one that keeps them.
template <class Format>
MACHINE_DEVICE void finish_loss(const Arguments& a, std::int64_t step, bool joined) {
  constexpr int kWarps = Format::kWarps;
  if (joined && !keeps_loss(a)) return;
  const LayerPlan& layer = a.plan.layer[a.plan.layers - 1];
  const int lane = thread_index_here() % 32;
  const int first = (joined ? 0 : member_index() * kWarps) + warp_index<Format>();
  const int warps = (joined ? 1 : a.plan.members) * kWarps;
  for (int c = first; c < a.plan.classes; c += warps) {
    float sum = 0;
    for (int row = lane; row < a.plan.batch; row += 32)
      sum += load_l2(a.bias_terms + std::int64_t{row} * a.plan.logit_columns + c);
    sum = warp_sum(sum);
    float* bias = a.biases + layer.bias + c;
    if constexpr (kHasSlots<Format>) {
      BiasStates<Format, 1> states(a, bias, 0);
      if (lane == 0) states.update(a, bias, 0, update_of_step<Format>(a), sum, load_l2(bias));
    } else {
      if (lane == 0) *bias = fmaf(a.update_factor, sum, load_l2(bias));
    }
  }
  if (first == warps - 1) {
    float sum = 0;
    for (int row = lane; row < a.plan.batch; row += 32) sum += load_l2(a.row_losses + row);
    sum = warp_sum(sum);
    if (lane == 0) a.losses[step & (a.loss_slots - 1)] = sum / static_cast<float>(a.plan.batch);
  }
}

// ---- backward

template <class Format, int kTiles, int kGroups, bool kKept>
using BackwardStages =
    Stages<Format, kTiles*(kKept ? 512 : 1024), kGroups * Format::kActivationBytes, kTiles>;

/// The kept lower half of a tile whose column this block owns.
template <class Format>
MACHINE_DEVICE unsigned char* kept_tile(const LayerPlan& layer, const LayerPlan& below, int out_tile,
                                        int in_tile) {
  return kept_memory<Format>() + layer.kept +
         ((in_tile - member_index() * below.owned) * layer.out_tiles + out_tile) * 512;
}
/// The same where some are kept: those of a warp's kept items, neighbours in memory.
template <class Format>
MACHINE_DEVICE unsigned char* kept_tile_of_item(const LayerPlan& below, int before, int first_out,
                                                int in_tile) {
  return kept_memory<Format>() +
         ((before * kItemWarps + first_out) * below.owned + in_tile - member_index() * below.owned) * 512;
}
/// All of them: use(where in memory, where kept), 16 bytes each.
template <class Format, class Use>
MACHINE_DEVICE void for_kept_halves(const Arguments& a, const Use& use) {
  const int warp = thread_index_here() / 32, lane = thread_index_here() % 32;
  for (int index = 1; index < a.plan.layers - 1; ++index) {
    const LayerPlan &layer = a.plan.layer[index], &below = a.plan.layer[index - 1];
    if (layer.kept < 0) continue;
    const Range own = owned_tiles(below);
    for (int in_tile = own.begin; in_tile < own.end; ++in_tile)
      for (int out_tile = warp; out_tile < layer.out_tiles; out_tile += Format::kWarps) {
        if constexpr (kKeepsSome<Format>) {
          const int item = out_tile / kItemWarps, share = a.plan.kept_part;
          if (is_kept(share, item))
            use(a.masters.part[1] + weight_offset<Format>(layer, out_tile, in_tile) + lane * 16,
                kept_tile_of_item<Format>(below, kept_before(share, item), out_tile % kItemWarps, in_tile) +
                    lane * 16);
        } else {
          use(a.masters.part[1] + weight_offset<Format>(layer, out_tile, in_tile) + lane * 16,
              kept_tile<Format>(layer, below, out_tile, in_tile) + lane * 16);
        }
      }
  }
}

/// A tile of the first layer's masters that is kept.
template <class Format>
MACHINE_DEVICE unsigned char* kept_first_tile(const LayerPlan& layer, int out_tile, int in_tile) {
  return kept_memory<Format>() + (in_tile * layer.owned + out_tile - member_index() * layer.owned) * 1024;
}
/// All of them, as above.
template <class Format, class Use>
MACHINE_DEVICE void for_kept_first_tiles(const Arguments& a, const Use& use) {
  const int warp = thread_index_here() / 32, lane = thread_index_here() % 32;
  const LayerPlan& layer = a.plan.layer[0];
  const Range own = owned_tiles(layer);
  for (int out_tile = own.begin; out_tile < own.end; ++out_tile)
    for (int in_tile = warp; in_tile < a.plan.kept_part; in_tile += Format::kWarps)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        use(a.masters.part[p] + weight_offset<Format>(layer, out_tile, in_tile) + lane * 16,
            kept_first_tile<Format>(layer, out_tile, in_tile) + p * 512 + lane * 16);
}

/// All outputs of a layer against one panel of its inputs: kSplit times kTiles tiles, kWarps / kSplit warps for each.
template <class Format, int kTiles, int kSplit, int kGroups, bool kKept>
struct BackwardSweep {
  static constexpr int kSweepWarps = Format::kWarps / kSplit;
  using Shape = BackwardStages<Format, kTiles, kGroups, kKept>;
  using Sums = float[Format::template kPanelSums<kTiles, kGroups>];
  using Own = typename Format::template Own<kTiles, kGroups>;
  const Arguments& a;
  const LayerPlan& layer;
  int tile, first_out, count, lane, ring_place = 0;  // tile: this warp's first tile of inputs
  int share = 0;                                     // of 256 items, those whose lower halves are kept
  unsigned char* ring;
  Walk weight_walk, gradient_walk;

  MACHINE_DEVICE BackwardSweep(const Arguments& arguments, const LayerPlan& its_layer, int panel_tile)
      : a(arguments), layer(its_layer), lane(thread_index_here() % 32) {
    const int warp = warp_index<Format>();
    ring = ring_of_warp<Format>(warp);
    tile = panel_tile + warp / kSweepWarps * kTiles;
    first_out = warp % kSweepWarps;
    count = (layer.out_tiles - first_out + kSweepWarps - 1) / kSweepWarps;
    static_assert(!kKeepsSome<Format> || kSweepWarps == kItemWarps);
    if constexpr (kKeepsSome<Format>) share = layer.kept < 0 ? 0 : a.plan.kept_part;
    if constexpr (kHolds<Format> || kPoints<Format> || kHasSlots<Format>)
      ring_place = kept_by_lane(shared_place(ring) + lane * 16);
    if constexpr (Format::kWalks) ring_place = kept_whole(shared_place(ring) + lane * 16);
    if constexpr (Format::kWalks || kPoints<Format>) {
      weight_walk.begin(a.masters.part[0] + weight_offset<Format>(layer, first_out, tile), lane,
                        kSweepWarps * layer.in_tiles * Format::kMasterStride);
      gradient_walk.begin(a.gradients + output_offset<Format, kGroups>(layer, first_out), lane,
                          kSweepWarps * Shape::kInputBytes);
    }
  }
  MACHINE_DEVICE int out_tile(int i) const { return first_out + kSweepWarps * i; }
  MACHINE_DEVICE std::int64_t tile_of_item(int i) const {
    if constexpr (kPoints<Format>)
      return tile_number(layer, first_out, tile) + std::int64_t{i} * (kSweepWarps * layer.in_tiles);
    else
      return tile_number(layer, out_tile(i), tile);
  }
  MACHINE_DEVICE unsigned char* masters_of_item(int part, int i) const {
    return a.masters.part[part] + weight_offset<Format>(layer, first_out, tile) +
           std::uint64_t{static_cast<std::uint32_t>(i)} * static_cast<std::uint32_t>(weight_walk.step);
  }
  MACHINE_DEVICE void ask_weights(int i, int stage) const {
    if constexpr (Format::kWalks) {
      copy_by_lanes<Shape::kWeightBytes, kHoldsAShare<Format>>(ring_place + stage * Shape::kBytes,
                                                               weight_walk.at(i));
    } else if constexpr (kPoints<Format>) {
      copy_masters<Format, kKept ? 512 : Format::kMasterStride * kTiles>(
          ring_place + stage, weight_walk.at_unsigned(i),
          kHolds<Format> && is_held(a.held, out_tile(i), tile));
      if constexpr (!kKept && Format::kMasterStride == 512)  // the second parts lie elsewhere
        ask_part<Format>(a, layer, 1, out_tile(i), tile, ring, ring_place, stage + 512, lane);
    } else {
#pragma unroll
      for (int u = 0; u < kTiles; ++u)
#pragma unroll
        for (int p = 0; p < (kKept ? 1 : 2); ++p) {
          if constexpr (kKeepsSome<Format>)
            if (p == 1 && is_kept(share, i)) continue;
          ask_part<Format>(a, layer, p, out_tile(i), tile + u, ring, ring_place,
                           stage * Shape::kBytes + u * 1024 + p * 512, lane);
        }
    }
    if constexpr (kHasSlots<Format>)
      ask_slots<Format, kTiles>(
          a, tile_of_item(i), 1,
          ring_place + (kPoints<Format> ? stage : stage * Shape::kBytes) + Shape::kSlotsAt, lane);
  }
  MACHINE_DEVICE void ask_gradients(int i, int stage) const {
    ask_what_meets<Format, Shape>(ring, ring_place, gradient_walk, i, stage, lane, [&] {
      return a.gradients + output_offset<Format, kGroups>(layer, out_tile(i));
    });
  }
  MACHINE_DEVICE void prefetch_weights() const {
    prefetch<Shape>(count, [&](int i, int stage) { ask_weights(i, stage); });
  }
  /// Joined logits' gradients to where a copy would have brought them: the only item of a sweep, in the first stage of its warp.
  MACHINE_DEVICE void put_gradients(const OwnLogits<Format>& own) const {
    const auto place = [](int split) {
      return ring_of_warp<Format>(split * kSweepWarps) + Shape::kWeightBytes;
    };
    if constexpr (Format::kPacks) {
      // By way of the ring of a warp that has no item.
      float* values = reinterpret_cast<float*>(ring_of_warp<Format>(1));
#pragma unroll
      for (int i = 0; i < own.kCount; ++i) values[own.column() * kValuesPitch + own.row(i)] = own.gradient[i];
      block_sync();  // all values are there
      constexpr int kChunks = Format::kActivationBytes / 16;
      const int thread = thread_index_here();
      if (thread < kSplit * kChunks)
        store_shared16(place(thread / kChunks) + thread % kChunks * 16,
                       Format::template chunk<true>(values, thread % kChunks));
    } else {
#pragma unroll
      for (int split = 0; split < kSplit; ++split)
#pragma unroll
        for (int i = 0; i < own.kCount; ++i)
          Format::store_gradient(place(split), own.row(i), own.column(), own.gradient[i]);
    }
    block_sync();  // they are there
  }
  template <bool kEarly>
  MACHINE_DEVICE void load_own(Own& x, const LayerPlan& below) const {
    Format::template load_own<kTiles, kGroups, kEarly>(
        x, a.hidden + output_offset<Format, kGroups>(below, tile), lane);
  }
  /// `x` has been loaded. With joined logits their gradients are there, and there is one item at most; with `put` they are there as well.
  template <bool kJoined>
  MACHINE_DEVICE void multiply_and_update(Sums& sums, const LayerPlan& below, const Own& x, bool put) const {
    int i = 0;
    auto places = [&] {
      if constexpr (Format::kWalks)
        return typename Format::template Places<kTiles, kGroups>(
            ring, Shape::kWeightBytes, a.masters.part[0] + weight_offset<Format>(layer, first_out, tile),
            weight_walk.step, lane);
      else
        return 0;
    }();
    Walk back;
    if constexpr (Format::kPacks && kTiles == 1) {
      back.first =
          kept_whole(weight_walk.first + static_cast<std::uint64_t>(Format::bytes_across(lane) - lane * 16));
      back.step = weight_walk.step;
    }
    const auto use = [&](unsigned char* stage) {
      if constexpr (kHasSlots<Format>) {
        const auto by = update_of_step<Format>(a);
        const ItemSlots<Format> slots(a, by, stage + Shape::kSlotsAt, tile_of_item(i));
        if constexpr (Format::kWalks)
          Format::template backward<kTiles, kGroups, kHoldsAShare<Format>>(
              sums, x, places, static_cast<int>(stage - ring), slots, lane);
        else
          with_destination<Format>(a, layer, out_tile(i), tile, [&](const auto& out) {
            Format::template backward<kTiles, kGroups>(sums, x, stage, stage + Shape::kWeightBytes, out,
                                                       Format::kMasterStride, slots, lane);
          });
      } else if constexpr (Format::kWalks) {
        Format::template backward<kTiles, kGroups, kHoldsAShare<Format>>(
            sums, x, places, static_cast<int>(stage - ring), a.update_factor, lane);
      } else if constexpr (kPoints<Format>) {
        if constexpr (kKept) {
          // Pointers into the masters, so that the compiler knows where they point.
          unsigned char* const low =
              kept_tile<Format>(layer, below, first_out, tile) + i * (kSweepWarps * 512);
          unsigned char* const out[2] = {masters_of_item(0, i), low};
          Format::template backward<kTiles, kGroups>(sums, x, stage, low, 1024, stage + Shape::kWeightBytes,
                                                     out, Format::kMasterStride, a.update_factor, lane);
        } else if constexpr (!Format::kPacks) {
          unsigned char* const out[2] = {masters_of_item(0, i), masters_of_item(1, i)};
          Format::template backward<kTiles, kGroups>(sums, x, stage, stage + Shape::kWeightBytes, out,
                                                     Format::kMasterStride, a.update_factor, lane);
        } else {
          const OwnPlace<kHolds<Format>> out{
              kTiles == 1
                  ? back.at_unsigned(i)
                  : weight_walk.at_unsigned(i) +
                        static_cast<std::uint64_t>(std::int64_t{Format::bytes_across(lane) - lane * 16}),
              kHolds<Format> && is_held(a.held, out_tile(i), tile)};
          Format::template backward<kTiles, kGroups>(sums, x, stage, stage + Shape::kWeightBytes, out,
                                                     Format::kMasterStride, a.update_factor, lane);
        }
      } else if constexpr (kKept) {
        const std::int64_t offset = weight_offset<Format>(layer, out_tile(i), tile);
        unsigned char* const low = kept_tile<Format>(layer, below, out_tile(i), tile);
        unsigned char* const out[2] = {a.masters.part[0] + offset, low};
        Format::template backward<kTiles, kGroups>(sums, x, stage, low, 1024, stage + Shape::kWeightBytes,
                                                   out, Format::kMasterStride, a.update_factor, lane);
      } else if constexpr (kKeepsSome<Format> && !kJoined) {
        const bool kept = is_kept(share, i);
        const int low =
            shared_place(kept_tile_of_item<Format>(below, kept_before(share, i), first_out, tile));
        with_destination<Format>(a, layer, out_tile(i), tile, [&](const auto& out) {
          const MaybeKept<std::remove_cvref_t<decltype(out)>, 1> both{out, low, kept};
          Format::template backward<kTiles, kGroups>(sums, x, stage, kept ? low : shared_place(stage) + 512,
                                                     kept ? 512 : 1024, stage + Shape::kWeightBytes, both,
                                                     Format::kMasterStride, a.update_factor, lane);
        });
      } else {
        with_destination<Format>(a, layer, out_tile(i), tile, [&](const auto& out) {
          Format::template backward<kTiles, kGroups>(sums, x, stage, stage + Shape::kWeightBytes, out,
                                                     Format::kMasterStride, a.update_factor, lane);
        });
      }
      ++i;
    };
    if constexpr (kJoined) {
      copy_async_commit();
      copy_async_wait<0>();
      warp_sync();
      if (count > 0) use(ring);
      if constexpr (kKeeps<Format>) warp_sync();  // the item is read: sums are written where the ring begins
    } else {
      run<Shape>(
          count, ring, [&](int item, int stage) { ask_weights(item, stage); },
          [&](int item, int stage) {
            if (!put) ask_gradients(item, stage);
          },
          use);
    }
  }
};

template <class Format, int kGroups, bool kEarly>
MACHINE_DEVICE auto activation_at(const unsigned char* tiles, Place place) {
  return Format::template activation<kEarly>(
      tiles + (place.feature / kTileSide * kGroups + place.row / kGroupRows) * Format::kActivationBytes,
      place.row % kGroupRows, place.feature % kTileSide);
}
/// What a panel's gradient takes from memory besides the sums, asked for before the sweep: the biases that a warp updates, and the
/// activations of a thread's totals.
template <class Format, int kTiles, int kSplit, int kGroups>
struct EarlyBelow {
  static constexpr int kOfWarp = kTiles * kSplit * kTileSide / Format::kWarps,
                       kCount = kTotals<Format, kTiles, kSplit, kGroups>;
  float bias[kOfWarp];
  decltype(activation_at<Format, kGroups, true>(nullptr, Place{})) activation[kCount];
  MACHINE_DEVICE EarlyBelow(const Arguments& a, const LayerPlan& below, int tile) {
    const int warp = warp_index<Format>(), lane = thread_index_here() % 32;
    const float* first = a.biases + below.bias + tile * kTileSide +
                         (kHasOrder<Format, kGroups, kSplit> ? lane % kTileSide : warp);
    const unsigned char* tiles = a.hidden + output_offset<Format, kGroups>(below, tile);
#pragma unroll
    for (int i = 0; i < kOfWarp; ++i) bias[i] = load_l2<true>(first + i * Format::kWarps);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      activation[i] = activation_at<Format, kGroups, true>(
          tiles,
          place_of_total<Format, kTiles, kSplit, kGroups, Lanes::kPanel, kHasOrder<Format, kGroups, kSplit>>(
              i, warp, lane));
  }
};
/// Sums of a panel of the layer below -> its gradient, masked, and its bias updated.
template <class Format, int kTiles, int kSplit, int kGroups, class Sums, class Early>
MACHINE_DEVICE void finish_gradients(const Arguments& a, const LayerPlan& below, int tile, const Sums& sums,
                                     const Early& early) {
  constexpr bool kLate = std::is_same_v<Early, AskedLate>;
  constexpr int kPanel = kTiles * kSplit, kWarps = Format::kWarps, kOfWarp = kPanel * kTileSide / kWarps;
  const int warp = warp_index<Format>(), lane = thread_index_here() % 32;
  const std::int64_t offset = output_offset<Format, kGroups>(below, tile);
  constexpr bool kOrdered = kOrders<Format, kGroups, kSplit, Early>;
  float* bias = a.biases + below.bias + tile * kTileSide + (kOrdered ? lane % kTileSide : warp);
  float* values = values_memory<Format>();
  float old_bias[kOfWarp];
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i)
    if constexpr (kLate)
      old_bias[i] = load_l2(bias + i * kWarps);
    else
      old_bias[i] = early.bias[i];
  [[maybe_unused]] BiasStates<Format, kOfWarp> states(a, bias, kWarps);
  if constexpr (kOrdered) {
    // What a bias is updated by: over a lane's and its neighbours' rows, and in the ring of the warp that updates biases over kTerms of these.
    using Totals = typename Format::Totals;
    const ThreadNumbers own;
    constexpr int kLast = kWarps - 1;
    float* terms = reinterpret_cast<float*>(ring_of_warp<Format>(kLast) + 2048 * kTiles);
    static_assert((2048 + Totals::kTerms * kTileSide * 4) * kTiles <= kWarpRingBytes<Format>);
    unsigned char* to = a.gradients + offset;
    for_each_total<Format, kTiles, kSplit, kGroups, Lanes::kPanel, false, true>(
        sums,
        [&](int i, Place place) {
          if constexpr (kLate)
            return activation_at<Format, kGroups, false>(a.hidden + offset, place);
          else
            return early.activation[i];
        },
        [&](Place place, float total, auto activation) {
          const float value = Format::positive(activation) ? Format::bias_term(total) : 0.0f;
          Totals::store(value, to), to += Format::kActivationBytes;
          const float sum = Totals::sum_of_neighbours(value);
          if (Totals::has_term(own.lane))
            terms[Totals::term(own.warp, own.lane) * (kTiles * kTileSide) + place.feature] = sum;
        });
    block_sync();  // all parts are read, all terms are there
    if (own.warp == kLast) {
#pragma unroll
      for (int u = 0; u < kTiles; ++u) {
        const float sum =
            Totals::sum_of_terms(terms + u * kTileSide + (own.lane & 15), kTiles * kTileSide, own.lane);
        if constexpr (kHasSlots<Format>) {
          if (own.lane < kTileSide)
            states.update(a, bias + u * kWarps, u, update_of_step<Format>(a), sum, old_bias[u]);
        } else {
          if (own.lane < kTileSide)
            a.biases[below.bias + (tile + u) * kTileSide + own.lane] =
                fmaf(a.update_factor, sum, old_bias[u]);
        }
      }
      warp_sync();
    }
    return;
  }
  for_each_total<Format, kTiles, kSplit, kGroups, Lanes::kPanel, false, false>(
      sums,
      [&](int i, Place place) {
        if constexpr (kLate)
          return activation_at<Format, kGroups, false>(a.hidden + offset, place);
        else
          return early.activation[i];
      },
      [&](Place place, float total, auto activation) {
        values[value_index<kPanel>(place)] = Format::positive(activation) ? Format::bias_term(total) : 0.0f;
      });
  block_sync();  // all values are there
  store_panel<Format, kPanel, kGroups, true>(values, a.gradients + offset);
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      sum += values[(group * kPanel * kTileSide + warp + i * kWarps) * kValuesPitch + lane];
    sum = warp_sum(sum);
    if constexpr (kHasSlots<Format>) {
      if (lane == 0) states.update(a, bias + i * kWarps, i, update_of_step<Format>(a), sum, old_bias[i]);
    } else {
      if (lane == 0) bias[i * kWarps] = fmaf(a.update_factor, sum, old_bias[i]);
    }
  }
  block_sync();  // and read
}

/// All panels of the layer below that this block owns. `before` waits for the gradients; with kJoined, or if `put`, it
/// leaves the gradients of the logits in `own_logits`.
template <class Format, int kPanel, int kGroups, bool kEarly, bool kKept, bool kJoined, class Before>
MACHINE_DEVICE bool backward(const Arguments& a, const LayerPlan& layer, const LayerPlan& below,
                             const OwnLogits<Format>& own_logits, const Before& before, bool put = false) {
  constexpr int kTiles = kSmaller<kPanel, Format::kPanelTiles>, kSplit = kPanel / kTiles;
  using Sweep = BackwardSweep<Format, kTiles, kSplit, kGroups, kKept>;
  const Range own = owned_tiles(below);
  bool ready = false;
  for (int tile = own.begin; tile < own.end; tile += kPanel) {
    const Sweep sweep(a, layer, tile);
    const std::conditional_t<kEarly, EarlyBelow<Format, kTiles, kSplit, kGroups>, AskedLate> early(a, below,
                                                                                                   tile);
    typename Sweep::Own x;
    if constexpr (kEarly && kJoined) sweep.template load_own<true>(x, below);
    if (!ask_weights(ready, before, [&] { sweep.prefetch_weights(); })) return false;
    ready = true;
    if (kJoined || put) sweep.put_gradients(own_logits);
    typename Sweep::Sums sums = {};
    if constexpr (!kEarly || !kJoined) sweep.template load_own<false>(x, below);
    sweep.template multiply_and_update<kJoined>(sums, below, x, put);
    finish_gradients<Format, kTiles, kSplit, kGroups>(a, below, tile, sums, early);
  }
  return ready || before([] {});
}

// ---- the first layer

template <class Format, int kTiles, int kGroups, bool kForward>
using FirstStages =
    Stages<Format, kTiles * 1024, (kForward ? 2 : 1) * kGroups * Format::kActivationBytes, kTiles>;

/// Whether the first layer's next forward product rides on its update.
template <class Format, int kGroups>
inline constexpr bool kFirstLayerFused =
    kGroups == 1 || FirstStages<Format, 1, kGroups, true>::kBytes <= kRingBytes / 16;

/// Update of a panel of the first layer's outputs and, with kForward, their activations of the next step.
template <class Format, int kPanel, int kGroups, bool kForward, bool kEarly>
struct FirstSweep {
  static constexpr int kTiles = kSmaller<kPanel, Format::kPanelTiles>, kSplit = kPanel / kTiles,
                       kSweepWarps = Format::kWarps / kSplit;
  static constexpr int kInputTileBytes = kGroups * Format::kActivationBytes;
  using Shape = FirstStages<Format, kKeepsAllFirst<Format> ? 0 : kTiles, kGroups, kForward>;
  const Arguments& a;
  const LayerPlan& layer;
  int panel_tile, tile, first_in, count, lane, ring_place = 0;  // tile: this warp's first tile of outputs
  unsigned char* ring;

  MACHINE_DEVICE FirstSweep(const Arguments& arguments, const LayerPlan& its_layer, int first_tile)
      : a(arguments), layer(its_layer), panel_tile(first_tile), lane(thread_index_here() % 32) {
    const int warp = warp_index<Format>();
    ring = ring_of_warp<Format>(warp);
    tile = panel_tile + warp / kSweepWarps * kTiles;
    first_in = warp % kSweepWarps;
    count = (layer.in_tiles - first_in + kSweepWarps - 1) / kSweepWarps;
    if constexpr (kHolds<Format> || kPoints<Format> || kHasSlots<Format>)
      ring_place = kept_by_lane(shared_place(ring) + lane * 16);
  }
  MACHINE_DEVICE int in_tile(int i) const { return first_in + kSweepWarps * i; }
  MACHINE_DEVICE void ask_weights(int i, int stage) const {
    if constexpr (kKeepsAllFirst<Format>) return;
    if constexpr (kKeepsFirst<Format>)
      if (in_tile(i) < a.plan.kept_part) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int p = 0; p < 2; ++p)
        ask_part<Format>(a, layer, p, tile + m, in_tile(i), ring, ring_place,
                         (kPoints<Format> ? stage : stage * Shape::kBytes) + m * 1024 + p * 512, lane);
    if constexpr (kHasSlots<Format>)
      ask_slots<Format, kTiles>(
          a, tile_number(layer, tile, in_tile(i)), layer.in_tiles,
          ring_place + (kPoints<Format> ? stage : stage * Shape::kBytes) + Shape::kSlotsAt, lane);
  }
  /// `by`: as update_of_step() has it.
  template <class Update>
  MACHINE_DEVICE void update(const unsigned char* inputs, const unsigned char* next, Update by) const {
    Walk input_walk, next_walk;
    if constexpr (kPoints<Format>) {
      input_walk.begin(inputs + std::int64_t{first_in} * kInputTileBytes, lane,
                       kSweepWarps * kInputTileBytes);
      next_walk.begin(next + std::int64_t{first_in} * kInputTileBytes, lane, kSweepWarps * kInputTileBytes);
    }
    const auto ask_inputs = [&](int i, int stage) {
      if constexpr (kPoints<Format>) {
        const int place = ring_place + stage + Shape::kWeightBytes;
        copy_to_lane<kInputTileBytes>(place, input_walk.at_unsigned(i), lane);
        if constexpr (kForward)
          copy_to_lane<kInputTileBytes>(place + kInputTileBytes, next_walk.at_unsigned(i), lane);
      } else {
        unsigned char* place = ring + stage * Shape::kBytes + Shape::kWeightBytes;
        const std::int64_t offset = std::int64_t{in_tile(i)} * kInputTileBytes;
        copy_by_warp<kInputTileBytes>(place, inputs + offset, lane);
        if constexpr (kForward) copy_by_warp<kInputTileBytes>(place + kInputTileBytes, next + offset, lane);
      }
    };
    using Early = EarlyBiases<Format, kTiles, kSplit, kGroups, Lanes::kFirst>;
    const std::conditional_t<kForward && kEarly, Early, AskedLate> early(a, layer, panel_tile);
    prefetch<Shape>(count, [&](int i, int stage) { ask_weights(i, stage); });
    typename Format::template Own<kTiles, kGroups> d;
    Format::template load_own_gradients<kTiles, kGroups>(
        d, a.gradients + output_offset<Format, kGroups>(layer, tile), lane);
    float sums[Format::template kPanelSums<kTiles, kGroups>] = {};
    int i = 0;
    run<Shape>(
        count, ring, [&](int item, int stage) { ask_weights(item, stage); }, ask_inputs,
        [&](unsigned char* stage) {
          with_destination<Format>(a, layer, tile, in_tile(i), [&](const auto& out) {
            const unsigned char* x = stage + Shape::kWeightBytes;
            const std::int64_t tile_step = std::int64_t{layer.in_tiles} * Format::kMasterStride;
            if constexpr (kKeepsFirst<Format>) {
              const bool kept = kKeepsAllFirst<Format> || in_tile(i) < a.plan.kept_part;
              unsigned char* const tiles = kept_first_tile<Format>(layer, tile, in_tile(i));
              const MaybeKept<std::remove_cvref_t<decltype(out)>, 0> there{out, shared_place(tiles), kept};
              Format::template first<kTiles, kGroups, kForward>(sums, d, kept ? tiles : stage, x,
                                                                x + kInputTileBytes, there,
                                                                kept ? 1024 : tile_step, by, lane);
            } else if constexpr (kHasSlots<Format>) {
              const ItemSlots<Format> slots(a, by, stage + Shape::kSlotsAt,
                                            tile_number(layer, tile, in_tile(i)));
              Format::template first<kTiles, kGroups, kForward>(sums, d, stage, x, x + kInputTileBytes, out,
                                                                tile_step, slots, lane);
            } else {
              Format::template first<kTiles, kGroups, kForward>(sums, d, stage, x, x + kInputTileBytes, out,
                                                                tile_step, by, lane);
            }
          });
          ++i;
        });
    if constexpr (kForward)
      finish_activations<Format, kTiles, kSplit, kGroups, Lanes::kFirst>(a, layer, panel_tile, sums, early);
  }
};

/// The first layer's update by its gradients on batch `batch` and, with kForward, its activations on batch `next`.
template <class Format, int kPanel, int kGroups, bool kForward, bool kEarly, class Update>
MACHINE_DEVICE void first_layer(const Arguments& a, std::int64_t batch, std::int64_t next, Update by) {
  const LayerPlan& layer = a.plan.layer[0];
  const Range own = owned_tiles(layer);
  for (int tile = own.begin; tile < own.end; tile += kPanel)
    FirstSweep<Format, kPanel, kGroups, kForward, kEarly>(a, layer, tile)
        .update(inputs_of_batch<Format, kGroups>(a, batch), inputs_of_batch<Format, kGroups>(a, next), by);
  if (!kForward) block_sync();  // the weights are written; otherwise behind the activations
}

// ---- steps

/// Layer 0 between two steps: updated on the batch before and multiplied with the next one. A launch begins with an update
/// by nothing, so that its first activations are the same sums in the same order as if it had begun earlier.
template <class Format, int kGroups, int kPanels>
MACHINE_DEVICE void between_steps(const Arguments& a, std::int64_t batch, std::int64_t next, int done) {
  const LayerPlan& layer = a.plan.layer[0];
  with_panel<kGroups, kPanels>(layer.panel, [&](auto panel) {
    constexpr int kPanel = decltype(panel)::value;
    constexpr bool kEarly = kAsksEarly<Format, kPanels>;
    if constexpr (kFirstLayerFused<Format, kGroups>) {
      if constexpr (kHasSlots<Format>) {
        auto by = update_of_step<Format>(a);
        by.updates = done > 0;
        first_layer<Format, kPanel, kGroups, true, kEarly>(a, batch, next, by);
      } else {
        first_layer<Format, kPanel, kGroups, true, kEarly>(a, batch, next,
                                                           done == 0 ? 0.0f : a.update_factor);
      }
      return true;
    } else {
      if constexpr (kHasSlots<Format>) {
        if (done > 0)
          first_layer<Format, kPanel, kGroups, false, kEarly>(a, batch, next, update_of_step<Format>(a));
      } else {
        if (done > 0) first_layer<Format, kPanel, kGroups, false, kEarly>(a, batch, next, a.update_factor);
      }
      return forward_rows<Format, kPanel, kGroups, kEarly>(a, layer,
                                                           inputs_of_batch<Format, kGroups>(a, next), false,
                                                           [](const auto& ask) { return ask(), true; });
    }
  });
}

/// Waits for joined logits and makes their loss; if not `is_loss`, for another barrier. The set of the step after the next, which was last read a step ago by everybody who
/// arrived at this barrier, is cleared before anybody who waits for the next such barrier adds to it.
template <class Format, class Ask>
MACHINE_DEVICE bool wait_for_loss(const Arguments& a, int barrier, std::int64_t batch, int set,
                                  const Ask& ask, OwnLogits<Format>& own, bool is_loss = true) {
  Target<Format> labels[OwnLogits<Format>::kCount];
#pragma unroll
  for (int i = 0; i < own.kCount; ++i)
    if constexpr (has_targets<Format>())
      labels[i] = is_loss && own.row(i) < a.plan.batch && own.column() < a.plan.classes
                      ? a.targets[(batch * a.plan.batch + own.row(i)) * a.plan.classes + own.column()]
                      : 0.0f;
    else
      labels[i] = is_loss && own.row(i) < a.plan.batch ? a.labels[batch * a.plan.batch + own.row(i)] : -1;
  if (!wait<Format>(a, barrier, ask)) return false;
  if (!is_loss) return true;
  joined_loss<Format>(a, labels, a.logit_sums + set * kLogitSumsPitch, own);
  if (keeps_loss(a)) {
    std::uint64_t* const old = a.logit_sums + (set == 0 ? kLogitSumSets - 1 : set - 1) * kLogitSumsPitch;
    for (int i = thread_index_here(); i < kLogitSumsPitch; i += Format::kWarps * 32) old[i] = 0;
    block_sync();  // what finish_loss() reads is written
  }
  return true;
}

template <class Format, int kGroups, int kPanels>
MACHINE_DEVICE void train_steps(const Arguments& a) {
  const int last = a.plan.layers - 1;
  const LayerPlan* layers = a.plan.layer;
  constexpr bool kJoined = kJoins<kGroups>, kInLoop = kJoinsInLoop<Format, kGroups>;
  constexpr bool kEarly = kAsksEarly<Format, kPanels>;
  const bool joined = kJoined && (Format::kPacks || a.plan.joined != 0);
  int barrier = 0, set = 0;
  std::int64_t batch = a.first_step % a.batches, batch_before = batch;
  const auto outputs = [&](int layer) { return a.hidden + output_offset<Format, kGroups>(layers[layer], 0); };
  const auto bring = [](const unsigned char* in_memory, unsigned char* kept) {
    store_shared16(kept, load_l2_16(in_memory));
  };
  if constexpr (kKeepsFirst<Format>)
    for_kept_first_tiles<Format>(a, bring);
  else if constexpr (kKeeps<Format>)
    for_kept_halves<Format>(a, bring);
  for (int done = 0;; ++done) {
    const NextStep<Format> step(a, done);
    between_steps<Format, kGroups, kPanels>(a, batch_before, batch, done);
    if (done == a.steps) break;
    step.begin();
    std::uint64_t* const shared = a.logit_sums + set * kLogitSumsPitch;
    for (int layer = 1; layer <= last; ++layer) {
      if (layer == last && a.plan.narrow) {
        forward_own_columns<Format, kGroups, kJoined>(a, layers[layer], layers[layer - 1], outputs(layer - 1),
                                                      shared);
        break;
      }
      arrive<Format>(a, barrier, true);  // panels end with a block_sync()
      // Layer 1's weights were updated behind the last barrier that was waited for.
      if (layer == 1 && done > 0 && !wait(a, barrier - 1)) return;
      const int waited = barrier++;
      const bool good = with_panel<kGroups, kPanels>(layers[layer].panel, [&](auto panel) {
        return forward_rows<Format, decltype(panel)::value, kGroups, kEarly>(
            a, layers[layer], outputs(layer - 1), layer == last,
            [&](const auto& ask) { return wait<Format>(a, waited, ask); });
      });
      if (!good) return;
    }
    if (!joined) {
      arrive<Format>(a, barrier);
      if (!wait(a, barrier++)) return;
      rows_of_loss<Format, kGroups>(a, batch);
    }
    OwnLogits<Format> own_logits = {};
    int highest = last;  // layer that is left to go through
    if constexpr (kJoined && !kInLoop) {
      if (joined) {
        arrive<Format>(a, barrier);
        const int waited = barrier++;
        const bool good = with_panel<kGroups, kPanels>(layers[last - 1].panel, [&](auto panel) {
          return backward<Format, decltype(panel)::value, kGroups, kEarly, false, true>(
              a, layers[last], layers[last - 1], own_logits,
              [&](const auto& ask) { return wait_for_loss<Format>(a, waited, batch, set, ask, own_logits); });
        });
        if (!good) return;
        finish_loss<Format>(a, a.first_step + done, true);
        highest = last - 1;
      }
    }
    for (int layer = highest; layer > 0; --layer) {
      arrive<Format>(a, barrier,
                     layer < last - 1);  // loss, logits and the last layer's bias come without one
      const int waited = barrier++;
      const bool good = with_panel<kGroups, kPanels>(layers[layer - 1].panel, [&](auto panel) {
        constexpr int kPanel = decltype(panel)::value;
        const bool is_loss = kInLoop && joined && layer == last;
        const auto wait_for_gradients = [&](const auto& ask) {
          if constexpr (kInLoop)
            return wait_for_loss<Format>(a, waited, batch, set, ask, own_logits, is_loss);
          else
            return wait<Format>(a, waited, ask);
        };
        if constexpr (kKeepsAllHalves<Format>)
          if (layers[layer].kept >= 0)
            return backward<Format, kPanel, kGroups, kEarly, true, false>(a, layers[layer], layers[layer - 1],
                                                                          own_logits, wait_for_gradients);
        return backward<Format, kPanel, kGroups, kEarly, false, false>(
            a, layers[layer], layers[layer - 1], own_logits, wait_for_gradients, is_loss);
      });
      if (!good) return;
      if (layer == last) finish_loss<Format>(a, a.first_step + done, kInLoop && joined);
    }
    set = set + 1 == kLogitSumSets ? 0 : set + 1;
    // The weights of layer 1; not waited for here. Totals in order update layer 0's biases, which are read next, behind their last block_sync().
    arrive<Format>(a, barrier++, last > 1 && !(kEarly && kHasOrder<Format, kGroups, 1>));
    batch_before = batch;
    batch = next_batch(a, batch);
  }
  const auto take_back = [](unsigned char* in_memory, const unsigned char* kept) {
    store_global16(in_memory, load_shared16(kept));
  };
  if constexpr (kKeepsFirst<Format>)
    for_kept_first_tiles<Format>(a, take_back);
  else if constexpr (kKeeps<Format>)
    for_kept_halves<Format>(a, take_back);
}

/// The number of a launch's step and that of its batch. With kInShared every warp keeps them in shared memory: a register that has to make room
/// goes to local memory, and behind every barrier of the grid that comes out of the L2.
template <bool kInShared>
struct StepNumber {
  int done_ = 0, batch_ = 0;
  MACHINE_DEVICE int done() const {
    if constexpr (kInShared)
      return words_of_warp()[0];
    else
      return done_;
  }
  MACHINE_DEVICE int batch() const {
    if constexpr (kInShared)
      return words_of_warp()[1];
    else
      return batch_;
  }
  MACHINE_DEVICE void set(int done, int batch) {
    if constexpr (kInShared) {
      words_of_warp()[0] = done;
      words_of_warp()[1] = batch;
      warp_sync();
    } else {
      done_ = done;
      batch_ = batch;
    }
  }
  MACHINE_DEVICE void next(std::int64_t batches) {
    const int now = done() + 1, next_batch = batch() + 1;
    if constexpr (kInShared) warp_sync();  // all lanes have read
    set(now, next_batch == batches ? 0 : next_batch);
  }
};

/// The same with joined logits and one kind of panels, for packed tiles. Barriers are counted from the step's number, 2 * last of them a step.
template <class Format, int kPanels>
MACHINE_DEVICE void train_joined_steps(const Arguments& a) {
  static_assert(kPanels > 0 && kJoins<1>);
  constexpr bool kEarly = kAsksEarly<Format, kPanels>;
  const LayerPlan* layers = a.plan.layer;
  const auto last = [&] { return a.plan.layers - 1; };
  const auto outputs = [&](int layer) { return a.hidden + output_offset<Format, 1>(layers[layer], 0); };
  if constexpr (kKeepsFirst<Format>)
    for_kept_first_tiles<Format>(a, [](const unsigned char* in_memory, unsigned char* kept) {
      store_shared16(kept, load_l2_16(in_memory));
    });
  StepNumber<(kPanels > 1)> step;
  step.set(0, static_cast<int>(a.first_step % a.batches));
  for (;;) {
    const auto barrier = [&](int of_step) { return step.done() * 2 * last() + of_step; };
    {
      const int batch = step.batch();
      between_steps<Format, 1, kPanels>(a, batch == 0 ? a.batches - 1 : batch - 1, batch, step.done());
    }
    if (step.done() == a.steps) break;
    for (int layer = 1; layer < last(); ++layer) {
      arrive<Format>(a, barrier(layer - 1), true);  // panels end with a block_sync()
      // Layer 1's weights were updated behind the last barrier that was waited for.
      if (layer == 1 && step.done() > 0 && !wait(a, barrier(-1))) return;
      if (!forward_rows<Format, kPanels, 1, kEarly>(
              a, layers[layer], outputs(layer - 1), false,
              [&](const auto& ask) { return wait<Format>(a, barrier(layer - 1), ask); }))
        return;
    }
    const int set = step.done() % kLogitSumSets;
    forward_own_columns<Format, 1, true>(a, layers[last()], layers[last() - 1], outputs(last() - 1),
                                         a.logit_sums + set * kLogitSumsPitch);
    OwnLogits<Format> own_logits = {};
    arrive<Format>(a, barrier(last() - 1));
    if (!backward<Format, kPanels, 1, kEarly, false, true>(
            a, layers[last()], layers[last() - 1], own_logits, [&](const auto& ask) {
              return wait_for_loss<Format>(a, barrier(last() - 1), step.batch(), step.done() % kLogitSumSets,
                                           ask, own_logits);
            }))
      return;
    finish_loss<Format>(a, a.first_step + step.done(), true);
    for (int layer = last() - 1; layer > 0; --layer) {
      const int its_barrier = barrier(2 * last() - 1 - layer);
      arrive<Format>(a, its_barrier,
                     layer < last() - 1);  // the last layer's bias comes without a block_sync()
      if (!backward<Format, kPanels, 1, kEarly, false, false>(
              a, layers[layer], layers[layer - 1], own_logits,
              [&](const auto& ask) { return wait<Format>(a, its_barrier, ask); }))
        return;
    }
    arrive<Format>(a, barrier(2 * last() - 1));  // the weights of layer 1; not waited for here
    step.next(a.batches);
  }
  if constexpr (kKeepsFirst<Format>)
    for_kept_first_tiles<Format>(a, [](unsigned char* in_memory, const unsigned char* kept) {
      store_global16(in_memory, load_shared16(kept));
    });
}

template <class Format, int kGroups, int kPanels>
__global__ void __launch_bounds__(Format::kWarps * 32, 1)
    streamed_steps(const __grid_constant__ Arguments arguments) {
  if constexpr (Format::kPacks)
    train_joined_steps<Format, kPanels>(arguments);
  else
    train_steps<Format, kGroups, kPanels>(arguments);
}

#ifndef HEADROOM_COMPILED_ALONE  // jit/compiler.h
/// The kernel of one precision for plans of so many groups; with kPanels > 0 only for those whose panels have so many tiles.
template <class Format, int kGroups, int kPanels>
const void* kernel_of() {
  return reinterpret_cast<const void*>(&streamed_steps<Format, kGroups, kPanels>);
}
#endif

}  // namespace headroom::streamed
