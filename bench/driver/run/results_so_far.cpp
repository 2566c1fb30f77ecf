#include "driver/run/results_so_far.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>

#include "analysis/floors.h"
#include "analysis/ladder.h"
#include "driver/system/host.h"
#include "driver/system/sources.h"
#include "driver/system/version.h"

namespace headroom {

Results begin_results(const RunOptions& options, const Plan& plan, const Installation& installation) {
  Results results;
  results.run.started_utc = utc_now();
  results.run.id = fmt::format("{}-{}-{}", utc_for_name(), plan.suite.value_or("workloads"), getpid());
  results.run.argv = publishable_argv(options.argv, installation.root);
  results.run.suite = plan.suite;
  const GitState git = git_state(installation.root);
  results.run.git_sha = git.sha;
  results.run.git_dirty = git.dirty;
  results.run.source_digest = source_digest(installation.root);
  results.run.settings = options.settings;
  results.host = describe_host();
  return results;
}

void note_machine(Results& results, const WorkerPool& pool, const std::vector<int>& peers) {
  results.device = pool.device();
  results.peer_devices.clear();
  for (const int peer : peers)
    if (const auto device = pool.device(peer)) results.peer_devices.push_back(*device);
  results.software = pool.software();
  results.software["headroom"] = kVersion;
  results.software["worker_protocol"] = fmt::format("{}", kProtocolVersion);
  const std::string benchmark_version = HEADROOM_BENCHMARK_VERSION;
  if (!benchmark_version.empty()) results.software["google_benchmark"] = benchmark_version;
  results.software["driver_compiler"] = fmt::format("GCC {}", __VERSION__);
}

void note_workload(Results& results, const PlannedWorkload& planned, const DatasetInfo& dataset) {
  WorkloadEntry* entry = results.find_workload(planned.workload.name);
  if (entry == nullptr) {
    results.workloads.push_back({.workload = planned.workload, .dataset = dataset, .about = planned.about});
  } else if (dataset.digest) {
    entry->dataset = dataset;
  }
}

void note_floor(Results& results, const Workload& workload, std::vector<Record>& records, Precision precision,
                Progress& progress) try {
  if (!results.device) return;
  WorkloadEntry* entry = results.find_workload(workload.name);
  if (entry == nullptr || !entry->dataset.samples) return;
  const auto floor = workload_floor(workload, precision, *entry->dataset.samples, results.calibration,
                                    {results.device->sm_count, results.device->l2_bytes});
  if (floor) entry->floors[precision] = *floor;
  set_fractions(records, entry->floors);
} catch (const std::exception& error) {
  progress.line(fmt::format("No floor of {} in {}: {}.", workload.name, to_string(precision), error.what()));
}

void note_ladder(Results& results, const Workload& workload, Precision precision, Progress& progress) try {
  WorkloadEntry* entry = results.find_workload(workload.name);
  if (entry == nullptr) return;
  const auto floor = entry->floors.find(precision);
  entry->ladders[precision] =
      make_ladder(results.records, workload.name, precision,
                  floor == entry->floors.end() ? std::nullopt : std::optional(floor->second));
} catch (const std::exception& error) {
  progress.line(fmt::format("No ladder of {} in {}: {}.", workload.name, to_string(precision), error.what()));
}

void note_choices(Results& results, const Workload& workload, Precision precision,
                  const std::map<std::string, Choice>& choices) {
  WorkloadEntry* entry = results.find_workload(workload.name);
  if (entry == nullptr) return;
  for (const auto& [backend, choice] : choices) entry->choices[precision][backend] = choice;
}

void put_records(Results& results, const std::vector<Record>& records) {
  std::size_t place = results.records.size();
  for (const Record& record : records) {
    const auto is_same = [&](const Record& other) {
      return other.workload == record.workload && other.backend == record.backend &&
             other.precision == record.precision;
    };
    const auto found = std::find_if(results.records.begin(), results.records.end(), is_same);
    if (found == results.records.end()) continue;
    place = std::min(place, static_cast<std::size_t>(found - results.records.begin()));
    results.records.erase(found);
  }
  place = std::min(place, results.records.size());
  results.records.insert(results.records.begin() + static_cast<std::ptrdiff_t>(place), records.begin(),
                         records.end());
}

std::vector<LossCurve> eager_curves(const Results& results, const std::string& workload) {
  const Record* record = results.find(workload, "pytorch-eager", Precision::kFp32);
  return record != nullptr && record->outcome == Outcome::kOk ? record->losses : std::vector<LossCurve>{};
}

void finish_results(Results& results) {
  results.run.finished_utc = utc_now();
  results.run.complete = true;
}

}  // namespace headroom
