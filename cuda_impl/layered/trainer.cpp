// The training step as a sequence of kernels (kernels.h), captured once and replayed.
//
// Weights, gradients and 16-bit weight copies of all layers lie in three buffers of the same order, so that
// one update serves the network. A captured step cannot be told which batch it trains: a counter on the
// device moves on with every step. Weight gradients run on a second stream beside the chain of input
// gradients, which is what the next layer waits for. Products for which it pays are wide ones (wide.h): each fills the
// GPU by itself, so they stay on one stream, and their layers' weights are updated where the gradients are made. A last
// layer of few classes above them has kernels of its own (narrow.h). Both know ReLU, cross-entropy and plain SGD only,
// and each is taken where what it needs of the three is there.
//
// On several devices each rank has a trainer of its own, on its part of the joined batch; losses and gradients are divided
// by the joined batch's size. NCCL adds up the ranks' gradients when all are there: sums of some layers beside the products of others
// were slower (docs/kernels/log/layered.md). Nothing may be updated before that, so kernels that update where the gradients are
// made get the gradients in place of the parameters, as zeros, and a learning rate of -1: 0 + 1 * g is g to the last bit.
#include "layered/trainer.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/training_rules.h"
#include "device/copies.h"
#include "device/device.h"
#include "device/memory.h"
#include "device/stream.h"
#include "layered/kernels.h"
#include "layered/narrow.h"
#include "layered/training_data.h"
#include "layered/wide.h"
#include "planted/delay.h"
#include "ranks/nccl.h"
#include "ranks/share.h"
#include "ranks/trainer.h"
#include "trainers/graph_trainer.h"

namespace headroom {
namespace {

using namespace layered;

// A graph launch costs about 7 us of the host's time; eight short steps hide it.
constexpr int kStepsPerGraph = 8;
// From this many parameters on a product alone saturates the memory, and two at once only disturb each other.
constexpr std::int64_t kSaturatingParameters = std::int64_t{1} << 26;

/// Where a layer lies in the buffers of parameters: weight [out, in] padded, then bias [padded(out)].
struct LayerPlace {
  std::int64_t in = 0, out = 0;
  std::int64_t weight = 0, bias = 0, end = 0;
};

std::vector<LayerPlace> place_layers(const std::vector<int>& widths) {
  std::vector<LayerPlace> places;
  std::int64_t begin = 0;
  for (std::size_t layer = 0; layer + 1 < widths.size(); ++layer) {
    LayerPlace place{.in = widths[layer], .out = widths[layer + 1], .weight = begin};
    place.bias = place.weight + place.out * padded(place.in);
    place.end = begin = place.bias + padded(place.out);
    places.push_back(place);
  }
  return places;
}

template <class Format>
class LayeredTrainer : public GraphTrainer {
 public:
  using Value = typename Format::Value;
  static constexpr bool kCopiesWeights = sizeof(Value) == 2;

  /// `data`: the rank's, with `communicators`, which are then of the workload's devices; begin() is called once all ranks are
  /// there.
  LayeredTrainer(const Workload& workload, const DatasetView& data, const Parameters& initial, int rank = 0,
                 const ranks::Communicators* communicators = nullptr)
      : GraphTrainer(workload, "cuda-layered"),
        rank_(rank),
        communicators_(communicators),
        joined_batch_(workload.joined_batch_size()),
        batch_(workload.batch_size),
        batches_(data.batches(workload.batch_size)),
        activation_(workload.model.activation),
        loss_(workload.loss),
        optimizer_(workload.optimizer),
        learning_rate_(static_cast<float>(workload.optimizer.learning_rate)),
        loss_scale_(static_cast<float>(loss_scale(Format::kPrecision, workload.joined_batch_size()))),
        layers_(place_layers(workload.model.widths)) {
    allocate();
    data_ = upload<Format>(data, batches_ * batch_, stream_);
    if (loss_ != Loss::kCrossEntropy) {
      const std::int64_t values = batches_ * batch_ * widths_.back();
      targets_ = DeviceBuffer<float>(values);
      targets_.copy_from({data.targets, static_cast<std::size_t>(values)});
    }
    choose_wide_products();
    set_parameters(initial);
    stream_.synchronize();
    if (communicators_ != nullptr) return;
    capture_steps({kStepsPerGraph, 1});
    if (const auto share = PlantedDelay::asked_share()) plant_delay(*share, initial);
    stream_.synchronize();
  }

  /// NCCL connects the ranks at the first sum, which a capture cannot hold.
  void begin() {
    sum_over_ranks();
    stream_.synchronize();
    capture_steps({kStepsPerGraph, 1});
    stream_.synchronize();
  }

  Parameters parameters() override { return from_device(masters_); }

  void set_parameters(const Parameters& parameters) override {
    require_widths_of(parameters);
    to_device(parameters, masters_);
    if constexpr (kCopiesWeights)
      round_weights<Format>(masters_.data(), copies_.data(), masters_.size(), stream_);
    stream_.synchronize();
  }

  std::vector<Parameters> slots() override {
    std::vector<Parameters> result;
    for (const DeviceBuffer<float>& slot : slots_) result.push_back(from_device(slot));
    return result;
  }

  void set_slots(const std::vector<Parameters>& slots) override {
    require_slots(slots, widths_, optimizer_.slots());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) to_device(slots[slot], slots_[slot]);
  }

  std::string note() override {
    const auto count = [](const auto& products) {
      return std::count_if(products.begin(), products.end(), [](const auto& one) { return one.has_value(); });
    };
    const auto wide = count(wide_forwards_) + count(wide_input_gradients_) + count(wide_updates_);
    const std::string planted = planted_ ? planted_->note() : "";
    std::string note;
    const auto add = [&note](const std::string& text) { note += (note.empty() ? "" : "; ") + text; };
    if (wide > 0)
      add("wide tiles for " + std::to_string(wide) + " of " + std::to_string(3 * layers_.size() - 1) +
          " products");
    if (communicators_ != nullptr) add("gradients summed by NCCL " + communicators_->version());
    if (!planted.empty()) add(planted);
    return note;
  }

 private:
  /// For tests of the gate: the steps are captured again, slower. Finding out how much slower trains, so the network
  /// starts anew.
  void plant_delay(double share, const Parameters& initial) {
    planted_.emplace(share);
    Graph plain = std::move(graphs_.front().graph);
    capture_steps({kStepsPerGraph, 1});
    planted_->calibrate(plain, graphs_.front().graph, kStepsPerGraph, stream_);
    set_state(State::initial(initial, optimizer_.slots()));
    set_step(0);
  }

  /// What lies in `values` as the parameters lie in masters_.
  Parameters from_device(const DeviceBuffer<float>& values) {
    Parameters result = Parameters::unset(widths_);
    for (int layer = 0; layer < result.layers(); ++layer) {
      const LayerPlace& place = layers_[static_cast<std::size_t>(layer)];
      copy_rows(result.weight(layer).data(), place.in, values.data() + place.weight, padded(place.in),
                place.in, place.out, cudaMemcpyDeviceToHost, stream_);
      copy_rows(result.bias(layer).data(), place.out, values.data() + place.bias, padded(place.out),
                place.out, 1, cudaMemcpyDeviceToHost, stream_);
    }
    stream_.synchronize();
    return result;
  }
  void to_device(const Parameters& parameters, DeviceBuffer<float>& values) {
    for (int layer = 0; layer < parameters.layers(); ++layer) {
      const LayerPlace& place = layers_[static_cast<std::size_t>(layer)];
      copy_rows(values.data() + place.weight, padded(place.in), parameters.weight(layer).data(), place.in,
                place.in, place.out, cudaMemcpyHostToDevice, stream_);
      copy_rows(values.data() + place.bias, padded(place.out), parameters.bias(layer).data(), place.out,
                place.out, 1, cudaMemcpyHostToDevice, stream_);
    }
    stream_.synchronize();
  }

  void allocate() {
    const std::int64_t parameters = layers_.back().end;
    masters_ = zeros<float>(parameters);
    gradients_ = zeros<float>(parameters);
    for (int slot = 0; slot < optimizer_.slots(); ++slot) slots_.push_back(zeros<float>(parameters));
    if (!slots_.empty()) factors_ = zeros<rules::UpdateFactors>(1);
    if constexpr (kCopiesWeights) copies_ = zeros<Value>(parameters);
    std::int64_t split_values = 0;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      const LayerPlace& place = layers_[layer];
      if (layer + 1 < layers_.size()) {
        hidden_.push_back(zeros<Value>(batch_ * padded(place.out)));
        hidden_sums_.push_back(
            zeros<Value>(rules::slope_is_of_output(activation_) ? 0 : batch_ * padded(place.out)));
      }
      output_gradients_.push_back(zeros<Value>(batch_ * padded(place.out)));
      splits_.push_back(weight_gradient_splits(Format::kPrecision, batch_, place.out, place.in));
      if (splits_.back() > 1)
        split_values = std::max(split_values, splits_.back() * (place.end - place.weight));
    }
    batch_sums_ = zeros<float>(split_values);
    split_sums_ = zeros<float>(split_sum_values());
    split_arrivals_ = zeros<unsigned>(split_sum_tiles());
    logits_ = zeros<float>(batch_ * padded(widths_.back()));
    row_losses_ = zeros<float>(batch_);
    state_ = zeros<StepState>(1);
  }

  /// By the rule of wide.h. The input gradient needs to know which of its layer's inputs are positive, and only a wide
  /// forward product leaves that behind.
  void choose_wide_products() {
    const std::size_t layers = layers_.size();
    positive_.resize(layers);
    wide_forwards_.resize(layers), wide_input_gradients_.resize(layers), wide_updates_.resize(layers);
    if constexpr (kCopiesWeights) {
      if (wide_products_run()) make_wide_products(), make_narrow_layer();
    }
    if (communicators_ != nullptr) {
      updates_ = {{layers_.front().weight, layers_.back().end}};
      has_zeroed_gradients_ = narrow_ || std::any_of(wide_updates_.begin(), wide_updates_.end(),
                                                     [](const auto& one) { return !!one; });
      return;
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (wide_updates_[layer] || (narrow_ && layer + 1 == layers)) continue;
      const LayerPlace& place = layers_[layer];
      if (!updates_.empty() && updates_.back().end == place.weight)
        updates_.back().end = place.end;
      else
        updates_.push_back({place.weight, place.end});
    }
  }

  void make_wide_products() {
    const std::size_t last = layers_.size() - 1;
    const bool relu = activation_ == Activation::kRelu;
    const auto updates_itself = [&](std::int64_t out, std::int64_t in) {
      return (gradients_only() || updates_plainly()) && wide_gradient_pays(batch_, out, in);
    };
    std::int64_t workspace = 0;
    if (gradients_only()) {
      for (const LayerPlace& place : layers_) workspace = std::max(workspace, place.bias - place.weight);
      unused_copies_ = DeviceBuffer<Value>(workspace);
      workspace = 0;
    }
    for (const LayerPlace& place : layers_)
      if (updates_itself(place.out, place.in))
        workspace = std::max(
            workspace, WideWeightUpdate<Format>::workspace_values(
                           batch_, place.out, place.in, wide_gradient_parts(batch_, place.out, place.in)));
    wide_workspace_ = zeros<float>(workspace);
    for (std::size_t layer = 0; layer <= last; ++layer) {
      const auto [in, out, weight, bias_begin, end] = layers_[layer];
      if (relu && layer < last && wide_product_pays(batch_, out, in)) {
        positive_[layer] = zeros<std::uint32_t>(positive_words(batch_, out));
        wide_forwards_[layer].emplace(layer_inputs(layer), batch_of(layer), weights(layer), bias(layer),
                                      matrix(hidden_[layer].data(), batch_, out), positive_[layer].data());
      }
      if (layer > 0 && wide_forwards_[layer - 1] && wide_product_pays(batch_, in, out))
        wide_input_gradients_[layer].emplace(readable(output_gradient(layer)), weights(layer),
                                             positive_[layer - 1].data(), output_gradient(layer - 1));
      if (updates_itself(out, in))
        wide_updates_[layer].emplace(readable(output_gradient(layer)), layer_inputs(layer), batch_of(layer),
                                     matrix(updated().data() + weight, out, in),
                                     gradients_only() ? matrix(unused_copies_.data(), out, in)
                                                      : matrix(copies_.data() + weight, out, in),
                                     updated().data() + bias_begin, product_learning_rate(),
                                     product_inverse_scale(), wide_gradient_parts(batch_, out, in),
                                     wide_workspace_.data());
    }
  }

  /// The last layer, if it has few classes and the one below is wide, which says that the activation is ReLU.
  void make_narrow_layer() {
    const std::size_t last = layers_.size() - 1;
    const auto [in, out, weight, bias_begin, end] = layers_[last];
    if (last == 0 || !wide_forwards_[last - 1] || out > kNarrowClasses) return;
    if (!(gradients_only() || updates_plainly()) || loss_ != Loss::kCrossEntropy) return;
    narrow_workspace_ = zeros<float>(NarrowLayer<Format>::workspace_values(batch_, out, in));
    narrow_.emplace(layer_inputs(last), matrix(masters_.data() + weight, out, in),
                    matrix(copies_.data() + weight, out, in), output_gradient(last),
                    output_gradient(last - 1), narrow_workspace_.data());
    losses_of_step_ = NarrowLayer<Format>::losses(batch_);
  }

  bool updates_plainly() const { return optimizer_.slots() == 0; }
  /// Whether products with an update in them leave gradients, for all ranks' to be summed.
  bool gradients_only() const { return communicators_ != nullptr; }
  DeviceBuffer<float>& updated() { return gradients_only() ? gradients_ : masters_; }
  float product_learning_rate() const { return gradients_only() ? -1.0f : learning_rate_; }
  float product_inverse_scale() const { return gradients_only() ? 1.0f : 1.0f / loss_scale_; }
  PartsUpdate<Format> narrow_update() {
    PartsUpdate<Format> update = narrow_->update();
    if (gradients_only()) update.masters = gradients_.data() + layers_.back().weight, update.copy = nullptr;
    return update;
  }
  const Value* weights_for_products() const {
    if constexpr (kCopiesWeights)
      return copies_.data();
    else
      return masters_.data();
  }
  Matrix<const Value> weights(std::size_t layer) const {
    return matrix(weights_for_products() + layers_[layer].weight, layers_[layer].out, layers_[layer].in);
  }
  const float* bias(std::size_t layer) const { return masters_.data() + layers_[layer].bias; }
  /// What layer `layer` reads: the whole data set for the first,
  /// the layer below's activations for the others.
  Matrix<const Value> layer_inputs(std::size_t layer) const {
    const std::int64_t columns = layers_[layer].in;
    return layer == 0 ? matrix<const Value>(data_.inputs.data(), batches_ * batch_, columns)
                      : matrix<const Value>(hidden_[layer - 1].data(), batch_, columns);
  }
  SplitSums split() { return {split_sums_.data(), split_arrivals_.data()}; }
  const StepState* batch_of(std::size_t layer) const { return layer == 0 ? state_.data() : nullptr; }
  Matrix<Value> output_gradient(std::size_t layer) {
    return matrix(output_gradients_[layer].data(), batch_, layers_[layer].out);
  }
  static Matrix<const Value> readable(Matrix<Value> m) { return {m.data, m.rows, m.columns, m.pitch}; }

  /// One step, from the batch that the device's counter names to the counter's next value.
  void queue_step() override {
    const std::size_t last = layers_.size() - 1;
    if (!updates_plainly()) queue_update_factors();
    if (has_zeroed_gradients_)
      CUDA_CHECK(
          cudaMemsetAsync(gradients_.data(), 0, static_cast<std::size_t>(gradients_.bytes()), stream_.get()));
    for (std::size_t layer = 0; layer < last; ++layer) queue_forward(layer);
    queue_loss();
    for (std::size_t layer = last; layer > 0; --layer) {
      if (narrow_ && layer == last) {
        queue_narrow_backward();
      } else {
        if (!wide_updates_[layer]) queue_weight_gradient(layer);
        queue_input_gradient(layer);
        queue_wide_product(layer);  // updates weights that the input gradient has read
        queue_wide_update(layer);
      }
    }
    if (wide_updates_[0])
      queue_wide_product(0);
    else
      queue_weight_gradient(0);
    output_gradient_done_.record(stream_);
    output_gradient_done_.hold(gradient_stream());
    // Behind the last kernel that reads the counter, beside the update.
    gradients_done_.record(gradient_stream());
    finish_step(row_losses_.data(), losses_of_step_, losses_.data(), kKeptLosses, batches_, state_.data(),
                gradient_stream());
    step_finished_.record(gradient_stream());

    queue_wide_update(0);
    gradients_done_.hold(stream_);
    if (communicators_ != nullptr) sum_over_ranks();
    if (planted_) planted_->begin(stream_);
    for (const Range& range : updates_) queue_update(range.begin, range.end);
    step_finished_.hold(stream_);
    if (planted_) planted_->end(stream_);
  }

  void sum_over_ranks() {
    const std::int64_t begin = layers_.front().weight, end = layers_.back().end;
    communicators_->all_reduce(rank_, gradients_.data() + begin, end - begin, stream_.get());
  }

  /// Beside the products, as soon as the update before has read those of its step.
  void queue_update_factors() {
    step_begun_.record(stream_);
    step_begun_.hold(gradient_stream());
    set_update_factors(optimizer_, state_.data(), factors_.data(), gradient_stream());
  }
  /// Of parameters begin to end - 1 by their gradients.
  void queue_update(std::int64_t begin, std::int64_t end) {
    float *masters = masters_.data() + begin, *gradients = gradients_.data() + begin;
    Value* copies = kCopiesWeights ? copies_.data() + begin : nullptr;
    if (updates_plainly())
      return update<Format>(masters, gradients, copies, end - begin, learning_rate_, 1.0f / loss_scale_,
                            stream_);
    update_with_slots<Format>(masters, gradients, copies, slots_[0].data() + begin,
                              slots_.size() > 1 ? slots_[1].data() + begin : nullptr, end - begin,
                              factors_.data(), 1.0f / loss_scale_, stream_);
  }

  /// Outputs of the last layer, loss and the gradient of the outputs.
  void queue_loss() {
    const std::size_t last = layers_.size() - 1;
    const float gradient_scale = loss_scale_ / static_cast<float>(joined_batch_);
    if constexpr (kCopiesWeights)
      if (narrow_)
        return narrow_->queue_forward(data_.labels.data(), state_.data(), gradient_scale, row_losses_.data(),
                                      stream_);
    const Matrix<float> logits = matrix(logits_.data(), batch_, layers_[last].out);
    forward_logits<Format>(layer_inputs(last), batch_of(last), weights(last), bias(last), logits, split(),
                           stream_);
    const Matrix<const float> outputs{logits.data, logits.rows, logits.columns, logits.pitch};
    if (loss_ == Loss::kCrossEntropy)
      loss_gradient<Format>(outputs, data_.labels.data(), state_.data(), gradient_scale,
                            output_gradient(last), row_losses_.data(), stream_);
    else
      loss_of_targets<Format>(loss_, outputs, targets_.data(), state_.data(),
                              gradient_scale / static_cast<float>(outputs.columns), output_gradient(last),
                              row_losses_.data(), stream_);
  }
  /// The layer is updated with the first one, if that is by sums of parts.
  void queue_narrow_backward() {
    if constexpr (kCopiesWeights) {
      narrow_->queue_backward(stream_);
      if (!wide_updates_[0] || gradients_only())
        update_from_parts<Format>({narrow_update()}, product_learning_rate(), product_inverse_scale(),
                                  stream_);
    }
  }
  void queue_forward(std::size_t layer) {
    if constexpr (kCopiesWeights)
      if (wide_forwards_[layer]) return wide_forwards_[layer]->queue(stream_, layer > 0);
    const Matrix<Value> hidden = matrix(hidden_[layer].data(), batch_, layers_[layer].out);
    forward_hidden<Format>(layer_inputs(layer), batch_of(layer), weights(layer), bias(layer), activation_,
                           hidden, hidden_sums_[layer].data(), split(), stream_);
  }
  void queue_input_gradient(std::size_t layer) {
    if constexpr (kCopiesWeights)
      if (wide_input_gradients_[layer]) return wide_input_gradients_[layer]->queue(stream_);
    const Matrix<const Value> gradient = readable(output_gradient(layer));
    const DeviceBuffer<Value>& kept =
        (rules::slope_is_of_output(activation_) ? hidden_ : hidden_sums_)[layer - 1];
    input_gradient<Format>(gradient, weights(layer), activation_,
                           matrix(kept.data(), batch_, layers_[layer].in), output_gradient(layer - 1),
                           split(), stream_);
  }
  /// Weight gradient of a layer whose product is a wide one, and the rest of its update.
  void queue_wide_product(std::size_t layer) {
    if constexpr (kCopiesWeights)
      if (wide_updates_[layer]) wide_updates_[layer]->queue_product(stream_);
  }
  void queue_wide_update(std::size_t layer) {
    if constexpr (kCopiesWeights)
      if (wide_updates_[layer])
        wide_updates_[layer]->queue_update(stream_, layer == 0 && narrow_ && !gradients_only()
                                                        ? std::optional(narrow_update())
                                                        : std::nullopt);
  }

  /// Where weight gradients are queued.
  Stream& gradient_stream() { return layers_.back().end < kSaturatingParameters ? side_stream_ : stream_; }

  /// On the second stream, as soon as the gradient of the layer's outputs is there.
  void queue_weight_gradient(std::size_t layer) {
    const LayerPlace& place = layers_[layer];
    output_gradient_done_.record(stream_);
    output_gradient_done_.hold(gradient_stream());
    const int splits = splits_[layer];
    const std::int64_t stride = place.end - place.weight;
    float* target = splits > 1 ? batch_sums_.data() : gradients_.data() + place.weight;
    weight_gradient<Format>(readable(output_gradient(layer)), layer_inputs(layer), batch_of(layer),
                            matrix(target, place.out, place.in), target + (place.bias - place.weight), splits,
                            stride, gradient_stream());
    if (splits > 1)
      sum_splits(target, splits, stride, gradients_.data() + place.weight, stride, gradient_stream());
  }

  void set_step(std::int64_t step) override { layered::set_step(state_.data(), step, batches_, stream_); }
  const void* counter() const override { return &state_.data()->step; }

  const int rank_;
  const ranks::Communicators* const communicators_;  // null on one device
  const std::int64_t joined_batch_, batch_, batches_;
  const Activation activation_;
  const Loss loss_;
  const Optimizer optimizer_;
  const float learning_rate_, loss_scale_;
  const std::vector<LayerPlace> layers_;

  Stream side_stream_;
  Event step_begun_{Event::Kind::kOrder}, output_gradient_done_{Event::Kind::kOrder},
      gradients_done_{Event::Kind::kOrder}, step_finished_{Event::Kind::kOrder};

  TrainingData<Format> data_;    // batches * batch samples
  DeviceBuffer<float> targets_;  // of them [batches * batch, outputs]; none with cross-entropy
  DeviceBuffer<float> masters_, gradients_;
  std::vector<DeviceBuffer<float>> slots_;        // the optimizer's, each as the masters
  DeviceBuffer<rules::UpdateFactors> factors_;    // of the step, where there are slots
  DeviceBuffer<Value> copies_;                    // the masters as they enter products; 16-bit formats only
  std::vector<DeviceBuffer<Value>> hidden_;       // of each layer but the last [batch, out]
  std::vector<DeviceBuffer<Value>> hidden_sums_;  // before the activation, empty where no slope needs them
  std::vector<DeviceBuffer<Value>> output_gradients_;  // of each layer [batch, out]
  std::vector<int> splits_;                            // of each layer's weight gradient
  DeviceBuffer<float> batch_sums_;                     // its partial sums, one layer at a time
  DeviceBuffer<float> split_sums_;                     // of forward and input gradient, one product at a time
  DeviceBuffer<unsigned> split_arrivals_;
  // Of each layer, empty where the product is not a wide one.
  std::vector<std::optional<WideForward<Format>>> wide_forwards_;
  std::vector<std::optional<WideInputGradient<Format>>> wide_input_gradients_;
  std::vector<std::optional<WideWeightUpdate<Format>>> wide_updates_;
  std::vector<DeviceBuffer<std::uint32_t>> positive_;  // of the hidden values that wide forward products make
  DeviceBuffer<float> wide_workspace_;                 // of one layer's update at a time
  std::optional<NarrowLayer<Format>> narrow_;          // the last layer, if it is taken
  DeviceBuffer<float> narrow_workspace_;
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> updates_;         // parameters that wide updates leave, in their order; of a rank all
  bool has_zeroed_gradients_ = false;  // some products add to them
  DeviceBuffer<Value> unused_copies_;  // of gradients, which such a product makes too
  DeviceBuffer<float> logits_, row_losses_;
  std::int64_t losses_of_step_ = batch_;  // in row_losses_; their mean is the step's
  DeviceBuffer<StepState> state_;

  std::optional<PlantedDelay> planted_;
};

template <class Make>
std::unique_ptr<Trainer> with_format(Precision precision, const Make& make) {
  switch (precision) {
    case Precision::kFp32:
      return make.template operator()<Fp32>();
    case Precision::kTf32:
      return make.template operator()<Tf32>();
    case Precision::kFp16:
      return make.template operator()<Fp16>();
    case Precision::kBf16:
      return make.template operator()<Bf16>();
  }
  throw std::logic_error("make_layered_trainer: not a Precision");
}

template <class Format>
std::unique_ptr<Trainer> make_on_devices(const Workload& workload, const DatasetView& data,
                                         const Parameters& initial, const std::vector<int>& devices) {
  if (std::ssize(devices) != workload.devices)
    throw InputError("cuda-layered: " + std::to_string(devices.size()) + " devices for '" + workload.name +
                     "'");
  for (const int one : devices)
    if (const auto reason = layered_unavailable(one))
      throw UnsupportedError("cuda-layered: device " + std::to_string(one) + ": " + *reason);
  const auto communicators = std::make_shared<ranks::Communicators>(devices);
  const auto make = [&](int rank) -> ranks::Rank {
    use_device(devices[static_cast<std::size_t>(rank)]);  // of the rank's thread, for good
    const ranks::Share share(workload, data, rank);
    auto trainer =
        std::make_unique<LayeredTrainer<Format>>(workload, share.view(), initial, rank, communicators.get());
    LayeredTrainer<Format>* const begun = trainer.get();
    return {std::move(trainer), [begun] { begun->begin(); }};
  };
  return ranks::make_trainer(workload, "cuda-layered", make, [communicators] { communicators->abort(); });
}

}  // namespace

std::optional<std::string> layered_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  const DeviceInfo info = device_info(device);
  if (info.compute_major < 8)
    return "compute capability " + std::to_string(info.compute_major) + "." +
           std::to_string(info.compute_minor) + ", needs 8.0";
  return std::nullopt;
}

std::unique_ptr<Trainer> make_layered_trainer(const Workload& workload, Precision precision,
                                              const DatasetView& data, const Parameters& initial, int device,
                                              const std::vector<int>& devices) {
  validate(workload);
  if (const auto reason = layered_unavailable(device)) throw UnsupportedError("cuda-layered: " + *reason);
  require_data_for(workload, data, "cuda-layered");
  if (workload.devices > 1)
    return with_format(
        precision, [&]<class Format>() { return make_on_devices<Format>(workload, data, initial, devices); });
  use_device(device);
  return with_format(precision, [&]<class Format>() -> std::unique_ptr<Trainer> {
    return std::make_unique<LayeredTrainer<Format>>(workload, data, initial);
  });
}

}  // namespace headroom
