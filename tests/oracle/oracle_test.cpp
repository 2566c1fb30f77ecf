// The oracle against numerical differentiation, against hand-computed roundings, and against itself.
#include "oracle/oracle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/training_rules.h"
#include "oracle/copies.h"
#include "oracle/gradient.h"
#include "oracle/precision_rounding.h"
#include "oracle/step_copies.h"
#include "random_data.h"

namespace headroom {
namespace {

std::vector<double> as_double(const Parameters& parameters) {
  return {parameters.flat().begin(), parameters.flat().end()};
}

/// Central differences of the loss, parameter by parameter.
void expect_gradient_as_by_differences(const Workload& workload, const Dataset& data, double tolerance) {
  std::vector<double> parameters = as_double(initial_parameters(workload.model.widths, 17));
  const std::vector<double> gradient = oracle_gradient(workload, data.train(), parameters, 1, nullptr);
  ASSERT_EQ(gradient.size(), parameters.size());
  constexpr double kDistance = 1e-5;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double value = parameters[i];
    double above = 0, below = 0;
    parameters[i] = value + kDistance;
    oracle_gradient(workload, data.train(), parameters, 1, &above);
    parameters[i] = value - kDistance;
    oracle_gradient(workload, data.train(), parameters, 1, &below);
    parameters[i] = value;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * kDistance), tolerance)
        << workload.name << " parameter " << i;
  }
}

TEST(OracleGradient, AgreesWithNumericalDifferentiation) {
  const std::vector<std::pair<std::vector<int>, int>> shapes = {
      {{1, 1}, 1},    {{1, 2}, 1},       {{5, 3}, 4},          {{3, 1, 2}, 3},         {{7, 5, 4, 3}, 6},
      {{4, 8, 5}, 2}, {{17, 33, 9}, 31}, {{2, 1, 1, 1, 3}, 5}, {{6, 4, 4, 4, 4, 2}, 9}};
  for (const auto& [widths, batch] : shapes) {
    const Workload workload = small_workload(widths, batch, 11);
    expect_gradient_as_by_differences(workload, random_data(workload, 2 * batch + 1), 1e-8);
  }
}

TEST(OracleGradient, OfEveryActivationAndLossAgreesWithNumericalDifferentiation) {
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const std::vector<int>& widths : {std::vector<int>{7, 5, 4, 3}, {3, 9, 1}, {4, 2}}) {
        Workload workload = small_workload(widths, 6, 11);
        workload.model.activation = activation;
        workload.loss = loss;
        workload.name = default_name(workload);
        expect_gradient_as_by_differences(workload, random_data(workload, 13), 1e-8);
      }
}

/// The slopes where the formulas bend or saturate, far from where a small network's sums lie.
TEST(TrainingRules, SlopesAgreeWithNumericalDifferentiationFromMinusThirtyToThirty) {
  for (const Activation activation : kAllActivations)
    for (double z = -30.25; z < 30.5; z += 0.5) {
      const double kept = rules::slope_is_of_output(activation) ? rules::activated(activation, z) : z;
      const double difference =
          (rules::activated(activation, z + 1e-6) - rules::activated(activation, z - 1e-6)) / 2e-6;
      EXPECT_NEAR(rules::slope(activation, kept), difference, 1e-8) << to_string(activation) << " at " << z;
    }
}

TEST(TrainingRules, ANaNSumComesOutOfEveryActivationAndLoss) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Activation activation : kAllActivations)
    EXPECT_TRUE(std::isnan(rules::activated(activation, nan))) << to_string(activation);
  for (const auto& part : {rules::squared_error(nan, 1), rules::binary_cross_entropy(nan, 1)}) {
    EXPECT_TRUE(std::isnan(part.loss));
    EXPECT_TRUE(std::isnan(part.gradient));
  }
}

TEST(TrainingRules, BinaryCrossEntropyStaysFiniteWithHugeOutputs) {
  EXPECT_EQ(rules::binary_cross_entropy(1e4, 0).loss, 1e4);
  EXPECT_EQ(rules::binary_cross_entropy(-1e4, 1).loss, 1e4);
  EXPECT_EQ(rules::binary_cross_entropy(-1e4, 1).gradient, -1);
  EXPECT_EQ(rules::binary_cross_entropy(1e4, 1).loss, 0);
}

/// The first Adam step moves each parameter by the learning rate, whatever the gradient's size; t of step 0 is 1.
TEST(TrainingRules, TheFirstAdamStepIsTheLearningRate) {
  Optimizer optimizer{.kind = Optimizer::Kind::kAdam, .learning_rate = 0.25};
  rules::Parameter one{.value = 3};
  rules::update(rules::at_step(optimizer, 0), -1e-3, one);
  EXPECT_NEAR(one.value, 3.25, 1e-5);
  EXPECT_NEAR(one.slots[0], -1e-4, 1e-12);
  EXPECT_NEAR(one.slots[1], 1e-9, 1e-15);
}

TEST(OracleTrainer, GoesOnFromAnotherTrainersState) {
  for (const Optimizer::Kind kind : kAllOptimizers) {
    Workload workload = small_workload({5, 6, 2}, 4);
    workload.optimizer.kind = kind;
    if (kind == Optimizer::Kind::kSgd) workload.optimizer.momentum = 0.9;
    const Dataset data = random_data(workload, 12);
    const Parameters initial = initial_parameters(workload.model.widths, 3);
    const auto make = [&] {
      return make_oracle_trainer(workload, Precision::kFp32, true, data.train(), initial);
    };
    const auto whole = make(), begun = make(), ended = make();
    whole->train(0, 7);
    begun->train(0, 4);
    ended->set_state(begun->state());
    ended->train(4, 3);
    ASSERT_EQ(ended->slots().size(), static_cast<std::size_t>(workload.optimizer.slots()));
    for (std::size_t i = 0; i < initial.flat().size(); ++i)
      EXPECT_NEAR(ended->parameters().flat()[i], whole->parameters().flat()[i], 1e-6) << to_string(kind);
    EXPECT_THROW(ended->set_slots({}), InputError);
  }
}

TEST(OracleReference, UpdatesHoldWhatAStepAddsToTheSlots) {
  Workload workload = small_workload({3, 4, 2}, 3);
  workload.model.activation = Activation::kTanh;  // no unit is dead
  workload.optimizer.kind = Optimizer::Kind::kAdam;
  const Dataset data = random_data(workload, 9);
  follow_reference(
      workload, Precision::kFp32, true, data.train(), initial_parameters(workload.model.widths, 2), {0, 2},
      [&](const ReferencePoint& point) {
        ASSERT_EQ(point.start.slots.size(), 2u);
        const std::vector<double> gradient =
            oracle_gradient(workload, data.train(), as_double(point.start.parameters), point.step, nullptr);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          const double m = point.start.slots[0].flat()[i], v = point.start.slots[1].flat()[i];
          EXPECT_EQ(point.step == 0, m == 0 && v == 0);
          EXPECT_NEAR(point.update.slots[0].flat()[i], 0.1 * (gradient[i] - m), 1e-9);
          EXPECT_NEAR(point.update.slots[1].flat()[i], 0.001 * (gradient[i] * gradient[i] - v), 1e-10);
        }
      },
      nullptr);
}

TEST(OracleGradient, LossOfAnUntrainedSymmetricNetworkIsTheLogarithmOfTheClasses) {
  const Workload workload = small_workload({3, 7}, 2);
  double loss = 0;
  oracle_gradient(workload, random_data(workload, 2).train(), std::vector<double>(3 * 7 + 7), 0, &loss);
  EXPECT_NEAR(loss, std::log(7.0), 1e-15);
}

TEST(OracleGradient, StaysFiniteWithHugeLogits) {
  const Workload workload = small_workload({1, 2}, 1);
  Dataset data = random_data(workload, 1);
  data.train_features = {1.0f};
  data.train_labels = {1};
  double loss = 0;
  const std::vector<double> gradient = oracle_gradient(workload, data.train(), {1e4, -1e4, 0, 0}, 0, &loss);
  EXPECT_EQ(loss, 2e4);
  EXPECT_EQ(gradient, (std::vector<double>{1, -1, 1, -1}));
}

// One layer, one input x, two classes, weights (w, 0), label 0: the loss is log(1 + exp(-w x)), so it shows
// how w and x were rounded.
double loss_of_one_product(Precision precision, bool rounding, float w, float x) {
  const Workload workload = small_workload({1, 2}, 1);
  Dataset data = random_data(workload, 1);
  data.train_features = {x};
  data.train_labels = {0};
  Parameters parameters(workload.model.widths);
  parameters.weight(0)[0] = w;
  double loss = 0;
  follow_reference(
      workload, precision, rounding, data.train(), parameters, {0},
      [&](const ReferencePoint& point) { loss = point.loss; }, nullptr);
  return loss;
}

double expected_loss(double product) { return std::log1p(std::exp(-product)); }

TEST(OracleRoundings, ProductInputsAreRoundedAsTheContractSays) {
  const float bf16_tie = 1 + 0x1p-8f,
              half_tie = 1 + 0x1p-11f;  // halfway between 1 and the next value of the format
  EXPECT_NEAR(loss_of_one_product(Precision::kFp32, true, half_tie, half_tie),
              expected_loss(double{half_tie} * half_tie), 1e-15);
  EXPECT_NEAR(loss_of_one_product(Precision::kTf32, true, half_tie, half_tie), expected_loss(1), 1e-15);
  EXPECT_NEAR(loss_of_one_product(Precision::kFp16, true, half_tie, half_tie), expected_loss(1), 1e-15);
  // A bf16 weight goes away from zero on a tie, an input to even.
  EXPECT_NEAR(loss_of_one_product(Precision::kBf16, true, bf16_tie, 1), expected_loss(1 + 0x1p-7), 1e-15);
  EXPECT_NEAR(loss_of_one_product(Precision::kBf16, true, 1, bf16_tie), expected_loss(1), 1e-15);
  EXPECT_NEAR(loss_of_one_product(Precision::kBf16, false, bf16_tie, bf16_tie),
              expected_loss(double{bf16_tie} * bf16_tie), 1e-15);
}

TEST(OracleRoundings, BiasEntersUnrounded) {
  for (Precision precision : kAllPrecisions) {
    const Workload workload = small_workload({1, 2}, 1);
    Dataset data = random_data(workload, 1);
    data.train_features = {1.0f};
    data.train_labels = {0};
    Parameters parameters(workload.model.widths);
    parameters.bias(0)[0] = 1 + 0x1p-20f;
    follow_reference(
        workload, precision, true, data.train(), parameters, {0},
        [&](const ReferencePoint& point) {
          EXPECT_NEAR(point.loss, expected_loss(1 + 0x1p-20), 1e-15) << to_string(precision);
        },
        nullptr);
  }
}

// The gradient of two logits that are both 0 and class 0 is (-1/2, 1/2) for every sample: representable, so a
// bias update is exact; with an input of 1 + 2^-8 the weight gradient shows how the input was rounded in the
// backward product.
TEST(OracleRoundings, BackwardProductsSeeTheRoundedInput) {
  const float x = 1 + 0x1p-8f;
  const double seen[] = {x, x, x, 1};  // fp32, tf32, fp16, bf16
  for (Precision precision : kAllPrecisions) {
    Workload workload = small_workload({1, 2}, 3);
    workload.optimizer.learning_rate = 0.5;
    Dataset data = random_data(workload, 3);
    data.train_features = {x, x, x};
    data.train_labels = {0, 0, 0};
    follow_reference(
        workload, precision, true, data.train(), Parameters(workload.model.widths), {0},
        [&](const ReferencePoint& point) {
          const double input = seen[static_cast<int>(precision)];
          // 1/3 is rounded in the 16-bit formats: 3 * round(1/6) * 0.5.
          EXPECT_NEAR(point.update.parameters.weight(0)[0] / point.update.parameters.bias(0)[0], input,
                      1e-3 / 4);
          EXPECT_NEAR(point.update.parameters.bias(0)[0], 0.25, 0.25 * 0x1p-8);
        },
        nullptr);
  }
}

TEST(OracleRoundings, LossScalingKeepsSmallFp16GradientsAlive) {
  // The gradient of the second logit is about 1e-7: far below the smallest normal of fp16 (6e-5), kept only
  // by scaling.
  const Workload workload = small_workload({1, 2}, 4);
  Dataset data = random_data(workload, 4);
  data.train_features = {1, 1, 1, 1};
  data.train_labels = {0, 0, 0, 0};
  Parameters parameters(workload.model.widths);
  parameters.weight(0)[0] = 12;
  Parameters scaled, plain;
  follow_reference(
      workload, Precision::kFp16, true, data.train(), parameters, {0},
      [&](const ReferencePoint& point) { scaled = point.update.parameters; }, nullptr);
  follow_reference(
      workload, Precision::kFp16, false, data.train(), parameters, {0},
      [&](const ReferencePoint& point) { plain = point.update.parameters; }, nullptr);
  EXPECT_NE(plain.bias(0)[1], 0);
  EXPECT_NEAR(scaled.bias(0)[1] / plain.bias(0)[1], 1, 2e-3);
}

ReferencePoint autocast_step(const Workload& workload, const Dataset& data, const Parameters& parameters) {
  return reference_step(workload, Precision::kBf16, Contract::kAutocast, data.train(),
                        State::initial(parameters, 0), 0, 0);
}

// Outputs of 0 and 1: the log-probabilities are -1.3133 and -0.3133, which bf16 rounds to -1.3125 and -0.31250. As measured on an
// H200 with PyTorch 2.11, where the gradients were these to the last bit.
TEST(OracleRoundings, AutocastRoundsLogProbabilitiesAndWhatTheirMeanMultipliesThemBy) {
  const Workload workload = small_workload({1, 2}, 3);
  Dataset data = random_data(workload, 3);
  data.train_labels = {0, 0, 0};
  Parameters parameters(workload.model.widths);
  parameters.bias(0)[1] = 1;
  const ReferencePoint point = autocast_step(workload, data, parameters);
  EXPECT_EQ(point.loss, 1.3125);
  const double third = 0x1.56p-2, rate = workload.optimizer.learning_rate;  // 1/3 in bf16
  const double each = round_to_bf16(third * (std::exp(-1.3125) - 1)), sum = round_to_bf16(3 * each);
  EXPECT_FLOAT_EQ(point.update.parameters.bias(0)[0], static_cast<float>(-rate * sum));
}

// 257 is a tie in bf16 and becomes 256. With half of a unit more as its bias it would become 258.
TEST(OracleRoundings, AutocastRoundsAProductOfOneOutputBeforeTheBias) {
  for (const int outputs : {1, 2}) {
    Workload workload = small_workload({2, outputs}, 1);
    workload.loss = Loss::kMeanSquaredError;
    Dataset data = random_data(workload, 1);
    data.train_features = {1, 1};
    std::ranges::fill(data.train_targets, 0.0f);
    Parameters parameters(workload.model.widths);
    for (int output = 0; output < outputs; ++output) {
      parameters.weight(0)[2 * output] = 256;
      parameters.weight(0)[2 * output + 1] = 1;
      parameters.bias(0)[output] = 0.5f;
    }
    const double value = outputs == 1 ? 256 : 258;
    EXPECT_EQ(autocast_step(workload, data, parameters).loss, value * value);
  }
}

// 1 + 2^-9 becomes 1 in bf16; one weight, one input, and a target of 0.
TEST(OracleRoundings, WhatEntersALayerOfOneOutputMayBeLeftUnrounded) {
  Workload workload = small_workload({1, 1}, 1);
  workload.loss = Loss::kMeanSquaredError;
  Dataset data = random_data(workload, 1);
  const double one = 1 + 0x1p-9;
  data.train_features = {static_cast<float>(one)};
  data.train_targets = {0};
  GradientOfBatch gradient_of(workload, data.train());
  Roundings roundings = roundings_of(Precision::kBf16, Contract::kAutocast, 1);
  roundings.sums = roundings.product_of_one_output = roundings.weight_gradient = roundings.bias_gradient =
      false;
  Values gradient;
  EXPECT_EQ(gradient_of({one, 0}, 0, roundings, gradient), 1);
  roundings.leaves_one_output_factors = true;
  EXPECT_DOUBLE_EQ(gradient_of({one, 0}, 0, roundings, gradient), std::pow(one, 4));
  const double rounded = round_to_bf16(2 * one * one);
  EXPECT_DOUBLE_EQ(gradient[0], rounded * one);
  EXPECT_EQ(gradient[1], rounded);
  roundings.leaves_one_output_gradient = true;
  gradient_of({one, 0}, 0, roundings, gradient);
  EXPECT_DOUBLE_EQ(gradient[0], 2 * std::pow(one, 3));
  EXPECT_DOUBLE_EQ(gradient[1], 2 * one * one);
}

TEST(OracleRoundings, BiasGradientsMaySumWhatIsNotYetRounded) {
  Workload workload = small_workload({1, 2}, 1);
  workload.loss = Loss::kMeanSquaredError;
  Dataset data = random_data(workload, 1);
  data.train_features = {1};
  data.train_targets = {0x1p-9f, 0x1p-9f};
  GradientOfBatch gradient_of(workload, data.train());
  Roundings roundings = roundings_of(Precision::kBf16, Contract::kAutocast, 1);
  roundings.bias_gradient = false;
  Values gradient;
  for (const bool leaves : {false, true}) {
    roundings.leaves_bias_terms = leaves;
    gradient_of({1, 1, 0, 0}, 0, roundings, gradient);
    EXPECT_EQ(gradient[2], leaves ? 1 - 0x1p-9 : 1);
    EXPECT_EQ(gradient[0], 1);
  }
}

// Distance of one step's whole update from that of plain double arithmetic, the median over seven seeds: with
// a few of them rounding flips a ReLU, which alone makes several per cent.
double median_distance(Precision precision) {
  std::vector<double> distances;
  for (std::uint64_t seed = 1; seed <= 7; ++seed) {
    const Workload workload = small_workload({50, 40, 30, 10}, 32, seed);
    const Dataset data = random_data(workload, 64);
    const Parameters initial = initial_parameters(workload.model.widths, seed);
    const auto update = [&](bool rounding) {
      Parameters result;
      follow_reference(
          workload, precision, rounding, data.train(), initial, {0},
          [&](const ReferencePoint& point) { result = point.update.parameters; }, nullptr);
      return result;
    };
    const Parameters plain = update(false), rounded = update(true);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < plain.flat().size(); ++i) {
      difference += std::pow(double{rounded.flat()[i]} - plain.flat()[i], 2);
      norm += std::pow(plain.flat()[i], 2);
    }
    distances.push_back(std::sqrt(difference / norm));
  }
  std::sort(distances.begin(), distances.end());
  return distances[3];
}

TEST(Oracle, PrecisionsDifferByAboutTheirRounding) {
  EXPECT_EQ(median_distance(Precision::kFp32), 0);
  for (Precision precision : {Precision::kTf32, Precision::kFp16}) {
    EXPECT_GT(median_distance(precision), 1e-5) << to_string(precision);
    EXPECT_LT(median_distance(precision), 5e-3) << to_string(precision);
  }
  EXPECT_GT(median_distance(Precision::kBf16), 1e-4);
  EXPECT_LT(median_distance(Precision::kBf16), 5e-2);
}

TEST(Oracle, IsTheSameWithAnyNumberOfThreads) {
  const Workload workload = small_workload({97, 201, 65, 10}, 33);
  const Dataset data = random_data(workload, 99);
  const Parameters initial = initial_parameters(workload.model.widths, 1);
  for (Precision precision : kAllPrecisions) {
    std::vector<Parameters> ends;
    for (int threads : {1, 4}) {
      set_parallel_threads(threads);
      const auto trainer = make_oracle_trainer(workload, precision, true, data.train(), initial);
      trainer->train(0, 5);
      ends.push_back(trainer->parameters());
    }
    set_parallel_threads(0);
    EXPECT_TRUE(std::ranges::equal(ends[0].flat(), ends[1].flat())) << to_string(precision);
  }
}

TEST(OracleTrainer, FollowsTheReference) {
  const Workload workload = small_workload({20, 30, 5}, 7);
  const Dataset data = random_data(workload, 30);
  const Parameters initial = initial_parameters(workload.model.widths, 1);
  Parameters free;
  std::vector<ReferencePoint> points;
  follow_reference(
      workload, Precision::kBf16, true, data.train(), initial, {0, 3, 12},
      [&](const ReferencePoint& point) { points.push_back(point); },
      [&](const Parameters& parameters) { free = parameters; });
  ASSERT_EQ(points.size(), 3u);
  const auto trainer = make_oracle_trainer(workload, Precision::kBf16, true, data.train(), initial);
  trainer->train(0, kFreeSteps);
  EXPECT_TRUE(std::ranges::equal(trainer->parameters().flat(), free.flat()));
  for (const ReferencePoint& point : points) {
    trainer->set_state(point.start);
    trainer->train(point.step, 1);
    const Parameters end = trainer->parameters();
    EXPECT_EQ(trainer->losses(point.step, 1)[0], static_cast<float>(point.loss));
    for (std::size_t i = 0; i < end.flat().size(); ++i) {
      EXPECT_NEAR(end.flat()[i] - point.start.parameters.flat()[i], point.update.parameters.flat()[i], 1e-7);
    }
  }
}

TEST(OracleTrainer, FreeStepsAreOnlyReportedWhenTheStepsReachThem) {
  const Workload workload = small_workload({4, 3}, 2);
  const Dataset data = random_data(workload, 4);
  for (const auto& [last, expected] : {std::pair<std::int64_t, int>{8, 0}, {9, 1}, {10, 1}}) {
    int calls = 0;
    follow_reference(
        workload, Precision::kFp32, true, data.train(), initial_parameters(workload.model.widths, 1),
        {0, last}, [](const ReferencePoint&) {}, [&](const Parameters&) { ++calls; });
    EXPECT_EQ(calls, expected) << "last step " << last;
  }
}

TEST(OracleTrainer, BatchesRepeatAfterTheLastWholeOne) {
  const Workload workload = small_workload({4, 3}, 3);
  const Dataset data = random_data(workload, 8);  // two batches; two samples are left out
  const Parameters initial = initial_parameters(workload.model.widths, 1);
  const auto trainer = make_oracle_trainer(workload, Precision::kFp32, true, data.train(), initial);
  const auto loss_of = [&](std::int64_t step) {
    trainer->set_parameters(initial);
    trainer->train(step, 1);
    return trainer->losses(step, 1)[0];
  };
  EXPECT_EQ(loss_of(0), loss_of(2));
  EXPECT_EQ(loss_of(1), loss_of(1001));
  EXPECT_NE(loss_of(0), loss_of(1));
}

TEST(OracleTrainer, LossesOfStepsNeverTrainedAreRefused) {
  const Workload workload = small_workload({4, 3}, 3);
  const Dataset data = random_data(workload, 6);
  const auto trainer = make_oracle_trainer(workload, Precision::kFp32, true, data.train(),
                                           initial_parameters(workload.model.widths, 1));
  trainer->train(5, 3);
  EXPECT_EQ(trainer->losses(5, 3).size(), 3u);
  EXPECT_THROW(trainer->losses(4, 2), InputError);
  EXPECT_THROW(trainer->losses(8, 1), InputError);
}

TEST(OracleTrainer, ABrokenNetworkIsSeenInLossesAndNote) {
  const Workload workload = small_workload({4, 6, 3}, 3);
  const Dataset data = random_data(workload, 6);
  Parameters initial = initial_parameters(workload.model.widths, 1);
  initial.weight(0)[5] = std::numeric_limits<float>::quiet_NaN();
  const auto trainer = make_oracle_trainer(workload, Precision::kFp16, true, data.train(), initial);
  EXPECT_EQ(trainer->note(), "");
  trainer->train(0, 1);
  EXPECT_TRUE(std::isnan(trainer->losses(0, 1)[0]));
  EXPECT_NE(trainer->note(), "");
}

TEST(OracleTrainer, TimesAreThoseOfTheCall) {
  const Workload workload = small_workload({50, 50, 10}, 32);
  const Dataset data = random_data(workload, 32);
  const auto trainer = make_oracle_trainer(workload, Precision::kFp32, true, data.train(),
                                           initial_parameters(workload.model.widths, 1));
  const Timing timing = trainer->train(0, 50);
  EXPECT_GT(timing.wall_seconds, 0);
  EXPECT_EQ(timing.wall_seconds, timing.device_seconds);
  EXPECT_GT(timing.cpu_seconds, 0);
}

TEST(Accuracy, CountsTheLargestLogit) {
  Parameters parameters({2, 2});
  parameters.weight(0)[0] = 1;  // logit 0 is the first feature, logit 1 the second
  parameters.weight(0)[3] = 1;
  Dataset data;
  data.feature_count = 2;
  data.train_features = {0.9f, 0.1f, 0.2f, 0.8f, 0.7f, 0.3f};
  data.train_labels = {0, 1, 1};
  EXPECT_DOUBLE_EQ(accuracy({parameters.widths()}, parameters, data.train()), 2.0 / 3);
  parameters.bias(0)[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(accuracy({parameters.widths()}, parameters, data.train()), 0);
}

TEST(Accuracy, AgreesWithPlainLoopsOnOddShapes) {
  const Workload workload = small_workload({33, 7, 65, 5}, 1);
  const Dataset data = random_data(workload, 601);
  const Parameters parameters = initial_parameters(workload.model.widths, 4);
  std::int64_t right = 0;
  for (std::int64_t row = 0; row < 601; ++row) {
    std::vector<double> values(data.train_features.begin() + row * 33,
                               data.train_features.begin() + row * 33 + 33);
    for (int layer = 0; layer < 3; ++layer) {
      std::vector<double> out;
      for (std::size_t o = 0; o < parameters.bias(layer).size(); ++o) {
        double sum = parameters.bias(layer)[o];
        for (std::size_t i = 0; i < values.size(); ++i)
          sum += parameters.weight(layer)[o * values.size() + i] * values[i];
        out.push_back(layer < 2 ? std::max(sum, 0.0) : sum);
      }
      values = out;
    }
    right += std::max_element(values.begin(), values.end()) - values.begin() == data.train_labels[row];
  }
  EXPECT_NEAR(accuracy({parameters.widths()}, parameters, data.train()), static_cast<double>(right) / 601,
              1.1 / 601);
}

TEST(RSquared, IsOneForTheTargetsThemselvesAndZeroForTheirMean) {
  Workload workload = small_workload({1, 1}, 1);
  workload.loss = Loss::kMeanSquaredError;
  Dataset data;
  data.feature_count = 1;
  data.train_features = {0.0f, 0.5f, 1.0f};
  data.train_targets = {1.0f, 2.0f, 3.0f};
  Parameters parameters({1, 1});
  parameters.bias(0)[0] = 2;
  EXPECT_DOUBLE_EQ(r_squared(workload, parameters, data.train()), 0);
  parameters.weight(0)[0] = 2;
  parameters.bias(0)[0] = 1;
  EXPECT_DOUBLE_EQ(r_squared(workload, parameters, data.train()), 1);
}

/// The distances of the weights' copies from the reference, over what it adds.
std::vector<double> copies_of_weights(Contract contract) {
  Workload workload = small_workload({20, 30, 1}, 32);
  workload.loss = Loss::kMeanSquaredError;
  const Dataset data = random_data(workload, 64);
  const State start = State::initial(initial_parameters(workload.model.widths, 1), 0);
  const ReferencePoint point =
      reference_step(workload, Precision::kBf16, contract, data.train(), start, 0, kCopies);
  double square = 0;
  for (const float value : point.update.parameters.weight(0)) square += double{value} * value;
  std::vector<double> distances;
  for (std::size_t copy = 0; copy < kCopies; ++copy)
    distances.push_back(point.copies.distances[copy * point.copies.tensors()] / std::sqrt(square));
  return distances;
}

TEST(StepCopies, AQuarterOfAutocastsIsOffByAsMuchAsRoundingsInWaysOfTheirOwn) {
  const std::vector<double> distances = copies_of_weights(Contract::kAutocast),
                            exact = copies_of_weights(Contract::kExact);
  for (std::size_t copy = 4; copy < 8; ++copy) {
    EXPECT_GT(distances[copy], 1e-3);
    EXPECT_LT(distances[copy], 3e-2);
    EXPECT_GT(distances[copy], exact[copy]);
    for (std::size_t other = 4; other < copy; ++other) EXPECT_NE(distances[copy], distances[other]);
  }
}

/// How many of the sixteen copies cut off in each of the combinations of three products.
std::vector<int> combinations(const std::vector<std::pair<Product, int>>& products, int layers) {
  std::vector<int> counts(std::size_t{1} << products.size());
  for (int copy = 0; copy < kCopies; ++copy) {
    std::size_t which = 0;
    for (const auto& [product, layer] : products)
      which = 2 * which + cuts_off({.seed = 7000, .copy = copy}, product, layer, layers);
    ++counts[which];
  }
  return counts;
}

TEST(CutsOff, AnyThreeProductsOfFourLayersDoEachCombinationTwiceAndAnyTwoOfSevenFourTimes) {
  for (const int layers : {2, 4, 7}) {
    std::vector<std::pair<Product, int>> products = {{Product::kWeightGradient, 0}};
    for (int layer = 0; layer < layers; ++layer) products.push_back({Product::kForward, layer});
    for (int layer = 1; layer < layers; ++layer) products.push_back({Product::kInputGradient, layer});
    for (std::size_t a = 0; a < products.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_EQ(combinations({products[a], products[b]}, layers), std::vector<int>(4, 4));
        for (std::size_t c = 0; c < b && layers <= 4; ++c)
          EXPECT_EQ(combinations({products[a], products[b], products[c]}, layers), std::vector<int>(8, 2));
      }
  }
}

}  // namespace
}  // namespace headroom
