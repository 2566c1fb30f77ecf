// Products are the library's; what is between them are plain kernels (kernels.h) and layered's loss and rounding.
//
// fp32 and tf32: bias, ReLU and its mask are epilogues of the forward product. fp16 and bf16: the library adds a
// bias in the type of its result, 16 bits, where the contract asks for fp32; so the product gives fp32 sums and one
// pass adds the bias, applies ReLU and rounds. Everywhere the update is the end of the weight gradient's product
// (alpha = - learning rate, beta = 1, fp32 result in place of the weight). Bias gradients are column sums of their
// own: the epilogues that make them take them before the rounding.
//
// Activations but ReLU have no epilogue (the library's GELU is the tanh form), so in all formats a pass adds the bias and applies
// them, and another one multiplies by their slope on the way back. An optimizer with slots needs the gradient itself: weights,
// gradients and slots of all layers lie in buffers of one order, and one kernel updates the network behind the products.
//
// Small batches are gathered for several steps at once at the head of a graph; of large ones there are few, and
// each has a graph that reads it where it lies.
#include "cublaslt/trainer.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/error.h"
#include "core/host_clock.h"
#include "core/training_rules.h"
#include "cublaslt/kernels.h"
#include "cublaslt/product.h"
#include "device/copies.h"
#include "device/device.h"
#include "device/kept_losses.h"
#include "device/memory.h"
#include "device/stream.h"
#include "layered/kernels.h"
#include "layered/training_data.h"

namespace headroom {
namespace {

using namespace cublaslt;
using layered::padded;

constexpr std::int64_t kStepsPerGraph = 16;
constexpr std::int64_t kGatheredBytes = std::int64_t{8} << 20;  // at most, for the steps of one graph
constexpr std::int64_t kLargeBatchBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMostGraphs = 64;

template <class Format>
class CublasltTrainer : public Trainer {
 public:
  using Value = typename Format::Value;
  static constexpr bool k16Bits = sizeof(Value) == 2;

  CublasltTrainer(const Workload& workload, const DatasetView& data, const Parameters& initial,
                  std::optional<CublasltPlan> plan)
      : widths_(workload.model.widths),
        batch_(workload.batch_size),
        batches_(data.batches(workload.batch_size)),
        activation_(workload.model.activation),
        loss_(workload.loss),
        optimizer_(workload.optimizer),
        learning_rate_(static_cast<float>(workload.optimizer.learning_rate)),
        loss_scale_(static_cast<float>(loss_scale(Format::kPrecision, workload.batch_size))) {
    DeviceMemory::reset_peak();
    allocate();
    data_ = layered::upload<Format>(data, batches_ * batch_, stream_);
    if (loss_ != Loss::kCrossEntropy) {
      const std::int64_t values = batches_ * batch_ * widths_.back();
      targets_ = DeviceBuffer<float>(values);
      targets_.copy_from({data.targets, static_cast<std::size_t>(values)});
    }
    const State start = State::initial(initial, optimizer_.slots());
    set_state(start);
    describe_products();
    choose_products();
    choose_plan(plan);
    next_step_ = -1;  // the device's counter has moved while products and plans were timed
    set_state(start);
  }

  Timing train(std::int64_t first_step, std::int64_t count) override {
    KeptLosses::require_steps(first_step, count);
    const HostClock clock;
    begin_.record(stream_);
    launch_steps(first_step, count);
    end_.record(stream_);
    const double device_seconds = seconds_between(begin_, end_);
    losses_.trained(first_step, count);
    return clock.timing(device_seconds);
  }

  std::vector<float> losses(std::int64_t first_step, std::int64_t count) override {
    return losses_.read(first_step, count, stream_);
  }

  Parameters parameters() override { return from_device(masters_); }

  void set_parameters(const Parameters& parameters) override {
    if (parameters.widths() != widths_) throw InputError("set_parameters: parameters of another network");
    to_device(parameters, masters_);
    if constexpr (k16Bits)
      layered::round_weights<Format>(masters_.data(), copies_.data(), masters_.size(), stream_);
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

  std::int64_t peak_device_bytes() override { return DeviceMemory::peak_bytes(); }

  std::string note() override {
    return "cuBLASLt " + library_version() + ", " +
           (graph_per_batch_ ? "a graph for each batch"
                             : std::to_string(steps_per_graph_) + " steps a graph") +
           ", " + std::to_string(plan_.side_streams) + " side streams" +
           (is_relu() ? std::string(", ReLU's derivative in ") +
                            (plan_.masks_in_product ? "the product" : "a pass of its own")
                      : std::string()) +
           measured_;
  }

 private:
  struct Layer {
    std::int64_t in = 0, out = 0;  // padded; padding is zero and stays zero
    std::int64_t weight = 0,
                 bias = 0;       // where weight [out, in] and bias [out] lie in the buffers of parameters
    DeviceBuffer<float> sums;    // [batch, out]: fp32 sums that a pass activates, outputs of the last
    DeviceBuffer<Value> hidden;  // [batch, out]; not of the last layer
    DeviceBuffer<Value> rounded_sums;  // [batch, out]; 16-bit formats, where the slope is of the sums
    DeviceBuffer<Value> gradient;      // [batch, out], of the sums
    DeviceBuffer<std::uint32_t> mask;  // [batch, mask_pitch(out)] bits; not of the last layer
    Product forward, weight_update;
    Product forward_with_mask;                      // fp32 and tf32; not of the last layer
    Product input_gradient, masked_input_gradient;  // of this layer's inputs; not of the first layer
  };

  /// Weights of all layers, then biases. Each begins at 256 bytes, weights in 16 bits too, which the library's fastest kernels ask for.
  void place_layers() {
    std::int64_t end = 0;
    const auto place = [&](std::int64_t size, std::int64_t alignment) {
      const std::int64_t begin = end;
      end += (size + alignment - 1) / alignment * alignment;
      return begin;
    };
    for (std::size_t index = 0; index + 1 < widths_.size(); ++index) {
      Layer& layer = layers_.emplace_back();
      layer.in = padded(widths_[index]), layer.out = padded(widths_[index + 1]);
      layer.weight = place(layer.out * layer.in, 128);
    }
    first_bias_ = end;
    for (Layer& layer : layers_) layer.bias = place(layer.out, 64);
    biases_ = end - first_bias_;
    masters_ = zeros<float>(end);
    if constexpr (k16Bits) copies_ = zeros<Value>(end);
    if (!has_slots()) return;
    gradients_ = zeros<float>(end);
    for (int slot = 0; slot < optimizer_.slots(); ++slot) slots_.push_back(zeros<float>(end));
    factors_ = zeros<rules::UpdateFactors>(1);
  }

  void allocate() {
    place_layers();
    std::int64_t widest = 0;
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      const bool last = index + 1 == layers_.size();
      if (k16Bits || last || !is_relu()) layer.sums = zeros<float>(batch_ * layer.out);
      layer.gradient = zeros<Value>(batch_ * layer.out);
      if (last) continue;
      layer.hidden = zeros<Value>(batch_ * layer.out);
      if (is_relu()) layer.mask = zeros<std::uint32_t>(batch_ * mask_pitch(layer.out) / 32);
      if (k16Bits && !rules::slope_is_of_output(activation_))
        layer.rounded_sums = zeros<Value>(batch_ * layer.out);
      widest = std::max(widest, layer.out);
    }
    if (k16Bits && !is_relu()) unrounded_ = zeros<float>(batch_ * widest);
    parts_ = bias_parts(batch_);
    bias_sums_ = zeros<float>(parts_ * biases_);
    row_losses_ = zeros<float>(batch_);
    state_ = zeros<layered::StepState>(1);

    const std::int64_t batch_bytes = batch_values() * static_cast<std::int64_t>(sizeof(Value));
    graph_per_batch_ = batch_bytes >= kLargeBatchBytes && batches_ <= kMostGraphs;
    steps_per_graph_ =
        graph_per_batch_ ? 1 : std::clamp<std::int64_t>(kGatheredBytes / batch_bytes, 1, kStepsPerGraph);
    if (!graph_per_batch_) gathered_ = zeros<Value>(steps_per_graph_ * batch_values());
  }

  bool is_relu() const { return activation_ == Activation::kRelu; }
  bool has_slots() const { return optimizer_.slots() > 0; }

  /// What lies in `values` as the parameters lie in masters_.
  Parameters from_device(const DeviceBuffer<float>& values) {
    Parameters result = Parameters::unset(widths_);
    for (int index = 0; index < result.layers(); ++index) {
      const Layer& layer = layers_[static_cast<std::size_t>(index)];
      const int in = widths_[static_cast<std::size_t>(index)],
                out = widths_[static_cast<std::size_t>(index) + 1];
      copy_rows(result.weight(index).data(), in, values.data() + layer.weight, layer.in, in, out,
                cudaMemcpyDeviceToHost, stream_);
      copy_rows(result.bias(index).data(), layer.out, values.data() + layer.bias, layer.out, out, 1,
                cudaMemcpyDeviceToHost, stream_);
    }
    stream_.synchronize();
    return result;
  }
  void to_device(const Parameters& parameters, DeviceBuffer<float>& values) {
    values.fill_bytes(0);  // padding may have become NaN with the weights beside it
    for (int index = 0; index < parameters.layers(); ++index) {
      const Layer& layer = layers_[static_cast<std::size_t>(index)];
      const int in = widths_[static_cast<std::size_t>(index)],
                out = widths_[static_cast<std::size_t>(index) + 1];
      copy_rows(values.data() + layer.weight, layer.in, parameters.weight(index).data(), in, in, out,
                cudaMemcpyHostToDevice, stream_);
      copy_rows(values.data() + layer.bias, layer.out, parameters.bias(index).data(), layer.out, out, 1,
                cudaMemcpyHostToDevice, stream_);
    }
    stream_.synchronize();
  }

  std::int64_t batch_values() const { return batch_ * layers_.front().in; }

  Value* product_weight(const Layer& layer) {
    if constexpr (k16Bits)
      return copies_.data() + layer.weight;
    else
      return masters_.data() + layer.weight;
  }
  float* bias(const Layer& layer) { return masters_.data() + layer.bias; }
  /// Where the weight gradient's product ends.
  float* weight_result(const Layer& layer) {
    return (has_slots() ? gradients_ : masters_).data() + layer.weight;
  }
  void round_weight(const Layer& layer, Stream& stream) {
    if constexpr (k16Bits)
      layered::round_weights<Format>(masters_.data() + layer.weight, copies_.data() + layer.weight,
                                     layer.out * layer.in, stream);
  }

  // ---- Products

  ProductShape shape_of_inputs() const {
    ProductShape shape;
    if constexpr (k16Bits)
      shape.input_type = Format::kPrecision == Precision::kFp16 ? CUDA_R_16F : CUDA_R_16BF;
    if (Format::kPrecision == Precision::kTf32) shape.compute_type = CUBLAS_COMPUTE_32F_FAST_TF32;
    return shape;
  }

  /// hidden or sums [batch, out] = inputs [batch, in] * weight^T, as columns: [out, batch] = weight * inputs.
  ProductShape forward_shape(std::size_t index) {
    Layer& layer = layers_[index];
    const bool last = index + 1 == layers_.size();
    ProductShape shape = shape_of_inputs();
    shape.m = layer.out, shape.n = batch_, shape.k = layer.in;
    shape.a_transposed = true;
    shape.a_pitch = shape.b_pitch = layer.in, shape.d_pitch = layer.out;
    if (index == 0) shape.alignment = batch_alignment();
    if (last || (!k16Bits && is_relu())) {
      shape.epilogue = last ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS;
      shape.bias = bias(layer);
    }
    return shape;
  }

  /// [batch, in] = gradient [batch, out] * weight, as columns: [in, batch] = weight^T * gradient. What is only masked may be rounded
  /// before.
  ProductShape input_gradient_shape(std::size_t index) {
    Layer& layer = layers_[index];
    ProductShape shape = shape_of_inputs();
    if (is_relu()) shape.output_type = shape.input_type;
    shape.m = layer.in, shape.n = batch_, shape.k = layer.out;
    shape.a_pitch = layer.in, shape.b_pitch = layer.out, shape.d_pitch = layer.in;
    return shape;
  }

  /// weight [out, in] += factor * gradient^T * inputs, as columns: [in, out] += factor * inputs * gradient^T. With slots the product
  /// itself.
  ProductShape weight_update_shape(std::size_t index) {
    Layer& layer = layers_[index];
    ProductShape shape = shape_of_inputs();
    shape.m = layer.in, shape.n = layer.out, shape.k = batch_;
    shape.b_transposed = true;
    shape.a_pitch = layer.in, shape.b_pitch = layer.out, shape.d_pitch = layer.in;
    if (!has_slots()) shape.alpha = -learning_rate_ / loss_scale_, shape.beta = 1;
    if (index == 0) shape.alignment = batch_alignment();
    return shape;
  }

  /// A batch that is read where it lies starts on a multiple of its own size only.
  std::uint32_t batch_alignment() const {
    const auto bytes = static_cast<std::uint64_t>(batch_values()) * sizeof(Value);
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(256, bytes & (~bytes + 1)));
  }

  static ProductShape with_mask(ProductShape shape, cublasLtEpilogue_t epilogue, Layer& masked) {
    shape.epilogue = epilogue;
    shape.mask = masked.mask.data();
    shape.mask_pitch = mask_pitch(masked.out);
    return shape;
  }

  void describe_products() {
    masks_possible_ = is_relu() && layers_.size() > 1;
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      layer.forward = described("forward", forward_shape(index));
      layer.weight_update = described("weight gradient", weight_update_shape(index));
      if (index > 0) {
        layer.input_gradient = described("input gradient", input_gradient_shape(index));
        if (is_relu())
          layer.masked_input_gradient = Product(
              context_, with_mask(input_gradient_shape(index), CUBLASLT_EPILOGUE_DRELU, layers_[index - 1]));
        masks_possible_ = masks_possible_ && layer.masked_input_gradient.possible();
      }
      if (k16Bits || !is_relu() || index + 1 == layers_.size()) continue;
      layer.forward_with_mask =
          Product(context_, with_mask(forward_shape(index), CUBLASLT_EPILOGUE_RELU_AUX_BIAS, layer));
      masks_possible_ = masks_possible_ && layer.forward_with_mask.possible();
    }
  }

  Product described(const char* what, const ProductShape& shape) const {
    Product product(context_, shape);
    if (!product.possible())
      throw UnsupportedError("cublaslt-graph: cuBLASLt has no kernel for the " + std::string(what) +
                             " product of m " + std::to_string(shape.m) + ", n " + std::to_string(shape.n) +
                             ", k " + std::to_string(shape.k));
    return product;
  }

  /// On the values of a first step: a product of zeros draws less power, and its clocks are not those of training.
  void choose_products() {
    const Value* first_batch = data_.inputs.data();
    queue_step(first_batch);
    stream_.synchronize();
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      const Value* inputs = inputs_of(index, first_batch);
      const auto choose = [&](Product& product, const void* a, const void* b, void* d) {
        product.choose(stream_, main_workspace_, a, b, d);
      };
      choose(layer.forward, product_weight(layer), inputs, forward_result(layer));
      if (index > 0) {
        Layer& below = layers_[index - 1];
        choose(layer.input_gradient, product_weight(layer), layer.gradient.data(),
               input_gradient_result(below));
        if (masks_possible_)
          choose(layer.masked_input_gradient, product_weight(layer), layer.gradient.data(),
                 below.gradient.data());
      }
      if (!k16Bits && masks_possible_ && index + 1 < layers_.size())
        choose(layer.forward_with_mask, product_weight(layer), inputs, forward_result(layer));
      choose(layer.weight_update, inputs, layer.gradient.data(), weight_result(layer));
    }
  }

  // ---- Plans and graphs

  void choose_plan(std::optional<CublasltPlan> wanted) {
    if (wanted) return use(*wanted);
    CublasltPlan best;
    double least = 0;
    measured_ = " (with 0, 1, 2:";
    for (const bool masks_in_product : {false, true}) {
      if (masks_in_product && !masks_possible_) continue;
      if (is_relu()) measured_ += masks_in_product ? ", product" : " pass";
      for (const int side_streams : {0, 1, 2}) {
        use({side_streams, masks_in_product});
        const double seconds = measured_seconds();
        measured_ += " " + std::to_string(static_cast<long>(seconds * 1e6 + 0.5));
        if (least == 0 || seconds < least) best = plan_, least = seconds;
      }
    }
    measured_ += " us)";
    use(best);
  }

  void use(const CublasltPlan& plan) {
    plan_ = plan;
    if (plan.masks_in_product && !masks_possible_)
      throw UnsupportedError("cublaslt-graph: cuBLASLt has no product that applies ReLU's mask here");
    batch_graphs_.clear();
    if (graph_per_batch_) {
      for (std::int64_t batch = 0; batch < batches_; ++batch)
        batch_graphs_.push_back(
            Graph::capture(stream_, [&] { queue_step(data_.inputs.data() + batch * batch_values()); }));
    } else {
      one_step_ = Graph::capture(stream_, [&] { queue_gathered_steps(1); });
      many_steps_ = Graph::capture(stream_, [&] { queue_gathered_steps(steps_per_graph_); });
    }
  }

  double measured_seconds() {
    double least = 0;
    std::int64_t steps = steps_per_graph_;
    for (int attempt = 0; attempt < 6; ++attempt) {
      begin_.record(stream_);
      launch_steps(0, steps);
      end_.record(stream_);
      const double seconds = seconds_between(begin_, end_) / static_cast<double>(steps);
      // The first attempt finds out how many steps are 4 ms, the second warms up.
      if (attempt == 0)
        steps *=
            static_cast<std::int64_t>(std::clamp(4e-3 / (seconds * static_cast<double>(steps)), 1.0, 50.0));
      if (attempt >= 2) least = attempt == 2 ? seconds : std::min(least, seconds);
    }
    return least;
  }

  void launch_steps(std::int64_t first_step, std::int64_t count) {
    if (first_step != next_step_) layered::set_step(state_.data(), first_step, batches_, stream_);
    for (std::int64_t step = first_step, end = first_step + count; step < end;) {
      if (graph_per_batch_) {
        batch_graphs_[static_cast<std::size_t>(step % batches_)].launch(stream_);
        ++step;
      } else {
        const bool many = end - step >= steps_per_graph_;
        (many ? many_steps_ : one_step_).launch(stream_);
        step += many ? steps_per_graph_ : 1;
      }
    }
    next_step_ = first_step + count;
  }

  // ---- One step

  void queue_gathered_steps(std::int64_t steps) {
    gather_batches<Format>(data_.inputs.data(), state_.data(), batches_, batch_values(), steps,
                           gathered_.data(), stream_);
    for (std::int64_t step = 0; step < steps; ++step) queue_step(gathered_.data() + step * batch_values());
  }

  const Value* inputs_of(std::size_t index, const Value* features) const {
    return index == 0 ? features : layers_[index - 1].hidden.data();
  }
  void* forward_result(Layer& layer) {
    if (layer.sums.size() > 0) return layer.sums.data();
    return layer.hidden.data();
  }

  /// fp32, before the slope; where only a mask follows, the gradient itself.
  void* input_gradient_result(Layer& below) {
    if (unrounded_.size() > 0) return unrounded_.data();
    return below.gradient.data();
  }
  /// What the slope of a layer's activation is taken from.
  const Value* kept_of(const Layer& layer) const {
    if (rules::slope_is_of_output(activation_)) return layer.hidden.data();
    if constexpr (k16Bits)
      return layer.rounded_sums.data();
    else
      return layer.sums.data();
  }

  /// From `features` [batch, in], the batch that the device's counter names, to the counter's next value.
  void queue_step(const Value* features) {
    if (has_slots())
      beside(kRest, [&](Stream& stream, Workspace&) {
        layered::set_update_factors(optimizer_, state_.data(), factors_.data(), stream);
      });
    for (std::size_t index = 0; index < layers_.size(); ++index) queue_forward(index, features);
    queue_loss();
    beside(kRest, [&](Stream& stream, Workspace&) {
      layered::finish_step(row_losses_.data(), batch_, losses_.data(), kKeptLosses, batches_, state_.data(),
                           stream);
    });
    for (std::size_t index = layers_.size(); index-- > 0;) queue_backward(index, features);
    beside(kRest, [&](Stream& stream, Workspace&) { queue_biases(stream); });
    join();
    if (has_slots()) queue_update();
  }

  void queue_loss() {
    Layer& last = layers_.back();
    const int outputs = widths_.back();
    const auto of_outputs = layered::matrix<const float>(last.sums.data(), batch_, outputs);
    const auto gradient = layered::matrix(last.gradient.data(), batch_, outputs);
    const float scale = loss_scale_ / static_cast<float>(batch_);
    if (loss_ == Loss::kCrossEntropy)
      layered::loss_gradient<Format>(of_outputs, data_.labels.data(), state_.data(), scale, gradient,
                                     row_losses_.data(), stream_);
    else
      layered::loss_of_targets<Format>(loss_, of_outputs, targets_.data(), state_.data(),
                                       scale / static_cast<float>(outputs), gradient, row_losses_.data(),
                                       stream_);
  }

  /// From the sums of the batch's parts: without slots the update, else the gradients.
  void queue_biases(Stream& stream) {
    if (!has_slots())
      update_biases(masters_.data() + first_bias_, bias_sums_.data(), parts_, biases_,
                    learning_rate_ / loss_scale_, stream);
    else
      sum_parts(bias_sums_.data(), parts_, biases_, gradients_.data() + first_bias_, stream);
  }

  void queue_update() {
    Value* copies = nullptr;
    if constexpr (k16Bits) copies = copies_.data();
    layered::update_with_slots<Format>(masters_.data(), gradients_.data(), copies, slots_[0].data(),
                                       slots_.size() > 1 ? slots_[1].data() : nullptr, masters_.size(),
                                       factors_.data(), 1 / loss_scale_, stream_);
  }

  void queue_forward(std::size_t index, const Value* features) {
    Layer& layer = layers_[index];
    const bool last = index + 1 == layers_.size();
    const bool mask = plan_.masks_in_product && !last;
    const Product& product = mask && !k16Bits ? layer.forward_with_mask : layer.forward;
    product.queue(stream_, main_workspace_, product_weight(layer), inputs_of(index, features),
                  forward_result(layer));
    if (last) return;
    if (!is_relu())
      activate_other<Format>(activation_, layer.sums.data(), bias(layer), layer.hidden.data(),
                             sums_to_keep(layer), batch_, layer.out, stream_);
    else if (k16Bits)
      activate<Format>(layer.sums.data(), bias(layer), layer.hidden.data(),
                       mask ? layer.mask.data() : nullptr, batch_, layer.out, stream_);
  }
  /// Null where the slope is taken from the output.
  Value* sums_to_keep(Layer& layer) {
    if (rules::slope_is_of_output(activation_)) return nullptr;
    if constexpr (k16Bits)
      return layer.rounded_sums.data();
    else
      return layer.sums.data();
  }

  void queue_backward(std::size_t index, const Value* features) {
    Layer& layer = layers_[index];
    const auto end_weight_gradient = [&](Stream& stream, Workspace& workspace) {
      layer.weight_update.queue(stream, workspace, inputs_of(index, features), layer.gradient.data(),
                                weight_result(layer));
    };
    beside(kRest, [&](Stream& stream, Workspace&) {
      sum_columns<Format>(layer.gradient.data(), batch_, layer.out, parts_,
                          bias_sums_.data() + (layer.bias - first_bias_), biases_, stream);
    });
    // The chain reads copies, or the masters change behind it.
    const bool at_once = k16Bits || has_slots();
    if (at_once) beside(kWeights, end_weight_gradient);
    if (index > 0) {
      Layer& below = layers_[index - 1];
      const Product& product = plan_.masks_in_product ? layer.masked_input_gradient : layer.input_gradient;
      product.queue(stream_, main_workspace_, product_weight(layer), layer.gradient.data(),
                    input_gradient_result(below));
      if (!is_relu())
        pass_back<Format>(activation_, static_cast<const float*>(input_gradient_result(below)),
                          kept_of(below), below.gradient.data(), batch_, below.out, stream_);
      else if (!plan_.masks_in_product)
        apply_mask<Format>(below.gradient.data(), below.hidden.data(), batch_, below.out, stream_);
    }
    if (!at_once) beside(kWeights, end_weight_gradient);
    if (k16Bits && !has_slots())
      beside(kWeights, [&](Stream& stream, Workspace&) { round_weight(layer, stream); });
  }

  enum Side { kWeights = 0, kRest = 1 };
  /// Queues `work` off the chain, after what the chain has queued so far.
  template <class Work>
  void beside(Side side, Work&& work) {
    if (plan_.side_streams == 0) return work(stream_, main_workspace_);
    const std::size_t which = plan_.side_streams == 1 ? 0 : side;
    chain_reached_.record(stream_);
    chain_reached_.hold(sides_[which]);
    work(sides_[which], side_workspace_);  // products run on the side of the weights alone
  }
  void join() {
    for (int side = 0; side < plan_.side_streams; ++side) {
      side_done_.record(sides_[side]);
      side_done_.hold(stream_);
    }
  }

  const std::vector<int> widths_;
  const std::int64_t batch_, batches_;
  const Activation activation_;
  const Loss loss_;
  const Optimizer optimizer_;
  const float learning_rate_, loss_scale_;

  Stream stream_, sides_[2];
  Event begin_, end_, chain_reached_{Event::Kind::kOrder}, side_done_{Event::Kind::kOrder};
  Context context_;
  Workspace main_workspace_, side_workspace_;

  std::vector<Layer> layers_;
  layered::TrainingData<Format> data_;  // batches * batch samples
  DeviceBuffer<Value> gathered_;        // [steps_per_graph, batch, padded inputs]
  DeviceBuffer<float> targets_;         // [batches * batch, outputs]; none with cross-entropy
  std::int64_t first_bias_ = 0,
               biases_ = 0;  // where they begin in the buffers of parameters, and how many values they are
  DeviceBuffer<float> masters_;    // weights and biases of all layers; padding is zero and stays zero
  DeviceBuffer<Value> copies_;     // as they enter products; 16-bit formats only
  DeviceBuffer<float> gradients_;  // with slots; like the slots as the masters
  std::vector<DeviceBuffer<float>> slots_;
  DeviceBuffer<rules::UpdateFactors> factors_;  // of the step, where there are slots
  DeviceBuffer<float> unrounded_;  // [batch, width] of one layer at a time; 16-bit formats, not ReLU
  DeviceBuffer<float> bias_sums_;  // [parts, biases]
  DeviceBuffer<float> row_losses_;
  KeptLosses losses_;
  DeviceBuffer<layered::StepState> state_;
  int parts_ = 1;
  bool masks_possible_ = false, graph_per_batch_ = false;
  std::int64_t steps_per_graph_ = 1;
  CublasltPlan plan_;
  std::string measured_;  // step times of all plans

  Graph one_step_, many_steps_;
  std::vector<Graph> batch_graphs_;
  std::int64_t next_step_ = 0;  // what the device's counter says
};

}  // namespace

std::optional<std::string> cublaslt_unavailable(int device) {
  if (auto reason = device_missing(device)) return reason;
  std::string missing;
  if (find_library(&missing) == nullptr) return missing;
  return std::nullopt;
}

std::unique_ptr<Trainer> make_cublaslt_trainer(const Workload& workload, Precision precision,
                                               const DatasetView& data, const Parameters& initial, int device,
                                               std::optional<CublasltPlan> plan) {
  validate(workload);
  if (const auto reason = cublaslt_unavailable(device)) throw UnsupportedError("cublaslt-graph: " + *reason);
  require_data_for(workload, data, "cublaslt-graph");
  use_device(device);
  switch (precision) {
    case Precision::kFp32:
      return std::make_unique<CublasltTrainer<layered::Fp32>>(workload, data, initial, plan);
    case Precision::kTf32:
      return std::make_unique<CublasltTrainer<layered::Tf32>>(workload, data, initial, plan);
    case Precision::kFp16:
      return std::make_unique<CublasltTrainer<layered::Fp16>>(workload, data, initial, plan);
    case Precision::kBf16:
      return std::make_unique<CublasltTrainer<layered::Bf16>>(workload, data, initial, plan);
  }
  throw std::logic_error("make_cublaslt_trainer: not a Precision");
}

}  // namespace headroom
