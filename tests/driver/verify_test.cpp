// Which steps of the oracle's trajectory are checked, and who follows it.
#include "driver/run/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/parallel.h"

namespace headroom {
namespace {

using ::testing::ElementsAreArray;

TEST(CheckPlan, GoesToStep299WithAllCopiesWhereThatIsAMatterOfSeconds) {
  const auto is_whole = [](const char* name, bool on_gpu) {
    const CheckPlan plan = check_plan(parse_workload_name(name), on_gpu);
    EXPECT_THAT(plan.steps, ElementsAreArray(kCheckSteps)) << name;
    EXPECT_EQ(plan.copies, kCopies) << name;
  };
  is_whole("mlp-784x128x128x128x10-b32", false);
  is_whole("mlp-784x8192x8192x8192x10-b32", true);
  is_whole("mlp-64x64x64x64x64x16-b131072", true);
}

TEST(CheckPlan, HasFewerCopiesAndThenEarlierStepsWhereItWouldBeMinutes) {
  const auto plan_of = [](const char* name, bool on_gpu) {
    return check_plan(parse_workload_name(name), on_gpu);
  };
  const CheckPlan fewer = plan_of("mlp-784x1024x1024x1024x10-b160", false);
  EXPECT_THAT(fewer.steps, ElementsAreArray(kCheckSteps));
  EXPECT_LT(fewer.copies, kCopies);
  for (const char* name : {"mlp-784x4096x4096x4096x10-b16384", "mlp-64x64x64x64x64x16-b1048576"}) {
    EXPECT_TRUE(wants_gpu_oracle(parse_workload_name(name))) << name;
    EXPECT_THAT(plan_of(name, true).steps, ElementsAreArray(kEarlyCheckSteps)) << name;
  }
  EXPECT_LT(plan_of("mlp-784x4096x4096x4096x10-b16384", true).copies, kCopies);
  EXPECT_THAT(plan_of("mlp-64x64x64x64x64x16-b131072", false).steps, ElementsAreArray(kEarlyCheckSteps));
}

TEST(OracleOperations, AreThoseOfTheProductsForPlainTrainingAndMoreForOther) {
  const auto operations = [](const char* name) { return oracle_operations(parse_workload_name(name)); };
  const double plain = parse_workload_name("mlp-17x64x64x6-b64").flops_per_step();
  EXPECT_EQ(operations("mlp-17x64x64x6-b64"), plain);
  EXPECT_EQ(operations("mlp-17x64x64x6-b64-mse-momentum0.9"), plain);
  EXPECT_GT(operations("mlp-17x64x64x6-b64-tanh"), 1.3 * plain);
  EXPECT_GT(operations("mlp-17x64x64x6-b64-adamw"), plain);
  EXPECT_GT(operations("mlp-784x1024x10-b1-adam"), 5 * operations("mlp-784x1024x10-b1"));
}

// The ten free steps end where the early ones do, so that they cost nothing more.
TEST(CheckPlan, ReachesTheFreeSteps) {
  EXPECT_GE(std::end(kEarlyCheckSteps)[-1], kFreeSteps - 1);
  EXPECT_GE(std::end(kCheckSteps)[-1], kFreeSteps - 1);
}

TEST(ChecksSideBySide, AreFewerWhereCoresOrMemoryAreFew) {
  const Workload small = parse_workload_name("mlp-784x128x128x128x10-b32");
  const Workload large = parse_workload_name("mlp-784x16384x16384x16384x10-b32");
  const Workload too_large = parse_workload_name("mlp-784x65536x65536x10-b32");
  for (const auto& [threads, expected] :
       {std::pair(1, 1), std::pair(2, 1), std::pair(6, 3), std::pair(64, 4)}) {
    set_parallel_threads(threads);
    EXPECT_EQ(checks_side_by_side(small), expected) << threads << " threads";
    EXPECT_EQ(checks_side_by_side(large), std::min(expected, 3)) << threads << " threads";
    EXPECT_EQ(checks_side_by_side(too_large), 1) << threads << " threads";
  }
  set_parallel_threads(0);
}

}  // namespace
}  // namespace headroom
