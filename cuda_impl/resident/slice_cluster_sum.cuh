// Sums over clusters: several clusters hold the same network, divide what is summed over, and add up what each has of a sum.
//
// Member r of a cluster adds up with member r of each other one, through the L2: 16 bytes of each lane of a warp, read and
// written whole (b128, relaxed), which carry a mark as the tiles of slice_exchange.cuh do. The mark is the lowest bit
// of a lane's last value, and the sender adds up what it sent, so every cluster adds the same values; an addition may be
// turned round, and of four and eight the pairs are the same, so all have the same bits.
//
// Two buffers in turn, no acknowledgement: who writes one again has taken a sum of the step between from every other
// cluster, which that one's warp sent only after it had used what was in the buffer. A read that returned the later value
// would be its own cause.
#pragma once

#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_exchange.cuh"

namespace headroom::resident {

/// kPlaces: of a member, which it has 512 bytes of a sum for, each.
template <int kClusters, int kPlaces>
class ClusterSum {
 public:
  static_assert(kClusters == 2 || kClusters == 4 || kClusters == 8);
  static constexpr std::int64_t kBytes = std::int64_t{2} * kClusters * kMaxCluster * kPlaces * 512;

  /// Before anything else of a step.
  MACHINE_DEVICE void begin_step(int step) {
    buffer_ = step & 1;
    epoch_ = (step >> 1 & 1) != 0;
  }

  /// Of `own` over all clusters, by a whole warp for one place of the member `member` of cluster `cluster`. Several warps may ask for
  /// the same sum; one of them publishes. With a mark that nobody awaits the sum is lost, for tests.
  template <class Arguments>
  MACHINE_DEVICE float4 sum(const Arguments& arguments, SliceWaiter& waiter, int cluster, int member,
                            int place, bool publishes, float4 own, bool lost) const {
    float4 sums[1] = {own};
    add_all(arguments, waiter, cluster, member, place, 0, publishes, sums, lost);
    return sums[0];
  }
  /// The same of several sums with one look for all of them, `stride` places from one to the next.
  template <int kCount, class Arguments>
  MACHINE_DEVICE void add_all(const Arguments& arguments, SliceWaiter& waiter, int cluster, int member,
                              int place, int stride, bool publishes, float4 (&sums)[kCount],
                              bool lost) const {
    unsigned char* begin = arguments.exchange +
                           ((buffer_ * kMaxCluster + member) * kPlaces + place) * (kClusters * 512) +
                           waiter.lane * 16;
    const std::uint32_t want = epoch_ ? 1 : 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      float4& own = sums[k];
      own.w = bits_to_float(float_to_bits(own.w) & ~1u);
      if (publishes)
        store_relaxed_gpu_128(begin + k * stride * (kClusters * 512) + cluster * 512,
                              make_uint4(float_to_bits(own.x), float_to_bits(own.y), float_to_bits(own.z),
                                         float_to_bits(own.w) | (lost ? want ^ 1u : want)));
    }
    wait_cycles(kFirstLook);
    uint4 others[kCount][kClusters - 1];
    waiter.wait_while(arguments, kWaitTeam, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int k = 0; k < kCount; ++k)
#pragma unroll
        for (int i = 1; i < kClusters; ++i) {
          others[k][i - 1] =
              load_relaxed_gpu_128(begin + k * stride * (kClusters * 512) + (cluster ^ i) * 512);
          wrong |= others[k][i - 1].w ^ want;
        }
      return (wrong & 1u) != 0;
    });
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto& other = others[k];
      float4 total = add(sums[k], without_mark(other[0]));
      if constexpr (kClusters >= 4) total = add(total, add(without_mark(other[1]), without_mark(other[2])));
      if constexpr (kClusters == 8)
        total = add(total, add(add(without_mark(other[3]), without_mark(other[4])),
                               add(without_mark(other[5]), without_mark(other[6]))));
      sums[k] = total;
    }
  }

 private:
  /// In cycles: nothing of the others is there before, and a look that has missed it delays the next by a way to the L2 and back.
  static constexpr std::uint32_t kFirstLook = 250;

  MACHINE_DEVICE static float4 without_mark(const uint4& packet) {
    return make_float4(bits_to_float(packet.x), bits_to_float(packet.y), bits_to_float(packet.z),
                       bits_to_float(packet.w & ~1u));
  }

  int buffer_ = 0;
  bool epoch_ = false;
};

}  // namespace headroom::resident
