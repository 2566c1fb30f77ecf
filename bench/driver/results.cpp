#include "driver/results.h"

#include <fmt/core.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "core/error.h"

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
          {"widths", workload.widths},
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

// One value of a results file and where it stands, for complaints.
class Node {
 public:
  Node(const json& value, std::string where) : value_(value), where_(std::move(where)) {}

  Node at(const std::string& key) const {
    if (!value_.is_object()) fail("an object");
    const auto found = value_.find(key);
    const std::string where = where_.ends_with(": ") ? where_ + key : where_ + "." + key;
    if (found == value_.end()) throw InputError(fmt::format("{}: is missing", where));
    return {*found, where};
  }
  bool null() const { return value_.is_null(); }
  /// A field that files of earlier versions of this program lack; null too.
  std::optional<Node> later(const std::string& key) const {
    if (!value_.is_object()) fail("an object");
    const auto found = value_.find(key);
    return found == value_.end() || found->is_null() ? std::nullopt : std::optional(at(key));
  }
  std::vector<Node> items() const {
    if (!value_.is_array()) fail("a list");
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < value_.size(); ++i)
      nodes.emplace_back(value_[i], fmt::format("{}[{}]", where_, i));
    return nodes;
  }
  std::map<std::string, Node> members() const {
    if (!value_.is_object()) fail("an object");
    std::map<std::string, Node> all;
    for (const auto& [key, value] : value_.items()) all.emplace(key, Node(value, where_ + "." + key));
    return all;
  }
  std::map<std::string, std::string> strings() const {
    if (!value_.is_object()) fail("an object");
    std::map<std::string, std::string> all;
    for (const auto& [key, value] : value_.items()) {
      if (value.is_null()) continue;
      all[key] = Node(value, where_ + "." + key).string();
    }
    return all;
  }
  std::string string() const {
    if (!value_.is_string()) fail("a string");
    return value_.get<std::string>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("true or false");
    return value_.get<bool>();
  }
  double number() const {
    if (!value_.is_number()) fail("a number");
    return value_.get<double>();
  }
  std::int64_t integer() const {
    if (!value_.is_number_integer()) fail("a whole number");
    return value_.get<std::int64_t>();
  }
  std::uint64_t unsigned_integer() const {
    if (!value_.is_number_unsigned()) fail("a whole number from 0");
    return value_.get<std::uint64_t>();
  }
  double number_or_nan() const { return null() ? std::nan("") : number(); }
  std::optional<std::string> optional_string() const {
    return null() ? std::nullopt : std::optional(string());
  }
  std::optional<double> optional_number() const { return null() ? std::nullopt : std::optional(number()); }
  std::optional<std::int64_t> optional_integer() const {
    return null() ? std::nullopt : std::optional(integer());
  }

  template <typename T, typename Convert>
  T one_of(const std::initializer_list<T>& values, const Convert& text_of) const {
    for (const T value : values) {
      if (string() == text_of(value)) return value;
    }
    std::string expected;
    for (const T value : values) expected += (expected.empty() ? "" : ", ") + std::string(text_of(value));
    fail("one of " + expected);
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    const std::string text = value_.dump(-1, ' ', true, json::error_handler_t::replace);
    const std::string where = where_.ends_with(": ") ? where_.substr(0, where_.size() - 2) : where_;
    throw InputError(fmt::format("{}: expected {}, found {}", where, expected,
                                 text.size() <= 40 ? text : text.substr(0, 37) + "..."));
  }
  const json& value_;
  std::string where_;
};

std::vector<std::string> read_strings(const Node& node) {
  std::vector<std::string> strings;
  for (const Node& item : node.items()) strings.push_back(item.string());
  return strings;
}

RunInfo read_run(const Node& node) {
  RunInfo run;
  run.id = node.at("id").string();
  run.started_utc = node.at("started_utc").string();
  run.finished_utc = node.at("finished_utc").optional_string();
  run.argv = read_strings(node.at("argv"));
  run.suite = node.at("suite").optional_string();
  run.git_sha = node.at("git_sha").optional_string();
  if (!node.at("git_dirty").null()) run.git_dirty = node.at("git_dirty").boolean();
  run.source_digest = node.at("source_digest").optional_string();
  run.settings = node.at("settings").strings();
  run.complete = node.at("complete").boolean();
  return run;
}

HostInfo read_host(const Node& node) {
  HostInfo host;
  host.cpu = node.at("cpu").optional_string();
  host.cores = node.at("cores").optional_integer();
  host.os = node.at("os").optional_string();
  host.kernel = node.at("kernel").optional_string();
  host.memory_bytes = node.at("memory_bytes").optional_integer();
  return host;
}

DeviceInfo read_device(const Node& node) {
  DeviceInfo device;
  device.name = node.at("name").string();
  device.uuid = node.at("uuid").optional_string().value_or("");
  device.driver = node.at("driver").optional_string().value_or("");
  device.index = static_cast<int>(node.at("index").integer());
  device.sm_count = static_cast<int>(node.at("sm_count").integer());
  device.compute_major = static_cast<int>(node.at("compute_major").integer());
  device.compute_minor = static_cast<int>(node.at("compute_minor").integer());
  device.memory_bytes = node.at("memory_bytes").integer();
  device.l2_bytes = node.at("l2_bytes").integer();
  if (const auto ecc = node.later("ecc_enabled")) device.ecc_enabled = ecc->boolean();
  return device;
}

Ladder read_ladder(const Node& node) {
  Ladder ladder;
  for (const Node& term : node.items()) {
    ladder.push_back({term.at("name").string(), term.at("from").optional_string().value_or(""),
                      term.at("to").optional_string().value_or(""), term.at("seconds").optional_number(),
                      term.at("low").optional_number(), term.at("high").optional_number(),
                      term.at("verdict").string(), term.at("message").string()});
  }
  return ladder;
}

WorkloadEntry read_workload(const Node& node) {
  WorkloadEntry entry;
  Workload& workload = entry.workload;
  workload.name = node.at("name").string();
  for (const Node& width : node.at("widths").items())
    workload.widths.push_back(static_cast<int>(width.integer()));
  workload.batch_size = static_cast<int>(node.at("batch_size").integer());
  workload.optimizer.learning_rate = node.at("optimizer").at("learning_rate").number();
  workload.seed = node.at("seed").unsigned_integer();
  validate(workload);
  const Node dataset = node.at("dataset");
  if (dataset.at("kind").string() == "idx") {
    workload.dataset = {DatasetSpec::Kind::kIdx, dataset.at("folder").string()};
  }
  entry.dataset.description = dataset.at("description").string();
  entry.dataset.digest = dataset.at("digest").optional_string();
  entry.dataset.samples = dataset.at("samples").optional_integer();
  entry.dataset.held_out_samples = dataset.at("held_out_samples").optional_integer();
  entry.dataset.batches = dataset.at("batches").optional_integer();
  for (const auto& [precision, floor] : node.at("floors").members()) {
    Floor& read = entry.floors[parse_precision(precision)];
    read.seconds = floor.at("seconds").number();
    read.bound = floor.at("bound").string();
    read.bytes_seconds = floor.at("bytes_seconds").number();
    read.operations_seconds = floor.at("operations_seconds").number();
    read.exchanges_seconds = floor.at("exchanges_seconds").number();
  }
  if (const auto ladders = node.later("ladders")) {
    for (const auto& [precision, ladder] : ladders->members())
      entry.ladders[parse_precision(precision)] = read_ladder(ladder);
  }
  return entry;
}

GpuState read_gpu_state(const Node& node) {
  GpuState state;
  state.samples = node.at("samples").integer();
  state.sm_clock_megahertz = node.at("sm_clock_megahertz").optional_number();
  state.memory_clock_megahertz = node.at("memory_clock_megahertz").optional_number();
  state.power_watts = node.at("power_watts").optional_number();
  state.temperature_celsius = node.at("temperature_celsius").optional_number();
  if (const auto reasons = node.later("throttle_reasons")) state.throttle_reasons = read_strings(*reasons);
  state.uncorrected_ecc_errors = node.at("uncorrected_ecc_errors").optional_integer();
  state.other_processes = node.at("other_processes").optional_integer();
  return state;
}

Energy read_energy(const Node& node) {
  return {node.at("steps").integer(), node.at("seconds").number(), node.at("joules").number(),
          node.at("idle_watts").optional_number()};
}

LossCurve read_curve(const Node& node) {
  LossCurve curve;
  curve.seed = node.at("seed").unsigned_integer();
  for (const Node& step : node.at("steps").items()) curve.steps.push_back(step.integer());
  for (const Node& value : node.at("values").items())
    curve.values.push_back(static_cast<float>(value.number_or_nan()));
  curve.last_mean = node.at("last_mean").number_or_nan();
  curve.held_out_accuracy = node.at("held_out_accuracy").optional_number();
  return curve;
}

Check read_check(const Node& node) {
  Check check;
  check.name = node.at("name").string();
  check.tensor = node.at("tensor").string();
  for (const Node& step : node.at("steps").items()) check.steps.push_back(step.integer());
  check.error = node.at("error").number_or_nan();
  check.worst = node.at("worst").number_or_nan();
  check.bound = node.at("bound").number();
  check.passed = node.at("passed").boolean();
  return check;
}

Record read_record(const Node& node) {
  Record record;
  record.workload = node.at("workload").string();
  record.backend = node.at("backend").string();
  const auto text = [](auto value) { return to_string(value); };
  record.precision =
      node.at("precision")
          .one_of({Precision::kFp32, Precision::kTf32, Precision::kFp16, Precision::kBf16}, text);
  record.contract =
      node.at("contract").one_of({Contract::kExact, Contract::kAutocast, Contract::kLibrary}, text);
  record.outcome = node.at("outcome").one_of({Outcome::kOk, Outcome::kSkipped, Outcome::kFailed}, text);
  record.message = node.at("message").string();
  record.setup_seconds = node.at("setup_seconds").optional_number();
  if (const auto cache = node.later("setup_cache"))
    record.setup_cache = cache->one_of({SetupCache::kCold, SetupCache::kWarm}, text);
  for (const Node& block : node.at("blocks").items()) {
    record.blocks.push_back({block.at("order").integer(), block.at("steps").integer(),
                             block.at("device_seconds").number(), block.at("wall_seconds").number(),
                             block.at("cpu_seconds").number()});
    if (const auto gpu = block.later("gpu")) record.blocks.back().gpu = read_gpu_state(*gpu);
  }
  if (const Node step = node.at("step_seconds"); !step.null()) {
    record.step_seconds =
        StepSeconds{step.at("median").number(), step.at("low").number(), step.at("high").number()};
  }
  record.wall_step_seconds = node.at("wall_step_seconds").optional_number();
  record.cpu_step_seconds = node.at("cpu_step_seconds").optional_number();
  record.fraction_of_floor = node.at("fraction_of_floor").optional_number();
  record.joules_per_step = node.at("joules_per_step").optional_number();
  if (const auto energy = node.later("energy")) record.energy = read_energy(*energy);
  if (const auto reasons = node.later("slowdown_reasons")) record.slowdown_reasons = read_strings(*reasons);
  record.peak_device_bytes = node.at("peak_device_bytes").optional_integer();
  for (const Node& curve : node.at("losses").items()) record.losses.push_back(read_curve(curve));
  const Node verification = node.at("verification");
  record.verification.verdict =
      verification.at("verdict").one_of({Verdict::kPass, Verdict::kFail, Verdict::kNotRun}, text);
  for (const Node& check : verification.at("checks").items())
    record.verification.checks.push_back(read_check(check));
  return record;
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
  std::ifstream stream(file);
  std::ostringstream text;
  if (!stream || std::filesystem::is_directory(file) || !(text << stream.rdbuf())) {
    throw InputError(fmt::format("{}: cannot be read", file.string()));
  }
  const json parsed = json::parse(text.str(), nullptr, false);
  if (parsed.is_discarded())
    throw InputError(fmt::format("{}: expected a results file, found no JSON", file.string()));
  const Node root(parsed, file.string() + ": ");
  if (root.at("schema_version").integer() != 1) {
    throw InputError(fmt::format("{}: schema_version: expected 1, found {}", file.string(),
                                 root.at("schema_version").integer()));
  }
  Results results;
  results.run = read_run(root.at("run"));
  results.host = read_host(root.at("host"));
  if (!root.at("device").null()) results.device = read_device(root.at("device"));
  results.software = root.at("software").strings();
  for (const auto& [name, rate] : root.at("calibration").members()) {
    results.calibration[name] = {rate.at("value").number(), rate.at("unit").string(),
                                 rate.at("how").string()};
  }
  for (const Node& node : root.at("workloads").items()) results.workloads.push_back(read_workload(node));
  for (const Node& node : root.at("records").items()) {
    const Record record = read_record(node);
    if (results.find(record.workload, record.backend, record.precision) != nullptr) {
      throw InputError(fmt::format("{}: records[{}]: {} {} of {} is there twice", file.string(),
                                   results.records.size(), record.backend, to_string(record.precision),
                                   record.workload));
    }
    results.records.push_back(record);
  }
  return results;
}

}  // namespace headroom
