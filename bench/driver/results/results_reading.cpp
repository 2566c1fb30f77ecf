// Results from JSON: from_json() of each type, found by the library. What is read has passed the schema, so it has the types
// and the fields that it should have.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "core/error.h"
#include "core/optimizer_numbers.h"
#include "driver/results/optional_json.h"
#include "driver/results/results.h"
#include "driver/results/results_schema.h"
#include "driver/system/json_file.h"

namespace headroom {

using Parsed = nlohmann::json;

namespace {

/// A field that may be null, or missing in files of earlier versions of this program.
template <typename T>
void read_if_known(const Parsed& object, const char* key, T& value) {
  if (const auto found = object.find(key); found != object.end() && !found->is_null()) found->get_to(value);
}

double number_or_nan(const Parsed& value) { return value.is_null() ? std::nan("") : value.get<double>(); }

template <typename T>
void read_one_of(const Parsed& name, std::span<const T> values, T& read) {
  for (const T value : values) {
    if (name == to_string(value)) {
      read = value;
      return;
    }
  }
  throw std::logic_error(fmt::format("{} is in results/schema.json and not in the program", name.dump()));
}
template <typename T>
void read_one_of(const Parsed& name, std::initializer_list<T> values, T& read) {
  read_one_of(name, std::span<const T>(values.begin(), values.size()), read);
}
template <typename T, std::size_t N>
void read_one_of(const Parsed& name, const std::array<T, N>& values, T& read) {
  read_one_of(name, std::span<const T>(values), read);
}

std::map<std::string, std::string> read_strings(const Parsed& object) {
  std::map<std::string, std::string> strings;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) strings[key] = value;
  }
  return strings;
}

template <typename T>
std::map<Precision, T> read_by_precision(const Parsed& object) {
  std::map<Precision, T> values;
  for (const auto& [precision, value] : object.items()) value.get_to(values[parse_precision(precision)]);
  return values;
}

}  // namespace

static void from_json(const Parsed& name, Precision& precision) {
  precision = parse_precision(name.get<std::string>());
}
static void from_json(const Parsed& name, Contract& contract) {
  read_one_of(name, {Contract::kExact, Contract::kAutocast, Contract::kLibrary}, contract);
}
static void from_json(const Parsed& name, Outcome& outcome) {
  read_one_of(name, {Outcome::kOk, Outcome::kSkipped, Outcome::kFailed}, outcome);
}
static void from_json(const Parsed& name, Verdict& verdict) {
  read_one_of(name, {Verdict::kPass, Verdict::kFail, Verdict::kCannotBeChecked, Verdict::kNotRun}, verdict);
}
static void from_json(const Parsed& name, SetupCache& cache) {
  read_one_of(name, {SetupCache::kCold, SetupCache::kWarm}, cache);
}
static void from_json(const Parsed& name, Family& family) { read_one_of(name, kAllFamilies, family); }
static void from_json(const Parsed& name, Activation& activation) {
  read_one_of(name, kAllActivations, activation);
}
static void from_json(const Parsed& name, Loss& loss) { read_one_of(name, kAllLosses, loss); }

static void from_json(const Parsed& value, ModelSource& model) {
  value.at("file").get_to(model.file);
  value.at("name").get_to(model.name);
  value.at("sha256").get_to(model.sha256);
  value.at("workload").get_to(model.workload);
}

static void from_json(const Parsed& value, RunInfo& run) {
  value.at("id").get_to(run.id);
  value.at("started_utc").get_to(run.started_utc);
  read_if_known(value, "finished_utc", run.finished_utc);
  value.at("argv").get_to(run.argv);
  read_if_known(value, "suite", run.suite);
  read_if_known(value, "git_sha", run.git_sha);
  read_if_known(value, "git_dirty", run.git_dirty);
  read_if_known(value, "source_digest", run.source_digest);
  run.settings = read_strings(value.at("settings"));
  value.at("complete").get_to(run.complete);
  read_if_known(value, "model", run.model);
}

static void from_json(const Parsed& value, HostInfo& host) {
  read_if_known(value, "cpu", host.cpu);
  read_if_known(value, "os", host.os);
  read_if_known(value, "kernel", host.kernel);
  read_if_known(value, "cores", host.cores);
  read_if_known(value, "memory_bytes", host.memory_bytes);
}

static void from_json(const Parsed& value, DeviceInfo& device) {
  value.at("name").get_to(device.name);
  read_if_known(value, "uuid", device.uuid);
  read_if_known(value, "driver", device.driver);
  value.at("index").get_to(device.index);
  value.at("sm_count").get_to(device.sm_count);
  value.at("compute_major").get_to(device.compute_major);
  value.at("compute_minor").get_to(device.compute_minor);
  value.at("memory_bytes").get_to(device.memory_bytes);
  value.at("l2_bytes").get_to(device.l2_bytes);
  read_if_known(value, "ecc_enabled", device.ecc_enabled);
}

static void from_json(const Parsed& value, CalibratedRate& rate) {
  value.at("value").get_to(rate.value);
  value.at("unit").get_to(rate.unit);
  value.at("how").get_to(rate.how);
}

static void from_json(const Parsed& value, Floor& floor) {
  value.at("seconds").get_to(floor.seconds);
  value.at("bound").get_to(floor.bound);
  value.at("bytes_seconds").get_to(floor.bytes_seconds);
  value.at("operations_seconds").get_to(floor.operations_seconds);
  value.at("exchanges_seconds").get_to(floor.exchanges_seconds);
  read_if_known(value, "link_seconds", floor.link_seconds);
}

static void from_json(const Parsed& value, LadderTerm& term) {
  value.at("name").get_to(term.name);
  read_if_known(value, "from", term.from);
  read_if_known(value, "to", term.to);
  read_if_known(value, "seconds", term.seconds);
  read_if_known(value, "low", term.low);
  read_if_known(value, "high", term.high);
  value.at("verdict").get_to(term.verdict);
  value.at("message").get_to(term.message);
}

static void from_json(const Parsed& value, Optimizer& optimizer) {
  read_one_of(value.at("kind"), kAllOptimizers, optimizer.kind);
  for (const std::string_view name : kOptimizerNumbers)
    if (double* number = optimizer_number(optimizer, name)) value.at(std::string(name)).get_to(*number);
}

static void from_json(const Parsed& value, Choice::Candidate& candidate) {
  value.at("backend").get_to(candidate.backend);
  read_if_known(value, "step_seconds", candidate.step_seconds);
  read_if_known(value, "left_out", candidate.left_out);
}

static void from_json(const Parsed& value, Choice& choice) {
  value.at("taken").get_to(choice.taken);
  value.at("kept").get_to(choice.was_kept);
  value.at("candidates").get_to(choice.candidates);
}

static void from_json(const Parsed& value, WorkloadEntry& entry) {
  Workload& workload = entry.workload;
  value.at("name").get_to(workload.name);
  read_if_known(value, "about", entry.about);
  value.at("widths").get_to(workload.model.widths);
  value.at("activation").get_to(workload.model.activation);
  value.at("loss").get_to(workload.loss);
  value.at("batch_size").get_to(workload.batch_size);
  workload.devices = value.value("devices", 1);
  value.at("optimizer").get_to(workload.optimizer);
  value.at("seed").get_to(workload.seed);
  const Parsed& dataset = value.at("dataset");
  if (dataset.at("kind") == "idx") workload.dataset = {DatasetSpec::Kind::kIdx, dataset.at("folder")};
  dataset.at("description").get_to(entry.dataset.description);
  read_if_known(dataset, "digest", entry.dataset.digest);
  read_if_known(dataset, "samples", entry.dataset.samples);
  read_if_known(dataset, "held_out_samples", entry.dataset.held_out_samples);
  read_if_known(dataset, "batches", entry.dataset.batches);
  entry.floors = read_by_precision<Floor>(value.at("floors"));
  entry.ladders = read_by_precision<Ladder>(value.value("ladders", Parsed::object()));
  entry.choices = read_by_precision<std::map<std::string, Choice>>(value.value("choices", Parsed::object()));
}

static void from_json(const Parsed& value, GpuState& state) {
  value.at("samples").get_to(state.samples);
  read_if_known(value, "sm_clock_megahertz", state.sm_clock_megahertz);
  read_if_known(value, "memory_clock_megahertz", state.memory_clock_megahertz);
  read_if_known(value, "power_watts", state.power_watts);
  read_if_known(value, "temperature_celsius", state.temperature_celsius);
  read_if_known(value, "throttle_reasons", state.throttle_reasons);
  read_if_known(value, "uncorrected_ecc_errors", state.uncorrected_ecc_errors);
  read_if_known(value, "other_processes", state.other_processes);
}

static void from_json(const Parsed& value, Energy& energy) {
  value.at("steps").get_to(energy.steps);
  value.at("seconds").get_to(energy.seconds);
  value.at("joules").get_to(energy.joules);
  read_if_known(value, "idle_watts", energy.idle_watts);
}

static void from_json(const Parsed& value, LossCurve& curve) {
  value.at("seed").get_to(curve.seed);
  value.at("steps").get_to(curve.steps);
  for (const Parsed& loss : value.at("values"))
    curve.values.push_back(static_cast<float>(number_or_nan(loss)));
  curve.last_mean = number_or_nan(value.at("last_mean"));
  read_if_known(value, "held_out_accuracy", curve.held_out_accuracy);
  read_if_known(value, "held_out_r_squared", curve.held_out_r_squared);
}

static void from_json(const Parsed& value, Check& check) {
  value.at("name").get_to(check.name);
  value.at("tensor").get_to(check.tensor);
  value.at("steps").get_to(check.steps);
  check.error = number_or_nan(value.at("error"));
  check.worst = number_or_nan(value.at("worst"));
  value.at("bound").get_to(check.bound);
  value.at("passed").get_to(check.passed);
}

static void from_json(const Parsed& value, Block& block) {
  value.at("order").get_to(block.order);
  value.at("steps").get_to(block.steps);
  value.at("device_seconds").get_to(block.device_seconds);
  value.at("wall_seconds").get_to(block.wall_seconds);
  value.at("cpu_seconds").get_to(block.cpu_seconds);
  read_if_known(value, "gpu", block.gpu);
  read_if_known(value, "peer_gpus", block.peer_gpus);
}

static void from_json(const Parsed& value, StepSeconds& step) {
  value.at("median").get_to(step.median);
  value.at("low").get_to(step.low);
  value.at("high").get_to(step.high);
}

static void from_json(const Parsed& value, Verification& verification) {
  value.at("verdict").get_to(verification.verdict);
  value.at("checks").get_to(verification.checks);
  if (value.contains("copies")) value.at("copies").get_to(verification.copies);
}

static void from_json(const Parsed& value, Record& record) {
  value.at("workload").get_to(record.workload);
  value.at("backend").get_to(record.backend);
  value.at("family").get_to(record.family);
  value.at("precision").get_to(record.precision);
  value.at("contract").get_to(record.contract);
  value.at("outcome").get_to(record.outcome);
  value.at("message").get_to(record.message);
  read_if_known(value, "setup_seconds", record.setup_seconds);
  read_if_known(value, "setup_cache", record.setup_cache);
  value.at("blocks").get_to(record.blocks);
  read_if_known(value, "step_seconds", record.step_seconds);
  read_if_known(value, "wall_step_seconds", record.wall_step_seconds);
  read_if_known(value, "cpu_step_seconds", record.cpu_step_seconds);
  read_if_known(value, "fraction_of_floor", record.fraction_of_floor);
  read_if_known(value, "joules_per_step", record.joules_per_step);
  read_if_known(value, "energy", record.energy);
  read_if_known(value, "slowdown_reasons", record.slowdown_reasons);
  read_if_known(value, "peak_device_bytes", record.peak_device_bytes);
  value.at("losses").get_to(record.losses);
  value.at("verification").get_to(record.verification);
}

namespace {

// What no schema can say: names that are there once, and lists that belong together.

void add_workload(Results& results, const WorkloadEntry& entry, const std::string& file) {
  if (results.find_workload(entry.workload.name) != nullptr) {
    throw InputError(fmt::format("{}: workloads[{}].name: {} is there twice", file, results.workloads.size(),
                                 entry.workload.name));
  }
  results.workloads.push_back(entry);
}

void add_record(Results& results, const Record& record, const std::string& file) {
  const std::string where = fmt::format("{}: records[{}]", file, results.records.size());
  if (results.find_workload(record.workload) == nullptr) {
    throw InputError(
        fmt::format("{}.workload: expected the name of one of workloads, found {}", where, record.workload));
  }
  if (results.find(record.workload, record.backend, record.precision) != nullptr) {
    throw InputError(fmt::format("{}: {} {} of {} is there twice", where, record.backend,
                                 to_string(record.precision), record.workload));
  }
  for (std::size_t i = 0; i < record.losses.size(); ++i) {
    const LossCurve& curve = record.losses[i];
    const std::string place = fmt::format("{}.losses[{}]", where, i);
    if (curve.steps.size() != curve.values.size()) {
      throw InputError(fmt::format("{}.values: expected {} values, one for each of steps, found {}", place,
                                   curve.steps.size(), curve.values.size()));
    }
    if (std::adjacent_find(curve.steps.begin(), curve.steps.end(), std::greater_equal<>()) !=
        curve.steps.end())
      throw InputError(fmt::format("{}.steps: expected ascending numbers", place));
  }
  results.records.push_back(record);
}

}  // namespace

Results results_of(Parsed root, const std::string& file) {
  Results results;
  results.version = check_results(root, file);
  root.at("run").get_to(results.run);
  root.at("host").get_to(results.host);
  read_if_known(root, "device", results.device);
  read_if_known(root, "peer_devices", results.peer_devices);
  results.software = read_strings(root.at("software"));
  root.at("calibration").get_to(results.calibration);
  for (const Parsed& workload : root.at("workloads"))
    add_workload(results, workload.get<WorkloadEntry>(), file);
  for (const Parsed& record : root.at("records")) add_record(results, record.get<Record>(), file);
  return results;
}

Results read_results(const std::filesystem::path& file) {
  return results_of(read_json(file, "a results file"), file.string());
}

}  // namespace headroom
