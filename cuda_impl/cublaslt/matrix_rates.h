// How many operations per second the vendor's library reaches in each precision: what floors take for the machine's rate.
#pragma once

#include "core/record.h"

namespace headroom {

/// "matrix_fp32", "matrix_tf32", "matrix_fp16", "matrix_bf16": the fastest of a few shapes and of the library's kernels for
/// them, on random values between -1 and 1. Throws UnsupportedError where the library is missing.
Calibration calibrate_matrix_products(int device);

}  // namespace headroom
