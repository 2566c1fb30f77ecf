// The three matrix products of a training step in plain double (or fp32) precision, on all cores.
//
// Every element is summed in an order that depends on the shape alone, never on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

namespace headroom {

/// Rows of a padded matrix are this many elements apart: a multiple of 16, so that whole vectors can be read.
inline std::int64_t padded(std::int64_t width) { return (width + 15) / 16 * 16; }

/// A matrix whose rows are padded with zeros to whole vectors.
template <typename T>
struct PaddedMatrix {
  std::int64_t rows = 0, columns = 0, stride = 0;
  std::vector<T> values;

  PaddedMatrix() = default;
  PaddedMatrix(std::int64_t row_count, std::int64_t column_count)
      : rows(row_count),
        columns(column_count),
        stride(padded(column_count)),
        values(static_cast<std::size_t>(row_count * stride)) {}
  T* row(std::int64_t index) { return values.data() + index * stride; }
  const T* row(std::int64_t index) const { return values.data() + index * stride; }
};

/// out[r, o] = bias[o] + sum over i of x[r, i] * weight[o, i].
void forward_product(const PaddedMatrix<double>& x, const PaddedMatrix<double>& weight, const double* bias,
                     PaddedMatrix<double>& out);
void forward_product(const PaddedMatrix<float>& x, const PaddedMatrix<float>& weight, const float* bias,
                     PaddedMatrix<float>& out);

/// out[r, i] = sum over o of d[r, o] * weight[o, i].
void input_gradient_product(const PaddedMatrix<double>& d, const PaddedMatrix<double>& weight,
                            PaddedMatrix<double>& out);

/// out[o, i] = sum over r of d[r, o] * x[r, i]; `out` is [d.columns, x.columns] without padding.
void weight_gradient_product(const PaddedMatrix<double>& d, const PaddedMatrix<double>& x, double* out);

/// The format a value is rounded to on its way into a product.
/// kTf32CutOff is what some libraries do instead of rounding to nearest.
enum class ProductRounding { kNone, kTf32, kTf32CutOff, kFp16, kBf16, kBf16Weight };

/// out[i] = values[i] rounded, for `count` elements. In place if out == values.
void round_values(ProductRounding rounding, const double* values, double* out, std::int64_t count);

}  // namespace headroom
