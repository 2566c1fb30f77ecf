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

std::vector<double> update_errors(const Parameters& start, const Parameters& trained,
                                  const Parameters& update) {
  Parameters end = start;
  for (std::size_t i = 0; i < end.flat().size(); ++i) end.flat()[i] += update.flat()[i];
  return update_errors_from_end(start, trained, end);
}

TEST(UpdateErrors, AreRelativeFrobeniusNorms) {
  const std::vector<double> errors = update_errors(of({0, 0, 0}), of({3, 4, 1}), of({3, 0, 2}));
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NEAR(errors[0], 4.0 / 3, 1e-6);
  EXPECT_NEAR(errors[1], 0.5, 1e-6);
}

TEST(UpdateErrors, ForgiveOneRoundingOfStorage) {
  const float next = std::nextafter(1.0f, 2.0f);
  EXPECT_GT(update_errors(of({1, 1, 1}), of({1, 1, next}), of({0, 0, 1e-9f}))[1], 0);
  const float below = std::nextafter(1.0f, 0.0f);
  EXPECT_EQ(update_errors(of({1, 1, 1}), of({1, 1, below}), of({0, 0, 1e-9f}))[1], 0);
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
  Parameters start = initial_parameters({1000, 701, 3}, 1), end = initial_parameters({1000, 701, 3}, 2);
  Parameters trained = initial_parameters({1000, 701, 3}, 3);
  double difference = 0, norm = 0, length = 0;
  for (std::size_t i = 0; i < start.weight(0).size(); ++i) {
    const double before = start.weight(0)[i], after = end.weight(0)[i];
    difference += std::pow(trained.weight(0)[i] - after, 2);
    norm += std::pow(after - before, 2);
    length += after * after;
  }
  const double expected = (std::sqrt(difference) - 0x1p-24 * std::sqrt(length)) / std::sqrt(norm);
  EXPECT_NEAR(update_errors_from_end(start, trained, end)[0], expected, 1e-9);
}

TEST(UpdateErrors, OfDifferentNetworksAreRefused) {
  EXPECT_THROW(update_errors_from_end(of({0, 0, 0}), Parameters({1, 1}), of({0, 0, 0})),
               std::invalid_argument);
}

/// Copies that are each so far from the oracle in both tensors.
Copies copies_of(float distance, float scale) {
  Copies copies{4, {}, {}};
  copies.distances.assign(8, distance);
  copies.scales.assign(8, scale);
  return copies;
}
StepErrors compared(const Parameters& start, const Parameters& trained, const Parameters& update,
                    Copies copies = {}) {
  return compare_step(7, Optimizer{}, State{start, {}}, State{trained, {}}, State{update, {}},
                      std::move(copies));
}

TEST(CompareStep, ScaleIsTheProjectionOnTheOraclesUpdate) {
  const StepErrors errors = compared(of({0, 0, 0}), of({3.03f, 4.04f, 1}), of({3, 4, 1}));
  EXPECT_EQ(errors.step, 7);
  EXPECT_NEAR(errors.tensors[0].scale, 1e-2, 1e-6);
  EXPECT_NEAR(errors.tensors[0].error, 1e-2, 1e-6);
  EXPECT_EQ(errors.tensors[1].scale, 0);
  // A difference at a right angle to the update changes its distance and not its scale.
  const StepErrors across = compared(of({0, 0, 0}), of({3.4f, 3.7f, 1}), of({3, 4, 1}));
  EXPECT_NEAR(across.tensors[0].error, 0.1, 1e-6);
  EXPECT_NEAR(across.tensors[0].scale, 0, 1e-6);
}

TEST(CompareStep, StorageIsTheRoundingOfWhatIsStored) {
  const StepErrors errors = compared(of({1, 1, 1}), of({1, 1, 1}), of({5e-7f, 5e-7f, 0}));
  EXPECT_NEAR(errors.tensors[0].storage, 0x1p-24 / 5e-7, 1e-6);
  EXPECT_EQ(errors.tensors[1].storage, kInfinity);
  EXPECT_FALSE(is_evidence(errors.tensors[0], Precision::kFp32));  // 16 roundings are more than the update
  EXPECT_TRUE(
      is_evidence(compared(of({1, 1, 1}), of({1, 1, 1}), of({1e-3f, 0, 0})).tensors[0], Precision::kFp32));
}

TEST(CompareStep, ANanOrAnUntrainedTensorIsFarOff) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TensorStep broken = compared(of({1, 1, 1}), of({nan, 1, 1}), of({1, 1, 1})).tensors[0];
  EXPECT_TRUE(std::isnan(broken.scale));
  EXPECT_TRUE(std::isnan(broken.error));
  EXPECT_NEAR(compared(of({1, 1, 1}), of({1, 1, 1}), of({1, 1, 1})).tensors[0].scale, -1, 1e-6);
}

TEST(CompareStep, RefusesCopiesOfAnotherNetwork) {
  Copies copies = copies_of(1, 1);
  copies.distances.resize(12);
  copies.scales.resize(12);
  EXPECT_THROW(compared(of({1, 1, 1}), of({1, 1, 1}), of({1, 1, 1}), copies), std::invalid_argument);
}

TEST(CompareStep, AHalfMayBeRoundedEitherWay) {
  const float next = std::nextafter(1.0f, 2.0f), half = 0x1p-24f;
  for (const float trained : {1.0f, next})
    EXPECT_EQ(compared(of({0, 0, 1}), of({0, 0, trained}), of({0, 0, half})).tensors[1].error, 0);
}

Workload two_to_one() {
  Workload workload;
  workload.model.widths = kWidths;
  workload.batch_size = 32;
  return workload;
}

/// The check of the weights by its name, of three steps whose update is off by `errors` across it.
Check weight_check(const std::string& name, const std::vector<float>& across, const std::vector<float>& along,
                   const Copies& copies, Precision precision = Precision::kBf16) {
  std::vector<StepErrors> steps;
  for (std::size_t i = 0; i < across.size(); ++i)
    steps.push_back(compared(of({0, 0, 0}), of({1 + along[i], across[i], 1}), of({1, 0, 1}), copies));
  for (const Check& check : step_update_checks(two_to_one(), steps, precision))
    if (check.name == name && check.tensor == "weight1") return check;
  return {};
}

TEST(StepUpdateCheck, AllowsThreeTimesTheCopiesSpreadAtEachStep) {
  const auto check = [](float error) {
    return weight_check("step_update", {0, error, 0}, {0, 0, 0}, copies_of(0.02f, 0));
  };
  EXPECT_TRUE(check(0.059f).passed);
  EXPECT_FALSE(check(0.061f).passed);
  EXPECT_NEAR(check(0.061f).error, 0.061, 1e-6);
  EXPECT_NEAR(check(0.061f).bound, 0.06, 1e-6);
}

TEST(GradientFormat, IsAutocastsAlone) {
  EXPECT_EQ(gradient_format(Precision::kBf16, Contract::kExact, 32).bits, 0);
  EXPECT_EQ(gradient_format(Precision::kFp32, Contract::kAutocast, 32).bits, 0);
  EXPECT_EQ(gradient_format(Precision::kBf16, Contract::kAutocast, 32).bits, 7);
  EXPECT_EQ(gradient_format(Precision::kFp16, Contract::kAutocast, 32).smallest, 0x1p-24 / 512);
}

/// A gradient of 1.5 in bf16 has neighbours 2^-7 away.
TEST(CompareStep, ASpreadIsAtLeastTheLargestGradientRoundedTheOtherWay) {
  const GradientFormat format = gradient_format(Precision::kBf16, Contract::kAutocast, 1);
  const auto spread = [&](const Optimizer& optimizer, std::vector<Parameters> starts,
                          std::vector<Parameters> updates, std::size_t tensor) {
    const Parameters zero = of({0, 0, 0}), parameters = of({-1.5f * 0.003f, 0, 0});
    return compare_step(7, optimizer, State{zero, starts}, State{zero, starts}, State{parameters, updates},
                        {}, format)
        .tensors[tensor]
        .spread;
  };
  EXPECT_NEAR(spread({}, {}, {}, 0), 0x1p-7 / 1.5, 1e-6);
  const Optimizer momentum{.momentum = 0.5};  // velocity 2 becomes 1 + 1.5
  EXPECT_NEAR(spread(momentum, {of({2, 0, 0})}, {of({0.5f, 0, 0})}, 0), 0x1p-7 / 0.5, 1e-6);
  const Optimizer adam{.kind = Optimizer::Kind::kAdam};
  const std::vector<Parameters> starts = {of({1, 0, 0}), of({0, 0, 0})},
                                updates = {of({0.05f, 0, 0}), of({0.00225f, 0, 0})};
  EXPECT_NEAR(spread(adam, starts, updates, 0), 0x1p-7 / 0.5, 1e-6);
  EXPECT_NEAR(spread(adam, starts, updates, 2), 0x1p-6 / 1.5, 1e-4);
}

TEST(StepUpdateCheck, AllowsALittleWhereTheCopiesAgree) {
  const auto check = [](float error, Precision precision) {
    return weight_check("step_update", {0, error, 0}, {0, 0, 0}, copies_of(0, 0), precision).passed;
  };
  EXPECT_TRUE(check(2e-5f, Precision::kFp32));
  EXPECT_FALSE(check(4e-5f, Precision::kFp32));
  EXPECT_TRUE(check(9e-4f, Precision::kTf32));
  EXPECT_FALSE(check(1.1e-3f, Precision::kTf32));
}

TEST(StepScaleCheck, BoundsTheMedianOverTheSteps) {
  const auto check = [](std::vector<float> scales, float of_copies) {
    return weight_check("step_scale", {0, 0, 0}, scales, copies_of(0.1f, of_copies)).passed;
  };
  EXPECT_TRUE(check({2e-3f, -2e-3f, 0.5f}, 0));
  EXPECT_FALSE(check({1e-2f, 1e-2f, 0}, 0));
  EXPECT_FALSE(check({-1e-2f, -1e-2f, 0}, 0));
  EXPECT_TRUE(check({1e-2f, 1e-2f, 0}, 4e-3f));
  EXPECT_FALSE(check({1e-2f, 1e-2f, 0}, 3e-3f));
}

/// Steps at which the weights are off by `scale`, and each copy by 0.01, one way and the other in turn.
bool passes_with_signs_in_turn(float scale, const GradientFormat& format) {
  std::vector<StepErrors> steps;
  for (const float of_copies : {0.01f, -0.01f, 0.01f, -0.01f})
    steps.push_back(compare_step(7, Optimizer{}, State{of({0, 0, 0}), {}}, State{of({1 + scale, 0, 1}), {}},
                                 State{of({1, 0, 1}), {}}, copies_of(0.1f, of_copies), format));
  for (const Check& check : step_update_checks(two_to_one(), steps, Precision::kBf16))
    if (check.name == "step_scale" && check.tensor == "weight1") return check.passed;
  return false;
}

TEST(StepScaleCheck, UnderAutocastAllowsWhatCopiesWhoseSignsCancelAreOffAtAStep) {
  const GradientFormat autocast = gradient_format(Precision::kBf16, Contract::kAutocast, 32);
  EXPECT_TRUE(passes_with_signs_in_turn(1.9e-2f, autocast));
  EXPECT_FALSE(passes_with_signs_in_turn(2.1e-2f, autocast));
  EXPECT_FALSE(passes_with_signs_in_turn(4e-3f, {}));
}

TEST(StepScaleCheck, LeavesOutStepsAtWhichCopiesMayBeAnywhere) {
  EXPECT_FALSE(weight_check("step_scale", {0, 0, 0}, {0.1f, 0.1f, 0.1f}, copies_of(0.16f, 0)).passed);
  EXPECT_TRUE(weight_check("step_scale", {0, 0, 0}, {0.1f, 0.1f, 0.1f}, copies_of(0.17f, 0)).passed);
}

TEST(StepUpdateCheck, OneNanOrInfinityFailsWhateverTheCopiesDo) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const float spread : {0.0f, 1.0f, infinity, nan}) {
    EXPECT_FALSE(weight_check("step_update", {0, nan, 0}, {0, 0, 0}, copies_of(spread, 0)).passed) << spread;
    EXPECT_FALSE(weight_check("step_update", {0, infinity, 0}, {0, 0, 0}, copies_of(spread, 0)).passed)
        << spread;
  }
}

TEST(StepUpdateCheck, RefusesNoStepsAndStepsOfAnotherNetwork) {
  EXPECT_THROW(step_update_checks(two_to_one(), {}, Precision::kFp32), std::invalid_argument);
  Workload other = two_to_one();
  other.model.widths = {2, 1, 1};
  const std::vector<StepErrors> steps = {compared(of({0, 0, 0}), of({1, 0, 1}), of({1, 0, 1}))};
  EXPECT_THROW(step_update_checks(other, steps, Precision::kFp32), std::invalid_argument);
}

Verdict verdict_of(const Parameters& trained, const Parameters& update, Copies copies = {}) {
  const std::vector<StepErrors> steps = {compared(of({1, 1, 1}), trained, update, std::move(copies))};
  return judge(step_update_checks(two_to_one(), steps, Precision::kFp32)).verdict;
}

/// The checks of one step of a velocity that keeps `kept` of itself, where the gradient is at a right angle to it.
std::vector<Check> momentum_checks(float kept, float decay_of_copies) {
  Workload workload = two_to_one();
  workload.optimizer.momentum = 0.9;
  const Parameters zero = of({0, 0, 0});
  Copies copies = copies_of(0.1f, 0.1f);  // too far apart to tell by distance or along the update
  copies.decays.assign(8, decay_of_copies);
  const StepErrors errors =
      compare_step(7, workload.optimizer, State{zero, {of({1, 0, 0})}}, State{zero, {of({kept, 2, 1})}},
                   State{zero, {of({-0.1f, 2, 1})}}, std::move(copies));
  return step_update_checks(workload, std::span(&errors, 1), Precision::kBf16);
}
Check of_momentum(const std::vector<Check>& checks, const std::string& name) {
  for (const Check& check : checks)
    if (check.name == name && check.tensor == "momentum") return check;
  return {};
}

TEST(StepScaleCheck, CatchesAMomentumOnePercentOffAlongTheVelocity) {
  EXPECT_TRUE(of_momentum(momentum_checks(0.9f, 1e-3f), "step_scale").passed);
  const Check check = of_momentum(momentum_checks(0.891f, 1e-3f), "step_scale");
  EXPECT_FALSE(check.passed);
  EXPECT_NEAR(check.error, 9e-3, 1e-6);
  EXPECT_NEAR(check.bound, 3e-3, 1e-6);
}

TEST(Evidence, OfTheMomentumIsMissingWhereCopiesDifferAlongTheVelocity) {
  EXPECT_TRUE(of_momentum(momentum_checks(0.9f, 2e-3f), "evidence").passed);
  EXPECT_FALSE(of_momentum(momentum_checks(0.9f, 3e-3f), "evidence").passed);
}

TEST(UpdateRuleCheck, AllowsWhatFp32MakesOfTheFirstBiasCorrections) {
  Workload workload = two_to_one();
  workload.optimizer.kind = Optimizer::Kind::kAdam;
  const auto bound = [&](std::int64_t step) {
    const State state{of({0, 0, 0}), {of({1, 1, 1}), of({1, 1, 1})}};
    const StepErrors errors = compare_step(step, workload.optimizer, state, state, state, {});
    for (const Check& check : step_update_checks(workload, std::span(&errors, 1), Precision::kFp32))
      if (check.name == "update_rule") return check.bound;
    return 0.0;
  };
  EXPECT_GT(bound(0), 6e-5);
  EXPECT_LT(bound(0), 1e-4);
  EXPECT_LT(bound(299), 5e-5);
  EXPECT_LT(bound(9999), 2e-5);
}

TEST(Evidence, WithoutAnyNothingIsSaidToBeRight) {
  EXPECT_EQ(verdict_of(of({2, 2, 2}), of({1, 1, 1})), Verdict::kPass);
  // Nothing is trained, or next to nothing, or correct code may do anything.
  EXPECT_EQ(verdict_of(of({1, 1, 1}), of({0, 0, 0})), Verdict::kCannotBeChecked);
  EXPECT_EQ(verdict_of(of({1, 1, 1}), of({1e-8f, 1e-8f, 1e-8f})), Verdict::kCannotBeChecked);
  EXPECT_EQ(verdict_of(of({2, 2, 2}), of({1, 1, 1}), copies_of(1, 0)), Verdict::kCannotBeChecked);
  EXPECT_EQ(verdict_of(of({2, 2, 2}), of({1, 1, 1}), copies_of(0, 0.01f)), Verdict::kCannotBeChecked);
}

TEST(Evidence, AFaultIsAFaultWithoutIt) {
  EXPECT_EQ(verdict_of(of({1, 1, 1.5f}), of({0, 0, 0})), Verdict::kFail);
  EXPECT_EQ(verdict_of(of({1, std::nanf(""), 1}), of({0, 0, 0})), Verdict::kFail);
}

TEST(TenStepsCheck, BoundsTheMedianOverTheTensors) {
  EXPECT_TRUE(ten_steps_check(std::vector<double>{1e-3, 0.19, 0.3}, 0).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{1e-3, 0.21, 0.3}, 0).passed);
  EXPECT_TRUE(ten_steps_check(std::vector<double>{1e-3, 0.21, 0.3}, 8e-2).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{0, 0, std::nan("")}, 1).passed);
  EXPECT_TRUE(ten_steps_check(std::vector<double>{0, 0, kInfinity}, 1).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{0, kInfinity, kInfinity}, 1).passed);
}

TEST(TenStepsCheck, WhereCopiesLeaveWhatDoesNotMoveOnlyNanFails) {
  EXPECT_TRUE(ten_steps_check(std::vector<double>{0, kInfinity}, kInfinity).passed);
  EXPECT_FALSE(ten_steps_check(std::vector<double>{0, std::nan("")}, kInfinity).passed);
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
  const Check good = ten_steps_check(std::vector<double>{0}, 0),
              bad = ten_steps_check(std::vector<double>{1}, 0);
  EXPECT_EQ(judge({}).verdict, Verdict::kNotRun);
  EXPECT_EQ(judge({good, good}).verdict, Verdict::kPass);
  EXPECT_EQ(judge({good, bad}).verdict, Verdict::kFail);
}

TEST(Judge, WithoutEvidenceACheckThatFailsIsStillAFailure) {
  const Check good = ten_steps_check(std::vector<double>{0}, 0),
              bad = ten_steps_check(std::vector<double>{1}, 0);
  const Check none{.name = "evidence", .tensor = {}, .steps = {}, .error = 1, .worst = 1, .bound = 0.5};
  EXPECT_EQ(judge({good, none}).verdict, Verdict::kCannotBeChecked);
  EXPECT_EQ(judge({none, bad}).verdict, Verdict::kFail);
  EXPECT_EQ(judge({bad, none}).verdict, Verdict::kFail);
}

TEST(FailureMessage, NamesTheWorstTensor) {
  const std::vector<StepErrors> steps = {compared(of({0, 0, 0}), of({1, 0.01f, 1}), of({1, 0, 1}))};
  EXPECT_EQ(failure_message(judge(step_update_checks(two_to_one(), steps, Precision::kTf32))),
            "weight1 is 1.0e-02 off the oracle's update (at most 1.0e-03)");
  EXPECT_EQ(failure_message(judge({ten_steps_check(std::vector<double>{0}, 0)})), "");
}

}  // namespace
}  // namespace headroom
