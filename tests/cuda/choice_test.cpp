// Which strategy the backend `cuda` takes: the rule itself without a GPU, and on one that it trains what it names.
#include "choice/choice.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/error.h"
#include "layered/trainer.h"
#include "resident/trainer.h"
#include "trainer_contract.h"

namespace headroom {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::unique_ptr<Trainer> chosen_trainer(const Problem& problem, Precision precision) {
  return make_chosen_trainer(problem.workload, precision, problem.data.train(), problem.initial, 0);
}

TEST(Choice, OrdersEveryStrategyAtMostOnceAndEndsWithTheOneThatTakesAll) {
  for (const char* name : {"mlp-784x128x128x128x10-b32", "mlp-784x8192x8192x8192x10-b32",
                           "mlp-64x64x64x64x64x16-b131072", "mlp-1x2-b1"})
    for (const Precision precision : kAllPrecisions) {
      std::vector<Strategy> order = strategies_by_speed(parse_workload_name(name), precision);
      ASSERT_FALSE(order.empty()) << name;
      EXPECT_EQ(order.back(), Strategy::kLayered) << name;
      std::ranges::sort(order);
      EXPECT_EQ(std::ranges::adjacent_find(order), order.end()) << name;
    }
}

std::vector<Strategy> order_for(const char* name, Precision precision) {
  return strategies_by_speed(parse_workload_name(name), precision);
}
using Order = std::vector<Strategy>;

// The published and the noted times behind each of these are in docs/kernels/choice.md.
TEST(Choice, ASmallBatchStaysOnTheChipOrIsStreamed) {
  for (const Precision precision : kAllPrecisions)
    EXPECT_EQ(order_for("mlp-784x2048x2048x2048x10-b32", precision),
              (Order{Strategy::kResident, Strategy::kStreamed, Strategy::kLayered}));
  EXPECT_EQ(order_for("mlp-784x128x128x128x10-b32", Precision::kBf16),
            (Order{Strategy::kResident, Strategy::kStreamed, Strategy::kLayered}));
  // More layers than cuda-resident trains.
  for (const Precision precision : kAllPrecisions)
    for (const char* name : {"mlp-784x256x256x256x256x256x256x256x256x10-b32",
                             "mlp-64x64x64x64x64x64x64x64x64x64x64x64x64x64x64x64x10-b32"})
      EXPECT_EQ(order_for(name, precision),
                (Order{Strategy::kResident, Strategy::kStreamed, Strategy::kLayered}));
}

TEST(Choice, AMediumBatchIsStreamedWhereThereAreManyWeightsOf16Bits) {
  EXPECT_EQ(order_for("mlp-784x2048x2048x2048x10-b64", Precision::kFp16),
            (Order{Strategy::kStreamed, Strategy::kLayered}));
  EXPECT_EQ(order_for("mlp-784x2048x2048x2048x10-b64", Precision::kFp32), Order{Strategy::kLayered});
  EXPECT_EQ(order_for("mlp-784x512x512x10-b64", Precision::kFp16), Order{Strategy::kLayered});
}

TEST(Choice, ALargeBatchIsFusedWhereItCan) {
  EXPECT_EQ(order_for("mlp-64x64x64x64x64x16-b131072", Precision::kFp16),
            (Order{Strategy::kFused, Strategy::kLayered}));
  EXPECT_EQ(order_for("mlp-784x2048x2048x2048x10-b128", Precision::kBf16),
            (Order{Strategy::kFused, Strategy::kStreamed, Strategy::kLayered}));
}

TEST(Choice, WhatIsBeyondPlainTrainingIsLayered) {
  for (const char* name : {"mlp-784x128x128x128x10-b32-tanh", "mlp-784x128x128x128x10-b32-adam",
                           "mlp-64x64x64x64x64x16-b131072-mse", "mlp-784x128x10-b32-momentum0.9"})
    EXPECT_EQ(order_for(name, Precision::kBf16), Order{Strategy::kLayered}) << name;
}

TEST(Choice, SaysWhyWithoutADevice) {
  EXPECT_EQ(choice_unavailable(-1), "no CUDA device");
  const Problem problem({4, 3}, 2);
  EXPECT_THROW(
      make_chosen_trainer(problem.workload, Precision::kFp32, problem.data.train(), problem.initial, -1),
      UnsupportedError);
}

TEST(Choice, TrainsTheStrategyThatItNames) {
  HEADROOM_NEEDS_DEVICE();
  if (resident_unavailable(0)) GTEST_SKIP() << *resident_unavailable(0);
  const Problem problem({20, 24, 10}, 8);
  const auto chosen = chosen_trainer(problem, Precision::kFp16);
  EXPECT_THAT(chosen->note(), StartsWith("takes cuda-resident: "));
  const auto direct =
      make_resident_trainer(problem.workload, Precision::kFp16, problem.data.train(), problem.initial, 0);
  chosen->train(0, 20);
  direct->train(0, 20);
  EXPECT_EQ(chosen->losses(0, 20), direct->losses(0, 20));
  EXPECT_TRUE(std::ranges::equal(chosen->parameters().flat(), direct->parameters().flat()));
  EXPECT_GT(chosen->peak_device_bytes(), 0);
  chosen->set_parameters(problem.initial);
  EXPECT_TRUE(std::ranges::equal(chosen->parameters().flat(), problem.initial.flat()));
}

TEST(Choice, KeepsTheSlotsOfTheStrategyThatItTakes) {
  HEADROOM_NEEDS_DEVICE();
  const Problem problem(parse_workload_name("mlp-20x24x10-b8-adam"));
  const auto chosen = chosen_trainer(problem, Precision::kFp32);
  EXPECT_EQ(chosen->note(), "takes cuda-layered");
  chosen->train(0, 3);
  const State state = chosen->state();
  ASSERT_EQ(state.slots.size(), 2u);
  chosen->set_state(State::initial(problem.initial, 2));
  const State anew = chosen->state();
  for (const float value : anew.slots[0].flat()) ASSERT_EQ(value, 0);
  chosen->set_state(state);
  const State again = chosen->state();
  EXPECT_TRUE(std::ranges::equal(again.slots[1].flat(), state.slots[1].flat()));
}

TEST(Choice, TakesTheNextWhereTheFirstDoesNotFitAndSaysWhy) {
  HEADROOM_NEEDS_DEVICE();
  if (resident_unavailable(0)) GTEST_SKIP() << *resident_unavailable(0);
  // One layer more than cuda-resident trains.
  const Problem deep({20, 24, 24, 24, 24, 24, 24, 24, 24, 10}, 8);
  for (const Precision precision : {Precision::kFp16, Precision::kFp32})
    EXPECT_THAT(chosen_trainer(deep, precision)->note(),
                AllOf(StartsWith("takes cuda-streamed"), HasSubstr("; refused: "), HasSubstr("layers")));
  const Problem wide({20, 300, 10}, 512);
  EXPECT_THAT(chosen_trainer(wide, Precision::kBf16)->note(),
              AllOf(StartsWith("takes cuda-layered; refused: "), HasSubstr("cuda-fused")));
  const Problem narrow({20, 32, 10}, 512);
  EXPECT_THAT(chosen_trainer(narrow, Precision::kBf16)->note(), StartsWith("takes cuda-fused"));
}

}  // namespace
}  // namespace headroom
