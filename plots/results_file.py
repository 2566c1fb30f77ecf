"""Reads results files into rows, one for each record, checked for what the figures and the report need.

Checked by hand and not with jsonschema: figures are drawn where only matplotlib is installed, and a message
that names file, field and remedy is worth more here than the whole schema.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA_VERSION = 1
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
PYTORCH_FAMILIES = ("pytorch-", "libtorch-")
EAGER = "pytorch-eager"


class InputError(Exception):
    """A file that cannot be drawn. One line: where, what is wrong, what would be right."""


@dataclass(frozen=True)
class Floor:
    seconds: float
    bound: str  # what sets it: bytes, operations or exchanges


@dataclass(frozen=True)
class Term:
    """What is saved from one way of running a step to another (bench/analysis/ladder.h)."""

    name: str
    start: str  # backends, or floor; empty where there is none
    end: str
    seconds: float | None
    low: float | None
    high: float | None
    verdict: str  # positive, noise, negative or missing
    message: str


TERMS = ("python", "dispatch", "fusion", "choice", "kernels", "left")
VERDICTS = ("positive", "noise", "negative", "missing")


@dataclass(frozen=True)
class Workload:
    name: str
    widths: tuple[int, ...]
    batch_size: int
    learning_rate: float
    seed: int
    data: str  # what tells data sets apart, as a reader would name it
    parameters: int
    floors: dict[str, Floor] = field(compare=False)  # by precision; measured anew in every run
    ladders: dict[str, tuple[Term, ...]] = field(compare=False)  # by precision; empty in older files


@dataclass(frozen=True)
class Block:
    order: int
    steps: int
    step_seconds: float  # device time
    gpu: dict[str, object]  # what NVML said during the block; empty where it was not asked


@dataclass(frozen=True)
class Check:
    name: str
    tensor: str
    error: float | None  # None: not finite
    worst: float | None
    bound: float
    passed: bool


@dataclass(frozen=True)
class LossCurve:
    seed: int
    steps: tuple[int, ...]
    values: tuple[float, ...]  # NaN where the loss was not finite
    last_mean: float | None
    held_out_accuracy: float | None


@dataclass(frozen=True)
class Row:
    """One record. `state` is what a figure has to show: ok, unverified, failed or skipped."""

    file: str
    index: int  # in the file's `records`
    workload: Workload
    backend: str
    precision: str
    contract: str
    state: str
    message: str
    median: float | None  # seconds a step
    low: float | None
    high: float | None
    losses: tuple[LossCurve, ...]
    slowdown: tuple[str, ...]  # how hardware or heat held the clocks down; empty too where nobody looked
    blocks: tuple[Block, ...]
    checks: tuple[Check, ...]
    fraction_of_floor: float | None
    joules_per_step: float | None
    idle_watts: float | None
    wall_seconds: float | None  # of a step
    cpu_seconds: float | None  # of a step
    setup_seconds: float | None
    setup_cache: str  # cold, warm, or empty
    peak_device_bytes: int | None

    @property
    def curve_differs(self) -> bool:
        """The curve check's verdict, which does not undo the step checks."""
        return any(check.name == "curve" and not check.passed for check in self.checks)

    @property
    def timed(self) -> bool:
        return self.median is not None

    @property
    def counts(self) -> bool:
        """Whether its time is a result: a failed verification is never shown as fast."""
        return self.timed and self.state in ("ok", "unverified")


@dataclass(frozen=True)
class Source:
    """A file's run and machine, as it tells them."""

    file: str
    complete: bool
    run: dict[str, object]
    host: dict[str, object]
    device: dict[str, object] | None
    software: dict[str, str | None]
    calibration: dict[str, dict[str, object]]


@dataclass
class Results:
    device: str  # "NVIDIA H200" or "CPU: model"
    rows: list[Row] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)

    @property
    def partial(self) -> list[str]:
        """Files of runs that did not finish."""
        return [Path(source.file).name for source in self.sources if not source.complete]

    @property
    def clock(self) -> str:
        """What a block's time is: on a GPU that between two of its events, else a steady clock's."""
        return "device time" if any(source.device for source in self.sources) else "time"

    @property
    def workloads(self) -> list[Workload]:
        """By size, which the files' order is not: samples times parameters of a step."""
        found = {row.workload.name: row.workload for row in self.rows}.values()
        return sorted(found, key=lambda one: (one.parameters * one.batch_size, one.parameters, one.name))

    def baselines(self, row: Row) -> dict[str, Row]:
        """What `row` may be compared with: same file, workload and precision. Keys: best, eager."""
        rivals = [
            other
            for other in self.rows
            if (other.file, other.workload.name, other.precision)
            == (row.file, row.workload.name, row.precision)
            and other.counts
            and is_pytorch(other.backend)
        ]
        found = {}
        if rivals:
            found["best"] = min(rivals, key=lambda other: other.median)
        for other in rivals:
            if other.backend == EAGER:
                found["eager"] = other
        return found


def is_pytorch(backend: str) -> bool:
    return backend.startswith(PYTORCH_FAMILIES)


def is_ours(backend: str) -> bool:
    """Hand-written kernels."""
    return backend == "cuda" or backend.startswith("cuda-")


def is_oracle(backend: str) -> bool:
    """The reference of the checks; it is drawn, but never a competitor."""
    return backend == "oracle" or backend.startswith("oracle-")


class _Fields:
    """A JSON object whose reading names the file and the path of what is wrong."""

    def __init__(self, values: object, file: str, path: str):
        self.file, self.path = file, path
        if not isinstance(values, dict):
            self.fail("", "an object", values)
        self.values = values

    def fail(self, name: str, expected: str, found: object) -> None:
        where = f"{self.path}.{name}".strip(".")
        text = json.dumps(found, default=str)
        text = text if len(text) <= 40 else text[:37] + "..."
        raise InputError(f"{self.file}: {where and f'{where}: '}expected {expected}, found {text}")

    def get(self, name: str, types: tuple[type, ...], expected: str) -> object:
        if name not in self.values:
            raise InputError(f"{self.file}: {f'{self.path}.{name}'.strip('.')}: missing, expected {expected}")
        value = self.values[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            self.fail(name, expected, value)
        return value

    def text(self, name: str) -> str:
        return " ".join(self.get(name, (str,), "text").split())

    def integer(self, name: str) -> int:
        return self.get(name, (int,), "an integer")

    def number(self, name: str, nullable: bool = False) -> float | None:
        types = (int, float, type(None)) if nullable else (int, float)
        value = self.get(name, types, "a number or null" if nullable else "a number")
        if value is not None and not math.isfinite(value):
            self.fail(name, "a finite number", str(value))
        return value

    def positive(self, name: str) -> float:
        value = self.number(name)
        if value <= 0:
            self.fail(name, "a positive number", value)
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in choices:
            self.fail(name, f"one of {', '.join(choices)}", value)
        return value

    def array(self, name: str) -> list:
        return self.get(name, (list,), "an array")

    def object(self, name: str) -> _Fields:
        return _Fields(self.get(name, (dict,), "an object"), self.file, f"{self.path}.{name}".strip("."))

    def object_or_null(self, name: str) -> _Fields | None:
        return None if self.get(name, (dict, type(None)), "an object or null") is None else self.object(name)

    def objects(self, name: str) -> list[_Fields]:
        path = f"{self.path}.{name}".strip(".")
        return [_Fields(value, self.file, f"{path}[{index}]") for index, value in enumerate(self.array(name))]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _document(path: Path) -> _Fields:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file, expected a results file of headroom run") from None
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not valid JSON, expected a results file of headroom run: {error}"
        ) from None
    fields = _Fields(values, str(path), "")
    version = fields.integer("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{path}: schema_version: expected {SCHEMA_VERSION}, found {version}")
    return fields


def _term(fields: _Fields) -> Term:
    verdict = fields.choice("verdict", VERDICTS)
    numbers = [fields.number(name, nullable=verdict == "missing") for name in ("seconds", "low", "high")]
    ends = ["" if fields.values.get(name) is None else fields.text(name) for name in ("from", "to")]
    return Term(fields.choice("name", TERMS), *ends, *numbers, verdict, fields.text("message"))


def _ladders(fields: _Fields) -> dict[str, tuple[Term, ...]]:
    if "ladders" not in fields.values:  # files of earlier versions
        return {}
    ladders = fields.object("ladders")
    for name in ladders.values:
        if name not in PRECISIONS:
            ladders.fail(name, f"one of {', '.join(PRECISIONS)}", name)
    return {name: tuple(_term(term) for term in ladders.objects(name)) for name in ladders.values}


def _workload(fields: _Fields) -> Workload:
    widths = fields.array("widths")
    if len(widths) < 2 or not all(type(width) is int and width > 0 for width in widths):
        fields.fail("widths", "two or more positive widths", widths)
    dataset = fields.object("dataset")
    data = dataset.text("kind")
    if dataset.values.get("folder") is not None:
        data = dataset.text("folder")
    floors = fields.object("floors")
    return Workload(
        name=fields.text("name"),
        widths=tuple(widths),
        batch_size=fields.integer("batch_size"),
        learning_rate=fields.object("optimizer").positive("learning_rate"),
        seed=fields.integer("seed"),
        data=data,
        parameters=fields.integer("parameters"),
        floors={
            name: Floor(floors.object(name).positive("seconds"), floors.object(name).text("bound"))
            for name in floors.values
        },
        ladders=_ladders(fields),
    )


def _curve(fields: _Fields) -> LossCurve:
    steps, values = fields.array("steps"), fields.array("values")
    if len(steps) != len(values):
        fields.fail("values", f"{len(steps)} values, one for each of steps", len(values))
    if not all(type(step) is int for step in steps) or any(
        a >= b for a, b in zip(steps, steps[1:], strict=False)
    ):
        fields.fail("steps", "ascending integers", steps)
    for value in values:
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            fields.fail("values", "finite numbers or null", value)
    return LossCurve(
        seed=fields.integer("seed"),
        steps=tuple(steps),
        values=tuple(math.nan if value is None else float(value) for value in values),
        last_mean=fields.number("last_mean", nullable=True),
        held_out_accuracy=fields.number("held_out_accuracy", nullable=True),
    )


def _slowdown(fields: _Fields) -> tuple[str, ...]:
    reasons = fields.values.get("slowdown_reasons") or []  # files of earlier versions lack it
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        fields.fail("slowdown_reasons", "an array of texts or null", reasons)
    return tuple(reasons)


def _block(fields: _Fields) -> Block:
    steps = fields.integer("steps")
    if steps < 1:
        fields.fail("steps", "a positive integer", steps)
    return Block(
        order=fields.integer("order"),
        steps=steps,
        step_seconds=fields.positive("device_seconds") / steps,
        gpu={} if fields.values.get("gpu") is None else fields.object("gpu").values,
    )


def _check(fields: _Fields) -> Check:
    return Check(
        name=fields.text("name"),
        tensor=fields.text("tensor"),
        error=fields.number("error", nullable=True),
        worst=fields.number("worst", nullable=True),
        bound=fields.number("bound"),
        passed=fields.get("passed", (bool,), "true or false"),
    )


def _row(fields: _Fields, index: int, workloads: dict[str, Workload]) -> Row:
    name = fields.text("workload")
    if name not in workloads:
        fields.fail("workload", "the name of an entry of workloads", name)
    outcome = fields.choice("outcome", ("ok", "skipped", "failed"))
    verification = fields.object("verification")
    verdict = verification.choice("verdict", ("pass", "fail", "not_run"))
    if outcome == "skipped":
        state = "skipped"
    elif outcome == "failed" or verdict == "fail":
        state = "failed"
    else:
        state = "ok" if verdict == "pass" else "unverified"
    time = fields.object_or_null("step_seconds")
    energy = fields.values.get("energy")
    message = fields.text("message")
    if state == "failed" and not message:
        message = "verification failed"
    return Row(
        file=fields.file,
        index=index,
        workload=workloads[name],
        backend=fields.text("backend"),
        precision=fields.choice("precision", PRECISIONS),
        contract=fields.choice("contract", ("exact", "autocast", "library")),
        state=state,
        message=message,
        median=time.positive("median") if time else None,
        low=time.positive("low") if time else None,
        high=time.positive("high") if time else None,
        losses=tuple(_curve(curve) for curve in fields.objects("losses")),
        slowdown=_slowdown(fields),
        blocks=tuple(_block(block) for block in fields.objects("blocks")),
        checks=tuple(_check(check) for check in verification.objects("checks")),
        fraction_of_floor=fields.number("fraction_of_floor", nullable=True),
        joules_per_step=fields.number("joules_per_step", nullable=True),
        idle_watts=fields.object("energy").number("idle_watts", nullable=True) if energy else None,
        wall_seconds=fields.number("wall_step_seconds", nullable=True),
        cpu_seconds=fields.number("cpu_step_seconds", nullable=True),
        setup_seconds=fields.number("setup_seconds", nullable=True),
        setup_cache=fields.values.get("setup_cache") or "",
        peak_device_bytes=fields.number("peak_device_bytes", nullable=True),
    )


def _source(document: _Fields) -> Source:
    run = document.object("run")
    software, calibration = document.object("software"), document.object("calibration")
    return Source(
        file=document.file,
        complete=run.get("complete", (bool,), "true or false"),
        run=run.values,
        host=document.object("host").values,
        device=document.values["device"],
        software=software.values,
        calibration={name: calibration.object(name).values for name in calibration.values},
    )


def read_results(paths: list[Path]) -> Results:
    """Rows of all files, which must be of one device model and must not repeat a record."""
    results: Results | None = None
    seen: dict[tuple[str, str, str], str] = {}
    known: dict[str, tuple[Workload, str]] = {}
    for path in paths:
        document = _document(path)
        if "planted" in document.values and len(paths) > 1:
            continue  # the gate's proof, which lies beside the results files; gate.py draws it
        device = document.object_or_null("device")
        cpu = document.object("host").values.get("cpu")
        name = device.text("name") if device else f"CPU: {' '.join(str(cpu or 'unknown model').split())}"
        if results is None:
            results = Results(device=name)
        elif name != results.device:
            raise InputError(
                f"{path}: measured on {name}, but {paths[0]} on {results.device}: draw them separately"
            )
        results.sources.append(_source(document))
        workloads: dict[str, Workload] = {}
        for fields in document.objects("workloads"):
            workload = _workload(fields)
            if workload.name in workloads:
                fields.fail("name", "a name that is unique in its file", workload.name)
            if workload.name in known and known[workload.name][0] != workload:
                other = known[workload.name][1]
                raise InputError(f"{path}: {fields.path}: '{workload.name}' is another workload in {other}")
            workloads[workload.name] = workload
            known[workload.name] = (workload, str(path))
        for index, fields in enumerate(document.objects("records")):
            row = _row(fields, index, workloads)
            key = (row.workload.name, row.backend, row.precision)
            if key in seen:
                what = f"{row.backend} {row.precision} of '{row.workload.name}'"
                raise InputError(
                    f"{path}: {fields.path}: {what} is already in {seen[key]}: draw them separately"
                )
            seen[key] = str(path)
            results.rows.append(row)
    return results
