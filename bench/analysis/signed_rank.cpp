#include "analysis/signed_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace headroom {
namespace {

// P(W = w) for w = 0 .. count (count + 1) / 2: each rank is in the sum or not, like the toss of a coin.
std::vector<double> null_probabilities(std::int64_t count) {
  const std::int64_t most = count * (count + 1) / 2;
  std::vector<double> probability(static_cast<std::size_t>(most) + 1, 0.0);
  probability[0] = 1;
  for (std::int64_t rank = 1; rank <= count; ++rank) {
    for (std::int64_t w = rank * (rank + 1) / 2; w >= 0; --w) {
      double& here = probability[static_cast<std::size_t>(w)];
      here = here / 2 + (w >= rank ? probability[static_cast<std::size_t>(w - rank)] / 2 : 0);
    }
  }
  return probability;
}

double normal_upper_tail(std::int64_t count, std::int64_t statistic) {
  const double n = static_cast<double>(count);
  const double mean = n * (n + 1) / 4, deviation = std::sqrt(n * (n + 1) * (2 * n + 1) / 24);
  return 0.5 * std::erfc((static_cast<double>(statistic) - 0.5 - mean) / (deviation * std::sqrt(2.0)));
}

// Upper tails for all statistics at once: P(W >= 0), P(W >= 1), ..., and 0 at the end.
std::vector<double> upper_tails(std::int64_t count) {
  const auto most = static_cast<std::size_t>(count * (count + 1) / 2);
  std::vector<double> tails(most + 2, 0.0);
  if (count > kMostExactValues) {
    for (std::size_t w = 0; w <= most; ++w) tails[w] = normal_upper_tail(count, static_cast<std::int64_t>(w));
    return tails;
  }
  const std::vector<double> probability = null_probabilities(count);
  for (std::size_t w = most + 1; w-- > 0;) tails[w] = std::min(1.0, tails[w + 1] + probability[w]);
  return tails;
}

// The tails of the sample size used last: a suite asks for the same again and again.
const std::vector<double>& tails_of(std::int64_t count) {
  thread_local std::int64_t known = -1;
  thread_local std::vector<double> tails;
  if (known != count) {
    tails = upper_tails(count);
    known = count;
  }
  return tails;
}

}  // namespace

double signed_rank_upper_tail(std::int64_t count, std::int64_t statistic) {
  if (count < 1) throw std::invalid_argument("signed_rank_upper_tail: no values");
  const std::int64_t most = count * (count + 1) / 2;
  return statistic <= 0 ? 1.0 : tails_of(count)[static_cast<std::size_t>(std::min(statistic, most + 1))];
}

SignedRank::SignedRank(std::span<const double> values) : count_(static_cast<std::int64_t>(values.size())) {
  if (count_ < 1 || count_ > kMostSignedRankValues) {
    throw std::invalid_argument("SignedRank: " + std::to_string(count_) + " values, expected 1 to " +
                                std::to_string(kMostSignedRankValues));
  }
  for (const double value : values) {
    if (!std::isfinite(value))
      throw std::invalid_argument("SignedRank: " + std::to_string(value) + " among the values");
  }
  walsh_.reserve(values.size() * (values.size() + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i; j < values.size(); ++j) walsh_.push_back(values[i] / 2 + values[j] / 2);
  }
  std::sort(walsh_.begin(), walsh_.end());
}

double SignedRank::estimate() const {
  const std::size_t half = walsh_.size() / 2;
  return walsh_.size() % 2 == 1 ? walsh_[half] : walsh_[half - 1] / 2 + walsh_[half] / 2;
}

double SignedRank::p_above(double theta) const {
  const auto above = walsh_.end() - std::upper_bound(walsh_.begin(), walsh_.end(), theta);
  return signed_rank_upper_tail(count_, above);
}

double SignedRank::p_below(double theta) const {
  const auto below = std::lower_bound(walsh_.begin(), walsh_.end(), theta) - walsh_.begin();
  return signed_rank_upper_tail(count_, below);
}

std::int64_t SignedRank::outside(double level) const {
  if (!(level > 0 && level < 1)) throw std::invalid_argument("SignedRank: level " + std::to_string(level));
  // The tails fall: the first statistic whose tail is small enough, counted from the other end.
  const std::vector<double>& tails = tails_of(count_);
  const auto enough =
      std::partition_point(tails.begin(), tails.end(), [&](double tail) { return tail > level; });
  return static_cast<std::int64_t>(walsh_.size()) - (enough - tails.begin());
}

double SignedRank::lower_bound(double level) const {
  const std::int64_t rank = outside(level);
  return rank < 0 ? -std::numeric_limits<double>::infinity() : walsh_[static_cast<std::size_t>(rank)];
}

double SignedRank::upper_bound(double level) const {
  const std::int64_t rank = outside(level);
  return rank < 0 ? std::numeric_limits<double>::infinity()
                  : walsh_[walsh_.size() - 1 - static_cast<std::size_t>(rank)];
}

}  // namespace headroom
