// The reference step: double sums, and the contract's roundings at the contract's points.
//
// The slope of relu, tanh and elu is taken from the activation as it is stored, which in 16 bits is what enters the next product: what
// fp16 flushes to zero is masked. That of silu and gelu comes from the sum before them, stored in 16 bits too. Parameters and slots
// stay double along a trajectory; only the points that are compared start from fp32, because that is what a backend can be given.
#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"
#include "core/host_clock.h"
#include "core/parallel.h"
#include "core/training_rules.h"
#include "oracle/products.h"

namespace headroom {
namespace {

constexpr std::int64_t kElementsChunk = 1 << 15;  // worth waking a thread for

using Values = std::vector<double, BulkAllocator<double>>;  // of all parameters, flat

/// What is rounded to what on its way into a product.
struct Roundings {
  ProductRounding input = ProductRounding::kNone, weight = ProductRounding::kNone;
  bool stores_rounded =
      false;  ///< activations and gradients: slopes and bias sums then see rounded values too
  double loss_scale = 1;
};

Roundings roundings_of(Precision precision, bool rounding, int batch_size) {
  if (!rounding) return {};
  switch (precision) {
    case Precision::kFp32:
      return {};
    case Precision::kTf32:
      return {.input = ProductRounding::kTf32, .weight = ProductRounding::kTf32};
    case Precision::kFp16:
      return {.input = ProductRounding::kFp16,
              .weight = ProductRounding::kFp16,
              .stores_rounded = true,
              .loss_scale = loss_scale(precision, batch_size)};
    case Precision::kBf16:
      return {
          .input = ProductRounding::kBf16, .weight = ProductRounding::kBf16Weight, .stores_rounded = true};
  }
  throw std::logic_error("roundings_of: not a Precision");
}

/// Loss and gradient of one batch at given parameters; owns the space for activations.
class GradientOfBatch {
 public:
  GradientOfBatch(const Workload& workload, Precision precision, bool rounding, const DatasetView& data)
      : widths_(workload.model.widths),
        activation_(workload.model.activation),
        loss_(workload.loss),
        layers_(workload.layers()),
        batch_(workload.batch_size),
        data_(data),
        roundings_(roundings_of(precision, rounding, workload.batch_size)),
        ranges_(tensor_ranges(workload.model.widths)) {
    validate(workload);
    require_data_for(workload, data, "oracle");
    for (int layer = 0; layer <= layers_; ++layer) values_.emplace_back(batch_, widths_[layer]);
    for (int layer = 0; layer < layers_; ++layer) {
      weights_.emplace_back(widths_[layer + 1], widths_[layer]);
      gradients_.emplace_back(batch_, widths_[layer + 1]);
      if (layer + 1 < layers_) slopes_.emplace_back(batch_, widths_[layer + 1]);
    }
  }

  /// The mean loss over batch `step` mod batches; `gradient` is that of the mean loss, unscaled, flat order.
  double operator()(const Values& parameters, std::int64_t step, Values& gradient) {
    const std::int64_t first_row = step % data_.batches(batch_) * batch_;
    load_inputs(first_row);
    for (int layer = 0; layer < layers_; ++layer) {
      load_weights(parameters, layer);
      forward_product(values_[layer], weights_[layer], parameters.data() + bias_range(layer).begin,
                      values_[layer + 1]);
      if (layer + 1 < layers_) activate(values_[layer + 1], slopes_[layer]);
    }
    const double loss = loss_and_its_gradient(first_row);
    gradient.resize(parameters.size());
    for (int layer = layers_ - 1; layer >= 0; --layer) backward(layer, gradient);
    return loss;
  }

 private:
  const TensorRange& weight_range(int layer) const { return ranges_[2 * layer]; }
  const TensorRange& bias_range(int layer) const { return ranges_[2 * layer + 1]; }

  static void for_rows(std::int64_t rows, std::int64_t columns,
                       const std::function<void(std::int64_t)>& body) {
    const std::int64_t chunk = std::max<std::int64_t>(1, kElementsChunk / std::max<std::int64_t>(1, columns));
    parallel_for(rows, chunk, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) body(row);
    });
  }

  void load_inputs(std::int64_t first_row) {
    PaddedMatrix<double>& inputs = values_[0];
    for_rows(batch_, inputs.columns, [&](std::int64_t row) {
      const float* features = data_.features + (first_row + row) * inputs.columns;
      std::copy_n(features, inputs.columns, inputs.row(row));
      round_values(roundings_.input, inputs.row(row), inputs.row(row), inputs.columns);
    });
  }

  void load_weights(const Values& parameters, int layer) {
    PaddedMatrix<double>& weight = weights_[layer];
    const double* master = parameters.data() + weight_range(layer).begin;
    for_rows(weight.rows, weight.columns, [&](std::int64_t row) {
      round_values(roundings_.weight, master + row * weight.columns, weight.row(row), weight.columns);
    });
  }

  void activate(PaddedMatrix<double>& values, PaddedMatrix<double>& slopes) {
    const bool of_output = rules::slope_is_of_output(activation_);
    for_rows(batch_, values.columns * (activation_ == Activation::kRelu ? 1 : 8), [&](std::int64_t row) {
      double *value = values.row(row), *slope = slopes.row(row);
      const auto round = [&](double* some) {
        if (roundings_.stores_rounded) round_values(roundings_.input, some, some, values.columns);
      };
      std::copy_n(value, values.columns, slope);
      for (std::int64_t i = 0; i < values.columns; ++i) value[i] = rules::activated(activation_, value[i]);
      round(value);
      if (of_output)
        std::copy_n(value, values.columns, slope);
      else
        round(slope);
      for (std::int64_t i = 0; i < values.columns; ++i) slope[i] = rules::slope(activation_, slope[i]);
      if (!roundings_.stores_rounded) round_values(roundings_.input, value, value, values.columns);
    });
  }

  // Leaves the scaled gradient of the outputs in gradients_.back(), unrounded.
  double loss_and_its_gradient(std::int64_t first_row) {
    std::vector<double> losses(static_cast<std::size_t>(batch_));
    const std::int64_t outputs = values_.back().columns;
    // Of the mean's derivative, with what fp16 multiplies it by.
    const double factor =
        roundings_.loss_scale / static_cast<double>(loss_ == Loss::kCrossEntropy ? batch_ : batch_ * outputs);
    for_rows(batch_, outputs * 8, [&](std::int64_t row) {
      const double* output = values_.back().row(row);
      double* gradient = gradients_.back().row(row);
      losses[row] = loss_ == Loss::kCrossEntropy
                        ? cross_entropy(output, data_.labels[first_row + row], gradient)
                        : loss_of_targets(output, data_.targets + (first_row + row) * outputs, gradient);
      for (std::int64_t i = 0; i < outputs; ++i) gradient[i] *= factor;
    });
    double total = 0;
    for (double loss : losses) total += loss;
    return total / static_cast<double>(batch_);
  }

  double cross_entropy(const double* logit, std::int32_t label, double* gradient) const {
    const std::int64_t classes = values_.back().columns;
    if (label < 0 || label >= classes) {
      throw InputError("oracle: label " + std::to_string(label) + " is outside the " +
                       std::to_string(classes) + " classes");
    }
    const double highest = *std::max_element(logit, logit + classes);
    double sum = 0;
    for (std::int64_t i = 0; i < classes; ++i) {
      gradient[i] = std::exp(logit[i] - highest);
      sum += gradient[i];
    }
    for (std::int64_t i = 0; i < classes; ++i) gradient[i] = gradient[i] / sum - (i == label ? 1 : 0);
    return std::log(sum) - (logit[label] - highest);
  }

  /// The mean over the outputs; `gradient` is that of their sum.
  double loss_of_targets(const double* output, const float* target, double* gradient) const {
    const std::int64_t outputs = values_.back().columns;
    double sum = 0;
    for (std::int64_t i = 0; i < outputs; ++i) {
      const rules::LossPart part = loss_ == Loss::kMeanSquaredError
                                       ? rules::squared_error(output[i], target[i])
                                       : rules::binary_cross_entropy(output[i], target[i]);
      sum += part.loss;
      gradient[i] = part.gradient;
    }
    return sum / static_cast<double>(outputs);
  }

  // From the unrounded gradient of a layer's output: its weight and bias gradients, and the gradient of its
  // input.
  void backward(int layer, Values& gradient) {
    PaddedMatrix<double>& output_gradient = gradients_[layer];
    double* bias_gradient = gradient.data() + bias_range(layer).begin;
    double* weight_gradient = gradient.data() + weight_range(layer).begin;
    const auto round = [&] {
      for_rows(batch_, output_gradient.columns, [&](std::int64_t row) {
        double* values = output_gradient.row(row);
        round_values(roundings_.input, values, values, output_gradient.columns);
      });
    };
    if (roundings_.stores_rounded) round();
    const double unscale = 1 / roundings_.loss_scale;  // a power of two: exact
    std::fill_n(bias_gradient, output_gradient.columns, 0.0);
    for (std::int64_t row = 0; row < batch_; ++row) {
      const double* values = output_gradient.row(row);
      for (std::int64_t i = 0; i < output_gradient.columns; ++i) bias_gradient[i] += values[i] * unscale;
    }
    if (!roundings_.stores_rounded) round();
    weight_gradient_product(output_gradient, values_[layer], weight_gradient);
    if (unscale != 1) {
      for_rows(widths_[layer + 1], widths_[layer], [&](std::int64_t row) {
        double* values = weight_gradient + row * widths_[layer];
        for (int i = 0; i < widths_[layer]; ++i) values[i] *= unscale;
      });
    }
    if (layer == 0) return;
    PaddedMatrix<double>& input_gradient = gradients_[layer - 1];
    input_gradient_product(output_gradient, weights_[layer], input_gradient);
    const PaddedMatrix<double>& slopes = slopes_[layer - 1];
    for_rows(batch_, slopes.columns, [&](std::int64_t row) {
      const double* slope = slopes.row(row);
      double* values = input_gradient.row(row);
      // A unit of slope 0 passes nothing on, not even what is not finite.
      for (std::int64_t i = 0; i < slopes.columns; ++i) values[i] = slope[i] == 0 ? 0 : values[i] * slope[i];
    });
  }

  std::vector<int> widths_;
  Activation activation_;
  Loss loss_;
  int layers_;
  std::int64_t batch_;
  DatasetView data_;
  Roundings roundings_;
  std::vector<TensorRange> ranges_;
  std::vector<PaddedMatrix<double>> values_;     // inputs, hidden activations, logits: [batch, widths[layer]]
  std::vector<PaddedMatrix<double>> slopes_;     // of hidden activations: [batch, widths[layer + 1]]
  std::vector<PaddedMatrix<double>> weights_;    // as they enter the products: [out, in]
  std::vector<PaddedMatrix<double>> gradients_;  // of each layer's output, scaled: [batch, out]
};

/// The values times `factor`, rounded to fp32.
Parameters rounded(const std::vector<int>& widths, const Values& values, double factor = 1) {
  Parameters result = Parameters::unset(widths);
  const std::span<float> flat = result.flat();
  parallel_for(static_cast<std::int64_t>(values.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) flat[i] = static_cast<float>(values[i] * factor);
               });
  return result;
}

void widen(const Parameters& parameters, Values& values) {
  const std::span<const float> flat = parameters.flat();
  values.resize(flat.size());
  parallel_for(static_cast<std::int64_t>(flat.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 std::copy(flat.begin() + begin, flat.begin() + end, values.begin() + begin);
               });
}

/// A trainer's state in double.
struct WideState {
  Values parameters;
  std::vector<Values> slots;
};

WideState widened(const State& state) {
  WideState wide{{}, std::vector<Values>(state.slots.size())};
  widen(state.parameters, wide.parameters);
  for (std::size_t slot = 0; slot < state.slots.size(); ++slot) widen(state.slots[slot], wide.slots[slot]);
  return wide;
}

State rounded(const std::vector<int>& widths, const WideState& wide) {
  State state{rounded(widths, wide.parameters), {}};
  for (const Values& slot : wide.slots) state.slots.push_back(rounded(widths, slot));
  return state;
}

void update(const Optimizer& optimizer, std::int64_t step, const Values& gradient, WideState& state) {
  parallel_for(static_cast<std::int64_t>(gradient.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   rules::Parameter one{.value = state.parameters[i]};
                   for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
                     one.slots[slot] = state.slots[slot][i];
                   rules::update(optimizer, static_cast<double>(step), gradient[i], one);
                   state.parameters[i] = one.value;
                   for (std::size_t slot = 0; slot < state.slots.size(); ++slot)
                     state.slots[slot][i] = one.slots[slot];
                 }
               });
}

/// values - other, for each value.
void subtract(const Values& other, Values& values) {
  parallel_for(static_cast<std::int64_t>(values.size()), kElementsChunk,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) values[i] -= other[i];
               });
}

class OracleTrainer : public Trainer {
 public:
  OracleTrainer(const Workload& workload, Precision precision, bool rounding, const DatasetView& data,
                const Parameters& initial)
      : widths_(workload.model.widths),
        optimizer_(workload.optimizer),
        gradient_of_batch_(workload, precision, rounding, data),
        state_(widened(State::initial(initial, workload.optimizer.slots()))) {
    set_parameters(initial);
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    const HostClock clock;
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const double loss = gradient_of_batch_(state_.parameters, step, gradient_);
      update(optimizer_, step, gradient_, state_);
      keep_loss(step, loss);
    }
    return clock.timing();
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    std::vector<float> result;
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const auto slot = static_cast<std::size_t>(step % kKeptLosses);
      if (step < 0 || slot >= kept_.size() || kept_[slot].step != step) {
        throw InputError("losses: step " + std::to_string(step) + " is not among the last " +
                         std::to_string(kKeptLosses) + " trained steps");
      }
      result.push_back(kept_[slot].loss);
    }
    return result;
  }

  Parameters parameters() override { return rounded(widths_, state_.parameters); }

  void set_parameters(const Parameters& parameters) override {
    if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
    widen(parameters, state_.parameters);
  }

  std::vector<Parameters> slots() override { return rounded(widths_, state_).slots; }

  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, static_cast<int>(state_.slots.size()));
    for (std::size_t slot = 0; slot < slots.size(); ++slot) widen(slots[slot], state_.slots[slot]);
  }

  std::string note() override {
    if (first_non_finite_ < 0) return {};
    return "the loss is not finite from step " + std::to_string(first_non_finite_) + " on";
  }

 private:
  struct KeptLoss {
    std::int64_t step = -1;
    float loss = 0;
  };

  void keep_loss(std::int64_t step, double loss) {
    const auto slot = static_cast<std::size_t>(step % kKeptLosses);
    if (slot >= kept_.size())
      kept_.resize(std::max(slot + 1, std::min<std::size_t>(2 * kept_.size(), kKeptLosses)));
    kept_[slot] = {step, static_cast<float>(loss)};
    if (!std::isfinite(loss) && first_non_finite_ < 0) first_non_finite_ = step;
  }

  std::vector<int> widths_;
  Optimizer optimizer_;
  GradientOfBatch gradient_of_batch_;
  WideState state_;
  Values gradient_;
  std::vector<KeptLoss> kept_;
  std::int64_t first_non_finite_ = -1;
};

}  // namespace

void follow_reference(const Workload& workload, Precision precision, bool rounding, const DatasetView& data,
                      const Parameters& initial, const std::vector<std::int64_t>& steps,
                      const std::function<void(const ReferencePoint&)>& point,
                      const std::function<void(const Parameters&)>& after_free_steps) {
  if (!std::is_sorted(steps.begin(), steps.end()) || (!steps.empty() && steps.front() < 0)) {
    throw std::invalid_argument("follow_reference: steps must be ascending and not negative");
  }
  if (initial.widths() != workload.model.widths) {
    throw std::invalid_argument("follow_reference: initial parameters of another network");
  }
  if (steps.empty()) return;
  GradientOfBatch gradient_of_batch(workload, precision, rounding, data);
  const Optimizer& optimizer = workload.optimizer;
  const std::vector<int>& widths = workload.model.widths;
  WideState state = widened(State::initial(initial, optimizer.slots()));
  Values gradient;
  auto next = steps.begin();
  for (std::int64_t step = 0;; ++step) {
    if (step == kFreeSteps && after_free_steps) after_free_steps(rounded(widths, state.parameters));
    while (next != steps.end() && *next == step) {
      ReferencePoint reference{.step = step, .start = rounded(widths, state), .update = {}};
      const WideState start = widened(reference.start);
      WideState end = start;
      reference.loss = gradient_of_batch(start.parameters, step, gradient);
      update(optimizer, step, gradient, end);
      subtract(start.parameters, end.parameters);
      for (std::size_t slot = 0; slot < end.slots.size(); ++slot)
        subtract(start.slots[slot], end.slots[slot]);
      reference.update = rounded(widths, end);
      point(reference);
      ++next;
    }
    const bool free_steps_are_due = steps.back() >= kFreeSteps - 1 && step < kFreeSteps;
    if (next == steps.end() && !free_steps_are_due) return;
    gradient_of_batch(state.parameters, step, gradient);
    update(optimizer, step, gradient, state);
  }
}

std::unique_ptr<Trainer> make_oracle_trainer(const Workload& workload, Precision precision, bool rounding,
                                             const DatasetView& data, const Parameters& initial) {
  return std::make_unique<OracleTrainer>(workload, precision, rounding, data, initial);
}

std::vector<double> oracle_gradient(const Workload& workload, const DatasetView& data,
                                    const std::vector<double>& parameters, std::int64_t batch, double* loss) {
  if (static_cast<std::int64_t>(parameters.size()) != workload.parameter_count()) {
    throw std::invalid_argument("oracle_gradient: " + std::to_string(parameters.size()) +
                                " parameters, expected " + std::to_string(workload.parameter_count()));
  }
  GradientOfBatch gradient_of_batch(workload, Precision::kFp32, false, data);
  Values gradient;
  const double value = gradient_of_batch({parameters.begin(), parameters.end()}, batch, gradient);
  if (loss != nullptr) *loss = value;
  return {gradient.begin(), gradient.end()};
}

namespace {
void for_each_output(const Model& model, const Parameters& parameters, const DatasetView& data,
                     const std::function<void(std::int64_t sample, const float* output)>& use) {
  if (data.samples < 1) throw std::invalid_argument("accuracy: no samples");
  constexpr std::int64_t kRows = 512;
  const std::vector<int>& widths = parameters.widths();
  const int layers = parameters.layers();
  std::vector<PaddedMatrix<float>> weights;
  for (int layer = 0; layer < layers; ++layer) {
    PaddedMatrix<float>& weight = weights.emplace_back(widths[layer + 1], widths[layer]);
    for (std::int64_t row = 0; row < weight.rows; ++row) {
      std::copy_n(parameters.weight(layer).data() + row * weight.columns, weight.columns, weight.row(row));
    }
  }
  for (std::int64_t first = 0; first < data.samples; first += kRows) {
    const std::int64_t rows = std::min(kRows, data.samples - first);
    PaddedMatrix<float> values(rows, widths[0]);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(data.features + (first + row) * widths[0], widths[0], values.row(row));
    }
    for (int layer = 0; layer < layers; ++layer) {
      PaddedMatrix<float> out(rows, widths[layer + 1]);
      forward_product(values, weights[layer], parameters.bias(layer).data(), out);
      for (std::int64_t row = 0; layer + 1 < layers && row < rows; ++row) {
        float* value = out.row(row);
        for (std::int64_t i = 0; i < out.columns; ++i)
          value[i] = static_cast<float>(rules::activated(model.activation, value[i]));
      }
      values = std::move(out);
    }
    for (std::int64_t row = 0; row < rows; ++row) use(first + row, values.row(row));
  }
}

}  // namespace

double accuracy(const Model& model, const Parameters& parameters, const DatasetView& data) {
  std::int64_t right = 0;
  for_each_output(model, parameters, data, [&](std::int64_t sample, const float* logit) {
    const float own = logit[data.labels[sample]];
    // A NaN anywhere makes the sample wrong.
    right +=
        std::all_of(logit, logit + model.widths.back(), [&](float other) { return own >= other; }) ? 1 : 0;
  });
  return static_cast<double>(right) / static_cast<double>(data.samples);
}

double r_squared(const Workload& workload, const Parameters& parameters, const DatasetView& data) {
  const std::int64_t outputs = workload.outputs();
  std::vector<double> means(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < data.samples * outputs; ++i) means[i % outputs] += data.targets[i];
  for (double& mean : means) mean /= static_cast<double>(data.samples);
  double left = 0, variance = 0;
  for_each_output(workload.model, parameters, data, [&](std::int64_t sample, const float* output) {
    for (std::int64_t i = 0; i < outputs; ++i) {
      const double target = data.targets[sample * outputs + i];
      const double value =
          workload.loss == Loss::kBinaryCrossEntropy ? 1 / (1 + std::exp(-double{output[i]})) : output[i];
      left += (value - target) * (value - target);
      variance += (target - means[i]) * (target - means[i]);
    }
  });
  return 1 - left / variance;
}

}  // namespace headroom
