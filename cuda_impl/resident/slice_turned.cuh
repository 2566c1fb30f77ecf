// The slice kernel in 16 bits with four layers, teams of two that own two slices each (up to 1024 columns): masters are turned, and
// what updates take comes as columns.
//
// What a step of this kernel is made of are instructions, not bytes, and in slice_step.cuh an eighth of them transposed 8 x 8 blocks
// and a quarter copied registers to where an instruction takes its operand. Here masters lie as [16 outputs, 8 columns], so their
// rounded pairs are weights of products as they are; activations are published twice, as rows for products and as columns for
// updates; and everything that is a row operand, four registers of a lane, travels and lies as the 16 bytes that it is.
//
//   L2:         a buffer of an exchange is [teams, 2 halves of the rows] 16 bytes a lane, of both slices of a team, whole; then the bits
//               that marks displaced (of gradients), then the same as columns (of activations). Each 16 bytes carry a mark
//   in a step:  who owns what, sums, barriers, what is put off and why two buffers are enough is as in slice_step.cuh
//   registers:  masters of the first layer 32; tiles taken 32, those on their way 32, d2 until it is used 32, weights 32; inputs 32 and 32
#pragma once

#include "machine/bits.cuh"
#include "machine/compiler.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_two.cuh"

namespace headroom::resident {

/// As SliceGrid. What a team publishes of an exchange is, for each half of the rows, 16 bytes a lane of both its slices, as a product
/// takes them; activations also as columns, behind all tiles.
template <class Format, int kPairs>
class SliceTurnedGrid {
 public:
  static constexpr Form kForm = Form::kGrid;
  using Waiter =
      CallingWaiter;  // ten waits in a step, all between instructions that are fetched anew every time
  using Tiles = Share<Format, kPairs>;  // halves of pairs of tiles

  MACHINE_DEVICE SliceTurnedGrid(const SliceArguments& arguments, int first_slice, int lane)
      : reader_(arguments.exchange + first_slice * kHalf + lane * 16),
        displaced_(arguments.exchange + plan_of(arguments).members * kHalf + first_slice * 16 + lane * 8) {}
  MACHINE_DEVICE void begin(const SliceArguments&) { block_sync(); }
  MACHINE_DEVICE void end() {}
  /// Before anything else of a step.
  MACHINE_DEVICE void begin_step(const SliceArguments& arguments, int step) {
    stride_ = 2 * arguments.slot_bytes;
    now_ = (step & 1) != 0 ? arguments.slot_bytes : 0;
    before_ = arguments.slot_bytes - now_;
    mark_ = static_cast<std::uint32_t>(step >> 1 & 1);
    mark_before_ = static_cast<std::uint32_t>((step - 1) >> 1 & 1);
  }

  /// Waits for this step's activations and takes them.
  MACHINE_DEVICE void take(const SliceArguments& arguments, Tiles& tiles, Waiter& waiter,
                           int exchange) const {
    waiter.wait_while(arguments, exchange, [&] {
      load(tiles, reader_ + slot(exchange));
      return is_incomplete(tiles, mark_);
    });
    remove_marks(tiles);
  }
  /// The same of gradients.
  MACHINE_DEVICE void take_gradient(const SliceArguments& arguments, Tiles& tiles, Waiter& waiter,
                                    int exchange) const {
    uint2 displaced = make_uint2(0, mark_);
    waiter.wait_while(arguments, exchange, [&] {
      load(tiles, reader_ + slot(exchange));
      if (waiter.lane < 2 * kHalves) displaced = load_relaxed_gpu_64(displaced_ + slot(exchange));
      std::uint32_t wrong = displaced.y ^ mark_;
#pragma unroll
      for (int i = 0; i < kHalves; ++i) wrong |= tiles.slice[i].word[3] ^ mark_;
      return (wrong & 1) != 0;
    });
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const std::uint32_t bits =
          shuffle_from(displaced.x, i * 2 + (waiter.lane >> 4)) >> (waiter.lane & 15) & 1;
      tiles.slice[i].word[3] = (tiles.slice[i].word[3] & ~1u) | bits;
    }
  }
  /// Asks for the last step's activations as columns. Nobody has seen these before: ready_columns() looks whether they are there.
  MACHINE_DEVICE void fetch_columns(const SliceArguments& arguments, Tiles& tiles, int exchange) const {
    load(tiles, reader_ + columns(arguments) + slot(exchange, true));
  }
  MACHINE_DEVICE void ready_columns(const SliceArguments& arguments, Tiles& tiles, Waiter& waiter,
                                    int exchange) const {
    waiter.wait_while(
        arguments, exchange, [&] { return is_incomplete(tiles, mark_before_); },
        [&] { fetch_columns(arguments, tiles, exchange); });
    remove_marks(tiles);
  }

  /// Where this lane publishes, and with which mark: known long before there is anything to publish.
  struct Place {
    unsigned char *tile, *displaced;
    std::uint32_t mark;
  };
  /// kGradient: lanes 16 to 31 publish nothing of one, but activations as columns.
  template <bool kGradient>
  MACHINE_DEVICE Place place(const SliceArguments& arguments, int half, const Publisher& publisher,
                             int exchange) const {
    const bool columns_too = !kGradient && publisher.half != 0;
    const unsigned begin = slot(exchange) + (columns_too ? columns(arguments) : 0);
    // With the other mark nobody sees it.
    Place place = {arguments.exchange + begin + half * kHalf +
                       16 * (columns_too ? publisher.column_lane() : publisher.position),
                   arguments.exchange + begin + plan_of(arguments).members * kHalf + half * 16 +
                       (publisher.position >> 4) * 8,
                   mark_ ^ (exchange == arguments.lost_exchange ? 1u : 0u)};
    compute_now(place.tile);
    if (kGradient) compute_now(place.displaced);
    compute_now(place.mark);
    return place;
  }
  MACHINE_DEVICE static void publish_hidden(uint4 packet, const Place& place) {
    packet.w = (packet.w & ~kSign) | place.mark << 31;
    store_relaxed_gpu_128(place.tile, packet);
  }
  MACHINE_DEVICE static void publish_gradient(uint4 packet, const Publisher& publisher, const Place& place) {
    const std::uint32_t bits = warp_ballot((packet.w & 1) != 0);
    packet.w = (packet.w & ~1u) | place.mark;
    if (publisher.half == 0) store_relaxed_gpu_128(place.tile, packet);
    if (publisher.half == 0 && (publisher.position & 15) == 0)
      store_relaxed_gpu_64(place.displaced, make_uint2(bits, place.mark));
  }

 private:
  static constexpr int kHalves = 2 * kPairs, kHalf = 512;
  static constexpr std::uint32_t kSign = 0x80000000u;

  MACHINE_DEVICE unsigned slot(int exchange, bool before = false) const {
    return static_cast<unsigned>(exchange) * stride_ + (before ? before_ : now_);
  }
  MACHINE_DEVICE static unsigned columns(const SliceArguments& arguments) {
    return static_cast<unsigned>(plan_of(arguments).members * (kHalf + 16));
  }
  MACHINE_DEVICE static void load(Tiles& tiles, const unsigned char* from) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) assign(tiles.slice[i], 0, load_relaxed_gpu_128(from + i * kHalf));
  }
  /// Whether some of this lane's activations have another mark than the given one, 0 or 1.
  MACHINE_DEVICE static bool is_incomplete(const Tiles& tiles, std::uint32_t mark) {
    std::uint32_t wrong = 0;
#pragma unroll
    for (int i = 0; i < kHalves; ++i) wrong |= tiles.slice[i].word[3] ^ mark << 31;
    return (wrong & kSign) != 0;
  }
  MACHINE_DEVICE static void remove_marks(Tiles& tiles) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) tiles.slice[i].word[3] &= ~kSign;
  }

  const unsigned char *reader_, *displaced_;
  unsigned stride_ = 0, now_ = 0,
           before_ = 0;  // bytes: from exchange to exchange; of this step's buffer, the last's
  std::uint32_t mark_ = 0, mark_before_ = 0;
};

template <class Format>
class SliceTurnedMember : SliceTwoMember<Format, SliceTurnedGrid, SliceTurnedMember<Format>> {
  using Base = SliceTwoMember<Format, SliceTurnedGrid, SliceTurnedMember>;
  friend Base;
  using Base::exchange_, Base::input_pairs_, Base::kInputs, Base::kLast, Base::kOwn, Base::kPairs,
      Base::kTile, Base::lane_, Base::next_batch_, Base::team_, Base::waiter_, Base::warp_;
  using typename Base::AcrossWeights;
  using typename Base::Addends;
  using typename Base::Arguments;
  using typename Base::EarlyInputs;
  using typename Base::MatrixWeights;
  using typename Base::Own;
  using typename Base::Place;
  using typename Base::Taken;
  using typename Base::TurnedOwn;
  using typename Base::Values;
  using typename Base::Weights;
  using Fragments = typename Format::Fragments;
  using Half = typename Format::Half;
  /// Said so, the number of the step is the same in all lanes for ptxas, too, which then leaves out all checks whether they have
  /// parted.
  static constexpr bool kSaysUniform = true;

 public:
  using Base::kThreadCount, Base::run;

  MACHINE_DEVICE explicit SliceTurnedMember(const Arguments& a) : Base(a) {}

 private:
  MACHINE_DEVICE void begin_inputs(const Arguments& a) {
    Base::begin_staging(a);
    Base::stage_rows(a);
    Base::multiply_first(a, 0, next_batch_);
  }
  MACHINE_DEVICE void backward(const Arguments& a, int step, const AcrossWeights (&across)[kPairs],
                               Taken& gradient) {
    MatrixWeights back;
    Base::load_weights(plan_of(a).columns_offset, 2, back);
    logits(a, across, gradient);
    if (warp_ < Base::kLossWarps) {
      Base::gradient_of_loss(a);
    } else if (warp_ == kWarps - 1) {
      Base::stage_columns(a);
      if (step + 1 < a.steps) Base::stage_rows(a);
    }
    block_sync();  // the logits' gradient is complete
    Place place = exchange_.template place<true>(a, Base::published_slice(), Base::publisher(),
                                                 Base::gradient_exchange(a, 1));
    Addends own = Base::addends(a);
    gradient_below_last(a, gradient, across);
    sum_tiles(a, back, gradient);
    block_sync();
    publish_gradient(a, 1, place, own);
    if (warp_ < Base::kLossWarps && Base::is_first()) Base::keep_row_loss(a);
    if (warp_ == Base::kOwnGradientWarp) own_gradient_below_last(a);
    Base::update_columns(a, 2, step, 0, kPairs, [&](int slice) { return transposed(gradient, slice); });
    Base::load_weights(plan_of(a).columns_offset, 1, back);
    EarlyInputs columns;
    Base::load_inputs(a, columns, step);
    own = Base::addends(a);
    Fragments rows[kInputs];
    load_rows(a, step, rows);
    exchange_.take_gradient(a, gradient, waiter_, Base::gradient_exchange(a, 1));
    sum_tiles(a, back, gradient);
    block_sync();
    publish_gradient(a, 0, place, own);
    update_biases(a);
    Base::await_own_gradient(a, step);
    block_sync();  // the first layer's gradient is complete
    update_first_and_multiply(a, columns, rows);
  }

  /// Partial sums of a product of what this warp takes.
  MACHINE_DEVICE void sum_tiles(const Arguments& a, const MatrixWeights& w, const Taken& tiles) {
    PairSums sums[kOwn] = {};
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
#pragma unroll
      for (int c = 0; c < kOwn; ++c) multiply(sums[c], i, tiles, w.pair[i].own[c]);
    Base::partial_ ^= 1;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      float4* mine = Base::partial(a, warp_, c) + lane_;
#pragma unroll
      for (int half = 0; half < 2; ++half) mine[32 * half] = sums[c].of(half);
    }
  }
  /// Of the i-th pair.
  struct PairSums {  // [16 rows, 8 outputs] each, in one chain of instructions
    float half[2][4];
    MACHINE_DEVICE float4 of(int i) const {
      return make_float4(half[i][0], half[i][1], half[i][2], half[i][3]);
    }
  };
  MACHINE_DEVICE static void multiply(PairSums& sums, int i, const Taken& tiles, const Weights& w) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      Format::product(sums.half[half], part_of(tiles.slice[2 * i + half], 0), w.word[0], w.word[1]);
  }

  MACHINE_DEVICE static Weights transposed_weights(const std::uint32_t (&w)[2]) {
    return {{transpose8x8(w[0]), transpose8x8(w[1])}};
  }
  /// Partial logits of this warp's columns; `hidden` takes the activations below the last layer.
  MACHINE_DEVICE void logits(const Arguments& a, const AcrossWeights (&across)[kPairs], Taken& hidden) {
    Base::load_label(a);
    Weights w[kPairs], second[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      w[i] = transposed_weights(across[i].low), second[i] = transposed_weights(across[i].high);
    PairSums low = {}, high = {};
    exchange_.take(a, hidden, waiter_, kLast - 1);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      multiply(low, i, hidden, w[i]);
      multiply(high, i, hidden, second[i]);
    }
    Base::partial_ ^= 1;
    float4 *low_place = Base::partial(a, warp_) + lane_, *high_place = Base::last_partial(a, warp_);
#pragma unroll
    for (int half = 0; half < 2; ++half) low_place[32 * half] = low.of(half);
    if ((lane_ & 3) < plan_of(a).last_lanes)
#pragma unroll
      for (int half = 0; half < 2; ++half) high_place[half] = high.of(half);
    block_sync();
  }
  /// Of the gradients of a pair's slices, a half of the rows.
  MACHINE_DEVICE static Values masked_half(const float (&of)[2][8], int half, const Values& hidden) {
    const float (&a)[8] = of[0];
    const float (&b)[8] = of[1];
    const int row = 4 * half;
    return Format::masked(
        {a[row], a[row + 1], a[row + 2], a[row + 3], b[row], b[row + 1], b[row + 2], b[row + 3]}, hidden);
  }
  /// In place: from the activations below the last layer to their gradient, for this warp's columns.
  MACHINE_DEVICE void gradient_below_last(const Arguments& a, Taken& tiles,
                                          const AcrossWeights (&across)[kPairs]) const {
    const auto dlogits = Format::load_across(shared_memory() + plan_of(a).dlogits_offset, lane_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float result[2][8];
      Format::multiply_across(result, dlogits, across[i], lane_);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Values& part = tiles.slice[2 * i + half];
        part = masked_half(result, half, part);
      }
    }
  }
  /// The same for this member's slices, as columns, kept for the updates: the member of the team that has their masters makes it
  /// and sends it to the other, which needs it when the step has ended.
  MACHINE_DEVICE void own_gradient_below_last(const Arguments& a) {
    const int its_pair = Base::own_pair(), share = its_pair / kPairs;
    if (share % 2 != Base::rank_) {
      team_.expect(a, waiter_, kOwn * kTile);
      return;
    }
    const int pair = its_pair - Base::first_pair(a, share) + Base::warp_of(share) * kPairs;
    const float4* first =
        reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[0]) + pair * 32;
    const SecondTile second{reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[1]) +
                                pair * 8 * plan_of(a).last_lanes,
                            plan_of(a).last_lanes};
    const auto dlogits = Format::load_across(shared_memory() + plan_of(a).dlogits_offset, lane_);
    float result[2][8];
    Format::multiply_across(result, dlogits, Format::load_across_weights(first, second, lane_), lane_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Values hidden = load_tile<Format::kWords>(Base::own_hidden(a, kLast - 1, 0, half), lane_);
      const uint4 packet = turned(part_of(Format::transposed(masked_half(result, half, hidden)), 0));
      unsigned char* place = Base::own_gradient(a, kLast - 1) + half * 512 + lane_ * 16;
      *reinterpret_cast<uint4*>(place) = packet;
      team_.send(a, place, packet);
    }
  }

  // ---- publishing

  /// What a lane stores of both slices' rows: lanes 0 to 15, which have summed the first slice, 16 bytes of them as they are, the
  /// others, which have the second, as columns.
  MACHINE_DEVICE uint4 both_forms(const Half& own) const {
    const bool rows = lane_ < 16, odd = (lane_ & 4) != 0;
    std::uint32_t mine[2], received[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Of rows g and g ^ 1 one column.
      const std::uint32_t column =
          choose_bytes(own.word[i], exchanged(own.word[i], 4), odd ? 0x3276 : 0x5410);
      mine[i] = rows ? own.word[i] : column;
      received[i] = exchanged(rows ? column : own.word[i], 16);
    }
    return rows ? make_uint4(mine[0], mine[1], received[0], received[1])
                : make_uint4(received[0], received[1], mine[0], mine[1]);
  }
  MACHINE_DEVICE static std::uint32_t exchanged(std::uint32_t word, int lanes) {
    return float_to_bits(shuffle_xor(bits_to_float(word), lanes));
  }
  MACHINE_DEVICE void publish_hidden(const Arguments& a, int layer, int step, const Place& place,
                                     const Addends& addends) {
    if (!Base::adds_up()) return;
    float sums[4];
    Base::add_up_hidden(a, addends, sums);
    const Half own = Format::round_half(sums);
    if (layer < 2) active_[layer] = own;
    const uint4 packet = both_forms(own);
    const Publisher publisher = Base::publisher();
    if (Base::publishes()) exchange_.publish_hidden(packet, place);
    // As columns for updates of the layer above's columns; of the highest, for the mask of its gradient, as they are.
    unsigned char* own_place = Base::own_hidden(a, layer, step, Base::published());
    if (layer < kLast - 1)
      keep_columns(own_place, packet);
    else if (lane_ < 16)
      *reinterpret_cast<uint4*>(own_place + publisher.position * 16) = packet;
  }
  MACHINE_DEVICE void publish_gradient(const Arguments& a, int layer, const Place& place,
                                       const Addends& addends) {
    if (!Base::adds_up()) return;
    float sums[4];
    Base::add_up_partial(addends, sums);
    Base::sum_over_team(a, sums);
    const Publisher publisher = Base::publisher();
    const uint4 packet = both_forms(Format::masked_half(sums, active_[layer]));
    if (layer > 0 && Base::publishes()) exchange_.publish_gradient(packet, publisher, place);
    keep_columns(Base::own_gradient(a, layer, Base::published()), packet);
  }
  /// As the row operand of an update.
  MACHINE_DEVICE static uint4 turned(const uint4& columns) {
    return make_uint4(columns.x, columns.z, columns.y, columns.w);
  }
  MACHINE_DEVICE void keep_columns(unsigned char* place, const uint4& packet) const {
    if (lane_ >= 16) *reinterpret_cast<uint4*>(place + Base::publisher().column_lane() * 16) = turned(packet);
  }

  // ---- updates

  /// A tile, of the two parts of a pair.
  MACHINE_DEVICE static Values tile_of(const Taken& tiles, int slice) {
    const Values &upper = tiles.slice[slice & ~1], &lower = tiles.slice[slice | 1];
    const int word = 2 * (slice & 1);
    return {{upper.word[word], upper.word[word + 1], lower.word[word], lower.word[word + 1]}};
  }
  MACHINE_DEVICE static Values transposed(const Taken& tiles, int slice) {
    return Format::transposed(tile_of(tiles, slice));
  }
  /// Of both slices.
  MACHINE_DEVICE void update_bias(const Arguments& a, int layer) const {
    const float2 sum = Format::sums_of_rows(TurnedOwn::load(Base::own_gradient(a, layer), lane_));
    if ((lane_ & 3) != 0) return;
    float* bias = Base::floats(plan_of(a).bias_offset) + 8 * kOwn * layer + (lane_ >> 2);
    bias[0] = fmaf(a.update_factor, sum.x, bias[0]);
    bias[8] = fmaf(a.update_factor, sum.y, bias[8]);
  }
  MACHINE_DEVICE void update_third_bias(const Arguments& a) const {
    if (warp_ == kWarps - 1) update_bias(a, 2);
  }
  /// By a warp each that publishes nothing, while others add up the first layer's gradient: of the last layer and the second, whose
  /// gradients are complete.
  MACHINE_DEVICE void update_biases(const Arguments& a) const {
    if (warp_ == 4)
      update_bias(a, 1);
    else if (warp_ >= 6)
      Base::update_last_bias(a, warp_ - 6);
  }
  MACHINE_DEVICE Own load_dlogits(const unsigned char* tile) const { return Format::load_own(tile, lane_); }
  MACHINE_DEVICE static AcrossWeights across_weights(const float4& low, const float4& high) {
    return Format::across_weights(low, high);
  }
  MACHINE_DEVICE typename Base::Summed summed() const { return {Base::publisher().half, Base::published()}; }

  // ---- the first layer

  /// Of the next step's batch. Beyond its own a warp takes its last pair again, against weights of zero.
  MACHINE_DEVICE void load_rows(const Arguments& a, int step, Fragments (&rows)[kInputs]) const {
    if (step + 1 < a.steps) Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
    const auto each = [&](const unsigned char* memory, auto&& load) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          assign(rows[i], part, load(memory + max(0, min(i, input_pairs_ - 1)) * 2 * kTile + part * 512));
    };
    if (plan_of(a).x_rows_offset >= 0)
      each(shared_memory() + plan_of(a).x_rows_offset + Base::input_byte(true),
           [](const unsigned char* address) { return load_shared16(address); });
    else
      each(a.x_rows + next_batch_ * plan_of(a).x_batch_bytes + Base::input_byte(false),
           [](const unsigned char* address) { return load_constant16(address); });
  }
  /// Pair by pair, and a product of the next step.
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, const EarlyInputs& columns,
                                                const Fragments (&rows)[kInputs]) {
    const TurnedOwn own = Base::load_first_own(a);
    Base::clear_first_sums();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      Base::update_first_pair(a, i, columns[i], own);
      Base::multiply_first_pair(a, i, rows[i]);
    }
    if (warp_ == 4) update_bias(a, 0);
  }

  Half active_[2];  // what this lane published below the third layer, which masks its gradients
};

}  // namespace headroom::resident
