#include "driver/run/run.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "analysis/floors.h"
#include "analysis/ladder.h"
#include "core/error.h"
#include "driver/gpu/cuda_devices.h"
#include "driver/run/capacity.h"
#include "driver/system/host.h"
#include "driver/system/interruption.h"
#include "driver/system/sources.h"
#include "driver/system/subprocess.h"
#include "driver/system/units.h"
#include "driver/system/version.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// Setting up a backend that compiles, with nothing of it in the cache.
constexpr double kCompileSeconds = 40;

bool same_definition(const Workload& planned, const Workload& stored) {
  const auto base = [](const std::string& folder) {
    const fs::path path = fs::path(folder).lexically_normal();
    return path.has_filename() ? path.filename() : path.parent_path().filename();
  };
  return planned.model == stored.model && planned.loss == stored.loss &&
         planned.batch_size == stored.batch_size && planned.optimizer == stored.optimizer &&
         planned.seed == stored.seed && planned.dataset.kind == stored.dataset.kind &&
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

// What a worker would have offered that was killed before it could say so: whatever was asked for by a name that nobody
// else has.
void add_rows_of_killed(const std::string& worker, const std::vector<std::string>& asked,
                        std::vector<BackendRow>& table) {
  for (const std::string& name : asked) {
    const auto has_name = [&](const BackendRow& row) { return row.name == name; };
    if (name == "all" || name.starts_with('-') || std::any_of(table.begin(), table.end(), has_name)) continue;
    table.push_back({name, worker, Family::kOther, fmt::format("served by worker '{}'", worker)});
  }
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

int choose_device(const RunOptions& options) {
  if (options.device < 0) return -1;
  const int count = cuda_device_count();
  if (options.device < count) return options.device;
  if (options.device_given) {
    throw InputError(fmt::format(
        "--device {}: {}", options.device,
        count == 0 ? "no CUDA device was found; leave it out to run on the CPU"
                   : fmt::format("there are {}; expected 0 to {}, or -1 for none", count, count - 1)));
  }
  return -1;
}

void greet_named_workers(const RunOptions& options, WorkerPool& pool, std::vector<BackendRow>& table) {
  std::vector<std::string> names;
  for (const WorkerOption& worker : options.workers) names.push_back(worker.name);
  pool.greet(names);
  for (const Greeting& greeting : pool.greetings()) {
    if (!greeting.asked || greeting.hello) continue;
    if (!greeting.killed) throw InputError(fmt::format("--worker {}: {}", greeting.worker, greeting.problem));
    add_rows_of_killed(greeting.worker, options.backends, table);
  }
  pool.add_rows(table);
}

void greet_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, int device,
                           WorkerPool& pool) {
  std::vector<std::string> names;
  if (device >= 0) names = calibrating_workers();
  for (const PlannedWorkload& planned : plan.workloads) {
    if (wants_gpu_oracle(planned.workload)) names.push_back(row_of(table, "oracle-cuda").worker);
    for (const Group& group : planned.groups) {
      for (const std::string& backend : group.backends) names.push_back(row_of(table, backend).worker);
    }
  }
  pool.greet(names);
}

void start_planned_workers(const Plan& plan, const std::vector<BackendRow>& table, WorkerPool& pool) {
  std::vector<BackendRow> rows;
  const auto add = [&](const BackendRow& row) {
    const auto same = [&](const BackendRow& other) { return other.name == row.name; };
    if (std::none_of(rows.begin(), rows.end(), same)) rows.push_back(row);
  };
  for (const PlannedWorkload& planned : plan.workloads) {
    if (wants_gpu_oracle(planned.workload)) add(row_of(table, "oracle-cuda"));
    for (const Group& group : planned.groups) {
      for (const std::string& backend : group.backends) {
        const BackendRow& row = row_of(table, backend);
        if (pool.availability(row, group.precision).state == Availability::State::kAvailable) add(row);
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
          "--resume {}: workloads: '{}' was defined otherwise (widths, activation, loss, batch, optimizer, "
          "data or seed); start a new run instead",
          file, entry.workload.name));
    }
  }
}

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

void note_machine(Results& results, const RunOptions& options, const Plan& plan, const WorkerPool& pool,
                  const std::optional<Results>& earlier) {
  results.device = pool.device();
  results.software = pool.software();
  results.software["headroom"] = kVersion;
  results.software["worker_protocol"] = fmt::format("{}", kProtocolVersion);
  const std::string benchmark_version = HEADROOM_BENCHMARK_VERSION;
  if (!benchmark_version.empty()) results.software["google_benchmark"] = benchmark_version;
  results.software["driver_compiler"] = fmt::format("GCC {}", __VERSION__);
  if (!earlier) return;

  // A run that was killed before the workers had answered knows of no machine.
  if (!earlier->records.empty() || !earlier->calibration.empty())
    refuse_other_machine(options.resume.string(), *earlier, results);
  results.run.id = earlier->run.id;
  results.run.started_utc = earlier->run.started_utc;
  results.run.argv = earlier->run.argv;
  results.run.complete = earlier->run.complete;  // what is to be tried again is there until it is replaced
  results.run.finished_utc = earlier->run.finished_utc;
  results.workloads = earlier->workloads;
  results.calibration = earlier->calibration;
  for (const PlannedWorkload& planned : plan.workloads) {
    for (const Group& group : planned.groups) {
      if (!is_done(*earlier, planned, group)) continue;
      for (const std::string& backend : group.backends) {
        results.records.push_back(*earlier->find(planned.workload.name, backend, group.precision));
      }
    }
  }
}

void lock_device(const RunOptions& options, const std::optional<DeviceInfo>& device, DeviceLock& lock,
                 Progress& progress) {
  if (!device) return;
  const std::string name = device->uuid.empty() ? fmt::format("device-{}", device->index) : device->uuid;
  bool taken = false;
  try {
    taken = lock.try_acquire(name);
  } catch (const InputError& error) {
    if (!options.share_device) {
      throw InputError(fmt::format(
          "device {} ({}): {}; remove what is there, or go on without the lock with --share-device",
          device->index, device->name, error.what()));
    }
    progress.line(fmt::format("Whether another run uses device {} ({}) is not known: {}.", device->index,
                              device->name, error.what()));
    return;
  }
  if (taken) return;
  if (options.share_device) {
    progress.line(
        fmt::format("Another run uses device {} ({}): times will suffer.", device->index, device->name));
    return;
  }
  if (!options.wait) {
    throw InputError(fmt::format(
        "device {} ({}) is in use by another run; wait for it with --wait, or go on with --share-device",
        device->index, device->name));
  }
  progress.line(fmt::format("Waiting for the run that uses device {} ({}).", device->index, device->name));
  while (!lock.try_acquire(name)) {
    interruption::throw_if_requested();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

std::unique_ptr<GpuMonitor> watch_device(std::optional<DeviceInfo>& device, Progress& progress) {
  if (!device) return nullptr;
  std::string missing;
  std::unique_ptr<Nvml> nvml = Nvml::open(device->uuid, missing);
  if (!nvml) {
    progress.line(missing);
    return nullptr;
  }
  if (const std::string unreadable = nvml->unreadable(); !unreadable.empty())
    progress.line(fmt::format("NVML does not say here: {}.", unreadable));
  device->ecc_enabled = nvml->ecc_enabled();
  return std::make_unique<GpuMonitor>(std::move(nvml));
}

void calibrate(Results& results, WorkerPool& pool, Progress& progress) {
  if (!results.device || !results.calibration.empty()) return;
  progress.status("calibrating the device", true);
  results.calibration = pool.calibrate([&](const std::string& problem) { progress.line(problem); });
  std::string without;
  for (const Precision precision : kAllPrecisions) {
    const std::string missing = missing_rate(precision, results.calibration);
    if (!missing.empty())
      without += fmt::format("{}{} ('{}')", without.empty() ? "" : ", ", to_string(precision), missing);
  }
  if (!without.empty()) progress.line(fmt::format("No floors in these, a rate is missing: {}.", without));
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

std::int64_t least_train_bytes(const std::optional<DeviceInfo>& device) {
  return device && device->l2_bytes > 0 ? 4 * device->l2_bytes : kLeastTrainBytes;
}

bool has_gpu_oracle(const std::vector<BackendRow>& table, const WorkerPool& pool) {
  return pool.availability(row_of(table, "oracle-cuda"), Precision::kFp32).state ==
         Availability::State::kAvailable;
}

std::int64_t temporary_bytes(const Plan& plan) {
  const auto seeds = static_cast<std::int64_t>(plan.loss_steps > 0 ? plan.loss_seeds.size() : 0);
  std::int64_t most = 0;
  for (const PlannedWorkload& planned : plan.workloads)
    most = std::max(most, need_of(planned.workload, kLeastTrainBytes, false, seeds).scratch);
  return most;
}

void refuse_too_large(const RunContext& context, const Results& results) {
  const auto seeds =
      static_cast<std::int64_t>(context.plan.loss_steps > 0 ? context.plan.loss_seeds.size() : 0);
  const Room room = room_here();
  for (const PlannedWorkload& planned : context.plan.workloads) {
    const bool runs = std::any_of(planned.groups.begin(), planned.groups.end(), [&](const Group& group) {
      return is_due(context.options, results, planned, group) &&
             std::any_of(group.backends.begin(), group.backends.end(),
                         [&](const std::string& backend) { return runs_here(context, group, backend); });
    });
    if (!runs) continue;
    refuse_too_large(planned.workload,
                     need_of(planned.workload, context.least_train_bytes, context.has_gpu_oracle, seeds),
                     room);
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

bool runs_here(const RunContext& context, const Group& group, const std::string& backend) {
  const auto& limited = context.plan.precisions_without_gpu;
  const bool left_out = !context.has_device && limited &&
                        std::find(limited->begin(), limited->end(), group.precision) == limited->end();
  return !left_out && context.pool.availability(row_of(context.table, backend), group.precision).state ==
                          Availability::State::kAvailable;
}

double estimated_seconds(const RunContext& context, const PlannedWorkload& planned, const Group& group) {
  // Rough rates of what is slowest; the estimate is scaled by what the first groups really take.
  const double cores = static_cast<double>(std::max(1u, std::thread::hardware_concurrency()));
  const double oracle_rate = 1e10 * cores;
  const double flops = planned.workload.flops_per_step();
  const double state_bytes =
      static_cast<double>(planned.workload.parameter_count()) * 4 * (1 + planned.workload.optimizer.slots());
  double seconds = 0;
  int running = 0;
  for (const std::string& backend : group.backends) {
    if (!runs_here(context, group, backend)) continue;
    const BackendRow& row = row_of(context.table, backend);
    ++running;
    double step = context.has_device ? 1e-3 + flops / 3e13 + 2 * state_bytes / 2e12
                                     : 5e-4 + flops / (2e10 * cores) + 2 * state_bytes / 1e10;
    if (row.family == Family::kReference) step = oracle_operations(planned.workload) / oracle_rate;
    if (row.compiles && context.options.compile_processes == 0) seconds += kCompileSeconds;
    const double block = std::max(1.1 * context.options.block_seconds, 50 * step) + std::max(5e-3, 10 * step);
    const double losses =
        static_cast<double>(context.plan.loss_steps) * static_cast<double>(context.plan.loss_seeds.size());
    if (context.monitor != nullptr) seconds += 1.1 * context.options.energy_seconds;
    seconds += 1 + 60 * step + state_bytes * 9 * 6 / 1e9 + context.options.blocks * block + losses * step;
  }
  if (running == 0) return 0;
  const bool gpu_oracle = context.has_gpu_oracle && wants_gpu_oracle(planned.workload);
  return seconds + reference_operations(planned.workload, gpu_oracle) / (gpu_oracle ? 4e12 : oracle_rate) +
         state_bytes * 20 / 1e9;
}

Outlook look_ahead(const RunContext& context, const Results& results) {
  Outlook outlook;
  for (const PlannedWorkload& planned : context.plan.workloads) {
    for (const Group& group : planned.groups) {
      if (!is_due(context.options, results, planned, group)) continue;
      outlook.seconds += estimated_seconds(context, planned, group);
      for (const std::string& backend : group.backends)
        ++(runs_here(context, group, backend) ? outlook.running : outlook.skipped);
    }
  }
  return outlook;
}

void refuse_too_long(const RunOptions& options, const Outlook& outlook) {
  constexpr double kDay = 24 * 3600;
  if (options.yes || outlook.seconds <= kDay) return;
  throw InputError(
      fmt::format("{} record{} would take about {}, more than a day: start it with --yes, or choose less",
                  outlook.running, outlook.running == 1 ? "" : "s", duration_text(outlook.seconds)));
}

void note_workload(Results& results, const PlannedWorkload& planned, const DatasetInfo& dataset) {
  WorkloadEntry* entry = results.find_workload(planned.workload.name);
  if (entry == nullptr) {
    results.workloads.push_back({.workload = planned.workload, .dataset = dataset, .about = planned.about});
  } else if (dataset.digest) {
    entry->dataset = dataset;
  }
}

std::vector<LossCurve> eager_curves(const Results& results, const std::string& workload) {
  const Record* record = results.find(workload, "pytorch-eager", Precision::kFp32);
  return record != nullptr && record->outcome == Outcome::kOk ? record->losses : std::vector<LossCurve>{};
}

void finish_results(Results& results) {
  results.run.finished_utc = utc_now();
  results.run.complete = true;
}

std::string shown(const fs::path& path) {
  // A working folder may go while the program runs.
  std::error_code error;
  const fs::path relative = path.lexically_proximate(fs::current_path(error));
  return error || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
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
