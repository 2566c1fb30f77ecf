// The update is one foreach call: torch::optim::SGD launches a kernel for each tensor, and without momentum nothing
// else is left of it.
//
// fp16 uses the contract's static loss scale, capped, instead of a scaler that searches: a careful user's choice,
// cheaper, and it never skips a step. The learning rate takes the scale out again.
#include "libtorch/autograd_step.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <c10/core/GradMode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>

namespace headroom::libtorch {
namespace {

/// What `with torch.autocast(...)` is in Python; C++ has no name for it. Its end forgets the 16-bit copies of
/// the weights, which the update is about to change.
class Autocast {
 public:
  Autocast(at::DeviceType device, at::ScalarType type) : device_(device) {
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
};

/// Linear, ReLU, ..., Linear; its parameters() are in the order of the flat array.
torch::nn::Sequential make_network(const std::vector<int>& widths) {
  torch::nn::Sequential network;
  for (std::size_t layer = 1; layer < widths.size(); ++layer) {
    if (layer > 1) network->push_back(torch::nn::ReLU());
    network->push_back(torch::nn::Linear(widths[layer - 1], widths[layer]));
  }
  return network;
}

}  // namespace

double autocast_loss_scale(Precision precision, int batch_size) {
  return std::min(loss_scale(precision, batch_size), 32768.0);
}

AutogradStep::AutogradStep(const Workload& workload, Precision precision, double scale, at::Device device)
    : network_(make_network(workload.model.widths)),
      device_(device),
      scale_(scale),
      learning_rate_(workload.optimizer.learning_rate / scale) {
  network_->to(device);
  if (precision == Precision::kFp16) autocast_type_ = at::kHalf;
  if (precision == Precision::kBf16) autocast_type_ = at::kBFloat16;
}

at::Tensor AutogradStep::operator()(const at::Tensor& features, const at::Tensor& labels) {
  network_->zero_grad(/*set_to_none=*/true);
  at::Tensor loss;
  if (autocast_type_) {
    const Autocast autocast(device_.type(), *autocast_type_);
    loss = mean_loss(features, labels);
  } else {
    loss = mean_loss(features, labels);
  }
  (scale_ == 1 ? loss : loss * scale_).backward();
  update();
  return loss.detach();
}

at::Tensor AutogradStep::mean_loss(const at::Tensor& features, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(network_->forward(features), labels);
}

void AutogradStep::update() {
  const c10::AutoGradMode no_gradient(false);
  const std::vector<at::Tensor> parameters = network_->parameters();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  at::_foreach_add_(parameters, gradients, -learning_rate_);
}

}  // namespace headroom::libtorch
