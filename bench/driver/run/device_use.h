// The device of a run: which one, that nobody else uses it, and what it can do.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/record.h"
#include "driver/gpu/gpu_monitor.h"
#include "driver/plan/options.h"
#include "driver/plan/plan.h"
#include "driver/results/results.h"
#include "driver/run/progress.h"
#include "driver/run/worker_pool.h"
#include "driver/system/device_lock.h"

namespace headroom {

/// The device to use: -1 where there is none. Throws InputError if one was asked for that is not there.
int choose_device(const RunOptions& options);

/// What else a workload of several devices may use, in the order of its ranks behind `device`: the rest of --devices, else the
/// other devices of this machine. Throws InputError if one was asked for that is not there.
std::vector<int> peer_devices(const RunOptions& options, int device);

/// Throws InputError if --devices are not as many as a workload of the plan trains on. Says in one line what is skipped where
/// there are too few; returns the peers that the plan needs.
std::vector<int> planned_peers(const RunOptions& options, const Plan& plan, const std::vector<int>& peers,
                               Progress& progress);

/// Takes the lock of the device, or throws InputError; with --wait it waits, with --share-device it goes on.
void lock_device(const RunOptions& options, const std::optional<DeviceInfo>& device, DeviceLock& lock,
                 Progress& progress);

/// The same of several; in the order of their indices, so that no two runs wait for each other.
std::vector<DeviceLock> lock_devices(const RunOptions& options, const std::vector<DeviceInfo>& devices,
                                     Progress& progress);

/// Opens NVML for the device and notes whether its memory has ECC. Null where NVML does not show
/// it; what cannot be read costs one line.
std::unique_ptr<GpuMonitor> watch_device(DeviceInfo& device, Progress& progress);
/// Of the run's devices, the first of them first.
std::vector<std::unique_ptr<GpuMonitor>> watch_devices(Results& results, Progress& progress);

/// Measures what the device can do, if it was not measured before in this run's file. Empty where there is no device; a
/// rate that is missing costs one line and the floors that need it.
void calibrate(Results& results, const std::vector<int>& peers, WorkerPool& pool, Progress& progress);

}  // namespace headroom
