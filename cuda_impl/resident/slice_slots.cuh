// The slice kernel (slice_step.cuh) where the optimizer has slots.
#pragma once

#include "resident/slice_slots.h"
#include "resident/slice_step.cuh"

namespace headroom::resident {

template <class Format, template <class, int> class ExchangeOf, int kPairs, int kLayers, int kTeam,
          int kSlots>
using SliceSlotsMember = SliceMember<Format, ExchangeOf, kPairs, kLayers, kTeam, 1, false, 0, kSlots>;

template <class Member>
__global__ void __launch_bounds__(Member::kThreadCount, 1)
    slice_slots_steps(const __grid_constant__ SlotArguments arguments) {
  Member(arguments).run(arguments);
}

}  // namespace headroom::resident
