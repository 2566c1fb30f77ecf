// The ladder on made-up records: what is subtracted from what, and what cannot be, is negative or is noise.
#include "analysis/ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "families.h"

namespace headroom {
namespace {

using testing::ElementsAre;

constexpr const char* kWorkload = "mlp-784x128x10-b32";

Record row(const char* backend, double microseconds, double spread = 0.01) {
  Record record;
  record.workload = kWorkload;
  record.backend = backend;
  record.family = family_of(backend);
  const double seconds = 1e-6 * microseconds;
  record.step_seconds = StepSeconds{seconds, seconds * (1 - spread), seconds * (1 + spread)};
  record.verification.verdict = Verdict::kPass;
  return record;
}

std::vector<Record> whole() {
  return {row("pytorch-eager", 1000), row("libtorch-eager", 700), row("libtorch-graph", 120),
          row("pytorch-graph", 110),  row("libtorch-expert", 80), row("pytorch-compile-graph", 40),
          row("cublaslt-graph", 35),  row("cuda-layered", 30),    row("cuda-resident", 10),
          row("oracle", 1),           row("pytorch-compile", 900)};
}

const Floor kFloor{2e-6, "exchanges", 0, 0, 2e-6};

std::vector<std::string> told(const Ladder& ladder) {
  std::vector<std::string> lines;
  for (const LadderTerm& term : ladder) {
    lines.push_back(term.name + ": " + term.from + " - " + term.to + " = " +
                    (term.seconds ? term_text(term) : term.message));
  }
  return lines;
}

TEST(Ladder, EachStepDownIsTakenFromTheRightRows) {
  EXPECT_THAT(told(make_ladder(whole(), kWorkload, Precision::kFp32, kFloor)),
              ElementsAre("python: pytorch-eager - libtorch-eager = 300 us",
                          "dispatch: libtorch-eager - pytorch-graph = 590 us",
                          "fusion: pytorch-graph - pytorch-compile-graph = 70.0 us",
                          "kernels: pytorch-compile-graph - cuda-resident = 30.0 us",
                          "left: cuda-resident - floor = 8.00 us"));
}

TEST(Ladder, TheTermsAddUp) {
  std::vector<Record> records = whole();
  records[5].step_seconds.reset();  // then pytorch-compile is not the fused row, but may be the best one
  records[10] = row("pytorch-compile", 50);
  const Ladder ladder = make_ladder(records, kWorkload, Precision::kFp32, kFloor);
  double sum = kFloor.seconds;
  for (const LadderTerm& term : ladder) sum += term.seconds.value();
  EXPECT_NEAR(sum, 1000e-6, 1e-12);
  ASSERT_EQ(ladder.size(), 6u);
  EXPECT_EQ(told(ladder)[3], "choice: libtorch-expert - pytorch-compile = 30.0 us");
}

TEST(Ladder, ARivalThatFailedVerificationLeavesNoBestToCompareOursWith) {
  std::vector<Record> records = whole();
  records[10].verification.verdict = Verdict::kFail;  // pytorch-compile
  const std::vector<std::string> ladder = told(make_ladder(records, kWorkload, Precision::kFp32, kFloor));
  EXPECT_EQ(ladder[2], "fusion: pytorch-graph - pytorch-compile-graph = 70.0 us");
  EXPECT_EQ(ladder[3], "kernels:  - cuda-resident = pytorch-compile failed verification");
}

TEST(Ladder, NegativeTermsAndNoiseAreCalledSo) {
  std::vector<Record> records = whole();
  records[1] = row("libtorch-eager", 995);
  records[8] = row("cuda-resident", 60);
  records[7] = row("cuda-layered", 70);
  const Ladder ladder = make_ladder(records, kWorkload, Precision::kFp32, kFloor);
  EXPECT_EQ(ladder[0].verdict, "noise");
  EXPECT_EQ(told(ladder)[0], "python: pytorch-eager - libtorch-eager = 5.00 us (noise)");
  EXPECT_EQ(ladder[3].verdict, "negative");
  EXPECT_EQ(told(ladder)[3], "kernels: pytorch-compile-graph - cuda-resident = -20.0 us (negative)");
  EXPECT_LT(ladder[3].high.value(), 0);
}

TEST(Ladder, IntervalsAreWhatBothRowsAllow) {
  const Ladder ladder = make_ladder(whole(), kWorkload, Precision::kFp32, kFloor);
  EXPECT_NEAR(ladder[0].low.value(), (990 - 707) * 1e-6, 1e-12);
  EXPECT_NEAR(ladder[0].high.value(), (1010 - 693) * 1e-6, 1e-12);
}

TEST(Ladder, AMissingRowIsNamedAndCostsItsTermsOnly) {
  std::vector<Record> records = whole();
  records[1].outcome = Outcome::kSkipped;
  records[2].verification.verdict = Verdict::kNotRun;
  records[3].precision = Precision::kTf32;
  EXPECT_THAT(told(make_ladder(records, kWorkload, Precision::kFp32, std::nullopt)),
              ElementsAre("python: pytorch-eager -  = no libtorch-eager has a verified time",
                          "dispatch:  -  = no libtorch-eager has a verified time",
                          "fusion:  - pytorch-compile-graph = no libtorch-graph and no pytorch-graph has a "
                          "verified time",
                          "kernels: pytorch-compile-graph - cuda-resident = 30.0 us",
                          "left: cuda-resident - floor = no floor was computed"));
}

TEST(Ladder, WithoutRecordsNothingIsKnown) {
  for (const LadderTerm& term : make_ladder({}, kWorkload, Precision::kFp32, std::nullopt)) {
    EXPECT_EQ(term.verdict, "missing");
    EXPECT_FALSE(term.seconds || term.low || term.high);
    EXPECT_FALSE(term.message.empty());
  }
}

}  // namespace
}  // namespace headroom
