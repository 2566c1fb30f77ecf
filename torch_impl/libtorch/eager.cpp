// fp16 uses the contract's static loss scale instead of a scaler that searches: a careful user's choice,
// cheaper, and it never skips a step. The learning rate takes the scale out again.
#include "libtorch/eager.h"

#include <ATen/autocast_mode.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "libtorch/torch_trainer.h"

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

class EagerTrainer : public TorchTrainer {
 public:
  EagerTrainer(const Workload& workload, Precision precision, const DatasetView& data,
               const Parameters& initial, int device_index)
      : TorchTrainer(workload, precision, data, device_index), network_(make_network(workload.widths)) {
    network_->to(device());
    set_parameters(initial);
    optimizer_ = std::make_unique<torch::optim::SGD>(
        network_->parameters(), torch::optim::SGDOptions(workload.optimizer.learning_rate / scale()));
    if (precision == Precision::kFp16) autocast_type_ = at::kHalf;
    if (precision == Precision::kBf16) autocast_type_ = at::kBFloat16;
  }

  std::string note() override {
    return scale() == 1 ? std::string() : "static loss scale " + std::to_string(static_cast<long>(scale()));
  }

 private:
  void run_steps(std::int64_t first_step, std::int64_t count) override {
    for (std::int64_t step = first_step; step < first_step + count; ++step) {
      const torch::Tensor loss = train_step(features(step), labels(step));
      loss_slot(step).copy_(loss);
    }
  }

  /// features [batch, inputs], labels [batch]; returns the loss before the update, on the device.
  torch::Tensor train_step(const torch::Tensor& features, const torch::Tensor& labels) {
    optimizer_->zero_grad(/*set_to_none=*/true);
    torch::Tensor loss;
    if (autocast_type_) {
      const Autocast autocast(device().type(), *autocast_type_);
      loss = mean_loss(features, labels);
    } else {
      loss = mean_loss(features, labels);
    }
    (scale() == 1 ? loss : loss * scale()).backward();
    optimizer_->step();
    return loss.detach();
  }

  torch::Tensor mean_loss(const torch::Tensor& features, const torch::Tensor& labels) {
    return torch::nn::functional::cross_entropy(network_->forward(features), labels);
  }

  std::vector<at::Tensor> parameter_tensors() override { return network_->parameters(); }

  torch::nn::Sequential network_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::optional<at::ScalarType> autocast_type_;
};

}  // namespace

std::unique_ptr<Trainer> make_eager(const Workload& workload, Precision precision, const DatasetView& data,
                                    const Parameters& initial, int device) {
  return with_errors_of_ours(
      [&] { return std::make_unique<EagerTrainer>(workload, precision, data, initial, device); });
}

}  // namespace headroom::libtorch
