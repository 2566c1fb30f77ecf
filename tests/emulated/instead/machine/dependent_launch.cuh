// Stands in for cuda_impl/machine/dependent_launch.cuh where the CPU plays the GPU.
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

MACHINE_DEVICE void wait_for_kernel_before() { emulated::wait_for_launch_before(); }
MACHINE_DEVICE void let_next_kernel_start() { emulated::let_next_launch_begin(); }

}  // namespace headroom::machine
