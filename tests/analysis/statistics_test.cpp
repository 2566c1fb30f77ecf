// Medians and intervals.
#include "analysis/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/parameters.h"

namespace headroom {
namespace {

TEST(Median, OfOddAndEvenCounts) {
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median(std::vector<double>{7}), 7);
}

TEST(Median, RefusesNothingAndNonFinite) {
  EXPECT_THROW(median({}), std::invalid_argument);
  EXPECT_THROW(median(std::vector<double>{1, std::nan("")}), std::invalid_argument);
  EXPECT_THROW(median_interval(std::vector<double>{1, INFINITY}), std::invalid_argument);
  EXPECT_THROW(median_interval({}), std::invalid_argument);
}

// Tabulated ranks of the sign test's 95 % interval (ranks count from 1 there, values outside from 0 here).
TEST(MedianInterval, HasTheTabulatedRanks) {
  const std::pair<int, int> table[] = {{1, 0},  {5, 0},  {6, 0},  {8, 0},   {9, 1},    {11, 1},    {12, 2},
                                       {15, 3}, {20, 5}, {25, 7}, {50, 17}, {100, 39}, {1000, 468}};
  for (const auto& [count, rank] : table) EXPECT_EQ(order_statistic_rank(count), rank) << count;
}

TEST(MedianInterval, IsMadeOfTheValuesThemselves) {
  std::vector<double> values;
  for (int i = 12; i >= 1; --i) values.push_back(i);
  const StepSeconds interval = median_interval(values);
  EXPECT_EQ(interval.median, 6.5);
  EXPECT_EQ(interval.low, 3);
  EXPECT_EQ(interval.high, 10);
}

TEST(MedianInterval, HoldsTheTrueMedianInAtLeast95OfHundredTrials) {
  int held = 0;
  constexpr int kTrials = 4000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < 12; ++i) {  // exponential, median ln 2
      const std::uint32_t word =
          philox(9, static_cast<std::uint64_t>(trial), static_cast<std::uint64_t>(i)).word[0];
      values.push_back(-std::log((word + 0.5) / 4294967296.0));
    }
    const StepSeconds interval = median_interval(values);
    held += interval.low <= std::log(2.0) && std::log(2.0) <= interval.high ? 1 : 0;
  }
  EXPECT_GE(held, kTrials * 0.95);
}

TEST(StepSamples, AreSecondsPerStep) {
  const std::vector<Block> blocks = {
      {.order = 0, .steps = 10, .device_seconds = 1, .wall_seconds = 2, .cpu_seconds = 3},
      {.order = 1, .steps = 20, .device_seconds = 4, .wall_seconds = 5, .cpu_seconds = 6}};
  EXPECT_EQ(step_samples(blocks), (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(step_samples(blocks, &Block::cpu_seconds), (std::vector<double>{0.3, 0.3}));
  EXPECT_THROW(step_samples({Block{}}), std::invalid_argument);
}

}  // namespace
}  // namespace headroom
