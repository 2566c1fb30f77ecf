// The kernels of cuda-streamed that the tests on the GPU that the CPU plays have.
#pragma once

#include "jit/ready_kernel.h"
#include "streamed/plan.h"

namespace headroom::emulated {

jit::ReadyKernel streamed_kernel(const streamed::KernelShape& shape);

/// The same of optimizers with slots.
const void* streamed_slot_kernel(const streamed::KernelShape& shape);

}  // namespace headroom::emulated
