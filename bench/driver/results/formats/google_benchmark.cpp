#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <sstream>

#include "analysis/statistics.h"
#include "driver/plan/plan.h"
#include "driver/results/formats/formats.h"

namespace headroom {
namespace {

using Run = benchmark::BenchmarkReporter::Run;

// The library has renamed its fields in version 1.8, which can also tell what was skipped from what failed.
template <typename AnyRun>
void mark_without_time(AnyRun& run, const Record& record) {
  const bool skipped = record.outcome == Outcome::kSkipped;
  if constexpr (requires { run.error_occurred; }) {
    run.error_occurred = true;
    run.error_message = (skipped ? "skipped: " : "") + record.message;
  } else {
    // SkippedWithMessage and SkippedWithError, which an older library's header does not have.
    run.skipped = static_cast<decltype(run.skipped)>(skipped ? 1 : 2);
    run.skip_message = record.message;
  }
}

// What follows from the time of a step; the same for every repetition where it was measured once.
void add_counters(Run& run, const WorkloadEntry* entry, const Record& record, double step_seconds) {
  if (entry != nullptr && step_seconds > 0) {
    run.counters["operations_per_second"] = entry->workload.flops_per_step() / step_seconds;
    if (record.fraction_of_floor)
      run.counters["fraction_of_floor"] = entry->floors.at(record.precision).seconds / step_seconds;
  }
  if (record.joules_per_step) run.counters["joules_per_step"] = *record.joules_per_step;
}

Run run_of(const Record& record, const WorkloadEntry* entry, std::int64_t family) {
  Run run;
  run.run_name.function_name = cell_name(record.workload, record.backend, record.precision);
  run.run_name.time_type = "manual_time";
  run.family_index = family;
  run.per_family_instance_index = 0;
  run.report_label = fmt::format("contract {}", to_string(record.contract));
  // What a name of a suite's own does not say.
  if (entry != nullptr && entry->workload.name != default_name(entry->workload))
    run.report_label += fmt::format(", {}", default_name(entry->workload));
  run.time_unit = benchmark::kMicrosecond;
  run.threads = 1;
  run.repetition_index = 0;
  run.repetitions = std::max<std::int64_t>(1, std::ssize(record.blocks));
  run.iterations = 0;
  return run;
}

// The library's own four, over the blocks' times per step.
void add_aggregates(std::vector<Run>& runs, const Run& like, const WorkloadEntry* entry,
                    const Record& record) {
  const std::vector<double> device = step_samples(record.blocks);
  const std::vector<double> cpu = step_samples(record.blocks, &Block::cpu_seconds);
  const auto count = static_cast<double>(device.size());
  const auto mean = [&](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / count;
  };
  const auto deviation = [&](const std::vector<double>& values) {
    const double middle = mean(values);
    double squares = 0;
    for (const double value : values) squares += (value - middle) * (value - middle);
    return std::sqrt(squares / (count - 1));
  };
  const auto add = [&](const char* name, double real, double cpu_time, bool percentage) {
    Run& run = runs.emplace_back(like);
    run.run_type = Run::RT_Aggregate;
    run.aggregate_name = name;
    run.iterations = std::ssize(device);
    // A reporter divides a time by the iterations, and prints a percentage as it is.
    run.aggregate_unit = percentage ? benchmark::kPercentage : benchmark::kTime;
    run.real_accumulated_time = percentage ? real : real * count;
    run.cpu_accumulated_time = percentage ? cpu_time : cpu_time * count;
  };
  add("mean", mean(device), mean(cpu), false);
  add_counters(runs.back(), entry, record, mean(device));
  add("median", median(device), median(cpu), false);
  add_counters(runs.back(), entry, record, median(device));
  add("stddev", deviation(device), deviation(cpu), false);
  add("cv", deviation(device) / mean(device), mean(cpu) > 0 ? deviation(cpu) / mean(cpu) : 0, true);
}

std::vector<Run> runs_of(const Results& results) {
  std::vector<Run> runs;
  std::int64_t family = 0;
  for (const Record& record : results.records) {
    const WorkloadEntry* entry = results.find_workload(record.workload);
    const Run like = run_of(record, entry, family++);
    if (record.outcome != Outcome::kOk) {
      mark_without_time(runs.emplace_back(like), record);
      continue;
    }
    for (const Block& block : record.blocks) {
      Run& run = runs.emplace_back(like);
      run.repetition_index = &block - record.blocks.data();
      run.iterations = block.steps;
      run.real_accumulated_time = block.device_seconds;
      run.cpu_accumulated_time = block.cpu_seconds;
      add_counters(run, entry, record, block.device_seconds / static_cast<double>(block.steps));
    }
    if (record.blocks.size() > 1) add_aggregates(runs, like, entry, record);
  }
  return runs;
}

std::unique_ptr<benchmark::BenchmarkReporter> make_reporter(const std::string& format) {
  if (format == "console")
    return std::make_unique<benchmark::ConsoleReporter>(benchmark::ConsoleReporter::OO_Tabular);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  if (format == "csv") return std::make_unique<benchmark::CSVReporter>();
#pragma GCC diagnostic pop
  return std::make_unique<benchmark::JSONReporter>();
}

}  // namespace

std::string benchmark_report(const Results& results, const std::string& format, bool with_context) {
  std::ostringstream text, aside;
  const std::unique_ptr<benchmark::BenchmarkReporter> reporter = make_reporter(format);
  reporter->SetOutputStream(&text);
  reporter->SetErrorStream(with_context ? &text : &aside);
  const std::vector<Run> runs = runs_of(results);
  benchmark::BenchmarkReporter::Context context;
  context.name_field_width = 10;
  for (const Run& run : runs)
    context.name_field_width = std::max(context.name_field_width, run.benchmark_name().size());
  if (!reporter->ReportContext(context)) return "";
  // In one call: a CSV's header has the counters of the first call only.
  reporter->ReportRuns(runs);
  reporter->Finalize();
  return text.str();
}

}  // namespace headroom
