// Everything a run writes down. Field names are those of results/schema.json.
//
// Unknown is std::nullopt (null in the file), never 0.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/workload.h"

namespace headroom {

/// Which roundings a backend promises: the precision contract's, those of PyTorch's autocast, or a vendor library's tf32,
/// whose input rounding is the library's own.
enum class Contract { kExact, kAutocast, kLibrary };
enum class Outcome { kOk, kSkipped, kFailed };
/// Whom a backend is compared with. kOurs are the kernels that the others are compared with. A reference is the yardstick of
/// the checks and never competes. kJax and kVendor compete and are neither PyTorch nor ours; kOther may be anything.
enum class Family { kReference, kPytorch, kLibtorch, kJax, kVendor, kOurs, kOther };
inline constexpr std::array kAllFamilies = {Family::kReference, Family::kPytorch, Family::kLibtorch,
                                            Family::kJax,       Family::kVendor,  Family::kOurs,
                                            Family::kOther};
/// kCannotBeChecked: no check failed, but what would have told a fault was too small to be seen.
enum class Verdict { kPass, kFail, kCannotBeChecked, kNotRun };
/// Whether a backend that compiles found its code in the cache folder or had to make some of it.
enum class SetupCache { kCold, kWarm };
std::string_view to_string(Contract contract);  ///< "exact", "autocast", "library"
std::string_view to_string(Outcome outcome);    ///< "ok", "skipped", "failed"
std::string_view to_string(Verdict verdict);    ///< "pass", "fail", "cannot_be_checked", "not_run"
std::string_view to_string(SetupCache cache);   ///< "cold", "warm"
std::string_view to_string(
    Family family);  ///< "reference", "pytorch", "libtorch", "jax", "vendor", "ours", "other"
/// Throws InputError with the nearest name.
Family parse_family(std::string_view name);

/// What NVML said of the GPU while a block ran: medians of the samples. nullopt: it did not say.
struct GpuState {
  std::int64_t samples = 0;
  std::optional<double> sm_clock_megahertz, memory_clock_megahertz, power_watts, temperature_celsius;
  std::optional<std::vector<std::string>> throttle_reasons;  ///< seen in any sample, as in driver/gpu/nvml.h
  std::optional<std::int64_t> uncorrected_ecc_errors;        ///< since the driver was loaded
  std::optional<std::int64_t> other_processes;  ///< on this GPU, that are neither the driver nor a worker
};

struct Block {
  std::int64_t order = 0;  ///< position among all blocks of its (workload, precision)
  std::int64_t steps = 0;
  double device_seconds = 0, wall_seconds = 0, cpu_seconds = 0;  ///< of the whole block
  std::optional<GpuState> gpu = {};                              ///< nullopt where there is no NVML
  std::vector<GpuState> peer_gpus = {};  ///< of the other devices of a workload of several
};

/// An untimed stretch of steps after the blocks, and the energy that the GPU's counter gave for it.
struct Energy {
  std::int64_t steps = 0;
  double seconds = 0, joules = 0;    ///< of the whole stretch, and of all devices of the workload
  std::optional<double> idle_watts;  ///< with the same processes holding the GPUs and nothing running
};

/// Median and 95 % interval of a step, in seconds.
struct StepSeconds {
  double median = 0, low = 0, high = 0;
};

struct LossCurve {
  std::uint64_t seed = 0;
  std::vector<std::int64_t> steps;           ///< every step to 100, then every tenth
  std::vector<float> values;                 ///< mean cross-entropy before the update of that step
  double last_mean = 0;                      ///< over the last 312 steps (all of them if fewer)
  std::optional<double> held_out_accuracy;   ///< fraction right after the last step; with labels
  std::optional<double> held_out_r_squared;  ///< with fp32 targets
};

struct Check {
  std::string
      name;  ///< "step_update", "step_scale", "update_rule", "evidence", "ten_steps", "losses_finite", "curve"
  std::string tensor;  ///< "weight1", ...; empty if the check is not about one tensor
  std::vector<std::int64_t> steps;
  double error = 0;  ///< analysis/verification.h says what it is over several steps
  double worst = 0;  ///< largest over `steps`
  double bound = 0;
  bool passed = false;
};

struct Verification {
  Verdict verdict = Verdict::kNotRun;
  std::vector<Check> checks;
  /// Of the oracle's step, from which the bounds come (oracle/copies.h); nullopt where it is not known.
  std::optional<int> copies{};
};

struct Record {
  std::string workload, backend;
  Family family = Family::kOther;  ///< of the backend
  Precision precision = Precision::kFp32;
  Contract contract = Contract::kExact;
  Outcome outcome = Outcome::kOk;
  std::string message;  ///< why skipped or failed; else the backend's note
  std::optional<double> setup_seconds;
  std::optional<SetupCache> setup_cache;  ///< nullopt if the backend compiles nothing
  std::vector<Block> blocks;
  std::optional<StepSeconds> step_seconds;  ///< device time
  std::optional<double> wall_step_seconds;  ///< median
  std::optional<double> cpu_step_seconds;   ///< median
  std::optional<double> fraction_of_floor, joules_per_step;
  std::optional<Energy> energy;  ///< what joules_per_step was made of
  /// How hardware or heat held the clocks down during a block; empty if they did not, nullopt if not known.
  std::optional<std::vector<std::string>> slowdown_reasons;
  std::optional<std::int64_t> peak_device_bytes;
  std::vector<LossCurve> losses;
  Verification verification;
};

/// Makes it a failed record, which has no time however far it got: neither blocks nor what was made of them. What was
/// checked and the losses stay, as evidence.
void mark_failed(Record& record, const std::string& message);

/// One thing that was measured of the device itself; see docs/floors.md for the names.
struct CalibratedRate {
  double value = 0;  ///< in `unit`: bytes_per_second, flops_per_second, seconds or bytes
  std::string unit, how;
};
using Calibration = std::map<std::string, CalibratedRate>;

/// The least time that a step can take on the device, as estimated, and the three times it is the largest of; on several
/// devices a fourth.
struct Floor {
  double seconds = 0;
  std::string bound;  ///< "bytes", "operations", "exchanges" or "link"
  double bytes_seconds = 0, operations_seconds = 0, exchanges_seconds = 0;
  double link_seconds = 0;  ///< 0 on one device
};

/// What is saved from one way of running a step to another; analysis/ladder.h has the names and their meaning.
struct LadderTerm {
  std::string name;
  std::string from, to;  ///< backends, or "floor"; empty where there is none
  std::optional<double> seconds, low,
      high;             ///< of a step, with what both intervals allow; nullopt: not known
  std::string verdict;  ///< "positive", "noise", "negative" or "missing"
  std::string message;  ///< why it is missing
};
using Ladder = std::vector<LadderTerm>;

struct DeviceInfo {
  std::string name, uuid, driver;  ///< driver: as NVIDIA writes it, "580.159.04"; empty if not known
  int index = 0, sm_count = 0, compute_major = 0, compute_minor = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;
  std::optional<bool> ecc_enabled = {};  ///< from NVML; a worker leaves it open
};

}  // namespace headroom
