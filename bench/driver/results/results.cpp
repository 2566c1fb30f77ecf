#include "driver/results/results.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/error.h"
#include "driver/results/results_schema.h"
#include "driver/system/json_file.h"

namespace headroom {
namespace {

using json = nlohmann::ordered_json;

json finite_or_null(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

template <typename T>
json or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  if constexpr (std::is_same_v<T, double>) return finite_or_null(*value);
  return *value;
}

json nonempty_or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

// 7 significant digits: what an fp32 loss has, in a third of the bytes.
json loss_value(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

json write(const RunInfo& run) {
  return {{"id", run.id},
          {"started_utc", run.started_utc},
          {"finished_utc", or_null(run.finished_utc)},
          {"argv", run.argv},
          {"suite", or_null(run.suite)},
          {"git_sha", or_null(run.git_sha)},
          {"git_dirty", or_null(run.git_dirty)},
          {"source_digest", or_null(run.source_digest)},
          {"settings", json(run.settings)},
          {"complete", run.complete}};
}

json write(const HostInfo& host) {
  return {{"cpu", or_null(host.cpu)},
          {"cores", or_null(host.cores)},
          {"os", or_null(host.os)},
          {"kernel", or_null(host.kernel)},
          {"memory_bytes", or_null(host.memory_bytes)}};
}

json write(const DeviceInfo& device) {
  return {{"name", device.name},
          {"uuid", nonempty_or_null(device.uuid)},
          {"driver", nonempty_or_null(device.driver)},
          {"index", device.index},
          {"sm_count", device.sm_count},
          {"compute_major", device.compute_major},
          {"compute_minor", device.compute_minor},
          {"memory_bytes", device.memory_bytes},
          {"l2_bytes", device.l2_bytes},
          {"ecc_enabled", or_null(device.ecc_enabled)}};
}

std::string base_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

json write(const Calibration& calibration) {
  json rates = json::object();
  for (const auto& [name, rate] : calibration)
    rates[name] = {{"value", rate.value}, {"unit", rate.unit}, {"how", rate.how}};
  return rates;
}

json write(const std::map<Precision, Floor>& floors) {
  json all = json::object();
  for (const auto& [precision, floor] : floors) {
    all[std::string(to_string(precision))] = {{"seconds", floor.seconds},
                                              {"bound", floor.bound},
                                              {"bytes_seconds", floor.bytes_seconds},
                                              {"operations_seconds", floor.operations_seconds},
                                              {"exchanges_seconds", floor.exchanges_seconds}};
  }
  return all;
}

json write(const std::map<Precision, Ladder>& ladders) {
  json all = json::object();
  for (const auto& [precision, ladder] : ladders) {
    json& terms = all[std::string(to_string(precision))] = json::array();
    for (const LadderTerm& term : ladder) {
      terms.push_back({{"name", term.name},
                       {"from", nonempty_or_null(term.from)},
                       {"to", nonempty_or_null(term.to)},
                       {"seconds", or_null(term.seconds)},
                       {"low", or_null(term.low)},
                       {"high", or_null(term.high)},
                       {"verdict", term.verdict},
                       {"message", term.message}});
    }
  }
  return all;
}

json write(const WorkloadEntry& entry) {
  const Workload& workload = entry.workload;
  const bool idx = workload.dataset.kind == DatasetSpec::Kind::kIdx;
  return {{"name", workload.name},
          {"widths", workload.model.widths},
          {"batch_size", workload.batch_size},
          {"optimizer", {{"kind", "sgd"}, {"learning_rate", workload.optimizer.learning_rate}}},
          {"dataset",
           {{"kind", idx ? "idx" : "synthetic"},
            {"description", entry.dataset.description},
            {"digest", or_null(entry.dataset.digest)},
            {"samples", or_null(entry.dataset.samples)},
            {"held_out_samples", or_null(entry.dataset.held_out_samples)},
            {"batches", or_null(entry.dataset.batches)},
            {"folder", idx ? json(base_name(workload.dataset.folder)) : json(nullptr)}}},
          {"seed", workload.seed},
          {"parameters", workload.parameter_count()},
          {"flops_per_step", workload.flops_per_step()},
          {"floors", write(entry.floors)},
          {"ladders", write(entry.ladders)}};
}

json write(const GpuState& state) {
  return {{"samples", state.samples},
          {"sm_clock_megahertz", or_null(state.sm_clock_megahertz)},
          {"memory_clock_megahertz", or_null(state.memory_clock_megahertz)},
          {"power_watts", or_null(state.power_watts)},
          {"temperature_celsius", or_null(state.temperature_celsius)},
          {"throttle_reasons", or_null(state.throttle_reasons)},
          {"uncorrected_ecc_errors", or_null(state.uncorrected_ecc_errors)},
          {"other_processes", or_null(state.other_processes)}};
}

json write(const Energy& energy) {
  return {{"steps", energy.steps},
          {"seconds", energy.seconds},
          {"joules", energy.joules},
          {"idle_watts", or_null(energy.idle_watts)}};
}

json write(const LossCurve& curve) {
  json values = json::array();
  for (const float value : curve.values) values.push_back(loss_value(value));
  return {{"seed", curve.seed},
          {"steps", curve.steps},
          {"values", values},
          {"last_mean", loss_value(curve.last_mean)},
          {"held_out_accuracy", or_null(curve.held_out_accuracy)}};
}

json write(const Check& check) {
  return {{"name", check.name},
          {"tensor", check.tensor},
          {"steps", check.steps},
          {"error", finite_or_null(check.error)},
          {"worst", finite_or_null(check.worst)},
          {"bound", check.bound},
          {"passed", check.passed}};
}

json write(const Record& record) {
  json blocks = json::array(), losses = json::array(), checks = json::array();
  for (const Block& block : record.blocks) {
    blocks.push_back({{"order", block.order},
                      {"steps", block.steps},
                      {"device_seconds", block.device_seconds},
                      {"wall_seconds", block.wall_seconds},
                      {"cpu_seconds", block.cpu_seconds},
                      {"gpu", block.gpu ? write(*block.gpu) : json(nullptr)}});
  }
  for (const LossCurve& curve : record.losses) losses.push_back(write(curve));
  for (const Check& check : record.verification.checks) checks.push_back(write(check));
  json step = nullptr;
  if (record.step_seconds) {
    step = {{"median", record.step_seconds->median},
            {"low", record.step_seconds->low},
            {"high", record.step_seconds->high}};
  }
  return {{"workload", record.workload},
          {"backend", record.backend},
          {"precision", to_string(record.precision)},
          {"contract", to_string(record.contract)},
          {"outcome", to_string(record.outcome)},
          {"message", record.message},
          {"setup_seconds", or_null(record.setup_seconds)},
          {"setup_cache", record.setup_cache ? json(to_string(*record.setup_cache)) : json(nullptr)},
          {"blocks", blocks},
          {"step_seconds", step},
          {"wall_step_seconds", or_null(record.wall_step_seconds)},
          {"cpu_step_seconds", or_null(record.cpu_step_seconds)},
          {"fraction_of_floor", or_null(record.fraction_of_floor)},
          {"joules_per_step", or_null(record.joules_per_step)},
          {"energy", record.energy ? write(*record.energy) : json(nullptr)},
          {"slowdown_reasons", or_null(record.slowdown_reasons)},
          {"peak_device_bytes", or_null(record.peak_device_bytes)},
          {"losses", losses},
          {"verification", {{"verdict", to_string(record.verification.verdict)}, {"checks", checks}}}};
}

// Reading. What is read here has passed the schema, so it has the types and the fields that it should have.

using Parsed = nlohmann::json;

bool known(const Parsed& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// A field that may be null, or missing in files of earlier versions of this program.
template <typename T>
std::optional<T> optional(const Parsed& object, const char* key) {
  return known(object, key) ? std::optional(object[key].get<T>()) : std::nullopt;
}

double number_or_nan(const Parsed& value) { return value.is_null() ? std::nan("") : value.get<double>(); }

template <typename T>
T one_of(const Parsed& name, std::initializer_list<T> values) {
  for (const T value : values) {
    if (name == to_string(value)) return value;
  }
  throw std::logic_error(fmt::format("{} is in results/schema.json and not in the program", name.dump()));
}

std::map<std::string, std::string> read_strings(const Parsed& object) {
  std::map<std::string, std::string> strings;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) strings[key] = value;
  }
  return strings;
}

RunInfo read_run(const Parsed& run) {
  return {.id = run["id"],
          .started_utc = run["started_utc"],
          .finished_utc = optional<std::string>(run, "finished_utc"),
          .argv = run["argv"],
          .suite = optional<std::string>(run, "suite"),
          .git_sha = optional<std::string>(run, "git_sha"),
          .git_dirty = optional<bool>(run, "git_dirty"),
          .source_digest = optional<std::string>(run, "source_digest"),
          .settings = read_strings(run["settings"]),
          .complete = run["complete"]};
}

HostInfo read_host(const Parsed& host) {
  return {.cpu = optional<std::string>(host, "cpu"),
          .os = optional<std::string>(host, "os"),
          .kernel = optional<std::string>(host, "kernel"),
          .cores = optional<std::int64_t>(host, "cores"),
          .memory_bytes = optional<std::int64_t>(host, "memory_bytes")};
}

DeviceInfo read_device(const Parsed& device) {
  DeviceInfo read;
  read.name = device["name"];
  read.uuid = optional<std::string>(device, "uuid").value_or("");
  read.driver = optional<std::string>(device, "driver").value_or("");
  read.index = device["index"];
  read.sm_count = device["sm_count"];
  read.compute_major = device["compute_major"];
  read.compute_minor = device["compute_minor"];
  read.memory_bytes = device["memory_bytes"];
  read.l2_bytes = device["l2_bytes"];
  read.ecc_enabled = optional<bool>(device, "ecc_enabled");
  return read;
}

Ladder read_ladder(const Parsed& terms) {
  Ladder ladder;
  for (const Parsed& term : terms) {
    ladder.push_back({term["name"], optional<std::string>(term, "from").value_or(""),
                      optional<std::string>(term, "to").value_or(""), optional<double>(term, "seconds"),
                      optional<double>(term, "low"), optional<double>(term, "high"), term["verdict"],
                      term["message"]});
  }
  return ladder;
}

WorkloadEntry read_workload(const Parsed& workload) {
  WorkloadEntry entry;
  entry.workload.name = workload["name"];
  entry.workload.model.widths = workload["widths"].get<std::vector<int>>();
  entry.workload.batch_size = workload["batch_size"];
  entry.workload.optimizer.learning_rate = workload["optimizer"]["learning_rate"];
  entry.workload.seed = workload["seed"];
  const Parsed& dataset = workload["dataset"];
  if (dataset["kind"] == "idx") entry.workload.dataset = {DatasetSpec::Kind::kIdx, dataset["folder"]};
  entry.dataset = {dataset["description"], optional<std::string>(dataset, "digest"),
                   optional<std::int64_t>(dataset, "samples"),
                   optional<std::int64_t>(dataset, "held_out_samples"),
                   optional<std::int64_t>(dataset, "batches")};
  for (const auto& [precision, floor] : workload["floors"].items()) {
    Floor& read = entry.floors[parse_precision(precision)];
    read.seconds = floor["seconds"];
    read.bound = floor["bound"];
    read.bytes_seconds = floor["bytes_seconds"];
    read.operations_seconds = floor["operations_seconds"];
    read.exchanges_seconds = floor["exchanges_seconds"];
  }
  if (known(workload, "ladders")) {
    for (const auto& [precision, ladder] : workload["ladders"].items())
      entry.ladders[parse_precision(precision)] = read_ladder(ladder);
  }
  return entry;
}

GpuState read_gpu_state(const Parsed& gpu) {
  GpuState state;
  state.samples = gpu["samples"];
  state.sm_clock_megahertz = optional<double>(gpu, "sm_clock_megahertz");
  state.memory_clock_megahertz = optional<double>(gpu, "memory_clock_megahertz");
  state.power_watts = optional<double>(gpu, "power_watts");
  state.temperature_celsius = optional<double>(gpu, "temperature_celsius");
  state.throttle_reasons = optional<std::vector<std::string>>(gpu, "throttle_reasons");
  state.uncorrected_ecc_errors = optional<std::int64_t>(gpu, "uncorrected_ecc_errors");
  state.other_processes = optional<std::int64_t>(gpu, "other_processes");
  return state;
}

LossCurve read_curve(const Parsed& curve) {
  LossCurve read;
  read.seed = curve["seed"];
  read.steps = curve["steps"].get<std::vector<std::int64_t>>();
  for (const Parsed& value : curve["values"]) read.values.push_back(static_cast<float>(number_or_nan(value)));
  read.last_mean = number_or_nan(curve["last_mean"]);
  read.held_out_accuracy = optional<double>(curve, "held_out_accuracy");
  return read;
}

Check read_check(const Parsed& check) {
  Check read;
  read.name = check["name"];
  read.tensor = check["tensor"];
  read.steps = check["steps"].get<std::vector<std::int64_t>>();
  read.error = number_or_nan(check["error"]);
  read.worst = number_or_nan(check["worst"]);
  read.bound = check["bound"];
  read.passed = check["passed"];
  return read;
}

Record read_record(const Parsed& record) {
  Record read;
  read.workload = record["workload"];
  read.backend = record["backend"];
  read.precision = parse_precision(record["precision"].get<std::string>());
  read.contract = one_of(record["contract"], {Contract::kExact, Contract::kAutocast, Contract::kLibrary});
  read.outcome = one_of(record["outcome"], {Outcome::kOk, Outcome::kSkipped, Outcome::kFailed});
  read.message = record["message"];
  read.setup_seconds = optional<double>(record, "setup_seconds");
  if (known(record, "setup_cache"))
    read.setup_cache = one_of(record["setup_cache"], {SetupCache::kCold, SetupCache::kWarm});
  for (const Parsed& block : record["blocks"]) {
    read.blocks.push_back({block["order"], block["steps"], block["device_seconds"], block["wall_seconds"],
                           block["cpu_seconds"]});
    if (known(block, "gpu")) read.blocks.back().gpu = read_gpu_state(block["gpu"]);
  }
  if (known(record, "step_seconds")) {
    const Parsed& step = record["step_seconds"];
    read.step_seconds = StepSeconds{step["median"], step["low"], step["high"]};
  }
  read.wall_step_seconds = optional<double>(record, "wall_step_seconds");
  read.cpu_step_seconds = optional<double>(record, "cpu_step_seconds");
  read.fraction_of_floor = optional<double>(record, "fraction_of_floor");
  read.joules_per_step = optional<double>(record, "joules_per_step");
  if (known(record, "energy")) {
    const Parsed& energy = record["energy"];
    read.energy =
        Energy{energy["steps"], energy["seconds"], energy["joules"], optional<double>(energy, "idle_watts")};
  }
  read.slowdown_reasons = optional<std::vector<std::string>>(record, "slowdown_reasons");
  read.peak_device_bytes = optional<std::int64_t>(record, "peak_device_bytes");
  for (const Parsed& curve : record["losses"]) read.losses.push_back(read_curve(curve));
  const Parsed& verification = record["verification"];
  read.verification.verdict =
      one_of(verification["verdict"], {Verdict::kPass, Verdict::kFail, Verdict::kNotRun});
  for (const Parsed& check : verification["checks"]) read.verification.checks.push_back(read_check(check));
  return read;
}

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

const Record* Results::find(const std::string& workload, const std::string& backend,
                            Precision precision) const {
  for (const Record& record : records) {
    if (record.workload == workload && record.backend == backend && record.precision == precision)
      return &record;
  }
  return nullptr;
}

const WorkloadEntry* Results::find_workload(const std::string& name) const {
  const auto found = std::find_if(workloads.begin(), workloads.end(),
                                  [&](const WorkloadEntry& entry) { return entry.workload.name == name; });
  return found == workloads.end() ? nullptr : &*found;
}

WorkloadEntry* Results::find_workload(const std::string& name) {
  return const_cast<WorkloadEntry*>(std::as_const(*this).find_workload(name));
}

std::string to_json(const Results& results) {
  json workloads = json::array(), records = json::array();
  for (const WorkloadEntry& entry : results.workloads) workloads.push_back(write(entry));
  for (const Record& record : results.records) records.push_back(write(record));
  const json file = {{"schema_version", 1},
                     {"run", write(results.run)},
                     {"host", write(results.host)},
                     {"device", results.device ? write(*results.device) : json(nullptr)},
                     {"software", json(results.software)},
                     {"calibration", write(results.calibration)},
                     {"workloads", workloads},
                     {"records", records}};
  return file.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

Results read_results(const std::filesystem::path& file) {
  Parsed document = read_json(file, "a results file");
  check_results(document, file.string());
  const Parsed& root = document;
  Results results;
  results.run = read_run(root["run"]);
  results.host = read_host(root["host"]);
  if (known(root, "device")) results.device = read_device(root["device"]);
  results.software = read_strings(root["software"]);
  for (const auto& [name, rate] : root["calibration"].items())
    results.calibration[name] = {rate["value"], rate["unit"], rate["how"]};
  for (const Parsed& workload : root["workloads"])
    add_workload(results, read_workload(workload), file.string());
  for (const Parsed& record : root["records"]) add_record(results, read_record(record), file.string());
  return results;
}

}  // namespace headroom
