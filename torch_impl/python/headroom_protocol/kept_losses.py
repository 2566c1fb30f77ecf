"""Which steps' losses a trainer still has: the last 2^20, in slots that are used again."""

import numpy as np

from headroom_protocol.server import WorkerError

KEPT_LOSSES = 2**20


class KeptSteps:
    """The step whose loss each slot holds; the losses themselves lie where the trainer keeps them."""

    def __init__(self):
        self._steps = np.full(KEPT_LOSSES, -1, dtype=np.int64)

    def add(self, first_step: int, count: int) -> np.ndarray:
        """Notes that these steps were trained. Returns the slots of the last of them, at most KEPT_LOSSES."""
        kept = np.arange(first_step + max(0, count - KEPT_LOSSES), first_step + count)
        self._steps[kept % KEPT_LOSSES] = kept
        return kept % KEPT_LOSSES

    def slots(self, first_step: int, count: int) -> np.ndarray:
        """Slots of `count` steps from `first_step` on; an `input` error if one of them is not held."""
        if count > KEPT_LOSSES:
            raise WorkerError("input", f"losses: {count} asked for, the last {KEPT_LOSSES} are kept")
        steps = np.arange(first_step, first_step + count)
        held = self._steps[steps % KEPT_LOSSES] == steps
        if not held.all():
            raise WorkerError("input", f"losses: step {steps[~held][0]} was not trained or is no longer kept")
        return steps % KEPT_LOSSES
