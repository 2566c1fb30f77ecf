// The slice kernel in fp32 with four layers or more, in teams of three or four: the first layer's sums are made a step ahead.
//
// The words (member, slice, team, exchange, tile) are those of slice_step.cuh and slice_team.cuh. The *chain* of a step is the work
// of which each part waits for the part before. In slice_step.cuh the first layer closes the chain: its gradient d1 is the last
// thing that a step makes, and its product is the first thing that the next step needs. So its update, its product, and the
// hop that adds up the team's parts of that product are all on the chain. Here only a small product is:
//
//   x(s+1) W1(s+1)' = x(s+1) W1(s)' + factor * (x(s+1) x(s)') d1(s)
//
//   W1(s) are the weights at the beginning of step s, x(s) is the batch of step s, and factor is minus the learning rate.
//   The first term needs no result of step s, so there is a whole step's time for it. The second term is a product of [32, 32]
//   and [32, 8], which can begin when d1(s) is there. One is added to every element of x(s+1) x(s)'. Then the second term also
//   holds the update of the bias, which is the sum of d1 over the batch.
//   In fp32 no weight is rounded where it enters a product. So these are the products and sums of the contract in another
//   order. The masters are updated as in slice_step.cuh, and a launch makes its first sums from the masters alone.
//
//   x x':      short for x(s+1) x(s)', the products of the next batch's rows with this batch's rows. Functions call it `gram`
//              (Gram matrix). It depends on inputs alone. Three teams behind the members make it, and nothing else. Where three
//              more teams are not resident, each of the first 64 thread blocks makes 16 elements of it beside its other work,
//              from inputs that it reads from the L2. x x' travels over the grid. Each element is published with the number
//              of its step as one 8-byte value, so a reader sees whether the element has arrived.
//   warps:     - Four have the first layer. In step s they update W1 with d1(s-1) and multiply it with x(s+1).
//              - Four have hidden columns, as in slice_step.cuh: two slices each or, up to 128 columns, one. In teams of three
//                there are eight of them.
//              - Four serve. Two of these add up partial sums and publish tiles. The other two add up the first layer's sums
//                over the team, take x x', and update biases.
//              - The first two members of a team make the first layer's activations of the next step, half of the rows each, by
//                all four warps that serve. So each of the two members takes only its half of the rows of x x'. Every member
//                then takes the team's own tile of h1 from the exchange, as it takes the tiles of other teams.
//   barriers:  those of slice_step.cuh, except for the first layer. Its partial sums are complete at the barrier of the logits'
//              partial sums. The team's sum of them, and x x', are complete at the barrier of d1's partial sums. Both lie in one
//              place each, and need no second one: whoever writes there has passed a barrier that comes after the last reading.
//   exchanges: every exchange has two buffers in turn, and so has x x'. For tiles nothing is acknowledged. Two buffers are enough:
//              - Whoever publishes a tile of step s + 2 has its team's sums of step s + 1. These are sums over tiles of every team.
//                Each of these tiles was made of sums that all members of its team had sent after the first barrier of step
//                s + 1. So all members have left step s. They have also read the tiles of step s a second time for the update
//                of the second layer.
//              - Updates of the layers above the second read their tiles of step s later in step s + 1. These places
//                are written again only after h1 of step s + 2 has arrived. That h1 was made of sums that all members
//                of its team sent at the end of step s + 1.
//              - Teams that make x x' wait for no tile, so they would run ahead. x x' of step s + 2 takes the place of that of
//                step s. These teams write it when every warp that takes x x' has said that it has taken that of step
//                s: it writes the number of the step to a word of its own (`taken`). It writes after it has read, and what it
//                writes depends on what it read. The numbers only grow, so a late look at a word does no harm.
//   launches:  when a launch ends, the first layer's sums of the step after it stay in memory for a launch that goes on there. So
//              the bits do not depend on where a launch ends.
#pragma once

#include <type_traits>

#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_step.cuh"

namespace headroom::resident {

/// How members hand each other tiles. Where waits are given up is as was measured (docs/kernels/log/resident.md, version 46): in teams
/// of three that make x x' themselves a called function costs registers, with one slice a warp it makes no difference.
template <bool kCalls>
struct AheadExchange {
  template <class Format, int kPairs>
  using Type = std::conditional_t<kCalls, SliceCallingGrid<Format, kPairs>, SliceGrid<Format, kPairs>>;
};
template <class Format, int kTeam, int kSlices, int kOfTeams>
using AheadBase =
    SliceMember<Format, AheadExchange<kSlices == 2 && (kTeam == 4 || kOfTeams > 0)>::template Type, 1, 0,
                kTeam, 1, false, kSlices>;

/// kOfTeams: teams behind the members that make x x' for them, or 0.
template <class Format, int kTeam, int kSlices, int kOfTeams>
class SliceAheadMember : AheadBase<Format, kTeam, kSlices, kOfTeams> {
  using Base = AheadBase<Format, kTeam, kSlices, kOfTeams>;
  using Base::batch_, Base::exchange_, Base::lane_, Base::member_, Base::next_batch_, Base::rank_,
      Base::team_, Base::waiter_, Base::warp_;
  using typename Base::Arguments;
  using typename Base::Fragments;
  using typename Base::Place;
  using typename Base::Tiles;

 public:
  static constexpr int kThreadCount = Base::kBlock;

  MACHINE_DEVICE explicit SliceAheadMember(const Arguments& a) : Base(a) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    if constexpr (kOfTeams > 0)
      if (member_ >= plan_of(a).members) return make_grams(a);
    Base::load(a);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    if (Base::has_inputs())
      first_layer(a);
    else if (warp_ < kWarps)
      multiply(a);
    else
      serve(a);
    block_sync();
    exchange_.end();
    team_.end();
  }

 private:
  // A thread block begins with 168 for each of its 12 warps, or 128 for each of 16.
  static constexpr int kMultiplyingRegisters = Base::kMoreWarps ? 152 : 208,
                       kServingRegisters = Base::kMoreWarps ? 104 : 160,
                       kFirstLayerRegisters = Base::kMoreWarps ? 104 : 136;
  static constexpr int kTile = 1024, kHalf = 512;

  MACHINE_DEVICE static void step_sync() { Base::step_sync(); }
  MACHINE_DEVICE static unsigned char* input_part(const Arguments& a, int part) {
    return shared_memory() + plan_of(a).exchange_offset + part * kTile;
  }
  MACHINE_DEVICE static unsigned char* input_sum(const Arguments& a) {
    return input_part(a, Base::kInputWarps);
  }
  MACHINE_DEVICE static unsigned char* gram(const Arguments& a) {
    return input_part(a, Base::kInputWarps + 1);
  }

  // ---- four warps that have the hidden layers

  MACHINE_DEVICE void multiply(const Arguments& a) {
    registers_increase<kMultiplyingRegisters>();
    step_sync();
    step_sync();
    int step = 0;
    Tiles gradient;
    if (stands_by())
      while (step <= a.steps && stand_by(a, step)) ++step;
    else
      while (step <= a.steps && Base::pass(a, step, gradient)) ++step;
    step_sync();  // biases are updated
    if (step > a.steps) Base::store(a);
  }

  /// In a team of three, a warp without hidden columns. Its partial sums are zero as at the start.
  MACHINE_DEVICE bool stands_by() const {
    return Base::kMoreWarps && Base::skipped_ > 0 && warp_ != Base::kOwnGradientWarp;
  }
  /// Stands at the barriers of pass().
  MACHINE_DEVICE bool stand_by(const Arguments& a, int step) const {
    if (step == a.steps) return true;
#pragma unroll 1
    for (int barrier = 0; barrier <= 2 * (Base::layers(a) - 1); ++barrier) step_sync();
    return !Base::anybody_timed_out(a);
  }

  // ---- four that serve

  /// What a lane publishes of the first layer's sums, without their change by the step that ends.
  struct First {
    float4 sum;
    float2 bias;
  };
  MACHINE_DEVICE bool leads() const { return Base::adds_up(); }

  MACHINE_DEVICE void serve(const Arguments& a) {
    registers_decrease<kServingRegisters>();
    step_sync();
    if (!leads()) sum_inputs(a);
    step_sync();
    float4 hidden = make_float4(0, 0, 0, 0);  // of the first layer, before ReLU
    if (makes_hidden()) hidden = begin_hidden(a);
    int step = 0;
    while (step < a.steps && serve_step(a, step, hidden)) ++step;
    if (!leads() && step == a.steps && step > 0) update_biases(a, step - 1);
    step_sync();
    if (makes_hidden() && publishes_hidden() && step == a.steps) *carried(a) = hidden;
  }
  MACHINE_DEVICE float4* carried(const Arguments& a) const {
    return reinterpret_cast<float4*>(a.ahead) + member_ * (kTile / 16) + first_place() / 16;
  }
  MACHINE_DEVICE int place() const { return Base::publisher().template byte<Format::kParts>(); }
  MACHINE_DEVICE float4 begin_hidden(const Arguments& a) const {
    if (a.continues) return *carried(a);
    const First first = load_first(a);
    return make_float4(first.sum.x + first.bias.x, first.sum.y + first.bias.y, first.sum.z + first.bias.x,
                       first.sum.w + first.bias.y);
  }

  // The first layer's activations: of a team the first two members make and publish half of them each, by all four warps, eight
  // places a warp and a quarter of the product with x x' a lane.

  static constexpr int kHiddenMakers = 2, kHiddenPlaces = 8, kProductParts = 4;
  MACHINE_DEVICE bool makes_hidden() const { return rank_ < kHiddenMakers; }
  MACHINE_DEVICE bool publishes_hidden() const { return lane_ < kHiddenPlaces; }
  MACHINE_DEVICE int product_part() const { return lane_ / kHiddenPlaces; }
  MACHINE_DEVICE Publisher hidden_publisher() const {
    return {16 * rank_ + kHiddenPlaces * (Base::serving_warp() & 1) + lane_ % kHiddenPlaces,
            Base::serving_warp() >> 1};
  }
  MACHINE_DEVICE int first_place() const { return hidden_publisher().template byte<Format::kParts>(); }

  /// False if a wait ran out.
  MACHINE_DEVICE bool serve_step(const Arguments& a, int step, float4& hidden) {
    exchange_.begin_step(a, step);
    Base::next_batch(a);
    if (makes_hidden()) publish_first(a, step, hidden);
    if (!leads()) {
      if (step > 0) update_biases(a, step - 1);
      keep_first(a, step);
    }
    Base::load_label(a);
    const int last = Base::layers(a) - 1;
    float gram_sum[2][4] = {};
#pragma unroll 1
    for (int layer = 1; layer < last; ++layer) {
      const Place to = exchange_.template place<false>(a, member_, Base::publisher(), layer);
      Base::await_sums();
      if (leads()) Base::publish_hidden(a, layer, step, to);
      if (makes_gram() && layer <= 2) add_gram(a, own_part(), layer - 1, gram_sum);
    }
    if (makes_gram()) publish_gram(a, own_part(), step, gram_sum);
    Base::await_sums();  // of the logits
    Base::gradient_of_loss(a);
    if (Base::is_first()) Base::keep_row_loss(a);
    step_sync();  // the logits' gradient is complete
    First first;
#pragma unroll 1
    for (int layer = last - 1; layer >= 1; --layer) {
      Place to;
      if (layer > 1)
        to = exchange_.template place<true>(a, member_, Base::publisher(),
                                            Base::gradient_exchange(a, layer - 1));
      Base::await_sums();
      if (leads()) Base::publish_gradient(a, layer - 1, step, to);
      if (!leads() && layer == 2) collect(a, step);
    }
    if (makes_hidden()) first = load_first(a);
    Base::tell_timed_out(a);
    step_sync();  // the first layer's gradient is complete
    if (Base::anybody_timed_out(a)) return false;
    if (makes_hidden()) hidden = next_hidden(a, first);
    return true;
  }
  /// By the two that publish nothing.
  MACHINE_DEVICE void update_biases(const Arguments& a, int step) {
    if (Base::serving_warp() == 2) {
#pragma unroll 1
      for (int layer = 0; layer < Base::layers(a) - 1; ++layer) Base::update_own_bias(a, layer);
    } else {
      Base::update_last_bias(a);
      if (Base::is_first()) Base::store_loss(a, step);
    }
  }
  MACHINE_DEVICE void collect(const Arguments& a, int step) {
    sum_inputs(a);
    if (makes_hidden()) {
      take_gram(a, step);
      if (kOfTeams > 0 && lane_ == 0)
        store_relaxed_gpu_32(taken(a) + member_ * kTakenWords + 2 * rank_ + (Base::serving_warp() & 1),
                             static_cast<std::uint32_t>(step));
    }
  }
  MACHINE_DEVICE void publish_first(const Arguments& a, int step, const float4& hidden) {
    const Place to = exchange_.template place<false>(a, member_, hidden_publisher(), 0);
    const uint4 packet = make_uint4(float_to_bits(relu(hidden.x)), float_to_bits(relu(hidden.y)),
                                    float_to_bits(relu(hidden.z)), float_to_bits(relu(hidden.w)));
    if (publishes_hidden()) exchange_.template publish<false>(a, packet, hidden_publisher(), to);
  }
  /// The team's own tile of them, half by each of the two warps that do not lead, as it was published.
  MACHINE_DEVICE void keep_first(const Arguments& a, int step) {
    const auto awaited = exchange_.template awaited<false>(a, 0);
    const int byte = (Base::serving_warp() & 1) * kHalf + lane_ * 16;
    uint4 packet;
    waiter_.wait_while(a, 0, [&] {
      packet = load_relaxed_gpu_128(awaited.tiles + member_ * kTile + byte);
      return ((packet.w ^ awaited.want) & awaited.mark) != 0;
    });
    packet.w &= ~awaited.mark;
    *reinterpret_cast<uint4*>(Base::own_hidden(a, 0, step) + byte) = packet;
  }
  /// The first layer's parts of this member, then of its team.
  MACHINE_DEVICE void sum_inputs(const Arguments& a) {
    float4 sum = *reinterpret_cast<const float4*>(input_part(a, 0) + place());
#pragma unroll
    for (int part = 1; part < Base::kInputWarps; ++part)
      sum = add(sum, *reinterpret_cast<const float4*>(input_part(a, part) + place()));
    *reinterpret_cast<float4*>(input_sum(a) + place()) = team_.sum(a, waiter_, Base::serving_warp(), sum);
  }
  MACHINE_DEVICE First load_first(const Arguments& a) const {
    return {*reinterpret_cast<const float4*>(input_sum(a) + first_place()), Base::bias_of(a, 0, 0)};
  }
  /// Four columns of this lane's two rows of x(s+1) x(s)', and as many rows of d1.
  struct Change {
    float4 gram[2];
    uint4 gradient[2];
  };
  MACHINE_DEVICE Change load_change(const Arguments& a, int chunk) const {
    const Publisher publisher = hidden_publisher();
    const int row = 16 * publisher.half + (publisher.position >> 2);
    const unsigned char* gradient =
        Base::own_gradient(a, 0) + chunk * 128 + (publisher.position & 3) * 16;  // rows, 8 apart, of a half
    Change change;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      change.gram[i] = *reinterpret_cast<const float4*>(gram(a) + gram_byte(row + 8 * i, chunk));
      change.gradient[i] = load_shared16(gradient + i * 64);
    }
    return change;
  }
  MACHINE_DEVICE float4 next_hidden(const Arguments& a, const First& first) const {
    constexpr int kChunks = 8 / kProductParts;
    Change change[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) change[c] = load_change(a, product_part() * kChunks + c);
    float sum[4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4& two = change[c].gradient[k];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4& four = change[c].gram[i];
          const float low = k == 0 ? four.x : four.z, high = k == 0 ? four.y : four.w;
          sum[2 * i] = fmaf(high, bits_to_float(two.z), fmaf(low, bits_to_float(two.x), sum[2 * i]));
          sum[2 * i + 1] = fmaf(high, bits_to_float(two.w), fmaf(low, bits_to_float(two.y), sum[2 * i + 1]));
        }
      }
#pragma unroll
    for (int mask = kHiddenPlaces; mask < 32; mask *= 2)
#pragma unroll
      for (float& of_four : sum) of_four += shuffle_xor(of_four, mask);
    const auto changed = [&](float before, int i, float bias) {
      return fmaf(a.update_factor, sum[i], before) + bias;
    };
    return make_float4(changed(first.sum.x, 0, first.bias.x), changed(first.sum.y, 1, first.bias.y),
                       changed(first.sum.z, 2, first.bias.x), changed(first.sum.w, 3, first.bias.y));
  }

  // ---- x(s+1) x(s)' [32, 32]: rows of the next batch; rows of this one in the order in which a tile has them, g of a half and
  // then g + 8. In shared memory in an order in which lanes that read 16 bytes of eight rows meet no bank twice.

  MACHINE_DEVICE static int gram_byte(int row, int chunk) {
    return row * 128 + ((chunk ^ ((row & 3) | (row >> 4 & 1) << 2)) * 16);
  }
  MACHINE_DEVICE unsigned char* gram_exchange(const Arguments& a, int step) const {
    return a.exchange + plan_of(a).behind_tiles + (step & 1) * kGramBytes;
  }
  /// Of each warp that takes x x', the last step whose it has, or -1.
  MACHINE_DEVICE std::uint32_t* taken(const Arguments& a) const {
    return reinterpret_cast<std::uint32_t*>(a.exchange + plan_of(a).behind_tiles + 2 * kGramBytes);
  }
  MACHINE_DEVICE bool makes_gram() const { return kOfTeams == 0 && !leads() && block_index() < kGramParts; }
  /// Of rows, 8 apart, of both batches; made by two warps, each with half of the next batch's rows.
  struct GramPart {
    int number, half;
    MACHINE_DEVICE int next_row() const { return number >> 3; }
    MACHINE_DEVICE int this_row() const { return number & 7; }
  };
  MACHINE_DEVICE GramPart own_part() const {
    return {static_cast<int>(block_index()), Base::serving_warp() & 1};
  }
  /// By teams behind the members, which have nothing else to do: all parts of all steps.
  MACHINE_DEVICE void make_grams(const Arguments& a) {
    constexpr int kPairs = kThreadCount / 64;  // of warps
    const int first = ((member_ - plan_of(a).members) * kTeam + rank_) * kPairs + warp_ / 2;
    next_batch_ = static_cast<int>(a.first_step % a.batches);
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      Base::next_batch(a);
      if (warp_ == 0) await_taken(a, step - 2);
      if (block_sync_or(waiter_.timed_out)) return;
#pragma unroll 1
      for (int number = first; number < kGramParts; number += kOfTeams * kTeam * kPairs) {
        const GramPart part = {number, warp_ & 1};
        float sum[2][4] = {};
#pragma unroll 1
        for (int inputs = 0; inputs < 2; ++inputs) add_gram(a, part, inputs, sum);
        publish_gram(a, part, step, sum);
      }
    }
  }
  /// Until everybody has a step's x x', which the next but one takes the place of.
  MACHINE_DEVICE void await_taken(const Arguments& a, int step) {
    waiter_.wait_while(a, kWaitFree, [&] {
      bool missing = false;
      for (int warp = lane_; warp < plan_of(a).members * kTakenWords; warp += 32)
        missing |= static_cast<int>(load_relaxed_gpu(taken(a) + warp)) < step;
      return missing;
    });
  }
  /// One half of the inputs, in tiles that lanes share.
  MACHINE_DEVICE void add_gram(const Arguments& a, const GramPart& part, int half, float (&sum)[2][4]) const {
    constexpr int kTiles = kInputPairs * kWarps * 2 / 8 / 2;  // of a lane, of half the inputs
    const int t = lane_ & 3, tiles = 2 * plan_of(a).input_pairs;
    const unsigned char* next = a.x_rows + next_batch_ * plan_of(a).x_batch_bytes + part.half * kHalf +
                                (4 * part.next_row() + t) * 16;
    const unsigned char* now = a.x_rows + batch_ * plan_of(a).x_batch_bytes + (4 * part.this_row() + t) * 16;
    uint4 x[kTiles], low[kTiles], high[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = (half * kTiles + i) * 8 + (lane_ >> 2);
      x[i] = low[i] = high[i] = make_uint4(0, 0, 0, 0);
      if (tile < tiles) {
        x[i] = load_constant16(next + tile * kTile);
        low[i] = load_constant16(now + tile * kTile);
        high[i] = load_constant16(now + tile * kTile + kHalf);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const std::uint32_t rows[2][2] = {{x[i].x, x[i].y}, {x[i].z, x[i].w}};
      const std::uint32_t columns[4][2] = {
          {low[i].x, low[i].y}, {low[i].z, low[i].w}, {high[i].x, high[i].y}, {high[i].z, high[i].w}};
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            sum[r][c] = fmaf(bits_to_float(rows[r][e]), bits_to_float(columns[c][e]), sum[r][c]);
    }
  }
  MACHINE_DEVICE void publish_gram(const Arguments& a, const GramPart& part, int step,
                                   const float (&sum)[2][4]) const {
    const int row = lane_ >> 4 & 1, half = lane_ >> 3 & 1, b = lane_ >> 2 & 1;
    float four[4], two[2];
#pragma unroll
    for (int c = 0; c < 4; ++c)
      four[c] = (row == 0 ? sum[0][c] : sum[1][c]) + shuffle_xor(row == 0 ? sum[1][c] : sum[0][c], 16);
#pragma unroll
    for (int c = 0; c < 2; ++c)
      two[c] = (half == 0 ? four[c] : four[2 + c]) + shuffle_xor(half == 0 ? four[2 + c] : four[c], 8);
    float element = (b == 0 ? two[0] : two[1]) + shuffle_xor(b == 0 ? two[1] : two[0], 4);
    element += shuffle_xor(element, 2);
    element += shuffle_xor(element, 1);
    const int at = (16 * part.half + 8 * row + part.next_row()) * 32 + 16 * half + 2 * part.this_row() + b;
    if ((lane_ & 3) == 0)
      store_relaxed_gpu_64(gram_exchange(a, step) + at * 8,
                           make_uint2(float_to_bits(element + 1), static_cast<std::uint32_t>(step)));
  }
  MACHINE_DEVICE void take_gram(const Arguments& a, int step) {
    const unsigned char* elements = gram_exchange(a, step);
    constexpr int kTaken = 4;  // pairs of elements of this member's rows, by a lane
    const int first = (Base::serving_warp() & 1) * 32 + lane_;
    const auto row_of = [&](int i) {
      const int own = (i * 64 + first) / 16;
      return own / 4 * 8 + 4 * rank_ + own % 4;
    };
    const int pair = first % 16;
    uint4 two[kTaken];
    waiter_.wait_while(a, kWaitTeam, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kTaken; ++i) {
        two[i] = load_relaxed_gpu_2x64(elements + (row_of(i) * 16 + pair) * 16);
        wrong |=
            (two[i].y ^ static_cast<std::uint32_t>(step)) | (two[i].w ^ static_cast<std::uint32_t>(step));
      }
      return wrong != 0;
    });
#pragma unroll
    for (int i = 0; i < kTaken; ++i)
      *reinterpret_cast<uint2*>(gram(a) + gram_byte(row_of(i), pair / 2) + pair % 2 * 8) =
          make_uint2(two[i].x, two[i].z);
  }

  // ---- four that have the first layer

  static constexpr int kStagingThread = 32 * (Base::kFirstInputWarp + Base::kInputWarps) - 1;
  /// Pairs of inputs that a warp updates and multiplies before a step's first barrier. Before each of the next it has one, before the
  /// logits' the rest.
  static constexpr int kFirstPairs = kTeam == 4 ? 1 : 2;

  MACHINE_DEVICE void first_layer(const Arguments& a) {
    registers_decrease<kFirstLayerRegisters>();
    Base::next_batch(a);
    stage_rows(a, batch_);
    Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, 0);
    Base::clear_first_sums();
#pragma unroll 1
    for (int i = 0; i < Base::kInputs; ++i) multiply_pair(a, i);
    store_part(a);
    step_sync();
    stage_rows(a, next_batch_);
    step_sync();
    const int last = Base::layers(a) - 1;
    int step = 0;
    for (bool goes_on = true; step < a.steps && goes_on; ++step) {
      Base::clear_first_sums();
      Base::wait_for_inputs(a, 0, plan_of(a).x_rows_offset, step + 1);
      if (step > 0) Base::wait_for_inputs(a, 1, plan_of(a).x_columns_offset, step - 1);
      int i = 0;
#pragma unroll 1
      for (int layer = 1; layer <= last; ++layer) {
        const int end = layer < last ? kFirstPairs + layer - 1 : Base::kInputs;
#pragma unroll 1
        for (; i < end; ++i) update_and_multiply_pair(a, i, step);
        if (layer == last) store_part(a);
        step_sync();  // the last time the logits' parts, and these
      }
      Base::stage(a, 1, a.x_rows, plan_of(a).x_columns_offset, batch_, kStagingThread);
      Base::next_batch(a);
      if (step + 1 < a.steps) stage_rows(a, next_batch_);
#pragma unroll 1
      for (int barrier = 0; barrier <= last; ++barrier) step_sync();
      goes_on = !Base::anybody_timed_out(a);
      if (!goes_on) break;
    }
    if (step == a.steps) {
      Base::wait_for_inputs(a, 1, plan_of(a).x_columns_offset, step - 1);
#pragma unroll 1
      for (int i = 0; i < Base::kInputs; ++i) update_pair(a, i);
    }
    step_sync();
    if (step == a.steps) Base::store(a);
  }
  MACHINE_DEVICE void stage_rows(const Arguments& a, int batch) const {
    Base::stage(a, 0, a.x_rows, plan_of(a).x_rows_offset, batch, kStagingThread);
  }
  MACHINE_DEVICE Fragments load_inputs(int offset, int i) const {
    const unsigned char* x = inputs(offset, i) + lane_ * 16;
    Fragments f;
#pragma unroll
    for (int part = 0; part < 2 * Format::kParts; ++part) assign(f, part, load_shared16(x + part * kHalf));
    return f;
  }
  MACHINE_DEVICE const unsigned char* inputs(int offset, int i) const {
    return shared_memory() + offset + 2 * (Base::input_begin_ - Base::input_first_ + i) * kTile;
  }
  MACHINE_DEVICE void update_and_multiply_pair(const Arguments& a, int i, int step) {
    if (step > 0) update_pair(a, i);
    multiply_pair(a, i);
  }
  MACHINE_DEVICE void update_pair(const Arguments& a, int i) {
    if (i >= Base::input_pairs_) return;
    Format::QuarterOwn::load(Base::own_gradient(a, 0), lane_)
        .update(Base::first_masters(a) + i * 32, inputs(plan_of(a).x_columns_offset, i), a.update_factor,
                lane_);
    warp_sync();  // other lanes of this warp read these
  }
  MACHINE_DEVICE void multiply_pair(const Arguments& a, int i) {
    if (i < Base::input_pairs_) Base::multiply_first_pair(a, i, load_inputs(plan_of(a).x_rows_offset, i));
  }
  MACHINE_DEVICE void store_part(const Arguments& a) const {
    float value[8];
    Base::first_sums_[0].finish(value, lane_);
    auto* mine = reinterpret_cast<float4*>(input_part(a, warp_ - Base::kFirstInputWarp)) + lane_;
    mine[0] = make_float4(value[0], value[1], value[2], value[3]);
    mine[32] = make_float4(value[4], value[5], value[6], value[7]);
  }
};

}  // namespace headroom::resident
