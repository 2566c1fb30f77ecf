// The checks of a whole trainer: an honest one passes in every precision, and each planted fault is caught.
//
// The trainer is a second implementation (plain_trainer.h), so the tests also show the room between honest and faulty.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "analysis/verification.h"
#include "data/dataset.h"
#include "oracle/oracle.h"
#include "plain_trainer.h"

namespace headroom {
namespace {

struct Problem {
  explicit Problem(const std::string& name, double learning_rate = Optimizer{}.learning_rate)
      : workload(parse_workload_name(name)) {
    workload.optimizer.learning_rate = learning_rate;
    data = make_dataset(workload, std::int64_t{64} << 20);
    initial = initial_parameters(workload.model.widths, workload.seed);
  }
  Workload workload;
  Dataset data;
  Parameters initial;
};

struct Reference {
  std::vector<ReferencePoint> points;
  Parameters free;
  double free_spread = 0;
};

Reference follow(const Problem& problem, Precision precision, std::span<const std::int64_t> steps,
                 Contract contract = Contract::kExact) {
  Reference reference;
  const std::vector<double> spreads = follow_reference(
      problem.workload, precision, true, problem.data.train(), problem.initial, {steps.begin(), steps.end()},
      [&](const ReferencePoint& point) { reference.points.push_back(point); },
      [&](const Parameters& free) { reference.free = free; }, {.contracts = {contract}, .copies = kCopies});
  reference.free_spread = spreads.at(0);
  return reference;
}

Verification verify_against(const Reference& reference, const Problem& problem, Precision precision,
                            const Fault& fault, const Arithmetic& arithmetic = {}) {
  PlainTrainer trainer(problem.workload, precision, problem.data.train(), fault, arithmetic);
  const GradientFormat format = gradient_format(precision, arithmetic.contract, problem.workload.batch_size);
  std::vector<StepErrors> steps;
  for (const ReferencePoint& point : reference.points) {
    trainer.set_state(point.start);
    trainer.train(point.step, 1);
    steps.push_back(compare_step(problem.workload.optimizer, point, trainer.state(), format));
  }
  trainer.set_parameters(problem.initial);
  trainer.train(0, kFreeSteps);
  std::vector<Check> checks = step_update_checks(problem.workload, steps, precision);
  checks.push_back(ten_steps_check(
      update_errors_from_end(problem.initial, trainer.parameters(), reference.free), reference.free_spread));
  checks.push_back(losses_finite_check(trainer.losses(), 10 * reference.points.front().loss));
  return judge(std::move(checks));
}

class StepCheck : public ::testing::TestWithParam<Precision> {
 protected:
  static const Problem& problem() {
    static const Problem kProblem("mlp-784x128x128x128x10-b32");
    return kProblem;
  }
  static const Workload& workload() { return problem().workload; }

  Verification verify(const Fault& fault, std::span<const std::int64_t> check_steps = kCheckSteps) {
    Reference& reference = check_steps.back() == std::end(kCheckSteps)[-1] ? late_ : early_;
    if (reference.points.empty()) reference = follow(problem(), GetParam(), check_steps);
    return verify_against(reference, problem(), GetParam(), fault);
  }

  static const Check& check_of(const Verification& verification, std::string_view name) {
    return *std::find_if(verification.checks.begin(), verification.checks.end(),
                         [&](const Check& check) { return check.tensor == name || check.name == name; });
  }

 private:
  Reference late_, early_;
};

TEST_P(StepCheck, PassesAnHonestTrainerThatSumsInAnotherOrder) {
  const Verification verification = verify({});
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
}

TEST_P(StepCheck, CatchesALearningRateOnePercentOff) {
  for (double factor : {0.99, 1.01}) {
    const Verification verification = verify({.learning_rate_factor = factor});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
  }
}

TEST_P(StepCheck, CatchesAFrozenLayer) {
  const Verification verification = verify({.frozen_layer = 0});
  EXPECT_EQ(verification.verdict, Verdict::kFail);
  EXPECT_FALSE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "bias1").passed);
  EXPECT_TRUE(check_of(verification, "weight2").passed);
}

TEST_P(StepCheck, CatchesAMissingBiasUpdateInEveryLayer) {
  for (int layer = 0; layer < workload().layers(); ++layer) {
    const Verification verification = verify({.layer_without_bias = layer});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
    EXPECT_FALSE(check_of(verification, "bias" + std::to_string(layer + 1)).passed);
  }
}

// What a network gets whose trajectory would take minutes.
TEST_P(StepCheck, EarlyStepsPassAnHonestTrainerAndCatchTheSameFaults) {
  const Verification honest = verify({}, kEarlyCheckSteps);
  EXPECT_EQ(honest.verdict, Verdict::kPass) << failure_message(honest);
  for (const Fault& fault :
       {Fault{.learning_rate_factor = 0.99}, Fault{.learning_rate_factor = 1.01}, Fault{.frozen_layer = 0},
        Fault{.layer_without_bias = 2}, Fault{.batch_shift = 1}, Fault{.nan = true}})
    EXPECT_EQ(verify(fault, kEarlyCheckSteps).verdict, Verdict::kFail);
}

TEST_P(StepCheck, CatchesBatchesShiftedByOne) {
  EXPECT_EQ(verify({.batch_shift = 1}).verdict, Verdict::kFail);
}

TEST_P(StepCheck, CatchesNan) {
  const Verification verification = verify({.nan = true});
  EXPECT_EQ(verification.verdict, Verdict::kFail);
  EXPECT_FALSE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "ten_steps").passed);
  EXPECT_FALSE(check_of(verification, "losses_finite").passed);
}

TEST_P(StepCheck, TenFreeStepsCatchWhatIsOnlyWrongLater) {
  const Verification verification =
      verify({.learning_rate_factor = 1.3, .only_from_call = std::ssize(kCheckSteps)});
  EXPECT_TRUE(check_of(verification, "weight1").passed);
  EXPECT_FALSE(check_of(verification, "ten_steps").passed);
  EXPECT_EQ(verification.verdict, Verdict::kFail);
}

// Seven hidden layers, which let units flip. The large learning rate keeps the updates of the first layers above the masters' rounding.
class DeepStepCheck : public StepCheck {
 protected:
  static const Problem& deep_problem() {
    static const Problem kProblem("mlp-784x96x96x96x96x96x96x96x10-b32", 0.5);
    return kProblem;
  }
  Verification verify(const Fault& fault) {
    if (reference_.points.empty()) reference_ = follow(deep_problem(), GetParam(), kEarlyCheckSteps);
    return verify_against(reference_, deep_problem(), GetParam(), fault);
  }
  static const Check& scale_of(const Verification& verification, std::string_view tensor) {
    return *std::find_if(verification.checks.begin(), verification.checks.end(), [&](const Check& check) {
      return check.tensor == tensor && check.name == "step_scale";
    });
  }

 private:
  Reference reference_;
};

TEST_P(DeepStepCheck, PassesAnHonestTrainer) {
  const Verification verification = verify({});
  EXPECT_EQ(verification.verdict, Verdict::kPass) << failure_message(verification);
}

TEST_P(DeepStepCheck, CatchesAGradientFivePercentTooLongInEachLayer) {
  const int layers = deep_problem().workload.layers();
  for (int layer = 0; layer < layers; ++layer) {
    const Verification verification = verify({.scaled_layer = layer});
    EXPECT_EQ(verification.verdict, Verdict::kFail);
    for (int other = 0; other < layers; ++other) {
      for (const char* kind : {"weight", "bias"}) {
        const Check& check = scale_of(verification, kind + std::to_string(other + 1));
        EXPECT_EQ(check.passed, other != layer) << check.tensor << " " << check.error;
      }
    }
  }
}

TEST_P(DeepStepCheck, CatchesTheOtherFaultsToo) {
  for (const double factor : {0.99, 1.01})
    EXPECT_EQ(verify({.learning_rate_factor = factor}).verdict, Verdict::kFail);
  for (int layer = 0; layer < deep_problem().workload.layers(); ++layer) {
    const std::string number = std::to_string(layer + 1);
    EXPECT_FALSE(check_of(verify({.layer_without_bias = layer}), "bias" + number).passed);
    EXPECT_FALSE(check_of(verify({.frozen_layer = layer}), "weight" + number).passed);
  }
  EXPECT_EQ(verify({.batch_shift = 1}).verdict, Verdict::kFail);
  EXPECT_EQ(verify({.nan = true}).verdict, Verdict::kFail);
}

INSTANTIATE_TEST_SUITE_P(EveryPrecision, DeepStepCheck, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

INSTANTIATE_TEST_SUITE_P(EveryPrecision, StepCheck, ::testing::ValuesIn(kAllPrecisions),
                         [](const auto& instance) { return std::string(to_string(instance.param)); });

/// What stands behind the gradient: activations, losses, optimizers, on small networks, trained states among the steps.
struct Class {
  const char* name;
  double learning_rate;
};
std::string name_of(const testing::TestParamInfo<std::tuple<Class, Precision>>& info) {
  std::string name =
      std::string(std::get<0>(info.param).name) + "_" + std::string(to_string(std::get<1>(info.param)));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

class OptimizerCheck : public testing::TestWithParam<std::tuple<Class, Precision>> {
 protected:
  Precision precision() const { return std::get<1>(GetParam()); }
  Verdict verdict(const Fault& fault) const {
    const Verification verification = verify_against(reference_, problem_, precision(), fault);
    message_ = failure_message(verification);
    return verification.verdict;
  }
  const Optimizer& optimizer() const { return problem_.workload.optimizer; }

  Problem problem_{std::get<0>(GetParam()).name, std::get<0>(GetParam()).learning_rate};
  Reference reference_ = follow(problem_, precision(), kCheckSteps);
  mutable std::string message_;
};

TEST_P(OptimizerCheck, PassesAnHonestTrainer) { EXPECT_EQ(verdict({}), Verdict::kPass) << message_; }

TEST_P(OptimizerCheck, CatchesFaultsOfEveryOptimizer) {
  EXPECT_EQ(verdict({.learning_rate_factor = 1.01}), Verdict::kFail);
  EXPECT_EQ(verdict({.learning_rate_factor = 0.99}), Verdict::kFail);
  EXPECT_EQ(verdict({.frozen_layer = 0}), Verdict::kFail);
  EXPECT_EQ(verdict({.layer_without_bias = 1}), Verdict::kFail);
  EXPECT_EQ(verdict({.batch_shift = 1}), Verdict::kFail);
  EXPECT_EQ(verdict({.nan = true}), Verdict::kFail);
  EXPECT_EQ(verdict({.sum_for_mean = true}), Verdict::kFail);
}

TEST_P(OptimizerCheck, CatchesFaultsOfItsOwnOptimizer) {
  if (optimizer().momentum != 0) {
    EXPECT_EQ(verdict({.momentum_factor = 1.01}), Verdict::kFail);
    EXPECT_EQ(verdict({.momentum_factor = 0.99}), Verdict::kFail);
  }
  if (optimizer().kind == Optimizer::Kind::kSgd) return;
  EXPECT_EQ(verdict({.beta1_factor = 0.99}), Verdict::kFail);
  EXPECT_EQ(verdict({.beta2_factor = 0.99}), Verdict::kFail);
  EXPECT_EQ(verdict({.without_bias_correction = true}), Verdict::kFail);
  EXPECT_EQ(verdict({.step_offset = 1}), Verdict::kFail);
  EXPECT_EQ(verdict({.step_offset = -1}), Verdict::kFail);
  EXPECT_EQ(verdict({.swapped_slots = true}), Verdict::kFail);
  if (optimizer().kind != Optimizer::Kind::kAdamW) return;
  EXPECT_EQ(verdict({.without_weight_decay = true}), Verdict::kFail);
  EXPECT_EQ(verdict({.coupled_weight_decay = true}), Verdict::kFail);
}

/// Autocast as it is and as a compiler leaves all of its roundings out that it may, with one output whose residual gets small.
class AutocastCheck : public testing::TestWithParam<std::tuple<const char*, Precision>> {
 protected:
  Precision precision() const { return std::get<1>(GetParam()); }
  Verdict verdict(const Fault& fault, bool is_compiled) {
    Arithmetic arithmetic{.contract = Contract::kAutocast};
    if (is_compiled)
      for (bool Arithmetic::* const leaves : Arithmetic::kLeftByCompilers) arithmetic.*leaves = true;
    const Verification verification = verify_against(reference_, problem_, precision(), fault, arithmetic);
    message_ = failure_message(verification);
    return verification.verdict;
  }

  Problem problem_{std::get<0>(GetParam()), 0.003};
  Reference reference_ = follow(problem_, precision(), kCheckSteps, Contract::kAutocast);
  std::string message_;
};

TEST_P(AutocastCheck, PassesAnHonestTrainerEagerOrCompiled) {
  for (const bool is_compiled : {false, true})
    EXPECT_EQ(verdict({}, is_compiled), Verdict::kPass) << message_ << (is_compiled ? ", compiled" : "");
}

TEST_P(AutocastCheck, CatchesFaultsOfEagerAndCompiledTrainers) {
  for (const bool is_compiled : {false, true}) {
    for (const Fault& fault :
         {Fault{.learning_rate_factor = 1.01}, Fault{.learning_rate_factor = 0.99}, Fault{.frozen_layer = 0},
          Fault{.layer_without_bias = 1}, Fault{.batch_shift = 1}, Fault{.nan = true},
          Fault{.beta1_factor = 0.99}, Fault{.beta2_factor = 0.99}, Fault{.without_bias_correction = true},
          Fault{.step_offset = 1}, Fault{.swapped_slots = true}, Fault{.sum_for_mean = true}})
      EXPECT_EQ(verdict(fault, is_compiled), Verdict::kFail);
  }
}

/// Whether the probe passes, of a network that trains with gelu and adam.
Check probe(const std::string& name, const Fault& fault) {
  const Problem problem(name);
  const ReferencePoint point =
      reference_step(problem.workload, Precision::kFp32, Contract::kExact, problem.data.train(),
                     probe_state(problem.workload, problem.initial), kProbeStep, kCopies);
  PlainTrainer trainer(problem.workload, Precision::kFp32, problem.data.train(), fault);
  trainer.set_state(point.start);
  trainer.train(point.step, 1);
  return probe_check(problem.workload, compare_step(problem.workload.optimizer, point, trainer.state()),
                     Precision::kFp32);
}

TEST(Probe, PassesAnHonestTrainerAndCatchesGeluByItsTanhForm) {
  for (const char* name :
       {"mlp-64x48x10-b32-gelu", "mlp-100x32x32x1-b64-gelu-mse-adam", "mlp-17x64x64x6-b64-gelu-bce"}) {
    EXPECT_TRUE(wants_probe(parse_workload_name(name), Precision::kFp32));
    const Check honest = probe(name, {});
    EXPECT_TRUE(honest.passed) << name << " " << honest.tensor << " " << honest.error << " " << honest.bound;
    EXPECT_FALSE(probe(name, {.tanh_gelu = true}).passed) << name;
  }
}

TEST(Probe, CatchesAnEpsilonInsideAdamsRoot) {
  for (const char* name :
       {"mlp-64x48x10-b32-adam", "mlp-100x32x32x1-b64-silu-mse-adamw", "mlp-17x64x64x6-b64-tanh-bce-adam"}) {
    EXPECT_TRUE(wants_probe(parse_workload_name(name), Precision::kFp32));
    const Check honest = probe(name, {});
    EXPECT_TRUE(honest.passed) << name << " " << honest.tensor << " " << honest.error << " " << honest.bound;
    EXPECT_FALSE(probe(name, {.epsilon_inside_root = true}).passed) << name;
  }
  EXPECT_FALSE(wants_probe(parse_workload_name("mlp-64x48x10-b32"), Precision::kFp32));
  EXPECT_FALSE(wants_probe(parse_workload_name("mlp-64x48x10-b32-adam"), Precision::kBf16));
}

std::string name_of_autocast(const testing::TestParamInfo<std::tuple<const char*, Precision>>& info) {
  const bool is_mse = std::string(std::get<0>(info.param)).ends_with("mse-adam");
  return (is_mse ? "mse_" : "bce_") + std::string(to_string(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Every, AutocastCheck,
                         testing::Combine(testing::Values("mlp-24x40x40x40x1-b64-silu-mse-adam",
                                                          "mlp-24x40x40x1-b32-bce-adam"),
                                          testing::Values(Precision::kFp16, Precision::kBf16)),
                         name_of_autocast);

INSTANTIATE_TEST_SUITE_P(Every, OptimizerCheck,
                         testing::Combine(testing::Values(Class{"mlp-17x64x64x6-b64-tanh-mse-adam", 0.003},
                                                          Class{"mlp-24x40x40x1-b32-silu-bce-adamw", 0.003},
                                                          Class{"mlp-30x48x48x10-b32-gelu-momentum0.9", 0.05},
                                                          Class{"mlp-20x32x32x3-b48-elu-mse-momentum0.9",
                                                                0.01},
                                                          Class{"mlp-30x48x48x10-b32-adamw", 0.001}),
                                          testing::ValuesIn(kAllPrecisions)),
                         name_of);

}  // namespace
}  // namespace headroom
