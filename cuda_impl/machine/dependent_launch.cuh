// Kernels that may start before the one before them has ended (programmatic dependent launch).
#pragma once

#include "machine/thread.cuh"

namespace headroom::machine {

/// Waits for the kernel before, and for all it wrote.
MACHINE_DEVICE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The next kernel's blocks may take the place of blocks that end.
MACHINE_DEVICE void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace headroom::machine
