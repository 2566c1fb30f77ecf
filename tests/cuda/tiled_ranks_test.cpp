// cuda-tiled on several devices, which tell each other what weight gradients are made of (tiled/ranks.cuh).
//
// The oracle trains with the joined batch. Where there are fewer devices than ranks, all ranks are on one, whose multiprocessors they
// share out.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "kept_tiled_trainer.h"
#include "sanitizer.h"
#include "step_check.h"
#include "stuck_process.h"
#include "tiled_cases.h"

namespace headroom {
namespace {

#define NEEDS_GPU() \
  if (const auto reason = tiled_unavailable(0)) GTEST_SKIP() << *reason

constexpr std::int64_t kSanitizedSteps = 3;

/// What one device would train, by the name of what several do.
std::string joined_name(const std::string& name) {
  Workload joined = parse_workload_name(name).joined();
  joined.name.clear();
  return default_name(joined);
}

struct Joined : NamedProblem {
  explicit Joined(const std::string& of_ranks)
      : NamedProblem(joined_name(of_ranks), fresh_seed()), devices(parse_workload_name(of_ranks).devices) {}
  std::unique_ptr<Trainer> trainer(const TiledForm& form, TiledOptions options = {}) const {
    Workload of_ranks = workload;
    of_ranks.devices = devices;
    of_ranks.batch_size /= devices;
    options.portable = form.portable;
    return make_kept_ranked_tiled_trainer(of_ranks, form.precision, dataset.train(), initial, options);
  }
  int devices;
};

void check_all(const TiledCases& cases, const TiledForm& form, const std::vector<std::int64_t>& steps) {
  for (const TiledCase& of : cases) {
    SCOPED_TRACE(of.name);
    const Joined joined(of.name);
    const auto trainer = joined.trainer(form, of.options);
    check_against_oracle(joined, form.precision, *trainer, steps, kSanitizedSteps);
  }
}

class TiledRanks : public testing::TestWithParam<TiledForm> {};
INSTANTIATE_TEST_SUITE_P(Every, TiledRanks, testing::ValuesIn(kTiledRankForms),
                         [](const auto& form) { return std::string(to_string(form.param.precision)); });

TEST_P(TiledRanks, SmallStepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check_all(small_ranks(GetParam()), GetParam(), {0, 1, 2, 9});
}
TEST_P(TiledRanks, StepsMatchTheOracleOfTheJoinedBatch) {
  NEEDS_GPU();
  check_all(kTiledRanks, GetParam(), {0, 1, 7, 29, 71});
}

TEST_P(TiledRanks, SmallLossesAreThoseOfOneDeviceWithTheJoinedBatch) {
  NEEDS_GPU();
  for (const char* name : {"mlp-20x70x40x10-b37-g2", "mlp-9x40x65-b20-g2"}) {
    const Joined joined(name);
    const auto ranks = joined.trainer(GetParam());
    const auto one =
        make_kept_tiled_trainer(joined.workload, GetParam().precision, joined.dataset.train(), joined.initial,
                                0, {.portable = GetParam().portable, .tiling = tilings_of(GetParam())[0]});
    ranks->train(0, 3);
    one->train(0, 3);
    const std::vector<float> found = ranks->losses(0, 3), expected = one->losses(0, 3);
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-3f * expected[i]) << joined.described(GetParam().precision);
  }
}

/// Parameters and slots, which the trainer compares between ranks, and losses.
std::vector<float> bits_after(const Joined& joined, const TiledForm& form, std::int64_t cut,
                              std::int64_t steps) {
  const auto trainer = joined.trainer(form);
  trainer->train(0, cut);
  trainer->train(cut, steps - cut);
  const State state = trainer->state();
  std::vector<float> bits(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const Parameters& slot : state.slots) bits.insert(bits.end(), slot.flat().begin(), slot.flat().end());
  for (const float loss : trainer->losses(0, steps)) bits.push_back(loss);
  return bits;
}
TEST_P(TiledRanks, SmallSplitsOfTheStepsTrainTheSame) {
  NEEDS_GPU();
  const Joined joined(kTiledRanksSplit);
  const std::int64_t steps = is_shortened() ? 5 : 700;
  const auto whole = bits_after(joined, GetParam(), steps - 1, steps);
  EXPECT_EQ(whole, bits_after(joined, GetParam(), 1, steps)) << joined.described(GetParam().precision);
  EXPECT_EQ(whole, bits_after(joined, GetParam(), 2, steps)) << joined.described(GetParam().precision);
}
/// The second launch starts with parameters that the first has not left, with the copies that a step of an even number takes, at a step
/// that was trained.
TEST_P(TiledRanks, SmallStatesThatAreSetAgainTrainTheSame) {
  NEEDS_GPU();
  const Joined joined(kTiledRanksSplit);
  const auto trainer = joined.trainer(GetParam());
  const auto trained = [&] {
    trainer->set_state(State::initial(joined.initial, joined.workload.optimizer.slots()));
    trainer->train(0, 3);
    const Parameters parameters = trainer->parameters();
    return std::vector<float>(parameters.flat().begin(), parameters.flat().end());
  };
  const std::vector<float> first = trained();
  EXPECT_EQ(first, trained());
}

void expect_failure(const TiledForm& form, const TiledOptions& options,
                    const std::function<bool(const std::string&)>& is_told) {
  expect_stuck([&] { return Joined("mlp-20x24x10-b8-g2").trainer(form, options); }, 4, is_told);
}
bool has(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

using TiledRanksDeathTest = TiledRanks;
INSTANTIATE_TEST_SUITE_P(Each, TiledRanksDeathTest,
                         testing::Values(TiledForm{Precision::kFp32, true},
                                         TiledForm{Precision::kBf16, false}),
                         [](const auto& form) { return std::string(to_string(form.param.precision)); });
TEST_P(TiledRanksDeathTest, SmallRankThatNeverStartsIsWaitedForByTheOther) {
  NEEDS_GPU();
  expect_failure(GetParam(), {.wait_seconds = 0.05, .absent_rank = 1}, [](const std::string& text) {
    return has(text, "rank 0: cuda-tiled: in step 0 task ") && has(text, " waited too long for what its ") &&
           has(text, "by all ranks") && !has(text, "rank 1: ");
  });
}
/// Rank 1 waits in step 0, and rank 0 for rank 1 a step later. Where they share a GPU the first one to give up ends both.
TEST_P(TiledRanksDeathTest, SmallSignalsThatAreLostFailInsteadOfHanging) {
  NEEDS_GPU();
  expect_failure(GetParam(), {.wait_seconds = 0.05, .silent_rank = 0}, [](const std::string& text) {
    return (has(text, "rank 1: cuda-tiled: in step 0 task ") ||
            has(text, "rank 0: cuda-tiled: in step 1 task ")) &&
           has(text, " waited too long for what its ") && has(text, "by all ranks");
  });
}

TEST(TiledRanksUnavailable, SaysHowManyDevicesAreMissing) {
  NEEDS_GPU();
  const Joined joined("mlp-4x3-b2-g2");
  Workload of_ranks = joined.workload;
  of_ranks.devices = 2;
  of_ranks.batch_size /= 2;
  EXPECT_THROW(make_kept_tiled_trainer(of_ranks, Precision::kBf16, joined.dataset.train(), joined.initial, 0),
               std::invalid_argument);
}

}  // namespace
}  // namespace headroom
