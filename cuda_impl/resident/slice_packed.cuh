// The slice kernel in tf32 with four layers, teams of two that own two slices each (up to 1024 columns): tiles and inputs come
// packed, five words for eight values.
//
// Unpacked, a member of 1024 columns reads 548 KB of the L2 a step, 256 of tiles when they come, 192 of activations once more for
// updates, 100 of inputs. Packed (packed_tf32.cuh) it is 343 KB, the same values. And 40 registers hold what a warp takes of an
// exchange, not 64, so that there are registers for the next: what an update reads a second time is asked for when the tiles of
// the layer before were taken, and inputs before the gradient that they are multiplied with is complete, as in 16 bits. They stay
// packed until an instruction takes them. Tiles are there then before anybody asks for them: what a step is made of are
// instructions, above all those of the four warps that publish, so these compute nothing behind a barrier that is known before.
//
//   L2:         a buffer of an exchange is [slices] 16 bytes a lane, whole, behind them [pairs of slices] two words a lane, each
//               whole; then the same as columns (of activations, for updates). Each of these carries a mark, a bit that is free
//   in a step:  who owns what, sums, barriers, what is put off and why two buffers are enough is as in slice_step.cuh
//   registers:  masters of the first layer 32; tiles on their way 40, those taken 40, weights 32; inputs 40 and 40
#pragma once

#include "machine/compiler.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/packed_tf32.cuh"
#include "resident/slice_step.cuh"

namespace headroom::resident {

inline constexpr int kPackedPairs = 4, kPackedLayers = 4;

/// Packed tiles of a warp's pairs of slices.
template <int kPairs>
struct PackedShare {
  uint4 words[2 * kPairs];
  uint2 last[kPairs];

  MACHINE_DEVICE PackedTile tile(int slice) const {
    return {words[slice], slice % 2 == 0 ? last[slice / 2].x : last[slice / 2].y};
  }
  /// Whether some of this lane's have another mark than the given one, 0 or 1.
  MACHINE_DEVICE bool is_incomplete(std::uint32_t mark) const {
    const std::uint32_t want = mark * PackedTf32::kMark, want_last = mark * PackedTf32::kLastMark;
    std::uint32_t wrong = 0, wrong_last = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      wrong |= (words[2 * i].y ^ want) | (words[2 * i + 1].y ^ want);
      wrong_last |= (last[i].x ^ want_last) | (last[i].y ^ want_last);
    }
    return ((wrong & PackedTf32::kMark) | (wrong_last & PackedTf32::kLastMark)) != 0;
  }
};

/// As SliceGrid.
template <class Format, int kPairs>
class SlicePackedGrid {
 public:
  static constexpr Form kForm = Form::kGrid;
  using Waiter =
      CallingWaiter;  // eleven waits in a step, all between instructions that are fetched anew every time
  using Tiles = PackedShare<kPairs>;

  MACHINE_DEVICE SlicePackedGrid(const SliceArguments& arguments, int first_slice, int lane)
      : words_(arguments.exchange + first_slice * 512 + lane * 16),
        last_(arguments.exchange + plan_of(arguments).members * 512 + first_slice * 128 + lane * 8) {}
  MACHINE_DEVICE void begin(const SliceArguments&) { block_sync(); }
  MACHINE_DEVICE void end() {}
  /// Before anything else of a step.
  MACHINE_DEVICE void begin_step(const SliceArguments& arguments, int step) {
    stride_ = 2 * arguments.slot_bytes;
    now_ = (step & 1) != 0 ? arguments.slot_bytes : 0;
    before_ = arguments.slot_bytes - now_;
    mark_ = step >> 1 & 1;
    mark_before_ = (step - 1) >> 1 & 1;
  }

  /// Waits for this step's tiles and takes them.
  MACHINE_DEVICE void take(const SliceArguments& arguments, Tiles& tiles, Waiter& waiter,
                           int exchange) const {
    waiter.wait_while(arguments, exchange, [&] {
      load(tiles, slot(exchange));
      return tiles.is_incomplete(mark_);
    });
  }
  /// Asks for the last step's activations as columns. Nobody has seen these before: ready_columns() looks whether they are there.
  MACHINE_DEVICE void fetch_columns(const SliceArguments& arguments, Tiles& tiles, int exchange) const {
    load(tiles, columns(arguments) + slot(exchange, true));
  }
  MACHINE_DEVICE void ready_columns(const SliceArguments& arguments, Tiles& tiles, Waiter& waiter,
                                    int exchange) const {
    waiter.wait_while(
        arguments, exchange, [&] { return tiles.is_incomplete(mark_before_); },
        [&] { fetch_columns(arguments, tiles, exchange); });
  }

  /// Where this lane publishes, and with which mark: known long before there is anything to publish.
  struct Place {
    unsigned char *words, *last;
    std::uint32_t mark;
  };
  template <bool kGradient>
  MACHINE_DEVICE Place place(const SliceArguments& arguments, int slice, const Publisher& publisher,
                             int exchange) const {
    unsigned char* begin = arguments.exchange + slot(exchange);
    // With the other mark nobody sees it.
    Place place = {begin + slice * 512 + publisher.position * 16,
                   begin + plan_of(arguments).members * 512 + (slice & ~1) * 128 + publisher.position * 8 +
                       (slice & 1) * 4,
                   mark_ ^ (exchange == arguments.lost_exchange ? 1u : 0u)};
    compute_now(place.words);
    compute_now(place.last);
    compute_now(place.mark);
    return place;
  }
  /// By two warps: this member's tile, of which each lane has a part.
  template <bool kGradient>
  MACHINE_DEVICE void publish(const SliceArguments&, const uint4& part, const Publisher& publisher,
                              const Place& place) const {
    store(part, publisher, place, 0, 0);
  }
  /// Activations as columns.
  MACHINE_DEVICE void publish_columns(const SliceArguments& arguments, const uint4& part,
                                      const Publisher& publisher, const Place& place) const {
    store(part, publisher, place, columns(arguments), publisher.column_lane() - publisher.position);
  }

 private:
  MACHINE_DEVICE unsigned slot(int exchange, bool before = false) const {
    return static_cast<unsigned>(exchange) * stride_ + (before ? before_ : now_);
  }
  MACHINE_DEVICE static unsigned columns(const SliceArguments& arguments) {
    return static_cast<unsigned>(plan_of(arguments).members * kPackedTile);
  }
  MACHINE_DEVICE void load(Tiles& tiles, unsigned from) const {
#pragma unroll
    for (int i = 0; i < 2 * kPairs; ++i) tiles.words[i] = load_relaxed_gpu_128(words_ + from + i * 512);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) tiles.last[i] = load_relaxed_gpu_2x32(last_ + from + i * 256);
  }
  MACHINE_DEVICE static void store(const uint4& part, const Publisher& publisher, const Place& place,
                                   unsigned from, int lanes) {
    PackedTile tile = PackedTf32::pack(part, publisher.half != 0);
    tile.words.y |= place.mark * PackedTf32::kMark;
    if (publisher.half == 0)
      store_relaxed_gpu_128(place.words + from + lanes * 16, tile.words);
    else
      store_relaxed_gpu_32(place.last + from + lanes * 8, tile.last | place.mark * PackedTf32::kLastMark);
  }

  const unsigned char *words_, *last_;
  unsigned stride_ = 0, now_ = 0,
           before_ = 0;  // bytes: from exchange to exchange; of this step's buffer, the last's
  std::uint32_t mark_ = 0, mark_before_ = 0;
};

template <class Format>
class SlicePackedMember : SliceMember<Format, SlicePackedGrid, kPackedPairs, kPackedLayers, 2, 2> {
  using Base = SliceMember<Format, SlicePackedGrid, kPackedPairs, kPackedLayers, 2, 2>;
  static constexpr int kPairs = kPackedPairs, kOwn = 2, kLast = kPackedLayers - 1;
  using typename Base::Arguments;
  using typename Base::Place;
  using typename Base::Values;
  using typename Base::Weights;
  using AcrossWeights = typename Format::AcrossWeights;
  using Half = typename Format::Half;
  using Own = typename Format::Own;
  using Sums = typename Format::Sums;
  using TurnedOwn = typename Format::TurnedOwn;
  using Packed = PackedShare<kPairs>;
  using Base::batch_, Base::exchange_, Base::first_, Base::first_sums_, Base::input_begin_,
      Base::input_pairs_, Base::kInputs, Base::kTile, Base::lane_, Base::next_batch_, Base::skipped_,
      Base::team_, Base::waiter_, Base::warp_;

 public:
  using Base::kThreadCount;

  MACHINE_DEVICE explicit SlicePackedMember(const Arguments& a) : Base(a) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::load(a);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Inputs rows;
    load_inputs(a, rows, a.x_rows, next_batch_);
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) multiply_first(rows, i);
    int step = 0;
    Packed gradient;  // of the second layer, kept until the next step has time to use it
    while (step <= a.steps && pass(a, step, gradient)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > a.steps) Base::store(a);
    block_sync();
    exchange_.end();
    team_.end();
  }

 private:
  /// Of a pair of slices, for both of the member's own.
  struct PairWeights {
    Weights own[kOwn];
  };
  struct MatrixWeights {
    PairWeights pair[kPairs];
  };
  using Inputs = PackedShare<kInputs>;

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  MACHINE_DEVICE bool pass(const Arguments& a, int step, Packed& gradient) {
    const bool training = step < a.steps;
    exchange_.begin_step(a, step);
    Packed old;  // activations of the step before as columns, for an update that was put off
    if (training) {
      if (!forward_first(a, step, old)) return false;
    } else {
      exchange_.fetch_columns(a, old, 0);
    }
    if (step > 0 && warp_ == kWarps - 1 && Base::is_first()) Base::store_loss(a, step - 1);
#pragma unroll
    for (int layer = 1; layer < kLast; ++layer) {
      if (step > 0) update_second_columns(a, step - 1, layer - 1, gradient);
      MatrixWeights w;
      update_rows(a, layer, step, old, w);
      if (training)
        forward(a, layer, step, w, old);
      else
        exchange_.fetch_columns(a, old, layer);
    }
    if (step > 0) update_second_columns(a, step - 1, kLast - 1, gradient);
    AcrossWeights across[kPairs];
    update_last(a, step, old, across);
    if (!training) return true;

    MatrixWeights back;
    load_weights(plan_of(a).columns_offset, 2, back);
    logits(a, across, gradient);
    if (warp_ < Base::kLossWarps) Base::gradient_of_loss(a);
    block_sync();  // the logits' gradient is complete
    Place place = exchange_.template place<true>(a, Base::published_slice(), Base::publisher(),
                                                 Base::gradient_exchange(a, 1));
    const Addends of_third = addends(a);
    Half mask = load_mask(a, 1, step);
    Values below[2 * kPairs];
    gradient_below_last(a, gradient, across, below);
    sum_pairs(a, back, [&](int slice) -> const Values& { return below[slice]; });
    block_sync();
    publish_gradient(a, 1, step, place, of_third, mask);
    if (warp_ < Base::kLossWarps && Base::is_first()) Base::keep_row_loss(a);
    if (warp_ == Base::kOwnGradientWarp) Base::own_gradient_below_last(a, step);
    Inputs columns, rows;
    load_inputs(a, columns, a.x_columns, batch_);
    update_columns(a, 2, step, 0, kPairs, [&](int slice) { return Format::transposed(below[slice]); });
    load_weights(plan_of(a).columns_offset, 1, back);
    const Addends of_second = addends(a);
    mask = load_mask(a, 0, step);
    exchange_.take(a, gradient, waiter_, Base::gradient_exchange(a, 1));
    load_inputs(a, rows, a.x_rows, next_batch_);
    sum_pairs(a, back, [&](int slice) { return PackedTf32::operands(gradient.tile(slice)); });
    block_sync();
    publish_gradient(a, 0, step, place, of_second, mask);
    update_biases(a);
    Base::await_own_gradient(a, step);
    block_sync();  // the first layer's gradient is complete
    update_first_and_multiply(a, columns, rows);
    return true;
  }

  MACHINE_DEVICE bool forward_first(const Arguments& a, int step, Packed& old) {
    Base::next_batch(a);
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), 0);
    const Addends own = addends(a, 0);
    Base::store_partial(a, first_sums_);
    if (block_sync_or(waiter_.timed_out)) return false;
    publish_hidden(a, 0, step, place, own);
    exchange_.fetch_columns(a, old, 0);
    return true;
  }
  /// Leaves in `old` what the next layer's put-off update takes.
  MACHINE_DEVICE void forward(const Arguments& a, int layer, int step, const MatrixWeights& w, Packed& old) {
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), layer);
    const Addends own = addends(a, layer);
    Packed below;
    exchange_.take(a, below, waiter_, layer - 1);
    exchange_.fetch_columns(a, old, layer);
    sum_pairs(a, w, [&](int slice) { return PackedTf32::operands(below.tile(slice)); });
    block_sync();
    publish_hidden(a, layer, step, place, own);
  }
  /// Partial sums of a product; tile(slice): what this warp takes.
  template <class Tile>
  MACHINE_DEVICE void sum_pairs(const Arguments& a, const MatrixWeights& w, Tile&& tile) {
    Sums sums[kOwn] = {};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Values& first = tile(2 * i);
      const Values& second = tile(2 * i + 1);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) Format::multiply(sums[c], i & 1, first, second, w.pair[i].own[c], lane_);
    }
    Base::store_partial(a, sums);
  }

  MACHINE_DEVICE static float4 rounded(const float4& m) {
    return make_float4(round_tf32(m.x), round_tf32(m.y), round_tf32(m.z), round_tf32(m.w));
  }
  MACHINE_DEVICE static Weights transposed_weights(const float4& m) {
    Weights w = {{float_to_bits(m.x), float_to_bits(m.y), float_to_bits(m.z), float_to_bits(m.w)}};
    transpose_two(w.word[0], w.word[1]);
    transpose_two(w.word[2], w.word[3]);
    return w;
  }
  /// Partial logits of this warp's columns; `hidden` takes the activations below the last layer.
  MACHINE_DEVICE void logits(const Arguments& a, const AcrossWeights (&across)[kPairs], Packed& hidden) {
    Base::load_label(a);
    Weights w[kPairs], second[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      w[i] = transposed_weights(across[i].tile[0]), second[i] = transposed_weights(across[i].tile[1]);
    Sums low[1] = {}, high{};
    exchange_.take(a, hidden, waiter_, kLast - 1);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Values first = PackedTf32::operands(hidden.tile(2 * i)),
                   other = PackedTf32::operands(hidden.tile(2 * i + 1));
      Format::multiply(low[0], i & 1, first, other, w[i], lane_);
      Format::multiply(high, i & 1, first, other, second[i], lane_);
    }
    Base::store_partial(a, low);
    float value[8];
    high.finish(value, lane_);
    if ((lane_ & 3) < plan_of(a).last_lanes) {
      float4* place = Base::last_partial(a, warp_);
      place[0] = make_float4(value[0], value[1], value[2], value[3]);
      place[1] = make_float4(value[4], value[5], value[6], value[7]);
    }
    block_sync();
  }
  /// For this warp's columns.
  MACHINE_DEVICE void gradient_below_last(const Arguments& a, const Packed& hidden,
                                          const AcrossWeights (&across)[kPairs],
                                          Values (&below)[2 * kPairs]) const {
    const auto dlogits = Format::load_across(shared_memory() + plan_of(a).dlogits_offset, lane_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float result[2][8];
      Format::multiply_across(result, dlogits, across[i], lane_);
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
        below[2 * i + slice] = PackedTf32::masked(Format::round(result[slice]), hidden.tile(2 * i + slice));
    }
  }

  // ---- publishing

  /// Bytes of shared memory where this lane's addends of the next product begin, and of activations its bias. They are read behind the
  /// barrier by those who are the last in a window, so where is computed before.
  struct Addends {
    std::uint32_t sums, bias;
  };
  MACHINE_DEVICE Addends addends(const Arguments& a) const {
    const Publisher publisher = Base::publisher();
    auto sums =
        static_cast<std::uint32_t>(plan_of(a).partial_offset +
                                   ((Base::partial_ ^ 1) * kOwn + Base::published()) * kWarps * kPartialTile +
                                   (publisher.half * 32 + publisher.position) * 16);
    compute_now(sums);
    return {sums, 0};
  }
  MACHINE_DEVICE Addends addends(const Arguments& a, int layer) const {
    Addends own = addends(a);
    own.bias = static_cast<std::uint32_t>(plan_of(a).bias_offset +
                                          ((layer * kOwn + Base::published()) * 4 + (lane_ & 3)) * 8);
    compute_now(own.bias);
    return own;
  }
  MACHINE_DEVICE void add_up_partial(const Addends& own, float (&sums)[4]) const {
    const float4 total =
        add_up<kWarps>(reinterpret_cast<const float4*>(shared_memory() + own.sums), kPartialTile / 16);
    sums[0] = total.x, sums[1] = total.y, sums[2] = total.z, sums[3] = total.w;
  }
  MACHINE_DEVICE void publish_hidden(const Arguments& a, int layer, int step, const Place& place,
                                     const Addends& addends) {
    if (!Base::adds_up()) return;
    float sums[4];
    add_up_partial(addends, sums);
    const float2 bias = *reinterpret_cast<const float2*>(shared_memory() + addends.bias);
    Base::sum_over_team(a, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = relu(sums[i] + (i % 2 == 0 ? bias.x : bias.y));
    const Publisher publisher = Base::publisher();
    const uint4 packet = publisher.packet(Format::round_half(sums));
    if (Base::publishes()) exchange_.template publish<false>(a, packet, publisher, place);
    if (Base::publishes()) exchange_.publish_columns(a, publisher.columns(packet), publisher, place);
    publisher.template keep<Format::kParts>(Base::own_hidden(a, layer, step, Base::published()), packet);
    publisher.keep_turned(Base::own_hidden(a, layer, step, 0) + kTile, Base::published(), packet);
  }
  MACHINE_DEVICE void publish_gradient(const Arguments& a, int layer, int step, const Place& place,
                                       const Addends& addends, const Half& hidden) {
    if (!Base::adds_up()) return;
    float sums[4];
    add_up_partial(addends, sums);
    Base::sum_over_team(a, sums);
    const Publisher publisher = Base::publisher();
    const Half gradient = Format::masked_half(sums, hidden);
    const uint4 operand = publisher.packet(Format::operand(gradient));
    if (layer > 0 && Base::publishes()) exchange_.template publish<true>(a, operand, publisher, place);
    publisher.template keep<Format::kParts>(Base::own_gradient(a, layer, Base::published()),
                                            publisher.packet(gradient));
    publisher.keep_turned(Base::own_gradient(a, layer, 0) + kTile, Base::published(), operand);
  }
  /// Of the gradients that this lane publishes, from activations that it kept itself. Who publishes none reads what nobody uses.
  MACHINE_DEVICE Half load_mask(const Arguments& a, int layer, int step) const {
    return load_half<Format::kWords>(Base::own_hidden(a, layer, step, Base::published()),
                                     Base::publisher().half, Base::publisher().position);
  }

  // ---- updates

  MACHINE_DEVICE static Values transposed_operands(const Packed& tiles, int slice) {
    return Format::transposed(PackedTf32::operands(tiles.tile(slice)));
  }
  /// Of the turned masters of a pair.
  MACHINE_DEVICE static PairWeights weights_of(const float4& low, const float4& high) {
    return {{Format::turned_weights(low, high, 0), Format::turned_weights(low, high, 1)}};
  }
  MACHINE_DEVICE void load_weights(int offset, int layer, MatrixWeights& w) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      w.pair[i] = weights_of(Base::matrix(offset, layer, 0)[i * 32 + lane_],
                             Base::matrix(offset, layer, 1)[i * 32 + lane_]);
  }
  /// masters += factor * own^T * columns, of the matrices at `offset`; columns(slice): as columns, what this warp has of the others'.
  /// The masters that a lane updates are those whose weights it takes: no other lane is waited for.
  template <bool kWeights, class Columns>
  MACHINE_DEVICE void update(const Arguments& a, int offset, int layer, const unsigned char* own_tiles,
                             int begin, int end, Columns&& columns, MatrixWeights& w) const {
    const auto own = TurnedOwn::load(own_tiles, lane_);
    float4* mine[2] = {Base::matrix(offset, layer, 0) + lane_, Base::matrix(offset, layer, 1) + lane_};
#pragma unroll
    for (int i = begin; i < end; ++i) {
      float4 value[2];
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        value[slice] = mine[slice][i * 32];
        const float4 sum = Format::outer_turned(columns(2 * i + slice), own);
        if (i >= skipped_) value[slice] = Base::updated(a, value[slice], sum);
        mine[slice][i * 32] = value[slice];
      }
      if constexpr (kWeights) w.pair[i] = weights_of(value[0], value[1]);
    }
  }
  template <class Columns>
  MACHINE_DEVICE void update_columns(const Arguments& a, int layer, int step, int begin, int end,
                                     Columns&& columns) const {
    MatrixWeights unused;
    update<false>(a, plan_of(a).columns_offset, layer, Base::own_hidden(a, layer - 1, step), begin, end,
                  columns, unused);
  }
  /// A part of the second layer's, put off until the window of this exchange in the next step.
  MACHINE_DEVICE void update_second_columns(const Arguments& a, int step, int exchange,
                                            const Packed& gradient) const {
    constexpr int kBegin[] = {0, 1, 2, kPairs};
    update_columns(a, 1, step, kBegin[exchange], kBegin[exchange + 1],
                   [&](int slice) { return transposed_operands(gradient, slice); });
  }
  /// From the step before, if there is one. Makes the weights of the product that follows.
  MACHINE_DEVICE void update_rows(const Arguments& a, int layer, int step, Packed& old, MatrixWeights& w) {
    if (step == 0) return load_weights(plan_of(a).rows_offset, layer, w);
    exchange_.ready_columns(a, old, waiter_, layer - 1);
    update<true>(
        a, plan_of(a).rows_offset, layer, Base::own_gradient(a, layer), 0, kPairs,
        [&](int slice) { return PackedTf32::operands(old.tile(slice)); }, w);
    if (layer == 2 && warp_ >= 6) update_bias(a, layer, warp_ - 6);
  }
  MACHINE_DEVICE void update_bias(const Arguments& a, int layer, int own) const {
    Base::update_bias(a, load_tile<Format::kWords>(Base::own_gradient(a, layer, own), lane_),
                      Base::floats(plan_of(a).bias_offset) + 8 * (kOwn * layer + own));
  }
  /// By a warp each that publishes nothing, while others add up the first layer's gradient: of the last layer and the second, whose
  /// gradients are complete.
  MACHINE_DEVICE void update_biases(const Arguments& a) const {
    if (warp_ == 4 || warp_ == 5)
      update_bias(a, 1, warp_ - 4);
    else if (warp_ >= 6)
      Base::update_last_bias(a, warp_ - 6);
  }
  /// Both tiles of the last layer, and the weights that their products take.
  MACHINE_DEVICE void update_last(const Arguments& a, int step, Packed& old,
                                  AcrossWeights (&across)[kPairs]) {
    float4* masters = Base::matrix(plan_of(a).last_offset[0], 1) + lane_;
    float4 value[kPairs], high_value[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      value[i] = masters[i * 32], high_value[i] = Base::second_tile(a, i).load(lane_);
    if (step > 0) {
      exchange_.ready_columns(a, old, waiter_, kLast - 1);
      const unsigned char* dlogits = shared_memory() + plan_of(a).dlogits_offset;
      const Own own = Base::load_own(dlogits, 2 * kTile),
                second_own = Base::load_own(dlogits + kTile, 2 * kTile);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const Values first = PackedTf32::operands(old.tile(2 * i)),
                     second = PackedTf32::operands(old.tile(2 * i + 1));
        const float4 sum = Format::outer(first, second, own, lane_),
                     high_sum = Format::outer(first, second, second_own, lane_);
        if (i < skipped_) continue;
        masters[i * 32] = value[i] = Base::updated(a, value[i], sum);
        Base::second_tile(a, i).store(lane_, high_value[i] = Base::updated(a, high_value[i], high_sum));
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) across[i] = {{rounded(value[i]), rounded(high_value[i])}};
  }

  // ---- the first layer

  /// Pair by pair, and a product of the next step.
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, const Inputs& columns,
                                                const Inputs& rows) {
    const auto own = TurnedOwn::load(Base::own_gradient(a, 0), lane_);
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      if (i == kInputs - 1 && input_pairs_ < kInputs) break;  // most warps, of 784 inputs
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        const float4 sum = Format::outer_turned(PackedTf32::operands(columns.tile(2 * i + slice)), own);
        float4& master = first_[slice * kInputs + i];
        if (i < input_pairs_) master = Base::updated(a, master, sum);
      }
      multiply_first(rows, i);
    }
    if (warp_ == 4 || warp_ == 5) update_bias(a, 0, warp_ - 4);
  }
  MACHINE_DEVICE void multiply_first(const Inputs& rows, int i) {
    const PairWeights w = weights_of(first_[i], first_[kInputs + i]);
    const Values first = PackedTf32::operands(rows.tile(2 * i)),
                 second = PackedTf32::operands(rows.tile(2 * i + 1));
#pragma unroll
    for (int c = 0; c < kOwn; ++c) Format::multiply(first_sums_[c], i & 1, first, second, w.own[c], lane_);
  }
  /// This warp's pairs of a batch. Beyond its own a warp takes its last pair again, against weights of zero.
  MACHINE_DEVICE void load_inputs(const Arguments& a, Inputs& inputs, const unsigned char* memory,
                                  int batch) const {
    const unsigned char* x = memory + batch * plan_of(a).x_batch_bytes + input_begin_ * (2 * kPackedTile);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const unsigned char* pair = x + max(0, min(i, input_pairs_ - 1)) * (2 * kPackedTile);
      inputs.words[2 * i] = load_constant16(pair + lane_ * 16);
      inputs.words[2 * i + 1] = load_constant16(pair + 512 + lane_ * 16);
      inputs.last[i] = load_constant8(pair + 1024 + lane_ * 8);
    }
  }
};

template <class Format>
SliceKernel slice_packed_kernel_of() {
  return slice_kernel_of_members<SlicePackedMember<Format>>(
      {.form = Form::kGrid, .pairs = kPackedPairs, .team = 2, .own = 2, .layers = kPackedLayers});
}

}  // namespace headroom::resident
