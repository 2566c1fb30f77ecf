// Register-tiled products in vectors of eight doubles. The compiler makes one version of each loop for
// AVX-512, one for AVX2 or FMA and one for any processor, and the loader picks: the oracle would else take
// minutes where it may take seconds.
//
// Vectors are GCC's generic ones, so a lane holds the same partial sum in every version; versions differ only
// in whether a product and a sum are fused.
#include "oracle/products.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "core/parallel.h"
#include "oracle/precision_rounding.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HEADROOM_VERSIONS [[gnu::target_clones("avx512f", "fma", "default")]]
#define HEADROOM_INTEGER_VERSIONS [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define HEADROOM_VERSIONS
#define HEADROOM_INTEGER_VERSIONS
#endif
#define HEADROOM_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace headroom {
namespace {

// 64 bytes: one AVX-512 register, two of AVX. Unaligned, as rows begin anywhere.
template <typename T>
struct VectorOf;
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(64), aligned(8), may_alias));
};
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(64), aligned(4), may_alias));
};
template <typename T>
constexpr std::int64_t kLanes = 64 / sizeof(T);
/// Four doubles: one register of AVX.
typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
typedef std::int64_t FourPlaces __attribute__((vector_size(32)));

// The sum of the lanes of each of four vectors, from the first lane to the last: sixteen shuffles and eight additions.
HEADROOM_ALWAYS_INLINE void lane_sums(const VectorOf<double>::Type* vectors, double* sums) {
  Four total = {};
  for (std::int64_t lane = 0; lane < kLanes<double>; lane += 4) {
    Four part[4];
    for (int i = 0; i < 4; ++i)
      part[i] = *reinterpret_cast<const Four*>(reinterpret_cast<const double*>(vectors + i) + lane);
    const Four even01 = __builtin_shuffle(part[0], part[1], FourPlaces{0, 4, 2, 6});
    const Four odd01 = __builtin_shuffle(part[0], part[1], FourPlaces{1, 5, 3, 7});
    const Four even23 = __builtin_shuffle(part[2], part[3], FourPlaces{0, 4, 2, 6});
    const Four odd23 = __builtin_shuffle(part[2], part[3], FourPlaces{1, 5, 3, 7});
    total += __builtin_shuffle(even01, even23, FourPlaces{0, 1, 4, 5});
    total += __builtin_shuffle(odd01, odd23, FourPlaces{0, 1, 4, 5});
    total += __builtin_shuffle(even01, even23, FourPlaces{2, 3, 6, 7});
    total += __builtin_shuffle(odd01, odd23, FourPlaces{2, 3, 6, 7});
  }
  *reinterpret_cast<Four*>(sums) = total;
}

// One tile of dot products along the rows of a and b: c[i, j] = bias[j] + a_i . b_j.
template <typename T, int kRows, int kColumns>
HEADROOM_ALWAYS_INLINE void dot_tile(const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride,
                                     std::int64_t length, const T* bias, T* c, std::int64_t c_stride) {
  using Vector = typename VectorOf<T>::Type;
  Vector sum[kRows][kColumns] = {};
  for (std::int64_t k = 0; k < length; k += kLanes<T>) {
    for (int i = 0; i < kRows; ++i) {
      const Vector left = *reinterpret_cast<const Vector*>(a + i * a_stride + k);
      for (int j = 0; j < kColumns; ++j) {
        sum[i][j] += left * *reinterpret_cast<const Vector*>(b + j * b_stride + k);
      }
    }
  }
  if constexpr (std::is_same_v<T, double>) {
    Vector tile[kRows * kColumns + 3] = {};
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) tile[i * kColumns + j] = sum[i][j];
    double total[kRows * kColumns + 3];
    for (int first = 0; first < kRows * kColumns; first += 4) lane_sums(tile + first, total + first);
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) c[i * c_stride + j] = total[i * kColumns + j] + bias[j];
    return;
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      T total = 0;
      for (std::int64_t lane = 0; lane < kLanes<T>; ++lane) total += sum[i][j][lane];
      c[i * c_stride + j] = total + bias[j];
    }
  }
}

// kColumns columns of the forward product, from `column`.
template <int kColumns, typename T>
HEADROOM_ALWAYS_INLINE void forward_tiles(const PaddedMatrix<T>& x, const PaddedMatrix<T>& weight,
                                          const T* bias, PaddedMatrix<T>& out, std::int64_t column) {
  constexpr int kTile = 4;
  const std::int64_t length = (x.columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
  const T *right = weight.row(column), *own_bias = bias + column;
  const auto tile = [&]<int kRows>(std::integral_constant<int, kRows>, std::int64_t row)
                        __attribute__((always_inline)) {
                          dot_tile<T, kRows, kColumns>(x.row(row), x.stride, right, weight.stride, length,
                                                       own_bias, out.row(row) + column, out.stride);
                        };
  std::int64_t row = 0;
  for (; row + kTile <= x.rows; row += kTile) tile(std::integral_constant<int, kTile>{}, row);
  if (x.rows - row == 3) tile(std::integral_constant<int, 3>{}, row);
  if (x.rows - row == 2) tile(std::integral_constant<int, 2>{}, row);
  if (x.rows - row == 1) tile(std::integral_constant<int, 1>{}, row);
}

// Columns [begin, end) of the forward product, that is, rows of the weight.
template <typename T>
HEADROOM_ALWAYS_INLINE void forward_columns(const PaddedMatrix<T>& x, const PaddedMatrix<T>& weight,
                                            const T* bias, PaddedMatrix<T>& out, std::int64_t begin,
                                            std::int64_t end) {
  constexpr int kTile = 4;
  std::int64_t column = begin;
  for (; column + kTile <= end; column += kTile) forward_tiles<kTile>(x, weight, bias, out, column);
  if (end - column == 3) forward_tiles<3>(x, weight, bias, out, column);
  if (end - column == 2) forward_tiles<2>(x, weight, bias, out, column);
  if (end - column == 1) forward_tiles<1>(x, weight, bias, out, column);
}

HEADROOM_VERSIONS void forward_columns_double(const PaddedMatrix<double>& x,
                                              const PaddedMatrix<double>& weight, const double* bias,
                                              PaddedMatrix<double>& out, std::int64_t begin,
                                              std::int64_t end) {
  forward_columns<double>(x, weight, bias, out, begin, end);
}

HEADROOM_VERSIONS void forward_columns_float(const PaddedMatrix<float>& x, const PaddedMatrix<float>& weight,
                                             const float* bias, PaddedMatrix<float>& out, std::int64_t begin,
                                             std::int64_t end) {
  forward_columns<float>(x, weight, bias, out, begin, end);
}

// One tile of sums of scaled rows: c[i, 0..8*kVectors) = sum over k of a[i, k] * b[k, ...].
template <int kRows, int kVectors>
HEADROOM_ALWAYS_INLINE void scaled_rows_tile(const double* a, std::int64_t a_row, std::int64_t a_k,
                                             const double* b, std::int64_t b_stride, std::int64_t length,
                                             double* c, std::int64_t c_stride, std::int64_t columns) {
  using Vector = VectorOf<double>::Type;
  Vector sum[kRows][kVectors] = {};
  for (std::int64_t k = 0; k < length; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector right = *reinterpret_cast<const Vector*>(b + k * b_stride + v * kLanes<double>);
      for (int i = 0; i < kRows; ++i) sum[i][v] += a[i * a_row + k * a_k] * right;
    }
  }
  for (int i = 0; i < kRows; ++i) {
    double* out = c + i * c_stride;
    std::int64_t column = 0;
    for (int v = 0; v < kVectors; ++v) {
      if (columns - column >= kLanes<double>) {
        *reinterpret_cast<Vector*>(out + column) = sum[i][v];
        column += kLanes<double>;
      } else {
        for (std::int64_t lane = 0; column < columns; ++lane, ++column) out[column] = sum[i][v][lane];
      }
    }
  }
}

constexpr int kPanelVectors = 2;
constexpr std::int64_t kPanel = kPanelVectors * kLanes<double>;  // 16 columns, as padded() promises

// Rows [row_begin, row_end) and columns [column_begin, column_end) of a sum of scaled rows; column_begin is a
// multiple of kPanel and b is padded to whole panels.
HEADROOM_VERSIONS void scaled_rows(const double* a, std::int64_t a_row, std::int64_t a_k, const double* b,
                                   std::int64_t b_stride, std::int64_t length, double* c,
                                   std::int64_t c_stride, std::int64_t row_begin, std::int64_t row_end,
                                   std::int64_t column_begin, std::int64_t column_end) {
  constexpr int kTile = 4;
  const auto panels = [&]<int kRows>(std::integral_constant<int, kRows>,
                                     std::int64_t row) __attribute__((always_inline)) {
    for (std::int64_t column = column_begin; column < column_end; column += kPanel) {
      const std::int64_t columns = std::min(kPanel, column_end - column);
      double* out = c + row * c_stride + column;
      if (columns <= kLanes<double>)
        scaled_rows_tile<kRows, 1>(a + row * a_row, a_row, a_k, b + column, b_stride, length, out, c_stride,
                                   columns);
      else
        scaled_rows_tile<kRows, kPanelVectors>(a + row * a_row, a_row, a_k, b + column, b_stride, length, out,
                                               c_stride, columns);
    }
  };
  std::int64_t row = row_begin;
  for (; row + kTile <= row_end; row += kTile) panels(std::integral_constant<int, kTile>{}, row);
  if (row_end - row == 3) panels(std::integral_constant<int, 3>{}, row);
  if (row_end - row == 2) panels(std::integral_constant<int, 2>{}, row);
  if (row_end - row == 1) panels(std::integral_constant<int, 1>{}, row);
}

// Rows or panels in chunks, so that one is worth waking a thread for: about 10^5 multiply-adds.
template <typename Body>
void in_chunks(std::int64_t count, std::int64_t multiply_adds_each, std::int64_t multiple, const Body& body) {
  constexpr std::int64_t kWorth = 100'000;
  if (count * multiply_adds_each <= kWorth) return body(std::int64_t{0}, count);
  const std::int64_t chunk = (kWorth + multiply_adds_each - 1) / multiply_adds_each;
  parallel_for(count, (chunk + multiple - 1) / multiple * multiple, body);
}

HEADROOM_INTEGER_VERSIONS void round_all_to_tf32(const double* values, double* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_to_tf32(values[i]);
}
HEADROOM_INTEGER_VERSIONS void cut_all_off_to_tf32(const double* values, double* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = cut_off_to_tf32(values[i]);
}
HEADROOM_INTEGER_VERSIONS void round_all_to_fp16(const double* values, double* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_to_fp16(values[i]);
}
HEADROOM_INTEGER_VERSIONS void round_all_to_bf16(const double* values, double* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_to_bf16(values[i]);
}
HEADROOM_INTEGER_VERSIONS void round_all_weights_to_bf16(const double* values, double* out,
                                                         std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = round_weight_to_bf16(values[i]);
}

}  // namespace

void forward_product(const PaddedMatrix<double>& x, const PaddedMatrix<double>& weight, const double* bias,
                     PaddedMatrix<double>& out) {
  in_chunks(weight.rows, x.rows * x.stride, 4, [&](std::int64_t begin, std::int64_t end) {
    forward_columns_double(x, weight, bias, out, begin, end);
  });
}

void forward_product(const PaddedMatrix<float>& x, const PaddedMatrix<float>& weight, const float* bias,
                     PaddedMatrix<float>& out) {
  in_chunks(weight.rows, x.rows * x.stride, 4, [&](std::int64_t begin, std::int64_t end) {
    forward_columns_float(x, weight, bias, out, begin, end);
  });
}

void input_gradient_product(const PaddedMatrix<double>& d, const PaddedMatrix<double>& weight,
                            PaddedMatrix<double>& out) {
  in_chunks(weight.columns, d.rows * d.columns, kPanel, [&](std::int64_t begin, std::int64_t end) {
    scaled_rows(d.values.data(), d.stride, 1, weight.values.data(), weight.stride, d.columns,
                out.values.data(), out.stride, 0, d.rows, begin, end);
  });
}

void weight_gradient_product(const PaddedMatrix<double>& d, const PaddedMatrix<double>& x, double* out) {
  in_chunks(d.columns, x.rows * x.columns, 4, [&](std::int64_t begin, std::int64_t end) {
    scaled_rows(d.values.data(), 1, d.stride, x.values.data(), x.stride, x.rows, out, x.columns, begin, end,
                0, x.columns);
  });
}

void round_values(ProductRounding rounding, const double* values, double* out, std::int64_t count) {
  switch (rounding) {
    case ProductRounding::kNone:
      if (out != values) std::copy_n(values, count, out);
      return;
    case ProductRounding::kTf32:
      return round_all_to_tf32(values, out, count);
    case ProductRounding::kTf32CutOff:
      return cut_all_off_to_tf32(values, out, count);
    case ProductRounding::kFp16:
      return round_all_to_fp16(values, out, count);
    case ProductRounding::kBf16:
      return round_all_to_bf16(values, out, count);
    case ProductRounding::kBf16Weight:
      return round_all_weights_to_bf16(values, out, count);
  }
  throw std::logic_error("round_values: not a ProductRounding");
}

}  // namespace headroom
