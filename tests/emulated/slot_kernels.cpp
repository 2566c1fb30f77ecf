// The slice kernel where the optimizer has slots, for the networks of the tests.
#include <cstdint>

#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "resident/slice_exchange.cuh"
#include "resident/slice_formats.cuh"
#include "resident/slice_slots.cuh"

namespace headroom::emulated {
namespace {

using namespace resident;

/// What an instance is of; layers: 0 for any.
struct SlotShape {
  int pairs, layers, team, slots;
};

template <class Format, SlotShape... kShapes>
std::shared_ptr<const PlanKernel> instance_of(const SlotPlan& plan) {
  std::shared_ptr<const PlanKernel> found;
  const auto look = [&]<SlotShape kShape>() {
    using Member =
        SliceSlotsMember<Format, SliceGrid, kShape.pairs, kShape.layers, kShape.team, kShape.slots>;
    if (plan.slices.pairs == kShape.pairs && plan.slices.team == kShape.team && plan.slots == kShape.slots &&
        (kShape.layers == 0 || plan.slices.layers == kShape.layers))
      found = std::make_shared<Instance>(reinterpret_cast<const void*>(&slice_slots_steps<Member>),
                                         Member::kThreadCount);
  };
  (look.template operator()<kShapes>(), ...);
  if (!found) throw UnsupportedError("no such instance among those of tests/emulated/slot_kernels.cpp");
  if (found->threads() != plan.threads)
    throw std::logic_error("a plan of " + std::to_string(plan.threads) + " threads for a kernel of " +
                           std::to_string(found->threads()));
  return found;
}

}  // namespace

std::shared_ptr<const PlanKernel> slot_kernel(const SlotPlan& plan, Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return instance_of<SliceFp32, SlotShape{1, 0, 4, 2}, SlotShape{1, 0, 4, 1}, SlotShape{2, 0, 2, 2}>(
          plan);
    case Precision::kTf32:
      return instance_of<SliceTf32, SlotShape{1, 4, 4, 2}>(plan);
    case Precision::kFp16:
      return instance_of<SliceFp16, SlotShape{1, 4, 2, 2}>(plan);
    case Precision::kBf16:
      return instance_of<SliceBf16, SlotShape{1, 4, 2, 2}, SlotShape{2, 4, 2, 2}>(plan);
  }
  throw std::logic_error("slot_kernel: not a Precision");
}

}  // namespace headroom::emulated
