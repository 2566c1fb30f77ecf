// Waits with a bound. One that runs out says in the host's memory which task of which thread block waited for what, and ends the
// launch: a protocol that has failed once can not be left in order by hundreds of threads that each believe something else.
#pragma once

#include "machine/barriers.cuh"
#include "machine/release.cuh"
#include "machine/wait.cuh"
#include "tiled/arguments.h"
#include "tiled/waits.h"

namespace headroom::tiled {

using machine::barrier_try_wait;

/// What a thread waits as: the step of the launch and the task it is at.
struct Waiter {
  const Arguments& arguments;
  int step = 0, order = 0;
};

template <class Ready>
MACHINE_DEVICE void wait_until(const Waiter& waiter, WaitFor what, const Ready& ready) {
  std::uint64_t begin = 0;
  for (std::uint32_t polls = 1; !ready(); ++polls) {
    if (polls % 1024 != 0) continue;
    const std::uint64_t now = machine::nanoseconds(), longest = waiter.arguments.wait_nanoseconds;
    if (begin == 0) begin = now;
    if (now - begin < longest) continue;
    // All who wait say so, and then the one that the others wait for ends it.
    const std::uint64_t report = wait_report(waiter.step, waiter.order, what);
    const std::uint64_t least = machine::report_least(waiter.arguments.least_report, report);
    if (now - begin < longest + longest / 4 || least < report) continue;
    machine::report_to_host(waiter.arguments.report, report);
    machine::end_launch_with_error();
  }
}

MACHINE_DEVICE void wait_for_barrier(const Waiter& waiter, WaitFor what, std::uint32_t barrier,
                                     std::uint32_t parity) {
  wait_until(waiter, what, [&] { return barrier_try_wait(barrier, parity); });
}

/// Behind it this thread sees what was written before the counter was added to. Counts are compared by their difference.
MACHINE_DEVICE void wait_for_counter(const Waiter& waiter, WaitFor what, const Arguments& arguments,
                                     const Wait& wait, int step_of_launch) {
  if (wait.counter < 0) return;
  const std::uint32_t* counter = arguments.counters + std::int64_t{kCounterStride} * wait.counter;
  const std::uint32_t target =
      wait.need * static_cast<std::uint32_t>(step_of_launch + 1 - static_cast<int>(wait.of_last_step));
  wait_until(waiter, what,
             [&] { return static_cast<std::int32_t>(machine::load_relaxed_gpu(counter) - target) >= 0; });
  machine::fence_acquire_gpu();
}

}  // namespace headroom::tiled
