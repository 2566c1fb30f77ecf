"""What is trained, as PyTorch has it: a table each of activations and losses, and the optimizers' updates.

An update is here three times, as each way to run a step wants another form of it: torch.optim's for the rows
that run it as their users do; formulas over one tensor, from which Inductor makes the end of that tensor's
gradient; and formulas over all tensors in place, from which it makes few kernels.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from headroom_protocol.workload import Optimizer
from torch import nn

Tensors = list[torch.Tensor]

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU, "elu": nn.ELU}

# Of outputs [batch, outputs] and labels [batch] or targets [batch, outputs]; each is a mean.
LOSSES = {
    "cross-entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


def torch_optimizer(
    rule: Optimizer,
    parameters: Tensors,
    slots: list[Tensors],
    trained_steps: torch.Tensor,
    scale: float,
    options: Mapping[str, bool] | None = None,
) -> torch.optim.Optimizer:
    """torch.optim's, with these tensors as its state; `scale` is that of the gradients.

    trained_steps: [parameters], as torch.optim counts the steps for each of them; on the CPU if `options` (of
    torch.optim, for what has slots) are neither fused nor capturable.
    """
    if rule.kind == "sgd" and not rule.momentum:
        # Defaults: on CUDA they pick the multi-tensor ("foreach") update, which was as fast as "fused".
        return torch.optim.SGD(parameters, lr=rule.learning_rate / scale)
    # PyTorch's documentation calls fused the fastest, before foreach and one tensor after the other, and it
    # launches least: one kernel for all tensors. A measurement on a GPU is pending (suite trials).
    options = dict(options or {"fused": True, "capturable": parameters[0].is_cuda})
    if rule.kind == "sgd":
        options.pop("capturable", None)  # sgd always is
        optimizer = torch.optim.SGD(parameters, lr=rule.learning_rate, momentum=rule.momentum, **options)
    else:
        kind = torch.optim.AdamW if rule.kind == "adamw" else torch.optim.Adam
        optimizer = kind(
            parameters,
            lr=rule.learning_rate,
            betas=(rule.beta1, rule.beta2),
            eps=rule.epsilon,
            weight_decay=rule.weight_decay,
            **options,
        )
    if scale != 1.0 and options.get("fused"):
        # As torch.amp.GradScaler hands it to a fused optimizer, which divides in its own kernel.
        optimizer.grad_scale = torch.full((), scale, device=parameters[0].device)
    elif scale != 1.0:

        def unscale(*_) -> None:
            torch._foreach_mul_([parameter.grad for parameter in parameters], 1 / scale)

        optimizer.register_step_pre_hook(unscale)
    for index, parameter in enumerate(parameters):
        state = {name: slot[index] for name, slot in zip(rule.slots, slots, strict=True)}
        if rule.kind != "sgd":
            state["step"] = trained_steps[index]
        optimizer.state[parameter] = state
    return optimizer


def bias_corrections(rule: Optimizer, trained_steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """1 - beta^t of both betas, t = trained_steps + 1; fp32 powers would lose half their digits at t = 1."""
    t = trained_steps + 1
    return tuple(
        -torch.expm1(t * (math.log(beta) if beta else -math.inf)) for beta in (rule.beta1, rule.beta2)
    )


def step_factors(rule: Optimizer, trained_steps: torch.Tensor) -> list[torch.Tensor]:
    """What all parameters of a step share: adam's learning rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)."""
    if rule.kind == "sgd":
        return []
    bias1, bias2 = bias_corrections(rule, trained_steps)
    return [rule.learning_rate / bias1, bias2.rsqrt()]


def updated(
    rule: Optimizer,
    factors: list[torch.Tensor],
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    slots: Tensors,
) -> tuple[torch.Tensor, Tensors]:
    """One tensor and its slots behind a step with these step_factors(); nothing is changed in place."""
    if rule.kind == "sgd":
        if rule.momentum:
            gradient = rule.momentum * slots[0] + gradient
        return parameter - rule.learning_rate * gradient, [gradient for _ in slots]
    mean = rule.beta1 * slots[0] + (1 - rule.beta1) * gradient
    square = rule.beta2 * slots[1] + (1 - rule.beta2) * gradient * gradient
    rate, root_factor = factors
    root = square.sqrt() * root_factor + rule.epsilon
    kept = parameter * (1 - rule.learning_rate * rule.weight_decay) if rule.weight_decay else parameter
    return kept - rate * mean / root, [mean, square]


def update_in_place(
    rule: Optimizer,
    trained_steps: torch.Tensor,
    parameters: Tensors,
    gradients: Tensors,
    slots: list[Tensors],
) -> None:
    """All tensors, their slots and the count of steps."""
    if rule.kind == "sgd":
        if rule.momentum:
            torch._foreach_mul_(slots[0], rule.momentum)
            torch._foreach_add_(slots[0], gradients)
        torch._foreach_add_(parameters, slots[0] if rule.momentum else gradients, alpha=-rule.learning_rate)
        return
    means, squares = slots
    torch._foreach_mul_(means, rule.beta1)
    torch._foreach_add_(means, gradients, alpha=1 - rule.beta1)
    torch._foreach_mul_(squares, rule.beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - rule.beta2)
    bias1, bias2 = bias_corrections(rule, trained_steps)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, bias2.sqrt())
    torch._foreach_add_(roots, rule.epsilon)
    increments = torch._foreach_div(means, roots)
    torch._foreach_mul_(increments, -rule.learning_rate / bias1)
    if rule.weight_decay:
        torch._foreach_mul_(parameters, 1 - rule.learning_rate * rule.weight_decay)
    torch._foreach_add_(parameters, increments)
    trained_steps.add_(1)
