// How members of the patch kernel hand each other values: through the L2, in 16-byte packets that are read and written
// whole, each with a mark, as in slice_exchange.cuh.
//
// A sum has two hops. Members of a row (a column, for an input gradient) publish partial sums in the order in which products
// leave them; the finisher of 16 outputs adds up all of them for all rows of the batch, in a fixed order, and publishes
// rounded values, 8 neighbouring columns of a row a packet. The mark of partial sums is a lowest bit of one of four, which
// is cleared before they are added up; of activations a sign, which is free; of a gradient the lowest bit of one of eight values: the bits that
// it displaces follow in a word for each warp that publishes, marked itself.
//
// Two buffers take turns by the step's parity and nothing is acknowledged. Who writes a buffer in step s + 2 has finished
// or taken something in step s + 1 of every member that read it in step s, each of whom had by then gone on
// (members of a row or column are those that share it):
//   partial sums of activations, read by the row: it has taken gradients of the whole row, finished in s + 1;
//   partial sums of gradients, read by the two rows above which its column lies: it has taken their activations of s + 1;
//   activations, read by a column, for gradients of weights as well, and by the row: it has added up sums of gradients of that whole
//     column and sums of activations of its row in s + 1;
//   gradients and logits, read by the row: it has added up sums of activations of its row in s + 1.
// Each of these was published behind the reads in question in its member's program, with a block barrier in between.
#pragma once

#include "machine/compiler.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/patch_arguments.h"
#include "resident/slice_formats.cuh"
#include "resident/waiter.cuh"

namespace headroom::resident {

using namespace machine;

inline constexpr std::uint32_t kSignMark = 0x80000000u, kLowestMark = 1, kDisplacedMark = 2;

/// Whether a wait of a thread's has run out. Who the thread is, it does not keep in registers.
struct PatchWaiter {
  bool timed_out = false;

  MACHINE_DEVICE bool give_up(const PatchArguments& a, std::uint32_t polls, std::uint64_t& begin,
                              int exchange) {
    if (timed_out) return true;
    return timed_out = gives_up(a, polls, begin, [&] {
             return wait_status(static_cast<std::uint32_t>(exchange), block_index(),
                                static_cast<std::uint32_t>(thread_index() / 32));
           });
  }
};

/// Who a thread is. Asked anew in every phase, and the compiler does not know that the answer stays the same: it would work out all
/// phases' addresses before the first step and spill them.
struct PatchPlace {
  int warp, lane, thread;
  int row, column;  // of the member

  MACHINE_DEVICE static PatchPlace here() {
    int thread = thread_index();
    compute_now(thread);
    const int member = static_cast<int>(block_index());
    return {thread >> 5, thread & 31, thread, member / kPatchColumns, member % kPatchColumns};
  }
  MACHINE_DEVICE int g() const { return lane >> 2; }
  MACHINE_DEVICE int t() const { return lane & 3; }
  MACHINE_DEVICE int block() const { return warp >> 2; }  // of 64 outputs
  MACHINE_DEVICE int part() const { return warp & 3; }    // of 64 columns
};

/// The half of the exchange memory that this step uses, and how its packets are marked.
struct PatchStage {
  unsigned char* memory;
  std::uint32_t epoch;  // 0 or 1

  MACHINE_DEVICE static PatchStage of(const PatchArguments& a, int step) {
    return {a.exchange + (step & 1) * PatchExchange::kParityBytes,
            static_cast<std::uint32_t>((step >> 1) & 1)};
  }
  MACHINE_DEVICE std::uint32_t sign() const { return epoch << 31; }
  MACHINE_DEVICE void publish_sums(unsigned char* packet, const float (&sums)[4]) const {
    store_relaxed_gpu_128(packet,
                          make_uint4(float_to_bits(sums[0]), float_to_bits(sums[1]), float_to_bits(sums[2]),
                                     (float_to_bits(sums[3]) & ~kLowestMark) | epoch));
  }
};

/// Polls until all packets have their mark, each only until it has it.
template <int kCount>
MACHINE_DEVICE void take_packets(const PatchArguments& a, PatchWaiter& waiter, uint4 (&packet)[kCount],
                                 const unsigned char* from, int stride, std::uint32_t mark,
                                 std::uint32_t want, int exchange) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) packet[i] = load_relaxed_gpu_128(from + i * stride);
  std::uint64_t begin = 0;
  for (std::uint32_t polls = 1;; ++polls) {
    std::uint32_t wrong = exchange == a.lost_exchange ? mark : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) wrong |= (packet[i].w ^ want) & mark;
    if (!warp_any(wrong != 0) || waiter.give_up(a, polls, begin, exchange)) break;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      load_relaxed_gpu_128_if(((packet[i].w ^ want) & mark) != 0, packet[i], from + i * stride);
  }
}

/// Adds up partial sums, one packet after the other, without their marks.
template <int kCount>
MACHINE_DEVICE void sum_packets(float (&sum)[4], uint4 (&packet)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) packet[i].w &= ~kLowestMark;
  sum[0] = bits_to_float(packet[0].x), sum[1] = bits_to_float(packet[0].y);
  sum[2] = bits_to_float(packet[0].z), sum[3] = bits_to_float(packet[0].w);
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    sum[0] += bits_to_float(packet[i].x), sum[1] += bits_to_float(packet[i].y);
    sum[2] += bits_to_float(packet[i].z), sum[3] += bits_to_float(packet[i].w);
  }
}

/// What a thread finishes, [16 outputs, 32 rows] of sums being four tiles [16 rows, 8 outputs] as products leave them: two
/// warps share a tile by its lanes, in a warp lanes 0 to 15 and 16 to 31 add up half of the parts each, and then have a row each.
struct PatchFinisher {
  int tile, position, half;

  MACHINE_DEVICE static PatchFinisher of(const PatchPlace& at) {
    return {at.warp >> 1, 16 * (at.warp & 1) + (at.lane & 15), at.lane >> 4};
  }
  MACHINE_DEVICE int row() const { return 16 * (tile & 1) + (position >> 2) + 8 * half; }
  MACHINE_DEVICE int chunk() const { return tile >> 1; }  // of 8 outputs
  MACHINE_DEVICE int output() const { return 8 * chunk() + 2 * (position & 3); }

  /// This thread's row, outputs output() and the next.
  template <int kParts>
  MACHINE_DEVICE float2 add_up(const PatchArguments& a, PatchWaiter& waiter, const PatchStage& stage,
                               const unsigned char* sums, int exchange) const {
    constexpr int kHalf = kParts / 2;
    constexpr int kStride = static_cast<int>(PatchExchange::kTile);
    uint4 packet[kHalf];
    take_packets(a, waiter, packet, sums + half * kHalf * kStride + tile * 512 + position * 16, kStride,
                 kLowestMark, stage.epoch, exchange);
    float sum[4];
    sum_packets(sum, packet);
#pragma unroll
    for (float& value : sum) value += shuffle_xor(value, 16);
    return half == 0 ? make_float2(sum[0], sum[1]) : make_float2(sum[2], sum[3]);
  }
  /// The four words of a row's 8 outputs, in all four lanes that have one.
  MACHINE_DEVICE static uint4 packet_of(const PatchPlace& at, std::uint32_t word) {
    const int first = at.lane & ~3;
    return make_uint4(shuffle_from(word, first), shuffle_from(word, first + 1), shuffle_from(word, first + 2),
                      shuffle_from(word, first + 3));
  }
  /// In the finisher's kTile / 2 bytes: packets [2 chunks, 32 rows].
  MACHINE_DEVICE int byte() const { return (chunk() * kGroupRows + row()) * 16; }

  MACHINE_DEVICE void publish_activations(const PatchPlace& at, const PatchStage& stage,
                                          unsigned char* tile_bytes, std::uint32_t word) const {
    uint4 packet = packet_of(at, word);
    packet.w |= stage.sign();
    if (at.t() == 0) store_relaxed_gpu_128(tile_bytes + byte(), packet);
  }
  MACHINE_DEVICE void publish_gradient(const PatchPlace& at, const PatchStage& stage,
                                       unsigned char* tile_bytes, std::uint32_t* displaced,
                                       std::uint32_t word) const {
    uint4 packet = packet_of(at, word);
    const std::uint32_t bits = warp_ballot(at.t() == 0 && (packet.w & kLowestMark) != 0);
    packet.w = (packet.w & ~kLowestMark) | stage.epoch;
    if (at.lane == 0) store_relaxed_gpu(displaced + at.warp, bits | (stage.epoch != 0 ? kDisplacedMark : 0));
    if (at.t() == 0) store_relaxed_gpu_128(tile_bytes + byte(), packet);
  }
  /// Who displaced the bit of a packet, and where in the word it is.
  MACHINE_DEVICE static int displacing_warp(int chunk, int row) {
    return 4 * chunk + 2 * (row >> 4) + ((row >> 2) & 1);
  }
  MACHINE_DEVICE static int displaced_bit(int row) { return ((row >> 3) & 1) * 16 + (row & 3) * 4; }
};

}  // namespace headroom::resident
