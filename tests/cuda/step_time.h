// What the programs that print step times share: measuring a trainer, and a main() that says what went wrong.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "core/trainer.h"

namespace headroom {

struct StepTime {
  double microseconds;     ///< of a step, the median of seven blocks
  std::int64_t next_step;  ///< the first that was not trained
};

inline StepTime step_time(Trainer& trainer, double block_seconds) {
  constexpr std::int64_t kWarm = 64;
  trainer.train(0, kWarm);
  const double once = trainer.train(kWarm, kWarm).device_seconds / kWarm;
  const std::int64_t steps = std::max<std::int64_t>(16, static_cast<std::int64_t>(block_seconds / once));
  std::vector<double> samples;
  std::int64_t next = 2 * kWarm;
  for (int block = 0; block < 7; ++block, next += steps)
    samples.push_back(trainer.train(next, steps).device_seconds / static_cast<double>(steps));
  std::sort(samples.begin(), samples.end());
  return {1e6 * samples[samples.size() / 2], next};
}

/// `print`'s exit code, or 1 and one line if it throws.
template <class Print>
int run_program(const char* name, const Print& print) {
  try {
    return print();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace headroom
