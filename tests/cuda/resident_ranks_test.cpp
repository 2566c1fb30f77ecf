// The kernels of cuda-resident on several devices, which tell each other what weight gradients are made of: columns
// (resident/column_peers.cuh) and slices (resident/slice_ranks.cuh).
//
// The oracle trains with the joined batch. Where there are fewer devices than ranks, all ranks are on one.
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "column_kernels.h"
#include "core/error.h"
#include "not_finite.h"
#include "resident/column_peers.h"
#include "resident/slice_ranks.h"
#include "sanitizer.h"
#include "step_check.h"

namespace headroom {
namespace {

constexpr resident::Limits kH200{.sm_count = 132, .shared_bytes = 232448};
constexpr double kSanitizerWaitSeconds = 100;

#define NEEDS_GPU() \
  if (const auto reason = resident_unavailable(0)) GTEST_SKIP() << *reason

/// What one device would train, with a network by the name of what several do.
std::string joined_name(const char* name) {
  Workload joined = parse_workload_name(name).joined();
  joined.name.clear();
  return default_name(joined);
}
std::unique_ptr<Trainer> trainer_of(const char* name, const NamedProblem& joined, Precision precision,
                                    ResidentOptions options) {
  Workload workload = joined.workload;
  workload.devices = parse_workload_name(name).devices;
  workload.batch_size /= workload.devices;
  return make_ranked_test_trainer(workload, precision, joined.dataset.train(), joined.initial, options);
}

constexpr ResidentOptions kColumns = {.wait_seconds = kSanitizerWaitSeconds},
                          kSlices = {.kernel = ResidentOptions::Kernel::kSlices,
                                     .wait_seconds = kSanitizerWaitSeconds};

void check(const char* name, Precision precision, const std::vector<std::int64_t>& steps,
           const ResidentOptions& options = kColumns) {
  NamedProblem joined(joined_name(name), fresh_seed());
  const auto trainer = trainer_of(name, joined, precision, options);
  check_against_oracle(joined, precision, *trainer, steps, 3);
}
const std::vector<std::int64_t> kFewSteps = {0, 1, 7, 9};

class ResidentRanks : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, ResidentRanks, testing::Values(Precision::kFp16, Precision::kBf16),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

TEST_P(ResidentRanks, SmallStepsOfTwoLayersMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[0], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, SmallStepsOfThreeLayersMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[1], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, SmallStepsOfFourLayersMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[2], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, SmallStepsOfFourClustersMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[3], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, SmallStepsWithGeluAndTargetsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[4], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, SmallStepsOfFourRanksWithAdamMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(kSmallRanks[5], GetParam(), kFewSteps);
}
TEST_P(ResidentRanks, StepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  for (const char* name : kRanks) {
    try {
      check(name, GetParam(), {0, 1, 7, 29, 71}, {.wait_seconds = 2});
    } catch (const UnsupportedError& error) {  // of one device, which has no room for two ranks
      EXPECT_NE(std::string(error.what()).find("must be resident at once"), std::string::npos)
          << error.what();
    }
  }
}

std::vector<float> bits_after(const char* name, const NamedProblem& joined, Precision precision,
                              std::int64_t cut, std::int64_t steps, const ResidentOptions& options) {
  const auto trainer = trainer_of(name, joined, precision, options);
  trainer->train(0, cut);
  trainer->train(cut, steps - cut);
  const State state = trainer->state();
  std::vector<float> bits(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const float loss : trainer->losses(0, steps)) bits.push_back(loss);
  return bits;
}
void expect_the_same_bits_however_cut(const char* name, Precision precision, const ResidentOptions& options) {
  const NamedProblem joined(joined_name(name), fresh_seed());
  const std::int64_t steps = is_shortened() ? 6 : 700;
  const auto whole = bits_after(name, joined, precision, steps - 1, steps, options);
  EXPECT_EQ(whole, bits_after(name, joined, precision, 1, steps, options)) << joined.described(precision);
  EXPECT_EQ(whole, bits_after(name, joined, precision, 2, steps, options)) << joined.described(precision);
}
TEST_P(ResidentRanks, FewStepsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  for (const char* name : {kSmallRanks[1], kSmallRanks[2]})
    expect_the_same_bits_however_cut(name, GetParam(), kColumns);
}
/// The second launch starts with parameters that the first has not left, at a step that it has trained.
void expect_the_same_from_a_state_set_again(const char* name, Precision precision,
                                            const ResidentOptions& options) {
  const NamedProblem joined(joined_name(name), fresh_seed());
  const auto trainer = trainer_of(name, joined, precision, options);
  const auto trained = [&] {
    trainer->set_parameters(joined.initial);
    trainer->train(0, 3);
    const Parameters parameters = trainer->parameters();
    return std::vector<float>(parameters.flat().begin(), parameters.flat().end());
  };
  const std::vector<float> first = trained();
  EXPECT_EQ(first, trained());
}
TEST_P(ResidentRanks, FewStepsFromAStateThatWasSetAgainAreTheSame) {
  NEEDS_GPU();
  expect_the_same_from_a_state_set_again(kSmallRanks[2], GetParam(), kColumns);
}
void expect_nans(const char* name, Precision precision, const ResidentOptions& options) {
  NotFiniteProblem joined(joined_name(name));
  expect_nans_in_the_losses(joined, precision, is_shortened() ? NaNPlaces::kFew : NaNPlaces::kEvery,
                            [&] { return trainer_of(name, joined, precision, options); });
}
TEST_P(ResidentRanks, ANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const char* name : {kSmallRanks[1], kSmallRanks[2]}) expect_nans(name, GetParam(), kColumns);
}

class SliceRanks : public testing::TestWithParam<Cell> {};
std::string cell_name(const testing::TestParamInfo<Cell>& cell) {
  std::string name = std::string(cell.param.name) + "_" + std::string(to_string(cell.param.precision));
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Every, SliceRanks, testing::ValuesIn(kSmallSliceRanks), cell_name);
TEST_P(SliceRanks, SmallStepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check(GetParam().name, GetParam().precision, kFewSteps, kSlices);
}
TEST(SliceRanksTeams, SmallStepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  for (const int team : {1, 2}) {
    ResidentOptions options = kSlices;
    options.sharing = {team, 1};
    check(kSmallSliceRanks[is_shortened() ? 0 : 1].name, Precision::kFp32, kFewSteps, options);
  }
}

class SliceRanksOfFullSize : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(Every, SliceRanksOfFullSize, testing::ValuesIn(kSliceRanks), cell_name);
TEST_P(SliceRanksOfFullSize, StepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  ResidentOptions options = kSlices;
  options.wait_seconds = 2;
  try {
    check(GetParam().name, GetParam().precision, {0, 1, 7, 29, 71}, options);
  } catch (const UnsupportedError& error) {  // of one device, which has no room for two ranks
    EXPECT_NE(std::string(error.what()).find("must be resident at once"), std::string::npos) << error.what();
  }
}

TEST(SliceRanksBits, FewStepsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  if (!is_shortened()) expect_the_same_bits_however_cut(kSmallSliceRanks[0].name, Precision::kFp32, kSlices);
  expect_the_same_bits_however_cut(kSmallSliceRanks[3].name, Precision::kBf16, kSlices);
}
TEST(SliceRanksBits, FewStepsFromAStateThatWasSetAgainAreTheSame) {
  NEEDS_GPU();
  expect_the_same_from_a_state_set_again(kSmallSliceRanks[3].name, Precision::kBf16, kSlices);
}
TEST(SliceRanksBits, ANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const Cell& cell : {kSmallSliceRanks[0], kSmallSliceRanks[3]})
    expect_nans(cell.name, cell.precision, kSlices);
}

std::string failure_of(const ResidentOptions& options) {
  const NamedProblem joined(joined_name(kSmallRanks[2]), fresh_seed());
  const auto trainer = trainer_of(kSmallRanks[2], joined, Precision::kBf16, options);
  try {
    trainer->train(0, 4);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no failure";
}
/// Of four layers: activations of three, gradients of three, and the outputs'.
class ResidentRanksWaits : public testing::TestWithParam<ResidentOptions::Kernel> {};
INSTANTIATE_TEST_SUITE_P(Every, ResidentRanksWaits,
                         testing::Values(ResidentOptions::Kernel::kColumns, ResidentOptions::Kernel::kSlices),
                         [](const auto& kernel) {
                           return kernel.param == ResidentOptions::Kernel::kColumns ? "columns" : "slices";
                         });
TEST_P(ResidentRanksWaits, SmallPacketsThatAreLostFailInsteadOfHanging) {
  NEEDS_GPU();
  const std::vector<int> kinds = is_shortened() ? std::vector{3} : std::vector{0, 1, 2, 3, 4, 5, 6};
  for (const int kind : kinds) {
    const std::string failure = failure_of({.kernel = GetParam(),
                                            .wait_seconds = 0.05,
                                            .lost_exchange = static_cast<int>(resident::kWaitPeers) + kind});
    EXPECT_NE(failure.find("rank 0: cuda-resident: warp "), std::string::npos) << kind << ": " << failure;
    EXPECT_NE(failure.find(" of rank 1"), std::string::npos) << kind << ": " << failure;
  }
}
TEST_P(ResidentRanksWaits, SmallRankThatNeverStartsIsNamed) {
  NEEDS_GPU();
  const std::string failure = failure_of({.kernel = GetParam(), .wait_seconds = 0.05, .absent_rank = 1});
  EXPECT_EQ(failure.find("rank 0: cuda-resident: warp "), 0u) << failure;
  EXPECT_NE(failure.find(" of rank 1"), std::string::npos) << failure;
  EXPECT_EQ(failure.find("rank 1: "), std::string::npos) << failure;
  EXPECT_EQ(failure.find('\n'), std::string::npos) << failure;
}

TEST(ResidentRankPlan, SaysWhatDoesNotFit) {
  const auto refusal = [](const char* name, Precision precision) {
    try {
      (void)resident::make_rank_plan(parse_workload_name(name), precision, kH200);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("mlp-784x256x256x256x10-b32-g2", Precision::kFp16), "");
  EXPECT_EQ(refusal("mlp-784x128x128x128x10-b32-g8", Precision::kBf16), "");
  EXPECT_NE(refusal("mlp-784x128x10-b32-g3", Precision::kBf16).find("3 devices"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x128x10-b33-g2", Precision::kBf16).find("batch size 33"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x128x10-b32-g2", Precision::kFp32).find("fp32"), std::string::npos);
}
TEST(SliceRankPlan, SaysWhatDoesNotFit) {
  const auto refusal = [](const char* name, Precision precision, int team = 1) {
    try {
      (void)resident::make_slice_rank_plan(parse_workload_name(name), precision, kH200, team);
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("mlp-784x512x512x512x10-b32-g2", Precision::kFp32), "");
  EXPECT_EQ(refusal("mlp-784x1024x1024x1024x10-b32-g2", Precision::kFp16), "");
  EXPECT_EQ(refusal("mlp-784x512x512x512x10-b32-g8", Precision::kBf16), "");
  EXPECT_NE(refusal("mlp-784x128x10-b32-g3", Precision::kBf16).find("3 devices"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x128x10-b33-g2", Precision::kBf16).find("batch size 33"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x128x10-b32-g2", Precision::kTf32).find("tf32"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x128x10-b32-adam-g2", Precision::kBf16).find("adam"), std::string::npos);
  EXPECT_NE(refusal("mlp-784x1024x10-b32-g2", Precision::kFp32).find("up to 512"), std::string::npos);
  EXPECT_EQ(refusal("mlp-784x256x256x256x10-b32-g2", Precision::kFp32, 4), "");
  EXPECT_NE(refusal("mlp-784x512x512x512x10-b32-g2", Precision::kFp32, 4).find("thread blocks"),
            std::string::npos);
}

}  // namespace
}  // namespace headroom
