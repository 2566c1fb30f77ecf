"""The worker's end of the protocol (bench/worker/PROTOCOL.md): JSON lines in and out, one trainer at a time.

Knows no framework and starts without NumPy, so that a Python without them can still say so. What it serves
has `hello()`, `prepare(request)`, `error_kind(exception)` and `free_memory()`, and where it has ranges
`begin_range(name)`; a trainer has the calls of bench/core/trainer.h.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headroom_protocol.workload import ACTIVATIONS, LOSSES, OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    import numpy as np

PROTOCOL_VERSION = 2
# As in bench/core/names.h.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
LONGEST_MESSAGE = 500  # characters
LARGEST_COUNT = 2**62


class WorkerError(Exception):
    """A call that failed; `kind` as in PROTOCOL.md."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class TrainerRequest:
    """What a backend is given to make a trainer."""

    backend: str
    precision: str
    workload_name: str
    widths: tuple[int, ...]
    batch_size: int  # of each device
    features: np.ndarray  # [samples, inputs] float32, mapped from a file
    # With cross-entropy labels, [samples] int32, each in [0, classes); else [samples, outputs] float32.
    targets: np.ndarray
    parameters: np.ndarray  # flat float32: weight1 [out, in], bias1 [out], weight2, ...
    cache_folder: str | None
    activation: str = "relu"  # of ACTIVATIONS
    loss: str = "cross-entropy"  # of LOSSES
    optimizer: Optimizer = Optimizer()
    # GPUs that train the network data-parallel. Of each joined batch of devices * batch_size samples rank r
    # has those from r * batch_size on. Loss, gradient and loss scale are the joined batch's.
    devices: int = 1
    # CUDA device of each rank, the worker's own first; empty with one device, and without a CUDA device.
    device_indices: tuple[int, ...] = ()

    @property
    def joined_batch_size(self) -> int:
        return self.devices * self.batch_size

    @property
    def batches(self) -> int:
        return len(self.targets) // self.joined_batch_size


@dataclass(frozen=True)
class Timing:
    """Times of one block, in seconds; see Timing in bench/core/trainer.h."""

    device_seconds: float
    wall_seconds: float
    cpu_seconds: float


class Trainer(Protocol):
    """A state is flat float32: the parameters, and behind them each slot of the optimizer, in their order.

    A trainer that has started processes also has `close()`, which ends them.
    """

    note: str
    setup_cache: str | None  # "cold" or "warm" where code was compiled

    def train(self, first_step: int, count: int) -> Timing: ...
    def losses(self, first_step: int, count: int) -> np.ndarray: ...
    def state(self, into: np.ndarray | None = None) -> np.ndarray: ...
    def set_state(self, values: np.ndarray) -> None: ...
    def peak_device_bytes(self) -> int | None: ...


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."


def parameter_count(widths: tuple[int, ...]) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(widths))


class Arguments:
    """Typed access to a request's fields; a fault is an `input` error that names the field."""

    def __init__(self, fields: Any, where: str):
        if not isinstance(fields, dict):
            raise WorkerError("input", f"{where}: expected an object, found {_describe(fields)}")
        self._fields = fields
        self._where = where

    def _get(self, name: str, accepted: tuple[type, ...], expected: str) -> Any:
        if name not in self._fields:
            raise WorkerError("input", f"{self._where}.{name}: missing, expected {expected}")
        value = self._fields[name]
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            raise WorkerError("input", f"{self._where}.{name}: expected {expected}, found {_describe(value)}")
        return value

    def text(self, name: str) -> str:
        return self._get(name, (str,), "text")

    def name(self, name: str) -> str:
        """What somebody else has called a workload or a backend."""
        value = self.text(name)
        if not NAME.fullmatch(value):
            expected = "a name of letters, digits, '.', '-' and '_'"
            raise WorkerError("input", f"{self._where}.{name}: expected {expected}, found {value!a}")
        return value

    def text_or_null(self, name: str) -> str | None:
        return self._get(name, (str, type(None)), "text or null")

    def integer(self, name: str, least: int) -> int:
        expected = f"an integer of {least} or more"
        value = self._get(name, (int,), expected)
        if not least <= value <= LARGEST_COUNT:
            raise WorkerError("input", f"{self._where}.{name}: expected {expected}, found {value}")
        return value

    def _number(self, name: str, expected: str, fits: Callable[[float], bool]) -> float:
        value = float(self._get(name, (int, float), expected))
        if not (fits(value) and math.isfinite(value)):
            raise WorkerError("input", f"{self._where}.{name}: expected {expected}, found {value}")
        return value

    def positive(self, name: str) -> float:
        return self._number(name, "a positive number", lambda value: value > 0)

    def zero_or_more(self, name: str) -> float:
        return self._number(name, "a number of 0 or more", lambda value: value >= 0)

    def below_one(self, name: str) -> float:
        return self._number(name, "a number from 0 to below 1", lambda value: 0 <= value < 1)

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in known:
            expected = f"expected {', '.join(known)}, found {value[:60]!a}"
            raise WorkerError("input", f"{self._where}.{name}: {expected}")
        return value

    def expect_only(self, *known: str) -> None:
        """A worker that trained without what it does not know would train something else."""
        for name in self._fields:
            if name not in known:
                which = f"not a field of version {PROTOCOL_VERSION} of the worker protocol"
                raise WorkerError("input", f"{self._where}: {name[:60]!a} is {which}")

    def widths(self, name: str) -> tuple[int, ...]:
        value = self._get(name, (list,), "an array of widths")
        if len(value) < 2 or not all(type(width) is int and width >= 1 for width in value):
            raise WorkerError("input", f"{self._where}.{name}: expected two or more widths of 1 or more")
        return tuple(value)

    def indices(self, name: str) -> tuple[int, ...]:
        """Different numbers of 0 or more; none where the field is missing."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(type(index) is int and index >= 0 for index in value):
            raise WorkerError("input", f"{self._where}.{name}: expected an array of indices of 0 or more")
        if len(set(value)) != len(value):
            raise WorkerError("input", f"{self._where}.{name}: expected different indices, found {value}")
        return tuple(value)

    def has(self, name: str) -> bool:
        return name in self._fields

    def inner(self, name: str) -> Arguments:
        return Arguments(self._get(name, (dict,), "an object"), f"{self._where}.{name}")


def _describe(value: Any) -> str:
    names = {type(None): "null", dict: "an object", list: "an array"}
    return names.get(type(value)) or json.dumps(value)[:60]


def map_array(file: str, dtype: str, count: int) -> np.ndarray:
    """Maps a raw little-endian file, copy-on-write; `input` error unless it holds exactly `count` values."""
    import numpy as np

    try:
        size = os.path.getsize(file)
    except OSError as error:
        raise WorkerError("input", f"{file}: {error.strerror}") from None
    if size != count * np.dtype(dtype).itemsize:
        raise WorkerError("input", f"{file}: expected {count} values of 4 bytes, found {size} bytes")
    return np.memmap(file, dtype=dtype, mode="c", shape=(count,))


def map_for_writing(file: str, count: int) -> np.ndarray:
    """Maps a file of `count` fp32 values; what is put there has to be copied no further."""
    import numpy as np

    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(descriptor, 4 * count)
        # Else a full disk would be a signal that ends the worker.
        os.posix_fallocate(descriptor, 0, 4 * count)
        return np.memmap(file, dtype="<f4", mode="r+", shape=(count,))
    finally:
        os.close(descriptor)


def read_optimizer(fields: Arguments) -> Optimizer:
    kind, learning_rate = fields.one_of("kind", OPTIMIZERS), fields.positive("learning_rate")
    if kind == "sgd":
        fields.expect_only("kind", "learning_rate", "momentum")
        return Optimizer(kind, learning_rate, momentum=fields.below_one("momentum"))
    decays = ("weight_decay",) if kind == "adamw" else ()
    fields.expect_only("kind", "learning_rate", "beta1", "beta2", "epsilon", *decays)
    return Optimizer(
        kind,
        learning_rate,
        beta1=fields.below_one("beta1"),
        beta2=fields.below_one("beta2"),
        epsilon=fields.positive("epsilon"),
        weight_decay=fields.zero_or_more("weight_decay") if decays else 0.0,
    )


def map_targets(file: str, loss: str, samples: int, outputs: int) -> np.ndarray:
    """Labels are checked: one outside the classes would poison the CUDA context."""
    if loss != "cross-entropy":
        return map_array(file, "<f4", samples * outputs).reshape(samples, outputs)
    labels = map_array(file, "<i4", samples)
    if labels.min() < 0 or labels.max() >= outputs:
        raise WorkerError("input", f"{file}: a label is outside 0 to {outputs - 1}")
    return labels


def read_request(call: Arguments) -> TrainerRequest:
    """The arguments of `prepare`, checked."""
    workload, data = call.inner("workload"), call.inner("data")
    workload.expect_only("name", "widths", "activation", "loss", "batch_size", "optimizer", "seed", "devices")
    widths, loss = workload.widths("widths"), workload.one_of("loss", LOSSES)
    batch_size = workload.integer("batch_size", 1)
    devices = workload.integer("devices", 1) if workload.has("devices") else 1
    device_indices = call.indices("devices")
    if device_indices and len(device_indices) != devices:
        raise WorkerError("input", f"devices: expected {devices}, found {len(device_indices)}")
    samples, feature_count = data.integer("samples", 1), data.integer("feature_count", 1)
    if feature_count != widths[0]:
        raise WorkerError(
            "input", f"data.feature_count: {feature_count}, but the network has {widths[0]} inputs"
        )
    if devices * batch_size > samples:
        which = f"{devices * batch_size} is more than the {samples} samples"
        raise WorkerError("input", f"workload.batch_size: {which}")
    features = map_array(data.text("features_file"), "<f4", samples * feature_count)
    return TrainerRequest(
        backend=call.name("backend"),
        precision=call.text("precision"),
        workload_name=workload.name("name"),
        widths=widths,
        batch_size=batch_size,
        features=features.reshape(samples, feature_count),
        targets=map_targets(data.text("targets_file"), loss, samples, widths[-1]),
        parameters=map_array(call.text("parameters_file"), "<f4", parameter_count(widths)),
        cache_folder=call.text_or_null("cache_folder"),
        activation=workload.one_of("activation", ACTIVATIONS),
        loss=loss,
        optimizer=read_optimizer(workload.inner("optimizer")),
        devices=devices,
        device_indices=device_indices,
    )


def check_finite(value: Any, where: str) -> None:
    """Raises a `failed` error that names a number for which JSON has no word."""
    if isinstance(value, float) and not math.isfinite(value):
        raise WorkerError("failed", f"{where}: expected a finite number, found {value}")
    if isinstance(value, dict):
        for name, inner in value.items():
            check_finite(inner, f"{where}.{name}" if where else str(name))
    if isinstance(value, list):
        for inner in value:
            check_finite(inner, f"{where}[]")


class Session:
    """Answers one call after another; holds at most one trainer."""

    def __init__(self, backends: Any):
        self._backends = backends
        self._trainer: Trainer | None = None
        self._state_size = 0  # values
        self._calls = {
            "hello": self._hello,
            "prepare": self._prepare,
            "train": self._train,
            "losses": self._losses,
            "state": self._state,
            "set_state": self._set_state,
            "reference": self._reference,
            "range": self._range,
            "release": self._release,
        }

    def answer(self, line: bytes) -> dict:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:
            message = one_line(f"request: expected a line of JSON, found {error}")
            return {"id": None, "ok": False, "error": {"kind": "input", "message": message}}
        request_id = request.get("id") if isinstance(request, dict) else None
        if not isinstance(request_id, (int, str)):
            request_id = None
        try:
            result = self._call(Arguments(request, "request"))
            check_finite(result, "")
            return {"id": request_id, "ok": True, "result": result}
        except Exception as error:
            failure = self._failure(error)
        # Out here the exception is gone, and with it the frames and tensors it held.
        if failure["kind"] == "out_of_memory":
            self._backends.free_memory()
        return {"id": request_id, "ok": False, "error": failure}

    def _call(self, arguments: Arguments) -> dict:
        name = arguments.text("call")
        if name not in self._calls:
            raise WorkerError(
                "input", f"request.call: unknown call '{name}', expected {', '.join(self._calls)}"
            )
        return self._calls[name](arguments)

    def _failure(self, error: Exception) -> dict:
        if isinstance(error, WorkerError):
            return {"kind": error.kind, "message": one_line(str(error))}
        kind = self._backends.error_kind(error)
        if kind == "failed":
            traceback.print_exc()  # to the worker's log
        return {"kind": kind, "message": one_line(f"{type(error).__name__}: {error}")}

    def _held(self) -> Trainer:
        if self._trainer is None:
            raise WorkerError("input", "no trainer is prepared: call prepare first")
        return self._trainer

    def _hello(self, arguments: Arguments) -> dict:
        version = arguments.integer("protocol", 0)
        if version != PROTOCOL_VERSION:
            raise WorkerError("input", f"request.protocol: expected {PROTOCOL_VERSION}, found {version}")
        return {"protocol": PROTOCOL_VERSION, **self._backends.hello()}

    def _prepare(self, arguments: Arguments) -> dict:
        self._drop_trainer()
        request = read_request(arguments)
        started = time.perf_counter()
        self._trainer = self._backends.prepare(request)
        self._state_size = parameter_count(request.widths) * (1 + len(request.optimizer.slots))
        return {
            "setup_seconds": time.perf_counter() - started,
            "setup_cache": self._trainer.setup_cache,
            "note": self._trainer.note,
        }

    def _train(self, arguments: Arguments) -> dict:
        timing = self._held().train(arguments.integer("first_step", 0), arguments.integer("count", 1))
        return vars(timing)

    def _losses(self, arguments: Arguments) -> dict:
        values = self._held().losses(arguments.integer("first_step", 0), arguments.integer("count", 1))
        values.astype("<f4", copy=False).tofile(arguments.text("file"))
        return {"count": int(values.size)}

    def _state(self, arguments: Arguments) -> dict:
        trainer = self._held()
        values = trainer.state(map_for_writing(arguments.text("file"), self._state_size))
        return {"count": int(values.size)}

    def _set_state(self, arguments: Arguments) -> dict:
        trainer = self._held()
        trainer.set_state(map_array(arguments.text("file"), "<f4", self._state_size))
        return {}

    def _reference(self, arguments: Arguments) -> dict:
        raise WorkerError("unsupported", "reference: no backend of this worker is a double-precision oracle")

    def _range(self, arguments: Arguments) -> dict:
        name = arguments.name("name") if arguments.text_or_null("name") is not None else None
        begin = getattr(self._backends, "begin_range", None)
        if begin is None:
            raise WorkerError("unsupported", "range: this worker has none")
        begin(name)
        return {}

    def _release(self, arguments: Arguments) -> dict:
        if self._trainer is None:
            getattr(self._backends, "get_ready", lambda: None)()
            return {"peak_device_bytes": None}
        peak = self._trainer.peak_device_bytes()
        self._drop_trainer()
        return {"peak_device_bytes": peak}

    def _drop_trainer(self) -> None:
        if self._trainer is not None:
            getattr(self._trainer, "close", lambda: None)()
            self._trainer = None
            self._backends.free_memory()


def encoded(answer: dict) -> str:
    try:
        return json.dumps(answer, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:  # a trainer's own type, say
        failure = {"kind": "failed", "message": one_line(f"the answer cannot be written: {error}")}
        return json.dumps({"id": answer["id"], "ok": False, "error": failure})


def serve(requests: int, answers: int, backends: Any) -> int:
    """Serves descriptor `requests` until it ends; returns the process's exit code."""
    session = Session(backends)
    with os.fdopen(requests, "rb") as lines, os.fdopen(answers, "wb") as out:
        for line in lines:
            if not line.strip():
                continue
            answer = encoded(session.answer(line))
            try:
                out.write(answer.encode() + b"\n")
                out.flush()
            except BrokenPipeError:  # the driver is gone
                os._exit(0)
    sys.stderr.flush()
    return 0
