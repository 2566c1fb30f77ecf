// The mean of the loss, the same in several kernels.
#pragma once

#include "machine/thread.cuh"

namespace headroom::resident {

using namespace machine;

/// The mean over the batch, by a warp in a fixed order: `sum` is the loss of this lane's rows, zero of one beyond the batch.
template <class Arguments>
MACHINE_DEVICE void store_mean_loss(const Arguments& a, int step, int lane, float sum) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane == 0)
    a.losses[(a.first_step + step) & (a.loss_slots - 1)] = sum / static_cast<float>(plan_of(a).batch);
}
}  // namespace headroom::resident
