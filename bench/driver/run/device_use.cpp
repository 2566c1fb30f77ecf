#include "driver/run/device_use.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "analysis/floors.h"
#include "core/error.h"
#include "driver/gpu/cuda_devices.h"
#include "driver/system/interruption.h"

namespace headroom {

int choose_device(const RunOptions& options) {
  if (options.device < 0) return -1;
  const int count = cuda_device_count();
  if (options.device < count) return options.device;
  if (options.device_given) {
    throw InputError(fmt::format(
        "--device {}: {}", options.device,
        count == 0 ? "no CUDA device was found; leave it out to run on the CPU"
                   : fmt::format("there are {}; expected 0 to {}, or -1 for none", count, count - 1)));
  }
  return -1;
}

void lock_device(const RunOptions& options, const std::optional<DeviceInfo>& device, DeviceLock& lock,
                 Progress& progress) {
  if (!device) return;
  const std::string name = device->uuid.empty() ? fmt::format("device-{}", device->index) : device->uuid;
  bool taken = false;
  try {
    taken = lock.try_acquire(name);
  } catch (const InputError& error) {
    if (!options.share_device) {
      throw InputError(fmt::format(
          "device {} ({}): {}; remove what is there, or go on without the lock with --share-device",
          device->index, device->name, error.what()));
    }
    progress.line(fmt::format("Whether another run uses device {} ({}) is not known: {}.", device->index,
                              device->name, error.what()));
    return;
  }
  if (taken) return;
  if (options.share_device) {
    progress.line(
        fmt::format("Another run uses device {} ({}): times will suffer.", device->index, device->name));
    return;
  }
  if (!options.wait) {
    throw InputError(fmt::format(
        "device {} ({}) is in use by another run; wait for it with --wait, or go on with --share-device",
        device->index, device->name));
  }
  progress.line(fmt::format("Waiting for the run that uses device {} ({}).", device->index, device->name));
  while (!lock.try_acquire(name)) {
    interruption::throw_if_requested();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

std::unique_ptr<GpuMonitor> watch_device(std::optional<DeviceInfo>& device, Progress& progress) {
  if (!device) return nullptr;
  std::string missing;
  std::unique_ptr<Nvml> nvml = Nvml::open(device->uuid, missing);
  if (!nvml) {
    progress.line(missing);
    return nullptr;
  }
  if (const std::string unreadable = nvml->unreadable(); !unreadable.empty())
    progress.line(fmt::format("NVML does not say here: {}.", unreadable));
  device->ecc_enabled = nvml->ecc_enabled();
  return std::make_unique<GpuMonitor>(std::move(nvml));
}

void calibrate(Results& results, WorkerPool& pool, Progress& progress) {
  if (!results.device || !results.calibration.empty()) return;
  progress.status("calibrating the device", true);
  results.calibration = pool.calibrate([&](const std::string& problem) { progress.line(problem); });
  std::string without;
  for (const Precision precision : kAllPrecisions) {
    const std::string missing = missing_rate(precision, results.calibration);
    if (!missing.empty())
      without += fmt::format("{}{} ('{}')", without.empty() ? "" : ", ", to_string(precision), missing);
  }
  if (!without.empty()) progress.line(fmt::format("No floors in these, a rate is missing: {}.", without));
}

}  // namespace headroom
