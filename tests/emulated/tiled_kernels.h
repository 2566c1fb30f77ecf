// A kernel of cuda-tiled on the GPU that the CPU plays.
#pragma once

#include "jit/ready_kernel.h"
#include "tiled/plan.h"

namespace headroom::emulated {

/// An instance of tiled_instances.h.
jit::ReadyKernel tiled_kernel(const tiled::KernelShape& shape);

}  // namespace headroom::emulated
