// Quantities as people read them: three digits and a unit.
#pragma once

#include <cstdint>
#include <string>

namespace headroom {

/// "12.3 us", "1.45 ms", "3.00 s": the time of a step.
std::string step_text(double seconds);

/// "40 s", "3 min", "1 h 20 min": how long something takes, for a person who waits.
std::string duration_text(double seconds);

/// "4.27 TB/s", "0.93 us", "719 TFLOP/s": a rate of the calibration; `unit` as CalibratedRate has it.
std::string rate_text(double value, const std::string& unit);

/// "0.25 GB".
std::string gigabytes_text(std::int64_t bytes);

}  // namespace headroom
