"""Reads results files into rows, one for each record. Types are as results/schema.json says.

Files of version 1 are read too: what they lack gets the value that was meant before the field was there.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import json_file
from json_file import InputError

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
VERSION = 2
OPTIMIZER_NUMBERS = ("learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay")
EAGER = "pytorch-eager"


@dataclass(frozen=True)
class Floor:
    seconds: float
    bound: str  # what sets it: bytes, operations, exchanges or link


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


@dataclass(frozen=True)
class Optimizer:
    kind: str  # sgd, adam or adamw
    numbers: tuple[tuple[str, float], ...]  # those that its kind has, by name

    @property
    def short(self) -> str:
        """As in a workload's name: empty for plain sgd."""
        momentum = dict(self.numbers).get("momentum")
        return f"momentum {momentum:g}" if momentum else self.kind if self.kind != "sgd" else ""


@dataclass(frozen=True)
class Workload:
    name: str
    widths: tuple[int, ...]
    activation: str
    loss: str
    batch_size: int
    optimizer: Optimizer
    seed: int
    data: str  # what tells data sets apart, as a reader would name it
    parameters: int
    floors: dict[str, Floor] = field(compare=False)  # by precision; measured anew in every run
    ladders: dict[str, tuple[Term, ...]] = field(compare=False)  # by precision; empty in older files
    about: str = field(compare=False)  # where it comes from; may be empty
    # By precision and the backend that chose: the backend that it took. Empty in older files.
    taken: dict[str, dict[str, str]] = field(compare=False)
    devices: int = 1  # GPUs, each with that batch

    @property
    def trained(self) -> str:
        """What is no default, as 'tanh, mse, adam, 2 GPUs'; mostly empty."""
        parts = (
            self.activation if self.activation != "relu" else "",
            self.loss if self.loss != "cross-entropy" else "",
            self.optimizer.short,
            f"{self.devices} GPUs" if self.devices > 1 else "",
        )
        return ", ".join(part for part in parts if part)

    @property
    def network(self) -> str:
        """'17-64-64-6, batch 64, tanh, mse, adam'."""
        shape = f"{'-'.join(map(str, self.widths))}, batch {self.batch_size}"
        return f"{shape}, {self.trained}" if self.trained else shape

    @property
    def has_own_name(self) -> bool:
        """Whether its name leaves what is trained to be said elsewhere."""
        return not self.name.startswith(f"mlp-{'x'.join(map(str, self.widths))}-b{self.batch_size}")


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
    held_out_r_squared: float | None  # of these two one is not known


@dataclass(frozen=True)
class Row:
    """One record. `state` is what a figure has to show: ok, unverified, failed or skipped."""

    file: str
    index: int  # in the file's `records`
    workload: Workload
    backend: str
    family: str  # Family in bench/core/record.h
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
    refuted: bool  # its verification failed

    @property
    def taken(self) -> str:
        """The backend that it took, of one that takes one of several; else empty."""
        return self.workload.taken.get(self.precision, {}).get(self.backend, "")

    @property
    def named(self) -> str:
        """'cuda (cuda-tiled)' of a backend that has taken another."""
        return f"{self.backend} ({self.taken})" if self.taken else self.backend

    @property
    def is_pytorch(self) -> bool:
        """From Python or from C++."""
        return self.family in ("pytorch", "libtorch")

    @property
    def is_ours(self) -> bool:
        """Hand-written kernels."""
        return self.family == "ours"

    @property
    def is_reference(self) -> bool:
        """Of the checks; it is drawn, but never a competitor."""
        return self.family == "reference"

    @property
    def is_rival(self) -> bool:
        return not self.is_ours and not self.is_reference

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

    def refuted_rivals(self, row: Row) -> list[str]:
        """Rivals in the row's file, workload and precision that failed verification.

        Nobody knows whether they would have been the fastest, so there is no speed-up.
        """
        return [
            other.backend
            for other in self.rows
            if (other.file, other.workload.name, other.precision)
            == (row.file, row.workload.name, row.precision)
            and other.refuted
            and other.is_rival
        ]

    def baselines(self, row: Row) -> dict[str, Row]:
        """What `row` may be compared with: same file, workload and precision. Keys: best, rival, eager."""
        rivals = [
            other
            for other in self.rows
            if (other.file, other.workload.name, other.precision)
            == (row.file, row.workload.name, row.precision)
            and other.counts
            and other.is_rival
        ]
        found = {}
        if rivals:
            found["rival"] = min(rivals, key=lambda other: other.median)
        if pytorch := [other for other in rivals if other.is_pytorch]:
            found["best"] = min(pytorch, key=lambda other: other.median)
        for other in pytorch:
            if other.backend == EAGER:
                found["eager"] = other
        return found


def refuted_text(rivals: list[str]) -> str:
    """'libtorch-graph and jax-scan failed verification'; empty for none."""
    names = " and ".join(filter(None, (", ".join(rivals[:-1]), *rivals[-1:])))
    return f"{names} failed verification" if rivals else ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _term(term: dict) -> Term:
    return Term(
        name=term["name"],
        start=_one_line(term["from"]),
        end=_one_line(term["to"]),
        seconds=term["seconds"],
        low=term["low"],
        high=term["high"],
        verdict=term["verdict"],
        message=_one_line(term["message"]),
    )


def _workload(workload: dict) -> Workload:
    dataset = workload["dataset"]
    return Workload(
        name=_one_line(workload["name"]),
        widths=tuple(workload["widths"]),
        activation=workload["activation"],
        loss=workload["loss"],
        batch_size=workload["batch_size"],
        optimizer=_optimizer(workload["optimizer"]),
        seed=workload["seed"],
        data=_one_line(dataset["folder"]) or dataset["kind"],
        parameters=workload["parameters"],
        floors={name: Floor(one["seconds"], one["bound"]) for name, one in workload["floors"].items()},
        ladders={
            name: tuple(map(_term, terms))
            for name, terms in workload.get("ladders", {}).items()  # files of earlier versions have none
        },
        about=_one_line(workload["about"]),
        taken={
            precision: {_one_line(name): _one_line(choice["taken"]) for name, choice in choices.items()}
            for precision, choices in workload.get("choices", {}).items()
        },
        devices=workload.get("devices", 1),  # files of earlier versions have none
    )


def _optimizer(optimizer: dict) -> Optimizer:
    numbers = tuple((name, float(optimizer[name])) for name in OPTIMIZER_NUMBERS if name in optimizer)
    return Optimizer(kind=optimizer["kind"], numbers=numbers)


def _curve(curve: dict, where: str) -> LossCurve:
    steps, values = curve["steps"], curve["values"]
    if len(steps) != len(values):
        raise InputError(
            f"{where}.values: expected {len(steps)} values, one for each of steps, found {len(values)}"
        )
    if any(a >= b for a, b in pairwise(steps)):
        raise InputError(f"{where}.steps: expected ascending numbers")
    return LossCurve(
        seed=curve["seed"],
        steps=tuple(steps),
        values=tuple(math.nan if value is None else float(value) for value in values),
        last_mean=curve["last_mean"],
        held_out_accuracy=curve["held_out_accuracy"],
        held_out_r_squared=curve["held_out_r_squared"],
    )


def _block(block: dict) -> Block:
    return Block(
        order=block["order"],
        steps=block["steps"],
        step_seconds=block["device_seconds"] / block["steps"],
        gpu=block.get("gpu") or {},
    )


def _check(check: dict) -> Check:
    return Check(
        name=_one_line(check["name"]),
        tensor=_one_line(check["tensor"]),
        error=check["error"],
        worst=check["worst"],
        bound=check["bound"],
        passed=check["passed"],
    )


def _family_by_name(backend: str) -> str:
    """Of the backends that there were when files did not say it: version 1, the first ones of version 2."""
    beginnings = {"oracle": "reference", "cublaslt": "vendor", "cuda": "ours"}
    beginnings |= {name: name for name in ("pytorch", "libtorch", "jax")}
    return beginnings.get(backend.split("-", 1)[0], "other")


def _state(outcome: str, verdict: str) -> str:
    if outcome == "skipped":
        return "skipped"
    if outcome == "failed" or verdict == "fail":
        return "failed"
    return "ok" if verdict == "pass" else "unverified"


def _row(record: dict, file: str, index: int, workloads: dict[str, Workload]) -> Row:
    where = f"{file}: records[{index}]"
    name = _one_line(record["workload"])
    if name not in workloads:
        raise InputError(f"{where}.workload: expected the name of one of workloads, found {name}")
    state = _state(record["outcome"], record["verification"]["verdict"])
    message = _one_line(record["message"])
    if state == "failed" and not message:
        message = "verification failed"
    time = record["step_seconds"] or dict.fromkeys(("median", "low", "high"))
    return Row(
        file=file,
        index=index,
        workload=workloads[name],
        backend=_one_line(record["backend"]),
        family=record.get("family") or _family_by_name(record["backend"]),
        precision=record["precision"],
        contract=record["contract"],
        state=state,
        message=message,
        **time,
        losses=tuple(_curve(one, f"{where}.losses[{at}]") for at, one in enumerate(record["losses"])),
        slowdown=tuple(record.get("slowdown_reasons") or ()),  # files of earlier versions lack it
        blocks=tuple(map(_block, record["blocks"])),
        checks=tuple(map(_check, record["verification"]["checks"])),
        fraction_of_floor=record["fraction_of_floor"],
        joules_per_step=record["joules_per_step"],
        idle_watts=(record.get("energy") or {}).get("idle_watts"),
        wall_seconds=record["wall_step_seconds"],
        cpu_seconds=record["cpu_step_seconds"],
        setup_seconds=record["setup_seconds"],
        setup_cache=record.get("setup_cache") or "",
        peak_device_bytes=record["peak_device_bytes"],
        refuted=record["verification"]["verdict"] == "fail",
    )


def _source(document: dict, file: str) -> Source:
    return Source(
        file=file,
        complete=document["run"]["complete"],
        run=document["run"],
        host=document["host"],
        device=document["device"],
        software=document["software"],
        calibration=document["calibration"],
    )


def _device_name(document: dict) -> str:
    if document["device"]:
        return _one_line(document["device"]["name"])
    return f"CPU: {_one_line(document['host']['cpu']) or 'unknown model'}"


def _named(path: Path) -> str:
    """The name as text, under a locale that has no letters for its bytes as well."""
    return os.fsencode(path).decode("utf-8", "replace")


def _upgrade(document: object, path: Path) -> None:
    """Makes a document of version 1 one of this version. Other faults are left to the schema."""
    if not isinstance(document, dict) or "schema_version" not in document:
        return
    version = document["schema_version"]
    if type(version) is not int or version not in (1, VERSION):
        found = json_file.shown(version)
        raise InputError(f"{path}: schema_version: expected 1 or {VERSION}, found {found}")
    if version == VERSION:
        return
    document["schema_version"] = VERSION
    for workload, where in _list_of(document, "workloads", f"{path}: "):
        _add(workload, where, activation="relu", loss="cross-entropy", about=None)
        optimizer = workload.get("optimizer") if isinstance(workload, dict) else None
        if isinstance(optimizer, dict) and optimizer.get("kind") == "sgd":
            _add(optimizer, f"{where}.optimizer", momentum=0)
    for record, where in _list_of(document, "records", f"{path}: "):
        if isinstance(record, dict) and "family" in record:
            raise InputError(f"{where}.family: unknown field")
        for curve, place in _list_of(record, "losses", f"{where}."):
            _add(curve, place, held_out_r_squared=None)


def _list_of(value: object, key: str, where: str) -> list[tuple[object, str]]:
    """Each member of a list that `value` may have, and its place."""
    items = value.get(key) if isinstance(value, dict) else None
    return [(item, f"{where}{key}[{at}]") for at, item in enumerate(items if isinstance(items, list) else [])]


def _add(value: object, where: str, **fields: object) -> None:
    """Fields that came with this version; a file of version 1 that has them already is none."""
    if not isinstance(value, dict):
        return
    for name, default in fields.items():
        if name in value:
            raise InputError(f"{where}.{name}: unknown field")
        value[name] = default


def read_results(paths: list[Path], with_repeated: bool = False) -> Results:
    """Rows of all files, of one device model. No record may be there twice, unless `with_repeated`."""
    results: Results | None = None
    seen: dict[tuple[str, str, str], str] = {}
    known: dict[str, tuple[Workload, str]] = {}
    for path in paths:
        document = json_file.parsed(path, "a results file")
        if isinstance(document, dict) and "planted" in document and len(paths) > 1:
            continue  # the gate's proof, which lies beside the results files; gate.py draws it
        _upgrade(document, path)
        json_file.check(document, path, "schema.json")
        name = _device_name(document)
        if results is None:
            results = Results(device=name)
        elif name != results.device:
            raise InputError(
                f"{path}: measured on {name}, but {paths[0]} on {results.device}: draw them separately"
            )
        results.sources.append(_source(document, _named(path)))
        workloads: dict[str, Workload] = {}
        for index, entry in enumerate(document["workloads"]):
            workload, where = _workload(entry), f"{path}: workloads[{index}]"
            if workload.name in workloads:
                raise InputError(f"{where}.name: {workload.name} is there twice")
            if workload.name in known and known[workload.name][0] != workload:
                other = known[workload.name][1]
                raise InputError(f"{where}: '{workload.name}' is another workload in {other}")
            workloads[workload.name] = workload
            known[workload.name] = (workload, _named(path))
        for index, record in enumerate(document["records"]):
            row = _row(record, _named(path), index, workloads)
            key = (row.workload.name, row.backend, row.precision)
            if key in seen and not with_repeated:
                what = f"{row.backend} {row.precision} of '{row.workload.name}'"
                raise InputError(
                    f"{path}: records[{index}]: {what} is already in {seen[key]}: draw them separately"
                )
            seen[key] = _named(path)
            results.rows.append(row)
    return results
