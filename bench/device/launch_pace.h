// How many steps one launch may take, for kernels that train many steps in a launch: no launch is to hold the GPU for more
// than a tenth of a second. It follows from how long the last steps took; before any were timed a launch takes few.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headroom {

class LaunchPace {
 public:
  /// Steps of a launch: before any were timed, and at most.
  constexpr LaunchPace(std::int64_t first, std::int64_t most) : first_(first), most_(most), steps_(first) {}

  std::int64_t steps() const { return steps_; }
  bool timed() const { return timed_; }
  /// Whether so many steps say more than the first launch did.
  bool worth_timing(std::int64_t steps) const { return steps >= first_; }
  /// `count` steps in as many launches as that takes; launch(done, steps) queues the next ones, seconds() waits for all so far.
  /// Returns the seconds of all.
  template <class Launch, class Seconds>
  double run(std::int64_t count, const Launch& launch, const Seconds& seconds) {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t steps = std::min(count - done, steps_);
      const bool first = !timed_;
      launch(done, steps);
      done += steps;
      if (first) learn(seconds(), done);
    }
    return seconds();
  }
  void learn(double seconds, std::int64_t steps) {
    timed_ = true;
    const double step_seconds = std::max(1e-7, seconds / static_cast<double>(steps));
    steps_ = std::clamp<std::int64_t>(static_cast<std::int64_t>(kLaunchSeconds / step_seconds), 1, most_);
  }

 private:
  static constexpr double kLaunchSeconds = 0.05;  // aimed at; twice that is the most a launch may take
  std::int64_t first_, most_, steps_;
  bool timed_ = false;
};

}  // namespace headroom
