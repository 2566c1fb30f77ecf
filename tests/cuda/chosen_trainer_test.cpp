// What the choice is told by a real device: the trainer that stays trains as one that nobody has timed.
#include <gmock/gmock.h>

#include <algorithm>

#include "choice/choice.h"
#include "device/check.h"
#include "device/memory.h"
#include "kept_kernels.h"
#include "layered/trainer.h"
#include "resident/compiled.h"
#include "trainer_contract.h"

namespace headroom {
namespace {

choice::Candidate layered(const Problem& problem, Precision precision) {
  return {.backend = "cuda-layered", .set_up = [&problem, precision] {
            return make_layered_trainer(problem.workload, precision, problem.data.train(), problem.initial,
                                        0);
          }};
}
choice::Candidate resident(const Problem& problem, Precision precision) {
  return {.backend = "cuda-resident", .set_up = [&problem, precision] {
            return make_resident_trainer(problem.workload, precision, problem.data.train(), problem.initial,
                                         0, folder_of_kept_kernels());
          }};
}
std::unique_ptr<Trainer> chosen(const Problem& problem, Precision precision,
                                const std::vector<choice::Candidate>& candidates) {
  return make_chosen_trainer({.workload = problem.workload,
                              .precision = precision,
                              .initial = problem.initial,
                              .samples = problem.data.train().samples,
                              .gpu = "any",
                              .cache_folder = ""},
                             candidates, {}, on_this_device());
}

TEST(ChosenTrainer, TrainsAsOneThatWasNotTimed) {
  HEADROOM_NEEDS_DEVICE();
  if (resident_unavailable(0)) GTEST_SKIP() << *resident_unavailable(0);
  const Problem problem({20, 24, 24, 10}, 8);
  const auto trainer = chosen(problem, Precision::kFp16,
                              {layered(problem, Precision::kFp16), resident(problem, Precision::kFp16)});
  ASSERT_EQ(trainer->choice()->taken, "cuda-resident") << trainer->note();
  EXPECT_EQ(trainer->peak_device_bytes(), DeviceMemory::held_bytes());
  const auto direct = resident(problem, Precision::kFp16).set_up();
  trainer->train(0, 20);
  direct->train(0, 20);
  EXPECT_EQ(trainer->losses(0, 20), direct->losses(0, 20));
  EXPECT_TRUE(std::ranges::equal(trainer->parameters().flat(), direct->parameters().flat()));
}

TEST(ChosenTrainer, BeginsWithSlotsOfZeros) {
  HEADROOM_NEEDS_DEVICE();
  const Problem problem(parse_workload_name("mlp-20x24x10-b8-adam"));
  choice::Candidate second = layered(problem, Precision::kFp32);
  second.backend = "the same again";
  const auto trainer = chosen(problem, Precision::kFp32, {layered(problem, Precision::kFp32), second});
  ASSERT_EQ(trainer->slots().size(), 2u);
  for (const Parameters& slot : trainer->slots())
    for (const float value : slot.flat()) ASSERT_EQ(value, 0);
}

TEST(ChosenTrainer, ALaunchThatIsRefusedLeavesTheDeviceToTheOthers) {
  HEADROOM_NEEDS_DEVICE();
  const Problem problem({20, 24, 10}, 8);
  const choice::Candidate refused{
      .backend = "refused", .set_up = []() -> std::unique_ptr<Trainer> {
        CUDA_CHECK(cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20));
        return nullptr;
      }};
  const auto trainer = chosen(problem, Precision::kFp32, {refused, layered(problem, Precision::kFp32)});
  EXPECT_EQ(trainer->choice()->taken, "cuda-layered");
  EXPECT_THAT(trainer->choice()->candidates[0].left_out, testing::StartsWith("failed: "));
  trainer->train(0, 3);
}

TEST(ChosenTrainer, AWorkloadLargerThanTheDeviceIsSaidToBe) {
  HEADROOM_NEEDS_DEVICE();
  const Workload small = parse_workload_name("mlp-20x24x10-b8"),
                 large = parse_workload_name("mlp-784x65536x65536x65536x65536x65536x65536x65536x10-b32-adam");
  EXPECT_EQ(lacks_memory(small, Precision::kBf16, 1024), std::nullopt);
  EXPECT_THAT(lacks_memory(large, Precision::kBf16, 1024).value_or(""), testing::HasSubstr("needs at least"));
}

}  // namespace
}  // namespace headroom
