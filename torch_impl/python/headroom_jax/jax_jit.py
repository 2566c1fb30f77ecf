"""`jax-jit`: one compiled step a call, from a Python loop.

Parameters, losses and the step's number are donated: the step writes over them. The number stays on the
device, as a copy to it at each step would cost more than the call.
"""

import jax
import jax.numpy as jnp
import numpy as np
from headroom_protocol.kept_losses import KEPT_LOSSES
from headroom_protocol.server import TrainerRequest

from headroom_jax.trainer import JaxTrainer, copies


class JitTrainer(JaxTrainer):
    def __init__(self, request: TrainerRequest, device: jax.Device):
        super().__init__(request, device)
        # Slots for losses, a multiple of the batches: a slot then says which batch it is.
        self._slots = -(-KEPT_LOSSES // self.batches) * self.batches
        self._ring = self._put(np.full(self._slots, np.nan, np.float32))
        self._go_to(0)
        self._step = self.compiled(self._one_step, self._state, self.features, self.labels)
        jax.block_until_ready(self._step(copies(self._state), self.features, self.labels))
        self.note = self.notes()

    @property
    def _state(self) -> tuple:
        return self.parameters_, self._ring, self._slot

    def _one_step(self, state: tuple, features: jax.Array, labels: jax.Array) -> tuple:
        parameters, ring, slot = state
        parameters, loss = self.network.step(parameters, *self.batch(slot % self.batches, features, labels))
        return parameters, ring.at[slot].set(loss), jnp.where(slot + 1 == self._slots, 0, slot + 1)

    def _go_to(self, step: int) -> None:
        self._slot, self._next_step = self._put(np.array(step % self._slots, np.int32)), step

    def get_ready(self, first_step: int, count: int) -> None:
        if first_step != self._next_step:
            self._go_to(first_step)

    def run_steps(self, first_step: int, count: int) -> None:
        state, step, features, labels = self._state, self._step, self.features, self.labels
        for _ in range(count):
            state = step(state, features, labels)
        self.parameters_, self._ring, self._slot = state
        self._next_step = first_step + count

    def take_losses(self, first_step: int, count: int) -> np.ndarray:
        steps = np.arange(first_step + max(0, count - KEPT_LOSSES), first_step + count)
        return np.asarray(self._ring)[steps % self._slots]


def make_trainer(request: TrainerRequest, device: jax.Device) -> JitTrainer:
    return JitTrainer(request, device)
