// cuda-layered as a trainer: its updates against the double-precision reference, and the trainer's contract.
#include <algorithm>
#include <cstring>

#include "analysis/verification.h"
#include "core/error.h"
#include "gpu_test.h"
#include "layered/trainer.h"
#include "not_finite.h"
#include "oracle/oracle.h"
#include "rules_workload.h"
#include "sanitizer.h"
#include "shortened.h"
#include "step_check.h"
#include "trainer_contract.h"

namespace headroom {
namespace {

struct Trained : Problem {
  using Problem::Problem;
  std::unique_ptr<Trainer> trainer(Precision precision) const {
    return make_layered_trainer(workload, precision, data.train(), initial, 0);
  }
};

/// The design's step check: error of each tensor's update, median over the steps. One ReLU that flips at the
/// edge of a rounding costs what its unit weighs in the update: `each_bound` has to leave room for that.
void check_updates(const Trained& trained, Precision precision, const std::vector<std::int64_t>& steps,
                   double each_bound = 5e-2) {
  auto trainer = trained.trainer(precision);
  const auto ranges = tensor_ranges(trained.workload.model.widths);
  std::vector<std::vector<double>> errors(ranges.size());
  const auto check = [&](const ReferencePoint& point) {
    trainer->set_state(point.start);
    trainer->train(point.step, 1);
    const Parameters after = trainer->parameters();
    const float loss = trainer->losses(point.step, 1)[0];
    EXPECT_FALSE(!(std::abs(loss - point.loss) <= 1e-3 * std::abs(point.loss) + 1e-5))
        << loss << ", " << point.loss;
    for (std::size_t tensor = 0; tensor < ranges.size(); ++tensor) {
      double difference = 0, size = 0;
      for (std::int64_t i = ranges[tensor].begin; i < ranges[tensor].begin + ranges[tensor].size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double start = point.start.parameters.flat()[at], expected = point.update.parameters.flat()[at];
        const double found = static_cast<double>(after.flat()[at]) - start;
        const double error = std::max(0.0, std::abs(found - expected) - 6e-8 * std::abs(start));
        difference += std::isnan(found) ? NAN : error * error;
        size += expected * expected;
      }
      errors[tensor].push_back(size == 0 ? std::sqrt(difference) : std::sqrt(difference / size));
    }
  };
  follow_reference(trained.workload, precision, true, trained.data.train(), trained.initial, steps, check,
                   {});
  for (std::size_t tensor = 0; tensor < ranges.size(); ++tensor) {
    auto& found = errors[tensor];
    for (const double error : found)
      EXPECT_FALSE(!(error <= each_bound)) << ranges[tensor].name << ": " << error << ", "
                                           << trained.workload.name << ", seed " << trained.workload.seed;
    std::sort(found.begin(), found.end());
    const double median = found[found.size() / 2];
    EXPECT_FALSE(!(median <= 1e-3)) << ranges[tensor].name << ": median " << median << ", "
                                    << trained.workload.name << ", seed " << trained.workload.seed;
  }
}

// ---- what is trained

Trained network(std::vector<int> widths, int batch_size, Activation activation, Loss loss,
                const Optimizer& optimizer) {
  return Trained(rules_workload(std::move(widths), batch_size, activation, loss, optimizer), 1 << 14);
}
Trained adam_network() {
  return network({20, 24, 10}, 8, Activation::kTanh, Loss::kMeanSquaredError,
                 {.kind = Optimizer::Kind::kAdam});
}

/// The driver's step check of parameters and slots.
void check_states(const Trained& trained, Precision precision, const std::vector<std::int64_t>& steps) {
  const Workload& workload = trained.workload;
  SCOPED_TRACE(workload.name + " seed " + std::to_string(workload.seed));
  auto trainer = trained.trainer(precision);
  std::vector<StepErrors> errors;
  follow_reference(workload, precision, true, trained.data.train(), trained.initial, steps,
                   [&](const ReferencePoint& point) {
                     trainer->set_state(point.start);
                     trainer->train(point.step, 1);
                     errors.push_back(compare_step(workload.optimizer, point, trainer->state()));
                     EXPECT_NEAR(trainer->losses(point.step, 1)[0], point.loss,
                                 1e-3 * std::abs(point.loss) + 1e-5);
                   },
                   {}, {.copies = kCopies});
  const Verification verification = judge(step_update_checks(workload, errors, precision));
  EXPECT_NE(verification.verdict, Verdict::kFail) << failure_message(verification);
}

class LayeredTrainer : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { HEADROOM_NEEDS_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(, LayeredTrainer, testing::ValuesIn(kAllPrecisions),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST_P(LayeredTrainer, SmallOneLayerUpdatesAsTheReference) {
  check_updates(Trained({33, 7}, 31), GetParam(), {0, 1, 7});
  check_updates(Trained({1, 2}, 1), GetParam(), {0, 1, 7});
}
TEST_P(LayeredTrainer, SmallOddWidthsUpdateAsTheReference) {
  check_updates(Trained({7, 33, 5}, 1), GetParam(), {0, 1, 7});
  check_updates(Trained({33, 1, 33, 3}, 31), GetParam(), {0, 1, 7});
  check_updates(Trained({50, 65, 7, 12}, 32), GetParam(), {0, 1, 7});
}
TEST_P(LayeredTrainer, SixteenLayersUpdateAsTheReference) {
  // Moving the reference's own start by 3e-7 moves one update in nine by up to 6e-2 here: of 64 units one
  // flips.
  std::vector<int> widths(17, 64);
  widths.back() = 10;
  check_updates(Trained(widths, 32), GetParam(), {0, 1, 7, 17, 29, 41, 53, 71, 83}, 0.2);
}
TEST_P(LayeredTrainer, TheSeedNetworkUpdatesAsTheReference) {
  // Of 128 units one flips: 5.5e-2 with seed 1325338133 in fp32, with the same digits on a GPU and on the one that the CPU plays.
  check_updates(Trained({784, 128, 128, 128, 10}, 32), GetParam(), {0, 1, 7, 29, 71, 131, 211, 299}, 0.1);
}
TEST_P(LayeredTrainer, ALargeBatchUpdatesAsTheReference) {
  check_updates(Trained({64, 64, 64, 16}, 8192), GetParam(), {0, 1, 7});
  check_updates(Trained({48, 300, 260, 10}, 4100), GetParam(), {0, 1, 7});
}

TEST_P(LayeredTrainer, SmallActivationsLossesAndOptimizersUpdateAsTheReference) {
  struct Shape {
    std::vector<int> widths;
    int batch_size;
  };
  // The last one's forward product is split, but in 16 bits; with four SMs the one before has large tiles.
  const Shape shapes[] = {{{7, 33, 5}, 3},      {{33, 5, 18, 1}, 31},  {{5, 1, 9, 2}, 1},
                          {{12, 40, 9, 33}, 8}, {{9, 20, 17, 2}, 130}, {{600, 9, 3}, 5}};
  std::size_t index = 0;
  for (const Activation activation : kAllActivations)
    for (const Loss loss : kAllLosses)
      for (const Optimizer& optimizer : all_optimizers()) {
        // Shortened, every combination has its turn in one of the precisions, with one of the shapes; under a sanitizer, which makes
        // each of them take a second and more, every fifth of these.
        const bool shortened = is_shortened() || under_sanitizer();
        const std::size_t turn = index++ + static_cast<std::size_t>(GetParam());
        if (shortened && turn % (under_sanitizer() ? 20 : 4) != 0) continue;
        for (std::size_t shape = 0; shape < std::size(shapes); ++shape)
          if (!shortened || shape == turn / 4 % std::size(shapes))
            check_states(network(shapes[shape].widths, shapes[shape].batch_size, activation, loss, optimizer),
                         GetParam(), {0, 1, 7});
      }
}
TEST_P(LayeredTrainer, LargeTilesUpdateAsTheReferenceWithEveryActivation) {
  std::size_t index = 0;
  for (const Activation activation : kAllActivations)
    check_states(network({48, 300, 260, 10}, 4100, activation, kAllLosses[index++ % 3],
                         {.kind = Optimizer::Kind::kAdam}),
                 GetParam(), {0, 1, 7});
}

TEST_P(LayeredTrainer, SmallStepNumbersCorrectAdamsBias) {
  const Trained trained = adam_network();
  auto trainer = trained.trainer(GetParam());
  const State start = State::initial(trained.initial, 2);
  check_single_steps(trained.workload, GetParam(), *trainer, trained.data.train(), start, kFarApartSteps);
  // A graph of many steps has the numbers of each.
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1000}, std::int64_t{1} << 40}) {
    trainer->set_state(start);
    trainer->train(first, 9);
    const State at_once = trainer->state();
    trainer->set_state(start);
    for (int step = 0; step < 9; ++step) trainer->train(first + step, 1);
    const State one_by_one = trainer->state();
    EXPECT_TRUE(std::ranges::equal(at_once.parameters.flat(), one_by_one.parameters.flat())) << first;
    for (std::size_t slot = 0; slot < 2; ++slot)
      EXPECT_TRUE(std::ranges::equal(at_once.slots[slot].flat(), one_by_one.slots[slot].flat())) << first;
  }
}

TEST_P(LayeredTrainer, SmallSlotsComeBackAsTheyWereSet) {
  const Trained trained = adam_network();
  auto trainer = trained.trainer(GetParam());
  const std::vector<int>& widths = trained.workload.model.widths;
  const std::vector<Parameters> slots = {initial_parameters(widths, trained.workload.seed + 1),
                                         initial_parameters(widths, trained.workload.seed + 2)};
  const std::vector<Parameters> at_first = trainer->slots();
  ASSERT_EQ(at_first.size(), 2u);
  for (const Parameters& slot : at_first)
    for (const float value : slot.flat()) ASSERT_EQ(value, 0);
  trainer->set_slots(slots);
  const std::vector<Parameters> found = trainer->slots();
  for (const std::size_t slot : {0u, 1u})
    EXPECT_TRUE(std::ranges::equal(slots[slot].flat(), found[slot].flat()));
  EXPECT_THROW(trainer->set_slots({slots[0]}), InputError);
  EXPECT_THROW(Trained({20, 24, 10}, 8).trainer(GetParam())->set_slots({slots[0]}), InputError);
}

TEST_P(LayeredTrainer, TwoRunsHaveTheSameBits) {
  for (const Trained& trained : {Trained({784, 128, 128, 128, 10}, 32), Trained({64, 64, 64, 16}, 8192)}) {
    std::vector<float> parameters[2], losses[2];
    for (int run = 0; run < 2; ++run) {
      auto trainer = trained.trainer(GetParam());
      trainer->train(0, 50);
      const Parameters after = trainer->parameters();
      parameters[run].assign(after.flat().begin(), after.flat().end());
      losses[run] = trainer->losses(0, 50);
    }
    EXPECT_EQ(0,
              std::memcmp(parameters[0].data(), parameters[1].data(), parameters[0].size() * sizeof(float)));
    EXPECT_EQ(0, std::memcmp(losses[0].data(), losses[1].data(), losses[0].size() * sizeof(float)));
  }
}

TEST_P(LayeredTrainer, AnySplitOfTheStepsTrainsTheSame) {
  for (const Trained& trained : {Trained({20, 24, 10}, 8), adam_network()}) {
    auto whole = trained.trainer(GetParam()), pieces = trained.trainer(GetParam());
    whole->train(0, 40);
    for (const auto& [first, count] : {std::pair{0, 1}, {1, 7}, {8, 16}, {24, 0}, {24, 3}, {27, 13}})
      pieces->train(first, count);
    EXPECT_EQ(whole->losses(0, 40), pieces->losses(0, 40));
    const State a = whole->state(), b = pieces->state();
    EXPECT_TRUE(std::ranges::equal(a.parameters.flat(), b.parameters.flat()));
    for (std::size_t slot = 0; slot < a.slots.size(); ++slot)
      EXPECT_TRUE(std::ranges::equal(a.slots[slot].flat(), b.slots[slot].flat()));
  }
}

TEST_P(LayeredTrainer, SmallStepNumbersChooseTheBatch) {
  const Trained trained({20, 24, 10}, 8);
  const std::int64_t batches = trained.data.train().batches(8);
  for (const std::int64_t step :
       {std::int64_t{0}, batches - 1, batches, 3 * batches + 5, std::int64_t{1} << 40}) {
    auto trainer = trained.trainer(GetParam());
    auto oracle =
        make_oracle_trainer(trained.workload, GetParam(), true, trained.data.train(), trained.initial);
    trainer->train(step, 1);
    oracle->train(step, 1);
    EXPECT_NEAR(trainer->losses(step, 1)[0], oracle->losses(step, 1)[0], 1e-3) << "step " << step;
  }
}

TEST_P(LayeredTrainer, SmallLossesThatAreNotKeptAreAnInputError) {
  const Trained trained({20, 24, 10}, 8);
  auto trainer = trained.trainer(GetParam());
  EXPECT_THROW(trainer->losses(0, 1), InputError);
  trainer->train(10, 5);
  EXPECT_EQ(trainer->losses(10, 5).size(), 5u);
  EXPECT_THROW(trainer->losses(9, 1), InputError);
  EXPECT_THROW(trainer->losses(14, 2), InputError);
}

TEST_P(LayeredTrainer, SmallParametersComeBackAsTheyWereSet) {
  const Trained trained({33, 7, 5, 3}, 4);
  auto trainer = trained.trainer(GetParam());
  const Parameters other = initial_parameters(trained.workload.model.widths, trained.workload.seed + 1);
  trainer->set_parameters(other);
  const Parameters found = trainer->parameters();
  EXPECT_TRUE(std::equal(other.flat().begin(), other.flat().end(), found.flat().begin()));
}

/// A layer alone, tiles of 32 and of 128 rows, and products whose walk is shared by several blocks.
void expect_nans_in_the_losses_of_products(Precision precision, NaNPlaces places) {
  for (const char* name :
       {"mlp-33x7-b31", "mlp-20x24x33x10-b8", "mlp-40x136x130x10-b150", "mlp-784x40x10-b32"}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, places, [&] {
      return make_layered_trainer(problem.workload, precision, problem.dataset.train(), problem.initial, 0);
    });
  }
}
TEST_P(LayeredTrainer, ANaNComesOutOfEveryProductAsNaNLosses) {
  expect_nans_in_the_losses_of_products(GetParam(), NaNPlaces::kFew);
}
TEST_P(LayeredTrainer, ANaNInAnyPlaceComesOutOfEveryProductAsNaNLosses) {
  expect_nans_in_the_losses_of_products(GetParam(), NaNPlaces::kEvery);
}

TEST_P(LayeredTrainer, ANaNComesOutOfEveryProductWithEveryActivationLossAndOptimizer) {
  for (const char* name :
       {"mlp-20x24x33x10-b8-tanh-adam", "mlp-20x24x33x1-b8-silu-mse-adamw",
        "mlp-33x40x7-b31-gelu-bce-momentum0.9", "mlp-20x24x33x5-b8-elu-mse-adam", "mlp-20x24x33x1-b8-bce"}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, GetParam(), NaNPlaces::kFew, [&] {
      return make_layered_trainer(problem.workload, GetParam(), problem.dataset.train(), problem.initial, 0);
    });
  }
}

TEST_P(LayeredTrainer, SmallMemoryIsCountedAndGivenBack) {
  const Trained trained({20, 24, 10}, 8);
  expect_memory_counted_and_given_back([&] { return trained.trainer(GetParam()); });
}

TEST(LayeredUnavailable, SaysWhyWithoutADevice) {
  EXPECT_EQ(layered_unavailable(-1), "no CUDA device");
  const Workload workload = test_workload({4, 3}, 2, 1);
  const Dataset data = make_dataset(workload, 1);
  EXPECT_THROW(
      make_layered_trainer(workload, Precision::kFp32, data.train(), initial_parameters({4, 3}, 1), -1),
      UnsupportedError);
}

}  // namespace
}  // namespace headroom
