// The column kernel for the networks of the tests: what is compiled for a network on a GPU is instantiated here.
#include <cstdint>

#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "resident/column_step.cuh"
#include "resident/trainer.h"

namespace headroom::emulated {
namespace {

using resident::ColumnShape;

template <class Format, ColumnShape... kShapes>
std::shared_ptr<const resident::PlanKernel> instance_of(const resident::ColumnPlan& plan) {
  std::shared_ptr<const resident::PlanKernel> found;
  const auto look = [&]<ColumnShape kShape>() {
    using Step = resident::ColumnStep<Format, kShape>;
    if (plan.shape == kShape)
      found = std::make_shared<Instance>(reinterpret_cast<const void*>(&resident::column_steps<Step>),
                                         Step::kThreadCount);
  };
  (look.template operator()<kShapes>(), ...);
  if (!found)
    throw UnsupportedError("no instance of " + std::to_string(plan.shape.hidden) + " hidden layers with " +
                           std::to_string(plan.shape.slots) + " slots, of " +
                           std::to_string(plan.shape.memory_slots) +
                           " matrices in device memory, in tests/emulated/column_kernels.cpp");
  return found;
}

}  // namespace

std::shared_ptr<const resident::PlanKernel> column_kernel(const resident::ColumnPlan& plan,
                                                          Precision precision) {
  if (precision == Precision::kFp16)
    return instance_of<resident::SliceFp16, ColumnShape{1, 16, 1, 3, 1}, ColumnShape{2, 16, 1, 3, 2},
                       ColumnShape{3, 8, 1, 3, 3}, ColumnShape{4, 8, 1, 3, 4}, ColumnShape{7, 8, 1, 2, 7},
                       ColumnShape{4, 16, 4, 15, 3}, ColumnShape{1, 16, 1, 3, 1, 2},
                       ColumnShape{2, 16, 1, 3, 2, 1}, ColumnShape{3, 8, 1, 3, 3, 2},
                       ColumnShape{4, 8, 1, 3, 4, 2}, ColumnShape{4, 16, 4, 15, 3, 2, 3}>(plan);
  return instance_of<resident::SliceBf16, ColumnShape{1, 16, 1, 3, 1}, ColumnShape{2, 16, 1, 3, 2},
                     ColumnShape{3, 8, 1, 3, 3}, ColumnShape{4, 8, 1, 3, 4}, ColumnShape{7, 8, 1, 2, 7},
                     ColumnShape{4, 16, 4, 15, 4}, ColumnShape{6, 16, 4, 15, 6},
                     ColumnShape{1, 16, 1, 3, 1, 2}, ColumnShape{2, 16, 1, 3, 2, 1},
                     ColumnShape{3, 8, 1, 3, 3, 2}, ColumnShape{4, 8, 1, 3, 4, 2},
                     ColumnShape{4, 16, 4, 15, 4, 2, 3}>(plan);
}

}  // namespace headroom::emulated
