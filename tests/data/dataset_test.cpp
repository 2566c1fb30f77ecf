// Synthetic data: size, bits, balance, and that something can be learned from it.
#include "data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/parallel.h"
#include "core/parameters.h"
#include "oracle/oracle.h"

namespace headroom {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

TEST(SyntheticData, HoldsTheBytesAskedForOr256BatchesWhicheverIsLess) {
  const Workload narrow = parse_workload_name("mlp-4x3-b8");
  EXPECT_EQ(make_dataset(narrow, 240 * kMebibyte).train().batches(8), 256);
  EXPECT_EQ(make_dataset(narrow, 0).train().batches(8), 1);
  const Workload wide = parse_workload_name("mlp-784x10-b1024");
  const DatasetView view = make_dataset(wide, 10 * kMebibyte).train();
  EXPECT_EQ(view.samples % 1024, 0);
  EXPECT_EQ(view.batches(1024), 4);  // of 3.06 MiB each
}

TEST(SyntheticData, HoldsATenthOut) {
  const Dataset data = make_dataset(parse_workload_name("mlp-20x10-b32"), kMebibyte);
  const std::int64_t all = data.train().samples + data.held_out().samples;
  EXPECT_NEAR(static_cast<double>(data.held_out().samples), static_cast<double>(all) / 10, 1.0);
  EXPECT_EQ(data.held_out().feature_count, 20);
}

// The digest is of the bits themselves: it must be this one on every machine and with any number of threads.
TEST(SyntheticData, HasTheSameBitsEverywhere) {
  const Workload workload = parse_workload_name("mlp-784x128x128x128x10-b32");
  for (int threads : {1, 5}) {
    set_parallel_threads(threads);
    EXPECT_EQ(make_dataset(workload, 240 * kMebibyte).digest, "e61f692aaf2fdaa9");
  }
  set_parallel_threads(0);
}

TEST(SyntheticData, DependsOnTheSeed) {
  Workload workload = parse_workload_name("mlp-20x10-b32");
  const Dataset first = make_dataset(workload, kMebibyte);
  workload.seed = 2;
  const Dataset second = make_dataset(workload, kMebibyte);
  EXPECT_NE(first.digest, second.digest);
  EXPECT_NE(first.description, second.description);
}

TEST(SyntheticData, IsInRangeAndBalanced) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Workload workload = parse_workload_name("mlp-100x10-b32");
    workload.seed = seed;
    const Dataset data = make_dataset(workload, 240 * kMebibyte);
    const auto [low, high] = std::minmax_element(data.train_features.begin(), data.train_features.end());
    EXPECT_GE(*low, 0.0f);
    EXPECT_LE(*high, 1.0f);
    const double mean = std::accumulate(data.train_features.begin(), data.train_features.end(), 0.0) /
                        static_cast<double>(data.train_features.size());
    EXPECT_NEAR(mean, 0.5, 0.01);
    std::vector<std::int64_t> counts(10);
    for (std::int32_t label : data.train_labels) ++counts.at(static_cast<std::size_t>(label));
    for (std::int64_t count : counts) {
      EXPECT_GE(count, data.train().samples / 50) << "seed " << seed;
      EXPECT_LE(count, data.train().samples / 4) << "seed " << seed;
    }
  }
}

TEST(SyntheticData, EverySmallShapeWorks) {
  for (const char* name : {"mlp-1x1-b1", "mlp-1x2-b1", "mlp-3x1-b7", "mlp-7x33x5-b31", "mlp-9x1000-b3"}) {
    const Workload workload = parse_workload_name(name);
    const Dataset data = make_dataset(workload, kMebibyte);
    EXPECT_GE(data.train().batches(workload.batch_size), 1) << name;
    EXPECT_GE(data.held_out().samples, 1) << name;
    for (std::int32_t label : data.train_labels) {
      ASSERT_GE(label, 0);
      ASSERT_LT(label, workload.classes());
    }
  }
}

TEST(SyntheticData, TargetsAreStandardisedOrBinary) {
  Workload workload = parse_workload_name("mlp-20x8x3-b64-mse");
  const Dataset data = make_dataset(workload, 4 * kMebibyte);
  EXPECT_TRUE(data.train_labels.empty());
  ASSERT_EQ(data.train().labels, nullptr);
  for (int output = 0; output < 3; ++output) {
    double sum = 0, squares = 0;
    for (std::int64_t sample = 0; sample < data.train().samples; ++sample) {
      const double target = data.train().targets[3 * sample + output];
      sum += target;
      squares += target * target;
    }
    const auto count = static_cast<double>(data.train().samples);
    EXPECT_NEAR(sum / count, 0, 0.1) << output;
    EXPECT_NEAR(squares / count, 1, 0.15) << output;
  }
  const Dataset binary = make_dataset(parse_workload_name("mlp-20x8x1-b64-bce"), 4 * kMebibyte);
  const auto ones = std::count(binary.train_targets.begin(), binary.train_targets.end(), 1.0f);
  const auto zeros = std::count(binary.train_targets.begin(), binary.train_targets.end(), 0.0f);
  EXPECT_EQ(ones + zeros, binary.train().samples);
  EXPECT_NEAR(static_cast<double>(ones) / static_cast<double>(binary.train().samples), 0.5, 0.2);
}

TEST(SyntheticData, RegressionTargetsCanBeLearned) {
  const Workload workload = parse_workload_name("mlp-64x64x3-b64-tanh-mse-adam");
  const Dataset data = make_dataset(workload, 4 * kMebibyte);
  const auto trainer = make_oracle_trainer(workload, Precision::kFp32, true, data.train(),
                                           initial_parameters(workload.model.widths, workload.seed));
  trainer->train(0, 1000);
  EXPECT_GT(r_squared(workload, trainer->parameters(), data.held_out()), 0.5);
}

TEST(SyntheticData, CanBeLearnedBySmallSteps) {
  const Workload workload = parse_workload_name("mlp-784x128x128x128x10-b32");
  const Dataset data = make_dataset(workload, 240 * kMebibyte);
  const auto trainer = make_oracle_trainer(workload, Precision::kFp32, true, data.train(),
                                           initial_parameters(workload.model.widths, workload.seed));
  trainer->train(0, 5000);
  const auto mean = [&](std::int64_t first) {
    const std::vector<float> losses = trainer->losses(first, 312);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / 312;
  };
  EXPECT_LT(mean(4688), 0.6 * mean(0));
  EXPECT_GT(accuracy(workload.model, trainer->parameters(), data.held_out()),
            0.5);  // a guess is right one time in ten
}

TEST(SyntheticData, TooLargeForMemoryIsSaidSo) {
  Workload workload = parse_workload_name("mlp-65536x10-b2147483647");
  EXPECT_THROW(make_dataset(workload, 0), OutOfMemoryError);
}

}  // namespace
}  // namespace headroom
