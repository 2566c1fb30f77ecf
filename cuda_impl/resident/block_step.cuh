// The block kernel: forward, loss, backward and update of many steps in one launch, for networks so wide that what a step
// reads decides. Every hidden weight is held once.
//
// Member (c, j), rank j of cluster c, owns the weights of outputs 72c to 72c + 71 of every hidden layer from columns
// 128j to 128j + 127 of the layer below (of the inputs an eighth): fp32 masters in its shared memory for the whole
// launch. Of the last layer it has columns 128j.. for the logits, as every cluster has, and columns 72c.. for the
// gradient below it, as every rank has.
//
//   forward:   a product gives partial sums [32 rows, 72 outputs] over the member's columns. Inside the cluster rank r gets
//              those of rows r, r + 8, r + 16 and r + 24 (st.async), adds the eight in the order of ranks, and publishes
//              these rows through the L2; every member then takes the columns that it sums over next, an eighth.
//   loss:      logits are summed in the same way, in every cluster alike; a rank makes the loss of its four rows and sends
//              their gradient to its cluster.
//   backward:  products give partial sums over the cluster's outputs, [32 rows, 128 columns]. Through the L2 rank r of every
//              cluster gets, for its rows and the cluster's own outputs, those of all clusters, adds them in
//              their order, applies the mask, and sends the gradient to its cluster.
//   updates:   local, where a weight gradient's operands meet, and in parts, while the chain waits for an exchange: the last
//              layer's while the second layer's gradient is summed up, a part of the second's while the first's is, its
//              rest and the third's in the next step while h1 and h2 travel. Only the first layer's is waited for.
//   in a warp: forward, and where the first layer is updated, nine outputs and all columns; backward, and in the other
//              updates, 16 columns and all outputs. So no product is summed over warps.
//
// Ordering. Nothing is acknowledged. Packets through the L2 are 16 bytes, read and written whole, each with a mark that
// changes whenever its buffer is written (slice_exchange.cuh); there are two buffers, by the parity of the step. Inside a
// cluster every exchange has an mbarrier. Buffers may be written again because:
//   [L2]       who publishes for step s + 2 has summed, in step s + 1, what all ranks of its cluster sent; each sent
//              that after it had taken its columns, which together are of all clusters and all ranks; and each of these
//              published in step s + 1 after it was done with step s. Partial gradients likewise.
//   [sums]     of h1 and h3 have one buffer. Who sends partial sums has, before a barrier, added up what all ranks sent for the
//              layer before, and each sent that behind the barrier that follows its reading of the layer before that.
//   [places]   sums of h1 and h3 lie where the third layer's columns do in between: those are read for the last time
//              before the warp sends its part of the second layer's gradient, and sums of h1 are sent by who has the first
//              layer's whole gradient. Sums of the logits lie where the second layer's gradient does, which is read for the
//              last time before the next step's sums of h2 are sent, without which nobody sends logits; and it is sent
//              by who has the whole gradient of the loss, whose senders have read the logits. Three take turns in one
//              place: sums of h2, read before the barrier behind which sums of h3 are sent, without which nobody sends the
//              third layer's own activations; these, read before the second's gradient is sent, without which nobody
//              sends the first's; and that, read before the next step's sums of h1 are sent, without which nobody sends
//              sums of h2. Each warp sends behind its own reading, and an exchange is complete when all warps of all
//              ranks have sent.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/copy.cuh"
#include "machine/masks.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/block_arguments.h"
#include "resident/block_fma.cuh"
#include "resident/softmax.cuh"
#include "resident/waiter.cuh"

namespace headroom::resident {

class BlockMember {
 public:
  using Arguments = BlockArguments;

  static constexpr int kThreadCount = kBlockStepThreads;
  static constexpr int kWarpOutputs = kBlockOutputs / kBlockWarps;  // in forward products every eighth
  static constexpr BlockLayout kLayout = block_layout();
  // Bytes: of tiles, and of a buffer of activations in global memory.
  static constexpr int kColumnTile = block_tile_bytes(kBlockColumns),
                       kOutputTile = block_tile_bytes(kBlockOutputs),
                       kClassTile = block_tile_bytes(kBlockClasses),
                       kHiddenBytes = block_tile_bytes(kBlockWidth);

  MACHINE_DEVICE explicit BlockMember(const Arguments& a)
      : warp_(uniform(thread_index() / 32)),
        lane_(thread_index() % 32),
        cluster_(static_cast<int>(block_index()) / kBlockRanks),
        rank_(static_cast<int>(block_index()) % kBlockRanks),
        owns_(rank_ < a.plan.blocks),
        waiter_{warp_, lane_, block_index(), false} {}

  MACHINE_DEVICE void run(const Arguments& a) {
    load(a);
    begin(a);
    sum_inputs(a, 0);
    int step = 0;
    while (step < a.steps && train_step(a, step)) ++step;
    update_matrix<kLateOctet, kOctets>(a, 0);
    update_matrix<0, kOctets>(a, 1);
    if (!block_sync_or(waiter_.timed_out)) store(a);
    // Nobody may leave while others still store into its memory.
    cluster_sync();
  }

 private:
  // ---- a step

  /// The first layer's product has been made. False if a wait ran out in the step before.
  MACHINE_DEVICE bool train_step(const Arguments& a, int step) {
    if (block_sync_or(waiter_.timed_out)) return false;
    begin_step(a, step);
    // Forward.
    finish_hidden(a, 0);
#pragma unroll 1
    for (int layer = 1; layer < kBlockHidden; ++layer) {
      // While activations travel, matrices get what the update of the step before has left out.
      if (layer == 1) {
        update_matrix<kLateOctet, kOctets>(a, 0);
        update_matrix<0, kThirdOctet>(a, 1);
      } else {
        update_matrix<kThirdOctet, kOctets>(a, 1);
      }
      sum_columns(a, layer);
      finish_hidden(a, layer);
    }
    sum_logits(a);
    if (warp_ == kBlockWarps - 1) finish_loss(a, step);

    // Backward.
    last_gradient(a, step);  // the third layer's, behind it a barrier
    PartialGradients partial;
    publish_gradient(a, 1);
    update_last_columns(a);
    load_partial(a, 1, partial);
    update_last_outputs(a);
    gather_gradient(a, 1, partial, gradient_offset(0), kSecondGradient);
    update_bias(a, biases(2), gradient_tile(1));
    await(a, kSecondGradient, step & 1, kOutputTile + kRowLossBytes, kGatherExchange);
    publish_gradient(a, 0);
    if (warp_ == kBlockWarps - 1) store_loss(a, step);
    OctetSums<kLateOctet> second(zero());
    add_rows(second, 0, 0, 0, 4);
    load_partial(a, 0, partial);
    gather_gradient(a, 0, partial, kLayout.first_gradient, kFirstGradient);
    add_rows(second, 0, 0, 4, kBlockRanks);
    apply(a, second, 0, 0);
    update_bias(a, biases(1), gradient_tile(0));
    if (step + 1 < a.steps) await_inputs(step + 1);
    await(a, kFirstGradient, step & 1, kOutputTile, kGatherExchange);
    update_first(a, step);
    update_bias(a, biases(0), shared_memory() + kLayout.first_gradient);
    if (step + 1 < a.steps) sum_inputs(a, step + 1);
    return true;
  }

  MACHINE_DEVICE void begin_step(const Arguments& a, int step) {
    parity_ = static_cast<unsigned>(step) & 1;
    epoch_ = (step >> 1 & 1) != 0;
    batch_ = next_batch_;
    next_batch_ = batch_ + 1 == static_cast<int>(a.batches) ? 0 : batch_ + 1;
    if (step + 1 < a.steps) stage_inputs(a, step + 1, next_batch_);
  }

  // ---- forward

  /// The inputs have landed. The warp has updated these masters itself.
  MACHINE_DEVICE void sum_inputs(const Arguments& a, int step) const {
    warp_sync();
    OutputSums<kWarpOutputs> sums;
    sums.add_columns<8 * kBlockInputs>(floats(kLayout.first_weights) + warp_ * kBlockInputs, input_tile(step),
                                       0, kBlockInputs / 16, lane_, zero());
    send_sums(a, sums, 0);
  }
  MACHINE_DEVICE void sum_columns(const Arguments& a, int layer) {
    take_hidden(a, layer - 1);
    OutputSums<kWarpOutputs> sums;
    sums.add_columns<8 * kBlockPitch>(matrix(layer - 1) + warp_ * kBlockPitch, hidden_tile(layer - 1), 0,
                                      kBlockColumns / 16, lane_, zero());
    send_sums(a, sums, layer);
  }
  MACHINE_DEVICE static constexpr int sums_offset(int layer) {
    return layer % 2 == 0 ? kLayout.even_sums : kLayout.first_gradient;
  }
  MACHINE_DEVICE static constexpr int sums_barrier(int layer) {
    return layer % 2 == 0 ? kEvenSums : kOddSums;
  }
  /// Rank r gets rows r, r + 8, r + 16 and r + 24: [ranks, outputs] of them.
  MACHINE_DEVICE void send_sums(const Arguments& a, const OutputSums<kWarpOutputs>& sums, int layer) const {
    if (a.lost_exchange == kSumExchange) return;
    const int offset = sums_offset(layer) + (rank_ * kBlockOutputs + warp_) * 16;
    sums.for_own(lane_, [&](int own, const FourRows& sum) {
      send(lane_ & 7, offset + own * 8 * 16, packet_bits(sum), sums_barrier(layer));
    });
  }

  /// By the first warps, a column each lane: adds up what the cluster sent, applies bias and ReLU, and publishes.
  MACHINE_DEVICE void finish_hidden(const Arguments& a, int layer) {
    if (warp_ * 32 >= kBlockOutputs) return;
    const int own = min(thread_index(), kBlockOutputs - 1), column = cluster_ * kBlockOutputs + own;
    const float bias = biases(layer)[own];
    await(a, sums_barrier(layer), layer / 2, kBlockSumBytes, kSumExchange);
    const FourRows* from = reinterpret_cast<const FourRows*>(shared_memory() + sums_offset(layer)) + own;
    FourRows sum = from[0];
#pragma unroll
    for (int rank = 1; rank < kBlockRanks; ++rank) sum = add(sum, from[rank * kBlockOutputs]);
    sum = make_float4(relu(sum.x + bias), relu(sum.y + bias), relu(sum.z + bias), relu(sum.w + bias));
    // Columns behind the last are published by nobody, so what was read for them may be the next exchange's.
    if (column >= columns(a)) sum = make_float4(0, 0, 0, 0);
    const uint4 packet = packet_bits(sum);
    if (thread_index() >= kBlockOutputs) return;
    if (column < columns(a)) {
      uint4 marked = packet;
      marked.w = (marked.w & ~kHiddenMark) | (visible(a, kHiddenExchange + layer) ? kHiddenMark : 0);
      store_relaxed_gpu_128(
          hidden_buffer(a, layer) +
              ((column / kBlockColumns * kBlockRanks + rank_) * kBlockColumns + column % kBlockColumns) * 16,
          marked);
    }
    if (layer == kBlockHidden - 1) {
      // The cluster needs these as a mask and for the last layer's columns.
#pragma unroll
      for (int i = 0; i < kBlockRanks; ++i)
        send((rank_ + i) % kBlockRanks, kLayout.first_gradient + packet_place(own, rank_), packet,
             kThirdHidden);
    } else {
      *reinterpret_cast<uint4*>(own_hidden(layer) + own * 16) = packet;
    }
  }

  /// This rank's columns into shared memory, without marks. Behind it they are complete.
  MACHINE_DEVICE void take_hidden(const Arguments& a, int layer) {
    block_sync();  // polls before this member has published would only take the L2's time
    constexpr int kEach = kBlockColumns * kBlockRanks / kThreadCount;
    const unsigned char* from =
        hidden_buffer(a, layer) + min(rank_, a.plan.blocks - 1) * kBlockColumns * 128 + thread_index() * 16;
    const std::uint32_t want = epoch_ ? kHiddenMark : 0;
    uint4 packet[kEach];
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        packet[i] = load_relaxed_gpu_128(from + kThreadCount * 16 * i);
        wrong |= packet[i].w ^ want;
      }
      if (!warp_any((wrong & kHiddenMark) != 0) || waiter_.give_up(a, polls, begin, kHiddenExchange + layer))
        break;
    }
    const int column = thread_index() % kBlockColumns, chunk = thread_index() / kBlockColumns;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      packet[i].w &= ~kHiddenMark;
      *reinterpret_cast<uint4*>(hidden_tile(layer) +
                                packet_place(column, chunk + i * (kThreadCount / kBlockColumns))) = packet[i];
    }
    block_sync();
  }

  // ---- loss

  static constexpr int kLogitParts = 4;  // that a rank's columns are divided into, by pairs of warps
  /// Partial logits: of eight classes a warp.
  MACHINE_DEVICE void sum_logits(const Arguments& a) {
    take_hidden(a, kBlockHidden - 1);
    if (a.lost_exchange == kLogitExchange) return;
    constexpr int kPart = kBlockColumns / kLogitParts;
    const int part = warp_ >> 1, first_class = 8 * (warp_ & 1);
    OutputSums<8> sums;
    sums.add_columns<kBlockPitch>(floats(kLayout.last_columns) + first_class * kBlockPitch + part * kPart,
                                  hidden_tile(kBlockHidden - 1), part * kPart, kPart / 16, lane_, zero());
    const int offset =
        kLayout.second_gradient + ((rank_ * kLogitParts + part) * kBlockClasses + first_class) * 16;
    sums.for_own(lane_, [&](int own, const FourRows& sum) {
      send(lane_ & 7, offset + own * 16, packet_bits(sum), kOddSums);
    });
  }
  static constexpr int kLogitBytes = kBlockRanks * kLogitParts * kBlockClasses * 16;

  /// By one warp: softmax of this rank's four rows and its gradient. A lane has a class; each half of the warp adds up the
  /// sums of half of the ranks, and goes on with two of the rows.
  MACHINE_DEVICE void finish_loss(const Arguments& a, int step) {
    const int which = lane_ & 15, half = lane_ >> 4;
    const float bias = floats(kLayout.last_bias)[which];
    int label[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = rank_ + 8 * (2 * half + i);
      label[i] = row < a.plan.batch ? a.labels[std::int64_t{batch_} * a.plan.batch + row] : -1;
    }
    await(a, kOddSums, 1, kLogitBytes, kLogitExchange);
    constexpr int kEach = kBlockRanks * kLogitParts / 2;
    const FourRows* from = reinterpret_cast<const FourRows*>(shared_memory() + kLayout.second_gradient) +
                           half * kEach * kBlockClasses + which;
    FourRows sum = from[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) sum = add(sum, from[i * kBlockClasses]);
    sum = add_lanes(sum, 16);
    float gradient[2], row_sum[2], row_distance[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float z = half == 0 ? (i == 0 ? sum.x : sum.y) : (i == 0 ? sum.z : sum.w);
      const float logit = which < a.plan.classes ? z + bias : -INFINITY;
      float highest = logit;
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) highest = fmaxf(highest, shuffle_xor(highest, mask));
      const float power = exponential(logit - highest);
      float powers = power;
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) powers += shuffle_xor(powers, mask);
      const float inverse = label[i] >= 0 ? divide(a.gradient_scale, powers) : 0.0f;
      gradient[i] = power * inverse - (which == label[i] ? a.gradient_scale : 0.0f);
      row_sum[i] = powers;
      row_distance[i] = which == label[i] ? logit - highest : 0.0f;
    }
    // The two lanes that hold the same packet send to other ranks each.
    const uint4 packet = packet_bits(four_rows(gradient, half));
    if (a.lost_exchange != kLossExchange)
#pragma unroll
      for (int i = 0; i < kBlockRanks / 2; ++i)
        send(half * (kBlockRanks / 2) + i, kLayout.loss_gradient + packet_place(which, rank_), packet,
             kLossGradient);
    // Nobody waits for the loss.
    float loss[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int mask = 8; mask > 0; mask /= 2) row_distance[i] += shuffle_xor(row_distance[i], mask);
      loss[i] = label[i] >= 0 ? logf(row_sum[i]) - row_distance[i] : 0.0f;
    }
    const uint4 losses = packet_bits(four_rows(loss, half));
    if (which == 0)
#pragma unroll
      for (int i = 0; i < kBlockRanks / 2; ++i)
        send(half * (kBlockRanks / 2) + i, kLayout.row_loss + rank_ * 16, losses, kSecondGradient);
  }
  /// All four rows of two lanes that have two each.
  MACHINE_DEVICE static FourRows four_rows(const float (&own)[2], int half) {
    const float x = shuffle_xor(own[0], 16), y = shuffle_xor(own[1], 16);
    return half == 0 ? make_float4(own[0], own[1], x, y) : make_float4(x, y, own[0], own[1]);
  }
  static constexpr int kRowLossBytes = kBlockRanks * 16;
  MACHINE_DEVICE void store_loss(const Arguments& a, int step) const {
    if (cluster_ != 0 || rank_ != 0) return;
    store_mean_loss(a, step, lane_, floats(kLayout.row_loss)[lane_]);
  }

  // ---- backward

  /// The gradient below the last layer, of this cluster's outputs.
  MACHINE_DEVICE void last_gradient(const Arguments& a, int step) {
    await(a, kThirdHidden, step & 1, kOutputTile, kGatherExchange);
    await(a, kLossGradient, step & 1, kClassTile, kLossExchange);
    OutputSums<kWarpOutputs> sums;
    sums.add_columns<8 * kBlockClasses>(floats(kLayout.last_outputs) + warp_ * kBlockClasses,
                                        shared_memory() + kLayout.loss_gradient, 0, 1, lane_, zero());
    sums.for_own(lane_, [&](int own, const FourRows& sum) {
      const int place = packet_place(8 * own + warp_, lane_ & 7);
      *reinterpret_cast<FourRows*>(gradient_tile(1) + place) =
          masked(sum, *reinterpret_cast<const FourRows*>(shared_memory() + kLayout.first_gradient + place));
    });
    block_sync();
  }

  /// Partial sums of the gradient below hidden layer `which` + 1, 16 columns by each warp.
  MACHINE_DEVICE void publish_gradient(const Arguments& a, int which) const {
    if (!owns_) return;
    const std::uint32_t mark = visible(a, kGradientExchange + which) ? kGradientMark : 0;
    ColumnSums sums;
    sums.add_outputs(matrix(which) + 16 * warp_, gradient_tile(which), lane_, zero());
    const int column = rank_ * kBlockColumns + 16 * warp_ + ColumnSums::column(lane_);
    unsigned char* to =
        gradient_buffer(a, which) + (cluster_ * kBlockRanks + ColumnSums::chunk(lane_)) * (kBlockWidth * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 packet = packet_bits(sums.sum[i]);
      packet.w = (packet.w & ~kGradientMark) | mark;
      store_relaxed_gpu_128(to + published_place(column + i), packet);
    }
  }
  /// Of 16 columns every fourth lies side by side: those are what lanes store at once.
  MACHINE_DEVICE static int published_place(int column) {
    return ((column & ~15) + 4 * (column & 3) + (column >> 2 & 3)) * 16;
  }

  /// For this rank's rows and the cluster's outputs, nine by each warp, a third of the clusters by each nine lanes: the sum over
  /// clusters, masked, to everybody in the cluster.
  static constexpr int kParts = 3, kThird = (kBlockClusters + kParts - 1) / kParts;
  using PartialGradients = uint4[kThird];
  /// Asks for them; whether they are there is looked at by gather_gradient().
  MACHINE_DEVICE void load_partial(const Arguments& a, int layer, PartialGradients& packet) const {
    const int part = lane_ / kWarpOutputs, own = kWarpOutputs * warp_ + lane_ % kWarpOutputs;
    const int column = min(cluster_ * kBlockOutputs + own, columns(a) - 1);
    const unsigned char* from =
        gradient_buffer(a, layer) + rank_ * (kBlockWidth * 16) + published_place(column);
#pragma unroll
    for (int i = 0; i < kThird; ++i) {
      const int cluster = part * kThird + i;
      // Of one that is not there, the last's: a load with a condition would be waited for where it stands.
      const int there = min(cluster, a.plan.clusters - 1);
      packet[i] = load_relaxed_gpu_128(from + there * (kBlockRanks * kBlockWidth * 16));
    }
  }
  MACHINE_DEVICE void gather_gradient(const Arguments& a, int layer, PartialGradients& packet, int offset,
                                      int barrier) {
    const int part = lane_ / kWarpOutputs, which = lane_ % kWarpOutputs, own = kWarpOutputs * warp_ + which;
    const FourRows hidden = *reinterpret_cast<const FourRows*>(own_hidden(layer) + own * 16);
    const std::uint32_t want = epoch_ ? kGradientMark : 0;
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kThird; ++i) wrong |= packet[i].w ^ want;
      if (!warp_any((wrong & kGradientMark) != 0) ||
          waiter_.give_up(a, polls, begin, kGradientExchange + layer))
        break;
      load_partial(a, layer, packet);
    }
    FourRows sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kThird; ++i) {
      packet[i].w &= ~kGradientMark;
      if (part * kThird + i < a.plan.clusters) sum = add(sum, rows_of(packet[i]));
    }
    FourRows total = from_lane(sum, which);
#pragma unroll
    for (int i = 1; i < kParts; ++i) total = add(total, from_lane(sum, which + i * kWarpOutputs));
    const uint4 gradient = packet_bits(masked(total, hidden));
    // Three lanes hold it; each sends to other ranks.
    if (a.lost_exchange == kGatherExchange || part >= kParts) return;
#pragma unroll
    for (int i = 0; i < (kBlockRanks + kParts - 1) / kParts; ++i) {
      const int rank = part + i * kParts;
      if (rank < kBlockRanks) send(rank, offset + packet_place(own, rank_), gradient, barrier);
    }
  }
  MACHINE_DEVICE static FourRows from_lane(const FourRows& own, int lane) {
    const uint4 bits = packet_bits(own);
    return rows_of(make_uint4(shuffle_from(bits.x, lane), shuffle_from(bits.y, lane),
                              shuffle_from(bits.z, lane), shuffle_from(bits.w, lane)));
  }

  // ---- updates

  /// Of a matrix between hidden layers, 16 columns by each warp, which has read them on the way back itself. A lane has one of
  /// every eight outputs; a part of an update is some of these octets, so that it leaves no sums in registers.
  template <int kCount>
  using OctetSums = WeightSums<kCount, 1>;
  static constexpr int kOctets = kBlockOutputs / 8;
  // The second layer's matrix from kLateOctet on and the third's before kThirdOctet are updated in the next step, while h1
  // travels, the rest of the third's while h2 does.
  static constexpr int kLateOctet = 5, kThirdOctet = 3;
  /// In lanes beside each other, so that a load of either operand takes two cycles; and eight in a row meet different banks
  /// of the masters.
  MACHINE_DEVICE int update_column() const { return 16 * warp_ + 4 * ((lane_ & 1) + 2 * (lane_ >> 4)); }
  MACHINE_DEVICE int update_output() const { return 2 * (lane_ >> 1 & 3) + (lane_ >> 3 & 1); }
  MACHINE_DEVICE int update_output(int first_octet) const { return update_output() + 8 * first_octet; }
  template <int kCount>
  MACHINE_DEVICE void add_rows(OctetSums<kCount>& sums, int which, int first_octet, int first,
                               int end) const {
    if (owns_)
      sums.add_rows(gradient_tile(which), update_output(first_octet), hidden_tile(which), update_column(),
                    first, end);
  }
  template <int kCount>
  MACHINE_DEVICE void apply(const Arguments& a, const OctetSums<kCount>& sums, int which,
                            int first_octet) const {
    if (owns_)
      sums.template apply<kBlockPitch>(
          matrix(which) + update_output(first_octet) * kBlockPitch + update_column(), a.update_factor);
  }
  template <int kFirst, int kEnd>
  MACHINE_DEVICE void update_matrix(const Arguments& a, int which) const {
    OctetSums<kEnd - kFirst> sums(zero());
    add_rows(sums, which, kFirst, 0, kBlockRanks);
    apply(a, sums, which, kFirst);
  }
  /// The warp's own outputs, four inputs by each of 28 lanes.
  MACHINE_DEVICE void update_first(const Arguments& a, int step) const {
    constexpr int kLanes = kBlockInputs / 4;
    const int column = min(lane_, kLanes - 1);
    WeightSums<kWarpOutputs, kLanes> sums(zero());
    sums.add_rows(shared_memory() + kLayout.first_gradient, warp_, input_tile(step), column, 0, kBlockRanks);
    if (lane_ < kLanes)
      sums.apply<kBlockInputs>(floats(kLayout.first_weights) + warp_ * kBlockInputs + column,
                               a.update_factor);
  }
  // The last layer's weights are held twice, so both copies add up the same: rows of the first four chunks, those of the
  // others, then these two sums.
  static constexpr int kHalfChunks = kBlockRanks / 2;

  /// The last layer's bias and columns of this rank.
  MACHINE_DEVICE void update_last_columns(const Arguments& a) const {
    const unsigned char* gradient = shared_memory() + kLayout.loss_gradient;
    if (warp_ == kBlockWarps - 1 && lane_ < kBlockClasses)
      update_bias(a, floats(kLayout.last_bias)[lane_], gradient, lane_);
    if (!owns_) return;
    constexpr int kEach = kBlockClasses / 8;
    const int first_class = update_output(), column = update_column();
    const int own_place = packet_place(first_class, 0), place = packet_place(column, 0);
    float sum[kEach][4][2] = {};
#pragma unroll
    for (int chunk = 0; chunk < kHalfChunks; ++chunk)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        FourRows own[kEach], rows[4];
        // The lane's first column is a multiple of four, so that packets of a half lie at constant distances.
        const unsigned char* columns = hidden_tile(kBlockHidden - 1) + (place ^ half * kHalfChunks * 16);
#pragma unroll
        for (int c = 0; c < 4; ++c)
          rows[c] = *reinterpret_cast<const FourRows*>(columns + packet_place(c, chunk));
        const unsigned char* classes = gradient + (own_place ^ (chunk + half * kHalfChunks) * 16);
#pragma unroll
        for (int i = 0; i < kEach; ++i) own[i] = *reinterpret_cast<const FourRows*>(classes + i * 8 * 128);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int c = 0; c < 4; ++c) sum[i][c][half] = sum_of_products(sum[i][c][half], own[i], rows[c]);
      }
    float* weights = floats(kLayout.last_columns) + first_class * kBlockPitch + column;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float4& w = *reinterpret_cast<float4*>(weights + i * 8 * kBlockPitch);
      w = make_float4(fmaf(a.update_factor, sum[i][0][0] + sum[i][0][1], w.x),
                      fmaf(a.update_factor, sum[i][1][0] + sum[i][1][1], w.y),
                      fmaf(a.update_factor, sum[i][2][0] + sum[i][2][1], w.z),
                      fmaf(a.update_factor, sum[i][3][0] + sum[i][3][1], w.w));
    }
  }
  /// The last layer's weights of the warp's own outputs: a class by each of 16 lanes, half of the chunks by each of two.
  MACHINE_DEVICE void update_last_outputs(const Arguments& a) const {
    const int own_class = lane_ & 15, half = lane_ >> 4;
    float sum[kWarpOutputs] = {};
#pragma unroll 2
    for (int i = 0; i < kHalfChunks; ++i) {
      const int chunk = i + half * kHalfChunks;
      const FourRows gradient = load_rows(shared_memory() + kLayout.loss_gradient, own_class, chunk);
      const unsigned char* hidden = shared_memory() + kLayout.first_gradient + packet_place(warp_, chunk);
#pragma unroll
      for (int o = 0; o < kWarpOutputs; ++o)
        sum[o] = sum_of_products(sum[o], gradient, *reinterpret_cast<const FourRows*>(hidden + o * 8 * 128));
    }
    float* weights = floats(kLayout.last_outputs) + warp_ * kBlockClasses + own_class;
#pragma unroll
    for (int o = 0; o < kWarpOutputs; ++o) {
      const float both = sum[o] + shuffle_xor(sum[o], 16);
      float& weight = weights[o * 8 * kBlockClasses];
      if (half == 0) weight = fmaf(a.update_factor, both, weight);
    }
  }
  /// One bias, the sum of 32 rows; everybody in a cluster does the same.
  MACHINE_DEVICE static void update_bias(const Arguments& a, float& bias, const unsigned char* gradient,
                                         int column) {
    FourRows sum = load_rows(gradient, column, 0);
#pragma unroll
    for (int chunk = 1; chunk < kBlockRanks; ++chunk) sum = add(sum, load_rows(gradient, column, chunk));
    bias = fmaf(a.update_factor, (sum.x + sum.y) + (sum.z + sum.w), bias);
  }
  /// Nine by each warp. A barrier follows before they are read.
  MACHINE_DEVICE void update_bias(const Arguments& a, float* biases, const unsigned char* gradient) const {
    const int own = kWarpOutputs * warp_ + lane_;
    if (lane_ < kWarpOutputs) update_bias(a, biases[own], gradient, own);
  }

  // ---- exchanges

  // mbarriers
  static constexpr int kEvenSums = 0, kOddSums = 1, kThirdHidden = 2, kLossGradient = 3, kSecondGradient = 4,
                       kFirstGradient = 5, kInputBarriers = 6;
  static constexpr std::uint32_t kHiddenMark = 0x80000000u, kGradientMark = 1;

  MACHINE_DEVICE static std::uint32_t barrier_address(int barrier) {
    return shared_address(shared_memory()) + static_cast<std::uint32_t>(kLayout.barriers + 8 * barrier);
  }
  MACHINE_DEVICE static void send(int rank, int offset, const uint4& packet, int barrier) {
    const auto to = static_cast<std::uint32_t>(rank);
    store_async16(remote_address(shared_address(shared_memory()) + static_cast<std::uint32_t>(offset), to),
                  packet, remote_address(barrier_address(barrier), to));
  }
  /// What arrives before the phase is armed counts too: without that arrival it is not complete.
  MACHINE_DEVICE void await(const Arguments& a, int barrier, int parity, int bytes, int exchange) {
    if (lane_ == 0 && warp_ == (barrier == kOddSums && parity == 1 ? kBlockWarps - 1 : 0) &&
        !waiter_.timed_out)
      barrier_arrive_expect(barrier_address(barrier), static_cast<std::uint32_t>(bytes));
    waiter_.await(a, barrier_address(barrier), static_cast<std::uint32_t>(parity), exchange);
  }
  /// Whether published packets get this step's mark. With the other nobody sees them.
  MACHINE_DEVICE bool visible(const Arguments& a, int exchange) const {
    return epoch_ != (exchange == a.lost_exchange);
  }
  /// [ranks that take it, ranks that publish, units]
  MACHINE_DEVICE unsigned char* hidden_buffer(const Arguments& a, int layer) const {
    return a.exchange + (2 * layer + parity_) * kHiddenBytes;
  }
  /// [clusters that publish, ranks that take it, columns]
  MACHINE_DEVICE unsigned char* gradient_buffer(const Arguments& a, int matrix) const {
    return a.exchange + 2 * kBlockHidden * kHiddenBytes + (2 * matrix + parity_) * kBlockGradientBytes;
  }

  MACHINE_DEVICE void stage_inputs(const Arguments& a, int step, int batch) const {
    if (thread_index() != kThreadCount - 1) return;
    constexpr std::uint32_t kBytes = kBlockInputTile;
    const std::uint32_t barrier = barrier_address(kInputBarriers + (step & 1));
    fence_proxy_async_shared();
    barrier_arrive_expect(barrier, kBytes);
    bulk_load(shared_address(input_tile(step)),
              a.x_rows + (std::int64_t{batch} * kBlockRanks + rank_) * kBytes, kBytes, barrier);
  }
  /// Nothing but this device's own memory is waited for, so this needs no bound.
  MACHINE_DEVICE void await_inputs(int step) const {
    while (!warp_all(barrier_try_wait(barrier_address(kInputBarriers + (step & 1)),
                                      static_cast<std::uint32_t>(step >> 1) & 1))) {
    }
  }

  // ---- start and end of a launch

  /// visit(own value, whether it exists, its place in the flat parameters) for weights [outputs, columns] that begin with
  /// this output and column, at place(output, column).
  template <class Place, class Visit>
  MACHINE_DEVICE static void for_weights(const Arguments& a, int layer, int outputs, int columns,
                                         int first_output, int first_column, int column_end, Place&& place,
                                         Visit&& visit) {
#pragma unroll 1
    for (int i = thread_index(); i < outputs * columns; i += kThreadCount) {
      const int output = i / columns, column = i % columns;
      const int row = first_output + output, from = first_column + column;
      if (row < a.plan.widths[layer + 1] && from < column_end)
        visit(place(output, column),
              a.plan.weight_begin[layer] + std::int64_t{row} * a.plan.widths[layer] + from);
    }
  }
  template <class Visit, class VisitCopy>
  MACHINE_DEVICE void for_masters(const Arguments& a, Visit&& visit, VisitCopy&& visit_copy) {
    const int output = cluster_ * kBlockOutputs, input = rank_ * a.plan.rank_inputs;
    const int input_end = min(input + a.plan.rank_inputs, a.plan.widths[0]);
    for_weights(
        a, 0, kBlockOutputs, kBlockInputs, output, input, input_end,
        [](int o, int c) -> float& { return floats(kLayout.first_weights)[o * kBlockInputs + c]; }, visit);
    const auto in_block = [](int offset) {
      return [offset](int o, int c) -> float& { return floats(offset)[o * kBlockPitch + c]; };
    };
#pragma unroll
    for (int layer = 1; layer < kBlockHidden; ++layer)
      for_weights(a, layer, kBlockOutputs, kBlockColumns, output, rank_ * kBlockColumns, a.plan.widths[layer],
                  in_block(kLayout.weights + (layer - 1) * kBlockMatrixBytes), visit);
    for_weights(a, kBlockHidden, kBlockClasses, kBlockColumns, 0, rank_ * kBlockColumns,
                a.plan.widths[kBlockHidden], in_block(kLayout.last_columns), visit);
    for_weights(
        a, kBlockHidden, kBlockClasses, kBlockOutputs, 0, output, a.plan.widths[kBlockHidden],
        [](int o, int c) -> float& { return floats(kLayout.last_outputs)[c * kBlockClasses + o]; },
        visit_copy);
  }
  template <class Visit>
  MACHINE_DEVICE void for_biases(const Arguments& a, Visit&& visit) const {
    const int own = thread_index();
#pragma unroll
    for (int layer = 0; layer < kBlockHidden; ++layer) {
      const int output = cluster_ * kBlockOutputs + own;
      if (own < kBlockOutputs && output < a.plan.widths[layer + 1])
        visit(biases(layer)[own], a.plan.bias_begin[layer] + output);
    }
    if (own < a.plan.classes) visit(floats(kLayout.last_bias)[own], a.plan.bias_begin[kBlockHidden] + own);
  }
  /// Masters and biases out of the flat parameters; everything else zero.
  MACHINE_DEVICE void load(const Arguments& a) {
#pragma unroll 1
    for (int byte = thread_index() * 16; byte < kLayout.bytes; byte += kThreadCount * 16)
      *reinterpret_cast<uint4*>(shared_memory() + byte) = make_uint4(0, 0, 0, 0);
    block_sync();
    const auto take = [&](float& own, std::int64_t place) { own = a.parameters[place]; };
    for_masters(a, take, take);
    for_biases(a, take);
    block_sync();
  }
  /// The last layer comes from the first cluster, its mirror from all first ranks; other weights there are once.
  MACHINE_DEVICE void store(const Arguments& a) {
    const auto give = [&](const float& own, std::int64_t place) {
      if (place < a.plan.weight_begin[kBlockHidden]) a.mirror[place] = own;
      if (place < a.plan.weight_begin[kBlockHidden] || cluster_ == 0) a.parameters[place] = own;
    };
    for_masters(a, give, [&](const float& own, std::int64_t place) {
      if (rank_ == 0) a.mirror[place] = own;
    });
    if (rank_ == 0) for_biases(a, give);
  }
  MACHINE_DEVICE void begin(const Arguments& a) {
    if (thread_index() == 0) {
      for (int i = 0; i < kBlockBarriers; ++i) barrier_init(barrier_address(i), 1);
      barrier_init_fence();
    }
    block_sync();
    cluster_sync();
    next_batch_ = static_cast<int>(a.first_step % a.batches);
    stage_inputs(a, 0, next_batch_);
    await_inputs(0);
  }

  // ---- places

  /// Of every hidden layer, padding included.
  MACHINE_DEVICE static int columns(const Arguments& a) { return a.plan.blocks * kBlockColumns; }

  MACHINE_DEVICE static float* matrix(int which) {
    return floats(kLayout.weights + which * kBlockMatrixBytes);
  }
  MACHINE_DEVICE static unsigned char* hidden_tile(int layer) {
    return shared_memory() + kLayout.hidden + layer * kColumnTile;
  }
  /// Of the layer that a matrix leads to.
  MACHINE_DEVICE static int gradient_offset(int which) {
    return which == 1 ? kLayout.third_gradient : kLayout.second_gradient;
  }
  MACHINE_DEVICE static unsigned char* gradient_tile(int which) {
    return shared_memory() + gradient_offset(which);
  }
  MACHINE_DEVICE static unsigned char* input_tile(int step) {
    return shared_memory() + kLayout.inputs + (step & 1) * kBlockInputTile;
  }
  MACHINE_DEVICE static unsigned char* own_hidden(int layer) {
    return shared_memory() + kLayout.own_hidden + layer * (kBlockOutputs * 16);
  }
  MACHINE_DEVICE static float* biases(int layer) {
    return floats(kLayout.bias + layer * (kBlockOutputs * 4));
  }
  MACHINE_DEVICE static const float4& zero() {
    return *reinterpret_cast<const float4*>(shared_memory() + kLayout.zero);
  }
  MACHINE_DEVICE static float* floats(int offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }
  const int warp_, lane_;
  const int cluster_, rank_;
  const bool owns_;  // columns of hidden layers. Else the weights are zero, and stay so
  CallingWaiter waiter_;
  unsigned parity_ = 0;  // of this step
  bool epoch_ = false;   // of this step's marks
  int batch_ = 0, next_batch_ = 0;
};

__global__ void __launch_bounds__(kBlockStepThreads, 1)
    block_steps(const __grid_constant__ BlockArguments arguments) {
  BlockMember(arguments).run(arguments);
}

}  // namespace headroom::resident
