// The fastest of several tries, by the device's clock.
#pragma once

#include <algorithm>

#include "device/stream.h"

namespace headroom::calibration {

constexpr int kTries = 5;

/// Device seconds of the fastest of kTries runs of `work`, after one that is not timed.
template <class Work>
double fastest_seconds(Stream& stream, Work&& work) {
  Event begin, end;
  work();
  double fastest = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    begin.record(stream);
    work();
    end.record(stream);
    const double seconds = seconds_between(begin, end);
    fastest = attempt == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest;
}

}  // namespace headroom::calibration
