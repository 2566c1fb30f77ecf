#include "driver/plan/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <regex>
#include <tuple>

#include "core/error.h"
#include "core/optimizer_numbers.h"
#include "data/dataset.h"
#include "driver/system/command_name.h"
#include "driver/system/sources.h"

namespace headroom {
namespace {

std::vector<std::string> names_of(const std::vector<BackendRow>& table) {
  std::vector<std::string> names;
  for (const BackendRow& row : table) names.push_back(row.name);
  return names;
}

// `asked` may hold "all", and "-NAME" for what is left out of it; the result is in the table's order, each once. `devices`: those
// of the workload.
std::vector<std::string> expand_backends(const std::vector<std::string>& asked, int devices,
                                         const std::vector<BackendRow>& table, const std::string& where) {
  std::vector<std::string> known = names_of(table);
  for (const std::string& word : asked) {
    const std::string name = word.starts_with('-') ? word.substr(1) : word;
    if (word != kAllBackends && std::find(known.begin(), known.end(), name) == known.end()) {
      throw InputError(fmt::format("{}: unknown backend '{}'; did you mean '{}'? `{} list` shows them", where,
                                   name, nearest_name(name, known), command_name()));
    }
  }
  const auto is_asked = [&](const std::string& word) {
    return std::find(asked.begin(), asked.end(), word) != asked.end();
  };
  std::vector<std::string> chosen;
  for (const BackendRow& row : table) {
    const bool in_all = row.in_all && row.min_devices <= devices;
    if ((is_asked(row.name) || (is_asked(kAllBackends) && in_all)) && !is_asked("-" + row.name))
      chosen.push_back(row.name);
  }
  return chosen;
}

// What is measured of a workload in a precision, in the table's order. --precision stands for what the suite says; a precision that
// the suite does not have there is measured with all backends that it has.
std::vector<std::string> backends_of(const SuiteWorkload& entry, Precision precision,
                                     const RunOptions& options, const std::vector<BackendRow>& table,
                                     const std::string& where) {
  const auto holds = [&](const std::vector<Precision>& precisions) {
    return std::find(precisions.begin(), precisions.end(), precision) != precisions.end();
  };
  const bool in_suite = std::any_of(entry.cells.begin(), entry.cells.end(),
                                    [&](const SuiteCells& cells) { return holds(cells.precisions); });
  if (options.precisions.empty() ? !in_suite : !holds(options.precisions)) return {};
  const int devices = entry.workload.devices;
  std::vector<std::string> wanted;
  for (const SuiteCells& cells : entry.cells) {
    if (in_suite && !holds(cells.precisions)) continue;
    const std::vector<std::string> more = expand_backends(cells.backends, devices, table, where);
    wanted.insert(wanted.end(), more.begin(), more.end());
  }
  return expand_backends(wanted, devices, table, where);
}

// Every name of a backend that any of them asks for.
std::vector<std::string> asked_of(const std::vector<SuiteWorkload>& workloads) {
  std::vector<std::string> asked;
  for (const SuiteWorkload& entry : workloads) {
    for (const SuiteCells& cells : entry.cells)
      for (const std::string& word : cells.backends)
        if (std::find(asked.begin(), asked.end(), word) == asked.end()) asked.push_back(word);
  }
  return asked;
}

// Keeps what is in `wanted`; every name there must exist.
void keep_workloads(std::vector<SuiteWorkload>& workloads, const std::vector<std::string>& wanted,
                    const std::string& suite) {
  std::vector<std::string> known;
  for (const SuiteWorkload& entry : workloads) known.push_back(entry.workload.name);
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw InputError(fmt::format("--workloads: suite {} has no workload '{}'; did you mean '{}'?", suite,
                                   name, nearest_name(name, known)));
    }
  }
  std::erase_if(workloads, [&](const SuiteWorkload& entry) {
    return !wanted.empty() && std::find(wanted.begin(), wanted.end(), entry.workload.name) == wanted.end();
  });
}

// Workload `index` of `count` belongs to the shard that takes every N-th one, so that sizes spread.
void keep_shard(std::vector<SuiteWorkload>& workloads, int shard_index, int shard_count) {
  std::vector<SuiteWorkload> kept;
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(shard_count)) == shard_index - 1)
      kept.push_back(workloads[i]);
  }
  if (kept.empty()) {
    throw InputError(fmt::format("--shard {}/{}: there are only {} workloads; expected N of at most that",
                                 shard_index, shard_count, workloads.size()));
  }
  workloads = kept;
}

// Google Benchmark's rule: the extended expression is found anywhere in the name, a leading '-' negates.
class Filter {
 public:
  explicit Filter(std::string text) {
    if (text.empty() || text == "all") return;
    negated_ = text.front() == '-';
    if (negated_) text.erase(0, 1);
    try {
      pattern_.emplace(text, std::regex::extended | std::regex::nosubs);
    } catch (const std::regex_error&) {
      throw InputError(fmt::format("--benchmark_filter={}: not a regular expression", text));
    }
  }
  bool matches(const std::string& name) const {
    return !pattern_ || std::regex_search(name, *pattern_) != negated_;
  }

 private:
  std::optional<std::regex> pattern_;
  bool negated_ = false;
};

// IDX files are the user's: they are read once before anything is measured, so that a bad one ends the
// program.
void check_data(const std::vector<SuiteWorkload>& workloads) {
  std::vector<std::tuple<std::string, int, int, int>> checked;
  for (const SuiteWorkload& entry : workloads) {
    const Workload& workload = entry.workload;
    if (workload.dataset.kind != DatasetSpec::Kind::kIdx) continue;
    const auto key = std::make_tuple(workload.dataset.folder, workload.inputs(), workload.classes(),
                                     workload.joined_batch_size());
    if (std::find(checked.begin(), checked.end(), key) != checked.end()) continue;
    checked.push_back(key);
    make_dataset(workload, 0);
  }
}

// A workload of the command line: its name, and what other options say instead of it.
Workload named_workload(const std::string& name, const RunOptions& options) {
  Workload workload = parse_workload_name(name);
  if (options.batch_size) workload.batch_size = *options.batch_size;
  if (options.loss) workload.loss = *options.loss;
  if (options.optimizer && *options.optimizer != workload.optimizer.kind)
    workload.optimizer = {.kind = *options.optimizer};
  workload.name = default_name(workload);
  return workload;
}

// A suite says of each of its workloads what it is.
void refuse_other_training(const RunOptions& options) {
  const char* option = options.batch_size  ? "--batch"
                       : options.loss      ? "--loss"
                       : options.optimizer ? "--optimizer"
                                           : nullptr;
  if (option != nullptr)
    throw InputError(fmt::format(
        "{}: goes with --workload or --model; workloads of a suite say themselves what is trained", option));
}

// A name that says what is trained goes on saying it.
void set_numbers(Workload& workload, const std::map<std::string, double>& numbers) {
  const bool says_all = workload.name == default_name(workload);
  for (const auto& [name, value] : numbers) {
    double* number = optimizer_number(workload.optimizer, name);
    if (number == nullptr) {
      std::string option = name;
      std::replace(option.begin(), option.end(), '_', '-');
      throw InputError(fmt::format(
          "--{}: workload '{}' is trained by {}, which has none; choose other workloads, or leave it out",
          option, workload.name, to_string(workload.optimizer.kind)));
    }
    *number = value;
  }
  if (says_all) workload.name = default_name(workload);
}

// The word that the suite's networks are drawn from.
std::string drawn_from(const RunOptions& options, const Suite& suite, const Installation& installation) {
  if (!options.draw.empty() && !suite.drawing)
    throw InputError(fmt::format("--draw: suite {} draws nothing; --suite drawn does", suite.name));
  if (!options.draw.empty() || !suite.drawing) return options.draw;
  return git_state(installation.root).sha.value_or("");
}

}  // namespace

std::int64_t Plan::cells() const {
  std::int64_t count = 0;
  for (const PlannedWorkload& planned : workloads) {
    for (const Group& group : planned.groups) count += static_cast<std::int64_t>(group.backends.size());
  }
  return count;
}

std::set<std::string> serving_workers(const Plan& plan, const std::vector<BackendRow>& table) {
  std::set<std::string> workers;
  for (const PlannedWorkload& planned : plan.workloads) {
    for (const Group& group : planned.groups)
      for (const std::string& backend : group.backends) workers.insert(row_of(table, backend).worker);
  }
  workers.erase("");
  return workers;
}

std::string cell_name(const std::string& workload, const std::string& backend, Precision precision) {
  return fmt::format("{}/{}/{}", workload, backend, to_string(precision));
}

Plan make_plan(const RunOptions& options, const Installation& installation, const OfferedBackends& offered) {
  Plan plan;
  std::vector<SuiteWorkload> entries;
  std::string where = "--workload";
  if (options.workload_names.empty()) {
    refuse_other_training(options);
    const std::filesystem::path file = find_suite(options.suite, installation.root / "bench" / "suites");
    Suite suite = read_suite(file);
    where = file.string();
    plan.suite = suite.name;
    plan.precisions_without_gpu = suite.precisions_without_gpu;
    plan.loss_steps = suite.loss_steps;
    plan.loss_seeds = suite.loss_seeds;
    entries = workloads_of(suite, drawn_from(options, suite, installation));
    keep_workloads(entries, options.suite_workloads, suite.name);
  } else {
    if (!options.draw.empty()) throw InputError("--draw: goes with --suite drawn, not with --workload");
    for (const std::string& name : options.workload_names) {
      SuiteWorkload entry{named_workload(name, options), {{{Precision::kFp32}, {kAllBackends}}}};
      for (const SuiteWorkload& other : entries) {
        if (other.workload.name == entry.workload.name) {
          throw InputError(fmt::format("--workload {}: it is there twice", entry.workload.name));
        }
      }
      entries.push_back(std::move(entry));
    }
  }
  keep_shard(entries, options.shard_index, options.shard_count);

  if (!options.precisions.empty()) plan.precisions_without_gpu.reset();
  if (options.loss_steps) plan.loss_steps = *options.loss_steps;
  if (!options.loss_seeds.empty()) plan.loss_seeds = options.loss_seeds;
  if (plan.loss_seeds.empty()) plan.loss_seeds = {1, 2, 3, 4, 5};

  const Filter filter(options.google_benchmark.filter);
  for (SuiteWorkload& entry : entries) {
    Workload& workload = entry.workload;
    if (options.seed) workload.seed = *options.seed;
    set_numbers(workload, options.optimizer_numbers);
    for (const SuiteWorkload* other = entries.data(); other != &entry; ++other)
      if (other->workload.name == workload.name)
        throw InputError(
            fmt::format("--momentum: makes two workloads '{}'; choose one of them", workload.name));
    if (!options.data_folder.empty()) workload.dataset = {DatasetSpec::Kind::kIdx, options.data_folder};
    validate(workload);
    if (!options.backends.empty())
      for (SuiteCells& cells : entry.cells) cells.backends = options.backends;
  }
  check_data(entries);

  const std::vector<BackendRow>& table = offered(asked_of(entries));
  if (!options.backends.empty()) where = "--backend";
  for (SuiteWorkload& entry : entries) {
    const std::string& name = entry.workload.name;
    PlannedWorkload planned{entry.workload, {}, entry.about};
    for (const Precision precision : kAllPrecisions) {
      Group group{precision, {}};
      for (const std::string& backend : backends_of(entry, precision, options, table, where)) {
        if (filter.matches(cell_name(name, backend, precision))) group.backends.push_back(backend);
      }
      if (!group.backends.empty()) planned.groups.push_back(std::move(group));
    }
    if (!planned.groups.empty()) plan.workloads.push_back(std::move(planned));
  }
  if (plan.cells() == 0) {
    throw InputError(
        options.google_benchmark.filter.empty()
            ? std::string("nothing to measure: no backend is chosen")
            : fmt::format("--benchmark_filter={}: matches no WORKLOAD/BACKEND/PRECISION of this run; "
                          "--benchmark_list_tests shows them",
                          options.google_benchmark.filter));
  }
  return plan;
}

}  // namespace headroom
