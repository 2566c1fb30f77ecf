// Results files: what is written is read back, is always whole, and is refused with the place of the mistake.
#include "driver/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "core/error.h"
#include "driver/loss_runs.h"
#include "driver/whole_file.h"
#include "temporary_folder.h"

namespace headroom {
namespace {

using testing::HasSubstr;

Results example() {
  Results results;
  results.run = {
      "id",         "2026-01-02T03:04:05Z", std::nullopt, {"headroom", "run"}, "quick", std::nullopt, false,
      "fnv1a64:00", {{"blocks", "16"}},     false};
  results.host.cpu = "a CPU";
  results.device = DeviceInfo{"a GPU", "GPU-1", "", 1, 132, 9, 0, 1000, 500};
  results.software = {{"torch", "2.11.0"}};
  WorkloadEntry entry;
  entry.workload = parse_workload_name("mlp-7x3-b2");
  entry.workload.seed = std::numeric_limits<std::uint64_t>::max();
  entry.dataset = {"synthetic", "ab", 10, 1, 5};
  entry.floors = {{Precision::kTf32, {3e-6, "bytes", 3e-6, 2e-6, 1e-6}}};
  entry.ladders = {{Precision::kTf32,
                    {{"left", "cuda-layered", "floor", 1e-6, 5e-7, 2e-6, "positive", ""},
                     {"python", "", "", {}, {}, {}, "missing", "no libtorch-eager has a verified time"}}}};
  results.calibration = {{"copy", {4.27e12, "bytes_per_second", "how"}}};
  results.workloads = {entry};
  Record record;
  record.workload = "mlp-7x3-b2";
  record.backend = "cuda-layered";
  record.precision = Precision::kBf16;
  record.contract = Contract::kLibrary;
  record.outcome = Outcome::kFailed;
  record.message = "because";
  record.setup_cache = SetupCache::kWarm;
  record.blocks = {{3, 50, 0.02, 0.021, 0.019}};
  record.step_seconds = StepSeconds{4e-4, 3e-4, 5e-4};
  record.blocks[0].gpu = GpuState{3, 1980, std::nullopt, 250.5, 41, {{"idle"}}, 0, std::nullopt};
  record.energy = Energy{4000, 2.5, 700, std::nullopt};
  record.joules_per_step = 0.175;
  record.slowdown_reasons = {{"hardware_slowdown"}};
  record.losses = {{8, {0, 1}, {2.3025851f, std::nanf("")}, 1.5, 0.25}};
  record.verification = {Verdict::kFail,
                         {{"step_update", "weight1", {0, 7}, std::nan(""), INFINITY, 1e-3, false}}};
  results.records = {record};
  return results;
}

TEST(ResultsFile, WhatIsWrittenIsReadBack) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "a.json";
  const Results results = example();
  write_whole(to_json(results), file);
  const Results read = read_results(file);
  EXPECT_EQ(to_json(read), to_json(results));
  EXPECT_EQ(read.workloads[0].workload.seed, results.workloads[0].workload.seed);
  EXPECT_EQ(read.records[0].contract, Contract::kLibrary);
  EXPECT_FALSE(read.run.finished_utc);
  EXPECT_FALSE(read.records[0].setup_seconds);
  EXPECT_EQ(read.records[0].setup_cache, SetupCache::kWarm);
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".tmp"));
}

TEST(ResultsFile, FilesOfBeforeTheGpuWasWatchedAreRead) {
  const TemporaryFolder folder;
  Results results = example();
  results.records[0].blocks[0].gpu.reset();
  results.records[0].energy.reset();
  results.records[0].setup_cache.reset();
  results.records[0].slowdown_reasons.reset();
  std::string text = to_json(results);
  for (const char* field : {R"(,"gpu":null)", R"("energy":null,)", R"("setup_cache":null,)",
                            R"("slowdown_reasons":null,)", R"(,"ecc_enabled":null)"}) {
    const std::size_t at = text.find(field);
    ASSERT_NE(at, std::string::npos) << field;
    text.erase(at, std::string(field).size());
  }
  EXPECT_EQ(to_json(read_results(folder.write("old.json", text))), to_json(results));
}

TEST(ResultsFile, NothingThatIsNotFiniteIsWrittenAndLossesHaveSevenDigits) {
  const std::string text = to_json(example());
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("inf"), std::string::npos);
  EXPECT_THAT(text, HasSubstr("[2.302585,null]"));
}

TEST(ResultsFile, WritingReplacesTheFileOrLeavesItAlone) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.write("a.json", "before");
  EXPECT_THROW(write_whole(to_json(example()), folder.path() / "missing" / "a.json"), InputError);
  write_whole(to_json(example()), file);
  EXPECT_EQ(read_results(file).records.size(), 1u);
}

TEST(ResultsFile, MistakesSayWhereTheyAre) {
  const TemporaryFolder folder;
  const auto complaint = [&](const std::string& from, const std::string& to) {
    std::string text = to_json(example());
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const std::filesystem::path file = folder.write("b.json", text);
    return message_of<InputError>([&] { read_results(file); });
  };
  EXPECT_THAT(complaint(R"("backend":"cuda-layered")", R"("backend":null)"),
              HasSubstr("records[0].backend: expected a string, found null"));
  EXPECT_THAT(complaint(R"("bf16")", R"("fp8")"), HasSubstr("records[0].precision: expected one of fp32"));
  EXPECT_THAT(complaint(R"("schema_version":1)", R"("schema_version":2)"),
              HasSubstr("schema_version: expected 1"));
  EXPECT_THAT(complaint(R"("id":)", R"("idd":)"), HasSubstr("run.id: is missing"));
  EXPECT_THAT(complaint("{", "["), HasSubstr("found no JSON"));
  EXPECT_EQ(message_of<InputError>([&] { read_results(folder.write("c.json", "[]")); }),
            (folder.path() / "c.json").string() + ": expected an object, found []");
  EXPECT_THAT(message_of<InputError>([&] { read_results(folder.path() / "none.json"); }),
              HasSubstr("cannot be read"));
}

TEST(LossCurves, EveryStepToAHundredThenEveryTenth) {
  std::vector<float> losses(1000);
  for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = static_cast<float>(i);
  const LossCurve curve = thin_losses(4, losses);
  EXPECT_EQ(curve.seed, 4u);
  EXPECT_EQ(curve.steps.size(), 101u + 89u);
  EXPECT_EQ(curve.steps[100], 100);
  EXPECT_EQ(curve.steps[101], 110);
  EXPECT_EQ(curve.values.back(), 990.0f);
  EXPECT_DOUBLE_EQ(curve.last_mean, (688 + 999) / 2.0);
}

TEST(LossCurves, AreComparedSeedBySeed) {
  const auto curve = [](std::uint64_t seed, double mean) { return LossCurve{seed, {}, {}, mean, {}}; };
  const auto check =
      compare_curves({curve(2, 1.001), curve(1, 2.002)}, {curve(1, 2.0), curve(2, 1.0), curve(3, 9)});
  ASSERT_TRUE(check);
  EXPECT_TRUE(check->passed);
  EXPECT_NEAR(check->error, 1e-3, 1e-9);
  EXPECT_FALSE(compare_curves({curve(1, 1.0)}, {curve(2, 1.0)}));
  EXPECT_FALSE(compare_curves({curve(1, 1.01)}, {curve(1, 1.0)})->passed);
}

}  // namespace
}  // namespace headroom
