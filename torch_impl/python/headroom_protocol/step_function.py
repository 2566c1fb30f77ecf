"""A backend that is one function: a training step on NumPy arrays, on the CPU.

`serve_step` does the rest of the protocol: batches, clocks, losses and the state. What has a device, a
compiler or an optimizer's slots needs a trainer of its own (Trainer in server.py).
"""

import importlib.metadata
import itertools
import platform
import time
from collections.abc import Callable, Mapping

from headroom_protocol.backend_table import Backend, BackendTable
from headroom_protocol.process import argument_parser, become_worker
from headroom_protocol.server import Timing, TrainerRequest, serve

# step(layers, features, targets, request): one step of SGD on `layers`, in place; returns the loss before it.
#   layers    [(weight [out, in], bias [out]), ...], float32
#   features  [batch, inputs] float32
#   targets   labels [batch] int32, or [batch, outputs] float32 where the loss is no cross-entropy
Step = Callable[[list, object, object, TrainerRequest], float]


class StepTrainer:
    """Calls `step` for one batch after another; holds the state that it changes."""

    note = "device time is wall time"
    setup_cache = None

    def __init__(self, request: TrainerRequest, step: Step):
        import numpy as np

        from headroom_protocol.kept_losses import KEPT_LOSSES, KeptSteps

        self._request, self._step = request, step
        # As plain arrays: a mapped file's slices cost more.
        self._features, self._targets = np.asarray(request.features), np.asarray(request.targets)
        self._state = np.array(request.parameters, dtype=np.float32)
        self._layers, begin = [], 0
        for inputs, outputs in itertools.pairwise(request.widths):
            weight = self._state[begin : begin + inputs * outputs].reshape(outputs, inputs)
            begin += inputs * outputs
            self._layers.append((weight, self._state[begin : begin + outputs]))
            begin += outputs
        self._kept, self._losses = KeptSteps(), np.full(KEPT_LOSSES, np.nan, np.float32)

    def train(self, first_step: int, count: int) -> Timing:
        request, size = self._request, self._request.batch_size
        cpu, wall = time.process_time(), time.perf_counter()
        for step in range(first_step, first_step + count):
            first = step % request.batches * size
            features, targets = self._features[first : first + size], self._targets[first : first + size]
            self._losses[step % len(self._losses)] = self._step(self._layers, features, targets, request)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self._kept.add(first_step, count)
        return Timing(device_seconds=wall, wall_seconds=wall, cpu_seconds=cpu)

    def losses(self, first_step: int, count: int):
        return self._losses[self._kept.slots(first_step, count)]

    def state(self, into=None):
        if into is None:
            return self._state.copy()
        into[:] = self._state
        return into

    def set_state(self, values) -> None:
        self._state[:] = values

    def peak_device_bytes(self) -> None:
        return None


class StepBackends:
    """What server.py serves: one row, on the CPU."""

    def __init__(self, row: Backend, step: Step, device: int):
        reason = "it runs on the CPU, and this run measures a GPU" if device >= 0 else None
        self._name, self._step = row.name, step
        self._table = BackendTable((row,), lambda backend, precision: reason)

    def hello(self) -> dict:
        numpy = importlib.metadata.version("numpy")
        software = {"python": platform.python_version(), "numpy": numpy}
        return {
            "worker": self._name,
            "software": software,
            "device": None,
            "backends": self._table.offered(),
        }

    def prepare(self, request: TrainerRequest) -> StepTrainer:
        self._table.asked_for(request)
        return StepTrainer(request, self._step)

    def error_kind(self, error: Exception) -> str:
        return "out_of_memory" if isinstance(error, MemoryError) else "failed"

    def free_memory(self) -> None:
        pass


def serve_step(
    name: str, step: Step, description: str, contracts: Mapping[str, str] | None = None, family: str = "other"
) -> int:
    """Serves `step` as the backend `name` until the driver ends; returns the process's exit code.

    `contracts`: how each precision that it has rounds (bench/worker/PROTOCOL.md); without it fp32, exactly.
    What is not ReLU, cross-entropy and plain SGD is refused before the step sees it.
    """
    requests, answers = become_worker(())
    device = argument_parser(name, description).parse_args().device
    row = Backend(name, family, description, "", contracts or {"fp32": "exact"})
    return serve(requests, answers, StepBackends(row, step, device))
