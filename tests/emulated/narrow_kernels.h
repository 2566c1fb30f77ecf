// The kernels that narrow_kernels.cpp compiles for the CPU.
#pragma once

#include <memory>

#include "narrow/trainer.h"

namespace headroom::emulated {

/// Of one of the cases in tests/cuda/narrow_cases.h. Throws std::logic_error for another.
std::unique_ptr<narrow::StepKernel> narrow_kernel(const Workload& workload, Precision precision,
                                                  const narrow::Limits& limits,
                                                  const std::optional<narrow::Plan>& chosen);

}  // namespace headroom::emulated
