"""`jax-scan`: all steps of a block in one `lax.scan`.

A scan's length is part of its program, so each length that is asked for is compiled, before the clocks start.
Two kinds are made of several scans that are there instead, as a compile takes seconds: lengths of more than a
tenth of a second, which the measurement of energy asks for, and those that are too short to be a timed block.
The driver warms up with these and finds the length of a block.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from headroom_protocol.server import TrainerRequest
from jax import lax

from headroom_jax.network import State
from headroom_jax.trainer import ALL, ROWS, JaxTrainer, copies

UNROLLS = (1, 4, 8)
# The driver warms up with 10 steps, doubled some times, so both lengths make up what it asks for. A scan of
# many short steps hides what its dispatch takes.
TRIAL_STEPS = 40
SHORT_TRIAL_STEPS, SHORT_STEP_SECONDS = 160, 5e-4
CHECKED_STEPS = 10  # which the driver checks as one call
TRIAL_SECONDS = 0.1  # for each unroll, at least
SLOW_STEP_SECONDS = 0.02  # what unrolling saves is microseconds
LONGEST_SECONDS = 0.1
LONGEST_STEPS = 256  # or that many, where they take longer
LEAST_BLOCK_SECONDS = 0.01  # half of what the driver calls a block at least
MOST_SCANS = 16  # for steps that are no block

# What was found for a shape, so that a run of losses with other seeds need not find it again.
_choices: dict[tuple, "Choice"] = {}


@dataclasses.dataclass(frozen=True)
class Choice:
    unroll: int
    longest: int  # steps of a scan
    step_seconds: float
    measured: str


class ScanTrainer(JaxTrainer):
    def __init__(self, request: TrainerRequest, devices: Sequence[jax.Device]):
        super().__init__(request, devices)
        self._programs: dict[int, jax.stages.Compiled] = {}  # by length
        self._outputs: list[jax.Array] = []  # losses of the block just run
        self._programs[1] = self._program(1, unroll=1)
        shape = (
            *(request.widths, request.activation, request.loss, request.optimizer),
            *(request.batch_size, self.batches, request.precision, request.devices),
        )
        if shape not in _choices:
            _choices[shape] = self._choose_unroll()
        self._choice = _choices[shape]
        self.end_set_up(self._choice.measured)
        self.start_from(request.parameters)

    def _scan(
        self,
        state: State,
        first: tuple[jax.Array, jax.Array],
        features: jax.Array,
        targets: jax.Array,
        length: int,
        unroll: int,
    ) -> tuple[State, jax.Array]:
        """The state after `length` steps, and their losses [length]; `first`: as _first() has it."""
        numbers, batches = (start + jnp.arange(length, dtype=start.dtype) for start in first)

        def step(state: State, place: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
            number, index = place
            return self.network.step(state, number, *self.batch(index, features, targets))

        return lax.scan(step, state, (numbers, batches % self.batches), unroll=min(unroll, length))

    def _first(self, step: int) -> tuple[np.float32, np.int32]:
        """A step's number, as the network's step takes it, and its batch."""
        return np.float32(step), np.int32(step % self.batches)

    def _compiled(self, length: int, unroll: int) -> jax.stages.Compiled:
        scan = functools.partial(self._scan, length=length, unroll=unroll)
        if self.network.ranks > 1:
            scan = jax.shard_map(
                scan,
                mesh=self.mesh,
                in_specs=(ALL, ALL, ROWS, ROWS),
                out_specs=ALL,
                check_vma=False,
            )
        return self.compiled(scan, self.network_state, self._first(0), self.features, self.targets)

    def _run_once(self, program: jax.stages.Compiled) -> jax.stages.Compiled:
        """A first run loads kernels and builds graphs of launches."""
        jax.block_until_ready(
            program(copies(self.network_state), self._first(0), self.features, self.targets)
        )
        return program

    def _program(self, length: int, unroll: int) -> jax.stages.Compiled:
        return self._run_once(self._compiled(length, unroll))

    def _choose_unroll(self) -> Choice:
        """The fastest unroll; its programs are kept."""
        step_seconds = self._seconds(self._programs[1], repeats=2)
        if step_seconds > SLOW_STEP_SECONDS:
            measured = f"unroll 1, as a step takes over {SLOW_STEP_SECONDS * 1e3:g} ms"
            return Choice(1, LONGEST_STEPS, step_seconds, measured)
        trial_steps = SHORT_TRIAL_STEPS if step_seconds < SHORT_STEP_SECONDS else TRIAL_STEPS
        repeats = max(3, min(50, int(TRIAL_SECONDS / (step_seconds * trial_steps))))
        # Compiled side by side, as that takes seconds each; timed one after the other. Where there are cores
        # for it, so is what the check will ask for, as the others would wait for it there.
        wanted = list(itertools.product((trial_steps, CHECKED_STEPS), UNROLLS))
        if len(os.sched_getaffinity(0)) < len(wanted):
            wanted = wanted[: len(UNROLLS)]
        with concurrent.futures.ThreadPoolExecutor(len(wanted)) as threads:
            compiled = threads.map(lambda program: self._compiled(*program), wanted)
            programs = dict(zip(wanted, compiled, strict=True))
        times = {
            unroll: self._seconds(self._run_once(programs[trial_steps, unroll]), repeats) / trial_steps
            for unroll in UNROLLS
        }
        fastest = min(times, key=times.get)
        for (length, unroll), program in programs.items():
            if unroll == fastest:
                self._programs[length] = program if length == trial_steps else self._run_once(program)
        measured = ", ".join(f"{unroll}: {seconds * 1e6:.1f}" for unroll, seconds in times.items())
        longest = max(LONGEST_STEPS, int(LONGEST_SECONDS / times[fastest]))
        return Choice(fastest, longest, times[fastest], f"unroll {fastest} (us a step with {measured})")

    def _seconds(self, program: jax.stages.Compiled, repeats: int) -> float:
        """Of the fastest of some runs, which go on training."""
        fastest = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            self.network_state, _ = program(self.network_state, self._first(0), self.features, self.targets)
            jax.block_until_ready(self.network_state)
            fastest = min(fastest, time.perf_counter() - start)
        return fastest

    def _lengths(self, count: int) -> list[int]:
        """Of the scans that make up `count` steps: one, or several where that is too long or is no block."""
        if count in self._programs:
            return [count]
        if count * self._choice.step_seconds < LEAST_BLOCK_SECONDS:
            for length in sorted(self._programs, reverse=True):
                if length > 1 and count % length == 0 and count // length <= MOST_SCANS:
                    return [length] * (count // length)
        if count <= self._choice.longest:
            return [count]
        longest = max(self._programs)
        if longest < self._choice.longest // 4:
            longest = self._choice.longest
        lengths, left = [longest] * (count // longest), count % longest
        for length in sorted(self._programs, reverse=True):
            lengths += [length] * (left // length)
            left %= length
        return lengths

    def get_ready(self, first_step: int, count: int) -> None:
        self._block = self._lengths(count)
        for length in set(self._block) - set(self._programs):
            self._programs[length] = self._program(length, self._choice.unroll)

    def run_steps(self, first_step: int, count: int) -> None:
        self._outputs = []
        for begin, length in zip(
            itertools.accumulate(self._block, initial=first_step), self._block, strict=False
        ):
            self.network_state, losses = self._programs[length](
                self.network_state, self._first(begin), self.features, self.targets
            )
            self._outputs.append(losses)

    def take_losses(self, first_step: int, count: int) -> np.ndarray:
        losses = np.concatenate([np.asarray(losses) for losses in self._outputs])
        self._outputs = []
        return losses


def make_trainer(request: TrainerRequest, devices: Sequence[jax.Device]) -> ScanTrainer:
    return ScanTrainer(request, devices)
