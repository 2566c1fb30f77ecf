// The slice kernel in tf32 in teams of four, four layers, up to 128 columns: every thread block of a team has all hidden columns,
// and the team divides the inputs only.
//
// A team that divides hidden columns pays a hop between its members for every product. Here each member makes every hidden
// product and the loss by itself, with warps that do nothing else (as slice_whole.cuh does), and all four find the
// same bits. So the only hop of a step is that of the first layer's partial sums, whose 784 inputs are worth dividing. Of a
// tile, which all four have, two publish half each.
//
//   chain:     for each half of the rows two warps, each with half of the columns of every sum, from the first layer's sums to
//              its gradient. The first of the two leads: it adds up both parts, rounds and publishes.
//   tiles:     go through the L2 (slice_exchange.cuh) straight into the chain's registers: 16 bytes a lane of half a tile
//              are what it publishes and what a product takes of it. For updates the chain leaves them in shared
//              memory, in an order in which neither who writes 16 bytes of a lane nor who reads columns meets a bank
//              twice; so the updates, which sum over rows, need no transposes.
//   updates:   eight warps own the masters and leave rounded weights in shared memory as the chain takes them.
//   biases:    sum gradients before they are rounded, so those of own slices are kept so as well.
//   barriers, all of all warps, in a step, and what the eight do behind each:
//              1. the first layer's partial sums are complete: rows of both hidden layers, from the step before
//              2. these rows, while h1 travels (what the chain takes next needs them): the next inputs are asked for
//              3. parts of h2's sums are complete: the last layer
//              4. parts of h3's: columns of both hidden layers
//              5. parts of the logits
//              6. parts of the gradient below h2: inputs into registers
//              7. parts of the first layer's gradient, which each of the eight adds up for itself: the first layer
//              What is updated behind a barrier is taken by the chain behind one of the next. The chain writes h1's kept
//              tiles behind 3, h2's behind 4, h3's behind 4 (with its own sums complete at 5), gradients of the logits and
//              below the last layer behind 6, of the second layer behind 7: each a barrier or more behind its last
//              reader of the step before. Own h1 and h2 have two places by the step's parity, because columns are
//              updated when the next ones are there.
//   exchanges: two buffers are enough. Who writes one again has taken an h1 of the step between from every team, to which each
//              member of the team contributed a partial sum only after its last barrier of the step before, hence
//              after all that it read in it.
#pragma once

#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_step.cuh"
#include "resident/slice_whole_loss.cuh"

namespace headroom::resident {

inline constexpr int kWholeTeamChainWarps = 2 * kWholeTeamParts,
                     kWholeTeamThreads = kThreads + 32 * kWholeTeamChainWarps;

template <class Format>
class SliceWholeTeamMember : SliceMember<Format, SliceGrid, 1, 4, 4, 1, true> {
  using Base = SliceMember<Format, SliceGrid, 1, 4, 4, 1, true>;
  using Base::exchange_, Base::lane_, Base::member_, Base::next_batch_, Base::rank_, Base::team_,
      Base::waiter_, Base::warp_;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::Fragments;
  using typename Base::Owns;
  using typename Base::Place;
  using typename Base::Values;

 public:
  static constexpr int kThreadCount = kWholeTeamThreads;

  MACHINE_DEVICE explicit SliceWholeTeamMember(const Arguments& a)
      : Base(a), half_(warp_ & 1), part_((warp_ - kWarps) >> 1) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::template load<kWholeTeamThreads>(a, warp_ < kWarps);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    const bool updates = warp_ < kWarps;
    bool complete = false;
    if (updates)
      complete = update(a);
    else
      chain(a);
    block_sync();
    if (updates && complete) Base::store(a);
    exchange_.end();
    team_.end();
  }

 private:
  static constexpr int kSlices = kMaxCluster, kTile = 1024, kHalf = 512;
  static constexpr int kParts = kWholeTeamParts;
  static constexpr int kMine = kSlices / kParts;  // tiles of which a warp of the chain takes half the rows
  static constexpr int kStepBarrier = 1;
  static constexpr int kFirstHidden = 0, kSecondHidden = 1, kThirdHidden = 2,
                       kSecondGradient = 3;  // exchanges
  // Of weights, 4 KB each; the last layer's backward is twice that.
  enum Matrix { kSecondRows, kThirdRows, kSecondColumns, kThirdColumns, kLastLow, kLastHigh, kLastAcross };
  // Of the sums in parts, in the order of a step.
  enum { kSecondHiddenSum, kThirdHiddenSum, kLogitsSum, kSecondGradientSum, kFirstGradientSum };
  static_assert(kFirstGradientSum % 2 == 0);  // so that the next step begins with the other place
  // Of kept tiles, 16 each.
  enum Kept { kFirst, kSecond, kThird, kBelowSecond, kBelowThird };

  MACHINE_DEVICE static void step_sync() { named_barrier<kWholeTeamThreads>(kStepBarrier); }
  MACHINE_DEVICE static unsigned char* fragments(const Arguments& a, Matrix matrix) {
    return shared_memory() + a.plan.hidden_offset + 4096 * matrix;
  }
  MACHINE_DEVICE static unsigned char* kept(const Arguments& a, Kept which, int slice = 0) {
    return shared_memory() + a.plan.hidden_offset + kWholeTeamFragmentBytes +
           (which * kSlices + slice) * kTile;
  }
  // Behind those of all slices: own activations of the first and the second layer by the step's parity, and the logits'
  // gradient, two tiles.
  MACHINE_DEVICE static unsigned char* own_hidden(const Arguments& a, int layer, int step) {
    return kept(a, kBelowThird, kSlices + 2 * layer + (step & 1));
  }
  MACHINE_DEVICE static unsigned char* logits_gradient(const Arguments& a, int tile) {
    return kept(a, kBelowThird, kSlices + 4 + tile);
  }
  /// Behind the last barrier of a step, one for each of the first lanes; written before it.
  MACHINE_DEVICE std::uint32_t timed_out_word(const Arguments& a) const {
    return lane_ < kWholeTeamChainWarps ? Base::timed_out_words(a)[lane_] : 0;
  }

  // ---- kept tiles: in each half of 16 rows the 16 bytes of lane 4g + t, its rows g and g + 8 of columns 2t and 2t + 1

  MACHINE_DEVICE static int kept_byte(int g, int t) { return (4 * (g ^ (g >> 1 & 1)) + (t ^ g >> 1)) * 16; }
  MACHINE_DEVICE void keep(unsigned char* tile, const uint4& half) const {
    *reinterpret_cast<uint4*>(tile + half_ * kHalf + kept_byte(lane_ >> 2, lane_ & 3)) = half;
  }
  MACHINE_DEVICE void keep_all(const Arguments& a, Kept which, const uint4 (&tiles)[kMine]) const {
#pragma unroll
    for (int i = 0; i < kMine; ++i) keep(kept(a, which, part_ * kMine + i), tiles[i]);
  }
  /// A tile as the chain has it.
  MACHINE_DEVICE Values kept_tile(const unsigned char* tile) const {
    Values values;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      assign(values, half, load_shared16(tile + half * kHalf + kept_byte(lane_ >> 2, lane_ & 3)));
    return values;
  }
  /// Rows 8i + 2t and the next of column g, as updates take them.
  MACHINE_DEVICE Values columns(const unsigned char* tile) const {
    const int g = lane_ >> 2, t = lane_ & 3;
    Values values;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint2 two =
            *reinterpret_cast<const uint2*>(tile + half * kHalf + kept_byte(2 * t + j, g >> 1) + (g & 1) * 8);
        values.word[4 * half + j] = two.x;
        values.word[4 * half + 2 + j] = two.y;
      }
    return values;
  }

  // ---- eight warps that own masters

  /// Whether all steps were made.
  MACHINE_DEVICE bool update(const Arguments& a) {
    keep_all_weights(a);
    Base::stage_rows(a);
    Base::multiply_first(a, 0, next_batch_);
    for (int step = 0; step < a.steps; ++step) {
      Base::next_batch(a);
      Base::partial_ = 1;  // one buffer is enough
      Base::store_partial(a, Base::first_sums_);
      step_sync();  // 1
      if (step > 0) {
        update_second_rows(a);
        update_third_rows(a);
      }
      step_sync();                // 2
      if (warp_ == kWarps - 1) {  // behind the first barrier nobody reads the last inputs
        Base::stage_columns(a);
        if (step + 1 < a.steps) Base::stage_rows(a);
      }
      if (step > 0 && warp_ == 5 && Base::is_first()) Base::store_loss(a, step - 1);
      step_sync();  // 3
      if (step > 0) update_last(a);
      step_sync();  // 4
      if (step > 0) {
        update_third_columns(a, step - 1);
        update_second_columns(a, step - 1);
      }
      step_sync();  // 5
      step_sync();  // 6
      EarlyInputs inputs;
      Base::load_inputs(a, inputs, step);
      if (step + 1 < a.steps) Base::wait_for_inputs(a, 0, a.plan.x_rows_offset, step + 1);
      Fragments rows[Base::kInputs];
#pragma unroll
      for (int i = 0; i < Base::kInputs; ++i) rows[i] = Base::load_row_inputs(a, i);
      const Values first = columns(own_hidden(a, 0, step));
      step_sync();  // 7
      const std::uint32_t timed_out = timed_out_word(a);
      update_first_and_multiply(a, step, first, inputs, rows);
      if (warp_any(timed_out != 0)) return false;
    }
    step_sync();  // the chain has kept the last of its tiles
    update_second_rows(a);
    update_third_rows(a);
    update_last(a);
    update_third_columns(a, a.steps - 1);
    update_second_columns(a, a.steps - 1);
    if (warp_ == 5 && Base::is_first()) Base::store_loss(a, a.steps - 1);
    return true;
  }
  MACHINE_DEVICE void keep_all_weights(const Arguments& a) const {
#pragma unroll
    for (int layer = 1; layer < 3; ++layer) {
      keep_weights(a, static_cast<Matrix>(kSecondRows + layer - 1),
                   Base::matrix(a.plan.rows_offset, layer)[lane_]);
      keep_weights(a, static_cast<Matrix>(kSecondColumns + layer - 1),
                   Base::matrix(a.plan.columns_offset, layer)[lane_]);
    }
    keep_last_weights(a, Base::matrix(a.plan.last_offset[0], 1)[lane_], Base::second_tile(a, 0).load(lane_));
  }
  /// Of this warp's pair: [8 pairs] [lane] both slices' operand.
  MACHINE_DEVICE uint4& fragment(const Arguments& a, Matrix matrix) const {
    return reinterpret_cast<uint4*>(fragments(a, matrix))[warp_ * 32 + lane_];
  }
  MACHINE_DEVICE void keep_weights(const Arguments& a, Matrix matrix, const float4& master) const {
    fragment(a, matrix) = part_of(Format::weights(master), 0);
  }
  MACHINE_DEVICE void keep_last_weights(const Arguments& a, const float4& low, const float4& high) const {
    keep_weights(a, kLastLow, low);
    keep_weights(a, kLastHigh, high);
    // Backward it is the masters as they lie that are the operand.
    uint4* across = &fragment(a, kLastAcross);
    across[0] = rounded(low);
    across[kLastHighAcross] = rounded(high);
  }
  static constexpr int kLastHighAcross = 4096 / 16;
  MACHINE_DEVICE static uint4 rounded(const float4& m) {
    return make_uint4(Format::rounded(m.x), Format::rounded(m.y), Format::rounded(m.z), Format::rounded(m.w));
  }
  /// masters += factor * columns^T * own, of this warp's pair of kept tiles.
  MACHINE_DEVICE float4 updated(const Arguments& a, const float4& before, Kept which,
                                const Values& own) const {
    return Base::updated(a, before,
                         Format::outer(columns(kept(a, which, 2 * warp_)),
                                       columns(kept(a, which, 2 * warp_ + 1)), own, lane_));
  }
  MACHINE_DEVICE void update_matrix(const Arguments& a, int offset, int layer, Matrix matrix, Kept which,
                                    const unsigned char* own) const {
    float4& master = Base::matrix(offset, layer)[lane_];
    const float4 now = updated(a, master, which, columns(own));
    master = now;
    keep_weights(a, matrix, now);
  }
  MACHINE_DEVICE void update_bias(const Arguments& a, int layer) const {
    Base::update_bias(a, load_tile<8>(Base::own_gradient(a, layer), lane_),
                      Base::floats(a.plan.bias_offset) + 8 * layer);
  }
  // From the step before.
  MACHINE_DEVICE void update_second_rows(const Arguments& a) const {
    update_matrix(a, a.plan.rows_offset, 1, kSecondRows, kFirst, kept(a, kBelowSecond, member_));
    if (warp_ == 4) update_bias(a, 1);
  }
  MACHINE_DEVICE void update_third_rows(const Arguments& a) const {
    update_matrix(a, a.plan.rows_offset, 2, kThirdRows, kSecond, kept(a, kBelowThird, member_));
    if (warp_ == 5) update_bias(a, 2);
  }
  MACHINE_DEVICE void update_second_columns(const Arguments& a, int step) const {
    update_matrix(a, a.plan.columns_offset, 1, kSecondColumns, kBelowSecond, own_hidden(a, 0, step));
  }
  MACHINE_DEVICE void update_third_columns(const Arguments& a, int step) const {
    update_matrix(a, a.plan.columns_offset, 2, kThirdColumns, kBelowThird, own_hidden(a, 1, step));
  }
  MACHINE_DEVICE void update_last(const Arguments& a) const {
    float4& master = Base::matrix(a.plan.last_offset[0], 1)[lane_];
    const SecondTile second = Base::second_tile(a, 0);
    const Values first_slice = columns(kept(a, kThird, 2 * warp_)),
                 second_slice = columns(kept(a, kThird, 2 * warp_ + 1));
    const float4 low = Base::updated(
        a, master, Format::outer(first_slice, second_slice, columns(logits_gradient(a, 0)), lane_));
    const float4 high =
        Base::updated(a, second.load(lane_),
                      Format::outer(first_slice, second_slice, columns(logits_gradient(a, 1)), lane_));
    master = low;
    second.store(lane_, high);
    keep_last_weights(a, low, high);
    if (warp_ == 6) Base::update_last_bias(a);
  }
  /// The first layer's gradient unrounded, out of the parts of its sum.
  template <class Part>
  MACHINE_DEVICE static Values first_gradient(const Values& hidden, Part&& part) {
    float sum[8] = {};
#pragma unroll
    for (int from = 0; from < kParts; ++from) {
      const Values values = part(from);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += bits_to_float(values.word[i]);
    }
    Values gradient;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      gradient.word[i] = bits_to_float(hidden.word[i]) > 0 ? float_to_bits(sum[i]) : 0;
    return gradient;
  }
  /// And the product of the next step, if there is one.
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, int step, const Values& first,
                                                const EarlyInputs& inputs,
                                                const Fragments (&rows)[Base::kInputs]) {
    Owns own;
    own.slice[0] =
        first_gradient(first, [&](int part) { return columns(first_gradient_part(a, step, part)); });
#pragma unroll
    for (int i = 0; i < 8; ++i) own.slice[0].word[i] = Format::rounded(bits_to_float(own.slice[0].word[i]));
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < Base::kInputs; ++i) {
      Base::update_first_pair(a, i, inputs[i], own);
      Base::multiply_first_pair(a, i, rows[i]);
    }
  }

  // ---- the warps that are the chain

  struct Product {
    uint4 weights[kMine / 2];  // of a pair of slices
  };
  MACHINE_DEVICE Product load_product(const Arguments& a, Matrix matrix, int further = 0) const {
    const uint4* begin =
        reinterpret_cast<const uint4*>(fragments(a, matrix)) + further + part_ * (kMine / 2) * 32 + lane_;
    Product product;
#pragma unroll
    for (int i = 0; i < kMine / 2; ++i) product.weights[i] = begin[i * 32];
    return product;
  }
  /// Of this warp's columns, in kChains chains of instructions that wait for each other.
  template <int kChains>
  MACHINE_DEVICE static void multiply(float (&sum)[4], const uint4 (&tiles)[kMine], const Product& product) {
    float chain[kChains][4] = {};
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const uint4& w = product.weights[i / 2];
      Format::product(chain[i % kChains], tiles[i], i % 2 == 0 ? w.x : w.z, i % 2 == 0 ? w.y : w.w);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c)
      sum[c] = kChains == 4 ? (chain[0][c] + chain[1][c]) + (chain[2 % kChains][c] + chain[3 % kChains][c])
                            : chain[0][c] + chain[1][c];
  }
  // Parts of a sum, of this warp's rows; complete behind a barrier. Two places in turn, in what others have as a second buffer of
  // partial sums: who writes one again has passed a barrier behind its last reader.
  MACHINE_DEVICE static unsigned char* parts(const Arguments& a, int use, int part = 0) {
    static_assert(2 * kParts * kTile <= kWarps * kPartialTile);
    return shared_memory() + a.plan.partial_offset + kWarps * kPartialTile +
           ((use & 1) * kParts + part) * kTile;
  }
  MACHINE_DEVICE float4& part_of_sum(const Arguments& a, int use, int part) const {
    return *reinterpret_cast<float4*>(parts(a, use, part) + half_ * kHalf + lane_ * 16);
  }
  MACHINE_DEVICE void store_part(const Arguments& a, int use, const float (&sum)[4]) const {
    part_of_sum(a, use, part_) = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  MACHINE_DEVICE void add_parts(const Arguments& a, int use, float (&sum)[4]) const {
    const float4 total = add_up<kParts>(&part_of_sum(a, use, 0), kTile / 16);
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
  }
  /// The second tile of logits has values only in those lanes of a quad that hold classes.
  MACHINE_DEVICE float4& part_of_high(const Arguments& a, int part) const {
    auto* begin = reinterpret_cast<float4*>(shared_memory() + a.plan.last_partial_offset);
    return begin[((part * 2 + half_) * 8 + (lane_ >> 2)) * a.plan.last_lanes + (lane_ & 3)];
  }
  MACHINE_DEVICE static unsigned char* first_gradient_part(const Arguments& a, int step, int part) {
    return parts(a, step + kFirstGradientSum, part);
  }
  /// Rows g and g + 8 of columns 2t and 2t + 1, from the order of sums into that of operands.
  MACHINE_DEVICE static uint4 operand(const float (&value)[4]) {
    return make_uint4(Format::rounded(value[0]), Format::rounded(value[2]), Format::rounded(value[1]),
                      Format::rounded(value[3]));
  }
  MACHINE_DEVICE static uint4 unrounded(const float (&value)[4]) {
    return make_uint4(float_to_bits(value[0]), float_to_bits(value[2]), float_to_bits(value[1]),
                      float_to_bits(value[3]));
  }
  MACHINE_DEVICE static uint4 hidden(const float (&sum)[4], const float2& bias) {
    const float value[4] = {relu(sum[0] + bias.x), relu(sum[1] + bias.y), relu(sum[2] + bias.x),
                            relu(sum[3] + bias.y)};
    return operand(value);
  }
  MACHINE_DEVICE static void mask(float (&value)[4], const uint4& hidden) {
    value[0] = bits_to_float(hidden.x) > 0 ? value[0] : 0;
    value[1] = bits_to_float(hidden.z) > 0 ? value[1] : 0;
    value[2] = bits_to_float(hidden.y) > 0 ? value[2] : 0;
    value[3] = bits_to_float(hidden.w) > 0 ? value[3] : 0;
  }

  MACHINE_DEVICE bool leads() const { return part_ == 0; }
  MACHINE_DEVICE Publisher publisher() const { return {lane_, half_}; }
  template <bool kGradient>
  MACHINE_DEVICE Place place(const Arguments& a, int exchange) const {
    return exchange_.template place<kGradient>(a, member_, publisher(), exchange);
  }
  template <bool kGradient>
  MACHINE_DEVICE void publish(const Arguments& a, const uint4& packet, const Place& place) const {
    if (rank_ == half_) exchange_.template publish<kGradient>(a, packet, publisher(), place);
  }
  template <bool kGradient>
  MACHINE_DEVICE void take(const Arguments& a, int exchange, uint4 (&tiles)[kMine]) {
    const auto awaited = exchange_.template awaited<kGradient>(a, exchange);
    const unsigned char* mine = awaited.tiles + part_ * kMine * kTile + half_ * kHalf + lane_ * 16;
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        tiles[i] = load_relaxed_gpu_128(mine + i * kTile);
        wrong |= tiles[i].w ^ awaited.want;
      }
      if (!warp_any((wrong & awaited.mark) != 0) || waiter_.give_up(a, polls, begin, exchange)) break;
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) tiles[i].w &= ~awaited.mark;
  }
  /// This lane's of a tile of the member's own that biases are summed from.
  MACHINE_DEVICE void keep_unrounded(unsigned char* tile, const float (&value)[4]) const {
    *reinterpret_cast<uint4*>(tile + half_ * kHalf + lane_ * 16) = unrounded(value);
  }

  MACHINE_DEVICE void chain(const Arguments& a) {
    for (int step = 0; step < a.steps; ++step) {
      exchange_.begin_step(a, step);
      Base::next_batch(a);
      int label[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = row_of(i);
        label[i] = row < a.plan.batch ? a.labels[std::int64_t{Base::batch_} * a.plan.batch + row] : -1;
      }
      Place to = place<false>(a, kFirstHidden);
      float sum[4];
      uint4 first, second, third;
      step_sync();  // 1
      if (leads()) {
        add_first(a, sum);
        first = hidden(sum, Base::bias_of(a, 0, 0));
        publish<false>(a, first, to);
        keep(own_hidden(a, 0, step), first);
      }

      uint4 tiles[kMine];
      to = place<false>(a, kSecondHidden);
      step_sync();  // 2
      Product product = load_product(a, kSecondRows);
      take<false>(a, kFirstHidden, tiles);
      multiply<4>(sum, tiles, product);
      store_part(a, step + kSecondHiddenSum, sum);
      float2 bias = Base::bias_of(a, 1, 0);
      step_sync();  // 3
      if (leads()) {
        add_parts(a, step + kSecondHiddenSum, sum);
        second = hidden(sum, bias);
        publish<false>(a, second, to);
        keep(own_hidden(a, 1, step), second);
      }
      keep_all(a, kFirst, tiles);

      to = place<false>(a, kThirdHidden);
      product = load_product(a, kThirdRows);
      take<false>(a, kSecondHidden, tiles);
      multiply<4>(sum, tiles, product);
      store_part(a, step + kThirdHiddenSum, sum);
      bias = Base::bias_of(a, 2, 0);
      step_sync();  // 4
      if (leads()) {
        add_parts(a, step + kThirdHiddenSum, sum);
        third = hidden(sum, bias);
        publish<false>(a, third, to);
      }
      keep_all(a, kSecond, tiles);

      loss(a, step, label, second, third);  // with barriers 5 and 6
      product = load_product(a, kSecondColumns);
      take<true>(a, kSecondGradient, tiles);
      multiply<4>(sum, tiles, product);
      keep(first_gradient_part(a, step, part_), unrounded(sum));
      if (waiter_.timed_out && lane_ == 0) Base::timed_out_words(a)[warp_ - kWarps] = 1;
      step_sync();  // 7
      if (warp_any(timed_out_word(a) != 0)) return;
      keep_all(a, kBelowSecond, tiles);
      if (warp_ == kWarps + 1) update_first_bias(a, step);
    }
    step_sync();
  }
  /// While the others update the first layer.
  MACHINE_DEVICE void update_first_bias(const Arguments& a, int step) const {
    const Values hidden = kept_tile(own_hidden(a, 0, step));
    const Values gradient =
        first_gradient(hidden, [&](int part) { return kept_tile(first_gradient_part(a, step, part)); });
    Base::update_bias(a, gradient, Base::floats(a.plan.bias_offset));
  }
  MACHINE_DEVICE int row_of(int i) const { return 16 * half_ + 8 * i + (lane_ >> 2); }
  MACHINE_DEVICE void add_first(const Arguments& a, float (&sum)[4]) {
    const float4* mine = Base::partial(a, 0) + half_ * 32 + lane_;
    const float4 total = team_.sum(a, waiter_, half_, add_up<kWarps>(mine, kPartialTile / 16));
    sum[0] = total.x, sum[1] = total.y, sum[2] = total.z, sum[3] = total.w;
  }

  /// From the activations below the last layer to the publication of the gradient one layer further down.
  MACHINE_DEVICE void loss(const Arguments& a, int step, const int (&label)[2], const uint4& second,
                           const uint4& third) {
    const Place to = place<true>(a, kSecondGradient);
    const Product low_weights = load_product(a, kLastLow), high_weights = load_product(a, kLastHigh);
    const int t = lane_ & 3;
    const auto bias = TwoRowsOfLoss::load_bias(Base::floats(a.plan.last_bias_offset), a.plan.classes, t);
    uint4 tiles[kMine];
    take<false>(a, kThirdHidden, tiles);
    float low[4], high[4];
    multiply<2>(low, tiles, low_weights);
    multiply<2>(high, tiles, high_weights);
    store_part(a, step + kLogitsSum, low);
    if (t < a.plan.last_lanes) part_of_high(a, part_) = make_float4(high[0], high[1], high[2], high[3]);
    keep_all(a, kThird, tiles);
    step_sync();  // 5
    const Product low_across = load_product(a, kLastAcross),
                  high_across = load_product(a, kLastAcross, kLastHighAcross);
    const Product product = load_product(a, kThirdColumns);
    add_parts(a, step + kLogitsSum, low);
    if (t < a.plan.last_lanes) {
      float4 part[kParts];
#pragma unroll
      for (int from = 0; from < kParts; ++from) part[from] = part_of_high(a, from);
      const float4 total = add_up(part);
      high[0] = total.x, high[1] = total.y, high[2] = total.z, high[3] = total.w;
    }
    const float low_logits[4] = {low[0] + bias.low.x, low[1] + bias.low.y, low[2] + bias.low.x,
                                 low[3] + bias.low.y},
                high_logits[4] = {high[0] + bias.high.x, high[1] + bias.high.y, high[2] + bias.high.x,
                                  high[3] + bias.high.y};
    const int row[2] = {row_of(0), row_of(1)};
    const auto rows =
        TwoRowsOfLoss::of(low_logits, high_logits, label, row, a.plan.batch, a.gradient_scale, t);
    const auto& gradient = rows.gradient;
    const float low_gradient[4] = {gradient[0][0], gradient[0][1], gradient[1][0], gradient[1][1]},
                high_gradient[4] = {gradient[0][2], gradient[0][3], gradient[1][2], gradient[1][3]};
    const uint4 low_operand = operand(low_gradient), high_operand = operand(high_gradient);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const uint4 &low_weight = low_across.weights[i / 2], &high_weight = high_across.weights[i / 2];
      float sum[4];
      below_last(sum, low_operand, high_operand, low_weight, high_weight, i % 2);
      mask(sum, tiles[i]);
      tiles[i] = operand(sum);
    }
    float sum[4];
    multiply<4>(sum, tiles, product);
    store_part(a, step + kSecondGradientSum, sum);
    step_sync();  // 6
    if (leads()) {
      add_parts(a, step + kSecondGradientSum, sum);
      mask(sum, second);
      publish<true>(a, operand(sum), to);
    }

    // What updates take.
    keep_all(a, kBelowThird, tiles);
    if (!leads()) return;
    keep_unrounded(Base::own_gradient(a, 1), sum);
    keep(logits_gradient(a, 0), low_operand);
    keep(logits_gradient(a, 1), high_operand);
    keep_unrounded(shared_memory() + a.plan.dlogits_offset, low_gradient);
    keep_unrounded(shared_memory() + a.plan.dlogits_offset + kTile, high_gradient);
    // This member's own part of the gradient below the last layer once more, unrounded.
    const uint4* across =
        reinterpret_cast<const uint4*>(fragments(a, kLastAcross)) + member_ / 2 * 32 + lane_;
    below_last(sum, low_operand, high_operand, across[0], across[kLastHighAcross], member_ % 2);
    mask(sum, third);
    keep_unrounded(Base::own_gradient(a, 2), sum);
    if (Base::is_first())
      rows.keep(reinterpret_cast<float2*>(shared_memory() + a.plan.row_loss_offset), label, row, t);
  }
  /// Of a slice, `second` of its pair: the gradient of 16 rows, from that of the logits.
  MACHINE_DEVICE static void below_last(float (&sum)[4], const uint4& low, const uint4& high,
                                        const uint4& low_weight, const uint4& high_weight, int second) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
    Format::product(sum, low, second == 0 ? low_weight.x : low_weight.z,
                    second == 0 ? low_weight.y : low_weight.w);
    Format::product(sum, high, second == 0 ? high_weight.x : high_weight.z,
                    second == 0 ? high_weight.y : high_weight.w);
  }

  const int half_, part_;  // of a warp of the chain: which rows, which columns of a sum
};

template <class Format>
SliceKernel slice_whole_team_kernel_of() {
  return slice_kernel_of_members<SliceWholeTeamMember<Format>>(
      {.form = Form::kGrid, .pairs = 1, .team = 4, .own = 1, .layers = 4, .whole = true});
}

}  // namespace headroom::resident
