#include "driver/system/units.h"

#include <fmt/core.h>

#include <algorithm>

namespace headroom {
namespace {

std::string three_digits(double value, const char* unit) {
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, unit);
}

}  // namespace

std::string step_text(double seconds) {
  if (seconds < 1e-3) return three_digits(seconds * 1e6, "us");
  if (seconds < 1) return three_digits(seconds * 1e3, "ms");
  return three_digits(seconds, "s");
}

std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  const long minutes = static_cast<long>(seconds / 60 + 0.5);
  if (minutes < 90) return fmt::format("{} min", minutes);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string rate_text(double value, const std::string& unit) {
  if (unit == "seconds") return step_text(value);
  if (unit == "bytes_per_second")
    return value < 1e12 ? three_digits(value / 1e9, "GB/s") : three_digits(value / 1e12, "TB/s");
  if (unit == "flops_per_second") return three_digits(value / 1e12, "TFLOP/s");
  if (unit == "bytes") return three_digits(value / 1e6, "MB");
  return fmt::format("{:g} {}", value, unit);
}

std::string gigabytes_text(std::int64_t bytes) {
  return fmt::format("{:.3g} GB", static_cast<double>(bytes) / 1e9);
}

}  // namespace headroom
