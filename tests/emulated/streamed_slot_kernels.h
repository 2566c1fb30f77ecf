// The kernels of cuda-streamed with slots that the tests on the GPU that the CPU plays have.
#pragma once

#include <memory>

#include "streamed/trainer.h"

namespace headroom::emulated {

std::unique_ptr<streamed::SlotKernel> streamed_slot_kernel(const streamed::SlotKernelShape& shape);

}  // namespace headroom::emulated
