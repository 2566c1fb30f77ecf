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
//               barrier between a weight's update and its next product. Partial sums meet in shared memory, where warp
//               0 adds them up, applies bias and ReLU or the mask, rounds, and publishes.
//   exchanges:  activations of every layer but the last, gradients of those between: 2 * layers - 4 (two layers: 1).
//               Logits, loss, their gradient and the gradient one layer down are computed by everybody: the
//               latter by each warp for just those columns that it sums over next.
//   updates:    put off until the member would wait anyway: rows that a product needs are updated from the step before,
//               while the tiles for it travel; columns as soon as their gradient has been used. Only the first layer,
//               whose gradient is the last thing a step makes and whose product is the first thing the next one
//               does, is updated on the way.
//   barriers:   one a product (partial sums are complete), one after the loss (the logits' gradient is complete), one
//               after the first layer's gradient. Partial sums have two buffers in turn: whoever writes one again
//               has passed the barrier behind which warp 0 had read it. Own activations have two buffers by the
//               parity of the step: the first layer's are still needed when the next step has made its own.
//   on chip:    8 (fp32) bytes a weight over all members, 4 of the first layer, 4 * members of the last; exchange
//               buffers (cluster), two batches of inputs if they fit
#pragma once

#include "resident/slice_exchange.cuh"
#include "resident/unit_range.cuh"

namespace headroom::resident {

template <class Format, template <class, int> class ExchangeOf, int kPairs>
class SliceMember {
 public:
  using Values = typename Format::Values;
  using Exchange = ExchangeOf<Format, kPairs>;
  using Tiles = Share<Format, kPairs>;
  using Arguments = SliceArguments;

  RESIDENT_DEVICE explicit SliceMember(const Arguments& a)
      : warp_(thread_index() / 32),
        lane_(thread_index() % 32),
        member_(static_cast<int>(block_index())),
        first_slice_(2 * first_pair(a, warp_)),
        skipped_(warp_ * kPairs - first_slice_ / 2),
        input_begin_(UnitRange::of(a.plan.input_pairs, warp_).begin),
        input_pairs_(UnitRange::of(a.plan.input_pairs, warp_).end - input_begin_),
        waiter_{warp_, lane_, block_index(), false},
        exchange_(a, first_slice_, lane_) {}

  RESIDENT_DEVICE void run(const Arguments& a) {
    load(a);
    exchange_.begin(a);
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    stage_inputs(a, a.x_rows, a.plan.x_rows_offset);
    stage_inputs(a, a.x_columns, a.plan.x_columns_offset);
    int step = 0;
    Tiles gradient;  // of the second layer, kept until the next step has time to use it
    while (step <= a.steps && pass(a, step, gradient)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > a.steps) store(a);
    block_sync();
    exchange_.end();
  }

 protected:  // for SliceStreamMember (slice_stream.cuh)
  // ---- a step

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  RESIDENT_DEVICE bool pass(const Arguments& a, int step, Tiles& gradient) {
    const bool training = step < a.steps;
    const int last = a.plan.layers - 1;
    if (training && !forward_first(a, step)) return false;
    if (step > 0 && last > 1) update_columns(a, 1, step - 1, gradient);
    for (int layer = 1; layer < last; ++layer) {
      if (step > 0) update_rows(a, layer, step - 1);
      if (training) forward(a, layer, step);
    }
    if (step > 0) update_last(a, step - 1);
    if (!training) return true;

    logits(a, step, gradient);
    loss_and_gradient(a);
    block_sync();
    gradient_below_last(a, gradient);
    for (int layer = last - 1; layer >= 1; --layer) {
      sum_columns(a, layer, gradient);
      block_sync();
      publish_gradient(a, layer - 1, step);
      if (layer == last - 1) after_loss(a, step);
      if (layer == 1) break;
      update_columns(a, layer, step, gradient);
      exchange_.template take<true>(a, gradient, waiter_, first_slice_, gradient_exchange(a, layer - 1),
                                    step);
    }
    if (last == 1) after_loss(a, step);
    block_sync();  // the first layer's gradient is complete
    update_first(a);
    return true;
  }

  // ---- forward

  RESIDENT_DEVICE bool forward_first(const Arguments& a, int step) {
    copy_async_wait_all_but_newest();  // the newest holds the same inputs for the update
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
    const unsigned char* x = inputs(a, a.x_rows, a.plan.x_rows_offset);
    typename Format::Sums sums{};
#pragma unroll
    for (int i = 0; i < kInputPairs; ++i) {
      const Values first = load_input(x, i, 0), second = load_input(x, i, 1);
      Format::multiply(sums, i & 1, first, second, first_weights(a, i), lane_);
    }
    store_partial(a, sums);
    if (block_sync_or(waiter_.timed_out)) return false;
    publish_hidden(a, 0, step);
    stage_inputs(a, a.x_rows, a.plan.x_rows_offset);
    return true;
  }

  RESIDENT_DEVICE void forward(const Arguments& a, int layer, int step) {
    const float4* masters = matrix(a.plan.rows_offset, layer);
    typename Format::Weights w[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) w[i] = Format::load_weights(masters + i * 32, lane_);
    Tiles below;
    exchange_.template take<false>(a, below, waiter_, first_slice_, layer - 1, step);
    typename Format::Sums sums{};
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      Format::multiply(sums, i & 1, below.slice[2 * i], below.slice[2 * i + 1], w[i], lane_);
    store_partial(a, sums);
    block_sync();
    publish_hidden(a, layer, step);
  }

  RESIDENT_DEVICE void publish_hidden(const Arguments& a, int layer, int step) {
    if (warp_ != 0) return;
    float sums[8];
    add_partial(a, sums);
    const float2 bias = bias_of(a, layer);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = relu(sums[i] + (i % 2 == 0 ? bias.x : bias.y));
    const Values tile = Format::round(sums);
    exchange_.template publish<false>(a, tile, member_, lane_, layer, step);
    store_tile(own_hidden(a, layer, step), tile, lane_);
  }

  /// Partial logits of this warp's columns; `hidden` takes the activations below the last layer.
  RESIDENT_DEVICE void logits(const Arguments& a, int step, Tiles& hidden) {
    const float4* first = matrix(a.plan.last_offset[0], 1);
    typename Format::Weights w[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) w[i] = Format::load_weights(first + i * 32, lane_);
    decltype(Format::load_second(second_tile(a, 0), lane_)) v[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) v[i] = Format::load_second(second_tile(a, i), lane_);
    const int row = warp_ * 8 + (lane_ >> 2);
    label_ = row < a.plan.batch ? a.labels[std::int64_t{batch_} * a.plan.batch + row] : -1;
    exchange_.template take<false>(a, hidden, waiter_, first_slice_, a.plan.layers - 2, step);
    typename Format::Sums low{}, high{};
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Format::multiply(low, i & 1, hidden.slice[2 * i], hidden.slice[2 * i + 1], w[i], lane_);
      Format::multiply_second(high, i & 1, hidden.slice[2 * i], hidden.slice[2 * i + 1], v[i], lane_);
    }
    store_partial(a, low);
    float value[8];
    Format::finish_second(high, value, lane_);
    if ((lane_ & 3) < a.plan.last_lanes) {
      float4* place = last_partial(a, warp_);
      place[0] = make_float4(value[0], value[1], value[2], value[3]);
      place[1] = make_float4(value[4], value[5], value[6], value[7]);
    }
    block_sync();
  }

  // ---- loss

  /// Softmax of the logits and their gradient, 8 rows by each of the first four warps: lane (g, t) has classes 2t, 2t +
  /// 1, 8 + 2t and 9 + 2t of row g. Padding rows have no gradient.
  RESIDENT_DEVICE void loss_and_gradient(const Arguments& a) {
    if (warp_ >= 4) return;
    const int g = lane_ >> 2, t = lane_ & 3, row = warp_ * 8 + g;
    float4 z = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      const float2 low =
          reinterpret_cast<const float2*>(partial(a, from) + (warp_ >> 1) * 32 + lane_)[warp_ & 1];
      z.x += low.x, z.y += low.y;
    }
    if (t < a.plan.last_lanes)
#pragma unroll
      for (int from = 0; from < kWarps; ++from) {
        const float2 high = reinterpret_cast<const float2*>(last_partial(a, from) + (warp_ >> 1))[warp_ & 1];
        z.z += high.x, z.w += high.y;
      }
    const float* bias = floats(a.plan.last_bias_offset);
    float logit[4] = {z.x + bias[2 * t], z.y + bias[2 * t + 1], z.z + bias[8 + 2 * t], z.w + bias[9 + 2 * t]};
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (class_of(i, t) >= a.plan.classes) logit[i] = -INFINITY;
      highest = fmaxf(highest, logit[i]);
    }
    highest = fmaxf(highest, shuffle_xor(highest, 1));
    highest = fmaxf(highest, shuffle_xor(highest, 2));
    float power[4], sum = 0, label_distance = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      power[i] = exponential(logit[i] - highest);
      sum += power[i];
      if (class_of(i, t) == label_) label_distance = logit[i] - highest;
    }
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const float inverse = row < a.plan.batch ? a.gradient_scale / sum : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      power[i] = power[i] * inverse - (class_of(i, t) == label_ ? a.gradient_scale : 0.0f);
    unsigned char* tiles = shared_memory() + a.plan.dlogits_offset;
    Format::store_two(tiles, warp_, lane_, power[0], power[1]);
    Format::store_two(tiles + kTile, warp_, lane_, power[2], power[3]);
    label_distance += shuffle_xor(label_distance, 1);
    label_distance += shuffle_xor(label_distance, 2);
    if (t == 0)
      reinterpret_cast<float2*>(shared_memory() + a.plan.row_loss_offset)[row] =
          make_float2(sum, label_distance);
  }
  RESIDENT_DEVICE static int class_of(int i, int t) { return 8 * (i >> 1) + 2 * t + (i & 1); }

  /// What nobody waits for: the loss, the last layer's bias, and this member's part of the gradient below the last layer.
  RESIDENT_DEVICE void after_loss(const Arguments& a, int step) {
    if (warp_ == 7 && member_ == 0) store_loss(a, step);
    if (warp_ == 6)
#pragma unroll 1
      for (int tile = 0; tile < 2; ++tile) {
        const Values values =
            load_tile<Format::kWords>(shared_memory() + a.plan.dlogits_offset + tile * kTile, lane_);
        update_bias(a, values, floats(a.plan.last_bias_offset) + 8 * tile);
      }
    if (warp_ == 5) own_gradient_below_last(a, step);
  }

  /// The mean over the batch, in a fixed order.
  RESIDENT_DEVICE void store_loss(const Arguments& a, int step) {
    const float2 row = reinterpret_cast<const float2*>(shared_memory() + a.plan.row_loss_offset)[lane_];
    float sum = lane_ < a.plan.batch ? logf(row.x) - row.y : 0.0f;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (lane_ == 0)
      a.losses[(a.first_step + step) & (a.loss_slots - 1)] = sum / static_cast<float>(a.plan.batch);
  }

  // ---- backward

  /// In place: from the activations below the last layer to their gradient, for this warp's columns.
  RESIDENT_DEVICE void gradient_below_last(const Arguments& a, Tiles& tiles) {
    if (a.plan.layers == 2) return;
    const auto dlogits = Format::load_across(shared_memory() + a.plan.dlogits_offset, lane_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float result[2][8];
      Format::multiply_across(result, dlogits, matrix(a.plan.last_offset[0], 1) + i * 32, second_tile(a, i),
                              lane_);
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
        Values& tile = tiles.slice[2 * i + slice];
        mask(result[slice], tile);
        tile = Format::round(result[slice]);
      }
    }
  }
  /// The same for this member's slice, kept for the updates: whichever warp sums over it has its masters.
  RESIDENT_DEVICE void own_gradient_below_last(const Arguments& a, int step) {
    const int layer = a.plan.layers - 2, owner = member_ / 2 / kPairs;
    const int pair = member_ / 2 - first_pair(a, owner) + owner * kPairs;
    const float4* first =
        reinterpret_cast<const float4*>(shared_memory() + a.plan.last_offset[0]) + pair * 32;
    const SecondTile second{reinterpret_cast<const float4*>(shared_memory() + a.plan.last_offset[1]) +
                                pair * 8 * a.plan.last_lanes,
                            a.plan.last_lanes};
    float result[2][8];
    Format::multiply_across(result, Format::load_across(shared_memory() + a.plan.dlogits_offset, lane_),
                            first, second, lane_);
    float own[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i] = member_ % 2 == 0 ? result[0][i] : result[1][i];
    mask(own, load_tile<Format::kWords>(own_hidden(a, layer, step), lane_));
    keep_gradient(a, layer, own);
  }

  /// Partial sums of the gradient below `layer`.
  RESIDENT_DEVICE void sum_columns(const Arguments& a, int layer, const Tiles& gradient) {
    const float4* masters = matrix(a.plan.columns_offset, layer);
    typename Format::Sums sums{};
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      Format::multiply(sums, i & 1, gradient.slice[2 * i], gradient.slice[2 * i + 1],
                       Format::load_weights(masters + i * 32, lane_), lane_);
    store_partial(a, sums);
  }

  RESIDENT_DEVICE void publish_gradient(const Arguments& a, int layer, int step) {
    if (warp_ != 0) return;
    float sums[8];
    add_partial(a, sums);
    mask(sums, load_tile<Format::kWords>(own_hidden(a, layer, step), lane_));
    if (layer > 0)
      exchange_.template publish<true>(a, Format::round(sums), member_, lane_, gradient_exchange(a, layer),
                                       step);
    keep_gradient(a, layer, sums);
  }

  RESIDENT_DEVICE void keep_gradient(const Arguments& a, int layer, const float (&sums)[8]) {
    const Values kept = Format::keep(sums);
    store_tile(own_gradient(a, layer), kept, lane_);
    update_bias(a, kept, floats(a.plan.bias_offset) + 8 * layer);
  }

  RESIDENT_DEVICE static void mask(float (&gradient)[8], const Values& hidden) {
#pragma unroll
    for (int i = 0; i < 8; ++i) gradient[i] = Format::at(hidden, i) > 0 ? gradient[i] : 0.0f;
  }

  // ---- updates

  RESIDENT_DEVICE float4 updated(const Arguments& a, const float4& m, const float4& sum) const {
    // The tensor core does not round to nearest: a master must not pass through its accumulator.
    return make_float4(fmaf(a.update_factor, sum.x, m.x), fmaf(a.update_factor, sum.y, m.y),
                       fmaf(a.update_factor, sum.z, m.z), fmaf(a.update_factor, sum.w, m.w));
  }

  /// masters += factor * columns^T * own
  RESIDENT_DEVICE void update(const Arguments& a, float4* masters, const Tiles& tiles,
                              const unsigned char* own_tile) {
    const typename Format::Own own = Format::load_own(own_tile, lane_);
    float4* mine = masters + Format::master_lane(lane_);
    float4 old[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) old[i] = mine[i * 32];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float4 sum = Format::outer(Format::transposed(tiles.slice[2 * i]),
                                       Format::transposed(tiles.slice[2 * i + 1]), own, lane_);
      if (i >= skipped_) mine[i * 32] = updated(a, old[i], sum);
    }
    warp_sync();  // other lanes of this warp read these
  }

  RESIDENT_DEVICE void update_columns(const Arguments& a, int layer, int step, const Tiles& gradient) {
    update(a, matrix(a.plan.columns_offset, layer), gradient, own_hidden(a, layer - 1, step));
  }
  RESIDENT_DEVICE void update_rows(const Arguments& a, int layer, int step) {
    Tiles below;
    exchange_.take_again(a, below, layer - 1, step);
    update(a, matrix(a.plan.rows_offset, layer), below, own_gradient(a, layer));
  }

  RESIDENT_DEVICE void update_last(const Arguments& a, int step) {
    Tiles below;
    exchange_.take_again(a, below, a.plan.layers - 2, step);
    const unsigned char* dlogits = shared_memory() + a.plan.dlogits_offset;
    const typename Format::Own first = Format::load_own(dlogits, lane_),
                               second = Format::load_own(dlogits + kTile, lane_);
    const int m = Format::master_lane(lane_);
    float4* masters = matrix(a.plan.last_offset[0], 1) + m;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const Values low = Format::transposed(below.slice[2 * i]),
                   high = Format::transposed(below.slice[2 * i + 1]);
      const float4 sum = Format::outer(low, high, first, lane_);
      if (i >= skipped_) masters[i * 32] = updated(a, masters[i * 32], sum);
      if (a.plan.last_lanes == 0) continue;
      const float4 second_sum = Format::outer(low, high, second, lane_);
      const SecondTile tile = second_tile(a, i);
      float4* place = const_cast<float4*>(tile.pair) + (m >> 2) * tile.lanes + (m & 3);
      if (i >= skipped_ && tile.holds(m)) *place = updated(a, *place, second_sum);
    }
    warp_sync();
  }

  RESIDENT_DEVICE void update_first(const Arguments& a) {
    copy_async_wait_all_but_newest();  // the newest holds the next step's inputs for the first product
    const unsigned char* x = inputs(a, a.x_columns, a.plan.x_columns_offset);
    const typename Format::Own own = Format::load_own(own_gradient(a, 0), lane_);
    float4* masters = first_masters(a) + Format::master_lane(lane_);
#pragma unroll
    for (int i = 0; i < kInputPairs; ++i) {
      const float4 sum = Format::outer(load_input(x, i, 0), load_input(x, i, 1), own, lane_);
      if constexpr (Format::kFirstInRegisters)
        first_[i] = updated(a, first_[i], sum);
      else
        masters[i * 32] = updated(a, masters[i * 32], sum);
    }
    warp_sync();
    stage_inputs(a, a.x_columns, a.plan.x_columns_offset);
  }

  /// bias [8] += factor * the sum of a tile's rows
  RESIDENT_DEVICE void update_bias(const Arguments& a, const Values& tile, float* bias) {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 8; i += 2) sum.x += Format::at(tile, i), sum.y += Format::at(tile, i + 1);
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2)
      sum.x += shuffle_xor(sum.x, mask), sum.y += shuffle_xor(sum.y, mask);
    if (lane_ >= 4) return;
    bias[2 * lane_] = fmaf(a.update_factor, sum.x, bias[2 * lane_]);
    bias[2 * lane_ + 1] = fmaf(a.update_factor, sum.y, bias[2 * lane_ + 1]);
  }

  // ---- partial sums

  RESIDENT_DEVICE float4* partial(const Arguments& a, int warp) const {
    return reinterpret_cast<float4*>(shared_memory() + a.plan.partial_offset) +
           (partial_ * kWarps + warp) * (kPartialTile / 16);
  }
  /// Both halves of this lane's place; only lanes whose last two bits are below last_lanes have one.
  RESIDENT_DEVICE float4* last_partial(const Arguments& a, int warp) const {
    return reinterpret_cast<float4*>(shared_memory() + a.plan.last_partial_offset) +
           ((warp * 8 + (lane_ >> 2)) * a.plan.last_lanes + (lane_ & 3)) * 2;
  }
  RESIDENT_DEVICE void store_partial(const Arguments& a, const typename Format::Sums& sums) {
    float value[8];
    sums.finish(value, lane_);
    partial_ ^= 1;
    float4* mine = partial(a, warp_) + lane_;
    mine[0] = make_float4(value[0], value[1], value[2], value[3]);
    mine[32] = make_float4(value[4], value[5], value[6], value[7]);
  }
  RESIDENT_DEVICE void add_partial(const Arguments& a, float (&sums)[8]) const {
    const float4* mine = partial(a, 0) + lane_;
    float4 low[kWarps], high[kWarps];
#pragma unroll
    for (int from = 0; from < kWarps; ++from)
      low[from] = mine[from * (kPartialTile / 16)], high[from] = mine[from * (kPartialTile / 16) + 32];
#pragma unroll
    for (int distance = 1; distance < kWarps; distance *= 2)
#pragma unroll
      for (int from = 0; from < kWarps; from += 2 * distance) {
        add(low[from], low[from + distance]);
        add(high[from], high[from + distance]);
      }
    sums[0] = low[0].x, sums[1] = low[0].y, sums[2] = low[0].z, sums[3] = low[0].w;
    sums[4] = high[0].x, sums[5] = high[0].y, sums[6] = high[0].z, sums[7] = high[0].w;
  }
  RESIDENT_DEVICE static void add(float4& to, const float4& value) {
    to.x += value.x, to.y += value.y, to.z += value.z, to.w += value.w;
  }

  // ---- inputs

  RESIDENT_DEVICE const unsigned char* inputs(const Arguments& a, const unsigned char* memory,
                                              int offset) const {
    return (offset >= 0 ? shared_memory() + offset : memory + batch_ * a.plan.x_batch_bytes) +
           2 * input_begin_ * kTile + lane_ * 16;
  }
  /// Zero beyond this warp's inputs, so that nothing there ever leaves zero.
  RESIDENT_DEVICE Values load_input(const unsigned char* x, int pair, int slice) const {
    Values values{};
    if (pair < input_pairs_)
#pragma unroll
      for (int part = 0; part < Format::kParts; ++part)
        assign(values, part, load_generic16(x + (2 * pair + slice) * kTile + part * 512));
    return values;
  }
  /// Starts the copy of what this lane will read; always closes a group, so that groups can be counted.
  RESIDENT_DEVICE void stage_inputs(const Arguments& a, const unsigned char* memory, int offset) {
    if (offset >= 0) {
      const int begin = 2 * input_begin_ * kTile + lane_ * 16;
      const unsigned char* source = memory + next_batch_ * a.plan.x_batch_bytes + begin;
      unsigned char* destination = shared_memory() + offset + begin;
#pragma unroll
      for (int i = 0; i < 2 * kInputPairs * Format::kParts; ++i)
        if (i < 2 * input_pairs_ * Format::kParts) copy_async16(destination + i * 512, source + i * 512);
    }
    copy_async_commit();
  }
  RESIDENT_DEVICE auto first_weights(const Arguments& a, int i) const {
    if constexpr (Format::kFirstInRegisters)
      return Format::weights(first_[i]);
    else
      return Format::load_weights(first_masters(a) + i * 32, lane_);
  }

  // ---- start and end of a launch

  /// visit(own value, whether it exists, its place in the flat parameters): the four values of a lane in a pair of
  /// masters, whose columns begin with `column` and outputs with `output`; transposed: the weight's rows are the columns.
  template <class Visit>
  RESIDENT_DEVICE void for_pair(const Arguments& a, int layer, float4& pair, int master_lane, int column,
                                int output, bool transposed, bool exists, Visit&& visit) const {
    const int in = a.plan.widths[layer], out = a.plan.widths[layer + 1];
    float* values[4] = {&pair.x, &pair.y, &pair.z, &pair.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int x = column + (c >> 1) * 8 + (master_lane >> 2), y = output + 2 * (master_lane & 3) + (c & 1);
      const int row = transposed ? x : y, place = transposed ? y : x;
      visit(*values[c], exists && row < out && place < in,
            a.plan.weight_begin[layer] + std::int64_t{row} * in + place);
    }
  }
  /// All masters of this member that are real, each with its place: rows(), columns() and the last layer's second copies.
  template <class Visit, class Mirror>
  RESIDENT_DEVICE void for_masters(const Arguments& a, Visit&& visit, Mirror&& mirror) {
    const int last = a.plan.layers - 1, m = lane_;
#pragma unroll
    for (int i = 0; i < kInputPairs; ++i) {
      const int lane = Format::kFirstInRegisters ? Format::master_lane(lane_) : m;
      float4& pair = Format::kFirstInRegisters ? first_[i] : first_masters(a)[i * 32 + m];
      for_pair(a, 0, pair, lane, (input_begin_ + i) * 16, member_ * 8, false, i < input_pairs_, visit);
    }
#pragma unroll 1
    for (int i = 0; i < kPairs; ++i) {
      const int column = first_slice_ * 8 + i * 16;
      const bool exists = i >= skipped_;
#pragma unroll 1
      for (int layer = 1; layer < last; ++layer) {
        for_pair(a, layer, matrix(a.plan.rows_offset, layer)[i * 32 + m], m, column, member_ * 8, false,
                 exists, visit);
        for_pair(a, layer, matrix(a.plan.columns_offset, layer)[i * 32 + m], m, column, member_ * 8, true,
                 exists, mirror);
      }
      for_pair(a, last, matrix(a.plan.last_offset[0], 1)[i * 32 + m], m, column, 0, false, exists, visit);
      for_pair(a, last, matrix(a.plan.last_offset[0], 1)[i * 32 + m], m, column, 0, false, exists, mirror);
      const SecondTile tile = second_tile(a, i);
      if (tile.holds(m)) {
        float4& pair = const_cast<float4*>(tile.pair)[(m >> 2) * tile.lanes + (m & 3)];
        for_pair(a, last, pair, m, column, 8, false, exists, visit);
        for_pair(a, last, pair, m, column, 8, false, exists, mirror);
      }
    }
  }
  template <class Visit>
  RESIDENT_DEVICE void for_biases(const Arguments& a, Visit&& visit) const {
    const int last = a.plan.layers - 1;
    if (warp_ < last && lane_ < 8)
      visit(floats(a.plan.bias_offset)[8 * warp_ + lane_], member_ * 8 + lane_ < a.plan.widths[warp_ + 1],
            a.plan.bias_begin[warp_] + member_ * 8 + lane_);
    if (warp_ == 7 && lane_ < kMostClasses)
      visit(floats(a.plan.last_bias_offset)[lane_], lane_ < a.plan.classes, a.plan.bias_begin[last] + lane_);
  }

  /// Masters and biases of this member out of the flat parameters; everything else zero.
  RESIDENT_DEVICE void load(const Arguments& a) {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < a.plan.shared_bytes; byte += kThreads * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
    const auto take = [&](float& own, bool exists, std::int64_t place) {
      own = exists ? a.parameters[place] : 0.0f;
    };
    for_masters(a, take, take);
    for_biases(a, take);
    block_sync();
  }
  /// The whole last layer comes from the first member, its mirror from the last.
  RESIDENT_DEVICE void store(const Arguments& a) {
    const std::int64_t last_begin = a.plan.weight_begin[a.plan.layers - 1];
    for_masters(
        a,
        [&](const float& own, bool exists, std::int64_t place) {
          if (exists && (place < last_begin || member_ == 0)) a.parameters[place] = own;
        },
        [&](const float& own, bool exists, std::int64_t place) {
          if (exists && (place < last_begin || member_ == a.plan.members - 1)) a.mirror[place] = own;
        });
    for_biases(a, [&](const float& own, bool exists, std::int64_t place) {
      if (exists && (place < last_begin || member_ == 0)) a.parameters[place] = own;
    });
  }

  // ---- places

  /// The first of the pairs that this warp reads. A warp beyond the last pair reads the last ones and skips them.
  RESIDENT_DEVICE static int first_pair(const Arguments& a, int warp) {
    return min(warp * kPairs, a.plan.members / 2 - kPairs);
  }
  RESIDENT_DEVICE static int gradient_exchange(const Arguments& a, int layer) {
    return a.plan.layers - 1 + layer - 1;
  }
  /// This warp's masters of one of the matrices at `offset`.
  RESIDENT_DEVICE float4* matrix(int offset, int layer) const {
    return reinterpret_cast<float4*>(shared_memory() + offset) +
           ((layer - 1) * kWarps + warp_) * (kPairs * 32);
  }
  RESIDENT_DEVICE SecondTile second_tile(const Arguments& a, int i) const {
    const int lanes = a.plan.last_lanes;
    return {reinterpret_cast<const float4*>(shared_memory() + a.plan.last_offset[1]) +
                (warp_ * kPairs + i) * 8 * lanes,
            lanes};
  }
  RESIDENT_DEVICE float4* first_masters(const Arguments& a) const {
    return reinterpret_cast<float4*>(shared_memory() + a.plan.first_offset) + warp_ * kInputPairs * 32;
  }
  RESIDENT_DEVICE unsigned char* own_hidden(const Arguments& a, int layer, int step) const {
    return shared_memory() + a.plan.hidden_offset + (2 * layer + (step & 1)) * kTile;
  }
  RESIDENT_DEVICE unsigned char* own_gradient(const Arguments& a, int layer) const {
    return shared_memory() + a.plan.gradient_offset + layer * kTile;
  }
  RESIDENT_DEVICE float2 bias_of(const Arguments& a, int layer) const {
    return reinterpret_cast<const float2*>(shared_memory() + a.plan.bias_offset)[layer * 4 + (lane_ & 3)];
  }
  RESIDENT_DEVICE static float* floats(int offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }

  static constexpr int kTile = 512 * Format::kParts;

  const int warp_, lane_, member_;
  const int first_slice_,
      skipped_;  // of hidden layers: what this warp reads, and how many pairs are not its own
  const int input_begin_, input_pairs_;  // this warp's pairs of inputs
  SliceWaiter waiter_;
  Exchange exchange_;
  int batch_ = 0, next_batch_ = 0;  // of this step and the next
  int partial_ = 0;                 // buffer of the last product
  int label_ = -1;                  // of this lane's row in the loss
  float4 first_[Format::kFirstInRegisters ? kInputPairs : 1];
};

template <class Format, template <class, int> class ExchangeOf, int kPairs>
__global__ void __launch_bounds__(kThreads, 1) slice_steps(const __grid_constant__ SliceArguments arguments) {
  SliceMember<Format, ExchangeOf, kPairs>(arguments).run(arguments);
}

/// A cluster has at most 16 members: widths up to 128, one pair a warp.
template <class Format>
const void* slice_kernel_of(Form form, int pairs) {
  if (form == Form::kCluster) return reinterpret_cast<const void*>(&slice_steps<Format, SliceCluster, 1>);
  return pairs == 1   ? reinterpret_cast<const void*>(&slice_steps<Format, SliceGrid, 1>)
         : pairs == 2 ? reinterpret_cast<const void*>(&slice_steps<Format, SliceGrid, 2>)
         : pairs == 4 ? reinterpret_cast<const void*>(&slice_steps<Format, SliceGrid, 4>)
                      : reinterpret_cast<const void*>(&slice_steps<Format, SliceGrid, 8>);
}

}  // namespace headroom::resident
