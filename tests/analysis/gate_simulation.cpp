#include "gate_simulation.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace headroom {
namespace {

class Simulation {
 public:
  Simulation(const Noise& noise, const Shape& shape, std::uint64_t seed)
      : noise_(noise), shape_(shape), random_(seed) {}

  /// The pairs of one cell in one round.
  void add_round(PairedCell& cell, double slowdown, int round) {
    for (int launch = 0; launch < shape_.launches; ++launch) {
      const double base = noise_.process * normal_(random_), head = noise_.process * normal_(random_);
      bool head_first = coin();
      for (int i = 0; i < shape_.pairs; ++i) {
        TimedPair pair;
        pair.processes = round * shape_.launches + launch;
        for (const bool is_head : {head_first, !head_first}) {
          const double logarithm = (is_head ? head + std::log(slowdown) : base) + drift() + block();
          (is_head ? pair.head_seconds : pair.base_seconds) = 30e-6 * std::exp(logarithm);
        }
        cell.pairs.push_back(pair);
        head_first = i % 2 == 0 ? !head_first : coin();
      }
    }
  }

 private:
  bool coin() { return std::bernoulli_distribution(0.5)(random_); }
  double drift() {
    const double kept = noise_.drift_correlation;
    drift_ = kept * drift_ + std::sqrt(1 - kept * kept) * noise_.drift * normal_(random_);
    return drift_;
  }
  double block() {
    const bool spike = std::bernoulli_distribution(noise_.spike_probability)(random_);
    return noise_.block * normal_(random_) + (spike ? std::log1p(noise_.spike) : 0);
  }

  Noise noise_;
  Shape shape_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  double drift_ = 0;
};

}  // namespace

Rates simulate(const Noise& noise, const Shape& shape, const std::vector<double>& slowdowns, int suites,
               const GateRule& rule, std::uint64_t seed) {
  Simulation simulation(noise, shape, seed);
  Rates rates;
  for (int suite = 0; suite < suites; ++suite) {
    std::vector<PairedCell> cells;
    const auto slowdown = [&](std::size_t i) { return slowdowns[i % slowdowns.size()]; };
    for (int i = 0; i < shape.cells; ++i) {
      PairedCell& cell = cells.emplace_back();
      cell.name = std::to_string(i);
      simulation.add_round(cell, slowdown(static_cast<std::size_t>(i)), 0);
    }
    std::vector<CellFinding> findings = judge_suite(cells, rule);
    bool again = false;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (findings[i].finding != Finding::kInconclusive) continue;
      simulation.add_round(cells[i], slowdown(i), 1);
      again = true;
    }
    if (again) findings = judge_again(cells, rule, findings);
    const auto count = [&](Finding finding) {
      return static_cast<int>(std::count_if(findings.begin(), findings.end(),
                                            [&](const auto& cell) { return cell.finding == finding; }));
    };
    rates.suites += 1;
    rates.cells += shape.cells;
    rates.regressions += count(Finding::kRegression);
    rates.improvements += count(Finding::kImprovement);
    rates.equivalent += count(Finding::kEquivalent);
    rates.inconclusive += count(Finding::kInconclusive);
    rates.suites_with_regression += count(Finding::kRegression) > 0;
    rates.suites_with_improvement += count(Finding::kImprovement) > 0;
  }
  return rates;
}

}  // namespace headroom
