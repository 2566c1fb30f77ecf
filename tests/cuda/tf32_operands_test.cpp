// What cuda-streamed's packed tiles assume of the tensor core. Apart from the trainer's tests: only a GPU can answer.
#include "tf32_operands.h"

#include <gtest/gtest.h>

#include "fresh_seed.h"
#include "streamed/trainer.h"

namespace headroom {
namespace {

TEST(StreamedPackedTiles, TheTensorCoreDoesNotLookBehindAValue) {
  if (const auto reason = streamed_unavailable(0)) GTEST_SKIP() << *reason;
  const auto seed = static_cast<std::uint32_t>(fresh_seed());
  for (const bool special : {false, true}) EXPECT_EQ(sums_that_lower_bits_change(seed, special), 0) << seed;
}

}  // namespace
}  // namespace headroom
