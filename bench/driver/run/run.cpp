#include "driver/run/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "core/error.h"
#include "driver/run/offers.h"
#include "driver/run/verify.h"
#include "driver/system/host.h"
#include "driver/system/interruption.h"
#include "driver/system/shown_path.h"
#include "driver/system/subprocess.h"

namespace headroom {

namespace fs = std::filesystem;

void start_workers_as_the_suite_asks(RunOptions& options, const Installation& installation) {
  if (!options.workload_names.empty()) return;
  const Suite suite = read_suite(find_suite(options.suite, installation.root / "bench" / "suites"));
  const auto is_python = [](const WorkerOption& worker) { return worker.name == "python"; };
  if (suite.python_worker_arguments.empty() ||
      std::any_of(options.workers.begin(), options.workers.end(), is_python))
    return;
  WorkerOption& worker = options.workers.emplace_back();
  worker.name = "python";
  worker.command = {installation.python, "-m", "headroom_worker"};
  worker.command.insert(worker.command.end(), suite.python_worker_arguments.begin(),
                        suite.python_worker_arguments.end());
}

void greet_named_workers(const RunOptions& options, WorkerPool& pool) {
  std::vector<std::string> names;
  for (const WorkerOption& worker : options.workers) names.push_back(worker.name);
  pool.greet(names);
  for (const Greeting* greeting : pool.silent()) {
    // Its rows say so.
    if (greeting->killed || greeting->other_protocol) continue;
    throw InputError(fmt::format("--worker {}: {}", greeting->worker, greeting->problem));
  }
}

bool wants_gpu_oracle(const Plan& plan) {
  return std::any_of(plan.workloads.begin(), plan.workloads.end(),
                     [](const PlannedWorkload& planned) { return wants_gpu_oracle(planned.workload); });
}

void keep_needed_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool) {
  std::set<std::string> needed = serving_workers(plan, table);
  for (const Greeting& greeting : pool.greetings())
    if (greeting.hello && greeting.hello->calibrates) needed.insert(greeting.worker);
  const BackendRow* reference = reference_on_device(table, pool);
  if (reference != nullptr && wants_gpu_oracle(plan)) needed.insert(reference->worker);
  pool.keep_only(needed);
}

void start_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool) {
  std::vector<BackendRow> rows;
  const auto add = [&](const BackendRow& row) {
    const auto same = [&](const BackendRow& other) { return other.name == row.name; };
    if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back(row);
  };
  const BackendRow* reference = reference_on_device(table, pool);
  if (reference != nullptr && wants_gpu_oracle(plan)) add(*reference);
  for (const PlannedWorkload& planned : plan.workloads) {
    for (const Group& group : planned.groups) {
      for (const std::string& backend : group.backends) {
        const BackendRow& row = row_of(table, backend);
        if (pool.availability(row, group.precision, planned.workload.devices).state ==
            Availability::State::kAvailable)
          add(row);
      }
    }
  }
  pool.start_ahead(rows);
}

void choose_output(const RunOptions& options, const Plan& plan, const Installation& installation,
                   const Results& results, ReservedFile& output) {
  if (!options.resume.empty()) return;
  const std::string text = to_json(results);
  if (options.output.empty()) {
    const fs::path folder = installation.root / "results" / "runs";
    const std::string stem = fmt::format("{}-{}", utc_for_name(), plan.suite.value_or("workloads"));
    fs::path file = folder / (stem + ".json");
    for (int i = 2; !output.create(file, text); ++i) file = folder / fmt::format("{}-{}.json", stem, i);
    return;
  }
  const fs::path& file = options.output;
  std::error_code ignored;
  if (fs::is_directory(file, ignored))
    throw InputError(fmt::format("--output {}: is a folder; expected a file name", file.string()));
  if (!output.create(file, text)) {
    throw InputError(
        fmt::format("--output {}: there is such a file; name another, or go on with it by --resume {}",
                    file.string(), file.string()));
  }
}

std::string choose_cache_folder(const RunOptions& options) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  const auto writable = [](const fs::path& folder) {
    std::error_code ignored;
    return fs::is_directory(folder, ignored) && access(folder.c_str(), W_OK | X_OK) == 0;
  };
  std::error_code error;
  if (!options.cache_folder.empty()) {
    fs::create_directories(options.cache_folder, error);
    if (writable(options.cache_folder)) return fs::absolute(options.cache_folder).string();
    throw InputError(
        fmt::format("--cache-dir {}: cannot be written; name another folder", options.cache_folder));
  }
  const fs::path cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!cache.is_absolute() && !home.is_absolute()) return "";
  const fs::path folder = (cache.is_absolute() ? cache : home / ".cache") / "headroom" / "compiled";
  fs::path there = folder;  // made when something is compiled
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  return writable(there) ? folder.string() : "";
}

void draw_figures(const Installation& installation, const fs::path& results_file, Progress& progress) {
  const fs::path program = installation.root / "plots" / "figures.py";
  std::error_code ignored;
  if (!fs::exists(program, ignored)) {
    progress.line("No figures: plots/figures.py was not found; set HEADROOM_ROOT to the checkout.");
    return;
  }
  // A file without .json would have the name of its own folder.
  const std::string name = results_file.filename().string();
  const fs::path folder = results_file.parent_path() /
                          (name.ends_with(".json") ? results_file.stem().string() : name + "-figures");
  progress.status("drawing figures", true);
  const ProgramResult result = run_program(
      {installation.python, program.string(), "--output=" + folder.string(), "--", results_file.string()},
      300, true);
  interruption::throw_if_requested();
  if (result.exit_code == 0) {
    progress.line(fmt::format("Figures: {}", shown(folder)));
  } else if (result.exit_code == 3) {
    const std::string said = result.output.substr(0, result.output.find('\n'));
    if (!said.empty()) progress.line(said);
  } else {
    progress.line(fmt::format("No figures: plots/figures.py ended with {}.", result.exit_code));
  }
}

}  // namespace headroom
