// A slowdown planted in cuda-layered's step: real time on the device, and the same training.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "gpu_test.h"
#include "layered/trainer.h"
#include "planted/delay.h"

namespace headroom {
namespace {

constexpr const char* kVariable = "HEADROOM_PLANTED_DELAY_PERCENT";

class PlantedDelayTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv(kVariable); }
};

TEST_F(PlantedDelayTest, IsNotThereUnlessItIsAskedFor) {
  unsetenv(kVariable);
  EXPECT_FALSE(PlantedDelay::asked_share());
  setenv(kVariable, "", 1);
  EXPECT_FALSE(PlantedDelay::asked_share());
  setenv(kVariable, "2.5", 1);
  EXPECT_DOUBLE_EQ(PlantedDelay::asked_share().value(), 0.025);
}

TEST_F(PlantedDelayTest, RefusesWhatIsNoPercentage) {
  for (const char* text : {"3%", "many", "0", "-1", "nan", "1001"}) {
    setenv(kVariable, text, 1);
    EXPECT_THROW(PlantedDelay::asked_share(), InputError) << text;
  }
}

/// One network, with and without a planted delay.
struct Network {
  Workload workload = test_workload({784, 128, 128, 10}, 32, fresh_seed());
  Dataset data = make_dataset(workload, std::int64_t{1} << 20);
  Parameters initial = initial_parameters(workload.model.widths, workload.seed);

  std::unique_ptr<Trainer> trainer(const char* percent) const {
    percent == nullptr ? unsetenv(kVariable) : setenv(kVariable, percent, 1);
    return make_layered_trainer(workload, Precision::kFp32, data.train(), initial, 0);
  }
};

TEST_F(PlantedDelayTest, TakesTheTimeThatWasAskedFor) {
  HEADROOM_NEEDS_DEVICE();
  constexpr std::int64_t kSteps = 400;
  const Network network;
  const auto plain = network.trainer(nullptr), delayed = network.trainer("20");
  EXPECT_EQ(plain->note(), "");
  EXPECT_NE(delayed->note().find("planted delay: "), std::string::npos) << delayed->note();
  std::vector<double> ratios;
  for (std::int64_t turn = 0; turn < 21; ++turn) {
    const double without = plain->train(turn * kSteps, kSteps).device_seconds;
    ratios.push_back(delayed->train(turn * kSteps, kSteps).device_seconds / without);
  }
  std::sort(ratios.begin(), ratios.end());
  EXPECT_NEAR(ratios[ratios.size() / 2], 1.20, 0.03) << delayed->note();
}

// Finding the length trains; the network must not show it.
TEST_F(PlantedDelayTest, TrainsTheSameBits) {
  HEADROOM_NEEDS_DEVICE();
  const Network network;
  const auto plain = network.trainer(nullptr), delayed = network.trainer("5");
  plain->train(0, 50);
  delayed->train(0, 50);
  const Parameters expected = plain->parameters(), found = delayed->parameters();
  EXPECT_TRUE(std::ranges::equal(found.flat(), expected.flat()));
  EXPECT_EQ(delayed->losses(0, 50), plain->losses(0, 50));
}

}  // namespace
}  // namespace headroom
