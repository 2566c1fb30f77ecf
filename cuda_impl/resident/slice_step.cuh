// The slice kernel: forward, loss, backward and update of many steps in one launch, one slice of every hidden layer a
// member.
//
// A member (thread block) owns 8 columns of every hidden layer: the rows of the layer's weight that make them, the
// columns of the next layer's weight that their gradient needs, and the whole last layer. All are fp32 masters in its
// shared memory (the first layer's in registers, but in fp32) for the whole launch. What is held twice is updated
// twice from the same operands in the same order, so all copies stay the same bits; a copy through an exchange would
// be one more wait. (The trainer compares copies whenever parameters are read.)
//
//   in a warp:  each of the 8 warps sums over its own pairs of slices, and updates those columns of the masters: no
//               barrier between a weight's update and its next product. Partial sums meet in shared memory, where two
//               warps, each for half of a tile, add them up, apply bias and ReLU or the mask, round, and publish.
//   exchanges:  activations of every layer but the last, gradients of those between: 2 * layers - 4 (two layers: 1).
//               Logits, loss, their gradient and the gradient one layer down are computed by everybody: the
//               latter by each warp for just those columns that it sums over next.
//   updates:    put off until the member would wait anyway: rows that a product needs are updated from the step before,
//               while the tiles for it travel; columns as soon as their gradient has been used. Only the first layer,
//               whose gradient is the last thing a step makes and whose product is the first thing the next one
//               does, is updated on the way.
//   barriers:   one a product (partial sums are complete), one after the loss (the logits' gradient is complete), one
//               after the first layer's gradient. Partial sums have two buffers in turn: whoever writes one again
//               has passed the barrier behind which they had been read. Own activations have two buffers by the
//               parity of the step: the first layer's are still needed when the next step has made its own.
//   teams:      several thread blocks may own the same slices together (slice_team.cuh): their warps then divide the
//               columns that are summed over among them, and what is said here of a member holds for a team.
//   serving:    some teams have four warps more, which add up, exchange sums in the team, publish, and make the loss, while
//               the eight go on with what was put off (columns of the second layer while the loss is made). They have
//               few registers and the eight take what those give. Both pass the same barriers, a product's and those
//               around the loss, each at its own place in the program: step_sync().
//   on chip:    8 (fp32) bytes a weight over all members, 4 of the first layer, 4 * members of the last; exchange
//               buffers (cluster), two batches of inputs if they fit
#pragma once

#include <type_traits>

#include "machine/barriers.cuh"
#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/reductions.cuh"
#include "machine/thread.cuh"
#include "resident/mean_loss.cuh"
#include "resident/slice_kernel.cuh"
#include "resident/slice_slots.h"
#include "resident/slice_team.cuh"

namespace headroom::resident {

/// Whether four warps more serve a thread block: in teams, in tf32 with up to two pairs a warp and in fp32 with one. With
/// more of them, and in 16 bits, a step is slower (docs/kernels/log/resident.md, versions 15 and 16).
template <class Format, int kPairs, int kTeam>
inline constexpr bool kServesIn =
    kTeam > 1 && Format::kWords == 8 && kPairs <= (Format::kFirstInRegisters ? 2 : 1);
template <class Format, int kPairs, int kTeam>
inline constexpr int kBlockThreads = kThreads + (kServesIn<Format, kPairs, kTeam> ? 128 : 0);
/// Nobody serves where the exchange says so (slice_ranks.cuh).
template <class Exchange>
inline constexpr bool kHasServers = !requires { Exchange::kWithoutServers; };

/// kWhole: every member has all hidden columns; in clusters a team
/// has a member in each of several, and divides rows and the updates of hidden layers (slice_whole_rows.cuh). kAheadSlices: the
/// first layer's sums are made a step ahead by warps of their own (slice_ahead.cuh), and those that have hidden columns have so
/// many slices each, two or, as the first of a pair, one. kSlots: of the optimizer, with kOwn 1 and none of these.
template <class Format, template <class, int> class ExchangeOf, int kPairs, int kLayers = 0, int kTeam = 1,
          int kOwn = 1, bool kWhole = false, int kAheadSlices = 0, int kSlots = 0>
class SliceMember {
 public:
  using Values = typename Format::Values;
  using Exchange = ExchangeOf<Format, kPairs>;
  static constexpr bool kAhead = kAheadSlices > 0, kOneSlice = kAheadSlices == 1;
  static constexpr int kPairSlices = kOneSlice ? 1 : 2;  // of a pair, those that there are
  static constexpr int kTiles = kPairSlices * kPairs;    // of an exchange that a warp takes
  using Tiles = Share<Format, kPairs, kTiles>;
  static_assert(kSlots == 0 || (kOwn == 1 && !kWhole && kAheadSlices == 0));
  using Arguments = std::conditional_t<(kSlots > 0), SlotArguments, SliceArguments>;
  using Weights = typename Format::Weights;
  using SecondWeights = decltype(Format::load_second(SecondTile{}, 0));
  using Place = typename Exchange::Place;
  using Fragments = typename Format::Fragments;

  static constexpr bool kInClusters = kTeam > 1 && Exchange::kForm == Form::kCluster;
  static constexpr bool kServes = !kWhole && kServesIn<Format, kPairs, kTeam> && kHasServers<Exchange>;
  /// Warps that have the first layer and those that have the other layers: the same eight, or four of them each, or, in teams of
  /// two, four behind those that serve and the eight.
  static constexpr bool kMoreWarps = kAhead && kTeam < 4;
  static constexpr int kBlock =
      kHasServers<Exchange> ? kBlockThreads<Format, kPairs, kTeam> + (kMoreWarps ? 32 * kAheadInputWarps : 0)
                            : kThreads;
  static constexpr int kThreadCount = kBlock;
  static constexpr int kInputWarps = kAhead ? kAheadInputWarps : kWarps,
                       kHiddenWarps = kAhead && !kMoreWarps ? kWarps - kAheadInputWarps : kWarps;
  static constexpr int kFirstInputWarp = kMoreWarps ? kBlock / 32 - kInputWarps : 0,
                       kFirstHiddenWarp = kWarps - kHiddenWarps;
  /// Thread blocks that divide the inputs.
  static constexpr int kInputTeam = kInClusters ? 1 : kTeam;
  static constexpr int kInputs = (kWarps / kInputWarps * kInputPairs + kInputTeam - 1) /
                                 kInputTeam;   // pairs of inputs a warp has at most
  static constexpr int kHeld = kOwn * kPairs;  // pairs of one matrix of which a warp has the masters
  /// fp32: unrolled, the first layer's share of a step's instructions would not stay in the cache.
  static constexpr bool kRollsInputs = !Format::kFirstInRegisters;
  // What is loaded before it is needed, as far as registers go.
  static constexpr bool kFetchesEarly = kPairs * Format::kWords <= 16;
  /// Pairs of inputs that are in registers before the first layer's gradient is complete. If there are any, the first
  /// product of the next step follows the update pair by pair.
  static constexpr int kEarlyInputs = kLayers == 0                        ? 0
                                      : Format::kWords == 4               ? (kPairs <= 2   ? kInputs
                                                                             : kPairs <= 4 ? 4
                                                                                           : 0)
                                      : kPairs > 1                        ? 0
                                      : kTeam > 1                         ? kInputs
                                      : Exchange::kForm == Form::kCluster ? 2
                                                                          : 0;
  static constexpr bool kMultipliesEarly = kEarlyInputs > 0;
  using EarlyInputs = Fragments[kEarlyInputs > 0 ? kEarlyInputs : 1];
  /// Layers whose activations are kept here for the update in the next step, and not read a second time.
  static constexpr int kKeptLayers = kept_layers(kAhead);
  /// Rows of the second layer are updated in the step itself, not when the next begins. With one slice a warp that is slower.
  static constexpr bool kUpdatesRowsEarly = kAhead && !kOneSlice;
  /// Old activations come as columns.
  static constexpr bool kFetchesColumns = publishes_columns(Format::kPrecision, kPairs, kTeam);
  /// Own tiles have a second form, behind the first.
  static constexpr bool kKeepsColumns = !kWhole && keeps_columns(Format::kPrecision, kPairs, kTeam);
  /// Biases but the first layer's are updated while two warps add up that layer's gradient, and the others would wait.
  static constexpr bool kBiasesInStep = Format::kWords == 4 && kLayers == 4 && kTeam == 1;
  static constexpr bool kLoadsAhead = kPairs * Format::kWords <= 16;
  /// An update makes the weights of the product that follows from masters that it still holds.
  static constexpr bool kWeightsOnTheWay = Format::kFirstInRegisters && kHeld * Format::kWords <= 32;
  static constexpr bool kTurned =
      turns_masters(Format::kPrecision, kOwn) || turns_tiles(Format::kPrecision, kLayers, kTeam, kOwn);
  /// fp32 with two pairs a warp: what goes through a shuffle is the same in all lanes for ptxas, too, which then leaves out all checks
  /// whether they have parted, a third of the instructions. Other kernels have few of them or keep them.
  static constexpr bool kSaysUniform = !Format::kFirstInRegisters && kPairs == 2;
  static constexpr bool kLastOnTheWay = Format::kFirstInRegisters && kPairs * Format::kWords <= 16;

  MACHINE_DEVICE explicit SliceMember(const Arguments& a)
      : warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        member_(kInClusters ? static_cast<int>(block_index() % kMaxCluster) : Team<kTeam>::number()),
        rank_(kInClusters ? static_cast<int>(block_index() / kMaxCluster) : Team<kTeam>::rank()),
        first_slice_(kPairSlices * first_pair(a, share_of(warp_, rank_))),
        skipped_(share_of(warp_, rank_) * kPairs - first_slice_ / kPairSlices),
        input_begin_(input_begin(a, rank_, warp_ - kFirstInputWarp)),
        input_pairs_(input_begin(a, rank_, warp_ - kFirstInputWarp + 1) - input_begin_),
        input_first_(input_begin(a, rank_, 0)),
        waiter_{warp_, lane_, block_index()},
        exchange_(a, first_slice_, lane_) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    load(a);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    begin_staging(a);
    if (serves())
      serve(a);
    else
      multiply(a);
    block_sync();
    exchange_.end();
    team_.end();
  }

 protected:
  /// Known when compiled, if it can be: loops over layers then need no registers moved from one turn to the next.
  MACHINE_DEVICE static int layers(const Arguments& a) { return kLayers > 0 ? kLayers : plan_of(a).layers; }
  static constexpr int kUnroll = kLayers > 0 ? kLayers : 1;

  // ---- the warps of a thread block: eight that multiply, and those that serve them, if there are any

  MACHINE_DEVICE void multiply(const Arguments& a) {
    if constexpr (kServes) registers_increase<kMultiplyingRegisters>();
    stage_rows(a);
    if constexpr (kMultipliesEarly) multiply_first(a, 0, next_batch_);
    int step = 0;
    Tiles gradient;  // of the second layer, kept until the next step has time to use it
    while (step <= a.steps && pass(a, kSaysUniform ? uniform(step) : step, gradient)) ++step;
    // Their own updates are complete.
    if constexpr (kServes)
      named_barrier<kThreads>(kMultiplyingBarrier);
    else
      block_sync();
    if (!waiter_.timed_out && step > a.steps) store(a);
  }

  MACHINE_DEVICE bool serves() const {
    return kServes && warp_ >= kWarps && (!kMoreWarps || warp_ < kFirstInputWarp);
  }
  MACHINE_DEVICE bool has_inputs() const {
    return warp_ >= kFirstInputWarp && warp_ < kFirstInputWarp + kInputWarps;
  }
  /// Of those that add up, publish and make the loss.
  MACHINE_DEVICE int serving_warp() const { return kServes ? warp_ - kWarps : warp_; }
  MACHINE_DEVICE void serve(const Arguments& a) {
    registers_decrease<kServingRegisters>();
    int step = 0;
    while (step < a.steps && serve_step(a, step)) ++step;
  }
  /// Stands at the barriers of pass() in the same order. False if a wait ran out.
  MACHINE_DEVICE bool serve_step(const Arguments& a, int step) {
    const int last = layers(a) - 1;
    exchange_.begin_step(a, step);
    next_batch(a);
    load_label(a);
#pragma unroll 1
    for (int layer = 0; layer < last; ++layer) {
      const Place place = exchange_.template place<false>(a, published_slice(), publisher(), layer);
      await_sums();
      publish_hidden(a, layer, step, place);
    }
    await_sums();  // of the logits
    gradient_of_loss(a);
    if (is_first()) keep_row_loss(a);
    step_sync();  // the logits' gradient is complete
#pragma unroll 1
    for (int layer = last - 1; layer >= 1; --layer) {
      Place place;
      if (layer > 1)
        place = exchange_.template place<true>(a, published_slice(), publisher(),
                                               gradient_exchange(a, layer - 1));
      await_sums();
      publish_gradient(a, layer - 1, step, place);
    }
    tell_timed_out(a);
    step_sync();  // the first layer's gradient is complete
    return !anybody_timed_out(a);
  }
  MACHINE_DEVICE void await_sums() {
    partial_ ^= 1;
    step_sync();
  }
  /// The thread block's barrier inside a step. Serving warps come to it at a place of their own: so it is one that may be
  /// reached from several, which block_sync() may not.
  MACHINE_DEVICE static void step_sync() {
    if constexpr (kServes)
      named_barrier<kBlock>(kStepBarrier);
    else
      block_sync();
  }
  /// All warps must leave behind the same step. Before its last barrier each says whether a wait of its own ran out; behind
  /// it each looks. They pass other barriers before one can say so again.
  MACHINE_DEVICE void tell_timed_out(const Arguments& a) const {
    if (waiter_.timed_out && lane_ == 0) timed_out_words(a)[warp_] = 1;
  }
  MACHINE_DEVICE bool anybody_timed_out(const Arguments& a) const {
    return warp_any(lane_ < kBlock / 32 && timed_out_words(a)[lane_] != 0);
  }
  MACHINE_DEVICE static std::uint32_t* timed_out_words(const Arguments& a) {
    return reinterpret_cast<std::uint32_t*>(shared_memory() + plan_of(a).team_barrier_offset +
                                            kTeamBarrierBytes);
  }
  MACHINE_DEVICE void next_batch(const Arguments& a) {
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
  }
  MACHINE_DEVICE void load_label(const Arguments& a) {
    const int row = serving_warp() * 8 + (lane_ >> 2);
    label_ = row < plan_of(a).batch ? a.labels[std::int64_t{batch_} * plan_of(a).batch + row] : -1;
  }

  // ---- a step

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out. By warps that are no serving
  /// warps, which the compiler does not see: what serving warps do is left out here by hand.
  MACHINE_DEVICE bool pass(const Arguments& a, int step, Tiles& gradient) {
    const bool training = step < a.steps;
    const int last = layers(a) - 1;
    exchange_.begin_step(a, step);
    if constexpr (kSlots == 2) next_rates(a, step);
    Tiles old;  // activations of the step before, for an update that was put off
    if constexpr (!kAhead)
      if (training && !forward_first(a, step, old)) return false;
    if (!training || kAhead) fetch_early(a, old, 0);
    if (!kAhead && step > 0 && warp_ == kWarps - 1 && is_first()) store_loss(a, step - 1);
    if (!kServes && step > 0 && last > 1) update_columns(a, 1, step - 1, gradient);
#pragma unroll kUnroll
    for (int layer = 1; layer < last; ++layer) {
      Weights w[kHeld];
      update_rows(a, layer, step, old, w);
      if (training)
        forward(a, layer, step, w, old);
      else
        fetch_early(a, old, layer);
    }
    Weights w[kPairs];
    SecondWeights second[kPairs];
    update_last(a, step, old, w, second);
    if (!training) {
      if (kServes && step > 0 && last > 1) update_columns(a, 1, step - 1, gradient);
      return true;
    }

    BackwardWeights back;
    if constexpr (!kAhead) load_backward(a, back);
    // The activations below the last layer, then gradients, from the highest down.
    Tiles beside;
    Tiles& hidden = kServes ? beside : gradient;
    logits(a, step, hidden, w, second);
    // Inputs are asked for while no tiles are on their way.
    if (!kServes && warp_ < kLossWarps) {
      gradient_of_loss(a);
    } else if (!kAhead && warp_ == kWarps - 1) {
      stage_columns(a);
      if (step + 1 < a.steps) stage_rows(a);
    }
    // While others make the loss.
    if (kServes && step > 0 && last > 1) {
      update_columns(a, 1, step - 1, gradient);
      if (last == 2) load_columns(a, 1, back);
    }
    if constexpr (kAhead) load_backward(a, back);
    step_sync();
    gradient_below_last(a, hidden, back);
    EarlyInputs columns;
    if (last == 2) load_inputs(a, columns, step);
#pragma unroll kUnroll
    for (int layer = last - 1; layer >= 1; --layer) {
      Place place;
      if (!kServes && layer > 1)
        place = exchange_.template place<true>(a, published_slice(), publisher(),
                                               gradient_exchange(a, layer - 1));
      sum_columns(a, layer, hidden, back);
      step_sync();
      if constexpr (!kServes) publish_gradient(a, layer - 1, step, place);
      if (layer == last - 1) finish_loss(a, step);
      if (layer == 1) {
        if constexpr (kBiasesInStep) update_biases(a);
        if constexpr (kUpdatesRowsEarly)
          if (updates_rows_early(a, 1)) update_rows_early(a);
        break;
      }
      update_columns(a, layer, step, hidden);
      load_columns(a, layer - 1, back);
      if (layer == 2) load_inputs(a, columns, step);
      if (!idle())
        exchange_.template take<true>(a, hidden, waiter_, first_slice_, gradient_exchange(a, layer - 1));
    }
    if constexpr (kServes) gradient = hidden;
    if (last == 1) finish_loss(a, step);
    if (last == 1) load_inputs(a, columns, step);
    await_own_gradient(a, step);
    if constexpr (kServes) tell_timed_out(a);
    step_sync();  // the first layer's gradient is complete
    const bool goes_on = !kServes || !anybody_timed_out(a);
    if constexpr (kMultipliesEarly)
      update_first_and_multiply(a, step, columns);
    else if constexpr (!kAhead)
      update_first(a, step);
    return goes_on;
  }

  // ---- forward

  MACHINE_DEVICE bool forward_first(const Arguments& a, int step, Tiles& old) {
    next_batch(a);
    Place place;
    if constexpr (!kServes) place = exchange_.template place<false>(a, published_slice(), publisher(), 0);
    if constexpr (!kMultipliesEarly) multiply_first(a, step, batch_);
    fetch_early(a, old, 0);
    store_partial(a, first_sums_);
    if constexpr (kServes)
      step_sync();
    else if (block_sync_or(waiter_.timed_out))
      return false;
    if constexpr (!kServes) publish_hidden(a, 0, step, place);
    return true;
  }

  /// Leaves in `old` what the next layer's put-off update takes.
  MACHINE_DEVICE void forward(const Arguments& a, int layer, int step, const Weights (&w)[kHeld],
                              Tiles& old) {
    Place place;
    if constexpr (!kServes) place = exchange_.template place<false>(a, published_slice(), publisher(), layer);
    typename Format::Sums sums[kOwn] = {};
    Tiles taken;
    if (!idle()) {
      Tiles below;
      const auto& ready = ready_weights(w);
      exchange_.template take<false>(a, below, waiter_, first_slice_, layer - 1);
      fetch_early(a, old, layer);
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
#pragma unroll
        for (int c = 0; c < kOwn; ++c) multiply_tiles(sums[c], i, below, ready[c * kPairs + i]);
      if constexpr (kKeptLayers > 0) taken = below;
    }
    store_partial(a, sums);
    step_sync();
    if constexpr (kKeptLayers > 0) keep(a, layer - 1, taken);
    if constexpr (!kServes) publish_hidden(a, layer, step, place);
  }

  MACHINE_DEVICE Publisher publisher() const { return Publisher::of(warp_, lane_); }
  MACHINE_DEVICE bool adds_up() const { return (!kServes || serves()) && serving_warp() < kPublishers; }
  /// Of a team one member publishes one half of a tile, another the other.
  MACHINE_DEVICE bool publishes() const { return kTeam == 1 || (warp_ & 1) == rank_; }
  /// Of this member's slices, the one that this warp publishes, if it does; and its number among all.
  MACHINE_DEVICE int published() const { return kOwn == 1 ? 0 : warp_ >> 1 & 1; }
  MACHINE_DEVICE int published_slice() const { return member_ * kOwn + published(); }
  /// In a team of four many warps have no hidden columns.
  MACHINE_DEVICE bool idle() const { return kTeam == 4 && skipped_ >= kPairs; }
  MACHINE_DEVICE bool is_first() const { return member_ == 0 && rank_ == 0; }
  MACHINE_DEVICE void sum_over_team(const Arguments& a, float (&sums)[4]) {
    if constexpr (kTeam > 1) {
      const float4 total =
          team_.sum(a, waiter_, serving_warp(), make_float4(sums[0], sums[1], sums[2], sums[3]));
      sums[0] = total.x, sums[1] = total.y, sums[2] = total.z, sums[3] = total.w;
    }
  }

  MACHINE_DEVICE void publish_hidden(const Arguments& a, int layer, int step, const Place& place) {
    if (!adds_up()) return;
    float sums[4];
    add_partial(a, sums);
    sum_over_team(a, sums);
    const float2 bias = bias_of(a, layer, published());
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = relu(sums[i] + (i % 2 == 0 ? bias.x : bias.y));
    const uint4 packet = publisher().packet(Format::round_half(sums));
    if (publishes()) exchange_.template publish<false>(a, packet, publisher(), place);
    unsigned char* tile = own_hidden(a, layer, step, published());
    publisher().template keep<Format::kParts>(tile, packet);
    if constexpr (kKeepsColumns) {
      const uint4 columns = publisher().columns(packet);
      if constexpr (kFetchesColumns)
        if (publishes()) exchange_.publish_columns(a, columns, publisher(), place);
      if constexpr (kTurned)
        publisher().keep_turned(own_hidden(a, layer, step, 0) + kTile, published(), packet);
      else
        publisher().keep_columns(tile + kTile, columns);
    }
  }

  /// Partial logits of this warp's columns; `hidden` takes the activations below the last layer.
  MACHINE_DEVICE void logits(const Arguments& a, int step, Tiles& hidden, const Weights (&w)[kPairs],
                             const SecondWeights (&second)[kPairs]) {
    if constexpr (!kServes) load_label(a);
    typename Format::Sums low[1] = {}, high{};
    if (!idle()) {
      const auto& ready = ready_weights(w);
      exchange_.template take<false>(a, hidden, waiter_, first_slice_, layers(a) - 2);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        multiply_tiles(low[0], i, hidden, ready[i]);
        if constexpr (kAhead)
          Format::store_second(last_partial(a, warp_, 0), hidden.slice, second[i], lane_);
        else
          Format::multiply_second(high, i & 1, hidden.slice[2 * i], hidden.slice[2 * i + 1], second[i],
                                  lane_);
      }
    }
    store_partial(a, low);
    if constexpr (!kAhead) {
      float value[8];
      Format::finish_second(high, value, lane_);
      if ((lane_ & 3) < plan_of(a).last_lanes) {
        float4* place = last_partial(a, warp_);
        place[0] = make_float4(value[0], value[1], value[2], value[3]);
        place[1] = make_float4(value[4], value[5], value[6], value[7]);
      }
    }
    step_sync();
    if constexpr (kKeptLayers > 0) keep(a, layers(a) - 2, hidden);
  }

  // ---- loss

  /// Softmax of the logits and their gradient, 8 rows by each of the first four warps: lane (g, t) has classes 2t, 2t +
  /// 1, 8 + 2t and 9 + 2t of row g. Padding rows have no gradient.
  MACHINE_DEVICE void gradient_of_loss(const Arguments& a) {
    const int g = lane_ >> 2, t = lane_ & 3, row = serving_warp() * 8 + g;
    float4 z = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int from = kFirstHiddenWarp; from < kWarps; ++from) {
      const float2 low = reinterpret_cast<const float2*>(partial(a, from) + (serving_warp() >> 1) * 32 +
                                                         lane_)[serving_warp() & 1];
      z.x += low.x, z.y += low.y;
    }
    if (t < plan_of(a).last_lanes)
#pragma unroll
      for (int from = kFirstHiddenWarp; from < kWarps; ++from) {
        const float2 high = reinterpret_cast<const float2*>(last_partial(a, from) +
                                                            (serving_warp() >> 1))[serving_warp() & 1];
        z.z += high.x, z.w += high.y;
      }
    if constexpr (kTeam > 1) z = team_.sum(a, waiter_, serving_warp(), z);
    const float* bias = floats(plan_of(a).last_bias_offset);
    float logit[4] = {z.x + bias[2 * t], z.y + bias[2 * t + 1], z.z + bias[8 + 2 * t], z.w + bias[9 + 2 * t]};
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (class_of(i, t) >= plan_of(a).classes) logit[i] = -INFINITY;
      highest = fmaxf(highest, logit[i]);
    }
    highest = quad_maximum(highest);
    float power[4], sum = 0, label_distance = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      power[i] = exponential(logit[i] - highest);
      sum += power[i];
      if (class_of(i, t) == label_) label_distance = logit[i] - highest;
    }
    sum = quad_sum(sum);
    const float inverse = row < plan_of(a).batch ? divide(a.gradient_scale, sum) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      power[i] = power[i] * inverse - (class_of(i, t) == label_ ? a.gradient_scale : 0.0f);
    unsigned char* tiles = shared_memory() + plan_of(a).dlogits_offset;
    Format::store_two(tiles, serving_warp(), lane_, power[0], power[1]);
    Format::store_two(tiles + kTile, serving_warp(), lane_, power[2], power[3]);
    if constexpr (kKeepsColumns) {
      Format::store_two_columns(tiles + 2 * kTile, serving_warp(), lane_, power[0], power[1]);
      Format::store_two_columns(tiles + 3 * kTile, serving_warp(), lane_, power[2], power[3]);
    }
    row_sum_ = sum, row_distance_ = label_distance;
  }
  /// What the loss needs of a row; nobody waits for it.
  MACHINE_DEVICE void keep_row_loss(const Arguments& a) const {
    const float distance = quad_sum(row_distance_);
    if ((lane_ & 3) == 0)
      reinterpret_cast<float2*>(shared_memory() +
                                plan_of(a).row_loss_offset)[serving_warp() * 8 + (lane_ >> 2)] =
          make_float2(row_sum_, distance);
  }
  MACHINE_DEVICE static int class_of(int i, int t) { return 8 * (i >> 1) + 2 * t + (i & 1); }

  /// What nobody waits for: rows of the loss, the last layer's bias, and this member's part of the gradient below the
  /// last layer.
  MACHINE_DEVICE void finish_loss(const Arguments& a, int step) {
    if (!kServes && warp_ < kLossWarps && is_first()) keep_row_loss(a);
    if (!kBiasesInStep && !kAhead && warp_ == 6) update_last_bias(a);
    if (warp_ == kOwnGradientWarp) own_gradient_below_last(a, step);
  }
  MACHINE_DEVICE void update_last_bias(const Arguments& a) const {
#pragma unroll 1
    for (int tile = 0; tile < 2; ++tile) update_last_bias(a, tile);
  }
  MACHINE_DEVICE void update_last_bias(const Arguments& a, int tile) const {
    const Values values =
        load_tile<Format::kWords>(shared_memory() + plan_of(a).dlogits_offset + tile * kTile, lane_);
    update_bias(a, values, floats(plan_of(a).last_bias_offset) + 8 * tile, factors(a));
  }
  /// By a warp each that publishes nothing.
  MACHINE_DEVICE void update_biases(const Arguments& a) const {
    if (warp_ >= 6)
      update_own_bias(a, warp_ - 5, factors(a));
    else if (warp_ >= 4)
      update_last_bias(a, warp_ - 4);
  }

  MACHINE_DEVICE void store_loss(const Arguments& a, int step) {
    const float2 row = reinterpret_cast<const float2*>(shared_memory() + plan_of(a).row_loss_offset)[lane_];
    const float loss = lane_ < plan_of(a).batch ? logf(row.x) - row.y : 0.0f;
    store_mean_loss(a, step, lane_, loss);
  }

  // ---- backward

  /// fp32 reads weights when it multiplies by them; where one pair is all and there are registers, before its tiles come.
  static constexpr bool kReadies = kServes && !Format::kFirstInRegisters && kPairs == 1;
  template <class F, bool kOne>
  struct ReadyOf {
    using Type = std::conditional_t<kReadies, typename F::ReadyWeights, Weights>;
  };
  template <class F>
  struct ReadyOf<F, true> {
    using Type = typename F::ReadySlice;
  };
  using ReadyWeight = typename ReadyOf<Format, kOneSlice>::Type;
  MACHINE_DEVICE ReadyWeight ready(const Weights& w) const {
    if constexpr (kOneSlice)
      return Format::ready_slice(w, lane_);
    else
      return Format::ready(w, lane_);
  }
  template <int kCount>
  struct Ready {
    ReadyWeight weights[kCount];
    MACHINE_DEVICE const ReadyWeight& operator[](int i) const { return weights[i]; }
  };
  /// Otherwise the given weights themselves.
  template <int kCount>
  MACHINE_DEVICE decltype(auto) ready_weights(const Weights (&w)[kCount]) const {
    if constexpr (kReadies) {
      Ready<kCount> all;
#pragma unroll
      for (int i = 0; i < kCount; ++i) all.weights[i] = ready(w[i]);
      return all;
    } else {
      return (w);
    }
  }
  /// Of the i-th pair.
  MACHINE_DEVICE void multiply_tiles(typename Format::Sums& sums, int i, const Tiles& tiles,
                                     const ReadyWeight& w) const {
    if constexpr (kOneSlice)
      Format::multiply_slice(sums, tiles.slice[0], w);
    else
      Format::multiply(sums, i & 1, tiles.slice[2 * i], tiles.slice[2 * i + 1], w, lane_);
  }
  /// What the way back takes of the last layer and of the columns of one below.
  struct BackwardWeights {
    typename Format::AcrossWeights across[kPairs];
    ReadyWeight columns[kHeld];
  };
  MACHINE_DEVICE void load_backward(const Arguments& a, BackwardWeights& back) const {
    if constexpr (kLoadsAhead) {
      if (layers(a) == 2) return;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) back.across[i] = load_across(a, i);
      load_columns(a, layers(a) - 2, back);
    }
  }
  MACHINE_DEVICE void load_columns(const Arguments& a, int layer, BackwardWeights& back) const {
    if constexpr (kLoadsAhead) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const Weights w = load_column(a, layer, i % kPairs, i / kPairs);
        if constexpr (kReadies)
          back.columns[i] = ready(w);
        else
          back.columns[i] = w;
      }
    }
  }
  MACHINE_DEVICE Weights load_column(const Arguments& a, int layer, int i, int c) const {
    return Format::load_weights(matrix(plan_of(a).columns_offset, layer, c) + i * 32, lane_);
  }
  MACHINE_DEVICE typename Format::AcrossWeights load_across(const Arguments& a, int i) const {
    return Format::load_across_weights(matrix(plan_of(a).last_offset[0], 1) + i * 32, second_tile(a, i),
                                       lane_);
  }

  /// In place: from the activations below the last layer to their gradient, for this warp's columns.
  MACHINE_DEVICE void gradient_below_last(const Arguments& a, Tiles& tiles, const BackwardWeights& back) {
    if (layers(a) == 2 || idle()) return;
    const auto dlogits = Format::load_across(shared_memory() + plan_of(a).dlogits_offset, lane_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float result[kPairSlices][8];
      if constexpr (kLoadsAhead)
        Format::multiply_across(result, dlogits, back.across[i], lane_);
      else
        Format::multiply_across(result, dlogits, load_across(a, i), lane_);
#pragma unroll
      for (int slice = 0; slice < kPairSlices; ++slice) {
        Values& tile = tiles.slice[2 * i + slice];
        tile = Format::operand(Format::masked(result[slice], tile));
      }
    }
  }
  /// The same for this member's slices, kept for the updates: whichever warp sums over them has their masters. In a team
  /// one member has, and sends it to the others, who need it when the step has ended.
  MACHINE_DEVICE void own_gradient_below_last(const Arguments& a, int step) {
    const int layer = layers(a) - 2, its_pair = own_pair(), share = its_pair / kPairs;
    if (kTeam > 1 && share % kTeam != rank_) {
      team_.expect(a, waiter_, kOwn * kOwnTile);
      return;
    }
    const int owner = warp_of(share), pair = its_pair - first_pair(a, share) + owner * kPairs;
    const float4* first =
        reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[0]) + pair * 32;
    const SecondTile second{reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[1]) +
                                pair * 8 * plan_of(a).last_lanes,
                            plan_of(a).last_lanes};
    Values columns[kOwn];
    float result[kPairSlices][8];
    const auto dlogits = Format::load_across(shared_memory() + plan_of(a).dlogits_offset, lane_);
    Format::multiply_across(result, dlogits, Format::load_across_weights(first, second, lane_), lane_);
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      float own[8];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        own[i] = kOneSlice || (kOwn == 1 ? member_ % 2 : c) == 0 ? result[0][i] : result[kPairSlices - 1][i];
      const Values hidden = load_tile<Format::kWords>(own_hidden(a, layer, step, c), lane_);
      const Values gradient = Format::masked(own, hidden);
      unsigned char* tile = own_gradient(a, layer, c);
      store_tile(tile, gradient, lane_);
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        team_.send(a, tile + part * 512 + lane_ * 16, part_of(gradient, part));
      if constexpr (kKeepsColumns) columns[c] = Format::columns(gradient);
      if constexpr (kKeepsColumns && !kTurned) {
        Format::store_columns(tile + kTile, columns[c], lane_);
#pragma unroll
        for (int part = 0; part < Format::kParts; ++part)
          team_.send(a, tile + kTile + part * 512 + Format::columns_lane(lane_) * 16,
                     part_of(columns[c], part));
      }
    }
    if constexpr (kTurned) {
      const auto turned = Format::TurnedOwn::of(columns[0], columns[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned char* place = own_gradient(a, layer, 0) + Format::TurnedOwn::byte(i, lane_);
        *reinterpret_cast<uint4*>(place) = turned.rows[i];
        team_.send(a, place, turned.rows[i]);
      }
    }
  }
  /// A barrier of the thread block must follow.
  MACHINE_DEVICE void await_own_gradient(const Arguments& a, int step) {
    if (kTeam == 1 || warp_ != kOwnGradientWarp) return;
    if (own_pair() / kPairs % kTeam != rank_) team_.await(a, waiter_, step);
  }

  /// Partial sums of the gradient below the layer whose columns these are.
  MACHINE_DEVICE void sum_columns(const Arguments& a, int layer, const Tiles& gradient,
                                  BackwardWeights& back) {
    typename Format::Sums sums[kOwn] = {};
    if (!idle()) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
#pragma unroll
        for (int c = 0; c < kOwn; ++c) {
          ReadyWeight& w = back.columns[c * kPairs + i];
          if constexpr (kTurned)
            w = turned_weights(plan_of(a).columns_offset, layer, i, c);
          else if constexpr (!kLoadsAhead)
            w = load_column(a, layer, i, c);
          multiply_tiles(sums[c], i, gradient, w);
        }
    }
    store_partial(a, sums);
  }

  MACHINE_DEVICE void publish_gradient(const Arguments& a, int layer, int step, const Place& place) {
    if (!adds_up()) return;
    const auto hidden = load_half<Format::kWords>(own_hidden(a, layer, step, published()), publisher().half,
                                                  publisher().position);
    float sums[4];
    add_partial(a, sums);
    sum_over_team(a, sums);
    const typename Format::Half gradient = Format::masked_half(sums, hidden);
    if (layer > 0 && publishes())
      exchange_.template publish<true>(a, publisher().packet(Format::operand(gradient)), publisher(), place);
    unsigned char* tile = own_gradient(a, layer, published());
    publisher().template keep<Format::kParts>(tile, publisher().packet(gradient));
    if constexpr (kTurned)
      publisher().keep_turned(own_gradient(a, layer, 0) + kTile, published(),
                              publisher().packet(Format::operand(gradient)));
    else if constexpr (kKeepsColumns)
      publisher().keep_columns(tile + kTile,
                               publisher().columns(publisher().packet(Format::operand(gradient))));
  }

  // ---- updates

  MACHINE_DEVICE float4 updated(const Arguments& a, const float4& m, const float4& sum) const {
    // The tensor core does not round to nearest: a master must not pass through its accumulator.
    return make_float4(fmaf(a.update_factor, sum.x, m.x), fmaf(a.update_factor, sum.y, m.y),
                       fmaf(a.update_factor, sum.z, m.z), fmaf(a.update_factor, sum.w, m.w));
  }

  // With slots. The factors of the step before, for updates that were put off, and of this one; plain sgd has none.

  struct NoFactors {};
  using Factors = std::conditional_t<(kSlots > 0), rules::UpdateFactors, NoFactors>;
  MACHINE_DEVICE void next_rates(const Arguments& a, int step) {
    rates_[0] = rates_[1];
    if (step == a.steps) return;
    const rules::UpdateFactors& of_step = a.step_factors[step];
    rates_[1] = make_float2(of_step.rate, of_step.inverse_root);
  }
  MACHINE_DEVICE Factors factors(const Arguments& a, bool before = false) const {
    if constexpr (kSlots > 0) {
      Factors factors = a.factors;
      if constexpr (kSlots == 2) {
        factors.rate = before ? rates_[0].x : rates_[1].x;
        factors.inverse_root = before ? rates_[0].y : rates_[1].y;
      }
      return factors;
    } else {
      return {};
    }
  }
  /// Where the slots of the master at this place of shared memory are.
  MACHINE_DEVICE static float* slot_of(const Arguments& a, const float* master, int slot) {
    const int first = slots_begin(a) + slot * masters_end(plan_of(a));
    return const_cast<float*>(master) + first / 4;
  }
  MACHINE_DEVICE static int slots_begin(const Arguments& a) {
    return plan_of(a).shared_bytes - kSlots * (masters_end(plan_of(a)) + kFirstSlots);
  }
  static constexpr int kFirstSlots = kSlots == 0 ? 0 : first_slot_bytes(Format::kPrecision, kTeam);
  /// Of a first layer whose masters are in registers.
  MACHINE_DEVICE float4* first_slot(const Arguments& a, int i, int slot) const {
    const int begin = slots_begin(a) + kSlots * masters_end(plan_of(a)) + slot * kFirstSlots;
    return reinterpret_cast<float4*>(shared_memory() + begin) + (warp_ * kInputs + i) * 32 + lane_;
  }
  MACHINE_DEVICE static void update_value(const Arguments& a, const Factors& factors, float sum,
                                          float& master, float& first, float& second) {
    if constexpr (kSlots == 2)
      rules::update_adam(factors, sum * a.inverse_loss_scale, master, first, second);
    else
      rules::update_with_momentum(factors, sum * a.inverse_loss_scale, master, first);
  }
  MACHINE_DEVICE static void update_values(const Arguments& a, const Factors& factors, const float4& sum,
                                           float4& m, float4* first_place, float4* second_place) {
    float4 first = *first_place, second = kSlots == 2 ? *second_place : make_float4(0, 0, 0, 0);
    update_value(a, factors, sum.x, m.x, first.x, second.x);
    update_value(a, factors, sum.y, m.y, first.y, second.y);
    update_value(a, factors, sum.z, m.z, first.z, second.z);
    update_value(a, factors, sum.w, m.w, first.w, second.w);
    *first_place = first;
    if constexpr (kSlots == 2) *second_place = second;
  }
  /// m, the masters at `place` of shared memory, by the sum of their gradient.
  MACHINE_DEVICE void update_masters(const Arguments& a, const Factors& factors, float4& m,
                                     const float4* place, const float4& sum) const {
    if constexpr (kSlots > 0) {
      const auto* master = reinterpret_cast<const float*>(place);
      update_values(a, factors, sum, m, reinterpret_cast<float4*>(slot_of(a, master, 0)),
                    reinterpret_cast<float4*>(slot_of(a, master, 1)));
    } else {
      m = updated(a, m, sum);
    }
  }

  /// This member's own tiles, as an update takes them.
  struct EachOwn {
    typename Format::Own slice[kOwn];
  };
  template <class F, bool kOfBoth>
  struct OwnsOf {
    using Type = EachOwn;
  };
  template <class F>
  struct OwnsOf<F, true> {
    using Type = typename F::TurnedOwn;
  };
  using Owns = typename OwnsOf<Format, kTurned>::Type;
  /// columns: where a tile's second form is, from its first, if it has one.
  MACHINE_DEVICE typename Format::Own load_own(const unsigned char* tile, int columns) const {
    if constexpr (kKeepsColumns)
      return Format::load_own_columns(tile + columns, lane_);
    else
      return Format::load_own(tile, lane_);
  }
  /// The c-th sum of a pair: of the c-th own slice, or, turned, of the pair's c-th slice.
  MACHINE_DEVICE float4 outer(const Values& low, const Values& high, const Owns& own, int c) const {
    if constexpr (kTurned)
      return Format::outer_turned(c == 0 ? low : high, own);
    else
      return Format::outer(low, high, own.slice[c], lane_);
  }
  MACHINE_DEVICE float4 outer_inputs(const Fragments& x, const Owns& own, int c) const {
    if constexpr (kTurned)
      return Format::outer_turned(Format::tile_of(x, c), own);
    else
      return Format::outer_inputs(x, own.slice[c], lane_);
  }
  /// masters += factor * columns^T * own; and the weights that a product takes of them. Of the matrices at `offset`;
  /// own_tile(c): of this member's slice c.
  template <bool kColumns, class OwnTile>
  MACHINE_DEVICE void update(const Arguments& a, int offset, int layer, const Tiles& tiles,
                             const OwnTile& own_tile, Weights (&w)[kHeld],
                             const Factors& factors = {}) const {
    if (idle()) return;
    if constexpr (kOneSlice) {
      update_slice(a, matrix(offset, layer) + Format::master_lane(lane_), true, tiles.slice[0],
                   load_own(own_tile(0), kTile));
      warp_sync();  // other lanes of this warp read these
      load_matrix(offset, layer, w);
    } else {
      update_pairs<kColumns>(a, offset, layer, tiles, own_tile, w, factors);
    }
  }
  template <bool kColumns, class OwnTile>
  MACHINE_DEVICE void update_pairs(const Arguments& a, int offset, int layer, const Tiles& tiles,
                                   const OwnTile& own_tile, Weights (&w)[kHeld],
                                   const Factors& factors) const {
    Owns own;
    if constexpr (kTurned) own = Owns::load(own_tile(0), lane_);
    float4* mine[kOwn];
    float4 value[kOwn][kPairs];
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      if constexpr (!kTurned) own.slice[c] = load_own(own_tile(c), kTile);
      mine[c] = matrix(offset, layer, c) + Format::master_lane(lane_);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) value[c][i] = mine[c][i * 32];
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Values low = kColumns ? tiles.slice[2 * i] : Format::transposed(tiles.slice[2 * i]),
                   high = kColumns ? tiles.slice[2 * i + 1] : Format::transposed(tiles.slice[2 * i + 1]);
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        const float4 sum = outer(low, high, own, c);
        if (i >= skipped_) update_masters(a, factors, value[c][i], mine[c] + i * 32, sum);
        mine[c][i * 32] = value[c][i];
        if constexpr (kWeightsOnTheWay) w[c * kPairs + i] = Format::weights(value[c][i]);
      }
    }
    warp_sync();  // other lanes of this warp read these
    if constexpr (!kWeightsOnTheWay) load_matrix(offset, layer, w);
  }
  /// This lane's of the masters of a pair's first slice, if it has one.
  MACHINE_DEVICE void update_slice(const Arguments& a, float4* master, bool exists, const Values& tile,
                                   const typename Format::Own& own) const {
    const float2 sum = Format::outer_slice(tile, own, lane_);
    if (!exists) return;
    auto& value = reinterpret_cast<float2&>(*master);
    value = make_float2(fmaf(a.update_factor, sum.x, value.x), fmaf(a.update_factor, sum.y, value.y));
  }
  MACHINE_DEVICE void load_matrix(int offset, int layer, Weights (&w)[kHeld]) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if constexpr (kTurned)
        w[i] = turned_weights(offset, layer, i % kPairs, i / kPairs);
      else
        w[i] = Format::load_weights(matrix(offset, layer, i / kPairs) + i % kPairs * 32, lane_);
  }
  MACHINE_DEVICE Weights turned_weights(int offset, int layer, int i, int c) const {
    return Format::turned_weights(matrix(offset, layer, 0)[i * 32 + lane_],
                                  matrix(offset, layer, 1)[i * 32 + lane_], c);
  }

  MACHINE_DEVICE void update_columns(const Arguments& a, int layer, int step, const Tiles& gradient) const {
    Weights unused[kHeld];
    update<false>(
        a, plan_of(a).columns_offset, layer, gradient,
        [&](int c) { return own_hidden(a, layer - 1, step, c); }, unused, factors(a, layer == 1));
  }
  /// From the step before, if there is one. Makes the weights of the product that follows.
  MACHINE_DEVICE void update_rows(const Arguments& a, int layer, int step, Tiles& old, Weights (&w)[kHeld]) {
    if (step > 0 && !updates_rows_early(a, layer)) {
      take_old(a, layer - 1, old);
      update<kFetchesColumns>(
          a, plan_of(a).rows_offset, layer, old, [&](int c) { return own_gradient(a, layer, c); }, w,
          factors(a, true));
      if (!kBiasesInStep && !kAhead && warp_ == 7) update_own_bias(a, layer, factors(a, true));
    } else {
      load_matrix(plan_of(a).rows_offset, layer, w);
    }
  }
  /// Rows of the second layer in the step itself, while the first layer's gradient is made, if the activations are kept here.
  MACHINE_DEVICE static bool updates_rows_early(const Arguments& a, int layer) {
    return kUpdatesRowsEarly && layer == 1 && keeps(a, 0);
  }
  MACHINE_DEVICE void update_rows_early(const Arguments& a) {
    Tiles old;
    Weights unused[kHeld];
    take_old(a, 0, old);
    update<false>(a, plan_of(a).rows_offset, 1, old, [&](int c) { return own_gradient(a, 1, c); }, unused);
  }
  /// Whether a layer's activations are kept; to keep them, and to take those of the step before.
  MACHINE_DEVICE static bool keeps(const Arguments& a, int layer) {
    return kKeptLayers > 0 && layer >= layers(a) - 1 - kKeptLayers;
  }
  MACHINE_DEVICE unsigned char* kept(const Arguments& a, int layer) const {
    return shared_memory() + plan_of(a).dlogits_offset + 2 * kOwnTile +
           ((layer - (layers(a) - 1 - kKeptLayers)) * kWarps + warp_) * (2 * kPairs * kTile);
  }
  MACHINE_DEVICE void keep(const Arguments& a, int layer, const Tiles& tiles) const {
    if (!keeps(a, layer) || idle()) return;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) store_tile(kept(a, layer) + i * kTile, tiles.slice[i], lane_);
  }
  MACHINE_DEVICE static Values old_columns(const Values& tile) {
    return kFetchesColumns ? tile : Format::transposed(tile);
  }
  MACHINE_DEVICE void take_old(const Arguments& a, int layer, Tiles& old) {
    if constexpr (kFetchesColumns) {
      if constexpr (!kFetchesEarly) exchange_.fetch_columns(a, old, layer);
      exchange_.ready_columns(a, old, waiter_, layer);
    } else if (keeps(a, layer)) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        old.slice[i] = load_tile<Format::kWords>(kept(a, layer) + i * kTile, lane_);
    } else {
      if constexpr (!kFetchesEarly) exchange_.fetch(a, old, layer);
      Exchange::ready(old);
    }
  }
  /// Asks for activations of the step before, if there are registers to hold two shares.
  MACHINE_DEVICE void fetch_early(const Arguments& a, Tiles& old, int layer) const {
    if (idle() || keeps(a, layer)) return;
    if constexpr (kFetchesEarly && kFetchesColumns)
      exchange_.fetch_columns(a, old, layer);
    else if constexpr (kFetchesEarly)
      exchange_.fetch(a, old, layer);
  }

  MACHINE_DEVICE void update_last(const Arguments& a, int step, Tiles& old, Weights (&w)[kPairs],
                                  SecondWeights (&second)[kPairs]) {
    const int m = Format::master_lane(lane_);
    float4* masters = matrix(plan_of(a).last_offset[0], 1);
    if (idle()) return;
    if (step > 0) {
      take_old(a, layers(a) - 2, old);
      const unsigned char* dlogits = shared_memory() + plan_of(a).dlogits_offset;
      const typename Format::Own first_own = load_own(dlogits, 2 * kTile),
                                 second_own = load_own(dlogits + kTile, 2 * kTile);
      if constexpr (kOneSlice) {
        const Values& tile = old.slice[0];
        update_slice(a, masters + m, true, tile, first_own);
        const SecondTile high = second_tile(a, 0);
        if (high.lanes == 1)
          Format::update_two_slice(high, tile, Format::load_own_two(dlogits + kTile, lane_), a.update_factor,
                                   true, lane_);
        else
          update_slice(a, high.place(m), high.holds(m), tile, second_own);
      } else if constexpr (kLastOnTheWay) {
        float4 value[kPairs], high_value[kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          value[i] = masters[i * 32 + m], high_value[i] = second_tile(a, i).load(m);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const Values low = old_columns(old.slice[2 * i]), high = old_columns(old.slice[2 * i + 1]);
          const float4 first_sum = Format::outer(low, high, first_own, lane_);
          const float4 second_sum = Format::outer(low, high, second_own, lane_);
          if (i >= skipped_) {
            update_masters(a, factors(a, true), value[i], masters + i * 32 + m, first_sum);
            if (kSlots == 0 || second_tile(a, i).holds(m))
              update_masters(a, factors(a, true), high_value[i], second_tile(a, i).place(m), second_sum);
          }
          masters[i * 32 + m] = value[i];
          second_tile(a, i).store(m, high_value[i]);
          w[i] = Format::weights(value[i]);
          second[i] = Format::weights(high_value[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const Values low = old_columns(old.slice[2 * i]), high = old_columns(old.slice[2 * i + 1]);
          float4* place = masters + i * 32 + m;
          const float4 first_sum = Format::outer(low, high, first_own, lane_);
          if (i >= skipped_) update_masters(a, factors(a, true), *place, place, first_sum);
          const SecondTile tile = second_tile(a, i);
          if constexpr (Format::kUpdatesTwo && kSlots == 0)
            if (tile.lanes == 1) {
              Format::update_two(tile, low, high, Format::load_own_two(dlogits + kTile, lane_),
                                 a.update_factor, i >= skipped_, lane_);
              continue;
            }
          const float4 second_sum = Format::outer(low, high, second_own, lane_);
          if constexpr (kSlots > 0) {
            if (i >= skipped_ && tile.holds(m))
              update_masters(a, factors(a, true), *tile.place(m), tile.place(m), second_sum);
          } else {
            if (i >= skipped_) tile.store(m, updated(a, tile.load(m), second_sum));
          }
        }
      }
      warp_sync();  // other lanes of this warp read these
    }
    if (kLastOnTheWay && step > 0) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      w[i] = Format::load_weights(masters + i * 32, lane_);
      second[i] = Format::load_second(second_tile(a, i), lane_);
    }
  }

  MACHINE_DEVICE void multiply_first(const Arguments& a, int step, int batch) {
    wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step);
    clear_first_sums();
    for_inputs(a, a.x_rows, plan_of(a).x_rows_offset, batch,
               [&](int i, const Fragments& x) { multiply_first_pair(a, i, x); });
  }
  MACHINE_DEVICE void clear_first_sums() {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) first_sums_[c] = {};
  }
  MACHINE_DEVICE void multiply_first_pair(const Arguments& a, int i, const Fragments& x) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      Format::multiply_inputs(first_sums_[c], i & 1, x, first_weights(a, i, c), lane_);
  }
  MACHINE_DEVICE Owns load_first_own(const Arguments& a) const {
    Owns own;
    if constexpr (kTurned) {
      own = Owns::load(own_gradient(a, 0), lane_);
    } else {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) own.slice[c] = load_own(own_gradient(a, 0, c), kTile);
    }
    return own;
  }
  MACHINE_DEVICE void update_first_pair(const Arguments& a, int i, const Fragments& x, const Owns& own) {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      const float4 sum = outer_inputs(x, own, c);
      float4& master = Format::kFirstInRegisters ? first_[c * kInputs + i]
                                                 : (first_masters(a, c) + Format::master_lane(lane_))[i * 32];
      if constexpr (kSlots > 0 && Format::kFirstInRegisters) {
        if (i < input_pairs_)
          update_values(a, factors(a), sum, master, first_slot(a, i, 0), first_slot(a, i, 1));
      } else {
        if (i < input_pairs_) update_masters(a, factors(a), master, &master, sum);
      }
    }
  }
  /// And the product of the next step, if there is one.
  MACHINE_DEVICE void update_first_and_multiply(const Arguments& a, int step, const EarlyInputs& columns) {
    if constexpr (kEarlyInputs < kInputs) wait_for_inputs(a, 1, plan_of(a).x_columns_offset, step);
    if (step + 1 < a.steps) wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
    const Owns own = load_first_own(a);
    clear_first_sums();
    for_inputs(a, a.x_rows, plan_of(a).x_rows_offset, next_batch_, [&](int i, const Fragments& x) {
      if (kBiasesInStep && i == kInputs - 1 && input_pairs_ < kInputs) return;  // most warps, of 784 inputs
      update_first_pair(a, i, i < kEarlyInputs ? columns[i] : load_column_inputs(a, i), own);
      multiply_first_pair(a, i, x);
    });
    if (warp_ == (kBiasesInStep ? 2 : 7)) update_own_bias(a, 0, factors(a));  // 7 has more inputs
  }
  MACHINE_DEVICE void update_first(const Arguments& a, int step) {
    wait_for_inputs(a, 1, plan_of(a).x_columns_offset, step);
    const Owns own = load_first_own(a);
    for_inputs(a, a.x_columns, plan_of(a).x_columns_offset, batch_,
               [&](int i, const Fragments& x) { update_first_pair(a, i, x, own); });
    warp_sync();
    if (warp_ == 7) update_own_bias(a, 0, factors(a));
  }

  MACHINE_DEVICE void update_own_bias(const Arguments& a, int layer, const Factors& factors = {}) const {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      update_bias(a, load_tile<Format::kWords>(own_gradient(a, layer, c), lane_),
                  floats(plan_of(a).bias_offset) + 8 * (kOwn * layer + c), factors);
  }
  /// Of a tile's columns 2 * lane and 2 * lane + 1, in the first four lanes.
  MACHINE_DEVICE static float2 sum_of_rows(const Values& tile) {
    float2 sum = make_float2(0, 0);
    if constexpr (Format::kWords == 4) {
      sum = Format::sum_of_rows(Format::transposed(tile));
    } else {
#pragma unroll
      for (int i = 0; i < 8; i += 2) sum.x += Format::at(tile, i), sum.y += Format::at(tile, i + 1);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2)
        sum.x += shuffle_xor(sum.x, mask), sum.y += shuffle_xor(sum.y, mask);
    }
    return sum;
  }
  /// bias [8] += factor * the sum of a tile's rows
  MACHINE_DEVICE void update_bias(const Arguments& a, const Values& tile, float* bias,
                                  const Factors& factors = {}) const {
    const float2 sum = sum_of_rows(tile);
    if (lane_ >= 4) return;
    if constexpr (kSlots > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& own = bias[2 * lane_ + i];
        update_value(a, factors, i == 0 ? sum.x : sum.y, own, *slot_of(a, &own, 0),
                     *slot_of(a, &own, kSlots - 1));
      }
      return;
    }
    bias[2 * lane_] = fmaf(a.update_factor, sum.x, bias[2 * lane_]);
    bias[2 * lane_ + 1] = fmaf(a.update_factor, sum.y, bias[2 * lane_ + 1]);
  }

  // ---- partial sums

  MACHINE_DEVICE float4* partial(const Arguments& a, int warp, int c = 0) const {
    return reinterpret_cast<float4*>(shared_memory() + plan_of(a).partial_offset) +
           ((partial_ * kOwn + c) * kWarps + warp) * (kPartialTile / 16);
  }
  /// Both halves of this lane's place, or of lane t's of its quad; only the first last_lanes have one.
  MACHINE_DEVICE float4* last_partial(const Arguments& a, int warp) const {
    return last_partial(a, warp, lane_ & 3);
  }
  MACHINE_DEVICE float4* last_partial(const Arguments& a, int warp, int t) const {
    float4* begin = kOwn == 1 ? reinterpret_cast<float4*>(shared_memory() + plan_of(a).last_partial_offset)
                              : partial(a, 0, 1);  // the logits have no sums there
    return begin + ((warp * 8 + (lane_ >> 2)) * plan_of(a).last_lanes + t) * 2;
  }
  /// Of each of this member's slices, or of the logits.
  template <int kSlices>
  MACHINE_DEVICE void store_partial(const Arguments& a, const typename Format::Sums (&sums)[kSlices]) {
    partial_ ^= 1;
#pragma unroll
    for (int c = 0; c < kSlices; ++c) {
      float value[8];
      sums[c].finish(value, lane_);
      float4* mine = partial(a, warp_, c) + lane_;
      mine[0] = make_float4(value[0], value[1], value[2], value[3]);
      mine[32] = make_float4(value[4], value[5], value[6], value[7]);
    }
  }
  /// What this lane publishes of the sums.
  MACHINE_DEVICE void add_partial(const Arguments& a, float (&sums)[4]) const {
    const float4* mine =
        partial(a, kFirstHiddenWarp, published()) + publisher().half * 32 + publisher().position;
    const float4 total = add_up<kHiddenWarps>(mine, kPartialTile / 16);
    sums[0] = total.x, sums[1] = total.y, sums[2] = total.z, sums[3] = total.w;
  }

  // ---- inputs

  /// Extra pairs go to the last warps: the first has to publish.
  MACHINE_DEVICE static int input_begin(const Arguments& a, int rank, int warp) {
    if constexpr (kInputTeam == 1) return part_begin(plan_of(a).input_pairs, kInputWarps, warp);
    const int begin = part_begin(plan_of(a).input_pairs, kTeam, rank);
    return begin + part_begin(part_begin(plan_of(a).input_pairs, kTeam, rank + 1) - begin, kInputWarps, warp);
  }
  MACHINE_DEVICE static int part_begin(int count, int parts, int part) {
    return part * (count / parts) + max(0, part - (parts - count % parts));
  }
  /// Where this warp's inputs begin: of a batch, or of what this member stages of it.
  MACHINE_DEVICE int input_byte(bool staged) const {
    return 2 * (input_begin_ - (kTeam > 1 && staged ? input_first_ : 0)) * kTile + lane_ * 16;
  }
  /// use(i, fragments) for this warp's pairs of inputs of this step's batch. Beyond its own a warp takes its last pair
  /// again, against weights of zero, so that no load hangs on a condition.
  template <class Use>
  MACHINE_DEVICE void for_inputs(const Arguments& a, const unsigned char* memory, int offset, int batch,
                                 Use&& use) const {
    if (input_pairs_ == 0) return;
    const int begin = input_byte(offset >= 0);
    const auto each = [&](const unsigned char* x, auto&& load) {
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        Fragments f;
#pragma unroll
        for (int part = 0; part < 2 * Format::kParts; ++part)
          assign(f, part, load(x + min(i, input_pairs_ - 1) * 2 * kTile + part * 512));
        use(i, f);
      }
    };
    const unsigned char* unstaged = memory + batch * plan_of(a).x_batch_bytes + begin;
    if constexpr (kRollsInputs) {
      if (offset >= 0)
        roll_inputs(shared_memory() + offset + begin, use,
                    [](const unsigned char* address) { return load_shared16(address); });
      else
        roll_inputs(unstaged, use, [](const unsigned char* address) { return load_constant16(address); });
    } else if (offset >= 0) {
      each(shared_memory() + offset + begin,
           [](const unsigned char* address) { return load_shared16(address); });
    } else {
      each(unstaged, [](const unsigned char* address) { return load_constant16(address); });
    }
  }
  /// One pair on its way while another is used.
  template <class Use, class Load>
  MACHINE_DEVICE void roll_inputs(const unsigned char* x, Use&& use, Load&& load) const {
    const auto fragments = [&](int i) {
      Fragments f;
#pragma unroll
      for (int part = 0; part < 2 * Format::kParts; ++part)
        assign(f, part, load(x + i * 2 * kTile + part * 512));
      return f;
    };
    Fragments next = fragments(0);
#pragma unroll 1
    for (int i = 0; i < input_pairs_; ++i) {
      const Fragments now = next;
      next = fragments(min(i + 1, input_pairs_ - 1));
      use(i, now);
    }
  }
  /// Pair i of this warp's inputs of this step's batch, as columns.
  MACHINE_DEVICE Fragments load_column_inputs(const Arguments& a, int i) const {
    const unsigned char* x =
        (plan_of(a).x_columns_offset >= 0 ? shared_memory() + plan_of(a).x_columns_offset
                                          : a.x_columns + batch_ * plan_of(a).x_batch_bytes) +
        input_byte(plan_of(a).x_columns_offset >= 0) + 2 * max(0, min(i, input_pairs_ - 1)) * kTile;
    Fragments f;
#pragma unroll
    for (int part = 0; part < 2 * Format::kParts; ++part) assign(f, part, load_generic16(x + part * 512));
    return f;
  }
  /// The same of the next step, as rows, where there is always room to stage them.
  MACHINE_DEVICE Fragments load_row_inputs(const Arguments& a, int i) const {
    const unsigned char* x = shared_memory() + plan_of(a).x_rows_offset + input_byte(true) +
                             2 * max(0, min(i, input_pairs_ - 1)) * kTile;
    Fragments f;
#pragma unroll
    for (int part = 0; part < 2 * Format::kParts; ++part) assign(f, part, load_shared16(x + part * 512));
    return f;
  }
  MACHINE_DEVICE void load_inputs(const Arguments& a, EarlyInputs& columns, int step) const {
    if (kEarlyInputs == 0) return;
    wait_for_inputs(a, 1, plan_of(a).x_columns_offset, step);
    const auto each = [&](const unsigned char* memory, auto&& load) {
      const unsigned char* x = memory + input_byte(plan_of(a).x_columns_offset >= 0);
#pragma unroll
      for (int i = 0; i < kEarlyInputs; ++i)
#pragma unroll
        for (int part = 0; part < 2 * Format::kParts; ++part)
          assign(columns[i], part, load(x + max(0, min(i, input_pairs_ - 1)) * 2 * kTile + part * 512));
    };
    if (plan_of(a).x_columns_offset >= 0)
      each(shared_memory() + plan_of(a).x_columns_offset,
           [](const unsigned char* address) { return load_shared16(address); });
    else
      each(a.x_columns + batch_ * plan_of(a).x_batch_bytes,
           [](const unsigned char* address) { return load_constant16(address); });
  }
  // Rows and columns of a batch are staged by one bulk copy each, one thread's work. A buffer is overwritten behind a
  // barrier that all have passed since they read it.
  MACHINE_DEVICE std::uint32_t staging_barrier(const Arguments& a, int which) const {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(plan_of(a).staging_barrier_offset) +
           8 * static_cast<std::uint32_t>(which);
  }
  MACHINE_DEVICE void begin_staging(const Arguments& a) const {
    if (thread_index() == 0) {
      barrier_init(staging_barrier(a, 0), 1);
      barrier_init(staging_barrier(a, 1), 1);
      barrier_init_fence();
    }
    block_sync();
  }
  MACHINE_DEVICE void stage(const Arguments& a, int which, const unsigned char* memory, int offset, int batch,
                            int thread) const {
    if (offset < 0 || thread_index() != thread) return;
    const auto bytes = static_cast<std::uint32_t>(
        kTeam == 1 ? plan_of(a).x_batch_bytes
                   : std::int64_t{2} * (input_begin(a, rank_ + 1, 0) - input_first_) * kTile);
    fence_proxy_async_shared();
    barrier_arrive_expect(staging_barrier(a, which), bytes);
    if (kTeam > 1 && bytes == 0) return;
    bulk_load(shared_memory() + offset,
              memory + batch * plan_of(a).x_batch_bytes + (kTeam == 1 ? 0 : 2 * input_first_ * kTile), bytes,
              staging_barrier(a, which));
  }
  /// Of the next step.
  MACHINE_DEVICE void stage_rows(const Arguments& a, int thread = kThreads - 1) const {
    stage(a, 0, a.x_rows, plan_of(a).x_rows_offset, next_batch_, thread);
  }
  MACHINE_DEVICE void stage_columns(const Arguments& a, int thread = kThreads - 1) const {
    stage(a, 1, a.x_columns, plan_of(a).x_columns_offset, batch_, thread);
  }
  /// Nothing but this device's own memory is waited for, so this needs no bound.
  MACHINE_DEVICE void wait_for_inputs(const Arguments& a, int which, int offset, int step) const {
    if (offset < 0) return;
    while (!warp_all(barrier_try_wait(staging_barrier(a, which), static_cast<std::uint32_t>(step) & 1))) {
    }
  }
  MACHINE_DEVICE auto first_weights(const Arguments& a, int i, int c) const {
    if constexpr (kTurned)
      return Format::turned_weights(first_[i], first_[kInputs + i], c);
    else if constexpr (Format::kFirstInRegisters)
      return Format::weights(first_[c * kInputs + i]);
    else
      return Format::load_weights(first_masters(a, c) + i * 32, lane_);
  }

  // ---- start and end of a launch

  /// Which of a pair's 16 columns lies at a place of its masters. Of hidden columns it may be the exchange's order.
  MACHINE_DEVICE static int column_of_place(int layer, int place) {
    if constexpr (requires { Exchange::column_of_place(place); })
      return layer == 0 ? place : Exchange::column_of_place(place);
    else
      return place;
  }
  /// visit(own value, whether it exists, its place in the flat parameters): the four values of a lane in a pair of
  /// masters, whose columns begin with `column` and outputs with `output`; transposed: the weight's rows are the columns.
  template <int kSlices = 2, class Visit>
  MACHINE_DEVICE void for_pair(const Arguments& a, int layer, float4& pair, int master_lane, int column,
                               int output, bool transposed, bool exists, Visit&& visit) const {
    // From the arguments, also where the plan is a constant (plan_of()): with constant widths more places are worked out at once than
    // there are registers for.
    const int in = a.plan.widths[layer], out = a.plan.widths[layer + 1];
    float* values[4] = {&pair.x, &pair.y, &pair.z, &pair.w};
#pragma unroll
    for (int c = 0; c < 2 * kSlices; ++c) {
      const int x = column + column_of_place(layer, (c >> 1) * 8 + (master_lane >> 2)),
                y = output + 2 * (master_lane & 3) + (c & 1);
      const int row = transposed ? x : y, place = transposed ? y : x;
      visit(*values[c], exists && row < out && place < in,
            a.plan.weight_begin[layer] + std::int64_t{row} * in + place);
    }
  }
  /// All masters of this member that are real, each with its place: rows(), columns() and the last layer's second copies.
  template <class Visit, class Mirror>
  MACHINE_DEVICE void for_masters(const Arguments& a, Visit&& visit, Mirror&& mirror) {
    if constexpr (kServes)
      if (serves()) return;
    const int m = lane_;
    if (!kAhead || has_inputs())
#pragma unroll
      for (int held = 0; held < kOwn * kInputs; ++held) {
        const int lane = Format::kFirstInRegisters ? Format::master_lane(lane_) : m;
        const int i = held % kInputs, c = held / kInputs;
        if (kOwn > 1 && !Format::kFirstInRegisters && i >= input_pairs_) continue;
        float4& pair = Format::kFirstInRegisters ? first_[held] : first_masters(a, c)[i * 32 + m];
        if constexpr (kTurned)
          for_pair(a, 0, pair, lane, own_column(0), (input_begin_ + i) * 16 + 8 * c, true, i < input_pairs_,
                   visit);
        else
          for_pair(a, 0, pair, lane, (input_begin_ + i) * 16, own_column(c), false, i < input_pairs_, visit);
      }
    if (kMoreWarps && has_inputs()) return;
    for_hidden_masters(a, visit, mirror);
  }
  /// Of all layers but the first.
  template <class Visit, class Mirror>
  MACHINE_DEVICE void for_hidden_masters(const Arguments& a, Visit&& visit, Mirror&& mirror) {
    const int last = layers(a) - 1, m = lane_;
#pragma unroll 1
    for (int i = 0; i < kPairs; ++i) {
      const int column = first_slice_ * 8 + i * 16;
      const bool exists = i >= skipped_;
#pragma unroll 1
      for (int layer = 1; layer < last; ++layer)
#pragma unroll 1
        for (int c = 0; c < kOwn; ++c) {
          float4 &row = matrix(plan_of(a).rows_offset, layer, c)[i * 32 + m],
                 &own = matrix(plan_of(a).columns_offset, layer, c)[i * 32 + m];
          if constexpr (kTurned) {
            for_pair(a, layer, row, m, own_column(0), column + 8 * c, true, exists, visit);
            for_pair(a, layer, own, m, own_column(0), column + 8 * c, false, exists, mirror);
          } else {
            for_pair<kPairSlices>(a, layer, row, m, column, own_column(c), false, exists, visit);
            for_pair<kPairSlices>(a, layer, own, m, column, own_column(c), true, exists, mirror);
          }
        }
      for_pair<kPairSlices>(a, last, matrix(plan_of(a).last_offset[0], 1)[i * 32 + m], m, column, 0, false,
                            exists, visit);
      for_pair<kPairSlices>(a, last, matrix(plan_of(a).last_offset[0], 1)[i * 32 + m], m, column, 0, false,
                            exists, mirror);
      const SecondTile tile = second_tile(a, i);
      if (tile.holds(m)) {
        float4& pair = const_cast<float4*>(tile.pair)[(m >> 2) * tile.lanes + (m & 3)];
        for_pair<kPairSlices>(a, last, pair, m, column, 8, false, exists, visit);
        for_pair<kPairSlices>(a, last, pair, m, column, 8, false, exists, mirror);
      }
    }
  }
  template <class Visit>
  MACHINE_DEVICE void for_biases(const Arguments& a, Visit&& visit) const {
    const int last = layers(a) - 1;
    if (warp_ < last && lane_ < 8 * kOwn)
      visit(floats(plan_of(a).bias_offset)[8 * kOwn * warp_ + lane_],
            own_column(0) + lane_ < a.plan.widths[warp_ + 1],
            a.plan.bias_begin[warp_] + own_column(0) + lane_);
    if (warp_ == 7 && lane_ < kMostClasses)
      visit(floats(plan_of(a).last_bias_offset)[lane_], lane_ < plan_of(a).classes,
            a.plan.bias_begin[last] + lane_);
  }

  /// Masters and biases of this member, by the warps that have them, out of the flat parameters; everything else zero.
  template <int kThreadCount = kBlock>
  MACHINE_DEVICE void load(const Arguments& a, bool owns = true) {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < plan_of(a).shared_bytes; byte += kThreadCount * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
    if (owns) load_masters(a);
    block_sync();
  }
  MACHINE_DEVICE void load_masters(const Arguments& a) {
    const auto take = [&](float& own, bool exists, std::int64_t place) {
      own = exists ? a.parameters[place] : 0.0f;
    };
    for_masters(a, take, take);
    for_biases(a, take);
    if constexpr (kSlots > 0)
      for_slots(a, [&](float& own, bool exists, std::int64_t place, int slot, bool) {
        own = exists ? a.slots[slot][place] : 0.0f;
      });
  }
  /// visit(a slot, whether its parameter exists, its place, which slot, whether it is the mirror's) of all masters and biases.
  template <class Visit>
  MACHINE_DEVICE void for_slots(const Arguments& a, Visit&& visit) {
    if constexpr (kServes)
      if (serves()) return;
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      const auto visit_own = [&](float& own, bool exists, std::int64_t place) {
        visit(*slot_of(a, &own, slot), exists, place, slot, false);
      };
#pragma unroll 1
      for (int i = 0; i < kInputs; ++i) {
        const int column = (input_begin_ + i) * 16,
                  lane = Format::kFirstInRegisters ? Format::master_lane(lane_) : lane_;
        if constexpr (Format::kFirstInRegisters)
          for_pair(
              a, 0, *first_slot(a, i, slot), lane, column, own_column(0), false, i < input_pairs_,
              [&](float& own, bool exists, std::int64_t place) { visit(own, exists, place, slot, false); });
        else if (i < input_pairs_)
          for_pair(a, 0, first_masters(a)[i * 32 + lane], lane, column, own_column(0), false, true,
                   visit_own);
      }
      for_hidden_masters(a, visit_own, [&](float& own, bool exists, std::int64_t place) {
        visit(*slot_of(a, &own, slot), exists, place, slot, true);
      });
      for_biases(a, visit_own);
    }
  }
  /// The whole last layer comes from the first member, its mirror from the last. What a team does not divide comes from its
  /// first member, too, and the mirror from its last; in clusters each has updated a part of the pairs.
  MACHINE_DEVICE bool stores_hidden(int rank) const {
    return kInClusters ? warp_ / (kWarps / kTeam) == rank_ : rank_ == rank;
  }
  MACHINE_DEVICE void store(const Arguments& a) {
    const std::int64_t last_begin = a.plan.weight_begin[layers(a) - 1], divided_end = a.plan.bias_begin[0];
    for_masters(
        a,
        [&](const float& own, bool exists, std::int64_t place) {
          if (kInClusters && place < divided_end && rank_ > 0) return;
          if (kWhole && place >= divided_end && !stores_hidden(0)) return;
          if (exists && (place < last_begin || member_ == 0)) a.parameters[place] = own;
        },
        [&](const float& own, bool exists, std::int64_t place) {
          if (kWhole && !stores_hidden(kTeam - 1)) return;
          if (exists && (place < last_begin || member_ == plan_of(a).members / kOwn - 1))
            a.mirror[place] = own;
        });
    for_biases(a, [&](const float& own, bool exists, std::int64_t place) {
      if (exists && rank_ == 0 && (place < last_begin || member_ == 0)) a.parameters[place] = own;
    });
    if constexpr (kSlots > 0)
      for_slots(a, [&](const float& own, bool exists, std::int64_t place, int slot, bool is_mirror) {
        if (exists && !is_mirror && (place < last_begin || member_ == 0)) a.slots[slot][place] = own;
      });
  }

  // ---- places

  /// The first of the pairs that this warp reads. A warp beyond the last pair reads the last ones and skips them.
  MACHINE_DEVICE static int first_pair(const Arguments& a, int share) {
    return min(share * kPairs, plan_of(a).members / kPairSlices - kPairs);
  }
  /// That which has this member's slices.
  MACHINE_DEVICE int own_pair() const { return member_ * kOwn / kPairSlices; }
  /// Shares of hidden columns. In a team without enough of them those warps that publish have none.
  MACHINE_DEVICE static int share_of(int warp, int rank) {
    return kTeam == 1 || kWhole ? warp : (kWarps - 1 - warp) * kTeam + rank;
  }
  MACHINE_DEVICE static int warp_of(int share) { return kTeam == 1 ? share : kWarps - 1 - share / kTeam; }
  MACHINE_DEVICE static int gradient_exchange(const Arguments& a, int layer) {
    return layers(a) - 1 + layer - 1;
  }
  /// This warp's masters of one of the matrices at `offset`.
  MACHINE_DEVICE float4* matrix(int offset, int layer, int c = 0) const {
    return reinterpret_cast<float4*>(shared_memory() + offset) +
           (((layer - 1) * kOwn + c) * kWarps + warp_) * (kPairs * 32);
  }
  MACHINE_DEVICE SecondTile second_tile(const Arguments& a, int i) const {
    const int lanes = plan_of(a).last_lanes;
    return {reinterpret_cast<const float4*>(shared_memory() + plan_of(a).last_offset[1]) +
                (warp_ * kPairs + i) * 8 * lanes,
            lanes};
  }
  MACHINE_DEVICE int own_column(int c) const { return 8 * (member_ * kOwn + c); }
  MACHINE_DEVICE float4* first_masters(const Arguments& a, int c = 0) const {
    const int pair = kOwn == 1 ? (warp_ - kFirstInputWarp) * kInputs
                               : c * plan_of(a).member_input_pairs + input_begin_ - input_first_;
    return reinterpret_cast<float4*>(shared_memory() + plan_of(a).first_offset) + pair * 32;
  }
  /// Only the first layer's are still needed when the next step makes its own. (With one slice there is room for all.)
  MACHINE_DEVICE static int hidden_place(int layer, int step) {
    return kOwn == 1 ? 2 * layer + (step & 1) : layer > 0 ? layer + 1 : step & 1;
  }
  MACHINE_DEVICE unsigned char* own_hidden(const Arguments& a, int layer, int step, int c = 0) const {
    return shared_memory() + plan_of(a).hidden_offset + (hidden_place(layer, step) * kOwn + c) * kOwnTile;
  }
  MACHINE_DEVICE unsigned char* own_gradient(const Arguments& a, int layer, int c = 0) const {
    return shared_memory() + plan_of(a).gradient_offset + (layer * kOwn + c) * kOwnTile;
  }
  MACHINE_DEVICE float2 bias_of(const Arguments& a, int layer, int c) const {
    return reinterpret_cast<const float2*>(shared_memory() +
                                           plan_of(a).bias_offset)[(layer * kOwn + c) * 4 + (lane_ & 3)];
  }
  MACHINE_DEVICE static float* floats(int offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }

  static constexpr int kTile = 512 * Format::kParts, kOwnTile = (kKeepsColumns ? 2 : 1) * kTile;
  static constexpr int kPublishers = 2 * kOwn, kLossWarps = 4;
  // A thread block begins with 168 for each of its 12 warps.
  static constexpr int kMultiplyingRegisters = 216, kServingRegisters = 72;
  static constexpr int kOwnGradientWarp = 5;  // makes this member's part of the gradient below the last layer
  static constexpr int kStepBarrier = 1, kMultiplyingBarrier = 2;  // 0 is block_sync()'s

  const int warp_, lane_, member_, rank_;  // in a team
  const int first_slice_,
      skipped_;  // of hidden layers: what this warp reads, and how many pairs are not its own
  const int input_begin_, input_pairs_;  // this warp's pairs of inputs
  const int input_first_;                // this member's
  typename Exchange::Waiter waiter_;
  Team<kTeam> team_;
  Exchange exchange_;
  int batch_ = 0, next_batch_ = 0;          // of this step and the next
  int partial_ = 0;                         // buffer of the last product
  float row_sum_ = 1, row_distance_ = 0;    // of the last loss
  typename Format::Sums first_sums_[kOwn];  // of the first layer's product
  int label_ = -1;                          // of this lane's row in the loss
  float2 rates_[2];                         // of the step before and of this one, if Adam's
  float4 first_[Format::kFirstInRegisters ? kOwn * kInputs : 1];
};

}  // namespace headroom::resident
