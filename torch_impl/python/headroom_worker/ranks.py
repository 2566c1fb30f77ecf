"""Several devices: a process for each of them, a rank, and the trainer that drives all of them.

The worker's process is the front. It starts the ranks, hands each call to all of them, and waits for their
answers no longer than a limit. A rank that dies, fails or does not answer ends all of them, and costs one
`failed` answer that says which it was. A rank holds a trainer of the row's module, which finds its own rows
of the joined batches and joins its gradients with the others' by torch.distributed.

Arrays travel by the names of their files: those of the request and of the calls are files already.
"""

import contextlib
import dataclasses
import datetime
import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from multiprocessing import connection as pipes

import numpy as np
from headroom_protocol.process import die_with_parent
from headroom_protocol.server import Timing, TrainerRequest, WorkerError, one_line, parameter_count

# A little less than the driver waits (TimeLimits in bench/worker/client.h), so that the answer says who is
# late.
SETUP_SECONDS = 580.0
STATE_SECONDS = 280.0
LONGEST_TRAINING_SECONDS = 580.0
# A block may take so many times what its steps took before, and this long in any case.
LATENESS = 20.0
LEAST_TRAINING_SECONDS = 60.0
GOODBYE_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class MappedFile:
    """Where an array of a request lies, for another process to map."""

    path: str
    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(array: np.memmap) -> "MappedFile":
        return MappedFile(str(array.filename), array.dtype.str, array.shape)

    def mapped(self) -> np.memmap:
        return np.memmap(self.path, dtype=self.dtype, mode="c", shape=self.shape)


ARRAYS = ("features", "targets", "parameters")


class RankedTrainer:
    """The front of a row on several devices, or without any on as many processes of the CPU."""

    def __init__(
        self,
        request: TrainerRequest,
        module: str,
        options: Mapping[str, object],
        least_training_seconds: float = LEAST_TRAINING_SECONDS,
    ):
        self._ranks, self._devices = range(request.devices), request.device_indices
        self._least_training_seconds = least_training_seconds
        self._step_seconds: float | None = None  # of the last block
        self._state_size = parameter_count(request.widths) * (1 + len(request.optimizer.slots))
        self._ended = ""  # why there are no ranks any more
        self._folder = tempfile.TemporaryDirectory(prefix="headroom-ranks-")
        by_file = {name: MappedFile.of(getattr(request, name)) for name in ARRAYS}
        request = dataclasses.replace(request, **by_file)
        context = multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        for rank in self._ranks:
            ours, theirs = context.Pipe()
            place = Place(rank, request.devices, os.path.join(self._folder.name, "meeting"))
            process = context.Process(
                target=run_rank,
                args=(theirs, os.getpid(), place, request, module, dict(options)),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        set_up = self._gather("prepare", self._ranks, SETUP_SECONDS)
        self.note = f"{request.devices} processes, {set_up[0]['note']}"
        caches = [rank["setup_cache"] for rank in set_up]
        self.setup_cache = "cold" if "cold" in caches else caches[0]

    def train(self, first_step: int, count: int) -> Timing:
        """Device and wall time are the longest of a rank, CPU time the sum of all."""
        limit = LONGEST_TRAINING_SECONDS
        if self._step_seconds is not None:
            expected = LATENESS * count * self._step_seconds
            limit = min(limit, max(self._least_training_seconds, expected))
        times = self._ask_all("train", first_step, count, seconds=limit)
        timing = Timing(
            device_seconds=max(rank.device_seconds for rank in times),
            wall_seconds=max(rank.wall_seconds for rank in times),
            cpu_seconds=sum(rank.cpu_seconds for rank in times),
        )
        self._step_seconds = timing.wall_seconds / count
        return timing

    def losses(self, first_step: int, count: int) -> np.ndarray:
        """Of the joined batches: each rank has the mean of its own rows, and all have as many."""
        of_ranks = self._ask_all("losses", first_step, count, seconds=STATE_SECONDS)
        return np.mean(of_ranks, axis=0, dtype=np.float64).astype(np.float32)

    def state(self, into: np.ndarray | None = None) -> np.ndarray:
        """The first rank's; `failed` unless all have the same bits."""
        self._expect_ranks()
        if not isinstance(into, np.memmap):
            file = os.path.join(self._folder.name, "state")
            written = np.memmap(file, np.float32, "w+", shape=(self._state_size,))
            values = self.state(written).copy()
            if into is None:
                return values
            into[:] = values
            return into
        self._ask([0], "write_state", str(into.filename), seconds=STATE_SECONDS)
        others = self._ranks[1:]
        differences = self._ask(others, "compare_state", str(into.filename), seconds=STATE_SECONDS)
        for rank, (count, first) in zip(others, differences, strict=True):
            if count:
                raise WorkerError(
                    "failed",
                    f"{self._name(rank)} has other bits than {self._name(0)} in {count} of {into.size} "
                    f"values of the state, first in value {first}",
                )
        return into

    def set_state(self, values: np.ndarray) -> None:
        self._expect_ranks()
        file = getattr(values, "filename", None)
        if file is None:
            file = os.path.join(self._folder.name, "given-state")
            np.ascontiguousarray(values, np.float32).tofile(file)
        self._ask_all("read_state", str(file), seconds=STATE_SECONDS)

    def peak_device_bytes(self) -> int | None:
        peaks = [
            peak for peak in self._ask_all("peak_device_bytes", seconds=STATE_SECONDS) if peak is not None
        ]
        return max(peaks, default=None)

    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        """Ends the ranks and waits until they have ended."""
        deadline = time.monotonic() + (0 if self._ended else GOODBYE_SECONDS)
        for pipe in self._pipes:
            pipe.close()  # which a rank that waits for a call takes for the end
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        self._ended = self._ended or "the trainer was closed"
        self._processes, self._pipes = [], []
        self._folder.cleanup()

    def _name(self, rank: int) -> str:
        return f"rank {rank} (device {self._devices[rank]})" if self._devices else f"rank {rank}"

    def _ask_all(self, call: str, *arguments, seconds: float) -> list:
        return self._ask(self._ranks, call, *arguments, seconds=seconds)

    def _expect_ranks(self) -> None:
        if self._ended:
            raise WorkerError("failed", self._ended)

    def _ask(self, ranks, call: str, *arguments, seconds: float) -> list:
        self._expect_ranks()
        for rank in ranks:
            with contextlib.suppress(OSError):  # it is dead, which _gather() tells
                self._pipes[rank].send((call, arguments))
        return self._gather(call, ranks, seconds)

    def _gather(self, call: str, ranks, seconds: float) -> list:
        """What these ranks answer, in their order; whatever else happens ends all of them."""
        deadline = time.monotonic() + seconds
        waiting, answers = {self._pipes[rank]: rank for rank in ranks}, {}
        while waiting:
            ready = pipes.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(self._name(rank) for rank in waiting.values())
                raise self._given_up("failed", f"{call}: {late} gave no answer within {seconds:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    kind, answers[rank] = pipe.recv()
                except (EOFError, OSError):
                    raise self._given_up(
                        "failed", f"{call}: {self._name(rank)} {self._end_of(rank)}"
                    ) from None
                if kind != "ok":
                    cause = self._killed_rank(kind) or f"{self._name(rank)}: {answers[rank]}"
                    raise self._given_up(kind, f"{call}: {cause}")
        return [answers[rank] for rank in ranks]

    def _killed_rank(self, kind: str) -> str:
        """What the others of a rank that died complain about, if that is what happened."""
        if kind == "failed":
            pipes.wait([process.sentinel for process in self._processes], timeout=1.0)
            for rank, process in enumerate(self._processes):
                if process.exitcode:  # one that fails by itself ends with 0
                    return f"{self._name(rank)} {self._end_of(rank)}"
        return ""

    def _end_of(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(GOODBYE_SECONDS)
        if process.exitcode is None:
            return "closed its pipe"
        code = process.exitcode
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _given_up(self, kind: str, message: str) -> WorkerError:
        self._ended = message
        self.close()
        return WorkerError(kind, message)


@dataclasses.dataclass(frozen=True)
class Place:
    """One of `count` ranks; `meeting` is a file through which they find each other."""

    rank: int
    count: int
    meeting: str


def run_rank(
    pipe: pipes.Connection,
    front: int,
    place: Place,
    request: TrainerRequest,
    module: str,
    options: dict[str, object],
) -> None:
    """The main function of a rank's process: answers calls until the front closes the pipe."""
    die_with_parent(front)
    rank = Rank(place)
    answered = rank.answer(pipe, rank.prepare, request, module, options)
    while answered:
        try:
            call, arguments = pipe.recv()
        except (EOFError, OSError):
            break
        answered = rank.answer(pipe, getattr(rank, call), *arguments)
    # Without a farewell to the others: one that hangs must not hold up this one.
    os._exit(0)


class Rank:
    """The calls that the front makes."""

    def __init__(self, place: Place):
        self._place = place

    def answer(self, pipe: pipes.Connection, call, *arguments) -> bool:
        try:
            pipe.send(("ok", call(*arguments)))
            return True
        except Exception as error:
            kind = error.kind if isinstance(error, WorkerError) else error_kind(error)
            if kind == "failed":
                traceback.print_exc()  # to the worker's log
            text = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                pipe.send((kind, one_line(text)))
            return False

    def prepare(self, request: TrainerRequest, module: str, options: dict[str, object]) -> dict:
        make_trainer = importlib.import_module(module).make_trainer
        self._device = join_ranks(self._place, request.device_indices)
        request = dataclasses.replace(request, **{name: getattr(request, name).mapped() for name in ARRAYS})
        self._trainer = make_trainer(request, self._device, **options)
        return {"note": self._trainer.note, "setup_cache": self._trainer.setup_cache}

    def train(self, first_step: int, count: int) -> Timing:
        import torch.distributed

        by_nccl = torch.distributed.get_backend() == "nccl"
        torch.distributed.barrier(device_ids=[self._device.index] if by_nccl else None)
        return self._trainer.train(first_step, count)

    def losses(self, first_step: int, count: int) -> np.ndarray:
        return self._trainer.losses(first_step, count)

    def write_state(self, file: str) -> None:
        self._trainer.state(np.memmap(file, np.float32, "r+"))

    def compare_state(self, file: str) -> tuple[int, int]:
        """How many values have other bits than the file's, and the first of them."""
        bits = np.memmap(file, np.uint32, "r")
        different = np.flatnonzero(self._trainer.state().view(np.uint32) != bits)
        return different.size, int(different[0]) if different.size else 0

    def read_state(self, file: str) -> None:
        self._trainer.set_state(np.memmap(file, np.float32, "c"))

    def peak_device_bytes(self) -> int | None:
        return self._trainer.peak_device_bytes()


def join_ranks(place: Place, devices: tuple[int, ...]):
    """Makes this process one of the ranks, and its torch.device the current one; returns that.

    By NCCL, which refuses ranks that share a device: these, for tests on one GPU, meet by gloo.
    """
    import torch
    import torch.distributed

    on_gpu, by_nccl = bool(devices), 0 < len(devices) == len(set(devices))
    device = torch.device("cuda", devices[place.rank]) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if not by_nccl:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "nccl" if by_nccl else "gloo",
        init_method=f"file://{place.meeting}",
        rank=place.rank,
        world_size=place.count,
        timeout=datetime.timedelta(seconds=SETUP_SECONDS),
        device_id=device if by_nccl else None,
    )
    return device


def error_kind(error: Exception) -> str:
    from headroom_worker.backends import kind_of_error

    return kind_of_error(error, sys.modules.get("torch"))
