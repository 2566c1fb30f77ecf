// The kernels between cuBLASLt's products, against plain sums and the rules in double precision.
#include <algorithm>
#include <cmath>

#include "core/training_rules.h"
#include "cublaslt/kernels.h"
#include "gpu_test.h"

namespace headroom {
namespace {

using namespace layered;

template <class Format>
class CublasltKernels : public testing::Test {
 protected:
  void SetUp() override { HEADROOM_NEEDS_DEVICE(); }
};
using AllFormats = testing::Types<Fp32, Tf32, Fp16, Bf16>;
TYPED_TEST_SUITE(CublasltKernels, AllFormats);

TYPED_TEST(CublasltKernels, SmallActivationRoundsAndMasksWhatIsOverZero) {
  using Value = typename TypeParam::Value;
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const auto& [batch, width] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {31, 136}, {5, 264}}) {
    TestMatrix<float> sums(batch, width), bias(1, width);
    sums.fill_random<Fp32>(random, 1);
    bias.fill_random<Fp32>(random, 1);
    TestMatrix<Value> hidden(batch, width);
    const std::int64_t words = cublaslt::mask_pitch(width) / 32;
    DeviceBuffer<std::uint32_t> mask(batch * words);
    mask.fill_bytes(0xff);
    Stream stream;
    cublaslt::activate<TypeParam>(sums.buffer.data(), bias.buffer.data(), hidden.buffer.data(), mask.data(),
                                  batch, width, stream);
    stream.synchronize();
    const std::vector<double> found = hidden.found();
    const std::vector<std::uint32_t> bits = mask.to_host();
    for (std::int64_t row = 0; row < batch; ++row)
      for (std::int64_t column = 0; column < width; ++column) {
        const float sum = static_cast<float>(sums.at(row, column)) + static_cast<float>(bias.at(0, column));
        const double expected = to_float(TypeParam::round(std::max(0.0f, sum)));
        EXPECT_EQ(found[static_cast<std::size_t>(row * width + column)], expected) << row << ", " << column;
        const std::uint32_t word = bits[static_cast<std::size_t>(row * words + column / 32)];
        EXPECT_EQ((word >> (column % 32)) & 1, expected > 0 ? 1u : 0u) << row << ", " << column;
      }
  }
}

TYPED_TEST(CublasltKernels, SmallActivationsAndTheirSlopesRoundOnce) {
  using Value = typename TypeParam::Value;
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  // Half a unit of the format, and what fp32 functions are off; below, what is left of 1 + erf(z) where it nearly cancels.
  const double close = TypeParam::kPrecision == Precision::kFp16   ? 6e-4
                       : TypeParam::kPrecision == Precision::kBf16 ? 5e-3
                                                                   : 4e-6;
  for (const Activation activation : kAllActivations)
    for (const auto& [batch, width] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {31, 136}, {5, 264}}) {
      SCOPED_TRACE(std::string(to_string(activation)) + " " + std::to_string(batch) + " " +
                   std::to_string(width));
      TestMatrix<float> sums(batch, width), bias(1, width), incoming(batch, width);
      sums.fill_random<Fp32>(random, 2);
      bias.fill_random<Fp32>(random, 1);
      incoming.fill_random<Fp32>(random, 1);
      TestMatrix<Value> hidden(batch, width), kept(batch, width), gradient(batch, width);
      Stream stream;
      cublaslt::activate_other<TypeParam>(activation, sums.buffer.data(), bias.buffer.data(),
                                          hidden.buffer.data(), kept.buffer.data(), batch, width, stream);
      const bool of_output = rules::slope_is_of_output(activation);
      cublaslt::pass_back<TypeParam>(activation, incoming.buffer.data(),
                                     (of_output ? hidden : kept).buffer.data(), gradient.buffer.data(), batch,
                                     width, stream);
      stream.synchronize();
      const std::vector<double> outputs = hidden.found(), befores = kept.found(),
                                gradients = gradient.found();
      for (std::int64_t row = 0; row < batch; ++row)
        for (std::int64_t column = 0; column < width; ++column) {
          const auto i = static_cast<std::size_t>(row * width + column);
          const float z = static_cast<float>(sums.at(row, column)) + static_cast<float>(bias.at(0, column));
          EXPECT_EQ(befores[i], to_float(TypeParam::round(z)));
          const double output = rules::activated(activation, z);
          EXPECT_NEAR(outputs[i], output, close * std::abs(output) + 3e-6) << z;
          const double slope = rules::slope(activation, of_output ? outputs[i] : befores[i]);
          const double expected = slope * incoming.at(row, column);
          EXPECT_NEAR(gradients[i], expected, close * std::abs(expected) + 3e-6) << z;
        }
    }
}

TYPED_TEST(CublasltKernels, SmallBiasUpdateSumsTheRowsOfEveryPart) {
  using Value = typename TypeParam::Value;
  const std::uint64_t seed = fresh_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const auto& [batch, width] : {std::pair<std::int64_t, std::int64_t>{1, 8}, {31, 136}, {1111, 264}}) {
    TestMatrix<Value> gradient(batch, width);
    gradient.template fill_random<TypeParam>(random, 1);
    TestMatrix<float> biases(1, width);
    biases.fill_random<Fp32>(random, 1);
    const int parts = cublaslt::bias_parts(batch);
    DeviceBuffer<float> sums(parts * width);
    sums.fill_bytes(0xff);
    Stream stream;
    cublaslt::sum_columns<TypeParam>(gradient.buffer.data(), batch, width, parts, sums.data(), width, stream);
    cublaslt::update_biases(biases.buffer.data(), sums.data(), parts, width, 0.25f, stream);
    TestMatrix<float> whole(1, width);
    cublaslt::sum_parts(sums.data(), parts, width, whole.buffer.data(), stream);
    stream.synchronize();
    std::vector<double> expected, expected_sums;
    for (std::int64_t column = 0; column < width; ++column) {
      double sum = 0;
      for (std::int64_t row = 0; row < batch; ++row) sum += gradient.at(row, column);
      expected.push_back(biases.at(0, column) - 0.25 * sum);
      expected_sums.push_back(sum);
    }
    EXPECT_FALSE(!(relative_error(whole.found(), expected_sums) <= 1e-5)) << batch << ", " << width;
    EXPECT_FALSE(!(relative_error(biases.found(), expected) <= 1e-5)) << batch << ", " << width;
  }
}

}  // namespace
}  // namespace headroom
