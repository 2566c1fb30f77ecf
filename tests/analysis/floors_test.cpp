// Floors of workloads worked out by hand, with round rates.
#include "analysis/floors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "families.h"

namespace headroom {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kL2 = 60'000'000;
constexpr double kOnChip = 64e6;

Calibration round_rates() {
  const auto rate = [](double value) { return CalibratedRate{value, "unit", "by hand"}; };
  return {{"copy", rate(4e12)},          {"read", rate(5e12)},          {"one_sm_read", rate(1e11)},
          {"on_chip", rate(kOnChip)},    {"fp32", rate(60e12)},         {"matrix_fp32", rate(50e12)},
          {"matrix_tf32", rate(400e12)}, {"matrix_fp16", rate(8e14)},   {"matrix_bf16", rate(8e14)},
          {"remote_read", rate(1e-7)},   {"chip_gather_8", rate(6e-7)}, {"cluster_gather_128", rate(4e-7)}};
}

Floor floor_of(const char* name, Precision precision, std::int64_t samples = 1 << 20,
               const Calibration& rates = round_rates()) {
  return workload_floor(parse_workload_name(name), precision, samples, rates, {132, kL2}).value();
}

TEST(Floors, ASmallNetworkIsBoundByItsExchanges) {
  // h2 [32 x 128], the logits [32 x 10] and d2 [32 x 128].
  const Workload workload = parse_workload_name("mlp-784x128x128x128x10-b32");
  EXPECT_THAT(exchanged_values(workload), ElementsAre(4096, 320, 4096));
  const Floor floor = floor_of("mlp-784x128x128x128x10-b32", Precision::kFp16);
  EXPECT_EQ(floor.bound, "exchanges");
  EXPECT_DOUBLE_EQ(floor.seconds, 2 * 4e-7 + 1e-7);
  EXPECT_DOUBLE_EQ(floor.exchanges_seconds, floor.seconds);
  // Weights stay on the chip: 32 x 784 inputs of 2 bytes, of a set of 2^20 samples of which the L2 holds 60 MB; the loss.
  const double kept = 6e7 / (1048576.0 * 784 * 2);
  EXPECT_DOUBLE_EQ(floor.bytes_seconds, (2 * 4.0) / 4e12 + (32 * 784 * 2 * (1 - kept) - 4) / 5e12);
  // 2 * 32 * (3 * (784 * 128 + 2 * 128 * 128 + 128 * 10) - 784 * 128)
  EXPECT_DOUBLE_EQ(floor.operations_seconds, 64.0 * (3 * 134400 - 100352) / 8e14);
}

Calibration rates_with_a_link() {
  Calibration rates = round_rates();
  rates["link_store"] = {2e11, "bytes_per_second", "by hand"};
  rates["link_round_trip"] = {1e-6, "seconds", "by hand"};
  return rates;
}

TEST(Floors, OfSeveralDevicesTheLastExchangeCrossesTheLink) {
  const Floor one = floor_of("mlp-784x128x128x128x10-b32", Precision::kFp16);
  const Floor two = floor_of("mlp-784x128x128x128x10-b32-g2", Precision::kFp16, 1 << 20, rates_with_a_link());
  // One device with 64 samples needs no link: its exchanges are the floor.
  EXPECT_EQ(two.bound, "exchanges");
  EXPECT_DOUBLE_EQ(two.seconds, one.seconds);
  // 32 rows of the other's in 2 bytes: outputs of each layer, and inputs of all but the first. The last layer's sums are fewer bytes.
  EXPECT_DOUBLE_EQ(two.link_seconds, (32 * 2.0 * (128 + 2 * (128 + 128)) + 4 * 129 * 10) / 2e11 + 5e-7);
}

TEST(Floors, OfSeveralDevicesLargeBatchesSendSumsOfGradients) {
  const Workload workload = parse_workload_name("mlp-784x1024x10-b16384-g2");
  EXPECT_DOUBLE_EQ(link_bytes(workload, Precision::kBf16), 4 * (785.0 * 1024 + 1025 * 10));
  EXPECT_DOUBLE_EQ(link_bytes(parse_workload_name("mlp-784x1024x10-b16384-g4"), Precision::kBf16),
                   4 * (785.0 * 1024 + 1025 * 10) * 1.5);
  Calibration slow = rates_with_a_link();
  slow["link_store"].value = 2e10;
  const Floor floor = floor_of("mlp-784x1024x10-b16384-g2", Precision::kBf16, 1 << 20, slow);
  EXPECT_GT(floor.link_seconds, floor.operations_seconds);
}

TEST(Floors, OfSeveralDevicesTheLinkHasToBeMeasured) {
  EXPECT_FALSE(workload_floor(parse_workload_name("mlp-784x10-b32-g2"), Precision::kFp32, 1 << 20,
                              round_rates(), {132, kL2}));
  EXPECT_EQ(missing_rate(Precision::kFp32, round_rates(), 2), "link_store");
  EXPECT_EQ(missing_rate(Precision::kFp32, rates_with_a_link(), 2), "");
}

TEST(Floors, LargeWeightsAreReadTwiceAndWrittenOnceButForWhatTheL2Holds) {
  const Workload workload = parse_workload_name("mlp-784x8192x8192x8192x10-b32");
  const double first = 785.0 * 8192, others = 2 * 8193.0 * 8192 + 8193 * 10, kept = 15e6;
  const double inputs = 32 * 784 * 4 * (1 - 6e7 / (1048576.0 * 784 * 4));
  const Traffic fp32 = least_traffic(workload, Precision::kFp32, 1 << 20, kOnChip, kL2);
  EXPECT_DOUBLE_EQ(fp32.read, inputs + 8 * (others - kept) + 4 * first);
  EXPECT_DOUBLE_EQ(fp32.written, 4 + 4 * (first + others - kept));
  // Forward reads the high halves alone.
  const Traffic bf16 = least_traffic(workload, Precision::kBf16, 1 << 20, kOnChip, kL2);
  EXPECT_DOUBLE_EQ(fp32.read - bf16.read, inputs / 2 + 6e7 / 1048576 * 32 / 2 + 2 * (others - kept));
  EXPECT_DOUBLE_EQ(bf16.written, fp32.written);
  EXPECT_EQ(floor_of("mlp-784x8192x8192x8192x10-b32", Precision::kFp32).bound, "operations");
  const Floor floor = floor_of("mlp-784x8192x8192x8192x10-b32", Precision::kTf32);
  EXPECT_EQ(floor.bound, "bytes");
  EXPECT_DOUBLE_EQ(floor.seconds, 2 * fp32.written / 4e12 + (fp32.read - fp32.written) / 5e12);
}

TEST(Floors, WeightsThatFitInTheL2NeedNoMemory) {
  const Workload workload = parse_workload_name("mlp-8x4000x4000x8-b8");
  const double parameters = 4000 * 9 + 4001 * 4000 + 4001 * 8;
  const Traffic traffic =
      least_traffic(workload, Precision::kFp32, 1 << 30, 1e6, static_cast<std::int64_t>(4 * parameters));
  EXPECT_DOUBLE_EQ(traffic.written, 4);
  EXPECT_LE(traffic.read, 8 * 8 * 4);
}

TEST(Floors, AnOptimizersSlotsAreReadAndWrittenWithTheWeights) {
  const double first = 785.0 * 8192, others = 2 * 8193.0 * 8192 + 8193 * 10, kept = 15e6;
  const double parameters = first + others;
  const auto traffic = [](const std::string& optimizer, Precision precision) {
    return least_traffic(parse_workload_name("mlp-784x8192x8192x8192x10-b32" + optimizer), precision, 1 << 20,
                         kOnChip, kL2);
  };
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const Traffic plain = traffic("", precision);
    for (const auto& [optimizer, slots] : {std::pair{"-momentum0.9", 1}, {"-adam", 2}, {"-adamw", 2}}) {
      const Traffic more = traffic(optimizer, precision);
      EXPECT_DOUBLE_EQ(more.read - plain.read, 4 * slots * parameters) << optimizer;
      EXPECT_DOUBLE_EQ(more.written - plain.written, 4 * slots * parameters) << optimizer;
    }
  }
  EXPECT_DOUBLE_EQ(traffic("", Precision::kFp32).written, 4 + 4 * (parameters - kept));
}

TEST(Floors, WeightsStayOnTheChipWhereOnlyTheSlotsDoNotFit) {
  const Workload workload = parse_workload_name("mlp-8x4000x2000x8-b8-adam");
  const double parameters = 4000 * 9 + 4001 * 2000 + 2001 * 8;
  const auto written = [&](double on_chip, double l2) {
    return least_traffic(workload, Precision::kFp32, 1 << 30, on_chip, static_cast<std::int64_t>(l2)).written;
  };
  EXPECT_DOUBLE_EQ(written(12 * parameters, 0), 4);
  EXPECT_DOUBLE_EQ(written(4 * parameters, 0), 4 + 8 * parameters);
  EXPECT_DOUBLE_EQ(written(5 * parameters, 4 * 1000), 4 + 7 * parameters - 4 * 1000);
  EXPECT_DOUBLE_EQ(written(4 * parameters - 4, 0), 4 + 12 * parameters);
}

TEST(Floors, TargetsOfARegressionAreReadInFp32InEveryPrecision) {
  const auto read = [](const char* name, Precision precision) {
    return least_traffic(parse_workload_name(name), precision, 1 << 20, kOnChip, 0).read;
  };
  EXPECT_DOUBLE_EQ(read("mlp-784x64x784-b32-mse", Precision::kFp32), 32 * (784 + 784) * 4);
  EXPECT_DOUBLE_EQ(read("mlp-784x64x784-b32-bce", Precision::kBf16), 32 * (784 * 2 + 784 * 4));
  EXPECT_DOUBLE_EQ(read("mlp-784x64x10-b32", Precision::kBf16), 32 * 784 * 2);
}

TEST(Floors, ASingleLayerWithoutASoftmaxNeedsNoExchange) {
  EXPECT_THAT(exchanged_values(parse_workload_name("mlp-784x10-b32-mse")), ElementsAre());
  EXPECT_THAT(exchanged_values(parse_workload_name("mlp-784x64x10-b32-mse")), ElementsAre(320));
}

TEST(Floors, ALargeBatchOnAWideNetworkIsBoundByOperations) {
  const Floor floor = floor_of("mlp-784x4096x4096x4096x10-b16384", Precision::kBf16);
  const double weights = 784.0 * 4096 + 2 * 4096.0 * 4096 + 4096 * 10;
  EXPECT_EQ(floor.bound, "operations");
  EXPECT_DOUBLE_EQ(floor.seconds, 2 * 16384.0 * (3 * weights - 784.0 * 4096) / 8e14);
}

TEST(Floors, Fp32TakesTheFasterOfPlainArithmeticAndTheLibrary) {
  const double operations = parse_workload_name("mlp-784x4096x10-b16384").flops_per_step();
  EXPECT_DOUBLE_EQ(floor_of("mlp-784x4096x10-b16384", Precision::kFp32).seconds, operations / 60e12);
  Calibration rates = round_rates();
  rates["matrix_fp32"].value = 70e12;
  EXPECT_DOUBLE_EQ(floor_of("mlp-784x4096x10-b16384", Precision::kFp32, 1 << 20, rates).seconds,
                   operations / 70e12);
}

TEST(Floors, ATinyNetworkNeedsNoExchangeBecauseOneSmIsEnough) {
  const Workload workload = parse_workload_name("mlp-4x4x3-b2");
  const Floor floor = floor_of("mlp-4x4x3-b2", Precision::kFp32);
  EXPECT_DOUBLE_EQ(floor.exchanges_seconds, workload.flops_per_step() / (60e12 / 132));
  EXPECT_LT(floor.exchanges_seconds, 1e-7);
}

TEST(Floors, ExchangesComeInPairsOfLayers) {
  const auto values = [](const char* name) { return exchanged_values(parse_workload_name(name)); };
  EXPECT_THAT(values("mlp-784x10-b32"), ElementsAre(320));
  EXPECT_THAT(values("mlp-784x64x10-b32"), ElementsAre(320));
  EXPECT_THAT(values("mlp-784x64x128x10-b1"), ElementsAre(128));  // every SM has the logits from h2
  EXPECT_THAT(values("mlp-9x8x7x6x5x4x3-b1"), ElementsAre(7, 5, 7, 3, 5));
}

TEST(Floors, SamplesSpreadOverSmsNeedOneExchangeOfAllGradients) {
  // 16 layers of 8: fifteen exchanges, or one and 4 bytes for each of the parameters through one SM's port.
  const char* name = "mlp-8x8x8x8x8x8x8x8x8x8x8x8x8x8x8x8x8-b100000";
  const double parameters = 16 * 72;
  const Floor floor = floor_of(name, Precision::kFp32);
  EXPECT_DOUBLE_EQ(floor.exchanges_seconds, 1e-7 + parameters * 4 / 1e11);
}

TEST(Floors, WithoutClustersTheSmallestExchangeThroughTheL2Counts) {
  Calibration rates = round_rates();
  rates.erase("remote_read");
  rates.erase("cluster_gather_128");
  EXPECT_DOUBLE_EQ(floor_of("mlp-784x128x128x128x10-b32", Precision::kFp16, 1 << 20, rates).seconds,
                   3 * 6e-7);
}

TEST(Floors, AMissingRateIsNamedAndGivesNoFloor) {
  for (const char* name : {"copy", "read", "on_chip", "one_sm_read", "matrix_fp16"}) {
    Calibration rates = round_rates();
    rates.erase(name);
    EXPECT_EQ(missing_rate(Precision::kFp16, rates), name);
    EXPECT_FALSE(workload_floor(parse_workload_name("mlp-8x8-b8"), Precision::kFp16, 8, rates, {132, kL2}));
  }
  EXPECT_EQ(missing_rate(Precision::kFp16, round_rates()), "");
  EXPECT_EQ(missing_rate(Precision::kTf32, {}), "copy");
}

TEST(Floors, NonsenseIsRefused) {
  const Workload workload = parse_workload_name("mlp-8x8-b8");
  const auto refused = [&](double copy, std::int64_t samples, int sm_count) {
    Calibration rates = round_rates();
    rates["copy"].value = copy;
    EXPECT_THROW(workload_floor(workload, Precision::kFp32, samples, rates, {sm_count, kL2}),
                 std::invalid_argument);
  };
  refused(0, 8, 132);
  refused(std::nan(""), 8, 132);
  refused(std::numeric_limits<double>::infinity(), 8, 132);
  refused(4e12, 7, 132);
  refused(4e12, 8, 0);
}

Record timed(const char* backend, double seconds) {
  Record record;
  record.workload = "mlp-8x8-b8";
  record.backend = backend;
  record.family = family_of(backend);
  record.step_seconds = StepSeconds{seconds, seconds, seconds};
  return record;
}

TEST(Floors, EachRecordHasItsFractionAndOraclesHaveNone) {
  std::vector<Record> records = {timed("cuda-layered", 4e-6), timed("oracle", 1), timed("cuda-layered", 4e-6),
                                 timed("cuda-layered", 4e-6)};
  records[2].outcome = Outcome::kFailed;
  records[3].precision = Precision::kBf16;
  set_fractions(records, {{Precision::kFp32, {1e-6, "bytes", 1e-6, 0, 0}}});
  EXPECT_DOUBLE_EQ(records[0].fraction_of_floor.value(), 0.25);
  for (int i : {1, 2, 3}) EXPECT_FALSE(records[static_cast<std::size_t>(i)].fraction_of_floor) << i;
  EXPECT_FALSE(is_faster_than_floor(records[0]));
}

TEST(Floors, ARecordFasterThanItsFloorIsADefectOfTheFloor) {
  std::vector<Record> records = {timed("cuda-layered", 0.8e-6)};
  set_fractions(records, {{Precision::kFp32, {1e-6, "bytes", 1e-6, 0, 0}}});
  EXPECT_TRUE(is_faster_than_floor(records[0]));
  EXPECT_THAT(floor_defect(records[0]), testing::HasSubstr("DEFECT: cuda-layered trains mlp-8x8-b8 in fp32"));
  EXPECT_THAT(floor_defect(records[0]), testing::HasSubstr("1.250 times"));
  records[0].fraction_of_floor = std::nan("");
  EXPECT_TRUE(is_faster_than_floor(records[0]));
  EXPECT_FALSE(is_faster_than_floor(Record{}));
}

}  // namespace
}  // namespace headroom
