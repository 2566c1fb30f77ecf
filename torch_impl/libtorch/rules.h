// What is trained, as PyTorch has it: activations and losses by their modules and functions, optimizers by their fused kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <optional>
#include <vector>

#include "core/workload.h"

namespace headroom::libtorch {

/// Linear, activation, ..., Linear; its parameters() are in the order of the flat array.
torch::nn::Sequential make_network(const Model& model);

/// The mean loss of outputs [batch, outputs] against int64 labels [batch] or fp32 targets [batch, outputs].
at::Tensor mean_loss(Loss loss, const at::Tensor& outputs, const at::Tensor& targets);

/// Whether the update needs the step's number.
bool counts_steps(const Optimizer& optimizer);

using Tensors = std::vector<at::Tensor>;

/// One step of an optimizer with slots: for each parameter its gradient and its slots, all fp32. `number`: of the step,
/// counted from 1, one fp32 on the device; read if counts_steps(). `gradient_scale`: one fp32 on the device that the gradients are
/// divided by.
///
/// PyTorch's fused kernels take up to 36 tensors a launch, and give a thread block up to 65536 values of one of them.
void fused_update(const Optimizer& optimizer, const Tensors& parameters, const Tensors& gradients,
                  const std::vector<Tensors>& slots, const at::Tensor& number,
                  const std::optional<at::Tensor>& gradient_scale = std::nullopt);
inline constexpr std::int64_t kFusedTensors = 36, kFusedValues = 65536;

}  // namespace headroom::libtorch
