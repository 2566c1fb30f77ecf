// The streamed trainer against the double-precision oracle, in every precision.
//
// Tests named Small also run under the sanitizers, so their networks and step counts are small and their waits long.
// Shapes are chosen so that every padding and every path is hit: widths of 3 and 17, batches of 1, 17, 40 and 100, panels of
// 1, 2 and 4 tiles, blocks that own nothing or several panels, more classes than are multiplied column by column.
// A test with few thread blocks gives each what a wide network would.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "kept_streamed_trainer.h"
#include "not_finite.h"
#include "sanitizer.h"
#include "step_check.h"
#include "streamed/logit_sums.h"
#include "streamed/packed_tiles.h"
#include "streamed/plan.h"
#include "streamed/trainer.h"

namespace headroom {
namespace {

constexpr double kSanitizerWaitSeconds = 20;
constexpr std::int64_t kSanitizedSteps = 3;  // the first, one between two others and the last
constexpr streamed::Limits kH200{.sm_count = 132, .shared_bytes = 232448};

#define NEEDS_GPU() \
  if (const auto reason = streamed_unavailable(0)) GTEST_SKIP() << *reason

struct Problem : NamedProblem {
  using NamedProblem::NamedProblem;
  std::unique_ptr<Trainer> trainer(Precision precision, const StreamedOptions& options = {}) {
    return make_kept_streamed_trainer(workload, precision, dataset.train(), initial, 0, options);
  }
};

void check_against_oracle(const std::string& name, Precision precision, int members,
                          const std::vector<std::int64_t>& steps, bool hold = false) {
  Problem problem(name, fresh_seed());
  const auto trainer = problem.trainer(
      precision, {.wait_seconds = kSanitizerWaitSeconds, .hold = hold, .most_members = members});
  check_against_oracle(problem, precision, *trainer, steps, kSanitizedSteps);
}

class StreamedTrainer : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, StreamedTrainer, testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

const std::vector<std::int64_t> kFewSteps = {0, 1, 7, 9}, kMoreSteps = {0, 1, 7, 29, 71};

/// Names, and thread blocks at most. Of 8 of them most own nothing; 60x50 are panels of 2 tiles, 120x100 of 4.
const std::vector<std::pair<const char*, int>> kSmallShapes = {
    {"mlp-20x16x3-b1", 2},      {"mlp-33x40x17x5-b17", 2},    {"mlp-33x40x17x5-b17", 3},
    {"mlp-40x70x130x7-b32", 2}, {"mlp-20x40x30-b20", 3},      {"mlp-40x64x48x7-b32", 8},
    {"mlp-40x60x50x7-b32", 2},  {"mlp-40x120x100x10-b20", 2}, {"mlp-20x40x70x100-b20", 3}};
const std::vector<std::pair<const char*, int>> kSmallLargeBatches = {{"mlp-40x48x30x7-b100", 3},
                                                                     {"mlp-17x33x80-b40", 3}};

TEST_P(StreamedTrainer, SmallStepsMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : kSmallShapes) check_against_oracle(name, GetParam(), members, kFewSteps);
}
TEST_P(StreamedTrainer, SmallLargeBatchesMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : kSmallLargeBatches)
    check_against_oracle(name, GetParam(), members, kFewSteps);
}
TEST_P(StreamedTrainer, OddShapesMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : {std::pair{"mlp-784x200x300x10-b32", 0},
                                      {"mlp-100x777x333x10-b31", 16},
                                      {"mlp-1x500x2-b5", 4},
                                      {"mlp-300x64x1000-b32", 8},
                                      {"mlp-784x512x10-b128", 0},
                                      {"mlp-60x400x300x70-b65", 20}})
    check_against_oracle(name, GetParam(), members, kMoreSteps);
}
TEST_P(StreamedTrainer, DeepNetworksMatchTheOracle) {
  NEEDS_GPU();
  check_against_oracle("mlp-30x40x50x60x50x40x30x20x10-b32", GetParam(), 2, kMoreSteps);
  check_against_oracle("mlp-20x30x30x30x30x30x30x30x30x30x30x30x30x30x30x30x5-b8", GetParam(), 2, kFewSteps);
}

/// Parameters and losses after `steps` steps.
std::vector<float> bits_after(Problem& problem, Precision precision, int members, std::int64_t at_once,
                              bool hold = false, std::int64_t steps = 300) {
  const auto trainer = problem.trainer(precision, {.hold = hold, .most_members = members});
  for (std::int64_t step = 0; step < steps; step += at_once)
    trainer->train(step, std::min(at_once, steps - step));
  const Parameters end = trainer->parameters();
  std::vector<float> bits(end.flat().begin(), end.flat().end());
  for (const float loss : trainer->losses(0, steps)) {
    EXPECT_TRUE(std::isfinite(loss));
    bits.push_back(loss);
  }
  return bits;
}
TEST_P(StreamedTrainer, TwoRunsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  // Panels of 1, 2 and 4 tiles, and a large batch.
  for (const auto& [name, members] : {std::pair{"mlp-784x1024x1024x10-b32", 0},
                                      {"mlp-784x1024x1024x10-b32", 32},
                                      {"mlp-784x1024x1024x10-b32", 16},
                                      {"mlp-200x300x200x80-b48", 0}}) {
    Problem problem(name, fresh_seed());
    const auto first = bits_after(problem, GetParam(), members, 300);
    EXPECT_TRUE(first == bits_after(problem, GetParam(), members, 300)) << name << ", " << members;
    EXPECT_TRUE(first == bits_after(problem, GetParam(), members, 7)) << name << ", " << members;
  }
}
TEST_P(StreamedTrainer, FewStepsGiveTheSameBitsHoweverTheyAreCutAndHeld) {
  NEEDS_GPU();
  // All paths in small, for the GPU that the CPU plays: there two runs differ in the order of all that nobody waits for.
  constexpr std::int64_t kSteps = 4;
  for (const auto& shapes : {kSmallShapes, kSmallLargeBatches})
    for (const auto& [name, members] : shapes) {
      Problem problem(name, fresh_seed());
      const auto bits = [&](std::int64_t at_once, bool hold) {
        return bits_after(problem, GetParam(), members, at_once, hold, kSteps);
      };
      const auto first = bits(kSteps, false);
      const bool may_hold = problem.workload.batch_size <= streamed::kGroupRows;
      EXPECT_TRUE(first == bits(3, false)) << problem.described(GetParam()) << ", " << members;
      EXPECT_TRUE(first == bits(kSteps, may_hold)) << problem.described(GetParam()) << ", " << members;
    }
}
class StreamedHints : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, StreamedHints, testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

TEST_P(StreamedHints, SmallStepsMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : {std::pair{"mlp-33x40x17x5-b17", 2},
                                      {"mlp-40x70x130x7-b32", 2},
                                      {"mlp-40x60x50x7-b32", 2}})  // all panels of 2 tiles
    check_against_oracle(name, GetParam(), members, kFewSteps, true);
}
TEST_P(StreamedHints, OddShapesMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] :
       {std::pair{"mlp-100x777x333x10-b31", 16}, {"mlp-60x400x300x70-b31", 20}, {"mlp-300x64x1000-b32", 8}})
    check_against_oracle(name, GetParam(), members, kMoreSteps, true);
}
TEST_P(StreamedHints, ChangeNoBit) {
  NEEDS_GPU();
  // Panels of 1, 2 and 4 tiles. In bf16 lower halves are kept in panels of 1 tile without hints and of 2 with them: of the
  // widest network's layer 1 some, otherwise all; in fp16 and in panels of 1 tile in tf32 masters of the first layer.
  for (const auto& [name, members] : {std::pair{"mlp-784x1024x1024x10-b32", 0},
                                      {"mlp-784x1024x1024x10-b32", 32},
                                      {"mlp-784x2048x2048x10-b32", 64},
                                      {"mlp-784x1024x1024x10-b32", 16}}) {
    Problem problem(name, fresh_seed());
    EXPECT_TRUE(bits_after(problem, GetParam(), members, 300) ==
                bits_after(problem, GetParam(), members, 300, true))
        << name << ", " << members;
  }
}

TEST_P(StreamedTrainer, SmallParametersComeBackAsTheyWere) {
  NEEDS_GPU();
  Problem problem("mlp-33x40x17x5-b17", fresh_seed());
  const auto trainer = problem.trainer(GetParam());
  const Parameters found = trainer->parameters();
  for (std::size_t i = 0; i < found.flat().size(); ++i)
    ASSERT_EQ(found.flat()[i], problem.initial.flat()[i]) << "element " << i;
}
TEST_P(StreamedTrainer, SmallBrokenNetworkIsSeenAndForgotten) {
  NEEDS_GPU();
  Problem problem("mlp-33x40x17x5-b17", fresh_seed());
  const auto trainer =
      problem.trainer(GetParam(), {.wait_seconds = kSanitizerWaitSeconds, .most_members = 2});
  trainer->train(0, 3);
  const auto good = trainer->losses(0, 3);
  Parameters broken = problem.initial;
  broken.weight(1)[5] = NAN;
  trainer->set_parameters(broken);
  trainer->train(0, 3);
  EXPECT_TRUE(std::isnan(trainer->losses(2, 1)[0]));
  trainer->set_parameters(problem.initial);
  trainer->train(0, 3);
  EXPECT_EQ(trainer->losses(0, 3), good);
}

void expect_nans_in_the_losses_of(const std::vector<std::pair<const char*, int>>& shapes, Precision precision,
                                  bool hold, NaNPlaces places) {
  for (const auto& [name, members] : shapes) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, precision, places, [&] {
      return make_kept_streamed_trainer(problem.workload, precision, problem.dataset.train(), problem.initial,
                                        0, {.hold = hold, .most_members = members});
    });
  }
}
/// Panels of 1 tile; of 2, with and without joined logits; of 4; and more rows than a group has. Each is a kernel of its own.
const std::vector<std::pair<const char*, int>> kNaNShapes = {
    {"mlp-20x16x3-b1", 2}, {"mlp-40x60x50x7-b3", 2}, {"mlp-20x40x70x20-b2", 3}, {"mlp-40x120x100x10-b2", 2}};
const std::vector<std::pair<const char*, int>> kNaNLargeBatch = {{"mlp-17x33x80-b40", 3}};
TEST_P(StreamedTrainer, ANaNComesOutOfEveryKernelAsNaNLosses) {
  NEEDS_GPU();
  for (const bool hold : {false, true})
    expect_nans_in_the_losses_of(kNaNShapes, GetParam(), hold, NaNPlaces::kFew);
  expect_nans_in_the_losses_of(kNaNLargeBatch, GetParam(), false, NaNPlaces::kFew);
}
TEST_P(StreamedTrainer, ANaNInAnyPlaceComesOutOfEveryKernelAsNaNLosses) {
  NEEDS_GPU();
  for (const bool hold : {false, true})
    for (const auto& shapes : {kNaNShapes, kSmallShapes})
      expect_nans_in_the_losses_of(shapes, GetParam(), hold, NaNPlaces::kEvery);
  for (const auto& shapes : {kNaNLargeBatch, kSmallLargeBatches})
    expect_nans_in_the_losses_of(shapes, GetParam(), false, NaNPlaces::kEvery);
}
TEST_P(StreamedTrainer, ANaNInAnyPlaceComesOutOfPublishedNetworksAsNaNLosses) {
  NEEDS_GPU();
  // The second is larger than the L2 and takes its hints by itself.
  expect_nans_in_the_losses_of({{"mlp-784x1024x1024x1024x10-b32", 0}, {"mlp-784x4096x4096x4096x10-b32", 0}},
                               GetParam(), false, NaNPlaces::kFew);
}
/// logit_sums.h: a part of a logit that is 2^22 or more cannot be added, and is taken for one that is not finite. Where logits are
/// not joined, the loss is large and finite, as the oracle's.
TEST_P(StreamedTrainer, SmallAHugeLogitIsNaNWhereLogitsAreJoinedAndFiniteElsewhere) {
  NEEDS_GPU();
  for (const auto& [name, joined] : {std::pair{"mlp-20x16x16-b2", true}, {"mlp-20x16x17-b2", false}}) {
    Problem problem(name, fresh_seed());
    for (float& bias : problem.initial.bias(0)) bias = 1;
    for (float& weight : problem.initial.weight(1)) weight *= 1e9f;
    const auto oracle = make_oracle_trainer(problem.workload, Precision::kFp32, true, problem.dataset.train(),
                                            problem.initial);
    oracle->train(0, 1);
    ASSERT_TRUE(std::isfinite(oracle->losses(0, 1)[0])) << problem.described(GetParam());
    if (GetParam() == Precision::kFp16) continue;  // which has no such weights
    const auto trainer =
        problem.trainer(GetParam(), {.wait_seconds = kSanitizerWaitSeconds, .most_members = 2});
    trainer->train(0, 1);
    EXPECT_EQ(std::isnan(trainer->losses(0, 1)[0]), joined) << problem.described(GetParam());
  }
}

TEST(StreamedWaits, SmallLostArrivalFailsTheTrainingInsteadOfHanging) {
  NEEDS_GPU();
  for (const int barrier : {0, 1, 4, 5, 13}) {
    if (under_racecheck() && barrier != 0) continue;
    Problem problem("mlp-33x40x17x7x5-b17", fresh_seed());
    const auto trainer =
        problem.trainer(Precision::kBf16, {.wait_seconds = 0.05, .lost_barrier = barrier, .most_members = 8});
    try {
      trainer->train(0, 20);
      FAIL() << "nobody waits for barrier " << barrier;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("waited too long"), std::string::npos) << error.what();
    }
    EXPECT_THROW(trainer->train(0, 1), std::runtime_error);
  }
}

TEST(StreamedPlan, DividesTheSeedShapesEvenly) {
  for (const auto& [name, panel, owned] : {std::tuple{"mlp-784x2048x2048x2048x10-b32", 1, 1},
                                           {"mlp-784x4096x4096x4096x10-b32", 2, 2},
                                           {"mlp-784x8192x8192x8192x10-b32", 4, 4},
                                           {"mlp-784x16384x16384x16384x10-b32", 4, 8}}) {
    const auto plan = streamed::make_plan(parse_workload_name(name), kH200);
    EXPECT_EQ(plan.layer[1].panel, panel) << name;
    EXPECT_EQ(plan.layer[1].owned, owned) << name;
    EXPECT_TRUE(plan.narrow) << name;
  }
}
TEST(StreamedPlan, OwnersCoverEveryTileOnceAndTilesDoNotOverlap) {
  std::mt19937_64 random(fresh_seed());
  for (int n = 0; n < 200; ++n) {
    Workload workload;
    workload.batch_size = 1 + static_cast<int>(random() % streamed::kMaxBatch);
    const int layers = 2 + static_cast<int>(random() % 15);
    for (int i = 0; i <= layers; ++i) workload.model.widths.push_back(1 + static_cast<int>(random() % 5000));
    workload.name = default_name(workload);
    const auto plan = streamed::make_plan(
        workload, {.sm_count = 1 + static_cast<int>(random() % 150), .shared_bytes = kH200.shared_bytes});
    std::int64_t tiles = 0, outputs = 0, biases = 0;
    for (int l = 0; l < plan.layers; ++l) {
      const auto& layer = plan.layer[l];
      EXPECT_GE(layer.out_tiles * streamed::kTileSide, layer.out) << workload.name;
      EXPECT_GE(layer.in_tiles * streamed::kTileSide, layer.in) << workload.name;
      EXPECT_EQ(layer.out_tiles % layer.panel, 0) << workload.name;
      EXPECT_EQ(layer.owned % layer.panel, 0) << workload.name;
      EXPECT_GE(std::int64_t{layer.owned} * plan.members, layer.out_tiles) << workload.name;
      EXPECT_LE(layer.panel * plan.groups, streamed::kMostGroups) << workload.name;
      EXPECT_EQ(layer.first_tile, tiles) << workload.name;
      EXPECT_EQ(layer.first_output, outputs) << workload.name;
      EXPECT_EQ(layer.bias, biases) << workload.name;
      EXPECT_EQ(layer.in_tiles, l > 0 ? plan.layer[l - 1].out_tiles : plan.input_tiles) << workload.name;
      tiles += std::int64_t{layer.in_tiles} * layer.out_tiles;
      outputs += layer.out_tiles;
      biases += std::int64_t{layer.out_tiles} * streamed::kTileSide;
    }
    EXPECT_EQ(plan.tiles, tiles) << workload.name;
    EXPECT_GE(plan.groups * streamed::kGroupRows, workload.batch_size) << workload.name;
  }
}
TEST(StreamedPlan, KeepsLowerHalvesWherePanelsAreOfOneTileAndThereIsRoom) {
  for (const auto& [name, kept] : {std::pair{"mlp-784x2048x2048x2048x10-b32", std::vector{-1, 0, 65536, -1}},
                                   {"mlp-784x2048x2048x2048x2048x10-b32", {-1, 0, 65536, -1, -1}},
                                   {"mlp-784x1024x1024x10-b32", {-1, 0, -1}},
                                   {"mlp-784x1024x10-b32", {-1, -1}},
                                   {"mlp-784x2048x2048x2048x10-b33", {-1, -1, -1, -1}},
                                   {"mlp-784x4096x4096x4096x10-b32", {-1, -1, -1, -1}}}) {
    auto plan = streamed::make_plan(parse_workload_name(name), kH200);
    streamed::keep_lower_halves(plan);
    bool any = false;
    for (int l = 0; l < plan.layers; ++l) {
      EXPECT_EQ(plan.layer[l].kept, kept[static_cast<std::size_t>(l)]) << name << ", layer " << l;
      any = any || plan.layer[l].kept >= 0;
    }
    EXPECT_EQ(plan.keeps == streamed::Kept::kLowerHalves, any) << name;
  }
}
TEST(StreamedPlan, KeepsSomeLowerHalvesOfWiderPanels) {
  for (const auto& [name, held, share] : {std::tuple{"mlp-784x4096x4096x4096x10-b32", 43, 80},
                                          {"mlp-784x4096x4096x4096x10-b32", 0, 0},
                                          {"mlp-784x3072x3072x3072x10-b32", 75, 106},
                                          {"mlp-784x8192x8192x8192x10-b32", 0, 0},
                                          {"mlp-784x8192x8192x8192x10-b32", 43, 0},
                                          {"mlp-784x4096x8192x4096x10-b32", 43, 0},
                                          {"mlp-784x4096x4096x1000-b32", 43, 0},
                                          {"mlp-784x2048x2048x2048x10-b32", 43, 0},
                                          {"mlp-784x4096x10-b32", 43, 0},
                                          {"mlp-784x4096x4096x4096x10-b33", 0, 0}}) {
    auto plan = streamed::make_plan(parse_workload_name(name), kH200);
    streamed::keep_some_lower_halves(plan, held);
    EXPECT_EQ(plan.kept_part, share) << name;
    EXPECT_EQ(plan.keeps, share > 0 ? streamed::Kept::kLowerHalves : streamed::Kept::kNothing) << name;
    EXPECT_EQ(plan.layer[1].kept, share > 0 ? 0 : -1) << name;
    const auto& layer = plan.layer[1];
    const int items = (layer.out_tiles + streamed::kItemWarps - 1) / streamed::kItemWarps;
    int kept = 0;
    for (int item = 0; item < items; ++item) {
      EXPECT_EQ(streamed::kept_before(share, item), kept) << name;
      kept += streamed::is_kept(share, item);
    }
    EXPECT_LE(kept * streamed::kItemWarps * plan.layer[0].owned * 512, streamed::kPartlyKeptBytes) << name;
    EXPECT_GE(kept, share > 0 ? 1 : 0) << name;
  }
}
TEST(StreamedPlan, KeepsMastersOfTheFirstLayerInFp16AndTf32) {
  for (const auto& [name, held, fp16, tf32] : {std::tuple{"mlp-784x2048x2048x2048x10-b32", 0, 49, 49},
                                               {"mlp-784x2048x2048x2048x10-b32", 21, 0, 0},
                                               {"mlp-20x16x3-b1", 0, 2, 2},
                                               {"mlp-1500x64x10-b32", 0, 0, 0},
                                               {"mlp-784x4096x4096x4096x10-b32", 21, 40, 34},
                                               {"mlp-784x4096x4096x4096x17-b32", 21, 40, 0},
                                               {"mlp-784x4096x4096x4096x10-b32", 0, 0, 0},
                                               {"mlp-2000x4096x10-b32", 21, 40, 34},
                                               {"mlp-784x8192x8192x8192x10-b32", 0, 0, 0},
                                               {"mlp-784x2048x2048x2048x10-b33", 0, 0, 0}})
    for (const Precision precision : kAllPrecisions) {
      auto plan = streamed::make_plan(parse_workload_name(name), kH200);
      streamed::keep_first_masters(plan, precision, held);
      const int share = precision == Precision::kFp16 ? fp16 : precision == Precision::kTf32 ? tf32 : 0;
      EXPECT_EQ(plan.kept_part, share) << name;
      EXPECT_EQ(plan.keeps, share > 0 ? streamed::Kept::kFirstLayer : streamed::Kept::kNothing) << name;
      EXPECT_LE(share * plan.layer[0].owned * 1024, streamed::kPartlyKeptBytes) << name;
    }
}
TEST(StreamedPlan, PacksActivationsInTf32WithJoinedLogitsAndPanelsOfOneOrTwoTiles) {
  for (const auto& [name, packed] : {std::pair{"mlp-784x128x128x128x10-b32", true},
                                     {"mlp-784x2048x2048x2048x16-b32", true},
                                     {"mlp-784x4096x4096x4096x10-b32", true},
                                     {"mlp-784x2048x2048x2048x17-b32", false},
                                     {"mlp-784x2048x2048x2048x10-b33", false},
                                     {"mlp-784x2048x4096x2048x10-b32", false},
                                     {"mlp-784x8192x8192x8192x10-b32", false}}) {
    const auto plan = streamed::make_plan(parse_workload_name(name), kH200);
    for (const Precision precision : kAllPrecisions)
      EXPECT_EQ(streamed::packs_activations(plan, precision), packed && precision == Precision::kTf32)
          << name;
  }
}
TEST(StreamedPlan, HoldsAShareOfMastersThatAreOneToThreeTimesTheL2) {
  constexpr std::int64_t kL2Bytes = std::int64_t{60} << 20;
  for (const auto& [name, held, held_bf16] : {std::tuple{"mlp-784x2048x2048x2048x10-b32", 0, 0},
                                              {"mlp-784x3072x3072x3072x10-b32", 37, 75},
                                              {"mlp-784x4096x4096x4096x10-b32", 21, 43},
                                              {"mlp-784x4096x4096x4096x10-b33", 0, 0},
                                              {"mlp-784x5120x5120x5120x10-b32", 0, 0},
                                              {"mlp-784x8192x8192x8192x10-b32", 0, 0}}) {
    const auto plan = streamed::make_plan(parse_workload_name(name), kH200);
    EXPECT_EQ(streamed::tiles_to_hold(plan, Precision::kFp16, kL2Bytes), held) << name;
    EXPECT_EQ(streamed::tiles_to_hold(plan, Precision::kTf32, kL2Bytes), held) << name;
    EXPECT_EQ(streamed::tiles_to_hold(plan, Precision::kBf16, kL2Bytes), held_bf16) << name;
    EXPECT_EQ(streamed::tiles_to_hold(plan, Precision::kFp32, kL2Bytes), held) << name;
  }
  const auto packed_pairs = streamed::make_plan(parse_workload_name("mlp-784x2400x2400x2400x10-b32"), kH200);
  EXPECT_EQ(streamed::tiles_to_hold(packed_pairs, Precision::kTf32, kL2Bytes), 59);
  EXPECT_EQ(streamed::tiles_to_hold(packed_pairs, Precision::kFp16, kL2Bytes), 0);
  const auto small = streamed::make_plan(parse_workload_name("mlp-20x16x3-b1"), kH200);
  EXPECT_EQ(streamed::held_share(small, Precision::kFp16, kL2Bytes), 128);
  const auto large = streamed::make_plan(parse_workload_name("mlp-784x30000x30000x30000x10-b32"), kH200);
  EXPECT_EQ(streamed::held_share(large, Precision::kFp16, kL2Bytes), 1);
  auto deep = streamed::make_plan(parse_workload_name("mlp-784x2048x2048x2048x2048x2048x10-b32"), kH200);
  EXPECT_GT(streamed::tiles_to_hold(deep, Precision::kBf16, kL2Bytes), 0);
  streamed::keep_lower_halves(deep);
  EXPECT_EQ(streamed::tiles_to_hold(deep, Precision::kBf16, kL2Bytes), 0);
}
TEST(StreamedPlan, HeldTilesLieInSquaresAndAreSpreadOverRowsAndColumns) {
  constexpr int kTiles = 256;  // H = 4096
  for (const int held : {7, 21, 43, 75, 128}) {
    std::vector<int> in_row(kTiles), in_column(kTiles);
    for (int out = 0; out < kTiles; ++out)
      for (int in = 0; in < kTiles; ++in) {
        const bool here = streamed::is_held(held, out, in);
        EXPECT_EQ(here, streamed::is_held(held, out ^ 1, in));
        EXPECT_EQ(here, streamed::is_held(held, out, in ^ 1));
        in_row[static_cast<std::size_t>(out)] += here;
        in_column[static_cast<std::size_t>(in)] += here;
      }
    for (const auto& counts : {in_row, in_column})
      for (const int count : counts) EXPECT_NEAR(count, held, 8) << held;
  }
}
TEST(StreamedPlan, KnowsWhetherAllPanelsHaveAsManyTiles) {
  for (const auto& [name, panels] : {std::pair{"mlp-784x2048x2048x2048x10-b32", 1},
                                     {"mlp-784x4096x4096x4096x10-b32", 2},
                                     {"mlp-784x8192x8192x8192x10-b32", 4},
                                     {"mlp-784x4096x4096x1000-b32", 0},
                                     {"mlp-784x2048x4096x10-b32", 0},
                                     {"mlp-784x64x10-b33", 0}})
    EXPECT_EQ(streamed::one_panel_for_all(streamed::make_plan(parse_workload_name(name), kH200)), panels)
        << name;
}
TEST(StreamedPlan, JoinsTheLogitsOfUpTo16ClassesAndSmallBatches) {
  for (const auto& [name, joined] : {std::pair{"mlp-784x2048x10-b32", 1},
                                     {"mlp-784x64x16-b1", 1},
                                     {"mlp-784x64x17-b32", 0},
                                     {"mlp-784x64x10-b33", 0},
                                     {"mlp-784x64x100-b32", 0}})
    EXPECT_EQ(streamed::make_plan(parse_workload_name(name), kH200).joined, joined) << name;
}
TEST(StreamedLogits, SumsOfIntegersHaveNoOrderAndDoNotRunOver) {
  const auto units = [](float part) { return std::llrint(part * streamed::kLogitUnits); };
  std::mt19937 random(fresh_seed());
  std::normal_distribution<float> normal;
  std::vector<std::int64_t> parts(132);
  double exact = 0;
  for (auto& part : parts) {
    // One value of some 18000 would be larger than what can be added.
    constexpr float kLargest = streamed::kLargestPart / 2;
    const float value = std::clamp(normal(random) * std::exp(4 * normal(random)), -kLargest, kLargest);
    ASSERT_TRUE(streamed::can_be_added(value));
    part = units(value), exact += value;
  }
  const auto sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  std::ranges::shuffle(parts, random);
  EXPECT_EQ(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}), sum);
  EXPECT_NEAR(streamed::logit_of(sum), exact, 1e-7 * std::fabs(exact) + 132 * 0x1p-33);
  const float largest = std::nextafter(streamed::kLargestPart, 0.0f);
  EXPECT_TRUE(streamed::can_be_added(largest) && streamed::can_be_added(-largest));
  EXPECT_LE(units(largest), std::numeric_limits<std::int64_t>::max() / streamed::kMostParts);
  for (const float broken : {NAN, INFINITY, -INFINITY, streamed::kLargestPart, -streamed::kLargestPart})
    EXPECT_FALSE(streamed::can_be_added(broken)) << broken;
}
/// Where value (row, feature) of a tile begins, in bits, as the words that hold it are numbered one after the other.
int first_bit(int row, int feature, int bit) {
  namespace packed = streamed::packed;
  const int at = packed::value_bit(packed::value_of(packed::place_of(row / 8, feature / 8))) + bit;
  const int word = at / 32, g = row % 8, p = feature % 8;
  const int byte = word < 4 ? packed::first_words(g, p) + word * 4 : packed::fifth_word(g, p);
  return byte * 8 + at % 32;
}
TEST(StreamedPackedTiles, EveryValueHasBitsOfItsOwn) {
  std::vector<int> used(streamed::packed::kTileBytes * 8);
  for (int row = 0; row < 32; ++row)
    for (int feature = 0; feature < 16; ++feature)
      for (int bit = 0; bit < streamed::packed::kValueBits; ++bit)
        ++used.at(static_cast<std::size_t>(first_bit(row, feature, bit)));
  EXPECT_EQ(std::ranges::count(used, 1), 32 * 16 * 19);
  EXPECT_EQ(*std::ranges::max_element(used), 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(streamed::packed::value_of(streamed::packed::place_of_value(i)), i);
  std::vector<int> slots;
  for (int output = 0; output < 16; ++output)
    for (int input = 0; input < 16; ++input) slots.push_back(streamed::packed::slot(output, input));
  std::ranges::sort(slots);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(slots[static_cast<std::size_t>(i)], i);
}
/// Of `lanes` that read `bytes` each at the same time, all at places of their own in the 128 bytes of the banks.
template <class Place>
void check_banks(int bytes, const Place& place) {
  const int at_once = 128 / bytes;
  for (int first = 0; first < 32; first += at_once) {
    std::vector<int> banks;
    for (int lane = first; lane < first + at_once; ++lane) banks.push_back(place(lane) % 128);
    std::ranges::sort(banks);
    EXPECT_TRUE(std::ranges::adjacent_find(banks) == banks.end()) << first;
  }
}
TEST(StreamedPackedTiles, LanesReadFromBanksOfTheirOwn) {
  namespace packed = streamed::packed;
  for (int i = 0; i < 2; ++i) {
    // A lane's own packets, as it works out their places, and those across.
    const auto own = [&](int lane) { return 512 * i + (packed::own_bytes(lane) ^ 16 * i); };
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4, p = 2 * t + i;
      EXPECT_EQ(own(lane), packed::first_words(g, p));
      EXPECT_EQ(packed::kFifths + 8 * lane + 4 * i, packed::fifth_word(g, p));
      EXPECT_EQ(packed::first_words(t + 4, g), packed::first_words(t, g) + 256);
      EXPECT_EQ(packed::fifth_word(t + 4, g), packed::fifth_word(t, g) + 128);
    }
    check_banks(16, own);
    check_banks(16, [&](int lane) { return packed::first_words(lane % 4 + 4 * i, lane / 4); });
    check_banks(4, [&](int lane) { return packed::fifth_word(lane % 4 + 4 * i, lane / 4); });
  }
  const auto across = [](int lane) { return packed::slot(2 * (lane % 4), packed::feature_of(lane / 4)); };
  for (int s = 0; s < 2; ++s)
    check_banks(16, [&](int lane) { return 4 * (across(lane) + packed::kSecondStep * s); });
  for (int lane = 0; lane < 32; ++lane) {
    const int g = packed::feature_of(lane / 4), t = lane % 4;
    EXPECT_EQ(packed::place_of_feature(g), lane / 4);
    for (int i = 0; i < 4; ++i) {
      // Own masters and those across, word by word.
      for (int part = 0; part < 2; ++part)
        EXPECT_EQ(packed::slot(g + i / 2 * 8, 2 * t + part + i % 2 * 8),
                  part * 128 + packed::own_bytes(lane) / 4 + i);
      for (int s = 0; s < 2; ++s)
        EXPECT_EQ(packed::slot(2 * t + s + i / 2 * 8, g + i % 2 * 8),
                  across(lane) + packed::kSecondStep * s + i);
    }
  }
}
TEST(StreamedPackedTiles, TotalsComePacketByPacket) {
  namespace packed = streamed::packed;
  // Where the 16 sums of a warp's lanes are written, by row and feature.
  std::map<std::pair<int, int>, int> written;
  for (int lane = 0; lane < 32; ++lane)
    for (int sum = 0; sum < 16; ++sum) {
      const int g = lane / 4, t = lane % 4, m = sum / 8, n = sum / 4 % 2, r = sum / 2 % 2, s = sum % 2;
      written[{16 * m + 8 * r + g, packed::feature_of(2 * t + s) + 8 * n}] =
          sum * 32 + (lane ^ packed::total_swizzle(sum));
    }
  EXPECT_EQ(written.size(), 512u);
  for (int warp = 0; warp < 16; ++warp) {
    for (int lane = 0; lane < 32; ++lane) {
      const int row = packed::row_of_total(warp, lane), feature = packed::feature_of_total(warp, lane);
      EXPECT_EQ(packed::place_of_total(warp, lane), (written.at({row, feature})));
      EXPECT_EQ(packed::place_of(row / 8, feature / 8), lane % 8);
      EXPECT_EQ(row % 8, warp / 2);
      EXPECT_EQ(feature % 8, packed::feature_of(lane / 8 * 2 + warp % 2));
    }
    check_banks(4, [&](int lane) { return packed::place_of_total(warp, lane) * 4; });
  }
  // A packet's words from its eight values, each the upper 19 bits of a register.
  std::array<std::uint32_t, 8> value;  // by place
  std::mt19937 random(1);
  for (std::uint32_t& bits : value) bits = static_cast<std::uint32_t>(random()) & 0xffffe000u;
  for (int word = 0; word < 5; ++word) {
    const auto of_place = [&](int place) { return value[static_cast<std::size_t>(place)]; };
    const int left = packed::left_of_word(word);
    const std::uint32_t made = of_place(packed::first_of_word(word)) << left |
                               of_place(packed::second_of_word(word)) >> (19 - left) |
                               (word == 3 ? of_place(packed::place_of_value(6)) >> 25 : 0);
    for (int i = 0; i < 8; ++i)
      for (int bit = 0; bit < packed::kValueBits; ++bit)
        if (const int at = packed::value_bit(i) + bit; at / 32 == word) {
          EXPECT_EQ(made >> (31 - at % 32) & 1, of_place(packed::place_of_value(i)) >> (31 - bit) & 1)
              << word << ' ' << i << ' ' << bit;
        }
  }
}
TEST(StreamedPlan, RefusesWithTheReason) {
  for (const auto& [name, limits, reason] :
       {std::tuple{"mlp-20x10-b4", kH200, "one layer"},
        {"mlp-8x8x8-b129", kH200, "batch size 129"},
        {"mlp-8x8x8-b4", streamed::Limits{.sm_count = 80, .shared_bytes = 101376}, "the device has 101376"},
        {"mlp-8x8x8-b4-tanh-adam", kH200, "activation tanh"},
        {"mlp-8x8x8-b4-mse", kH200, "loss mse with plain sgd"}}) {
    const auto workload = parse_workload_name(name);
    const auto refused = streamed::cannot_stream(workload, limits);
    ASSERT_TRUE(refused.has_value()) << name;
    EXPECT_NE(refused->find(reason), std::string::npos) << *refused;
    EXPECT_THROW(streamed::make_plan(workload, limits), UnsupportedError) << name;
  }
  for (const char* name : {"mlp-784x8192x8192x10-b128", "mlp-8x8x8-b4-adamw", "mlp-8x8x8-b4-mse-adam"})
    EXPECT_FALSE(streamed::cannot_stream(parse_workload_name(name), kH200)) << name;
}
TEST(StreamedPlan, CountsTheBytesOfAStep) {
  const auto workload = parse_workload_name("mlp-1000x2000x3000x10-b32");
  EXPECT_EQ(streamed::weight_bytes_per_step(workload, Precision::kBf16), 2e6 * 8 + 6e6 * 10 + 3e4 * 10);
  EXPECT_EQ(streamed::weight_bytes_per_step(workload, Precision::kFp32), 2e6 * 8 + 6e6 * 12 + 3e4 * 12);
}

}  // namespace
}  // namespace headroom
