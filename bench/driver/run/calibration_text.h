// `headroom calibrate`: what the device itself can do, as a table or as JSON.
#pragma once

#include <string>

#include "driver/plan/options.h"
#include "driver/system/terminal.h"

namespace headroom {

/// Takes the device's lock and a few seconds. Throws InputError where there is no device or it is in use, and
/// std::runtime_error if nothing could be measured. `width`: of the terminal, for what is not JSON.
std::string calibration_text(const CalibrateOptions& options, std::size_t width = kNoWidth);

}  // namespace headroom
