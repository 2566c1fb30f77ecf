// The slope of relu, tanh and elu is taken from the activation as it is stored, which in 16 bits is what enters the next product: what
// fp16 flushes to zero is masked. That of silu and gelu comes from the sum before them, stored in 16 bits too.
//
// A perturbation stands for every other order of sums at once. A sum of n products of x and w in fp32 is off by about
// 2^-24 |x| |w| where the signs of its terms are random, by sqrt(n) times that where they are all the same, and on tensor cores, which
// cut off, by several times more. So each sum moves by a few times that, up or down. It is more than a correct sum is off, on purpose:
// a unit that a correct backend may switch is then switched in about half of the copies.
#include "oracle/gradient.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "core/error.h"
#include "core/parallel.h"
#include "core/training_rules.h"

namespace headroom {
namespace {

constexpr std::int64_t kElementsChunk = 1 << 15;  // worth waking a thread for
constexpr std::int64_t kSignsAtOnce = 64;         // drawn

// Places where signs are drawn; each takes a layer's number too.
enum Place : std::uint64_t {
  kSums,
  kOutputs,
  kSlopes,
  kLossGradient,
  kInputGradient,
  kWeightGradient,
  kBiasGradient,
  kPlaces
};

std::uint64_t mixed(std::uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::uint64_t seed_of_row(std::uint64_t seed, std::int64_t row) {
  return mixed(seed + (static_cast<std::uint64_t>(row) << 20));
}

// values[i] += or -= size(i).
template <typename Size>
void move(std::uint64_t seed, double* values, std::int64_t count, const Size& size) {
  for (std::int64_t begin = 0; begin < count; begin += kSignsAtOnce) {
    const std::uint64_t signs = mixed(seed + static_cast<std::uint64_t>(begin));
    const std::int64_t end = std::min(kSignsAtOnce, count - begin);
    for (std::int64_t i = 0; i < end; ++i) {
      const std::uint64_t sign = (signs >> i) << 63;
      values[begin + i] += std::bit_cast<double>(std::bit_cast<std::uint64_t>(size(begin + i)) | sign);
    }
  }
}

template <typename Body>
void for_rows(std::int64_t rows, std::int64_t columns, const Body& body) {
  const auto each = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  };
  if (rows * columns <= kElementsChunk)
    each(0, rows);
  else
    parallel_for(rows, std::max<std::int64_t>(1, kElementsChunk / columns), each);
}

/// Calls use(activation) with the activation as a constant: a loop over a row then makes no choice for each value.
template <typename Use>
void with_constant(Activation activation, const Use& use) {
  switch (activation) {
    case Activation::kRelu:
      return use(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kTanh:
      return use(std::integral_constant<Activation, Activation::kTanh>{});
    case Activation::kSilu:
      return use(std::integral_constant<Activation, Activation::kSilu>{});
    case Activation::kGelu:
      return use(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kElu:
      return use(std::integral_constant<Activation, Activation::kElu>{});
  }
}

std::vector<double> row_norms(const PaddedMatrix<double>& matrix) {
  std::vector<double> norms(static_cast<std::size_t>(matrix.rows));
  for_rows(matrix.rows, matrix.columns, [&](std::int64_t row) {
    double sum = 0;
    for (std::int64_t i = 0; i < matrix.columns; ++i) sum += matrix.row(row)[i] * matrix.row(row)[i];
    norms[row] = std::sqrt(sum);
  });
  return norms;
}

std::vector<double> column_norms(const PaddedMatrix<double>& matrix) {
  std::vector<double> norms(static_cast<std::size_t>(matrix.columns));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t i = 0; i < matrix.columns; ++i) norms[i] += matrix.row(row)[i] * matrix.row(row)[i];
  for (double& norm : norms) norm = std::sqrt(norm);
  return norms;
}

}  // namespace

Roundings roundings_of(Precision precision, Contract contract, int batch_size) {
  Roundings roundings;
  switch (precision) {
    case Precision::kFp32:
      return roundings;
    case Precision::kTf32:
      roundings.input = roundings.weight = ProductRounding::kTf32;
      return roundings;
    case Precision::kFp16:
      roundings.input = roundings.weight = ProductRounding::kFp16;
      roundings.loss_scale = loss_scale(precision, batch_size);
      break;
    case Precision::kBf16:
      roundings.input = ProductRounding::kBf16;
      roundings.weight = ProductRounding::kBf16Weight;
      break;
  }
  roundings.stores_rounded = true;
  if (contract != Contract::kAutocast) return roundings;
  roundings.weight = roundings.input;
  roundings.bias = roundings.sums = roundings.before_slope = true;
  roundings.weight_gradient = roundings.bias_gradient = roundings.log_probabilities = true;
  roundings.product_of_one_output = true;
  roundings.loss_scale = std::min(roundings.loss_scale, 32768.0);  // torch_impl/libtorch/autograd_step.h
  return roundings;
}

double sum_error(const Perturbation& perturbation, std::int64_t terms) {
  const double root = std::sqrt(static_cast<double>(terms));
  return kUnit * (2 + (perturbation.is_cut_off ? 1.0 : 0.5) * root) + perturbation.left_rounding / root;
}

// The columns of a two-level design of sixteen runs: of the eight that have bit 3 any three are independent, of all fifteen any two.
bool cuts_off(const Perturbation& perturbation, Product product, int layer, int layers) {
  const auto above = static_cast<unsigned>(layers - 1 - layer);
  const unsigned which = product == Product::kWeightGradient ? 0
                         : product == Product::kForward      ? 1 + 2 * above
                                                             : 2 + 2 * above;
  unsigned column = which < 8 ? 8 + which : which - 7;
  if (which >= 15)
    column = 1 + static_cast<unsigned>(
                     mixed(mixed(perturbation.seed - static_cast<unsigned>(perturbation.copy)) + which) % 15);
  // The copies' bits in reverse, so that the first few are a fair choice.
  const auto copy = static_cast<unsigned>(perturbation.copy);
  const unsigned run = (copy & 1) << 3 | (copy & 2) << 1 | (copy & 4) >> 1 | (copy & 8) >> 3;
  return std::popcount(run & column) % 2 == 1;
}

GradientOfBatch::GradientOfBatch(const Workload& workload, const DatasetView& data)
    : widths_(workload.model.widths),
      activation_(workload.model.activation),
      loss_(workload.loss),
      layers_(workload.layers()),
      batch_(workload.batch_size),
      data_(data),
      ranges_(tensor_ranges(workload.model.widths)) {
  validate(workload);
  require_data_for(workload, data, "oracle");
  for (int layer = 0; layer <= layers_; ++layer) values_.emplace_back(batch_, widths_[layer]);
  for (int layer = 0; layer < layers_; ++layer) {
    weights_.emplace_back(widths_[layer + 1], widths_[layer]);
    gradients_.emplace_back(batch_, widths_[layer + 1]);
    if (layer + 1 < layers_) slopes_.emplace_back(batch_, widths_[layer + 1]);
  }
  bias_.resize(static_cast<std::size_t>(*std::max_element(widths_.begin(), widths_.end())));
  losses_.resize(static_cast<std::size_t>(batch_));
}

double GradientOfBatch::evaluate(const Values& parameters, std::int64_t step, const Roundings& roundings,
                                 const Perturbation* perturbation, const FactorNorms* norms,
                                 Values& gradient) {
  roundings_ = roundings;
  perturbation_ = perturbation;
  if (draws_tf32()) roundings_.input = roundings_.weight = ProductRounding::kNone;
  norms_ = norms;
  const std::int64_t first_row = step % data_.batches(static_cast<int>(batch_)) * batch_;
  load_inputs(first_row);
  for (int layer = 0; layer < layers_; ++layer) {
    load_weights(parameters, layer);
    forward(parameters, layer);
    if (layer + 1 < layers_) activate(layer);
  }
  const double loss = loss_and_its_gradient(first_row);
  gradient.resize(parameters.size());
  for (int layer = layers_ - 1; layer >= 0; --layer) backward(layer, gradient);
  return loss;
}

FactorNorms GradientOfBatch::norms() const {
  FactorNorms norms;
  for (int layer = 0; layer < layers_; ++layer)
    norms.layers.push_back({row_norms(values_[layer]), column_norms(values_[layer]),
                            row_norms(weights_[layer]), column_norms(weights_[layer]),
                            row_norms(gradients_[layer]), column_norms(gradients_[layer])});
  return norms;
}

std::uint64_t GradientOfBatch::seed_of(std::uint64_t place) const {
  return mixed(perturbation_->seed * kPlaces * kMaxLayers + place);
}

/// The factor as a product that rounds for itself reads it; else as it is, rounded already.
const PaddedMatrix<double>& GradientOfBatch::entering(const PaddedMatrix<double>& factor, Product product,
                                                      int layer, PaddedMatrix<double>& space) const {
  if (!draws_tf32()) return factor;
  const ProductRounding rounding = cuts_off(*perturbation_, product, layer, layers_)
                                       ? ProductRounding::kTf32CutOff
                                       : ProductRounding::kTf32;
  if (space.rows != factor.rows || space.columns != factor.columns)
    space = PaddedMatrix<double>(factor.rows, factor.columns);
  for_rows(factor.rows, factor.columns, [&](std::int64_t row) {
    round_values(rounding, factor.row(row), space.row(row), factor.columns);
  });
  return space;
}

void GradientOfBatch::round_all(ProductRounding rounding, PaddedMatrix<double>& matrix) {
  if (rounding == ProductRounding::kNone) return;
  const std::int64_t count = matrix.rows * matrix.stride;
  if (count <= kElementsChunk)  // at once, with the zeros behind each row
    return round_values(rounding, matrix.values.data(), matrix.values.data(), count);
  for_rows(matrix.rows, matrix.columns, [&](std::int64_t row) {
    round_values(rounding, matrix.row(row), matrix.row(row), matrix.columns);
  });
}

ProductRounding GradientOfBatch::rounding_of_inputs(int layer) const {
  return roundings_.leaves_one_output_factors && is_last_of_one(layer) ? ProductRounding::kNone
                                                                       : roundings_.input;
}

void GradientOfBatch::load_inputs(std::int64_t first_row) {
  PaddedMatrix<double>& inputs = values_[0];
  const ProductRounding rounding = rounding_of_inputs(0);
  for_rows(batch_, inputs.columns, [&](std::int64_t row) {
    const float* features = data_.features + (first_row + row) * inputs.columns;
    std::copy_n(features, inputs.columns, inputs.row(row));
    round_values(rounding, inputs.row(row), inputs.row(row), inputs.columns);
  });
}

void GradientOfBatch::load_weights(const Values& parameters, int layer) {
  PaddedMatrix<double>& weight = weights_[layer];
  const double* master = parameters.data() + weight_range(layer).begin;
  const ProductRounding rounding = roundings_.leaves_one_output_factors && is_last_of_one(layer)
                                       ? ProductRounding::kNone
                                       : roundings_.weight;
  for_rows(weight.rows, weight.columns, [&](std::int64_t row) {
    round_values(rounding, master + row * weight.columns, weight.row(row), weight.columns);
  });
}

void GradientOfBatch::forward(const Values& parameters, int layer) {
  PaddedMatrix<double>& sums = values_[layer + 1];
  const double* bias = parameters.data() + bias_range(layer).begin;
  if (roundings_.bias) {
    round_values(roundings_.input, bias, bias_.data(), sums.columns);
    bias = bias_.data();
  }
  const double none = 0, *own_bias = bias;
  const bool bias_follows = roundings_.product_of_one_output && sums.columns == 1;
  if (bias_follows) bias = &none;
  forward_product(entering(values_[layer], Product::kForward, layer, left_),
                  entering(weights_[layer], Product::kForward, layer, right_), bias, sums);
  if (perturbation_ != nullptr) {
    const FactorNorms::Layer& norms = norms_->layers[layer];
    const double error = sum_error(*perturbation_, widths_[layer]);
    const std::uint64_t seed = seed_of(kSums * kMaxLayers + static_cast<std::uint64_t>(layer));
    for_rows(batch_, sums.columns, [&](std::int64_t row) {
      const double input = error * norms.input_rows[row];
      const double* weight_rows = norms.weight_rows.data();
      move(seed_of_row(seed, row), sums.row(row), sums.columns,
           [=](std::int64_t i) { return input * weight_rows[i] + 2 * kUnit * std::abs(bias[i]); });
    });
  }
  if (bias_follows) {
    round_all(roundings_.input, sums);
    for_rows(batch_, 1, [&](std::int64_t row) { *sums.row(row) += *own_bias; });
  }
  if (roundings_.sums) round_all(roundings_.input, sums);
}

void GradientOfBatch::activate(int layer) {
  PaddedMatrix<double>&values = values_[layer + 1], &slopes = slopes_[layer];
  const bool of_output =
      rules::slope_is_of_output(activation_) && !(roundings_.sums && activation_ == Activation::kElu);
  const ProductRounding rounding = rounding_of_inputs(layer + 1);
  const bool is_moved = perturbation_ != nullptr && activation_ != Activation::kRelu;
  const bool stores_rounded = roundings_.stores_rounded;
  const auto place = static_cast<std::uint64_t>(layer);
  const std::uint64_t output_seed = is_moved ? seed_of(kOutputs * kMaxLayers + place) : 0;
  const std::uint64_t slope_seed = is_moved ? seed_of(kSlopes * kMaxLayers + place) : 0;
  const std::int64_t columns = values.columns;
  with_constant(activation_, [&](auto constant) {
    constexpr Activation kActivation = constant();
    constexpr bool kIsOfSum = kActivation == Activation::kGelu;  // 1 + erf cancels
    for_rows(batch_, columns * (kActivation == Activation::kRelu ? 1 : 8), [&](std::int64_t row) {
      double *value = values.row(row), *slope = slopes.row(row);
      const std::uint64_t own_output_seed = seed_of_row(output_seed, row);
      if (!of_output && !stores_rounded) {
        // Output and slope share an exponential or an error function.
        for (std::int64_t begin = 0; begin < columns; begin += kSignsAtOnce) {
          const std::int64_t count = std::min(kSignsAtOnce, columns - begin);
          double sums[kSignsAtOnce], *some = value + begin;
          for (std::int64_t i = 0; i < count; ++i) {
            const double sum = some[i];
            sums[i] = sum;
            some[i] = rules::activated(kActivation, sum);
            slope[begin + i] = rules::slope(kActivation, sum);
          }
          if (is_moved)
            move(own_output_seed + static_cast<std::uint64_t>(begin), some, count,
                 [&](std::int64_t i) { return kFunctionError * std::abs(kIsOfSum ? sums[i] : some[i]); });
        }
      } else {
        for (std::int64_t i = 0; i < columns; ++i) {
          const double sum = value[i];
          slope[i] = sum;
          value[i] = rules::activated(kActivation, sum);
        }
        if (is_moved)
          move(own_output_seed, value, columns,
               [=](std::int64_t i) { return kFunctionError * std::abs(kIsOfSum ? slope[i] : value[i]); });
        if (stores_rounded) round_values(rounding, value, value, columns);
        if (of_output) {
          for (std::int64_t i = 0; i < columns; ++i) slope[i] = rules::slope(kActivation, value[i]);
        } else {
          round_values(rounding, slope, slope, columns);
          // The slope of elu at a sum is that at its output.
          for (std::int64_t i = 0; i < columns; ++i) {
            const double kept =
                kActivation == Activation::kElu ? rules::activated(kActivation, slope[i]) : slope[i];
            slope[i] = rules::slope(kActivation, kept);
          }
        }
      }
      if (is_moved)
        move(seed_of_row(slope_seed, row), slope, columns,
             [=](std::int64_t i) { return slope[i] == 0 ? 0 : kFunctionError; });
      if (!stores_rounded) round_values(rounding, value, value, columns);
    });
  });
}

// Leaves the scaled gradient of the outputs in gradients_.back(), unrounded.
double GradientOfBatch::loss_and_its_gradient(std::int64_t first_row) {
  const std::int64_t outputs = values_.back().columns;
  // Of the mean's derivative, with what fp16 multiplies it by.
  double factor =
      roundings_.loss_scale / static_cast<double>(loss_ == Loss::kCrossEntropy ? batch_ : batch_ * outputs);
  if (roundings_.log_probabilities && loss_ == Loss::kCrossEntropy)
    round_values(roundings_.input, &factor, &factor, 1);
  const std::uint64_t seed = perturbation_ == nullptr ? 0 : seed_of(kLossGradient * kMaxLayers);
  for_rows(batch_, outputs * 8, [&](std::int64_t row) {
    const double* output = values_.back().row(row);
    double* gradient = gradients_.back().row(row);
    losses_[row] = loss_ == Loss::kCrossEntropy
                       ? cross_entropy(row, data_.labels[first_row + row], gradient)
                       : loss_of_targets(output, data_.targets + (first_row + row) * outputs, gradient);
    if (perturbation_ != nullptr) {
      // A probability near 1, less 1, is as far off as the 1.
      const double highest = *std::max_element(output, output + outputs);
      move(seed_of_row(seed, row), gradient, outputs, [&](std::int64_t i) {
        switch (loss_) {
          case Loss::kCrossEntropy:
            return gradient[i] < 0 ? kFunctionError
                                   : kFunctionError * gradient[i] * (1 + highest - output[i]);
          case Loss::kBinaryCrossEntropy:
            return kFunctionError *
                   std::max(std::abs(gradient[i]),
                            std::abs(double{data_.targets[(first_row + row) * outputs + i]}));
          case Loss::kMeanSquaredError:
            break;
        }
        return 2 * kUnit * std::abs(gradient[i]);
      });
    }
    for (std::int64_t i = 0; i < outputs; ++i) gradient[i] *= factor;
  });
  double total = 0;
  for (double loss : losses_) total += loss;
  return total / static_cast<double>(batch_);
}

double GradientOfBatch::cross_entropy(std::int64_t row, std::int32_t label, double* gradient) const {
  const std::int64_t classes = values_.back().columns;
  const double* logit = values_.back().row(row);
  if (label < 0 || label >= classes) {
    throw InputError("oracle: label " + std::to_string(label) + " is outside the " + std::to_string(classes) +
                     " classes");
  }
  const double highest = *std::max_element(logit, logit + classes);
  double sum = 0;
  for (std::int64_t i = 0; i < classes; ++i) {
    gradient[i] = std::exp(logit[i] - highest);
    sum += gradient[i];
  }
  if (!roundings_.log_probabilities) {
    for (std::int64_t i = 0; i < classes; ++i) gradient[i] = gradient[i] / sum - (i == label ? 1 : 0);
    return std::log(sum) - (logit[label] - highest);
  }
  const double of_sum = std::log(sum);
  for (std::int64_t i = 0; i < classes; ++i) gradient[i] = logit[i] - highest - of_sum;
  if (perturbation_ != nullptr)
    move(seed_of_row(seed_of(kOutputs * kMaxLayers + static_cast<std::uint64_t>(layers_ - 1)), row), gradient,
         classes, [&](std::int64_t i) { return kFunctionError * std::abs(gradient[i]); });
  round_values(roundings_.input, gradient, gradient, classes);
  const double loss = -gradient[label];
  for (std::int64_t i = 0; i < classes; ++i) gradient[i] = std::exp(gradient[i]) - (i == label ? 1 : 0);
  return loss;
}

/// The mean over the outputs, of a copy 0: nobody asks for it, and its logarithm takes time. `gradient` is that of their sum.
double GradientOfBatch::loss_of_targets(const double* output, const float* target, double* gradient) const {
  const std::int64_t outputs = values_.back().columns;
  double sum = 0;
  for (std::int64_t i = 0; i < outputs; ++i) {
    const rules::LossPart part = loss_ == Loss::kMeanSquaredError
                                     ? rules::squared_error(output[i], target[i])
                                     : rules::binary_cross_entropy(output[i], target[i]);
    if (perturbation_ == nullptr) sum += part.loss;
    gradient[i] = part.gradient;
  }
  return sum / static_cast<double>(outputs);
}

// From the unrounded gradient of a layer's output: its weight and bias gradients, and the gradient of its input.
void GradientOfBatch::backward(int layer, Values& gradient) {
  PaddedMatrix<double>& output_gradient = gradients_[layer];
  double* bias_gradient = gradient.data() + bias_range(layer).begin;
  double* weight_gradient = gradient.data() + weight_range(layer).begin;
  const std::int64_t in = widths_[layer], out = widths_[layer + 1];
  const FactorNorms::Layer* norms = perturbation_ == nullptr ? nullptr : &norms_->layers[layer];
  const auto place = [layer](Place kind) { return kind * kMaxLayers + static_cast<std::uint64_t>(layer); };
  const ProductRounding rounding = roundings_.input;

  const bool is_left = roundings_.leaves_one_output_gradient && is_last_of_one(layer);
  const bool is_stored_first = roundings_.stores_rounded && !roundings_.leaves_bias_terms;
  if (is_stored_first && !is_left) round_all(rounding, output_gradient);
  const double unscale = 1 / roundings_.loss_scale;  // a power of two: exact
  std::fill_n(bias_gradient, out, 0.0);
  for (std::int64_t row = 0; row < batch_; ++row) {
    const double* values = output_gradient.row(row);
    for (std::int64_t i = 0; i < out; ++i) bias_gradient[i] += values[i];
  }
  if (norms != nullptr) {
    const double error = sum_error(*perturbation_, batch_) * std::sqrt(static_cast<double>(batch_));
    move(seed_of_row(seed_of(place(kBiasGradient)), 0), bias_gradient, out,
         [&](std::int64_t i) { return error * norms->gradient_columns[i]; });
  }
  if (roundings_.bias_gradient) round_values(rounding, bias_gradient, bias_gradient, out);
  for (std::int64_t i = 0; i < out; ++i) bias_gradient[i] *= unscale;

  if (!is_stored_first && !is_left) round_all(rounding, output_gradient);
  weight_gradient_product(entering(output_gradient, Product::kWeightGradient, layer, left_),
                          entering(values_[layer], Product::kWeightGradient, layer, right_), weight_gradient);
  if (norms != nullptr || unscale != 1 || roundings_.weight_gradient) {
    const double error = norms == nullptr ? 0 : sum_error(*perturbation_, batch_);
    const std::uint64_t seed = norms == nullptr ? 0 : seed_of(place(kWeightGradient));
    for_rows(out, in, [&](std::int64_t row) {
      double* values = weight_gradient + row * in;
      if (norms != nullptr) {
        const double size = error * norms->gradient_columns[row];
        const double* input_columns = norms->input_columns.data();
        move(seed_of_row(seed, row), values, in, [=](std::int64_t i) { return size * input_columns[i]; });
      }
      if (roundings_.weight_gradient) round_values(rounding, values, values, in);
      if (unscale != 1)
        for (std::int64_t i = 0; i < in; ++i) values[i] *= unscale;
    });
  }
  if (layer == 0) return;

  PaddedMatrix<double>& input_gradient = gradients_[layer - 1];
  input_gradient_product(entering(output_gradient, Product::kInputGradient, layer, left_),
                         entering(weights_[layer], Product::kInputGradient, layer, right_), input_gradient);
  const PaddedMatrix<double>& slopes = slopes_[layer - 1];
  const double error = norms == nullptr ? 0 : sum_error(*perturbation_, out);
  const std::uint64_t seed = norms == nullptr ? 0 : seed_of(place(kInputGradient));
  for_rows(batch_, slopes.columns, [&](std::int64_t row) {
    const double* slope = slopes.row(row);
    double* values = input_gradient.row(row);
    if (norms != nullptr) {
      const double size = error * norms->gradient_rows[row];
      const double* weight_columns = norms->weight_columns.data();
      move(seed_of_row(seed, row), values, in, [=](std::int64_t i) { return size * weight_columns[i]; });
    }
    if (roundings_.before_slope) round_values(roundings_.input, values, values, in);
    // A unit of slope 0 passes nothing on, not even what is not finite.
    for (std::int64_t i = 0; i < in; ++i) values[i] = slope[i] == 0 ? 0 : values[i] * slope[i];
  });
}

}  // namespace headroom
