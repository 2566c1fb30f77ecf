"""One training step of the network, as a function for JAX to compile.

The backward pass is by hand, so that each rounding stands where the precision contract wants it
(docs/how-it-measures.md) and each product's precision is named. XLA makes the same products of it as it would
of jax.grad.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from headroom_protocol.server import TrainerRequest
from jax import lax

from headroom_jax.rules import ACTIVATIONS, LOSSES, OPTIMIZERS

RANKS = "ranks"  # the axis of the devices that train together
Parameters = list[tuple[jax.Array, jax.Array]]  # a layer's weight [out, in] and bias [out], fp32
State = tuple[Parameters, list[Parameters]]  # and the optimizer's slots


@dataclass(frozen=True)
class Arithmetic:
    """What products read, and how they multiply. They sum in fp32 and give fp32."""

    type: jnp.dtype
    on_gpu: lax.Precision | lax.DotAlgorithmPreset
    ties_away: bool = False  # of weights, where they are rounded

    def rounded_weight(self, weight: jax.Array) -> jax.Array:
        if self.ties_away:
            # With its lowest bit set no value is halfway any more, and one that was goes away from zero.
            bits = lax.bitcast_convert_type(weight, jnp.uint32) | jnp.uint32(1)
            weight = lax.bitcast_convert_type(bits, jnp.float32)
        return weight.astype(self.type)


ARITHMETICS = {
    "fp32": Arithmetic(jnp.float32, lax.Precision.HIGHEST),
    "tf32": Arithmetic(jnp.float32, lax.DotAlgorithmPreset.TF32_TF32_F32),
    "bf16": Arithmetic(jnp.bfloat16, lax.DotAlgorithmPreset.BF16_BF16_F32, ties_away=True),
    "fp16": Arithmetic(jnp.float16, lax.DotAlgorithmPreset.F16_F16_F32),
}


def loss_scale(precision: str, batch_size: int) -> float:
    """fp16: 16 times the smallest power of two of at least the batch size, which the mean divides by."""
    return 16.0 * (1 << (batch_size - 1).bit_length()) if precision == "fp16" else 1.0


class Network:
    """`step` for one precision and platform ("cuda" or "cpu")."""

    def __init__(self, request: TrainerRequest, platform: str):
        self.arithmetic = ARITHMETICS[request.precision]
        # The CPU has no algorithms to choose from; its highest precision is fp32 for all of them.
        self.product_precision = self.arithmetic.on_gpu if platform == "cuda" else lax.Precision.HIGHEST
        # By default XLA may leave out a rounding to 16 bits whose result is widened again.
        is_rounded = self.arithmetic.type != jnp.float32
        self.compiler_options = {"xla_allow_excess_precision": False} if is_rounded else {}
        self.scale = loss_scale(request.precision, request.joined_batch_size)
        self.ranks = request.devices
        self.activation, self.loss = ACTIVATIONS[request.activation], LOSSES[request.loss]
        self.rule, self.updated = request.optimizer, OPTIMIZERS[request.optimizer.kind]

    def step(
        self, state: State, step: jax.Array | None, inputs: jax.Array, targets: jax.Array
    ) -> tuple[State, jax.Array]:
        """Step number `step` (fp32; sgd needs none) and its loss before the update.

        inputs: [batch, in] as products read them; targets: [batch, ...].
        """
        parameters, slots = state
        loss, gradients = self.loss_and_gradients(parameters, inputs, targets)
        if self.ranks > 1:
            loss, gradients = lax.pmean(loss, RANKS), lax.psum(gradients, RANKS)
        tensors, structure = jax.tree.flatten(parameters)
        own_slots = list(zip(*map(jax.tree.leaves, slots), strict=True)) or [()] * len(tensors)
        behind = [
            self.updated(self.rule, step, tensor, gradient * (1 / self.scale), list(own))
            for tensor, gradient, own in zip(tensors, jax.tree.leaves(gradients), own_slots, strict=True)
        ]
        new_slots = zip(*(own for _, own in behind), strict=True)
        new_state = (
            jax.tree.unflatten(structure, [tensor for tensor, _ in behind]),
            [jax.tree.unflatten(structure, slot) for slot in new_slots],
        )
        return new_state, loss

    def loss_and_gradients(
        self, parameters: Parameters, inputs: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, Parameters]:
        """Gradients are fp32 and carry the loss scale."""
        arithmetic, activation = self.arithmetic, self.activation
        weights = [arithmetic.rounded_weight(weight) for weight, _ in parameters]
        layer_inputs, kept = [inputs], []
        for weight, (_, bias) in zip(weights, parameters, strict=True):
            sums = self._product(layer_inputs[-1], 1, weight, 1) + bias  # [batch, out]
            layer_inputs.append(activation.function(sums).astype(arithmetic.type))
            kept.append(layer_inputs[-1] if activation.keeps == "output" else sums.astype(arithmetic.type))

        loss, gradient = jax.value_and_grad(self.loss)(
            sums, targets
        )  # of the last layer, which has no activation
        # Of the mean over all ranks' rows.
        gradient = gradient * (self.scale / self.ranks)

        gradients = []
        for layer in reversed(range(len(weights))):
            rounded = gradient.astype(arithmetic.type)  # [batch, out]
            bias_gradient = rounded.astype(jnp.float32).sum(axis=0)
            gradients.append((self._product(rounded, 0, layer_inputs[layer], 0), bias_gradient))
            if layer > 0:
                slope_of = kept[layer - 1].astype(jnp.float32)
                gradient = activation.backward(self._product(rounded, 1, weights[layer], 0), slope_of)
        return loss, gradients[::-1]

    def _product(self, a: jax.Array, a_axis: int, b: jax.Array, b_axis: int) -> jax.Array:
        """The matrices' sum over these axes, fp32.

        On a GPU XLA makes a sum of products of two vectors, whose products it rounds to the factors' type. So
        where a side is 1 long 16-bit factors are widened: their products are then exact.
        """
        precision = self.product_precision
        if 1 in a.shape + b.shape:
            a, b, precision = a.astype(jnp.float32), b.astype(jnp.float32), lax.Precision.HIGHEST
        return lax.dot_general(
            a,
            b,
            (((a_axis,), (b_axis,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
