// Who is compared with whom, and the sentence about it.
#include "analysis/speedup.h"

#include <gtest/gtest.h>

#include "families.h"

namespace headroom {
namespace {

Record record(const std::string& backend, double seconds, Precision precision = Precision::kFp32,
              Verdict verdict = Verdict::kPass, const std::string& workload = "mlp-784x128x10-b32") {
  Record result;
  result.workload = workload;
  result.backend = backend;
  result.family = family_of(backend);
  result.precision = precision;
  result.step_seconds = StepSeconds{.median = seconds, .low = seconds, .high = seconds};
  result.verification.verdict = verdict;
  return result;
}

Record skipped(const std::string& backend) {
  Record result = record(backend, 1);
  result.outcome = Outcome::kSkipped;
  result.step_seconds.reset();
  result.verification.verdict = Verdict::kNotRun;
  return result;
}

TEST(BestPytorch, IsTheFastestThatPassed) {
  const std::vector<Record> records = {record("pytorch-eager", 10),
                                       record("libtorch-eager", 8),
                                       record("libtorch-graph", 1, Precision::kFp32, Verdict::kFail),
                                       record("cuda-layered", 0.5),
                                       record("oracle", 0.1),
                                       record("libtorch-eager", 2, Precision::kFp16)};
  EXPECT_EQ(best_pytorch(records, records[0].workload, Precision::kFp32), &records[1]);
  EXPECT_EQ(best_pytorch(records, records[0].workload, Precision::kFp16), &records[5]);
  EXPECT_EQ(best_pytorch(records, records[0].workload, Precision::kBf16), nullptr);
  EXPECT_EQ(best_pytorch(records, "mlp-1x1-b1", Precision::kFp32), nullptr);
}

TEST(SpeedupRows, CompareWithinAWorkloadAndPrecision) {
  const std::vector<Record> records = {record("pytorch-eager", 12), record("libtorch-eager", 8),
                                       record("cuda-layered", 2), record("cuda-layered", 1, Precision::kFp16),
                                       record("oracle", 100)};
  const std::vector<SpeedupRow> rows = speedup_rows(records);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[2].record, &records[2]);
  EXPECT_EQ(rows[2].best_pytorch, "libtorch-eager");
  EXPECT_EQ(rows[2].over_best_pytorch, 4);
  EXPECT_EQ(rows[2].over_pytorch_eager, 6);
  EXPECT_TRUE(rows[1].is_best_pytorch);
  EXPECT_EQ(rows[1].over_pytorch_eager, 1.5);
  EXPECT_FALSE(rows[3].over_best_pytorch.has_value());
  EXPECT_FALSE(rows[4].over_best_pytorch.has_value()) << "an oracle is no competitor";
}

TEST(SpeedupRows, FailedOrUncheckedRecordsHaveNoSpeedup) {
  Record failed = record("cuda-layered", 1);
  failed.outcome = Outcome::kFailed;
  const std::vector<Record> records = {
      record("pytorch-eager", 12), record("cuda-layered", 1, Precision::kFp32, Verdict::kFail),
      record("cuda-layered", 1, Precision::kFp32, Verdict::kNotRun), failed, skipped("cuda-layered")};
  const std::vector<SpeedupRow> rows = speedup_rows(records);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    EXPECT_FALSE(rows[i].over_best_pytorch.has_value()) << i;
    EXPECT_FALSE(rows[i].over_pytorch_eager.has_value()) << i;
  }
}

TEST(SpeedupRows, ARivalThatFailedVerificationTakesItsCellTheSpeedup) {
  const std::string other = "mlp-784x256x10-b32";
  for (const char* rival : {"libtorch-graph", "jax-scan", "cublaslt-graph"}) {
    const std::vector<Record> records = {
        record("pytorch-eager", 12), record(rival, 1, Precision::kFp32, Verdict::kFail),
        record("cuda-layered", 2), record("pytorch-eager", 12, Precision::kFp32, Verdict::kPass, other),
        record("cuda-layered", 2, Precision::kFp32, Verdict::kPass, other)};
    const std::vector<SpeedupRow> rows = speedup_rows(records);
    EXPECT_FALSE(rows[2].over_best_pytorch.has_value()) << rival;
    EXPECT_FALSE(rows[2].over_pytorch_eager.has_value()) << rival;
    EXPECT_EQ(rows[2].refuted_rivals, std::vector<std::string>{rival});
    EXPECT_EQ(rows[4].over_best_pytorch, 6) << "another workload";
    EXPECT_TRUE(rows[4].refuted_rivals.empty());
  }
}

TEST(SpeedupRows, OneOfOursOrARivalThatCrashedLeavesTheSpeedupOfTheOthers) {
  Record crashed = record("libtorch-graph", 1, Precision::kFp32, Verdict::kNotRun);
  crashed.outcome = Outcome::kFailed;
  const std::vector<Record> records = {record("pytorch-eager", 12), crashed, record("cuda-layered", 2),
                                       record("cuda-fused", 1, Precision::kFp32, Verdict::kFail)};
  EXPECT_EQ(speedup_rows(records)[2].over_best_pytorch, 6);
}

TEST(Finding, NamesTheRivalThatFailedInPlaceOfASpeedup) {
  std::vector<Record> records = {record("pytorch-eager", 12),
                                 record("libtorch-graph", 1, Precision::kFp32, Verdict::kFail),
                                 record("cuda-layered", 2)};
  EXPECT_EQ(finding(records),
            "No speed-up is claimed of mlp-784x128x10-b32 fp32: libtorch-graph failed verification. 1 record "
            "failed.");
  records.push_back(record("pytorch-eager", 12, Precision::kFp16));
  records.push_back(record("cuda-layered", 1, Precision::kFp16));
  EXPECT_EQ(
      finding(records),
      "cuda-layered trains mlp-784x128x10-b32 fp16 12.0 times as fast as the best PyTorch (pytorch-eager). "
      "No speed-up is claimed of mlp-784x128x10-b32 fp32: libtorch-graph failed verification. 1 record "
      "failed.");
}

TEST(Finding, SaysTheRangeOverWorkloadsAndPrecisions) {
  const std::vector<Record> records = {
      record("pytorch-eager", 12), record("libtorch-eager", 8), record("cuda-layered", 2),
      record("pytorch-eager", 20, Precision::kFp16), record("cuda-layered", 1, Precision::kFp16)};
  EXPECT_EQ(finding(records),
            "cuda-layered trains 4.00 (mlp-784x128x10-b32 fp32) to 20.0 (mlp-784x128x10-b32 fp16) times as "
            "fast as the "
            "best PyTorch of the same run, over 1 workload and 2 precisions.");
}

TEST(Finding, OfOneComparisonNamesTheRival) {
  EXPECT_EQ(
      finding({record("pytorch-eager", 12), record("cuda-layered", 1)}),
      "cuda-layered trains mlp-784x128x10-b32 fp32 12.0 times as fast as the best PyTorch (pytorch-eager).");
}

TEST(SpeedupRows, TheBestRivalIsWhoeverIsNotOurs) {
  for (const char* rival : {"jax-scan", "cublaslt-graph", "trainkernel"}) {
    const std::vector<Record> records = {record("pytorch-eager", 12), record(rival, 6),
                                         record("cuda-layered", 2), record("oracle", 1)};
    const std::vector<SpeedupRow> rows = speedup_rows(records);
    EXPECT_EQ(rows[2].best_rival, rival);
    EXPECT_EQ(rows[2].over_best_rival, 3);
    EXPECT_EQ(rows[2].over_best_pytorch, 6);
    EXPECT_FALSE(rows[3].over_best_rival.has_value());
  }
  const std::vector<Record> records = {record("pytorch-eager", 12), record("jax-scan", 13),
                                       record("cuda-layered", 2)};
  EXPECT_EQ(speedup_rows(records)[2].best_rival, "pytorch-eager");
}

TEST(Finding, NamesTheBestRivalWhereItIsNotPyTorch) {
  std::vector<Record> records = {record("pytorch-eager", 12), record("jax-scan", 3),
                                 record("cuda-layered", 1)};
  EXPECT_EQ(
      finding(records),
      "cuda-layered trains mlp-784x128x10-b32 fp32 12.0 times as fast as the best PyTorch (pytorch-eager), "
      "3.00 times as fast as the best rival (jax-scan).");
  records.push_back(record("pytorch-eager", 20, Precision::kFp16));
  records.push_back(record("cuda-layered", 1, Precision::kFp16));
  EXPECT_EQ(
      finding(records),
      "cuda-layered trains 12.0 (mlp-784x128x10-b32 fp32) to 20.0 (mlp-784x128x10-b32 fp16) times as fast as "
      "the best PyTorch of the same run, 3.00 (mlp-784x128x10-b32 fp32) to 20.0 (mlp-784x128x10-b32 fp16) "
      "times as fast as its best rival, over 1 workload and 2 precisions.");
}

TEST(Finding, WithoutOurKernelsSaysSo) {
  const std::string text =
      finding({record("pytorch-eager", 12), record("libtorch-eager", 8), skipped("cuda-layered")});
  EXPECT_EQ(text,
            "libtorch-eager is the fastest PyTorch here, 1.50 times as fast as pytorch-eager "
            "(mlp-784x128x10-b32, fp32); "
            "none of our kernels ran, so there is no speed-up to report.");
}

TEST(Finding, CountsFailures) {
  const std::string text = finding({record("pytorch-eager", 12), record("cuda-layered", 1),
                                    record("cuda-layered", 1, Precision::kBf16, Verdict::kFail)});
  EXPECT_NE(text.find(" 1 record failed."), std::string::npos) << text;
  EXPECT_EQ(finding({}), "No competing record ran and passed its checks, so there is no speed-up to report.");
}

}  // namespace
}  // namespace headroom
