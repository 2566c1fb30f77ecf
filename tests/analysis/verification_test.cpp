// Errors of updates, and the checks made of them.
#include "analysis/verification.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace headroom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<int> kWidths = {2, 1};  // weight1 of 2, bias1 of 1

Parameters of(std::vector<float> values) {
  Parameters parameters(kWidths);
  std::copy(values.begin(), values.end(), parameters.flat().begin());
  return parameters;
}

TEST(UpdateErrors, AreRelativeFrobeniusNorms) {
  const std::vector<double> errors = update_errors(of({0, 0, 0}), of({3, 4, 1}), of({3, 0, 2}));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_DOUBLE_EQ(errors[0], 4.0 / 3);
  EXPECT_DOUBLE_EQ(errors[1], 0.5);
}

TEST(UpdateErrors, ForgiveTheRoundingOfTheMaster) {
  const float start = 1, step = 1e-6f;
  const std::vector<double> errors = update_errors(
      of({start, start, start}), of({start + step, start + step, start + step}), of({step, step, step}));
  EXPECT_EQ(errors[0], 0);
  EXPECT_EQ(errors[1], 0);
}

TEST(UpdateErrors, AZeroUpdateIsRightOrInfinitelyWrong) {
  const std::vector<double> errors = update_errors(of({1, 1, 1}), of({1, 1, 1.5}), of({0, 0, 0}));
  EXPECT_EQ(errors[0], 0);
  EXPECT_EQ(errors[1], kInfinity);
}

TEST(UpdateErrors, NanAndInfinityStayVisible) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> errors =
      update_errors(of({1, 1, 1}), of({nan, 1, std::numeric_limits<float>::infinity()}), of({1, 1, 1}));
  EXPECT_TRUE(std::isnan(errors[0]));
  EXPECT_FALSE(std::isfinite(errors[1]));
  EXPECT_TRUE(std::isnan(update_errors(of({1, 1, 1}), of({nan, 1, 1}), of({0, 0, 0}))[0]));
}

TEST(UpdateErrors, OfLargeTensorsAreThoseOfPlainSums) {
  Parameters start = initial_parameters({1000, 701, 3}, 1), update = initial_parameters({1000, 701, 3}, 2);
  Parameters trained = initial_parameters({1000, 701, 3}, 3);
  double difference = 0, norm = 0, length = 0;
  for (std::size_t i = 0; i < start.weight(0).size(); ++i) {
    const double before = start.weight(0)[i], expected = update.weight(0)[i];
    difference += std::pow(trained.weight(0)[i] - before - expected, 2);
    norm += expected * expected;
    length += before * before;
  }
  const double expected = (std::sqrt(difference) - 6e-8 * std::sqrt(length)) / std::sqrt(norm);
  EXPECT_NEAR(update_errors(start, trained, update)[0], expected, 1e-9);
}

TEST(UpdateErrors, OfDifferentNetworksAreRefused) {
  EXPECT_THROW(update_errors(of({0, 0, 0}), Parameters({1, 1}), of({0, 0, 0})), std::invalid_argument);
}

Workload with_widths(std::vector<int> widths, int batch_size = 32) {
  Workload workload;
  workload.model.widths = std::move(widths);
  workload.batch_size = batch_size;
  return workload;
}

TEST(CompareStep, ScaleErrorIsTheProjectionOnTheOraclesUpdate) {
  // The update is 1.01 times the oracle's in the weights, and at a right angle beside it in nothing.
  const StepErrors errors = compare_step(7, of({0, 0, 0}), of({3.03f, 4.04f, 1}), of({3, 4, 1}));
  EXPECT_EQ(errors.step, 7);
  EXPECT_NEAR(errors.scale_errors[0], 1e-2, 1e-6);
  EXPECT_NEAR(errors.errors[0], 1e-2, 1e-6);
  EXPECT_EQ(errors.scale_errors[1], 0);
  // A difference at a right angle to the update changes its distance and not its scale.
  const StepErrors across = compare_step(0, of({0, 0, 0}), of({3.4f, 3.7f, 1}), of({3, 4, 1}));
  EXPECT_NEAR(across.errors[0], 0.1, 1e-6);
  EXPECT_LT(across.scale_errors[0], 1e-6);
}

TEST(CompareStep, ScaleErrorForgivesTheRoundingOfTheMaster) {
  // One unit in the last place of 1 is 1.2e-7: an update of 1e-6 can come out 6 % off, and is not called wrong.
  const float step = 1e-6f;
  EXPECT_EQ(compare_step(0, of({1, 1, 1}), of({1 + step, 1 + step, 1}), of({step, step, 0})).scale_errors[0],
            0);
  // Twice the update is.
  EXPECT_GT(compare_step(0, of({1, 1, 1}), of({1 + 2 * step, 1 + 2 * step, 1}), of({step, step, 0}))
                .scale_errors[0],
            0.5);
}

TEST(CompareStep, ScaleErrorOfNothingOrNanIsNotSmall) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(compare_step(0, of({1, 1, 1}), of({nan, 1, 1}), of({1, 1, 1})).scale_errors[0]));
  EXPECT_EQ(compare_step(0, of({1, 1, 1}), of({1, 2, 1}), of({0, 0, 0})).scale_errors[0], kInfinity);
  EXPECT_EQ(compare_step(0, of({1, 1, 1}), of({1, 1, 1}), of({0, 0, 0})).scale_errors[0], 0);
  EXPECT_NEAR(compare_step(0, of({1, 1, 1}), of({1, 1, 1}), of({1, 1, 1})).scale_errors[0], 1,
              1e-6);  // frozen
}

// What a ReLU that flipped on a heavy row did at one step of five to a kernel that is otherwise exact (H200, fp16,
// 784-128x3-10 at batch 32; simulated with the oracle to the last digit), and a step that is wrong by more.
TEST(StepBounds, OneHeavyFlipPassesAndAWrongStepDoesNot) {
  const Workload workload = with_widths({784, 128, 128, 128, 10});
  const auto passed = [&](double weight1, double bias1) {
    std::vector<StepErrors> steps(5,
                                  {.errors = std::vector<double>(8), .scale_errors = std::vector<double>(8)});
    steps[1].errors = {weight1, bias1, 0.0389, 0.0423, 0.0405, 0.0447, 0, 0};
    const std::vector<Check> checks = step_update_checks(workload, steps, Contract::kExact, Precision::kFp16);
    return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.passed; });
  };
  EXPECT_TRUE(passed(0.0532, 0.0544));
  EXPECT_FALSE(passed(0.14, 0.0544));
  EXPECT_FALSE(passed(0.0532, 0.14));
}

TEST(StepBounds, FollowPrecisionAndTheNumberOfActivations) {
  const Workload few = with_widths({784, 128, 128, 128, 10}), many = with_widths({784, 2048, 2048, 2048, 10});
  const Workload narrow = with_widths({20, 8, 3}, 4);
  for (Precision precision : kAllPrecisions) {
    EXPECT_EQ(step_bounds(few, Contract::kExact, precision).median, 1e-3);
    EXPECT_EQ(step_bounds(many, Contract::kExact, precision).median,
              precision == Precision::kFp32 ? 1e-3 : 2e-2);
    EXPECT_EQ(step_bounds(many, Contract::kExact, precision).each, 5e-2);
    EXPECT_EQ(step_bounds(narrow, Contract::kExact, precision).each, 0.5);
    EXPECT_NEAR(step_bounds(few, Contract::kExact, precision).each, 0.1326, 1e-4);  // six flips
    EXPECT_EQ(step_bounds(few, Contract::kExact, precision).scale, 2e-3);
  }
  EXPECT_EQ(step_bounds(few, Contract::kAutocast, Precision::kFp16).median, 3e-2);
  EXPECT_EQ(step_bounds(few, Contract::kAutocast, Precision::kBf16).median, 1e-1);
  EXPECT_EQ(step_bounds(few, Contract::kLibrary, Precision::kTf32).median, 6e-2);
  EXPECT_EQ(step_bounds(few, Contract::kLibrary, Precision::kTf32).each, kInfinity);
  EXPECT_EQ(step_bounds(few, Contract::kLibrary, Precision::kTf32).scale, 8e-3);
  EXPECT_EQ(step_bounds(few, Contract::kAutocast, Precision::kBf16).scale, 5e-3);
}

Workload deep(int hidden_layers, int width) {
  std::vector<int> widths(static_cast<std::size_t>(hidden_layers) + 2, width);
  widths.front() = 784;
  widths.back() = 10;
  return with_widths(widths);
}

TEST(StepBounds, GrowWithTheHiddenLayersOverThree) {
  const auto median = [](int hidden_layers, Precision precision) {
    return step_bounds(deep(hidden_layers, 8192), Contract::kExact, precision).median;
  };
  for (Precision precision : kAllPrecisions) {
    const double three = precision == Precision::kFp32 ? 1e-3 : 2e-2;
    for (int hidden_layers : {1, 2, 3}) EXPECT_EQ(median(hidden_layers, precision), three);
    for (int hidden_layers = 4; hidden_layers < kMaxLayers; ++hidden_layers) {
      EXPECT_GE(median(hidden_layers, precision), median(hidden_layers - 1, precision));
      // Few activations: flips are rare however many layers they are spread over.
      EXPECT_EQ(step_bounds(deep(hidden_layers, 32), Contract::kExact, precision).median, 1e-3);
    }
  }
  EXPECT_DOUBLE_EQ(median(4, Precision::kBf16), 3e-2);
  EXPECT_DOUBLE_EQ(median(7, Precision::kBf16), 6e-2);  // measured on an H200: 4.0e-2
  EXPECT_DOUBLE_EQ(median(15, Precision::kBf16), 1e-1);
  EXPECT_DOUBLE_EQ(median(7, Precision::kFp16), 2e-2 * std::sqrt(3));
  EXPECT_DOUBLE_EQ(median(7, Precision::kTf32), 2e-2 * std::sqrt(3));
  EXPECT_DOUBLE_EQ(median(15, Precision::kTf32), 4e-2);
  EXPECT_EQ(median(15, Precision::kFp32), 1e-3);
}

TEST(StepBounds, OfDeepNetworksBoundEachStepAndNoWiderScale) {
  for (Precision precision : kAllPrecisions) {
    for (int hidden_layers = 1; hidden_layers < kMaxLayers; ++hidden_layers) {
      const StepBounds bounds = step_bounds(deep(hidden_layers, 8192), Contract::kExact, precision);
      EXPECT_DOUBLE_EQ(bounds.each, std::max(5e-2, 1.5 * bounds.median));
      EXPECT_EQ(bounds.scale, 2e-3);
    }
  }
  EXPECT_EQ(step_bounds(deep(7, 8192), Contract::kAutocast, Precision::kBf16).median, 1e-1);
  EXPECT_EQ(step_bounds(deep(7, 8192), Contract::kAutocast, Precision::kFp16).median, 3e-2);
  EXPECT_EQ(step_bounds(deep(7, 8192), Contract::kLibrary, Precision::kTf32).median, 6e-2);
}

std::vector<StepErrors> steps_with(std::vector<double> weight_errors) {
  std::vector<StepErrors> steps;
  for (double error : weight_errors) {
    steps.push_back({static_cast<std::int64_t>(steps.size()), {error, 0}, {0, 0}});
  }
  return steps;
}

bool weight_passes(std::vector<double> errors, Contract contract = Contract::kExact) {
  const std::vector<Check> checks =
      step_update_checks(with_widths(kWidths), steps_with(errors), contract, Precision::kBf16);
  EXPECT_EQ(checks.size(), 4u);
  for (std::size_t other : {1u, 2u, 3u}) EXPECT_TRUE(checks[other].passed);
  return checks[0].passed;
}

TEST(StepUpdateCheck, BoundsTheMedianAndEachStep) {
  EXPECT_TRUE(weight_passes({1e-5, 1e-5, 4e-2}));
  EXPECT_FALSE(weight_passes({1e-5, 1e-5, 6e-2}));
  EXPECT_FALSE(weight_passes({2e-3, 2e-3, 1e-5}));
  EXPECT_TRUE(weight_passes({9e-2, 9e-2, 0.5}, Contract::kAutocast));
  EXPECT_FALSE(weight_passes({0.11, 0.11, 1e-5}, Contract::kAutocast));
}

TEST(StepScaleCheck, CatchesALearningRateOnePercentOffUnderEveryContract) {
  for (Contract contract : {Contract::kExact, Contract::kAutocast, Contract::kLibrary}) {
    for (const double scale_error : {1e-2, 1e-3}) {
      std::vector<StepErrors> steps = steps_with({1e-5, 1e-5, 1e-5});
      for (StepErrors& step : steps) step.scale_errors = {scale_error, 0};
      const std::vector<Check> checks =
          step_update_checks(with_widths(kWidths), steps, contract, Precision::kBf16);
      EXPECT_EQ(checks[1].name, "step_scale");
      EXPECT_EQ(checks[1].passed, scale_error == 1e-3);
      EXPECT_TRUE(checks[0].passed);
    }
  }
}

TEST(StepUpdateCheck, OneNanOrInfinityFailsUnderEveryContract) {
  for (Contract contract : {Contract::kExact, Contract::kAutocast, Contract::kLibrary}) {
    EXPECT_FALSE(weight_passes({0, 0, std::nan("")}, contract));
    EXPECT_FALSE(weight_passes({std::nan(""), 0, 0}, contract));
    EXPECT_FALSE(weight_passes({0, kInfinity, 0}, contract));
  }
}

TEST(StepUpdateCheck, SaysMedianWorstAndSteps) {
  const std::vector<Check> checks = step_update_checks(with_widths(kWidths), steps_with({3e-4, 1e-4, 2e-2}),
                                                       Contract::kExact, Precision::kFp32);
  EXPECT_EQ(checks[0].name, "step_update");
  EXPECT_EQ(checks[0].tensor, "weight1");
  EXPECT_EQ(checks[1].tensor, "weight1");
  EXPECT_EQ(checks[2].tensor, "bias1");
  EXPECT_EQ(checks[0].error, 3e-4);
  EXPECT_EQ(checks[0].worst, 2e-2);
  EXPECT_EQ(checks[0].bound, 1e-3);
  EXPECT_EQ(checks[0].steps, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_THROW(step_update_checks(with_widths(kWidths), {}, Contract::kExact, Precision::kFp32),
               std::invalid_argument);
}

TEST(TenStepsCheck, BoundsTheMedianOverTheTensors) {
  EXPECT_TRUE(ten_steps_check(std::vector<double>{1e-3, 4e-2, 0.3}).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{1e-3, 6e-2, 0.3}).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{0, 0, std::nan("")}).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{0, 0, kInfinity}).passed);
}

TEST(LossesFiniteCheck, CountsWhatIsNotFiniteOrOutOfRange) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(losses_finite_check(std::vector<float>{2.3f, 0.0f}, 23).passed);
  EXPECT_EQ(losses_finite_check(std::vector<float>{2.3f, nan, 24.0f, -1.0f}, 23).error, 3);
  EXPECT_FALSE(losses_finite_check(std::vector<float>{2.3f, nan}, kInfinity).passed);
  EXPECT_FALSE(losses_finite_check(std::vector<float>{1.0f}, std::nan("")).passed);
  EXPECT_THROW(losses_finite_check({}, 23), std::invalid_argument);
}

TEST(CurveCheck, TakesTheMedianSeed) {
  const std::vector<double> reference = {0.5, 0.4, 0.6};
  EXPECT_TRUE(curve_check(std::vector<double>{0.5, 0.4004, 0.9}, reference).passed);
  EXPECT_FALSE(curve_check(std::vector<double>{0.51, 0.41, 0.6}, reference).passed);
  EXPECT_FALSE(curve_check(std::vector<double>{0.5, 0.4, std::nan("")}, reference).passed);
  EXPECT_THROW(curve_check(std::vector<double>{0.5}, reference), std::invalid_argument);
}

TEST(Judge, PassesOnlyIfEveryCheckPassed) {
  const Check good = ten_steps_check(std::vector<double>{0}), bad = ten_steps_check(std::vector<double>{1});
  EXPECT_EQ(judge({}).verdict, Verdict::kNotRun);
  EXPECT_EQ(judge({good, good}).verdict, Verdict::kPass);
  EXPECT_EQ(judge({good, bad}).verdict, Verdict::kFail);
}

TEST(FailureMessage, NamesTheWorstTensor) {
  std::vector<Check> checks = step_update_checks(with_widths(kWidths), steps_with({1e-2, 1e-2, 1e-2}),
                                                 Contract::kExact, Precision::kFp32);
  EXPECT_EQ(failure_message(judge(checks)),
            "weight1 is 1.0e-02 off the oracle's update in the median (median at most 1.0e-03)");
  EXPECT_EQ(failure_message(judge({ten_steps_check(std::vector<double>{0})})), "");
}

}  // namespace
}  // namespace headroom
