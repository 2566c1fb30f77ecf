// cuda-layered on two devices: what one device trains with both batches, and the same bits on both.
#include <cmath>

#include "core/error.h"
#include "gpu_test.h"
#include "layered/trainer.h"
#include "step_check.h"

#define HEADROOM_NEEDS_TWO_DEVICES() \
  if (const auto missing = device_missing(1)) GTEST_SKIP() << *missing

namespace headroom {
namespace {

/// The joined workload's problem, and the same in two ranks.
struct TwoRanks {
  explicit TwoRanks(const std::string& joined_name)
      : joined(joined_name, fresh_seed()), ranked(joined.workload) {
    ranked.devices = 2;
    ranked.batch_size /= 2;
    ranked.name = default_name(ranked);
  }
  std::unique_ptr<Trainer> trainer(Precision precision, std::int64_t least_bucket = kLeastBucket) const {
    return make_layered_trainer(ranked, precision, joined.dataset.train(), joined.initial, 0, {0, 1},
                                least_bucket);
  }
  NamedProblem joined;
  Workload ranked;
};

TEST(LayeredRanks, TwoDevicesTrainWhatOneTrainsWithBothBatches) {
  HEADROOM_NEEDS_TWO_DEVICES();
  for (const std::string name :
       {"mlp-33x40x24x10-b16", "mlp-20x24x10-b16-tanh-mse-adam", "mlp-784x128x10-b64"})
    for (const Precision precision : kAllPrecisions) {
      const TwoRanks two(name);
      check_against_oracle(two.joined, precision, *two.trainer(precision), {0, 1, 17, 100, 200}, 8);
    }
}

TEST(LayeredRanks, SumsOfBucketsAreThoseOfAllAtOnce) {
  HEADROOM_NEEDS_TWO_DEVICES();
  const TwoRanks two("mlp-100x120x90x10-b64-momentum0.9");
  const auto once = two.trainer(Precision::kBf16, std::int64_t{1} << 40),
             often = two.trainer(Precision::kBf16, 1);
  EXPECT_NE(often->note().find("3 sums"), std::string::npos) << often->note();
  for (const auto& trainer : {&once, &often}) (*trainer)->train(0, 30);
  const Parameters one = once->parameters(), other = often->parameters();
  EXPECT_TRUE(std::ranges::equal(one.flat(), other.flat()));
}

TEST(LayeredRanks, WideProductsLeaveGradientsForTheSum) {
  HEADROOM_NEEDS_TWO_DEVICES();
  for (const std::string name : {"mlp-784x1024x1024x10-b8192", "mlp-784x1024x1024x10-b8192-adam"}) {
    const TwoRanks two(name);
    const auto trainer = two.trainer(Precision::kBf16);
    EXPECT_NE(trainer->note().find("wide tiles"), std::string::npos) << trainer->note();
    check_against_oracle(two.joined, Precision::kBf16, *trainer, {0, 3}, 8);
  }
}

TEST(LayeredRanks, TrainingGoesOnFromAnyState) {
  HEADROOM_NEEDS_TWO_DEVICES();
  const TwoRanks two("mlp-20x24x10-b16-tanh-mse-adam");
  const auto trainer = two.trainer(Precision::kFp32);
  trainer->train(0, 20);
  const State state = trainer->state();
  trainer->train(20, 13);
  const Parameters straight = trainer->parameters();
  trainer->set_state(state);
  trainer->train(20, 13);
  EXPECT_TRUE(std::ranges::equal(straight.flat(), trainer->parameters().flat()));
}

}  // namespace
}  // namespace headroom
