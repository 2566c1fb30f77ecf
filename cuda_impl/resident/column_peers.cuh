// What the ranks of the column kernel (column_step.cuh) tell each other: packets straight into the memory of the other GPUs.
//
// A packet is 16 bytes of a lane: two words, each with the number of the step beside it, its mark. So a reader sees of every 8 bytes
// whether they have arrived, and nothing else orders them. A word is two rows of one column as a warp of the chain makes them, which is
// how an instruction of the tensor core takes them: updates read packets into registers as they are.
//
//   sends   the chain: h(l) and d(l) of the member's own columns, and member 0 the gradients of the logits. Clusters hold the same
//           values, so of four or eight clusters the first four send one group of 8 rows each.
//   takes   the eight and the serving warp, where they take the same of the own rows
//
// Places are written again four steps later. Who writes one for step s is behind barrier 1 of step s: it has taken d(1) of step s - 1
// of all groups from each peer. A peer's warp made that after its cluster had taken the first layer's sums of step s - 1 from all
// clusters, that is after every thread block of the peer, not of its cluster alone, had passed barrier 1 of step s - 1. Behind it a
// thread block reads nothing older than step s - 2. So nobody reads step s - 4 any more.
// Marks go on from launch to launch, as the places do: nothing is cleared between launches, which a peer might already have written.
#pragma once

#include <cstdint>

#include "machine/peers.cuh"
#include "machine/thread.cuh"
#include "resident/column_peers.h"
#include "resident/rank_sums.cuh"

namespace headroom::resident {

using namespace machine;

/// Two words of a lane, of one group of rows: columns g and g + 8 of a member.
template <int kHidden, int kMembers, int kGroups, int kRanks>
class PeerExchange {
 public:
  static_assert(kRanks == 2 || kRanks == 4 || kRanks == 8);
  static constexpr int kPeers = kRanks - 1, kKinds = outputs_kind(kHidden) + 1;

  MACHINE_DEVICE explicit PeerExchange(const RankArguments& a) : first_mark_(a.first_mark) {}
  MACHINE_DEVICE void begin_step(int step) { mark_ = first_mark_ + static_cast<std::uint32_t>(step); }

  /// By a warp, to all peers.
  MACHINE_DEVICE void send(const RankArguments& a, int kind, int member, int group, int lane,
                           std::uint32_t first, std::uint32_t second) const {
    if (a.lost_exchange == static_cast<int>(kWaitPeers) + kind) return;
    const std::uint32_t place = place_of(mark_, kind, member) + group * 512 + lane * 16;
#pragma unroll
    for (int peer = 0; peer < kPeers; ++peer)
      store_relaxed_sys_2x64(a.outboxes[peer] + place, make_uint4(first, mark_, second, mark_));
  }

  /// Words of consecutive packets: groups of rows of `kind` from `member`'s first on.
  template <int kCount>
  struct Words {
    std::uint32_t first[kCount], second[kCount];
  };
  /// Of one kind and of another, with one wait for both. `before`: of the step before.
  template <int kOwn, int kOthers, class Waiter>
  MACHINE_DEVICE void take(const RankArguments& a, Waiter& waiter, int peer, bool before, int own_kind,
                           int own_member, Words<kOwn>& own, int other_kind, int other_member,
                           Words<kOthers>& others) const {
    const std::uint32_t mark = before ? mark_ - 1 : mark_;
    const unsigned char* inbox =
        a.inbox + peer * (kInboxSteps * kKinds * kMembers * kGroups * 512) + waiter.lane * 16;
    const unsigned char* from_own = inbox + place_of(mark, own_kind, own_member);
    const unsigned char* from_others = inbox + place_of(mark, other_kind, other_member);
    waiter.wait_while(a, static_cast<int>(kWaitPeers) + 16 * peer + other_kind, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) read(from_own + i * 512, mark, own.first[i], own.second[i], wrong);
      if constexpr (kOthers > 0) {
#pragma unroll
        for (int i = 0; i < kOthers; ++i)
          read(from_others + i * 512, mark, others.first[i], others.second[i], wrong);
      }
      return wrong != 0;
    });
  }
  /// Of one kind alone.
  template <int kOwn, class Waiter>
  MACHINE_DEVICE void take(const RankArguments& a, Waiter& waiter, int peer, bool before, int kind,
                           int member, Words<kOwn>& own) const {
    const std::uint32_t mark = before ? mark_ - 1 : mark_;
    const unsigned char* from = a.inbox + peer * (kInboxSteps * kKinds * kMembers * kGroups * 512) +
                                place_of(mark, kind, member) + waiter.lane * 16;
    waiter.wait_while(a, static_cast<int>(kWaitPeers) + 16 * peer + kind, [&] {
      std::uint32_t wrong = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) read(from + i * 512, mark, own.first[i], own.second[i], wrong);
      return wrong != 0;
    });
  }

 private:
  MACHINE_DEVICE static std::uint32_t place_of(std::uint32_t mark, int kind, int member) {
    return (((mark % kInboxSteps) * kKinds + kind) * kMembers + member) * (kGroups * 512);
  }
  MACHINE_DEVICE static void read(const unsigned char* place, std::uint32_t mark, std::uint32_t& first,
                                  std::uint32_t& second, std::uint32_t& wrong) {
    const uint4 packet = load_relaxed_sys_2x64(place);
    first = packet.x, second = packet.z;
    wrong |= (packet.y ^ mark) | (packet.w ^ mark);
  }

  std::uint32_t first_mark_, mark_ = 0;
};

/// Where there are none.
struct NoPeers {
  MACHINE_DEVICE explicit NoPeers(const ColumnArguments&) {}
  MACHINE_DEVICE void begin_step(int) {}
};

}  // namespace headroom::resident
