// A trainer for tests of the checks: not the oracle with a fault in it but a second, plain implementation that accumulates in fp32, in
// an order of its own, with fp32 masters and slots: what a real backend does. And the faults that it can have.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "core/dataset_view.h"
#include "core/parameters.h"
#include "core/record.h"
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
  bool epsilon_inside_root = false;
  bool tanh_gelu = false;  // gelu by its tanh form
};

/// In which order a trainer sums, and what it rounds.
struct Arithmetic {
  enum class Order { kForward, kBackward, kShuffled, kFourParts };
  Order order = Order::kBackward;
  int cut_every =
      0;  ///< products; the sum is then cut off to fp32's 24 bits, as tensor cores do; 0: rounded fp32 sums
  Contract contract = Contract::kExact;
  std::uint64_t seed = 0;  ///< of the shuffling, and of which products of a library's tf32 cut off
  /// What autocast as compiled leaves unrounded.
  bool leaves_sums = false, leaves_bias = false, leaves_before_slope = false, leaves_weight_gradient = false,
       leaves_bias_gradient = false, leaves_log_probabilities = false, leaves_product_of_one = false;
  /// A compiler makes the products of a last layer of one output within the kernels beside them, where what they multiply is never
  /// stored in 16 bits: its weights and inputs on the way forward; these and the loss gradient on the way back.
  bool leaves_one_output_forward = false, leaves_one_output_backward = false;
  bool leaves_bias_terms = false;  ///< bias gradients are sums of what is not yet rounded
  static const std::vector<bool Arithmetic::*> kLeftByCompilers;  ///< all of these
};
inline const std::vector<bool Arithmetic::*> Arithmetic::kLeftByCompilers = {
    &Arithmetic::leaves_sums,
    &Arithmetic::leaves_bias,
    &Arithmetic::leaves_before_slope,
    &Arithmetic::leaves_weight_gradient,
    &Arithmetic::leaves_bias_gradient,
    &Arithmetic::leaves_log_probabilities,
    &Arithmetic::leaves_one_output_forward,
    &Arithmetic::leaves_one_output_backward,
    &Arithmetic::leaves_bias_terms};

/// Sixteen floats or eight doubles.
template <typename Number>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(64)));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(64)));
};

/// Loss and gradient of a batch.
class PlainGradient {
 public:
  PlainGradient(const Workload& workload, Precision precision, const DatasetView& data,
                const Arithmetic& arithmetic = {}, bool tanh_gelu = false)
      : workload_(workload),
        precision_(precision),
        data_(data),
        arithmetic_(arithmetic),
        tanh_gelu_(tanh_gelu),
        seeded_(arithmetic.seed) {}

  /// Of the mean loss (or of the sum over the batch), flat order.
  const std::vector<float>& operator()(const Parameters& parameters, std::int64_t step,
                                       bool sum_for_mean = false) {
    random_ = seeded_;  // the same gradient gets the same orders
    const int batch = workload_.batch_size, layers = workload_.layers();
    const std::vector<int>& widths = workload_.model.widths;
    const std::int64_t first_row = step % data_.batches(batch) * batch;
    values_.resize(static_cast<std::size_t>(layers) + 1);
    sums_.resize(values_.size());
    gradient_.resize(parameters.flat().size());
    values_[0].assign(data_.features + first_row * widths[0],
                      data_.features + (first_row + batch) * widths[0]);
    if (layers == 1) last_input_ = values_[0];
    if (has_16_bits()) round_all(values_[0]);
    for (int layer = 0; layer < layers; ++layer) forward(parameters, layer);
    scale_ = static_cast<float>(loss_scale(precision_, batch));
    if (is_autocast()) scale_ = std::min(scale_, 32768.0f);
    Matrix gradient = loss_gradient(first_row, sum_for_mean);
    float* end = gradient_.data() + gradient_.size();
    for (int layer = layers - 1; layer >= 0; --layer) {
      const int in = widths[layer], out = widths[layer + 1];
      float* bias_gradient = end - out;
      float* weight_gradient = bias_gradient - static_cast<std::ptrdiff_t>(in) * out;
      end = weight_gradient;
      const bool unrounded = layer + 1 == layers && out == 1 && arithmetic_.leaves_one_output_backward;
      if (arithmetic_.leaves_bias_terms) bias_sums(gradient, out, bias_gradient);
      if (has_16_bits() && !unrounded) round_all(gradient);
      if (!arithmetic_.leaves_bias_terms) bias_sums(gradient, out, bias_gradient);
      product(gradient, 1, out, unrounded ? last_input_ : values_[layer], in, out, in, batch,
              weight_gradient);
      if (is_autocast() && !arithmetic_.leaves_weight_gradient) round_all({weight_gradient, bias_gradient});
      for (float* value = weight_gradient; value != bias_gradient; ++value) *value /= scale_;
      if (layer > 0) gradient = input_gradient(parameters, layer, gradient);
    }
    return gradient_;
  }
  float loss() const { return loss_; }

 private:
  using Matrix = std::vector<float>;  // [batch, width]

  bool has_16_bits() const { return precision_ == Precision::kFp16 || precision_ == Precision::kBf16; }
  bool is_autocast() const { return has_16_bits() && arithmetic_.contract == Contract::kAutocast; }
  /// As PyTorch does on a GPU.
  bool rounds_log_probabilities() const { return is_autocast() && !arithmetic_.leaves_log_probabilities; }
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
  void round_all(std::span<float> values) const {
    switch (precision_) {
      case Precision::kTf32:
        for (float& value : values) value = static_cast<float>(round_to_tf32(value));
        return;
      case Precision::kFp16:
        for (float& value : values) value = static_cast<float>(round_to_fp16(value));
        return;
      case Precision::kBf16:
        for (float& value : values) value = static_cast<float>(round_to_bf16(value));
        return;
      case Precision::kFp32:
        return;
    }
  }
  void round_all_weights(std::span<float> weights) const {
    if (precision_ != Precision::kBf16 || is_autocast()) return round_all(weights);
    for (float& weight : weights) weight = static_cast<float>(round_weight_to_bf16(weight));
  }

  float activated(float z) const {
    switch (workload_.model.activation) {
      case Activation::kRelu:
        return z < 0 ? 0 : z;
      case Activation::kTanh:
        return std::tanh(z);
      case Activation::kSilu:
        return z / (1 + std::exp(-z));
      case Activation::kGelu:
        if (tanh_gelu_) return 0.5f * z * (1 + std::tanh(0.79788456f * (z + 0.044715f * z * z * z)));
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
        if (is_autocast()) return z <= 0 ? std::exp(z) : 1;
        return y < 0 ? y + 1 : 1;
      case Activation::kSilu: {
        const float sigmoid = 1 / (1 + std::exp(-z));
        return sigmoid + z * sigmoid * (1 - sigmoid);
      }
      case Activation::kGelu: {
        if (tanh_gelu_) {
          const float t = std::tanh(0.79788456f * (z + 0.044715f * z * z * z));
          return 0.5f * (1 + t) + 0.5f * z * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * z * z);
        }
        return 0.5f * (1 + std::erf(z * 0.70710678f)) + z * 0.39894228f * std::exp(-0.5f * z * z);
      }
    }
    return 1;
  }

  void forward(const Parameters& parameters, int layer) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    const bool hidden = layer + 1 < workload_.layers();
    const bool unrounded = !hidden && width == 1 && arithmetic_.leaves_one_output_forward;
    const std::span<const float> weight = parameters.weight(layer), bias = parameters.bias(layer);
    turned_.resize(weight.size());
    for (int o = 0; o < width; ++o)
      for (int i = 0; i < in; ++i) turned_[i * width + o] = weight[o * in + i];
    if (has_16_bits() && !unrounded) round_all_weights(turned_);
    Matrix &out = values_[layer + 1], &sums = sums_[layer + 1];
    out.resize(static_cast<std::size_t>(workload_.batch_size) * width);
    product(unrounded ? last_input_ : values_[layer], in, 1, turned_, width, workload_.batch_size, width, in,
            out.data());
    sums.resize(out.size());
    if (layer + 2 == workload_.layers()) last_input_.resize(out.size());
    if (is_autocast() && width == 1 && !arithmetic_.leaves_product_of_one && !arithmetic_.leaves_sums)
      round_all(out);
    bias_.assign(bias.begin(), bias.end());
    if (is_autocast() && !arithmetic_.leaves_bias) round_all(bias_);
    for (std::size_t first = 0; first < out.size(); first += static_cast<std::size_t>(width))
      for (int o = 0; o < width; ++o) sums[first + o] = out[first + o] + bias_[o];
    if (is_autocast() && !arithmetic_.leaves_sums) round_all(sums);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = hidden ? activated(sums[i]) : sums[i];
    if (layer + 2 == workload_.layers()) std::copy(out.begin(), out.end(), last_input_.begin());
    if (hidden && has_16_bits()) {
      round_all(out);
      round_all(sums);
    }
  }

  Matrix loss_gradient(std::int64_t first_row, bool sum_for_mean) {
    const Matrix& values = values_.back();
    const int outputs = workload_.outputs(), batch = workload_.batch_size;
    const bool labelled = workload_.loss == Loss::kCrossEntropy;
    const float count = sum_for_mean ? 1 : static_cast<float>(labelled ? batch : batch * outputs);
    const float factor = labelled && rounds_log_probabilities() ? rounded(scale_ / count) : scale_ / count;
    Matrix gradient(values.size());
    float total = 0;
    for (int row = 0; row < batch; ++row) {
      const float* value = &values[static_cast<std::size_t>(row) * outputs];
      float* out = &gradient[static_cast<std::size_t>(row) * outputs];
      total += labelled ? cross_entropy(value, data_.labels[first_row + row], out)
                        : loss_of_targets(value, data_.targets + (first_row + row) * outputs, out);
      for (int o = 0; o < outputs; ++o) out[o] *= factor;
    }
    loss_ = total / static_cast<float>(batch);
    return gradient;
  }
  float cross_entropy(const float* logit, std::int32_t label, float* gradient) const {
    const int classes = workload_.classes();
    const float highest = *std::max_element(logit, logit + classes);
    float sum = 0;
    for (int c = 0; c < classes; ++c) sum += std::exp(logit[c] - highest);
    if (rounds_log_probabilities()) {
      for (int c = 0; c < classes; ++c)
        gradient[c] = std::exp(rounded(logit[c] - highest - std::log(sum))) - (c == label ? 1.0f : 0.0f);
      return -rounded(logit[label] - highest - std::log(sum));
    }
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

  void bias_sums(const Matrix& gradient, int width, float* sums) {
    std::fill_n(sums, width, 0.0f);
    for (int row = workload_.batch_size - 1; row >= 0; --row)
      for (int o = 0; o < width; ++o) sums[o] += gradient[static_cast<std::size_t>(row) * width + o];
    for (int o = 0; o < width; ++o) {
      if (is_autocast() && !arithmetic_.leaves_bias_gradient) sums[o] = rounded(sums[o]);
      sums[o] /= scale_;
    }
  }

  Matrix input_gradient(const Parameters& parameters, int layer, const Matrix& gradient) {
    const int in = workload_.model.widths[layer], width = workload_.model.widths[layer + 1];
    turned_.assign(parameters.weight(layer).begin(), parameters.weight(layer).end());
    const bool unrounded =
        layer + 1 == workload_.layers() && width == 1 && arithmetic_.leaves_one_output_backward;
    if (has_16_bits() && !unrounded) round_all_weights(turned_);
    Matrix below(static_cast<std::size_t>(workload_.batch_size) * in);
    product(gradient, width, 1, turned_, in, workload_.batch_size, in, width, below.data());
    if (is_autocast() && !arithmetic_.leaves_before_slope) round_all(below);
    for (std::size_t i = 0; i < below.size(); ++i) below[i] *= slope(sums_[layer][i], values_[layer][i]);
    return below;
  }

  /// c[r, o] = sum over k of a[r, k] b[k, o], where a[r, k] lies at r * a_row + k * a_inner.
  void product(const Matrix& left, int a_row, int a_inner, const Matrix& right, int columns_of_b, int rows,
               int columns, int inner, float* c) {
    const float *a = left.data(), *b = right.data();
    if (precision_ == Precision::kTf32) {
      const bool cuts = arithmetic_.contract == Contract::kLibrary && random_() % 2 == 0;
      const auto convert = [&](const Matrix& from, Matrix& to) {
        to.resize(from.size());
        for (std::size_t i = 0; i < from.size(); ++i)
          to[i] = cuts ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(from[i]) & 0xffffe000u)
                       : static_cast<float>(round_to_tf32(from[i]));
        return to.data();
      };
      a = convert(left, left_);
      b = convert(right, right_);
    }
    order_.resize(static_cast<std::size_t>(inner));
    std::iota(order_.begin(), order_.end(), 0);
    using Order = Arithmetic::Order;
    if (arithmetic_.order == Order::kBackward) std::reverse(order_.begin(), order_.end());
    if (arithmetic_.order == Order::kShuffled) std::shuffle(order_.begin(), order_.end(), random_);
    if (arithmetic_.cut_every > 0 && precision_ != Precision::kFp32)
      product_of<double>(a, a_row, a_inner, b, columns_of_b, rows, columns, inner, c, wide_factors_);
    else
      product_of<float>(a, a_row, a_inner, b, columns_of_b, rows, columns, inner, c, factors_);
  }

  /// Sums of doubles are cut off. `b` is read as vectors of columns, which lie one after the other in the order of summing.
  template <typename Sum>
  void product_of(const float* a, int a_row, int a_inner, const float* b, int columns_of_b, int rows,
                  int columns, int inner, float* c, std::vector<Sum>& factors) {
    using Vector = typename VectorOf<Sum>::Type;
    typedef std::uint64_t Bits __attribute__((vector_size(64)));
    constexpr bool kCut = std::is_same_v<Sum, double>;
    constexpr int kLanes = 64 / sizeof(Sum);
    const int parts = arithmetic_.order == Arithmetic::Order::kFourParts ? 4 : 1;
    factors.resize(static_cast<std::size_t>(inner) * kLanes);
    for (int first = 0; first < columns; first += kLanes) {
      const int lanes = std::min(kLanes, columns - first);
      for (int k = 0; k < inner; ++k) {
        const float* from = b + static_cast<std::size_t>(order_[k]) * columns_of_b + first;
        Sum* to = &factors[static_cast<std::size_t>(k) * kLanes];
        if (lanes == kLanes)
          for (int lane = 0; lane < kLanes; ++lane) to[lane] = from[lane];
        else
          for (int lane = 0; lane < kLanes; ++lane) to[lane] = lane < lanes ? from[lane] : 0;
      }
      for (int row = 0; row < rows; ++row) {
        const float* own = a + static_cast<std::size_t>(row) * a_row;
        float out[kLanes] = {};
        for (int part = 0; part < parts; ++part) {
          const int begin = inner * part / parts, end = inner * (part + 1) / parts;
          Vector sum = {};
          for (int k = begin; k < end;) {
            const int stop = kCut ? std::min(end, k + arithmetic_.cut_every) : end;
            for (; k < stop; ++k) {
              Vector right;
              std::memcpy(&right, &factors[static_cast<std::size_t>(k) * kLanes], sizeof right);
              sum += static_cast<Sum>(own[static_cast<std::size_t>(order_[k]) * a_inner]) * right;
            }
            if constexpr (kCut) {
              Bits bits;
              std::memcpy(&bits, &sum, sizeof bits);
              bits &= ~((1ull << 29) - 1);
              std::memcpy(&sum, &bits, sizeof sum);
            }
          }
          for (int lane = 0; lane < kLanes; ++lane) out[lane] += static_cast<float>(sum[lane]);
        }
        std::copy_n(out, lanes, c + static_cast<std::size_t>(row) * columns + first);
      }
    }
  }

  const Workload& workload_;
  Precision precision_;
  DatasetView data_;
  Arithmetic arithmetic_;
  bool tanh_gelu_;
  std::mt19937_64 seeded_, random_;
  float scale_ = 1, loss_ = 0;
  std::vector<Matrix> values_, sums_;
  Matrix last_input_;  // of the last layer, as it is before it is rounded
  std::vector<float> gradient_, turned_, left_, right_, bias_, factors_;
  std::vector<double> wide_factors_;
  std::vector<int> order_;
};

/// One step by torch.optim's formulas in fp32.
inline void descend(const Workload& workload, std::int64_t step, const std::vector<float>& gradients,
                    const Fault& fault, double rate_factor, State& state) {
  const Optimizer& optimizer = workload.optimizer;
  const float rate = static_cast<float>(optimizer.learning_rate * rate_factor);
  const auto momentum = static_cast<float>(optimizer.momentum * fault.momentum_factor);
  const double beta1 = optimizer.beta1 * fault.beta1_factor, beta2 = optimizer.beta2 * fault.beta2_factor;
  const bool decays = optimizer.kind == Optimizer::Kind::kAdamW && !fault.without_weight_decay;
  const auto t = static_cast<double>(step + 1 + fault.step_offset);
  const double bias1 = fault.without_bias_correction ? 1 : 1 - std::pow(optimizer.beta1, t);
  const double bias2 = fault.without_bias_correction ? 1 : 1 - std::pow(optimizer.beta2, t);
  const auto root2 = static_cast<float>(std::sqrt(bias2)), step_size = static_cast<float>(rate / bias1);
  const auto epsilon = static_cast<float>(optimizer.epsilon);
  const bool is_coupled = decays && fault.coupled_weight_decay, is_apart = decays && !is_coupled;
  const auto decay = static_cast<float>(optimizer.weight_decay);
  const auto kept = static_cast<float>(1 - rate * optimizer.weight_decay);
  const auto new1 = static_cast<float>(1 - beta1), new2 = static_cast<float>(1 - beta2);
  const auto kept2 = static_cast<float>(beta2), correction2 = static_cast<float>(bias2);
  const bool epsilon_inside_root = fault.epsilon_inside_root;
  const int slots = optimizer.slots();
  float* const values = state.parameters.flat().data();
  float* const first = slots > 0 ? state.slots[0].flat().data() : nullptr;
  float* const second = slots > 1 ? state.slots[1].flat().data() : nullptr;
  const auto descend_tensor = [&](std::int64_t begin, std::int64_t end, float longer) {
    const float* const gradient_of = gradients.data();
    if (slots == 0) {
      for (std::int64_t i = begin; i < end; ++i) values[i] -= rate * (longer * gradient_of[i]);
    } else if (slots == 1) {
      for (std::int64_t i = begin; i < end; ++i) {
        first[i] = momentum * first[i] + longer * gradient_of[i];
        values[i] -= rate * first[i];
      }
    } else {
      for (std::int64_t i = begin; i < end; ++i) {
        float gradient = longer * gradient_of[i], value = values[i];
        if (is_coupled) gradient += decay * value;
        if (is_apart) value *= kept;
        const float m = first[i] + new1 * (gradient - first[i]);
        const float v = kept2 * second[i] + new2 * gradient * gradient;
        const float root =
            epsilon_inside_root ? std::sqrt(v / correction2 + epsilon) : std::sqrt(v) / root2 + epsilon;
        first[i] = m;
        second[i] = v;
        values[i] = value - step_size * m / root;
      }
    }
  };
  const std::vector<TensorRange> ranges = tensor_ranges(workload.model.widths);
  for (std::size_t tensor = 0; tensor < ranges.size(); ++tensor) {
    const int layer = static_cast<int>(tensor / 2);
    if (layer == fault.frozen_layer || (tensor % 2 == 1 && layer == fault.layer_without_bias)) continue;
    const float longer = layer == fault.scaled_layer ? 1.05f : 1.0f;
    descend_tensor(ranges[tensor].begin, ranges[tensor].begin + ranges[tensor].size, longer);
  }
  if (fault.swapped_slots && state.slots.size() == 2) std::swap(state.slots[0], state.slots[1]);
  if (fault.nan) state.parameters.weight(0)[0] = std::numeric_limits<float>::quiet_NaN();
}

class PlainTrainer {
 public:
  PlainTrainer(const Workload& workload, Precision precision, const DatasetView& data, const Fault& fault,
               const Arithmetic& arithmetic = {})
      : workload_(workload),
        fault_(fault),
        gradient_(workload, precision, data, arithmetic, fault.tanh_gelu),
        state_(State::initial(Parameters(workload.model.widths), workload.optimizer.slots())) {}

  void set_parameters(const Parameters& parameters) {
    state_ = State::initial(parameters, workload_.optimizer.slots());
  }
  void set_state(const State& state) { state_ = state; }
  const Parameters& parameters() const { return state_.parameters; }
  const State& state() const { return state_; }
  const std::vector<float>& losses() const { return losses_; }

  void train(std::int64_t first_step, std::int64_t count) {
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const std::vector<float>& gradient =
          gradient_(state_.parameters, step + fault_.batch_shift, fault_.sum_for_mean);
      losses_.push_back(gradient_.loss());
      descend(workload_, step, gradient, fault_,
              calls_ >= fault_.only_from_call ? fault_.learning_rate_factor : 1, state_);
    }
    ++calls_;
  }

 private:
  const Workload& workload_;
  Fault fault_;
  PlainGradient gradient_;
  State state_;
  std::vector<float> losses_;
  int calls_ = 0;
};

}  // namespace headroom
