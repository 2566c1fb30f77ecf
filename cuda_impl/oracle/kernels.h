// The oracle's operations on the device, all in double precision and without padding. Asynchronous on
// `stream`.
#pragma once

#include <cstdint>

#include "core/workload.h"
#include "device/memory.h"
#include "device/stream.h"
#include "oracle/products.h"

namespace headroom::oracle {

/// What a value is rounded to on its way into a product (bench/oracle/products.h).
using Rounding = ProductRounding;

/// A factor of a product: element (outer, inner) lies at outer * outer_stride + inner * inner_stride.
struct Factor {
  const double* data;
  std::int64_t outer_stride, inner_stride;
};

/// Space for the parts of long sums; grows to the largest that was asked for.
class PartialSums {
 public:
  double* of_size(std::int64_t size) {
    if (buffer_.size() < size) buffer_ = DeviceBuffer<double>(size);
    return buffer_.data();
  }

 private:
  DeviceBuffer<double> buffer_;
};

/// c[row, column] = scale * sum over inner of a(row, inner) * b(column, inner), plus bias[column] if not
/// null.
void product(Factor a, Factor b, double* c /* [rows, columns] */, std::int64_t rows, std::int64_t columns,
             std::int64_t inner, const double* bias, double scale, PartialSums& partial, Stream& stream);

/// Rounds `count` values; `to` may be `from`.
void round_values(const double* from, double* to, std::int64_t count, Rounding rounding, Stream& stream);
void widen_and_round(const float* from, double* to, std::int64_t count, Rounding rounding, Stream& stream);
void narrow(const double* from, float* to, std::int64_t count, double factor, Stream& stream);
/// Random signs of a perturbation, by `seed` and place, and a function's error; an error of 0 perturbs nothing.
struct Signs {
  std::uint64_t seed = 0;
  double function_error = 0;
};
/// values = round(activation(values)), and the slopes there, from what is stored: in 16 bits rounded values, else unrounded ones.
/// `elu_of_sum`: the slope of elu too comes from the sum.
void activate(Activation activation, double* values, double* slopes, std::int64_t count, Rounding rounding,
              bool elu_of_sum, Signs signs, Stream& stream);
/// values[row, column] += or -= error * row_norms[row] * column_norms[column] + least * |sizes[column]|; norms that are null are 1,
/// sizes that are null 0.
void move_sums(double* values, std::int64_t rows, std::int64_t columns, const double* row_norms,
               const double* column_norms, double error, const double* sizes, double least,
               std::uint64_t seed, Stream& stream);
/// Euclidean norms of the rows and of the columns of values [rows, columns].
void norms(const double* values, std::int64_t rows, std::int64_t columns, double* row_norms,
           double* column_norms, Stream& stream);
/// values = round(values) * factor.
void round_and_scale(double* values, std::int64_t count, Rounding rounding, double factor, Stream& stream);
/// values[row, column] += bias[column].
void add_bias(double* values, std::int64_t rows, std::int64_t columns, const double* bias, Stream& stream);
/// gradient *= slopes; a slope of 0 passes nothing on.
void multiply_by_slopes(double* gradient, const double* slopes, std::int64_t count, Stream& stream);
/// gradient = (softmax(logits) - one-hot) * scale; row_losses [batch]. The softmax is that of rounded logarithms if they are rounded.
void loss(const double* logits /* [batch, classes] */, const std::int32_t* labels, double* gradient,
          double* row_losses, std::int64_t batch, std::int64_t classes, double scale,
          Rounding log_probabilities, Signs signs, Stream& stream);
/// The same for the losses of fp32 targets: gradient is that of the sum over the outputs times `scale`; a row's loss is the mean over
/// its outputs.
void loss_of_targets(Loss loss, const double* values /* [batch, outputs] */, const float* targets,
                     double* gradient, double* row_losses, std::int64_t batch, std::int64_t outputs,
                     double scale, Signs signs, Stream& stream);
/// sums[column] = scale * sum over rows of values[row, column].
void column_sums(const double* values, double* sums, std::int64_t rows, std::int64_t columns, double scale,
                 PartialSums& partial, Stream& stream);
/// What step `step` does to `count` parameters and their slots; a slot that the optimizer does not have is null.
void update(const Optimizer& optimizer, std::int64_t step, const double* gradient, double* parameters,
            double* first_slot, double* second_slot, std::int64_t count, Stream& stream);
/// What one element of a copy's step adds: kSum slope * first + factor * gradient, kSquare slope * first + factor * gradient^2,
/// kValue first itself.
struct Increment {
  enum class Kind { kSum, kSquare, kValue };
  Kind kind = Kind::kSum;
  double slope = 0, factor = 1;
};
/// Sums over the elements of what they add, less `expected`.
struct ComparedSums {
  double difference = 0, along = 0, update = 0;  // squares; difference times expected; squares of expected
};
/// Waits for the stream. `first` may be null where its slope is 0.
ComparedSums compare(Increment increment, const double* first, const double* gradient, const double* expected,
                     std::int64_t count, PartialSums& partial, Stream& stream);
/// values = (values + other) / 2.
void average(const double* other, double* values, std::int64_t count, Stream& stream);
/// values -= other.
void subtract(const double* other, double* values, std::int64_t count, Stream& stream);

}  // namespace headroom::oracle
