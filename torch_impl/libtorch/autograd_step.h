// One training step through autograd, which the eager and the graph row share: what differs is who launches it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <optional>
#include <vector>

#include "core/workload.h"
#include "libtorch/rules.h"

namespace headroom::libtorch {

/// The contract's loss_scale(), at most 2^15: autocast sums bias gradients over the batch into fp16, which ends at
/// 65504. A scaler that searches would come down as far.
double autocast_loss_scale(Precision precision, int batch_size);

class AutogradStep {
 public:
  /// Parameters and slots are uninitialised until copied into. `scale` as in TorchTrainer.
  AutogradStep(const Workload& workload, Precision precision, double scale, at::Device device);

  /// Trains one step on features [batch, inputs] and targets as in mean_loss(); returns the loss before the update, on
  /// the device. `number` as in fused_update().
  at::Tensor operator()(const at::Tensor& features, const at::Tensor& targets, const at::Tensor& number);
  /// As in TorchTrainer.
  Tensors state_tensors(int part);

 private:
  at::Tensor loss_of(const at::Tensor& features, const at::Tensor& targets);
  void update(const at::Tensor& number);

  torch::nn::Sequential network_;
  at::Device device_;
  Loss loss_;
  Optimizer optimizer_;
  double scale_;
  std::vector<Tensors> slots_;
  std::optional<at::Tensor> gradient_scale_;  // where there are slots
  std::optional<at::ScalarType> autocast_type_;
};

}  // namespace headroom::libtorch
