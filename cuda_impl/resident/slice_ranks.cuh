// The slice kernel (slice_step.cuh) on several GPUs. Each rank has the forward and backward pass of its own rows, and updates its weights
// by the rows of all ranks.
//
//   publish   a member stores its tile of every exchange into its own device's memory, where its rank's chain takes it, and the same
//             packets, marks included, straight into the memory of the peers. Published are also the gradients that one device keeps
//             to itself: below the last layer, of the first layer, and of the outputs.
//   update    the sums of a rank's rows are made from its tiles, own or peer's, in the same way, and added up in an order that gives
//             all ranks the same bits (rank_sums.cuh). All updates but the first layer's are put off into the next step, where what
//             they read has long arrived. A member takes peers' tiles of its own slice into shared memory at the end of a step:
//             there it waits for the first layer's gradient, the only hop of the link on the chain.
//   marks     go on from launch to launch, and so do buffers: nothing is cleared between launches, which a peer might already have
//             written. A place is written again four steps later, with the other mark. Who writes for step s has updated its first
//             layer by step s - 1, so it has taken d(1) of step s - 1 from the peer's same member. That member made it from tiles of
//             step s - 1 of all members of its rank, each published behind its put-off updates by step s - 2. So nobody of the peer
//             reads what is older than step s - 2. Why a reader cannot see the value after next, slice_exchange.cuh says.
#pragma once

#include "machine/peers.cuh"
#include "resident/rank_sums.cuh"
#include "resident/slice_ranks.h"
#include "resident/slice_step.cuh"

namespace headroom::resident {

/// The exchange over the grid, and to all peers.
template <int kRanks>
struct RankGrids {
  template <class Format, int kPairs>
  class Grid : public SliceGrid<Format, kPairs> {
    using Base = SliceGrid<Format, kPairs>;
    using Base::now_, Base::before_, Base::stride_, Base::epoch_, Base::epoch_before_;

   public:
    static constexpr int kPeers = kRanks - 1, kTile = Base::kTile;
    static constexpr bool kWithoutServers = true;
    using Values = typename Format::Values;
    using Base::Base;

    /// The kernel's arguments are always those of ranks.
    MACHINE_DEVICE static const SliceRankArguments& of_ranks(const SliceArguments& a) {
      return static_cast<const SliceRankArguments&>(a);
    }
    MACHINE_DEVICE void begin_step(const SliceArguments& a, int step) {
      const std::uint32_t number = of_ranks(a).first_mark + static_cast<std::uint32_t>(step);
      constexpr std::uint32_t kLast = (1u << kRankStageShift) - 1;
      stride_ = a.slot_bytes << kRankStageShift;
      now_ = (number & kLast) * a.slot_bytes;
      before_ = ((number - 1) & kLast) * a.slot_bytes;
      epoch_ = (number >> kRankStageShift & 1) != 0;
      epoch_before_ = ((number - 1) >> kRankStageShift & 1) != 0;
    }

    struct Place : Base::Place {
      bool is_sent;
    };
    template <bool kGradient>
    MACHINE_DEVICE Place place(const SliceArguments& a, int member, const Publisher& publisher,
                               int exchange) const {
      return {Base::template place<kGradient>(a, member, publisher, exchange), is_sent(a, exchange)};
    }
    /// By two warps: this member's tile.
    template <bool kGradient>
    MACHINE_DEVICE void publish(const SliceArguments& a, uint4 packet, const Publisher& publisher,
                                const Place& place) const {
      constexpr std::uint32_t kMark = Base::template mark<kGradient>();
      const bool displaced = (packet.w & kMark) != 0;
      packet.w = (packet.w & ~kMark) | place.want;
      if (publisher.template stores<Format::kParts>()) store_everywhere(a, place.tile, packet, place.is_sent);
      if constexpr (kGradient && !Format::kSpareBit) {
        const std::uint32_t bits = warp_ballot(displaced);
        if (publisher.half == 0 && (publisher.position & 15) == 0)
          store_everywhere(a, place.displaced, make_uint2(bits, place.want), place.is_sent);
      }
    }
    /// By one warp: a whole tile of gradients.
    MACHINE_DEVICE void publish_gradient(const SliceArguments& a, const Values& tile, int lane, int member,
                                         int exchange) const {
      constexpr std::uint32_t kMark = Base::template mark<true>();
      unsigned char* begin = a.exchange + Base::slot(exchange);
      const std::uint32_t want = epoch_ != (exchange == a.lost_exchange) ? kMark : 0;
      std::uint32_t bits = 0;  // of this lane's half of the warp
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part) {
        uint4 packet = part_of(tile, part);
        const std::uint32_t displaced = warp_ballot((packet.w & kMark) != 0);
        bits |= (displaced >> (lane & 16) & 0xffffu) << (16 * part);
        packet.w = (packet.w & ~kMark) | want;
        store_everywhere(a, begin + member * kTile + part * 512 + lane * 16, packet, is_sent(a, exchange));
      }
      if ((lane & 15) == 0)
        store_everywhere(a, begin + plan_of(a).members * kTile + member * 16 + (lane >> 4) * 8,
                         make_uint2(bits, want), is_sent(a, exchange));
    }

    /// Waits for tiles of a peer, or of this rank if `peer` is -1, of this step or the step before, and takes them.
    template <bool kGradient, bool kBefore, int kTaken, class AnyWaiter>
    MACHINE_DEVICE void take_of(const SliceArguments& a, int peer, Share<Format, kPairs, kTaken>& share,
                                AnyWaiter& waiter, int first_slice, int exchange) const {
      const Taking<kGradient, kBefore> from(*this, a, peer, waiter.lane, first_slice, exchange);
      uint2 displaced = make_uint2(0, 0);
      waiter.wait_while(a, from.wait, [&] { return from.load(share, displaced, waiter.lane) != 0; });
      Base::template restore<kGradient>(share, displaced.x, waiter.lane);
    }
    /// The same of this rank and of its only peer, of the step before, with one wait: what is loaded is on its way at the same time.
    template <bool kGradient, int kTaken, class AnyWaiter>
    MACHINE_DEVICE void take_both(const SliceArguments& a, Share<Format, kPairs, kTaken>& own,
                                  Share<Format, kPairs, kTaken>& others, AnyWaiter& waiter, int first_slice,
                                  int exchange) const {
      const Taking<kGradient, true> from_own(*this, a, -1, waiter.lane, first_slice, exchange),
          from_peer(*this, a, 0, waiter.lane, first_slice, exchange);
      uint2 displaced[2] = {make_uint2(0, 0), make_uint2(0, 0)};
      waiter.wait_while(a, from_peer.wait, [&] {
        const std::uint32_t wrong = from_own.load(own, displaced[0], waiter.lane);
        return (wrong | from_peer.load(others, displaced[1], waiter.lane)) != 0;
      });
      Base::template restore<kGradient>(own, displaced[0].x, waiter.lane);
      Base::template restore<kGradient>(others, displaced[1].x, waiter.lane);
    }

   private:
    /// Where tiles come from, which mark they will have, and what a wait for them is called.
    template <bool kGradient, bool kBefore>
    struct Taking {
      static constexpr std::uint32_t kMark = Base::template mark<kGradient>();
      const unsigned char *tiles, *bits;
      std::uint32_t want;
      int wait;
      MACHINE_DEVICE Taking(const Grid& grid, const SliceArguments& a, int peer, int lane, int first_slice,
                            int exchange)
          : want((kBefore ? grid.epoch_before_ : grid.epoch_) ? kMark : 0),
            wait(peer < 0 ? exchange : static_cast<int>(kWaitPeers) + 16 * peer + exchange) {
        const unsigned char* buffer =
            (peer < 0 ? a.exchange : of_ranks(a).inbox + peer * plan_of(a).exchange_bytes) +
            grid.slot(exchange, kBefore);
        tiles = buffer + first_slice * kTile + lane * 16;
        bits = buffer + plan_of(a).members * kTile + first_slice * 16 + lane * 8;
      }
      /// Not 0 if any of them has not come.
      template <int kTaken>
      MACHINE_DEVICE std::uint32_t load(Share<Format, kPairs, kTaken>& share, uint2& displaced,
                                        int lane) const {
        std::uint32_t wrong = 0;
#pragma unroll
        for (int i = 0; i < kTaken; ++i)
#pragma unroll
          for (int part = 0; part < Format::kParts; ++part) {
            const uint4 value = load_relaxed_sys_128(tiles + i * kTile + part * 512);
            wrong |= value.w ^ want;
            assign(share.slice[i], part, value);
          }
        if constexpr (kGradient && !Format::kSpareBit)
          if (lane < kTaken * 2) {
            displaced = load_relaxed_sys_64(bits);
            wrong |= displaced.y ^ want;
          }
        return wrong & kMark;
      }
    };

    /// Not where a test loses what peers are told.
    MACHINE_DEVICE static bool is_sent(const SliceArguments& a, int exchange) {
      return a.lost_exchange != static_cast<int>(kWaitPeers) + exchange;
    }
    MACHINE_DEVICE static void store_everywhere(const SliceArguments& a, unsigned char* place, uint4 packet,
                                                bool is_sent) {
      store_relaxed_gpu_128(place, packet);
      if (!is_sent) return;
#pragma unroll
      for (int peer = 0; peer < kPeers; ++peer)
        store_relaxed_sys_128(of_ranks(a).outboxes[peer] + (place - a.exchange), packet);
    }
    MACHINE_DEVICE static void store_everywhere(const SliceArguments& a, unsigned char* place, uint2 words,
                                                bool is_sent) {
      store_relaxed_gpu_64(place, words);
      if (!is_sent) return;
#pragma unroll
      for (int peer = 0; peer < kPeers; ++peer)
        store_relaxed_sys_64(of_ranks(a).outboxes[peer] + (place - a.exchange), words);
    }
  };
};

template <class Format, int kPairs, int kTeam, int kRanks>
class SliceRanksMember : SliceMember<Format, RankGrids<kRanks>::template Grid, kPairs, 0, kTeam> {
  using Base = SliceMember<Format, RankGrids<kRanks>::template Grid, kPairs, 0, kTeam>;
  using Base::batch_, Base::exchange_, Base::first_slice_, Base::input_pairs_, Base::lane_, Base::member_,
      Base::next_batch_, Base::skipped_, Base::team_, Base::waiter_, Base::warp_;
  using Base::kInputs, Base::kTile;
  using typename Base::Arguments;
  using typename Base::BackwardWeights;
  using typename Base::Fragments;
  using typename Base::Place;
  using typename Base::SecondWeights;
  using typename Base::Tiles;
  using typename Base::Weights;
  using Own = typename Format::Own;
  using OneTile = Share<Format, kPairs, 1>;
  static constexpr int kPeers = kRanks - 1;
  // fp32 with more pairs loads and multiplies piece by piece: unrolled, a step is longer than the instruction cache (784-512x3-10: 38.0 us
  // instead of 33.4).
  static constexpr bool kIsLong = !Format::kFirstInRegisters && kPairs > 1;
  /// Inputs are in registers before the gradient is there, this rank's and then the peer's.
  static constexpr bool kInputsAhead = kRanks == 2 && !kIsLong;
  /// An update's tiles of both ranks are in registers at the same time.
  static constexpr bool kTakesBoth = kRanks == 2 && !kIsLong && kPairs * Format::kWords <= 16;

 public:
  static constexpr int kThreadCount = Base::kBlock;
  static_assert(kThreadCount == kThreads && !Format::kSpareBit);

  MACHINE_DEVICE explicit SliceRanksMember(const SliceRankArguments& a) : Base(a), device_rank_(a.rank) {}

  MACHINE_DEVICE void run(const SliceRankArguments& a) {
    Base::load(a);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches) * kRanks + device_rank_;
    Base::begin_staging(a);
    Base::stage_rows(a);
    int step = 0;
    while (step <= a.steps && pass(a, step)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > a.steps) Base::store(a);
    block_sync();
    team_.end();
  }

 private:
  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  MACHINE_DEVICE bool pass(const SliceRankArguments& a, int step) {
    const bool training = step < a.steps;
    const int last = Base::layers(a) - 1;
    exchange_.begin_step(a, step);
    if (training && !forward_first(a, step)) return false;
    if (step > 0 && warp_ == kWarps - 1 && Base::is_first()) Base::store_loss(a, step - 1);
#pragma unroll 1
    for (int layer = 1; layer < last; ++layer) {
      if (step > 0) update_between(a, layer, step - 1);
      if (training) forward(a, layer, step);
    }
    if (step > 0) update_last(a);
    if (!training) return true;

    Tiles hidden;  // the activations below the last layer, then gradients, from the highest down
    BackwardWeights back;
    {
      Weights w[kPairs];
      SecondWeights second[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        w[i] = Format::load_weights(Base::matrix(plan_of(a).last_offset[0], 1) + i * 32, lane_);
        second[i] = Format::load_second(Base::second_tile(a, i), lane_);
      }
      Base::load_backward(a, back);
      Base::logits(a, step, hidden, w, second);
    }
    if (warp_ < Base::kLossWarps)
      Base::gradient_of_loss(a);
    else if (warp_ == kWarps - 1 && step + 1 < a.steps)
      Base::stage_rows(a);
    Base::step_sync();
    publish_loss(a);
    Base::gradient_below_last(a, hidden, back);
    if (last == 1) publish_below_last(a, step);
#pragma unroll 1
    for (int layer = last - 1; layer >= 1; --layer) {
      const Place place =
          exchange_.template place<true>(a, member_, Base::publisher(), gradient_exchange(a, layer - 1));
      Base::sum_columns(a, layer, hidden, back);
      Base::step_sync();
      publish_gradient(a, layer - 1, step, place);
      if (layer == last - 1) publish_below_last(a, step);
      if (layer == 1) break;
      Base::load_columns(a, layer - 1, back);
      if (!Base::idle())
        exchange_.template take<true>(a, hidden, waiter_, first_slice_, gradient_exchange(a, layer - 1));
    }
    Base::await_own_gradient(a, step);
    update_first(a);
    update_biases(a);
    return true;
  }

  // ---- forward

  MACHINE_DEVICE bool forward_first(const SliceRankArguments& a, int step) {
    batch_ = next_batch_;
    next_batch_ = batch_ + kRanks < kRanks * static_cast<int>(a.batches) ? batch_ + kRanks : device_rank_;
    const Place place = exchange_.template place<false>(a, member_, Base::publisher(), hidden_kind(1));
    Base::multiply_first(a, step, batch_);
    Base::store_partial(a, Base::first_sums_);
    if (block_sync_or(waiter_.timed_out)) return false;
    Base::publish_hidden(a, 0, step, place);
    return true;
  }
  MACHINE_DEVICE void forward(const SliceRankArguments& a, int layer, int step) {
    const Place place = exchange_.template place<false>(a, member_, Base::publisher(), layer);
    typename Format::Sums sums[1] = {};
    Tiles below;
    exchange_.template take<false>(a, below, waiter_, first_slice_, layer - 1);
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      Base::multiply_tiles(sums[0], i, below,
                           Format::load_weights(Base::matrix(plan_of(a).rows_offset, layer) + i * 32, lane_));
    Base::store_partial(a, sums);
    Base::step_sync();
    Base::publish_hidden(a, layer, step, place);
  }

  // ---- backward

  /// Of hidden layer `layer`, counted from 0.
  MACHINE_DEVICE static int gradient_exchange(const Arguments& a, int layer) {
    return gradient_kind(plan_of(a).layers - 1, layer + 1);
  }
  MACHINE_DEVICE static int loss_exchange(const Arguments& a) { return outputs_kind(plan_of(a).layers - 1); }
  /// Every member has the gradient of the outputs; the first one tells the peers, and its own rank, which reads it like theirs.
  MACHINE_DEVICE void publish_loss(const SliceRankArguments& a) const {
    if (!Base::is_first() || warp_ < kWarps - 2) return;
    const int tile = warp_ - (kWarps - 2);
    const unsigned char* gradient = shared_memory() + plan_of(a).dlogits_offset + tile * kTile;
    exchange_.publish_gradient(a, load_tile<Format::kWords>(gradient, lane_), lane_, tile, loss_exchange(a));
  }
  MACHINE_DEVICE void publish_below_last(const SliceRankArguments& a, int step) {
    if (warp_ < Base::kLossWarps && Base::is_first()) Base::keep_row_loss(a);
    if (warp_ != Base::kOwnGradientWarp) return;
    const int layer = Base::layers(a) - 2;
    Base::own_gradient_below_last(a, step);
    if (kTeam > 1 && Base::own_pair() / kPairs % kTeam != Base::rank_) return;  // another one of the team has
    exchange_.publish_gradient(a, load_tile<Format::kWords>(Base::own_gradient(a, layer), lane_), lane_,
                               member_, gradient_exchange(a, layer));
  }
  MACHINE_DEVICE void publish_gradient(const SliceRankArguments& a, int layer, int step, const Place& place) {
    if (!Base::adds_up()) return;
    const Publisher publisher = Base::publisher();
    const auto hidden =
        load_half<Format::kWords>(Base::own_hidden(a, layer, step), publisher.half, publisher.position);
    float sums[4];
    Base::add_partial(a, sums);
    Base::sum_over_team(a, sums);
    const uint4 packet = publisher.packet(Format::masked_half(sums, hidden));
    if (Base::publishes()) exchange_.template publish<true>(a, packet, publisher, place);
    publisher.template keep<Format::kParts>(Base::own_gradient(a, layer), packet);
  }

  // ---- tiles of this member's slice, of all ranks

  /// Where a peer's lies: of an exchange, or the second of the outputs' gradient.
  MACHINE_DEVICE static unsigned char* peer_tile(const SliceRankArguments& a, int peer, int tile) {
    return shared_memory() + a.peer_tiles_offset + (peer * peer_tiles(plan_of(a).layers) + tile) * kTile;
  }
  /// By all warps, a tile each: of this step.
  MACHINE_DEVICE void gather(const SliceRankArguments& a) {
    const int tiles = peer_tiles(plan_of(a).layers), loss = loss_exchange(a);
#pragma unroll 1
    for (int number = warp_; number < kPeers * tiles; number += kWarps) {
      const int peer = number / tiles, tile = number % tiles;
      OneTile taken;
      if (tile < plan_of(a).layers - 1)
        exchange_.template take_of<false, false>(a, peer, taken, waiter_, member_, tile);
      else if (tile < loss)
        exchange_.template take_of<true, false>(a, peer, taken, waiter_, member_, tile);
      else
        exchange_.template take_of<true, false>(a, peer, taken, waiter_, tile - loss, loss);
      store_tile(peer_tile(a, peer, tile), taken.slice[0], lane_);
    }
  }

  // ---- updates

  /// Of the matrices at `offset`: masters += factor * tiles' * own, over the rows of all ranks, of the step before. `own`: this rank's tile of
  /// the member's slice; `own_exchange`: where a peer's is.
  template <bool kGradients>
  MACHINE_DEVICE void update_matrix(const SliceRankArguments& a, int offset, int layer, int exchange,
                                    const unsigned char* own, int own_exchange) {
    if (Base::idle()) return;
    float sums[kPairs][4] = {};
    const auto own_of = [&](int peer) {
      return Format::load_own(peer < 0 ? own : peer_tile(a, peer, own_exchange), lane_);
    };
    for_ranks<kGradients>(a, exchange, sums, [&](int peer, const Tiles& tiles, float (&of_rank)[kPairs][4]) {
      add_products<0>(tiles, own_of(peer), of_rank);
    });
    float4* masters = Base::matrix(offset, layer) + Format::master_lane(lane_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      if (i >= skipped_) masters[i * 32] = updated(a, masters[i * 32], sums[i]);
    warp_sync();  // other lanes of this warp read these
  }
  /// sums += add(peer, tiles of the step before, sums) of this rank (-1) and of all peers.
  template <bool kGradients, int kCount, class Add>
  MACHINE_DEVICE void for_ranks(const SliceRankArguments& a, int exchange, float (&sums)[kCount][4],
                                const Add& add) {
    if constexpr (kTakesBoth) {
      Tiles own, others;
      exchange_.template take_both<kGradients>(a, own, others, waiter_, first_slice_, exchange);
      add(-1, own, sums);
      float of_peer[kCount][4] = {};
      add(0, others, of_peer);
      add_peers<kRanks>(sums, [&](int, float (&to)[kCount][4]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) to[i][c] = of_peer[i][c];
      });
    } else {
      const auto part = [&](int peer, float (&of_rank)[kCount][4]) {
        Tiles tiles;
        exchange_.template take_of<kGradients, true>(a, peer, tiles, waiter_, first_slice_, exchange);
        add(peer, tiles, of_rank);
      };
      part(-1, sums);
      add_peers<kRanks>(sums, part);
    }
  }
  template <int kFrom, int kCount>
  MACHINE_DEVICE void add_products(const Tiles& tiles, const Own& own, float (&sums)[kCount][4]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      add_to(sums[kFrom + i], Format::outer(Format::transposed(tiles.slice[2 * i]),
                                            Format::transposed(tiles.slice[2 * i + 1]), own, lane_));
  }
  MACHINE_DEVICE static void add_to(float (&sums)[4], const float4& more) {
    sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
  }
  MACHINE_DEVICE float4 updated(const Arguments& a, const float4& master, const float (&sums)[4]) const {
    return Base::updated(a, master, make_float4(sums[0], sums[1], sums[2], sums[3]));
  }
  /// Rows and columns of a layer between the first and the last, by step `step`.
  MACHINE_DEVICE void update_between(const SliceRankArguments& a, int layer, int step) {
    update_matrix<false>(a, plan_of(a).rows_offset, layer, layer - 1, Base::own_gradient(a, layer),
                         gradient_exchange(a, layer));
    update_matrix<true>(a, plan_of(a).columns_offset, layer, gradient_exchange(a, layer),
                        Base::own_hidden(a, layer - 1, step), layer - 1);
  }
  /// By the step before.
  MACHINE_DEVICE void update_last(const SliceRankArguments& a) {
    if (Base::idle()) return;
    const int below = Base::layers(a) - 2;
    float sums[2 * kPairs][4] = {};
    const auto own_of = [&](int peer, int second) {
      return Format::load_own(peer < 0 ? shared_memory() + plan_of(a).dlogits_offset + second * kTile
                                       : peer_tile(a, peer, loss_exchange(a) + second),
                              lane_);
    };
    for_ranks<false>(a, below, sums, [&](int peer, const Tiles& tiles, float (&of_rank)[2 * kPairs][4]) {
      add_products<0>(tiles, own_of(peer, 0), of_rank);
      add_products<kPairs>(tiles, own_of(peer, 1), of_rank);
    });
    const int m = Format::master_lane(lane_);
    float4* masters = Base::matrix(plan_of(a).last_offset[0], 1) + m;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (i < skipped_) continue;
      masters[i * 32] = updated(a, masters[i * 32], sums[i]);
      const SecondTile tile = Base::second_tile(a, i);
      if (tile.holds(m)) *tile.place(m) = updated(a, *tile.place(m), sums[kPairs + i]);
    }
    warp_sync();  // other lanes of this warp read these
  }

  /// In the step itself: the next one begins with it. Waits for peers.
  MACHINE_DEVICE void update_first(const SliceRankArguments& a) {
    if constexpr (kIsLong) {
      Base::step_sync();  // this rank's gradient is complete
      gather(a);
      Base::step_sync();  // peers' tiles are there
#pragma unroll 1
      for (int i = 0; i < input_pairs_; ++i) {
        float sums[1][4] = {};
        const auto part = [&](int peer, float (&of_rank)[1][4]) {
          add_to(of_rank[0],
                 Format::outer_inputs(input_columns(a, batch_of(peer), i), first_own(a, peer), lane_));
        };
        part(-1, sums);
        add_peers<kRanks>(sums, part);
        update_first_pair(a, i, sums[0]);
      }
    } else {
      float sums[kInputs][4] = {};
      Fragments x[kInputsAhead ? kInputs : 1];
      const auto part = [&](int peer, float (&of_rank)[kInputs][4]) {
        const Own own = first_own(a, peer);
#pragma unroll
        for (int i = 0; i < kInputs; ++i)
          add_to(of_rank[i], Format::outer_inputs(
                                 kInputsAhead ? x[kInputsAhead ? i : 0] : input_columns(a, batch_of(peer), i),
                                 own, lane_));
      };
      if constexpr (kInputsAhead) load_inputs(a, batch_of(-1), x);
      Base::step_sync();  // this rank's gradient is complete
      part(-1, sums);
      if constexpr (kInputsAhead) load_inputs(a, batch_of(0), x);
      gather(a);
      Base::step_sync();  // peers' tiles are there
      add_peers<kRanks>(sums, part);
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
        if (i < input_pairs_) update_first_pair(a, i, sums[i]);
    }
    warp_sync();  // other lanes of this warp read masters in shared memory
  }
  MACHINE_DEVICE void update_first_pair(const SliceRankArguments& a, int i, const float (&sums)[4]) {
    float4& master = Format::kFirstInRegisters
                         ? Base::first_[Format::kFirstInRegisters ? i : 0]
                         : (Base::first_masters(a) + Format::master_lane(lane_))[i * 32];
    master = updated(a, master, sums);
  }
  MACHINE_DEVICE Own first_own(const SliceRankArguments& a, int peer) const {
    return Format::load_own(peer < 0 ? Base::own_gradient(a, 0) : peer_tile(a, peer, gradient_exchange(a, 0)),
                            lane_);
  }
  /// Of this step, this rank's (-1) or a peer's: joined batches lie rank by rank.
  MACHINE_DEVICE int batch_of(int peer) const { return batch_ - device_rank_ + (device_rank_ ^ (peer + 1)); }
  /// The i-th pair of this warp's inputs of a batch, as columns; behind its last one that again, or the member's first if it has none.
  MACHINE_DEVICE Fragments input_columns(const SliceRankArguments& a, int batch, int i) const {
    const unsigned char* x =
        a.x_columns + batch * plan_of(a).x_batch_bytes + lane_ * 16 +
        (input_pairs_ > 0 ? Base::input_begin_ + min(i, input_pairs_ - 1) : 0) * 2 * kTile;
    Fragments f;
#pragma unroll
    for (int part = 0; part < 2 * Format::kParts; ++part) assign(f, part, load_constant16(x + part * 512));
    return f;
  }
  MACHINE_DEVICE void load_inputs(const SliceRankArguments& a, int batch, Fragments (&x)[kInputs]) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x[i] = input_columns(a, batch, i);
  }

  /// All of them, by a warp each; of the last layer a tile each.
  MACHINE_DEVICE void update_biases(const SliceRankArguments& a) const {
    const int hidden = plan_of(a).layers - 1, tiles = hidden + 2;
#pragma unroll 1
    for (int number = warp_; number < tiles; number += kWarps) {
      const int tile = number - hidden;  // of the last layer
      const unsigned char* own = tile < 0 ? Base::own_gradient(a, number)
                                          : shared_memory() + plan_of(a).dlogits_offset + tile * kTile;
      const int exchange = tile < 0 ? gradient_exchange(a, number) : loss_exchange(a) + tile;
      float sums[1][4] = {};
      const auto part = [&](int peer, float (&of_rank)[1][4]) {
        const float2 sum = Base::sum_of_rows(
            load_tile<Format::kWords>(peer < 0 ? own : peer_tile(a, peer, exchange), lane_));
        of_rank[0][0] += sum.x, of_rank[0][1] += sum.y;
      };
      part(-1, sums);
      add_peers<kRanks>(sums, part);
      float* bias = tile < 0 ? Base::floats(plan_of(a).bias_offset) + 8 * number
                             : Base::floats(plan_of(a).last_bias_offset) + 8 * tile;
      if (lane_ < 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          bias[2 * lane_ + i] = fmaf(a.update_factor, sums[0][i], bias[2 * lane_ + i]);
      }
    }
  }

  const int device_rank_;
};

template <class Member>
__global__ void __launch_bounds__(Member::kThreadCount, 1)
    slice_rank_steps(const __grid_constant__ SliceRankArguments arguments) {
  Member(arguments).run(arguments);
}

}  // namespace headroom::resident
