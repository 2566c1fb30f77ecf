// The Wilcoxon signed-rank test and what follows from turning it around: the Hodges-Lehmann estimate and its bounds.
//
// Everything is counted on the Walsh averages, the means of all pairs of values (each with itself too): the statistic of
// the test of "the centre is theta" is the number of them above theta. So the p-value and the bounds cannot disagree, and
// ties make both a little more cautious instead of needing a rule of their own.
// Pure functions: empty or non-finite input throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headroom {

/// The null distribution is counted exactly up to this many values; above it is the normal one, with the
/// continuity correction.
inline constexpr std::int64_t kMostExactValues = 200;
/// More values than this would make more Walsh averages than is sensible.
inline constexpr std::int64_t kMostSignedRankValues = 2000;

/// P(W >= statistic), W being the signed-rank statistic of `count` values that are symmetric about zero.
double signed_rank_upper_tail(std::int64_t count, std::int64_t statistic);

/// The sorted Walsh averages of one sample, and what can be read off them.
class SignedRank {
 public:
  explicit SignedRank(std::span<const double> values);

  /// Hodges-Lehmann: the median of the Walsh averages.
  double estimate() const;
  /// One-sided p-value of "the centre is at most `theta`"; small if the values lie above it.
  double p_above(double theta) const;
  /// One-sided p-value of "the centre is at least `theta`"; small if the values lie below it.
  double p_below(double theta) const;
  /// The largest bound that the centre exceeds with confidence 1 - level; minus infinity if so few values can give none.
  /// p_above(theta) <= level for exactly the theta below it.
  double lower_bound(double level) const;
  double upper_bound(double level) const;

 private:
  /// How many Walsh averages may lie outside a bound at this level; -1 if not even none.
  std::int64_t outside(double level) const;
  std::int64_t count_;
  std::vector<double> walsh_;  // sorted
};

}  // namespace headroom
