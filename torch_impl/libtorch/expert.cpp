// No autograd: products with fused epilogues into buffers that stay, and the update of the weights as the last
// instruction of the weight gradient's product (W = 1 * W - learning_rate * d^T * x, summed and stored in fp32).
//
// The precision contract is kept to the letter. In fp16 and bf16 that costs what the autocast rows do not pay:
// PyTorch's fused bias is a 16-bit one, so the forward product starts from an fp32 bias that was written into its
// result beforehand, and one more operation applies ReLU and rounds. A bf16 weight is rounded with ties away from
// zero, which no conversion of PyTorch's does by itself: that takes one more pass over the weights.
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
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/version.h>

#include <algorithm>

#include "libtorch/graph_trainer.h"

namespace headroom::libtorch {
namespace {

constexpr bool kHasMixedAddmm = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9;
constexpr std::int64_t kAlignment = 8;
constexpr double kBiasOfNoClass = -1e30;
constexpr std::int64_t kManyValues = std::int64_t{1} << 20;
constexpr std::int64_t kManyLosses = 4096;

std::int64_t padded(std::int64_t width) { return (width + kAlignment - 1) / kAlignment * kAlignment; }

/// out += alpha * a * b, in fp32 whatever a and b are.
void add_product(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double alpha) {
  if (!out.is_cuda()) {
    // The CPU's library adds the terms to the result one after another, each time rounded to a master's precision.
    out.add_(at::mm(a, b), alpha);
    return;
  }
  if (a.scalar_type() == at::kFloat) {
    at::addmm_out(out, out, a, b, 1, alpha);
    return;
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  at::addmm_out(out, out, a, b, at::kFloat, 1, alpha);
#else
  throw std::logic_error("add_product: 16-bit inputs");
#endif
}

/// How the captured step is laid out; the result is the same.
struct Plan {
  int side_streams;  // 0, 1 (everything off the chain) or 2 (bias gradients and losses apart)
  at::BlasBackend library;
};

const char* name_of(at::BlasBackend library) {
  return library == at::BlasBackend::Cublaslt ? "cuBLASLt" : "cuBLAS";
}

struct Layer {
  std::int64_t in = 0, out = 0;  // as the workload has them
  at::Tensor weight;             // [padded out, padded in] fp32
  at::Tensor bias;               // [padded out] fp32
  at::Tensor product_weight;     // what products read: the weight, or its 16-bit copy
  at::Tensor weight_bits;        // bf16: the copy's roundings as int32 [padded out, padded in], shared by all
  at::Tensor sums;               // [batch, padded out] fp32, bias included; 16-bit, or the last layer
  at::Tensor activations;        // [batch, padded out]; not of the last layer
  at::Tensor gradient;           // [batch, padded out], of the sums
  at::Tensor unmasked;           // [batch, padded out], gradient before ReLU's mask; not of the last layer
};

class ExpertTrainer : public GraphTrainer {
 public:
  ExpertTrainer(const Workload& workload, Precision precision, const DatasetView& data,
                const Parameters& initial, int device_index)
      : GraphTrainer(workload, precision, data, device_index, padded(workload.inputs()),
                     loss_scale(precision, workload.batch_size)),
        layers_(static_cast<std::size_t>(workload.layers())),
        update_factor_(-workload.optimizer.learning_rate / scale()),
        gradient_factor_(scale() / workload.batch_size) {
    const c10::AutoGradMode no_gradient(false);
    allocate();
    set_parameters(initial);
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

  void allocate() {
    const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device());
    const auto own = fp32.dtype(precision() == Precision::kFp16   ? at::kHalf
                                : precision() == Precision::kBf16 ? at::kBFloat16
                                                                  : at::kFloat);
    const std::int64_t batch = workload().batch_size;
    std::int64_t largest = 0;
    for (std::size_t index = 0; index < layers_.size(); ++index) {
      Layer& layer = layers_[index];
      layer.in = workload().model.widths[index], layer.out = workload().model.widths[index + 1];
      const std::int64_t in = padded(layer.in), out = padded(layer.out);
      const bool last = index + 1 == layers_.size();
      layer.weight = at::zeros({out, in}, fp32);
      layer.bias = at::zeros({out}, fp32);
      if (last) layer.bias.narrow(0, layer.out, out - layer.out).fill_(kBiasOfNoClass);
      layer.product_weight = is_16_bit() ? at::zeros({out, in}, own) : layer.weight;
      if (is_16_bit() || last) layer.sums = at::zeros({batch, out}, fp32);
      layer.gradient = at::empty({batch, out}, own);
      if (!last) {
        layer.activations = at::empty({batch, out}, own);
        layer.unmasked = at::empty({batch, out}, own);
      }
      largest = std::max(largest, out * in);
    }
    if (precision() == Precision::kBf16) {
      const at::Tensor bits = at::empty({largest}, fp32.dtype(at::kInt));
      for (Layer& layer : layers_)
        layer.weight_bits = bits.narrow(0, 0, layer.weight.numel()).view(layer.weight.sizes());
    }
    const std::int64_t classes = padded(workload().classes());
    ones_ = at::ones({batch, 1}, own);
    probabilities_ = at::empty({batch, classes}, fp32);
    log_probabilities_ = at::empty({batch, classes}, fp32);
    total_weight_ = at::empty({}, fp32);
    row_losses_ = at::empty({batch}, fp32);
    targets_ = at::empty({steps_per_graph(), batch, classes}, fp32);
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
    set_parameters(initial);
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

  void queue_steps(const at::Tensor& features, const at::Tensor& labels, const at::Tensor& losses) override {
    const c10::AutoGradMode no_gradient(false);
    const std::int64_t steps = features.size(0);
    at::Tensor targets =
        targets_.narrow(0, 0, steps);  // -factor where the label is: the other half of softmax's gradient
    targets.zero_().scatter_(2, labels.unsqueeze(2), -gradient_factor_);
    for (std::int64_t step = 0; step < steps; ++step)
      queue_step(features.select(0, step), labels.select(0, step), targets.select(0, step),
                 losses.select(0, step));
  }

  void queue_step(const at::Tensor& features, const at::Tensor& labels, const at::Tensor& targets,
                  at::Tensor loss) {
    for (std::size_t index = 0; index < layers_.size(); ++index) forward(index, inputs(index, features));

    Layer& last = layers_.back();
    at::_softmax_out(probabilities_, last.sums, 1, /*half_to_float=*/false);
    beside(kRest, [&] {
      at::_log_softmax_out(log_probabilities_, last.sums, 1, /*half_to_float=*/false);
      mean_loss(labels, loss);
    });
    at::add_out(last.gradient, targets, probabilities_, gradient_factor_);

    for (std::size_t index = layers_.size(); index-- > 0;) backward(index, inputs(index, features));
    join();
  }

  const at::Tensor& inputs(std::size_t index, const at::Tensor& features) const {
    return index == 0 ? features : layers_[index - 1].activations;
  }

  void forward(std::size_t index, const at::Tensor& inputs) {
    Layer& layer = layers_[index];
    const bool last = index + 1 == layers_.size();
    const at::Tensor weight = layer.product_weight.t();
    if (is_16_bit()) {
      add_product(layer.sums, inputs, weight, 1);  // on top of the bias
      if (!last) activate(layer);
    } else if (last) {
      at::addmm_out(layer.sums, layer.bias, inputs, weight);
    } else {
      at::_addmm_activation_out(layer.activations, layer.bias, inputs, weight);
    }
  }

  /// ReLU and rounding, in whichever order: one operation, but PyTorch only vectorizes those that keep to a type
  /// or only convert, so many values are faster in two.
  void activate(Layer& layer) {
    if (layer.sums.numel() < kManyValues) {
      at::threshold_out(layer.activations, layer.sums, 0, 0);
    } else {
      layer.activations.copy_(layer.sums);
      layer.activations.relu_();
    }
  }

  /// PyTorch adds a batch's losses up in one thread block, which takes longer than a step where there are many.
  void mean_loss(const at::Tensor& labels, at::Tensor loss) {
    const bool many = labels.numel() >= kManyLosses;
    at::Tensor result = many ? row_losses_ : loss;
    at::nll_loss_forward_out(result, total_weight_, log_probabilities_, labels, {},
                             many ? at::Reduction::None : at::Reduction::Mean, /*ignore_index=*/-100);
    if (many) at::mean_out(loss, row_losses_, at::OptionalIntArrayRef());
  }

  void backward(std::size_t index, const at::Tensor& inputs) {
    Layer& layer = layers_[index];
    const at::Tensor across = layer.gradient.t();
    const auto update_weight = [&] { add_product(layer.weight, across, inputs, update_factor_); };
    beside(kRest, [&] {
      add_product(layer.bias.unsqueeze(1), across, ones_, update_factor_);
      start_sums(layer);
    });
    // In 16 bits the chain reads copies, so the masters may change under it.
    if (is_16_bit()) beside(kWeights, update_weight);
    if (index > 0) {
      Layer& below = layers_[index - 1];
      at::mm_out(below.unmasked, layer.gradient, layer.product_weight);
      at::threshold_backward_out(below.gradient, below.unmasked, below.activations, 0);
    }
    beside(kWeights, [&] {
      if (is_16_bit())
        round_weight(layer);
      else
        update_weight();
    });
  }

  /// 16 bits: the next product of the layer adds to its bias.
  void start_sums(Layer& layer) {
    if (is_16_bit()) layer.sums.copy_(layer.bias.expand_as(layer.sums));
  }

  void round_weight(Layer& layer) {
    if (precision() == Precision::kFp16) layer.product_weight.copy_(layer.weight);
    if (precision() != Precision::kBf16) return;
    // With its lowest bit set no value is halfway any more, and one that was goes away from zero.
    at::bitwise_or_out(layer.weight_bits, layer.weight.view(at::kInt),
                       at::scalar_tensor(1, at::TensorOptions().dtype(at::kInt)));
    layer.product_weight.copy_(layer.weight_bits.view(at::kFloat));
  }

  void parameters_changed() override {
    for (Layer& layer : layers_) {
      round_weight(layer);
      start_sums(layer);
    }
  }

  std::vector<at::Tensor> parameter_tensors() override {
    std::vector<at::Tensor> tensors;
    for (const Layer& layer : layers_) {
      tensors.push_back(layer.weight.narrow(0, 0, layer.out).narrow(1, 0, layer.in));
      tensors.push_back(layer.bias.narrow(0, 0, layer.out));
    }
    return tensors;
  }

  std::vector<Layer> layers_;
  double update_factor_;          // of a weight gradient: - learning rate / loss scale
  double gradient_factor_;        // of the loss's gradient: loss scale / batch
  at::Tensor ones_;               // [batch, 1]
  at::Tensor probabilities_;      // [batch, padded classes]
  at::Tensor log_probabilities_;  // [batch, padded classes]
  at::Tensor row_losses_;         // [batch]
  at::Tensor total_weight_;       // an output of the loss that nobody reads
  at::Tensor targets_;            // [steps_per_graph, batch, padded classes]
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
