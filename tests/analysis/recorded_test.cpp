// Comparisons recorded on an H200, A/A and with planted slowdowns, judged again: the verdicts are fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "analysis/gate.h"
#include "recorded_samples.h"

namespace headroom {
namespace {

struct Recorded {
  double planted_percent = 0;
  std::vector<PairedCell> first_round, all;
  std::vector<std::string> verdicts;
};

// Lines: `comparison PERCENT`, `cell NAME VERDICT`, `ROUND PROCESSES BASE_US HEAD_US`.
std::vector<Recorded> recorded() {
  std::vector<Recorded> comparisons;
  std::istringstream lines(kRecordedSamples);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word, verdict;
    words >> word;
    if (word == "comparison") {
      words >> comparisons.emplace_back().planted_percent;
    } else if (word == "cell") {
      Recorded& comparison = comparisons.back();
      words >> word >> verdict;
      comparison.first_round.push_back({word, {}});
      comparison.all.push_back({word, {}});
      comparison.verdicts.push_back(verdict);
    } else if (!word.empty()) {
      TimedPair pair;
      words >> pair.processes >> pair.base_seconds >> pair.head_seconds;
      pair.base_seconds *= 1e-6;
      pair.head_seconds *= 1e-6;
      if (word == "1") comparisons.back().first_round.back().pairs.push_back(pair);
      comparisons.back().all.back().pairs.push_back(pair);
    }
  }
  return comparisons;
}

std::vector<CellFinding> judged(const Recorded& comparison) {
  const std::vector<CellFinding> first = judge_suite(comparison.first_round, GateRule{});
  return judge_again(comparison.all, GateRule{}, first);
}

TEST(RecordedComparisons, VerdictsAreFixed) {
  for (const Recorded& comparison : recorded()) {
    const std::vector<CellFinding> findings = judged(comparison);
    for (std::size_t i = 0; i < findings.size(); ++i)
      EXPECT_EQ(to_string(findings[i].finding), comparison.verdicts[i]) << comparison.all[i].name;
  }
}

TEST(RecordedComparisons, EqualBuildsAreNotCalledSlowerAndPlantedSlowdownsAre) {
  std::set<double> planted;
  for (const Recorded& comparison : recorded()) {
    planted.insert(comparison.planted_percent);
    for (const CellFinding& cell : judged(comparison)) {
      if (comparison.planted_percent == 0) {
        EXPECT_NE(cell.finding, Finding::kRegression);
      }
      if (comparison.planted_percent >= 5) {
        EXPECT_EQ(cell.finding, Finding::kRegression);
      }
      EXPECT_NEAR(cell.ratio, 1 + comparison.planted_percent / 100, 0.015);
    }
  }
  EXPECT_EQ(planted, (std::set<double>{0, 2, 3, 5, 10}));
}

// What the real noise would do to the mirror image.
TEST(RecordedComparisons, SwappedTheyAreImprovements) {
  for (Recorded& comparison : recorded()) {
    if (comparison.planted_percent < 5) continue;
    for (PairedCell& cell : comparison.first_round) {
      for (TimedPair& pair : cell.pairs) std::swap(pair.base_seconds, pair.head_seconds);
    }
    for (const CellFinding& cell : judge_suite(comparison.first_round, GateRule{}))
      EXPECT_EQ(cell.finding, Finding::kImprovement);
  }
}

}  // namespace
}  // namespace headroom
