// Headroom: trains the same networks through hand-written CUDA kernels and through PyTorch, checks that both
// trained the same thing, and compares their speed.
//
// This file is the data flow of a run from top to bottom. Training happens in worker processes; this program
// holds no CUDA context and no PyTorch.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

#include "core/error.h"
#include "core/names.h"
#include "driver/compare/compare.h"
#include "driver/compare/formats/formats.h"
#include "driver/history/formats/formats.h"
#include "driver/history/history.h"
#include "driver/plan/options.h"
#include "driver/results/benchmark_out.h"
#include "driver/results/formats/formats.h"
#include "driver/run/calibration_text.h"
#include "driver/run/compile_ahead.h"
#include "driver/run/device_use.h"
#include "driver/run/list.h"
#include "driver/run/offers.h"
#include "driver/run/outlook.h"
#include "driver/run/profile.h"
#include "driver/run/results_so_far.h"
#include "driver/run/resume.h"
#include "driver/run/run.h"
#include "driver/run/user_model.h"
#include "driver/system/command_name.h"
#include "driver/system/interruption.h"
#include "driver/system/left_out.h"
#include "driver/system/scratch.h"
#include "driver/system/shown_path.h"
#include "driver/system/standard_output.h"
#include "driver/system/terminal.h"
#include "driver/system/units.h"
#include "worker/children.h"

namespace headroom {
namespace {

constexpr int kDone = 0, kFailedRecord = 1, kUsage = 2, kNotComparable = 4;

// Never throws, as fmt::print does where standard error cannot be written.
void complain(const std::string& message) {
  std::fputs(fmt::format("headroom: {}\n", one_line(message)).c_str(), stderr);
}

// Every relative name would lead nowhere.
void require_working_folder() {
  std::error_code error;
  if (std::filesystem::current_path(error).empty())
    throw InputError(
        fmt::format("the working folder cannot be found: {}; change to one that is there", error.message()));
}

// One workload in one precision: every backend is set up, checked against the oracle, and only then timed.
std::vector<Record> run_group(const RunContext& context, WorkloadFiles& files, GroupRun& group,
                              const std::vector<LossCurve>& eager) {
  if (group.any_left()) {
    try {
      group.make_reference(files);
      group.prepare_and_check(files);
      group.time_blocks();
      group.measure_energies();
      group.release();
      group.train_losses(files, eager);
    } catch (
        const std::exception& error) {  // of the driver itself: what is a backend's fault is in its record
      interruption::throw_if_requested();
      group.fail_all(error.what());
      context.pool.end_all();
    }
  }
  return group.records();
}

// All precisions of one workload; the file is written after each.
void run_workload(const RunContext& context, const PlannedWorkload& planned, const std::string& position,
                  Results& results, ReservedFile& output) {
  std::optional<WorkloadFiles> files;
  for (const Group& planned_group : planned.groups) {
    if (!is_due(context.options, results, planned, planned_group)) continue;
    interruption::throw_if_requested();
    context.progress.stage_begins(estimated_seconds(context, planned, planned_group));
    GroupRun group(
        context, planned.workload, planned_group,
        fmt::format("{} {} {}", position, planned.workload.name, to_string(planned_group.precision)));
    note_workload(results, planned, {});
    std::vector<Record> records;
    try {
      if (group.any_left() && !files) {
        files.emplace(context, planned.workload);
        note_workload(results, planned, files->own().info);
      }
    } catch (const std::exception& error) {
      group.fail_all(fmt::format("making the data set: {}", error.what()));
    }
    if (files) {
      records = run_group(context, *files, group, eager_curves(results, planned.workload.name));
    } else {
      records = group.records();
    }
    note_floor(results, planned.workload, records, planned_group.precision, context.progress);
    put_records(results, records);
    note_choices(results, planned.workload, planned_group.precision, group.choices());
    note_ladder(results, planned.workload, planned_group.precision, context.progress);
    output.write(to_json(results));
    write_benchmark_out(context.options.google_benchmark, results, /*at_the_end=*/false);
    context.progress.stage_done();
  }
}

int run(const RunOptions& asked) {
  // What is wrong with the command line, the suite or the data ends the program here, with nothing measured.
  std::optional<Results> earlier;
  ReservedFile output;
  const Installation installation = find_installation();
  RunOptions options = resolve_options(asked, output, earlier);
  std::optional<ModelSource> model = take_user_model(options, installation);
  start_workers_as_the_suite_asks(options, installation);
  Progress progress;

  const Scratch logs(0);
  const int device = choose_device(options);
  TimeLimits limits;
  limits.train = limits.reference = limits.other = std::chrono::seconds(options.time_limit_seconds);
  limits.prepare = std::chrono::seconds(options.setup_limit_seconds);
  limits.hello = std::min(limits.hello, limits.other);
  // The workers say which backends there are, and on which device.
  std::vector<WorkerProgram> programs = worker_programs(installation, options.workers);
  if (options.choose_again) forget_choices(programs);
  const std::vector<int> possible_peers = peer_devices(options, device);
  WorkerPool pool(programs, device, limits, logs.folder(), possible_peers);
  greet_named_workers(options, pool);
  std::vector<BackendRow> table;
  const Plan plan =
      make_plan(options, installation, [&](const std::vector<std::string>& names) -> const auto& {
        progress.status("asking the workers what they offer");
        if (device >= 0) greet_quick_workers(programs, pool);  // some of them calibrate it
        return table = find_backends(programs, pool, names);
      });
  if (options.google_benchmark.list_tests) {
    for (const PlannedWorkload& planned : plan.workloads) {
      for (const Group& group : planned.groups) {
        for (const std::string& backend : group.backends) {
          print(cell_name(planned.workload.name, backend, group.precision) + "\n");
        }
      }
    }
    return kDone;
  }
  const std::vector<int> peers = planned_peers(options, plan, possible_peers, progress);
  pool.use_peers(peers);
  refuse_other_plan(options, earlier, plan, installation);
  Results results = begin_results(options, plan, installation);
  if (model) {
    model->workload = plan.workloads.front().workload.name;
    results.run.model = model;
    progress.line(fmt::format("{}:{} is {}.", model->file, model->name, model->workload));
  }
  choose_output(options, plan, installation, results, output);
  const std::string cache_folder = choose_cache_folder(options);
  if (cache_folder.empty() && options.compile_processes > 0)
    throw InputError("--compile-processes: nowhere to keep compiled code; name a folder with --cache-dir");
  check_benchmark_out(options.google_benchmark, output.path());
  initialize_google_benchmark(options.google_benchmark);

  if (const std::string text = left_out_text(); !text.empty()) progress.line(text);
  progress.status("starting the workers", true);
  keep_needed_workers(plan, table, pool);
  note_machine(results, pool, peers);
  if (earlier) go_on_with(*earlier, options.resume.string(), plan, results);
  add_benchmark_context(options.google_benchmark, results);
  std::vector<DeviceInfo> devices = results.peer_devices;
  if (results.device) devices.push_back(*results.device);
  const std::vector<DeviceLock> locks = lock_devices(options, devices, progress);
  if (!results.device) progress.line("No CUDA device was found: only what runs on the CPU is measured.");

  const std::vector<std::unique_ptr<GpuMonitor>> watching = watch_devices(results, progress);
  std::vector<GpuMonitor*> monitors;
  for (const auto& monitor : watching) monitors.push_back(monitor.get());
  const Scratch files(temporary_bytes(plan));
  const RunContext context{.options = options,
                           .plan = plan,
                           .table = table,
                           .pool = pool,
                           .progress = progress,
                           .folder = files.folder(),
                           .cache_folder = cache_folder,
                           .least_train_bytes = least_train_bytes(results.device),
                           .has_device = results.device.has_value(),
                           .gpu_oracle = reference_on_device(table, pool),
                           .monitors = monitors};
  refuse_too_large(context, results);
  const Outlook outlook = look_ahead(context, results);
  if (!options.compile_only) refuse_too_long(options, outlook);
  if (options.compile_processes > 0) compile_ahead(context, options.compile_processes);
  if (options.compile_only) return kDone;
  start_planned_workers(plan, table, pool);
  calibrate(results, peers, pool, progress);

  progress.line(fmt::format("{} record{} on {}{}: about {}. Results: {}", outlook.running,
                            outlook.running == 1 ? "" : "s",
                            results.device ? results.device->name : "the CPU",
                            outlook.skipped > 0 ? fmt::format(", {} skipped", outlook.skipped) : "",
                            duration_text(outlook.seconds), shown(output.path())));
  progress.set_estimate(outlook.seconds);

  // From here on the file always holds what was finished.
  output.write(to_json(results));
  try {
    for (std::size_t i = 0; i < plan.workloads.size(); ++i) {
      run_workload(context, plan.workloads[i], fmt::format("[{}/{}]", i + 1, plan.workloads.size()), results,
                   output);
    }
  } catch (const Interrupted&) {
    progress.line(fmt::format("Interrupted. What was finished is in {0}; go on with: {1} run --resume {0}{2}",
                              shown(output.path()), command_name(),
                              options.retry_failed ? " --retry-failed" : ""));
    throw;
  }
  finish_results(results);
  output.write(to_json(results));
  write_benchmark_out(options.google_benchmark, results, /*at_the_end=*/true);
  pool.end_all();

  // Before the figures: whatever ends those, what was measured has been said.
  progress.clear();
  print(printed(results, options, output.path(), terminal_width(STDOUT_FILENO)));
  if (options.figures) draw_figures(installation, output.path(), progress);

  const bool failed = std::any_of(results.records.begin(), results.records.end(),
                                  [](const Record& record) { return record.outcome == Outcome::kFailed; });
  return failed ? kFailedRecord : kDone;
}

// Reads or measures two sides, judges them, and says it in the exit code.
int compare(const CompareOptions& options) {
  if (!options.save_baseline.empty()) {
    print(stored_text(options));
    return kDone;
  }
  check_output(options);
  if (options.print_targets) {
    print(targets_text(options));
    return kDone;
  }
  int worst = kDone;
  std::string comparisons;
  std::optional<OutputError> not_printed;  // the file gets everything nevertheless
  const auto report = [&](const Comparison& comparison) {
    comparisons += comparison_json(comparison);
    worst = worse(worst, exit_code(comparison));
    try {
      if (!not_printed) print(formatted(comparison, options.format, terminal_width(STDOUT_FILENO)));
    } catch (const OutputError& error) {
      if (options.output.empty()) throw;
      not_printed = error;
    }
  };
  if (measures(options)) {
    compare_builds(options, report);
  } else {
    report(read_comparison(options));
  }
  write_output(comparisons, options);
  if (not_printed) throw *not_printed;
  return worst;
}

// The rows of all files. What lies beside results files and is none is left out, with a line.
int report(const ReportOptions& options) {
  std::string rows = blocks_csv_header();
  std::vector<std::string> left_out;
  for (const std::filesystem::path& file : options.files) {
    try {
      rows += blocks_csv(read_results(file), file.string());
    } catch (const OtherFileError& error) {
      if (options.files.size() == 1) throw;
      left_out.push_back(fmt::format("left out: {}", error.what()));
    }
  }
  print(rows);
  for (const std::string& line : left_out) complain(line);
  return kDone;
}

// The table, and the figures where a folder was named for them.
int history(const HistoryOptions& options) {
  const History history = read_history(options);
  print(formatted(history, options.format, terminal_width(STDOUT_FILENO)));
  if (options.format != SummaryFormat::kText) std::fputs(printable(file_notes(history)).c_str(), stderr);
  return options.output.empty() || draw_history(history, options) ? kDone : kUsage;
}

int dispatch(int argc, char** argv) {
  const CommandLine line = parse_command_line(std::vector<std::string>(argv, argv + argc));
  if (line.command != CommandLine::Command::kPrintAndExit) require_working_folder();
  const std::size_t width = terminal_width(STDOUT_FILENO);
  switch (line.command) {
    case CommandLine::Command::kRun:
      return run(line.run);
    case CommandLine::Command::kList:
      print(list_text(line.list, width));
      return kDone;
    case CommandLine::Command::kCalibrate:
      print(calibration_text(line.calibrate, width));
      return kDone;
    case CommandLine::Command::kCompare:
      return compare(line.compare);
    case CommandLine::Command::kProfile:
      print(profile_text(line.profile));
      return kDone;
    case CommandLine::Command::kHistory:
      return history(line.history);
    case CommandLine::Command::kReport:
      return report(line.report);
    case CommandLine::Command::kPrintAndExit:
      break;
  }
  print(line.text);
  return kDone;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  keep_standard_streams();
  try {
    begin_without_benchmark_variables(argv);
    interruption::install();
    children::adopt_orphans();
    return dispatch(argc, argv);
  } catch (const Interrupted&) {
    return interruption::kExitCode;
  } catch (const NotComparableError& error) {
    complain(error.what());
    return interruption::requested() ? interruption::kExitCode : kNotComparable;
  } catch (const InputError& error) {
    complain(error.what());
    return interruption::requested() ? interruption::kExitCode : kUsage;
  } catch (const OutputError& error) {
    complain(error.what());
    return interruption::requested() ? interruption::kExitCode : kUsage;
  } catch (const std::exception& error) {
    if (interruption::requested()) return interruption::kExitCode;
    complain(error.what());
    // Of a comparison 1 is a verdict, which there is not.
    return argc > 1 && std::string_view(argv[1]) == "compare" ? kUsage : kFailedRecord;
  } catch (...) {
    complain("something was thrown that is not an error");
    return kFailedRecord;
  }
}
