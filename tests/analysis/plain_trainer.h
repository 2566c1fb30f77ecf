// A trainer for tests of the checks: not the oracle with a fault in it but a second, plain implementation that accumulates in fp32, in
// another order, with fp32 masters and slots: what a real backend does. And the faults that it can have.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/workload.h"
#include "oracle/precision_rounding.h"

namespace headroom {

struct Fault {
  double learning_rate_factor = 1;
  int frozen_layer = -1;        // neither its weight nor its bias is updated
  int layer_without_bias = -1;  // its bias is not updated
  int scaled_layer = -1;        // both of its gradients are 5 % too long
  std::int64_t batch_shift = 0;
  bool nan = false;                 // one weight becomes NaN
  std::int64_t only_from_call = 0;  // the learning rate is wrong from this call of train() on
  double momentum_factor = 1, beta1_factor = 1, beta2_factor = 1;
  bool without_bias_correction = false, without_weight_decay = false;
  bool coupled_weight_decay = false;  // added to the gradient, as torch.optim.Adam's
  bool swapped_slots = false;         // behind the step
  std::int64_t step_offset = 0;       // of the step's number in the bias correction
  bool sum_for_mean = false;          // over the batch
};

class PlainTrainer {
 public:
  PlainTrainer(const Workload& workload, Precision precision, const DatasetView& data, const Fault& fault)
      : workload_(workload),
        precision_(precision),
        data_(data),
        fault_(fault),
        state_(State::initial(Parameters(workload.model.widths), workload.optimizer.slots())) {}

  void set_parameters(const Parameters& parameters) {
    state_ = State::initial(parameters, workload_.optimizer.slots());
  }
  void set_state(const State& state) { state_ = state; }
  const Parameters& parameters() const { return state_.parameters; }
  const State& state() const { return state_; }
  const std::vector<float>& losses() const { return losses_; }

  void train(std::int64_t first_step, std::int64_t count) {
    for (std::int64_t step = first_step; step < first_step + count; ++step) train_step(step);
    ++calls_;
  }

 private:
  using Matrix = std::vector<float>;  // [batch, width]

  float rounded(float value) const {
    switch (precision_) {
      case Precision::kTf32:
        return static_cast<float>(round_to_tf32(value));
      case Precision::kFp16:
        return static_cast<float>(round_to_fp16(value));
      case Precision::kBf16:
        return static_cast<float>(round_to_bf16(value));
      case Precision::kFp32:
        break;
    }
    return value;
  }
  float rounded_weight(float value) const {
    return precision_ == Precision::kBf16 ? static_cast<float>(round_weight_to_bf16(value)) : rounded(value);
  }
  bool has_16_bits() const { return precision_ == Precision::kFp16 || precision_ == Precision::kBf16; }
  float stored(float value) const { return has_16_bits() ? rounded(value) : value; }

  float activated(float z) const {
    switch (workload_.model.activation) {
      case Activation::kRelu:
        return z < 0 ? 0 : z;
      case Activation::kTanh:
        return std::tanh(z);
      case Activation::kSilu:
        return z / (1 + std::exp(-z));
      case Activation::kGelu:
        return 0.5f * z * (1 + std::erf(z * 0.70710678f));
      case Activation::kElu:
        return z > 0 ? z : std::expm1(z);
    }
    return z;
  }
  /// `z` and `y` as they are stored.
  float slope(float z, float y) const {
    switch (workload_.model.activation) {
      case Activation::kRelu:
        return y > 0 ? 1 : 0;
      case Activation::kTanh:
        return 1 - y * y;
      case Activation::kElu:
        return y < 0 ? y + 1 : 1;
      case Activation::kSilu: {
        const float sigmoid = 1 / (1 + std::exp(-z));
        return sigmoid + z * sigmoid * (1 - sigmoid);
      }
      case Activation::kGelu:
        return 0.5f * (1 + std::erf(z * 0.70710678f)) + z * 0.39894228f * std::exp(-0.5f * z * z);
    }
    return 1;
  }

  void train_step(std::int64_t step) {
    const int batch = workload_.batch_size, layers = workload_.layers();
    const std::vector<int>& widths = workload_.model.widths;
    const std::int64_t first_row = (step + fault_.batch_shift) % data_.batches(batch) * batch;
    std::vector<Matrix> values(static_cast<std::size_t>(layers) + 1), slopes(values.size()),
        weights(static_cast<std::size_t>(layers));
    for (int i = 0; i < batch * widths[0]; ++i)
      values[0].push_back(rounded(data_.features[first_row * widths[0] + i]));
    for (int layer = 0; layer < layers; ++layer) {
      for (float weight : state_.parameters.weight(layer)) weights[layer].push_back(rounded_weight(weight));
      forward(layer, values[layer], weights[layer], values[layer + 1], slopes[layer + 1]);
    }
    const float scale = static_cast<float>(loss_scale(precision_, batch));
    Matrix gradient = loss_gradient(values[layers], first_row, scale);
    for (int layer = layers - 1; layer >= 0; --layer) {
      Matrix entering = gradient;
      for (float& value : entering) value = rounded(value);
      const Matrix& summed = precision_ == Precision::kTf32 ? gradient : entering;
      Matrix below = layer > 0 ? input_gradient(layer, entering, weights[layer], slopes[layer]) : Matrix{};
      update(layer, step, entering, summed, values[layer], scale);
      gradient = std::move(below);
    }
    if (fault_.swapped_slots && state_.slots.size() == 2) std::swap(state_.slots[0], state_.slots[1]);
    if (fault_.nan) state_.parameters.weight(0)[3] = std::numeric_limits<float>::quiet_NaN();
  }

  void forward(int layer, const Matrix& x, const Matrix& weight, Matrix& out, Matrix& slopes) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    const bool hidden = layer + 1 < workload_.layers();
    out.resize(static_cast<std::size_t>(workload_.batch_size) * width);
    slopes.resize(out.size());
    for (int row = 0; row < workload_.batch_size; ++row) {
      for (int o = 0; o < width; ++o) {
        float sum = 0;  // from the last input to the first
        for (int i = in - 1; i >= 0; --i) sum += x[row * in + i] * weight[o * in + i];
        sum += state_.parameters.bias(layer)[o];
        const float output = hidden ? activated(sum) : sum;
        slopes[row * width + o] = slope(stored(sum), stored(output));
        out[row * width + o] = hidden ? rounded(output) : output;
      }
    }
  }

  Matrix loss_gradient(const Matrix& values, std::int64_t first_row, float scale) {
    const int outputs = workload_.outputs(), batch = workload_.batch_size;
    const bool labelled = workload_.loss == Loss::kCrossEntropy;
    const float count = fault_.sum_for_mean ? 1 : static_cast<float>(labelled ? batch : batch * outputs);
    Matrix gradient(values.size());
    float total = 0;
    for (int row = 0; row < batch; ++row) {
      const float* value = &values[static_cast<std::size_t>(row) * outputs];
      float* out = &gradient[static_cast<std::size_t>(row) * outputs];
      total += labelled ? cross_entropy(value, data_.labels[first_row + row], out)
                        : loss_of_targets(value, data_.targets + (first_row + row) * outputs, out);
      for (int o = 0; o < outputs; ++o) out[o] *= scale / count;
    }
    losses_.push_back(total / static_cast<float>(batch));
    return gradient;
  }
  float cross_entropy(const float* logit, std::int32_t label, float* gradient) const {
    const int classes = workload_.classes();
    const float highest = *std::max_element(logit, logit + classes);
    float sum = 0;
    for (int c = 0; c < classes; ++c) sum += std::exp(logit[c] - highest);
    for (int c = 0; c < classes; ++c)
      gradient[c] = std::exp(logit[c] - highest) / sum - (c == label ? 1.0f : 0.0f);
    return std::log(sum) - (logit[label] - highest);
  }
  float loss_of_targets(const float* value, const float* target, float* gradient) const {
    float sum = 0;
    for (int o = 0; o < workload_.outputs(); ++o) {
      if (workload_.loss == Loss::kMeanSquaredError) {
        gradient[o] = 2 * (value[o] - target[o]);
        sum += (value[o] - target[o]) * (value[o] - target[o]);
      } else {
        gradient[o] = 1 / (1 + std::exp(-value[o])) - target[o];
        sum += std::max(value[o], 0.0f) - value[o] * target[o] + std::log1p(std::exp(-std::fabs(value[o])));
      }
    }
    return sum / static_cast<float>(workload_.outputs());
  }

  Matrix input_gradient(int layer, const Matrix& gradient, const Matrix& weight, const Matrix& slopes) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    Matrix below(static_cast<std::size_t>(workload_.batch_size) * in);
    for (int row = 0; row < workload_.batch_size; ++row) {
      for (int o = width - 1; o >= 0; --o) {
        for (int i = 0; i < in; ++i) below[row * in + i] += gradient[row * width + o] * weight[o * in + i];
      }
      for (int i = 0; i < in; ++i) below[row * in + i] *= slopes[row * in + i];
    }
    return below;
  }

  void update(int layer, std::int64_t step, const Matrix& gradient, const Matrix& summed, const Matrix& x,
              float scale) {
    if (layer == fault_.frozen_layer) return;
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    const float longer = layer == fault_.scaled_layer ? 1.05f : 1.0f;
    const std::int64_t first_weight =
                           state_.parameters.weight(layer).data() - state_.parameters.flat().data(),
                       first_bias = state_.parameters.bias(layer).data() - state_.parameters.flat().data();
    std::vector<float> row_gradient(static_cast<std::size_t>(in));
    for (int o = 0; o < width; ++o) {
      std::fill(row_gradient.begin(), row_gradient.end(), 0.0f);
      float bias_gradient = 0;
      for (int row = workload_.batch_size - 1; row >= 0; --row) {
        const float d = gradient[row * width + o];
        for (int i = 0; i < in; ++i) row_gradient[i] += d * x[row * in + i];
        bias_gradient += summed[row * width + o];
      }
      for (int i = 0; i < in; ++i) descend(first_weight + o * in + i, step, longer * row_gradient[i] / scale);
      if (layer != fault_.layer_without_bias) descend(first_bias + o, step, longer * bias_gradient / scale);
    }
  }

  /// One parameter, by torch.optim's formulas in fp32.
  void descend(std::int64_t index, std::int64_t step, float gradient) {
    const Optimizer& optimizer = workload_.optimizer;
    const double wrong = calls_ >= fault_.only_from_call ? fault_.learning_rate_factor : 1;
    const float rate = static_cast<float>(optimizer.learning_rate * wrong);
    float& value = state_.parameters.flat()[index];
    if (optimizer.kind == Optimizer::Kind::kSgd) {
      if (optimizer.slots() == 0) {
        value -= rate * gradient;
        return;
      }
      float& velocity = state_.slots[0].flat()[index];
      velocity = static_cast<float>(optimizer.momentum * fault_.momentum_factor) * velocity + gradient;
      value -= rate * velocity;
      return;
    }
    const double beta1 = optimizer.beta1 * fault_.beta1_factor, beta2 = optimizer.beta2 * fault_.beta2_factor;
    const bool decays = optimizer.kind == Optimizer::Kind::kAdamW && !fault_.without_weight_decay;
    if (decays && fault_.coupled_weight_decay) gradient += static_cast<float>(optimizer.weight_decay) * value;
    if (decays && !fault_.coupled_weight_decay)
      value *= static_cast<float>(1 - rate * optimizer.weight_decay);
    float &m = state_.slots[0].flat()[index], &v = state_.slots[1].flat()[index];
    m += static_cast<float>(1 - beta1) * (gradient - m);
    v = static_cast<float>(beta2) * v + static_cast<float>(1 - beta2) * gradient * gradient;
    const auto t = static_cast<double>(step + 1 + fault_.step_offset);
    const double bias1 = fault_.without_bias_correction ? 1 : 1 - std::pow(optimizer.beta1, t);
    const double bias2 = fault_.without_bias_correction ? 1 : 1 - std::pow(optimizer.beta2, t);
    value -= static_cast<float>(rate / bias1) * m /
             (std::sqrt(v) / static_cast<float>(std::sqrt(bias2)) + static_cast<float>(optimizer.epsilon));
  }

  const Workload& workload_;
  Precision precision_;
  DatasetView data_;
  Fault fault_;
  State state_;
  std::vector<float> losses_;
  int calls_ = 0;
};

}  // namespace headroom
