// The slice kernel in tf32 in four clusters of 16, four layers, up to 128 columns: the clusters divide the rows of the batch and the
// updates of the hidden layers. Each has the whole first layer, so only that layer's gradient is waited for from another cluster.
//
// Into a multiprocessor come 16 bytes a cycle from others of its cluster, so an exchange costs its bytes: 16 KB of all rows 1,370
// cycles, 4 KB of eight 600. So each cluster makes the hidden layers and the loss of eight rows. A weight gradient sums over all
// rows, whose tiles are 82 KB a step: more than a member can bring in while a step lasts without being waited for. So each
// cluster updates a quarter of the columns of every hidden weight, for which a warp needs three tiles, straight into registers, and
// hands the others the rounded weights, 512 bytes a pair of slices, before the next step asks for them.
//
//   chain:     in each member one warp leads, from the first layer's sums to its gradient: it makes whole sums, of eight rows,
//              rounds and publishes. Three help with the last layer: each of the four has a quarter of the columns of the
//              logits' sums, of the gradient below them and of the product with it. They also tell what only others need, make
//              the loss and ask for inputs.
//   board:     what clusters tell each other, in the L2: 8 or 16 bytes of a lane, read and written whole, whose last bit is a mark
//              that changes whenever a place is written (slice_exchange.cuh). It is a bit that tf32 leaves free; a gradient,
//              which is told unrounded because biases sum it so, gives it up before anybody uses it. Tiles are told as columns,
//              8 x 8 transposed, as updates take them.
//   eight:     have the first layer, whose update and next product are on the chain, so they update nothing else: each looks for
//              its gradient itself. While the chain then makes h1 they bring the other clusters' weights into shared memory.
//   updaters:  four warps with three pairs of masters each: of rows and of columns of a hidden layer, and of a tile of the last. They
//              ask for the tiles of the last layer and of the third when the chain has read what they update, which is behind
//              the telling of these, and for the second's when the last d2 of their own cluster is here, and not in vain before.
//   code:      what all warps execute in a step has to stay in the instruction cache: the chain's warps share theirs, what is not
//              waited for is in loops. 500 instructions more that nobody waits for were 0.15 us.
//   signals:   no warp waits for more than it needs. What warps tell each other, by an mbarrier each, at which every thread that
//              tells arrives for itself:
//              sums         the first layer's partial sums and its bias are complete: the eight tell the chain
//              second, third, last ready   weights and bias of that layer; the last: the weights of gradients, too
//              parts        of the logits, then of the gradient below h2: among the warps of the chain
//              read         the chain has read weights and biases: it tells the updaters, who write them next
//              first told   the leader has told its first layer's gradient, so others are about to, and has read partial sums and
//                           bias, which the eight write next
//   exchanges: one buffer. h1 of the next step is published behind a wait for the first layer's gradient, which comes behind d2 of
//              every member of the cluster, and d2 behind h3 of the next step, so by members that have taken tiles which
//              every member published behind its last use of the buffer.
//   inputs:    columns of all rows and rows of its own eight, a step ahead. Columns are the same for all members of a cluster, so
//              each brings a sixteenth to all at once, when an h1 of every one is here, published behind its last use of
//              the columns before.
//   board's reuse: two places in turn. Who writes one again two steps later has that step's product of the first layer, or what was
//              made of it, hence behind the first layer's gradient of the step between, which the members of every rank told
//              in every cluster when they had taken a d2 of every member of theirs. Those published it behind `last ready` of
//              the step between and what was ready before, hence behind all their updaters' reading of the place.
//              Row losses are read behind their own step's by a warp whose part in `parts` of the next step that step's d2 waits for.
//   waits:     all are bounded. Who runs out of time waits for nothing any more and publishes nothing, but comes to all barriers until
//              the launch ends, so that nobody is left alone.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "resident/slice_row_clusters.cuh"
#include "resident/slice_step.cuh"

namespace headroom::resident {

using Rows = WholeRows;

/// Tiles [8 rows, 8 columns] of all members, by st.async into everybody's shared memory, one buffer an exchange.
template <class Format, int kPairs>
class SliceEightRows {
 public:
  static constexpr Form kForm = Form::kCluster;
  using Waiter = SliceWaiter;

  struct Place {};

  MACHINE_DEVICE SliceEightRows(const SliceArguments&, int /*first_slice*/, int /*lane*/) {}

  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE void begin(const SliceArguments& arguments) const {
    if (thread_index() == 0) {
      for (int i = 0; i < kExchanges; ++i) barrier_init(barrier(arguments, i), 1);
      barrier_init_fence();
      for (int i = 0; i < kExchanges; ++i) expect(barrier(arguments, i));
    }
    block_sync();
    cluster_sync();
  }
  MACHINE_DEVICE void begin_step(int step) { parity_ = static_cast<std::uint32_t>(step) & 1; }
  /// Nobody may leave while others still store into its memory.
  MACHINE_DEVICE void end() const { cluster_sync(); }

  MACHINE_DEVICE void await(const SliceArguments& arguments, SliceWaiter& waiter, int exchange) const {
    waiter.await(arguments, barrier(arguments, exchange), parity_, exchange);
  }
  /// By one thread that has waited, for the next use of the buffer. A completed phase stays visible until that one is
  /// complete too.
  MACHINE_DEVICE void expect_next(const SliceArguments& arguments, const SliceWaiter& waiter,
                                  int exchange) const {
    if (!waiter.timed_out) expect(barrier(arguments, exchange));
  }
  /// In bytes from the start of shared memory.
  MACHINE_DEVICE static std::uint32_t buffer(const SliceArguments& arguments, int exchange) {
    return static_cast<std::uint32_t>(plan_of(arguments).exchange_offset + exchange * Rows::kExchange);
  }
  MACHINE_DEVICE static std::uint32_t barrier(const SliceArguments& arguments, int exchange) {
    return shared_address(shared_memory()) +
           static_cast<std::uint32_t>(plan_of(arguments).barrier_offset + 8 * exchange);
  }

 private:
  static constexpr int kExchanges = 4;  // of four layers

  MACHINE_DEVICE static void expect(std::uint32_t barrier) {
    barrier_arrive_expect(barrier, Rows::kExchange);
  }

  std::uint32_t parity_ = 0;
};

template <class Format>
class SliceWholeRowsMember : SliceMember<Format, SliceEightRows, 1, 4, Rows::kClusters, 1, true>,
                             RowClusters<Format> {
  using Base = SliceMember<Format, SliceEightRows, 1, 4, Rows::kClusters, 1, true>;
  using Base::exchange_, Base::lane_, Base::member_, Base::next_batch_, Base::rank_, Base::waiter_,
      Base::warp_;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::Fragments;
  using typename Base::Owns;
  using typename Base::Values;
  using Shared = RowClusters<Format>;
  using Shared::added, Shared::below_last, Shared::hidden, Shared::mark, Shared::masked, Shared::multiply_add,
      Shared::operand, Shared::store_marked;
  using typename Shared::Loss, typename Shared::Publication, typename Shared::Two;
  template <int kCount>
  using Product = typename Shared::template Product<kCount>;

 public:
  static constexpr int kThreadCount = kThreads + 32 * (Rows::kChainWarps + Rows::kUpdaters);

  MACHINE_DEVICE explicit SliceWholeRowsMember(const Arguments& a) : Base(a), part_(warp_ % kParts) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    const bool has_inputs = warp_ < kWarps;
    Base::template load<kThreadCount>(a, has_inputs);
    keep_ways(a);
    begin_signals(a);
    exchange_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    if (has_inputs)
      train_first(a);
    else if (warp_ >= kFirstUpdater)
      update(a);
    else
      chain(a);
    block_sync();
    if (has_inputs && !waiter_.timed_out) Base::store(a);
    exchange_.end();
  }

 private:
  static constexpr int kSlices = kMaxCluster, kClusters = Rows::kClusters;
  static constexpr int kTile = Rows::kTile, kAllRowsTile = Rows::kAllRowsTile;
  static constexpr int kParts = Rows::kChainWarps, kFirstUpdater = kWarps + kParts;
  static_assert(kParts == Rows::kUpdaters && kParts == kClusters && kWarps % kParts == 0);
  static constexpr int kMine =
      kSlices / kParts;  // tiles whose columns a warp of the chain has of a divided sum
  static constexpr int kOwnPairs = kWarps / kClusters;  // of a matrix, those that a cluster updates
  /// In cycles, from the own cluster's gradient on: the others' need a way through the L2, and who misses one has to look again.
  static constexpr std::uint32_t kFirstLook = 200;
  static constexpr int kEarlyColumns = 2,
                       kEarlyRows = Base::kInputs - 2;  // pairs of inputs in registers ahead
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;  // exchanges
  // Of weights, 4 KB each; the last layer's backward is twice that.
  enum Matrix { kSecondRows, kThirdRows, kSecondColumns, kThirdColumns, kLastLow, kLastHigh, kLastAcross };
  static constexpr int kLastHighAcross = 4096 / 16;  // of the second tile of logits
  // What clusters tell each other, of each slice; behind them of the logits' gradient and the loss.
  enum Told { kFirst, kSecond, kThird, kBelowSecond, kBelowThird, kBelowFirst };
  static constexpr int kLogitsGradient = 6 * kSlices, kRowLoss = kLogitsGradient + 2;
  static_assert(kRowLoss + 1 == Rows::kTold);

  // ---- what warps tell each other: mbarriers, at each of which those who tell arrive, once a step but for parts, which are twice

  enum Signal { kSums, kPartsSum, kRead, kSecondReady, kThirdReady, kLastReady, kFirstTold };
  static_assert(kFirstTold + 1 == Rows::kSignals);
  /// Warps that arrive. Rows are ready when the two that update some have done so, and the two that gather the others.
  MACHINE_DEVICE static constexpr int arrivals(int signal) {
    return signal == kSums                                   ? kWarps
           : signal == kSecondReady || signal == kThirdReady ? 2 * kOwnPairs
           : signal == kLastReady                            ? kWarps + Rows::kUpdaters
           : signal == kFirstTold                            ? 1
                                                             : kParts;
  }
  MACHINE_DEVICE static std::uint32_t signal_place(const Arguments& a, int signal) {
    return shared_address(shared_memory()) +
           static_cast<std::uint32_t>(plan_of(a).team_barrier_offset + 8 * signal);
  }
  MACHINE_DEVICE static void begin_signals(const Arguments& a) {
    if (thread_index() == 0)
      for (int signal = 0; signal < Rows::kSignals; ++signal)
        barrier_init(signal_place(a, signal), static_cast<std::uint32_t>(32 * arrivals(signal)));
  }
  MACHINE_DEVICE static void tell(const Arguments& a, Signal signal) {
    barrier_arrive(signal_place(a, signal));
  }
  /// For the time-th time. Nothing but this thread block is waited for, and of it everybody comes, so this needs no bound.
  MACHINE_DEVICE static void await(const Arguments& a, Signal signal, int time) {
    while (!warp_all(barrier_try_wait(signal_place(a, signal), static_cast<std::uint32_t>(time) & 1))) {
    }
  }

  MACHINE_DEVICE static unsigned char* fragments(const Arguments& a, int matrix) {
    return shared_memory() + plan_of(a).hidden_offset + 4096 * matrix;
  }

  // ---- what goes through the L2: 8 or 16 bytes of each lane, with a mark in the last bit

  /// Of a step: [2] x ([kTold] tiles [2 pairs of clusters] [8 columns] [2 x 8 rows], then [members] [from] [kWeights] pairs of slices).
  MACHINE_DEVICE static unsigned char* board(const Arguments& a, int step) {
    return a.exchange + (step & 1) * Rows::kBoard;
  }
  /// Rows 8 * cluster + 2t and the next of column g.
  MACHINE_DEVICE unsigned char* told(const Arguments& a, int step, int tile, int cluster) const {
    return board(a, step) + tile * kAllRowsTile + (cluster >> 1) * 2 * kTile + (lane_ >> 2) * 64 +
           (cluster & 1) * 32 + (lane_ & 3) * 8;
  }
  /// Of this member's slice: what cluster `from` has updated.
  MACHINE_DEVICE unsigned char* told_weights(const Arguments& a, int step, int from, int number) const {
    return board(a, step) + Rows::kTold * kAllRowsTile +
           ((member_ * kClusters + from) * Rows::kWeights + number) * kMasterPair + lane_ * 16;
  }
  /// This lane's two columns of a row, as columns. What others compute with has lost the bit that the mark takes.
  MACHINE_DEVICE void tell(const Arguments& a, int step, int tile, std::uint32_t first,
                           std::uint32_t second) const {
    transpose_two(first, second);
    store_marked(told(a, step, tile, rank_), first, second, mark(step));
  }
  MACHINE_DEVICE static int tile_of(int what, int slice) { return what * kSlices + slice; }
  /// look(): whether everything that it looked for was there.
  template <class Look>
  MACHINE_DEVICE void look_until_there(const Arguments& a, const Look& look) {
    waiter_.wait_until(a, kWaitTeam, look);
  }
  /// All rows of kCount tiles, when all clusters have told them: rows 16i + 4t to 16i + 4t + 3 of column g. The order of rows is
  /// free, if all that meet in a product take the same.
  template <int kCount>
  MACHINE_DEVICE void ask(const Arguments& a, int step, const int (&tiles)[kCount],
                          Values (&values)[kCount]) {
    look_until_there(a, [&] {
      uint4 part[kCount][2];
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          part[i][half] =
              load_relaxed_gpu_2x64(board(a, step) + tiles[i] * kAllRowsTile + half * 2 * kTile + lane_ * 16);
#pragma unroll
      for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          wrong |= (part[i][half].y ^ mark(step)) | (part[i][half].w ^ mark(step));
          assign(values[i], half, part[i][half]);
        }
      return (wrong & 1) == 0;
    });
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
      for (int word = 1; word < 8; word += 2) values[i].word[word] &= ~1u;
  }
  /// The first layer's gradient, its rows in the order of inputs: 8 * cluster + 2t and the next.
  MACHINE_DEVICE Values ask_first_gradient(const Arguments& a, int step) {
    Values values;
    look_until_there(a, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int cluster = 0; cluster < kClusters; ++cluster) {
        const uint2 two = load_relaxed_gpu_64(told(a, step, tile_of(kBelowFirst, member_), cluster));
        wrong |= two.y ^ mark(step);
        values.word[2 * cluster] = two.x, values.word[2 * cluster + 1] = two.y & ~1u;
      }
      return (wrong & 1) == 0;
    });
    return values;
  }

  // ---- updates behind the first layer: four warps

  /// masters += factor * columns^T * own, of this member's slice and a pair of others.
  MACHINE_DEVICE float4 updated_pair(const Arguments& a, const float4& master, const Values& first,
                                     const Values& second, const Values& own) const {
    return Base::updated(
        a, master,
        Format::outer(Format::operand(first), Format::operand(second), Format::operand(own), lane_));
  }
  /// bias [8] += factor * the sum of a tile's rows
  MACHINE_DEVICE void update_bias(const Arguments& a, const Values& columns, int offset) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += bits_to_float(columns.word[i]);
    sum = quad_sum(sum);
    float& bias = Base::floats(offset)[lane_ >> 2];
    if ((lane_ & 3) == 0) bias = fmaf(a.update_factor, sum, bias);
  }
  MACHINE_DEVICE static uint4 rounded(const float4& m) {
    return make_uint4(Format::rounded(m.x), Format::rounded(m.y), Format::rounded(m.z), Format::rounded(m.w));
  }
  /// As a product takes them: of two tiles the first columns, then the second.
  MACHINE_DEVICE static uint4 weights(const float4& master) {
    const auto w = Format::weights(master);
    return make_uint4(w.word[0], w.word[2], w.word[1], w.word[3]);
  }
  MACHINE_DEVICE uint4& fragment(const Arguments& a, int matrix, int pair) const {
    return reinterpret_cast<uint4*>(fragments(a, matrix))[pair * 32 + lane_];
  }
  /// Backward the last layer takes its masters as they lie.
  MACHINE_DEVICE void keep_weights(const Arguments& a, int matrix, int pair, const float4& master) const {
    fragment(a, matrix, pair) = weights(master);
    if (matrix >= kLastLow)
      (&fragment(a, kLastAcross, pair))[(matrix - kLastLow) * kLastHighAcross] = rounded(master);
  }
  MACHINE_DEVICE void tell_weights(const Arguments& a, int step, int number, const uint4& weights) const {
    store_relaxed_gpu_128(told_weights(a, step, rank_, number),
                          make_uint4(weights.x, weights.y, weights.z, (weights.w & ~1u) | mark(step)));
  }

  /// Where they are when a launch begins and ends.
  MACHINE_DEVICE float4& hidden_master(const Arguments& a, int matrix, int pair) const {
    const int offset = matrix < kSecondColumns ? plan_of(a).rows_offset : plan_of(a).columns_offset;
    return reinterpret_cast<float4*>(shared_memory() + offset)[(matrix % 2 * kWarps + pair) * 32 + lane_];
  }
  MACHINE_DEVICE SecondTile second_tile(const Arguments& a, int pair) const {
    const int lanes = plan_of(a).last_lanes;
    return {reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[1]) + pair * 8 * lanes,
            lanes};
  }
  MACHINE_DEVICE float4* first_tile(const Arguments& a, int pair) const {
    return reinterpret_cast<float4*>(shared_memory() + plan_of(a).last_offset[0]) + pair * 32 + lane_;
  }
  MACHINE_DEVICE float4 last_master(const Arguments& a, int tile, int pair) const {
    return tile == 0 ? *first_tile(a, pair) : second_tile(a, pair).load(lane_);
  }
  MACHINE_DEVICE float4 load_master(const Arguments& a, int matrix, int pair) const {
    return matrix < kLastLow ? hidden_master(a, matrix, pair) : last_master(a, matrix - kLastLow, pair);
  }
  MACHINE_DEVICE void store_master(const Arguments& a, int matrix, int pair, const float4& master) const {
    if (matrix < kLastLow)
      hidden_master(a, matrix, pair) = master;
    else if (matrix == kLastLow)
      *first_tile(a, pair) = master;
    else
      second_tile(a, pair).store(lane_, master);
  }
  /// What an updater does in a step: a pair of slices of a tile of the last layer, then of a hidden layer's rows and columns.
  enum Job { kLastTile, kRows, kColumns, kJobs };
  MACHINE_DEVICE void update(const Arguments& a) {
    const int upper = part_ / kOwnPairs;  // of two tiles, of two hidden layers
    const int own = part_ % kOwnPairs, pair = rank_ * kOwnPairs + own;
    const int below = upper != 0 ? kSecond : kFirst, gradient = upper != 0 ? kBelowThird : kBelowSecond;
    const Signal rows_ready = upper != 0 ? kThirdReady : kSecondReady;
    for (int any = 0; any < kWarps; ++any) {
      const int hidden = kSecondColumns * own + upper, last = kLastLow + upper;
      keep_weights(a, hidden, any, load_master(a, hidden, any));
      if (any % kOwnPairs == own) keep_weights(a, last, any, load_master(a, last, any));
    }
    tell(a, rows_ready);
    tell(a, kLastReady);
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      await(a, kRead, step);
#pragma unroll 1
      for (int job = 0; job < kJobs; ++job) {
        const int matrix = (job == kLastTile ? kLastLow
                            : job == kRows   ? kSecondRows
                                             : kSecondColumns) +
                           upper;
        const int others = job == kLastTile ? kThird : job == kRows ? below : gradient;
        const int asked[3] = {tile_of(others, 2 * pair), tile_of(others, 2 * pair + 1),
                              job == kLastTile ? kLogitsGradient + upper
                              : job == kRows   ? tile_of(gradient, member_)
                                               : tile_of(below, member_)};
        if (job == kRows && upper == 0) exchange_.await(a, waiter_, kSecondGradient);
        Values tiles[3];
        ask(a, step, asked, tiles);
        const float4 master = updated_pair(a, load_master(a, matrix, pair), tiles[0], tiles[1], tiles[2]);
        tell_weights(a, step, matrix * kOwnPairs + own, rounded(master));
        keep_weights(a, matrix, pair, master);
        store_master(a, matrix, pair, master);
        if (job != kColumns && own == 0)
          update_bias(a, tiles[2],
                      job == kLastTile ? plan_of(a).last_bias_offset + 32 * upper
                                       : plan_of(a).bias_offset + 32 * (1 + upper));
        if (job == kRows) tell(a, rows_ready);
      }
      if (step + 1 < a.steps) tell(a, kLastReady);
    }
  }

  // ---- eight warps that have the first layer

  /// What the other clusters have updated in a step.
  MACHINE_DEVICE void gather(const Arguments& a, int step) {
    await(a, kRead, step);
#pragma unroll 1
    for (int number = warp_; number < Rows::kWeights; number += kWarps) {
      uint4 others[kClusters - 1];
      look_until_there(a, [&] {
        std::uint32_t wrong = 0;
#pragma unroll
        for (int from = 1; from < kClusters; ++from)
          others[from - 1] = load_relaxed_gpu_128(told_weights(a, step, rank_ ^ from, number));
#pragma unroll
        for (int from = 1; from < kClusters; ++from) wrong |= others[from - 1].w ^ mark(step);
        return (wrong & 1) == 0;
      });
#pragma unroll
      for (int from = 1; from < kClusters; ++from) {
        const uint4& w = others[from - 1];
        keep_weights(a, number / kOwnPairs, (rank_ ^ from) * kOwnPairs + number % kOwnPairs,
                     make_float4(bits_to_float(w.x), bits_to_float(w.y), bits_to_float(w.z),
                                 bits_to_float(w.w & ~1u)));
      }
      tell_gathered(a, number);
    }
    tell(a, kLastReady);
  }
  MACHINE_DEVICE void tell_gathered(const Arguments& a, int number) const {
    if (number / kOwnPairs == kSecondRows) tell(a, kSecondReady);
    if (number / kOwnPairs == kThirdRows) tell(a, kThirdReady);
  }

  MACHINE_DEVICE void train_first(const Arguments& a) {
    multiply_first(a);
    for (int step = 0; step < a.steps; ++step) {
      store_sum(a);
      tell(a, kSums);
      if (step > 0) {
        gather(a, step - 1);
      } else {
        tell_gathered(a, warp_);
        tell(a, kLastReady);
      }
      await_columns(a, step);
      Fragments columns[kEarlyColumns];
#pragma unroll
      for (int i = 0; i < kEarlyColumns; ++i) columns[i] = load_column_inputs(a, i);
      if (step + 1 < a.steps) Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
      uint4 rows[kEarlyRows];
#pragma unroll
      for (int i = 0; i < kEarlyRows; ++i) rows[i] = load_row_inputs(a, i);
      update_first_and_multiply(a, step, columns, rows);
    }
  }
  /// Of the cluster's rows: of row g, of both tiles columns 2t and 2t + 1. Beyond its own a warp takes its last pair again, against
  /// weights of zero.
  MACHINE_DEVICE uint4 load_row_inputs(const Arguments& a, int i) const {
    const int pair = max(0, Base::input_begin_ + min(i, Base::input_pairs_ - 1));
    return load_shared16(shared_memory() + plan_of(a).x_rows_offset + pair * Rows::kInputPair + lane_ * 16);
  }
  /// They come from all members, so the wait has a bound.
  MACHINE_DEVICE void await_columns(const Arguments& a, int step) {
    waiter_.await(a, Base::staging_barrier(a, 1), static_cast<std::uint32_t>(step) & 1, kWaitTeam);
  }
  MACHINE_DEVICE Fragments load_column_inputs(const Arguments& a, int i) const {
    const int pair = max(0, Base::input_begin_ + min(i, Base::input_pairs_ - 1));
    const unsigned char* x =
        shared_memory() + plan_of(a).x_columns_offset + pair * 2 * kAllRowsTile + lane_ * 16;
    Fragments f;
#pragma unroll
    for (int part = 0; part < 4; ++part) assign(f, part, load_shared16(x + part * 512));
    return f;
  }
  MACHINE_DEVICE void multiply_first(const Arguments& a) {
    Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, 0);
    clear_sums();
#pragma unroll
    for (int i = 0; i < Base::kInputs; ++i) multiply_first_pair(a, i, load_row_inputs(a, i));
  }
  MACHINE_DEVICE void clear_sums() {
#pragma unroll
    for (int chain = 0; chain < 2; ++chain)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums_[chain][c] = 0;
  }
  MACHINE_DEVICE void multiply_first_pair(const Arguments& a, int i, const uint4& x) {
    const auto w = Base::first_weights(a, i, 0);
    multiply_add(sums_[0], sums_[1], x, make_uint4(w.word[0], w.word[2], w.word[1], w.word[3]));
  }
  /// This warp's part of the first layer's sums; complete when all eight have told.
  MACHINE_DEVICE float2* first_part(const Arguments& a, int warp) const {
    return reinterpret_cast<float2*>(shared_memory() + plan_of(a).partial_offset + warp * kTile) + lane_;
  }
  MACHINE_DEVICE void store_sum(const Arguments& a) const {
    *first_part(a, warp_) = make_float2(sums_[0][0] + sums_[1][2], sums_[0][1] + sums_[1][3]);
  }
  /// Of its gradient by all eight; and the product of the next step, if there is one.
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, int step,
                                                const Fragments (&columns)[kEarlyColumns],
                                                const uint4 (&rows)[kEarlyRows]) {
    await(a, kFirstTold, step);
    wait_cycles(kFirstLook);
    const Values gradient = ask_first_gradient(a, step);
    const Owns own = {{Format::operand(gradient)}};
    clear_sums();
#pragma unroll
    for (int i = 0; i < Base::kInputs; ++i) {
      if (i == Base::kInputs - 1 && Base::input_pairs_ < Base::kInputs) break;  // most warps, of 784 inputs
      Base::update_first_pair(a, i, i < kEarlyColumns ? columns[i] : load_column_inputs(a, i), own);
      multiply_first_pair(a, i, i < kEarlyRows ? rows[i] : load_row_inputs(a, i));
    }
    if (warp_ == 1) update_bias(a, gradient, plan_of(a).bias_offset);
  }

  // ---- the warps that are the chain: one leads, three help

  /// How far it is from this member's shared memory to those of others, from itself on. Read anew for every tile, ahead of it:
  /// what can be computed, the compiler would compute when it is waited for.
  MACHINE_DEVICE static std::uint32_t* ways(const Arguments& a) {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + plan_of(a).team_offset);
  }
  MACHINE_DEVICE void keep_ways(const Arguments& a) const {
    if (thread_index() >= kSlices) return;
    const std::uint32_t here = shared_address(shared_memory());
    ways(a)[lane_] = remote_address(here, static_cast<std::uint32_t>(member_ + lane_) % kSlices) - here;
  }
  MACHINE_DEVICE Publication publication(const Arguments& a, int exchange) const {
    Publication publication = {shared_address(shared_memory()) + exchange_.buffer(a, exchange) +
                                   static_cast<std::uint32_t>(member_ * kTile + (lane_ & 15) * 16),
                               exchange_.barrier(a, exchange),
                               {},
                               exchange == a.lost_exchange || waiter_.timed_out};
#pragma unroll
    for (int i = 0; i < kSlices / 2; ++i) publication.to[i] = ways(a)[2 * i + (lane_ >> 4)];
    return publication;
  }
  MACHINE_DEVICE void publish(const Publication& publication, const Two& two) const {
    Shared::publish(publication, two, lane_);
  }
  MACHINE_DEVICE const uint2* taken(const Arguments& a, int exchange, int slice) const {
    return reinterpret_cast<const uint2*>(shared_memory() + exchange_.buffer(a, exchange) + slice * kTile) +
           lane_;
  }
  /// kCount tiles from `first` on, when all have come.
  template <int kCount>
  MACHINE_DEVICE void take(const Arguments& a, int exchange, Two (&tiles)[kCount], int first = 0) {
    const uint2* begin = taken(a, exchange, first);
    exchange_.await(a, waiter_, exchange);
    Shared::take(tiles, begin);
  }
  /// When the buffer is taken and what depends on it is on its way.
  MACHINE_DEVICE void expect_next(const Arguments& a, int exchange) const {
    if (lane_ == 0) exchange_.expect_next(a, waiter_, exchange);
  }

  template <int kCount>
  MACHINE_DEVICE Product<kCount> load_product(const Arguments& a, Matrix matrix, int first = 0,
                                              int further = 0) const {
    return Shared::template product_at<kCount>(
        reinterpret_cast<const uint4*>(fragments(a, matrix)) + further + first / 2 * 32 + lane_, 0);
  }
  // Parts of a divided sum; complete behind a barrier.
  enum Divided { kLowLogits, kHighLogits, kSecondGradientSum };
  MACHINE_DEVICE float2& part_of_sum(const Arguments& a, Divided which, int part) const {
    return reinterpret_cast<float2*>(shared_memory() + plan_of(a).partial_offset + kWarps * kTile +
                                     (which * kParts + part) * kTile)[lane_];
  }
  MACHINE_DEVICE float2 sum_of_parts(const Arguments& a, Divided which) const {
    return Shared::sum_of_parts([&](int part) { return part_of_sum(a, which, part); });
  }
  MACHINE_DEVICE void tell(const Arguments& a, int step, int tile, const Two& two) const {
    tell(a, step, tile, two.first, two.second);
  }
  /// Unrounded.
  MACHINE_DEVICE void tell(const Arguments& a, int step, int tile, const float2& value) const {
    tell(a, step, tile, float_to_bits(value.x), float_to_bits(value.y));
  }

  /// The first layer's sums.
  MACHINE_DEVICE float2 add_first(const Arguments& a) const {
    float2 part[kWarps];
#pragma unroll
    for (int from = 0; from < kWarps; ++from) part[from] = *first_part(a, from);
    return added(part);
  }

  MACHINE_DEVICE int row() const { return 8 * rank_ + (lane_ >> 2); }
  MACHINE_DEVICE int load_label(const Arguments& a) const {
    return row() < plan_of(a).batch ? a.labels[std::int64_t{Base::batch_} * plan_of(a).batch + row()] : -1;
  }

  /// One leads, three have shares of the last layer's sums and of those below it, and what is small.
  MACHINE_DEVICE void chain(const Arguments& a) {
    const int number = (part_ - rank_ + 3) % 4;                           // 3: who leads
    const int thread = number == 2 ? thread_index() | 31 : kThreadCount;  // that asks for inputs
    stage_rows(a, thread);
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(step);
      Base::next_batch(a);
      const int label = load_label(a);
      Publication to = publication(a, kFirstHidden);
      Two first = {}, second = {};
      await(a, kSums, step);
      if (number == 3) {
        float2 bias = Base::bias_of(a, 0, 0);
        first = hidden(add_first(a), bias);
        publish(to, first);
        tell(a, step, tile_of(kFirst, member_), first);
        Two current = first;
#pragma unroll 1
        for (int layer = 1; layer < 3; ++layer) {
          to = publication(a, kFirstHidden + layer);
          await(a, static_cast<Signal>(kSecondReady + layer - 1), step);
          const auto product = load_product<kSlices>(a, static_cast<Matrix>(kSecondRows + layer - 1));
          bias = Base::bias_of(a, layer, 0);
          Two tiles[kSlices];
          take(a, kFirstHidden + layer - 1, tiles);
          second = current;
          current = hidden(Shared::template multiply<4>(tiles, product), bias);
          publish(to, current);
          expect_next(a, kFirstHidden + layer - 1);
          tell(a, step, tile_of(kFirst + layer, member_), current);
        }
        to = publication(a, kSecondGradient);
      } else if (number == 2) {
        if (step + 1 < a.steps) stage_rows(a, thread);  // nobody reads the last
        // Behind it no member of the cluster reads the last columns. They are here, unless those that read them ran out of time.
        exchange_.await(a, waiter_, kFirstHidden);
        if (step > 0) await_columns(a, step - 1);
        if (!waiter_.timed_out) stage_columns(a, thread);
      }
      await(a, kLastReady, step);
      const Loss of_loss = loss(a, label);
      if (number == 3) {
        float2 gradient = masked(sum_of_parts(a, kSecondGradientSum), second);
        publish(to, operand(gradient));
        expect_next(a, kThirdHidden);
        tell(a, step, tile_of(kBelowSecond, member_), gradient);
        const auto product = load_product<kSlices>(a, kSecondColumns);
        tell(a, kRead);
        Two tiles[kSlices];
        take(a, kSecondGradient, tiles);
        gradient = masked(Shared::template multiply<4>(tiles, product), first);
        tell(a, a.lost_exchange == plan_of(a).exchanges ? step ^ 2 : step, tile_of(kBelowFirst, member_),
             gradient);
        tell(a, kFirstTold);
        expect_next(a, kSecondGradient);
        continue;
      }
      if (number == 0 && member_ < 2) {
        const auto &low = of_loss.logits_gradient[0], &high = of_loss.logits_gradient[1];
        tell(a, step, kLogitsGradient + member_,
             make_float2(member_ == 0 ? low.x : high.x, member_ == 0 ? low.y : high.y));
      }
      if (number == 1) tell_below_third(a, step, of_loss);
      if (number == 2 && member_ == 0) tell_row_loss(a, step, label, of_loss.rows);
      tell(a, kRead);
      if (number == 1 && Base::is_first()) store_loss(a, step);
    }
    if (number == 2) await_columns(a, a.steps - 1);  // nobody leaves while they are on their way
  }
  /// By one thread: rows of the next step, columns of this one.
  MACHINE_DEVICE void stage_rows(const Arguments& a, int thread) const {
    const int bytes = plan_of(a).input_pairs * Rows::kInputPair;
    if (thread_index() == thread)
      stage(a, 0, plan_of(a).x_rows_offset, a.x_rows + next_batch_ * plan_of(a).x_batch_bytes + rank_ * bytes,
            bytes);
  }
  /// Which are the same for all members: each brings a share to all.
  MACHINE_DEVICE void stage_columns(const Arguments& a, int thread) const {
    if (thread_index() != thread) return;
    const std::uint32_t barrier = Base::staging_barrier(a, 1);
    fence_proxy_async();
    barrier_arrive_expect(barrier, static_cast<std::uint32_t>(plan_of(a).x_batch_bytes));
    const int begin = plan_of(a).input_pairs * member_ / kSlices * 2 * kAllRowsTile,
              end = plan_of(a).input_pairs * (member_ + 1) / kSlices * 2 * kAllRowsTile;
    if (begin < end)
      bulk_load_multicast(0xffff, shared_memory() + plan_of(a).x_columns_offset + begin,
                          a.x_columns + Base::batch_ * plan_of(a).x_batch_bytes + begin,
                          static_cast<std::uint32_t>(end - begin), barrier);
  }
  MACHINE_DEVICE void stage(const Arguments& a, int which, int offset, const unsigned char* from,
                            int bytes) const {
    fence_proxy_async_shared();
    barrier_arrive_expect(Base::staging_barrier(a, which), static_cast<std::uint32_t>(bytes));
    bulk_load(shared_memory() + offset, from, static_cast<std::uint32_t>(bytes),
              Base::staging_barrier(a, which));
  }
  /// This member's own gradient below the last layer.
  MACHINE_DEVICE void tell_below_third(const Arguments& a, int step, const Loss& of_loss) const {
    const uint4* across =
        reinterpret_cast<const uint4*>(fragments(a, kLastAcross)) + member_ / 2 * 32 + lane_;
    const uint2 third = *taken(a, kThirdHidden, member_);
    tell(a, step, tile_of(kBelowThird, member_),
         masked(below_last(of_loss, across[0], across[kLastHighAcross], member_ % 2), {third.x, third.y}));
  }
  MACHINE_DEVICE float2* row_loss(const Arguments& a) const {
    return reinterpret_cast<float2*>(shared_memory() + plan_of(a).row_loss_offset);
  }
  MACHINE_DEVICE void tell_row_loss(const Arguments& a, int step, int label,
                                    const RowsOfLoss<1>& rows) const {
    float2* own = row_loss(a) + 8 * Rows::kClusters;
    rows.keep(own, {label}, {row()}, lane_ & 3);
    warp_sync();
    if (lane_ >= 8) return;
    const float2 mine = own[8 * rank_ + lane_];
    store_marked(row_loss_told(a, step, 8 * rank_ + lane_), float_to_bits(mine.x), float_to_bits(mine.y),
                 mark(step));
  }
  MACHINE_DEVICE static unsigned char* row_loss_told(const Arguments& a, int step, int row) {
    return board(a, step) + kRowLoss * kAllRowsTile + row * 8;
  }
  MACHINE_DEVICE void store_loss(const Arguments& a, int step) {
    const unsigned char* place = row_loss_told(a, step, lane_);
    uint2 row;
    waiter_.wait_while(a, kWaitTeam, [&] {
      row = load_relaxed_gpu_64(place);
      return ((row.y ^ mark(step)) & 1) != 0;
    });
    row_loss(a)[lane_] = make_float2(bits_to_float(row.x), bits_to_float(row.y & ~1u));
    warp_sync();
    Base::store_loss(a, step);
    warp_sync();
  }

  /// From the activations below the last layer to a part of the gradient one layer further down.
  MACHINE_DEVICE Loss loss(const Arguments& a, int label) {
    const int t = lane_ & 3, first = part_ * kMine;
    const auto low_weights = load_product<kMine>(a, kLastLow, first),
               high_weights = load_product<kMine>(a, kLastHigh, first);
    const auto bias =
        RowsOfLoss<1>::load_bias(Base::floats(plan_of(a).last_bias_offset), plan_of(a).classes, t);
    Two tiles[kMine];
    take(a, kThirdHidden, tiles, first);
    part_of_sum(a, kLowLogits, part_) = Shared::template multiply<1>(tiles, low_weights);
    part_of_sum(a, kHighLogits, part_) = Shared::template multiply<1>(tiles, high_weights);
    tell(a, kPartsSum);
    await(a, kPartsSum, 0);
    const auto low_across = load_product<kMine>(a, kLastAcross, first),
               high_across = load_product<kMine>(a, kLastAcross, first, kLastHighAcross);
    const auto product = load_product<kMine>(a, kThirdColumns, first);
    const float2 low = sum_of_parts(a, kLowLogits), high = sum_of_parts(a, kHighLogits);
    const Loss of_loss =
        Shared::loss_of(low, high, bias, label, row(), plan_of(a).batch, a.gradient_scale, t);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      tiles[i] = operand(masked(
          below_last(of_loss, low_across.weights[i / 2], high_across.weights[i / 2], i % 2), tiles[i]));
    part_of_sum(a, kSecondGradientSum, part_) = Shared::template multiply<2>(tiles, product);
    tell(a, kPartsSum);
    await(a, kPartsSum, 1);
    return of_loss;
  }
  /// Of the first layer, over this warp's inputs: first and second columns, as multiply_add() leaves them.
  float sums_[2][4];
  /// Of the chain, which columns of a divided sum, and who leads; of the updaters, which masters.
  const int part_;
};

}  // namespace headroom::resident
