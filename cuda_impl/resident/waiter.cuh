// Waiting with a bound (machine/wait.cuh): every wait of cuda-resident is bounded. A member whose wait has run out leaves at the next
// step, the others follow when they see the report or their own time is up.
#pragma once

#include "machine/barriers.cuh"
#include "machine/thread.cuh"
#include "machine/wait.cuh"
#include "resident/arguments.h"

namespace headroom::resident {

using namespace machine;

/// Where a warp of the slice kernels and the block kernel is.
struct WarpOfMember {
  int warp, lane;
  std::uint32_t member;

  MACHINE_DEVICE std::uint32_t status(int exchange) const {
    return wait_status(static_cast<std::uint32_t>(exchange), member, static_cast<std::uint32_t>(warp));
  }
};
template <GiveUp kGiveUp>
struct MemberWaiter : machine::Waiter<kGiveUp, WarpOfMember> {
  /// For an mbarrier's phase.
  template <class Arguments>
  MACHINE_DEVICE void await(const Arguments& arguments, std::uint32_t barrier, std::uint32_t parity,
                            int exchange) {
    this->wait_until(arguments, exchange, [&] { return barrier_try_wait_cluster(barrier, parity); });
  }
};
using SliceWaiter = MemberWaiter<GiveUp::kInline>;
using CallingWaiter = MemberWaiter<GiveUp::kCalled>;

}  // namespace headroom::resident
