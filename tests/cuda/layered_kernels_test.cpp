// Every kernel of cuda-layered against sums in double precision, on fresh random inputs and odd shapes.
//
// Inputs are values that the precision stores exactly, so what is compared is the kernel's own arithmetic;
// outputs and all padding start as NaN.
#include <gmock/gmock.h>

#include <optional>

#include "core/training_rules.h"
#include "gpu_test.h"
#include "layered/kernels.h"

namespace headroom::layered {
namespace {

struct Shape {
  std::int64_t batch, in, out;
};

std::ostream& operator<<(std::ostream& stream, const Shape& shape) {
  return stream << "batch " << shape.batch << ", in " << shape.in << ", out " << shape.out;
}

// One tile and less, edges in every direction, more slabs than stages.
const Shape kSmallShapes[] = {{1, 1, 1},     {1, 7, 33},  {31, 33, 7},   {31, 1, 129}, {32, 784, 128},
                              {33, 100, 10}, {32, 8, 64}, {64, 257, 65}, {100, 50, 7}, {7, 1030, 31}};
// Many and few tiles, long and short walks, with and without the 128 x 128 tile.
const Shape kLargeShapes[] = {{32, 40, 20000}, {32, 1001, 16385}, {31, 1500, 9001},  {32, 8191, 10},
                              {31, 4100, 515}, {5000, 77, 1999},  {2100, 1027, 600}, {2500, 130, 129}};

template <class Format>
class LayeredKernels : public testing::Test {
 protected:
  using Value = typename Format::Value;

  void SetUp() override {
    HEADROOM_NEEDS_DEVICE();
    seed_ = fresh_seed();
    random_.seed(seed_);
  }

  /// What a sum in fp32 and one rounding to Value may cost, in the Frobenius norm.
  static double bound_of_stored() {
    switch (Format::kPrecision) {
      case Precision::kFp16:
        return 5e-4;
      case Precision::kBf16:
        return 4e-3;
      default:
        return kBoundOfSum;
    }
  }
  // tf32: the hardware sends ties away from zero, the reference to even.
  static constexpr double kBoundOfSum = Format::kPrecision == Precision::kTf32 ? 2e-4 : 2e-5;

  /// Made once, as in the trainer: a product must leave it ready for the next.
  SplitSums split() {
    if (split_sums_.size() == 0) {
      split_sums_ = DeviceBuffer<float>(split_sum_values());
      split_sums_.fill_bytes(0xff);
      arrivals_ = DeviceBuffer<unsigned>(split_sum_tiles());
      arrivals_.fill_bytes(0);
    }
    return {split_sums_.data(), arrivals_.data()};
  }

  /// `absolute`: what each value may be off beside that, where it is a small difference of larger ones.
  void expect_close(const std::vector<double>& found, const std::vector<double>& expected, double bound,
                    const Shape& shape, double absolute = 0) {
    const double error = relative_error(found, expected);
    double squares = 0;
    for (const double value : expected) squares += value * value;
    if (squares > 0) bound += absolute * std::sqrt(static_cast<double>(expected.size()) / squares);
    EXPECT_FALSE(!(error <= bound)) << "error " << error << ", bound " << bound << ", " << shape << ", seed "
                                    << seed_;
  }

  static std::vector<double> rounded_for_product(const std::vector<double>& values) {
    std::vector<double> result = values;
    for (double& value : result) value = product_input<Format>(value);
    return result;
  }

  /// x * W^T + b over rows [first_row, first_row + batch) of x.
  static std::vector<double> forward(const TestMatrix<Value>& x, const TestMatrix<Value>& w,
                                     const TestMatrix<float>& b, std::int64_t first_row, std::int64_t batch) {
    const std::vector<double> inputs = rounded_for_product(x.values), weights = rounded_for_product(w.values);
    std::vector<double> result;
    for (std::int64_t row = first_row; row < first_row + batch; ++row)
      for (std::int64_t out = 0; out < w.rows; ++out) {
        double sum = 0;
        for (std::int64_t k = 0; k < x.columns; ++k)
          sum += inputs[static_cast<std::size_t>(row * x.columns + k)] *
                 weights[static_cast<std::size_t>(out * x.columns + k)];
        result.push_back(sum + b.at(0, out));
      }
    return result;
  }

  void check_forward(const Shape& shape) {
    const double scale = 1 / std::sqrt(static_cast<double>(shape.in));
    TestMatrix<Value> x(3 * shape.batch, shape.in), w(shape.out, shape.in), hidden(shape.batch, shape.out);
    TestMatrix<float> bias(1, shape.out), logits(shape.batch, shape.out);
    x.template fill_random<Format>(random_, 1);
    w.template fill_random<Format>(random_, scale);
    bias.template fill_random<Fp32>(random_, 1);
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{7, 2}});

    forward_logits<Format>(x.readable(), state.data(), w.readable(), bias.buffer.data(), logits.view(),
                           split(), stream_);
    const auto first_rows = matrix<const Value>(x.buffer.data(), shape.batch, shape.in);
    forward_hidden<Format>(first_rows, nullptr, w.readable(), bias.buffer.data(), Activation::kRelu,
                           hidden.view(), nullptr, split(), stream_);
    stream_.synchronize();
    expect_close(logits.found(), forward(x, w, bias, 2 * shape.batch, shape.batch), kBoundOfSum, shape);
    std::vector<double> expected = forward(x, w, bias, 0, shape.batch);
    for (double& value : expected) value = value < 0 ? 0 : value;
    expect_close(hidden.found(), expected, bound_of_stored(), shape);
  }

  void check_input_gradient(const Shape& shape) {
    TestMatrix<Value> d(shape.batch, shape.out), w(shape.out, shape.in), hidden(shape.batch, shape.in),
        result(shape.batch, shape.in);
    d.template fill_random<Format>(random_, 1);
    w.template fill_random<Format>(random_, 1 / std::sqrt(static_cast<double>(shape.out)));
    hidden.template fill_random<Format>(random_, 1);  // negative values: masked as zeros are
    input_gradient<Format>(d.readable(), w.readable(), Activation::kRelu, hidden.readable(), result.view(),
                           split(), stream_);
    stream_.synchronize();
    const std::vector<double> gradient = rounded_for_product(d.values),
                              weights = rounded_for_product(w.values);
    std::vector<double> expected(static_cast<std::size_t>(shape.batch * shape.in));
    for (std::int64_t row = 0; row < shape.batch; ++row)
      for (std::int64_t out = 0; out < shape.out; ++out)
        for (std::int64_t in = 0; in < shape.in; ++in)
          if (hidden.at(row, in) > 0)
            expected[static_cast<std::size_t>(row * shape.in + in)] +=
                gradient[static_cast<std::size_t>(row * shape.out + out)] *
                weights[static_cast<std::size_t>(out * shape.in + in)];
    expect_close(result.found(), expected, bound_of_stored(), shape);
  }

  void check_weight_gradient(const Shape& shape, int splits) {
    TestMatrix<Value> d(shape.batch, shape.out), x(2 * shape.batch, shape.in);
    d.template fill_random<Format>(random_, 1);
    x.template fill_random<Format>(random_, 1);
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{5, 1}});
    // As in the trainer: the weight, then the bias, one such block for each part.
    const std::int64_t weight_size = shape.out * padded(shape.in), stride = weight_size + padded(shape.out);
    DeviceBuffer<float> parts(splits * stride);
    TestMatrix<float> weights(shape.out, shape.in), sums(1, stride);
    parts.fill_bytes(0xff);
    weight_gradient<Format>(d.readable(), x.readable(), state.data(),
                            matrix(parts.data(), shape.out, shape.in), parts.data() + weight_size, splits,
                            stride, stream_);
    sum_splits(parts.data(), splits, stride, sums.buffer.data(), stride, stream_);
    stream_.synchronize();

    const std::vector<double> gradient = rounded_for_product(d.values),
                              inputs = rounded_for_product(x.values);
    std::vector<double> expected(static_cast<std::size_t>(shape.out * shape.in)), found, expected_bias,
        found_bias;
    const std::vector<double> all = sums.found();
    for (std::int64_t row = 0; row < shape.batch; ++row)
      for (std::int64_t out = 0; out < shape.out; ++out)
        for (std::int64_t in = 0; in < shape.in; ++in)
          expected[static_cast<std::size_t>(out * shape.in + in)] +=
              gradient[static_cast<std::size_t>(row * shape.out + out)] *
              inputs[static_cast<std::size_t>((shape.batch + row) * shape.in + in)];
    for (std::int64_t out = 0; out < shape.out; ++out) {
      for (std::int64_t in = 0; in < shape.in; ++in)
        found.push_back(all[static_cast<std::size_t>(out * padded(shape.in) + in)]);
      found_bias.push_back(all[static_cast<std::size_t>(weight_size + out)]);
      double sum = 0;
      for (std::int64_t row = 0; row < shape.batch; ++row) sum += d.at(row, out);  // tf32 does not round here
      expected_bias.push_back(sum);
    }
    expect_close(found, expected, kBoundOfSum, shape);
    expect_close(found_bias, expected_bias, kBoundOfSum, shape);
  }

  void check_loss(std::int64_t batch, std::int64_t classes) {
    const Shape shape{batch, 0, classes};
    TestMatrix<float> logits(batch, classes), row_losses(1, batch);
    TestMatrix<Value> gradient(batch, classes);
    logits.template fill_random<Fp32>(random_, 3);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(4 * batch));
    for (auto& label : labels)
      label = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(classes));
    DeviceBuffer<std::int32_t> device_labels(4 * batch);
    device_labels.copy_from(labels);
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{7, 3}});
    const double scale = 16.0 / static_cast<double>(batch);
    loss_gradient<Format>(logits.readable(), device_labels.data(), state.data(), static_cast<float>(scale),
                          gradient.view(), row_losses.buffer.data(), stream_);
    stream_.synchronize();
    std::vector<double> expected, expected_losses;
    for (std::int64_t row = 0; row < batch; ++row) {
      const std::int64_t label = labels[static_cast<std::size_t>(3 * batch + row)];
      double sum = 0;  // of exponentials relative to the label's, so that one class gives exactly nothing
      for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(logits.at(row, c) - logits.at(row, label));
      for (std::int64_t c = 0; c < classes; ++c)
        expected.push_back(
            (std::exp(logits.at(row, c) - logits.at(row, label)) / sum - (c == label ? 1 : 0)) * scale);
      expected_losses.push_back(std::log(sum));
    }
    // A label of nearly all the probability: its gradient is 1 - p, its loss the logarithm of nearly 1.
    const double rounding = std::numeric_limits<float>::epsilon();
    expect_close(gradient.found(), expected, bound_of_stored(), shape, rounding * scale);
    expect_close(row_losses.found(), expected_losses, kBoundOfSum, shape, rounding);
  }

  void check_loss_of_targets(Loss loss, std::int64_t batch, std::int64_t count) {
    const Shape shape{batch, 0, count};
    TestMatrix<float> outputs(batch, count), row_losses(1, batch);
    TestMatrix<Value> gradient(batch, count);
    outputs.template fill_random<Fp32>(random_, 3);
    std::vector<float> targets(static_cast<std::size_t>(4 * batch * count));
    std::normal_distribution<float> normal;
    for (float& target : targets)
      target = loss == Loss::kMeanSquaredError ? normal(random_) : static_cast<float>(random_() % 2);
    DeviceBuffer<float> device_targets(4 * batch * count);
    device_targets.copy_from(targets);
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{7, 3}});
    const double scale = 16.0 / static_cast<double>(batch * count);
    loss_of_targets<Format>(loss, outputs.readable(), device_targets.data(), state.data(),
                            static_cast<float>(scale), gradient.view(), row_losses.buffer.data(), stream_);
    stream_.synchronize();
    std::vector<double> expected, expected_losses;
    for (std::int64_t row = 0; row < batch; ++row) {
      double sum = 0;
      for (std::int64_t c = 0; c < count; ++c) {
        const double target = targets[static_cast<std::size_t>((3 * batch + row) * count + c)];
        const rules::LossPart part = loss == Loss::kMeanSquaredError
                                         ? rules::squared_error(outputs.at(row, c), target)
                                         : rules::binary_cross_entropy(outputs.at(row, c), target);
        expected.push_back(part.gradient * scale);
        sum += part.loss;
      }
      expected_losses.push_back(sum / static_cast<double>(count));
    }
    expect_close(gradient.found(), expected, bound_of_stored(), shape);
    expect_close(row_losses.found(), expected_losses, kBoundOfSum, shape);
  }

  std::uint64_t seed_ = 0;
  DeviceBuffer<float> split_sums_;
  DeviceBuffer<unsigned> arrivals_;
  std::mt19937_64 random_;
  struct LazyStream {
    Stream& get() {
      if (!stream) stream.emplace();
      return *stream;
    }
    operator Stream&() { return get(); }
    void synchronize() { get().synchronize(); }
    std::optional<Stream> stream;
  } stream_;  // a stream cannot be made where the test is skipped
};

using Formats = testing::Types<Fp32, Tf32, Fp16, Bf16>;
TYPED_TEST_SUITE(LayeredKernels, Formats, FormatNames);

TYPED_TEST(LayeredKernels, SmallForwardMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_forward(shape);
}

// Just over a tile, and few inner indices: on a GPU of four multiprocessors these take the tiles of large batches.
const Shape kSmallShapesOverATile[] = {
    {129, 1, 65}, {130, 3, 129}, {257, 17, 66}, {129, 40, 130}, {300, 9, 10}};
TYPED_TEST(LayeredKernels, SmallForwardMatchesDoubleJustOverATile) {
  for (const Shape& shape : kSmallShapesOverATile) this->check_forward(shape);
}
TYPED_TEST(LayeredKernels, SmallInputGradientMatchesDoubleJustOverATile) {
  for (const Shape& shape : kSmallShapesOverATile)
    this->check_input_gradient({shape.batch, shape.out, shape.in});
}
TYPED_TEST(LayeredKernels, SmallWeightGradientOfALargeBatchMatchesDouble) {
  for (const auto& [batch, in, out] : {Shape{1025, 5, 17}, {1030, 65, 129}, {1055, 9, 130}})
    this->check_weight_gradient({batch, in, out}, 1);
  this->check_weight_gradient({1100, 70, 20}, 3);
}
TYPED_TEST(LayeredKernels, ForwardMatchesDoubleOnLargeShapes) {
  for (const Shape& shape : kLargeShapes) this->check_forward(shape);
}

TYPED_TEST(LayeredKernels, SmallInputGradientMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_input_gradient(shape);
}
TYPED_TEST(LayeredKernels, InputGradientMatchesDoubleOnLargeShapes) {
  for (const Shape& shape : kLargeShapes) this->check_input_gradient({shape.batch, shape.out, shape.in});
}

TYPED_TEST(LayeredKernels, SmallWeightGradientMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_weight_gradient(shape, 1);
}
TYPED_TEST(LayeredKernels, SmallWeightGradientInPartsMatchesDouble) {
  this->check_weight_gradient({31, 33, 7}, 3);
  this->check_weight_gradient({7, 9, 40}, 5);  // the last part is empty
  this->check_weight_gradient({400, 65, 33}, 2);
}
TYPED_TEST(LayeredKernels, WeightGradientMatchesDoubleOnLargeShapes) {
  this->check_weight_gradient({32, 1999, 2049}, 1);
  this->check_weight_gradient({31, 3000, 4001}, 1);
  const int splits = weight_gradient_splits(TypeParam::kPrecision, 20000, 64, 65);
  EXPECT_GT(splits, 1);
  this->check_weight_gradient({20000, 65, 64}, splits);
  this->check_weight_gradient({5000, 300, 260},
                              weight_gradient_splits(TypeParam::kPrecision, 5000, 260, 300));
}

TYPED_TEST(LayeredKernels, SmallLossAndGradientMatchDouble) {
  for (const std::int64_t batch : {1, 31, 32, 700})
    for (const std::int64_t classes : {1, 7, 10, 33}) this->check_loss(batch, classes);
  this->check_loss(3, 5000);
}

TYPED_TEST(LayeredKernels, SmallLossesOfTargetsAndTheirGradientsMatchDouble) {
  for (const Loss loss : {Loss::kMeanSquaredError, Loss::kBinaryCrossEntropy})
    for (const auto& [batch, count] : {std::pair{1, 1}, {31, 1}, {700, 1}, {33, 7}, {5, 33}, {3, 500}})
      this->check_loss_of_targets(loss, batch, count);
}

// Hidden values of a layer of one input and weight 1 are the activation of the inputs; the gradient of 1 is its slope.
TYPED_TEST(LayeredKernels, SmallActivationsAndSlopesAreThoseOfDouble) {
  using Stored = typename TypeParam::Value;
  const std::int64_t batch = 8500;  // in fp32 tiles of large batches, on up to 134 multiprocessors
  TestMatrix<Stored> x(batch, 1), one(1, 1), ones(batch, 1), hidden(batch, 1), sums(batch, 1),
      slopes(batch, 1);
  TestMatrix<float> bias(1, 1);
  x.template fill_random<TypeParam>(this->random_, 4);
  auto inputs = x.buffer.to_host();
  const float kEdges[] = {0, -0.0f, 1e-3f, -1e-3f, 90, -90, 300, -300};
  for (std::size_t i = 0; i < std::size(kEdges); ++i) inputs[8 * i] = TypeParam::round(kEdges[i]);
  x.buffer.copy_from(inputs);
  one.buffer.copy_from(std::vector<Stored>(8, TypeParam::round(1)));
  ones.buffer.copy_from(std::vector<Stored>(static_cast<std::size_t>(8 * batch), TypeParam::round(1)));
  bias.buffer.fill_bytes(0);
  const auto rounded = [](double value) {
    return static_cast<double>(to_float(TypeParam::round(static_cast<float>(value))));
  };
  const auto difference = [](double found, double expected) {
    return std::abs(found - expected) / std::max(1.0, std::abs(expected));
  };
  for (const Activation activation : kAllActivations) {
    const bool of_output = rules::slope_is_of_output(activation);
    forward_hidden<TypeParam>(x.readable(), nullptr, one.readable(), bias.buffer.data(), activation,
                              hidden.view(), of_output ? nullptr : sums.buffer.data(), this->split(),
                              this->stream_);
    input_gradient<TypeParam>(ones.readable(), one.readable(), activation,
                              of_output ? hidden.readable() : sums.readable(), slopes.view(), this->split(),
                              this->stream_);
    this->stream_.synchronize();
    const std::vector<double> entered = x.found(), found = hidden.found(), kept = sums.found(),
                              found_slopes = slopes.found();
    const double bound = std::is_same_v<TypeParam, Fp16>   ? 5e-4
                         : std::is_same_v<TypeParam, Bf16> ? 4e-3
                                                           : 1e-6;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double z = product_input<TypeParam>(entered[i]);
      const std::string what = std::string(to_string(activation)) + " of " + std::to_string(z) + ", seed " +
                               std::to_string(this->seed_);
      ASSERT_LE(difference(found[i], rules::activated(activation, z)), bound) << what;
      if (!of_output) {
        ASSERT_EQ(kept[i], rounded(z)) << what;
      }
      ASSERT_LE(difference(found_slopes[i], rules::slope(activation, of_output ? found[i] : z)), bound)
          << "slope of " << what;
    }
  }
}

TYPED_TEST(LayeredKernels, SmallUpdateWithSlotsFollowsTheRuleOfItsStep) {
  using Stored = typename TypeParam::Value;
  constexpr bool kCopies = sizeof(Stored) == 2;
  const std::int64_t count = 4 * 1237;
  const Optimizer optimizers[] = {{.momentum = 0.9},
                                  {.kind = Optimizer::Kind::kAdam},
                                  {.kind = Optimizer::Kind::kAdamW, .weight_decay = 0.1}};
  for (const Optimizer& optimizer : optimizers)
    for (const long long step : {0ll, 6ll, 299ll, 1ll << 40}) {
      TestMatrix<float> masters(1, count), gradient(1, count), first(1, count), second(1, count);
      masters.template fill_random<Fp32>(this->random_, 1);
      gradient.template fill_random<Fp32>(this->random_, 5);
      first.template fill_random<Fp32>(this->random_, 0.01);
      second.template fill_random<Fp32>(this->random_, 0.01);
      std::vector<float> squares = second.buffer.to_host();
      for (float& value : squares) value *= value;
      second.buffer.copy_from(squares);
      TestMatrix<Stored> copy(1, count);
      DeviceBuffer<StepState> state(1);
      state.copy_from(std::vector<StepState>{{step, 0}});
      DeviceBuffer<rules::UpdateFactors> factors(1);
      set_update_factors(optimizer, state.data(), factors.data(), this->stream_);
      update_with_slots<TypeParam>(masters.buffer.data(), gradient.buffer.data(),
                                   kCopies ? copy.buffer.data() : nullptr, first.buffer.data(),
                                   optimizer.slots() == 2 ? second.buffer.data() : nullptr, count,
                                   factors.data(), 1.0f / 512, this->stream_);
      this->stream_.synchronize();
      const std::vector<double> found = masters.found(), found_first = first.found(),
                                found_second = second.found(), copies = copy.found();
      for (std::size_t i = 0; i < found.size(); ++i) {
        rules::Parameter one{.value = masters.values[i], .slots = {first.values[i], squares[i]}};
        const rules::OptimizerStep rule = rules::at_step(optimizer, static_cast<double>(step));
        rules::update(rule, gradient.values[i] / 512, one);
        // From the slots that were found: where the first is a small difference, its rounding shows in the parameter.
        const double change = rules::increment(rule, masters.values[i], found_first[i], found_second[i]);
        ASSERT_NEAR(found[i] - masters.values[i], change, 1e-6 * std::abs(change) + 6e-8 * std::abs(found[i]))
            << step;
        ASSERT_NEAR(found_first[i], one.slots[0], 1e-8) << step;
        if (optimizer.slots() == 2) {
          ASSERT_NEAR(found_second[i], one.slots[1], 1e-6 * one.slots[1]) << step;
        }
        if constexpr (kCopies) {
          ASSERT_EQ(copies[i], to_float(TypeParam::round_weight(static_cast<float>(found[i])))) << step;
        }
      }
    }
}

TYPED_TEST(LayeredKernels, SmallUpdateMatchesDoubleAndRoundsTheCopy) {
  using Stored = typename TypeParam::Value;
  const std::int64_t count = 4 * 1237;
  TestMatrix<float> masters(1, count), gradient(1, count);
  masters.template fill_random<Fp32>(this->random_, 1);
  gradient.template fill_random<Fp32>(this->random_, 300);
  TestMatrix<Stored> copy(1, count);
  constexpr bool kCopies = sizeof(Stored) == 2;
  update<TypeParam>(masters.buffer.data(), gradient.buffer.data(), kCopies ? copy.buffer.data() : nullptr,
                    count, 0.003f, 1.0f / 512, this->stream_);
  this->stream_.synchronize();
  const std::vector<double> found = masters.found();
  for (std::int64_t i = 0; i < count; ++i)
    ASSERT_NEAR(found[static_cast<std::size_t>(i)],
                masters.at(0, i) - static_cast<double>(0.003f) * gradient.at(0, i) / 512, 5e-7)
        << "at " << i << ", seed " << this->seed_;
  if constexpr (kCopies) {
    const std::vector<double> copies = copy.found();
    for (std::int64_t i = 0; i < count; ++i) {
      const double master = found[static_cast<std::size_t>(i)];
      ASSERT_EQ(copies[static_cast<std::size_t>(i)], TypeParam::kPrecision == Precision::kBf16
                                                         ? round_weight_to_bf16(master)
                                                         : round_to_fp16(master))
          << "of " << master;
    }
  }
}

TYPED_TEST(LayeredKernels, SmallRoundRowsPadsWithZeros) {
  const std::int64_t rows = 5, columns = 11;
  std::vector<float> source(static_cast<std::size_t>(rows * columns));
  std::normal_distribution<float> normal;
  for (float& value : source) value = normal(this->random_);
  DeviceBuffer<float> device_source(rows * columns);
  device_source.copy_from(source);
  TestMatrix<typename TypeParam::Value> rounded(rows, columns);
  round_rows<TypeParam>(device_source.data(), rounded.view(), this->stream_);
  this->stream_.synchronize();
  const auto found = rounded.buffer.to_host();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < 16; ++column)
      EXPECT_EQ(to_float(found[static_cast<std::size_t>(row * 16 + column)]),
                column < columns
                    ? to_float(TypeParam::round(source[static_cast<std::size_t>(row * columns + column)]))
                    : 0.0f);
}

// Below the last row of a matrix a tile may read that row again.
TYPED_TEST(LayeredKernels, SmallNaNReachesTheLogitsOfItsRowAlone) {
  using Stored = typename TypeParam::Value;
  for (const std::int64_t batch : {4, 8500}) {
    TestMatrix<Stored> x(batch, 9), w(5, 9), hidden(batch, 5);
    TestMatrix<float> bias(1, 5);
    x.template fill_random<TypeParam>(this->random_, 1);
    w.template fill_random<TypeParam>(this->random_, 1);
    bias.template fill_random<Fp32>(this->random_, 1);
    auto broken = x.buffer.to_host();
    broken[static_cast<std::size_t>(16 * (batch - 1))] = TypeParam::round(NAN);
    x.buffer.copy_from(broken);
    forward_hidden<TypeParam>(x.readable(), nullptr, w.readable(), bias.buffer.data(), Activation::kRelu,
                              hidden.view(), nullptr, this->split(), this->stream_);
    this->stream_.synchronize();
    const std::vector<double> found = hidden.found();
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(std::isnan(found[i]), i >= found.size() - 5) << "row " << i / 5 << " of " << batch;
  }
}

TYPED_TEST(LayeredKernels, SmallLaunchersRejectShapesThatDoNotFit) {
  using Stored = typename TypeParam::Value;
  TestMatrix<Stored> x(4, 9), w(5, 8), hidden(4, 5);
  DeviceBuffer<float> bias(8);
  try {
    forward_hidden<TypeParam>(x.readable(), nullptr, w.readable(), bias.data(), Activation::kRelu,
                              hidden.view(), nullptr, this->split(), this->stream_);
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("9"), testing::HasSubstr("8")));
  }
}

TEST(StepCounter, SmallFinishStepWritesTheLossAndMovesOn) {
  HEADROOM_NEEDS_DEVICE();
  Stream stream;
  std::mt19937_64 random(fresh_seed());
  for (const std::int64_t batch : {1, 31, 5000}) {
    TestMatrix<float> row_losses(1, batch);
    row_losses.fill_random<Fp32>(random, 1);
    DeviceBuffer<float> losses(4);
    losses.fill_bytes(0xff);
    DeviceBuffer<StepState> state(1);
    set_step(state.data(), 9, 10, stream);
    for (int step = 0; step < 2; ++step)
      finish_step(row_losses.buffer.data(), batch, losses.data(), 4, 10, state.data(), stream);
    stream.synchronize();
    double mean = 0;
    for (const double value : row_losses.values) mean += value / static_cast<double>(batch);
    const std::vector<float> found = losses.to_host();
    EXPECT_NEAR(found[1], mean, 1e-5);  // step 9 of a ring of 4
    EXPECT_NEAR(found[2], mean, 1e-5);
    EXPECT_TRUE(std::isnan(found[0]));
    const StepState after = state.to_host()[0];
    EXPECT_EQ(after.step, 11);
    EXPECT_EQ(after.batch, 1);  // 9, then 0, then 1
  }
}

TEST(WeightGradientSplits, AreOneAtBatch32AndNeverEmpty) {
  HEADROOM_NEEDS_DEVICE();
  for (const std::int64_t width : {1, 64, 128, 8192})
    EXPECT_EQ(weight_gradient_splits(Precision::kFp16, 32, width, width), 1);
  for (const std::int64_t batch : {513, 5000, 131072}) {
    const std::int64_t splits = weight_gradient_splits(Precision::kFp16, batch, 64, 64);
    const std::int64_t part = (batch + splits - 1) / splits;
    EXPECT_LT((splits - 1) * part, batch);
  }
}

}  // namespace
}  // namespace headroom::layered
