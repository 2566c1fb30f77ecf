// How members of the slice kernel hand each other tiles: two ways with the same functions.
//
// An exchange is an all-gather: every member publishes its tile and every warp takes the tiles it sums over. Nothing is
// acknowledged: a buffer is written again two steps later (four, where a step has one exchange), and by then
// whoever writes it has taken a tile that each reader published only after it had used what was there.
//
// Grid: tiles go through the L2 in 16-byte values that are read and written whole (b128, relaxed), and each carries
// a mark: one bit that changes whenever its buffer is written. So no fence and no flag is waited for. After ReLU the
// mark is the sign of the last number, which is free. In a gradient it takes the last number's lowest bit; the bits
// it displaces follow the tiles, marked themselves (tf32 leaves that bit free).
// Why a reader cannot see the value after next: that is written only after its writer took a tile which, through a
// chain of dependencies (each checked mark decides whether its reader goes on), needs this very read to have
// returned the earlier value. A read that returned the later one would be its own cause, which the memory model excludes.
//
// Cluster: st.async into every member's shared memory, completed on an mbarrier there, whose wait acquires.
//
// Every wait is bounded. One that runs out reports where it was, once, and from then on nothing is waited for: the
// member leaves at the next step, the others follow when they see the report or their own time is up.
#pragma once

#include "resident/slice_arguments.h"
#include "resident/slice_formats.cuh"

namespace headroom::resident {

/// Where this thread is, and the bound of its waits.
struct SliceWaiter {
  int warp, lane;
  std::uint32_t member;
  bool timed_out;

  /// By whole warps, after every poll: whether to give up.
  RESIDENT_DEVICE bool give_up(const SliceArguments& arguments, std::uint32_t polls, std::uint64_t& begin,
                               int exchange) {
    if (timed_out) return true;
    if (polls % 256 != 0) return false;
    if (begin == 0) begin = nanoseconds();
    const bool late = nanoseconds() - begin > static_cast<std::uint64_t>(arguments.wait_nanoseconds);
    if (late)
      report_once(arguments.status, wait_status(static_cast<std::uint32_t>(exchange), member,
                                                static_cast<std::uint32_t>(warp)));
    return timed_out = warp_any(late || load_relaxed(arguments.status) != 0);
  }
};

/// What a warp holds of an exchange: the tiles of its pairs of slices.
template <class Format, int kPairs>
struct Share {
  typename Format::Values slice[2 * kPairs];
};

template <class Format, int kPairs>
class SliceGrid {
 public:
  static constexpr int kSlices = 2 * kPairs, kTile = 512 * Format::kParts;

  RESIDENT_DEVICE SliceGrid(const SliceArguments& arguments, int first_slice, int lane)
      : reader_(arguments.exchange + first_slice * kTile + lane * 16) {}
  RESIDENT_DEVICE void begin(const SliceArguments&) { block_sync(); }
  RESIDENT_DEVICE void end() {}

  /// Waits for the tiles of `step` and takes them.
  template <bool kGradient>
  RESIDENT_DEVICE void take(const SliceArguments& arguments, Share<Format, kPairs>& share,
                            SliceWaiter& waiter, int first_slice, int exchange, int step) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    const std::uint32_t want = epoch(arguments, step) ? kMark : 0;
    const unsigned char* tiles = reader_ + slot(arguments, exchange, step);
    std::uint64_t begin = 0;
    uint2 displaced = make_uint2(0, 0);
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kSlices; ++i)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part) {
          const uint4 value = load_whole16(tiles + i * kTile + part * 512);
          wrong |= value.w ^ want;
          assign(share.slice[i], part, value);
        }
      if constexpr (kGradient && !Format::kSpareBit)
        if (waiter.lane < kSlices * Format::kParts) {
          displaced = load_packet(displaced_bits(arguments, exchange, step, first_slice) + waiter.lane * 8);
          wrong |= displaced.y ^ want;
        }
      if (!warp_any((wrong & kMark) != 0) || waiter.give_up(arguments, polls, begin, exchange)) break;
    }
    restore<kGradient>(share, displaced.x, waiter.lane);
  }

  /// Takes what was taken before, again.
  RESIDENT_DEVICE void take_again(const SliceArguments& arguments, Share<Format, kPairs>& share, int exchange,
                                  int step) const {
    const unsigned char* tiles = reader_ + slot(arguments, exchange, step);
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(share.slice[i], part, load_whole16(tiles + i * kTile + part * 512));
    restore<false>(share, 0, 0);
  }

  /// use(i, tile, tile) for each pair in turn, two more on their way. Waits for them, or was here before in this step or
  /// the one before.
  template <bool kGradient, bool kWaits, class Use>
  RESIDENT_DEVICE void stream(const SliceArguments& arguments, SliceWaiter& waiter, int first_slice,
                              int exchange, int step, Use&& use) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    constexpr bool kDisplaces = kGradient && !Format::kSpareBit;
    const std::uint32_t want = epoch(arguments, step) ? kMark : 0;
    const unsigned char* tiles = reader_ + slot(arguments, exchange, step);
    std::uint64_t begin = 0;
    uint2 displaced = make_uint2(0, want);
    const auto load = [&](Share<Format, 1>& pair, int i) {
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part)
          assign(pair.slice[slice], part, load_whole16(tiles + (2 * i + slice) * kTile + part * 512));
    };
    Share<Format, 1> now, next, after_next;
    load(now, 0);
    if (kPairs > 1) load(next, 1);
    if constexpr (kDisplaces) {
      for (std::uint32_t polls = 1;; ++polls) {
        if (waiter.lane < kSlices * Format::kParts)
          displaced = load_packet(displaced_bits(arguments, exchange, step, first_slice) + waiter.lane * 8);
        if (!kWaits || !warp_any(((displaced.y ^ want) & kMark) != 0) ||
            waiter.give_up(arguments, polls, begin, exchange))
          break;
      }
    }
#pragma unroll 1
    for (int i = 0; i < kPairs; ++i) {
      if (i + 2 < kPairs) load(after_next, i + 2);
      if constexpr (kWaits) {
        for (std::uint32_t polls = 1;; ++polls) {
          std::uint32_t wrong = 0;
#pragma unroll
          for (int slice = 0; slice < 2; ++slice)
#pragma unroll
            for (int part = 0; part < Format::kParts; ++part)
              wrong |= now.slice[slice].word[4 * part + 3] ^ want;
          if (!warp_any((wrong & kMark) != 0) || waiter.give_up(arguments, polls, begin, exchange)) break;
          load(now, i);
        }
      }
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
        restore_tile<kGradient>(now.slice[slice], displaced.x, 2 * i + slice, waiter.lane);
      use(i, now.slice[0], now.slice[1]);
      now = next;
      next = after_next;
    }
  }

  /// By one warp: this member's tile.
  template <bool kGradient>
  RESIDENT_DEVICE void publish(const SliceArguments& arguments, const typename Format::Values& tile,
                               int member, int lane, int exchange, int step) const {
    if (exchange == arguments.lost_exchange) return;
    constexpr std::uint32_t kMark = mark<kGradient>();
    const std::uint32_t want = epoch(arguments, step) ? kMark : 0;
    unsigned char* place = arguments.exchange + slot(arguments, exchange, step) + member * kTile + lane * 16;
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      uint4 value = part_of(tile, part);
      value.w = (value.w & ~kMark) | want;
      store_whole16(place + part * 512, value);
    }
    if constexpr (kGradient && !Format::kSpareBit)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part) {
        const std::uint32_t bits = warp_ballot((tile.word[4 * part + 3] & kMark) != 0);
        if (lane == part)
          store_packet(displaced_bits(arguments, exchange, step, member) + part * 8, make_uint2(bits, want));
      }
  }

 private:
  template <bool kGradient>
  RESIDENT_DEVICE static constexpr std::uint32_t mark() {
    return kGradient ? 1u : 0x80000000u;
  }
  RESIDENT_DEVICE static bool epoch(const SliceArguments& arguments, int step) {
    return (step >> arguments.plan.stage_shift & 1) != 0;
  }
  RESIDENT_DEVICE static unsigned slot(const SliceArguments& arguments, int exchange, int step) {
    const int shift = arguments.plan.stage_shift;
    return static_cast<unsigned>((exchange << shift) + (step & ((1 << shift) - 1))) * arguments.slot_bytes;
  }
  RESIDENT_DEVICE static unsigned char* displaced_bits(const SliceArguments& arguments, int exchange,
                                                       int step, int slice) {
    return arguments.exchange + slot(arguments, exchange, step) + arguments.plan.members * kTile +
           slice * Format::kParts * 8;
  }
  template <bool kGradient>
  RESIDENT_DEVICE static void restore(Share<Format, kPairs>& share, std::uint32_t displaced, int lane) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part) {
        std::uint32_t& word = share.slice[i].word[4 * part + 3];
        if constexpr (kGradient && Format::kSpareBit)
          word &= ~1u;
        else if constexpr (kGradient)
          word = (word & ~1u) | (shuffle_from(displaced, i * Format::kParts + part) >> lane & 1u);
        else
          word &= 0x7fffffffu;
      }
  }

  /// The same for one tile, when `slice` counts the tiles of this warp.
  template <bool kGradient>
  RESIDENT_DEVICE static void restore_tile(typename Format::Values& tile, std::uint32_t displaced, int slice,
                                           int lane) {
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      std::uint32_t& word = tile.word[4 * part + 3];
      if constexpr (kGradient && Format::kSpareBit)
        word &= ~1u;
      else if constexpr (kGradient)
        word = (word & ~1u) | (shuffle_from(displaced, slice * Format::kParts + part) >> lane & 1u);
      else
        word &= 0x7fffffffu;
    }
  }

  const unsigned char* reader_;
};

template <class Format, int kPairs>
class SliceCluster {
 public:
  static constexpr int kSlices = 2 * kPairs, kTile = 512 * Format::kParts;

  RESIDENT_DEVICE SliceCluster(const SliceArguments& arguments, int first_slice, int lane)
      : reader_(shared_memory() + arguments.plan.exchange_offset + first_slice * kTile + lane * 16) {}

  /// After shared memory was cleared and before anybody publishes.
  RESIDENT_DEVICE void begin(const SliceArguments& arguments) {
    if (thread_index() == 0) {
      const int barriers = arguments.plan.exchanges << arguments.plan.stage_shift;
      for (int i = 0; i < barriers; ++i)
        barrier_init(first_barrier(arguments) + 8 * static_cast<unsigned>(i), 1);
      barrier_init_fence();
      for (int i = 0; i < barriers; ++i)
        expect(arguments, first_barrier(arguments) + 8 * static_cast<unsigned>(i));
    }
    block_sync();
    cluster_sync();
  }
  /// Nobody may leave while others still store into its memory.
  RESIDENT_DEVICE void end() { cluster_sync(); }

  template <bool kGradient>
  RESIDENT_DEVICE void take(const SliceArguments& arguments, Share<Format, kPairs>& share,
                            SliceWaiter& waiter, int /*first_slice*/, int exchange, int step) const {
    const std::uint32_t barrier = first_barrier(arguments) + 8 * buffer(arguments, exchange, step);
    const std::uint32_t parity = static_cast<std::uint32_t>(step >> arguments.plan.stage_shift) & 1;
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1; !warp_all(barrier_try_wait(barrier, parity)); ++polls)
      if (waiter.give_up(arguments, polls, begin, exchange)) break;
    // For the next use of the buffer. A completed phase stays visible until that one is complete too.
    if (thread_index() == 0 && !waiter.timed_out) expect(arguments, barrier);
    take_again(arguments, share, exchange, step);
  }
  RESIDENT_DEVICE void take_again(const SliceArguments& arguments, Share<Format, kPairs>& share, int exchange,
                                  int step) const {
    const unsigned char* tiles = reader_ + buffer(arguments, exchange, step) * arguments.slot_bytes;
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(share.slice[i], part, load_shared16(tiles + i * kTile + part * 512));
  }

  template <bool kGradient>
  RESIDENT_DEVICE void publish(const SliceArguments& arguments, const typename Format::Values& tile,
                               int member, int lane, int exchange, int step) const {
    if (exchange == arguments.lost_exchange) return;
    const std::uint32_t which = buffer(arguments, exchange, step);
    const std::uint32_t barrier = first_barrier(arguments) + 8 * which;
    const std::uint32_t place =
        shared_address(shared_memory()) + static_cast<std::uint32_t>(arguments.plan.exchange_offset) +
        which * arguments.slot_bytes + static_cast<std::uint32_t>(member * kTile + lane * 16);
    const std::uint32_t members = static_cast<std::uint32_t>(arguments.plan.members);
#pragma unroll 4
    for (std::uint32_t i = 0; i < members; ++i) {
      // Everybody starts with another member, so that nobody is everybody's first.
      const std::uint32_t to = (static_cast<std::uint32_t>(member) + i) & (members - 1);
      const std::uint32_t remote = remote_address(place, to), remote_barrier = remote_address(barrier, to);
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        store_remote16(remote + 512 * part, part_of(tile, part), remote_barrier);
    }
  }

 private:
  RESIDENT_DEVICE static std::uint32_t first_barrier(const SliceArguments& arguments) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(arguments.plan.barrier_offset);
  }
  RESIDENT_DEVICE static std::uint32_t buffer(const SliceArguments& arguments, int exchange, int step) {
    const int shift = arguments.plan.stage_shift;
    return static_cast<std::uint32_t>((exchange << shift) + (step & ((1 << shift) - 1)));
  }
  RESIDENT_DEVICE static void expect(const SliceArguments& arguments, std::uint32_t barrier) {
    barrier_expect(barrier, static_cast<std::uint32_t>(arguments.plan.members * kTile));
  }

  const unsigned char* reader_;
};

}  // namespace headroom::resident
