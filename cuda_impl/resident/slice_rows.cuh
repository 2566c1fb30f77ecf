// The slice kernel in 16 bits over the grid, four layers and up to 512 columns: teams of two that divide the rows of the batch.
//
// A team owns a slice of 8 columns of every layer, as in slice_step.cuh, but each of its two thread blocks makes 16 of the 32
// rows of it. So it takes only those rows of everybody's tiles, half of the bytes, and the sums of a product need no hop.
// Four warps are the chain: each multiplies a quarter of the columns from the tiles as they arrive in registers, and
// the first of them adds up four parts, rounds and publishes. What sums over rows, the updates, is divided by columns: eight
// warps own the masters of half of them, take all rows of these columns from the L2 behind the chain, and send rounded weights to
// the other thread block. A thirteenth warp has biases, inputs and the loss, and waits for what the other one sends.
//
//   tiles:     [16 rows, 8 columns] of 16-byte packets: rows g and g + 8 of four columns. A lane of a product takes one
//              of each pair of slices, lanes with t < 2 of the first and the others of the second. So the columns of a pair are
//              summed in an order of their own, in which masters and weights of hidden columns lie as well
//              (SliceRowHalves::column_of_place), and the gradient below the last layer is made.
//   own tiles: row by row [32 rows, 8 columns], read transposed. A member writes its 16 rows into its own and into the other's.
//   weights:   a row of 16 bytes for each column: read transposed for what sums over columns, as they lie for the gradient
//              below the last layer.
//   barriers, all of all thirteen warps, in a step, and what is done before each besides the chain's own:
//              1. the first layer's partial sums are complete (on the chain)
//              2. of the step before: rows of the second layer and its bias
//              3. rows of the third, its bias and the last one; gradients of the second layer are in registers
//              4. the last layer
//              5. columns of the second; everybody's activations and inputs as columns are in registers. The chain has kept
//                 what updates take of the loss, and what the other member sends of it is here
//              6. columns of the third, in the step itself, while d2 travels; inputs as rows are in registers. The first
//                 layer's gradient is complete (on the chain)
//              The four of the chain meet at one of their own for every sum in parts, of which there are two buffers.
//   sent:      between the two members by st.async, each kind with an mbarrier and one phase a step: partial sums of the
//              first layer, own tiles, gradients of the logits, and weights. Nothing is acknowledged. What is written again
//              was read before the writer could be where it writes: rows of the second layer's weights, say, in its first
//              window of the next step, which began with a gradient d1 that the reader sent behind its last product. Gradients
//              of the logits and below the last layer are written again by who has taken the next weights of the last
//              layer, which the reader sends behind barrier 3, and they are read before or by those that send them. (Own
//              activations of the first layer are read longer than that and have two places.) The weights of the third
//              layer's columns are sent in the step itself, behind barrier 5, for which the other's gradients of the logits
//              are waited for, and it sends them when its four have used these weights.
//   exchanges: two buffers are enough. Who writes one again has taken a gradient d2 of the step between from all that have
//              its rows, each of which published it with weights of the last layer from both of its team, who
//              had sent them behind barrier 3 of that step and read nothing of the step before behind it.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_whole_sums.cuh"

namespace headroom::resident {

/// Registers are handed over by four warps together; of the last four one has work.
inline constexpr int kRowsThreads = 32 * (kRowsWarps + 3);

/// Tiles of half of the rows through the L2, with the marks of SliceGrid. A buffer has [2 halves] [64 slices] of them, then as many
/// words of bits that marks displaced, marked themselves.
template <class Format, int /*kPairs*/>
class SliceRowHalves {
 public:
  static constexpr Form kForm = Form::kGrid;
  using Waiter = SliceWaiter;
  static constexpr int kSlices = kRowsMembers, kTile = 256;
  /// Where a lane publishes, and with which mark: known before there is anything to publish.
  struct Place {
    unsigned char *tile, *displaced;
    std::uint32_t want;
  };

  MACHINE_DEVICE SliceRowHalves(const SliceArguments&, int /*first_slice*/, int lane)
      : lane_(lane), position_(2 * (lane >> 2) + (lane & 1)), of_second_(lane >> 1 & 1) {}

  /// Of a pair's 16 columns, the one that a lane of a product takes at a place.
  MACHINE_DEVICE static int column_of_place(int place) {
    const int block = place >> 3, in_block = place & 7;
    return (in_block >> 2) * 8 + (in_block >> 1 & 1) * 4 + block * 2 + (in_block & 1);
  }

  MACHINE_DEVICE void begin_step(int step) { step_ = step; }

  /// A half of the rows of kCount pairs of tiles, and the bits that their marks displaced.
  template <int kCount>
  struct Share {
    uint4 tile[kCount];
    uint2 displaced;
  };
  /// Asks for them; the first slice of the i-th pair is slice_of(i), which counts the second half's behind the first's.
  template <bool kGradient, int kCount, class SliceOf>
  MACHINE_DEVICE void ask(const SliceArguments& arguments, int exchange, bool before, Share<kCount>& share,
                          SliceOf&& slice_of) const {
    const unsigned char* buffer = begin_of(arguments, exchange, before);
#pragma unroll
    for (int i = 0; i < kCount; ++i) share.tile[i] = load_relaxed_gpu_128(tile_place(buffer, slice_of(i)));
    if constexpr (kGradient)
      if (lane_ < 2 * kCount) share.displaced = load_relaxed_gpu_64(displaced_place(buffer, slice_of));
  }
  /// Waits for what was asked for. Pairs that were not there are asked for again, and nothing else: fewer bytes are on their way when
  /// the last ones come.
  template <bool kGradient, int kCount, class SliceOf>
  MACHINE_DEVICE void settle(const SliceArguments& arguments, SliceWaiter& waiter, int exchange, bool before,
                             Share<kCount>& share, SliceOf&& slice_of) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    const unsigned char* buffer = begin_of(arguments, exchange, before);
    const std::uint32_t want = epoch(before) ? kMark : 0;
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) wrong |= share.tile[i].w ^ want;
      if constexpr (kGradient)
        if (lane_ < 2 * kCount) wrong |= share.displaced.y ^ want;
      if (!warp_any((wrong & kMark) != 0) || waiter.give_up(arguments, polls, begin, exchange)) break;
      std::uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        missing |= warp_any(((share.tile[i].w ^ want) & kMark) != 0) ? 1u << i : 0u;
      compute_now(missing);  // else the compiler waits for the first before it asks for the last
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        if ((missing >> i & 1u) != 0) share.tile[i] = load_relaxed_gpu_128(tile_place(buffer, slice_of(i)));
      if constexpr (kGradient)
        if (lane_ < 2 * kCount) share.displaced = load_relaxed_gpu_64(displaced_place(buffer, slice_of));
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      share.tile[i].w &= ~kMark;
      if constexpr (kGradient)
        share.tile[i].w |= shuffle_from(share.displaced.x, 2 * i + of_second_) >> position_ & 1u;
    }
  }
  template <bool kGradient>
  MACHINE_DEVICE Place place(const SliceArguments& arguments, int exchange, int slice) const {
    unsigned char* buffer = begin_of(arguments, exchange, false);
    // With the other mark nobody sees it.
    const bool visible = epoch(false) != (exchange == arguments.lost_exchange);
    Place place = {buffer + slice * kTile + (lane_ & 15) * 16, buffer + 2 * kSlices * kTile + slice * 8,
                   visible ? mark<kGradient>() : 0};
    compute_now(place.tile);
    if (kGradient) compute_now(place.displaced);
    compute_now(place.want);
    return place;
  }
  /// A lane's 16 bytes of a half tile, which the lane 16 further holds, too.
  template <bool kGradient>
  MACHINE_DEVICE void publish(uint4 packet, const Place& place) const {
    constexpr std::uint32_t kMark = mark<kGradient>();
    const bool displaced = (packet.w & kMark) != 0;
    packet.w = (packet.w & ~kMark) | place.want;
    if (lane_ < 16) store_relaxed_gpu_128(place.tile, packet);
    if constexpr (kGradient) {
      const std::uint32_t bits = warp_ballot(displaced) & 0xffffu;
      if (lane_ == 0) store_relaxed_gpu_64(place.displaced, make_uint2(bits, place.want));
    }
  }

 private:
  template <bool kGradient>
  MACHINE_DEVICE static constexpr std::uint32_t mark() {
    return kGradient ? 1u : 0x80000000u;
  }
  MACHINE_DEVICE bool epoch(bool before) const { return ((before ? step_ - 1 : step_) >> 1 & 1) != 0; }
  MACHINE_DEVICE unsigned char* begin_of(const SliceArguments& arguments, int exchange, bool before) const {
    return arguments.exchange +
           static_cast<unsigned>(2 * exchange + ((step_ ^ (before ? 1 : 0)) & 1)) * arguments.slot_bytes;
  }

  MACHINE_DEVICE const unsigned char* tile_place(const unsigned char* buffer, int slice) const {
    return buffer + (slice + of_second_) * kTile + position_ * 16;
  }
  template <class SliceOf>
  MACHINE_DEVICE const unsigned char* displaced_place(const unsigned char* buffer, SliceOf&& slice_of) const {
    return buffer + 2 * kSlices * kTile + (slice_of(lane_ >> 1) + (lane_ & 1)) * 8;
  }

  const int lane_, position_,
      of_second_;  // in a half tile; whether this lane takes the second slice of a pair
  int step_ = 0;
};

template <class Format>
class SliceRowsMember : SliceWholeSums<Format, SliceRowHalves, kRowsPairs, 2> {
  using Base = SliceWholeSums<Format, SliceRowHalves, kRowsPairs, 2>;
  using Base::exchange_, Base::first_slice_, Base::lane_, Base::member_, Base::next_batch_, Base::rank_,
      Base::waiter_, Base::warp_;
  using Base::hidden, Base::load_own_gradient, Base::load_rows, Base::masked, Base::update_bias;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::Fragments;
  using typename Base::Own;
  using typename Base::Place;
  using typename Base::Two;
  using typename Base::Values;

 public:
  static constexpr int kThreadCount = kRowsThreads;

  MACHINE_DEVICE explicit SliceRowsMember(const Arguments& a)
      : Base(a),
        to_other_(remote_address(shared_address(shared_memory()), static_cast<std::uint32_t>(rank_ ^ 1)) -
                  shared_address(shared_memory())) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::template load<kRowsThreads>(a, false);
    begin_barriers(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    if (warp_ < kWarps)
      update(a);
    else if (warp_ < kWarps + kParts)
      chain(a);
    else
      serve(a);
    block_sync();
    cluster_sync();  // nobody may leave while the other still stores into its memory
  }

 private:
  static constexpr int kParts = 4;           // of a sum: warps of the chain
  static constexpr int kMine = 8;            // pairs of slices that each of them takes
  static constexpr int kCount = kRowsPairs;  // pairs of which a warp owns masters
  static constexpr int kTile = 512, kHalf = 256, kSlices = kRowsMembers;
  static constexpr int kStepBarrier = 1, kChainBarrier = 2, kOthersBarrier = 3;
  // A thread block begins with 128 for each of its 16 warps.
  static constexpr int kUpdatingRegisters = 168, kChainRegisters = 144, kServingRegisters = 32;
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;  // exchanges
  enum Matrix { kSecondRows, kThirdRows, kSecondColumns, kThirdColumns, kLastLow, kLastHigh };
  /// What the other member sends, once a step. Behind these, weights: of a matrix each, both tiles of the last layer together.
  enum Arrival {
    kFirstSums,
    kOwnFirst,
    kOwnSecond,
    kOwnLoss,
    kOwnSecondGradient,
    kOwnFirstGradient,
    kWeights
  };
  static_assert(kWeights + static_cast<int>(kLastLow) + 1 == kRowsBarriers);

  MACHINE_DEVICE static void step_sync() { named_barrier<32 * kRowsWarps>(kStepBarrier); }
  /// The other nine meet as often between two barriers of all as the four of the chain do. Nobody but racecheck needs that: it
  /// compares how many barriers warps have waited at, and would call what one group writes before a barrier of all, and the other
  /// reads behind it, a race.
  template <int kTimes>
  MACHINE_DEVICE static void meet_as_often() {
#pragma unroll
    for (int i = 0; i < kTimes; ++i) named_barrier<32 * (kRowsWarps - kParts)>(kOthersBarrier);
  }
  MACHINE_DEVICE static unsigned char* weights(const Arguments& a, Matrix matrix) {
    return shared_memory() + plan_of(a).hidden_offset + kRowsMatrixBytes * matrix;
  }
  MACHINE_DEVICE static unsigned char* own_first(const Arguments& a, int step) {
    return weights(a, kSecondRows) + kRowsWeightBytes + (step & 1) * kTile;
  }
  MACHINE_DEVICE static unsigned char* own_second(const Arguments& a) {
    return weights(a, kSecondRows) + kRowsWeightBytes + 2 * kTile;
  }
  MACHINE_DEVICE static unsigned char* dlogits(const Arguments& a, int tile) {
    return shared_memory() + plan_of(a).dlogits_offset + tile * kTile;
  }
  MACHINE_DEVICE float2* row_losses(const Arguments& a) const {
    return reinterpret_cast<float2*>(shared_memory() + plan_of(a).row_loss_offset);
  }
  MACHINE_DEVICE static std::uint32_t* timed_out_words(const Arguments& a) {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + plan_of(a).barrier_offset + 8 * kRowsBarriers);
  }
  /// All warps leave behind the same step: written before its last barrier, read behind it.
  MACHINE_DEVICE void tell_timed_out(const Arguments& a) const {
    if (waiter_.timed_out && lane_ == 0) timed_out_words(a)[warp_] = 1;
  }
  MACHINE_DEVICE std::uint32_t timed_out_word(const Arguments& a) const {
    return lane_ < kRowsWarps ? timed_out_words(a)[lane_] : 0;
  }

  // ---- from one member of the team to the other

  MACHINE_DEVICE static std::uint32_t barrier(const Arguments& a, int arrival) {
    return shared_address(shared_memory()) +
           static_cast<std::uint32_t>(plan_of(a).barrier_offset + 8 * arrival);
  }
  MACHINE_DEVICE static int arrival_of(Matrix matrix) { return kWeights + min(matrix, kLastLow); }
  MACHINE_DEVICE void expect(const Arguments& a, int arrival) const {
    const int bytes = arrival == kFirstSums           ? 512
                      : arrival == kOwnLoss           ? 3 * kHalf + (member_ == 0 ? 16 * 8 : 0)
                      : arrival < kWeights            ? kHalf
                      : arrival < kWeights + kLastLow ? kRowsMatrixBytes / 2
                                                      : kRowsMatrixBytes;
    barrier_arrive_expect(barrier(a, arrival), static_cast<std::uint32_t>(bytes));
  }
  MACHINE_DEVICE void begin_barriers(const Arguments& a) const {
    if (thread_index() == 0) {
      for (int i = 0; i < kRowsBarriers; ++i) barrier_init(barrier(a, i), 1);
      barrier_init_fence();
      for (int i = 0; i < kRowsBarriers; ++i) expect(a, i);
    }
    block_sync();
    cluster_sync();
  }
  MACHINE_DEVICE void await(const Arguments& a, int arrival, int step) {
    waiter_.await(a, barrier(a, arrival), static_cast<std::uint32_t>(step) & 1, kWaitTeam);
  }
  /// By one warp, which has waited. A completed phase stays visible until the next one is complete too.
  MACHINE_DEVICE void expect_next(const Arguments& a, int arrival) const {
    if (lane_ == 0 && !waiter_.timed_out) expect(a, arrival);
  }
  /// Into the same place of the other.
  MACHINE_DEVICE void send16(const Arguments& a, const unsigned char* place, const uint4& value,
                             int arrival) const {
    store_async16(shared_address(place) + to_other_, value, barrier(a, arrival) + to_other_);
  }
  MACHINE_DEVICE void send8(const Arguments& a, const unsigned char* place, const uint2& value,
                            int arrival) const {
    store_async8(shared_address(place) + to_other_, value, barrier(a, arrival) + to_other_);
  }

  // ---- eight warps that own masters

  /// Both halves of the rows of this warp's pairs: [half] [pair].
  using Columns = typename SliceRowHalves<Format, kCount>::template Share<2 * kCount>;
  MACHINE_DEVICE void update(const Arguments& a) {
    registers_increase<kUpdatingRegisters>();
    Base::load_masters(a);
    send_all_weights(a);
    Base::multiply_first(a, 0, next_batch_);
    Columns first, second, gradient;
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      Base::partial_ = 1;  // one buffer is enough
      Base::store_partial(a, Base::first_sums_);
      step_sync();  // 1
      if (step > 0) update_second_rows(a, first, true);
      step_sync();  // 2
      if (step > 0) {
        update_third_rows(a, second, true);
        ask<true>(a, kSecondGradient, true, gradient);
        settle<true>(a, kSecondGradient, true, gradient);
      }
      meet_as_often<1>();
      step_sync();  // 3
      if (step > 0) update_last(a, kept_third(a), true);
      meet_as_often<1>();
      step_sync();  // 4
      if (step > 0) update_second_columns(a, gradient, step - 1, true);
      ask<false>(a, kFirstHidden, false, first);
      ask<false>(a, kSecondHidden, false, second);
      settle<false>(a, kFirstHidden, false, first);
      settle<false>(a, kSecondHidden, false, second);
      EarlyInputs columns;
      Base::load_inputs(a, columns, step);
      Columns third;
      ask<false>(a, kThirdHidden, false, third);
      settle<false>(a, kThirdHidden, false, third);
      meet_as_often<2>();
      step_sync();  // 5
      update_third_columns(a, third, step + 1 < a.steps);
      keep_third(a, third);
      if (step + 1 < a.steps) Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
      Fragments rows[kEarlyRows];
#pragma unroll
      for (int i = 0; i < kEarlyRows; ++i) rows[i] = Base::load_row_inputs(a, i);
      tell_timed_out(a);
      meet_as_often<1>();
      step_sync();  // 6
      const std::uint32_t timed_out = timed_out_word(a);
      await(a, kOwnFirstGradient, step);
      Base::update_first_and_multiply(a, columns, rows);
      if (warp_any(timed_out != 0)) return;
    }
    // What the last step left.
    exchange_.begin_step(a.steps);
    ask<true>(a, kSecondGradient, true, gradient);
    update_second_rows(a, first, false);
    update_third_rows(a, second, false);
    update_last(a, kept_third(a), false);
    settle<true>(a, kSecondGradient, true, gradient);
    update_second_columns(a, gradient, a.steps - 1, false);
    step_sync();  // biases are updated, too
    Base::store(a);
  }
  template <bool kGradient>
  MACHINE_DEVICE void ask(const Arguments& a, int exchange, bool before, Columns& columns) const {
    exchange_.template ask<kGradient>(a, exchange, before, columns, pairs_of_rows());
  }
  template <bool kGradient>
  MACHINE_DEVICE void settle(const Arguments& a, int exchange, bool before, Columns& columns) {
    exchange_.template settle<kGradient>(a, waiter_, exchange, before, columns, pairs_of_rows());
  }
  MACHINE_DEVICE auto pairs_of_rows() const {
    return [first = first_slice_](int i) { return i / kCount * kSlices + first + 2 * (i % kCount); };
  }
  /// From step to step, by each lane for itself: in registers, there would not be enough.
  MACHINE_DEVICE uint4* third_place(const Arguments& a) const {
    return reinterpret_cast<uint4*>(own_second(a) + kTile) + warp_ * (2 * kCount * 32) + lane_;
  }
  MACHINE_DEVICE void keep_third(const Arguments& a, const Columns& third) const {
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) third_place(a)[i * 32] = third.tile[i];
  }
  MACHINE_DEVICE Columns kept_third(const Arguments& a) const {
    Columns third;
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) third.tile[i] = third_place(a)[i * 32];
    return third;
  }
  /// The operand of a weight gradient: of a pair, the columns at places 0 to 7, and 8 to 15.
  struct Transposed {
    Values low, high;
  };
  MACHINE_DEVICE static Transposed transposed(const Columns& columns, int pair) {
    const uint4 &upper = columns.tile[pair], &lower = columns.tile[kCount + pair];
    return {Format::transposed(Values{{upper.x, upper.y, lower.x, lower.y}}),
            Format::transposed(Values{{upper.z, upper.w, lower.z, lower.w}})};
  }

  /// Of this warp's pair `i`.
  MACHINE_DEVICE unsigned char* own_weights(const Arguments& a, Matrix matrix, int i = 0) const {
    return weights(a, matrix) + (first_slice_ / 2 + i) * 256;
  }
  MACHINE_DEVICE void keep_weights(const Arguments& a, Matrix matrix, int i, const float4& master) const {
    auto* place = reinterpret_cast<std::uint32_t*>(own_weights(a, matrix, i)) + lane_;
    place[0] = Format::pack_weights(master.x, master.y);
    place[32] = Format::pack_weights(master.z, master.w);
  }
  MACHINE_DEVICE void send_weights(const Arguments& a, Matrix matrix) const {
    static_assert(kCount * 256 == 32 * 16);
    warp_sync();
    const unsigned char* place = own_weights(a, matrix) + lane_ * 16;
    send16(a, place, load_shared16(place), arrival_of(matrix));
  }
  MACHINE_DEVICE void send_all_weights(const Arguments& a) const {
    const auto send = [&](Matrix matrix, auto&& master) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) keep_weights(a, matrix, i, master(i));
      send_weights(a, matrix);
    };
#pragma unroll
    for (int layer = 1; layer < 3; ++layer) {
      send(static_cast<Matrix>(kSecondRows + layer - 1),
           [&](int i) { return Base::matrix(plan_of(a).rows_offset, layer)[i * 32 + lane_]; });
      send(static_cast<Matrix>(kSecondColumns + layer - 1),
           [&](int i) { return Base::matrix(plan_of(a).columns_offset, layer)[i * 32 + lane_]; });
    }
    send(kLastLow, [&](int i) { return Base::matrix(plan_of(a).last_offset[0], 1)[i * 32 + lane_]; });
    send(kLastHigh, [&](int i) { return Base::second_tile(a, i).load(lane_); });
  }

  /// masters += factor * columns^T * own; and weights of them, here and, as long as there are steps, in the other member.
  MACHINE_DEVICE void update_matrix(const Arguments& a, int offset, int layer, Matrix matrix,
                                    const Columns& columns, const Own& own, bool sends) const {
    float4* masters = Base::matrix(offset, layer) + lane_;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Transposed of_pair = transposed(columns, i);
      const float4 now =
          Base::updated(a, masters[i * 32], Format::outer(of_pair.low, of_pair.high, own, lane_));
      masters[i * 32] = now;
      keep_weights(a, matrix, i, now);
    }
    if (sends) send_weights(a, matrix);
  }
  // From the step before.
  MACHINE_DEVICE void update_second_rows(const Arguments& a, const Columns& first, bool sends) const {
    update_matrix(a, plan_of(a).rows_offset, 1, kSecondRows, first, load_own_gradient(a, 1), sends);
  }
  MACHINE_DEVICE void update_third_rows(const Arguments& a, const Columns& second, bool sends) const {
    update_matrix(a, plan_of(a).rows_offset, 2, kThirdRows, second, load_own_gradient(a, 2), sends);
  }
  MACHINE_DEVICE void update_second_columns(const Arguments& a, const Columns& gradient, int step,
                                            bool sends) const {
    update_matrix(a, plan_of(a).columns_offset, 1, kSecondColumns, gradient, load_rows(own_first(a, step)),
                  sends);
  }
  MACHINE_DEVICE void update_last(const Arguments& a, const Columns& third, bool sends) const {
    float4* masters = Base::matrix(plan_of(a).last_offset[0], 1) + lane_;
    const Own low_own = load_rows(dlogits(a, 0)), high_own = load_rows(dlogits(a, 1));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Transposed of_pair = transposed(third, i);
      const SecondTile second = Base::second_tile(a, i);
      const float4 low = Base::updated(a, masters[i * 32],
                                       Format::outer(of_pair.low, of_pair.high, low_own, lane_)),
                   high = Base::updated(a, second.load(lane_),
                                        Format::outer(of_pair.low, of_pair.high, high_own, lane_));
      masters[i * 32] = low;
      second.store(lane_, high);
      keep_weights(a, kLastLow, i, low);
      keep_weights(a, kLastHigh, i, high);
    }
    if (!sends) return;
    send_weights(a, kLastLow);
    send_weights(a, kLastHigh);
  }
  /// In the step itself. The gradient below the last layer is made once more, of all rows of this warp's columns.
  MACHINE_DEVICE void update_third_columns(const Arguments& a, const Columns& third, bool sends) const {
    Columns gradient;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int block = lane_ >> 3;
      std::uint32_t word[4];
      load_matrices(dlogits(a, block >> 1) + (16 * half + 8 * (block & 1) + (lane_ & 7)) * 16, word);
      const uint4 rows = make_uint4(word[0], word[1], word[2], word[3]);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        gradient.tile[half * kCount + i] =
            below_last(rows, load_across(a, first_slice_ / 2 + i), third.tile[half * kCount + i]);
    }
    update_matrix(a, plan_of(a).columns_offset, 2, kThirdColumns, gradient, load_rows(own_second(a)), sends);
  }

  /// Pairs of rows of the next step's inputs that are in registers before the first layer's gradient is complete. There is
  /// always room to stage them.
  static constexpr int kEarlyRows = 2;

  // ---- a warp for what is small, and that waits for the other member: the others then need to pass a barrier only

  MACHINE_DEVICE void receive(const Arguments& a, int arrival, int step) {
    await(a, arrival, step);
    expect_next(a, arrival);
  }
  MACHINE_DEVICE void serve(const Arguments& a) {
    registers_decrease<kServingRegisters>();
    if (warp_ >= kRowsWarps) return;
    constexpr int kThread = 32 * (kRowsWarps - 1);
    Base::stage_rows(a, kThread);
    for (int step = 0; step < a.steps; ++step) {
      Base::next_batch(a);
      step_sync();  // 1: behind it nobody reads the last inputs
      Base::stage_columns(a, kThread);
      if (step + 1 < a.steps) Base::stage_rows(a, kThread);
      if (step > 0) update_own_bias(a, 1);
      step_sync();  // 2
      if (step > 0) after_loss(a, step - 1);
      meet_as_often<1>();
      step_sync();  // 3
      receive(a, kOwnFirst, step);
      meet_as_often<1>();
      step_sync();  // 4
      receive(a, kOwnSecond, step);
      meet_as_often<2>();
      receive(a, kOwnLoss, step);
      step_sync();  // 5
      receive(a, kOwnSecondGradient, step);
      tell_timed_out(a);
      meet_as_often<1>();
      step_sync();  // 6
      const std::uint32_t timed_out = timed_out_word(a);
      receive(a, kOwnFirstGradient, step);
      update_own_bias(a, 0);
      if (warp_any(timed_out != 0)) return;
    }
    update_own_bias(a, 1);
    after_loss(a, a.steps - 1);
    step_sync();
  }
  MACHINE_DEVICE void after_loss(const Arguments& a, int step) {
    update_own_bias(a, 2);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      update_bias(a, Base::floats(plan_of(a).last_bias_offset) + 8 * i, load_rows(dlogits(a, i)));
    if (Base::is_first()) Base::store_loss(a, step);
  }
  MACHINE_DEVICE void update_own_bias(const Arguments& a, int layer) const {
    update_bias(a, Base::floats(plan_of(a).bias_offset) + 8 * layer, load_own_gradient(a, layer));
  }

  // ---- four warps that are the chain

  MACHINE_DEVICE int part() const { return warp_ - kWarps; }
  MACHINE_DEVICE bool leads() const { return part() == 0; }
  using Mine = typename SliceRowHalves<Format, kCount>::template Share<kMine>;
  using Product = WholeProduct<Format, kMine>;
  MACHINE_DEVICE Product load_product(const Arguments& a, Matrix matrix) const {
    const unsigned char* place = weights(a, matrix) + part() * (kMine * 256) + lane_ * 16;
    Product product;
#pragma unroll
    for (int i = 0; i < kMine / 2; ++i) load_matrices_transposed(place + i * 512, product.weights[i]);
    return product;
  }
  /// Of the last layer, as the gradient below it takes them: places 0 to 7, of classes below 8 and above, then 8 to 15.
  struct Across {
    std::uint32_t weights[4];
  };
  MACHINE_DEVICE Across load_across(const Arguments& a, int pair) const {
    const int block = lane_ >> 3;
    Across across;
    load_matrices(weights(a, (block & 1) == 0 ? kLastLow : kLastHigh) + pair * 256 +
                      ((block >> 1) * 8 + (lane_ & 7)) * 16,
                  across.weights);
    return across;
  }
  /// Of 16 rows of a pair's columns: their activations are `tile`.
  MACHINE_DEVICE static uint4 below_last(const uint4& rows, const Across& across, const uint4& tile) {
    float low[4] = {}, high[4] = {};
    Format::product(low, rows, across.weights[0], across.weights[1]);
    Format::product(high, rows, across.weights[2], across.weights[3]);
    const Two first = masked(low, {tile.x, tile.y}), second = masked(high, {tile.z, tile.w});
    return make_uint4(first.upper, first.lower, second.upper, second.lower);
  }

  // Parts of a sum, two places in turn: who writes one again has met the others behind its last reader.
  MACHINE_DEVICE float4& part_of_sum(const Arguments& a, int from, int tile) const {
    return reinterpret_cast<float4*>(shared_memory() + plan_of(a).partial_offset + kWarps * kPartialTile +
                                     place_ * (2 * kParts * 512))[(tile * kParts + from) * 32 + lane_];
  }
  MACHINE_DEVICE void store_part(const Arguments& a, const float (&sum)[4], int tile = 0) const {
    part_of_sum(a, part(), tile) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  MACHINE_DEVICE static void meet() { named_barrier<32 * kParts>(kChainBarrier); }
  MACHINE_DEVICE void add_parts(const Arguments& a, float (&sum)[4], int tile = 0) const {
    const float4 total = add_up<kParts>(&part_of_sum(a, 0, tile), 32);
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
  }
  /// Of all four, for the one that leads.
  MACHINE_DEVICE void sum_over_parts(const Arguments& a, float (&sum)[4]) {
    store_part(a, sum);
    meet();
    if (leads()) add_parts(a, sum);
    place_ ^= 1;
  }

  template <bool kGradient>
  MACHINE_DEVICE void take(const Arguments& a, int exchange, Mine& mine) {
    const auto slice_of = [first = rank_ * kSlices + part() * (2 * kMine)](int i) { return first + 2 * i; };
    exchange_.template ask<kGradient>(a, exchange, false, mine, slice_of);
    exchange_.template settle<kGradient>(a, waiter_, exchange, false, mine, slice_of);
  }
  template <bool kGradient>
  MACHINE_DEVICE Place place(const Arguments& a, int exchange) const {
    return exchange_.template place<kGradient>(a, exchange, rank_ * kSlices + member_);
  }
  template <bool kGradient>
  MACHINE_DEVICE void publish(const Two& two, const Place& place) const {
    exchange_.template publish<kGradient>(Base::packet_of(two), place);
  }
  /// This member's rows of a tile that lies row by row, here and in the other member.
  MACHINE_DEVICE void keep_rows(const Arguments& a, unsigned char* tile, const Two& two, int arrival) const {
    const int g = lane_ >> 2, t = lane_ & 3;
    const bool odd = (t & 1) != 0;  // has the row 8 further
    const std::uint32_t beside = shuffle_from(odd ? two.upper : two.lower, lane_ ^ 1);
    unsigned char* place = tile + (16 * rank_ + g + 8 * (t & 1)) * 16 + (t >> 1) * 8;
    const uint2 four = odd ? make_uint2(beside, two.lower) : make_uint2(two.upper, beside);
    *reinterpret_cast<uint2*>(place) = four;
    send8(a, place, four, arrival);
  }

  MACHINE_DEVICE void await_weights(const Arguments& a, Matrix matrix, int step) {
    await(a, arrival_of(matrix), step);
    if (leads()) expect_next(a, arrival_of(matrix));
  }
  MACHINE_DEVICE float2 bias_of(const Arguments& a, int layer) const {
    return leads() ? Base::bias_of(a, layer, 0) : make_float2(0, 0);
  }

  MACHINE_DEVICE void chain(const Arguments& a) {
    registers_increase<kChainRegisters>();
    int label[2];
    load_labels(a, label);
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      Place to = place<false>(a, kFirstHidden);
      step_sync();  // 1
      float sum[4];
      Two first{}, second{};
      if (part() < 2) add_first(a, sum);
      if (leads()) {
        add_others_first(a, sum, step);
        first = hidden(sum);
        publish<false>(first, to);
        keep_rows(a, own_first(a, step), first, kOwnFirst);
      }

      Mine mine;
      auto& tiles = mine.tile;
      to = place<false>(a, kSecondHidden);
      step_sync();  // 2
      await_weights(a, kSecondRows, step);
      Product product = load_product(a, kSecondRows);
      float2 bias = bias_of(a, 1);
      take<false>(a, kFirstHidden, mine);
      multiply<4>(sum, tiles, product, bias);
      sum_over_parts(a, sum);
      if (leads()) {
        second = hidden(sum);
        publish<false>(second, to);
        keep_rows(a, own_second(a), second, kOwnSecond);
      }

      to = place<false>(a, kThirdHidden);
      step_sync();  // 3
      await_weights(a, kThirdRows, step);
      product = load_product(a, kThirdRows);
      bias = bias_of(a, 2);
      take<false>(a, kSecondHidden, mine);
      multiply<4>(sum, tiles, product, bias);
      sum_over_parts(a, sum);
      if (leads()) publish<false>(hidden(sum), to);

      int next_label[2];
      load_labels(a, next_label);
      step_sync();                         // 4
      loss(a, mine, label, second, step);  // with barrier 5
      await_weights(a, kSecondColumns, step);
      product = load_product(a, kSecondColumns);
      take<true>(a, kSecondGradient, mine);
      multiply<4>(sum, tiles, product);
      sum_over_parts(a, sum);
      if (leads()) keep_rows(a, Base::own_gradient(a, 0), masked(sum, first), kOwnFirstGradient);
      tell_timed_out(a);
      step_sync();  // 6
      if (warp_any(timed_out_word(a) != 0)) return;
      label[0] = next_label[0], label[1] = next_label[1];
    }
    step_sync();
  }
  /// Of the next step: of memory that nobody has read before, for which a step would wait.
  MACHINE_DEVICE void load_labels(const Arguments& a, int (&label)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row() + 8 * i;
      label[i] = row < plan_of(a).batch ? a.labels[std::int64_t{next_batch_} * plan_of(a).batch + row] : -1;
    }
  }
  MACHINE_DEVICE int first_row() const { return 16 * rank_ + (lane_ >> 2); }
  /// Over this member's inputs: by the warp that leads of this member's rows, by another of the other's, to whom it sends them.
  MACHINE_DEVICE void add_first(const Arguments& a, float (&sum)[4]) const {
    const int half = leads() ? rank_ : rank_ ^ 1;
    const float4* mine = Base::partial(a, 0) + half * 32 + lane_;
    const float4 total = add_up<kWarps>(mine, kPartialTile / 16);
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
    if (!leads())
      send16(a, others_first(a),
             make_uint4(float_to_bits(sum[0]), float_to_bits(sum[1]), float_to_bits(sum[2]),
                        float_to_bits(sum[3])),
             kFirstSums);
  }
  MACHINE_DEVICE unsigned char* others_first(const Arguments& a) const {
    return shared_memory() + plan_of(a).team_offset + lane_ * 16;
  }
  MACHINE_DEVICE void add_others_first(const Arguments& a, float (&sum)[4], int step) {
    const float2 bias = Base::bias_of(a, 0, 0);
    await(a, kFirstSums, step);
    const float4 other = *reinterpret_cast<const float4*>(others_first(a));
    expect_next(a, kFirstSums);
    sum[0] += other.x, sum[1] += other.y, sum[2] += other.z, sum[3] += other.w;
    sum[0] += bias.x, sum[1] += bias.y, sum[2] += bias.x, sum[3] += bias.y;
  }

  /// From the activations below the last layer to the publication of the gradient one layer further down.
  MACHINE_DEVICE void loss(const Arguments& a, Mine& mine, const int (&label)[2], const Two& second,
                           int step) {
    const Place to = place<true>(a, kSecondGradient);
    auto& tiles = mine.tile;
    await_weights(a, kLastLow, step);
    await_weights(a, kThirdColumns, step);
    const Product low_weights = load_product(a, kLastLow), high_weights = load_product(a, kLastHigh);
    const int t = lane_ & 3;
    auto bias = TwoRowsOfLoss::load_bias(Base::floats(plan_of(a).last_bias_offset), plan_of(a).classes, t);
    if (!leads()) bias = {};
    take<false>(a, kThirdHidden, mine);
    float low[4], high[4];
    multiply<2>(low, tiles, low_weights, bias.low);
    multiply<2>(high, tiles, high_weights, bias.high);
    store_part(a, low);
    store_part(a, high, 1);
    meet();
    add_parts(a, low);
    add_parts(a, high, 1);
    place_ ^= 1;
    Across across[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) across[i] = load_across(a, part() * kMine + i);
    const Product product = load_product(a, kThirdColumns);

    const int row[2] = {first_row(), first_row() + 8};
    const auto rows = TwoRowsOfLoss::of(low, high, label, row, plan_of(a).batch, a.gradient_scale, t);
    const auto& power = rows.gradient;
    const uint4 gradient_rows =
        make_uint4(Format::pack(power[0][0], power[0][1]), Format::pack(power[1][0], power[1][1]),
                   Format::pack(power[0][2], power[0][3]), Format::pack(power[1][2], power[1][3]));
#pragma unroll
    for (int i = 0; i < kMine; ++i) tiles[i] = below_last(gradient_rows, across[i], tiles[i]);
    float sum[4];
    multiply<4>(sum, tiles, product);
    sum_over_parts(a, sum);

    // What updates take. Sent behind the sum: all four have used the third layer's columns, which the other sends anew when it has
    // this.
    if (leads()) {
      const Two gradient = masked(sum, second);
      publish<true>(gradient, to);
      keep_rows(a, Base::own_gradient(a, 1), gradient, kOwnSecondGradient);
    } else if (part() == 1) {
      keep_rows(a, dlogits(a, 0), {gradient_rows.x, gradient_rows.y}, kOwnLoss);
    } else if (part() == 2) {
      keep_rows(a, dlogits(a, 1), {gradient_rows.z, gradient_rows.w}, kOwnLoss);
    } else if (member_ == 0) {
      rows.keep(row_losses(a), label, row, t);
      warp_sync();
      if (lane_ < 16) {
        const auto* place = reinterpret_cast<const uint2*>(row_losses(a) + 16 * rank_ + lane_);
        send8(a, reinterpret_cast<const unsigned char*>(place), *place, kOwnLoss);
      }
    }
    if (member_ / (2 * kMine) ==
        part()) {  // this warp has the gradient of this member's own columns, four in half of its lanes
      uint4 own = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {  // by bits: chosen by its number, the tiles would be in memory
        const std::uint32_t chosen = member_ / 2 % kMine == i ? ~0u : 0u;
        own.x |= tiles[i].x & chosen, own.y |= tiles[i].y & chosen;
        own.z |= tiles[i].z & chosen, own.w |= tiles[i].w & chosen;
      }
      if (t >> 1 == (member_ & 1)) {
        unsigned char* place = Base::own_gradient(a, 2) + first_row() * 16 + (t & 1) * 8;
        const uint2 upper = make_uint2(own.x, own.z), lower = make_uint2(own.y, own.w);
        *reinterpret_cast<uint2*>(place) = upper;
        *reinterpret_cast<uint2*>(place + 8 * 16) = lower;
        send8(a, place, upper, kOwnLoss);
        send8(a, place + 8 * 16, lower, kOwnLoss);
      }
    }
    step_sync();  // 5
  }

  const std::uint32_t to_other_;  // from this member's shared memory to the other's
  int place_ = 0;                 // of the next sum in parts
};

}  // namespace headroom::resident
