// Google Benchmark's JSON, as --benchmark_out writes it since version 1.5: each repetition is a sample, and aggregates
// are left aside, as they say nothing that the repetitions do not.
#include <nlohmann/json.hpp>
#include <set>

#include "driver/compare/other_tools/other_tools.h"

namespace headroom {
namespace {

constexpr double kMostTime = 1e12;

double seconds_of_unit(const JsonReader& unit) {
  const std::string name = unit.string();
  for (const auto& [known, seconds] :
       {std::pair{"ns", 1e-9}, std::pair{"us", 1e-6}, std::pair{"ms", 1e-3}, std::pair{"s", 1.0}}) {
    if (name == known) return seconds;
  }
  unit.fail_expected("ns, us, ms or s");
}

bool says(const JsonReader& run, const char* flag) {
  const auto found = run.find(flag);
  return found && found->boolean();
}

std::string message(const JsonReader& run, const char* key) {
  const auto found = run.find(key);
  const std::string text = found ? found->string() : "";
  return text.empty() ? "it gives no reason" : text;
}

// One repetition of `benchmark`.
void add_run(const JsonReader& run, OtherBenchmark& benchmark) {
  if (says(run, "error_occurred")) {
    benchmark.state = OtherBenchmark::State::kFailed;
    benchmark.note = message(run, "error_message");
    return;
  }
  if (says(run, "skipped")) {
    if (benchmark.state == OtherBenchmark::State::kMeasured)
      benchmark.state = OtherBenchmark::State::kSkipped;
    benchmark.note = message(run, "skip_message");
    return;
  }
  const double unit = seconds_of_unit(run.at("time_unit"));
  const JsonReader time = run.at("real_time");
  const double seconds = unit * time.number(0, kMostTime);
  if (!(seconds > 0)) time.fail_expected("a time over 0");
  benchmark.seconds.push_back(seconds);
  benchmark.cpu_seconds.push_back(unit * run.at("cpu_time").number(0, kMostTime));
  benchmark.iterations.push_back(run.at("iterations").integer(1));
}

}  // namespace

void read_google_benchmark(const JsonReader& root, OtherFile& into) {
  const JsonReader context = root.at("context");
  // Not the host's name: a runner may have another one every day.
  into.machine.emplace_back("context.num_cpus", std::to_string(context.at("num_cpus").integer(1)));
  if (const auto build = context.find("library_build_type"))
    into.machine.emplace_back("context.library_build_type", build->string());
  if (const auto version = context.find("json_schema_version")) {
    if (version->integer(0) != 1) version->fail_expected("1, the version of the format that is read");
  }
  if (const auto version = context.find("library_version"))
    into.software["google_benchmark"] = version->string();
  std::map<std::string, std::size_t> places;
  std::set<std::pair<std::string, std::int64_t>> repetitions;
  for (const JsonReader& run : root.at("benchmarks").items()) {
    const bool aggregate = run.at("run_type").string() == "aggregate";
    const std::string name = run.at("run_name").string();
    if (name.empty()) run.at("run_name").fail_expected("a name");
    const auto [place, is_new] = places.emplace(name, into.benchmarks.size());
    if (is_new) into.benchmarks.emplace_back().name = name;
    OtherBenchmark& benchmark = into.benchmarks[place->second];
    if (aggregate) continue;
    if (const auto index = run.find("repetition_index")) {
      if (!repetitions.emplace(name, index->integer(0)).second)
        index->fail("'" + name + "' has this repetition twice");
    }
    add_run(run, benchmark);
  }
  for (OtherBenchmark& benchmark : into.benchmarks) {
    if (benchmark.state == OtherBenchmark::State::kMeasured && benchmark.seconds.empty())
      benchmark.note = "only aggregates, run it without --benchmark_report_aggregates_only";
  }
}

}  // namespace headroom
