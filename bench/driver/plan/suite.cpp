#include "driver/plan/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/names.h"
#include "core/optimizer_numbers.h"
#include "driver/system/command_name.h"
#include "driver/system/json_file.h"
#include "json/reader.h"

namespace headroom {
namespace {

constexpr std::size_t kLongestAbout = 500;

void expect_keys(const JsonReader& node, const std::vector<std::string>& required,
                 const std::vector<std::string>& optional) {
  std::vector<std::string> known = required;
  known.insert(known.end(), optional.begin(), optional.end());
  for (const auto& [key, value] : node.members()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      node.fail(fmt::format("unknown key '{}'; did you mean '{}'?", key, nearest_name(key, known)));
  }
  for (const std::string& key : required) {
    if (!node.has(key)) node.fail(fmt::format("key '{}' is missing", key));
  }
}

// The name that one of `parse`'s kinds has, with the nearest where there is none.
template <typename Kind>
Kind read_kind(const JsonReader& node, Kind (*parse)(std::string_view)) {
  const std::string name = node.string();
  try {
    return parse(name);
  } catch (const InputError& error) {
    node.fail(error.what());
  }
}

// A name, or an object with the numbers that its kind has, each of them optional.
Optimizer read_optimizer(const JsonReader& node) {
  Optimizer optimizer;
  if (node.is_string()) {
    optimizer.kind = read_kind(node, parse_optimizer);
    return optimizer;
  }
  if (!node.is_object()) node.fail_expected("a name or an object");
  if (!node.has("kind")) node.fail("key 'kind' is missing, such as \"adam\"");
  optimizer.kind = read_kind(node.at("kind"), parse_optimizer);
  std::vector<std::string> known;
  for (const std::string_view name : kOptimizerNumbers)
    if (optimizer_number(optimizer, name) != nullptr) known.emplace_back(name);
  for (const std::string_view name : kOptimizerNumbers) {
    if (node.has(std::string(name)) && optimizer_number(optimizer, name) == nullptr)
      node.fail(
          fmt::format("{} has no '{}'; it has {}", to_string(optimizer.kind), name, fmt::join(known, ", ")));
  }
  expect_keys(node, {"kind"}, known);
  for (const std::string& name : known)
    if (node.has(name)) *optimizer_number(optimizer, name) = node.at(name).number();
  return optimizer;
}

// A name that says what is trained must say what this workload trains.
void refuse_false_name(const JsonReader& node, const Workload& workload) {
  if (!is_workload_name(workload.name))
    node.fail(fmt::format("name '{}': expected {}", workload.name, kWorkloadNameRule));
  if (workload.name == default_name(workload)) return;
  try {
    parse_workload_name(workload.name);
  } catch (const InputError&) {
    return;  // it says nothing of the kind
  }
  node.fail(fmt::format("name '{}': that is another network, this is '{}'; choose another name",
                        workload.name, default_name(workload)));
}

std::vector<Precision> read_precisions(const JsonReader& node) {
  std::vector<Precision> precisions;
  for (const JsonReader& item : node.items_not_empty()) {
    Precision precision;
    try {
      precision = parse_precision(item.string());
    } catch (const InputError& error) {
      item.fail(error.what());
    }
    if (std::find(precisions.begin(), precisions.end(), precision) != precisions.end())
      item.fail("is there twice");
    precisions.push_back(precision);
  }
  return precisions;
}

std::vector<std::string> read_names(const JsonReader& node) {
  std::vector<std::string> names;
  for (const JsonReader& item : node.items_not_empty()) {
    if (std::find(names.begin(), names.end(), item.string()) != names.end()) {
      item.fail(fmt::format("'{}' is there twice", item.string()));
    }
    names.push_back(item.string());
  }
  return names;
}

SuiteWorkload read_workload(const JsonReader& node, const Suite& suite,
                            const std::vector<Precision>& precisions,
                            const std::vector<std::string>& backends, const std::filesystem::path& folder) {
  expect_keys(node, {"widths", "batch_size"},
              {"name", "about", "activation", "loss", "optimizer", "seed", "learning_rate", "data",
               "precisions", "backends"});
  SuiteWorkload entry{{}, precisions, backends};
  Workload& workload = entry.workload;
  for (const JsonReader& width : node.at("widths").items_not_empty()) {
    workload.model.widths.push_back(static_cast<int>(width.integer(1, kMaxWidth)));
  }
  workload.batch_size = static_cast<int>(node.at("batch_size").integer(1, std::int64_t{1} << 30));
  if (node.has("activation")) workload.model.activation = read_kind(node.at("activation"), parse_activation);
  if (node.has("loss")) workload.loss = read_kind(node.at("loss"), parse_loss);
  if (node.has("optimizer")) workload.optimizer = read_optimizer(node.at("optimizer"));
  if (node.has("seed")) workload.seed = node.at("seed").seed();
  if (node.has("learning_rate")) {
    if (node.has("optimizer") && !node.at("optimizer").is_string() &&
        node.at("optimizer").has("learning_rate"))
      node.at("learning_rate").fail("the optimizer has one already; leave one of them out");
    workload.optimizer.learning_rate = node.at("learning_rate").number();
  }
  if (node.has("data")) {
    workload.dataset.kind = DatasetSpec::Kind::kIdx;
    workload.dataset.folder = (folder / node.at("data").string()).lexically_normal().string();
  }
  workload.name = node.has("name") ? node.at("name").string() : default_name(workload);
  refuse_false_name(node, workload);
  if (node.has("about")) {
    entry.about = node.at("about").string();
    if (entry.about.empty() || entry.about.size() > kLongestAbout)
      node.at("about").fail(fmt::format("expected a sentence of at most {} bytes", kLongestAbout));
  }
  if (node.has("precisions")) entry.precisions = read_precisions(node.at("precisions"));
  if (node.has("backends")) entry.backends = read_names(node.at("backends"));
  try {
    validate(workload);
  } catch (const InputError& error) {
    node.fail(error.what());
  }
  for (const SuiteWorkload& other : suite.workloads) {
    if (other.workload.name == workload.name) {
      node.fail(fmt::format("there is a workload '{}' already; give this one a \"name\" of its own",
                            workload.name));
    }
  }
  return entry;
}

}  // namespace

Suite read_suite(const std::filesystem::path& file) try {
  const nlohmann::json parsed = read_json(file, "a suite file");
  const JsonReader root(parsed, file.string());
  expect_keys(root, {"description", "precisions", "backends", "workloads"},
              {"precisions_without_gpu", "loss_steps", "loss_seeds", "python_worker_arguments"});
  Suite suite;
  suite.name = file.stem().string();
  check_name(file.string() + ": the file's name without .json", suite.name);
  suite.description = root.at("description").string();
  const std::vector<Precision> precisions = read_precisions(root.at("precisions"));
  const std::vector<std::string> backends = read_names(root.at("backends"));
  if (root.has("precisions_without_gpu")) {
    suite.precisions_without_gpu = read_precisions(root.at("precisions_without_gpu"));
  }
  if (root.has("loss_steps")) suite.loss_steps = root.at("loss_steps").integer(0, std::int64_t{1} << 20);
  if (root.has("loss_seeds")) {
    for (const JsonReader& seed : root.at("loss_seeds").items_not_empty()) {
      suite.loss_seeds.push_back(seed.seed());
      if (std::count(suite.loss_seeds.begin(), suite.loss_seeds.end(), suite.loss_seeds.back()) > 1) {
        seed.fail("is there twice");
      }
    }
  }
  if (root.has("python_worker_arguments"))
    suite.python_worker_arguments = read_names(root.at("python_worker_arguments"));
  for (const JsonReader& node : root.at("workloads").items_not_empty()) {
    suite.workloads.push_back(read_workload(node, suite, precisions, backends, file.parent_path()));
  }
  return suite;
} catch (const JsonError& error) {
  throw InputError(error.what());
}

std::vector<std::string> suite_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path find_suite(const std::string& name_or_file, const std::filesystem::path& folder) {
  if (name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".json")) {
    if (!std::filesystem::exists(name_or_file)) {
      throw InputError(fmt::format("--suite {}: there is no such file", name_or_file));
    }
    return name_or_file;
  }
  const std::vector<std::string> names = suite_names(folder);
  if (std::find(names.begin(), names.end(), name_or_file) == names.end()) {
    if (names.empty()) {
      throw InputError(fmt::format("--suite {}: no suites in {}; set HEADROOM_ROOT to the checkout",
                                   name_or_file, folder.string()));
    }
    throw InputError(fmt::format("unknown suite '{}'; did you mean '{}'? `{} list` shows them", name_or_file,
                                 nearest_name(name_or_file, names), command_name()));
  }
  return folder / (name_or_file + ".json");
}

}  // namespace headroom
