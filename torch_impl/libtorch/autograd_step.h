// One training step through autograd, which the eager and the graph row share: what differs is who launches it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/workload.h"

namespace headroom::libtorch {

/// The contract's loss_scale(), at most 2^15: autocast sums bias gradients over the batch into fp16, which ends at
/// 65504. A scaler that searches would come down as far.
double autocast_loss_scale(Precision precision, int batch_size);

class AutogradStep {
 public:
  /// Parameters are uninitialised until copied into. `scale` as in TorchTrainer.
  AutogradStep(const Workload& workload, Precision precision, double scale, at::Device device);

  /// Trains one step on features [batch, inputs] and labels [batch]; returns the loss before the update, on
  /// the device.
  at::Tensor operator()(const at::Tensor& features, const at::Tensor& labels);
  /// In the order of the flat array.
  std::vector<at::Tensor> parameters() { return network_->parameters(); }

 private:
  at::Tensor mean_loss(const at::Tensor& features, const at::Tensor& labels);
  void update();

  torch::nn::Sequential network_;
  at::Device device_;
  double scale_, learning_rate_;
  std::optional<at::ScalarType> autocast_type_;
};

}  // namespace headroom::libtorch
