// The slice kernel for formats whose products are long: tiles pass through registers pair by pair, in loops.
//
// fp32 multiplies by 128 multiply-adds where a tensor core takes two instructions. Unrolled as in slice_step.cuh, a
// step is up to 27,000 instructions and no longer fits the instruction cache; here it is 12,000 at every width. The
// price: a gradient that only this warp's registers held, the one below the last layer, exists one pair at a time, so
// its columns are updated as soon as they were used, on the way; and what was taken once is read from the L2 again.
// Everything else (who owns what, exchanges, barriers, what is put off) is as there.
#pragma once

#include "machine/masks.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "resident/slice_step.cuh"

namespace headroom::resident {

template <class Format, template <class, int> class ExchangeOf, int kPairs, int kTeam = 1, int kOwn = 1>
class SliceStreamMember : SliceMember<Format, ExchangeOf, kPairs, 0, kTeam, kOwn> {
  using Base = SliceMember<Format, ExchangeOf, kPairs, 0, kTeam, kOwn>;
  using typename Base::Arguments;
  using typename Base::Values;
  using Own = typename Format::Own;
  using Sums = typename Format::Sums;
  using Place = typename Base::Place;
  using Base::batch_, Base::exchange_, Base::first_slice_, Base::input_pairs_, Base::label_, Base::lane_,
      Base::member_, Base::next_batch_, Base::skipped_, Base::waiter_, Base::warp_;

 public:
  static constexpr int kThreadCount = kThreads;

  MACHINE_DEVICE explicit SliceStreamMember(const Arguments& a) : Base(a) {}

  MACHINE_DEVICE void run(const Arguments& a) {
    Base::load(a);
    exchange_.begin(a);
    Base::team_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    Base::begin_staging(a);
    Base::stage_rows(a);
    int step = 0;
    while (step <= a.steps && pass(a, step)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > a.steps) Base::store(a);
    block_sync();
    exchange_.end();
    Base::team_.end();
  }

 private:
  /// Whether two slices are updated together, in lanes that take more rows.
  static constexpr bool kBoth = kOwn == 2;

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  MACHINE_DEVICE bool pass(const Arguments& a, int step) {
    const bool training = step < a.steps;
    const int last = a.plan.layers - 1;
    exchange_.begin_step(a, step);
    if (training && !forward_first(a, step)) return false;
#pragma unroll 1
    for (int layer = 1; layer < last; ++layer) {
      if (step > 0) update_from_before(a, layer, step - 1, layer == 1 && last > 2);
      if (training) forward(a, layer, step);
    }
    if (step > 0) update_last(a);
    if (!training) return true;

    logits(a, step);
    // While no tiles are on their way.
    Base::stage_columns(a);
    if (step + 1 < a.steps) Base::stage_rows(a);
    Base::loss_and_gradient(a);
    block_sync();
    for (int layer = last - 1; layer >= 1; --layer) {
      Place place;
      if (layer > 1)
        place = exchange_.template place<true>(a, Base::published_slice(), Base::publisher(),
                                               Base::gradient_exchange(a, layer - 1));
      if (layer == last - 1)
        backward_below_last(a, step);
      else
        backward(a, layer, step);
      block_sync();
      Base::publish_gradient(a, layer - 1, step, place);
      if (layer == last - 1) Base::after_loss(a, step);
      if (layer == last - 1 && kBoth) update_columns_below_last(a, step);
      if (layer > 1 && layer < last - 1) update_columns(a, layer, step);
    }
    if (last == 1) Base::after_loss(a, step);
    Base::await_own_gradient(a, step);
    block_sync();  // the first layer's gradient is complete
    update_first(a, step);
    return true;
  }

  // ---- forward

  MACHINE_DEVICE bool forward_first(const Arguments& a, int step) {
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
    const unsigned char* x = inputs(a, a.x_rows, a.plan.x_rows_offset);
    Base::wait_for_inputs(a, 0, a.plan.x_rows_offset, step);
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), 0);
    Sums sums[kOwn] = {};
    for_inputs(x, [&](int i, const Values& first, const Values& second) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c)
        Format::multiply(sums[c], 0, first, second, Base::first_weights(a, i, c), lane_);
    });
    Base::store_partial(a, sums);
    if (block_sync_or(waiter_.timed_out)) return false;
    Base::publish_hidden(a, 0, step, place);
    return true;
  }

  MACHINE_DEVICE void forward(const Arguments& a, int layer, int step) {
    const Place place = exchange_.template place<false>(a, Base::published_slice(), Base::publisher(), layer);
    Sums sums[kOwn] = {};
    wait_for_pairs<false>(a, layer - 1, [&](int i, const Values& first, const Values& second) {
      multiply_pair(sums, a.plan.rows_offset, layer, i, first, second);
    });
    Base::store_partial(a, sums);
    block_sync();
    Base::publish_hidden(a, layer, step, place);
  }

  MACHINE_DEVICE void logits(const Arguments& a, int step) {
    const float4* masters = Base::matrix(a.plan.last_offset[0], 1);
    const int row = warp_ * 8 + (lane_ >> 2);
    label_ = row < a.plan.batch ? a.labels[std::int64_t{batch_} * a.plan.batch + row] : -1;
    Sums low[1] = {}, high{};
    wait_for_pairs<false>(a, a.plan.layers - 2, [&](int i, const Values& first, const Values& second) {
      Format::multiply(low[0], 0, first, second, Format::load_weights(masters + i * 32, lane_), lane_);
      Format::multiply_second(high, 0, first, second, Format::load_second(Base::second_tile(a, i), lane_),
                              lane_);
    });
    Base::store_partial(a, low);
    float value[8];
    Format::finish_second(high, value, lane_);
    if ((lane_ & 3) < a.plan.last_lanes) {
      float4* place = Base::last_partial(a, warp_);
      place[0] = make_float4(value[0], value[1], value[2], value[3]);
      place[1] = make_float4(value[4], value[5], value[6], value[7]);
    }
    block_sync();
  }

  // ---- backward

  MACHINE_DEVICE void backward(const Arguments& a, int layer, int step) {
    Sums sums[kOwn] = {};
    wait_for_pairs<true>(a, Base::gradient_exchange(a, layer),
                         [&](int i, const Values& first, const Values& second) {
                           multiply_pair(sums, a.plan.columns_offset, layer, i, first, second);
                         });
    Base::store_partial(a, sums);
  }

  /// Through the layer below the last one: the gradient is made, used, and its columns are updated, pair by pair. With two
  /// slices it is kept in global memory instead, and its columns are updated while the next gradient travels.
  MACHINE_DEVICE void backward_below_last(const Arguments& a, int step) {
    const int layer = a.plan.layers - 2;
    const auto dlogits = Format::load_across(shared_memory() + a.plan.dlogits_offset, lane_);
    Owns own;
    if constexpr (!kBoth) own = load_owns([&](int c) { return Base::own_hidden(a, layer - 1, step, c); });
    const float4* last = Base::matrix(a.plan.last_offset[0], 1);
    Sums sums[kOwn] = {};
    for_pairs<false>(a, layer, false, [&](int i, Values first, Values second) {
      float result[2][8];
      Format::multiply_across(
          result, dlogits, Format::load_across_weights(last + i * 32, Base::second_tile(a, i), lane_), lane_);
      first = Format::operand(Format::masked(result[0], first));
      second = Format::operand(Format::masked(result[1], second));
      if constexpr (kBoth)
#pragma unroll
        for (int part = 0; part < 4; ++part)
          *reinterpret_cast<uint4*>(kept_gradient(a) + i * 2 * Base::kTile + part * 512 + lane_ * 16) =
              part_of(part < 2 ? first : second, part & 1);
      multiply_pair(sums, a.plan.columns_offset, layer, i, first, second);
      if constexpr (!kBoth) {
        warp_sync();
        update_pair(a, a.plan.columns_offset, layer, i, first, second, own);
      }
    });
    warp_sync();
    Base::store_partial(a, sums);
  }
  MACHINE_DEVICE unsigned char* kept_gradient(const Arguments& a) const {
    return a.exchange + a.plan.behind_tiles +
           (block_index() * kWarps + warp_) * static_cast<int>(2 * kPairs * Base::kTile);
  }

  // ---- updates

  /// What is held of this member's own slices for an update; own_tile(c) is where slice c lies.
  struct Owns {
    Own slice[kOwn];
  };
  template <class OwnTile>
  MACHINE_DEVICE Owns load_owns(const OwnTile& own_tile) const {
    Owns own;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) own.slice[c] = Format::load_own(own_tile(c), lane_);
    return own;
  }
  MACHINE_DEVICE void multiply_pair(Sums (&sums)[kOwn], int offset, int layer, int i, const Values& first,
                                    const Values& second) const {
#pragma unroll
    for (int c = 0; c < kOwn; ++c)
      Format::multiply(sums[c], 0, first, second,
                       Format::load_weights(Base::matrix(offset, layer, c) + i * 32, lane_), lane_);
  }
  MACHINE_DEVICE void update_pair(const Arguments& a, int offset, int layer, int i, const Values& first,
                                  const Values& second, const Owns& own) const {
#pragma unroll
    for (int c = 0; c < kOwn; ++c) {
      float4* mine = Base::matrix(offset, layer, c) + i * 32 + Format::master_lane(lane_);
      const float4 sum =
          Format::outer(Format::transposed(first), Format::transposed(second), own.slice[c], lane_);
      if (i >= skipped_) *mine = Base::updated(a, *mine, sum);
    }
  }
  /// Two own slices in one go, in lanes of their own (Format::BothOwn): `pairs` pairs of `masters`, those of the second slice
  /// `apart` further, with `tiles`, from which load(wanted, value, address) reads. A pair is asked for when the one before
  /// begins: it takes a trip to the L2, and one scoreboard stands for all that is on its way from one turn of a loop to the next.
  template <bool kMarked, class Load>
  MACHINE_DEVICE void update_both(const Arguments& a, float4* masters, int apart, int pairs, int skipped,
                                  const unsigned char* own_tiles, const unsigned char* tiles,
                                  std::uint32_t mark, std::uint32_t displaced, Load&& load) const {
    using BothOwn = typename Format::BothOwn;
    const unsigned char* from[2] = {tiles + BothOwn::byte(0, lane_), tiles + BothOwn::byte(1, lane_)};
    const auto load_pair = [&](bool wanted, uint4(&rows)[8]) {
#pragma unroll
      for (int slice = 0; slice < 2; ++slice)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          load(wanted, rows[4 * slice + k], from[k & 1] + slice * Base::kTile + (k >> 1) * 128);
    };
    uint4 next[8] = {};
    load_pair(true, next);
    const auto own = BothOwn::load(own_tiles, Base::kTile, lane_);
    masters += (lane_ >> 4) * apart + BothOwn::master(lane_);
#pragma unroll 1
    for (int i = 0; i < pairs; ++i) {
      uint4 rows[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) rows[r] = next[r];
#pragma unroll
      for (int k = 0; k < 2; ++k) from[k] += 2 * Base::kTile;
      load_pair(i + 1 < pairs, next);
      if constexpr (kMarked)
#pragma unroll
        for (int slice = 0; slice < 2; ++slice) {
          const std::uint32_t bits = shuffle_from(displaced, (2 * i + slice) * 2 + BothOwn::half(lane_)) >>
                                     BothOwn::first_bit(lane_);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            std::uint32_t& word = rows[4 * slice + k].w;
            word = (word & ~mark) | (bits >> BothOwn::bit(k, lane_) & mark);  // there are none of activations
          }
        }
      float4 sum[2];
      own.sum(sum, rows, lane_);
      if (i >= skipped)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float4& master = masters[4 * (e ^ (lane_ >> 2 & 1))];
          master = Base::updated(a, master, sum[e]);
        }
      masters += 32;
    }
  }
  template <class Source>
  MACHINE_DEVICE void update_both_hidden(const Arguments& a, int offset, int layer,
                                         const unsigned char* own_tiles, const Source& source) const {
    if (pairs() == 0) return;
    update_both<true>(a, Base::matrix(offset, layer), kWarps * kPairs * 32, kPairs, skipped_, own_tiles,
                      source.tiles, source.mark, source.displaced,
                      [](bool wanted, uint4& value, const unsigned char* address) {
                        load_relaxed_gpu_4x32_if(wanted, value, address);
                      });
  }
  MACHINE_DEVICE void update_columns_below_last(const Arguments& a, int step) const {
    const int layer = a.plan.layers - 2;
    if constexpr (kBoth)
      if (pairs() > 0)
        update_both<false>(a, Base::matrix(a.plan.columns_offset, layer), kWarps * kPairs * 32, kPairs,
                           skipped_, Base::own_hidden(a, layer - 1, step), kept_gradient(a), 0, 0,
                           [](bool wanted, uint4& value, const unsigned char* address) {
                             load_relaxed_gpu_4x32_if(wanted, value, address);
                           });
    warp_sync();
  }
  /// What was put off from `step`: the columns, if they were, then the rows. One loop takes both, since a second one
  /// would be fetched anew in every step: what a step executes is about as large as the instruction cache.
  MACHINE_DEVICE void update_from_before(const Arguments& a, int layer, int step, bool columns) {
#pragma unroll 1
    for (int rows = columns ? 0 : 1; rows < 2; ++rows) {
      if constexpr (kBoth) {
        update_both_hidden(
            a, rows ? a.plan.rows_offset : a.plan.columns_offset, layer,
            rows ? Base::own_gradient(a, layer) : Base::own_hidden(a, layer - 1, step),
            exchange_.source(a, lane_, first_slice_, rows ? layer - 1 : Base::gradient_exchange(a, layer),
                             !rows, true));
        continue;
      }
      const Owns own = load_owns([&](int c) {
        return rows ? Base::own_gradient(a, layer, c) : Base::own_hidden(a, layer - 1, step, c);
      });
      exchange_.stream_before(
          a, lane_, first_slice_, pairs(), rows ? layer - 1 : Base::gradient_exchange(a, layer), !rows,
          [&](int i, const Values& first, const Values& second) {
            update_pair(a, rows ? a.plan.rows_offset : a.plan.columns_offset, layer, i, first, second, own);
          });
    }
    warp_sync();  // other lanes of this warp read these
    if (warp_ == 7) Base::update_own_bias(a, layer);
  }
  MACHINE_DEVICE void update_columns(const Arguments& a, int layer, int step) {
    if constexpr (kBoth) {
      update_both_hidden(
          a, a.plan.columns_offset, layer, Base::own_hidden(a, layer - 1, step),
          exchange_.source(a, lane_, first_slice_, Base::gradient_exchange(a, layer), true, false));
      warp_sync();
      return;
    }
    const Owns own = load_owns([&](int c) { return Base::own_hidden(a, layer - 1, step, c); });
    for_pairs<true>(a, Base::gradient_exchange(a, layer), false,
                    [&](int i, const Values& first, const Values& second) {
                      update_pair(a, a.plan.columns_offset, layer, i, first, second, own);
                    });
    warp_sync();
  }
  MACHINE_DEVICE void update_last(const Arguments& a) {
    const unsigned char* dlogits = shared_memory() + a.plan.dlogits_offset;
    const Own first = Format::load_own(dlogits, lane_),
              second = Format::load_own(dlogits + Base::kTile, lane_);
    const auto two = Format::load_own_two(dlogits + Base::kTile, lane_);
    const int m = Format::master_lane(lane_);
    float4* masters = Base::matrix(a.plan.last_offset[0], 1) + m;
    for_pairs<false>(a, a.plan.layers - 2, true, [&](int i, const Values& left, const Values& right) {
      const Values low = Format::transposed(left), high = Format::transposed(right);
      const float4 sum = Format::outer(low, high, first, lane_);
      if (i >= skipped_) masters[i * 32] = Base::updated(a, masters[i * 32], sum);
      if (a.plan.last_lanes == 0) return;
      if constexpr (Format::kUpdatesTwo)
        if (a.plan.last_lanes == 1) {
          Format::update_two(Base::second_tile(a, i), low, high, two, a.update_factor, i >= skipped_, lane_);
          return;
        }
      const float4 second_sum = Format::outer(low, high, second, lane_);
      const SecondTile tile = Base::second_tile(a, i);
      float4* place = const_cast<float4*>(tile.pair) + (m >> 2) * tile.lanes + (m & 3);
      if (i >= skipped_ && tile.holds(m)) *place = Base::updated(a, *place, second_sum);
    });
    warp_sync();
  }
  MACHINE_DEVICE void update_first(const Arguments& a, int step) {
    const unsigned char* x = inputs(a, a.x_columns, a.plan.x_columns_offset);
    Base::wait_for_inputs(a, 1, a.plan.x_columns_offset, step);
    if constexpr (kBoth) {
      // Nothing is skipped here, but if ptxas knew it, a turn of the loop would be one block, to whose end it moves all loads.
      if (input_pairs_ > 0)
        update_both<false>(a, Base::first_masters(a), a.plan.member_input_pairs * 32, input_pairs_,
                           min(skipped_, 0), Base::own_gradient(a, 0), x - lane_ * 16, 0, 0,
                           [](bool wanted, uint4& value, const unsigned char* address) {
                             load_generic16_if(wanted, value, address);
                           });
      warp_sync();
      if (warp_ == 7) Base::update_own_bias(a, 0);
      return;
    }
    const Owns own = load_owns([&](int c) { return Base::own_gradient(a, 0, c); });
    for_inputs(x, [&](int i, const Values& first, const Values& second) {
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        float4& master = Base::first_masters(a, c)[i * 32 + Format::master_lane(lane_)];
        master = Base::updated(a, master, Format::outer(first, second, own.slice[c], lane_));
      }
    });
    warp_sync();
    if (warp_ == 7) Base::update_own_bias(a, 0);
  }

  // ---- pair by pair

  /// In a team some have no hidden columns.
  MACHINE_DEVICE int pairs() const { return kTeam > 1 && skipped_ >= kPairs ? 0 : kPairs; }

  /// use(i, tile, tile) for each of this warp's pairs of an exchange of this step.
  template <bool kGradient, class Use>
  MACHINE_DEVICE void wait_for_pairs(const Arguments& a, int exchange, Use&& use) {
    exchange_.template stream<kGradient, true>(a, waiter_, first_slice_, pairs(), exchange, false, use);
  }
  /// The same for one that was waited for in this step, or the one before.
  template <bool kGradient, class Use>
  MACHINE_DEVICE void for_pairs(const Arguments& a, int exchange, bool before, Use&& use) {
    exchange_.template stream<kGradient, false>(a, waiter_, first_slice_, pairs(), exchange, before, use);
  }
  /// This warp's inputs of this step's batch, staged or in global memory.
  MACHINE_DEVICE const unsigned char* inputs(const Arguments& a, const unsigned char* memory,
                                             int offset) const {
    return (offset >= 0 ? shared_memory() + offset : memory + batch_ * a.plan.x_batch_bytes) +
           Base::input_byte(offset >= 0);
  }
  /// use(i, tile, tile) for each of this warp's pairs of inputs, two more on their way.
  template <class Use>
  MACHINE_DEVICE void for_inputs(const unsigned char* x, Use&& use) const {
    const auto load = [&](Values(&pair)[2], int i) {
      pair[0] = pair[1] = Values{};
      if (i < input_pairs_)
#pragma unroll
        for (int part = 0; part < 2 * Format::kParts; ++part)
          assign(pair[part / Format::kParts], part % Format::kParts,
                 load_generic16(x + i * 2 * Base::kTile + part * 512));
    };
    Values now[2], next[2], after_next[2];
    load(now, 0);
    load(next, 1);
#pragma unroll 1
    for (int i = 0; i < input_pairs_; ++i) {
      load(after_next, i + 2);
      use(i, now[0], now[1]);
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) now[slice] = next[slice], next[slice] = after_next[slice];
    }
  }
};

template <class Format, template <class, int> class ExchangeOf, int kPairs, int kTeam = 1, int kOwn = 1>
SliceKernel slice_stream_steps_kernel() {
  return slice_kernel_of_members<SliceStreamMember<Format, ExchangeOf, kPairs, kTeam, kOwn>>(
      {.form = ExchangeOf<Format, kPairs>::kForm, .pairs = kPairs, .team = kTeam, .own = kOwn});
}

/// With one pair a warp there is nothing to loop over; with two neither in a team, which has fewer inputs a warp.
template <class Format>
SliceKernel slice_stream_kernel_of(Form form, int pairs, int team, int own) {
  if (own == 2) return slice_stream_steps_kernel<Format, SliceGrid, 4, 2, 2>();
  if (form == Form::kCluster) return slice_steps_kernel<Format, SliceCluster, 1>();
  if (team == 4) return slice_steps_kernel<Format, SliceGrid, 1, 0, 4>();
  if (team == 2)
    return pairs == 1   ? slice_steps_kernel<Format, SliceGrid, 1, 0, 2>()
           : pairs == 2 ? slice_steps_kernel<Format, SliceGrid, 2, 0, 2>()
                        : slice_stream_steps_kernel<Format, SliceGrid, 4, 2>();
  return pairs == 1   ? slice_steps_kernel<Format, SliceGrid, 1>()
         : pairs == 2 ? slice_stream_steps_kernel<Format, SliceGrid, 2>()
         : pairs == 4 ? slice_stream_steps_kernel<Format, SliceGrid, 4>()
                      : slice_stream_steps_kernel<Format, SliceGrid, 8>();
}

}  // namespace headroom::resident
