#include "worker/messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "core/names.h"
#include "json/reader.h"

namespace headroom {
namespace {

using Json = nlohmann::json;

// What results/schema.json allows, so that no worker can make a results file that is refused later.
constexpr double kLargestNumber = 1e300;
constexpr double kMostSeconds = 1e12;
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

Json parse(std::string_view line) {
  if (line.size() > kLongestLine)
    throw MessageError("a line of more than " + std::to_string(kLongestLine) + " bytes");
  try {
    return parse_json(line, /*unique_keys=*/false);
  } catch (const JsonSyntaxError& error) {
    if (error.too_deep()) throw MessageError(std::string("a line with ") + error.what());
    throw MessageError("not JSON: '" + one_line(line, kQuoted) + "'");  // the line itself says most
  }
}

// A string that is not empty.
std::string read_name(const JsonReader& field) {
  std::string value = field.string();
  if (value.empty()) field.fail("expected a name, found an empty text");
  return value;
}

// What somebody else has called a workload, a backend or a worker.
std::string read_checked_name(const JsonReader& field) {
  std::string value = field.string();
  if (!is_name(value)) field.fail_expected(kNameRule);
  return value;
}

// A string that ends up in front of a reader.
std::string read_shown(const JsonReader& field) { return one_line(field.string()); }

Family read_family(const JsonReader& field) {
  try {
    return parse_family(field.string());
  } catch (const InputError& error) {
    field.fail(error.what());
  }
}

// False where it is missing.
bool read_flag(const JsonReader& fields, const std::string& key) {
  return fields.has(key) && fields.at(key).boolean();
}

double read_number(const JsonReader& field) { return field.number(0, kLargestNumber); }

double read_seconds(const JsonReader& field) { return field.number(0, kMostSeconds); }

// A key that names a precision.
Precision read_precision(const std::string& key, const JsonReader& member) {
  const Json name = key;
  return JsonReader(name, member.where()).one_of(kAllPrecisions);
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

/// A worker that trained without what it does not know would train something else.
void expect_only(const JsonReader& fields, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : fields.members())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      value.fail("not a field of version " + std::to_string(kProtocolVersion) + " of the worker protocol");
}

Optimizer read_optimizer(const JsonReader& fields) {
  Optimizer optimizer;
  optimizer.kind = fields.at("kind").one_of(kAllOptimizers);
  optimizer.learning_rate = read_number(fields.at("learning_rate"));
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    expect_only(fields, {"kind", "learning_rate", "momentum"});
    optimizer.momentum = read_number(fields.at("momentum"));
    return optimizer;
  }
  const bool decays = optimizer.kind == Optimizer::Kind::kAdamW;
  expect_only(fields,
              {"kind", "learning_rate", "beta1", "beta2", "epsilon", decays ? "weight_decay" : "epsilon"});
  optimizer.beta1 = read_number(fields.at("beta1"));
  optimizer.beta2 = read_number(fields.at("beta2"));
  optimizer.epsilon = read_number(fields.at("epsilon"));
  if (decays) optimizer.weight_decay = read_number(fields.at("weight_decay"));
  return optimizer;
}

Json to_json(const Workload& workload) {
  Json json = {{"name", workload.name},
               {"widths", workload.model.widths},
               {"activation", to_string(workload.model.activation)},
               {"loss", to_string(workload.loss)},
               {"batch_size", workload.batch_size},
               {"optimizer", to_json(workload.optimizer)},
               {"seed", workload.seed}};
  if (workload.devices > 1) json["devices"] = workload.devices;
  return json;
}

Json arguments(const PrepareCall& call) {
  Json json = {{"backend", call.backend},
               {"workload", to_json(call.workload)},
               {"precision", std::string(to_string(call.precision))},
               {"data",
                {{"features_file", call.data.features.string()},
                 {"targets_file", call.data.targets.string()},
                 {"samples", call.data.samples},
                 {"feature_count", call.data.feature_count}}},
               {"parameters_file", call.parameters_file.string()},
               {"cache_folder", call.cache_folder.empty() ? Json() : Json(call.cache_folder)}};
  if (!call.devices.empty()) json["devices"] = call.devices;
  return json;
}

Json arguments(const CalibrateCall& call) {
  return call.devices.empty() ? Json::object() : Json{{"devices", call.devices}};
}

// May be missing: none.
std::vector<int> read_devices(const JsonReader& fields) {
  std::vector<int> devices;
  if (!fields.has("devices")) return devices;
  for (const JsonReader& device : fields.at("devices").items()) {
    devices.push_back(static_cast<int>(device.integer(0, 1024)));
    if (std::count(devices.begin(), devices.end(), devices.back()) > 1) device.fail("is there twice");
  }
  return devices;
}

Json arguments(const CompileCall& call) {
  return {{"backend", call.backend},
          {"workload", to_json(call.workload)},
          {"precision", std::string(to_string(call.precision))},
          {"cache_folder", call.cache_folder},
          {"target",
           {{"compute_major", call.target.compute_major},
            {"compute_minor", call.target.compute_minor},
            {"sm_count", call.target.sm_count},
            {"shared_bytes", call.target.shared_bytes}}}};
}

Workload read_workload(const JsonReader& fields) {
  Workload workload;
  expect_only(fields, {"name", "widths", "activation", "loss", "batch_size", "optimizer", "seed", "devices"});
  workload.name = read_checked_name(fields.at("name"));
  for (const JsonReader& width : fields.at("widths").items())
    workload.model.widths.push_back(static_cast<int>(width.integer(1, kMaxWidth)));
  workload.batch_size = static_cast<int>(fields.at("batch_size").integer(1, std::numeric_limits<int>::max()));
  workload.model.activation = fields.at("activation").one_of(kAllActivations);
  workload.loss = fields.at("loss").one_of(kAllLosses);
  workload.optimizer = read_optimizer(fields.at("optimizer"));
  workload.seed = fields.at("seed").seed();
  if (fields.has("devices"))
    workload.devices = static_cast<int>(fields.at("devices").integer(1, kMaxDevices));
  return workload;
}

PrepareCall read_prepare(const JsonReader& fields) {
  PrepareCall call;
  call.backend = read_checked_name(fields.at("backend"));
  call.workload = read_workload(fields.at("workload"));
  call.precision = fields.at("precision").one_of(kAllPrecisions);
  const JsonReader data = fields.at("data");
  call.data.features = read_name(data.at("features_file"));
  call.data.targets = read_name(data.at("targets_file"));
  call.data.samples = data.at("samples").integer(1);
  call.data.feature_count = static_cast<int>(data.at("feature_count").integer(1, kMaxWidth));
  call.parameters_file = read_name(fields.at("parameters_file"));
  const JsonReader cache_folder = fields.at("cache_folder");
  call.cache_folder = cache_folder.is_null() ? std::string() : cache_folder.string();
  call.devices = read_devices(fields);
  return call;
}

CompileCall read_compile(const JsonReader& fields) {
  CompileCall call;
  call.backend = read_checked_name(fields.at("backend"));
  call.workload = read_workload(fields.at("workload"));
  call.precision = fields.at("precision").one_of(kAllPrecisions);
  call.cache_folder = read_name(fields.at("cache_folder"));
  const JsonReader target = fields.at("target");
  call.target.compute_major = static_cast<int>(target.at("compute_major").integer(1, 99));
  call.target.compute_minor = static_cast<int>(target.at("compute_minor").integer(0, 99));
  call.target.sm_count = static_cast<int>(target.at("sm_count").integer(1, 65536));
  call.target.shared_bytes = static_cast<int>(target.at("shared_bytes").integer(1, 1 << 30));
  return call;
}

ReferenceCall read_reference(const JsonReader& fields) {
  ReferenceCall call;
  for (const JsonReader& step : fields.at("steps").items()) {
    const std::int64_t least = call.steps.empty() ? 0 : call.steps.back() + 1;  // ascending
    call.steps.push_back(step.integer(least));
  }
  call.free_steps = fields.at("free_steps").integer(0);
  call.folder = read_name(fields.at("folder"));
  call.wanted.contracts.clear();
  const JsonReader contracts = fields.at("contracts");
  for (const JsonReader& contract : contracts.items())
    call.wanted.contracts.push_back(
        contract.one_of({Contract::kExact, Contract::kAutocast, Contract::kLibrary}));
  if (call.wanted.contracts.empty()) contracts.fail_expected("one contract or more");
  call.wanted.copies = static_cast<int>(fields.at("copies").integer(0, 1024));
  call.wanted.probe = fields.at("probe").boolean();
  return call;
}

Call read_call(const std::string& name, const JsonReader& fields) {
  if (name == "hello") return HelloCall{fields.at("protocol").integer(0)};
  if (name == "prepare") return read_prepare(fields);
  // A step's number stays far from overflow however many are added to it.
  constexpr std::int64_t most = JsonReader::kLargest / 4;
  if (name == "train")
    return TrainCall{fields.at("first_step").integer(0, most), fields.at("count").integer(1, most)};
  if (name == "losses") {
    return LossesCall{fields.at("first_step").integer(0, most), fields.at("count").integer(1, most),
                      read_name(fields.at("file"))};
  }
  if (name == "state") return StateCall{read_name(fields.at("file"))};
  if (name == "set_state") return SetStateCall{read_name(fields.at("file"))};
  if (name == "reference") return read_reference(fields);
  if (name == "release") return ReleaseCall{};
  if (name == "calibrate") return CalibrateCall{read_devices(fields)};
  if (name == "compile") return read_compile(fields);
  if (name == "range") {
    const JsonReader range = fields.at("name");
    return RangeCall{range.is_null() ? std::string() : read_checked_name(range)};
  }
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

DeviceInfo read_device(const JsonReader& fields) {
  DeviceInfo device;
  device.index = static_cast<int>(fields.at("index").integer(0, 1024));
  device.name = one_line(read_name(fields.at("name")));
  device.uuid = read_shown(fields.at("uuid"));
  device.driver = read_shown(fields.at("driver"));
  device.sm_count = static_cast<int>(fields.at("sm_count").integer(1, 65536));
  device.compute_major = static_cast<int>(fields.at("compute_major").integer(1, 99));
  device.compute_minor = static_cast<int>(fields.at("compute_minor").integer(0, 99));
  device.memory_bytes = fields.at("memory_bytes").integer(1);
  device.l2_bytes = fields.at("l2_bytes").integer(0);
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
    backends.push_back({{"name", backend.name},
                        {"family", to_string(backend.family)},
                        {"description", backend.description},
                        {"compiles", backend.compiles},
                        {"repeats", backend.repeats},
                        {"reference", backend.reference},
                        {"max_devices", backend.max_devices},
                        {"min_devices", backend.min_devices},
                        {"precisions", precisions}});
  }
  Json devices = Json::array();
  for (const DeviceInfo& device : hello.devices) devices.push_back(to_json(device));
  return {{"devices", devices},
          {"protocol", kProtocolVersion},
          {"worker", hello.worker},
          {"software", hello.software},
          {"device", hello.device ? to_json(*hello.device) : Json()},
          {"backends", backends},
          {"calibrates", hello.calibrates},
          {"ranges", hello.ranges},
          {"broken", hello.broken ? Json(*hello.broken) : Json()}};
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

Json to_json(const Choice& choice) {
  Json candidates = Json::array();
  for (const Choice::Candidate& one : choice.candidates)
    candidates.push_back(
        {{"backend", one.backend},
         {"step_seconds", one.step_seconds ? Json(finite(*one.step_seconds, "step_seconds")) : Json()},
         {"left_out", one.left_out}});
  return {{"taken", choice.taken}, {"kept", choice.was_kept}, {"candidates", candidates}};
}

Json to_json(const Result& result) {
  return std::visit(
      Overloaded{[](const WorkerHello& hello) { return to_json(hello); },
                 [](const Prepared& prepared) {
                   return Json{
                       {"setup_seconds", finite(prepared.setup_seconds, "setup_seconds")},
                       {"setup_cache",
                        prepared.setup_cache ? Json(std::string(to_string(*prepared.setup_cache))) : Json()},
                       {"choice", prepared.choice ? to_json(*prepared.choice) : Json()},
                       {"note", prepared.note}};
                 },
                 [](const Timing& timing) {
                   return Json{{"device_seconds", finite(timing.device_seconds, "device_seconds")},
                               {"wall_seconds", finite(timing.wall_seconds, "wall_seconds")},
                               {"cpu_seconds", finite(timing.cpu_seconds, "cpu_seconds")}};
                 },
                 [](const ValueCount& values) { return Json{{"count", values.count}}; },
                 [](const Nothing&) { return Json::object(); },
                 [](const ReferenceAnswer& reference) {
                   for (const double loss : reference.losses) finite(loss, "losses[]");
                   Json spreads = Json::array();
                   for (const double spread : reference.free_spreads)
                     spreads.push_back(std::isfinite(spread) ? Json(spread) : Json());
                   return Json{{"losses", reference.losses}, {"free_spreads", spreads}};
                 },
                 [](const PeakMemory& memory) {
                   return Json{{"peak_device_bytes",
                                memory.peak_device_bytes ? Json(*memory.peak_device_bytes) : Json()}};
                 },
                 [](const Calibration& calibration) { return to_json(calibration); }},
      result);
}

// One overload for each result; the second argument only selects it.

WorkerHello read(const JsonReader& fields, const WorkerHello*) {
  const std::int64_t protocol = fields.at("protocol").integer(0);
  if (protocol != kProtocolVersion) {
    throw OtherProtocolError("it speaks version " + std::to_string(protocol) +
                             " of the worker protocol, this program version " +
                             std::to_string(kProtocolVersion) + "; build both from the same sources");
  }
  WorkerHello hello;
  hello.worker = read_checked_name(fields.at("worker"));
  for (const auto& [name, version] : fields.at("software").members())
    hello.software[one_line(name)] = read_shown(version);
  if (const JsonReader device = fields.at("device"); !device.is_null()) hello.device = read_device(device);
  if (fields.has("devices"))
    for (const JsonReader& device : fields.at("devices").items())
      hello.devices.push_back(read_device(device));
  for (const JsonReader& row : fields.at("backends").items()) {
    OfferedBackend& backend = hello.backends.emplace_back();
    backend.name = read_checked_name(row.at("name"));
    backend.family = read_family(row.at("family"));
    backend.description = read_shown(row.at("description"));
    backend.compiles = read_flag(row, "compiles");
    backend.repeats = read_flag(row, "repeats");
    backend.reference = read_flag(row, "reference");
    if (row.has("max_devices"))
      backend.max_devices = static_cast<int>(row.at("max_devices").integer(1, 1024));
    if (row.has("min_devices"))
      backend.min_devices = static_cast<int>(row.at("min_devices").integer(1, backend.max_devices));
    for (const auto& [name, offer] : row.at("precisions").members()) {
      OfferedPrecision& offered = backend.precisions[read_precision(name, offer)];
      offered.contract =
          offer.at("contract").one_of({Contract::kExact, Contract::kAutocast, Contract::kLibrary});
      if (const JsonReader reason = offer.at("unavailable"); !reason.is_null())
        offered.unavailable = read_shown(reason);
    }
  }
  hello.calibrates = read_flag(fields, "calibrates");
  hello.ranges = read_flag(fields, "ranges");
  if (const auto broken = fields.find("broken"); broken && !broken->is_null())
    hello.broken = read_shown(*broken);
  return hello;
}

Choice read_choice(const JsonReader& fields) {
  Choice choice{read_checked_name(fields.at("taken")), fields.at("kept").boolean(), {}};
  for (const JsonReader& one : fields.at("candidates").items()) {
    Choice::Candidate& candidate = choice.candidates.emplace_back();
    candidate.backend = read_checked_name(one.at("backend"));
    if (const JsonReader seconds = one.at("step_seconds"); !seconds.is_null())
      candidate.step_seconds = read_seconds(seconds);
    candidate.left_out = read_shown(one.at("left_out"));
  }
  return choice;
}

Prepared read(const JsonReader& fields, const Prepared*) {
  Prepared prepared{read_seconds(fields.at("setup_seconds")), read_shown(fields.at("note"))};
  if (const auto cache = fields.find("setup_cache"))
    prepared.setup_cache = cache->one_of({SetupCache::kCold, SetupCache::kWarm}, /*or_null=*/true);
  if (const auto choice = fields.find("choice"); choice && !choice->is_null())
    prepared.choice = read_choice(*choice);
  return prepared;
}

Timing read(const JsonReader& fields, const Timing*) {
  return {read_seconds(fields.at("device_seconds")), read_seconds(fields.at("wall_seconds")),
          read_seconds(fields.at("cpu_seconds"))};
}

ValueCount read(const JsonReader& fields, const ValueCount*) { return {fields.at("count").integer(0)}; }

Nothing read(const JsonReader&, const Nothing*) { return {}; }

ReferenceAnswer read(const JsonReader& fields, const ReferenceAnswer*) {
  ReferenceAnswer result;
  for (const JsonReader& loss : fields.at("losses").items()) result.losses.push_back(read_number(loss));
  for (const JsonReader& spread : fields.at("free_spreads").items())
    result.free_spreads.push_back(spread.is_null() ? std::numeric_limits<double>::infinity()
                                                   : read_number(spread));
  return result;
}

PeakMemory read(const JsonReader& fields, const PeakMemory*) {
  const JsonReader bytes = fields.at("peak_device_bytes");
  if (bytes.is_null()) return {};
  return {bytes.integer(0)};
}

Calibration read(const JsonReader& fields, const Calibration*) {
  Calibration calibration;
  for (const auto& [name, rate] : fields.at("rates").members()) {
    if (!is_name(name)) {
      const Json wrong = name;
      JsonReader(wrong, "rates").fail_expected(kNameRule);
    }
    const JsonReader value = rate.at("value");
    calibration[name] = {read_number(value), one_line(read_name(rate.at("unit"))),
                         one_line(read_name(rate.at("how")))};
    if (!(calibration[name].value > 0)) value.fail_expected("a number over 0");
  }
  return calibration;
}

CallError read_error(const JsonReader& fields) {
  const CallErrorKind kind =
      fields.at("kind").one_of({CallErrorKind::kUnsupported, CallErrorKind::kOutOfMemory,
                                CallErrorKind::kInput, CallErrorKind::kFailed});
  return {kind, read_shown(fields.at("message"))};
}

}  // namespace

std::string_view to_string(CallErrorKind kind) {
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

std::string_view name_of(const Call& call) {
  static constexpr std::string_view kNames[] = {"hello",     "prepare",   "train",     "losses",
                                                "state",     "set_state", "reference", "release",
                                                "calibrate", "compile",   "range"};
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
            Json contracts = Json::array();
            for (const Contract contract : call.wanted.contracts)
              contracts.push_back(std::string(to_string(contract)));
            return Json{
                {"steps", call.steps},    {"free_steps", call.free_steps}, {"folder", call.folder.string()},
                {"contracts", contracts}, {"copies", call.wanted.copies},  {"probe", call.wanted.probe}};
          },
          [](const ReleaseCall&) { return Json::object(); },
          [](const CalibrateCall& call) { return arguments(call); },
          [](const CompileCall& call) { return arguments(call); },
          [](const RangeCall& call) { return Json{{"name", call.name.empty() ? Json() : Json(call.name)}}; }},
      request.call);
  json["id"] = request.id;
  json["call"] = std::string(name_of(request.call));
  return dump(json);
}

Request read_request(std::string_view line) {
  const Json json = parse(line);
  const JsonReader fields(json);
  std::optional<std::int64_t> id;
  try {
    id = fields.at("id").integer(0);
    return {*id, read_call(fields.at("call").string(), fields)};
  } catch (const JsonError& error) {
    throw MessageError(error.what(), id);
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
       {"error", {{"kind", std::string(to_string(error.kind))}, {"message", one_line(error.message)}}}});
}

template <typename Answer>
std::variant<Answer, CallError> read_answer(std::string_view line, std::int64_t id) {
  const Json json = parse(line);
  const JsonReader fields(json);
  try {
    fields.at("id");
    if (!json["id"].is_number_integer() || json["id"] != id)
      fields.at("id").fail_expected(std::to_string(id));
    if (!fields.at("ok").boolean()) return read_error(fields.at("error").object());
    return read(fields.at("result").object(), static_cast<const Answer*>(nullptr));
  } catch (const JsonError& error) {
    throw MessageError(error.what());
  }
}

template std::variant<WorkerHello, CallError> read_answer<WorkerHello>(std::string_view, std::int64_t);
template std::variant<Prepared, CallError> read_answer<Prepared>(std::string_view, std::int64_t);
template std::variant<Timing, CallError> read_answer<Timing>(std::string_view, std::int64_t);
template std::variant<ValueCount, CallError> read_answer<ValueCount>(std::string_view, std::int64_t);
template std::variant<Nothing, CallError> read_answer<Nothing>(std::string_view, std::int64_t);
template std::variant<ReferenceAnswer, CallError> read_answer<ReferenceAnswer>(std::string_view,
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
