#include "worker/messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/names.h"

namespace headroom {
namespace {

using Json = nlohmann::json;

// What results/schema.json allows, so that no worker can make a results file that is refused later.
constexpr std::int64_t kLargest = (std::int64_t{1} << 53) - 1;
constexpr double kLargestNumber = 1e300;
constexpr double kMostSeconds = 1e12;
constexpr int kMostDepth = 64;       // brackets in brackets; what handles the values afterwards recurses
constexpr std::size_t kQuoted = 80;  // bytes of a wrong line or value that a message shows

template <typename... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <typename... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false,
                   Json::error_handler_t::replace);  // never throws on bytes that are not UTF-8
}

/// One JSON object under scrutiny; `path` is where it is, for messages.
class Fields {
 public:
  Fields(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) fail(path_, "an object", json);
  }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw MessageError(where(key) + ": missing");
    return *found;
  }
  bool has(const char* key) const { return json_.contains(key); }
  /// Throws MessageError for a field that is none of `keys`.
  void expect_only(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : json_.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        throw MessageError(where(one_line(key, kQuoted)) + ": not a field of this version of the protocol");
  }
  bool is_null(const char* key) const { return at(key).is_null(); }
  /// Of a field that a worker may leave out.
  bool has_value(const char* key) const { return json_.contains(key) && !is_null(key); }
  Fields object(const char* key) const { return Fields(at(key), where(key)); }
  const Json& array(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(where(key), "an array", value);
    return value;
  }
  std::string text(const char* key) const { return text(at(key), where(key)); }
  std::string name(const char* key) const {
    std::string value = text(key);
    if (value.empty()) throw MessageError(where(key) + ": expected a name, found an empty text");
    return value;
  }
  /// What somebody else has called a workload, a backend or a worker.
  std::string checked_name(const char* key) const {
    const std::string value = text(key);
    if (!is_name(value)) fail(where(key), kNameRule, value);
    return value;
  }
  /// A text that ends up in front of a reader.
  std::string shown_text(const char* key) const { return one_line(text(key)); }
  bool boolean(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) fail(where(key), "true or false", value);
    return value.get<bool>();
  }
  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most = kLargest) const {
    return integer(at(key), where(key), least, most);
  }
  std::uint64_t seed(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned()) fail(where(key), "a whole number from 0", value);
    return value.get<std::uint64_t>();
  }
  double number(const char* key, double least, double most = kLargestNumber) const {
    return number(at(key), where(key), least, most);
  }
  Precision precision(const char* key) const { return precision(text(key), where(key)); }
  std::string where(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  static std::string text(const Json& value, const std::string& where) {
    if (!value.is_string()) fail(where, "a text", value);
    return value.get<std::string>();
  }
  static std::int64_t integer(const Json& value, const std::string& where, std::int64_t least,
                              std::int64_t most) {
    const bool whole = value.is_number_unsigned()
                           ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargest)
                           : value.is_number_integer();
    if (!whole || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      const std::string range = most == kLargest ? " or more" : " to " + std::to_string(most);
      fail(where, "a whole number, " + std::to_string(least) + range, value);
    }
    return value.get<std::int64_t>();
  }
  static double number(const Json& value, const std::string& where, double least,
                       double most = kLargestNumber) {
    if (!value.is_number()) fail(where, "a number", value);
    const double number = value.get<double>();
    if (!std::isfinite(number) || !(number >= least)) fail(where, "a finite number, not negative", value);
    if (number > most) throw MessageError(where + ": " + dump(value) + " is out of range");
    return number;
  }
  static Precision precision(const std::string& name, const std::string& where) {
    for (const Precision precision : kAllPrecisions) {
      if (to_string(precision) == name) return precision;
    }
    fail(where, "fp32, tf32, fp16 or bf16", name);
  }

  [[noreturn]] static void fail(const std::string& where, const std::string& expected, const Json& found) {
    throw MessageError(where + ": expected " + expected + ", found " + one_line(dump(found), kQuoted));
  }

 private:
  const Json& json_;
  std::string path_;
};

Json parse(std::string_view line) {
  if (line.size() > kLongestLine)
    throw MessageError("a line of more than " + std::to_string(kLongestLine) + " bytes");
  const Json::parser_callback_t watch = [](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMostDepth)
      throw MessageError("a line with brackets more than " + std::to_string(kMostDepth) + " deep");
    return true;
  };
  try {
    return Json::parse(line, watch);
  } catch (const Json::exception&) {  // its own text speaks of tokens and bytes; the line itself says more
    throw MessageError("not JSON: '" + one_line(line, kQuoted) + "'");
  }
}

Contract read_contract(const Fields& fields) {
  const std::string name = fields.text("contract");
  for (const Contract contract : {Contract::kExact, Contract::kAutocast, Contract::kLibrary}) {
    if (to_string(contract) == name) return contract;
  }
  Fields::fail(fields.where("contract"), "exact, autocast or library", name);
}

std::string_view kind_name(CallErrorKind kind) {
  switch (kind) {
    case CallErrorKind::kUnsupported:
      return "unsupported";
    case CallErrorKind::kOutOfMemory:
      return "out_of_memory";
    case CallErrorKind::kInput:
      return "input";
    case CallErrorKind::kFailed:
      break;
  }
  return "failed";
}

// Calls.

/// Only what the kind has: a worker refuses fields that it does not know.
Json to_json(const Optimizer& optimizer) {
  Json json = {{"kind", to_string(optimizer.kind)}, {"learning_rate", optimizer.learning_rate}};
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    json["momentum"] = optimizer.momentum;
    return json;
  }
  json["beta1"] = optimizer.beta1;
  json["beta2"] = optimizer.beta2;
  json["epsilon"] = optimizer.epsilon;
  if (optimizer.kind == Optimizer::Kind::kAdamW) json["weight_decay"] = optimizer.weight_decay;
  return json;
}

/// Throws MessageError for a name that is none.
template <class Parse>
auto kind_of(const Fields& fields, const char* key, const Parse& parse) {
  try {
    return parse(fields.text(key));
  } catch (const InputError& error) {
    throw MessageError(fields.where(key) + ": " + error.what());
  }
}

Optimizer read_optimizer(const Fields& fields) {
  Optimizer optimizer;
  optimizer.kind = kind_of(fields, "kind", parse_optimizer);
  optimizer.learning_rate = fields.number("learning_rate", 0);
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    fields.expect_only({"kind", "learning_rate", "momentum"});
    optimizer.momentum = fields.number("momentum", 0);
    return optimizer;
  }
  const bool decays = optimizer.kind == Optimizer::Kind::kAdamW;
  fields.expect_only({"kind", "learning_rate", "beta1", "beta2", "epsilon", decays ? "weight_decay" : "epsilon"});
  optimizer.beta1 = fields.number("beta1", 0);
  optimizer.beta2 = fields.number("beta2", 0);
  optimizer.epsilon = fields.number("epsilon", 0);
  if (decays) optimizer.weight_decay = fields.number("weight_decay", 0);
  return optimizer;
}

Json arguments(const PrepareCall& call) {
  return {{"backend", call.backend},
          {"workload",
           {{"name", call.workload.name},
            {"widths", call.workload.model.widths},
            {"activation", to_string(call.workload.model.activation)},
            {"loss", to_string(call.workload.loss)},
            {"batch_size", call.workload.batch_size},
            {"optimizer", to_json(call.workload.optimizer)},
            {"seed", call.workload.seed}}},
          {"precision", std::string(to_string(call.precision))},
          {"data",
           {{"features_file", call.data.features.string()},
            {"targets_file", call.data.targets.string()},
            {"samples", call.data.samples},
            {"feature_count", call.data.feature_count}}},
          {"parameters_file", call.parameters_file.string()},
          {"cache_folder", call.cache_folder.empty() ? Json() : Json(call.cache_folder)}};
}

Workload read_workload(const Fields& fields) {
  Workload workload;
  fields.expect_only({"name", "widths", "activation", "loss", "batch_size", "optimizer", "seed"});
  workload.name = fields.checked_name("name");
  for (const Json& width : fields.array("widths")) {
    workload.model.widths.push_back(
        static_cast<int>(Fields::integer(width, fields.where("widths[]"), 1, kMaxWidth)));
  }
  workload.batch_size = static_cast<int>(fields.integer("batch_size", 1, std::numeric_limits<int>::max()));
  workload.model.activation = kind_of(fields, "activation", parse_activation);
  workload.loss = kind_of(fields, "loss", parse_loss);
  workload.optimizer = read_optimizer(fields.object("optimizer"));
  workload.seed = fields.seed("seed");
  return workload;
}

PrepareCall read_prepare(const Fields& fields) {
  PrepareCall call;
  call.backend = fields.checked_name("backend");
  call.workload = read_workload(fields.object("workload"));
  call.precision = fields.precision("precision");
  const Fields data = fields.object("data");
  call.data.features = data.name("features_file");
  call.data.targets = data.name("targets_file");
  call.data.samples = data.integer("samples", 1);
  call.data.feature_count = static_cast<int>(data.integer("feature_count", 1, kMaxWidth));
  call.parameters_file = fields.name("parameters_file");
  call.cache_folder = fields.is_null("cache_folder") ? std::string() : fields.text("cache_folder");
  return call;
}

ReferenceCall read_reference(const Fields& fields) {
  ReferenceCall call;
  for (const Json& step : fields.array("steps")) {
    const std::int64_t least = call.steps.empty() ? 0 : call.steps.back() + 1;  // ascending
    call.steps.push_back(Fields::integer(step, fields.where("steps[]"), least, kLargest));
  }
  call.free_steps = fields.integer("free_steps", 0);
  call.folder = fields.name("folder");
  return call;
}

Call read_call(const std::string& name, const Fields& fields) {
  if (name == "hello") return HelloCall{fields.integer("protocol", 0)};
  if (name == "prepare") return read_prepare(fields);
  // A step's number stays far from overflow however many are added to it.
  constexpr std::int64_t most = kLargest / 4;
  if (name == "train")
    return TrainCall{fields.integer("first_step", 0, most), fields.integer("count", 1, most)};
  if (name == "losses") {
    return LossesCall{fields.integer("first_step", 0, most), fields.integer("count", 1, most),
                      fields.name("file")};
  }
  if (name == "state") return StateCall{fields.name("file")};
  if (name == "set_state") return SetStateCall{fields.name("file")};
  if (name == "reference") return read_reference(fields);
  if (name == "release") return ReleaseCall{};
  if (name == "calibrate") return CalibrateCall{};
  throw MessageError("call: expected a call of the protocol, found '" + one_line(name, kQuoted) + "'");
}

// Results.

Json to_json(const DeviceInfo& device) {
  return {{"index", device.index},
          {"name", device.name},
          {"uuid", device.uuid},
          {"driver", device.driver},
          {"sm_count", device.sm_count},
          {"compute_major", device.compute_major},
          {"compute_minor", device.compute_minor},
          {"memory_bytes", device.memory_bytes},
          {"l2_bytes", device.l2_bytes}};
}

DeviceInfo read_device(const Fields& fields) {
  DeviceInfo device;
  device.index = static_cast<int>(fields.integer("index", 0, 1024));
  device.name = one_line(fields.name("name"));
  device.uuid = fields.shown_text("uuid");
  device.driver = fields.shown_text("driver");
  device.sm_count = static_cast<int>(fields.integer("sm_count", 1, 65536));
  device.compute_major = static_cast<int>(fields.integer("compute_major", 1, 99));
  device.compute_minor = static_cast<int>(fields.integer("compute_minor", 0, 99));
  device.memory_bytes = fields.integer("memory_bytes", 1);
  device.l2_bytes = fields.integer("l2_bytes", 0);
  return device;
}

Json to_json(const WorkerHello& hello) {
  Json backends = Json::array();
  for (const OfferedBackend& backend : hello.backends) {
    Json precisions = Json::object();
    for (const auto& [precision, offered] : backend.precisions) {
      precisions[std::string(to_string(precision))] = {
          {"contract", std::string(to_string(offered.contract))},
          {"unavailable", offered.unavailable ? Json(*offered.unavailable) : Json()}};
    }
    backends.push_back({{"name", backend.name}, {"precisions", precisions}});
  }
  return {{"protocol", kProtocolVersion}, {"worker", hello.worker},
          {"software", hello.software},   {"device", hello.device ? to_json(*hello.device) : Json()},
          {"backends", backends},         {"calibrates", hello.calibrates}};
}

double finite(double value, const char* what) {
  if (!std::isfinite(value)) throw MessageError(std::string(what) + ": expected a finite number");
  return value;
}

Json to_json(const Calibration& calibration) {
  Json rates = Json::object();
  for (const auto& [name, rate] : calibration)
    rates[name] = {{"value", finite(rate.value, name.c_str())}, {"unit", rate.unit}, {"how", rate.how}};
  return {{"rates", rates}};
}

Json to_json(const Result& result) {
  return std::visit(
      Overloaded{[](const WorkerHello& hello) { return to_json(hello); },
                 [](const Prepared& prepared) {
                   return Json{
                       {"setup_seconds", finite(prepared.setup_seconds, "setup_seconds")},
                       {"setup_cache",
                        prepared.setup_cache ? Json(std::string(to_string(*prepared.setup_cache))) : Json()},
                       {"note", prepared.note}};
                 },
                 [](const Timing& timing) {
                   return Json{{"device_seconds", finite(timing.device_seconds, "device_seconds")},
                               {"wall_seconds", finite(timing.wall_seconds, "wall_seconds")},
                               {"cpu_seconds", finite(timing.cpu_seconds, "cpu_seconds")}};
                 },
                 [](const ValueCount& values) { return Json{{"count", values.count}}; },
                 [](const Nothing&) { return Json::object(); },
                 [](const ReferenceLosses& reference) {
                   for (const double loss : reference.losses) finite(loss, "losses[]");
                   return Json{{"losses", reference.losses}};
                 },
                 [](const PeakMemory& memory) {
                   return Json{{"peak_device_bytes",
                                memory.peak_device_bytes ? Json(*memory.peak_device_bytes) : Json()}};
                 },
                 [](const Calibration& calibration) { return to_json(calibration); }},
      result);
}

// One overload for each result; the second argument only selects it.

WorkerHello read(const Fields& fields, const WorkerHello*) {
  const std::int64_t protocol = fields.integer("protocol", 0);
  if (protocol != kProtocolVersion) {
    throw MessageError("it speaks version " + std::to_string(protocol) +
                       " of the worker protocol, this program version " + std::to_string(kProtocolVersion) +
                       "; build both from the same sources");
  }
  WorkerHello hello;
  hello.worker = fields.checked_name("worker");
  const Fields software = fields.object("software");
  for (const auto& [name, version] : fields.at("software").items()) {
    hello.software[one_line(name)] = one_line(Fields::text(version, software.where(name)));
  }
  if (!fields.is_null("device")) hello.device = read_device(fields.object("device"));
  for (const Json& row : fields.array("backends")) {
    const Fields backend_fields(row, fields.where("backends[]"));
    OfferedBackend backend;
    backend.name = backend_fields.checked_name("name");
    const Fields precisions = backend_fields.object("precisions");
    for (const auto& [name, value] : backend_fields.at("precisions").items()) {
      const Fields offer(value, precisions.where(name));
      OfferedPrecision offered;
      offered.contract = read_contract(offer);
      if (!offer.is_null("unavailable")) offered.unavailable = one_line(offer.text("unavailable"));
      backend.precisions[Fields::precision(name, precisions.where(name))] = offered;
    }
    hello.backends.push_back(std::move(backend));
  }
  if (fields.has("calibrates")) hello.calibrates = fields.boolean("calibrates");
  return hello;
}

std::optional<SetupCache> read_setup_cache(const Fields& fields) {
  if (!fields.has_value("setup_cache")) return std::nullopt;
  const std::string name = fields.text("setup_cache");
  for (const SetupCache cache : {SetupCache::kCold, SetupCache::kWarm}) {
    if (to_string(cache) == name) return cache;
  }
  Fields::fail(fields.where("setup_cache"), "cold, warm or null", name);
}

Prepared read(const Fields& fields, const Prepared*) {
  return {fields.number("setup_seconds", 0, kMostSeconds), fields.shown_text("note"),
          read_setup_cache(fields)};
}

Timing read(const Fields& fields, const Timing*) {
  return {fields.number("device_seconds", 0, kMostSeconds), fields.number("wall_seconds", 0, kMostSeconds),
          fields.number("cpu_seconds", 0, kMostSeconds)};
}

ValueCount read(const Fields& fields, const ValueCount*) { return {fields.integer("count", 0)}; }

Nothing read(const Fields&, const Nothing*) { return {}; }

ReferenceLosses read(const Fields& fields, const ReferenceLosses*) {
  ReferenceLosses result;
  for (const Json& loss : fields.array("losses")) {
    result.losses.push_back(Fields::number(loss, fields.where("losses[]"), 0));
  }
  return result;
}

PeakMemory read(const Fields& fields, const PeakMemory*) {
  if (fields.is_null("peak_device_bytes")) return {};
  return {fields.integer("peak_device_bytes", 0)};
}

Calibration read(const Fields& fields, const Calibration*) {
  Calibration calibration;
  const Fields rates = fields.object("rates");
  for (const auto& [name, value] : fields.at("rates").items()) {
    const Fields rate(value, rates.where(name));
    if (!is_name(name)) Fields::fail("rates", kNameRule, name);
    calibration[name] = {rate.number("value", 0), one_line(rate.name("unit")), one_line(rate.name("how"))};
    if (!(calibration[name].value > 0))
      Fields::fail(rate.where("value"), "a number over 0", rate.at("value"));
  }
  return calibration;
}

CallError read_error(const Fields& fields) {
  const std::string name = fields.text("kind");
  for (const CallErrorKind kind : {CallErrorKind::kUnsupported, CallErrorKind::kOutOfMemory,
                                   CallErrorKind::kInput, CallErrorKind::kFailed}) {
    if (kind_name(kind) == name) return {kind, one_line(fields.text("message"))};
  }
  Fields::fail(fields.where("kind"), "unsupported, out_of_memory, input or failed", name);
}

}  // namespace

std::string_view name_of(const Call& call) {
  static constexpr std::string_view kNames[] = {"hello",     "prepare",   "train",   "losses",   "state",
                                                "set_state", "reference", "release", "calibrate"};
  static_assert(std::size(kNames) == std::variant_size_v<Call>);
  return kNames[call.index()];
}

std::string write_request(const Request& request) {
  Json json = std::visit(
      Overloaded{
          [](const HelloCall& call) { return Json{{"protocol", call.protocol}}; },
          [](const PrepareCall& call) { return arguments(call); },
          [](const TrainCall& call) { return Json{{"first_step", call.first_step}, {"count", call.count}}; },
          [](const LossesCall& call) {
            return Json{{"first_step", call.first_step}, {"count", call.count}, {"file", call.file.string()}};
          },
          [](const StateCall& call) { return Json{{"file", call.file.string()}}; },
          [](const SetStateCall& call) { return Json{{"file", call.file.string()}}; },
          [](const ReferenceCall& call) {
            return Json{
                {"steps", call.steps}, {"free_steps", call.free_steps}, {"folder", call.folder.string()}};
          },
          [](const ReleaseCall&) { return Json::object(); },
          [](const CalibrateCall&) { return Json::object(); }},
      request.call);
  json["id"] = request.id;
  json["call"] = std::string(name_of(request.call));
  return dump(json);
}

Request read_request(std::string_view line) {
  const Json json = parse(line);
  const Fields fields(json, "");
  const std::int64_t id = fields.integer("id", 0);
  try {
    return {id, read_call(fields.text("call"), fields)};
  } catch (const MessageError& error) {
    throw MessageError(error.what(), id);
  }
}

std::string write_answer(std::int64_t id, const Result& result) {
  return dump({{"id", id}, {"ok", true}, {"result", to_json(result)}});
}

std::string write_error(std::optional<std::int64_t> id, const CallError& error) {
  return dump(
      {{"id", id ? Json(*id) : Json()},
       {"ok", false},
       {"error", {{"kind", std::string(kind_name(error.kind))}, {"message", one_line(error.message)}}}});
}

template <typename Answer>
std::variant<Answer, CallError> read_answer(std::string_view line, std::int64_t id) {
  const Json json = parse(line);
  const Fields fields(json, "");
  if (!fields.at("id").is_number_integer() || fields.at("id") != id) {
    Fields::fail("id", std::to_string(id), fields.at("id"));
  }
  if (!fields.boolean("ok")) return read_error(fields.object("error"));
  return read(fields.object("result"), static_cast<const Answer*>(nullptr));
}

template std::variant<WorkerHello, CallError> read_answer<WorkerHello>(std::string_view, std::int64_t);
template std::variant<Prepared, CallError> read_answer<Prepared>(std::string_view, std::int64_t);
template std::variant<Timing, CallError> read_answer<Timing>(std::string_view, std::int64_t);
template std::variant<ValueCount, CallError> read_answer<ValueCount>(std::string_view, std::int64_t);
template std::variant<Nothing, CallError> read_answer<Nothing>(std::string_view, std::int64_t);
template std::variant<ReferenceLosses, CallError> read_answer<ReferenceLosses>(std::string_view,
                                                                               std::int64_t);
template std::variant<PeakMemory, CallError> read_answer<PeakMemory>(std::string_view, std::int64_t);
template std::variant<Calibration, CallError> read_answer<Calibration>(std::string_view, std::int64_t);

std::string one_line(std::string_view text, std::size_t longest) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  const bool cut = text.size() > longest;
  if (cut) {
    text = text.substr(0, longest);
    // A character of several bytes at the end may lack some, and goes.
    for (int i = 0; i < 3 && !text.empty() && (text.back() & 0xc0) == 0x80; ++i) text.remove_suffix(1);
    if (!text.empty() && (text.back() & 0xc0) == 0xc0) text.remove_suffix(1);
  }
  std::string line = printable(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return cut ? line + "..." : line;
}

}  // namespace headroom
