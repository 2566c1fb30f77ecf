#include "analysis/gate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "analysis/signed_rank.h"
#include "analysis/statistics.h"

namespace headroom {
namespace {

void check(std::span<const PairedCell> cells, const GateRule& rule) {
  if (cells.empty()) throw std::invalid_argument("judge_suite: no cells");
  if (!(rule.tolerance > 0) || !(rule.tolerance_seconds >= 0) || !(rule.level > 0 && rule.level < 0.5) ||
      rule.looks < 1) {
    throw std::invalid_argument("judge_suite: a tolerance, level or number of looks that makes no sense");
  }
  std::set<std::string_view> names;
  for (const PairedCell& cell : cells) {
    if (!names.insert(cell.name).second)
      throw std::invalid_argument("judge_suite: cell " + cell.name + " is there twice");
    if (cell.pairs.size() < kLeastPairs) {
      throw std::invalid_argument("judge_suite: cell " + cell.name + " has " +
                                  std::to_string(cell.pairs.size()) + " pairs, expected at least " +
                                  std::to_string(kLeastPairs));
    }
    for (const TimedPair& pair : cell.pairs) {
      for (const double seconds : {pair.base_seconds, pair.head_seconds}) {
        if (!std::isfinite(seconds) || !(seconds > 0)) {
          throw std::invalid_argument("judge_suite: cell " + cell.name + " has a step time of " +
                                      std::to_string(seconds) + " s, expected a positive number");
        }
      }
    }
  }
}

/// A cell as its logarithms, and the tolerance as one: what the rule works on.
struct Logarithms {
  explicit Logarithms(const PairedCell& cell, const GateRule& rule)
      : all(logarithms(cell)),
        ranks(all),
        base(side(cell, &TimedPair::base_seconds)),
        head(side(cell, &TimedPair::head_seconds)) {
    std::map<int, std::vector<double>> by_processes;
    for (std::size_t i = 0; i < all.size(); ++i) by_processes[cell.pairs[i].processes].push_back(all[i]);
    std::vector<double> medians;
    for (const auto& [processes, values] : by_processes) medians.push_back(median(values));
    std::sort(medians.begin(), medians.end());
    const std::size_t odd_ones = medians.size() / kProcessPairsForAnOddOne;
    low_median = medians[odd_ones];
    high_median = medians[medians.size() - 1 - odd_ones];
    // Each side's own step is what the absolute tolerance is compared with, so that a swap of the sides is a mirror.
    slower = std::log1p(std::max(rule.tolerance, rule.tolerance_seconds / base));
    faster = -std::log1p(std::max(rule.tolerance, rule.tolerance_seconds / head));
  }

  std::vector<double> all;
  SignedRank ranks;
  double base, head;  // medians, in seconds
  double slower = 0, faster = 0;
  double low_median = 0, high_median = 0;  // of the process pairs, the odd ones left out

 private:
  static std::vector<double> logarithms(const PairedCell& cell) {
    std::vector<double> values;
    // Not the logarithm of the quotient: this one changes its sign exactly when the sides are swapped.
    for (const TimedPair& pair : cell.pairs)
      values.push_back(std::log(pair.head_seconds) - std::log(pair.base_seconds));
    return values;
  }
  static double side(const PairedCell& cell, double TimedPair::* member) {
    std::vector<double> seconds;
    for (const TimedPair& pair : cell.pairs) seconds.push_back(pair.*member);
    return median(seconds);
  }
};

/// Holm's procedure.
struct Holm {
  std::vector<bool> rejected;
  /// At which each cell was tested: grows from the smallest p-value on, and stays once one is not rejected.
  std::vector<double> levels;
};

Holm holm(const std::vector<double>& p_values, double level) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return p_values[a] < p_values[b]; });
  Holm result{std::vector<bool>(p_values.size(), false), std::vector<double>(p_values.size(), 0)};
  bool going_on = true;
  double here = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (going_on) here = level / static_cast<double>(order.size() - i);
    going_on = going_on && p_values[order[i]] <= here;
    result.rejected[order[i]] = going_on;
    result.levels[order[i]] = here;
  }
  // Equal p-values are told apart by nothing but their order: all get the last one's level.
  for (std::size_t i = order.size() - 1; i-- > 0;) {
    if (p_values[order[i]] == p_values[order[i + 1]]) result.levels[order[i]] = result.levels[order[i + 1]];
  }
  return result;
}

}  // namespace

std::string_view to_string(Finding finding) {
  switch (finding) {
    case Finding::kRegression:
      return "regression";
    case Finding::kImprovement:
      return "improvement";
    case Finding::kEquivalent:
      return "equivalent";
    case Finding::kInconclusive:
      break;
  }
  return "inconclusive";
}

std::vector<CellFinding> judge_suite(std::span<const PairedCell> cells, const GateRule& rule) {
  check(cells, rule);
  std::vector<Logarithms> logarithms;
  std::vector<double> p_slower, p_faster;
  for (const PairedCell& cell : cells) {
    const Logarithms& values = logarithms.emplace_back(cell, rule);
    p_slower.push_back(values.ranks.p_above(values.slower));
    p_faster.push_back(values.ranks.p_below(values.faster));
  }
  const Holm slower = holm(p_slower, rule.level / rule.looks),
             faster = holm(p_faster, rule.level / rule.looks);
  std::vector<CellFinding> findings;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Logarithms& values = logarithms[i];
    CellFinding& cell = findings.emplace_back();
    // A cell cannot be rejected in both directions, so one of the two levels is the plain one.
    cell.level = std::max(slower.levels[i], faster.levels[i]);
    const double low = values.ranks.lower_bound(cell.level), high = values.ranks.upper_bound(cell.level);
    cell.ratio = std::exp(values.ranks.estimate());
    cell.low = std::exp(low);
    cell.high = std::exp(high);
    cell.slower_than = std::exp(values.slower);
    cell.faster_than = std::exp(values.faster);
    cell.base_seconds = values.base;
    cell.head_seconds = values.head;
    cell.p_slower = p_slower[i];
    cell.p_faster = p_faster[i];
    cell.pairs = static_cast<int>(values.all.size());
    if (slower.rejected[i] && values.low_median > values.slower) {
      cell.finding = Finding::kRegression;
    } else if (faster.rejected[i] && values.high_median < values.faster) {
      cell.finding = Finding::kImprovement;
    } else if (low > values.faster && high < values.slower) {
      cell.finding = Finding::kEquivalent;
    }
  }
  return findings;
}

std::vector<CellFinding> judge_again(std::span<const PairedCell> cells, const GateRule& rule,
                                     std::span<const CellFinding> earlier) {
  if (earlier.size() != cells.size()) throw std::invalid_argument("judge_again: findings of another suite");
  std::vector<CellFinding> findings = judge_suite(cells, rule);
  for (std::size_t i = 0; i < findings.size(); ++i) {
    if (earlier[i].finding != Finding::kInconclusive) findings[i] = earlier[i];
  }
  return findings;
}

double visible_slowdown(const PairedCell& cell, const GateRule& rule, double level) {
  check({&cell, 1}, rule);
  const Logarithms values(cell, rule);
  // The slowdown moves both of these up by its logarithm; both must come out above the tolerance. Where luck has lifted
  // them already, the tolerance itself is still the least that anybody asked for.
  return std::exp(values.slower +
                  std::max(0.0, -std::min(values.ranks.lower_bound(level), values.low_median)));
}

}  // namespace headroom
