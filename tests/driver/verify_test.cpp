// Which steps of the oracle's trajectory are checked, and who follows it.
#include "driver/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headroom {
namespace {

using ::testing::ElementsAreArray;

TEST(CheckSteps, GoToStep299WhereThatIsAMatterOfSeconds) {
  EXPECT_THAT(check_steps(parse_workload_name("mlp-784x128x128x128x10-b32"), false),
              ElementsAreArray(kCheckSteps));
  for (const char* name : {"mlp-784x8192x8192x8192x10-b32", "mlp-64x64x64x64x64x16-b131072"})
    EXPECT_THAT(check_steps(parse_workload_name(name), true), ElementsAreArray(kCheckSteps)) << name;
}

TEST(CheckSteps, AreEarlyOnesWhereItWouldBeMinutes) {
  for (const char* name : {"mlp-784x4096x4096x4096x10-b16384", "mlp-64x64x64x64x64x16-b1048576"}) {
    const Workload workload = parse_workload_name(name);
    EXPECT_TRUE(wants_gpu_oracle(workload)) << name;
    EXPECT_THAT(check_steps(workload, true), ElementsAreArray(kEarlyCheckSteps)) << name;
    EXPECT_DOUBLE_EQ(reference_operations(workload, true), 18 * workload.flops_per_step());
  }
  EXPECT_THAT(check_steps(parse_workload_name("mlp-64x64x64x64x64x16-b131072"), false),
              ElementsAreArray(kEarlyCheckSteps));
}

// The ten free steps end where the early ones do, so that they cost nothing more.
TEST(CheckSteps, ReachTheFreeSteps) {
  EXPECT_GE(std::end(kEarlyCheckSteps)[-1], kFreeSteps - 1);
  EXPECT_GE(std::end(kCheckSteps)[-1], kFreeSteps - 1);
}

}  // namespace
}  // namespace headroom
