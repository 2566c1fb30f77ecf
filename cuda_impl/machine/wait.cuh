// Waiting with a bound, by whole warps, for what other thread blocks store.
//
// A wait that runs out reports where it was, once, and from then on nothing is waited for: whoever finds the report gives up too. All
// lanes of a warp go on together or give up together. Lanes that decided by their own clocks would part, and the next vote would wait
// for them for ever.
#pragma once

#include <cstdint>

#include "machine/status.cuh"
#include "machine/thread.cuh"

namespace headroom::machine {

/// Where a warp looks at the clock: among the instructions of the wait, or in a function. What is never executed is fetched and jumped
/// over, which a step of few instructions feels; a call takes registers, which a full one does. A kernel chooses.
enum class GiveUp { kInline, kCalled };

inline constexpr int kPollsBetweenLooks = 256;  ///< at the clock
inline constexpr std::uint64_t kGaveUp = std::uint64_t{1} << 63;

/// `begin`, with its highest bit set if this warp gives up.
MACHINE_DEVICE_CALLED std::uint64_t give_up_late(std::uint64_t longest, std::uint32_t* status,
                                                 std::uint64_t begin, std::uint32_t where) {
  if (begin == 0) begin = nanoseconds();
  const bool late = nanoseconds() - begin > longest;
  if (late) report_once(status, where);
  return warp_any(late || load_relaxed_gpu(status) != 0) ? begin | kGaveUp : begin;
}

/// After the `polls`-th poll that has found something missing: whether to give up. `limits` has wait_nanoseconds, the longest wait, and
/// status, the word for the report; where() is what the report says. `begin` is 0 at first.
template <GiveUp kGiveUp, class Limits, class Where>
MACHINE_DEVICE bool gives_up(const Limits& limits, std::uint32_t polls, std::uint64_t& begin, Where&& where) {
  if (polls % kPollsBetweenLooks != 0) return false;
  if constexpr (kGiveUp == GiveUp::kCalled) {
    begin = give_up_late(static_cast<std::uint64_t>(limits.wait_nanoseconds), limits.status, begin, where());
    return (begin & kGaveUp) != 0;
  } else {
    if (begin == 0) begin = nanoseconds();
    const bool late = nanoseconds() - begin > static_cast<std::uint64_t>(limits.wait_nanoseconds);
    if (late) report_once(limits.status, where());
    return warp_any(late || load_relaxed_gpu(limits.status) != 0);
  }
}

/// A warp's waits. `Warp` says where it is: status(what), for a wait for exchange `what`.
template <GiveUp kGiveUp, class Warp>
struct Waiter : Warp {
  bool timed_out = false;  ///< one of its waits has run out

  template <class Limits>
  MACHINE_DEVICE bool give_up(const Limits& limits, std::uint32_t polls, std::uint64_t& begin, int what) {
    if (timed_out) return true;
    return timed_out = gives_up<kGiveUp>(limits, polls, begin, [&] { return this->status(what); });
  }
  /// Until missing() is false in all lanes. Between two looks at it, again().
  template <class Limits, class Missing, class Again>
  MACHINE_DEVICE void wait_while(const Limits& limits, int what, const Missing& missing, const Again& again) {
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1;; ++polls) {
      if (!warp_any(missing()) || give_up(limits, polls, begin, what)) break;
      again();
    }
  }
  template <class Limits, class Missing>
  MACHINE_DEVICE void wait_while(const Limits& limits, int what, const Missing& missing) {
    wait_while(limits, what, missing, [] {});
  }
  /// Until there() is true in all lanes.
  template <class Limits, class There>
  MACHINE_DEVICE void wait_until(const Limits& limits, int what, const There& there) {
    std::uint64_t begin = 0;
    for (std::uint32_t polls = 1; !warp_all(there()); ++polls)
      if (give_up(limits, polls, begin, what)) break;
  }
};

}  // namespace headroom::machine
