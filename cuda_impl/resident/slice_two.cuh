// What slice_turned.cuh and slice_packed.cuh share: four layers, teams of two thread blocks that own two slices each, turned masters, and
// activations that come a second time as columns, which updates take.
//
// Tiles differ: in 16 bits (slice_turned.cuh) they lie as instructions take them, in tf32 (slice_packed.cuh) they are packed. So `Kernel`,
// which is derived from this class, has the functions that know what a tile is made of:
//   begin_inputs()       what is there before the first step
//   sum_tiles()          partial sums of a product of what a warp has taken
//   publish_hidden()     a layer's activations, when its partial sums are complete
//   backward()           from the logits to the first layer's gradient, its update and the next step's first product
//   tile_of(), transposed()   of what was taken, a slice's tile as columns when it came as columns, and when it came as rows
//   load_dlogits(), across_weights(), update_third_bias(), summed()
#pragma once

#include "machine/compiler.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_step.cuh"

namespace headroom::resident {

inline constexpr int kTwoPairs = 4, kTwoLayers = 4;

template <class Format, template <class, int> class GridOf, class Kernel>
class SliceTwoMember : protected SliceMember<Format, GridOf, kTwoPairs, kTwoLayers, 2, 2> {
 protected:
  using Base = SliceMember<Format, GridOf, kTwoPairs, kTwoLayers, 2, 2>;
  static constexpr int kPairs = kTwoPairs, kOwn = 2, kLast = kTwoLayers - 1;
  using typename Base::Arguments;
  using typename Base::Place;
  using typename Base::Values;
  using typename Base::Weights;
  using AcrossWeights = typename Format::AcrossWeights;
  using Own = typename Format::Own;
  using TurnedOwn = typename Format::TurnedOwn;
  using Taken = typename GridOf<Format, kPairs>::Tiles;  // of an exchange, by a warp
  using Base::exchange_, Base::first_sums_, Base::lane_, Base::next_batch_, Base::skipped_, Base::team_,
      Base::waiter_, Base::warp_;

 public:
  using Base::kThreadCount;

  MACHINE_DEVICE explicit SliceTwoMember(const Arguments& a) : Base(a) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::load(a);
    exchange_.begin(a);
    team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    kernel().begin_inputs(a);
    int step = 0;
    Taken gradient;  // of the second layer, kept until the next step has time to use it
    while (step <= a.steps && pass(a, Kernel::kSaysUniform ? uniform(step) : step, gradient)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > a.steps) Base::store(a);
    block_sync();
    exchange_.end();
    team_.end();
  }

 protected:
  /// Of a pair of slices, for both of the member's own.
  struct PairWeights {
    Weights own[kOwn];
  };
  struct MatrixWeights {
    PairWeights pair[kPairs];
  };

  MACHINE_DEVICE Kernel& kernel() { return static_cast<Kernel&>(*this); }
  MACHINE_DEVICE const Kernel& kernel() const { return static_cast<const Kernel&>(*this); }

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  MACHINE_DEVICE bool pass(const Arguments& a, int step, Taken& gradient) {
    const bool training = step < a.steps;
    exchange_.begin_step(a, step);
    Taken old;  // activations of the step before as columns, for an update that was put off
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
    if (training) kernel().backward(a, step, across, gradient);
    return true;
  }

  MACHINE_DEVICE bool forward_first(const Arguments& a, int step, Taken& old) {
    Base::next_batch(a);
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), 0);
    const Addends own = addends(a, 0);
    Base::store_partial(a, first_sums_);
    if (block_sync_or(waiter_.timed_out)) return false;
    kernel().publish_hidden(a, 0, step, place, own);
    exchange_.fetch_columns(a, old, 0);
    return true;
  }
  /// Leaves in `old` what the next layer's put-off update takes.
  MACHINE_DEVICE void forward(const Arguments& a, int layer, int step, const MatrixWeights& w, Taken& old) {
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), layer);
    const Addends own = addends(a, layer);
    Taken below;
    exchange_.take(a, below, waiter_, layer - 1);
    exchange_.fetch_columns(a, old, layer);
    kernel().sum_tiles(a, w, below);
    block_sync();
    kernel().publish_hidden(a, layer, step, place, own);
  }
  // ---- sums

  /// Bytes of shared memory where this lane's addends of the next product begin, and of activations its bias. They are read behind the
  /// barrier by those who are the last in a window, so where is computed before.
  struct Addends {
    std::uint32_t sums, bias;
  };
  /// Of which of the member's slices a lane adds up which half of the rows.
  struct Summed {
    int slice, half;
  };
  MACHINE_DEVICE Addends addends(const Arguments& a) const {
    const Summed summed = kernel().summed();
    auto sums = static_cast<std::uint32_t>(
        plan_of(a).partial_offset + ((Base::partial_ ^ 1) * kOwn + summed.slice) * kWarps * kPartialTile +
        (summed.half * 32 + Base::publisher().position) * 16);
    compute_now(sums);
    return {sums, 0};
  }
  MACHINE_DEVICE Addends addends(const Arguments& a, int layer) const {
    Addends own = addends(a);
    own.bias = static_cast<std::uint32_t>(plan_of(a).bias_offset +
                                          ((layer * kOwn + kernel().summed().slice) * 4 + (lane_ & 3)) * 8);
    compute_now(own.bias);
    return own;
  }
  MACHINE_DEVICE void add_up_partial(const Addends& own, float (&sums)[4]) const {
    const float4 total =
        add_up<kWarps>(reinterpret_cast<const float4*>(shared_memory() + own.sums), kPartialTile / 16);
    sums[0] = total.x, sums[1] = total.y, sums[2] = total.z, sums[3] = total.w;
  }
  /// A layer's sums, of the team, with bias and ReLU.
  MACHINE_DEVICE void add_up_hidden(const Arguments& a, const Addends& own, float (&sums)[4]) {
    add_up_partial(own, sums);
    const float2 bias = *reinterpret_cast<const float2*>(shared_memory() + own.bias);
    Base::sum_over_team(a, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = relu(sums[i] + (i % 2 == 0 ? bias.x : bias.y));
  }

  // ---- updates

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
                                            const Taken& gradient) const {
    constexpr int kBegin[] = {0, 1, 2, kPairs};
    update_columns(a, 1, step, kBegin[exchange], kBegin[exchange + 1],
                   [&](int slice) { return kernel().transposed(gradient, slice); });
  }
  /// From the step before, if there is one. Makes the weights of the product that follows.
  MACHINE_DEVICE void update_rows(const Arguments& a, int layer, int step, Taken& old, MatrixWeights& w) {
    if (step == 0) return load_weights(plan_of(a).rows_offset, layer, w);
    exchange_.ready_columns(a, old, waiter_, layer - 1);
    update<true>(
        a, plan_of(a).rows_offset, layer, Base::own_gradient(a, layer), 0, kPairs,
        [&](int slice) { return kernel().tile_of(old, slice); }, w);
    if (layer == 2) kernel().update_third_bias(a);
  }
  /// Both tiles of the last layer, and the weights that their products take.
  MACHINE_DEVICE void update_last(const Arguments& a, int step, Taken& old, AcrossWeights (&across)[kPairs]) {
    float4* masters = Base::matrix(plan_of(a).last_offset[0], 1) + lane_;
    float4 value[kPairs], high_value[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      value[i] = masters[i * 32], high_value[i] = Base::second_tile(a, i).load(lane_);
    if (step > 0) {
      exchange_.ready_columns(a, old, waiter_, kLast - 1);
      const unsigned char* dlogits = shared_memory() + plan_of(a).dlogits_offset;
      const Own own = kernel().load_dlogits(dlogits),
                second_own = kernel().load_dlogits(dlogits + Base::kTile);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const Values first = kernel().tile_of(old, 2 * i), second = kernel().tile_of(old, 2 * i + 1);
        const float4 sum = Format::outer(first, second, own, lane_),
                     high_sum = Format::outer(first, second, second_own, lane_);
        if (i < skipped_) continue;
        masters[i * 32] = value[i] = Base::updated(a, value[i], sum);
        Base::second_tile(a, i).store(lane_, high_value[i] = Base::updated(a, high_value[i], high_sum));
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) across[i] = kernel().across_weights(value[i], high_value[i]);
  }
};

}  // namespace headroom::resident
