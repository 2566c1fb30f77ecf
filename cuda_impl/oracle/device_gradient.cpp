#include "oracle/device_gradient.h"

#include <algorithm>
#include <cmath>

namespace headroom {
namespace {

using oracle::Rounding;

// Places where signs are drawn.
enum Place { kSums, kOutputs, kLossGradient, kInputGradient, kWeightGradient, kBiasGradient };

std::uint64_t mixed(std::uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

DeviceGradient::DeviceGradient(const Workload& workload, const DatasetView& data)
    : widths_(workload.model.widths),
      activation_(workload.model.activation),
      loss_(workload.loss),
      batch_(workload.batch_size),
      batches_(data.batches(workload.batch_size)),
      ranges_(tensor_ranges(workload.model.widths)) {
  require_data_for(workload, data, "oracle-cuda");
  features_ = DeviceBuffer<float>(batches_ * batch_ * data.feature_count);
  features_.copy_from({data.features, static_cast<std::size_t>(features_.size())});
  if (loss_ == Loss::kCrossEntropy) {
    labels_ = DeviceBuffer<std::int32_t>(batches_ * batch_);
    labels_.copy_from({data.labels, static_cast<std::size_t>(labels_.size())});
  } else {
    targets_ = DeviceBuffer<float>(batches_ * batch_ * workload.outputs());
    targets_.copy_from({data.targets, static_cast<std::size_t>(targets_.size())});
  }
  for (const int width : widths_) values_.emplace_back(batch_ * width);
  std::int64_t largest_weight = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    gradients_.emplace_back(batch_ * widths_[layer + 1]);
    if (layer + 1 < layers()) slopes_.emplace_back(batch_ * widths_[layer + 1]);
    largest_weight = std::max(largest_weight, weight_range(layer).size);
  }
  const int widest = *std::max_element(widths_.begin() + 1, widths_.end());
  weights_ = DeviceBuffer<double>(largest_weight);
  rounded_gradient_ = DeviceBuffer<double>(batch_ * widest);
  bias_ = DeviceBuffer<double>(widest);
  row_losses_ = DeviceBuffer<double>(batch_);
}

double DeviceGradient::operator()(const double* parameters, std::int64_t step, const Roundings& roundings,
                                  double* gradient, Stream& stream, const Perturbation* perturbation) {
  roundings_ = roundings;
  perturbation_ = perturbation;
  if (perturbation_ != nullptr && perturbation_->draws_tf32)
    roundings_.input = roundings_.weight = Rounding::kNone;
  const std::int64_t first_row = step % batches_ * batch_;
  oracle::widen_and_round(features_.data() + first_row * widths_[0], values_[0].data(), batch_ * widths_[0],
                          rounding_of_inputs(0), stream);
  for (int layer = 0; layer < layers(); ++layer) forward(parameters, layer, stream);
  const std::int64_t outputs = widths_.back();
  const oracle::Signs loss_signs = signs(kLossGradient, 0);
  if (loss_ == Loss::kCrossEntropy) {
    const Rounding rounding = roundings_.log_probabilities ? roundings_.input : Rounding::kNone;
    double scale = roundings_.loss_scale / static_cast<double>(batch_);
    round_values(rounding, &scale, &scale, 1);
    oracle::loss(values_.back().data(), labels_.data() + first_row, gradients_.back().data(),
                 row_losses_.data(), batch_, outputs, scale, rounding, loss_signs, stream);
  } else
    oracle::loss_of_targets(loss_, values_.back().data(), targets_.data() + first_row * outputs,
                            gradients_.back().data(), row_losses_.data(), batch_, outputs,
                            roundings_.loss_scale / static_cast<double>(batch_ * outputs), loss_signs,
                            stream);
  for (int layer = layers() - 1; layer >= 0; --layer) backward(parameters, layer, gradient, stream);
  stream.synchronize();
  double total = 0;
  for (const double loss : row_losses_.to_host()) total += loss;
  return total / static_cast<double>(batch_);
}

void DeviceGradient::measure_norms(const double* parameters, Stream& stream) {
  if (norms_.empty()) {
    for (int layer = 0; layer < layers(); ++layer) {
      const int in = widths_[layer], out = widths_[layer + 1];
      const auto buffer = [](std::int64_t size) { return DeviceBuffer<double>(size); };
      norms_.push_back({buffer(batch_), buffer(in), buffer(out), buffer(in), buffer(batch_), buffer(out)});
    }
  }
  for (int layer = 0; layer < layers(); ++layer) {
    const int in = widths_[layer], out = widths_[layer + 1];
    Norms& own = norms_[layer];
    oracle::norms(values_[layer].data(), batch_, in, own.input_rows.data(), own.input_columns.data(), stream);
    oracle::norms(parameters + weight_range(layer).begin, out, in, own.weight_rows.data(),
                  own.weight_columns.data(), stream);
    oracle::norms(gradients_[layer].data(), batch_, out, own.gradient_rows.data(),
                  own.gradient_columns.data(), stream);
  }
}

std::uint64_t DeviceGradient::seed_of(int place, int layer) const {
  return perturbation_ == nullptr
             ? 0
             : mixed(mixed(perturbation_->seed) + static_cast<std::uint64_t>(place * kMaxLayers + layer));
}

oracle::Signs DeviceGradient::signs(int place, int layer) const {
  return {seed_of(place, layer), perturbation_ == nullptr ? 0 : kFunctionError};
}

/// Of a library's tf32, what the factors of this product meet; else what was asked for.
Rounding DeviceGradient::drawn(Rounding rounding, Product product, int layer) const {
  if (perturbation_ == nullptr || !perturbation_->draws_tf32) return rounding;
  return cuts_off(*perturbation_, product, layer, layers()) ? Rounding::kTf32CutOff : Rounding::kTf32;
}

bool DeviceGradient::leaves_factors(int layer) const {
  return roundings_.leaves_one_output_factors && is_last_of_one(layer);
}

Rounding DeviceGradient::rounding_of_inputs(int layer) const {
  return leaves_factors(layer) ? Rounding::kNone : roundings_.input;
}

/// Activations as a product that rounds for itself reads them; else as they are, rounded already.
const double* DeviceGradient::entering(const DeviceBuffer<double>& factor, std::int64_t count,
                                       Product product, int layer, Stream& stream) {
  const Rounding rounding = drawn(Rounding::kNone, product, layer);
  if (rounding == Rounding::kNone) return factor.data();
  if (entering_.size() < count)
    entering_ = DeviceBuffer<double>(batch_ * *std::max_element(widths_.begin(), widths_.end()));
  oracle::round_values(factor.data(), entering_.data(), count, rounding, stream);
  return entering_.data();
}

/// The layer's weights as they enter a product.
const double* DeviceGradient::product_weights(const double* parameters, int layer, Product product,
                                              Stream& stream) {
  const TensorRange& range = weight_range(layer);
  const Rounding rounding =
      leaves_factors(layer) ? Rounding::kNone : drawn(roundings_.weight, product, layer);
  if (rounding == Rounding::kNone) return parameters + range.begin;
  oracle::round_values(parameters + range.begin, weights_.data(), range.size, rounding, stream);
  return weights_.data();
}

void DeviceGradient::forward(const double* parameters, int layer, Stream& stream) {
  const int in = widths_[layer], out = widths_[layer + 1];
  double* sums = values_[layer + 1].data();
  const double* bias = parameters + bias_range(layer).begin;
  if (roundings_.bias) {
    oracle::round_values(bias, bias_.data(), out, roundings_.input, stream);
    bias = bias_.data();
  }
  const bool bias_follows = roundings_.product_of_one_output && out == 1;
  const double* own_bias = bias;
  if (bias_follows) bias = nullptr;
  oracle::product({entering(values_[layer], batch_ * in, Product::kForward, layer, stream), in, 1},
                  {product_weights(parameters, layer, Product::kForward, stream), in, 1}, sums, batch_, out,
                  in, bias, 1, partial_, stream);
  if (perturbation_ != nullptr)
    oracle::move_sums(sums, batch_, out, norms_[layer].input_rows.data(), norms_[layer].weight_rows.data(),
                      sum_error(*perturbation_, in), bias, 2 * kUnit, seed_of(kSums, layer), stream);
  if (bias_follows) {
    oracle::round_and_scale(sums, batch_, roundings_.input, 1, stream);
    oracle::add_bias(sums, batch_, 1, own_bias, stream);
  }
  if (roundings_.sums) oracle::round_and_scale(sums, batch_ * out, roundings_.input, 1, stream);
  if (layer + 1 < layers())
    oracle::activate(activation_, sums, slopes_[layer].data(), batch_ * out, rounding_of_inputs(layer + 1),
                     roundings_.sums, signs(kOutputs, layer), stream);
}

void DeviceGradient::backward(const double* parameters, int layer, double* gradient, Stream& stream) {
  const int in = widths_[layer], out = widths_[layer + 1];
  const double unscale = 1 / roundings_.loss_scale;
  const double* unrounded = gradients_[layer].data();
  double *bias_gradient = gradient + bias_range(layer).begin,
         *weight_gradient = gradient + weight_range(layer).begin;
  const Norms* norms = perturbation_ == nullptr ? nullptr : &norms_[layer];
  const bool is_left = roundings_.leaves_one_output_gradient && is_last_of_one(layer);
  const auto round_gradient = [&](Product product) -> const double* {
    if (is_left) return unrounded;
    oracle::round_values(unrounded, rounded_gradient_.data(), batch_ * out,
                         drawn(roundings_.input, product, layer), stream);
    return rounded_gradient_.data();
  };
  const double* entering_gradient = round_gradient(Product::kWeightGradient);
  const bool is_stored_first = roundings_.stores_rounded && !roundings_.leaves_bias_terms;
  oracle::column_sums(is_stored_first ? entering_gradient : unrounded, bias_gradient, batch_, out, 1,
                      partial_, stream);
  if (norms != nullptr)
    oracle::move_sums(bias_gradient, 1, out, nullptr, norms->gradient_columns.data(),
                      sum_error(*perturbation_, batch_) * std::sqrt(static_cast<double>(batch_)), nullptr, 0,
                      seed_of(kBiasGradient, layer), stream);
  oracle::round_and_scale(bias_gradient, out, roundings_.bias_gradient ? roundings_.input : Rounding::kNone,
                          unscale, stream);
  oracle::product({entering_gradient, 1, out},
                  {entering(values_[layer], batch_ * in, Product::kWeightGradient, layer, stream), 1, in},
                  weight_gradient, out, in, batch_, nullptr, 1, partial_, stream);
  if (norms != nullptr)
    oracle::move_sums(weight_gradient, out, in, norms->gradient_columns.data(), norms->input_columns.data(),
                      sum_error(*perturbation_, batch_), nullptr, 0, seed_of(kWeightGradient, layer), stream);
  if (roundings_.weight_gradient || unscale != 1)
    oracle::round_and_scale(weight_gradient, std::int64_t{out} * in,
                            roundings_.weight_gradient ? roundings_.input : Rounding::kNone, unscale, stream);
  if (layer == 0) return;
  double* below = gradients_[layer - 1].data();
  oracle::product({round_gradient(Product::kInputGradient), out, 1},
                  {product_weights(parameters, layer, Product::kInputGradient, stream), 1, in}, below, batch_,
                  in, out, nullptr, 1, partial_, stream);
  if (norms != nullptr)
    oracle::move_sums(below, batch_, in, norms->gradient_rows.data(), norms->weight_columns.data(),
                      sum_error(*perturbation_, out), nullptr, 0, seed_of(kInputGradient, layer), stream);
  if (roundings_.before_slope) oracle::round_and_scale(below, batch_ * in, roundings_.input, 1, stream);
  oracle::multiply_by_slopes(below, slopes_[layer - 1].data(), batch_ * in, stream);
}

}  // namespace headroom
