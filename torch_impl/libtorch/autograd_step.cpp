// The update is one foreach call without slots and a fused one with: torch::optim's classes launch kernels for each tensor, and
// count Adam's steps on the host, which a graph cannot follow.
//
// fp16 uses the contract's static loss scale, capped, instead of a scaler that searches: a careful user's choice,
// cheaper, and it never skips a step. The update takes the scale out again.
#include "libtorch/autograd_step.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

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

}  // namespace

double autocast_loss_scale(Precision precision, int batch_size) {
  return std::min(loss_scale(precision, batch_size), 32768.0);
}

AutogradStep::AutogradStep(const Workload& workload, Precision precision, double scale, at::Device device)
    : network_(make_network(workload.model)),
      device_(device),
      loss_(workload.loss),
      optimizer_(workload.optimizer),
      scale_(scale) {
  network_->to(device);
  for (int slot = 0; slot < optimizer_.slots(); ++slot) {
    Tensors& tensors = slots_.emplace_back();
    for (const at::Tensor& parameter : network_->parameters())
      tensors.push_back(at::empty_like(parameter.detach()));
  }
  if (!slots_.empty() && scale_ != 1)
    gradient_scale_ = at::full({}, scale_, at::TensorOptions().dtype(at::kFloat).device(device));
  if (precision == Precision::kFp16) autocast_type_ = at::kHalf;
  if (precision == Precision::kBf16) autocast_type_ = at::kBFloat16;
}

Tensors AutogradStep::state_tensors(int part) {
  return part == 0 ? network_->parameters() : slots_[static_cast<std::size_t>(part) - 1];
}

at::Tensor AutogradStep::operator()(const at::Tensor& features, const at::Tensor& targets,
                                    const at::Tensor& number) {
  network_->zero_grad(/*set_to_none=*/true);
  at::Tensor loss;
  if (autocast_type_) {
    const Autocast autocast(device_.type(), *autocast_type_);
    loss = loss_of(features, targets);
  } else {
    loss = loss_of(features, targets);
  }
  (scale_ == 1 ? loss : loss * scale_).backward();
  update(number);
  return loss.detach();
}

at::Tensor AutogradStep::loss_of(const at::Tensor& features, const at::Tensor& targets) {
  return mean_loss(loss_, network_->forward(features), targets);
}

void AutogradStep::update(const at::Tensor& number) {
  const c10::AutoGradMode no_gradient(false);
  const Tensors parameters = network_->parameters();
  Tensors gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  if (slots_.empty())
    at::_foreach_add_(parameters, gradients, -optimizer_.learning_rate / scale_);
  else
    fused_update(optimizer_, parameters, gradients, slots_, number, gradient_scale_);
}

}  // namespace headroom::libtorch
