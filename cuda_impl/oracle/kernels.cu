// Plain double-precision kernels of the reference step. Clarity first; they only have to finish in seconds.
//
// One product kernel serves all three products through strides: a block owns 32 x 64 or 64 x 64 elements and
// stages 16 inner indices of both factors in shared memory, a thread keeps 2 x 4 or 4 x 4 sums. Which thread loads
// what follows the stride that is 1, so that both storage orders are read in whole lines. Where the elements are few
// and the sums long (a weight gradient over a large batch, a bias gradient), several blocks share a sum and a second
// kernel adds their parts, in order, so that the bits stay the same.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

#include "core/training_rules.h"
#include "device/check.h"
#include "oracle/kernels.h"

namespace headroom::oracle {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 64, kInner = 16;
constexpr std::int64_t kEnoughBlocks = 512;    // to keep every multiprocessor busy
constexpr std::int64_t kLeastInner = 512;      // of a part: below, the second kernel costs more than it saves
constexpr int kSumColumns = 32, kSumRows = 8;  // of the threads that sum columns
constexpr std::int64_t kRowsOfPart = 1024;

std::int64_t pieces(std::int64_t extent, std::int64_t size) { return (extent + size - 1) / size; }

/// Nearest with kBits bits after the leading one, in fp32's range; below it (2^-126) exactness is no concern
/// here.
template <int kBits, bool kTiesToEven>
__device__ double round_mantissa(double value) {
  constexpr int kShift = 52 - kBits;
  const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(value));
  const unsigned long long magnitude = bits & 0x7fffffffffffffffull;
  if (magnitude >= 0x7ff0000000000000ull) return value;
  const unsigned long long half = 1ull << (kShift - 1);
  const unsigned long long bias = kTiesToEven ? half - 1 + ((magnitude >> kShift) & 1) : half;
  const unsigned long long rounded = (magnitude + bias) & ~((1ull << kShift) - 1);
  return __longlong_as_double(static_cast<long long>(rounded | (bits & 0x8000000000000000ull)));
}

__device__ double rounded(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::kTf32:
      return round_mantissa<10, true>(value);
    case Rounding::kTf32CutOff:
      return __longlong_as_double(__double_as_longlong(value) & ~((1ll << 42) - 1));
    case Rounding::kFp16:
      return static_cast<double>(__half2float(__double2half(value)));
    case Rounding::kBf16:
      return round_mantissa<7, true>(value);
    case Rounding::kBf16Weight:
      return round_mantissa<7, false>(value);
    case Rounding::kNone:
      break;
  }
  return value;
}

/// Copies kOuter x kInner elements from (outer_begin, inner_begin) to tile[inner][outer]; outside is zero.
template <int kOuter>
__device__ void stage(double (&tile)[kInner][kOuter + 1], Factor factor, std::int64_t outer_begin,
                      std::int64_t outer_end, std::int64_t inner_begin, std::int64_t inner_end) {
  for (int index = static_cast<int>(threadIdx.x); index < kOuter * kInner; index += kThreads) {
    const int outer = factor.inner_stride == 1 ? index / kInner : index % kOuter;
    const int inner = factor.inner_stride == 1 ? index % kInner : index / kOuter;
    const bool inside = outer_begin + outer < outer_end && inner_begin + inner < inner_end;
    tile[inner][outer] = inside ? factor.data[(outer_begin + outer) * factor.outer_stride +
                                              (inner_begin + inner) * factor.inner_stride]
                                : 0.0;
  }
}

/// A block owns [kRowSums * 16, 64] elements of part blockIdx.z of the sums, which takes inner_of_part indices. The only
/// part is the result; of several, `c` is [parts, rows, columns], without scale and bias.
template <int kRowSums>
__global__ void __launch_bounds__(kThreads)
    product_kernel(Factor a, Factor b, double* c, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                   std::int64_t inner_of_part, const double* bias, double scale) {
  constexpr int kRows = 16 * kRowSums;
  __shared__ double a_tile[kInner][kRows + 1];
  __shared__ double b_tile[kInner][kColumns + 1];
  const std::int64_t row_begin = std::int64_t{blockIdx.x} * kRows,
                     column_begin = std::int64_t{blockIdx.y} * kColumns,
                     inner_begin = blockIdx.z * inner_of_part,
                     inner_end = inner_begin + inner_of_part < inner ? inner_begin + inner_of_part : inner;
  const int thread_row = static_cast<int>(threadIdx.x) / 16,
            thread_column = static_cast<int>(threadIdx.x) % 16;
  double sums[kRowSums][4] = {};
  for (std::int64_t k = inner_begin; k < inner_end; k += kInner) {
    stage<kRows>(a_tile, a, row_begin, rows, k, inner_end);
    stage<kColumns>(b_tile, b, column_begin, columns, k, inner_end);
    __syncthreads();  // the slab is complete
#pragma unroll
    for (int i = 0; i < kInner; ++i)
#pragma unroll
      for (int row = 0; row < kRowSums; ++row)
#pragma unroll
        for (int column = 0; column < 4; ++column)
          sums[row][column] += a_tile[i][thread_row + 16 * row] * b_tile[i][thread_column + 16 * column];
    __syncthreads();  // everybody is done with it
  }
  double* part = c + blockIdx.z * rows * columns;
  for (int i = 0; i < kRowSums; ++i)
    for (int j = 0; j < 4; ++j) {
      const std::int64_t row = row_begin + thread_row + 16 * i,
                         column = column_begin + thread_column + 16 * j;
      if (row < rows && column < columns)
        part[row * columns + column] = sums[i][j] * scale + (bias != nullptr ? bias[column] : 0.0);
    }
}

__device__ std::int64_t thread_index() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void round_values_kernel(const double* from, double* to, std::int64_t count, Rounding rounding) {
  const std::int64_t i = thread_index();
  if (i < count) to[i] = rounded(from[i], rounding);
}

__global__ void widen_and_round_kernel(const float* from, double* to, std::int64_t count, Rounding rounding) {
  const std::int64_t i = thread_index();
  if (i < count) to[i] = rounded(static_cast<double>(from[i]), rounding);
}

__global__ void narrow_kernel(const double* from, float* to, std::int64_t count, double factor) {
  const std::int64_t i = thread_index();
  if (i < count) to[i] = static_cast<float>(from[i] * factor);
}

/// size or -size, at random.
__device__ double signed_size(std::uint64_t seed, std::int64_t place, double size) {
  std::uint64_t value = seed + static_cast<std::uint64_t>(place) * 0x9e3779b97f4a7c15ull;  // splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return (value >> 63) != 0 ? -size : size;
}

__global__ void activate_kernel(Activation activation, double* values, double* slopes, std::int64_t count,
                                Rounding rounding, bool elu_of_sum, Signs signs) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  const bool is_tf32 = rounding == Rounding::kTf32 || rounding == Rounding::kTf32CutOff;
  const Rounding stored = is_tf32 ? Rounding::kNone : rounding;
  const bool is_moved = signs.function_error > 0 && activation != Activation::kRelu;
  const double sum = values[i];
  double output = rules::activated(activation, sum);
  if (is_moved)  // 1 + erf cancels
    output += signed_size(signs.seed, i,
                          signs.function_error * fabs(activation == Activation::kGelu ? sum : output));
  double kept = rounded(rules::slope_is_of_output(activation) ? output : sum, stored);
  if (elu_of_sum && activation == Activation::kElu) kept = rules::activated(activation, rounded(sum, stored));
  const double slope = rules::slope(activation, kept);
  slopes[i] = is_moved && slope != 0 ? slope + signed_size(~signs.seed, i, signs.function_error) : slope;
  values[i] = rounded(output, rounding);
}

__global__ void move_sums_kernel(double* values, std::int64_t rows, std::int64_t columns,
                                 const double* row_norms, const double* column_norms, double error,
                                 const double* sizes, double least, std::uint64_t seed) {
  const std::int64_t i = thread_index();
  if (i >= rows * columns) return;
  const std::int64_t row = i / columns, column = i % columns;
  const double size = error * (row_norms == nullptr ? 1.0 : row_norms[row]) *
                          (column_norms == nullptr ? 1.0 : column_norms[column]) +
                      (sizes == nullptr ? 0.0 : least * fabs(sizes[column]));
  values[i] += signed_size(seed, i, size);
}

__global__ void row_norms_kernel(const double* values, double* norms, std::int64_t columns) {
  __shared__ double sums[kThreads];
  const double* row = values + std::int64_t{blockIdx.x} * columns;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += kThreads) sum += row[i] * row[i];
  sums[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // the other half's sums are there
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrt(sums[0]);
}

/// A thread owns a column; which suffices for how far sums are moved.
__global__ void column_norms_kernel(const double* values, double* norms, std::int64_t rows,
                                    std::int64_t columns) {
  const std::int64_t column = thread_index();
  if (column >= columns) return;
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    sum += values[row * columns + column] * values[row * columns + column];
  norms[column] = sqrt(sum);
}

__global__ void round_and_scale_kernel(double* values, std::int64_t count, Rounding rounding, double factor) {
  const std::int64_t i = thread_index();
  if (i < count) values[i] = rounded(values[i], rounding) * factor;
}

__global__ void add_bias_kernel(double* values, std::int64_t count, std::int64_t columns,
                                const double* bias) {
  const std::int64_t i = thread_index();
  if (i < count) values[i] += bias[i % columns];
}

/// partial[blockIdx.x]: the sums of every gridDim.x-th piece.
__global__ void compare_kernel(Increment increment, const double* first, const double* gradient,
                               const double* expected, std::int64_t count, double* partial) {
  __shared__ double sums[3][kThreads];
  double difference = 0, along = 0, update = 0;
  for (std::int64_t i = thread_index(); i < count; i += std::int64_t{gridDim.x} * kThreads) {
    const double before = first == nullptr ? 0.0 : first[i];
    double value = before;
    if (increment.kind != Increment::Kind::kValue) {
      const double own = increment.kind == Increment::Kind::kSquare ? gradient[i] * gradient[i] : gradient[i];
      value = increment.slope * before + increment.factor * own;
    }
    const double off = value - expected[i];
    difference += off * off;
    along += off * expected[i];
    update += expected[i] * expected[i];
  }
  sums[0][threadIdx.x] = difference;
  sums[1][threadIdx.x] = along;
  sums[2][threadIdx.x] = update;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();  // the other half's sums are there
    if (threadIdx.x < half)
      for (int which = 0; which < 3; ++which) sums[which][threadIdx.x] += sums[which][threadIdx.x + half];
  }
  if (threadIdx.x < 3) {
    __syncwarp();  // lane 0 wrote the last sums
    partial[blockIdx.x * 3 + threadIdx.x] = sums[threadIdx.x][0];
  }
}

__global__ void average_kernel(const double* other, double* values, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) values[i] = 0.5 * (values[i] + other[i]);
}

__global__ void multiply_by_slopes_kernel(double* gradient, const double* slopes, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) gradient[i] = slopes[i] == 0 ? 0 : gradient[i] * slopes[i];
}

/// A thread owns a sample.
__global__ void loss_kernel(const double* logits, const std::int32_t* labels, double* gradient,
                            double* row_losses, std::int64_t batch, std::int64_t classes, double scale,
                            Rounding log_probabilities, Signs signs) {
  const std::int64_t row = thread_index();
  if (row >= batch) return;
  const double* logit = logits + row * classes;
  double highest = logit[0];
  for (std::int64_t i = 1; i < classes; ++i) highest = logit[i] > highest ? logit[i] : highest;
  double sum = 0;
  for (std::int64_t i = 0; i < classes; ++i) sum += exp(logit[i] - highest);
  const double of_sum = log(sum);
  const auto log_probability = [&](std::int64_t i) {
    const double own = logit[i] - highest - of_sum;
    return rounded(own + signed_size(~signs.seed, row * classes + i, signs.function_error * fabs(own)),
                   log_probabilities);
  };
  const bool is_rounded = log_probabilities != Rounding::kNone;
  for (std::int64_t i = 0; i < classes; ++i) {
    double own = (is_rounded ? exp(log_probability(i)) : exp(logit[i] - highest) / sum) -
                 (i == labels[row] ? 1.0 : 0.0);
    // A probability near 1, less 1, is as far off as the 1.
    own += signed_size(signs.seed, row * classes + i,
                       signs.function_error * (own < 0 ? 1.0 : own * (1 + highest - logit[i])));
    gradient[row * classes + i] = own * scale;
  }
  row_losses[row] = is_rounded ? -log_probability(labels[row]) : of_sum - (logit[labels[row]] - highest);
}

__global__ void loss_of_targets_kernel(Loss loss, const double* values, const float* targets,
                                       double* gradient, double* row_losses, std::int64_t batch,
                                       std::int64_t outputs, double scale, Signs signs) {
  const std::int64_t row = thread_index();
  if (row >= batch) return;
  double sum = 0;
  for (std::int64_t i = row * outputs; i < (row + 1) * outputs; ++i) {
    const rules::LossPart part = loss == Loss::kMeanSquaredError
                                     ? rules::squared_error(values[i], targets[i])
                                     : rules::binary_cross_entropy(values[i], targets[i]);
    sum += part.loss;
    const double size = loss == Loss::kMeanSquaredError
                            ? fabs(part.gradient) / 2
                            : fmax(fabs(part.gradient), fabs(static_cast<double>(targets[i])));
    gradient[i] = (part.gradient + signed_size(signs.seed, i, signs.function_error * size)) * scale;
  }
  row_losses[row] = sum / static_cast<double>(outputs);
}

/// parts[blockIdx.y, column]: the sum over kRowsOfPart rows. A thread sums every eighth of them.
__global__ void column_parts_kernel(const double* values, double* parts, std::int64_t rows,
                                    std::int64_t columns) {
  __shared__ double sums[kSumRows][kSumColumns];
  const int thread_row = static_cast<int>(threadIdx.x) / kSumColumns,
            thread_column = static_cast<int>(threadIdx.x) % kSumColumns;
  const std::int64_t column = std::int64_t{blockIdx.x} * kSumColumns + thread_column;
  const std::int64_t begin = blockIdx.y * kRowsOfPart;
  const std::int64_t end = begin + kRowsOfPart < rows ? begin + kRowsOfPart : rows;
  double sum = 0;
  if (column < columns)
    for (std::int64_t row = begin + thread_row; row < end; row += kSumRows)
      sum += values[row * columns + column];
  sums[thread_row][thread_column] = sum;
  __syncthreads();  // all eight sums of a column are there
  if (thread_row != 0 || column >= columns) return;
  for (int row = 1; row < kSumRows; ++row) sum += sums[row][thread_column];
  parts[blockIdx.y * columns + column] = sum;
}

/// to[i] = scale * sum of parts[., i], plus bias[i mod columns] if not null.
__global__ void add_parts_kernel(const double* parts, std::int64_t part_count, double* to, std::int64_t count,
                                 std::int64_t columns, const double* bias, double scale) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  double sum = 0;
  for (std::int64_t part = 0; part < part_count; ++part) sum += parts[part * count + i];
  to[i] = sum * scale + (bias != nullptr ? bias[i % columns] : 0.0);
}

__global__ void update_kernel(Optimizer optimizer, double step, const double* gradient, double* parameters,
                              double* first_slot, double* second_slot, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i >= count) return;
  rules::Parameter one{.value = parameters[i]};
  if (first_slot != nullptr) one.slots[0] = first_slot[i];
  if (second_slot != nullptr) one.slots[1] = second_slot[i];
  rules::update(rules::at_step(optimizer, step), gradient[i], one);
  parameters[i] = one.value;
  if (first_slot != nullptr) first_slot[i] = one.slots[0];
  if (second_slot != nullptr) second_slot[i] = one.slots[1];
}

__global__ void subtract_kernel(const double* other, double* values, std::int64_t count) {
  const std::int64_t i = thread_index();
  if (i < count) values[i] -= other[i];
}

template <class... Parameters, class... Arguments>
void launch_elementwise(void (*kernel)(Parameters...), std::int64_t count, Stream& stream,
                        Arguments... arguments) {
  if (count == 0) return;
  kernel<<<static_cast<unsigned>(pieces(count, kThreads)), kThreads, 0, stream.get()>>>(arguments...);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void product(Factor a, Factor b, double* c, std::int64_t rows, std::int64_t columns, std::int64_t inner,
             const double* bias, double scale, PartialSums& partial, Stream& stream) {
  const bool few_rows = rows <= 32;
  const std::int64_t row_blocks = pieces(rows, few_rows ? 32 : 64), column_blocks = pieces(columns, kColumns);
  const std::int64_t wanted =
      std::clamp<std::int64_t>(kEnoughBlocks / (row_blocks * column_blocks), 1, pieces(inner, kLeastInner));
  const std::int64_t inner_of_part = pieces(pieces(inner, wanted), kInner) * kInner;
  const std::int64_t parts = pieces(inner, inner_of_part);
  const dim3 grid(static_cast<unsigned>(row_blocks), static_cast<unsigned>(column_blocks),
                  static_cast<unsigned>(parts));
  const auto kernel = few_rows ? product_kernel<2> : product_kernel<4>;
  if (parts == 1) {
    kernel<<<grid, kThreads, 0, stream.get()>>>(a, b, c, rows, columns, inner, inner_of_part, bias, scale);
    CUDA_CHECK(cudaGetLastError());
    return;
  }
  const std::int64_t count = rows * columns;
  double* sums = partial.of_size(parts * count);
  kernel<<<grid, kThreads, 0, stream.get()>>>(a, b, sums, rows, columns, inner, inner_of_part, nullptr, 1);
  CUDA_CHECK(cudaGetLastError());
  launch_elementwise(add_parts_kernel, count, stream, sums, parts, c, count, columns, bias, scale);
}

void round_values(const double* from, double* to, std::int64_t count, Rounding rounding, Stream& stream) {
  launch_elementwise(round_values_kernel, count, stream, from, to, count, rounding);
}
void widen_and_round(const float* from, double* to, std::int64_t count, Rounding rounding, Stream& stream) {
  launch_elementwise(widen_and_round_kernel, count, stream, from, to, count, rounding);
}
void narrow(const double* from, float* to, std::int64_t count, double factor, Stream& stream) {
  launch_elementwise(narrow_kernel, count, stream, from, to, count, factor);
}
void activate(Activation activation, double* values, double* slopes, std::int64_t count, Rounding rounding,
              bool elu_of_sum, Signs signs, Stream& stream) {
  launch_elementwise(activate_kernel, count, stream, activation, values, slopes, count, rounding, elu_of_sum,
                     signs);
}
void move_sums(double* values, std::int64_t rows, std::int64_t columns, const double* row_norms,
               const double* column_norms, double error, const double* sizes, double least,
               std::uint64_t seed, Stream& stream) {
  launch_elementwise(move_sums_kernel, rows * columns, stream, values, rows, columns, row_norms, column_norms,
                     error, sizes, least, seed);
}
void norms(const double* values, std::int64_t rows, std::int64_t columns, double* row_norms,
           double* column_norms, Stream& stream) {
  row_norms_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream.get()>>>(values, row_norms, columns);
  CUDA_CHECK(cudaGetLastError());
  launch_elementwise(column_norms_kernel, columns, stream, values, column_norms, rows, columns);
}
void round_and_scale(double* values, std::int64_t count, Rounding rounding, double factor, Stream& stream) {
  launch_elementwise(round_and_scale_kernel, count, stream, values, count, rounding, factor);
}
void add_bias(double* values, std::int64_t rows, std::int64_t columns, const double* bias, Stream& stream) {
  launch_elementwise(add_bias_kernel, rows * columns, stream, values, rows * columns, columns, bias);
}
ComparedSums compare(Increment increment, const double* first, const double* gradient, const double* expected,
                     std::int64_t count, PartialSums& partial, Stream& stream) {
  const std::int64_t blocks = std::min<std::int64_t>(pieces(count, kThreads), 2 * kEnoughBlocks);
  double* parts = partial.of_size(3 * blocks);
  compare_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream.get()>>>(increment, first, gradient,
                                                                               expected, count, parts);
  CUDA_CHECK(cudaGetLastError());
  std::vector<double> host(static_cast<std::size_t>(3 * blocks));
  CUDA_CHECK(cudaMemcpyAsync(host.data(), parts, host.size() * sizeof(double), cudaMemcpyDeviceToHost,
                             stream.get()));
  stream.synchronize();
  ComparedSums sums;
  for (std::size_t block = 0; block < static_cast<std::size_t>(blocks); ++block) {
    sums.difference += host[3 * block];
    sums.along += host[3 * block + 1];
    sums.update += host[3 * block + 2];
  }
  return sums;
}
void average(const double* other, double* values, std::int64_t count, Stream& stream) {
  launch_elementwise(average_kernel, count, stream, other, values, count);
}
void multiply_by_slopes(double* gradient, const double* slopes, std::int64_t count, Stream& stream) {
  launch_elementwise(multiply_by_slopes_kernel, count, stream, gradient, slopes, count);
}
void loss_of_targets(Loss loss, const double* values, const float* targets, double* gradient,
                     double* row_losses, std::int64_t batch, std::int64_t outputs, double scale, Signs signs,
                     Stream& stream) {
  launch_elementwise(loss_of_targets_kernel, batch, stream, loss, values, targets, gradient, row_losses,
                     batch, outputs, scale, signs);
}
void loss(const double* logits, const std::int32_t* labels, double* gradient, double* row_losses,
          std::int64_t batch, std::int64_t classes, double scale, Rounding log_probabilities, Signs signs,
          Stream& stream) {
  launch_elementwise(loss_kernel, batch, stream, logits, labels, gradient, row_losses, batch, classes, scale,
                     log_probabilities, signs);
}
void column_sums(const double* values, double* sums, std::int64_t rows, std::int64_t columns, double scale,
                 PartialSums& partial, Stream& stream) {
  const std::int64_t parts = pieces(rows, kRowsOfPart);
  const dim3 grid(static_cast<unsigned>(pieces(columns, kSumColumns)), static_cast<unsigned>(parts));
  double* part_sums = partial.of_size(parts * columns);
  column_parts_kernel<<<grid, kSumColumns * kSumRows, 0, stream.get()>>>(values, part_sums, rows, columns);
  CUDA_CHECK(cudaGetLastError());
  launch_elementwise(add_parts_kernel, columns, stream, part_sums, parts, sums, columns, columns,
                     static_cast<const double*>(nullptr), scale);
}
void update(const Optimizer& optimizer, std::int64_t step, const double* gradient, double* parameters,
            double* first_slot, double* second_slot, std::int64_t count, Stream& stream) {
  launch_elementwise(update_kernel, count, stream, optimizer, static_cast<double>(step), gradient, parameters,
                     first_slot, second_slot, count);
}
void subtract(const double* other, double* values, std::int64_t count, Stream& stream) {
  launch_elementwise(subtract_kernel, count, stream, other, values, count);
}

}  // namespace headroom::oracle
