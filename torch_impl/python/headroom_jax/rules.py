"""What is trained: a table each of activations, losses and optimizers.

The backward pass is written by hand (network.py), since the precision contract names the places where it
rounds. So an activation says what its slope is taken from; a loss is a function that JAX differentiates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Activation:
    """`function` of a layer's sums; `backward(gradient, kept)` times its slope, in fp32.

    `keeps`: what the slope is taken from, "output" (as stored, rounded) or "input" (the sums, rounded too).
    """

    function: Callable[[jax.Array], jax.Array]
    backward: Callable[[jax.Array, jax.Array], jax.Array]
    keeps: str


ACTIVATIONS = {
    "relu": Activation(
        function=lambda sums: jnp.maximum(sums, 0),
        backward=lambda gradient, output: jnp.where(output > 0, gradient, 0),
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


LOSSES = {"cross-entropy": cross_entropy}


def sgd(parameter: jax.Array, gradient: jax.Array, learning_rate: float) -> jax.Array:
    return parameter - learning_rate * gradient


OPTIMIZERS = {"sgd": sgd}
