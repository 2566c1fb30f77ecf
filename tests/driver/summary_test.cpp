// What a run prints at its end about floors and about where the time goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "../analysis/families.h"
#include "analysis/ladder.h"
#include "driver/results/formats/formats.h"

namespace headroom {
namespace {

using testing::HasSubstr;
using testing::Not;

Record row(const char* backend, double microseconds) {
  Record record;
  record.workload = "mlp-8x8-b8";
  record.backend = backend;
  record.family = family_of(backend);
  record.step_seconds = StepSeconds{1e-6 * microseconds, 0.99e-6 * microseconds, 1.01e-6 * microseconds};
  record.verification.verdict = Verdict::kPass;
  return record;
}

Results measured() {
  Results results;
  results.records = {row("pytorch-eager", 1000), row("libtorch-eager", 700), row("libtorch-graph", 100),
                     row("libtorch-expert", 101), row("cuda-layered", 120)};
  WorkloadEntry entry;
  entry.workload = parse_workload_name("mlp-8x8-b8");
  entry.floors[Precision::kFp32] = {2e-6, "exchanges", 0, 0, 2e-6};
  entry.ladders[Precision::kFp32] =
      make_ladder(results.records, entry.workload.name, Precision::kFp32, entry.floors[Precision::kFp32]);
  results.workloads = {entry};
  return results;
}

TEST(Summary, TheBestRivalHasAColumnWhereItIsNotPyTorch) {
  Results results = measured();
  EXPECT_THAT(summary_table(results), Not(HasSubstr("vs rival")));
  results.records.push_back(row("jax-scan", 60));
  const std::string text = summary_table(results);
  EXPECT_THAT(text, HasSubstr("vs best  vs rival  of floor"));
  EXPECT_THAT(text, HasSubstr("0.83 x    0.50 x"));  // of cuda-layered, at 120 us
}

TEST(Summary, SaysWhereTheTimeGoesWithNoiseAndNegativeTermsCalledSo) {
  const std::string text = ladder_table(measured());
  EXPECT_THAT(text, HasSubstr("mlp-8x8-b8  fp32"));
  for (const char* words : {"1.00 ms", "300 us", "600 us", "-1.00 us (noise)", "-20.0 us (negative)",
                            "118 us", "2.00 us", "libtorch-eager, libtorch-graph, libtorch-expert"})
    EXPECT_THAT(text, HasSubstr(words));
}

TEST(Summary, ExplainsEveryColumnOfTheLadder) {
  const std::string text = ladder_table(measured());
  for (const char* column : {"Python:", "dispatch:", "fusion:", "choice:", "kernels:", "left:"})
    EXPECT_THAT(text, HasSubstr(column));
}

TEST(Summary, HasNoLadderWhereHardlyATermIsKnown) {
  Results results = measured();
  results.records.resize(1);
  results.workloads[0].ladders[Precision::kFp32] =
      make_ladder(results.records, "mlp-8x8-b8", Precision::kFp32, std::nullopt);
  EXPECT_EQ(ladder_table(results), "");
}

TEST(Summary, ShowsTheShareOfTheFloorAndWhatSetsIt) {
  Results results = measured();
  results.records[4].fraction_of_floor = 0.0167;
  std::string text = summary_table(results);
  EXPECT_THAT(text, HasSubstr("1.7 % exchanges"));
  EXPECT_THAT(text, HasSubstr("of floor: the least time"));
  EXPECT_THAT(text, Not(HasSubstr("DEFECT")));
  results.records[4].fraction_of_floor = 1.25;
  text = summary_table(results);
  EXPECT_THAT(text, HasSubstr("125 % exchanges  verified, FASTER THAN ITS FLOOR"));
  EXPECT_THAT(text, HasSubstr("\nDEFECT: cuda-layered trains mlp-8x8-b8 in fp32"));
  EXPECT_THAT(summary_json(results, "a.json"), HasSubstr("\"faster_than_floor\": true"));
}

TEST(Summary, ListsWhatWasSkippedOnceForEachReason) {
  Results results = measured();
  EXPECT_THAT(summary_table(results), Not(HasSubstr("skipped")));
  for (const std::size_t i : {1, 2, 3}) {
    results.records[i].outcome = Outcome::kSkipped;
    results.records[i].step_seconds.reset();
    results.records[i].message = i == 2 ? "needs 9 bytes, there are 8" : "no CUDA device";
  }
  // The same reason in other workloads and precisions is no line of its own.
  for (int widest = 1; widest <= 40; ++widest) {
    results.records.push_back(results.records[3]);
    results.records.back().workload = "mlp-8x" + std::to_string(widest) + "-b8";
    results.records.back().precision = widest % 2 == 0 ? Precision::kBf16 : Precision::kFp32;
  }
  const std::string text = summary_table(results);
  const std::string& first = results.records[1].backend;
  const std::string& second = results.records[2].backend;
  const std::string& third = results.records[3].backend;
  EXPECT_THAT(text, HasSubstr("\n\nskipped  reason\n"));
  EXPECT_THAT(text, HasSubstr("\n     42  no CUDA device (" + first + ", " + third +
                              "; 40 workloads; fp32, bf16)\n"));
  EXPECT_THAT(text, HasSubstr("\n      1  needs 9 bytes, there are 8 (" + second + "; mlp-8x8-b8; fp32)\n"));
  // The rest still has its lines, and nothing else has one.
  EXPECT_THAT(text, HasSubstr("\nmlp-8x8-b8  fp32       " + results.records[0].backend + " "));
  EXPECT_THAT(text, Not(HasSubstr(first + "  ")));
}

TEST(Summary, NamesARivalThatFailedVerificationInPlaceOfASpeedup) {
  Results results = measured();
  EXPECT_THAT(summary_table(results), HasSubstr("8.33 x"));
  results.records[3].outcome = Outcome::kFailed;
  results.records[3].message = "verification: step_update of weight1";
  results.records[3].verification.verdict = Verdict::kFail;
  const std::string text = summary_table(results);
  EXPECT_THAT(text, HasSubstr("verified, no speed-up: libtorch-expert failed verification"));
  EXPECT_THAT(text, Not(HasSubstr(" x  ")));
  EXPECT_THAT(summary_json(results, "a.json"),
              HasSubstr("\"refuted_rivals\": [\n        \"libtorch-expert\""));
}

TEST(Summary, SaysWhatANameOfASuitesOwnStandsFor) {
  Results results = measured();
  EXPECT_THAT(summary_table(results), Not(HasSubstr(": mlp-8x8-b8")));
  results.workloads[0].workload.name = "mine";
  results.workloads[0].workload.optimizer.kind = Optimizer::Kind::kAdam;
  for (Record& record : results.records) record.workload = "mine";
  EXPECT_THAT(summary_table(results), HasSubstr("\nmine: mlp-8x8-b8-adam\n"));
}

TEST(Summary, FitsANarrowTerminal) {
  Results results = measured();
  for (Record& record : results.records) record.workload = "mlp-784x128x128x128x10-b32";
  results.records[3].outcome = Outcome::kFailed;
  results.records[3].message = "verification: step_update of weight1 is 0.2, expected at most 0.001";
  for (const std::size_t width : {40, 60, 80, 100, 120}) {
    const std::string text = summary_table(results, width) + ladder_table(results, width);
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) EXPECT_LE(line.size(), width) << line;
    for (const char* shown : {"pytorch-eager", "libtorch-graph", "cuda-layered", "1.00 ms", "120 us",
                              "FAILED:", "verified", "600 us"})
      EXPECT_THAT(text, HasSubstr(shown)) << width;
  }
  EXPECT_EQ(summary_table(results, 1000), summary_table(results));
}

TEST(Summary, HasNoTimesWhereAllWasSkipped) {
  Results results = measured();
  for (Record& record : results.records) {
    record.outcome = Outcome::kSkipped;
    record.message = "no CUDA device";
  }
  const std::string text = summary_table(results);
  EXPECT_THAT(text, HasSubstr("no CUDA device"));
  EXPECT_THAT(text, Not(HasSubstr("vs eager")));
}

TEST(Summary, SaysOfHowManyRecordsTheTimesCount) {
  Results results = measured();
  EXPECT_THAT(summary_sentence(results), HasSubstr("All 5 records that ran are verified. "));
  results.records[1].outcome = Outcome::kSkipped;
  EXPECT_THAT(summary_sentence(results), HasSubstr("All 4 records that ran are verified; 1 skipped. "));
  results.records[2].verification.verdict = Verdict::kFail;
  EXPECT_THAT(summary_sentence(results), HasSubstr(" 3 of 4 records that ran are verified; 1 skipped. "));
  results.records[2].outcome = Outcome::kFailed;
  EXPECT_THAT(summary_sentence(results), HasSubstr("The other 3 records are verified; 1 skipped. "));
  results.records[3].outcome = results.records[4].outcome = Outcome::kFailed;
  EXPECT_THAT(summary_sentence(results), HasSubstr("The other record is verified; 1 skipped. "));
  results.records.resize(1);
  EXPECT_THAT(summary_sentence(results), HasSubstr("The one record that ran is verified. "));
  results.records[0].verification.verdict = Verdict::kFail;
  EXPECT_THAT(summary_sentence(results), HasSubstr("0 of 1 record that ran is verified. "));
}

}  // namespace
}  // namespace headroom
