// Waiting with a bound.
//
// Every wait of cuda-resident is bounded. One that runs out reports where it was, once, and from then on nothing is waited
// for: the member leaves at the next step, the others follow when they see the report or their own time is up.
#pragma once

#include "machine/barriers.cuh"
#include "machine/memory.cuh"
#include "machine/thread.cuh"
#include "machine/wait.cuh"
#include "resident/arguments.h"

namespace headroom::resident {

using namespace machine;

inline constexpr std::uint64_t kGaveUp = std::uint64_t{1} << 63;

/// By whole warps, after every poll that has found something missing: whether to give up. where() is the status that says
/// who waited for what. Lanes that decided by their own clocks would part, and the next vote would wait for them for ever.
template <class Arguments, class Where>
MACHINE_DEVICE bool gives_up(const Arguments& arguments, std::uint32_t polls, std::uint64_t& begin,
                             Where&& where) {
  if (polls % 256 != 0) return false;
  if (begin == 0) begin = nanoseconds();
  const bool late = nanoseconds() - begin > static_cast<std::uint64_t>(arguments.wait_nanoseconds);
  if (late) report_once(arguments.status, where());
  return warp_any(late || load_relaxed_gpu(arguments.status) != 0);
}

/// The same in one place of the program, where it is in nobody's way: what is never executed is fetched and jumped over otherwise.
/// `begin`, with its highest bit set if this warp gives up.
MACHINE_DEVICE_CALLED std::uint64_t give_up_late(std::uint64_t longest, std::uint32_t* status,
                                                 std::uint64_t begin, std::uint32_t where) {
  if (begin == 0) begin = nanoseconds();
  const bool late = nanoseconds() - begin > longest;
  if (late) report_once(status, where);
  return warp_any(late || load_relaxed_gpu(status) != 0) ? begin | kGaveUp : begin;
}
template <class Arguments, class Where>
MACHINE_DEVICE bool gives_up_called(const Arguments& arguments, std::uint32_t polls, std::uint64_t& begin,
                                    Where&& where) {
  if (polls % 256 != 0) return false;
  begin =
      give_up_late(static_cast<std::uint64_t>(arguments.wait_nanoseconds), arguments.status, begin, where());
  return (begin & kGaveUp) != 0;
}

/// Where this thread is, and whether a wait of its has run out: of the slice kernels and the block kernel.
template <bool kCalls>
struct SliceWaiterThat {
  int warp, lane;
  std::uint32_t member;
  bool timed_out;

  template <class Arguments>
  MACHINE_DEVICE bool give_up(const Arguments& arguments, std::uint32_t polls, std::uint64_t& begin,
                              int exchange) {
    if (timed_out) return true;
    const auto where = [&] {
      return wait_status(static_cast<std::uint32_t>(exchange), member, static_cast<std::uint32_t>(warp));
    };
    if constexpr (kCalls)
      return timed_out = gives_up_called(arguments, polls, begin, where);
    else
      return timed_out = gives_up(arguments, polls, begin, where);
  }
  /// For an mbarrier's phase.
  template <class Arguments>
  MACHINE_DEVICE void await(const Arguments& arguments, std::uint32_t barrier, std::uint32_t parity,
                            int exchange) {
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1; !warp_all(barrier_try_wait_cluster(barrier, parity)); ++polls)
      if (give_up(arguments, polls, begin, exchange)) break;
  }
};
using SliceWaiter = SliceWaiterThat<false>;
using CallingWaiter = SliceWaiterThat<true>;

}  // namespace headroom::resident
