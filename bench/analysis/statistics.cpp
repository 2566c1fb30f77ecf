// Order statistics and the binomial distribution.
#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace headroom {
namespace {

std::vector<double> sorted_and_checked(std::span<const double> values, const char* what) {
  if (values.empty()) throw std::invalid_argument(std::string(what) + ": no values");
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      throw std::invalid_argument(std::string(what) + ": value " + std::to_string(i) + " is " +
                                  std::to_string(values[i]) + ", expected finite numbers");
    }
  }
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

double middle(const std::vector<double>& sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : sorted[half - 1] + (sorted[half] - sorted[half - 1]) / 2;
}

}  // namespace

double median(std::span<const double> values) { return middle(sorted_and_checked(values, "median")); }

std::int64_t order_statistic_rank(std::int64_t count) {
  if (count < 1) throw std::invalid_argument("order_statistic_rank: no values");
  // The true median is below the (rank + 1)-th smallest value with probability P(Binomial(count, 1/2) <=
  // rank); both ends together may miss it in 5 % of cases. Logarithms, as 2^-count underflows for long runs.
  constexpr double kEachEnd = 0.025;
  double below = 0, log_probability = -static_cast<double>(count) * std::log(2.0);
  std::int64_t rank = -1;
  for (std::int64_t k = 0; 2 * k < count; ++k) {
    below += std::exp(log_probability);
    if (below > kEachEnd) break;
    rank = k;
    log_probability += std::log(static_cast<double>(count - k)) - std::log(static_cast<double>(k + 1));
  }
  return std::max<std::int64_t>(rank, 0);
}

StepSeconds median_interval(std::span<const double> values) {
  const std::vector<double> sorted = sorted_and_checked(values, "median_interval");
  const auto rank = static_cast<std::size_t>(order_statistic_rank(static_cast<std::int64_t>(sorted.size())));
  return {.median = middle(sorted), .low = sorted[rank], .high = sorted[sorted.size() - 1 - rank]};
}

std::vector<double> step_samples(const std::vector<Block>& blocks, double Block::* member) {
  std::vector<double> samples;
  for (const Block& block : blocks) {
    if (block.steps < 1) {
      throw std::invalid_argument("step_samples: block " + std::to_string(block.order) + " has " +
                                  std::to_string(block.steps) + " steps, expected at least 1");
    }
    samples.push_back(block.*member / static_cast<double>(block.steps));
  }
  return samples;
}

}  // namespace headroom
