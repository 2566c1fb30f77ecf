// What marks a record as measured on a GPU that was held down.
#include "analysis/gpu_state.h"

#include <gtest/gtest.h>

namespace headroom {
namespace {

Block block(std::optional<std::vector<std::string>> reasons) {
  Block block;
  block.steps = 50;
  block.gpu.emplace();
  block.gpu->throttle_reasons = std::move(reasons);
  return block;
}

TEST(Slowdown, IsHardwareOrHeatAndNotAPowerCap) {
  using Reasons = std::vector<std::string>;
  EXPECT_EQ(slowdown_reasons({block(Reasons{"software_power_cap", "idle"})}), Reasons{});
  EXPECT_EQ(slowdown_reasons({block(Reasons{"software_power_cap"}), block(Reasons{"hardware_slowdown"}),
                              block(Reasons{"hardware_slowdown", "software_thermal_slowdown"})}),
            (Reasons{"hardware_slowdown", "software_thermal_slowdown"}));
}

TEST(Slowdown, IsUnknownWhereNoBlockSays) {
  EXPECT_FALSE(slowdown_reasons({}));
  EXPECT_FALSE(slowdown_reasons({Block{}, block(std::nullopt)}));
  EXPECT_EQ(slowdown_message({Block{}}), "");
}

TEST(Slowdown, IsSaidWithHowManyBlocks) {
  EXPECT_EQ(slowdown_message({block({{"idle"}}), block({{"hardware_power_brake"}}), Block{}}),
            "slowed down in 1 of 3 blocks: hardware_power_brake");
}

}  // namespace
}  // namespace headroom
