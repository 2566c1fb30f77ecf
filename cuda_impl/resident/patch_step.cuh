// The patch kernel: forward, loss, backward and update of many steps in one launch, a patch of every weight a thread block.
//
//   in, out:   parameters, fp32, flat in global memory; between the beginning and the end of a launch they are on the chip
//   on chip:   of a member's masters the third layer's patch [128 outputs, 256 columns] in registers, 128 a thread; the second
//              layer's and the first's [128, 104 inputs] in shared memory. Both of its pieces of the last layer, [16 classes,
//              256 columns] for the logits and [16, 128] for the gradient below them, are global memory that nobody else looks at,
//              since each is used once a step. The layout is always that of the sums of a weight gradient, so a weight's update
//              and its rounding to an operand are its own lane's affair
//   warps:     2 x 4 patches [64 outputs, 64 columns] of a member's. So sums of a product are over four warps forward and over two
//              backward, by shared memory; all of the batch's 32 rows are one product
//   exchange:  patch_exchange.cuh: partial sums, then what their finishers made of them. Eleven hops a step
//   updates:   of the third and second layer while the sums of the gradient below travel, with activations that are read from
//              the exchange a second time
//   bits:      every sum has a fixed order; the same however steps are cut into launches
//
// Rows beyond the batch have activations but no gradient.
#pragma once

#include "machine/copy.cuh"
#include "machine/matrices.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/patch_exchange.cuh"
#include "resident/softmax.cuh"

namespace headroom::resident {

/// Masters [64 outputs, 64 columns] of a warp as tiles [16 outputs, 8 columns]: lane (g, t) has columns 2t and 2t + 1 of
/// outputs g, then g + 8.
struct MastersInRegisters {
  float value[4][8][4];
  MACHINE_DEVICE float2 load(const PatchPlace&, int outputs, int columns, int half) const {
    const auto& v = value[outputs][columns];
    return make_float2(v[2 * half], v[2 * half + 1]);
  }
  MACHINE_DEVICE void store(const PatchPlace&, int outputs, int columns, int half, const float2& masters) {
    auto& v = value[outputs][columns];
    v[2 * half] = masters.x, v[2 * half + 1] = masters.y;
  }
};
struct MastersInSharedMemory {
  MACHINE_DEVICE static float2& place(const PatchPlace& at, int outputs, int columns, int half) {
    return reinterpret_cast<float2*>(
        shared_memory() +
        PatchLayout::kSecond)[(((half * kWarps + at.warp) * 4 + outputs) * 8 + columns) * 32 + at.lane];
  }
  MACHINE_DEVICE float2 load(const PatchPlace& at, int outputs, int columns, int half) const {
    return place(at, outputs, columns, half);
  }
  MACHINE_DEVICE void store(const PatchPlace& at, int outputs, int columns, int half, const float2& masters) {
    place(at, outputs, columns, half) = masters;
  }
};

template <class Type>
class PatchMember {
 public:
  MACHINE_DEVICE explicit PatchMember(const PatchArguments& a) : batch_(a.first_step % a.batches) {}

  MACHINE_DEVICE void run(const PatchArguments& a) {
    for_masters(a, [&](float4& tile, const Patch& patch) { take(a, tile, patch); });
    for_biases(a,
               [&](float& bias, std::int64_t place, bool) { bias = place >= 0 ? a.parameters[place] : 0; });
    fetch_inputs(a, 0);
#pragma unroll 1
    for (int step = 0; step < a.steps; ++step) {
      copy_async_wait<0>();
      // A member that has given up a wait leaves here, and the parameters are then as they were.
      if (block_sync_or(waiter_.timed_out)) return;
      do_step(a, step);
    }
    copy_async_wait<0>();
    if (block_sync_or(waiter_.timed_out)) return;
    for_masters(a, [&](const float4& tile, const Patch& patch) { give(a, tile, patch); });
    for_biases(a, [&](float bias, std::int64_t place, bool owns) {
      if (place >= 0 && owns) a.parameters[place] = bias;
    });
  }

 private:
  using Layout = PatchLayout;
  using Exchange = PatchExchange;
  using Sums = float[4];
  static constexpr int kLastTiles = kPatchSummed / kWarps / 8, kLastOutputTiles = kPatchOutputs / kWarps / 8;

  MACHINE_DEVICE void do_step(const PatchArguments& a, int step) {
    const PatchStage stage = PatchStage::of(a, step);
    label_ = label(a);
    positive_ = 0;

#pragma unroll 1
    for (int layer = 0; layer < kPatchHidden; ++layer) {
      if (layer == 0) {
        forward_first(stage, step);
        advance_batch(a);
        fetch_inputs(a, step + 1);
      } else {
        take_activations(a, stage, layer - 1);
        block_sync();
        if (layer == 1)
          forward(stage, second_, layer);
        else
          forward(stage, third_, layer);
        block_sync();  // sums are read: activations may take their place
      }
      finish_activations(a, stage, layer);
    }
    float4 last[kLastTiles];
    load_last(a, last, 0);
    take_activations(a, stage, 2);
    take_row_activations(a, stage);
    block_sync();

    std::uint32_t hidden[4][4];
    publish_logits(stage, last, hidden);
    float4 last_outputs[kLastOutputTiles];
    load_last(a, last_outputs, kLastTiles);
    loss(a, stage);
    block_sync();
    if (block_index() == 0) store_loss(a, step);
    std::uint32_t loss_columns[2][4];
    gradient_below_last(a, last_outputs, loss_columns);
    block_sync();
    uint4 packet[4];
    fetch_activations(stage, packet, 1);
    backward(stage, third_, 1);
    load_last(a, last, 0);
    update_last(a, last, loss_columns, hidden);
    update_last_bias(a);
#pragma unroll 1
    for (int layer = kPatchHidden - 1; layer > 0; --layer) {
      if (layer == 1) {
        fetch_activations(stage, packet, 0);
        backward(stage, second_, 0);
      }
      update_bias(a, layer);
      block_sync();
      keep_activations(packet);
      block_sync();
      update_half(a, layer, 0);
      finish_gradient(a, stage, layer - 1);
      update_half(a, layer, 1);
      block_sync();
      take_gradient(a, stage, layer - 1);
      block_sync();
    }
    update_bias(a, 0);
    update_first(a, step);
  }

  MACHINE_DEVICE void update_half(const PatchArguments& a, int layer, int half) {
    if (layer == 2)
      update(a, third_, half);
    else
      update(a, second_, half);
  }

  // ---- fragments

  /// Rows 16 * rows of a tile, columns column to column + 15, as a product's first operand.
  MACHINE_DEVICE void load_rows(const PatchPlace& at, std::uint32_t (&words)[4], int tile, int pitch,
                                int rows, int column) const {
    load_matrices(
        shared_memory() + tile + (16 * rows + (at.lane & 15)) * pitch + (column + 8 * (at.lane >> 4)) * 2,
        words);
  }
  /// The same transposed: [16 columns, rows 16 * rows to 16 * rows + 15].
  MACHINE_DEVICE void load_columns(const PatchPlace& at, std::uint32_t (&words)[4], int tile, int pitch,
                                   int rows, int column) const {
    load_matrices_transposed(shared_memory() + tile +
                                 (16 * rows + 8 * (at.lane >> 4) + (at.lane & 7)) * pitch +
                                 (column + (at.lane & 8)) * 2,
                             words);
  }
  /// Eight columns of all rows as a second operand: words 0 and 1 of rows 0 to 15, 2 and 3 of the others.
  MACHINE_DEVICE void load_eight_columns(const PatchPlace& at, std::uint32_t (&words)[4], int tile, int pitch,
                                         int column) const {
    load_matrices_transposed(shared_memory() + tile + at.lane * pitch + column * 2, words);
  }
  MACHINE_DEVICE static void product(Sums& sums, const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
    Type::product(sums, a[0], a[1], a[2], a[3], b0, b1);
  }
  MACHINE_DEVICE static void clear(Sums& sums) { sums[0] = sums[1] = sums[2] = sums[3] = 0; }
  MACHINE_DEVICE static std::uint32_t weights(const float2& two) {
    return Type::pack_finite_weights(two.x, two.y);
  }
  /// Outputs g, then g + 8 of a tile of masters.
  MACHINE_DEVICE static std::uint32_t low_outputs(const float4& tile) {
    return weights(make_float2(tile.x, tile.y));
  }
  MACHINE_DEVICE static std::uint32_t high_outputs(const float4& tile) {
    return weights(make_float2(tile.z, tile.w));
  }
  MACHINE_DEVICE static float4 updated(const PatchArguments& a, const float4& tile, const Sums& gradient) {
    return make_float4(fmaf(a.update_factor, gradient[0], tile.x), fmaf(a.update_factor, gradient[1], tile.y),
                       fmaf(a.update_factor, gradient[2], tile.z),
                       fmaf(a.update_factor, gradient[3], tile.w));
  }
  /// The gradient of a tile of masters: [16 outputs] over all rows of the batch.
  MACHINE_DEVICE static void weight_gradient(Sums& sums, const std::uint32_t (&gradient)[2][4],
                                             const std::uint32_t (&columns)[4]) {
    clear(sums);
    product(sums, gradient[0], columns[0], columns[1]);
    product(sums, gradient[1], columns[2], columns[3]);
  }
  MACHINE_DEVICE float4* sums_of(const PatchPlace& at, int first, int tile) const {
    return reinterpret_cast<float4*>(shared_memory() + Layout::kHidden) + (first + tile) * 32 + at.lane;
  }
  MACHINE_DEVICE static float4 as_float4(const Sums& sums) {
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
  }
  MACHINE_DEVICE static void add(Sums& sums, const float4& other) {
    sums[0] += other.x, sums[1] += other.y, sums[2] += other.z, sums[3] += other.w;
  }

  // ---- forward

  /// Of the inputs' tiles the last has no neighbour: half of the last product is against nothing.
  MACHINE_DEVICE void forward_first(const PatchStage& stage, int step) const {
    const PatchPlace at = PatchPlace::here();
    Sums sums[2][2];
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
      for (int rows = 0; rows < 2; ++rows) clear(sums[chunk][rows]);
    const int tile = Layout::kInputs + (step & 1) * Layout::kInputTile;
    constexpr int kProducts = (kPatchInputTiles + 1) / 2;
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const bool whole = 2 * i + 1 < kPatchInputTiles;
      const float4 low = first_masters(at)[2 * i * 32],
                   high = whole ? first_masters(at)[(2 * i + 1) * 32] : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int rows = 0; rows < 2; ++rows) {
        std::uint32_t inputs[4];
        if (whole)
          load_rows(at, inputs, tile, Layout::kInputPitch, rows, 16 * i);
        else  // twice, for want of finite values beyond
          load_matrices(shared_memory() + tile + (16 * rows + (at.lane & 15)) * Layout::kInputPitch + 32 * i,
                        inputs);
        product(sums[0][rows], inputs, low_outputs(low), low_outputs(high));
        product(sums[1][rows], inputs, high_outputs(low), high_outputs(high));
      }
    }
    unsigned char* packets = forward_sums(at, stage, 0, at.warp);
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
      for (int rows = 0; rows < 2; ++rows)
        stage.publish_sums(packets + (2 * chunk + rows) * 512, sums[chunk][rows]);
  }

  /// Partial sums of the member's outputs over its columns. Of the 64 outputs that four warps have sums of, each adds up 16 and
  /// publishes them; in two halves, as there is room.
  template <class Masters>
  MACHINE_DEVICE void forward(const PatchStage& stage, const Masters& masters, int layer) const {
    const PatchPlace at = PatchPlace::here();
    std::uint32_t hidden[2][4][4];
#pragma unroll
    for (int rows = 0; rows < 2; ++rows)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        load_rows(at, hidden[rows][k], Layout::kHidden, Layout::kHiddenPitch, rows, 64 * at.part() + 16 * k);
    block_sync();  // sums take the place of activations
    unsigned char* packets = forward_sums(at, stage, layer, 4 * at.block() + at.part());
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      if (chunk > 0) block_sync();  // the first half is read
      Sums own[2];
#pragma unroll
      for (int pair = 0; pair < 4; pair += 2) {
        Sums sums[2][2];  // outputs, rows
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (k == 0) clear(sums[i][0]), clear(sums[i][1]);
            const std::uint32_t b0 = weights(masters.load(at, pair + i, 2 * k, chunk)),
                                b1 = weights(masters.load(at, pair + i, 2 * k + 1, chunk));
            product(sums[i][0], hidden[0][k], b0, b1);
            product(sums[i][1], hidden[1][k], b0, b1);
          }
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int rows = 0; rows < 2; ++rows)
            if (pair + i == at.part()) {
#pragma unroll
              for (int j = 0; j < 4; ++j) own[rows][j] = sums[i][rows][j];
            } else {
              *sums_of(at, 6 * at.warp, 2 * ((pair + i - at.part() - 1) & 3) + rows) =
                  as_float4(sums[i][rows]);
            }
      }
      block_sync();
#pragma unroll
      for (int rows = 0; rows < 2; ++rows) {
#pragma unroll
        for (int distance = 1; distance < 4; ++distance)
          add(own[rows],
              *sums_of(at, 6 * (4 * at.block() + ((at.part() + distance) & 3)), 2 * (3 - distance) + rows));
        stage.publish_sums(packets + (2 * chunk + rows) * 512, own[rows]);
      }
    }
  }

  /// This member's outputs of a layer: bias, ReLU, and whether there will be a gradient.
  MACHINE_DEVICE void finish_activations(const PatchArguments& a, const PatchStage& stage, int layer) {
    const PatchPlace at = PatchPlace::here();
    const PatchFinisher finisher = PatchFinisher::of(at);
    const float2 bias = *reinterpret_cast<const float2*>(bias_of(layer) + finisher.output());
    const unsigned char* sums = stage.memory + Exchange::kSums + layer * Exchange::kSumBytes +
                                block_index() * (kPatchColumns * Exchange::kTile);
    const float2 sum = finisher.template add_up<kPatchColumns>(a, waiter_, stage, sums, kPatchSums + layer);
    const std::uint32_t word = Type::pack(relu(sum.x + bias.x), relu(sum.y + bias.y));
    positive_ |= (Type::positive(word) & 0x00010001u) << layer;
    finisher.publish_activations(at, stage,
                                 stage.memory + Exchange::kActivations + layer * Exchange::kTileBytes +
                                     block_index() * (Exchange::kTile / 2),
                                 word);
  }

  MACHINE_DEVICE static const unsigned char* column_activations(const PatchPlace& at, const PatchStage& stage,
                                                                int layer) {
    return stage.memory + Exchange::kActivations + layer * Exchange::kTileBytes +
           at.column * (2 * kPatchColumns * Exchange::kTile / 2) + at.thread * 16;
  }
  /// Activations of this column, into kHidden.
  MACHINE_DEVICE void take_activations(const PatchArguments& a, const PatchStage& stage, int layer) {
    const PatchPlace at = PatchPlace::here();
    uint4 packet[4];
    take_packets(a, waiter_, packet, column_activations(at, stage, layer), kThreads * 16, kSignMark,
                 stage.sign(), kPatchActivations + layer);
    keep_activations(packet);
  }
  /// The same packets again, for whoever has taken them before.
  MACHINE_DEVICE void fetch_activations(const PatchStage& stage, uint4 (&packet)[4], int layer) const {
    const PatchPlace at = PatchPlace::here();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      packet[i] = load_relaxed_gpu_128(column_activations(at, stage, layer) + i * kThreads * 16);
  }
  MACHINE_DEVICE void keep_activations(uint4 (&packet)[4]) const {
    const PatchPlace at = PatchPlace::here();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      packet[i].w &= ~kSignMark;
      keep_packet(packet[i], Layout::kHidden, Layout::kHiddenPitch, at.thread + kThreads * i);
    }
  }
  /// Activations below the last layer that this row is the outputs of, where their gradient will be.
  MACHINE_DEVICE void take_row_activations(const PatchArguments& a, const PatchStage& stage) {
    const PatchPlace at = PatchPlace::here();
    uint4 packet[2];
    take_packets(a, waiter_, packet,
                 stage.memory + Exchange::kActivations + (kPatchHidden - 1) * Exchange::kTileBytes +
                     row_byte(at) + at.thread * 16,
                 kThreads * 16, kSignMark, stage.sign(), kPatchActivations + kPatchHidden - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      packet[i].w &= ~kSignMark;
      keep_packet(packet[i], Layout::kGradient, Layout::kGradientPitch, at.thread + kThreads * i);
    }
  }
  /// Of finishers' packets [chunks, 32 rows] the index-th.
  MACHINE_DEVICE static void keep_packet(const uint4& packet, int tile, int pitch, int index) {
    *reinterpret_cast<uint4*>(shared_memory() + tile + index % kGroupRows * pitch + index / kGroupRows * 16) =
        packet;
  }

  // ---- loss

  /// Partial sums of the logits over this column, the same in every row of members; the warps' parts are added up first.
  /// `hidden`: this warp's 32 columns for the gradient of their weights.
  MACHINE_DEVICE void publish_logits(const PatchStage& stage, const float4 (&last)[kLastTiles],
                                     std::uint32_t (&hidden)[4][4]) const {
    const PatchPlace at = PatchPlace::here();
    Sums sums[2][2];  // rows, chunk of classes
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      clear(sums[rows][0]), clear(sums[rows][1]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        std::uint32_t words[4];
        load_rows(at, words, Layout::kHidden, Layout::kHiddenPitch, rows, 32 * at.warp + 16 * k);
        const float4 &low = last[2 * k], &high = last[2 * k + 1];
        product(sums[rows][0], words, low_outputs(low), low_outputs(high));
        product(sums[rows][1], words, high_outputs(low), high_outputs(high));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_eight_columns(at, hidden[i], Layout::kHidden, Layout::kHiddenPitch, 32 * at.warp + 8 * i);
    block_sync();  // sums take the place of activations
    float* all = reinterpret_cast<float*>(shared_memory() + Layout::kHidden);
    constexpr int kWarpSums = kGroupRows * kPatchClasses;
#pragma unroll
    for (int rows = 0; rows < 2; ++rows)
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<float2*>(
              all + at.warp * kWarpSums + (16 * rows + 8 * half + at.g()) * kPatchClasses + 8 * chunk +
              2 * at.t()) = make_float2(sums[rows][chunk][2 * half], sums[rows][chunk][2 * half + 1]);
    block_sync();
    if (at.thread >= kWarpSums / 4) return;
    Sums total;
    clear(total);
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      add(total, *reinterpret_cast<const float4*>(all + warp * kWarpSums + at.thread * 4));
    stage.publish_sums(stage.memory + Exchange::kLogits + (block_index() * (kWarpSums / 4) + at.thread) * 16,
                       total);
  }

  /// Softmax and the logits' gradient of a row in eight threads: thread n has classes 4 (n % 4) to 4 (n % 4) + 3, and adds up
  /// half of this row of members' parts.
  MACHINE_DEVICE void loss(const PatchArguments& a, const PatchStage& stage) {
    const PatchPlace at = PatchPlace::here();
    constexpr int kMember = kGroupRows * kPatchClasses * 4;
    const int row = at.thread >> 3, first = 4 * (at.lane & 3), half = (at.lane >> 2) & 1;
    uint4 packet[kPatchColumns / 2];
    take_packets(a, waiter_, packet,
                 stage.memory + Exchange::kLogits +
                     (at.row * kPatchColumns + half * (kPatchColumns / 2)) * kMember +
                     (row * kPatchClasses + first) * 4,
                 kMember, kLowestMark, stage.epoch, kPatchLogits);
    float logit[4];
    sum_packets(logit, packet);
    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      logit[i] += shuffle_xor(logit[i], 4);
      logit[i] = first + i < a.plan.classes ? logit[i] + last_bias()[first + i] : -INFINITY;
      highest = fmaxf(highest, logit[i]);
    }
    highest = quad_maximum(highest);
    float power[4], sum = 0, distance = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      power[i] = exponential(logit[i] - highest);
      sum += power[i];
      if (first + i == label_) distance = logit[i] - highest;
    }
    sum = quad_sum(sum);
    const float inverse = row < a.plan.batch ? divide(a.gradient_scale, sum) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      power[i] = power[i] * inverse - (first + i == label_ ? a.gradient_scale : 0.0f);
    if (half == 0)
      *reinterpret_cast<uint2*>(shared_memory() + Layout::kLoss + row * Layout::kLossPitch + first * 2) =
          make_uint2(Type::pack(power[0], power[1]), Type::pack(power[2], power[3]));
    distance = quad_sum(distance);
    if ((at.lane & 7) == 0) row_losses()[row] = make_float2(sum, distance);
  }
  MACHINE_DEVICE void store_loss(const PatchArguments& a, int step) const {
    const PatchPlace at = PatchPlace::here();
    if (at.warp != 0) return;
    const float2 row = row_losses()[at.lane];
    const float loss = at.lane < a.plan.batch ? logf(row.x) - row.y : 0.0f;
    store_mean_loss(a, step, at.lane, loss);
  }

  // ---- backward

  /// This row's gradient in place of its activations, 16 columns a warp, and the update of their weights.
  MACHINE_DEVICE void gradient_below_last(const PatchArguments& a,
                                          const float4 (&last_outputs)[kLastOutputTiles],
                                          std::uint32_t (&loss_columns)[2][4]) const {
    const PatchPlace at = PatchPlace::here();
    std::uint32_t loss_rows[2][4];
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      load_rows(at, loss_rows[rows], Layout::kLoss, Layout::kLossPitch, rows, 0);
      load_columns(at, loss_columns[rows], Layout::kLoss, Layout::kLossPitch, rows, 0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 16 * at.warp + 8 * i;
      std::uint32_t hidden[4];
      load_eight_columns(at, hidden, Layout::kGradient, Layout::kGradientPitch, column);
      const std::uint32_t b0 = transpose8x8(low_outputs(last_outputs[i])),
                          b1 = transpose8x8(high_outputs(last_outputs[i]));
      warp_sync();
#pragma unroll
      for (int rows = 0; rows < 2; ++rows) {
        Sums sums;
        clear(sums);
        product(sums, loss_rows[rows], b0, b1);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          auto* word = reinterpret_cast<std::uint32_t*>(
              shared_memory() + Layout::kGradient + (16 * rows + 8 * half + at.g()) * Layout::kGradientPitch +
              (column + 2 * at.t()) * 2);
          *word = Type::pack(sums[2 * half], sums[2 * half + 1]) & Type::positive(*word);
        }
      }
      Sums gradient;
      weight_gradient(gradient, loss_columns, hidden);
      last_tile(a, at, kLastTiles + i) = updated(a, last_outputs[i], gradient);
    }
  }
  MACHINE_DEVICE void update_last(const PatchArguments& a, const float4 (&last)[kLastTiles],
                                  const std::uint32_t (&loss_columns)[2][4],
                                  const std::uint32_t (&hidden)[4][4]) const {
    const PatchPlace at = PatchPlace::here();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Sums gradient;
      weight_gradient(gradient, loss_columns, hidden[i]);
      last_tile(a, at, i) = updated(a, last[i], gradient);
    }
  }

  /// Partial sums of the gradient of this member's columns over its outputs: two warps' are added up, half by each.
  template <class Masters>
  MACHINE_DEVICE void backward(const PatchStage& stage, const Masters& masters, int layer) const {
    const PatchPlace at = PatchPlace::here();
    std::uint32_t gradient[2][4][4];
#pragma unroll
    for (int rows = 0; rows < 2; ++rows)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        load_rows(at, gradient[rows][k], Layout::kGradient, Layout::kGradientPitch, rows,
                  64 * at.block() + 16 * k);
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
      block_sync();    // what was here is read
      Sums own[2][2];  // chunk, rows
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Sums sums[2][2];  // chunk, rows
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
          for (int chunk = 0; chunk < 2; ++chunk) {
            if (k == 0) clear(sums[chunk][0]), clear(sums[chunk][1]);
            const int columns = 4 * half + 2 * turn + chunk;
            const std::uint32_t b0 = transpose8x8(weights(masters.load(at, k, columns, 0))),
                                b1 = transpose8x8(weights(masters.load(at, k, columns, 1)));
            product(sums[chunk][0], gradient[0][k], b0, b1);
            product(sums[chunk][1], gradient[1][k], b0, b1);
          }
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
          for (int rows = 0; rows < 2; ++rows)
            if (half == at.block()) {
#pragma unroll
              for (int j = 0; j < 4; ++j) own[chunk][rows][j] = sums[chunk][rows][j];
            } else {
              *sums_of(at, 4 * at.warp, 2 * chunk + rows) = as_float4(sums[chunk][rows]);
            }
      }
      block_sync();
      // Slices of 16 columns, one for each finisher of two rows of members.
      const int slice = 4 * at.part() + 2 * at.block() + turn;
      unsigned char* packets =
          stage.memory + Exchange::kGradientSums + layer * Exchange::kGradientSumBytes +
          ((2 * at.column * kPatchColumns + slice) * kPatchRows + at.row) * Exchange::kTile + at.lane * 16;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
        for (int rows = 0; rows < 2; ++rows) {
          add(own[chunk][rows], *sums_of(at, 4 * (at.warp ^ 4), 2 * chunk + rows));
          stage.publish_sums(packets + (2 * chunk + rows) * 512, own[chunk][rows]);
        }
    }
  }

  MACHINE_DEVICE void finish_gradient(const PatchArguments& a, const PatchStage& stage, int layer) {
    const PatchPlace at = PatchPlace::here();
    const PatchFinisher finisher = PatchFinisher::of(at);
    const unsigned char* sums = stage.memory + Exchange::kGradientSums + layer * Exchange::kGradientSumBytes +
                                block_index() * (kPatchRows * Exchange::kTile);
    const float2 sum =
        finisher.template add_up<kPatchRows>(a, waiter_, stage, sums, kPatchGradientSums + layer);
    const std::uint32_t positive = ((positive_ >> layer) & 0x00010001u) * 0xffffu;
    unsigned char* tile = stage.memory + Exchange::kGradients + layer * Exchange::kGradientBytes;
    finisher.publish_gradient(
        at, stage, tile + block_index() * (Exchange::kTile / 2),
        reinterpret_cast<std::uint32_t*>(tile + Exchange::kDisplaced) + block_index() * kWarps,
        Type::pack(sum.x, sum.y) & positive);
  }
  MACHINE_DEVICE void take_gradient(const PatchArguments& a, const PatchStage& stage, int layer) {
    const PatchPlace at = PatchPlace::here();
    const unsigned char* tile = stage.memory + Exchange::kGradients + layer * Exchange::kGradientBytes;
    const unsigned char* packets = tile + row_byte(at) + at.thread * 16;
    const int row = at.thread % kGroupRows, chunk = at.thread / kGroupRows;
    const std::uint32_t* displaced = reinterpret_cast<const std::uint32_t*>(tile + Exchange::kDisplaced) +
                                     (at.row * kPatchColumns + chunk / 2) * kWarps +
                                     PatchFinisher::displacing_warp(chunk % 2, row);
    constexpr int kExchange = kPatchGradients;
    const std::uint32_t wanted_word = stage.epoch != 0 ? kDisplacedMark : 0;
    // The thread's second packet is half of the row's finishers further.
    constexpr int kWordStride = kPatchColumns / 2 * kWarps;
    uint4 packet[2] = {load_relaxed_gpu_128(packets), load_relaxed_gpu_128(packets + kThreads * 16)};
    std::uint32_t word[2] = {load_relaxed_gpu(displaced), load_relaxed_gpu(displaced + kWordStride)};
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = kExchange + layer == a.lost_exchange;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        wrong |= ((packet[i].w ^ stage.epoch) & kLowestMark) | ((word[i] ^ wanted_word) & kDisplacedMark);
      if (!warp_any(wrong != 0) || waiter_.give_up(a, polls, begin, kExchange + layer)) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load_relaxed_gpu_128_if(((packet[i].w ^ stage.epoch) & kLowestMark) != 0, packet[i],
                                packets + i * kThreads * 16);
        word[i] = load_relaxed_gpu(displaced + i * kWordStride);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      packet[i].w = (packet[i].w & ~kLowestMark) | ((word[i] >> PatchFinisher::displaced_bit(row)) & 1);
      keep_packet(packet[i], Layout::kGradient, Layout::kGradientPitch, at.thread + kThreads * i);
    }
  }

  // ---- updates

  /// From the gradient of this row's outputs and the activations of this column: half of each warp's columns.
  template <class Masters>
  MACHINE_DEVICE void update(const PatchArguments& a, Masters& masters, int half) const {
    const PatchPlace at = PatchPlace::here();
    std::uint32_t gradient[2][4][4];
#pragma unroll
    for (int rows = 0; rows < 2; ++rows)
#pragma unroll
      for (int outputs = 0; outputs < 4; ++outputs)
        load_columns(at, gradient[rows][outputs], Layout::kGradient, Layout::kGradientPitch, rows,
                     64 * at.block() + 16 * outputs);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int columns = 4 * half + i;
      std::uint32_t hidden[4];
      load_eight_columns(at, hidden, Layout::kHidden, Layout::kHiddenPitch, 64 * at.part() + 8 * columns);
      float2 old[4][2];
      Sums sums[4];
#pragma unroll
      for (int outputs = 0; outputs < 4; ++outputs) {
        clear(sums[outputs]);
#pragma unroll
        for (int part = 0; part < 2; ++part) old[outputs][part] = masters.load(at, outputs, columns, part);
      }
      // Sums side by side: one alone waits for its first product.
#pragma unroll
      for (int rows = 0; rows < 2; ++rows)
#pragma unroll
        for (int outputs = 0; outputs < 4; ++outputs)
          product(sums[outputs], gradient[rows][outputs], hidden[2 * rows], hidden[2 * rows + 1]);
#pragma unroll
      for (int outputs = 0; outputs < 4; ++outputs)
#pragma unroll
        for (int part = 0; part < 2; ++part)
          masters.store(
              at, outputs, columns, part,
              make_float2(fmaf(a.update_factor, sums[outputs][2 * part], old[outputs][part].x),
                          fmaf(a.update_factor, sums[outputs][2 * part + 1], old[outputs][part].y)));
    }
  }
  MACHINE_DEVICE void update_first(const PatchArguments& a, int step) const {
    const PatchPlace at = PatchPlace::here();
    std::uint32_t gradient[2][4];
#pragma unroll
    for (int rows = 0; rows < 2; ++rows)
      load_columns(at, gradient[rows], Layout::kGradient, Layout::kGradientPitch, rows, 16 * at.warp);
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int first = 0; first < kPatchInputTiles; first += kAtOnce) {
      std::uint32_t inputs[kAtOnce][4];
      float4 old[kAtOnce];
      Sums sums[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kPatchInputTiles; ++i) {
        load_eight_columns(at, inputs[i], Layout::kInputs + (step & 1) * Layout::kInputTile,
                           Layout::kInputPitch, 8 * (first + i));
        old[i] = first_masters(at)[(first + i) * 32];
        clear(sums[i]);
      }
#pragma unroll
      for (int rows = 0; rows < 2; ++rows)
#pragma unroll
        for (int i = 0; i < kAtOnce && first + i < kPatchInputTiles; ++i)
          product(sums[i], gradient[rows], inputs[i][2 * rows], inputs[i][2 * rows + 1]);
#pragma unroll
      for (int i = 0; i < kAtOnce && first + i < kPatchInputTiles; ++i)
        first_masters(at)[(first + i) * 32] = updated(a, old[i], sums[i]);
    }
  }
  /// Of the 16 outputs that this member finishes; each half of a warp adds up half of the rows.
  MACHINE_DEVICE void update_bias(const PatchArguments& a, int layer) const {
    const PatchPlace at = PatchPlace::here();
    if (at.warp != kWarps - 1) return;
    const int output = at.lane & 15, first = 16 * (at.lane >> 4);
    const unsigned char* column =
        shared_memory() + Layout::kGradient + (kPatchFinished * at.column + output) * 2;
    float sum = 0;
#pragma unroll
    for (int row = 0; row < 16; ++row) sum += value(column + (first + row) * Layout::kGradientPitch);
    sum += shuffle_xor(sum, 16);
    if (at.lane < 16) bias_of(layer)[output] = fmaf(a.update_factor, sum, bias_of(layer)[output]);
  }
  MACHINE_DEVICE void update_last_bias(const PatchArguments& a) const {
    const PatchPlace at = PatchPlace::here();
    if (at.warp != kWarps - 2 || at.lane >= kPatchClasses) return;
    float sum = 0;
#pragma unroll
    for (int row = 0; row < kGroupRows; ++row)
      sum += value(shared_memory() + Layout::kLoss + row * Layout::kLossPitch + at.lane * 2);
    last_bias()[at.lane] = fmaf(a.update_factor, sum, last_bias()[at.lane]);
  }
  MACHINE_DEVICE static float value(const unsigned char* two_bytes) {
    return Type::value(*reinterpret_cast<const std::uint16_t*>(two_bytes), 0);
  }

  // ---- inputs

  MACHINE_DEVICE void fetch_inputs(const PatchArguments& a, int step) const {
    const PatchPlace at = PatchPlace::here();
    const unsigned char* tile = a.x_rows + (batch_ * kPatchColumns + at.column) * Layout::kInputTile;
    unsigned char* place = shared_memory() + Layout::kInputs + (step & 1) * Layout::kInputTile;
    for (int byte = at.thread * 16; byte < Layout::kInputTile; byte += kThreads * 16)
      copy_async16(place + byte, tile + byte);
    copy_async_commit();
  }
  MACHINE_DEVICE void advance_batch(const PatchArguments& a) {
    if (++batch_ == a.batches) batch_ = 0;
  }
  MACHINE_DEVICE int label(const PatchArguments& a) const {
    const PatchPlace at = PatchPlace::here();
    const int row = at.thread >> 3;
    return row < a.plan.batch ? a.labels[batch_ * a.plan.batch + row] : -1;
  }

  // ---- places

  MACHINE_DEVICE float4* first_masters(const PatchPlace& at) const {
    return reinterpret_cast<float4*>(shared_memory() + Layout::kFirst) + at.warp * kPatchInputTiles * 32 +
           at.lane;
  }
  /// Masters of the last layer, which are used once a step each: tiles for the logits, then those for the gradient below them.
  MACHINE_DEVICE static float4& last_tile(const PatchArguments& a, const PatchPlace& at, int i) {
    return reinterpret_cast<float4*>(
        a.exchange +
        2 * Exchange::kParityBytes)[(block_index() * (kLastTiles + kLastOutputTiles) + i) * kThreads +
                                    at.thread];
  }
  template <int kTiles>
  MACHINE_DEVICE static void load_last(const PatchArguments& a, float4 (&tiles)[kTiles], int first) {
    const PatchPlace at = PatchPlace::here();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) tiles[i] = last_tile(a, at, first + i);
  }
  MACHINE_DEVICE unsigned char* forward_sums(const PatchPlace& at, const PatchStage& stage, int layer,
                                             int finisher) const {
    return stage.memory + Exchange::kSums + layer * Exchange::kSumBytes +
           ((at.row * kPatchColumns + finisher) * kPatchColumns + at.column) * Exchange::kTile + at.lane * 16;
  }
  /// Rounded values of this row.
  MACHINE_DEVICE std::int64_t row_byte(const PatchPlace& at) const {
    return at.row * (kPatchColumns * Exchange::kTile / 2);
  }
  MACHINE_DEVICE static float* bias_of(int layer) {
    return reinterpret_cast<float*>(shared_memory() + Layout::kBias) + layer * kPatchFinished;
  }
  MACHINE_DEVICE static float* last_bias() {
    return reinterpret_cast<float*>(shared_memory() + Layout::kLastBias);
  }
  MACHINE_DEVICE static float2* row_losses() {
    return reinterpret_cast<float2*>(shared_memory() + Layout::kRowLoss);
  }

  // ---- masters in and out

  /// A tile's place: its first output and column, the end of the columns that it may have, and which of the two arrays at the end it
  /// is written to.
  struct Patch {
    int layer, output, column, end;
    bool to_parameters, to_mirror;
  };
  template <class Visit>
  MACHINE_DEVICE void for_masters(const PatchArguments& a, Visit&& visit) {
    const PatchPlace at = PatchPlace::here();
    const int output = kPatchOutputs * at.row, column = kPatchSummed * at.column;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int tile_output = output + 64 * at.block() + 16 * i,
                  tile_column = column + 64 * at.part() + 8 * k;
        visit_tile(at, second_, i, k, visit,
                   Patch{1, tile_output, tile_column, a.plan.widths[1], true, true});
        visit_tile(at, third_, i, k, visit, Patch{2, tile_output, tile_column, a.plan.widths[2], true, true});
      }
    const int first = a.plan.column_inputs * at.column;
#pragma unroll 1
    for (int i = 0; i < kPatchInputTiles; ++i)
      visit(first_masters(at)[i * 32],
            Patch{0, output + 16 * at.warp, first + 8 * i,
                  min(a.plan.widths[0], first + a.plan.column_inputs), true, true});
#pragma unroll
    for (int i = 0; i < 4; ++i)
      visit(last_tile(a, at, i),
            Patch{3, 0, column + 32 * at.warp + 8 * i, a.plan.widths[3], at.row == 0, false});
#pragma unroll
    for (int i = 0; i < 2; ++i)
      visit(last_tile(a, at, kLastTiles + i), Patch{3, 0, output + 16 * at.warp + 8 * i, a.plan.widths[3],
                                                    false, at.column == kPatchColumns - 1});
  }
  template <class Masters, class Visit>
  MACHINE_DEVICE static void visit_tile(const PatchPlace& at, Masters& masters, int outputs, int columns,
                                        Visit&& visit, const Patch& patch) {
    const float2 low = masters.load(at, outputs, columns, 0), high = masters.load(at, outputs, columns, 1);
    float4 tile = make_float4(low.x, low.y, high.x, high.y);
    visit(tile, patch);
    masters.store(at, outputs, columns, 0, make_float2(tile.x, tile.y));
    masters.store(at, outputs, columns, 1, make_float2(tile.z, tile.w));
  }
  template <class Each>
  MACHINE_DEVICE void for_each(const PatchArguments& a, const Patch& patch, Each&& each) const {
    const PatchPlace at = PatchPlace::here();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int output = patch.output + at.g() + 8 * (i >> 1), column = patch.column + 2 * at.t() + (i & 1);
      each(i, output < a.plan.widths[patch.layer + 1] && column < patch.end,
           a.plan.weight_begin[patch.layer] + std::int64_t{output} * a.plan.widths[patch.layer] + column);
    }
  }
  MACHINE_DEVICE void take(const PatchArguments& a, float4& tile, const Patch& patch) const {
    Sums values;
    for_each(a, patch, [&](int i, bool exists, std::int64_t place) {
      values[i] = exists ? a.parameters[place] : 0.0f;
    });
    tile = as_float4(values);
  }
  MACHINE_DEVICE void give(const PatchArguments& a, const float4& tile, const Patch& patch) const {
    const Sums values = {tile.x, tile.y, tile.z, tile.w};
    for_each(a, patch, [&](int i, bool exists, std::int64_t place) {
      if (exists && patch.to_parameters) a.parameters[place] = values[i];
      if (exists && patch.to_mirror) a.mirror[place] = values[i];
    });
  }
  /// each(bias, its place in the parameters or -1, whether this member writes it back).
  template <class Visit>
  MACHINE_DEVICE void for_biases(const PatchArguments& a, Visit&& visit) const {
    const PatchPlace at = PatchPlace::here();
    if (at.thread < kPatchHidden * kPatchFinished) {
      const int layer = at.thread / kPatchFinished, own = at.thread % kPatchFinished;
      const int output = static_cast<int>(block_index()) * kPatchFinished + own;
      visit(bias_of(layer)[own], output < a.plan.widths[layer + 1] ? a.plan.bias_begin[layer] + output : -1,
            true);
    }
    if (at.thread < kPatchClasses)
      visit(last_bias()[at.thread],
            at.thread < a.plan.classes ? a.plan.bias_begin[kPatchLayers - 1] + at.thread : -1,
            block_index() == 0);
  }

  PatchWaiter waiter_;
  std::int64_t batch_;
  int label_ = -1;              // of this thread's row in the loss
  std::uint32_t positive_ = 0;  // of what this thread finishes: bits `layer` and 16 + `layer`
  MastersInSharedMemory second_;
  MastersInRegisters third_;
};

template <class Type>
__global__ void __launch_bounds__(kThreads, 1) patch_steps(const __grid_constant__ PatchArguments arguments) {
  PatchMember<Type>(arguments).run(arguments);
}

}  // namespace headroom::resident
