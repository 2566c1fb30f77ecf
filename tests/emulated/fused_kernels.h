// The kernels of cuda-fused that the tests on the GPU that the CPU plays have: each with its plan as an argument, for every loss and optimizer.
#pragma once

#include "core/workload.h"
#include "fused/plan.h"
#include "jit/ready_kernel.h"

namespace headroom::emulated {

jit::ReadyKernel fused_kernel(const fused::Plan& plan, Precision precision);

/// The same of one format, which are a file each.
template <class Format>
const void* fused_instance(const fused::Plan& plan);

}  // namespace headroom::emulated
