#include "driver/run/resume.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/error.h"
#include "driver/system/sources.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

bool same_definition(const Workload& planned, const Workload& stored) {
  const auto base = [](const std::string& folder) {
    const fs::path path = fs::path(folder).lexically_normal();
    return path.has_filename() ? path.filename() : path.parent_path().filename();
  };
  return planned.model == stored.model && planned.loss == stored.loss &&
         planned.batch_size == stored.batch_size && planned.devices == stored.devices &&
         planned.optimizer == stored.optimizer && planned.seed == stored.seed &&
         planned.dataset.kind == stored.dataset.kind &&
         base(planned.dataset.folder) == base(stored.dataset.folder);
}

// Speed-ups are only between records of one file, so all of a file must be measured on the same thing.
[[noreturn]] void refuse(const std::string& file, const std::string& field, const std::string& then,
                         const std::string& at_present) {
  throw InputError(fmt::format("--resume {}: {} was '{}', is now '{}'; start a new run instead", file, field,
                               then, at_present));
}

void refuse_other_machine(const std::string& file, const Results& earlier, const Results& now) {
  const auto device_text = [](const std::optional<DeviceInfo>& device) {
    return device ? fmt::format("{} {}", device->name, device->uuid) : std::string("none");
  };
  if (device_text(earlier.device) != device_text(now.device))
    refuse(file, "device", device_text(earlier.device), device_text(now.device));
  const auto peers_text = [&](const Results& results) {
    std::string text;
    for (const DeviceInfo& device : results.peer_devices)
      text += (text.empty() ? "" : ", ") + device_text(device);
    return text.empty() ? "none" : text;
  };
  if (peers_text(earlier) != peers_text(now))
    refuse(file, "peer_devices", peers_text(earlier), peers_text(now));
  for (const auto& [name, version] : earlier.software) {
    const auto found = now.software.find(name);
    if (found != now.software.end() && found->second != version)
      refuse(file, "software." + name, version, found->second);
  }
}

bool is_done(const Results& results, const PlannedWorkload& planned, const Group& group) {
  return std::all_of(group.backends.begin(), group.backends.end(), [&](const std::string& backend) {
    return results.find(planned.workload.name, backend, group.precision) != nullptr;
  });
}

bool is_failed(const Record& record) { return record.outcome == Outcome::kFailed; }

}  // namespace

RunOptions resolve_options(const RunOptions& asked, ReservedFile& output, std::optional<Results>& earlier) {
  if (asked.resume.empty()) return asked;
  output.hold(asked.resume);  // before it is read: another run may be writing it
  earlier = read_results(asked.resume);
  if (earlier->version != kResultsVersion) {
    throw InputError(
        fmt::format("--resume {}: is of version {} of the results file, and runs go on in files of version "
                    "{}; start a new run",
                    asked.resume.string(), earlier->version, kResultsVersion));
  }
  RunOptions options = parse_resumed(asked.argv, asked.resume.string(), earlier->run.settings);
  const bool failed = std::any_of(earlier->records.begin(), earlier->records.end(), is_failed);
  if (options.retry_failed && !failed && earlier->run.complete) {
    throw InputError(fmt::format("--resume {}: --retry-failed: that run is complete and no record failed",
                                 asked.resume.string()));
  }
  if (!options.retry_failed && earlier->run.complete) {
    throw InputError(fmt::format("--resume {}: that run is complete; {}leave --resume out for a new one",
                                 asked.resume.string(),
                                 failed ? "measure what failed again with --retry-failed, or " : ""));
  }
  return options;
}

void refuse_other_plan(const RunOptions& options, const std::optional<Results>& earlier, const Plan& plan,
                       const Installation& installation) {
  if (!earlier) return;
  const std::string file = options.resume.string();
  if (earlier->run.suite != plan.suite)
    refuse(file, "run.suite", earlier->run.suite.value_or(""), plan.suite.value_or(""));
  const std::optional<std::string> digest = source_digest(installation.root);
  if (earlier->run.source_digest != digest)
    refuse(file, "run.source_digest", earlier->run.source_digest.value_or("null"), digest.value_or("null"));
  for (const WorkloadEntry& entry : earlier->workloads) {
    const auto found = std::find_if(plan.workloads.begin(), plan.workloads.end(), [&](const auto& planned) {
      return planned.workload.name == entry.workload.name;
    });
    if (found == plan.workloads.end()) {
      throw InputError(fmt::format("--resume {}: workloads: '{}' is not in this run; start a new run instead",
                                   file, entry.workload.name));
    }
    if (!same_definition(found->workload, entry.workload)) {
      throw InputError(fmt::format(
          "--resume {}: workloads: '{}' was defined otherwise (widths, activation, loss, batch, devices, "
          "optimizer, data or seed); start a new run instead",
          file, entry.workload.name));
    }
  }
}

void go_on_with(const Results& earlier, const std::string& file, const Plan& plan, Results& results) {
  // A run that was killed before the workers had answered knows of no machine.
  if (!earlier.records.empty() || !earlier.calibration.empty()) refuse_other_machine(file, earlier, results);
  results.run.id = earlier.run.id;
  results.run.started_utc = earlier.run.started_utc;
  results.run.argv = earlier.run.argv;
  results.run.model = earlier.run.model;
  results.run.complete = earlier.run.complete;  // what is to be tried again is there until it is replaced
  results.run.finished_utc = earlier.run.finished_utc;
  results.workloads = earlier.workloads;
  results.calibration = earlier.calibration;
  for (const PlannedWorkload& planned : plan.workloads) {
    for (const Group& group : planned.groups) {
      if (!is_done(earlier, planned, group)) continue;
      for (const std::string& backend : group.backends) {
        results.records.push_back(*earlier.find(planned.workload.name, backend, group.precision));
      }
    }
  }
}

bool is_due(const RunOptions& options, const Results& results, const PlannedWorkload& planned,
            const Group& group) {
  if (!is_done(results, planned, group)) return true;
  // All of the group: blocks of one backend alone would not be interleaved with those that it is compared with.
  return options.retry_failed &&
         std::any_of(group.backends.begin(), group.backends.end(), [&](const std::string& backend) {
           return is_failed(*results.find(planned.workload.name, backend, group.precision));
         });
}

}  // namespace headroom
