#include "driver/gpu/energy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "driver/system/interruption.h"

namespace headroom {
namespace {

// Before the counter is read the clocks must be those of steady work, not of the pause before.
constexpr double kWarmupFraction = 0.1;

using Clock = std::chrono::steady_clock;

// Watches the counter from a thread of its own while the main one trains.
class EnergyMeter {
 public:
  explicit EnergyMeter(const Nvml& nvml) : thread_([this, &nvml] { watch(nvml); }) {}
  ~EnergyMeter() { stop(); }
  EnergyMeter(const EnergyMeter&) = delete;
  EnergyMeter& operator=(const EnergyMeter&) = delete;

  /// Mean power between the first and the last time the counter moved; nullopt if it did so less than twice.
  std::optional<double> watts() {
    stop();
    if (moves_.size() < 2) return std::nullopt;
    const auto& [first_time, first_joules] = moves_.front();
    const auto& [last_time, last_joules] = moves_.back();
    return (last_joules - first_joules) / std::chrono::duration<double>(last_time - first_time).count();
  }

 private:
  void watch(const Nvml& nvml) {
    std::optional<double> before = nvml.energy_joules();
    while (!stopping_ && before) {
      std::this_thread::sleep_for(kInterval);
      const std::optional<double> now = nvml.energy_joules();
      if (now && *now > *before) moves_.emplace_back(Clock::now(), *now);
      before = now;
    }
  }
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  static constexpr std::chrono::milliseconds kInterval{2};
  std::atomic<bool> stopping_ = false;
  std::vector<std::pair<Clock::time_point, double>> moves_;
  std::thread thread_;
};

/// One for each device.
class EnergyMeters {
 public:
  explicit EnergyMeters(const std::vector<const Nvml*>& devices) {
    for (const Nvml* nvml : devices) meters_.push_back(std::make_unique<EnergyMeter>(*nvml));
  }
  /// The sum; nullopt if one of them has none.
  std::optional<double> watts() {
    double sum = 0;
    for (const auto& meter : meters_) {
      const std::optional<double> watts = meter->watts();
      if (!watts) return std::nullopt;
      sum += *watts;
    }
    return sum;
  }

 private:
  std::vector<std::unique_ptr<EnergyMeter>> meters_;
};

bool are_known(const std::vector<const Nvml*>& devices) {
  return !devices.empty() && std::all_of(devices.begin(), devices.end(),
                                         [](const Nvml* nvml) { return nvml->energy_joules().has_value(); });
}

}  // namespace

std::optional<double> measure_idle_watts(const std::vector<const Nvml*>& devices, double seconds) {
  if (!are_known(devices)) return std::nullopt;
  EnergyMeters meter(devices);
  const Clock::time_point start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    interruption::throw_if_requested();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return meter.watts();
}

std::optional<Energy> measure_energy(const std::function<double(std::int64_t steps)>& train,
                                     double wall_step_seconds, double seconds,
                                     const std::vector<const Nvml*>& devices,
                                     std::optional<double> idle_watts) {
  if (!are_known(devices)) return std::nullopt;
  const auto steps_of = [&](double length) {
    return std::max(std::int64_t{1}, static_cast<std::int64_t>(std::ceil(length / wall_step_seconds)));
  };
  train(steps_of(kWarmupFraction * seconds));
  Energy energy{.steps = 0, .seconds = 0, .joules = 0, .idle_watts = idle_watts};
  EnergyMeters meter(devices);
  while (energy.seconds < seconds) {  // once more where the steps were faster than in the blocks
    const std::int64_t steps = steps_of(seconds - energy.seconds);
    energy.seconds += train(steps);
    energy.steps += steps;
  }
  const std::optional<double> watts = meter.watts();
  if (!watts || !(*watts > 0)) return std::nullopt;
  energy.joules = *watts * energy.seconds;
  return energy;
}

}  // namespace headroom
