// Wall time and processor time of one block of steps, as every trainer reports them.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>

#include "core/trainer.h"

namespace headroom {

/// Starts when it is made.
class HostClock {
 public:
  double wall_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_begin_).count();
  }
  /// Of all threads of this process.
  double cpu_seconds() const { return process_seconds() - cpu_begin_; }
  /// A block that ends now. Without a device of its own, the device's time is the wall's.
  Timing timing(std::optional<double> device_seconds = {}) const {
    const double wall = wall_seconds();
    return {
        .device_seconds = device_seconds.value_or(wall), .wall_seconds = wall, .cpu_seconds = cpu_seconds()};
  }

 private:
  static double process_seconds() {
    std::timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  std::chrono::steady_clock::time_point wall_begin_ = std::chrono::steady_clock::now();
  double cpu_begin_ = process_seconds();
};

}  // namespace headroom
