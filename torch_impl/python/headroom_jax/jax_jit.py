"""`jax-jit`: one compiled step a call, from a Python loop.

The network's state, losses and the step's number are donated: the step writes over them. The number stays on
the device, as a copy to it at each step would cost more than the call.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from headroom_protocol.kept_losses import KEPT_LOSSES
from headroom_protocol.server import TrainerRequest

from headroom_jax.trainer import JaxTrainer, copies


class JitTrainer(JaxTrainer):
    def __init__(self, request: TrainerRequest, devices: Sequence[jax.Device]):
        super().__init__(request, devices)
        # Slots for losses, a multiple of the batches: a slot then says which batch it is.
        self._slots = -(-KEPT_LOSSES // self.batches) * self.batches
        self._ring = self._put(np.full(self._slots, np.nan, np.float32))
        self._go_to(0)
        self._step = self.compiled(self._one_step, self._state, self.features, self.targets)
        jax.block_until_ready(self._step(copies(self._state), self.features, self.targets))
        self.end_set_up()

    @property
    def _state(self) -> tuple:
        return self.network_state, self._ring, self._slot, self._numbers

    def _one_step(self, state: tuple, features: jax.Array, targets: jax.Array) -> tuple:
        network_state, ring, slot, numbers = state
        batch = self.batch(slot % self.batches, features, targets)
        network_state, loss = self.network.step(network_state, numbers[0] if numbers else None, *batch)
        next_slot = jnp.where(slot + 1 == self._slots, 0, slot + 1)
        return network_state, ring.at[slot].set(loss), next_slot, [number + 1 for number in numbers]

    def _go_to(self, step: int) -> None:
        self._slot, self._next_step = self._put(np.array(step % self._slots, np.int32)), step
        counts = self.network.rule.kind != "sgd"
        self._numbers = [self._put(np.array(step, np.float32))] if counts else []

    def get_ready(self, first_step: int, count: int) -> None:
        if first_step != self._next_step:
            self._go_to(first_step)

    def run_steps(self, first_step: int, count: int) -> None:
        state, step, features, targets = self._state, self._step, self.features, self.targets
        for _ in range(count):
            state = step(state, features, targets)
        self.network_state, self._ring, self._slot, self._numbers = state
        self._next_step = first_step + count

    def take_losses(self, first_step: int, count: int) -> np.ndarray:
        steps = np.arange(first_step + max(0, count - KEPT_LOSSES), first_step + count)
        return np.asarray(self._ring)[steps % self._slots]


def make_trainer(request: TrainerRequest, devices: Sequence[jax.Device]) -> JitTrainer:
    return JitTrainer(request, devices)
