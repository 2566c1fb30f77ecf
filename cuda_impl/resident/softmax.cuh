// What softmax takes of the lanes that share a row, and the mean of the loss, the same in several kernels.
#pragma once

#include "machine/thread.cuh"

namespace headroom::resident {

using namespace machine;

/// Of the four lanes that share a row.
MACHINE_DEVICE float quad_maximum(float value) {
  value = fmaxf(value, shuffle_xor(value, 1));
  return fmaxf(value, shuffle_xor(value, 2));
}
MACHINE_DEVICE float quad_sum(float value) {
  value += shuffle_xor(value, 1);
  return value + shuffle_xor(value, 2);
}

/// The mean over the batch, by a warp in a fixed order: `sum` is the loss of this lane's rows, zero of one beyond the batch.
template <class Arguments>
MACHINE_DEVICE void store_mean_loss(const Arguments& a, int step, int lane, float sum) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane == 0)
    a.losses[(a.first_step + step) & (a.loss_slots - 1)] = sum / static_cast<float>(a.plan.batch);
}
}  // namespace headroom::resident
