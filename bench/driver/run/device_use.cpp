#include "driver/run/device_use.h"

#include <fmt/core.h>

#include <algorithm>
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

std::vector<int> peer_devices(const RunOptions& options, int device) {
  if (device < 0) return {};
  const int count = cuda_device_count();
  std::vector<int> peers;
  if (options.devices.empty()) {
    for (int other = 0; other < count; ++other)
      if (other != device) peers.push_back(other);
    return peers;
  }
  peers.assign(options.devices.begin() + 1, options.devices.end());
  for (const int other : peers)
    if (other >= count)
      throw InputError(
          fmt::format("--devices: there is no device {}; this machine has {}, from 0 on", other, count));
  return peers;
}

std::vector<int> planned_peers(const RunOptions& options, const Plan& plan, const std::vector<int>& peers,
                               Progress& progress) {
  int most = 1;
  for (const PlannedWorkload& planned : plan.workloads) most = std::max(most, planned.workload.devices);
  if (!options.devices.empty() && std::ssize(options.devices) != most) {
    throw InputError(
        fmt::format("--devices: names {}, and the workloads of this run train on {}; name as many, or choose "
                    "a workload such as "
                    "mlp-784x128x10-b32-g{}",
                    options.devices.size(), most == 1 ? "one" : fmt::format("up to {}", most),
                    std::max<std::size_t>(2, options.devices.size())));
  }
  const int here = 1 + static_cast<int>(peers.size());
  if (most > here)
    progress.line(fmt::format("Workloads of more than {} device{} are skipped: there are no others here.",
                              here, here == 1 ? "" : "s"));
  return {peers.begin(), peers.begin() + std::min<std::ptrdiff_t>(most - 1, std::ssize(peers))};
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

std::vector<DeviceLock> lock_devices(const RunOptions& options, const std::vector<DeviceInfo>& devices,
                                     Progress& progress) {
  std::vector<DeviceInfo> ordered = devices;
  std::sort(ordered.begin(), ordered.end(),
            [](const DeviceInfo& one, const DeviceInfo& other) { return one.index < other.index; });
  std::vector<DeviceLock> locks(ordered.size());
  for (std::size_t i = 0; i < ordered.size(); ++i) lock_device(options, ordered[i], locks[i], progress);
  return locks;
}

std::unique_ptr<GpuMonitor> watch_device(DeviceInfo& device, Progress& progress) {
  std::string missing;
  std::unique_ptr<Nvml> nvml = Nvml::open(device.uuid, missing);
  if (!nvml) {
    progress.line(missing);
    return nullptr;
  }
  if (const std::string unreadable = nvml->unreadable(); !unreadable.empty())
    progress.line(fmt::format("NVML does not say here: {}.", unreadable));
  device.ecc_enabled = nvml->ecc_enabled();
  return std::make_unique<GpuMonitor>(std::move(nvml));
}

std::vector<std::unique_ptr<GpuMonitor>> watch_devices(Results& results, Progress& progress) {
  std::vector<std::unique_ptr<GpuMonitor>> monitors;
  if (results.device) monitors.push_back(watch_device(*results.device, progress));
  for (DeviceInfo& peer : results.peer_devices) monitors.push_back(watch_device(peer, progress));
  return monitors;
}

void calibrate(Results& results, const std::vector<int>& peers, WorkerPool& pool, Progress& progress) {
  if (!results.device || !results.calibration.empty()) return;
  progress.status("calibrating the device", true);
  results.calibration = pool.calibrate(peers, [&](const std::string& problem) { progress.line(problem); });
  std::string without;
  for (const Precision precision : kAllPrecisions) {
    const std::string missing = missing_rate(precision, results.calibration);
    if (!missing.empty())
      without += fmt::format("{}{} ('{}')", without.empty() ? "" : ", ", to_string(precision), missing);
  }
  if (!without.empty()) progress.line(fmt::format("No floors in these, a rate is missing: {}.", without));
}

}  // namespace headroom
