// The kernel for narrow networks against the oracle: every activation, loss and optimizer, every way of dividing the work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "device/device.h"
#include "narrow/trainer.h"
#include "narrow_cases.h"
#include "not_finite.h"
#include "step_check.h"
#ifdef HEADROOM_EMULATED
#include "narrow_kernels.h"
#else
#include "kept_kernels.h"
#include "narrow/compiled.h"
#endif

namespace headroom {
namespace {

#ifdef HEADROOM_EMULATED
#define NEEDS_GPU() static_cast<void>(0)
#else
#define NEEDS_GPU() \
  if (const auto reason = device_missing(0)) GTEST_SKIP() << *reason
#endif

std::unique_ptr<Trainer> make_trainer(const NamedProblem& problem, Precision precision,
                                      const narrow::Options& options = {}) {
#ifdef HEADROOM_EMULATED
  return make_narrow_trainer(problem.workload, precision, problem.dataset.train(), problem.initial, 0,
                             emulated::narrow_kernel, options);
#else
  return make_compiled_narrow_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                      0, jit::found_compiler(), jit::Cache(folder_of_kept_kernels()),
                                      options);
#endif
}

class Narrow : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, Narrow, testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

narrow::Options options_of(const narrow::Case& of, Precision precision) {
  if (of.blocks == 0) return {};
  return {.plan = narrow::plan_of_case(of, precision)};
}

TEST(NarrowCases, AreReadAsTheWorkloadsOfTheirNames) {
  for (const narrow::Case& of : narrow::kCases) {
    const narrow::Plan expected = narrow::plan_of(parse_workload_name(of.name), Precision::kTf32),
                       found = narrow::trained_plan(of.name, Precision::kTf32);
    EXPECT_EQ(0, std::memcmp(&expected, &found, sizeof found)) << of.name;
  }
}

/// Each sum belongs to one parameter, and each parameter to one sum; places in the image do not overlap.
TEST(NarrowPlan, HasAPlaceForEveryParameter) {
  for (const narrow::Case& of : narrow::kCases)
    for (const Precision precision : kAllPrecisions) {
      const narrow::Plan plan = narrow::plan_of_case(of, precision);
      const Workload workload = parse_workload_name(of.name);
      std::vector<int> parameters, bytes;
      for (int sum = 0; sum < narrow::sum_floats(plan); ++sum) {
        const narrow::Target target = narrow::target_of(plan, sum);
        if (target.layer == 0) continue;
        parameters.push_back(narrow::parameter_of(plan, target));
        const int place = narrow::place_of(plan, target);
        const int count = place >= narrow::bias_begin(plan, 1) ? 4 : narrow::value_bytes(plan);
        for (int i = 0; i < count; ++i) bytes.push_back(place + i);
      }
      std::sort(parameters.begin(), parameters.end());
      ASSERT_EQ(static_cast<std::int64_t>(parameters.size()), workload.parameter_count()) << of.name;
      for (std::size_t i = 0; i < parameters.size(); ++i) ASSERT_EQ(parameters[i], static_cast<int>(i));
      std::sort(bytes.begin(), bytes.end());
      EXPECT_EQ(std::adjacent_find(bytes.begin(), bytes.end()), bytes.end()) << of.name;
      EXPECT_LT(bytes.back(), narrow::image_bytes(plan)) << of.name;
    }
}

TEST(NarrowPlan, TakesEveryNetworkOfThreeNarrowLayers) {
  for (const Precision precision : kAllPrecisions)
    for (const char* name : {"mlp-17x64x64x6-b64-tanh-mse-adam", "mlp-3x50x50x50x50x1-b10000-tanh-mse-adam",
                             "mlp-32x64x64x64x64x16-b262144-mse-adam", "mlp-1x1-b64",
                             "mlp-128x128x128x10-b1000", "mlp-784x10-b64"}) {
      const auto reason = narrow::refusal(parse_workload_name(name), precision, narrow::kH200);
      EXPECT_EQ(reason.has_value(), std::string(name) == "mlp-784x10-b64")
          << name << ": " << reason.value_or("");
    }
}

TEST_P(Narrow, SmallCasesMatchTheOracle) {
  NEEDS_GPU();
  for (const narrow::Case& of : narrow::kCases) {
    NamedProblem problem(std::string(of.name), fresh_seed());
    const auto trainer = make_trainer(problem, GetParam(), options_of(of, GetParam()));
    check_against_oracle(problem, GetParam(), *trainer, {0, 1, 9, 40}, 3);
  }
}

std::vector<float> flat_of(const State& state) {
  std::vector<float> values(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const Parameters& slot : state.slots)
    values.insert(values.end(), slot.flat().begin(), slot.flat().end());
  return values;
}

TEST_P(Narrow, SmallSplitsOfTheStepsTrainTheSame) {
  NEEDS_GPU();
  for (const narrow::Case& of : {narrow::kCases[0], narrow::kCases[1]}) {
    NamedProblem problem(std::string(of.name), fresh_seed());
    problem.dataset = make_dataset(problem.workload, 1 << 14);
    const auto whole = make_trainer(problem, GetParam(), options_of(of, GetParam())),
               pieces = make_trainer(problem, GetParam(), options_of(of, GetParam()));
    const int steps = is_shortened() ? 9 : 40;
    whole->train(0, steps);
    for (const auto& [first, count] : {std::pair{0, 1}, {1, 4}, {5, 0}, {5, steps - 5}})
      pieces->train(first, count);
    EXPECT_EQ(whole->losses(0, steps), pieces->losses(0, steps));
    EXPECT_EQ(flat_of(whole->state()), flat_of(pieces->state()));
  }
}

TEST_P(Narrow, SmallStatesComeBackAsTheyWereSet) {
  NEEDS_GPU();
  const narrow::Case& of = narrow::kCases[0];
  const NamedProblem problem(std::string(of.name), fresh_seed());
  const auto trainer = make_trainer(problem, GetParam());
  const std::vector<int>& widths = problem.workload.model.widths;
  for (const Parameters& slot : trainer->slots())
    for (const float value : slot.flat()) ASSERT_EQ(value, 0);
  const State state{initial_parameters(widths, 2),
                    {initial_parameters(widths, 3), initial_parameters(widths, 4)}};
  trainer->set_state(state);
  EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
  EXPECT_THROW(trainer->set_slots({state.slots[0]}), InputError);
  EXPECT_THROW(trainer->set_parameters(initial_parameters({3, 4}, 1)), InputError);
}

TEST_P(Narrow, SmallANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const std::size_t which : {0, 2, 3, 5, 6}) {
    const narrow::Case& of = narrow::kCases[which];
    NotFiniteProblem problem{std::string(of.name)};
    expect_nans_in_the_losses(problem, GetParam(), NaNPlaces::kFew,
                              [&] { return make_trainer(problem, GetParam(), options_of(of, GetParam())); });
  }
}

#ifndef HEADROOM_EMULATED

/// Every activation with every loss and optimizer; shortened, each has its turn in one precision or another.
TEST_P(Narrow, ActivationsLossesAndOptimizersMatchTheOracle) {
  NEEDS_GPU();
  const char* shapes[] = {"mlp-33x7",         "mlp-20x70x12",         "mlp-17x66x33x5",
                          "mlp-9x40x71x20x6", "mlp-12x20x65x30x10x4", "mlp-20x31x24x40x35x30x8"};
  const char* batches[] = {"-b64", "-b130", "-b257", "-b1000", "-b70"};
  const char* optimizers[] = {"", "-momentum0.9", "-adam", "-adamw"};
  std::size_t index = 0;
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const char* optimizer : optimizers) {
        const std::size_t turn = index++;
        if ((turn + turn / 4 + static_cast<std::size_t>(GetParam())) % 4 != 0) continue;
        std::string name = shapes[turn / 4 % std::size(shapes)];
        name += batches[turn % std::size(batches)];
        if (activation != Activation::kRelu) name += "-" + std::string(to_string(activation));
        if (loss != Loss::kCrossEntropy) name += "-" + std::string(to_string(loss));
        NamedProblem problem(name + optimizer, fresh_seed());
        check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam()), {0, 1, 9}, 3);
      }
}

TEST_P(Narrow, RandomNetworksMatchTheOracleOrAreRefused) {
  NEEDS_GPU();
  std::mt19937_64 random(fresh_seed());
  const auto below = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most));
  };
  for (int i = 0; i < (is_shortened() ? 2 : 4); ++i) {
    const int layers = below(narrow::kMaxLayers);
    std::string name = "mlp";
    for (int width = 0; width <= layers; ++width)
      name += (width == 0 ? "-" : "x") + std::to_string(below(layers > 4 ? 40 : narrow::kMaxWidth));
    name += "-b" + std::to_string(64 + below(600));
    const Activation activation = kAllActivations[random() % kAllActivations.size()];
    const Loss loss = kAllLosses[random() % kAllLosses.size()];
    if (activation != Activation::kRelu) name += "-" + std::string(to_string(activation));
    if (loss != Loss::kCrossEntropy) name += "-" + std::string(to_string(loss));
    const char* optimizers[] = {"", "-momentum0.9", "-adam", "-adamw"};
    name += optimizers[random() % 4];
    NamedProblem problem(name, fresh_seed());
    if (const auto reason = narrow::refusal(problem.workload, GetParam(), narrow::limits_of(0))) {
      EXPECT_EQ(reason->find('\n'), reason->npos) << *reason;
      continue;
    }
    check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam()), {0, 1, 9}, 3);
  }
}

TEST_P(Narrow, LargeBatchesMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name :
       {"mlp-3x50x50x50x50x1-b10000-tanh-mse-adam", "mlp-32x64x64x64x64x16-b20000-mse-adam"}) {
    NamedProblem problem(name, fresh_seed());
    check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam()), {0, 9}, 3);
  }
}

TEST_P(Narrow, TwoRunsHaveTheSameBits) {
  NEEDS_GPU();
  for (const char* name : {"mlp-17x64x64x6-b64-tanh-mse-adam", "mlp-3x50x50x50x50x1-b10000-tanh-mse-adam"}) {
    const NamedProblem problem(name, fresh_seed());
    std::vector<float> states[2], losses[2];
    for (int run = 0; run < 2; ++run) {
      const auto trainer = make_trainer(problem, GetParam());
      trainer->train(0, 1000);
      states[run] = flat_of(trainer->state());
      losses[run] = trainer->losses(0, 1000);
    }
    EXPECT_EQ(0, std::memcmp(states[0].data(), states[1].data(), states[0].size() * sizeof(float))) << name;
    EXPECT_EQ(losses[0], losses[1]) << name;
  }
}

#endif

}  // namespace
}  // namespace headroom
