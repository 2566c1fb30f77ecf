// How members of the slice kernel hand each other tiles: two ways with the same functions.
//
// An exchange is an all-gather: every member publishes its tile and every warp takes the tiles it sums over. Nothing is
// acknowledged: a buffer is written again two steps later (four, where a step has one exchange), and by then
// whoever writes it has taken a tile that each reader published only after it had used what was there.
//
// Grid: tiles go through the L2 in 16-byte values that are read and written whole (b128, relaxed), and each carries
// a mark: one bit of its last word that changes whenever its buffer is written. So no fence and no flag is waited for.
// After ReLU the mark is a sign, which is free. In a gradient it takes a lowest bit; the bits it displaces follow the
// tiles, marked themselves (tf32 leaves that bit free).
// Why a reader cannot see the value after next: that is written only after its writer took a tile which, through a
// chain of dependencies (each checked mark decides whether its reader goes on), needs this very read to have
// returned the earlier value. A read that returned the later one would be its own cause, which the memory model excludes.
//
// Cluster: st.async into every member's shared memory, completed on an mbarrier there, whose wait acquires.
//
// Every wait is bounded (waiter.cuh).
#pragma once

#include <type_traits>

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "resident/slice_arguments.h"
#include "resident/slice_formats.cuh"
#include "resident/sums.cuh"
#include "resident/waiter.cuh"

namespace headroom::resident {

/// What a warp holds of an exchange: the tiles of its pairs of slices, or of its only slice.
template <class Format, int kPairs, int kSlices = 2 * kPairs>
struct Share {
  typename Format::Values slice[kSlices];
};

template <class Format, int kPairs>
class SliceGrid {
 public:
  static constexpr Form kForm = Form::kGrid;
  /// In tf32 with two pairs a warp giving up is called: 2 % of a step at 512 columns (docs/kernels/log/resident.md, version 47).
  using Waiter =
      std::conditional_t<Format::kPrecision == Precision::kTf32 && kPairs == 2, CallingWaiter, SliceWaiter>;
  static constexpr int kSlices = 2 * kPairs, kTile = 512 * Format::kParts;

  MACHINE_DEVICE SliceGrid(const SliceArguments& arguments, int first_slice, int lane)
      : reader_(arguments.exchange + first_slice * kTile + lane * 16) {}
  MACHINE_DEVICE void begin(const SliceArguments&) { block_sync(); }
  MACHINE_DEVICE void end() {}
  /// Before anything else of a step.
  MACHINE_DEVICE void begin_step(const SliceArguments& arguments, int step) {
    const int shift = plan_of(arguments).stage_shift, last = (1 << shift) - 1;
    stride_ = arguments.slot_bytes << shift;
    now_ = static_cast<unsigned>(step & last) * arguments.slot_bytes;
    before_ = static_cast<unsigned>((step - 1) & last) * arguments.slot_bytes;
    epoch_ = (step >> shift & 1) != 0;
    epoch_before_ = ((step - 1) >> shift & 1) != 0;
  }

  /// Waits for this step's tiles and takes them.
  template <bool kGradient, int kTaken, class AnyWaiter>
  MACHINE_DEVICE void take(const SliceArguments& arguments, Share<Format, kPairs, kTaken>& share,
                           AnyWaiter& waiter, int first_slice, int exchange) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    const std::uint32_t want = epoch_ ? kMark : 0;
    const unsigned char* tiles = reader_ + slot(exchange);
    uint2 displaced = make_uint2(0, 0);
    waiter.wait_while(arguments, exchange, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kTaken; ++i)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part) {
          const uint4 value = load_relaxed_gpu_128(tiles + i * kTile + part * 512);
          wrong |= value.w ^ want;
          assign(share.slice[i], part, value);
        }
      if constexpr (kGradient && !Format::kSpareBit)
        if (waiter.lane < kTaken * 2) {
          displaced =
              load_relaxed_gpu_64(displaced_bits(arguments, slot(exchange), first_slice) + waiter.lane * 8);
          wrong |= displaced.y ^ want;
        }
      return (wrong & kMark) != 0;
    });
    restore<kGradient>(share, displaced.x, waiter.lane);
  }

  /// For who takes parts of tiles: where they are in this step, and the mark that they will have.
  struct Awaited {
    const unsigned char* tiles;
    std::uint32_t mark, want;
  };
  template <bool kGradient>
  MACHINE_DEVICE Awaited awaited(const SliceArguments& arguments, int exchange) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    return {arguments.exchange + slot(exchange), kMark, epoch_ ? kMark : 0};
  }

  /// Asks for activations of the step before; they may be used after ready().
  template <int kTaken>
  MACHINE_DEVICE void fetch(const SliceArguments&, Share<Format, kPairs, kTaken>& share, int exchange) const {
    const unsigned char* tiles = reader_ + slot(exchange, true);
#pragma unroll
    for (int i = 0; i < kTaken; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(share.slice[i], part, load_relaxed_gpu_128(tiles + i * kTile + part * 512));
  }
  template <int kTaken>
  MACHINE_DEVICE static void ready(Share<Format, kPairs, kTaken>& share) {
    restore<false>(share, 0, 0);
  }
  /// The same as columns. Nobody has seen these before: ready_columns() looks whether they are there.
  MACHINE_DEVICE void fetch_columns(const SliceArguments& arguments, Share<Format, kPairs>& share,
                                    int exchange) const {
    const unsigned char* tiles = reader_ + plan_of(arguments).members * (kTile + 16) + slot(exchange, true);
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(share.slice[i], part, load_relaxed_gpu_128(tiles + i * kTile + part * 512));
  }
  MACHINE_DEVICE void ready_columns(const SliceArguments& arguments, Share<Format, kPairs>& share,
                                    Waiter& waiter, int exchange) const {
    constexpr std::uint32_t kMark = mark<false>();
    const std::uint32_t want = epoch_before_ ? kMark : 0;
    const auto missing = [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kSlices; ++i)
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part) wrong |= share.slice[i].word[4 * part + 3] ^ want;
      return (wrong & kMark) != 0;
    };
    waiter.wait_while(arguments, exchange, missing, [&] { fetch_columns(arguments, share, exchange); });
    ready(share);
  }

  /// Where this lane publishes, and with which mark: known long before there is anything to publish.
  struct Place {
    unsigned char *tile, *displaced;
    std::uint32_t want;
  };
  template <bool kGradient>
  MACHINE_DEVICE Place place(const SliceArguments& arguments, int member, const Publisher& publisher,
                             int exchange) const {
    unsigned char* begin = arguments.exchange + slot(exchange);
    // With the other mark nobody sees it.
    const bool visible = epoch_ != (exchange == arguments.lost_exchange);
    Place place = {begin + member * kTile + publisher.byte<Format::kParts>(),
                   begin + plan_of(arguments).members * kTile + member * 16 + (publisher.position >> 4) * 8,
                   visible ? mark<kGradient>() : 0};
    compute_now(place.tile);
    if (kGradient && !Format::kSpareBit) compute_now(place.displaced);
    compute_now(place.want);
    return place;
  }
  /// Activations as columns, behind all tiles.
  MACHINE_DEVICE void publish_columns(const SliceArguments& arguments, uint4 columns,
                                      const Publisher& publisher, const Place& place) const {
    columns.w = (columns.w & ~mark<false>()) | place.want;
    store_relaxed_gpu_128(place.tile + plan_of(arguments).members * (kTile + 16) +
                              16 * (publisher.column_lane() - publisher.position),
                          columns);
  }
  /// By two warps: this member's tile.
  template <bool kGradient>
  MACHINE_DEVICE void publish(const SliceArguments&, uint4 packet, const Publisher& publisher,
                              const Place& place) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    const bool displaced = (packet.w & kMark) != 0;
    packet.w = (packet.w & ~kMark) | place.want;
    if (publisher.stores<Format::kParts>()) store_relaxed_gpu_128(place.tile, packet);
    if constexpr (kGradient && !Format::kSpareBit) {
      const std::uint32_t bits = warp_ballot(displaced);
      if (publisher.half == 0 && (publisher.position & 15) == 0)
        store_relaxed_gpu_64(place.displaced, make_uint2(bits, place.want));
    }
  }

 protected:
  template <bool kGradient>
  MACHINE_DEVICE static constexpr std::uint32_t mark() {
    return kGradient ? 1u : 0x80000000u;
  }
  MACHINE_DEVICE unsigned slot(int exchange, bool before = false) const {
    return static_cast<unsigned>(exchange) * stride_ + (before ? before_ : now_);
  }
  MACHINE_DEVICE static unsigned char* displaced_bits(const SliceArguments& arguments, unsigned slot,
                                                      int slice) {
    return arguments.exchange + slot + plan_of(arguments).members * kTile + slice * 16;
  }
  template <bool kGradient, int kTaken>
  MACHINE_DEVICE static void restore(Share<Format, kPairs, kTaken>& share, std::uint32_t displaced,
                                     int lane) {
#pragma unroll
    for (int i = 0; i < kTaken; ++i) restore_tile<kGradient>(share.slice[i], displaced, i, lane);
  }
  /// A tile without its marks, when `slice` counts the tiles of this warp.
  template <bool kGradient>
  MACHINE_DEVICE static void restore_tile(typename Format::Values& tile, std::uint32_t displaced, int slice,
                                          int lane) {
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part) {
      std::uint32_t& word = tile.word[4 * part + 3];
      if constexpr (kGradient && Format::kSpareBit)
        word &= ~1u;
      else if constexpr (kGradient)
        word = (word & ~1u) |
               (shuffle_from(displaced, slice * 2 + (lane >> 4)) >> (part * 16 + (lane & 15)) & 1u);
      else
        word &= 0x7fffffffu;
    }
  }

  const unsigned char* reader_;
  unsigned stride_ = 0, now_ = 0,
           before_ = 0;  // bytes: from exchange to exchange; of this step's buffer, the last's
  bool epoch_ = false, epoch_before_ = false;  // of this step's mark, of the last's
};

/// The same; waits are given up in a place of their own.
template <class Format, int kPairs>
class SliceCallingGrid : public SliceGrid<Format, kPairs> {
 public:
  using Waiter = CallingWaiter;
  using SliceGrid<Format, kPairs>::SliceGrid;
};

template <class Format, int kPairs>
class SliceCluster {
 public:
  static constexpr Form kForm = Form::kCluster;
  using Waiter = SliceWaiter;
  static constexpr int kSlices = 2 * kPairs, kTile = 512 * Format::kParts;

  MACHINE_DEVICE SliceCluster(const SliceArguments& arguments, int first_slice, int lane)
      : reader_(shared_memory() + plan_of(arguments).exchange_offset + first_slice * kTile + lane * 16) {}

  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE void begin(const SliceArguments& arguments) {
    if (thread_index() == 0) {
      const int barriers = plan_of(arguments).exchanges << plan_of(arguments).stage_shift;
      for (int i = 0; i < barriers; ++i)
        barrier_init(first_barrier(arguments) + 8 * static_cast<unsigned>(i), 1);
      barrier_init_fence();
      for (int i = 0; i < barriers; ++i)
        expect(arguments, first_barrier(arguments) + 8 * static_cast<unsigned>(i));
    }
    block_sync();
    cluster_sync();
  }
  MACHINE_DEVICE void begin_step(const SliceArguments& arguments, int step) {
    const int shift = plan_of(arguments).stage_shift, last = (1 << shift) - 1;
    now_ = static_cast<std::uint32_t>(step & last);
    before_ = static_cast<std::uint32_t>((step - 1) & last);
    parity_ = static_cast<std::uint32_t>(step >> shift) & 1;
  }
  /// Nobody may leave while others still store into its memory.
  MACHINE_DEVICE void end() { cluster_sync(); }

  template <bool kGradient>
  MACHINE_DEVICE void take(const SliceArguments& arguments, Share<Format, kPairs>& share, SliceWaiter& waiter,
                           int /*first_slice*/, int exchange) const {
    const std::uint32_t which = buffer(arguments, exchange, now_);
    const std::uint32_t barrier = first_barrier(arguments) + 8 * which;
    waiter.await(arguments, barrier, parity_, exchange);
    // For the next use of the buffer. A completed phase stays visible until that one is complete too.
    if (thread_index() == 0 && !waiter.timed_out) expect(arguments, barrier);
    load(arguments, share, which);
  }
  MACHINE_DEVICE void fetch(const SliceArguments& arguments, Share<Format, kPairs>& share,
                            int exchange) const {
    load(arguments, share, buffer(arguments, exchange, before_));
  }
  MACHINE_DEVICE void load(const SliceArguments& arguments, Share<Format, kPairs>& share,
                           std::uint32_t which) const {
    const unsigned char* tiles = reader_ + which * arguments.slot_bytes;
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(share.slice[i], part, load_shared16(tiles + i * kTile + part * 512));
  }

  MACHINE_DEVICE static void ready(Share<Format, kPairs>&) {}

  struct Place {
    std::uint32_t tile, barrier, member;
  };
  template <bool kGradient>
  MACHINE_DEVICE Place place(const SliceArguments& arguments, int member, const Publisher& publisher,
                             int exchange) const {
    const std::uint32_t which = buffer(arguments, exchange, now_);
    Place place = {shared_address(shared_memory()) +
                       static_cast<std::uint32_t>(plan_of(arguments).exchange_offset) +
                       which * arguments.slot_bytes +
                       static_cast<std::uint32_t>(member * kTile + publisher.byte<Format::kParts>()),
                   first_barrier(arguments) + 8 * which, static_cast<std::uint32_t>(member)};
    if (exchange == arguments.lost_exchange) place.member = kNobody;
    compute_now(place.tile);
    compute_now(place.barrier);
    return place;
  }
  template <bool kGradient>
  MACHINE_DEVICE void publish(const SliceArguments& arguments, const uint4& packet,
                              const Publisher& publisher, const Place& place) const {
    if (place.member == kNobody) return;
    const std::uint32_t members = static_cast<std::uint32_t>(plan_of(arguments).members);
    // Lanes that hold the same send to every other member each. Everybody starts with another member, so that nobody is
    // everybody's first.
    constexpr std::uint32_t kEach = Format::kParts == 1 ? 2 : 1;
    const std::uint32_t first =
        place.member + (Format::kParts == 1 ? static_cast<std::uint32_t>(publisher.half) : 0);
#pragma unroll 4
    for (std::uint32_t i = 0; i < members; i += kEach) {
      const std::uint32_t to = (first + i) & (members - 1);
      store_async16(remote_address(place.tile, to), packet, remote_address(place.barrier, to));
    }
  }

 private:
  static constexpr std::uint32_t kNobody = 0xffffffffu;  // publishes, for tests

  MACHINE_DEVICE static std::uint32_t first_barrier(const SliceArguments& arguments) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(plan_of(arguments).barrier_offset);
  }
  MACHINE_DEVICE static std::uint32_t buffer(const SliceArguments& arguments, int exchange,
                                             std::uint32_t stage) {
    return (static_cast<std::uint32_t>(exchange) << plan_of(arguments).stage_shift) + stage;
  }
  MACHINE_DEVICE static void expect(const SliceArguments& arguments, std::uint32_t barrier) {
    barrier_arrive_expect(barrier, static_cast<std::uint32_t>(plan_of(arguments).members * kTile));
  }

  const unsigned char* reader_;
  std::uint32_t now_ = 0, before_ = 0, parity_ = 0;  // this step's buffer and the last's; this step's phase
};

/// The same for whole sums (slice_whole.cuh): a warp takes one half of every tile, the rows that it goes on with, and waits for
/// nothing else. So each buffer has two mbarriers.
template <class Format, int kPairs>
class SliceHalves {
 public:
  static constexpr Form kForm = Form::kCluster;
  using Waiter = SliceWaiter;

  /// Where a lane publishes, known before there is anything to publish.
  struct Place {
    std::uint32_t tile, barrier;
    bool lost;
  };

  MACHINE_DEVICE SliceHalves(const SliceArguments&, int /*first_slice*/, int /*lane*/) {}

  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE void begin(const SliceArguments& arguments) const {
    if (thread_index() == 0) {
      const int barriers = plan_of(arguments).exchanges * kStages * 2;
      for (int i = 0; i < barriers; ++i) barrier_init(place(arguments, i), 1);
      barrier_init_fence();
      for (int i = 0; i < barriers; ++i) expect(arguments, place(arguments, i));
    }
    block_sync();
    cluster_sync();
  }
  MACHINE_DEVICE void begin_step(int step) {
    now_ = step & 1;
    parity_ = static_cast<std::uint32_t>(step >> 1) & 1;
  }
  /// Nobody may leave while others still store into its memory.
  MACHINE_DEVICE void end() const { cluster_sync(); }

  /// For a half of everybody's tiles.
  MACHINE_DEVICE void await(const SliceArguments& arguments, SliceWaiter& waiter, int exchange,
                            int half) const {
    waiter.await(arguments, buffer_barrier(arguments, exchange, half), parity_, exchange);
  }
  /// By one thread that has waited, for the next use of the buffer. A completed phase stays visible until that one is
  /// complete too.
  MACHINE_DEVICE void expect_next(const SliceArguments& arguments, const SliceWaiter& waiter, int exchange,
                                  int half) const {
    if (!waiter.timed_out) expect(arguments, buffer_barrier(arguments, exchange, half));
  }
  /// This step's buffer of an exchange, or the last's, in bytes from the start of shared memory; and its barriers.
  MACHINE_DEVICE std::uint32_t buffer_offset(const SliceArguments& arguments, int exchange,
                                             bool before = false) const {
    return static_cast<std::uint32_t>(plan_of(arguments).exchange_offset) +
           static_cast<std::uint32_t>(exchange * kStages + (before ? now_ ^ 1 : now_)) * arguments.slot_bytes;
  }
  MACHINE_DEVICE std::uint32_t buffer_barrier(const SliceArguments& arguments, int exchange, int half) const {
    return place(arguments, (exchange * kStages + now_) * 2 + half);
  }

 private:
  static constexpr int kStages = 2;  // of four layers

  MACHINE_DEVICE static std::uint32_t place(const SliceArguments& arguments, int barrier) {
    return shared_address(shared_memory()) +
           static_cast<std::uint32_t>(plan_of(arguments).barrier_offset + 8 * barrier);
  }
  MACHINE_DEVICE static void expect(const SliceArguments& arguments, std::uint32_t barrier) {
    barrier_arrive_expect(
        barrier, static_cast<std::uint32_t>(plan_of(arguments).members * plan_of(arguments).tile / 2));
  }

  int now_ = 0;  // this step's buffer
  std::uint32_t parity_ = 0;
};

}  // namespace headroom::resident
