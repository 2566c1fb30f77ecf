"""What is trained: a table each of activations, losses and optimizers; formulas as in bench/core/workload.h.

The backward pass is written by hand (network.py), since the precision contract names the places where it
rounds. So an activation says what its slope is taken from; a loss is a function that JAX differentiates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from headroom_protocol.workload import Optimizer


@dataclass(frozen=True)
class Activation:
    """`function` of a layer's sums; `backward(gradient, kept)` is the gradient times its slope; both fp32.

    `keeps`: what the slope is taken from, "output" (as stored, rounded) or "input" (the sums, rounded too).
    """

    function: Callable[[jax.Array], jax.Array]
    backward: Callable[[jax.Array, jax.Array], jax.Array]
    keeps: str


def silu_slope(sums: jax.Array) -> jax.Array:
    sigmoid = jax.nn.sigmoid(sums)
    return sigmoid * (1 + sums * (1 - sigmoid))


def normal_probability(values: jax.Array) -> jax.Array:
    """That a standard normal variable is below each; by erfc, as 1 + erf has no digits left far below 0."""
    return 0.5 * jax.lax.erfc(-values * math.sqrt(0.5))


def normal_density(values: jax.Array) -> jax.Array:
    return math.sqrt(0.5 / math.pi) * jnp.exp(-0.5 * values * values)


ACTIVATIONS = {
    "relu": Activation(
        function=lambda sums: jnp.maximum(sums, 0),
        backward=lambda gradient, output: jnp.where(output > 0, gradient, 0),
        keeps="output",
    ),
    "tanh": Activation(
        function=jnp.tanh,
        backward=lambda gradient, output: gradient * (1 - output * output),
        keeps="output",
    ),
    "silu": Activation(
        function=lambda sums: sums * jax.nn.sigmoid(sums),
        backward=lambda gradient, sums: gradient * silu_slope(sums),
        keeps="input",
    ),
    "gelu": Activation(
        function=lambda sums: sums * normal_probability(sums),
        backward=lambda gradient, sums: gradient * (normal_probability(sums) + sums * normal_density(sums)),
        keeps="input",
    ),
    "elu": Activation(
        function=lambda sums: jnp.where(sums < 0, jnp.expm1(sums), sums),
        backward=lambda gradient, output: jnp.where(output < 0, gradient * (output + 1), gradient),
        keeps="output",
    ),
}


def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean over the batch; outputs [batch, classes] fp32, labels [batch] int32.

    The label's term is picked by a comparison: an index would become a scatter in the backward pass.
    """
    log_probabilities = jax.nn.log_softmax(outputs)
    is_label = labels[:, None] == jnp.arange(outputs.shape[1], dtype=labels.dtype)
    return -jnp.where(is_label, log_probabilities, 0).sum(axis=1).mean()


def mean_squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean over batch and outputs; both [batch, outputs] fp32."""
    return jnp.square(outputs - targets).mean()


def binary_cross_entropy(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """With logits; mean over batch and outputs, both [batch, outputs] fp32. No output is too large for it."""
    rest = jnp.log1p(jnp.exp(-jnp.abs(outputs)))
    return (jnp.maximum(outputs, 0) - targets * outputs + rest).mean()


LOSSES = {"cross-entropy": cross_entropy, "mse": mean_squared_error, "bce": binary_cross_entropy}


# Of one tensor and its slots, from a gradient without a loss scale, in step `step` (fp32, from 0): what they
# are behind it.
Updated = tuple[jax.Array, list[jax.Array]]


def sgd(rule: Optimizer, step: jax.Array, parameter: jax.Array, gradient: jax.Array, slots: list) -> Updated:
    if rule.momentum:
        gradient = rule.momentum * slots[0] + gradient
    return parameter - rule.learning_rate * gradient, [gradient for _ in slots]


def adam(rule: Optimizer, step: jax.Array, parameter: jax.Array, gradient: jax.Array, slots: list) -> Updated:
    mean = rule.beta1 * slots[0] + (1 - rule.beta1) * gradient
    square = rule.beta2 * slots[1] + (1 - rule.beta2) * gradient * gradient
    root = jnp.sqrt(square) / jnp.sqrt(bias_correction(rule.beta2, step)) + rule.epsilon
    return parameter - rule.learning_rate / bias_correction(rule.beta1, step) * mean / root, [mean, square]


def adamw(
    rule: Optimizer, step: jax.Array, parameter: jax.Array, gradient: jax.Array, slots: list
) -> Updated:
    return adam(rule, step, parameter * (1 - rule.learning_rate * rule.weight_decay), gradient, slots)


def bias_correction(beta: float, step: jax.Array) -> jax.Array:
    """1 - beta^t, t = step + 1; an fp32 power would lose half its digits at t = 1."""
    return -jnp.expm1((step + 1) * (math.log(beta) if beta else -math.inf))


OPTIMIZERS = {"sgd": sgd, "adam": adam, "adamw": adamw}
