#include "driver/gpu/nvml.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <type_traits>
#include <utility>

namespace headroom {
namespace {

// NVML's types and constants as nvml.h has them; the header comes with the toolkit and may be missing.
using Device = void*;
using Status = int;
constexpr Status kSuccess = 0, kInsufficientSize = 7;
constexpr int kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0, kUncorrected = 1, kSinceDriverLoaded = 0;

struct ProcessInfo {  // of the _v3 functions
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

template <typename Function>
void load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

struct Nvml::Functions {
  Status (*init)();
  Status (*shutdown)();
  const char* (*error_string)(Status);
  Status (*handle_by_uuid)(const char*, Device*);
  Status (*clock)(Device, int type, unsigned* megahertz);
  Status (*power)(Device, unsigned* milliwatts);
  Status (*temperature)(Device, int sensor, unsigned* celsius);
  Status (*throttle)(Device, unsigned long long* bits);
  Status (*ecc_mode)(Device, int* current, int* pending);
  Status (*ecc_errors)(Device, int kind, int since, unsigned long long* count);
  Status (*processes)(Device, unsigned* count, ProcessInfo* processes);
  Status (*energy)(Device, unsigned long long* millijoules);

  explicit Functions(void* library) {
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlShutdown", shutdown);
    load(library, "nvmlErrorString", error_string);
    load(library, "nvmlDeviceGetHandleByUUID", handle_by_uuid);
    load(library, "nvmlDeviceGetClockInfo", clock);
    load(library, "nvmlDeviceGetPowerUsage", power);
    load(library, "nvmlDeviceGetTemperature", temperature);
    load(library, "nvmlDeviceGetCurrentClocksEventReasons", throttle);
    if (throttle == nullptr)  // its name before driver 535
      load(library, "nvmlDeviceGetCurrentClocksThrottleReasons", throttle);
    load(library, "nvmlDeviceGetEccMode", ecc_mode);
    load(library, "nvmlDeviceGetTotalEccErrors", ecc_errors);
    load(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes);
    load(library, "nvmlDeviceGetTotalEnergyConsumption", energy);
  }

  std::string words(Status status) const {
    const char* text = error_string == nullptr ? nullptr : error_string(status);
    return text == nullptr ? fmt::format("error {}", status) : text;
  }
};

namespace {

// The value that `function(arguments..., &value)` writes; nullopt if the function is missing or refuses.
template <typename Value, typename Function, typename... Arguments>
std::optional<Value> read(Function function, Arguments... arguments) {
  if (function == nullptr) return std::nullopt;
  const auto call = [&](auto value) -> std::optional<Value> {
    if (function(arguments..., &value) != kSuccess) return std::nullopt;
    return static_cast<Value>(value);
  };
  if constexpr (std::is_invocable_v<Function, Arguments..., unsigned*>) {
    return call(0u);
  } else {
    return call(0ull);
  }
}

// NVML counts power and energy in thousandths.
std::optional<double> thousandths(std::optional<double> value) {
  return value ? std::optional(*value / 1000) : std::nullopt;
}

}  // namespace

Nvml::Nvml() = default;

std::unique_ptr<Nvml> Nvml::open(const std::string& uuid, std::string& missing, const char* library) {
  const auto without = [&](const std::string& why) -> std::unique_ptr<Nvml> {
    missing = fmt::format("No clocks, power, temperature and energy: {}.", why);
    return nullptr;
  };
  std::unique_ptr<Nvml> nvml(new Nvml);
  nvml->library_ = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (nvml->library_ == nullptr) return without(fmt::format("NVML ({}) was not found", library));
  nvml->functions_ = std::make_unique<Functions>(nvml->library_);
  const Functions& functions = *nvml->functions_;
  if (functions.init == nullptr || functions.shutdown == nullptr || functions.handle_by_uuid == nullptr)
    return without(fmt::format("{} is no NVML", library));
  if (const Status status = functions.init(); status != kSuccess)
    return without(fmt::format("NVML does not start: {}", functions.words(status)));
  nvml->initialized_ = true;
  if (const Status status = functions.handle_by_uuid(uuid.c_str(), &nvml->device_); status != kSuccess)
    return without(fmt::format("NVML does not show device {}: {}", uuid, functions.words(status)));
  return nvml;
}

Nvml::~Nvml() {
  if (initialized_) functions_->shutdown();
  if (library_ != nullptr) dlclose(library_);
}

NvmlSample Nvml::sample() const {
  NvmlSample sample;
  sample.sm_clock_megahertz = read<double>(functions_->clock, device_, kSmClock);
  sample.memory_clock_megahertz = read<double>(functions_->clock, device_, kMemoryClock);
  sample.power_watts = thousandths(read<double>(functions_->power, device_));
  sample.temperature_celsius = read<double>(functions_->temperature, device_, kGpuTemperature);
  sample.throttle_bits = read<std::uint64_t>(functions_->throttle, device_);
  return sample;
}

std::optional<bool> Nvml::ecc_enabled() const {
  int current = 0, pending = 0;
  if (functions_->ecc_mode == nullptr || functions_->ecc_mode(device_, &current, &pending) != kSuccess)
    return std::nullopt;
  return current != 0;
}

std::optional<std::int64_t> Nvml::uncorrected_ecc_errors() const {
  return read<std::int64_t>(functions_->ecc_errors, device_, kUncorrected, kSinceDriverLoaded);
}

std::optional<std::vector<std::int64_t>> Nvml::compute_processes() const {
  if (functions_->processes == nullptr) return std::nullopt;
  std::vector<ProcessInfo> found(64);
  for (int attempt = 0; attempt < 3; ++attempt) {  // more may start between two calls
    unsigned count = static_cast<unsigned>(found.size());
    const Status status = functions_->processes(device_, &count, found.data());
    if (status == kInsufficientSize) {
      found.resize(std::size_t{count} + 64);
      continue;
    }
    if (status != kSuccess || count > found.size()) return std::nullopt;
    std::vector<std::int64_t> numbers;
    for (unsigned i = 0; i < count; ++i) numbers.push_back(found[i].pid);
    return numbers;
  }
  return std::nullopt;
}

std::optional<double> Nvml::energy_joules() const {
  return thousandths(read<double>(functions_->energy, device_));
}

std::string Nvml::unreadable() const {
  const NvmlSample now = sample();
  std::string text;
  const auto check = [&](bool known, const char* name) {
    if (!known) text += (text.empty() ? "" : ", ") + std::string(name);
  };
  check(now.sm_clock_megahertz.has_value(), "SM clock");
  check(now.memory_clock_megahertz.has_value(), "memory clock");
  check(now.power_watts.has_value(), "power");
  check(now.temperature_celsius.has_value(), "temperature");
  check(now.throttle_bits.has_value(), "throttle reasons");
  check(ecc_enabled().has_value(), "ECC");
  check(compute_processes().has_value(), "processes");
  check(energy_joules().has_value(), "energy");
  return text;
}

std::vector<std::string> throttle_reason_names(std::uint64_t bits) {
  constexpr std::pair<std::uint64_t, const char*> kNames[] = {
      {0x1, "idle"},
      {0x2, "application_clocks"},
      {0x4, "software_power_cap"},
      {0x8, "hardware_slowdown"},
      {0x10, "sync_boost"},
      {0x20, "software_thermal_slowdown"},
      {0x40, "hardware_thermal_slowdown"},
      {0x80, "hardware_power_brake"},
      {0x100, "display_clocks"},
  };
  std::vector<std::string> names;
  for (const auto& [bit, name] : kNames) {
    if ((bits & bit) != 0) names.push_back(name);
    bits &= ~bit;
  }
  for (int bit = 0; bit < 64; ++bit) {
    if ((bits >> bit & 1) != 0) names.push_back(fmt::format("bit_{}", bit));
  }
  return names;
}

}  // namespace headroom
