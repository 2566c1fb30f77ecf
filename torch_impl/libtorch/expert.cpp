// No autograd: products with fused epilogues into buffers that stay, and the update of the weights as the last
// instruction of the weight gradient's product (W = 1 * W - learning_rate * d^T * x, summed and stored in fp32).
//
// The precision contract is kept to the letter. In fp16 and bf16 that costs what the autocast rows do not pay:
// PyTorch's fused bias is a 16-bit one, so the forward product starts from an fp32 bias that was written into its
// result beforehand, and one more operation applies ReLU and rounds. A bf16 weight is rounded with ties away from
// zero, which no conversion of PyTorch's does by itself: that takes one more pass over the weights.
//
// With slots the products of gradients end in a gradient or, as a momentum is a sum of gradients, in the momentum itself. Parameters,
// gradients and slots of all layers lie in flat arrays of one order, so that one operation updates the weights of the network behind
// the last product. PyTorch's fused kernels would leave most of the GPU idle on a small one: they are given pieces of the arrays.
//
// ReLU is the end of a forward product, and its derivative one operation on the way back. Other activations are an operation of
// their own. In 16 bits their slope is made beside the chain, from what the contract keeps, and in fp32, so that the chain has one
// multiplication that rounds once.
//
// Weight gradients, bias gradients and losses wait for nothing that the chain of activations and their gradients
// needs, so they may run on side streams. Whether that is faster depends on the shape, and so does which library
// multiplies: the constructor captures every combination and keeps the fastest.
//
// All widths are padded to multiples of 8, the alignment of the tensor cores' loads: padded weights and hidden
// values are zero and stay zero, padded classes have a bias that no softmax sees.
#include "libtorch/expert.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/_addmm_activation.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/version.h>

#include <algorithm>

#include "core/training_rules.h"
#include "libtorch/graph_trainer.h"
#include "libtorch/rules.h"

namespace headroom::libtorch {
namespace {

constexpr bool kHasMixedAddmm = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9;
constexpr std::int64_t kAlignment = 8;
constexpr double kBiasOfNoClass = -1e30;
constexpr std::int64_t kManyValues = std::int64_t{1} << 20;
constexpr std::int64_t kManyLosses = 4096;
constexpr std::int64_t kPlaceAlignment = 128;  // values; 256 bytes in 16 bits, which products ask for
constexpr std::int64_t kLeastPiece = 4096;     // two rounds of a fused kernel's thread block

std::int64_t rounded_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }
std::int64_t padded(std::int64_t width) { return rounded_up(width, kAlignment); }

/// out = beta * out + alpha * a * b, in fp32 whatever a and b are; with a beta of 0 out is not read.
void product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double beta, double alpha) {
  if (!out.is_cuda()) {
    // The CPU's library adds the terms to the result one after another, each time rounded to a master's precision.
    if (beta == 0)
      at::mm_out(out, a, b).mul_(alpha);
    else
      out.mul_(beta).add_(at::mm(a, b), alpha);
    return;
  }
  if (a.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b, beta, alpha);
    return;
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  at::addmm_out(out, out, a, b, at::kFloat, beta, alpha);
#else
  throw std::logic_error("product: 16-bit inputs");
#endif
}

/// out = the activation of z, both fp32; they may be the same.
void activate_to(Activation activation, at::Tensor out, const at::Tensor& z) {
  switch (activation) {
    case Activation::kRelu:
      at::threshold_out(out, z, 0, 0);
      return;
    case Activation::kTanh:
      at::tanh_out(out, z);
      return;
    case Activation::kSilu:
      at::silu_out(out, z);
      return;
    case Activation::kGelu:
      at::gelu_out(out, z);
      return;
    case Activation::kElu:
      at::elu_out(out, z);
      return;
  }
}

/// out = gradient times the slope, both fp32. `kept` as in rules::slope().
void pass_back_to(Activation activation, at::Tensor out, const at::Tensor& gradient, const at::Tensor& kept) {
  switch (activation) {
    case Activation::kRelu:
      at::threshold_backward_out(out, gradient, kept, 0);
      return;
    case Activation::kTanh:
      at::tanh_backward_out(out, gradient, kept);
      return;
    case Activation::kSilu:
      at::silu_backward_out(out, gradient, kept);
      return;
    case Activation::kGelu:
      at::gelu_backward_out(out, gradient, kept);
      return;
    case Activation::kElu:
      at::elu_backward_out(out, gradient, 1, 1, 1, /*is_result=*/true, kept);
      return;
  }
}

/// How the captured step is laid out; the result is the same.
struct Plan {
  int side_streams;  // 0, 1 (everything off the chain) or 2 (bias gradients and losses apart)
  at::BlasBackend library;
};

const char* name_of(at::BlasBackend library) {
  return library == at::BlasBackend::Cublaslt ? "cuBLASLt" : "cuBLAS";
}

/// Where a tensor lies in the flat arrays.
struct Place {
  std::int64_t begin = 0, size = 0;
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

struct Layer {
  std::int64_t in = 0, out = 0;  // as the workload has them
  Place weight_place, bias_place;
  at::Tensor weight;          // [padded out, padded in] fp32
  at::Tensor bias;            // [padded out] fp32
  at::Tensor product_weight;  // what products read: the weight, or its 16-bit copy
  at::Tensor weight_bits;     // bf16: the copy's roundings as int32 [padded out, padded in]
  at::Tensor sums;  // [batch, padded out] fp32, bias included; 16 bits, the last layer, or slopes of sums
  at::Tensor activations;  // [batch, padded out]; not of the last layer
  at::Tensor slope;        // [batch, padded out] fp32; 16 bits, not ReLU, not of the last layer
  at::Tensor gradient;     // [batch, padded out], of the sums
  at::Tensor
      unmasked;  // [batch, padded out], gradient before it is multiplied by the slope; not of the last layer
  at::cuda::CUDAEvent slope_done;
};

class ExpertTrainer : public GraphTrainer {
 public:
  ExpertTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                const Parameters& initial, int device_index)
      : GraphTrainer(workload, precision, data, device_index, padded(workload.inputs()),
                     padded(workload.outputs()), loss_scale(precision, workload.batch_size)),
        layers_(static_cast<std::size_t>(workload.layers())),
        gradient_factor_(scale() / workload.batch_size) {
    if (workload.loss != Loss::kCrossEntropy) gradient_factor_ /= workload.outputs();
    if (workload.loss == Loss::kMeanSquaredError) gradient_factor_ *= 2;
    const c10::AutoGradMode no_gradient(false);
    place_layers();
    allocate();
    start_from(initial);
    if (device().is_cuda()) choose_plan(initial);
  }

  std::string note() override {
    if (!device().is_cuda()) return "no graph";
    std::string text = graph_note() + ", products by " + name_of(plan_.library) + ", " +
                       std::to_string(plan_.side_streams) + " side streams (of 0, 1, 2:" + measured_ + " us)";
    return scale() == 1 ? text : text + ", " + scale_note();
  }

 private:
  bool is_16_bit() const { return precision() == Precision::kFp16 || precision() == Precision::kBf16; }
  const Optimizer& optimizer() const { return workload().optimizer; }
  bool has_slots() const { return optimizer().slots() > 0; }
  Activation activation() const { return workload().model.activation; }
  bool is_relu() const { return activation() == Activation::kRelu; }

  /// Weights of all layers, then biases.
  void place_layers() {
    const auto place = [&](std::int64_t size) {
      const Place result{flat_values_, size};
      flat_values_ = rounded_up(flat_values_ + size, kPlaceAlignment);
      return result;
    };
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      layer.in = workload().model.widths[index], layer.out = workload().model.widths[index + 1];
      layer.weight_place = place(padded(layer.out) * padded(layer.in));
    }
    weight_values_ = flat_values_;
    for (Layer& layer : layers_) layer.bias_place = place(padded(layer.out));
  }
  static at::Tensor weight_in(const at::Tensor& flat, const Layer& layer) {
    return layer.weight_place.of(flat).view({padded(layer.out), padded(layer.in)});
  }

  void allocate() {
    const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device());
    const auto own = fp32.dtype(precision() == Precision::kFp16   ? at::kHalf
                                : precision() == Precision::kBf16 ? at::kBFloat16
                                                                  : at::kFloat);
    const std::int64_t batch = workload().batch_size;
    const bool slope_of_sums = !rules::slope_is_of_output(activation());
    for (int part = 0; part <= optimizer().slots(); ++part) state_.push_back(at::zeros({flat_values_}, fp32));
    if (counts_steps(optimizer())) gradients_ = at::zeros({flat_values_}, fp32);
    if (is_16_bit()) copies_ = at::zeros({weight_values_}, own);
    std::int64_t largest = 0, widest = 0;
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      const std::int64_t out = padded(layer.out);
      const bool last = index + 1 == layers_.size();
      layer.weight = weight_in(state_[0], layer);
      layer.bias = layer.bias_place.of(state_[0]);
      layer.product_weight = is_16_bit() ? weight_in(copies_, layer) : layer.weight;
      if (is_16_bit() || last || slope_of_sums) layer.sums = at::zeros({batch, out}, fp32);
      layer.gradient = at::empty({batch, out}, own);
      largest = std::max(largest, layer.weight.numel());
      if (last) continue;
      layer.activations = at::empty({batch, out}, own);
      layer.unmasked = at::empty({batch, out}, is_relu() ? own : fp32);
      if (is_16_bit() && !is_relu()) layer.slope = at::empty({batch, out}, fp32);
      widest = std::max(widest, out);
    }
    if (precision() == Precision::kBf16) {
      // Without slots layers take turns.
      bits_ = at::empty({has_slots() ? weight_values_ : largest}, fp32.dtype(at::kInt));
      for (Layer& layer : layers_)
        layer.weight_bits = has_slots() ? weight_in(bits_, layer)
                                        : bits_.narrow(0, 0, layer.weight.numel()).view(layer.weight.sizes());
    }
    if (is_16_bit() && slope_of_sums) {
      activated_ = at::empty({batch * widest}, fp32);
      rounded_sums_ = at::empty({batch * widest}, own);
    }
    const std::int64_t outputs = padded(workload().outputs());
    ones_ = at::ones({batch, 1}, own);
    one_ = at::ones({1, 1}, fp32);
    probabilities_ = at::empty({batch, outputs}, fp32);
    log_probabilities_ = at::empty({batch, outputs}, fp32);
    total_weight_ = at::empty({}, fp32);
    row_losses_ = at::empty({batch}, fp32);
    scaled_targets_ = at::empty({steps_per_graph(), batch, outputs}, fp32);
  }

  void choose_plan(const Parameters& initial) {
    double least = 0;
    Plan best{};
    measured_.clear();
    for (const at::BlasBackend library : {at::BlasBackend::Cublas, at::BlasBackend::Cublaslt}) {
      measured_ += std::string(measured_.empty() ? " " : ", ") + name_of(library);
      for (int side_streams = 0; side_streams <= kSideStreams; ++side_streams) {
        use({side_streams, library});
        const double seconds = measured_step_seconds();
        measured_ += " " + std::to_string(static_cast<long>(seconds * 1e6 + 0.5));
        if (least != 0 && !(seconds < least)) continue;
        least = seconds;
        best = plan_;
      }
    }
    use(best);
    start_from(initial);
  }

  void use(Plan plan) {
    plan_ = plan;
    at::globalContext().setBlasPreferredBackend(plan.library);
    sides_.clear();
    for (int side = 0; side < plan.side_streams; ++side) sides_.push_back(side_stream(side));
    capture();
  }

  // Work off the chain, after what the chain has queued so far. kWeights: weight gradients and roundings.
  enum Side { kWeights = 0, kRest = 1 };
  template <class Work>
  void beside(Side side, Work&& work) {
    if (sides_.empty()) return work();
    const c10::cuda::CUDAStream& stream = sides_[static_cast<std::size_t>(side) % sides_.size()];
    at::cuda::CUDAEvent reached;
    reached.record(at::cuda::getCurrentCUDAStream());
    reached.block(stream);
    const c10::cuda::CUDAStreamGuard guard(stream);
    work();
  }
  void join() {
    for (const c10::cuda::CUDAStream& stream : sides_) {
      at::cuda::CUDAEvent done;
      done.record(stream);
      done.block(at::cuda::getCurrentCUDAStream());
    }
  }

  void queue_steps(const at::Tensor& features, const at::Tensor& targets, const at::Tensor& losses) override {
    const c10::AutoGradMode no_gradient(false);
    const std::int64_t steps = features.size(0);
    at::Tensor scaled = scaled_targets_.narrow(0, 0, steps);
    if (workload().loss == Loss::kCrossEntropy)  // -factor where the label is
      scaled.zero_().scatter_(2, targets.unsqueeze(2), -gradient_factor_);
    else
      at::mul_out(scaled, targets, at::scalar_tensor(-gradient_factor_));
    for (std::int64_t step = 0; step < steps; ++step)
      queue_step(features.select(0, step), targets.select(0, step), scaled.select(0, step),
                 losses.select(0, step), number(step));
  }

  /// `scaled`: what of the outputs' gradient the targets alone make.
  void queue_step(const at::Tensor& features, const at::Tensor& targets, const at::Tensor& scaled,
                  at::Tensor loss, const at::Tensor& number) {
    for (std::size_t index = 0; index < layers_.size(); ++index) forward(index, inputs(index, features));
    queue_loss(targets, scaled, loss);
    for (std::size_t index = layers_.size(); index-- > 0;) backward(index, inputs(index, features), number);
    join();
    if (has_slots()) update_behind_products(number);
  }

  const at::Tensor& inputs(std::size_t index, const at::Tensor& features) const {
    return index == 0 ? features : layers_[index - 1].activations;
  }

  void forward(std::size_t index, const at::Tensor& inputs) {
    Layer& layer = layers_[index];
    const bool last = index + 1 == layers_.size();
    const at::Tensor weight = layer.product_weight.t();
    if (is_16_bit()) {
      product(layer.sums, inputs, weight, 1, 1);  // on top of the bias
      if (!last) activate_and_round(layer);
    } else if (last) {
      at::addmm_out(layer.sums, layer.bias, inputs, weight);
    } else if (is_relu()) {
      at::_addmm_activation_out(layer.activations, layer.bias, inputs, weight);
    } else {
      at::Tensor sums = layer.sums.defined() ? layer.sums : layer.activations;
      at::addmm_out(sums, layer.bias, inputs, weight);
      activate_to(activation(), layer.activations, sums);
    }
  }

  /// One operation where there is one: PyTorch's ReLU and tanh can round their results. But it only vectorizes operations that keep
  /// to a type or only convert, so many values are faster in two.
  void activate_and_round(Layer& layer) {
    const bool many = layer.sums.numel() >= kManyValues;
    if (is_relu() && many) {
      layer.activations.copy_(layer.sums);
      layer.activations.relu_();
      return;
    }
    if (is_relu() || (activation() == Activation::kTanh && !many)) {
      activate_to(activation(), layer.activations, layer.sums);
    } else {
      at::Tensor activated = layer.sums;
      if (activated_.defined()) activated = activated_.narrow(0, 0, layer.sums.numel()).view_as(layer.sums);
      activate_to(activation(), activated, layer.sums);
      layer.activations.copy_(activated);
    }
    if (!is_relu()) beside(kRest, [&] { make_slope(layer); });
  }

  void make_slope(Layer& layer) {
    at::Tensor kept = layer.activations;
    if (rounded_sums_.defined()) {
      kept = rounded_sums_.narrow(0, 0, layer.sums.numel()).view_as(layer.sums);
      kept.copy_(layer.sums);
    }
    pass_back_to(activation(), layer.slope, one_.expand_as(layer.slope), kept);
    if (!sides_.empty()) layer.slope_done.record(at::cuda::getCurrentCUDAStream());
  }

  void queue_loss(const at::Tensor& targets, const at::Tensor& scaled, at::Tensor loss) {
    Layer& last = layers_.back();
    const auto outputs = [&](const at::Tensor& all) { return all.narrow(1, 0, last.out); };
    switch (workload().loss) {
      case Loss::kCrossEntropy:
        at::_softmax_out(probabilities_, last.sums, 1, /*half_to_float=*/false);
        beside(kRest, [&] {
          at::_log_softmax_out(log_probabilities_, last.sums, 1, /*half_to_float=*/false);
          mean_cross_entropy(targets, loss);
        });
        at::add_out(last.gradient, scaled, probabilities_, gradient_factor_);
        return;
      case Loss::kMeanSquaredError:
        beside(kRest, [&] { at::mse_loss_out(loss, outputs(last.sums), outputs(targets)); });
        at::add_out(last.gradient, scaled, last.sums, gradient_factor_);
        return;
      case Loss::kBinaryCrossEntropy:
        beside(kRest, [&] {
          loss.copy_(at::binary_cross_entropy_with_logits(outputs(last.sums), outputs(targets)));
        });
        at::sigmoid_out(probabilities_, last.sums);
        at::add_out(last.gradient, scaled, probabilities_, gradient_factor_);
        return;
    }
  }

  /// PyTorch adds a batch's losses up in one thread block, which takes longer than a step where there are many.
  void mean_cross_entropy(const at::Tensor& labels, at::Tensor loss) {
    const bool many = labels.numel() >= kManyLosses;
    at::Tensor result = many ? row_losses_ : loss;
    at::nll_loss_forward_out(result, total_weight_, log_probabilities_, labels, {},
                             many ? at::Reduction::None : at::Reduction::Mean, /*ignore_index=*/-100);
    if (many) at::mean_out(loss, row_losses_, at::OptionalIntArrayRef());
  }

  void backward(std::size_t index, const at::Tensor& inputs, const at::Tensor& number) {
    Layer& layer = layers_[index];
    const at::Tensor across = layer.gradient.t();
    const auto weight_gradient = [&] { end_product(&Layer::weight_place, layer, across, inputs); };
    // The chain reads copies, or the masters change behind it: then they may be updated as soon as there is a gradient.
    const bool at_once = is_16_bit() || has_slots();
    beside(kRest, [&] {
      end_product(&Layer::bias_place, layer, across, ones_);
      if (is_16_bit() && has_slots()) update_slots_of(layer.bias_place.begin, layer.out, number);
      start_sums(layer);
    });
    if (at_once) beside(kWeights, weight_gradient);
    if (index > 0) input_gradient(layer, layers_[index - 1]);
    if (!at_once) beside(kWeights, weight_gradient);
    if (is_16_bit() && !has_slots()) beside(kWeights, [&] { round_weight(layer); });
  }

  /// The gradient of a weight or bias, a * b, to where it goes: the parameter itself, the momentum, or the gradients.
  void end_product(Place Layer::* which, const Layer& layer, const at::Tensor& a, const at::Tensor& b) {
    const auto target = [&](const at::Tensor& flat) {
      return (layer.*which).of(flat).view({a.size(0), b.size(1)});
    };
    if (!has_slots())
      product(target(state_[0]), a, b, 1, -optimizer().learning_rate / scale());
    else if (gradients_.defined())
      product(target(gradients_), a, b, 0, 1 / scale());
    else
      product(target(state_[1]), a, b, optimizer().momentum, 1 / scale());
  }

  void input_gradient(Layer& layer, Layer& below) {
    if (is_relu()) {
      at::mm_out(below.unmasked, layer.gradient, layer.product_weight);
      at::threshold_backward_out(below.gradient, below.unmasked, below.activations, 0);
      return;
    }
    product(below.unmasked, layer.gradient, layer.product_weight, 0, 1);
    if (is_16_bit()) {
      if (!sides_.empty()) below.slope_done.block(at::cuda::getCurrentCUDAStream());
      at::mul_out(below.gradient, below.unmasked, below.slope);
    } else {
      pass_back_to(activation(), below.gradient, below.unmasked,
                   below.sums.defined() ? below.sums : below.activations);
    }
  }

  /// Weights, and what biases have not been updated beside the chain.
  void update_behind_products(const at::Tensor& number) {
    // Not the padding of the last bias: a weight decay would let it grow back to 0.
    const std::int64_t end =
        is_16_bit() ? weight_values_ : layers_.back().bias_place.begin + layers_.back().out;
    update_slots_of(0, end, number);
    round_weights();
  }

  /// Of `count` flat values from `begin` on: what their new momentum, or their gradient, makes of them.
  void update_slots_of(std::int64_t begin, std::int64_t count, const at::Tensor& number) {
    if (!gradients_.defined()) {
      state_[0].narrow(0, begin, count).add_(state_[1].narrow(0, begin, count), -optimizer().learning_rate);
      return;
    }
    // As many pieces as a launch takes, unless PyTorch itself makes more of them.
    const std::int64_t piece =
        count >= kFusedTensors * kFusedValues
            ? count
            : std::max(kLeastPiece, rounded_up((count + kFusedTensors - 1) / kFusedTensors, kAlignment));
    const auto pieces = [&](const at::Tensor& flat) {
      Tensors result;
      for (std::int64_t at = 0; at < count; at += piece)
        result.push_back(flat.narrow(0, begin + at, std::min(piece, count - at)));
      return result;
    };
    fused_update(optimizer(), pieces(state_[0]), pieces(gradients_), {pieces(state_[1]), pieces(state_[2])},
                 number);
  }

  /// 16 bits: the next product of the layer adds to its bias.
  void start_sums(Layer& layer) {
    if (is_16_bit()) layer.sums.copy_(layer.bias.expand_as(layer.sums));
  }

  void round_weight(Layer& layer) { round_to(layer.product_weight, layer.weight_bits, layer.weight); }
  void round_weights() { round_to(copies_, bits_, state_[0].narrow(0, 0, weight_values_)); }
  void round_to(at::Tensor copy, at::Tensor bits, const at::Tensor& masters) {
    if (precision() == Precision::kFp16) copy.copy_(masters);
    if (precision() != Precision::kBf16) return;
    // With its lowest bit set no value is halfway any more, and one that was goes away from zero.
    at::bitwise_or_out(bits, masters.view(at::kInt),
                       at::scalar_tensor(1, at::TensorOptions().dtype(at::kInt)));
    copy.copy_(bits.view(at::kFloat));
  }

  void clear(int part) override {
    state_[static_cast<std::size_t>(part)].zero_();
    const Layer& last = layers_.back();
    if (part == 0 && workload().loss != Loss::kMeanSquaredError)
      last.bias.narrow(0, last.out, last.bias.numel() - last.out).fill_(kBiasOfNoClass);
  }

  void parameters_changed() override {
    for (Layer& layer : layers_) {
      round_weight(layer);
      start_sums(layer);
    }
  }

  std::vector<at::Tensor> state_tensors(int part) override {
    const at::Tensor& flat = state_[static_cast<std::size_t>(part)];
    std::vector<at::Tensor> tensors;
    for (const Layer& layer : layers_) {
      tensors.push_back(weight_in(flat, layer).narrow(0, 0, layer.out).narrow(1, 0, layer.in));
      tensors.push_back(layer.bias_place.of(flat).narrow(0, 0, layer.out));
    }
    return tensors;
  }

  std::vector<Layer> layers_;
  std::int64_t weight_values_ = 0, flat_values_ = 0;  // of all weights, and of biases too
  double
      gradient_factor_;  // of the loss's gradient: loss scale / batch, with what the loss's own derivative has
  Tensors state_;        // parameters and slots, each flat
  at::Tensor gradients_;                 // flat; adam and adamw
  at::Tensor copies_;                    // of the weights as products read them, flat; 16 bits
  at::Tensor bits_;                      // bf16: their roundings as int32, of all layers or of one at a time
  at::Tensor ones_;                      // [batch, 1]
  at::Tensor one_;                       // [1, 1] fp32
  at::Tensor activated_, rounded_sums_;  // of one layer at a time; 16 bits, where the slope is of the sums
  at::Tensor probabilities_;             // [batch, padded outputs]
  at::Tensor log_probabilities_;         // [batch, padded outputs]
  at::Tensor row_losses_;                // [batch]
  at::Tensor total_weight_;              // an output of the loss that nobody reads
  at::Tensor scaled_targets_;            // [steps_per_graph, batch, padded outputs]
  Plan plan_{};
  std::string measured_;  // step times of all plans
  std::vector<c10::cuda::CUDAStream> sides_;
};

}  // namespace

std::optional<std::string> expert_unavailable(Precision precision) {
  if (kHasMixedAddmm || precision == Precision::kFp32 || precision == Precision::kTf32) return std::nullopt;
  return "PyTorch " TORCH_VERSION " has no product of 16-bit inputs that adds to fp32; 2.9 has";
}

std::unique_ptr<Trainer> make_expert(const Workload& workload, Precision precision, const DatasetView& data,
                                     const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<ExpertTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
