// cuda-streamed with an optimizer's slots against the oracle: momentum, Adam and AdamW, in every precision.
//
// Tests named Small also run where the CPU plays the GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "kept_streamed_trainer.h"
#include "not_finite.h"
#include "number_of_variable.h"
#include "step_check.h"
#include "streamed/plan.h"
#include "streamed/trainer.h"

namespace headroom {
namespace {

constexpr streamed::Limits kH200{.sm_count = 132, .shared_bytes = 232448};
constexpr double kLongWaitSeconds = 20;

#define NEEDS_GPU() \
  if (const auto reason = streamed_unavailable(0)) GTEST_SKIP() << *reason

std::unique_ptr<Trainer> make_trainer(const NamedProblem& problem, Precision precision, int members,
                                      int told = -1, int held = -1) {
  const StreamedOptions options{.wait_seconds = kLongWaitSeconds,
                                .most_members = members,
                                .told = told,
                                .held = held,
                                .quick = number_of_variable("HEADROOM_STREAMED_QUICK") > 0};
  return make_kept_streamed_trainer(problem.workload, precision, problem.dataset.train(), problem.initial, 0,
                                    options);
}

class StreamedSlots : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Every, StreamedSlots, testing::ValuesIn(kAllPrecisions),
                         [](const auto& precision) { return std::string(to_string(precision.param)); });

/// Names, and thread blocks at most: of 2 to 5 layers, panels of 1, 2 and 4 tiles, and more classes than are multiplied column by
/// column. Of 8 blocks most own nothing.
struct Case {
  std::string name;
  int members;
};
const std::vector<Case> kSmall = {{"mlp-20x16x3-b1-adam", 2},
                                  {"mlp-33x40x17x5-b17-adamw", 2},
                                  {"mlp-33x40x17x5-b17-momentum0.9", 3},
                                  {"mlp-20x40x30-b20-adam", 3},
                                  {"mlp-40x64x48x7-b32-adam", 8},
                                  {"mlp-40x60x50x7-b32-adam", 2},
                                  {"mlp-33x47x60x34x7x5-b17-adam", 2},
                                  {"mlp-40x120x100x10-b20-momentum0.9", 2},
                                  {"mlp-20x40x70x100-b20-adamw", 3},
                                  {"mlp-17x33x80-b40-adam", 3}};

TEST_P(StreamedSlots, SmallStepsMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : kSmall) {
    const NamedProblem problem(name, fresh_seed());
    check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam(), members), {0, 1, 7, 29}, 3);
  }
}

TEST_P(StreamedSlots, SmallStepNumbersChooseTheBatchAndAdamsBias) {
  NEEDS_GPU();
  NamedProblem problem("mlp-33x40x17x5-b17-adam", fresh_seed());
  problem.dataset = make_dataset(problem.workload, 1 << 14);
  check_single_steps(problem.workload, GetParam(), *make_trainer(problem, GetParam(), 2),
                     problem.dataset.train(), State::initial(problem.initial, 2), kFarApartSteps);
}
/// Beside the smallest of these even the root of a slot that is subnormal in fp32 counts.
TEST_P(StreamedSlots, SmallEveryEpsilonMatchesTheOracle) {
  NEEDS_GPU();
  for (const double epsilon : {1e-3, 1e-8, 1e-16, 1e-30}) {
    NamedProblem problem("mlp-33x40x17x5-b17-adam", fresh_seed());
    problem.workload.optimizer.epsilon = epsilon;
    SCOPED_TRACE("epsilon " + std::to_string(epsilon));
    check_single_steps(problem.workload, GetParam(), *make_trainer(problem, GetParam(), 2),
                       problem.dataset.train(), State::initial(problem.initial, 2), kFarApartSteps);
  }
}

/// Joined logits, and more outputs than are multiplied column by column.
TEST_P(StreamedSlots, SmallLossesOverTargetsMatchTheOracle) {
  NEEDS_GPU();
  for (const char* loss : {"mse", "bce"}) {
#ifdef HEADROOM_EMULATED
    const bool has_mse = GetParam() == Precision::kBf16 || GetParam() == Precision::kFp32;
    if (has_mse != (std::string(loss) == "mse")) continue;
#endif
    for (const auto& [name, members] : {Case{"mlp-33x40x17x5-b17-", 2}, {"mlp-20x40x70x100-b20-", 3}}) {
      const NamedProblem problem(std::string(name) + loss + "-adam", fresh_seed());
      check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam(), members), {0, 1, 7, 29},
                           3);
    }
  }
}

std::vector<float> flat_of(const State& state) {
  std::vector<float> values(state.parameters.flat().begin(), state.parameters.flat().end());
  for (const Parameters& slot : state.slots)
    values.insert(values.end(), slot.flat().begin(), slot.flat().end());
  return values;
}
std::vector<float> bits_after(Trainer& trainer, std::int64_t steps, std::int64_t at_once) {
  for (std::int64_t step = 0; step < steps; step += at_once)
    trainer.train(step, std::min(at_once, steps - step));
  std::vector<float> bits = flat_of(trainer.state());
  for (const float loss : trainer.losses(0, steps)) {
    EXPECT_TRUE(std::isfinite(loss));
    bits.push_back(loss);
  }
  return bits;
}
TEST_P(StreamedSlots, SmallFewStepsGiveTheSameBitsHoweverTheyAreCutAndHeld) {
  NEEDS_GPU();
  for (const auto& [name, members] : {kSmall[1], kSmall[2], kSmall[5], kSmall[9]}) {
    const NamedProblem problem(name, fresh_seed());
    const auto first = bits_after(*make_trainer(problem, GetParam(), members), 4, 4);
    EXPECT_TRUE(first == bits_after(*make_trainer(problem, GetParam(), members), 4, 3))
        << problem.described(GetParam());
    if (problem.workload.batch_size <= streamed::kGroupRows) {
      EXPECT_TRUE(first == bits_after(*make_trainer(problem, GetParam(), members, 1, 100), 4, 1))
          << problem.described(GetParam());
    }
  }
}

TEST_P(StreamedSlots, SmallStatesComeBackAsTheyWereSet) {
  NEEDS_GPU();
  for (const auto& [name, members] : {kSmall[1], kSmall[2]}) {
    const NamedProblem problem(name, fresh_seed());
    const auto trainer = make_trainer(problem, GetParam(), members);
    const std::vector<int>& widths = problem.workload.model.widths;
    const std::vector<Parameters> zero = trainer->slots();
    EXPECT_EQ(zero.size(), static_cast<std::size_t>(problem.workload.optimizer.slots()));
    for (const Parameters& slot : zero)
      for (const float value : slot.flat()) ASSERT_EQ(value, 0);
    State state{initial_parameters(widths, 2), {}};
    for (std::size_t slot = 0; slot < zero.size(); ++slot)
      state.slots.push_back(initial_parameters(widths, 3 + slot));
    trainer->set_state(state);
    EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
    // Parameters that are set leave the slots as they are.
    trainer->set_parameters(problem.initial);
    state.parameters = problem.initial;
    EXPECT_EQ(flat_of(trainer->state()), flat_of(state));
    EXPECT_THROW(trainer->set_slots({}), InputError);
    EXPECT_THROW(trainer->set_parameters(initial_parameters({3, 4}, 1)), InputError);
  }
}

/// What a launch begins with is no step: nothing changes before the first gradients are there.
TEST_P(StreamedSlots, SmallALaunchOfNoStepsChangesNothing) {
  NEEDS_GPU();
  const NamedProblem problem("mlp-33x40x17x5-b17-adamw", fresh_seed());
  const auto trainer = make_trainer(problem, GetParam(), 2);
  trainer->train(0, 3);
  const auto before = flat_of(trainer->state());
  trainer->train(3, 0);
  EXPECT_EQ(flat_of(trainer->state()), before);
}

TEST_P(StreamedSlots, SmallANaNComesOutAsNaNLosses) {
  NEEDS_GPU();
  for (const auto& [name, members] : {Case{"mlp-20x16x3-b1-adam", 2},
                                      {"mlp-40x60x50x7-b3-momentum0.9", 2},
                                      {"mlp-20x40x70x20-b2-adamw", 3}}) {
    NotFiniteProblem problem(name);
    expect_nans_in_the_losses(problem, GetParam(), NaNPlaces::kFew,
                              [&] { return make_trainer(problem, GetParam(), members); });
  }
}

#ifndef HEADROOM_EMULATED
/// Not 71 steps as without slots: Adam has learnt these few samples by then, and of a loss of 4e-6 fp32 has no three digits.
TEST_P(StreamedSlots, OddShapesMatchTheOracle) {
  NEEDS_GPU();
  for (const auto& [name, members] : {Case{"mlp-784x200x300x10-b32-adam", 0},
                                      {"mlp-100x777x333x10-b31-adamw", 16},
                                      {"mlp-1x500x2-b5-momentum0.9", 4},
                                      {"mlp-300x64x1000-b32-adam", 8},
                                      {"mlp-784x512x512x512x512x10-b32-adam", 0},
                                      {"mlp-60x400x300x70-b65-adam", 20}}) {
    const NamedProblem problem(name, fresh_seed());
    check_against_oracle(problem, GetParam(), *make_trainer(problem, GetParam(), members), {0, 1, 7, 20}, 3);
  }
}
TEST_P(StreamedSlots, TwoRunsGiveTheSameBitsHoweverTheyAreCut) {
  NEEDS_GPU();
  for (const auto& [name, members] :
       {Case{"mlp-784x1024x1024x10-b32-adam", 0}, {"mlp-784x1024x1024x10-b32-adam", 32}}) {
    const NamedProblem problem(name, fresh_seed());
    const auto first = bits_after(*make_trainer(problem, GetParam(), members), 200, 200);
    EXPECT_TRUE(first == bits_after(*make_trainer(problem, GetParam(), members), 200, 7)) << name;
  }
}
#endif

TEST(StreamedSlotsPlan, ToldTheL2ByTheBytesOfTheMasters) {
  constexpr int kMomentum = static_cast<int>(streamed::SlotRule::kMomentum),
                kAdam = static_cast<int>(streamed::SlotRule::kAdam);
  const auto shape = [&](const char* name, Precision precision) {
    const auto found =
        streamed::plan_with_kernel(parse_workload_name(name), precision, kH200, streamed::kUsualL2Bytes);
    return std::vector<int>{static_cast<int>(found.kernel.rule.value()), found.kernel.groups,
                            found.kernel.panels, found.kernel.told, found.held};
  };
  EXPECT_EQ(shape("mlp-784x2048x2048x2048x10-b32-adam", Precision::kBf16),
            (std::vector<int>{kAdam, 1, 1, 1, 256}));
  EXPECT_EQ(shape("mlp-784x4096x4096x4096x10-b32-momentum0.9", Precision::kBf16),
            (std::vector<int>{kMomentum, 1, 2, 1, 43}));
  EXPECT_EQ(shape("mlp-784x4096x4096x4096x10-b32-adam", Precision::kFp32)[3], 2);
  EXPECT_EQ(shape("mlp-784x2048x2048x2048x10-b32-adam", Precision::kFp32)[3], 1);
  EXPECT_EQ(shape("mlp-784x2048x2048x2048x10-b100-adam", Precision::kFp16),
            (std::vector<int>{kAdam, 4, 0, 0, 0}));
}
TEST(StreamedSlotsPlan, AdamWithADecayOrATinyEpsilonHasARuleOfItsOwn) {
  const auto rule = [](Optimizer optimizer) { return streamed::slot_rule(optimizer); };
  using Kind = Optimizer::Kind;
  EXPECT_EQ(rule({.momentum = 0.5}), streamed::SlotRule::kMomentum);
  EXPECT_EQ(rule({.kind = Kind::kAdam}), streamed::SlotRule::kAdam);
  EXPECT_EQ(rule({.kind = Kind::kAdam, .epsilon = 1e-13}), streamed::SlotRule::kAdamW);
  EXPECT_EQ(rule({.kind = Kind::kAdamW, .weight_decay = 0.1}), streamed::SlotRule::kAdamW);
  EXPECT_EQ(rule({.kind = Kind::kAdamW, .weight_decay = 0}), streamed::SlotRule::kAdam);
}
TEST(StreamedSlotsPlan, CountsTheBytesOfAStep) {
  const auto bytes = [](const char* name, Precision precision) {
    return streamed::weight_bytes_per_step(parse_workload_name(name), precision);
  };
  const double weights = 2e6 + 6e6 + 3e4;
  EXPECT_EQ(bytes("mlp-1000x2000x3000x10-b32-adam", Precision::kBf16), 26 * weights - 2 * 2e6);
  EXPECT_EQ(bytes("mlp-1000x2000x3000x10-b32-momentum0.9", Precision::kFp32), 20 * weights - 4 * 2e6);
}

#ifndef HEADROOM_EMULATED
/// More of them only where they are to be kept; where the L2 is told what a variable says, the two that are timed so.
TEST_P(StreamedSlots, RequestsCompileWithoutAGpu) {
  const std::string folder = folder_of_kept_kernels();
  std::vector<Case> all;
  if (GetParam() == Precision::kBf16 || !folder.empty())
    all.push_back({"mlp-784x4096x4096x4096x10-b32-adam", 0});
  if (!folder.empty()) {
    all.push_back({"mlp-784x2048x2048x2048x10-b32-adam", 0});
  }
  const int told = number_of_variable("HEADROOM_STREAMED_TOLD");
  if (!folder.empty() && told < 0) {
    for (const Case& of : kSmall) all.push_back(of);
    for (const char* loss : {"mse-adam", "bce-adam"})
      for (const auto& [name, members] : {Case{"mlp-33x40x17x5-b17-", 2}, {"mlp-20x40x70x100-b20-", 3}})
        all.push_back({name + std::string(loss), members});
  }
  // Each kernel once, side by side.
  std::map<std::string, Case> kernels;
  for (const Case& of : all) {
    const Workload workload = parse_workload_name(of.name);
    streamed::Limits limits = kH200;
    if (of.members > 0) limits.sm_count = of.members;
    const auto found = streamed::plan_with_kernel(workload, GetParam(), limits, streamed::kUsualL2Bytes);
    kernels.emplace(streamed::kernel_name(found.kernel), of);
  }
  std::vector<std::future<int>> registers;
  for (const auto& [kernel, of] : kernels)
    registers.push_back(std::async(std::launch::async, [&] {
      return compile_streamed(parse_workload_name(of.name), GetParam(), kH200, folder,
                              streamed::kUsualL2Bytes,
                              {.most_members = of.members,
                               .told = told,
                               .quick = number_of_variable("HEADROOM_STREAMED_QUICK") > 0})
          .registers;
    }));
  for (std::future<int>& of : registers) try {
      EXPECT_GT(of.get(), 0);
    } catch (const UnsupportedError& error) {
      GTEST_SKIP() << error.what();
    }
}
#endif

}  // namespace
}  // namespace headroom
