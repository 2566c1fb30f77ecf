// Results as JSON: to_json() of each type, found by the library. It writes null for a number that is not finite.
#include <fmt/core.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/optimizer_numbers.h"
#include "driver/results/optional_json.h"
#include "driver/results/results.h"

namespace headroom {

using json = nlohmann::ordered_json;

static void to_json(json& value, Precision precision) { value = to_string(precision); }
static void to_json(json& value, Contract contract) { value = to_string(contract); }
static void to_json(json& value, Outcome outcome) { value = to_string(outcome); }
static void to_json(json& value, Verdict verdict) { value = to_string(verdict); }
static void to_json(json& value, Family family) { value = to_string(family); }
static void to_json(json& value, SetupCache cache) { value = to_string(cache); }

namespace {

json nonempty_or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

// 7 significant digits: what an fp32 loss has, in a third of the bytes.
double loss_value(double value) { return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr); }

std::string base_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

template <typename T>
json by_precision(const std::map<Precision, T>& values) {
  json all = json::object();
  for (const auto& [precision, value] : values) all[std::string(to_string(precision))] = value;
  return all;
}

}  // namespace

static void to_json(json& value, const ModelSource& model) {
  value = {
      {"file", model.file}, {"name", model.name}, {"sha256", model.sha256}, {"workload", model.workload}};
}

static void to_json(json& value, const RunInfo& run) {
  value = {{"id", run.id},
           {"started_utc", run.started_utc},
           {"finished_utc", run.finished_utc},
           {"argv", run.argv},
           {"suite", run.suite},
           {"git_sha", run.git_sha},
           {"git_dirty", run.git_dirty},
           {"source_digest", run.source_digest},
           {"settings", run.settings},
           {"complete", run.complete}};
  if (run.model) value["model"] = *run.model;
}

static void to_json(json& value, const HostInfo& host) {
  value = {{"cpu", host.cpu},
           {"cores", host.cores},
           {"os", host.os},
           {"kernel", host.kernel},
           {"memory_bytes", host.memory_bytes}};
}

static void to_json(json& value, const DeviceInfo& device) {
  value = {{"name", device.name},
           {"uuid", nonempty_or_null(device.uuid)},
           {"driver", nonempty_or_null(device.driver)},
           {"index", device.index},
           {"sm_count", device.sm_count},
           {"compute_major", device.compute_major},
           {"compute_minor", device.compute_minor},
           {"memory_bytes", device.memory_bytes},
           {"l2_bytes", device.l2_bytes},
           {"ecc_enabled", device.ecc_enabled}};
}

static void to_json(json& value, const CalibratedRate& rate) {
  value = {{"value", rate.value}, {"unit", rate.unit}, {"how", rate.how}};
}

static void to_json(json& value, const Floor& floor) {
  value = {{"seconds", floor.seconds},
           {"bound", floor.bound},
           {"bytes_seconds", floor.bytes_seconds},
           {"operations_seconds", floor.operations_seconds},
           {"exchanges_seconds", floor.exchanges_seconds}};
  if (floor.link_seconds > 0) value["link_seconds"] = floor.link_seconds;
}

static void to_json(json& value, const LadderTerm& term) {
  value = {{"name", term.name},
           {"from", nonempty_or_null(term.from)},
           {"to", nonempty_or_null(term.to)},
           {"seconds", term.seconds},
           {"low", term.low},
           {"high", term.high},
           {"verdict", term.verdict},
           {"message", term.message}};
}

/// The numbers that its kind has.
static void to_json(json& value, const Optimizer& optimizer) {
  value = {{"kind", to_string(optimizer.kind)}};
  for (const std::string_view name : kOptimizerNumbers)
    if (const double* number = optimizer_number(optimizer, name)) value[std::string(name)] = *number;
}

static void to_json(json& value, const Choice::Candidate& candidate) {
  value = {{"backend", candidate.backend},
           {"step_seconds", candidate.step_seconds},
           {"left_out", nonempty_or_null(candidate.left_out)}};
}

static void to_json(json& value, const Choice& choice) {
  value = {{"taken", choice.taken}, {"kept", choice.was_kept}, {"candidates", choice.candidates}};
}

static void to_json(json& value, const WorkloadEntry& entry) {
  const Workload& workload = entry.workload;
  const bool idx = workload.dataset.kind == DatasetSpec::Kind::kIdx;
  value = {{"name", workload.name},
           {"about", nonempty_or_null(entry.about)},
           {"widths", workload.model.widths},
           {"activation", to_string(workload.model.activation)},
           {"loss", to_string(workload.loss)},
           {"batch_size", workload.batch_size},
           {"devices", workload.devices},
           {"optimizer", workload.optimizer},
           {"dataset",
            {{"kind", idx ? "idx" : "synthetic"},
             {"description", entry.dataset.description},
             {"digest", entry.dataset.digest},
             {"samples", entry.dataset.samples},
             {"held_out_samples", entry.dataset.held_out_samples},
             {"batches", entry.dataset.batches},
             {"folder", idx ? json(base_name(workload.dataset.folder)) : json(nullptr)}}},
           {"seed", workload.seed},
           {"parameters", workload.parameter_count()},
           {"flops_per_step", workload.flops_per_step()},
           {"floors", by_precision(entry.floors)},
           {"ladders", by_precision(entry.ladders)},
           {"choices", by_precision(entry.choices)}};
}

static void to_json(json& value, const GpuState& state) {
  value = {{"samples", state.samples},
           {"sm_clock_megahertz", state.sm_clock_megahertz},
           {"memory_clock_megahertz", state.memory_clock_megahertz},
           {"power_watts", state.power_watts},
           {"temperature_celsius", state.temperature_celsius},
           {"throttle_reasons", state.throttle_reasons},
           {"uncorrected_ecc_errors", state.uncorrected_ecc_errors},
           {"other_processes", state.other_processes}};
}

static void to_json(json& value, const Energy& energy) {
  value = {{"steps", energy.steps},
           {"seconds", energy.seconds},
           {"joules", energy.joules},
           {"idle_watts", energy.idle_watts}};
}

static void to_json(json& value, const LossCurve& curve) {
  json values = json::array();
  for (const float loss : curve.values) values.push_back(loss_value(loss));
  value = {{"seed", curve.seed},
           {"steps", curve.steps},
           {"values", std::move(values)},
           {"last_mean", loss_value(curve.last_mean)},
           {"held_out_accuracy", curve.held_out_accuracy},
           {"held_out_r_squared", curve.held_out_r_squared}};
}

static void to_json(json& value, const Check& check) {
  value = {{"name", check.name},   {"tensor", check.tensor}, {"steps", check.steps},  {"error", check.error},
           {"worst", check.worst}, {"bound", check.bound},   {"passed", check.passed}};
}

static void to_json(json& value, const Block& block) {
  value = {{"order", block.order},
           {"steps", block.steps},
           {"device_seconds", block.device_seconds},
           {"wall_seconds", block.wall_seconds},
           {"cpu_seconds", block.cpu_seconds},
           {"gpu", block.gpu}};
  if (!block.peer_gpus.empty()) value["peer_gpus"] = block.peer_gpus;
}

static void to_json(json& value, const StepSeconds& step) {
  value = {{"median", step.median}, {"low", step.low}, {"high", step.high}};
}

static void to_json(json& value, const Verification& verification) {
  value = {
      {"verdict", verification.verdict}, {"checks", verification.checks}, {"copies", verification.copies}};
}

static void to_json(json& value, const Record& record) {
  value = {{"workload", record.workload},
           {"backend", record.backend},
           {"family", record.family},
           {"precision", record.precision},
           {"contract", record.contract},
           {"outcome", record.outcome},
           {"message", record.message},
           {"setup_seconds", record.setup_seconds},
           {"setup_cache", record.setup_cache},
           {"blocks", record.blocks},
           {"step_seconds", record.step_seconds},
           {"wall_step_seconds", record.wall_step_seconds},
           {"cpu_step_seconds", record.cpu_step_seconds},
           {"fraction_of_floor", record.fraction_of_floor},
           {"joules_per_step", record.joules_per_step},
           {"energy", record.energy},
           {"slowdown_reasons", record.slowdown_reasons},
           {"peak_device_bytes", record.peak_device_bytes},
           {"losses", record.losses},
           {"verification", record.verification}};
}

std::string to_json(const Results& results) {
  json file = {{"schema_version", kResultsVersion},
               {"run", results.run},
               {"host", results.host},
               {"device", results.device},
               {"software", results.software},
               {"calibration", results.calibration},
               {"workloads", results.workloads},
               {"records", results.records}};
  if (!results.peer_devices.empty()) file["peer_devices"] = results.peer_devices;
  return file.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace headroom
