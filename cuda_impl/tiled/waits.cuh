// Waits with a bound. One that runs out says in the host's memory which task of which thread block waited for what, and ends the
// launch: a protocol that has failed once can not be left in order by hundreds of threads that each believe something else.
#pragma once

#include "machine/barriers.cuh"
#include "machine/peers.cuh"
#include "machine/release.cuh"
#include "machine/wait.cuh"
#include "tiled/list.cuh"
#include "tiled/waits.h"

namespace headroom::tiled {

using machine::barrier_try_wait;

/// What a thread waits as: the step of the launch and the task it is at.
struct Waiter {
  const Arguments& arguments;
  int step = 0, order = 0;
};

/// Of a wait that has gone on: ends the launch if it is too long. `begin`, 0 at first, and `longest` are in kTick nanoseconds; gives what `begin` is
/// from now on. A place of its own, since everybody who waits would jump over it, and hardly anybody waits so long.
inline constexpr int kTick = 1 << 16;
MACHINE_DEVICE_CALLED std::uint32_t look_at_clock(std::uint32_t begin, std::uint32_t longest,
                                                  std::uint64_t* least_report, std::uint64_t* host_report,
                                                  std::uint64_t report) {
  const auto now = static_cast<std::uint32_t>(machine::nanoseconds() / kTick);
  if (begin == 0) begin = now;
  if (now - begin < longest) return begin;
  // All who wait say so, and then the one that the others wait for ends it.
  const std::uint64_t least = machine::report_least(least_report, report);
  if (now - begin < longest + longest / 4 || least < report) return begin;
  machine::report_to_host(host_report, report);
  machine::end_launch_with_error();
}

template <class Ready>
MACHINE_DEVICE void wait_until(const Waiter& waiter, WaitFor what, const Ready& ready) {
  const Arguments& a = waiter.arguments;
  std::uint32_t begin = 0;
  for (std::uint32_t polls = 1; !ready(); ++polls)
    if (polls % 1024 == 0)
      begin = look_at_clock(begin, static_cast<std::uint32_t>(a.wait_nanoseconds / kTick), a.least_report,
                            a.report, wait_report(waiter.step, waiter.order, what));
}

MACHINE_DEVICE void wait_for_barrier(const Waiter& waiter, WaitFor what, std::uint32_t barrier,
                                     std::uint32_t parity) {
  wait_until(waiter, what, [&] { return barrier_try_wait(barrier, parity); });
}

/// Behind it this thread sees what was written before the counter was added to. Counts are compared by their difference. Of several
/// ranks, of_all_ranks: peers add to the counter, too.
template <bool kRanked>
MACHINE_DEVICE void wait_for_counter(const Waiter& waiter, WaitFor what, const Arguments& arguments,
                                     const Wait& wait, int step_of_launch, bool of_all_ranks = false) {
  if (wait.counter < 0) return;
  if (kRanked && of_all_ranks) {
    const std::uint32_t* shared =
        arguments.counters + place_of_shared(arguments, wait.counter, step_of_launch);
    const std::uint32_t enough =
        wait.need * steps_of_copy(arguments.ranks.steps_before + static_cast<std::uint64_t>(step_of_launch));
    wait_until(waiter, what,
               [&] { return static_cast<std::int32_t>(machine::load_relaxed_sys(shared) - enough) >= 0; });
    machine::fence_acquire_sys();
    return;
  }
  const std::uint32_t* counter = arguments.counters + std::int64_t{kCounterStride} * wait.counter;
  std::uint32_t target =
      wait.need * static_cast<std::uint32_t>(step_of_launch + 1 - static_cast<int>(wait.of_last_step));
  if constexpr (kRanked) target += wait.need * static_cast<std::uint32_t>(arguments.ranks.steps_before);
  wait_until(waiter, what,
             [&] { return static_cast<std::int32_t>(machine::load_relaxed_gpu(counter) - target) >= 0; });
  machine::fence_acquire_gpu();
}

}  // namespace headroom::tiled
