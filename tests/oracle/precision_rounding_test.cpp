// The contract's roundings, value by value.
#include "oracle/precision_rounding.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/parameters.h"
#include "oracle/products.h"

namespace headroom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// All values of a format with the given bits that are not negative and finite, ascending.
std::vector<double> values_of(int mantissa_bits, int smallest_exponent, int largest_exponent) {
  std::vector<double> values;
  const int count = 1 << mantissa_bits;
  for (int i = 0; i < count; ++i) values.push_back(std::ldexp(i, smallest_exponent - mantissa_bits));
  for (int exponent = smallest_exponent; exponent <= largest_exponent; ++exponent) {
    for (int i = 0; i < count; ++i) values.push_back(std::ldexp(count + i, exponent - mantissa_bits));
  }
  return values;
}

// `round` keeps every value, sends what lies between to the nearer one, and halves to the even one or away
// from zero.
template <typename Round>
void expect_nearest(const std::vector<double>& values, bool ties_away, Round round) {
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const double low = values[i], high = values[i + 1], middle = low + (high - low) / 2;
    ASSERT_EQ(round(low), low);
    ASSERT_EQ(round(-high), -high);
    ASSERT_EQ(round(std::nextafter(middle, 0.0)), low);
    ASSERT_EQ(round(std::nextafter(middle, kInfinity)), high);
    ASSERT_EQ(round(middle), ties_away || i % 2 == 1 ? high : low) << middle;
    ASSERT_EQ(round(-middle), ties_away || i % 2 == 1 ? -high : -low) << middle;
  }
  EXPECT_EQ(round(kInfinity), kInfinity);
  EXPECT_EQ(round(-kInfinity), -kInfinity);
  EXPECT_EQ(round(1e300), kInfinity);
  EXPECT_TRUE(std::isnan(round(std::nan(""))));
  EXPECT_TRUE(std::signbit(round(-0.0)));
}

TEST(PrecisionRounding, Fp16IsNearestEven) { expect_nearest(values_of(10, -14, 15), false, round_to_fp16); }
TEST(PrecisionRounding, Bf16IsNearestEven) { expect_nearest(values_of(7, -126, 127), false, round_to_bf16); }
TEST(PrecisionRounding, Tf32IsNearestEven) { expect_nearest(values_of(10, -126, 127), false, round_to_tf32); }
TEST(PrecisionRounding, Bf16WeightsAreNearestAway) {
  expect_nearest(values_of(7, -126, 127), true, round_weight_to_bf16);
}

TEST(PrecisionRounding, Fp16OverflowsWhereTheNextValueWouldBeNearer) {
  EXPECT_EQ(round_to_fp16(65519.99), 65504);
  EXPECT_EQ(round_to_fp16(65520), kInfinity);
  EXPECT_EQ(round_to_fp16(-65520), -kInfinity);
}

TEST(PrecisionRounding, Bf16WeightIsTheHighHalfOfTheExactSplit) {
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const std::uint32_t bits = philox(7, i, 0).word[0];
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const float high = std::bit_cast<float>(((bits + 0x8000) >> 16) << 16);
    ASSERT_EQ(round_weight_to_bf16(value), high) << value;
  }
}

TEST(PrecisionRounding, VectorsRoundAsSingleValuesDo) {
  std::vector<double> values = {std::nan(""), kInfinity, -kInfinity, 0.0,   -0.0,
                                65520,        1e-8,      1e-39,      -3e38, 1e-44};
  for (std::uint64_t i = 0; i < 5000; ++i) {
    values.push_back(std::bit_cast<float>(philox(11, i, 0).word[0]));
    values.push_back(philox(12, i, 0).word[0] * 1e-9 - 2);
  }
  const auto expect_same = [&](ProductRounding rounding, double (*round)(double)) {
    std::vector<double> rounded(values.size());
    round_values(rounding, values.data(), rounded.data(), static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = round(values[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(rounded[i]));
      } else {
        ASSERT_EQ(rounded[i], expected) << values[i];
      }
    }
  };
  expect_same(ProductRounding::kNone, [](double value) { return value; });
  expect_same(ProductRounding::kTf32, [](double value) { return round_to_tf32(value); });
  expect_same(ProductRounding::kFp16, [](double value) { return round_to_fp16(value); });
  expect_same(ProductRounding::kBf16, [](double value) { return round_to_bf16(value); });
  expect_same(ProductRounding::kBf16Weight, [](double value) { return round_weight_to_bf16(value); });
}

}  // namespace
}  // namespace headroom
