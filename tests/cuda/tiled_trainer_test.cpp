// cuda-tiled as a trainer: every activation, loss and optimizer on networks whose edges lie inside of tiles, against the
// double-precision oracle, with every tiling; and the trainer's contract.
//
// Tests named Small also run under the sanitizers, and on the GPU that the CPU plays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "core/error.h"
#include "device/memory.h"
#include "kept_tiled_trainer.h"
#include "not_finite.h"
#include "oracle/oracle.h"
#include "step_check.h"
#include "stuck_process.h"
#include "tiled/schedule.h"
#include "tiled_cases.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = tiled_unavailable(0)) GTEST_SKIP() << *reason

constexpr std::int64_t kSanitizedSteps = 3;
const std::vector<std::int64_t> kFewSteps = {0, 1, 9};

using Form = TiledForm;
struct Tried : NamedProblem {
  explicit Tried(const std::string& name) : NamedProblem(name, fresh_seed()) {}
  std::unique_ptr<TiledTrainer> trainer(const Form& form, TiledOptions options = {}) const {
    options.portable = form.portable;
    return make_kept_tiled_trainer(workload, form.precision, dataset.train(), initial, 0, options);
  }
};

void check_against_oracle(const std::string& name, const Form& form, const TiledOptions& options = {},
                          const std::vector<std::int64_t>& steps = kFewSteps) {
  const Tried problem(name);
  const auto trainer = problem.trainer(form, options);
  check_against_oracle(problem, form.precision, *trainer, steps, kSanitizedSteps);
}

void check_all(const TiledCases& cases, const Form& form) {
  for (const TiledCase& of : cases) check_against_oracle(of.name, form, of.options);
}

class TiledTrainerTest : public testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Every, TiledTrainerTest, testing::ValuesIn(kTiledForms), [](const auto& form) {
  return std::string(to_string(form.param.precision)) + (form.param.portable ? "_portable" : "");
});

TEST_P(TiledTrainerTest, SmallStepsMatchTheOracle) {
  NEEDS_GPU();
  check_all(kSmallTiled, GetParam());
}

TEST_P(TiledTrainerTest, SmallTilesOfEverySizeMatchTheOracle) {
  NEEDS_GPU();
  check_all(small_tiles(GetParam()), GetParam());
}

TEST_P(TiledTrainerTest, WholeTilesMatchTheOracle) {
  NEEDS_GPU();
  const TiledCases cases = whole_tiles(GetParam());
  if (cases.empty()) GTEST_SKIP() << "the portable kernel looks at edges always";
  check_all(cases, GetParam());
}

TEST_P(TiledTrainerTest, SmallWeightGradientsInPartsMatchTheOracle) {
  NEEDS_GPU();
  const TiledCases cases = small_parts(GetParam());
  if (cases.empty()) GTEST_SKIP() << "the portable kernel has parts in fp32 only";
  check_all(cases, GetParam());
}

TEST_P(TiledTrainerTest, SmallManyOutputsMatchTheOracle) {
  NEEDS_GPU();
  check_all(kSmallTiledOutputs, GetParam());
}

TEST_P(TiledTrainerTest, SmallActivationsLossesAndOptimizersMatchTheOracle) {
  NEEDS_GPU();
  check_all(small_rules(GetParam()), GetParam());
}

TEST_P(TiledTrainerTest, RandomNetworksMatchTheOracle) {
  NEEDS_GPU();
  std::mt19937_64 random(fresh_seed());
  const auto below = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most));
  };
  for (int i = 0; i < 3; ++i) {  // each is a kernel of its own
    const int layers = below(6);
    std::string name = "mlp";
    for (int width = 0; width <= layers; ++width)
      name += (width == 0 ? "-" : "x") + std::to_string(width == layers ? below(90) : 16 + below(300));
    name += "-b" + std::to_string(32 + below(500));
    const Activation activation = kAllActivations[random() % kAllActivations.size()];
    const Loss loss = kAllLosses[random() % kAllLosses.size()];
    if (activation != Activation::kRelu) name += "-" + std::string(to_string(activation));
    if (loss != Loss::kCrossEntropy) name += "-" + std::string(to_string(loss));
    const char* optimizers[] = {"", "-momentum0.9", "-adam", "-adamw"};
    name += optimizers[random() % 4];
    const auto tilings = tilings_of(GetParam());
    check_against_oracle(
        name, GetParam(),
        {.tiling = tilings[random() % tilings.size()], .slabs_of_part = static_cast<int>(random() % 3)});
  }
}

TEST_P(TiledTrainerTest, SixteenLayersMatchTheOracle) {
  NEEDS_GPU();
  check_against_oracle(sixteen_layers(), GetParam());
}

TEST_P(TiledTrainerTest, LargeBatchesAndWidthsMatchTheOracle) {
  NEEDS_GPU();
  check_all(kLargeTiled, GetParam());
}

// ---- the trainer's contract

std::vector<float> flat_of(const State& state) {
  std::vector<float> values(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const Parameters& slot : state.slots)
    values.insert(values.end(), slot.flat().begin(), slot.flat().end());
  return values;
}

TEST_P(TiledTrainerTest, SmallSplitsOfTheStepsTrainTheSame) {
  NEEDS_GPU();
  const Tried problem(kTiledSplit);
  const auto whole = problem.trainer(GetParam()), pieces = problem.trainer(GetParam());
  const int steps = is_shortened() ? 12 : 40;
  whole->train(0, steps);
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 4}, {5, 0}, {5, 2}, {7, steps - 7}})
    pieces->train(first, count);
  EXPECT_EQ(whole->losses(0, steps), pieces->losses(0, steps));
  EXPECT_EQ(flat_of(whole->state()), flat_of(pieces->state()));
}

TEST_P(TiledTrainerTest, TwoRunsHaveTheSameBits) {
  NEEDS_GPU();
  for (const auto& [name, options] : kTiledTwice) {
    const Tried problem(name);
    std::vector<float> states[2], losses[2];
    for (int run = 0; run < 2; ++run) {
      const auto trainer = problem.trainer(GetParam());
      trainer->train(0, 2000);
      states[run] = flat_of(trainer->state());
      losses[run] = trainer->losses(0, 2000);
    }
    EXPECT_EQ(0, std::memcmp(states[0].data(), states[1].data(), states[0].size() * sizeof(float))) << name;
    EXPECT_EQ(losses[0], losses[1]) << name;
  }
}

TEST_P(TiledTrainerTest, SmallStepNumbersChooseTheBatchAndAdamsBias) {
  NEEDS_GPU();
  Tried problem(kTiledFarApart);
  problem.dataset = make_dataset(problem.workload, 1 << 14);
  check_single_steps(problem.workload, GetParam().precision, *problem.trainer(GetParam()),
                     problem.dataset.train(), State::initial(problem.initial, 2), kFarApartSteps);
}
TEST_P(TiledTrainerTest, SmallStatesComeBackAsTheyWereSet) {
  NEEDS_GPU();
  const Tried problem(kTiledState);
  const auto trainer = problem.trainer(GetParam());
  const std::vector<int>& widths = problem.workload.model.widths;
  const State state{initial_parameters(widths, 2),
                    {initial_parameters(widths, 3), initial_parameters(widths, 4)}};
  const std::vector<Parameters> at_first = trainer->slots();
  for (const float value : at_first.at(1).flat()) ASSERT_EQ(value, 0);
  trainer->set_state(state);
  EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
  EXPECT_THROW(trainer->set_slots({state.slots[0]}), InputError);
  EXPECT_THROW(trainer->set_parameters(initial_parameters({3, 4}, 1)), InputError);
}

TEST_P(TiledTrainerTest, SmallLossesThatAreNotKeptAreAnInputError) {
  NEEDS_GPU();
  const auto trainer = Tried(kTiledLosses).trainer(GetParam());
  EXPECT_THROW(trainer->losses(0, 1), InputError);
  trainer->train(10, 3);
  EXPECT_EQ(trainer->losses(10, 3).size(), 3u);
  EXPECT_THROW(trainer->losses(9, 1), InputError);
}

void expect_nans_in_the_losses_of(const TiledCases& cases, const Form& form, NaNPlaces places) {
  for (const auto& [name, options] : cases) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, form.precision, places, [&] {
      return make_kept_tiled_trainer(problem.workload, form.precision, problem.dataset.train(),
                                     problem.initial, 0, {.portable = form.portable});
    });
  }
}
TEST_P(TiledTrainerTest, SmallANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of(kSmallTiledNaNs, GetParam(), NaNPlaces::kFew);
}
TEST_P(TiledTrainerTest, ANaNInAnyPlaceComesOutAsNaNLosses) {
  NEEDS_GPU();
  expect_nans_in_the_losses_of(kTiledNaNs, GetParam(), NaNPlaces::kEvery);
}

TEST_P(TiledTrainerTest, SmallMemoryIsCountedAndGivenBack) {
  NEEDS_GPU();
  const Tried problem(kTiledMemory);
  const std::int64_t before = DeviceMemory::held_bytes();
  EXPECT_GT(problem.trainer(GetParam())->peak_device_bytes(), before);
  EXPECT_EQ(DeviceMemory::held_bytes(), before);
}

TEST_P(TiledTrainerTest, SmallTracesHaveEveryTask) {
  NEEDS_GPU();
  const auto trainer = Tried(kTiledTraced).trainer(GetParam(), {.timed = true});
  const auto times = trainer->traced_step(0, 3);
  ASSERT_FALSE(times.empty());
  for (const TiledTaskTimes& of : times) {
    if (of.task.form == tiled::Form::kPause) continue;
    EXPECT_LE(of.first_slab, of.end) << tiled::describe(of.task);
  }
}

/// The process is of no more use for the device then, so on a GPU that is another one's.
using TiledTrainerDeathTest = TiledTrainerTest;
INSTANTIATE_TEST_SUITE_P(Each, TiledTrainerDeathTest,
                         testing::Values(Form{Precision::kFp32, true}, Form{Precision::kBf16, false}),
                         [](const auto& form) { return std::string(to_string(form.param.precision)); });
TEST_P(TiledTrainerDeathTest, AWaitThatRunsOutSaysWhichTaskWaitedForWhat) {
  NEEDS_GPU();
  const auto trainer = [form = GetParam()] {
    return Tried("mlp-20x24x10-b8").trainer(form, {.wait_seconds = 0.05, .lost_task = 0});
  };
  expect_stuck(trainer, 2, [](const std::string& text) {
    return text.find("task 1 of") != std::string::npos &&
           text.find("multiprocessor 0 (") != std::string::npos &&
           text.find("waited too long for") != std::string::npos;
  });
}

TEST(TiledUnavailable, SaysWhyWithoutADevice) {
  EXPECT_EQ(tiled_unavailable(-1), "no CUDA device");
  const Tried problem("mlp-4x3-b2");
  EXPECT_THROW(make_kept_tiled_trainer(problem.workload, Precision::kBf16, problem.dataset.train(),
                                       problem.initial, -1),
               UnsupportedError);
}
TEST(TiledUnavailable, SmallRefusesTilesOfTheOtherKernel) {
  NEEDS_GPU();
  EXPECT_THROW(Tried("mlp-4x3-b2").trainer({Precision::kFp32, true}, {.tiling = tiled::kTilings[0]}),
               UnsupportedError);
}
TEST_P(TiledTrainerTest, SmallRingsOfFewStagesMatchTheOracle) {
  NEEDS_GPU();
  const TiledCases cases = small_rings(GetParam());
  if (cases.empty()) GTEST_SKIP() << "has one size of its ring";
  check_all(cases, GetParam());
}

}  // namespace
}  // namespace headroom
