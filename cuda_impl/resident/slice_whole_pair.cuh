// The slice kernel for 129 to 256 columns in 16 bits, four layers: one or four clusters of 16, two slices a member, whole sums.
//
// A cluster holds the whole hidden network, a member 16 columns of each layer; so hidden tiles travel inside a cluster only, as
// in slice_whole.cuh. More inputs than a member has room for are divided among four clusters, which find the same bits in all
// else: each has the first layer's masters for a quarter of the inputs, and its part of the sums, 2 KB a member, is all
// that goes from cluster to cluster, through the L2 (slice_cluster_sum.cuh).
//
// Products have weights as their rows, the 16 columns that a member owns, and rows of the batch as their columns, 8 a warp.
// So four warps are the chain, each with everything of a group of 8 rows: 16 instructions a product over 256 columns, from
// the first layer's product to its gradient without waiting for each other but at the end of a step. What an instruction leaves,
// two rows of two columns a lane, is what softmax, masks and publications take. Eight warps own the masters and
// update them in the order in which the sums of a weight gradient come: [16 own columns or classes, 8 others], which
// rounded are weights as a product takes them. A thirteenth warp has biases, inputs and the loss.
//
//   tiles:     [32 rows, 256 columns] as [4 groups of 8 rows] [32 slices] blocks [8 columns] [8 rows]. Read transposed
//              they are the operand of a product, as they lie that of an update; nothing else is transposed but the
//              gradient of the logits.
//   weights:   of every 16 columns that are summed over four blocks of 8 x 8, as they lie in the masters. The last layer's
//              read transposed are those of the gradient below it.
//   barriers, both of all thirteen warps, in a step:
//              1. the first layer's weights and bias are updated (on the chain)
//              2. the first layer's gradient is complete (on the chain); inputs are in registers
//   updates:   all but the first layer's are of the step before, behind barrier 1, and announced to the chain's warps (mbarriers):
//              kRows: rows of the second and third layer and these layers' biases, made while the first layer's sums go from
//                     cluster to cluster. And all is read that others write again from then on.
//              kRest: the last layer with its bias, columns of the second and third.
//   exchanges: a warp of the chain publishes its group's next tiles only after it has taken those of everybody, and only warps of
//              that group write a group's tiles. So what it publishes behind a barrier or an announcement says
//              that what the others write next has been read before, by itself and by those who update:
//              - h1 and h2 are written again two steps later: two buffers, by the step's parity. The last readers of h1
//                are before kRows of the next step; its writers, one step on, have taken a d2 published behind that. Those of h2
//                are before barrier 2 of the next step; its writers have taken an h1 published behind that.
//              - h3 and d2 have one buffer. Their last readers are before kRows of the next step; their writers have
//                taken the h2 or h3 of that step, published behind it.
//              What only this member writes: the gradients below the last layer and of the logits and what the loss takes of
//              the rows are read before kRest of the next step, behind which they are written again.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/compiler.cuh"
#include "machine/copy.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/mean_loss.cuh"
#include "resident/slice_cluster_sum.cuh"
#include "resident/slice_kernel.cuh"

namespace headroom::resident {

template <class Format, int kClusters>
class SliceWholePair {
  using Arguments = SliceArguments;
  static constexpr int kMembers = WholePair::kMembers, kGroups = WholePair::kGroups;

 public:
  /// Registers are handed over by four warps together; of the last four one has work.
  static constexpr int kChainWarps = kGroups, kThreadCount = kThreads + 32 * (kChainWarps + 4);

  MACHINE_DEVICE explicit SliceWholePair(const Arguments& a)
      : warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        member_(static_cast<int>(block_index() % kMembers)),
        cluster_(static_cast<int>(block_index() / kMembers)),
        input_first_(part_begin(plan_of(a).input_pairs, kClusters, cluster_)),
        input_count_(part_begin(plan_of(a).input_pairs, kClusters, cluster_ + 1) - input_first_),
        input_begin_(part_begin(input_count_, kWarps, warp_)),
        input_pairs_(part_begin(input_count_, kWarps, warp_ + 1) - input_begin_),
        waiter_{warp_, lane_, block_index()},
        next_batch_(static_cast<int>(a.first_step % a.batches)) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    clear();
    begin_barriers();
    if (warp_ < kWarps)
      update(a);
    else if (warp_ < kWarps + kChainWarps)
      chain(a);
    else
      serve(a);
    block_sync();
    cluster_sync();  // nobody may leave while others still store into its memory
  }

 private:
  static constexpr int kStepBarrier = 1, kStepThreads = kThreads + 32 * (kChainWarps + 1);
  // In cycles: behind barrier 1 the chain reads the first layer's weights, then those who update may read shared memory.
  static constexpr std::uint32_t kHeadStart = 200;
  // A thread block begins with 128 for each of its 16 warps.
  static constexpr int kUpdatingRegisters = 136, kChainRegisters = 208, kServingRegisters = 32;
  static constexpr int kGroupTiles = WholePair::kTiles / kGroups, kMemberTile = kGroupTiles / kMembers,
                       kBlock = kMemberTile / 2;
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;   // exchanges
  static constexpr int kPairedExchanges = 2;  // the first, that have two buffers
  static constexpr int kFirstSum = 4;         // over clusters, for tests that lose it
  /// What those who update announce, each thread for itself, to each warp of the chain.
  enum Announced { kRows, kRest, kAnnouncements };
  static constexpr int kAnnouncers = 32 * (kWarps + 1);
  /// 8 KB of weights each.
  enum Matrix { kSecondRows, kThirdRows, kSecondColumns, kThirdColumns, kLast };
  static constexpr int kInputs = (WholePair::kInputPairs + kWarps - 1) / kWarps;  // pairs a warp has at most
  static constexpr int kSlices = 4;  // of hidden columns a warp updates
  using Fragments = typename Format::Fragments;

  MACHINE_DEVICE static void step_sync() { named_barrier<kStepThreads>(kStepBarrier); }
  MACHINE_DEVICE void begin_step(int step) {
    stage_ = step & 1;
    parity_ = static_cast<std::uint32_t>(step) & 1;
    cluster_sum_.begin_step(step);
  }
  MACHINE_DEVICE void next_batch(const Arguments& a) {
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
  }

  // ---- places

  /// This step's buffer of an exchange, or the last's.
  MACHINE_DEVICE int buffer(int exchange, bool before = false) const {
    return exchange < kPairedExchanges ? 2 * exchange + (before ? stage_ ^ 1 : stage_)
                                       : exchange + kPairedExchanges;
  }
  MACHINE_DEVICE unsigned char* tiles(int exchange, bool before = false) const {
    return shared_memory() + WholePair::kExchanges + buffer(exchange, before) * WholePair::kTiles;
  }
  MACHINE_DEVICE static unsigned char* third_gradient() {
    return shared_memory() + WholePair::kThirdGradient;
  }
  MACHINE_DEVICE static unsigned char* weights(Matrix matrix) {
    return shared_memory() + WholePair::kWeights + matrix * WholePair::kMatrix;
  }
  /// [4 groups] [2 slices] blocks
  MACHINE_DEVICE static unsigned char* first_gradient() {
    return shared_memory() + WholePair::kFirstGradient;
  }
  MACHINE_DEVICE static unsigned char* dlogits() { return shared_memory() + WholePair::kDlogits; }
  MACHINE_DEVICE static float* bias(int layer) {
    return reinterpret_cast<float*>(shared_memory() + WholePair::kBiases) + 16 * layer;
  }
  MACHINE_DEVICE static std::uint32_t* timed_out_words() {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + WholePair::kTimedOut);
  }
  /// Behind the last barrier of a step, one for each of the first lanes; written before it.
  MACHINE_DEVICE std::uint32_t timed_out_word() const {
    return lane_ < kChainWarps ? timed_out_words()[lane_] : 0;
  }
  /// [pairs of this cluster's inputs]; of those that there are not they stay zero.
  MACHINE_DEVICE static unsigned char* first_weights() { return shared_memory() + WholePair::kFirstWeights; }
  MACHINE_DEVICE static std::uint32_t barrier(int which) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(WholePair::kBarriers + 8 * which);
  }
  MACHINE_DEVICE std::uint32_t exchange_barrier(int exchange, int group) const {
    return barrier(buffer(exchange) * kGroups + group);
  }
  MACHINE_DEVICE static std::uint32_t staging_barrier(int which) {
    return barrier(WholePair::kBuffers * kGroups + which);
  }
  MACHINE_DEVICE static std::uint32_t announcement_barrier(Announced what) {
    return barrier(WholePair::kBuffers * kGroups + 2 + what);
  }

  // ---- begin

  MACHINE_DEVICE static void clear() {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < WholePair::kSharedBytes; byte += kThreadCount * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
  }
  /// After shared memory was cleared and before anybody publishes.
  MACHINE_DEVICE static void begin_barriers() {
    if (thread_index() == 0) {
      constexpr int kExchangeBarriers = WholePair::kBuffers * kGroups;
      for (int i = 0; i < kExchangeBarriers + 2; ++i) barrier_init(barrier(i), 1);
      for (int i = 0; i < kAnnouncements; ++i)
        barrier_init(announcement_barrier(static_cast<Announced>(i)), kAnnouncers);
      barrier_init_fence();
      for (int i = 0; i < kExchangeBarriers; ++i) barrier_arrive_expect(barrier(i), kGroupTiles);
    }
    block_sync();
    cluster_sync();
  }

  // ---- eight warps that own masters

  /// Of this lane: (row g, columns 2t and 2t + 1), (row g + 8, the same), the rows being 16 of this member's own.
  using Master = float[4];
  /// [16 own columns, 32 rows]
  struct Own {
    std::uint32_t word[2][4];
  };

  MACHINE_DEVICE void update(const Arguments& a) {
    registers_increase<kUpdatingRegisters>();
    load(a);
    keep_all_weights();
    keep_first_weights<kInputs>();
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      step_sync();  // 1
      // In the first step of tiles that are zero.
      wait_cycles(kHeadStart);
      update_hidden<true>(a);
      await_inputs(1, step);
      Fragments columns[kInputs];
      load_input_columns(columns);
      step_sync();  // 2
      const std::uint32_t timed_out = timed_out_word();
      update_first(a, columns);
      if (warp_any(timed_out != 0)) return;
    }
    begin_step(a.steps);
    update_hidden<false>(a);
    step_sync();  // biases are updated, too
    store(a);
  }
  /// Of the step before: all layers but the first.
  template <bool kAnnounces>
  MACHINE_DEVICE void update_hidden(const Arguments& a) {
    update_matrix(a, kSecondRows, load_operands(tiles(kFirstHidden, true), own_tiles(tiles(kSecondGradient))),
                  RegisterMasters{masters_[kSecondRows]});
    update_matrix(a, kThirdRows, load_operands(tiles(kSecondHidden, true), own_tiles(third_gradient())),
                  RegisterMasters{masters_[kThirdRows]});
    const Operands last = load_operands(tiles(kThirdHidden), load_own(dlogits(), 2 * kBlock)),
                   second = load_operands(tiles(kSecondGradient), own_tiles(tiles(kFirstHidden, true)));
    if (kAnnounces) announce(kRows);
    update_matrix(a, kLast, last, SharedMasters{last_masters()});
    update_matrix(a, kSecondColumns, second, RegisterMasters{masters_[kSecondColumns]});
    update_matrix(a, kThirdColumns, load_operands(third_gradient(), own_tiles(tiles(kSecondHidden, true))),
                  SharedMasters{third_columns_masters()});
    if (kAnnounces) announce(kRest);
  }
  /// By every thread that updates, when it has. Of a lane that arrives for its warp racecheck follows only what that lane itself
  /// has written or read.
  MACHINE_DEVICE static void announce(Announced what) { barrier_arrive(announcement_barrier(what)); }
  struct RegisterMasters {
    Master (&master)[kSlices];
    MACHINE_DEVICE void load(int i, Master& to) const {
#pragma unroll
      for (int c = 0; c < 4; ++c) to[c] = master[i][c];
    }
    MACHINE_DEVICE void store(int i, const Master& from) const {
#pragma unroll
      for (int c = 0; c < 4; ++c) master[i][c] = from[c];
    }
  };
  struct SharedMasters {
    float4* master;  // of this lane, slice by slice
    MACHINE_DEVICE void load(int i, Master& to) const {
      const float4 four = master[i * 32];
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
    MACHINE_DEVICE void store(int i, const Master& from) const {
      master[i * 32] = make_float4(from[0], from[1], from[2], from[3]);
    }
  };
  MACHINE_DEVICE float4* third_columns_masters() const {
    return reinterpret_cast<float4*>(shared_memory() + WholePair::kColumnsMasters) + warp_ * (kSlices * 32) +
           lane_;
  }
  MACHINE_DEVICE float4* last_masters() const {
    return reinterpret_cast<float4*>(shared_memory() + WholePair::kLastMasters) + warp_ * (kSlices * 32) +
           lane_;
  }

  MACHINE_DEVICE static void update_master(const Arguments& a, Master& master, const float (&sum)[4]) {
    // The tensor core does not round to nearest: a master must not pass through its accumulator.
#pragma unroll
    for (int c = 0; c < 4; ++c) master[c] = fmaf(a.update_factor, sum[c], master[c]);
  }
  /// Two own slices as the rows of a product, out of blocks of which those of the next 8 rows are group_bytes further.
  MACHINE_DEVICE Own load_own(const unsigned char* blocks, int group_bytes) const {
    const unsigned char* row =
        blocks + (lane_ >> 4) * group_bytes + (lane_ >> 3 & 1) * kBlock + (lane_ & 7) * 16;
    Own own;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_matrices(row + 2 * i * group_bytes, own.word[i]);
    return own;
  }
  /// This member's of everybody's.
  MACHINE_DEVICE Own own_tiles(const unsigned char* tiles) const {
    return load_own(tiles + member_ * kMemberTile, kGroupTiles);
  }
  MACHINE_DEVICE static void multiply_own(float (&sum)[4], const Own& own, std::uint32_t b0, std::uint32_t b1,
                                          std::uint32_t b2, std::uint32_t b3) {
    Format::product(sum, as_uint4(own.word[0]), b0, b1);
    Format::product(sum, as_uint4(own.word[1]), b2, b3);
  }
  MACHINE_DEVICE static uint4 as_uint4(const std::uint32_t (&word)[4]) {
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
  /// What an update multiplies: of this warp's slices of `tiles` and of 16 own columns, over 32 rows.
  struct Operands {
    Own own;
    std::uint32_t columns[kSlices][4];
  };
  MACHINE_DEVICE Operands load_operands(const unsigned char* tiles, const Own& own) const {
    const unsigned char* row =
        tiles + (lane_ >> 3) * kGroupTiles + warp_ * (kSlices * kBlock) + (lane_ & 7) * 16;
    Operands operands = {own, {}};
#pragma unroll
    for (int i = 0; i < kSlices; ++i) load_matrices(row + i * kBlock, operands.columns[i]);
    return operands;
  }
  /// masters += factor * own * columns^T; and weights of them.
  template <class Masters>
  MACHINE_DEVICE void update_matrix(const Arguments& a, Matrix matrix, const Operands& operands,
                                    const Masters& masters) const {
    unsigned char* place = weights(matrix) + warp_ * (kSlices / 2 * 512) + lane_ * 16;
    Master master[kSlices];
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      const auto& column = operands.columns[i];
      masters.load(i, master[i]);
      float sum[4] = {};
      multiply_own(sum, operands.own, column[0], column[1], column[2], column[3]);
      update_master(a, master[i], sum);
      masters.store(i, master[i]);
    }
#pragma unroll
    for (int i = 0; i < kSlices; i += 2) keep_weights(place + i / 2 * 512, master[i], master[i + 1]);
  }
  /// Of two neighbouring slices, as the rows of a product.
  MACHINE_DEVICE static void pack_weights(std::uint32_t (&word)[4], const Master& first,
                                          const Master& second) {
    word[0] = Format::pack_finite_weights(first[0], first[1]);
    word[1] = Format::pack_finite_weights(first[2], first[3]);
    word[2] = Format::pack_finite_weights(second[0], second[1]);
    word[3] = Format::pack_finite_weights(second[2], second[3]);
  }
  MACHINE_DEVICE static void keep_weights(unsigned char* place, const Master& first, const Master& second) {
    std::uint32_t word[4];
    pack_weights(word, first, second);
    store_matrices(place, word);
  }
  MACHINE_DEVICE void keep_all_weights() {
    const auto keep = [&](Matrix matrix, const auto& masters) {
      unsigned char* place = weights(matrix) + warp_ * (kSlices / 2 * 512) + lane_ * 16;
#pragma unroll
      for (int i = 0; i < kSlices; i += 2) {
        Master first, second;
        masters.load(i, first);
        masters.load(i + 1, second);
        keep_weights(place + i / 2 * 512, first, second);
      }
    };
    keep(kSecondRows, RegisterMasters{masters_[kSecondRows]});
    keep(kThirdRows, RegisterMasters{masters_[kThirdRows]});
    keep(kSecondColumns, RegisterMasters{masters_[kSecondColumns]});
    keep(kThirdColumns, SharedMasters{third_columns_masters()});
    keep(kLast, SharedMasters{last_masters()});
  }

  // The first layer, of this cluster's inputs. A warp without as many pairs as others leaves them out.

  /// The numbers of pairs have a copy each: between them branches would be in the way of instructions of one pair while those of
  /// another are waited for.
  MACHINE_DEVICE void update_first(const Arguments& a, const Fragments (&columns)[kInputs]) {
    const Own own = load_own(first_gradient(), 2 * kBlock);
    static_assert(kInputs == 2);
    if (input_pairs_ == 2)
      update_first<2>(a, own, columns);
    else if (input_pairs_ == 1)
      update_first<1>(a, own, columns);
  }
  template <int kPairs>
  MACHINE_DEVICE void update_first(const Arguments& a, const Own& own, const Fragments (&columns)[kInputs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::uint32_t* x = columns[i].word;
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        float sum[4] = {};
        multiply_own(sum, own, x[slice], x[2 + slice], x[4 + slice], x[6 + slice]);
        update_master(a, first_[i][slice], sum);
      }
    }
    keep_first_weights<kPairs>();
  }
  template <int kPairs>
  MACHINE_DEVICE void keep_first_weights() const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      if (i < input_pairs_)
        keep_weights(first_weights() + (input_begin_ + i) * WholePair::kPairWeights + lane_ * 16,
                     first_[i][0], first_[i][1]);
  }
  MACHINE_DEVICE static void await_inputs(int which, int step) {
    // Nothing but this device's own memory is waited for, so this needs no bound.
    await_own(staging_barrier(which), static_cast<std::uint32_t>(step) & 1);
  }
  MACHINE_DEVICE static void await_own(std::uint32_t barrier, std::uint32_t parity) {
    while (!warp_all(barrier_try_wait(barrier, parity))) {
    }
  }
  MACHINE_DEVICE void load_input_columns(Fragments (&x)[kInputs]) const {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const unsigned char* pair = shared_memory() + WholePair::kInputColumns +
                                  (input_begin_ + max(0, min(i, input_pairs_ - 1))) * kInputPair + lane_ * 16;
#pragma unroll
      for (int part = 0; part < 2; ++part) assign(x[i], part, load_shared16(pair + part * 512));
    }
  }

  // ---- a warp for what is small: a warp that did it besides would be waited for

  MACHINE_DEVICE void serve(const Arguments& a) {
    registers_decrease<kServingRegisters>();
    if (warp_ > kWarps + kChainWarps) return;
    stage(a, 0, a.x_rows, WholePair::kInputRows, next_batch_);
    const bool first_of_all = member_ == 0 && cluster_ == 0;
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      next_batch(a);
      step_sync();  // 1: behind it nobody reads the last inputs
      update_bias(a, bias(1), own_tiles(tiles(kSecondGradient)));
      update_bias(a, bias(2), own_tiles(third_gradient()));
      announce(kRows);
      update_bias(a, bias(3), load_own(dlogits(), 2 * kBlock));
      const float2 row_loss = row_losses()[lane_];  // of the step before
      announce(kRest);
      stage(a, 1, a.x_columns, WholePair::kInputColumns, batch_);
      if (step + 1 < a.steps) stage(a, 0, a.x_rows, WholePair::kInputRows, next_batch_);
      if (step > 0 && first_of_all) store_loss(a, step - 1, row_loss);
      step_sync();  // 2
      if (warp_any(timed_out_word() != 0)) return;
      update_bias(a, bias(0), load_own(first_gradient(), 2 * kBlock));
    }
    begin_step(a.steps);
    update_bias(a, bias(1), own_tiles(tiles(kSecondGradient)));
    update_bias(a, bias(2), own_tiles(third_gradient()));
    update_bias(a, bias(3), load_own(dlogits(), 2 * kBlock));
    if (first_of_all) store_loss(a, a.steps - 1, row_losses()[lane_]);
    step_sync();
  }
  /// bias [16] += factor * the sum over rows: a product with ones.
  MACHINE_DEVICE void update_bias(const Arguments& a, float* bias, const Own& gradient) const {
    const std::uint32_t ones = Format::pack(1.0f, 1.0f);
    float sum[4] = {};
    multiply_own(sum, gradient, ones, ones, ones, ones);
    if ((lane_ & 3) != 0) return;
    float* own = bias + (lane_ >> 2);
    own[0] = fmaf(a.update_factor, sum[0], own[0]);
    own[8] = fmaf(a.update_factor, sum[2], own[8]);
  }
  MACHINE_DEVICE void store_loss(const Arguments& a, int step, const float2& row) const {
    const float loss = lane_ < plan_of(a).batch ? logf(row.x) - row.y : 0.0f;
    store_mean_loss(a, step, lane_, loss);
  }
  /// Of every row the sum of its exponentials and its label's distance to the highest logit.
  MACHINE_DEVICE static float2* row_losses() {
    return reinterpret_cast<float2*>(shared_memory() + WholePair::kRowLosses);
  }
  /// This cluster's inputs of a batch in one of the two orders, by one bulk copy.
  MACHINE_DEVICE void stage(const Arguments& a, int which, const unsigned char* memory, int offset,
                            int batch) const {
    if (lane_ != 0) return;
    const auto bytes = static_cast<std::uint32_t>(input_count_ * kInputPair);
    fence_proxy_async_shared();
    barrier_arrive_expect(staging_barrier(which), bytes);
    if (bytes == 0) return;
    bulk_load(shared_memory() + offset, memory + batch * plan_of(a).x_batch_bytes + input_first_ * kInputPair,
              bytes, staging_barrier(which));
  }

  // ---- four warps that are the chain

  MACHINE_DEVICE int group() const { return warp_ - kWarps; }
  /// Of columns g and g + 8 of this member's 16, two rows each.
  struct Two {
    std::uint32_t first, second;
  };
  struct Product {
    std::uint32_t weight[kMembers][4];
  };
  /// Columns of a group of 8 rows, two words of each member's.
  struct Columns {
    std::uint32_t word[2 * kMembers];
  };
  /// Where this lane publishes: from this member's shared memory to another's, half of the members each half of a warp.
  struct Lane {
    std::uint32_t to[kMembers / 2];
    std::uint32_t packet;
    int from;  // the first lane of the quad that has the column this lane publishes
  };
  MACHINE_DEVICE Lane place_lane() const {
    Lane lane;
    const std::uint32_t here = shared_address(shared_memory());
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i)
      lane.to[i] =
          remote_address(here, static_cast<std::uint32_t>(member_ + (lane_ >> 4) + 2 * i) % kMembers) - here;
    lane.packet =
        static_cast<std::uint32_t>(group() * kGroupTiles + member_ * kMemberTile + (lane_ & 15) * 16);
    lane.from = 4 * (lane_ & 7);
    return lane;
  }
  MACHINE_DEVICE Product load_product(Matrix matrix) const {
    Product product;
    const unsigned char* place = weights(matrix) + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kMembers; ++i) load_matrices(place + i * 512, product.weight[i]);
    return product;
  }
  struct Chains {
    float sum[4][4];
    MACHINE_DEVICE void add(float (&total)[4]) const {
#pragma unroll
      for (int c = 0; c < 4; ++c) total[c] = (sum[0][c] + sum[1][c]) + (sum[2][c] + sum[3][c]);
    }
  };
  /// Chains of instructions that wait for each other; the first begins with what rows g and g + 8 have.
  MACHINE_DEVICE static Chains begin_chains(float first, float second) {
    return {{{first, first, second, second}, {}, {}, {}}};
  }
  MACHINE_DEVICE static void multiply(float (&sum)[4], const Product& product, const Columns& columns,
                                      const float2& bias = make_float2(0, 0)) {
    Chains chains = begin_chains(bias.x, bias.y);
#pragma unroll
    for (int i = 0; i < kMembers; ++i)
      Format::product(chains.sum[i % 4], as_uint4(product.weight[i]), columns.word[2 * i],
                      columns.word[2 * i + 1]);
    chains.add(sum);
  }
  MACHINE_DEVICE float2 load_bias(int layer) const {
    const float* own = bias(layer) + (lane_ >> 2);
    return make_float2(own[0], own[8]);
  }
  MACHINE_DEVICE static Two hidden(const float (&sum)[4]) {
    return {Format::pack(relu(sum[0]), relu(sum[1])), Format::pack(relu(sum[2]), relu(sum[3]))};
  }
  MACHINE_DEVICE static Two masked(const float (&sum)[4], const Two& hidden) {
    return {Format::pack(sum[0], sum[1]) & Format::positive(hidden.first),
            Format::pack(sum[2], sum[3]) & Format::positive(hidden.second)};
  }
  /// A lane sends the 8 rows of one column, which the lanes of a quad have; half of the lanes one of the first slice, the others
  /// of the second. In each round a lane hands out what either of them takes.
  MACHINE_DEVICE void publish(const Arguments& a, const Lane& lane, int exchange, const Two& two) const {
    std::uint32_t place = shared_address(tiles(exchange)) + lane.packet,
                  barrier = exchange_barrier(exchange, group());
    compute_now(place);  // else the sums below are kept for the whole launch
    compute_now(barrier);
    const bool of_second = (lane_ & 8) != 0;
    std::uint32_t round[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      round[i] = shuffle_from((lane_ & 3) == i ? two.first : two.second, lane.from + (of_second ? i ^ 1 : i));
    const uint4 packet = of_second ? make_uint4(round[1], round[0], round[3], round[2])
                                   : make_uint4(round[0], round[1], round[2], round[3]);
    if (exchange == a.lost_exchange) return;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i) store_async16(place + lane.to[i], packet, barrier + lane.to[i]);
  }
  MACHINE_DEVICE void take(const Arguments& a, int exchange, Columns& columns) {
    waiter_.await(a, exchange_barrier(exchange, group()),
                  exchange < kPairedExchanges ? paired_parity_ : parity_, exchange);
    const unsigned char* place = tiles(exchange) + group() * kGroupTiles + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i) {
      std::uint32_t word[4];
      load_matrices_transposed(place + i * 512, word);
#pragma unroll
      for (int j = 0; j < 4; ++j) columns.word[4 * i + j] = word[j];
    }
  }
  /// When the buffer is taken and what depends on it is on its way. A completed phase stays visible until the next one is
  /// complete too.
  MACHINE_DEVICE void expect_next(int exchange) const {
    if (lane_ == 0 && !waiter_.timed_out)
      barrier_arrive_expect(exchange_barrier(exchange, group()), kGroupTiles);
  }

  /// By whom it is announced waits for nothing that has no bound.
  MACHINE_DEVICE void await_announced(Announced what) const {
    await_own(announcement_barrier(what), parity_);
  }
  MACHINE_DEVICE void chain(const Arguments& a) {
    registers_increase<kChainRegisters>();
    const Lane lane = place_lane();
    await_inputs(0, 0);
    InputRows rows = load_input_rows();
    for (int step = 0; step < a.steps; ++step) {
      begin_step(step);
      paired_parity_ = static_cast<std::uint32_t>(step >> 1) & 1;
      next_batch(a);
      int label[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = first_row() + i;
        label[i] = row < plan_of(a).batch ? a.labels[std::int64_t{batch_} * plan_of(a).batch + row] : -1;
      }
      step_sync();  // 1
      float sum[4];
      make_first(a, rows, sum);
      const Two first = hidden(sum);
      publish(a, lane, kFirstHidden, first);

      await_announced(kRows);
      Columns columns;
      Product product = load_product(kSecondRows);
      float2 bias = load_bias(1);
      take(a, kFirstHidden, columns);
      multiply(sum, product, columns, bias);
      const Two second = hidden(sum);
      publish(a, lane, kSecondHidden, second);
      expect_next(kFirstHidden);

      product = load_product(kThirdRows);
      bias = load_bias(2);
      take(a, kSecondHidden, columns);
      multiply(sum, product, columns, bias);
      publish(a, lane, kThirdHidden, hidden(sum));
      expect_next(kSecondHidden);

      await_announced(kRest);
      loss(a, lane, label, second);
      product = load_product(kSecondColumns);
      if (step + 1 < a.steps) await_inputs(0, step + 1);
      rows = load_input_rows();
      take(a, kSecondGradient, columns);
      multiply(sum, product, columns);
      keep_two(first_gradient(), masked(sum, first));
      if (waiter_.timed_out && lane_ == 0) timed_out_words()[group()] = 1;
      step_sync();  // 2
      expect_next(kSecondGradient);
      if (warp_any(timed_out_word() != 0)) return;
    }
    step_sync();
  }
  /// This lane's two rows of a sum are this one and the next.
  MACHINE_DEVICE int first_row() const { return 8 * group() + 2 * (lane_ & 3); }
  /// Into this group's two blocks.
  MACHINE_DEVICE void keep_two(unsigned char* blocks, const Two& two) const {
    auto* place = reinterpret_cast<std::uint32_t*>(blocks + group() * 2 * kBlock) + lane_;
    place[0] = two.first;
    place[kBlock / 4] = two.second;
  }
  /// Of this group's 8 rows, this cluster's inputs.
  struct InputRows {
    std::uint32_t word[WholePair::kInputPairs][2];
  };
  MACHINE_DEVICE InputRows load_input_rows() const {
    InputRows rows;
    const auto* place = reinterpret_cast<const std::uint32_t*>(shared_memory() + WholePair::kInputRows +
                                                               (group() >> 1) * 512 + lane_ * 16) +
                        (group() & 1);
#pragma unroll
    for (int i = 0; i < WholePair::kInputPairs; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) rows.word[i][j] = place[i * kInputPair / 4 + 2 * j];
    return rows;
  }
  /// The first layer's sums, without ReLU.
  MACHINE_DEVICE void make_first(const Arguments& a, const InputRows& rows, float (&sum)[4]) {
    Chains chains = begin_chains(0, 0);
#pragma unroll
    for (int i = 0; i < WholePair::kInputPairs; ++i) {
      std::uint32_t weight[4];
      load_matrices(first_weights() + i * WholePair::kPairWeights + lane_ * 16, weight);
      Format::product(chains.sum[i % 4], as_uint4(weight), rows.word[i][0], rows.word[i][1]);
    }
    chains.add(sum);
    const float2 bias = load_bias(0);
    float4 total = make_float4(sum[0], sum[1], sum[2], sum[3]);
    if constexpr (kClusters > 1)
      total =
          cluster_sum_.sum(a, waiter_, cluster_, member_, group(), true, total, a.lost_exchange == kFirstSum);
    sum[0] = total.x + bias.x, sum[1] = total.y + bias.x;
    sum[2] = total.z + bias.y, sum[3] = total.w + bias.y;
  }

  /// From the activations below the last layer to the publication of the gradient one layer further down.
  MACHINE_DEVICE void loss(const Arguments& a, const Lane& lane, const int (&label)[2], const Two& second) {
    const int g = lane_ >> 2;
    const Product last = load_product(kLast);
    Product across;  // the same, of the gradient below: [own columns, classes]
#pragma unroll
    for (int i = 0; i < kMembers; ++i)
      load_matrices_transposed(weights(kLast) + lane_ * 16 + i * 512, across.weight[i]);
    float2 bias = load_bias(3);  // those classes that are not there have no chance
    if (g >= plan_of(a).classes) bias.x = -INFINITY;
    if (g + 8 >= plan_of(a).classes) bias.y = -INFINITY;
    Columns columns;
    take(a, kThirdHidden, columns);
    float logit[4];
    multiply(logit, last, columns, bias);
    const Product product = load_product(kThirdColumns);

    // Classes g and g + 8 of two rows: a row is in eight lanes.
    float gradient[4], below[4], row_sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest = fmaxf(logit[i], logit[2 + i]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));
#pragma unroll
      for (int c = i; c < 4; c += 2) {
        below[c] = logit[c] - highest;
        gradient[c] = exponential(below[c]);
      }
      row_sum[i] = gradient[i] + gradient[2 + i];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) row_sum[i] += shuffle_xor(row_sum[i], mask);
      const float inverse = first_row() + i < plan_of(a).batch ? divide(a.gradient_scale, row_sum[i]) : 0.0f;
#pragma unroll
      for (int c = i; c < 4; c += 2)
        gradient[c] = gradient[c] * inverse - (g + 8 * (c >> 1) == label[i] ? a.gradient_scale : 0.0f);
    }
    const Two kept = {Format::pack(gradient[0], gradient[1]), Format::pack(gradient[2], gradient[3])};

    // The gradient below: rows of the batch are the rows of an instruction, eight of its sixteen, so that what it leaves is at
    // once what the next product takes.
    const uint4 rows = make_uint4(transpose8x8(kept.first), 0, transpose8x8(kept.second), 0);
    Chains chains = begin_chains(0, 0);
#pragma unroll
    for (int i = 0; i < kMembers; ++i) {
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        float sum[4] = {};
        Format::product(sum, rows, across.weight[i][2 * slice], across.weight[i][2 * slice + 1]);
        std::uint32_t& word = columns.word[2 * i + slice];
        word = Format::pack(sum[0], sum[1]) & Format::positive(word);
      }
      Format::product(chains.sum[i % 4], as_uint4(product.weight[i]), columns.word[2 * i],
                      columns.word[2 * i + 1]);
    }
    float sum[4];
    chains.add(sum);
    publish(a, lane, kSecondGradient, masked(sum, second));
    expect_next(kThirdHidden);

    // What updates take.
    unsigned char* place = third_gradient() + group() * kGroupTiles + lane_ * 16;
#pragma unroll
    for (int i = 0; i < kMembers / 2; ++i) {
      const std::uint32_t word[4] = {columns.word[4 * i], columns.word[4 * i + 1], columns.word[4 * i + 2],
                                     columns.word[4 * i + 3]};
      store_matrices_transposed(place + i * 512, word);
    }
    keep_two(dlogits(), kept);
    if (member_ == 0)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (g + 8 * (c >> 1) == label[c & 1])
          row_losses()[first_row() + (c & 1)] = make_float2(row_sum[c & 1], below[c]);
  }

  // ---- start and end of a launch, by the eight

  /// visit(own value, whether it exists, its place in the flat parameters) for [16, 8] values, of which the rows are outputs, or
  /// columns of the weight.
  template <class Visit>
  MACHINE_DEVICE void for_master(const Arguments& a, int layer, Master& master, int row, int column,
                                 bool rows_are_outputs, bool exists, Visit&& visit) const {
    const int in = plan_of(a).widths[layer], out = plan_of(a).widths[layer + 1];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int x = row + (c >> 1) * 8 + (lane_ >> 2), y = column + 2 * (lane_ & 3) + (c & 1);
      const int output = rows_are_outputs ? x : y, place = rows_are_outputs ? y : x;
      visit(master[c], exists && output < out && place < in,
            plan_of(a).weight_begin[layer] + std::int64_t{output} * in + place);
    }
  }
  /// All masters: of what is held twice, rows are given to visit(), columns to mirror(), and the last layer to both.
  template <class Visit, class Mirror>
  MACHINE_DEVICE void for_masters(const Arguments& a, Visit&& visit, Mirror&& mirror) {
    const int own = 16 * member_;
#pragma unroll
    for (int i = 0; i < kInputs; ++i)
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
        for_master(a, 0, first_[i][slice], own, (input_first_ + input_begin_ + i) * 16 + 8 * slice, true,
                   i < input_pairs_, visit);
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      const int column = (warp_ * kSlices + i) * 8;
      for_master(a, 1, masters_[kSecondRows][i], own, column, true, true, visit);
      for_master(a, 1, masters_[kSecondColumns][i], own, column, false, true, mirror);
      for_master(a, 2, masters_[kThirdRows][i], own, column, true, true, visit);
      for_shared_master(a, 2, third_columns_masters(), i, own, column, false, mirror);
      for_shared_master(a, 3, last_masters(), i, 0, column, true, visit);
      for_shared_master(a, 3, last_masters(), i, 0, column, true, mirror);
    }
  }
  template <class Visit>
  MACHINE_DEVICE void for_shared_master(const Arguments& a, int layer, float4* masters, int i, int row,
                                        int column, bool rows_are_outputs, Visit&& visit) const {
    const SharedMasters shared = {masters};
    Master master;
    shared.load(i, master);
    for_master(a, layer, master, row, column, rows_are_outputs, true, visit);
    shared.store(i, master);
  }
  template <class Visit>
  MACHINE_DEVICE void for_biases(const Arguments& a, Visit&& visit) const {
    if (warp_ >= 4 || lane_ >= 16) return;
    const int column = warp_ < 3 ? 16 * member_ + lane_ : lane_;
    visit(bias(warp_)[lane_], column < plan_of(a).widths[warp_ + 1], plan_of(a).bias_begin[warp_] + column);
  }
  MACHINE_DEVICE void load(const Arguments& a) {
    const auto take = [&](float& own, bool exists, std::int64_t place) {
      own = exists ? a.parameters[place] : 0.0f;
    };
    for_masters(a, take, take);
    for_biases(a, take);
  }
  /// What clusters do not divide comes from the first, and the mirror from the last; the last layer from the first member, and
  /// its mirror from the last.
  MACHINE_DEVICE void store(const Arguments& a) {
    const std::int64_t last_begin = plan_of(a).weight_begin[3], divided_end = plan_of(a).bias_begin[0];
    for_masters(
        a,
        [&](const float& own, bool exists, std::int64_t place) {
          if (cluster_ > 0 && place >= divided_end) return;
          if (exists && (place < last_begin || member_ == 0)) a.parameters[place] = own;
        },
        [&](const float& own, bool exists, std::int64_t place) {
          if (cluster_ < kClusters - 1) return;
          if (exists && (place < last_begin || member_ == kMembers - 1)) a.mirror[place] = own;
        });
    for_biases(a, [&](const float& own, bool exists, std::int64_t place) {
      if (exists && cluster_ == 0 && (place < last_begin || member_ == 0)) a.parameters[place] = own;
    });
  }

  /// Extra pairs of inputs go to the last.
  MACHINE_DEVICE static int part_begin(int count, int parts, int part) {
    return part * (count / parts) + max(0, part - (parts - count % parts));
  }

  static constexpr int kInputPair = WholePair::kInputPair;

  const int warp_, lane_, member_, cluster_;
  const int input_first_, input_count_;  // pairs of inputs: this cluster's
  const int input_begin_, input_pairs_;  // of them this warp's
  SliceWaiter waiter_;
  ClusterSum<kClusters == 1 ? 2 : kClusters, kGroups> cluster_sum_;  // unused by one
  int batch_ = 0, next_batch_;                                       // of this step and the next
  int stage_ = 0;                                                    // of the first layer's activations
  std::uint32_t parity_ = 0, paired_parity_ = 0;
  Master first_[kInputs][2], masters_[3][kSlices];  // of the first three matrices
};

}  // namespace headroom::resident
