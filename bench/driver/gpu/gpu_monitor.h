// Samples the GPU's state while a block runs, on a thread of its own, and sums the samples up.
//
// The worker's process runs the block; this one only waits for its answer, so sampling costs it nothing. A sample
// takes NVML a few milliseconds, so a block of 30 ms has a few of them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/record.h"
#include "driver/gpu/nvml.h"

namespace headroom {

class GpuMonitor {
 public:
  explicit GpuMonitor(std::unique_ptr<Nvml> nvml);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  const Nvml& nvml() const { return *nvml_; }
  /// Sampling begins now, with nothing kept of what was before.
  void begin();
  /// Ends it: the state since begin(). At least one sample is in it.
  GpuState end();

 private:
  void sample_until_told();

  std::unique_ptr<Nvml> nvml_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool sampling_ = false, busy_ = false, ending_ = false;
  std::vector<NvmlSample> samples_;
  std::thread thread_;
};

/// How many of `processes` are neither this process nor its descendants. nullopt if none of them is ours: process
/// numbers are then those of another namespace, and nothing can be said.
std::optional<std::int64_t> count_other_processes(const std::vector<std::int64_t>& processes);

/// Medians of what was read, and every throttle reason that was seen.
GpuState summarize(const std::vector<NvmlSample>& samples);

}  // namespace headroom
