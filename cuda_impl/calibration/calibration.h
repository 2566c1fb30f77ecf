// What the device itself can do: bandwidths, plain arithmetic, launches, barriers and exchanges between SMs.
//
// Every value is the fastest of several short tries, since floors are made of them: what a step may at best take.
// Matrix rates come from the vendor's library (cublaslt/matrix_rates.h), which is another worker's.
#pragma once

#include <vector>

#include "core/record.h"

namespace headroom {

/// All of it, in one to two seconds on the current host; names and meaning in docs/floors.md. Rates that need clusters are
/// left out before sm_90. Throws std::runtime_error if an exchange delivered wrong values.
Calibration calibrate_device(int device);
/// Of the links between these, the slowest of each kind; empty where kernels cannot write to each other's memory.
Calibration calibrate_links(const std::vector<int>& devices);

}  // namespace headroom
