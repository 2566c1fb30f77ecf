"""What the JAX backends have in common: resident data and state, the clocks, the losses.

JAX has no events of the device, so a block's device time is wall time, from its dispatch to the end of the
wait for its results. The record says so, and what both take for a program that does nothing.
"""

import functools
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from headroom_protocol.kept_losses import KEPT_LOSSES, KeptSteps
from headroom_protocol.server import Timing, TrainerRequest, WorkerError
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from headroom_jax.compilation import Compilation
from headroom_jax.network import RANKS, Network, Parameters, State

EMPTY_PROGRAMS = 50
# How arrays lie on several devices: whole on each, or each batch's rows divided among them.
ALL, ROWS = PartitionSpec(), PartitionSpec(None, RANKS)


class JaxTrainer:
    """A backend adds `get_ready`, `run_steps` (which alone is timed) and `take_losses`."""

    note = ""
    setup_cache = "cold"

    def __init__(self, request: TrainerRequest, devices: Sequence[jax.Device]):
        """`devices`: one, or one for each rank, among which the rows of every batch are divided."""
        self.on_gpu = devices[0].platform != "cpu"
        self._everywhere = self._by_rows = SingleDeviceSharding(devices[0])
        self._results = {}
        if len(devices) > 1:
            self.mesh = Mesh(np.array(devices), (RANKS,))
            self._everywhere, self._by_rows = NamedSharding(self.mesh, ALL), NamedSharding(self.mesh, ROWS)
            self._results = {"out_shardings": self._everywhere}
        self._compilation = Compilation(request.cache_folder, self.on_gpu)
        self.batches = request.batches
        self.network = Network(request, "cuda" if self.on_gpu else "cpu")
        self._shapes = [
            ((outputs, inputs), (outputs,))
            for inputs, outputs in zip(request.widths, request.widths[1:], strict=False)
        ]
        batch_size = request.joined_batch_size
        samples = self.batches * batch_size
        features = request.features[:samples].reshape(self.batches, batch_size, -1)
        # [batches, batch, inputs]
        self.features = self._put(features.astype(self.network.arithmetic.type), self._by_rows)
        targets = request.targets[:samples].reshape(self.batches, batch_size, *request.targets.shape[1:])
        # [batches, batch], with outputs behind where they are no labels
        self.targets = self._put(targets, self._by_rows)
        self.start_from(request.parameters)
        self._kept, self._losses = KeptSteps(), np.full(KEPT_LOSSES, np.nan, np.float32)
        self._most_bytes = 0

    def _put(self, values: np.ndarray, sharding: Sharding | None = None) -> jax.Array:
        """A copy on the devices. On the CPU JAX would use the caller's memory else, a mapped file's."""
        return jax.device_put(values, sharding or self._everywhere, may_alias=False)

    def compiled(self, function, *arguments):
        """`function` compiled for these arguments, the first of which it gets to keep."""
        program = jax.jit(
            function,
            donate_argnums=0,
            compiler_options=self.network.compiler_options,
            **self._results,
        )
        program = program.lower(*arguments).compile()
        memory = program.memory_analysis()
        if memory is not None:
            held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            self._most_bytes = max(self._most_bytes, held + memory.temp_size_in_bytes)
        return program

    def batch(self, index: jax.Array, features: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Inputs [batch, in] and targets [batch, ...] of batch `index`."""
        pick = functools.partial(lax.dynamic_index_in_dim, index=index, keepdims=False)
        return pick(features), pick(targets)

    def get_ready(self, first_step: int, count: int) -> None:
        """Before the clocks start: compiles what these steps need."""

    def run_steps(self, first_step: int, count: int) -> None:
        """Enqueues the steps, and leaves the state behind them in `self.network_state`."""
        raise NotImplementedError

    def take_losses(self, first_step: int, count: int) -> np.ndarray:
        """Losses of the steps just run, or of the last KEPT_LOSSES of them, for the host."""
        raise NotImplementedError

    def train(self, first_step: int, count: int) -> Timing:
        self.get_ready(first_step, count)
        cpu, wall = time.process_time(), time.perf_counter()
        self.run_steps(first_step, count)
        jax.block_until_ready(self.network_state)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        slots = self._kept.add(first_step, count)
        self._losses[slots] = self.take_losses(first_step, count)[-len(slots) :]
        return Timing(device_seconds=wall, wall_seconds=wall, cpu_seconds=cpu)

    def losses(self, first_step: int, count: int) -> np.ndarray:
        return self._losses[self._kept.slots(first_step, count)]

    def state(self, into: np.ndarray | None = None) -> np.ndarray:
        """Flat, and `into` an array such as a mapped file where there is one."""
        tensors, begin = jax.tree.leaves(self.network_state), 0
        values = np.empty(sum(tensor.size for tensor in tensors), np.float32) if into is None else into
        for tensor in tensors:
            of_first, *of_others = (np.asarray(shard.data) for shard in tensor.addressable_shards)
            for rank, other in enumerate(of_others, start=1):
                expect_same_bits(of_first, other, rank, begin)
            values[begin : begin + tensor.size] = of_first.reshape(-1)
            begin += tensor.size
        return values

    def set_state(self, values: np.ndarray) -> None:
        size = values.size // (1 + len(self.network.rule.slots))
        parameters, *slots = (
            self._on_device(values[begin : begin + size]) for begin in range(0, values.size, size)
        )
        self.network_state: State = parameters, slots
        jax.block_until_ready(self.network_state)

    def start_from(self, parameters: np.ndarray) -> None:
        """Their state at step 0: slots are zeros."""
        zeros = np.zeros(parameters.size * len(self.network.rule.slots), np.float32)
        self.set_state(np.concatenate([parameters, zeros]))

    def _on_device(self, values: np.ndarray) -> Parameters:
        begin, parameters = 0, []
        for shapes in self._shapes:
            layer = []
            for shape in shapes:
                size = int(np.prod(shape))
                layer.append(self._put(values[begin : begin + size].reshape(shape)))
                begin += size
            parameters.append(tuple(layer))
        return parameters

    def peak_device_bytes(self) -> int | None:
        """What XLA plans for the program that needs most, data and parameters included."""
        return self._most_bytes if self.on_gpu else None

    def end_set_up(self, *own: str) -> None:
        """Once all is compiled; `own`: for the record's note."""
        self.note = self._notes(*own)
        self.setup_cache = self._compilation.finish()

    def _notes(self, *own: str) -> str:
        scale = f"static loss scale {self.network.scale:g}" if self.network.scale != 1.0 else ""
        return ", ".join(filter(None, (*own, scale, self._clock_note())))

    def _clock_note(self) -> str:
        if not self.on_gpu:
            return ""
        nothing = self.compiled(lambda value: value + 1, self._put(np.zeros((), np.float32)))
        value, times = self._put(np.zeros((), np.float32)), []
        for _ in range(EMPTY_PROGRAMS):
            start = time.perf_counter()
            value = jax.block_until_ready(nothing(value))
            times.append(time.perf_counter() - start)
        microseconds = sorted(times)[EMPTY_PROGRAMS // 2] * 1e6
        return f"device time is wall time, of which dispatch and wait take {microseconds:.0f} us a block"


def expect_same_bits(of_first: np.ndarray, other: np.ndarray, rank: int, begin: int) -> None:
    """Both fp32, and a piece of the state from value `begin` on."""
    different = np.flatnonzero(of_first.view(np.uint32) != other.view(np.uint32))
    if different.size:
        which = f"{different.size} values of the state, first in value {begin + different[0]}"
        raise WorkerError("failed", f"rank {rank} has other bits than rank 0 in {which}")


def copies(values):
    """Of a tree of arrays, for a program that gets to keep them."""
    return jax.tree.map(jnp.copy, values)
