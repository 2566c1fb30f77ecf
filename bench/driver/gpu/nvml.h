// What the GPU says of itself through NVML: clocks, power, temperature, throttle reasons, ECC, processes, energy.
//
// The library is loaded when a run begins and never linked: where it, the device or a permission is missing, the
// answer is "not known". Only functions that read are declared here, so nothing of a GPU can be set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headroom {

/// One reading; what could not be read is nullopt.
struct NvmlSample {
  std::optional<double> sm_clock_megahertz, memory_clock_megahertz, power_watts, temperature_celsius;
  std::optional<std::uint64_t> throttle_bits;  ///< throttle_reason_names() spells them
};

class Nvml {
 public:
  /// The device with this UUID ("GPU-..."), or null and one line in `missing`.
  static std::unique_ptr<Nvml> open(const std::string& uuid, std::string& missing,
                                    const char* library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  NvmlSample sample() const;
  std::optional<bool> ecc_enabled() const;
  std::optional<std::int64_t> uncorrected_ecc_errors() const;  ///< since the driver was loaded
  /// Process numbers of those that hold a CUDA context on the device.
  std::optional<std::vector<std::int64_t>> compute_processes() const;
  /// Counter since the driver was loaded; only differences mean something.
  std::optional<double> energy_joules() const;
  /// What this device or user cannot read: "energy, power"; empty if nothing.
  std::string unreadable() const;

 private:
  struct Functions;
  Nvml();
  std::unique_ptr<Functions> functions_;
  void* library_ = nullptr;
  void* device_ = nullptr;
  bool initialized_ = false;
};

/// "software_power_cap", ...; bits without a name as "bit_12". Idle and clocks that were asked for are states like the
/// others; which of them slow a GPU down is analysis/gpu_state.h's to say.
std::vector<std::string> throttle_reason_names(std::uint64_t bits);

}  // namespace headroom
