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
#include "resident/slice_two.cuh"

namespace headroom::resident {

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
class SlicePackedMember : SliceTwoMember<Format, SlicePackedGrid, SlicePackedMember<Format>> {
  using Base = SliceTwoMember<Format, SlicePackedGrid, SlicePackedMember>;
  friend Base;
  using Base::batch_, Base::exchange_, Base::first_, Base::first_sums_, Base::input_begin_,
      Base::input_pairs_, Base::kInputs, Base::kLast, Base::kOwn, Base::kPairs, Base::kTile, Base::lane_,
      Base::next_batch_, Base::waiter_, Base::warp_;
  using typename Base::AcrossWeights;
  using typename Base::Addends;
  using typename Base::Arguments;
  using typename Base::MatrixWeights;
  using typename Base::Own;
  using typename Base::PairWeights;
  using typename Base::Place;
  using typename Base::Taken;
  using typename Base::TurnedOwn;
  using typename Base::Values;
  using typename Base::Weights;
  using Half = typename Format::Half;
  using Sums = typename Format::Sums;
  static constexpr bool kSaysUniform = false;

 public:
  using Base::kThreadCount, Base::run;

  MACHINE_DEVICE explicit SlicePackedMember(const Arguments& a) : Base(a) {}

 private:
  using Inputs = PackedShare<kInputs>;

  MACHINE_DEVICE void begin_inputs(const Arguments& a) {
    Inputs rows;
    load_inputs(a, rows, a.x_rows, next_batch_);
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) multiply_first(rows, i);
  }
  MACHINE_DEVICE void backward(const Arguments& a, int step, const AcrossWeights (&across)[kPairs],
                               Taken& gradient) {
    MatrixWeights back;
    Base::load_weights(plan_of(a).columns_offset, 2, back);
    logits(a, across, gradient);
    if (warp_ < Base::kLossWarps) Base::gradient_of_loss(a);
    block_sync();  // the logits' gradient is complete
    Place place = exchange_.template place<true>(a, Base::published_slice(), Base::publisher(),
                                                 Base::gradient_exchange(a, 1));
    const Addends of_third = Base::addends(a);
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
    Base::update_columns(a, 2, step, 0, kPairs, [&](int slice) { return Format::transposed(below[slice]); });
    Base::load_weights(plan_of(a).columns_offset, 1, back);
    const Addends of_second = Base::addends(a);
    mask = load_mask(a, 0, step);
    exchange_.take(a, gradient, waiter_, Base::gradient_exchange(a, 1));
    load_inputs(a, rows, a.x_rows, next_batch_);
    sum_tiles(a, back, gradient);
    block_sync();
    publish_gradient(a, 0, step, place, of_second, mask);
    update_biases(a);
    Base::await_own_gradient(a, step);
    block_sync();  // the first layer's gradient is complete
    update_first_and_multiply(a, columns, rows);
  }

  MACHINE_DEVICE void sum_tiles(const Arguments& a, const MatrixWeights& w, const Taken& tiles) {
    sum_pairs(a, w, [&](int slice) { return tile_of(tiles, slice); });
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
  MACHINE_DEVICE void logits(const Arguments& a, const AcrossWeights (&across)[kPairs], Taken& hidden) {
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
  MACHINE_DEVICE void gradient_below_last(const Arguments& a, const Taken& hidden,
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

  MACHINE_DEVICE void publish_hidden(const Arguments& a, int layer, int step, const Place& place,
                                     const Addends& addends) {
    if (!Base::adds_up()) return;
    float sums[4];
    Base::add_up_hidden(a, addends, sums);
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
    Base::add_up_partial(addends, sums);
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

  MACHINE_DEVICE static Values tile_of(const Taken& tiles, int slice) {
    return PackedTf32::operands(tiles.tile(slice));
  }
  MACHINE_DEVICE static Values transposed(const Taken& tiles, int slice) {
    return Format::transposed(tile_of(tiles, slice));
  }
  MACHINE_DEVICE void update_bias(const Arguments& a, int layer, int own) const {
    Base::update_bias(a, load_tile<Format::kWords>(Base::own_gradient(a, layer, own), lane_),
                      Base::floats(plan_of(a).bias_offset) + 8 * (kOwn * layer + own));
  }
  MACHINE_DEVICE void update_third_bias(const Arguments& a) const {
    if (warp_ >= 6) update_bias(a, 2, warp_ - 6);
  }
  /// By a warp each that publishes nothing, while others add up the first layer's gradient: of the last layer and the second, whose
  /// gradients are complete.
  MACHINE_DEVICE void update_biases(const Arguments& a) const {
    if (warp_ == 4 || warp_ == 5)
      update_bias(a, 1, warp_ - 4);
    else if (warp_ >= 6)
      Base::update_last_bias(a, warp_ - 6);
  }
  MACHINE_DEVICE Own load_dlogits(const unsigned char* tile) const { return Base::load_own(tile, 2 * kTile); }
  MACHINE_DEVICE static AcrossWeights across_weights(const float4& low, const float4& high) {
    return {{rounded(low), rounded(high)}};
  }
  MACHINE_DEVICE typename Base::Summed summed() const { return {Base::published(), Base::publisher().half}; }

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
    const PairWeights w = Base::weights_of(first_[i], first_[kInputs + i]);
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

}  // namespace headroom::resident
