// The signed-rank test, its estimate and its bounds. tests/driver/test_compare_statistics.py checks them against SciPy's.
#include "analysis/signed_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

namespace headroom {
namespace {

std::vector<double> random_values(std::mt19937_64& random, int count, double centre) {
  std::normal_distribution<double> normal(centre, 1);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(normal(random));
  return values;
}

// By hand: all 2^n signs are as likely; of n = 3 the sums are 0, 1, 2, 3, 3, 4, 5, 6.
TEST(SignedRankTail, CountsTheSigns) {
  const double tails[] = {8, 7, 6, 5, 3, 2, 1, 0};
  for (int w = 0; w <= 7; ++w) EXPECT_DOUBLE_EQ(signed_rank_upper_tail(3, w), tails[w] / 8) << w;
  EXPECT_DOUBLE_EQ(signed_rank_upper_tail(12, 78), std::ldexp(1, -12));
  EXPECT_DOUBLE_EQ(signed_rank_upper_tail(1, -5), 1);
  EXPECT_THROW(signed_rank_upper_tail(0, 0), std::invalid_argument);
}

// Tabulated one-sided critical values at 0.01: the largest sum of the lower tail.
TEST(SignedRankTail, HasTheTabulatedCriticalValues) {
  for (const auto& [count, critical] : {std::pair{8, 1}, {10, 5}, {12, 9}, {15, 19}, {20, 43}, {30, 120}}) {
    const int most = count * (count + 1) / 2;
    EXPECT_LE(signed_rank_upper_tail(count, most - critical), 0.01) << count;
    EXPECT_GT(signed_rank_upper_tail(count, most - critical - 1), 0.01) << count;
  }
}

TEST(SignedRankTail, GoesOverIntoTheNormalOneSmoothly) {
  const double exact = signed_rank_upper_tail(200, 12000), normal = signed_rank_upper_tail(201, 12120);
  EXPECT_NEAR(normal / exact, 1, 0.1);
}

TEST(SignedRank, EstimateIsTheMedianOfTheMeansOfPairs) {
  EXPECT_DOUBLE_EQ(SignedRank(std::vector<double>{1, 2, 6}).estimate(), 2.75);  // 1 1.5 2 3.5 4 6
  EXPECT_DOUBLE_EQ(SignedRank(std::vector<double>{5}).estimate(), 5);
}

TEST(SignedRank, BoundsAndPValuesAgree) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const SignedRank ranks(random_values(random, 6 + round % 20, 0.3));
    for (const double level : {0.05, 0.01, 0.000625}) {
      const double low = ranks.lower_bound(level);
      if (!std::isfinite(low)) continue;
      EXPECT_LE(ranks.p_above(std::nextafter(low, -1e9)), level);
      EXPECT_GT(ranks.p_above(low), level);
      const double high = ranks.upper_bound(level);
      EXPECT_LE(ranks.p_below(std::nextafter(high, 1e9)), level);
      EXPECT_GT(ranks.p_below(high), level);
      EXPECT_LT(low, ranks.estimate());
      EXPECT_GT(high, ranks.estimate());
    }
  }
}

TEST(SignedRank, TooFewValuesGiveNoBound) {
  const SignedRank ranks(std::vector<double>{1, 2, 3});
  EXPECT_EQ(ranks.lower_bound(0.01), -INFINITY);
  EXPECT_EQ(ranks.upper_bound(0.01), INFINITY);
  EXPECT_EQ(ranks.lower_bound(0.125), 1);
}

TEST(SignedRank, ChangingSignsMirrors) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> values = random_values(random, 13, 0.1);
    const SignedRank ranks(values);
    for (double& value : values) value = -value;
    const SignedRank mirrored(values);
    EXPECT_EQ(ranks.estimate(), -mirrored.estimate());
    EXPECT_EQ(ranks.lower_bound(0.01), -mirrored.upper_bound(0.01));
    EXPECT_EQ(ranks.p_above(0.2), mirrored.p_below(-0.2));
  }
}

// Equal values are what a coarse clock gives; they may only make the bounds wider.
TEST(SignedRank, TiesAreCautious) {
  const std::vector<double> same(12, 1.0);
  const SignedRank ranks(same);
  EXPECT_EQ(ranks.estimate(), 1);
  EXPECT_EQ(ranks.lower_bound(0.001), 1);
  EXPECT_EQ(ranks.p_above(1), 1);
  EXPECT_DOUBLE_EQ(ranks.p_above(0.999), std::ldexp(1, -12));
}

TEST(SignedRank, RefusesNothingAndNonFinite) {
  EXPECT_THROW(SignedRank({}), std::invalid_argument);
  EXPECT_THROW(SignedRank(std::vector<double>{1, NAN}), std::invalid_argument);
  EXPECT_THROW(SignedRank(std::vector<double>{1, INFINITY}), std::invalid_argument);
  EXPECT_THROW(SignedRank(std::vector<double>(kMostSignedRankValues + 1, 1.0)), std::invalid_argument);
  EXPECT_THROW(SignedRank(std::vector<double>{1}).lower_bound(0), std::invalid_argument);
}

}  // namespace
}  // namespace headroom
