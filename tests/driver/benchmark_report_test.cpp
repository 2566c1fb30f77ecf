// The records in Google Benchmark's formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "driver/results/benchmark_out.h"
#include "driver/results/formats/formats.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One record with a floor and an energy, one that failed, one that was skipped.
Results example() {
  Results results;
  WorkloadEntry entry;
  entry.workload = parse_workload_name("mlp-6x5x3-b4");
  entry.floors[Precision::kFp32].seconds = 1e-6;
  results.workloads = {entry};
  Record record;
  record.workload = "mlp-6x5x3-b4";
  record.backend = "honest";
  record.blocks = {{0, 100, 2e-4, 3e-4, 1e-4, {}}, {1, 200, 8e-4, 9e-4, 2e-4, {}}};
  record.step_seconds = StepSeconds{3e-6, 2e-6, 4e-6};
  record.fraction_of_floor = 1.0 / 3;
  record.joules_per_step = 0.5;
  results.records.push_back(record);
  mark_failed(record, "releasing: it died");
  record.backend = "late";
  results.records.push_back(record);
  record.backend = "elsewhere";
  record.outcome = Outcome::kSkipped;
  record.message = "no CUDA device";
  results.records.push_back(record);
  return results;
}

TEST(BenchmarkReport, BlocksHaveTheirOwnTimesAndCounters) {
  const auto report = nlohmann::json::parse(benchmark_report(example(), "json", false));
  const auto& runs = report.at("benchmarks");
  ASSERT_EQ(runs.size(), 2u + 4 + 1 + 1);
  const auto& second = runs[1];
  EXPECT_EQ(second["name"], "mlp-6x5x3-b4/honest/fp32/manual_time");
  EXPECT_EQ(second["repetition_index"], 1);
  EXPECT_EQ(second["iterations"], 200);
  EXPECT_DOUBLE_EQ(second["real_time"], 4);
  EXPECT_DOUBLE_EQ(second["cpu_time"], 1);  // the worker's, not this process's
  EXPECT_EQ(second["label"], "contract exact");
  EXPECT_DOUBLE_EQ(second["operations_per_second"],
                   parse_workload_name("mlp-6x5x3-b4").flops_per_step() / 4e-6);
  EXPECT_DOUBLE_EQ(second["fraction_of_floor"], 0.25);
  EXPECT_DOUBLE_EQ(second["joules_per_step"], 0.5);
  std::vector<std::string> aggregates;
  for (int i = 2; i < 6; ++i) aggregates.push_back(runs[i]["aggregate_name"]);
  EXPECT_THAT(aggregates, ElementsAre("mean", "median", "stddev", "cv"));
  EXPECT_DOUBLE_EQ(runs[3]["real_time"], 3);
  EXPECT_DOUBLE_EQ(runs[4]["real_time"], std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(runs[5]["real_time"], std::sqrt(2.0) / 3);
}

TEST(BenchmarkReport, ANameOfASuitesOwnIsLabelledWithWhatItStandsFor) {
  Results results = example();
  results.workloads[0].workload.name = "mine";
  results.workloads[0].workload.optimizer.kind = Optimizer::Kind::kAdam;
  for (Record& record : results.records) record.workload = "mine";
  const auto report = nlohmann::json::parse(benchmark_report(results, "json", false));
  EXPECT_EQ(report.at("benchmarks")[0]["name"], "mine/honest/fp32/manual_time");
  EXPECT_EQ(report.at("benchmarks")[0]["label"], "contract exact, mlp-6x5x3-b4-adam");
}

TEST(BenchmarkReport, FailedAndSkippedRecordsAreMarkedAndHaveNoTime) {
  const auto report = nlohmann::json::parse(benchmark_report(example(), "", false));
  const auto& failed = report.at("benchmarks")[6];
  EXPECT_EQ(failed["name"], "mlp-6x5x3-b4/late/fp32/manual_time");
  EXPECT_EQ(failed["error_occurred"], true);
  EXPECT_EQ(failed["error_message"], "releasing: it died");
  EXPECT_EQ(failed["real_time"], 0);
  const auto& skipped = report.at("benchmarks")[7];
  EXPECT_TRUE(skipped.contains("error_occurred") || skipped.contains("skipped")) << skipped;
  EXPECT_THAT(skipped.dump(), HasSubstr("no CUDA device"));
}

TEST(BenchmarkReport, ATableHasTheCountersOfAllRows) {
  Results results = example();
  std::swap(results.records[0], results.records[2]);  // the first rows have no counters
  std::istringstream csv(benchmark_report(results, "csv", false));
  std::string header;
  std::getline(csv, header);
  EXPECT_THAT(header, HasSubstr("\"fraction_of_floor\",\"joules_per_step\",\"operations_per_second\""));
  EXPECT_THAT(benchmark_report(results, "console", false), HasSubstr("ERROR OCCURRED: 'releasing: it died'"));
}

TEST(BenchmarkReport, AReportWithoutRecordsIsStillAReport) {
  EXPECT_TRUE(nlohmann::json::parse(benchmark_report({}, "json", false)).at("benchmarks").empty());
}

TEST(BenchmarkReport, TheFileIsReplacedAndAPipeIsNot) {
  const TemporaryFolder folder;
  GoogleBenchmarkOptions options;
  options.out = folder.write("out.json", "before").string();
  check_benchmark_out(options, folder.path() / "results.json");
  EXPECT_THAT(message_of<InputError>([&] { check_benchmark_out(options, folder.path() / "." / "out.json"); }),
              HasSubstr("is the results file too"));
  write_benchmark_out(options, example(), false);
  std::ifstream stream(options.out);
  EXPECT_EQ(nlohmann::json::parse(stream).at("benchmarks").size(), 8u);
  options.out = "/dev/null";
  check_benchmark_out(options, "results.json");
  write_benchmark_out(options, example(), true);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  options.out = "/dev/full";
  EXPECT_THAT(message_of<OutputError>([&] { write_benchmark_out(options, example(), true); }),
              HasSubstr("No space left"));
}

}  // namespace
}  // namespace headroom
