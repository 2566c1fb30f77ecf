// Medians and their intervals. Pure functions: empty or non-finite input throws std::invalid_argument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/record.h"

namespace headroom {

double median(std::span<const double> values);

/// The median and the narrowest pair of order statistics, equally far from both ends, that holds the true
/// median with a probability of at least 95 %, whatever the distribution (sign test). Fewer than six values
/// cannot give 95 %: the smallest and the largest are returned then.
StepSeconds median_interval(std::span<const double> values);

/// How many values lie outside that interval at each end: of 12 values 2, of 5 values 0.
std::int64_t order_statistic_rank(std::int64_t count);

/// Device seconds per step of each block, in order; wall and CPU time alike through `member`.
std::vector<double> step_samples(const std::vector<Block>& blocks,
                                 double Block::* member = &Block::device_seconds);

}  // namespace headroom
