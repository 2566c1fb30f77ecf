// Compiled rows set up before anything is measured, several side by side: a set-up compiles on the host for half a minute
// and leaves the GPU idle.
#pragma once

#include "driver/run/group_run.h"

namespace headroom {

/// Sets up each planned cell of a backend that compiles, in `processes` workers at the same time, and drops the trainers:
/// what they compiled, and the kernels they chose, are found in the cache folder when the cell is measured. A cell that
/// fails costs one line here and its record there. Without a device our own kernels are compiled for an H100 or H200. Nothing is timed meanwhile; choosing kernels is (docs/rivals.md).
void compile_ahead(const RunContext& context, int processes);

}  // namespace headroom
