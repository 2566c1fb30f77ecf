// The generator and the flat layout.
#include "core/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/parallel.h"

namespace headroom {
namespace {

void expect_block(const PhiloxBlock& block, std::array<std::uint32_t, 4> words) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], words[static_cast<std::size_t>(i)]) << "word " << i;
}

// The vectors of Random123's kat_vectors file, "philox4x32 10".
TEST(Philox, GivesTheKnownAnswers) {
  expect_block(philox(0, 0, 0), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_block(philox(~0ULL, ~0ULL, ~0ULL), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_block(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Parameters, LayoutIsWeightThenBiasLayerAfterLayer) {
  Parameters parameters({3, 4, 2});
  ASSERT_EQ(parameters.flat().size(), 3u * 4 + 4 + 4 * 2 + 2);
  EXPECT_EQ(parameters.layers(), 2);
  EXPECT_EQ(parameters.weight(0).data(), parameters.flat().data());
  EXPECT_EQ(parameters.bias(0).data(), parameters.flat().data() + 12);
  EXPECT_EQ(parameters.weight(1).data(), parameters.flat().data() + 16);
  EXPECT_EQ(parameters.bias(1).data(), parameters.flat().data() + 24);
  EXPECT_EQ(parameters.bias(1).size(), 2u);

  const std::vector<TensorRange> ranges = tensor_ranges({3, 4, 2});
  ASSERT_EQ(ranges.size(), 4u);
  EXPECT_EQ(ranges[2].name, "weight2");
  EXPECT_EQ(ranges[2].begin, 16);
  EXPECT_EQ(ranges[3].name, "bias2");
  EXPECT_EQ(ranges[3].size, 2);
}

TEST(InitialParameters, FollowTheWrittenFormula) {
  const std::vector<int> widths = {7, 5, 3};
  const Parameters parameters = initial_parameters(widths, 42);
  for (const TensorRange& range : tensor_ranges(widths)) {
    const int in = range.name.back() == '1' ? 7 : 5;
    for (std::int64_t i = range.begin; i < range.begin + range.size; ++i) {
      const PhiloxBlock block = philox(42, static_cast<std::uint64_t>(i / 4), 0);
      const int odd = 2 * static_cast<int>(block.word[i % 4] >> 8) + 1 - (1 << 24);
      const float bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(in)));
      EXPECT_EQ(parameters.flat()[i], static_cast<float>(odd) / 16777216.0f * bound);
    }
  }
}

TEST(InitialParameters, AreUniformWithTheBoundOfLinear) {
  const Parameters parameters = initial_parameters({400, 250, 10}, 3);
  const std::span<const float> weight = parameters.weight(0);
  double sum = 0, squares = 0;
  for (float value : weight) {
    EXPECT_LE(std::abs(value), 0.05f);
    sum += value;
    squares += double{value} * value;
  }
  const double count = static_cast<double>(weight.size());
  EXPECT_NEAR(sum / count, 0, 5e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.05 / std::sqrt(3.0), 2e-4);
}

TEST(InitialParameters, DoNotDependOnThreadsAndDependOnTheSeed) {
  const std::vector<int> widths = {784, 300, 300, 10};
  set_parallel_threads(1);
  const Parameters one = initial_parameters(widths, 5);
  set_parallel_threads(5);
  const Parameters five = initial_parameters(widths, 5);
  set_parallel_threads(0);
  EXPECT_TRUE(std::ranges::equal(one.flat(), five.flat()));
  EXPECT_FALSE(std::ranges::equal(one.flat(), initial_parameters(widths, 6).flat()));
}

}  // namespace
}  // namespace headroom
