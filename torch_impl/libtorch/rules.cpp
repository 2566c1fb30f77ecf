#include "libtorch/rules.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

namespace headroom::libtorch {
namespace {

void push_activation(torch::nn::Sequential& network, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return network->push_back(torch::nn::ReLU());
    case Activation::kTanh:
      return network->push_back(torch::nn::Tanh());
    case Activation::kSilu:
      return network->push_back(torch::nn::SiLU());
    case Activation::kGelu:
      return network->push_back(torch::nn::GELU());
    case Activation::kElu:
      return network->push_back(torch::nn::ELU());
  }
  throw std::logic_error("push_activation: not an Activation");
}

}  // namespace

torch::nn::Sequential make_network(const Model& model) {
  torch::nn::Sequential network;
  for (std::size_t layer = 1; layer < model.widths.size(); ++layer) {
    if (layer > 1) push_activation(network, model.activation);
    network->push_back(torch::nn::Linear(model.widths[layer - 1], model.widths[layer]));
  }
  return network;
}

at::Tensor mean_loss(Loss loss, const at::Tensor& outputs, const at::Tensor& targets) {
  namespace F = torch::nn::functional;
  switch (loss) {
    case Loss::kCrossEntropy:
      return F::cross_entropy(outputs, targets);
    case Loss::kMeanSquaredError:
      return F::mse_loss(outputs, targets);
    case Loss::kBinaryCrossEntropy:
      return F::binary_cross_entropy_with_logits(outputs, targets);
  }
  throw std::logic_error("mean_loss: not a Loss");
}

bool counts_steps(const Optimizer& optimizer) { return optimizer.kind != Optimizer::Kind::kSgd; }

void fused_update(const Optimizer& optimizer, const Tensors& parameters, const Tensors& gradients,
                  const std::vector<Tensors>& slots, const at::Tensor& number,
                  const std::optional<at::Tensor>& gradient_scale) {
  if (optimizer.kind == Optimizer::Kind::kSgd) {
    at::_fused_sgd_(parameters, gradients, slots[0], /*weight_decay=*/0, optimizer.momentum,
                    optimizer.learning_rate, /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                    /*is_first_step=*/false, gradient_scale);
    return;
  }
  const Tensors numbers(parameters.size(), number);
  const auto update = [&](auto&& fused, double weight_decay) {
    fused(parameters, gradients, slots[0], slots[1], /*max_exp_avg_sqs=*/at::TensorList(), numbers,
          optimizer.learning_rate, optimizer.beta1, optimizer.beta2, weight_decay, optimizer.epsilon,
          /*amsgrad=*/false, /*maximize=*/false, gradient_scale);
  };
  if (optimizer.kind == Optimizer::Kind::kAdam)
    update([](auto&&... arguments) { at::_fused_adam_(arguments...); }, 0);
  else
    update([](auto&&... arguments) { at::_fused_adamw_(arguments...); }, optimizer.weight_decay);
}

}  // namespace headroom::libtorch
