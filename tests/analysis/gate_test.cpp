// The gate's rule: verdicts, its symmetries, what it refuses, and how often it is right under made-up noise.
#include "analysis/gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

#include "gate_simulation.h"

namespace headroom {
namespace {

constexpr double kStep = 40e-6;

PairedCell made_up(const std::string& name, double ratio, double noise, std::mt19937_64& random,
                   int launches = 3, int pairs = 5) {
  std::normal_distribution<double> normal(0, noise);
  PairedCell cell{name, {}};
  for (int launch = 0; launch < launches; ++launch) {
    for (int i = 0; i < pairs; ++i)
      cell.pairs.push_back(
          {kStep * std::exp(normal(random)), kStep * ratio * std::exp(normal(random)), launch});
  }
  return cell;
}

Finding finding_of(double ratio, double noise = 0.001) {
  std::mt19937_64 random(3);
  return judge_suite(std::vector{made_up("a", ratio, noise, random)}, GateRule{}).front().finding;
}

TEST(Gate, TellsTheFourFindingsApart) {
  EXPECT_EQ(finding_of(1.05), Finding::kRegression);
  EXPECT_EQ(finding_of(1.03), Finding::kRegression);
  EXPECT_EQ(finding_of(1.00), Finding::kEquivalent);
  EXPECT_EQ(finding_of(1.01), Finding::kEquivalent);
  EXPECT_EQ(finding_of(0.95), Finding::kImprovement);
  EXPECT_EQ(finding_of(1.02), Finding::kInconclusive);
  EXPECT_EQ(finding_of(1.00, 0.05), Finding::kInconclusive);
  EXPECT_EQ(finding_of(1.05, 0.05), Finding::kInconclusive);
}

TEST(Gate, ReportsTheRatioInsideItsBounds) {
  std::mt19937_64 random(5);
  const CellFinding found = judge_suite(std::vector{made_up("a", 1.05, 0.002, random)}, GateRule{}).front();
  EXPECT_NEAR(found.ratio, 1.05, 0.003);
  EXPECT_LT(found.low, found.ratio);
  EXPECT_GT(found.high, found.ratio);
  EXPECT_NEAR(found.head_seconds / found.base_seconds, 1.05, 0.003);
  EXPECT_EQ(found.pairs, 15);
  EXPECT_DOUBLE_EQ(found.level, 0.005);  // one cell, two looks
}

// 3 % of a step of 1 us is less than 0.05 us, so it is nobody's regression; of 40 us it is.
TEST(Gate, AChangeMustExceedTheAbsoluteToleranceToo) {
  std::mt19937_64 random(6);
  PairedCell cell = made_up("a", 1.03, 0.001, random);
  for (TimedPair& pair : cell.pairs) {
    pair.base_seconds /= 40;
    pair.head_seconds /= 40;
  }
  const CellFinding found = judge_suite(std::vector{cell}, GateRule{}).front();
  EXPECT_EQ(found.finding, Finding::kEquivalent);
  EXPECT_NEAR(found.slower_than, 1.05, 0.001);
}

// Two of three process pairs are 6 % slower, the third is not: that is a difference between processes.
TEST(Gate, ASlowdownMustShowInEveryProcessPair) {
  std::mt19937_64 random(8);
  PairedCell cell = made_up("a", 1.06, 0.001, random, 3, 20);
  for (TimedPair& pair : cell.pairs) {
    if (pair.processes == 2) pair.head_seconds /= 1.05;
  }
  const CellFinding found = judge_suite(std::vector{cell}, GateRule{}).front();
  EXPECT_LE(found.p_slower, 0.005);
  EXPECT_EQ(found.finding, Finding::kInconclusive);
}

TEST(Gate, OneOddProcessPairInSixIsForgiven) {
  std::mt19937_64 random(8);
  for (const int odd : {1, 2}) {
    PairedCell cell = made_up("a", 1.06, 0.001, random, 6, 20);
    for (TimedPair& pair : cell.pairs) {
      if (pair.processes < odd) pair.head_seconds /= 1.05;
    }
    EXPECT_EQ(judge_suite(std::vector{cell}, GateRule{}).front().finding,
              odd == 1 ? Finding::kRegression : Finding::kInconclusive);
  }
}

TEST(Gate, HolmGivesTheSmallestPValueTheStrictestLevel) {
  std::mt19937_64 random(9);
  std::vector<PairedCell> cells;
  for (int i = 0; i < 8; ++i) cells.push_back(made_up(std::to_string(i), i < 3 ? 1.06 : 1.0, 0.001, random));
  const std::vector<CellFinding> found = judge_suite(cells, GateRule{});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(found[static_cast<std::size_t>(i)].finding, Finding::kRegression);
    EXPECT_DOUBLE_EQ(found[static_cast<std::size_t>(i)].level, 0.005 / 6);  // equal p-values: the last one's
  }
  for (std::size_t i = 3; i < 8; ++i) EXPECT_EQ(found[i].finding, Finding::kEquivalent);
  EXPECT_DOUBLE_EQ(found[7].level, 0.005 / 5);
}

class GateProperties : public testing::Test {
 protected:
  std::vector<PairedCell> suite() {
    std::vector<PairedCell> cells;
    const double ratios[] = {1.0, 1.03, 0.97, 1.02, 1.06, 0.995, 1.015, 0.9};
    std::uniform_real_distribution<double> noise(0.0005, 0.02);
    for (std::size_t i = 0; i < 8; ++i)
      cells.push_back(made_up("cell " + std::to_string(i), ratios[i], noise(random_), random_));
    return cells;
  }
  std::mt19937_64 random_{42};
};

TEST_F(GateProperties, SwappingBaseAndHeadMirrorsTheVerdict) {
  const auto mirrored = [](Finding finding) {
    return finding == Finding::kRegression    ? Finding::kImprovement
           : finding == Finding::kImprovement ? Finding::kRegression
                                              : finding;
  };
  for (int round = 0; round < 50; ++round) {
    std::vector<PairedCell> cells = suite();
    const std::vector<CellFinding> found = judge_suite(cells, GateRule{});
    for (PairedCell& cell : cells) {
      for (TimedPair& pair : cell.pairs) std::swap(pair.base_seconds, pair.head_seconds);
    }
    const std::vector<CellFinding> swapped = judge_suite(cells, GateRule{});
    for (std::size_t i = 0; i < cells.size(); ++i) {
      EXPECT_EQ(swapped[i].finding, mirrored(found[i].finding));
      EXPECT_DOUBLE_EQ(swapped[i].ratio, 1 / found[i].ratio);
      EXPECT_DOUBLE_EQ(swapped[i].low, 1 / found[i].high);
      EXPECT_EQ(swapped[i].p_slower, found[i].p_faster);
      EXPECT_EQ(swapped[i].level, found[i].level);
    }
  }
}

TEST_F(GateProperties, OrderOfCellsDoesNotMatter) {
  for (int round = 0; round < 50; ++round) {
    std::vector<PairedCell> cells = suite();
    const std::vector<CellFinding> found = judge_suite(cells, GateRule{});
    std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5, 6, 7};
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<PairedCell> shuffled;
    for (const std::size_t i : order) shuffled.push_back(cells[i]);
    const std::vector<CellFinding> again = judge_suite(shuffled, GateRule{});
    for (std::size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(again[i].finding, found[order[i]].finding);
      EXPECT_EQ(again[i].level, found[order[i]].level);
      EXPECT_EQ(again[i].low, found[order[i]].low);
    }
  }
}

// Only the absolute tolerance knows how long a step is, so it is left out. Powers of two scale without rounding.
TEST_F(GateProperties, ScalingBothSidesChangesNothing) {
  GateRule rule;
  rule.tolerance_seconds = 0;
  for (int round = 0; round < 50; ++round) {
    std::vector<PairedCell> cells = suite();
    const std::vector<CellFinding> found = judge_suite(cells, rule);
    for (PairedCell& cell : cells) {
      for (TimedPair& pair : cell.pairs) {
        pair.base_seconds *= 1024;
        pair.head_seconds *= 1024;
      }
    }
    const std::vector<CellFinding> scaled = judge_suite(cells, rule);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      EXPECT_EQ(scaled[i].finding, found[i].finding);
      EXPECT_NEAR(scaled[i].ratio, found[i].ratio, 1e-12);
    }
  }
}

TEST(Gate, SecondLookChangesOnlyWhatWasInconclusive) {
  std::mt19937_64 random(12);
  std::vector<PairedCell> cells = {made_up("same", 1.0, 0.001, random), made_up("noisy", 1.05, 0.03, random)};
  const std::vector<CellFinding> first = judge_suite(cells, GateRule{});
  ASSERT_EQ(first[0].finding, Finding::kEquivalent);
  ASSERT_EQ(first[1].finding, Finding::kInconclusive);
  cells[0] = made_up("same", 1.10, 0.001, random);  // would be a regression now, but is not asked again
  cells[1] = made_up("noisy", 1.05, 0.002, random, 6);
  const std::vector<CellFinding> second = judge_again(cells, GateRule{}, first);
  EXPECT_EQ(second[0].finding, Finding::kEquivalent);
  EXPECT_EQ(second[1].finding, Finding::kRegression);
  EXPECT_THROW(judge_again(cells, GateRule{}, {first.data(), 1}), std::invalid_argument);
}

TEST(Gate, RefusesWhatItCannotJudge) {
  std::mt19937_64 random(13);
  const PairedCell good = made_up("a", 1, 0.001, random);
  EXPECT_THROW(judge_suite({}, GateRule{}), std::invalid_argument);
  EXPECT_THROW(judge_suite(std::vector{good, good}, GateRule{}), std::invalid_argument);
  for (const double bad : {0.0, -1e-6, double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    PairedCell cell = good;
    cell.pairs[4].base_seconds = bad;
    EXPECT_THROW(judge_suite(std::vector{cell}, GateRule{}), std::invalid_argument) << bad;
    cell = good;
    cell.pairs[14].head_seconds = bad;
    EXPECT_THROW(judge_suite(std::vector{cell}, GateRule{}), std::invalid_argument) << bad;
  }
  PairedCell few = good;
  few.pairs.resize(kLeastPairs - 1);
  EXPECT_THROW(judge_suite(std::vector{few}, GateRule{}), std::invalid_argument);
  few = good;
  few.pairs.resize(kLeastPairs);
  EXPECT_NO_THROW(judge_suite(std::vector{few}, GateRule{}));
  GateRule senseless;
  senseless.tolerance = NAN;
  EXPECT_THROW(judge_suite(std::vector{good}, senseless), std::invalid_argument);
}

// The visible slowdown is where the verdict turns: a little more is a regression, a little less is not.
TEST(Gate, VisibleSlowdownIsWhereTheVerdictTurns) {
  std::mt19937_64 random(14);
  for (int round = 0; round < 20; ++round) {
    const PairedCell same = made_up("a", 1.0, 0.004, random);
    const GateRule rule{.looks = 1};
    const double visible = visible_slowdown(same, rule, rule.level);
    EXPECT_GT(visible, 1.02);
    for (const double factor : {0.9999, 1.0001}) {
      PairedCell slower = same;
      for (TimedPair& pair : slower.pairs) pair.head_seconds *= visible * factor;
      EXPECT_EQ(judge_suite(std::vector{slower}, rule).front().finding == Finding::kRegression, factor > 1);
    }
  }
}

// ---- how often it is right: noise as on an H200 (docs/gate.md), and several times worse

constexpr Noise kMeasured{.process = 0.0037,
                          .block = 0.003,
                          .drift = 0.003,
                          .drift_correlation = 0.9,
                          .spike_probability = 0.01,
                          .spike = 0.05};

TEST(GateSimulation, EqualBuildsAreNotCalledSlower) {
  const Rates rates = simulate(kMeasured, Shape{}, {1.0}, 500, GateRule{}, 1);
  EXPECT_EQ(rates.suites_with_regression, 0);
  EXPECT_EQ(rates.suites_with_improvement, 0);
  EXPECT_GE(rates.equivalent, rates.cells * 95 / 100);
}

TEST(GateSimulation, SlowdownsAreCaught) {
  const Rates five = simulate(kMeasured, Shape{}, {1.05}, 250, GateRule{}, 2);
  EXPECT_GE(five.regressions, five.cells * 99 / 100);
  const Rates three = simulate(kMeasured, Shape{}, {1.03}, 250, GateRule{}, 3);
  EXPECT_GE(three.regressions, three.cells * 90 / 100);
}

// Processes that differ by 1 % make the answer "cannot tell" more often, not wrong; for 2 % it takes more launches.
TEST(GateSimulation, NoiseMakesItInconclusiveNotWrong) {
  for (const auto& [process, launches] : {std::pair{0.01, 3}, {0.02, 6}}) {
    Noise noise = kMeasured;
    noise.process = process;
    const Rates rates = simulate(noise, Shape{8, launches, 12 / launches}, {1.0}, 1000, GateRule{}, 4);
    EXPECT_LE(rates.suites_with_regression, 10) << process;
    EXPECT_LE(rates.suites_with_improvement, 10) << process;
    EXPECT_GT(rates.inconclusive, 0) << process;
  }
}

// All cells slower by exactly the tolerance: the worst that is no regression.
TEST(GateSimulation, AtTheToleranceTheLevelHolds) {
  Noise noise = kMeasured;
  noise.process = 0;  // what the signed-rank test assumes
  noise.drift = noise.spike_probability = 0;
  const Rates rates = simulate(noise, Shape{}, {1.02}, 2000, GateRule{}, 5);
  EXPECT_LE(rates.suites_with_regression, 2000 * 0.01 + 3 * std::sqrt(2000 * 0.01));
}

}  // namespace
}  // namespace headroom
