#include "driver/plan/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/names.h"
#include "core/optimizer_numbers.h"
#include "driver/plan/drawn.h"
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

// One number, or a list of them.
std::vector<int> read_numbers(const JsonReader& node, std::int64_t most) {
  std::vector<int> numbers;
  const auto add = [&](const JsonReader& one) {
    const int number = static_cast<int>(one.integer(1, most));
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end()) one.fail("is there twice");
    numbers.push_back(number);
  };
  if (node.is_list())
    for (const JsonReader& one : node.items_not_empty()) add(one);
  else
    add(node);
  return numbers;
}

// The models of an entry: one, or with "H" among the widths one for each of its numbers.
std::vector<Model> read_models(const JsonReader& node) {
  constexpr const char* kHidden = "H";
  const std::vector<JsonReader> widths = node.at("widths").items_not_empty();
  const auto is_hidden = [](const JsonReader& width) {
    return width.is_string() && width.string() == kHidden;
  };
  const bool has_hidden = std::any_of(widths.begin(), widths.end(), is_hidden);
  if (has_hidden && !node.has(kHidden)) node.fail("\"widths\" has \"H\"; say which by \"H\": [64, 128]");
  if (!has_hidden && node.has(kHidden)) node.at(kHidden).fail("no \"H\" among \"widths\" stands for it");
  std::vector<Model> models;
  for (const int hidden : has_hidden ? read_numbers(node.at(kHidden), kMaxWidth) : std::vector<int>{0}) {
    Model& model = models.emplace_back();
    if (node.has("activation")) model.activation = read_kind(node.at("activation"), parse_activation);
    for (const JsonReader& width : widths)
      model.widths.push_back(is_hidden(width) ? hidden : static_cast<int>(width.integer(1, kMaxWidth)));
  }
  return models;
}

// What an entry says of every workload that it stands for: all but widths, batch size, devices and name.
Workload read_training(const JsonReader& node, const std::filesystem::path& folder) {
  Workload workload;
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
  return workload;
}

bool is_same_training(const Workload& one, const Workload& other) {
  return one.model == other.model && one.loss == other.loss && one.batch_size == other.batch_size &&
         one.devices == other.devices && one.optimizer == other.optimizer && one.dataset == other.dataset &&
         one.seed == other.seed;
}

// Whether `cells` adds nothing to what is there.
bool has_all(const std::vector<SuiteCells>& there, const SuiteCells& cells) {
  const auto holds = [](const auto& values, const auto& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  };
  for (const Precision precision : cells.precisions)
    for (const std::string& backend : cells.backends)
      if (std::none_of(there.begin(), there.end(), [&](const SuiteCells& one) {
            return holds(one.precisions, precision) && holds(one.backends, backend);
          }))
        return false;
  return true;
}

// A workload that is there already gets the new cells; one that only has its name is a mistake.
void add_workload(Suite& suite, SuiteWorkload entry, const JsonReader& node) {
  for (SuiteWorkload& other : suite.workloads) {
    if (other.workload.name != entry.workload.name) continue;
    if (!is_same_training(other.workload, entry.workload) || has_all(other.cells, entry.cells.front()))
      node.fail(fmt::format("there is a workload '{}' already; give this one a \"name\" of its own",
                            entry.workload.name));
    other.cells.push_back(std::move(entry.cells.front()));
    return;
  }
  suite.workloads.push_back(std::move(entry));
}

void read_entry(const JsonReader& node, Suite& suite, const SuiteCells& defaults,
                const std::filesystem::path& folder) {
  expect_keys(node, {"widths", "batch_size"},
              {"H", "name", "about", "devices", "activation", "loss", "optimizer", "seed", "learning_rate",
               "data", "precisions", "backends"});
  SuiteCells cells = defaults;
  if (node.has("precisions")) cells.precisions = read_precisions(node.at("precisions"));
  if (node.has("backends")) cells.backends = read_names(node.at("backends"));
  std::string about;
  if (node.has("about")) {
    about = node.at("about").string();
    if (about.empty() || about.size() > kLongestAbout)
      node.at("about").fail(fmt::format("expected a sentence of at most {} bytes", kLongestAbout));
  }
  Workload workload = read_training(node, folder);
  const std::vector<Model> models = read_models(node);
  const std::vector<int> batches = read_numbers(node.at("batch_size"), std::int64_t{1} << 30);
  const std::vector<int> devices =
      node.has("devices") ? read_numbers(node.at("devices"), kMaxDevices) : std::vector<int>{1};
  const std::size_t count = models.size() * batches.size() * devices.size();
  if (node.has("name") && count > 1)
    node.at("name").fail(fmt::format("the entry stands for {} workloads; leave it out", count));
  const auto add = [&] {
    workload.name = node.has("name") ? node.at("name").string() : default_name(workload);
    refuse_false_name(node, workload);
    try {
      validate(workload);
    } catch (const InputError& error) {
      node.fail(error.what());
    }
    add_workload(suite, {workload, {cells}, about}, node);
  };
  for (const Model& model : models) {
    for (const int batch : batches) {
      for (const int of_devices : devices) {
        workload.model = model;
        workload.batch_size = batch;
        workload.devices = of_devices;
        add();
      }
    }
  }
}

// The draw must come to an end: there are far more networks of a size than are asked for.
constexpr std::int64_t kMostDrawn = 1000;

Drawing read_drawing(const JsonReader& node, const SuiteCells& cells) {
  expect_keys(node, {"networks", "layers", "width", "batch_size"}, {});
  const auto most = [&](const char* key, std::int64_t least, std::int64_t limit) {
    return static_cast<int>(node.at(key).integer(least, limit));
  };
  return {.networks = most("networks", 1, kMostDrawn),
          .most_layers = most("layers", 1, kMaxLayers),
          .most_width = most("width", 100, kMaxWidth),
          .most_batch = most("batch_size", 1, std::int64_t{1} << 30),
          .cells = cells};
}

}  // namespace

Suite read_suite(const std::filesystem::path& file) try {
  const nlohmann::json parsed = read_json(file, "a suite file");
  const JsonReader root(parsed, file.string());
  expect_keys(root, {"description", "precisions", "backends"},
              {"workloads", "drawn", "precisions_without_gpu", "loss_steps", "loss_seeds",
               "python_worker_arguments"});
  if (root.has("workloads") == root.has("drawn")) root.fail("expected either key 'workloads' or key 'drawn'");
  Suite suite;
  suite.name = file.stem().string();
  check_name(file.string() + ": the file's name without .json", suite.name);
  suite.description = root.at("description").string();
  const SuiteCells defaults{read_precisions(root.at("precisions")), read_names(root.at("backends"))};
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
  if (root.has("drawn"))
    suite.drawing = read_drawing(root.at("drawn"), defaults);
  else
    for (const JsonReader& node : root.at("workloads").items_not_empty())
      read_entry(node, suite, defaults, file.parent_path());
  return suite;
} catch (const JsonError& error) {
  throw InputError(error.what());
}

std::vector<SuiteWorkload> workloads_of(const Suite& suite, const std::string& word) {
  if (!suite.drawing) return suite.workloads;
  if (word.empty())
    throw InputError(fmt::format(
        "suite {} draws its networks from the commit, and no commit is known; give a word with --draw",
        suite.name));
  return draw_workloads(*suite.drawing, word);
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
