#include "driver/gpu/gpu_monitor.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <utility>

#include "analysis/statistics.h"

namespace headroom {
namespace {

constexpr std::chrono::milliseconds kInterval(5);

// Parent of a process; 0 if it is not there.
std::int64_t parent_of(std::int64_t process) {
  std::ifstream stream(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(stream, text);
  // The name stands in brackets and may hold brackets and blanks itself.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos || end + 4 >= text.size()) return 0;
  return std::strtoll(text.c_str() + end + 4, nullptr, 10);  // ") S PARENT"
}

bool is_ours(std::int64_t process) {
  for (; process > 1; process = parent_of(process)) {
    if (process == getpid()) return true;
  }
  return false;
}

std::optional<double> median_of(const std::vector<NvmlSample>& samples,
                                std::optional<double> NvmlSample::* member) {
  std::vector<double> values;
  for (const NvmlSample& sample : samples) {
    if (sample.*member) values.push_back(*(sample.*member));
  }
  return values.empty() ? std::nullopt : std::optional(median(values));
}

}  // namespace

std::optional<std::int64_t> count_other_processes(const std::vector<std::int64_t>& processes) {
  std::int64_t others = 0;
  for (const std::int64_t process : processes) others += is_ours(process) ? 0 : 1;
  if (others == static_cast<std::int64_t>(processes.size())) return std::nullopt;
  return others;
}

GpuState summarize(const std::vector<NvmlSample>& samples) {
  GpuState state;
  state.samples = static_cast<std::int64_t>(samples.size());
  state.sm_clock_megahertz = median_of(samples, &NvmlSample::sm_clock_megahertz);
  state.memory_clock_megahertz = median_of(samples, &NvmlSample::memory_clock_megahertz);
  state.power_watts = median_of(samples, &NvmlSample::power_watts);
  state.temperature_celsius = median_of(samples, &NvmlSample::temperature_celsius);
  std::optional<std::uint64_t> bits;
  for (const NvmlSample& sample : samples) {
    if (sample.throttle_bits) bits = bits.value_or(0) | *sample.throttle_bits;
  }
  if (bits) state.throttle_reasons = throttle_reason_names(*bits);
  return state;
}

GpuMonitor::GpuMonitor(std::unique_ptr<Nvml> nvml)
    : nvml_(std::move(nvml)), thread_([this] { sample_until_told(); }) {}

GpuMonitor::~GpuMonitor() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    sampling_ = false;
  }
  changed_.notify_all();
  thread_.join();
}

void GpuMonitor::begin() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });  // a sample of before begin() must not count
  samples_.clear();
  sampling_ = true;
  changed_.notify_all();
}

GpuState GpuMonitor::end() {
  std::vector<NvmlSample> samples;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !samples_.empty(); });
    sampling_ = false;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });  // one caller of NVML at a time
    samples = std::move(samples_);
    samples_.clear();
  }
  GpuState state = summarize(samples);
  state.uncorrected_ecc_errors = nvml_->uncorrected_ecc_errors();
  if (const auto processes = nvml_->compute_processes())
    state.other_processes = count_other_processes(*processes);
  return state;
}

void GpuMonitor::sample_until_told() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return sampling_ || ending_; });
    if (ending_) return;
    busy_ = true;
    lock.unlock();
    const NvmlSample sample = nvml_->sample();
    lock.lock();
    busy_ = false;
    samples_.push_back(sample);
    changed_.notify_all();
    changed_.wait_for(lock, kInterval, [this] { return !sampling_; });
  }
}

}  // namespace headroom
