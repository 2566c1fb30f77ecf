// A team: several thread blocks, one cluster, that own one slice together and sum over a part of the columns each.
//
// A member of a team has a share of every sum (of inputs, of hidden columns, of the logits), the masters for it, and what is
// read for it from the L2. Once a product it sends its partial sums to the others, through distributed shared memory, and
// adds up theirs: everybody has the same sums then, in the same bits, because an addition may be turned round. Warps
// that do so have two places of their own in turn: who writes one again has read what the other warp sent after it had read
// the place.
#pragma once

#include "machine/barriers.cuh"
#include "machine/cluster.cuh"
#include "machine/memory.cuh"
#include "machine/numbers.cuh"
#include "machine/thread.cuh"
#include "resident/slice_exchange.cuh"

namespace headroom::resident {

template <int kTeam>
class Team {
 public:
  MACHINE_DEVICE static int rank() { return static_cast<int>(block_index() % kTeam); }
  MACHINE_DEVICE static int number() { return static_cast<int>(block_index() / kTeam); }

  /// After shared memory was cleared and before anybody sends.
  MACHINE_DEVICE static void begin(const SliceArguments& arguments) {
    if (thread_index() == 0) {
      for (int i = 0; i <= kOneWay; ++i) barrier_init(barrier(arguments, i), 1);
      barrier_init_fence();
    }
    block_sync();
    cluster_sync();
  }
  /// Nobody may leave while others still store into its memory.
  MACHINE_DEVICE static void end() { cluster_sync(); }

  /// The sum over the team, by a warp together with the same warp of every other member: the `warp`-th that sends.
  template <class Waiter>
  MACHINE_DEVICE float4 sum(const SliceArguments& arguments, Waiter& waiter, int warp, const float4& own) {
    const float4* others = send_and_wait(arguments, waiter, warp, own);
    if constexpr (kTeam == 2) return add(own, others[0]);
    if constexpr (kTeam == 3) {  // ranks 0 and 1 first, everywhere
      const float4 before = others[0], beyond = others[32];
      const float4 first = rank() == 2 ? beyond : own, second = rank() == 0 ? beyond : before;
      return add(add(first, second), rank() == 0 ? before : rank() == 1 ? beyond : own);
    }
    return add(add(own, others[0]), add(others[32], others[64]));
  }
  /// One way, by one warp: 16 bytes of each lane into the same place of the others, who await as many in this step.
  MACHINE_DEVICE void send(const SliceArguments& arguments, unsigned char* place, const uint4& packet) const {
#pragma unroll
    for (int i = 1; i < kTeam; ++i) {
      const auto to = static_cast<std::uint32_t>(other(i));
      store_async16(remote_address(shared_address(place), to), packet,
                    remote_address(barrier(arguments, kOneWay), to));
    }
  }
  /// What is sent in this step, once a step.
  template <class Waiter>
  MACHINE_DEVICE static void expect(const SliceArguments& arguments, const Waiter& waiter, int bytes) {
    if (waiter.lane == 0 && !waiter.timed_out)
      barrier_arrive_expect(barrier(arguments, kOneWay), static_cast<std::uint32_t>(bytes));
  }
  template <class Waiter>
  MACHINE_DEVICE static void await(const SliceArguments& arguments, Waiter& waiter, int step) {
    waiter.await(arguments, barrier(arguments, kOneWay), static_cast<std::uint32_t>(step) & 1, kWaitTeam);
  }

 private:
  static_assert(kTeam >= 2 && kTeam <= 4);
  static constexpr std::uint32_t kBytes = (kTeam - 1) * 512;  // that a warp waits for
  static constexpr int kOneWay = 2 * kTeamWarps;              // the barrier behind those of the warps

  MACHINE_DEVICE static std::uint32_t barrier(const SliceArguments& arguments, int i) {
    return shared_address(shared_memory()) +
           static_cast<std::uint32_t>(plan_of(arguments).team_barrier_offset + 8 * i);
  }
  /// The i-th other member; in a team of three that which is i behind in a ring.
  MACHINE_DEVICE static int other(int i) { return kTeam == 3 ? (rank() + i) % 3 : rank() ^ i; }
  /// The values of the member whose other(1 + i) this is are 32 * i further.
  template <class Waiter>
  MACHINE_DEVICE const float4* send_and_wait(const SliceArguments& arguments, Waiter& waiter, int warp,
                                             const float4& own) {
    const int place = static_cast<int>(uses_ & 1) * kTeamWarps + warp;
    const std::uint32_t parity = uses_ >> 1 & 1, here = barrier(arguments, place);
    ++uses_;
    unsigned char* values = shared_memory() + plan_of(arguments).team_offset +
                            place * static_cast<int>(kBytes) + waiter.lane * 16;
    const uint4 packet =
        make_uint4(float_to_bits(own.x), float_to_bits(own.y), float_to_bits(own.z), float_to_bits(own.w));
#pragma unroll
    for (int i = 1; i < kTeam; ++i) {
      const auto to = static_cast<std::uint32_t>(other(i));
      store_async16(remote_address(shared_address(values) + static_cast<std::uint32_t>(i - 1) * 512, to),
                    packet, remote_address(here, to));
    }
    // While the sums travel. What comes before counts too: without this arrival the phase is not complete.
    if (waiter.lane == 0 && !waiter.timed_out) barrier_arrive_expect(here, kBytes);
    waiter.await(arguments, here, parity, kWaitTeam);
    return reinterpret_cast<const float4*>(values);
  }
  std::uint32_t uses_ = 0;
};

/// A thread block on its own.
template <>
class Team<1> {
 public:
  MACHINE_DEVICE static int rank() { return 0; }
  MACHINE_DEVICE static int number() { return static_cast<int>(block_index()); }
  MACHINE_DEVICE static void begin(const SliceArguments&) {}
  MACHINE_DEVICE static void end() {}
  template <class Waiter>
  MACHINE_DEVICE static float4 sum(const SliceArguments&, Waiter&, int, const float4& own) {
    return own;
  }
  MACHINE_DEVICE static void send(const SliceArguments&, const unsigned char*, const uint4&) {}
  template <class Waiter>
  MACHINE_DEVICE static void expect(const SliceArguments&, const Waiter&, int) {}
  template <class Waiter>
  MACHINE_DEVICE static void await(const SliceArguments&, Waiter&, int) {}
};

}  // namespace headroom::resident
