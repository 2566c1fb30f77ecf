// The resident training step: forward, loss, backward and update of many steps in one launch.
//
// A member (thread block) owns some chunks of 8 output columns of every layer. It keeps their rows of the weight,
// and for the input gradient of the layer above their columns of that layer's weight, both as fp32 masters in
// its shared memory for the whole launch. The second copy is updated by its owner from the same operands in the
// same order, so both copies stay the same bits; a copy the other way, through an exchange, would be one more
// wait. (The trainer compares the two copies whenever parameters are read.)
//
//   in a warp:  each of the 8 warps sums over its own units of 32 columns, and updates those columns of the
//               masters: no barrier between a weight's update and its next product. Partial sums meet in shared
//               memory, one warp adds them up, applies bias and ReLU or the mask, rounds, and publishes.
//   exchanges:  activations of every layer but the last, logits, gradients of the layers between: 2 * layers - 2.
//   updates:    put off until the member would wait anyway: the masters that the next product needs are updated
//               from the step before, right after publishing. Only the first layer, whose gradient is the last
//               thing a step makes and whose product is the first thing the next one does, is updated at once.
//   barriers:   one a product (partial sums are complete), one after the loss (the logits' gradient is complete), one
//               after the first layer's gradient. Partial sums have two buffers in turn: whoever writes one again
//               has passed the barrier behind which everybody had read it. Own tiles and the logits' gradient have
//               two buffers by the parity of the step, because updates read those of the step before.
//   on chip:    8 (fp32) bytes a weight over all members, exchange buffers (cluster), two batches of inputs if they fit
#pragma once

#include "machine/copy.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "resident/exchange.cuh"
#include "resident/softmax.cuh"

namespace headroom::resident {

template <class Format, template <class> class ExchangeOf>
class Member {
 public:
  using Values = typename Format::Values;
  using Exchange = ExchangeOf<Format>;

  MACHINE_DEVICE Member()
      : warp_(thread_index() / 32),
        lane_(thread_index() % 32),
        member_(static_cast<int>(block_index())),
        waiter_{warp_, lane_, block_index(), false} {}

  MACHINE_DEVICE void run() {
    load();
    Exchange::begin();
    next_batch_ = static_cast<int>(arguments().first_step % arguments().batches);
    stage_inputs(arguments().x_rows, plan().x_rows_offset, next_batch_);
    stage_inputs(arguments().x_columns, plan().x_columns_offset, next_batch_);
    int step = 0;
    while (step <= arguments().steps && pass(step)) ++step;
    block_sync();
    if (!waiter_.timed_out && step > arguments().steps) store();
    block_sync();
    Exchange::end();
  }

 private:
  // ---- a step

  /// One step; behind the last one, only the updates that were put off. False if a wait ran out.
  MACHINE_DEVICE bool pass(int step) {
    const bool training = step < arguments().steps;
    if (training && !forward_first(step)) return false;
    const int last = plan().layers - 1;
    for (int layer = 1; layer <= last; ++layer) {
      const int below = plan().layer[layer - 1].hidden_exchange;
      if (step > 0) update_rows(layer, step - 1);
      if (!training) continue;
      product(Exchange::tiles(waiter_, below, step), plan().layer[layer].rows_offset,
              plan().layer[layer].rows_pitch, plan().layer[layer].in_units, own_chunks(layer));
      Exchange::wait(waiter_, below, step);
      block_sync();
      if (layer < last)
        publish_hidden(layer, step);
      else
        publish_logits(step);
    }
    if (step > 0) update_last_columns(step - 1);
    if (training) tidy(step);
    if (training) {
      Exchange::wait_logits(waiter_, step);
      loss_and_gradient(step);
      block_sync();
      store_loss(step);
      product(dlogits(step), plan().layer[last].columns_offset, plan().layer[last].columns_pitch,
              plan().layer[last].out_units, own_chunks(last - 1));
      block_sync();
      publish_gradient(last - 1, step);
    }
    for (int layer = last - 1; layer >= 1; --layer) {
      const LayerPlan& place = plan().layer[layer];
      if (step > 0) update_columns(layer, step - 1);
      if (!training) continue;
      product(Exchange::tiles(waiter_, place.gradient_exchange, step), place.columns_offset,
              place.columns_pitch, place.out_units, own_chunks(layer - 1));
      Exchange::wait(waiter_, place.gradient_exchange, step);
      block_sync();
      publish_gradient(layer - 1, step);
    }
    if (training) finish_first(step);
    return true;
  }

  /// What an exchange has to do for later steps, while this one waits.
  MACHINE_DEVICE void tidy(int step) {
    if (warp_ == kWarps - 1) Exchange::wait_free_ahead(waiter_, step);
#pragma unroll 1
    for (int layer = 0; layer < plan().layers; ++layer) {
      const LayerPlan& place = plan().layer[layer];
      const int hidden = layer + 1 < plan().layers ? place.hidden_exchange : plan().logit_exchange;
      if (warp_ == (layer & (kWarps - 1)))
        Exchange::clear(waiter_, hidden, step, first_chunk(layer), own_chunks(layer));
      if (warp_ == ((layer + kWarps / 2) & (kWarps - 1)) && place.gradient_exchange >= 0)
        Exchange::clear(waiter_, place.gradient_exchange, step, first_chunk(layer), own_chunks(layer));
    }
  }

  MACHINE_DEVICE bool forward_first(int step) {
    copy_async_wait<1>();  // the newest holds the same inputs for the update
    batch_ = next_batch_;
    next_batch_ = after(batch_);
    const LayerPlan& first = plan().layer[0];
    product(inputs(arguments().x_rows, plan().x_rows_offset), first.rows_offset, first.rows_pitch,
            first.in_units, own_chunks(0));
    if (warp_ == kWarps - 1) Exchange::wait_free(waiter_, step);
    if (block_sync_or(waiter_.timed_out)) return false;
    publish_hidden(0, step);
    stage_inputs(arguments().x_rows, plan().x_rows_offset, next_batch_);
    return true;
  }

  MACHINE_DEVICE void finish_first(int step) {
    block_sync();  // the first layer's gradient is complete, and every put-off update is done
    if (warp_ == kWarps - 1) Exchange::say_free(waiter_, step);
    copy_async_wait<1>();  // the newest holds the next step's inputs for the first product
    const LayerPlan& first = plan().layer[0];
    update(inputs(arguments().x_columns, plan().x_columns_offset), first.rows_offset, first.rows_pitch,
           first.in_units, first.gradient_offset[step & 1], own_chunks(0));
    update_bias(0, step);
    stage_inputs(arguments().x_columns, plan().x_columns_offset, next_batch_);
  }

  // ---- products

  /// Partial sums of this warp's units for all own tiles: weights [chunks * 8, pitch] at `offset`.
  template <class Source>
  MACHINE_DEVICE void product(const Source& source, int offset, int pitch, int units, int chunks) {
    partial_ ^= 1;
    const UnitRange range = UnitRange::of(units, warp_);
    tiles_ = chunks * plan().groups;
    // A warp without units writes zeros, so that the sum is always over all warps.
    float* partial = floats(plan().partial_offset[partial_]) + warp_ * kTileValues;
    const int groups = plan().groups;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk)
#pragma unroll 1
      for (int group = 0; group < groups; ++group) {
        typename Format::Sums sums = Format::zero_sums();
        const float* weights = floats(offset) + chunk * kChunkColumns * pitch;
        constexpr int kBatch = Format::kUnroll;  // units whose loads are in flight at once
#pragma unroll 1
        for (int first = range.begin; first < range.end; first += kBatch) {
          const int count = min(kBatch, range.end - first);
          typename Format::Weights w[kBatch];  // before waiting for the rows
#pragma unroll
          for (int i = 0; i < kBatch; ++i)
            if (i < count) w[i] = Format::load_weights(weights + (first + i) * kUnitColumns, pitch, lane_);
          Values rows[kBatch][4];
          source.template load<kBatch>(rows, group, first, count, waiter_);
#pragma unroll
          for (int i = 0; i < kBatch; ++i)
            if (i < count) Format::multiply(sums, rows[i], w[i], pitch, lane_);
        }
        float2 result[4];
        Format::finish(sums, result, lane_);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<float2*>(partial + partial_index((lane_ >> 2) + 8 * i, lane_ & 3)) = result[i];
        partial += kWarps * kTileValues;
      }
  }
  /// Columns 2 * pair and 2 * pair + 1 of a row in a tile of partial sums. Halves of rows 4 to 7 of every 8 are
  /// swapped, so that a warp that reads whole rows meets no bank twice.
  MACHINE_DEVICE static int partial_index(int row, int pair) {
    return row * 8 + (((pair >> 1) ^ ((row >> 2) & 1)) * 4) + (pair & 1) * 2;
  }

  MACHINE_DEVICE PackedInputs<Format> inputs(const unsigned char* memory, int offset) const {
    return {offset >= 0 ? shared_memory() + offset : batch_of(memory, batch_), plan().layer[0].in_units,
            lane_};
  }

  /// Calls finish(tile, chunk, group, sums of row `lane`, sender, senders) for each own tile in the warps that are
  /// to publish it.
  template <class Finish>
  MACHINE_DEVICE void for_sums(Finish&& finish) const {
    if (tiles_ == 0) return;
    const int senders = Exchange::senders(tiles_);  // 1, 2 or 4
    const int shift = senders >> 1;
#pragma unroll 1
    for (int tile = warp_ >> shift; tile < tiles_; tile += kWarps >> shift) {
      const float* low = floats(plan().partial_offset[partial_]) + tile * kWarps * kTileValues + lane_ * 8 +
                         4 * ((lane_ >> 2) & 1);
      const float* high = low + 4 - 8 * ((lane_ >> 2) & 1);
      float4 lows[kWarps], highs[kWarps];
#pragma unroll
      for (int from = 0; from < kWarps; ++from) {
        lows[from] = *reinterpret_cast<const float4*>(low + from * kTileValues);
        highs[from] = *reinterpret_cast<const float4*>(high + from * kTileValues);
      }
      float sums[8] = {};
#pragma unroll
      for (int from = 0; from < kWarps; ++from) {
        sums[0] += lows[from].x, sums[1] += lows[from].y, sums[2] += lows[from].z, sums[3] += lows[from].w;
        sums[4] += highs[from].x, sums[5] += highs[from].y, sums[6] += highs[from].z,
            sums[7] += highs[from].w;
      }
      const int chunk = plan().groups == 1 ? tile : tile / plan().groups;
      finish(tile, chunk, tile - chunk * plan().groups, sums, warp_ & (senders - 1), senders);
    }
  }

  // ---- what happens to the sums

  MACHINE_DEVICE void add_bias(float (&sums)[8], int layer, int chunk) const {
    const float4* bias = reinterpret_cast<const float4*>(floats(plan().layer[layer].bias_offset) + chunk * 8);
    const float4 low = bias[0], high = bias[1];
    sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
    sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
  }

  MACHINE_DEVICE void publish_hidden(int layer, int step) {
    const LayerPlan& place = plan().layer[layer];
    for_sums([&](int tile, int chunk, int group, float (&sums)[8], int sender, int senders) {
      add_bias(sums, layer, chunk);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        sums[i] = sums[i] < 0 ? 0.0f : sums[i];  // NaN stays NaN, so that a broken network is seen
      const Values row = Format::round(sums);
      unsigned char* own = shared_memory() + place.hidden_offset[step & 1] + tile * kOwnTile;
      if (sender == 0) store_row(own, row);
      Exchange::publish(waiter_, place.hidden_exchange, step, group, first_chunk(layer) + chunk, row, own,
                        sender, senders);
    });
  }

  MACHINE_DEVICE void publish_logits(int step) {
    const int last = plan().layers - 1;
    for_sums([&](int /*tile*/, int chunk, int group, float (&sums)[8], int sender, int senders) {
      add_bias(sums, last, chunk);
      Exchange::publish_logits(waiter_, step, group, first_chunk(last) + chunk, sums, sender, senders);
    });
  }

  MACHINE_DEVICE void publish_gradient(int layer, int step) {
    const LayerPlan& place = plan().layer[layer];
    for_sums([&](int tile, int chunk, int group, float (&sums)[8], int sender, int senders) {
      const Values hidden = load_row(shared_memory() + place.hidden_offset[step & 1] + tile * kOwnTile);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = Format::at(hidden, i) > 0 ? sums[i] : 0.0f;
      const Values row = Format::store(sums);
      unsigned char* own = shared_memory() + place.gradient_offset[step & 1] + tile * kOwnTile;
      if (sender == 0) store_row(own, row);
      if (layer > 0)
        Exchange::publish(waiter_, place.gradient_exchange, step, group, first_chunk(layer) + chunk,
                          Format::publishable(row), own, sender, senders);
    });
  }

  MACHINE_DEVICE static void store_row_parts(unsigned char* row, const Values& values) {
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part)
      *reinterpret_cast<uint4*>(row + 16 * part) = part_of(values, part);
  }
  MACHINE_DEVICE void store_row(unsigned char* tile, const Values& values) const {
    store_row_parts(tile + lane_ * kRowBytes, values);
  }
  MACHINE_DEVICE Values load_row(const unsigned char* tile) const {
    Values values;
#pragma unroll
    for (int part = 0; part < Format::kParts; ++part)
      assign(values, part, load_shared16(tile + lane_ * kRowBytes + 16 * part));
    return values;
  }

  // ---- loss

  /// Every member, for the whole batch: softmax of the logits, the loss of each row, and the logits' gradient. Eight
  /// lanes a row, one column of each chunk a lane. Padding rows and classes stay the zero they were at the start.
  MACHINE_DEVICE void loss_and_gradient(int step) {
    constexpr int kHeld = 4;  // chunks whose logits stay in registers; those beyond are read again
    const int chunks = plan().layer[plan().layers - 1].chunks, column = lane_ & 7;
    const std::int64_t first_row = std::int64_t{batch_} * plan().batch;
#pragma unroll 1
    for (int group = 0; group < plan().groups; ++group) {
      const int row = warp_ * 4 + (lane_ >> 3);
      const bool real = group * kGroupRows + row < plan().batch;
      const int label = real ? arguments().labels[first_row + group * kGroupRows + row] : -1;
      float held[kHeld];
      const auto read = [&](int chunk, bool wait) {
        const float logit = Exchange::logit(waiter_, wait, step, group, chunk, row, column);
        return chunk * kChunkColumns + column < plan().classes ? logit : -INFINITY;
      };
#pragma unroll
      for (int chunk = 0; chunk < kHeld; ++chunk)
        held[chunk] = chunk < chunks ? read(chunk, true) : -INFINITY;

      float highest = held[0];
#pragma unroll
      for (int chunk = 1; chunk < kHeld; ++chunk) highest = fmaxf(highest, held[chunk]);
#pragma unroll 1
      for (int chunk = kHeld; chunk < chunks; ++chunk) highest = fmaxf(highest, read(chunk, true));
#pragma unroll
      for (int mask = 1; mask < 8; mask *= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));

      // From here `held` is e to the power of the logit's distance from the highest.
      float sum = 0, label_distance = 0;
      const auto add = [&](int chunk, float logit) {
        const float power = expf(logit - highest);
        sum += power;
        if (chunk * kChunkColumns + column == label) label_distance = logit - highest;
        return power;
      };
#pragma unroll
      for (int chunk = 0; chunk < kHeld; ++chunk)
        if (chunk < chunks) held[chunk] = add(chunk, held[chunk]);
#pragma unroll 1
      for (int chunk = kHeld; chunk < chunks; ++chunk) add(chunk, read(chunk, false));
#pragma unroll
      for (int mask = 1; mask < 8; mask *= 2) {
        sum += shuffle_xor(sum, mask);
        label_distance += shuffle_xor(label_distance, mask);
      }
      if (!real) continue;
      const float inverse = 1.0f / sum;
      const auto write = [&](int chunk, float power) {
        if (chunk * kChunkColumns + column >= plan().classes) return;
        const float one = chunk * kChunkColumns + column == label ? 1.0f : 0.0f;
        store_dlogit(step, group, chunk, row, column, (power * inverse - one) * arguments().gradient_scale);
      };
#pragma unroll
      for (int chunk = 0; chunk < kHeld; ++chunk)
        if (chunk < chunks) write(chunk, held[chunk]);
#pragma unroll 1
      for (int chunk = kHeld; chunk < chunks; ++chunk) write(chunk, expf(read(chunk, false) - highest));
      if (column == 0) floats(plan().row_loss_offset)[group * kGroupRows + row] = logf(sum) - label_distance;
    }
  }

  MACHINE_DEVICE void store_dlogit(int step, int group, int chunk, int row, int column, float gradient) {
    const int last = plan().layers - 1;
    const int tile = group * plan().layer[last].out_units * kUnitChunks + chunk;
    Format::store_element(shared_memory() + plan().dlogits_offset[step & 1] + tile * Format::kSharedTile, row,
                          column, Format::rounded(gradient));
    const int own = chunk - first_chunk(last);
    if (own >= 0 && own < own_chunks(last))
      Format::store_element(shared_memory() + plan().layer[last].gradient_offset[step & 1] +
                                (own * plan().groups + group) * kOwnTile,
                            row, column, gradient);
  }

  /// By one warp of the first member.
  MACHINE_DEVICE void store_loss(int step) {
    if (member_ != 0 || warp_ != kWarps - 1) return;
    float sum = 0;
    for (int group = 0; group < plan().groups; ++group)
      sum += floats(plan().row_loss_offset)[group * kGroupRows + lane_];
    store_mean_loss(arguments(), step, lane_, sum);
  }

  // ---- updates

  /// masters [chunks * 8, pitch] at `offset` += factor * own^T * source: own tiles [chunks, groups] at `own_offset`,
  /// source [groups, units * 4 chunks].
  template <class Source>
  MACHINE_DEVICE void update(const Source& source, int offset, int pitch, int units, int own_offset,
                             int chunks) {
    const UnitRange range = UnitRange::of(units, warp_);
    const int g = lane_ >> 2, t = lane_ & 3, groups = plan().groups;
    const float factor = arguments().update_factor;
#pragma unroll 1
    for (int own_chunk = 0; own_chunk < chunks; ++own_chunk) {
      const unsigned char* own_tiles = shared_memory() + own_offset + own_chunk * groups * kOwnTile;
      typename Format::Own own = Format::load_own(own_tiles, lane_);
      float* masters = floats(offset) + (own_chunk * kChunkColumns + 2 * t) * pitch + g;
      constexpr int kBatch = Format::kUpdateUnroll;  // pairs of chunks whose loads are in flight at once
#pragma unroll 1
      for (int first = 2 * range.begin; first < 2 * range.end; first += kBatch) {
        const int count = min(kBatch, 2 * range.end - first);
        // Own rows 2t and 2t + 1, columns g of both chunks of each pair. All are read before any is written, so that
        // no write holds up a read.
        float* batch = masters + first * 2 * kChunkColumns;
        float2 old[kBatch][2];
        typename Format::OuterSums sums[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          sums[i] = Format::zero_outer_sums();
          if (i >= count) continue;
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk) {
            const float* master = batch + (2 * i + chunk) * kChunkColumns;
            old[i][chunk] = make_float2(master[0], master[pitch]);
          }
        }
#pragma unroll 1
        for (int group = 0; group < groups; ++group) {
          Values columns[kBatch][2];
          source.template load_columns<kBatch>(columns, group, first, count, waiter_);
          if (groups > 1) own = Format::load_own(own_tiles + group * kOwnTile, lane_);
#pragma unroll
          for (int i = 0; i < kBatch; ++i)
            if (i < count) Format::multiply_outer(sums[i], columns[i][0], columns[i][1], own);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          float2 result[2];
          Format::finish_outer(sums[i], result, lane_);
          if (i >= count) continue;
          // The tensor core does not round to nearest: a master must not pass through its accumulator.
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk) {
            float* master = batch + (2 * i + chunk) * kChunkColumns;
            master[0] = fmaf(factor, result[chunk].x, old[i][chunk].x);
            master[pitch] = fmaf(factor, result[chunk].y, old[i][chunk].y);
          }
        }
      }
    }
    warp_sync();  // the next product reads these columns in other lanes of this warp
  }

  MACHINE_DEVICE void update_bias(int layer, int step) {
    if (warp_ != kWarps - 1) return;
    const LayerPlan& place = plan().layer[layer];
#pragma unroll 1
    for (int chunk = 0; chunk < own_chunks(layer); ++chunk) {
      float sum = 0;
#pragma unroll 1
      for (int group = 0; group < plan().groups; ++group) {
        const Values column = Format::column(
            shared_memory() + place.gradient_offset[step & 1] + (chunk * plan().groups + group) * kOwnTile,
            lane_);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += Format::at(column, i);
      }
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      float* bias = floats(place.bias_offset) + chunk * kChunkColumns + (lane_ >> 2);
      if ((lane_ & 3) == 0) *bias = fmaf(arguments().update_factor, sum, *bias);
    }
  }

  /// Own rows of a layer's weight, and its bias, from the activations and gradients of `step`.
  MACHINE_DEVICE void update_rows(int layer, int step) {
    const LayerPlan& place = plan().layer[layer];
    update(Exchange::tiles(waiter_, plan().layer[layer - 1].hidden_exchange, step), place.rows_offset,
           place.rows_pitch, place.in_units, place.gradient_offset[step & 1], own_chunks(layer));
    update_bias(layer, step);
  }

  /// Own columns of a layer's weight; the last layer's from the logits' gradient, which every member has.
  MACHINE_DEVICE void update_columns(int layer, int step) {
    const LayerPlan& place = plan().layer[layer];
    update(Exchange::tiles(waiter_, place.gradient_exchange, step), place.columns_offset, place.columns_pitch,
           place.out_units, plan().layer[layer - 1].hidden_offset[step & 1], own_chunks(layer - 1));
  }
  MACHINE_DEVICE void update_last_columns(int step) {
    const int last = plan().layers - 1;
    const LayerPlan& place = plan().layer[last];
    update(dlogits(step), place.columns_offset, place.columns_pitch, place.out_units,
           plan().layer[last - 1].hidden_offset[step & 1], own_chunks(last - 1));
  }

  // ---- inputs

  MACHINE_DEVICE static const unsigned char* batch_of(const unsigned char* inputs, int batch) {
    return inputs + batch * plan().x_batch_bytes;
  }
  MACHINE_DEVICE static int after(int batch) {
    return batch + 1 == static_cast<int>(arguments().batches) ? 0 : batch + 1;
  }
  /// Starts the copy of what this lane will read; always closes a group, so that groups can be counted.
  MACHINE_DEVICE void stage_inputs(const unsigned char* inputs, int offset, int batch) {
    if (offset >= 0) {
      const unsigned char* source = batch_of(inputs, batch);
      const int units = plan().layer[0].in_units;
      const UnitRange range = UnitRange::of(units, warp_);
      constexpr int kUnitBytes = 4 * Format::kParts * 512;
#pragma unroll 1
      for (int group = 0; group < plan().groups; ++group) {
        const int begin = (group * units + range.begin) * kUnitBytes + lane_ * 16;
        const int end = (group * units + range.end) * kUnitBytes;
#pragma unroll 1
        for (int byte = begin; byte < end; byte += 512)
          copy_async16(shared_memory() + offset + byte, source + byte);
      }
    }
    copy_async_commit();
  }

  // ---- start and end of a launch

  /// Masters and biases of this member out of the flat parameters; everything else zero.
  MACHINE_DEVICE void load() {
#pragma unroll 1
    for (int byte = kArgumentsBytes + thread_index() * 16; byte < plan().shared_bytes; byte += kThreads * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
#pragma unroll 1
    for (int index = 0; index < plan().layers; ++index) {
      for_own_weights(index, [&](float& own, std::int64_t place) { own = arguments().parameters[place]; });
      for_own_columns(index, [&](float& own, std::int64_t place) { own = arguments().parameters[place]; });
      for_own_biases(index, [&](float& own, std::int64_t place) { own = arguments().parameters[place]; });
    }
  }
  MACHINE_DEVICE void store() {
#pragma unroll 1
    for (int index = 0; index < plan().layers; ++index) {
      for_own_weights(index, [&](float& own, std::int64_t place) { arguments().parameters[place] = own; });
      for_own_columns(index, [&](float& own, std::int64_t place) { arguments().mirror[place] = own; });
      for_own_biases(index, [&](float& own, std::int64_t place) { arguments().parameters[place] = own; });
    }
  }
  /// visit(own value, its place in the flat parameters)
  template <class Visit>
  MACHINE_DEVICE void for_own_weights(int index, Visit&& visit) const {
    const LayerPlan& layer = plan().layer[index];
    const int first = first_chunk(index) * kChunkColumns;
    const int rows = min(own_chunks(index) * kChunkColumns, layer.out - first);
#pragma unroll 1
    for (int row = warp_; row < rows; row += kWarps)
#pragma unroll 1
      for (int column = lane_; column < layer.in; column += 32)
        visit(floats(layer.rows_offset)[row * layer.rows_pitch + column],
              layer.weight_begin + std::int64_t{first + row} * layer.in + column);
  }
  template <class Visit>
  MACHINE_DEVICE void for_own_columns(int index, Visit&& visit) const {
    if (index == 0) return;
    const LayerPlan& layer = plan().layer[index];
    const int first = first_chunk(index - 1) * kChunkColumns;
    const int columns = min(own_chunks(index - 1) * kChunkColumns, layer.in - first);
#pragma unroll 1
    for (int value = thread_index(); value < columns * layer.out; value += kThreads) {
      const int column = value % columns, row = value / columns;
      visit(floats(layer.columns_offset)[column * layer.columns_pitch + row],
            layer.weight_begin + std::int64_t{row} * layer.in + first + column);
    }
  }
  template <class Visit>
  MACHINE_DEVICE void for_own_biases(int index, Visit&& visit) const {
    const LayerPlan& layer = plan().layer[index];
    const int first = first_chunk(index) * kChunkColumns;
    const int count = min(own_chunks(index) * kChunkColumns, layer.out - first);
#pragma unroll 1
    for (int i = thread_index(); i < count; i += kThreads)
      visit(floats(layer.bias_offset)[i], layer.bias_begin + first + i);
  }

  // ---- places

  MACHINE_DEVICE int first_chunk(int layer) const { return member_ * plan().layer[layer].per_member; }
  MACHINE_DEVICE int own_chunks(int layer) const {
    return max(0, min(plan().layer[layer].per_member, plan().layer[layer].chunks - first_chunk(layer)));
  }
  MACHINE_DEVICE float* floats(int offset) const {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }
  MACHINE_DEVICE SharedTiles<Format> dlogits(int step) const {
    return {shared_memory() + plan().dlogits_offset[step & 1],
            plan().layer[plan().layers - 1].out_units * kUnitChunks, lane_};
  }

  static constexpr int kTileValues = kGroupRows * kChunkColumns;
  static constexpr int kRowBytes = 8 * Format::kElementBytes;
  static constexpr int kOwnTile = Format::kTile;

  const int warp_, lane_, member_;
  Waiter waiter_;
  int batch_ = 0, next_batch_ = 0;  // of this step and the next
  int partial_ = 0, tiles_ = 0;     // of the last product
};

template <class Format, template <class> class ExchangeOf>
__global__ void __launch_bounds__(kThreads, 1) resident_steps(const __grid_constant__ Arguments given) {
  for (int i = thread_index(); i < static_cast<int>(sizeof(Arguments) / 16); i += kThreads)
    reinterpret_cast<uint4*>(shared_memory())[i] = reinterpret_cast<const uint4*>(&given)[i];
  block_sync();
  Member<Format, ExchangeOf>().run();
}

template <class Format>
const void* kernel_of(Form form) {
  return form == Form::kCluster ? reinterpret_cast<const void*>(&resident_steps<Format, ClusterExchange>)
                                : reinterpret_cast<const void*>(&resident_steps<Format, GridExchange>);
}

}  // namespace headroom::resident
