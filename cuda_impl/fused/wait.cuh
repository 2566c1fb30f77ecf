// Waits at barriers in shared memory, with a bound: so long after the launch's begin a wait that is in vain ends all the same.
//
// The thread says where it was and goes on as if what it waited for were there; so does every other, at the next wait of its that is
// in vain. So a launch whose protocol is broken ends, what it has worked out is worth nothing, and the trainer throws. Launches that
// were queued behind it find the word and wait for nothing. Nobody leaves early: others would wait for him where the machine knows
// no bound, at named barriers and those of a cluster.
//
// A bound from the launch's begin on, not from the wait's, because a wait has no register to keep its own begin in: where these
// threads wait all registers hold sums and factors. A wait that succeeds at once is a look and a branch, as it was without a bound;
// one that does not reads the clock between two looks, each of which waits a while by itself.
#pragma once

#include "fused/ptx.cuh"
#include "fused/wait_limit.h"
#include "machine/wait.cuh"

namespace headroom::fused {

/// `local`: an address in the block's own shared memory, such as that of the barrier that is waited for.
FUSED_DEVICE std::uint32_t launch_begin_address(const WaitLimit& limit, std::uint32_t local) {
  return shared_address_beside(local, static_cast<std::uint32_t>(limit.begin_at));
}

/// By all threads of a block, before the meeting that makes its barriers known; `first`: the barrier that counts as number 0.
FUSED_DEVICE void begin_waits(const WaitLimit& limit, std::uint32_t first) {
  if (threadIdx.x == 0) store_word(launch_begin_address(limit, first), clock_nanoseconds());
}
/// By all threads behind that meeting. By warps that have nothing to load.
FUSED_DEVICE void look_for_lost_waits(const WaitLimit& limit, std::uint32_t first) {
  constexpr unsigned kThread = 64;
  if (threadIdx.x == kThread && machine::is_given_up(limit.status))
    store_word(launch_begin_address(limit, first), clock_nanoseconds() - limit.nanoseconds - 1);
  if (limit.lost >= 0 && threadIdx.x == kThread + 32)
    barrier_expect_only(first + 8 * static_cast<std::uint32_t>(limit.lost), 16);
}

/// Whether a wait in vain has to end; then it is told.
FUSED_DEVICE bool gives_up(const WaitLimit& limit, std::uint32_t barrier) {
  if (clock_nanoseconds() - load_word(launch_begin_address(limit, barrier)) <= limit.nanoseconds)
    return false;
  machine::report(limit.status,
                  (barrier & ((1u << WaitStatus::kByteBits) - 1)) | blockIdx.x << WaitStatus::kByteBits);
  return true;
}
/// Waits until the phase of this parity is complete.
FUSED_DEVICE void barrier_wait(const WaitLimit& limit, std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait(barrier, parity))
    if (gives_up(limit, barrier)) break;
}
/// The same for what bulk copies of other ranks have brought. Where arrivals are relaxed, barrier_wait() is enough.
FUSED_DEVICE void barrier_wait_cluster(const WaitLimit& limit, std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try_wait_cluster(barrier, parity))
    if (gives_up(limit, barrier)) break;
}

}  // namespace headroom::fused
