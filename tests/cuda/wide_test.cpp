// The wide products of cuda-layered: their walk and layouts on the host, a host model of one block against a plain
// product, the kernels against sums in double precision, and networks that take them against the reference.
//
// Rows that the kernels must not write are NaN, as is all padding of what they read.
#include "layered/wide.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "analysis/verification.h"
#include "gpu_test.h"
#include "layered/narrow.h"
#include "layered/trainer.h"
#include "not_finite.h"
#include "oracle/oracle.h"
#include "oracle/reference.h"
#include "sanitizer.h"
#include "trainer_contract.h"

namespace headroom::layered {
namespace {

// ---- the walk and the layouts: no GPU

TEST(WideWalk, EverySlabOfEveryTileIsInOneUnit) {
  for (const auto& [rows, columns, inner, parts] : {std::tuple{1, 1, 1, 1},
                                                    {129, 257, 65, 2},
                                                    {16384, 1024, 784, 1},
                                                    {4096, 784, 16384, 1},
                                                    {1024, 1024, 16384, 4},
                                                    {5000, 300, 4100, 7},
                                                    {4097, 4095, 100, 1}}) {
    const WideWalk walk = wide_walk(rows, columns, inner, parts);
    EXPECT_LE(walk.parts, parts);
    std::set<std::tuple<int, int, int>> seen;
    for (int index = 0; index < wide_units(walk); ++index) {
      const WideUnit unit = wide_unit(walk, index);
      ASSERT_LT(unit.first_slab, unit.slabs_end) << "a unit with nothing to add";
      ASSERT_LT(unit.row, walk.rows);
      ASSERT_LT(unit.column, walk.columns);
      for (int slab = unit.first_slab; slab < unit.slabs_end; ++slab)
        ASSERT_TRUE(seen.emplace(unit.row, unit.column, slab).second) << "twice";
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), std::int64_t{walk.rows} * walk.columns * walk.slabs);
    EXPECT_GE(walk.rows * kWideRows * kWideCluster, rows);
    EXPECT_GE(walk.columns * kWideColumns, columns);
    EXPECT_GE(walk.slabs * kWideInner, inner);
  }
}

TEST(WideWalk, UnitsThatRunTogetherReadFewRowsAndColumns) {
  const WideWalk walk = wide_walk(16384, 4096, 4096, 1);
  const int together = 132 / kWideCluster;
  std::set<int> rows, columns;
  for (int index = 0; index < together; ++index) {
    const WideUnit unit = wide_unit(walk, index);
    rows.insert(unit.row), columns.insert(unit.column);
  }
  const auto elements = static_cast<int>(rows.size()) * kWideRows * kWideCluster +
                        static_cast<int>(columns.size()) * kWideColumns;
  EXPECT_LE(elements, 2048 + 2304);
}

TEST(WideWalk, EverySlabOfARowOfTilesIsSummedOnceForTheBias) {
  const WideWalk walk = wide_walk(300, 1000, 5000, 3);
  std::vector<int> times(static_cast<std::size_t>(walk.slabs));
  for (int index = 0; index < wide_units(walk); ++index) {
    const WideUnit unit = wide_unit(walk, index);
    if (unit.row != 0) continue;
    for (int slab = first_bias_slab(walk, unit); slab < unit.slabs_end; slab += walk.columns) {
      ASSERT_GE(slab, unit.first_slab);
      ++times[static_cast<std::size_t>(slab)];
    }
  }
  EXPECT_THAT(times, testing::Each(1));
}

TEST(WideWalk, WeightGradientsTakeTheTileThatLeavesLessOver) {
  EXPECT_EQ(gradient_columns(784), kNarrowerColumns);
  EXPECT_EQ(gradient_columns(300), kNarrowerColumns);
  for (const int columns : {200, 400}) EXPECT_EQ(gradient_columns(columns), kNarrowerColumns);
  for (const int columns : {250, 256, 512, 1024, 4096}) EXPECT_EQ(gradient_columns(columns), kWideColumns);
}

TEST(WideWalk, ThreadsHoldEveryElementOfATileOnce) {
  std::set<std::pair<int, int>> held;
  for (int thread = 0; thread < kWideConsumers; ++thread)
    for (int sum = 0; sum < 128; ++sum) held.emplace(wide_row(thread, sum), wide_column(thread, sum));
  EXPECT_EQ(held.size(), static_cast<std::size_t>(kWideRows * kWideColumns));
  EXPECT_EQ(held.rbegin()->first, kWideRows - 1);
}

TEST(WideWalk, ThreadsLeaveTheirMasksInDifferentPlaces) {
  const WideWalk walk = wide_walk(1000, 700, 64, 1);
  std::set<std::int64_t> places;
  for (int row = 0; row < walk.rows * kWideCluster; ++row)
    for (int column = 0; column < walk.columns; ++column)
      for (int thread = 0; thread < kWideConsumers; ++thread)
        places.insert(positive_word(walk, row, column, thread));
  EXPECT_EQ(static_cast<std::int64_t>(places.size()) * 4, positive_words(1000, 700));
  EXPECT_EQ(*places.rbegin() + 4, positive_words(1000, 700));
}

// ---- a host model of one block: what the copy engine puts where, and what the instruction reads there

/// The copy engine's and the instruction's swizzle: 16-byte pieces of a row of 128 bytes change places.
int swizzled(int byte) { return byte ^ (byte >> 3 & 0x70); }

using Memory = std::vector<std::int16_t>;  // of 16-bit values

/// A box of `box_rows` x 64 values at (row, column) of a matrix, zeros outside.
void copy_box(Memory& shared, int place, const std::vector<int>& matrix, int rows, int columns, int row,
              int column, int box_rows) {
  for (int r = 0; r < box_rows; ++r)
    for (int c = 0; c < 64; ++c) {
      const bool inside = row + r < rows && column + c < columns;
      const int value = inside ? matrix[static_cast<std::size_t>((row + r) * columns + column + c)] : 0;
      shared[static_cast<std::size_t>(swizzled(place + r * 128 + c * 2) / 2)] =
          static_cast<std::int16_t>(value);
    }
}

/// What fetch() of wide.cuh copies: 128 outer indices.
void copy_factor(Memory& shared, int place, const std::vector<int>& matrix, int rows, int columns, int outer,
                 int inner, bool turned) {
  if (!turned) return copy_box(shared, place, matrix, rows, columns, outer, inner, 128);
  copy_box(shared, place, matrix, rows, columns, inner, outer, 64);
  copy_box(shared, place + Wide::kPanelBytes, matrix, rows, columns, inner, outer + 64, 64);
}

/// Element (outer, inner) of a factor as the instruction finds it from a description that begins at `place`: groups of
/// eight rows lie 1024 bytes apart, panels of a turned factor one panel.
int factor_value(const Memory& shared, int place, int outer, int inner, bool turned) {
  const int byte = turned
                       ? outer / 64 * Wide::kPanelBytes + inner / 8 * 1024 + inner % 8 * 128 + outer % 64 * 2
                       : outer / 8 * 1024 + outer % 8 * 128 + inner * 2;
  return shared[static_cast<std::size_t>(swizzled(place + byte) / 2)];
}

void check_model(bool a_turned, bool b_turned) {
  const int rows = 200, columns = 300, inner = 100;
  std::mt19937 random(static_cast<unsigned>(fresh_seed()));
  std::uniform_int_distribution<int> any(-5, 5);
  std::vector<int> a(static_cast<std::size_t>(rows * inner)), b(static_cast<std::size_t>(columns * inner));
  for (int& value : a) value = any(random);
  for (int& value : b) value = any(random);
  const auto at = [](const std::vector<int>& m, int outer, int k, int outers, int inners, bool turned) {
    return m[static_cast<std::size_t>(turned ? k * outers + outer : outer * inners + k)];
  };
  const WideWalk walk = wide_walk(rows, columns, inner, 1);
  std::vector<int> result(static_cast<std::size_t>(rows * columns), -1);
  Memory shared(Wide::kSharedBytes / 2);
  for (int index = 0; index < wide_units(walk); ++index) {
    const WideUnit unit = wide_unit(walk, index);
    for (int rank = 0; rank < kWideCluster; ++rank) {
      const int row = (unit.row * kWideCluster + rank) * kWideRows, column = unit.column * kWideColumns;
      std::vector<int> tile(kWideRows * kWideColumns);
      for (int slab = unit.first_slab; slab < unit.slabs_end; ++slab) {
        const int stage = slab % Wide::kStages * Wide::kStageBytes, first = slab * kWideInner;
        const int a_rows = a_turned ? inner : rows, a_columns = a_turned ? rows : inner;
        const int b_rows = b_turned ? inner : columns, b_columns = b_turned ? columns : inner;
        copy_factor(shared, stage, a, a_rows, a_columns, row, first, a_turned);
        for (int half = 0; half < 2; ++half)
          copy_factor(shared, stage + (1 + half) * Wide::kFetchBytes, b, b_rows, b_columns,
                      column + 128 * half, first, b_turned);
        for (int r = 0; r < kWideRows; ++r)
          for (int c = 0; c < kWideColumns; ++c)
            for (int k = 0; k < kWideInner; ++k)
              tile[static_cast<std::size_t>(r * kWideColumns + c)] +=
                  factor_value(shared, stage + r / 64 * Wide::kPanelBytes, r % 64, k, a_turned) *
                  factor_value(shared, stage + Wide::kFetchBytes, c, k, b_turned);
      }
      for (int thread = 0; thread < kWideConsumers; ++thread)
        for (int sum = 0; sum < 128; ++sum) {
          const int r = wide_row(thread, sum), c = wide_column(thread, sum);
          ASSERT_EQ(r / 16, thread / 32) << "a warp holds its own rows";
          if (row + r < rows && column + c < columns)
            result[static_cast<std::size_t>((row + r) * columns + column + c)] =
                tile[static_cast<std::size_t>(r * kWideColumns + c)];
        }
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      int expected = 0;
      for (int k = 0; k < inner; ++k)
        expected += at(a, r, k, rows, inner, a_turned) * at(b, c, k, columns, inner, b_turned);
      ASSERT_EQ(result[static_cast<std::size_t>(r * columns + c)], expected) << r << ", " << c;
    }
}

TEST(WideModel, ForwardIsAPlainProduct) { check_model(false, false); }
TEST(WideModel, InputGradientIsAPlainProduct) { check_model(false, true); }
TEST(WideModel, WeightGradientIsAPlainProduct) { check_model(true, true); }

// ---- the kernels

struct Shape {
  std::int64_t batch, in, out;
};
std::ostream& operator<<(std::ostream& stream, const Shape& shape) {
  return stream << "batch " << shape.batch << ", in " << shape.in << ", out " << shape.out;
}

// Less than a tile and edges in every direction; one slab, and more than there are stages.
const Shape kSmallShapes[] = {{1, 1, 1},     {31, 33, 7},     {128, 64, 256},  {129, 65, 257},
                              {130, 257, 9}, {257, 127, 300}, {300, 400, 520}, {1, 700, 129}};
// More units than blocks; bands that are not full; walks over the ring many times.
const Shape kLargeShapes[] = {{9000, 70, 600}, {4100, 300, 260}, {2500, 1027, 130}, {700, 520, 2100}};

template <class Format>
class WideKernels : public testing::Test {
 protected:
  using Value = typename Format::Value;

  void SetUp() override {
    HEADROOM_NEEDS_DEVICE();
    use_device(0);
    if (!wide_products_run()) GTEST_SKIP() << "needs compute capability 9.0";
    seed_ = fresh_seed();
    random_.seed(seed_);
    stream_.emplace();
  }

  static constexpr double kBoundOfSum = 3e-5;
  static constexpr double kBoundOfStored = Format::kPrecision == Precision::kFp16 ? 5e-4 : 4e-3;

  void expect_close(const std::vector<double>& found, const std::vector<double>& expected, double bound,
                    const Shape& shape, const char* what) {
    const double error = relative_error(found, expected);
    EXPECT_FALSE(!(error <= bound)) << what << ": error " << error << ", bound " << bound << ", " << shape
                                    << ", seed " << seed_;
  }

  /// relu(x * w^T + b) of rows from `first`.
  static std::vector<double> relu_layer(const TestMatrix<Value>& x, const TestMatrix<Value>& w,
                                        const TestMatrix<float>& b, std::int64_t first, std::int64_t batch) {
    std::vector<double> result;
    for (std::int64_t row = first; row < first + batch; ++row)
      for (std::int64_t out = 0; out < w.rows; ++out) {
        double sum = b.at(0, out);
        for (std::int64_t k = 0; k < x.columns; ++k) sum += x.at(row, k) * w.at(out, k);
        result.push_back(sum < 0 ? 0 : sum);
      }
    return result;
  }

  void check_forward(const Shape& shape) {
    TestMatrix<Value> x(3 * shape.batch, shape.in), w(shape.out, shape.in), hidden(shape.batch, shape.out);
    TestMatrix<float> bias(1, shape.out);
    x.template fill_random<Format>(random_, 1);
    w.template fill_random<Format>(random_, 1 / std::sqrt(static_cast<double>(shape.in)));
    bias.template fill_random<Fp32>(random_, 1);
    DeviceBuffer<StepState> state(1);
    DeviceBuffer<std::uint32_t> positive(positive_words(shape.batch, shape.out));
    for (const bool of_data_set : {false, true}) {
      state.copy_from(std::vector<StepState>{{7, 2}});
      hidden.buffer.fill_bytes(0xff);
      const auto inputs =
          of_data_set ? x.readable() : matrix<const Value>(x.buffer.data(), shape.batch, shape.in);
      const WideForward<Format> forward(inputs, of_data_set ? state.data() : nullptr, w.readable(),
                                        bias.buffer.data(), hidden.view(), positive.data());
      forward.queue(*stream_);
      stream_->synchronize();
      expect_close(hidden.found(), relu_layer(x, w, bias, of_data_set ? 2 * shape.batch : 0, shape.batch),
                   kBoundOfStored, shape, "hidden");
    }
  }

  /// hidden = relu(8 inputs) says which of the input gradient is kept.
  void check_input_gradient(const Shape& shape) {
    TestMatrix<Value> x(shape.batch, 8), below(shape.in, 8), hidden(shape.batch, shape.in);
    TestMatrix<Value> d(shape.batch, shape.out), w(shape.out, shape.in), result(shape.batch, shape.in);
    TestMatrix<float> bias(1, shape.in);
    x.template fill_random<Format>(random_, 1);
    below.template fill_random<Format>(random_, 1);
    bias.template fill_random<Fp32>(random_, 1);
    d.template fill_random<Format>(random_, 1);
    w.template fill_random<Format>(random_, 1 / std::sqrt(static_cast<double>(shape.out)));
    DeviceBuffer<std::uint32_t> positive(positive_words(shape.batch, shape.in));
    positive.fill_bytes(0xff);
    WideForward<Format>(x.readable(), nullptr, below.readable(), bias.buffer.data(), hidden.view(),
                        positive.data())
        .queue(*stream_);
    WideInputGradient<Format>(d.readable(), w.readable(), positive.data(), result.view()).queue(*stream_);
    stream_->synchronize();
    const std::vector<double> active = hidden.found();
    std::vector<double> expected(active.size());
    for (std::int64_t row = 0; row < shape.batch; ++row)
      for (std::int64_t out = 0; out < shape.out; ++out)
        for (std::int64_t in = 0; in < shape.in; ++in)
          if (active[static_cast<std::size_t>(row * shape.in + in)] > 0)
            expected[static_cast<std::size_t>(row * shape.in + in)] += d.at(row, out) * w.at(out, in);
    expect_close(result.found(), expected, kBoundOfStored, shape, "input gradient");
  }

  void check_weight_update(const Shape& shape, int parts) {
    TestMatrix<Value> d(shape.batch, shape.out), x(2 * shape.batch, shape.in), copy(shape.out, shape.in);
    TestMatrix<float> masters(shape.out, shape.in), bias(1, shape.out);
    d.template fill_random<Format>(random_, 1);
    x.template fill_random<Format>(random_, 1);
    masters.template fill_random<Fp32>(random_, 1);
    bias.template fill_random<Fp32>(random_, 1);
    const std::vector<float> first_masters = masters.buffer.to_host(), first_bias = bias.buffer.to_host();
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{5, 1}});
    DeviceBuffer<float> workspace(
        WideWeightUpdate<Format>::workspace_values(shape.batch, shape.out, shape.in, parts));
    workspace.fill_bytes(0xff);
    const WideWeightUpdate<Format> update(d.readable(), x.readable(), state.data(), masters.view(),
                                          copy.view(), bias.buffer.data(), 0.5f, 0.25f, parts,
                                          workspace.data());
    update.queue_product(*stream_), update.queue_update(*stream_);
    stream_->synchronize();
    const std::vector<double> found = masters.found(), found_bias = bias.found(), copied = copy.found();
    std::vector<double> expected = masters.values, expected_bias = bias.values;
    for (std::int64_t row = 0; row < shape.batch; ++row)
      for (std::int64_t out = 0; out < shape.out; ++out) {
        expected_bias[static_cast<std::size_t>(out)] -= d.at(row, out) / 8;
        for (std::int64_t in = 0; in < shape.in; ++in)
          expected[static_cast<std::size_t>(out * shape.in + in)] -=
              d.at(row, out) * x.at(shape.batch + row, in) / 8;
      }
    expect_close(found, expected, kBoundOfSum, shape, "masters");
    expect_close(found_bias, expected_bias, kBoundOfSum, shape, "biases");
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(copied[i], Format::kPrecision == Precision::kBf16 ? round_weight_to_bf16(found[i])
                                                                  : round_to_fp16(found[i]))
          << "copy of " << found[i] << ", " << shape << ", seed " << seed_;

    masters.buffer.copy_from(first_masters), bias.buffer.copy_from(first_bias);
    update.queue_product(*stream_), update.queue_update(*stream_);
    stream_->synchronize();
    EXPECT_EQ(found, masters.found()) << "other bits in a second run, " << shape;
    EXPECT_EQ(found_bias, bias.found()) << "other bits in a second run, " << shape;
  }

  /// One step of a last layer: the second of three batches' labels; its gradient as stored enters what follows.
  void check_narrow_layer(const Shape& shape) {
    const auto [batch, in, out] = shape;
    TestMatrix<Value> x(batch, in), d(batch, out), dx(batch, in);
    TestMatrix<float> all(1, out * padded(in) + padded(out));  // weights, bias
    x.template fill_random<Format>(random_, 1);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(in)));
    std::vector<float> masters(static_cast<std::size_t>(all.columns), 0.0f);
    std::vector<Value> copy(masters.size(), Format::round(0));
    const auto index = [&](std::int64_t row, std::int64_t column) {
      return static_cast<std::size_t>(row * padded(in) + column);
    };
    for (std::int64_t row = 0; row <= out; ++row)
      for (std::int64_t column = 0; column < (row < out ? in : out); ++column) {
        masters[index(row, column)] = normal(random_);
        copy[index(row, column)] = Format::round_weight(masters[index(row, column)]);
      }
    DeviceBuffer<float> device_masters(all.columns);
    DeviceBuffer<Value> device_copy(all.columns);
    device_masters.copy_from(masters), device_copy.copy_from(copy);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(3 * batch));
    for (auto& label : labels) label = static_cast<std::int32_t>(random_() % static_cast<unsigned>(out));
    DeviceBuffer<std::int32_t> device_labels(3 * batch);
    device_labels.copy_from(labels);
    DeviceBuffer<StepState> state(1);
    state.copy_from(std::vector<StepState>{{7, 1}});
    DeviceBuffer<float> workspace(NarrowLayer<Format>::workspace_values(batch, out, in)),
        losses(NarrowLayer<Format>::losses(batch));
    workspace.fill_bytes(0xff), losses.fill_bytes(0xff);
    d.buffer.fill_bytes(0xff), dx.buffer.fill_bytes(0xff);
    const NarrowLayer<Format> layer(x.readable(), matrix(device_masters.data(), out, in),
                                    matrix(device_copy.data(), out, in), d.view(), dx.view(),
                                    workspace.data());
    const float scale = 4;
    layer.queue_forward(device_labels.data(), state.data(), scale, losses.data(), *stream_);
    layer.queue_backward(*stream_);
    update_from_parts<Format>({layer.update()}, 0.5f, 0.25f, *stream_);
    stream_->synchronize();

    std::vector<double> expected_d, expected_dx;
    double expected_loss = 0;
    for (std::int64_t row = 0; row < batch; ++row) {
      std::vector<double> logits;
      for (std::int64_t c = 0; c < out; ++c) {
        double sum = masters[index(out, c)];
        for (std::int64_t k = 0; k < in; ++k) sum += x.at(row, k) * to_float(copy[index(c, k)]);
        logits.push_back(sum);
      }
      double total = 0;
      for (const double logit : logits) total += std::exp(logit);
      const auto label = static_cast<std::int64_t>(labels[static_cast<std::size_t>(batch + row)]);
      expected_loss += std::log(total) - logits[static_cast<std::size_t>(label)];
      for (std::int64_t c = 0; c < out; ++c)
        expected_d.push_back((std::exp(logits[static_cast<std::size_t>(c)]) / total - (c == label)) * scale);
    }
    const std::vector<double> found_d = d.found(), found_dx = dx.found();
    if (out > 1) expect_close(found_d, expected_d, kBoundOfStored, shape, "gradient of the logits");
    double found_loss = 0;
    for (const float loss : losses.to_host())
      found_loss += loss / static_cast<double>(NarrowLayer<Format>::losses(batch));
    EXPECT_NEAR(found_loss, expected_loss / static_cast<double>(batch), 1e-5) << shape << ", seed " << seed_;

    std::vector<double> sums(masters.size());
    for (std::int64_t row = 0; row < batch; ++row) {
      const double* of_row = found_d.data() + row * out;
      for (std::int64_t k = 0; k < in; ++k) {
        double back = 0;
        for (std::int64_t c = 0; c < out; ++c) {
          back += of_row[c] * to_float(copy[index(c, k)]);
          sums[index(c, k)] += of_row[c] * x.at(row, k);
        }
        expected_dx.push_back(x.at(row, k) > 0 ? back : 0);
      }
      for (std::int64_t c = 0; c < out; ++c) sums[index(out, c)] += of_row[c];
    }
    if (out > 1) expect_close(found_dx, expected_dx, kBoundOfStored, shape, "input gradient");
    std::vector<double> expected, found;
    const std::vector<float> updated = device_masters.to_host();
    const std::vector<Value> copied = device_copy.to_host();
    for (std::size_t i = 0; i < masters.size(); ++i) {
      expected.push_back(masters[i] - sums[i] / 8);
      found.push_back(updated[i]);
      ASSERT_EQ(to_float(copied[i]), to_float(Format::round_weight(updated[i]))) << i << ", " << shape;
    }
    expect_close(found, expected, kBoundOfSum, shape, "masters");
  }

  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::optional<Stream> stream_;
};

using Formats = testing::Types<Fp16, Bf16>;
TYPED_TEST_SUITE(WideKernels, Formats, FormatNames);

TYPED_TEST(WideKernels, SmallForwardMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_forward(shape);
}
TYPED_TEST(WideKernels, SmallInputGradientMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_input_gradient(shape);
}
TYPED_TEST(WideKernels, SmallWeightUpdateMatchesDoubleOnOddShapes) {
  for (const Shape& shape : kSmallShapes) this->check_weight_update(shape, 1);
}
TYPED_TEST(WideKernels, SmallWeightUpdateInPartsMatchesDouble) {
  this->check_weight_update({300, 65, 129}, 2);
  this->check_weight_update({1000, 257, 33}, 5);
}
TYPED_TEST(WideKernels, ForwardMatchesDoubleOnLargeShapes) {
  for (const Shape& shape : kLargeShapes) this->check_forward(shape);
}
TYPED_TEST(WideKernels, InputGradientMatchesDoubleOnLargeShapes) {
  for (const Shape& shape : kLargeShapes) this->check_input_gradient({shape.batch, shape.out, shape.in});
}
TYPED_TEST(WideKernels, WeightUpdateMatchesDoubleOnLargeShapes) {
  this->check_weight_update({130, 4500, 2100}, 1);
  this->check_weight_update({4100, 300, 260}, 1);
  for (const Shape& shape : kLargeShapes)
    this->check_weight_update(shape, wide_gradient_parts(shape.batch, shape.out, shape.in));
}

TYPED_TEST(WideKernels, SmallNarrowLayerMatchesDoubleOnOddShapes) {
  for (const Shape& shape : {Shape{1, 1, 1}, {31, 33, 7}, {130, 65, 9}, {257, 127, 10}, {300, 400, 16}})
    this->check_narrow_layer(shape);
}
TYPED_TEST(WideKernels, NarrowLayerMatchesDoubleOnLargeShapes) {
  for (const Shape& shape : {Shape{9000, 70, 10}, {4100, 1027, 8}, {2500, 300, 3}})
    this->check_narrow_layer(shape);
}

TYPED_TEST(WideKernels, SmallNaNReachesTheHiddenValues) {
  using Stored = typename TypeParam::Value;
  TestMatrix<Stored> x(4, 9), w(5, 9), hidden(4, 5);
  TestMatrix<float> bias(1, 5);
  x.template fill_random<TypeParam>(this->random_, 1);
  w.template fill_random<TypeParam>(this->random_, 1);
  bias.template fill_random<Fp32>(this->random_, 1);
  auto broken = x.buffer.to_host();
  broken[16] = TypeParam::round(NAN);  // row 1
  x.buffer.copy_from(broken);
  DeviceBuffer<std::uint32_t> positive(positive_words(4, 5));
  WideForward<TypeParam>(x.readable(), nullptr, w.readable(), bias.buffer.data(), hidden.view(),
                         positive.data())
      .queue(*this->stream_);
  this->stream_->synchronize();
  const std::vector<double> found = hidden.found();
  EXPECT_TRUE(std::isnan(found[5]));
  EXPECT_FALSE(std::isnan(found[0]));
}

TYPED_TEST(WideKernels, SmallConstructorsRejectShapesThatDoNotFit) {
  using Stored = typename TypeParam::Value;
  TestMatrix<Stored> x(4, 9), w(5, 8), hidden(4, 5);
  DeviceBuffer<float> bias(8);
  DeviceBuffer<std::uint32_t> positive(positive_words(4, 5));
  try {
    const WideForward<TypeParam> forward(x.readable(), nullptr, w.readable(), bias.data(), hidden.view(),
                                         positive.data());
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("9"), testing::HasSubstr("8")));
  }
}

}  // namespace
}  // namespace headroom::layered

namespace headroom {
namespace {

// ---- networks that take them

class WideTrainer : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    HEADROOM_NEEDS_DEVICE();
    use_device(0);
    if (!layered::wide_products_run()) GTEST_SKIP() << "needs compute capability 9.0";
  }
};
INSTANTIATE_TEST_SUITE_P(, WideTrainer, testing::Values(Precision::kFp16, Precision::kBf16),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

/// The driver's step check, by the reference on the device; and that the same steps have the same bits again.
void check_wide_network(const std::vector<int>& widths, int batch, Precision precision,
                        const std::string& note, const std::vector<std::int64_t>& steps) {
  const Problem problem(widths, batch);
  const DatasetView data = problem.data.train();
  auto trainer = make_layered_trainer(problem.workload, precision, data, problem.initial, 0);
  EXPECT_EQ(trainer->note(), note);
  std::vector<StepErrors> errors;
  follow_reference_on_device(
      problem.workload, precision, data, problem.initial, 0, steps, 0,
      [&](const ReferencePoint& point) {
        trainer->set_state(point.start);
        trainer->train(point.step, 1);
        const Parameters after = trainer->parameters();
        errors.push_back(compare_step(problem.workload.optimizer, point, trainer->state()));
        EXPECT_NEAR(trainer->losses(point.step, 1)[0], point.loss, 1e-3 * std::abs(point.loss));
        trainer->set_state(point.start);
        trainer->train(point.step, 1);
        const Parameters again = trainer->parameters();
        EXPECT_TRUE(std::equal(after.flat().begin(), after.flat().end(), again.flat().begin()))
            << "other bits in a second run, " << problem.workload.name;
      },
      [](const Parameters&) {}, {.copies = kCopies});
  for (const Check& check : step_update_checks(problem.workload, errors, precision)) {
    EXPECT_TRUE(check.passed || check.name == "evidence")
        << problem.workload.name << " " << check.name << " " << check.tensor << ": " << check.error
        << ", at most " << check.bound << ", seed " << problem.workload.seed;
    std::printf("%s %s %s %s: %.1e of %.1e\n", problem.workload.name.c_str(),
                std::string(to_string(precision)).c_str(), check.name.c_str(), check.tensor.c_str(),
                check.error, check.bound);
  }
}

/// As many rows as make the wide tiles pay on this device.
void expect_nans_in_the_losses_of_wide_products(Precision precision, NaNPlaces places) {
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount, 0);
  NotFiniteProblem problem("mlp-130x140x136x10-b" + std::to_string(std::max(520, 64 * sms + 8)));
  expect_nans_in_the_losses(problem, precision, places, [&] {
    auto trainer =
        make_layered_trainer(problem.workload, precision, problem.dataset.train(), problem.initial, 0);
    EXPECT_EQ(trainer->note().find("wide tiles"), 0u) << trainer->note();
    return trainer;
  });
}
TEST_P(WideTrainer, ANaNComesOutOfWideProductsAsNaNLosses) {
  expect_nans_in_the_losses_of_wide_products(GetParam(), NaNPlaces::kFew);
}
TEST_P(WideTrainer, ANaNInAnyPlaceComesOutOfWideProductsAsNaNLosses) {
  expect_nans_in_the_losses_of_wide_products(GetParam(), NaNPlaces::kEvery);
}
// Wide products with ReLU; the update, which they do not know, by its own kernel.
TEST_P(WideTrainer, SlotsAreUpdatedAsTheReferenceBehindWideProducts) {
  const int sms = device_attribute(cudaDevAttrMultiProcessorCount, 0);
  Workload workload =
      parse_workload_name("mlp-130x140x136x10-b" + std::to_string(std::max(520, 64 * sms + 8)) + "-mse-adam");
  workload.seed = fresh_seed();
  const Problem problem(std::move(workload), 0);
  auto trainer = make_layered_trainer(problem.workload, GetParam(), problem.data.train(), problem.initial, 0);
  EXPECT_EQ(trainer->note(), "wide tiles for 3 of 8 products");
  std::vector<StepErrors> errors;
  follow_reference(problem.workload, GetParam(), true, problem.data.train(), problem.initial, {0, 1, 2},
                   [&](const ReferencePoint& point) {
                     trainer->set_state(point.start);
                     trainer->train(point.step, 1);
                     errors.push_back(compare_step(problem.workload.optimizer, point, trainer->state()));
                     EXPECT_NEAR(trainer->losses(point.step, 1)[0], point.loss, 1e-3 * std::abs(point.loss));
                   },
                   {}, {.copies = kCopies});
  const Verification verification = judge(step_update_checks(problem.workload, errors, GetParam()));
  EXPECT_NE(verification.verdict, Verdict::kFail)
      << failure_message(verification) << ", seed " << problem.workload.seed;
}
TEST_P(WideTrainer, OddWidthsAndARemainderOfTheBatchUpdateAsTheReference) {
  check_wide_network({200, 300, 333, 10}, 8500, GetParam(), "wide tiles for 4 of 8 products", {0, 1, 7});
}
TEST_P(WideTrainer, ABigNetworkUpdatesAsTheReference) {
  check_wide_network({784, 1024, 1024, 1024, 10}, 16384, GetParam(), "wide tiles for 8 of 11 products",
                     {0, 1, 3});
}
TEST_P(WideTrainer, ManyStepsHaveTheSameBitsAsOneByOne) {
  const Problem problem({784, 512, 512, 10}, 8192);
  auto whole = make_layered_trainer(problem.workload, GetParam(), problem.data.train(), problem.initial, 0);
  auto pieces = make_layered_trainer(problem.workload, GetParam(), problem.data.train(), problem.initial, 0);
  EXPECT_THAT(whole->note(), testing::HasSubstr("wide tiles"));
  whole->train(0, 24);
  for (int step = 0; step < 24; ++step) pieces->train(step, 1);
  EXPECT_EQ(whole->losses(0, 24), pieces->losses(0, 24));
  const Parameters a = whole->parameters(), b = pieces->parameters();
  EXPECT_TRUE(std::equal(a.flat().begin(), a.flat().end(), b.flat().begin()));
}
TEST_P(WideTrainer, SmallBatchesKeepThePresentPath) {
  const Problem problem({784, 128, 10}, 32);
  EXPECT_EQ(
      make_layered_trainer(problem.workload, GetParam(), problem.data.train(), problem.initial, 0)->note(),
      "");
}

}  // namespace
}  // namespace headroom
