#include "driver/run/list.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "driver/gpu/cuda_devices.h"
#include "driver/plan/backends.h"
#include "driver/plan/suite.h"
#include "driver/run/offers.h"
#include "driver/run/worker_pool.h"
#include "driver/system/scratch.h"
#include "driver/system/sources.h"
#include "driver/system/table.h"

namespace headroom {
namespace {

using json = nlohmann::ordered_json;

constexpr std::ptrdiff_t kMostListed = 20;  // workloads of a suite

struct PrecisionState {
  Precision precision;
  Availability availability;
};

// "fp32, fp16" or "" of those that run.
std::string running(const std::vector<PrecisionState>& states) {
  std::string text;
  for (const PrecisionState& state : states) {
    if (state.availability.state != Availability::State::kAvailable) continue;
    text += (text.empty() ? "" : ", ") + std::string(to_string(state.precision));
  }
  return text;
}

// The reasons of those that do not run, each said once.
std::string reasons(const std::vector<PrecisionState>& states) {
  std::vector<std::pair<std::string, std::string>> by_reason;
  for (const PrecisionState& state : states) {
    if (state.availability.state == Availability::State::kAvailable) continue;
    const std::string name(to_string(state.precision));
    bool known = false;
    for (auto& [reason, names] : by_reason) {
      if (reason != state.availability.reason) continue;
      names += ", " + name;
      known = true;
    }
    if (!known) by_reason.emplace_back(state.availability.reason, name);
  }
  if (by_reason.size() == 1 && running(states).empty()) return by_reason.front().first;
  std::string text;
  for (const auto& [reason, names] : by_reason)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", names, reason);
  return text;
}

}  // namespace

std::string list_text(const ListOptions& options, std::size_t width) {
  const Installation installation = find_installation();
  const std::filesystem::path folder = installation.root / "bench" / "suites";
  std::vector<Suite> suites;
  for (const std::string& name : suite_names(folder)) suites.push_back(read_suite(find_suite(name, folder)));
  const std::string commit = git_state(installation.root).sha.value_or("");
  for (Suite& suite : suites)
    if (!suite.drawing || !commit.empty()) suite.workloads = workloads_of(suite, commit);

  // A worker that does not answer soon must not hold up a list.
  TimeLimits limits;
  limits.hello = std::chrono::seconds(60);
  const Scratch scratch(0);
  const bool has_device = options.device >= 0 && cuda_device_count() > 0;
  const std::vector<WorkerProgram> programs = worker_programs(installation, options.workers);
  WorkerPool pool(programs, has_device ? options.device : -1, limits, scratch.folder());
  pool.greet_all();
  const std::vector<BackendRow> table = find_backends(programs, pool, {kAllBackends});
  const std::optional<DeviceInfo> device = pool.device();

  std::vector<std::vector<PrecisionState>> states;
  for (const BackendRow& row : table) {
    states.emplace_back();
    for (const Precision precision : kAllPrecisions)
      states.back().push_back({precision, pool.availability(row, precision)});
  }

  if (options.json) {
    json list = {{"device", device ? json(device->name) : json(nullptr)},
                 {"suites", json::array()},
                 {"backends", json::array()}};
    for (const Suite& suite : suites) {
      json workloads = json::array();
      for (const SuiteWorkload& entry : suite.workloads) workloads.push_back(entry.workload.name);
      list["suites"].push_back(
          {{"name", suite.name}, {"description", suite.description}, {"workloads", workloads}});
    }
    for (std::size_t i = 0; i < table.size(); ++i) {
      json precisions = json::object();
      for (const PrecisionState& state : states[i]) {
        const bool runs = state.availability.state == Availability::State::kAvailable;
        precisions[std::string(to_string(state.precision))] = {
            {"runs", runs}, {"reason", runs ? json(nullptr) : json(state.availability.reason)}};
      }
      list["backends"].push_back({{"name", table[i].name},
                                  {"family", to_string(table[i].family)},
                                  {"description", table[i].description},
                                  {"runs", !running(states[i]).empty()},
                                  {"precisions", precisions}});
    }
    return list.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  }

  std::string text = device ? fmt::format("Device {}: {}\n\n", device->index, device->name)
                            : "No CUDA device was found.\n\n";
  std::vector<Table::Row> rows;
  for (const Suite& suite : suites) {
    rows.push_back({suite.name, suite.description});
    for (const SuiteWorkload& entry : suite.workloads) {
      if (const auto shown = &entry - suite.workloads.data();
          shown == kMostListed && suite.workloads.size() > kMostListed) {
        rows.push_back(
            {fmt::format("  and {} more, which list --json has", suite.workloads.size() - kMostListed)});
        break;
      }
      const std::string trained = default_name(entry.workload);
      if (entry.workload.name == trained)
        rows.push_back({"  " + trained});
      else
        rows.push_back({"  " + entry.workload.name, trained});
    }
  }
  text += "Suites (--suite NAME) and their workloads (--workloads NAME,...)\n" + columns_text(rows, 2);
  rows.clear();
  for (std::size_t i = 0; i < table.size(); ++i) {
    rows.push_back({table[i].name, table[i].description});
    const std::string runs = running(states[i]), why = reasons(states[i]);
    rows.push_back({"", runs.empty() ? "  does not run here: " + why
                                     : "  runs here: " + runs + (why.empty() ? "" : " (" + why + ")")});
  }
  text += "\nBackends (--backend NAME,...)\n" + columns_text(rows, 2);
  return wrapped(text, width);
}

}  // namespace headroom
