// The column kernel as an instance of given shapes.
#pragma once

#include "intrinsics.h"
#include "kernel_instance.h"
// What CUDA C++ has without asking comes first.
#include "core/error.h"
#include "resident/column_step.cuh"

namespace headroom::emulated {

using resident::ColumnShape;

template <class Format, ColumnShape... kShapes>
std::shared_ptr<const resident::PlanKernel> column_instance(const resident::ColumnPlan& plan) {
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
                           " matrices in device memory, in tests/emulated");
  return found;
}

/// column_rules_kernels.cpp: with other activations and losses.
std::shared_ptr<const resident::PlanKernel> column_kernel_of_rules(const resident::ColumnPlan& plan,
                                                                   Precision precision);

/// column_halves_kernels.cpp: with batches over 32.
std::shared_ptr<const resident::PlanKernel> column_kernel_of_halves(const resident::ColumnPlan& plan,
                                                                    Precision precision);

}  // namespace headroom::emulated
