// Logits of a narrow last layer, added up by all thread blocks at once: as integers, whose sum is the same in any order.
//
// A thread block has one part of every logit, and an atomic add is done in the order in which blocks come. Sums of fp32 parts would
// differ from run to run; multiples of 2^-32 in 64 bits do not. A part that such a number cannot hold, an infinity or a NaN is
// counted in a word of its own, which makes every logit of the batch a NaN: the network has broken down anyway.
#pragma once

#include <cstdint>

#include "streamed/plan.h"

namespace headroom::streamed {

/// Sums of a step: [32 rows][16 classes], then the count of broken parts; in words of 64 bits. A step adds to one of three such sets,
/// reads it behind a barrier, and clears the set of the step after the next.
inline constexpr int kLogitSums = kGroupRows * kTileSide, kLogitSumsPitch = kLogitSums + 16,
                     kLogitSumSets = 3;

inline constexpr float kLogitUnits = 4294967296.0f, kLargestPart = 4194304.0f;  // 2^32, 2^22
inline constexpr int kMostParts = 512;
// The largest sum, parts of 2^54 units, fits.
static_assert(kMostParts <= (std::int64_t{1} << (63 - 54)));

STREAMED_BOTH bool can_be_added(float part) { return part < kLargestPart && part > -kLargestPart; }
STREAMED_BOTH float logit_of(std::int64_t sum) { return static_cast<float>(sum) * (1.0f / kLogitUnits); }

}  // namespace headroom::streamed
