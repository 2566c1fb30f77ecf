// The slice kernel in tf32 in four clusters of 16, four layers, 129 to 256 columns: as slice_whole_rows.cuh, clusters divide the rows
// of the batch and the updates of the hidden layers, with two slices a member. What is said there holds here; what differs:
//
//   inputs:    do not fit four times, so each cluster has a quarter of them, all rows, and the masters for it. So the first layer's
//              sums have a hop: of every cluster's part each is told its own eight rows.
//   masters:   lie turned, [16 own outputs, 8 columns], so that a lane has just the weights that its products take: only those
//              of the last layer are transposed, for the way back. An update of a pair of others' slices takes their two tiles and two
//              own ones. Rows, columns and the last layer, whose own "slices" are the two tiles of logits, are one code.
//   chain:     two of the four warps lead, each with everything of one of the slices; all four have a quarter of the columns
//              of the last layer's sums.
//   updaters:  each has one of the four pairs of slices that its cluster updates, of all five matrices: first rows of the third
//              layer, whose gradients are told before d2, then those that the next step asks for first.
//   eight:     bring in the weights of other clusters as the chain takes them, in the order in which it does.
//   d1's hop:  each of the chain's four warps looks for the first layer's gradient of one cluster and hands it on to the eight in
//              shared memory: one look instead of eight at the same bytes, by warps that have nothing else to do then.
//   gradients: are told rounded, with what is left in the bits that a product does not look at, so that only biases, which take them
//              whole, compute anything.
//   board's reuse: d2 is published behind all five `ready` signals. Sums of the first layer are told behind first layer's gradients
//              of the step before, which leaders tell behind their own reading of the sums of that step.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "resident/mean_loss.cuh"
#include "resident/parameter_places.h"
#include "resident/slice_kernel.cuh"
#include "resident/slice_row_clusters.cuh"

namespace headroom::resident {

template <class Format>
class SliceWideRowsMember : RowClusters<Format> {
  using Rows = WideRows;
  using Shared = RowClusters<Format>;
  using Shared::added, Shared::below_last, Shared::hidden, Shared::mark, Shared::masked, Shared::operand,
      Shared::store_marked;
  using typename Shared::Loss, typename Shared::Publication, typename Shared::Two;
  template <int kCount>
  using Product = typename Shared::template Product<kCount>;
  using Arguments = SliceArguments;
  using Values = typename Format::Values;
  using Waiter = SliceWaiter;
  using Turned = typename Format::TurnedOwn;

 public:
  static constexpr int kThreadCount = kThreads + 32 * (Rows::kChainWarps + Rows::kUpdaters);

  MACHINE_DEVICE explicit SliceWideRowsMember(const Arguments& a)
      : warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        member_(static_cast<int>(block_index() % kMaxCluster)),
        rank_(static_cast<int>(block_index() / kMaxCluster)),
        part_(warp_ % kParts),
        input_first_(part_begin(plan_of(a).input_pairs, kClusters, rank_)),
        input_count_(part_begin(plan_of(a).input_pairs, kClusters, rank_ + 1) - input_first_),
        input_begin_(part_begin(input_count_, kWarps, warp_)),
        input_pairs_(part_begin(input_count_, kWarps, warp_ + 1) - input_begin_),
        waiter_{warp_, lane_, block_index()} {}

  MACHINE_DEVICE void run(const Arguments& a) {
    load(a);
    begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    if (warp_ < kWarps)
      train_first(a);
    else if (warp_ >= kFirstUpdater)
      update(a);
    else
      chain(a);
    block_sync();
    if (!waiter_.timed_out) store(a);
    cluster_sync();  // nobody may leave while others still store into its memory
  }

 private:
  static constexpr int kSlices = Rows::kSlices, kClusters = Rows::kClusters, kOwn = Rows::kOwn;
  static constexpr int kTile = Rows::kTile, kAllRowsTile = Rows::kAllRowsTile;
  static constexpr int kParts = Rows::kChainWarps, kFirstUpdater = kWarps + kParts;
  static_assert(kParts == Rows::kUpdaters && kParts == kClusters && kParts == Rows::kOwnPairs);
  static constexpr int kLeaders = kOwn;
  static constexpr int kMine =
      kSlices / kParts;              // tiles whose columns a warp of the chain has of a divided sum
  static constexpr int kInputs = 2;  // pairs of inputs of a warp
  static_assert(kInputs * kWarps >= Rows::kInputPairs);
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;  // exchanges
  // Of weights, in the order in which a step takes them.
  enum Matrix { kSecondRows, kThirdRows, kLast, kThirdColumns, kSecondColumns };
  // What clusters tell each other, of each slice, in such an order that an update of matrix m takes others' tiles m and its own
  // 4 - m, or the logits' gradient; behind them that and the loss.
  enum Told { kFirst, kSecond, kThird, kBelowThird, kBelowSecond, kBelowFirst };
  static constexpr int kLogitsGradient = 6 * kSlices, kRowLoss = kLogitsGradient + kOwn;
  static_assert(kRowLoss + 1 == Rows::kTold);
  static constexpr int kEightBarrier = 1;  // of the eight warps

  // ---- what warps tell each other: mbarriers, at each of which those who tell arrive, once a step but for parts, which are twice

  /// kReady and the following: of the matrices.
  enum Signal { kSums, kPartsSum, kRead, kFirstTold, kFirstThere, kReady };
  static_assert(kReady + Rows::kMatrices == Rows::kSignals);
  MACHINE_DEVICE static constexpr int arrivals(int signal) {
    return signal == kSums        ? kWarps
           : signal == kFirstTold ? kLeaders
           : signal < kReady      ? kParts
                                  : kWarps + Rows::kUpdaters;
  }
  MACHINE_DEVICE static std::uint32_t shared_place(int offset) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(offset);
  }
  MACHINE_DEVICE static std::uint32_t signal_place(int signal) {
    return shared_place(Rows::kBarriers + 8 * signal);
  }
  MACHINE_DEVICE static std::uint32_t exchange_barrier(int exchange) {
    return signal_place(Rows::kSignals + exchange);
  }
  MACHINE_DEVICE static std::uint32_t staging_barrier(int which) {
    return exchange_barrier(Rows::kExchanges + which);
  }
  MACHINE_DEVICE static void tell(int signal) { barrier_arrive(signal_place(signal)); }
  /// For the time-th time. Nothing but this thread block is waited for, and of it everybody comes, so this needs no bound.
  MACHINE_DEVICE static void await(int signal, int time) {
    while (!warp_all(barrier_try_wait(signal_place(signal), static_cast<std::uint32_t>(time) & 1))) {
    }
  }
  MACHINE_DEVICE void begin(const Arguments&) const {
    if (thread_index() < kMaxCluster) {
      const std::uint32_t here = shared_address(shared_memory());
      ways()[lane_] = remote_address(here, static_cast<std::uint32_t>(member_ + lane_) % kMaxCluster) - here;
    }
    if (warp_ == 0)
      told_bytes()[lane_] = static_cast<std::uint32_t>((rank_ >> 1) * 2 * kTile + (lane_ >> 2) * 64 +
                                                       (rank_ & 1) * 32 + (lane_ & 3) * 8);
    if (thread_index() == 0) {
      for (int signal = 0; signal < Rows::kSignals; ++signal)
        barrier_init(signal_place(signal), static_cast<std::uint32_t>(32 * arrivals(signal)));
      for (int i = 0; i < Rows::kExchanges + 2; ++i) barrier_init(exchange_barrier(i), 1);
      barrier_init_fence();
      for (int i = 0; i < Rows::kExchanges; ++i) barrier_arrive_expect(exchange_barrier(i), Rows::kExchange);
    }
    block_sync();
    cluster_sync();
  }

  // ---- what goes through the L2: 8 or 16 bytes of each lane, with a mark in the last bit

  MACHINE_DEVICE static unsigned char* board(const Arguments& a, int step) {
    return a.exchange + (step & 1) * Rows::kBoard;
  }
  /// Of words of which the last bits count. Left to itself ptxas makes a predicate of each bit, and three instructions.
  MACHINE_DEVICE static bool all_marked(std::uint32_t wrong) {
    compute_now(wrong);
    return (wrong & 1) == 0;
  }
  /// Of the cluster's rows the 2t-th and the next of column g.
  MACHINE_DEVICE unsigned char* told(const Arguments& a, int step, int tile) const {
    return board(a, step) + tile * kAllRowsTile + told_bytes()[lane_];
  }
  /// Of this member's slices: what cluster `from` has updated.
  MACHINE_DEVICE unsigned char* told_weights(const Arguments& a, int step, int from, int number) const {
    return board(a, step) + Rows::kBoardWeights +
           ((member_ * kClusters + from) * Rows::kToldWeights + number) * kMasterPair + lane_ * 16;
  }
  /// Of this member's slice c, the sums of cluster `to`'s rows over the inputs of cluster `from`: of each lane two clusters' beside
  /// each other.
  MACHINE_DEVICE unsigned char* told_sums(const Arguments& a, int step, int to, int c, int from) const {
    return board(a, step) + Rows::kBoardSums +
           (((member_ * kClusters + to) * kOwn + c) * kClusters + (from & 2)) * kTile + lane_ * 16 +
           (from & 1) * 8;
  }
  /// Of this member's slices, the first layer's gradient of a cluster's rows: of each lane both slices' beside each other.
  MACHINE_DEVICE unsigned char* told_first(const Arguments& a, int step, int cluster) const {
    return board(a, step) + tile_of(kBelowFirst, own_slice(0)) * kAllRowsTile + cluster * kOwn * kTile +
           lane_ * 16;
  }
  /// Where a lane's packet of it is handed on, in the order of an operand.
  MACHINE_DEVICE uint2& first_gradient(int c, int cluster) const {
    return *reinterpret_cast<uint2*>(shared_memory() + Rows::kFirstGradient + c * kAllRowsTile +
                                     (cluster >> 1) * 2 * kTile + (lane_ >> 2) * 64 + (cluster & 1) * 32 +
                                     (lane_ & 3) * 8);
  }
  /// Words that are one operand come from two tiles. As they are ptxas copies them, once for every product; so they are computed,
  /// with a zero of which it does not know.
  MACHINE_DEVICE static Turned turned_of(const Arguments& a, const Values& first, const Values& second) {
    const std::uint32_t zero = static_cast<std::uint32_t>(plan_of(a).batch) / (2 * kGroupRows);
    Turned turned = Turned::of(first, second);
#pragma unroll
    for (uint4& row : turned.rows) row = make_uint4(row.x ^ zero, row.y ^ zero, row.z ^ zero, row.w ^ zero);
    return turned;
  }
  /// As columns. What others compute with has lost the bit that the mark takes.
  MACHINE_DEVICE void tell(const Arguments& a, int step, int tile, Two two) const {
    tell(told(a, step, tile), mark(step), two);
  }
  MACHINE_DEVICE static void tell(unsigned char* place, std::uint32_t mark, Two two) {
    transpose_two(two.first, two.second);
    store_marked(place, two.first, two.second, mark);
  }
  /// A gradient, which biases take unrounded: what a product takes are the upper 19 bits, rounded, as it does not look at the others.
  MACHINE_DEVICE void tell(const Arguments& a, int step, int tile, const float2& value) const {
    tell(a, step, tile, Two{both(value.x), both(value.y)});
  }
  static constexpr std::uint32_t kHalfUnit = 0x1000;  // of rounded values
  /// In the bits below a unit is how far the value is above the rounded one, plus half a unit. Where it is just half a unit above, it
  /// is told as two last places less: there is no room for more.
  MACHINE_DEVICE static std::uint32_t both(float value) {
    const std::uint32_t rounded = Format::rounded(value);
    return rounded | min(float_to_bits(value) - rounded + kHalfUnit, 2 * kHalfUnit - 2);
  }
  MACHINE_DEVICE static float unrounded(std::uint32_t told) {
    return bits_to_float((told & ~1u) - kHalfUnit);
  }
  MACHINE_DEVICE static int tile_of(int what, int slice) { return what * kSlices + slice; }
  MACHINE_DEVICE int own_slice(int c) const { return member_ * kOwn + c; }
  /// look(): whether everything that it looked for was there.
  template <class Look>
  MACHINE_DEVICE void look_until_there(const Arguments& a, const Look& look) {
    waiter_.wait_until(a, kWaitTeam, look);
  }
  /// All rows of kCount tiles, when all clusters have told them: rows 16i + 4t to 16i + 4t + 3 of column g, which is the order
  /// that inputs have as columns, too.
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
      return all_marked(wrong);
    });
  }
  // ---- weights: masters turned, [both own slices, 8 columns]: of output g of the first columns 2t and 2t + 1, then of the second

  MACHINE_DEVICE static float4 updated(float factor, const float4& m, const float4& sum) {
    // The tensor core does not round to nearest: a master must not pass through its accumulator.
    return make_float4(fmaf(factor, sum.x, m.x), fmaf(factor, sum.y, m.y), fmaf(factor, sum.z, m.z),
                       fmaf(factor, sum.w, m.w));
  }
  MACHINE_DEVICE uint4& weights(int matrix, int c, int pair) const {
    return reinterpret_cast<uint4*>(shared_memory() + Rows::kWeights +
                                    (matrix * kOwn + c) * Rows::kMatrixOfSlice)[pair * 32 + lane_];
  }
  MACHINE_DEVICE uint4& across(int tile, int pair) const {
    return reinterpret_cast<uint4*>(shared_memory() + Rows::kAcross +
                                    tile * Rows::kMatrixOfSlice)[pair * 32 + lane_];
  }
  MACHINE_DEVICE float4& master(int matrix, int half) const {
    return reinterpret_cast<float4*>(shared_memory() +
                                     Rows::kMasters)[((matrix * kParts + part_) * 2 + half) * 32 + lane_];
  }
  /// As a product takes them, of a pair of others' slices: of both tiles the first columns, then the second.
  MACHINE_DEVICE static uint4 weights_of(const float4 (&m)[2], int c) {
    return c == 0 ? make_uint4(Format::rounded(m[0].x), Format::rounded(m[1].x), Format::rounded(m[0].y),
                               Format::rounded(m[1].y))
                  : make_uint4(Format::rounded(m[0].z), Format::rounded(m[1].z), Format::rounded(m[0].w),
                               Format::rounded(m[1].w));
  }
  MACHINE_DEVICE void keep_weights(int matrix, int c, int pair, uint4 w) const {
    weights(matrix, c, pair) = w;
    if (matrix != kLast) return;
    transpose_two(w.x, w.z);
    transpose_two(w.y, w.w);
    across(c, pair) = make_uint4(w.x, w.z, w.y, w.w);
  }

  // ---- updates behind the first layer: four warps

  /// bias [8] += factor * the sum of a tile's rows
  MACHINE_DEVICE void update_bias(const Arguments& a, const Values& columns, int which, int c) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += unrounded(columns.word[i]);
    sum = quad_sum(sum);
    float& bias = biases(which)[8 * c + (lane_ >> 2)];
    if ((lane_ & 3) == 0) bias = fmaf(a.update_factor, sum, bias);
  }
  /// By all eight warps, two of which keep it: the others have time.
  MACHINE_DEVICE void update_first_bias(const Arguments& a, const Values (&gradient)[kOwn]) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += unrounded(warp_ % 2 == 0 ? gradient[0].word[i] : gradient[1].word[i]);
    sum = quad_sum(sum);
    float& bias = biases(0)[8 * (warp_ % 2) + (lane_ >> 2)];
    if ((lane_ & 3) == 0 && warp_ < kOwn) bias = fmaf(a.update_factor, sum, bias);
  }
  /// Of a layer's 16 outputs here.
  MACHINE_DEVICE static float* biases(int layer) {
    return reinterpret_cast<float*>(shared_memory() + Rows::kBiases) + 16 * layer;
  }
  MACHINE_DEVICE void update(const Arguments& a) {
    const int pair = rank_ * kParts + part_;
    for (int matrix = 0; matrix < Rows::kMatrices; ++matrix) tell(kReady + matrix);
    for (int step = 0; step < a.steps; ++step) {
      await(kRead, step);
#pragma unroll 1
      for (int job = 0; job < Rows::kMatrices; ++job) {
        const int matrix = job < 2 ? job ^ 1 : job;
        const int own = matrix == kLast ? kLogitsGradient : tile_of(4 - matrix, own_slice(0));
        const int others = tile_of(matrix, 2 * pair);
        // Not in vain before the own cluster's are there.
        if (matrix == kSecondRows) await_exchange(a, kSecondGradient, step);
        if (matrix == kSecondColumns) await(kFirstTold, step);  // the leaders read these last
        Values tiles[4];
        ask(a, step, {others, others + 1, own, own + 1}, tiles);
        const Turned turned = turned_of(a, tiles[2], tiles[3]);
        float4 m[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          m[half] = master(matrix, half) =
              updated(a.update_factor, master(matrix, half), Format::outer_turned(tiles[half], turned));
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          uint4 w = weights_of(m, c);
          w.w |= mark(step);  // rounded: among the bits that the tensor core does not look at
          store_relaxed_gpu_128(told_weights(a, step, rank_, (matrix * kParts + part_) * kOwn + c), w);
          keep_weights(matrix, c, pair, w);
        }
        if (matrix <= kLast && part_ < kOwn) {
          Values mine;
#pragma unroll
          for (int i = 0; i < 8; ++i) mine.word[i] = part_ == 0 ? tiles[2].word[i] : tiles[3].word[i];
          update_bias(a, mine, matrix + 1, part_);
        }
        tell(kReady + matrix);
      }
    }
  }

  // ---- eight warps that have the first layer

  /// What the other clusters have updated in a step. The mark is among the bits that the tensor core does not look at.
  MACHINE_DEVICE void gather(const Arguments& a, int step) {
    const int part = warp_ / kOwn, c = warp_ % kOwn;
    await(kRead, step);
#pragma unroll 1
    for (int matrix = 0; matrix < Rows::kMatrices; ++matrix) {
      uint4 others[kClusters - 1];
      look_until_there(a, [&] {
        std::uint32_t wrong = 0;
#pragma unroll
        for (int from = 1; from < kClusters; ++from)
          others[from - 1] =
              load_relaxed_gpu_128(told_weights(a, step, rank_ ^ from, (matrix * kParts + part) * kOwn + c));
#pragma unroll
        for (int from = 1; from < kClusters; ++from) wrong |= others[from - 1].w ^ mark(step);
        return all_marked(wrong);
      });
#pragma unroll
      for (int from = 1; from < kClusters; ++from)
        keep_weights(matrix, c, (rank_ ^ from) * kParts + part, others[from - 1]);
      tell(kReady + matrix);
    }
  }
  /// Its masters, of both tiles of each pair of inputs. Not a member: the other warps would have to keep it.
  using FirstMasters = float4[kInputs][2];
  MACHINE_DEVICE void train_first(const Arguments& a) {
    FirstMasters masters = {};
    for_first(a, masters, [&](float& own, std::int64_t place) { own = a.parameters[place]; });
    await_inputs(0, 0);
    FirstSums sums = {};
#pragma unroll
    for (int i = 0; i < kInputs; ++i) multiply_first_pair(masters, sums, i);
    for (int step = 0; step < a.steps; ++step) {
      tell_sums(a, step, sums);
      tell(kSums);
      if (step > 0)
        gather(a, step - 1);
      else
        for (int matrix = 0; matrix < Rows::kMatrices; ++matrix) tell(kReady + matrix);
      await_inputs(1, step);
      Values columns[kInputs][2];
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) columns[i][half] = load_inputs(Rows::kInputColumns, i, half);
      if (step + 1 < a.steps) await_inputs(0, step + 1);
      Values gradient[kOwn];
      await(kFirstThere, step);
#pragma unroll
      for (int c = 0; c < kOwn; ++c)
        gradient[c] = load_tile<8>(shared_memory() + Rows::kFirstGradient + c * kAllRowsTile, lane_);
      const Turned own = turned_of(a, gradient[0], gradient[1]);
      clear(sums);
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          masters[i][half] = updated(i < input_pairs_ ? a.update_factor : 0.0f, masters[i][half],
                                     Format::outer_turned(columns[i][half], own));
      }
#pragma unroll
      for (int i = 0; i < kInputs; ++i) multiply_first_pair(masters, sums, i);
      update_first_bias(a, gradient);
    }
    if (!waiter_.timed_out)
      for_first(a, masters, [&](float& own, std::int64_t place) { a.parameters[place] = own; });
  }
  MACHINE_DEVICE static int part_begin(int count, int parts, int part) {
    return part * (count / parts) + max(0, part - (parts - count % parts));
  }
  /// One of the tiles of this warp's i-th pair. Beyond its own a warp takes its last again, against weights of zero.
  MACHINE_DEVICE Values load_inputs(int offset, int i, int half) const {
    const int pair = max(0, input_begin_ + min(i, input_pairs_ - 1));
    return load_tile<8>(shared_memory() + offset + pair * Rows::kInputPair + half * kAllRowsTile, lane_);
  }
  /// Nothing but this device's own memory is waited for, so this needs no bound.
  MACHINE_DEVICE static void await_inputs(int which, int step) {
    while (!warp_all(barrier_try_wait(staging_barrier(which), static_cast<std::uint32_t>(step) & 1))) {
    }
  }
  /// Of both slices, of 16 rows each.
  using FirstSums = float[kOwn][2][4];
  MACHINE_DEVICE static void clear(FirstSums& sums) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[c][half][i] = 0;
  }
  MACHINE_DEVICE void multiply_first_pair(const FirstMasters& masters, FirstSums& sums, int i) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Values x = load_inputs(Rows::kInputRows, i, half);
      const float4& m = masters[i][half];
      Format::product(sums[0], x, Format::rounded(m.x), Format::rounded(m.y));
      Format::product(sums[1], x, Format::rounded(m.z), Format::rounded(m.w));
    }
  }
  /// [4 clusters' rows, 2 slices] [8 warps] tiles
  MACHINE_DEVICE float2& partial(int tile, int warp) const {
    return reinterpret_cast<float2*>(shared_memory() + Rows::kPartials)[(tile * kWarps + warp) * 32 + lane_];
  }
  /// The first layer's sums over this cluster's inputs, of one slice for one cluster by each warp.
  MACHINE_DEVICE void tell_sums(const Arguments& a, int step, const FirstSums& all) const {
#pragma unroll
    for (int to = 0; to < kClusters; ++to)
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const float (&sums)[4] = all[c][to / 2];
        partial(to * kOwn + c, warp_) = make_float2(sums[to % 2 * 2], sums[to % 2 * 2 + 1]);
      }
    named_barrier<kThreads>(kEightBarrier);
    float2 part[kWarps];
#pragma unroll
    for (int from = 0; from < kWarps; ++from) part[from] = partial(warp_, from);
    const float2 sum = added(part);
    const bool lost = a.lost_exchange == plan_of(a).exchanges + 1;
    store_marked(told_sums(a, step, warp_ / kOwn, warp_ % kOwn, rank_), float_to_bits(sum.x),
                 float_to_bits(sum.y), mark(lost ? step ^ 2 : step));
  }

  // ---- the warps that are the chain: two lead, two help

  /// How far it is from this member's shared memory to those of others, from itself on. Read anew for every tile, ahead of it:
  /// what can be computed, the compiler would compute when it is waited for.
  MACHINE_DEVICE static std::uint32_t* ways() {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + Rows::kWays);
  }
  /// Of each lane, how far into a tile on the board it tells its two rows. Read like `ways()`.
  MACHINE_DEVICE static std::uint32_t* told_bytes() {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + Rows::kToldBytes);
  }
  MACHINE_DEVICE void await_exchange(const Arguments& a, int exchange, int step) {
    waiter_.await(a, exchange_barrier(exchange), static_cast<std::uint32_t>(step) & 1, exchange);
  }
  /// By one thread that has waited, for the next use of the buffer. A completed phase stays visible until that one is
  /// complete too.
  MACHINE_DEVICE void expect_next(int exchange) const {
    if (thread_index() == 32 * kWarps && !waiter_.timed_out)
      barrier_arrive_expect(exchange_barrier(exchange), Rows::kExchange);
  }
  MACHINE_DEVICE static unsigned char* buffer(int exchange) {
    return shared_memory() + Rows::kExchangeBuffers + exchange * Rows::kExchange;
  }
  MACHINE_DEVICE Publication publication(const Arguments& a, int exchange) const {
    Publication publication = {shared_address(buffer(exchange)) +
                                   static_cast<std::uint32_t>(own_slice(part_) * kTile + (lane_ & 15) * 16),
                               exchange_barrier(exchange),
                               {},
                               exchange == a.lost_exchange || waiter_.timed_out};
#pragma unroll
    for (int i = 0; i < kMaxCluster / 2; ++i) publication.to[i] = ways()[2 * i + (lane_ >> 4)];
    return publication;
  }
  MACHINE_DEVICE void publish(const Publication& publication, const Two& two) const {
    Shared::publish(publication, two, lane_);
  }
  /// Of an exchange that was waited for.
  template <int kCount>
  MACHINE_DEVICE void take(int exchange, Two (&tiles)[kCount], int first) const {
    Shared::take(tiles, reinterpret_cast<const uint2*>(buffer(exchange) + first * kTile) + lane_);
  }
  /// Of kCount tiles from `first` on.
  template <int kCount>
  MACHINE_DEVICE static Product<kCount> load_product(const uint4& begin, int first) {
    return Shared::template product_at<kCount>(&begin, first);
  }
  /// Half of the weights of a sum over all tiles, which can be here before these are.
  using Early = Product<kSlices / 2>;
  MACHINE_DEVICE Early load_early(int matrix) const {
    return load_product<kSlices / 2>(weights(matrix, part_, 0), 0);
  }
  /// The sum over all tiles of an exchange, when it has come, for the slice of this warp.
  MACHINE_DEVICE float2 whole_sum(const Arguments& a, int step, int exchange, int matrix,
                                  const Early& early) {
    await_exchange(a, exchange, step);
    typename Shared::template Sums<2> sums;
    Two low[kSlices / 2], high[kSlices / 2];
    take(exchange, low, 0);
    const auto late = load_product<kSlices / 2>(weights(matrix, part_, 0), kSlices / 2);
    sums.add(low, early);
    take(exchange, high, kSlices / 2);
    sums.add(high, late);
    return sums.total();
  }
  // Parts of a divided sum; complete behind a signal.
  enum Divided { kLowLogits, kHighLogits, kSecondGradientSum };
  MACHINE_DEVICE float2& part_of_sum(int which, int part) const {
    return reinterpret_cast<float2*>(shared_memory() + Rows::kParts)[(which * kParts + part) * 32 + lane_];
  }
  MACHINE_DEVICE float2 sum_of_parts(int which) const {
    return Shared::sum_of_parts([&](int part) { return part_of_sum(which, part); });
  }
  MACHINE_DEVICE float2 bias_of(int layer) const {
    return reinterpret_cast<const float2*>(biases(layer) + 8 * part_)[lane_ & 3];
  }
  MACHINE_DEVICE int row() const { return 8 * rank_ + (lane_ >> 2); }
  MACHINE_DEVICE int load_label(const Arguments& a) const {
    return row() < plan_of(a).batch ? a.labels[std::int64_t{batch_} * plan_of(a).batch + row()] : -1;
  }
  MACHINE_DEVICE void next_batch(const Arguments& a) {
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
  }

  /// The first layer's sums of the cluster's rows, for the slice of this warp.
  MACHINE_DEVICE float2 ask_sums(const Arguments& a, int step) {
    float2 part[kClusters];
    look_until_there(a, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kClusters; i += 2) {
        const uint4 two = load_relaxed_gpu_2x64(told_sums(a, step, rank_, part_, i));
        wrong |= (two.y ^ mark(step)) | (two.w ^ mark(step));
        part[i] = make_float2(bits_to_float(two.x), bits_to_float(two.y & ~1u));
        part[i + 1] = make_float2(bits_to_float(two.z), bits_to_float(two.w & ~1u));
      }
      return all_marked(wrong);
    });
    return added(part);
  }
  /// The first layer's gradient, for the eight: each of the four looks for one cluster's. Behind the own cluster's, so that it is
  /// not in vain. The eight have read the last one before they told kSums.
  MACHINE_DEVICE void hand_on_first_gradient(const Arguments& a, int step) {
    await(kFirstTold, step);
    uint4 both;
    look_until_there(a, [&] {
      both = load_relaxed_gpu_2x64(told_first(a, step, part_));
      return all_marked((both.y ^ mark(step)) | (both.w ^ mark(step)));
    });
    first_gradient(0, part_) = make_uint2(both.x, both.y);
    first_gradient(1, part_) = make_uint2(both.z, both.w);
    tell(kFirstThere);
  }
  MACHINE_DEVICE void chain(const Arguments& a) {
    const bool leads = part_ < kLeaders;
    stage(a, 0, Rows::kInputRows, a.x_rows, next_batch_);
    for (int step = 0; step < a.steps; ++step) {
      next_batch(a);
      const int label = load_label(a);
      Publication to;
      Two first = {}, second = {};
      if (leads) to = publication(a, kFirstHidden);
      await(kSums, step);
      if (leads) {
        const float2 first_bias = bias_of(0);
        first = hidden(ask_sums(a, step), first_bias);
        publish(to, first);
        tell(a, step, tile_of(kFirst, own_slice(part_)), first);
        Two current = first;
#pragma unroll 1
        for (int layer = 1; layer < 3; ++layer) {
          to = publication(a, kFirstHidden + layer);
          await(kReady + layer - 1, step);
          const Early early = load_early(layer - 1);
          const float2 bias = bias_of(layer);
          second = current;
          current = hidden(whole_sum(a, step, kFirstHidden + layer - 1, layer - 1, early), bias);
          publish(to, current);
          expect_next(kFirstHidden + layer - 1);
          tell(a, step, tile_of(kFirst + layer, own_slice(part_)), current);
        }
        to = publication(a, kSecondGradient);
      } else if (part_ == kLeaders) {
        await_exchange(a, kFirstHidden, step);
        if (step + 1 < a.steps) stage(a, 0, Rows::kInputRows, a.x_rows, next_batch_);
        stage(a, 1, Rows::kInputColumns, a.x_columns, batch_);
      }
      await(kReady + kLast, step);
      const Loss of_loss = loss(a, step, label);
      if (leads) {
        await(kReady + kSecondColumns, step);
        float2 gradient = masked(sum_of_parts(kSecondGradientSum + part_), second);
        publish(to, operand(gradient));
        expect_next(kThirdHidden);
        tell(a, step, tile_of(kBelowSecond, own_slice(part_)), gradient);
        const Early early = load_early(kSecondColumns);
        tell(kRead);
        unsigned char* place = told_first(a, step, rank_) + part_ * 8;
        std::uint32_t its_mark = mark(a.lost_exchange == plan_of(a).exchanges ? step ^ 2 : step);
        compute_now(place);
        compute_now(its_mark);
        gradient = masked(whole_sum(a, step, kSecondGradient, kSecondColumns, early), first);
        tell(place, its_mark, Two{both(gradient.x), both(gradient.y)});
        tell(kFirstTold);
        expect_next(kSecondGradient);
        hand_on_first_gradient(a, step);
        continue;
      }
      const int helper = part_ - kLeaders;
      tell_below_third(a, step, helper, of_loss);
      if (member_ == 0) {
        const auto &low = of_loss.logits_gradient[0], &high = of_loss.logits_gradient[1];
        tell(a, step, kLogitsGradient + helper,
             make_float2(helper == 0 ? low.x : high.x, helper == 0 ? low.y : high.y));
        if (helper == 0) tell_row_loss(a, step, label, of_loss.rows);
      }
      tell(kRead);
      if (helper == 1 && member_ == 0 && rank_ == 0) store_loss(a, step);
      hand_on_first_gradient(a, step);
    }
  }
  /// One of the two orders of this cluster's inputs, by one thread.
  MACHINE_DEVICE void stage(const Arguments& a, int which, int offset, const unsigned char* from,
                            int batch) const {
    if (thread_index() != 32 * (kWarps + kLeaders)) return;
    const auto bytes = static_cast<std::uint32_t>(input_count_ * Rows::kInputPair);
    fence_proxy_async_shared();
    barrier_arrive_expect(staging_barrier(which), bytes);
    if (bytes > 0)
      bulk_load(shared_memory() + offset,
                from + batch * plan_of(a).x_batch_bytes + input_first_ * Rows::kInputPair, bytes,
                staging_barrier(which));
  }
  /// This member's own gradient below the last layer, of one slice.
  MACHINE_DEVICE void tell_below_third(const Arguments& a, int step, int c, const Loss& of_loss) const {
    Two third[1];
    take(kThirdHidden, third, own_slice(c));
    tell(a, step, tile_of(kBelowThird, own_slice(c)),
         masked(below_last(of_loss, across(0, member_), across(1, member_), c), third[0]));
  }
  MACHINE_DEVICE static float2* row_loss() {
    return reinterpret_cast<float2*>(shared_memory() + Rows::kRowLosses);
  }
  MACHINE_DEVICE void tell_row_loss(const Arguments& a, int step, int label,
                                    const RowsOfLoss<1>& rows) const {
    float2* own = row_loss();
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
    uint2 row;
    look_until_there(a, [&] {
      row = load_relaxed_gpu_64(row_loss_told(a, step, lane_));
      return ((row.y ^ mark(step)) & 1) == 0;
    });
    const float loss =
        lane_ < plan_of(a).batch ? logf(bits_to_float(row.x)) - bits_to_float(row.y & ~1u) : 0.0f;
    store_mean_loss(a, step, lane_, loss);
  }

  /// From the activations below the last layer to a part of the gradients one layer further down.
  MACHINE_DEVICE Loss loss(const Arguments& a, int step, int label) {
    const int t = lane_ & 3, first = part_ * kMine;
    const auto low_weights = load_product<kMine>(weights(kLast, 0, 0), first),
               high_weights = load_product<kMine>(weights(kLast, 1, 0), first);
    const auto bias = RowsOfLoss<1>::load_bias(biases(3), plan_of(a).classes, t);
    Two tiles[kMine];
    await_exchange(a, kThirdHidden, step);
    take(kThirdHidden, tiles, first);
    part_of_sum(kLowLogits, part_) = Shared::template multiply<1>(tiles, low_weights);
    part_of_sum(kHighLogits, part_) = Shared::template multiply<1>(tiles, high_weights);
    tell(kPartsSum);
    const auto low_across = load_product<kMine>(across(0, 0), first),
               high_across = load_product<kMine>(across(1, 0), first);
    await(kReady + kThirdColumns, step);
    await(kPartsSum, 0);
    const float2 low = sum_of_parts(kLowLogits), high = sum_of_parts(kHighLogits);
    const Loss of_loss =
        Shared::loss_of(low, high, bias, label, row(), plan_of(a).batch, a.gradient_scale, t);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      tiles[i] = operand(masked(
          below_last(of_loss, low_across.weights[i / 2], high_across.weights[i / 2], i % 2), tiles[i]));
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      part_of_sum(kSecondGradientSum + c, part_) =
          Shared::template multiply<2>(tiles, load_product<kMine>(weights(kThirdColumns, c, 0), first));
    tell(kPartsSum);
    await(kPartsSum, 1);
    return of_loss;
  }
  // ---- start and end of a launch

  /// visit(own value, place in the flat parameters) for the four values of a lane in turned masters that are real. In rows own
  /// outputs, 16 from `output` on, and columns from `column` on; across: own columns, and others' outputs.
  template <class Visit>
  MACHINE_DEVICE void for_values(const Arguments& a, int layer, float4& m, int own, int other, bool across,
                                 const Visit& visit) const {
    const int in = plan_of(a).widths[layer], out = plan_of(a).widths[layer + 1];
    float* values[4] = {&m.x, &m.y, &m.z, &m.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int mine = own + 8 * (i / 2) + (lane_ >> 2), others = other + 2 * (lane_ & 3) + i % 2;
      const int row = across ? others : mine, column = across ? mine : others;
      if (row < out && column < in)
        visit(*values[i], plan_of(a).weight_begin[layer] + std::int64_t{row} * in + column);
    }
  }
  /// Of one of the matrices, the columns of a tile.
  template <class Visit>
  MACHINE_DEVICE void for_values_of(const Arguments& a, int matrix, float4& m, int tile,
                                    const Visit& visit) const {
    const int layer = matrix <= kLast ? matrix + 1 : 5 - matrix;
    for_values(a, layer, m, matrix == kLast ? 0 : 16 * member_, 8 * tile, matrix > kLast, visit);
  }
  template <class Visit>
  MACHINE_DEVICE void for_first(const Arguments& a, FirstMasters& masters, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if (i < input_pairs_)
          for_values(a, 0, masters[i][half], 16 * member_, 16 * (input_first_ + input_begin_ + i) + 8 * half,
                     false, visit);
  }
  template <class Visit>
  MACHINE_DEVICE void for_biases(const Arguments& a, const Visit& visit) const {
    if (warp_ > 3 || lane_ >= 16) return;
    const int output = (warp_ == 3 ? 0 : 16 * member_) + lane_;
    if (output < plan_of(a).widths[warp_ + 1])
      visit(biases(warp_)[lane_], plan_of(a).bias_begin[warp_] + output);
  }
  MACHINE_DEVICE void load(const Arguments& a) {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < Rows::kSharedBytes; byte += kThreadCount * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
    const auto take = [&](float& own, std::int64_t place) { own = a.parameters[place]; };
    for_biases(a, take);
#pragma unroll 1
    for (int pair = warp_; pair < Rows::kMatrices * Rows::kPairs; pair += kThreadCount / 32) {
      const int matrix = pair / Rows::kPairs, of_matrix = pair % Rows::kPairs;
      float4 m[2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) for_values_of(a, matrix, m[half], 2 * of_matrix + half, take);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) keep_weights(matrix, c, of_matrix, weights_of(m, c));
    }
    if (warp_ >= kFirstUpdater) for_own_masters(a, take, take);
    block_sync();
  }
  /// Those that this warp updates: rows, and the columns and last layers that are their second copies.
  template <class Visit, class Mirror>
  MACHINE_DEVICE void for_own_masters(const Arguments& a, const Visit& visit, const Mirror& mirror) const {
#pragma unroll 1
    for (int i = 0; i < 2 * Rows::kMatrices; ++i) {
      const int matrix = i / 2, tile = 2 * (rank_ * kParts + part_) + i % 2;
      float4& m = master(matrix, i % 2);
      if (matrix < kLast || (matrix == kLast && member_ == 0)) for_values_of(a, matrix, m, tile, visit);
      if (matrix > kLast || (matrix == kLast && member_ != 0)) for_values_of(a, matrix, m, tile, mirror);
    }
  }
  /// The whole last layer comes from the first members, its mirror from the last.
  MACHINE_DEVICE void store(const Arguments& a) {
    const auto put = [&](float* to) {
      return [&a, to](const float& own, std::int64_t place) { to[place] = own; };
    };
    if (rank_ == 0)
      for_biases(a, [&](const float& own, std::int64_t place) {
        if (warp_ < 3 || member_ == 0) a.parameters[place] = own;
      });
    if (warp_ < kFirstUpdater) return;
    for_own_masters(a, put(a.parameters), [&](const float& own, std::int64_t place) {
      if (place < plan_of(a).weight_begin[3] || member_ == kMaxCluster - 1) a.mirror[place] = own;
    });
  }

  const int warp_, lane_, member_, rank_;  // rank_: the cluster
  const int part_;                         // of four warps: which pair of slices, or part of a sum, or slice
  const int input_first_, input_count_;    // pairs of inputs of this cluster
  const int input_begin_, input_pairs_;    // of them this warp's
  Waiter waiter_;
  int batch_ = 0, next_batch_ = 0;  // of this step and the next
};

}  // namespace headroom::resident
