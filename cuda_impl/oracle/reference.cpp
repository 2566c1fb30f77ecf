#include "oracle/reference.h"

#include <algorithm>
#include <stdexcept>

#include "core/error.h"
#include "core/host_clock.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "oracle/kernels.h"

namespace headroom {
namespace {

using oracle::Rounding;

/// What is rounded to what; the same table as in bench/oracle/oracle.cpp.
struct Roundings {
  Rounding input = Rounding::kNone, weight = Rounding::kNone;
  bool stores_rounded = false;
  double loss_scale = 1;
};

Roundings roundings_of(Precision precision, int batch_size) {
  switch (precision) {
    case Precision::kFp32:
      return {};
    case Precision::kTf32:
      return {.input = Rounding::kTf32, .weight = Rounding::kTf32};
    case Precision::kFp16:
      return {.input = Rounding::kFp16,
              .weight = Rounding::kFp16,
              .stores_rounded = true,
              .loss_scale = loss_scale(precision, batch_size)};
    case Precision::kBf16:
      return {.input = Rounding::kBf16, .weight = Rounding::kBf16Weight, .stores_rounded = true};
  }
  throw std::logic_error("oracle-cuda: not a Precision");
}

/// Loss and gradient of one batch at given parameters; owns the data and the space for activations.
class GradientOfBatch {
 public:
  GradientOfBatch(const Workload& workload, Precision precision, const DatasetView& data)
      : widths_(workload.model.widths),
        activation_(workload.model.activation),
        loss_(workload.loss),
        batch_(workload.batch_size),
        batches_(data.batches(workload.batch_size)),
        roundings_(roundings_of(precision, workload.batch_size)),
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
    weights_ = DeviceBuffer<double>(largest_weight);
    rounded_gradient_ = DeviceBuffer<double>(batch_ * *std::max_element(widths_.begin() + 1, widths_.end()));
    row_losses_ = DeviceBuffer<double>(batch_);
  }

  /// The mean loss over batch `step` mod batches; `gradient` is that of the mean loss, unscaled, flat order.
  double operator()(const double* parameters, std::int64_t step, double* gradient, Stream& stream) {
    const std::int64_t first_row = step % batches_ * batch_;
    oracle::widen_and_round(features_.data() + first_row * widths_[0], values_[0].data(), batch_ * widths_[0],
                            roundings_.input, stream);
    for (int layer = 0; layer < layers(); ++layer) {
      const int in = widths_[layer], out = widths_[layer + 1];
      oracle::product({values_[layer].data(), in, 1}, {product_weights(parameters, layer, stream), in, 1},
                      values_[layer + 1].data(), batch_, out, in, parameters + bias_range(layer).begin, 1,
                      partial_, stream);
      if (layer + 1 < layers())
        oracle::activate(activation_, values_[layer + 1].data(), slopes_[layer].data(), batch_ * out,
                         roundings_.input, stream);
    }
    const std::int64_t outputs = widths_.back();
    if (loss_ == Loss::kCrossEntropy)
      oracle::loss(values_.back().data(), labels_.data() + first_row, gradients_.back().data(),
                   row_losses_.data(), batch_, outputs, roundings_.loss_scale / static_cast<double>(batch_),
                   stream);
    else
      oracle::loss_of_targets(loss_, values_.back().data(), targets_.data() + first_row * outputs,
                              gradients_.back().data(), row_losses_.data(), batch_, outputs,
                              roundings_.loss_scale / static_cast<double>(batch_ * outputs), stream);
    for (int layer = layers() - 1; layer >= 0; --layer) backward(parameters, layer, gradient, stream);
    stream.synchronize();
    double total = 0;
    for (const double loss : row_losses_.to_host()) total += loss;
    return total / static_cast<double>(batch_);
  }

 private:
  int layers() const { return static_cast<int>(widths_.size()) - 1; }
  const TensorRange& weight_range(int layer) const { return ranges_[2 * static_cast<std::size_t>(layer)]; }
  const TensorRange& bias_range(int layer) const { return ranges_[2 * static_cast<std::size_t>(layer) + 1]; }

  /// The layer's weights as they enter a product.
  const double* product_weights(const double* parameters, int layer, Stream& stream) {
    const TensorRange& range = weight_range(layer);
    if (roundings_.weight == Rounding::kNone) return parameters + range.begin;
    oracle::round_values(parameters + range.begin, weights_.data(), range.size, roundings_.weight, stream);
    return weights_.data();
  }

  void backward(const double* parameters, int layer, double* gradient, Stream& stream) {
    const int in = widths_[layer], out = widths_[layer + 1];
    const double unscale = 1 / roundings_.loss_scale;
    const double* unrounded = gradients_[layer].data();
    oracle::round_values(unrounded, rounded_gradient_.data(), batch_ * out, roundings_.input, stream);
    oracle::column_sums(roundings_.stores_rounded ? rounded_gradient_.data() : unrounded,
                        gradient + bias_range(layer).begin, batch_, out, unscale, partial_, stream);
    oracle::product({rounded_gradient_.data(), 1, out}, {values_[layer].data(), 1, in},
                    gradient + weight_range(layer).begin, out, in, batch_, nullptr, unscale, partial_,
                    stream);
    if (layer == 0) return;
    oracle::product({rounded_gradient_.data(), out, 1}, {product_weights(parameters, layer, stream), 1, in},
                    gradients_[layer - 1].data(), batch_, in, out, nullptr, 1, partial_, stream);
    oracle::multiply_by_slopes(gradients_[layer - 1].data(), slopes_[layer - 1].data(), batch_ * in, stream);
  }

  std::vector<int> widths_;
  Activation activation_;
  Loss loss_;
  std::int64_t batch_, batches_;
  Roundings roundings_;
  std::vector<TensorRange> ranges_;
  DeviceBuffer<float> features_;
  DeviceBuffer<std::int32_t> labels_;
  DeviceBuffer<float> targets_;
  std::vector<DeviceBuffer<double>> values_;     // inputs, hidden activations, logits: [batch, widths[layer]]
  std::vector<DeviceBuffer<double>> gradients_;  // of each layer's output, scaled, unrounded: [batch, out]
  std::vector<DeviceBuffer<double>> slopes_;     // of hidden activations: [batch, out]
  DeviceBuffer<double> weights_;                 // one layer's, rounded
  DeviceBuffer<double> rounded_gradient_;        // one layer's
  DeviceBuffer<double> row_losses_;
  oracle::PartialSums partial_;
};

/// Parameters in double on the device, in and out as fp32.
class DeviceParameters {
 public:
  explicit DeviceParameters(const std::vector<int>& widths)
      : widths_(widths), values_(tensor_ranges(widths).back().begin + tensor_ranges(widths).back().size) {}

  double* data() { return values_.data(); }
  std::int64_t size() const { return values_.size(); }

  void assign(const Parameters& parameters, Stream& stream) {
    DeviceBuffer<float> narrow(values_.size());
    narrow.copy_from(parameters.flat());
    oracle::widen_and_round(narrow.data(), values_.data(), values_.size(), Rounding::kNone, stream);
    stream.synchronize();
  }
  /// The values rounded to fp32.
  Parameters rounded(Stream& stream) const {
    DeviceBuffer<float> narrow(values_.size());
    oracle::narrow(values_.data(), narrow.data(), values_.size(), 1, stream);
    stream.synchronize();
    Parameters result(widths_);
    narrow.copy_to(result.flat());
    return result;
  }

 private:
  std::vector<int> widths_;
  DeviceBuffer<double> values_;
};

/// Parameters and slots.
struct DeviceState {
  DeviceParameters parameters;
  std::vector<DeviceParameters> slots;

  DeviceState(const std::vector<int>& widths, int slot_count) : parameters(widths) {
    for (int slot = 0; slot < slot_count; ++slot) slots.emplace_back(widths);
  }
  void assign(const State& state, Stream& stream) {
    parameters.assign(state.parameters, stream);
    for (std::size_t slot = 0; slot < slots.size(); ++slot) slots[slot].assign(state.slots[slot], stream);
  }
  State rounded(Stream& stream) const {
    State state{parameters.rounded(stream), {}};
    for (const DeviceParameters& slot : slots) state.slots.push_back(slot.rounded(stream));
    return state;
  }
  void update(const Optimizer& optimizer, std::int64_t step, DeviceParameters& gradient, Stream& stream) {
    const auto slot = [&](std::size_t index) { return index < slots.size() ? slots[index].data() : nullptr; };
    oracle::update(optimizer, step, gradient.data(), parameters.data(), slot(0), slot(1), parameters.size(),
                   stream);
  }
  void subtract(DeviceState& other, Stream& stream) {
    oracle::subtract(other.parameters.data(), parameters.data(), parameters.size(), stream);
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      oracle::subtract(other.slots[slot].data(), slots[slot].data(), parameters.size(), stream);
  }
};

class DeviceOracleTrainer : public Trainer {
 public:
  DeviceOracleTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                      const Parameters& initial)
      : widths_(workload.model.widths),
        optimizer_(workload.optimizer),
        gradient_of_batch_(workload, precision, data),
        state_(widths_, optimizer_.slots()),
        gradient_(widths_) {
    state_.assign(State::initial(initial, optimizer_.slots()), stream_);
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    const HostClock clock;
    if (first_step != kept_from_ + static_cast<std::int64_t>(losses_.size())) {
      kept_from_ = first_step;
      losses_.clear();
    }
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      losses_.push_back(
          static_cast<float>(gradient_of_batch_(state_.parameters.data(), step, gradient_.data(), stream_)));
      state_.update(optimizer_, step, gradient_, stream_);
    }
    stream_.synchronize();
    return clock.timing();
  }
  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    const std::int64_t first = first_step - kept_from_;
    if (first < 0 || count < 0 || first + count > static_cast<std::int64_t>(losses_.size()))
      throw InputError("losses: steps from " + std::to_string(first_step) +
                       " are not among those just trained");
    return {losses_.begin() + first, losses_.begin() + first + count};
  }
  Parameters parameters() override { return state_.parameters.rounded(stream_); }
  void set_parameters(const Parameters& parameters) override {
    state_.parameters.assign(parameters, stream_);
  }
  std::vector<Parameters> slots() override { return state_.rounded(stream_).slots; }
  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, optimizer_.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) state_.slots[slot].assign(slots[slot], stream_);
  }

 private:
  std::vector<int> widths_;
  Optimizer optimizer_;
  Stream stream_;
  GradientOfBatch gradient_of_batch_;
  DeviceState state_;
  DeviceParameters gradient_;
  std::vector<float> losses_;
  std::int64_t kept_from_ = 0;
};

}  // namespace

void follow_reference_on_device(const Workload& workload, Precision precision, const DatasetView& data,
                                const Parameters& initial, int device, const std::vector<std::int64_t>& steps,
                                std::int64_t free_steps,
                                const std::function<void(const ReferencePoint&)>& point,
                                const std::function<void(const Parameters&)>& after_free_steps) {
  if (!std::is_sorted(steps.begin(), steps.end()) || (!steps.empty() && steps.front() < 0))
    throw InputError("reference: steps must be ascending and not negative");
  validate(workload);
  use_device(device);
  if (steps.empty()) return;
  Stream stream;
  GradientOfBatch gradient_of_batch(workload, precision, data);
  const Optimizer& optimizer = workload.optimizer;
  const std::vector<int>& widths = workload.model.widths;
  DeviceState state(widths, optimizer.slots()), start(widths, optimizer.slots()),
      end(widths, optimizer.slots());
  DeviceParameters gradient(widths);
  state.assign(State::initial(initial, optimizer.slots()), stream);
  auto next = steps.begin();
  for (std::int64_t step = 0;; ++step) {
    if (step == free_steps && after_free_steps) after_free_steps(state.parameters.rounded(stream));
    while (next != steps.end() && *next == step) {
      ReferencePoint reference{.step = step, .start = state.rounded(stream), .update = {}};
      start.assign(reference.start, stream);
      end.assign(reference.start, stream);
      reference.loss = gradient_of_batch(start.parameters.data(), step, gradient.data(), stream);
      end.update(optimizer, step, gradient, stream);
      end.subtract(start, stream);
      reference.update = end.rounded(stream);
      point(reference);
      ++next;
    }
    const bool free_steps_are_due = after_free_steps && steps.back() >= free_steps - 1 && step < free_steps;
    if (next == steps.end() && !free_steps_are_due) return;
    gradient_of_batch(state.parameters.data(), step, gradient.data(), stream);
    state.update(optimizer, step, gradient, stream);
  }
}

std::unique_ptr<Trainer> make_device_oracle_trainer(const Workload& workload, Precision precision,
                                                    const DatasetView& data, const Parameters& initial,
                                                    int device) {
  validate(workload);
  use_device(device);
  return std::make_unique<DeviceOracleTrainer>(workload, precision, data, initial);
}

}  // namespace headroom
