#include "driver/energy.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "driver/interruption.h"

namespace headroom {
namespace {

// Before the counter is read the clocks must be those of steady work, not of the pause before.
constexpr double kWarmupFraction = 0.1;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::optional<double> measure_idle_watts(const Nvml& nvml, double seconds) {
  const std::optional<double> before = nvml.energy_joules();
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    interruption::throw_if_requested();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const std::optional<double> after = nvml.energy_joules();
  if (!before || !after || !(*after > *before)) return std::nullopt;
  return (*after - *before) / seconds_since(start);
}

std::optional<Energy> measure_energy(TimedTrainer& trainer, double wall_step_seconds, double seconds,
                                     const Nvml& nvml, std::optional<double> idle_watts) {
  if (!nvml.energy_joules()) return std::nullopt;
  const auto train = [&](double length) {
    const auto steps =
        std::max(std::int64_t{1}, static_cast<std::int64_t>(std::ceil(length / wall_step_seconds)));
    const Timing timing = trainer.client->train(trainer.next_step, steps);
    trainer.next_step += steps;
    return std::pair(steps, timing.wall_seconds);
  };
  train(kWarmupFraction * seconds);
  const std::optional<double> before = nvml.energy_joules();
  Energy energy{.steps = 0, .seconds = 0, .joules = 0, .idle_watts = idle_watts};
  while (energy.seconds < seconds) {  // once more where the steps were faster than in the blocks
    const auto [steps, wall_seconds] = train(seconds - energy.seconds);
    energy.steps += steps;
    energy.seconds += wall_seconds;
  }
  const std::optional<double> after = nvml.energy_joules();
  if (!before || !after || !(*after > *before)) return std::nullopt;
  energy.joules = *after - *before;
  return energy;
}

}  // namespace headroom
