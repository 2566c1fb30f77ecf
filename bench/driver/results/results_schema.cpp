#include "driver/results/results_schema.h"

#include <fmt/core.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>
#include <vector>

#include "core/error.h"
#include "driver/results/results.h"
#include "json/reader.h"

namespace headroom {
namespace {

using nlohmann::json;
using Adapter = valijson::adapters::NlohmannJsonAdapter;

struct CompiledSchema {
  explicit CompiledSchema(const json& schema) {
    valijson::SchemaParser().populateSchema(Adapter(schema), compiled);
  }
  bool accepts(const json& value, valijson::ValidationResults* faults = nullptr) const {
    return valijson::Validator().validate(compiled, Adapter(value), faults);
  }
  valijson::Schema compiled;
};

// valijson takes every whole number for a signed one, so larger ones are shown to it as the largest of these: 2^63 - 1
// is over every limit of the schema but the seeds'.
class ShownAsSigned {
 public:
  explicit ShownAsSigned(json& document) { hide(document); }
  ~ShownAsSigned() {
    for (auto& [place, value] : hidden_) *place = value;
  }
  ShownAsSigned(const ShownAsSigned&) = delete;
  ShownAsSigned& operator=(const ShownAsSigned&) = delete;

 private:
  void hide(json& value) {
    constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
    if (value.is_structured()) {
      for (json& member : value) hide(member);
    } else if (value.is_number_unsigned() && value.get<std::uint64_t>() > largest) {
      hidden_.emplace_back(&value, value.get<std::uint64_t>());
      value = largest;
    }
  }
  std::vector<std::pair<json*, std::uint64_t>> hidden_;
};

const json& member_of(const json& value, const std::string& name) {
  return value.is_array() ? value.at(std::stoul(name)) : value.at(name);
}

// Every schema that speaks of the value at the end of `path` from `value`: the field's own, then those of conditions around
// it that hold.
void find_schemas(const json& root, const json& schema, const json& value, std::span<const std::string> path,
                  std::vector<json>& found) {
  if (!schema.is_object()) return;
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    const std::string target = reference->get<std::string>().substr(1);  // after the #
    return find_schemas(root, root.at(json::json_pointer(target)), value, path, found);
  }
  if (path.empty()) {
    found.push_back(schema);
  } else {
    const json fields = schema.value("properties", json::object());
    const json& member = member_of(value, path.front());
    if (const auto field = fields.find(path.front()); field != fields.end()) {
      find_schemas(root, *field, member, path.subspan(1), found);
    } else if (schema.contains("additionalProperties")) {
      find_schemas(root, schema["additionalProperties"], member, path.subspan(1), found);
    }
    if (schema.contains("items")) find_schemas(root, schema["items"], member, path.subspan(1), found);
  }
  for (const char* condition : {"allOf", "anyOf"}) {
    for (const json& one : schema.value(condition, json::array()))
      find_schemas(root, one, value, path, found);
  }
  if (!schema.contains("if")) return;
  const char* branch = CompiledSchema(schema["if"]).accepts(value) ? "then" : "else";
  if (schema.contains(branch)) find_schemas(root, schema[branch], value, path, found);
}

// What a schema asks of a value itself, in words: "a number or null, from 0 to 1e+12".
std::string expectation(const json& schema) {
  static const std::map<std::string, std::string> kTypes = {
      {"string", "a string"},  {"number", "a number"},       {"integer", "a whole number"},
      {"object", "an object"}, {"boolean", "true or false"}, {"array", "a list"},
      {"null", "null"},
  };
  const auto number = [&](const char* key) { return fmt::format("{:g}", schema.at(key).get<double>()); };
  const auto bare = [](const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  if (schema.contains("const")) return bare(schema["const"]);
  std::string text;
  if (schema.contains("enum")) {
    for (const json& value : schema["enum"]) text += (text.empty() ? "one of " : ", ") + bare(value);
    return text;
  }
  json types = schema.value("type", json::array());
  if (types.is_string()) types = json::array({types});
  for (const json& type : types) text += (text.empty() ? "" : " or ") + kTypes.at(type);
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
  if (schema.contains("exclusiveMinimum")) add("above " + number("exclusiveMinimum"));
  if (schema.contains("minimum")) add("at least " + number("minimum"));
  if (schema.contains("maximum")) add("at most " + number("maximum"));
  if (schema.contains("exclusiveMaximum")) add("below " + number("exclusiveMaximum"));
  if (schema.contains("minLength")) add(text.empty() ? "a string, not empty" : "not empty");
  if (schema.contains("pattern")) add("like " + bare(schema["pattern"]));
  if (schema.contains("minItems")) add(number("minItems") + " items or more");
  if (schema.contains("maxItems")) add(number("maxItems") + " items or fewer");
  return text;
}

// Whether the value itself is right, whatever its members are.
bool is_right(const json& value, json schema) {
  for (const char* key : {"properties", "required", "additionalProperties", "items", "allOf", "anyOf", "if",
                          "then", "else", "description"})
    schema.erase(key);
  return CompiledSchema(schema).accepts(value);
}

// What is wrong with the value at `where`, which breaks one of the schemas.
std::string complaint(const std::string& where, const json& value, const std::vector<json>& schemas) {
  const auto member = [&](const std::string& key) {
    return where.ends_with(": ") ? where + key : where + "." + key;
  };
  const std::string at = where.ends_with(": ") ? where : where + ": ";
  for (const json& schema : schemas) {
    const json type = schema.contains("type") ? json{{"type", schema["type"]}} : json::object();
    if (!is_right(value, type))
      return fmt::format("{}expected {}, found {}", at, expectation(type), shown_value(value));
    if (!is_right(value, schema)) {
      const std::string expected = expectation(schema);
      return fmt::format("{}expected {}, found {}", at, expected.empty() ? "nothing" : expected,
                         shown_value(value));
    }
    if (!value.is_object()) continue;
    for (const std::string key : schema.value("required", json::array())) {
      if (!value.contains(key)) return member(key) + ": is missing";
    }
    if (schema.value("additionalProperties", json()) != false) continue;
    for (const auto& [key, ignored] : value.items()) {
      if (!schema["properties"].contains(key)) return member(key) + ": unknown field";
    }
  }
  return at + "is not what results/schema.json says";
}

// Adds fields to `object`, if it is one. A file of version 1 that has them already is none.
void add_fields(json& object, const std::string& where, const json& fields) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : fields.items()) {
    if (object.contains(key)) throw InputError(fmt::format("{}.{}: unknown field", where, key));
    object[key] = value;
  }
}

// Calls `use` with each member of the list that `object` has as `key`, and its place. Whether there is one, the schema says.
void for_each_of(json& object, const char* key, const std::string& where, auto&& use) {
  const auto list = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || list == object.end() || !list->is_array()) return;
  for (std::size_t i = 0; i < list->size(); ++i) use((*list)[i], fmt::format("{}{}[{}]", where, key, i));
}

// Of the backends that there were when files did not say it.
Family family_by_name(const std::string& backend) {
  const auto begins = [&](const char* beginning) { return backend.starts_with(beginning); };
  if (backend == "oracle" || begins("oracle-")) return Family::kReference;
  if (begins("pytorch-")) return Family::kPytorch;
  if (begins("libtorch-")) return Family::kLibtorch;
  if (begins("jax-")) return Family::kJax;
  if (begins("cublaslt-")) return Family::kVendor;
  return backend == "cuda" || begins("cuda-") ? Family::kOurs : Family::kOther;
}

// Files of version 1, and the first ones of version 2, have none.
void add_families(json& document) {
  for_each_of(document, "records", "", [](json& record, const std::string&) {
    if (record.is_object() && !record.contains("family") && record.contains("backend") &&
        record["backend"].is_string())
      record["family"] = to_string(family_by_name(record["backend"]));
  });
}

void upgrade_from_version_1(json& document, const std::string& file) {
  document["schema_version"] = kResultsVersion;
  for_each_of(document, "workloads", file + ": ", [](json& workload, const std::string& where) {
    add_fields(workload, where, {{"activation", "relu"}, {"loss", "cross-entropy"}, {"about", nullptr}});
    if (!workload.is_object() || !workload.contains("optimizer")) return;
    json& optimizer = workload["optimizer"];
    if (optimizer.is_object() && optimizer.contains("kind") && optimizer["kind"] == "sgd")
      add_fields(optimizer, where + ".optimizer", {{"momentum", 0}});
  });
  for_each_of(document, "records", file + ": ", [](json& record, const std::string& where) {
    if (record.is_object() && record.contains("family"))
      throw InputError(fmt::format("{}.family: unknown field", where));
    for_each_of(record, "losses", where + ".", [](json& curve, const std::string& place) {
      add_fields(curve, place, {{"held_out_r_squared", nullptr}});
    });
  });
}

}  // namespace

int check_results(json& document, const std::string& file) {
  static const json kSchema = json::parse(kResultsSchema);
  static const CompiledSchema kCompiled(kSchema);
  if (document.is_object() && document.contains("planted") && !document.contains("records"))
    throw OtherFileError(fmt::format("{}: expected a results file, found the proof of the gate", file));
  // First, because a file of another version has other fields.
  int version = kResultsVersion;
  if (document.is_object() && document.contains("schema_version")) {
    const json& found = document["schema_version"];
    const bool known = found.is_number_integer() && (found == 1 || found == kResultsVersion);
    if (!known)
      throw OtherFileError(fmt::format("{}: schema_version: expected 1 or {}, found {}", file,
                                       kResultsVersion, shown_value(found)));
    version = found.get<int>();
  }
  if (version == 1) upgrade_from_version_1(document, file);
  add_families(document);
  valijson::ValidationResults faults;
  {
    const ShownAsSigned signed_numbers(document);
    // Without a list of the faults the library ends at the first.
    if (kCompiled.accepts(document)) return version;
    kCompiled.accepts(document, &faults);
  }
  // A fault of a member stands before that of the object that holds it.
  valijson::ValidationResults::Error first;
  faults.popError(first);
  std::vector<std::string> path;
  std::string where = file + ": ";
  const json* value = &document;
  for (std::size_t i = 1; i < first.context.size(); ++i) {  // 0 is the root
    const std::string& name = path.emplace_back(first.context[i].substr(1, first.context[i].size() - 2));
    where += value->is_array() ? "[" + name + "]" : (i == 1 ? "" : ".") + name;
    value = &member_of(*value, name);
  }
  std::vector<json> schemas;
  find_schemas(kSchema, kSchema, document, path, schemas);
  throw InputError(complaint(where, *value, schemas));
}

}  // namespace headroom
