// Rounding a double to the number formats of the precision contract.
//
// tf32 has no rounding of its own in the contract beyond "nearest": ties go to even here, as in cvt.rn;
// hardware that sends ties away (cvt.rna) differs on one value in 2^13 at most, by half a unit, well inside
// the step check's bound. A bf16 weight is the high half of an exact split, (bits + 0x8000) >> 16, which
// sends ties away from zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace headroom {

enum class Ties { kToEven, kAwayFromZero };

/// `value` rounded to nearest with `kMantissaBits` bits after the leading one; below 2^kMinExponent the
/// spacing stays that of the subnormals; what rounds to more than the largest finite value (2^kMaxExponent *
/// (2 - 2^-kMantissaBits)) becomes infinite; NaN stays NaN.
template <int kMantissaBits, int kMinExponent, int kMaxExponent, Ties kTies>
[[gnu::always_inline]] inline double round_to_format(double value) {
  constexpr int kShift = 52 - kMantissaBits;
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63, kHalf = std::uint64_t{1} << (kShift - 1);
  constexpr std::uint64_t kLow = (std::uint64_t{1} << kShift) - 1;
  constexpr std::uint64_t kInfinity = std::uint64_t{0x7ff} << 52;
  constexpr std::uint64_t kSmallestNormal = std::uint64_t(1023 + kMinExponent) << 52;
  constexpr std::uint64_t kBeyondLargest = std::uint64_t(1023 + kMaxExponent + 1) << 52;
  // Adding this to a smaller magnitude rounds it (to even) to a multiple of the subnormal spacing.
  constexpr double kRounder =
      std::bit_cast<double>(std::uint64_t(1023 + kMinExponent - kMantissaBits + 52) << 52);
  constexpr double kHalfSpacing =
      std::bit_cast<double>(std::uint64_t(1023 + kMinExponent - kMantissaBits - 1) << 52);

  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t magnitude = bits & ~kSign;
  const std::uint64_t bias = kTies == Ties::kToEven ? kHalf - 1 + ((magnitude >> kShift) & 1) : kHalf;
  std::uint64_t rounded = (magnitude + bias) & ~kLow;
  rounded = rounded >= kBeyondLargest ? kInfinity : rounded;

  const double absolute = std::bit_cast<double>(magnitude);
  double small = (absolute + kRounder) - kRounder;
  if constexpr (kTies == Ties::kAwayFromZero) {
    small = absolute - small == kHalfSpacing ? small + 2 * kHalfSpacing : small;
  }
  rounded = magnitude < kSmallestNormal ? std::bit_cast<std::uint64_t>(small) : rounded;
  rounded = magnitude > kInfinity ? magnitude : rounded;
  return std::bit_cast<double>(rounded | (bits & kSign));
}

[[gnu::always_inline]] inline double round_to_tf32(double value) {
  return round_to_format<10, -126, 127, Ties::kToEven>(value);
}
/// Towards zero, in the range of normal numbers.
[[gnu::always_inline]] inline double cut_off_to_tf32(double value) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & ~((std::uint64_t{1} << 42) - 1));
}
[[gnu::always_inline]] inline double round_to_fp16(double value) {
  return round_to_format<10, -14, 15, Ties::kToEven>(value);
}
[[gnu::always_inline]] inline double round_to_bf16(double value) {
  return round_to_format<7, -126, 127, Ties::kToEven>(value);
}
/// A master weight on its way into a bf16 product.
[[gnu::always_inline]] inline double round_weight_to_bf16(double value) {
  return round_to_format<7, -126, 127, Ties::kAwayFromZero>(value);
}

}  // namespace headroom
