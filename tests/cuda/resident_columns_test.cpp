// The column kernel of cuda-resident (resident/column_step.cuh), which is compiled for its network, at every depth.
//
// Networks have odd widths, batches and numbers of classes, one and four clusters, of 8 and of 16 members.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "column_kernels.h"
#include "core/error.h"
#include "not_finite.h"
#include "resident/column_plan.h"
#include "sanitizer.h"
#include "step_check.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = resident_unavailable(0)) GTEST_SKIP() << *reason

constexpr resident::Limits kH200{.sm_count = 132, .shared_bytes = 232448};
constexpr double kSanitizerWaitSeconds = 100;
constexpr std::int64_t kSanitizedSteps = 3;

std::unique_ptr<Trainer> trainer_of(const NamedProblem& problem, Precision precision,
                                    const ResidentOptions& options) {
  return make_column_trainer(problem.workload, precision, problem.dataset.train(), problem.initial, options);
}

class ResidentColumns : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, ResidentColumns, testing::Values(Precision::kFp16, Precision::kBf16),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

void check(const char* name, Precision precision, const std::vector<std::int64_t>& steps,
           double wait_seconds = kSanitizerWaitSeconds) {
  NamedProblem problem(name, fresh_seed());
  const auto trainer = trainer_of(problem, precision, {.wait_seconds = wait_seconds});
  check_against_oracle(problem, precision, *trainer, steps, kSanitizedSteps);
}
const std::vector<std::int64_t> kFewSteps = {0, 1, 7, 9};

/// By its depth.
TEST_P(ResidentColumns, SmallStepsOfTwoLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[0], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfThreeLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[1], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfFourLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[2], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfFiveLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[3], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfEightLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[4], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfFourClustersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumns[5], GetParam(), kFewSteps);
}
TEST(ResidentColumnsDeep, SmallStepsOfSevenLayersInFourClustersMatchTheOracle) {
  NEEDS_GPU();
  check(kDeepColumns[0], Precision::kBf16, kFewSteps);
}
TEST_P(ResidentColumns, StepsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : kColumns) check(name, GetParam(), {0, 1, 7, 29, 71}, 2);
}
TEST(ResidentColumnsDeep, StepsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : kDeepColumns) check(name, Precision::kBf16, {0, 1, 7, 29, 71}, 2);
}

/// Of optimizers with slots, by depth and by where the slots lie.
TEST_P(ResidentColumns, SmallStepsWithAdamMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : {kSmallColumnsWithSlots[0], kSmallColumnsWithSlots[3]})
    check(name, GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsWithMomentumMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumnsWithSlots[1], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsWithAdamWMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumnsWithSlots[2], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfFourClustersWithSlotsInDeviceMemoryMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumnsWithSlots[4], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfClustersOfEightMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumnsWithSlots[5], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, StepsWithSlotsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : kColumnsWithSlots) check(name, GetParam(), {0, 1, 7, 29, 71}, 2);
}

/// Of other activations and losses.
TEST_P(ResidentColumns, SmallStepsWithTanhAndEluMatchTheOracle) {
  NEEDS_GPU();
  for (const int which : {0, 3}) check(kSmallColumnsWithRules[which], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsWithSiluAndGeluMatchTheOracle) {
  NEEDS_GPU();
  for (const int which : {1, 2, 4}) check(kSmallColumnsWithRules[which], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfOneOutputMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallColumnsWithRules[5], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, StepsWithRulesMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : kColumnsWithRules) check(name, GetParam(), {0, 1, 7, 29, 71}, 2);
}

/// Of batches over 32, whose second 32 rows are not all there.
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesInTwoLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallHalves[0], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesInThreeLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallHalves[1], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesInFourClustersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallHalves[2], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesInFourLayersMatchTheOracle) {
  NEEDS_GPU();
  for (const int which : {3, 5}) check(kSmallHalves[which], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesInSixLayersMatchTheOracle) {
  NEEDS_GPU();
  check(kSmallHalves[4], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, SmallStepsOfTwoHalvesWithRulesMatchTheOracle) {
  NEEDS_GPU();
  for (const int which : {6, 7}) check(kSmallHalves[which], GetParam(), kFewSteps);
}
TEST_P(ResidentColumns, StepsOfTwoHalvesMatchTheOracle) {
  NEEDS_GPU();
  for (const char* name : kHalves) check(name, GetParam(), {0, 1, 7, 29, 71}, 2);
}

std::vector<float> flat_of(const State& state) {
  std::vector<float> values(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const Parameters& slot : state.slots)
    values.insert(values.end(), slot.flat().begin(), slot.flat().end());
  return values;
}
TEST_P(ResidentColumns, SmallStatesComeBackAsTheyWereSet) {
  NEEDS_GPU();
  const NamedProblem problem(kSmallColumnsWithSlots[3], fresh_seed());
  const auto trainer = trainer_of(problem, GetParam(), {.wait_seconds = kSanitizerWaitSeconds});
  for (const Parameters& slot : trainer->slots())
    for (const float value : slot.flat()) ASSERT_EQ(value, 0);
  const std::vector<int>& widths = problem.workload.model.widths;
  const State state{initial_parameters(widths, 2),
                    {initial_parameters(widths, 3), initial_parameters(widths, 4)}};
  trainer->set_state(state);
  EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
  trainer->train(7, 0);
  EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
  EXPECT_THROW(trainer->set_slots({state.slots[0]}), InputError);
}

/// Slices, in every precision.
std::unique_ptr<Trainer> trainer_of_slices(const NamedProblem& problem, Precision precision,
                                           double wait_seconds = kSanitizerWaitSeconds) {
  return make_resident_test_trainer(
      problem.workload, precision, problem.dataset.train(), problem.initial,
      {.kernel = ResidentOptions::Kernel::kSlices, .wait_seconds = wait_seconds});
}
void check_slots(const SlotCase& of, const std::vector<std::int64_t>& steps) {
  for (const Precision precision : of.precisions) {
    NamedProblem problem(of.name, fresh_seed());
    check_against_oracle(problem, precision, *trainer_of_slices(problem, precision), steps, kSanitizedSteps);
  }
}
TEST(ResidentSlots, SmallStepsOfFourLayersMatchTheOracle) {
  NEEDS_GPU();
  check_slots(kSmallSlots[0], kFewSteps);
}
TEST(ResidentSlots, SmallStepsOfTwoLayersMatchTheOracle) {
  NEEDS_GPU();
  check_slots(kSmallSlots[1], kFewSteps);
}
TEST(ResidentSlots, SmallStepsOfTwoPairsMatchTheOracle) {
  NEEDS_GPU();
  check_slots(kSmallSlots[2], kFewSteps);
}
TEST(ResidentSlots, SmallStepsOfTwoPairsIn16BitsMatchTheOracle) {
  NEEDS_GPU();
  check_slots(kSmallSlots[3], kFewSteps);
}
TEST(ResidentSlots, StepsMatchTheOracle) {
  NEEDS_GPU();
  for (const SlotCase& of : kSlots) check_slots(of, {0, 1, 7, 29, 71});
}
TEST(ResidentSlots, SmallStatesComeBackAsTheyWereSet) {
  NEEDS_GPU();
  for (const Precision precision : kAllPrecisions) {
    const NamedProblem problem(kSmallSlots[0].name, fresh_seed());
    const auto trainer = trainer_of_slices(problem, precision);
    const std::vector<int>& widths = problem.workload.model.widths;
    const State state{initial_parameters(widths, 2),
                      {initial_parameters(widths, 3), initial_parameters(widths, 4)}};
    trainer->set_state(state);
    EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
  }
}
TEST(ResidentSlots, FewStepsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  for (const Precision precision : kAllPrecisions) {
    if (is_shortened() && precision != Precision::kFp32) continue;
    const NamedProblem problem(kSmallSlots[0].name, fresh_seed());
    const auto after = [&](std::int64_t cut, std::int64_t steps) {
      const auto trainer = trainer_of_slices(problem, precision);
      trainer->train(0, cut);
      trainer->train(cut, steps - cut);
      return flat_of(trainer->state());
    };
    const std::int64_t steps = is_shortened() ? 4 : 300;
    EXPECT_EQ(after(1, steps), after(steps - 1, steps)) << problem.described(precision);
  }
}
TEST(ResidentSlots, ANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const Precision precision : kAllPrecisions) {
    NotFiniteProblem problem(kSmallSlots[0].name);
    expect_nans_in_the_losses(problem, precision, is_shortened() ? NaNPlaces::kFew : NaNPlaces::kEvery,
                              [&] { return trainer_of_slices(problem, precision); });
  }
}

std::vector<float> bits_after(const NamedProblem& problem, Precision precision, std::int64_t cut,
                              std::int64_t steps) {
  const auto trainer = trainer_of(problem, precision, {.wait_seconds = kSanitizerWaitSeconds});
  trainer->train(0, cut);
  trainer->train(cut, steps - cut);
  std::vector<float> bits = flat_of(trainer->state());
  for (const float loss : trainer->losses(0, steps)) bits.push_back(loss);
  return bits;
}
TEST_P(ResidentColumns, FewStepsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  for (const char* name : {kSmallColumns[0], kSmallColumns[3], kSmallColumnsWithSlots[2], kSmallHalves[3]}) {
    if (is_shortened() && name == kSmallColumns[0]) continue;
    const NamedProblem problem(name, fresh_seed());
    const std::int64_t steps = is_shortened() ? 4 : 700;
    const auto whole = bits_after(problem, GetParam(), steps - 1, steps);
    EXPECT_EQ(whole, bits_after(problem, GetParam(), 1, steps)) << problem.described(GetParam());
    EXPECT_EQ(whole, bits_after(problem, GetParam(), 2, steps)) << problem.described(GetParam());
  }
}
TEST_P(ResidentColumns, ANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const char* name :
       {kSmallColumns[1], kSmallColumns[3], kSmallColumnsWithSlots[0], kSmallColumnsWithRules[0],
        kSmallColumnsWithRules[1], kSmallColumnsWithRules[2], kSmallHalves[1], kSmallHalves[3]}) {
    NotFiniteProblem problem(name);
    // Of an infinite output a loss over targets may be infinite.
    const bool is_few = is_shortened() || problem.workload.loss != Loss::kCrossEntropy;
    expect_nans_in_the_losses(problem, GetParam(), is_few ? NaNPlaces::kFew : NaNPlaces::kEvery, [&] {
      return trainer_of(problem, GetParam(), {.wait_seconds = kSanitizerWaitSeconds});
    });
  }
}
/// Behind the exchanges are the first layer's sums over clusters and the rows of the second layer to the fourth.
TEST(ResidentColumnsWaits, SmallLostExchangeFailsInsteadOfHanging) {
  NEEDS_GPU();
  const std::vector<int> exchanges =
      is_shortened() ? std::vector{0, 4, 7, 8} : std::vector{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (const int exchange : exchanges) {
    NamedProblem problem(kSmallColumns[5], fresh_seed());
    const auto trainer =
        trainer_of(problem, Precision::kBf16, {.wait_seconds = 0.05, .lost_exchange = exchange});
    EXPECT_THROW(trainer->train(0, 4), std::runtime_error) << exchange;
  }
}

TEST(ResidentColumnPlan, FitsTheDepthsThatItsBytesAllow) {
  const auto fits = [](const std::string& name, Precision precision) {
    try {
      return resident::make_column_plan(parse_workload_name(name), precision, kH200).shared_bytes <=
             kH200.shared_bytes;
    } catch (const UnsupportedError&) {
      return false;
    }
  };
  std::string wide = "mlp-784", narrow = "mlp-784";
  for (int hidden = 1; hidden <= 7; ++hidden) {
    wide += "x256", narrow += "x128";
    for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
      EXPECT_TRUE(fits(narrow + "x10-b32", precision)) << hidden;
      EXPECT_EQ(fits(wide + "x10-b32", precision), hidden <= (precision == Precision::kBf16 ? 6 : 4))
          << hidden;
    }
  }
}
TEST(ResidentColumnPlan, BatchesOver32FitAtTheseWidthsAndDepths) {
  for (int hidden = 1; hidden <= 7; ++hidden)
    for (const Precision precision : {Precision::kFp16, Precision::kBf16})
      for (const int width : {128, 256}) {
        std::string name = "mlp-784";
        for (int layer = 0; layer < hidden; ++layer) name += "x" + std::to_string(width);
        const bool fits = width == 128 || hidden <= 3;
        try {
          const auto plan =
              resident::make_column_plan(parse_workload_name(name + "x10-b64"), precision, kH200);
          EXPECT_TRUE(fits) << name;
          EXPECT_LE(plan.shared_bytes, kH200.shared_bytes) << name;
        } catch (const UnsupportedError& error) {
          EXPECT_FALSE(fits) << error.what();
        }
      }
}
TEST(ResidentColumnPlan, SaysWhatDoesNotFit) {
  const auto refusal = [](const char* name, Precision precision, resident::Limits limits = kH200) {
    try {
      resident::make_column_plan(parse_workload_name(name), precision, limits);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal("mlp-784x256x10-b32", Precision::kTf32), "tf32");
  expect(refusal("mlp-784x256x10-b65", Precision::kBf16), "batch size 65, not up to 64");
  expect(refusal("mlp-784x256x256x256x256x10-b33", Precision::kBf16), "bytes of shared memory");
  expect(refusal("mlp-784x264x10-b32", Precision::kBf16), "264, not up to 256");
  expect(refusal("mlp-900x256x10-b32", Precision::kBf16), "900 inputs");
  expect(refusal("mlp-784x256x17-b32", Precision::kBf16), "17 outputs");
  expect(
      refusal("mlp-784x256x256x256x256x10-b32", Precision::kBf16, {.sm_count = 108, .shared_bytes = 166912}),
      "there are 166912");
  expect(refusal("mlp-784x256x10-b32", Precision::kBf16, {.sm_count = 48, .shared_bytes = 232448}),
         "64 thread blocks, the device holds 48");
}
TEST(ResidentColumnPlan, FitsEveryDeviceOrSaysWhatThatLacks) {
  for (const int sm_count : {132, 114, 108, 84, 48})
    for (const int shared_bytes : {232448, 166912, 101376})
      for (const char* name : kColumns)
        for (const Precision precision : {Precision::kFp16, Precision::kBf16}) {
          const resident::Limits limits{.sm_count = sm_count, .shared_bytes = shared_bytes};
          try {
            const auto plan = resident::make_column_plan(parse_workload_name(name), precision, limits);
            EXPECT_LE(plan.shape.members * plan.shape.clusters, sm_count) << name;
            EXPECT_LE(plan.shared_bytes, shared_bytes) << name;
          } catch (const UnsupportedError& error) {
            const std::string text = error.what();
            EXPECT_TRUE(text.find(std::to_string(sm_count)) != text.npos ||
                        text.find(std::to_string(shared_bytes)) != text.npos)
                << text;
          }
        }
}
TEST(ResidentColumnPlan, LaysOutWhatItCounts) {
  using resident::ColumnPlaces;
  using resident::ColumnShape;
  const auto check_shape = []<ColumnShape kShape, bool kSplit>() {
    EXPECT_EQ((ColumnPlaces<kShape, kSplit>::kSharedBytes), resident::column_shared_bytes(kShape, kSplit))
        << kShape.hidden << " hidden layers";
  };
  check_shape.operator()<ColumnShape{1, 16, 4, 49, 1}, true>();
  check_shape.operator()<ColumnShape{2, 16, 4, 49, 2}, false>();
  check_shape.operator()<ColumnShape{3, 8, 1, 3, 3}, true>();
  check_shape.operator()<ColumnShape{4, 16, 4, 49, 3}, false>();
  check_shape.operator()<ColumnShape{6, 16, 4, 49, 6}, true>();
  check_shape.operator()<ColumnShape{7, 8, 1, 14, 7}, false>();
  check_shape.operator()<ColumnShape{3, 16, 4, 49, 3, 2, 2}, true>();
  check_shape.operator()<ColumnShape{4, 16, 4, 49, 1, 1, 5}, false>();
  check_shape.operator()<ColumnShape{2, 8, 1, 3, 2, 2, 0, 2, 1}, true>();
  check_shape.operator()<ColumnShape{1, 8, 1, 3, 1, 0, 0, 3, 0}, true>();
  check_shape.operator()<ColumnShape{3, 16, 4, 49, 3, 0, 0, 0, 0, 2}, true>();
  check_shape.operator()<ColumnShape{5, 8, 1, 3, 5, 1, 0, 0, 0, 2}, false>();
  check_shape.operator()<ColumnShape{1, 16, 1, 3, 1, 0, 0, 3, 1, 2}, true>();
}

}  // namespace
}  // namespace headroom
