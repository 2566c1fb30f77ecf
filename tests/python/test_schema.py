"""results/schema.json: the example is valid, and copies with one fault each are not."""

import copy
import json
from pathlib import Path

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "results" / "schema.json").read_text())
EXAMPLE = json.loads((Path(__file__).parent / "data" / "example-results.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

MODEL = {"file": "net.py", "name": "make", "sha256": 64 * "0", "workload": "mlp-4x2-b1"}
DELETED = object()

FAULTS = {
    "another version": ("schema_version", 1),
    "no version": ("schema_version", DELETED),
    "unknown field at the top": ("extra", 1),
    "no device key": ("device", DELETED),
    "device without its name": ("device.name", DELETED),
    "run without complete": ("run.complete", DELETED),
    "complete as text": ("run.complete", "yes"),
    "local time": ("run.started_utc", "2026-01-01T00:00:00+01:00"),
    "the machine's name": ("host.hostname", "node7"),
    "number as text": ("records.0.step_seconds.median", "0.0005"),
    "time of zero": ("records.0.step_seconds.median", 0),
    "negative time": ("records.0.blocks.0.device_seconds", -1.0),
    "infinite time": ("records.0.blocks.0.device_seconds", float("inf")),
    "infinite loss": ("records.0.losses.0.values.1", float("inf")),
    "minus infinite loss": ("records.0.losses.0.last_mean", float("-inf")),
    "block of no steps": ("records.0.blocks.0.steps", 0),
    "unknown precision": ("records.0.precision", "fp8"),
    "unknown contract": ("records.0.contract", "close"),
    "unknown outcome": ("records.0.outcome", "fine"),
    "failed without a message": ("records.1.message", ""),
    "skipped with a time": ("records.2.step_seconds", {"median": 1.0, "low": 1.0, "high": 1.0}),
    "pass with a failed check": ("records.0.verification.checks.0.passed", False),
    "pass with no check": ("records.0.verification.checks", []),
    "passed with an unknown error": ("records.0.verification.checks.0.error", None),
    "accuracy over 1": ("records.0.losses.0.held_out_accuracy", 14),
    "misspelled field": ("records.0.stepseconds", 1),
    "width of zero": ("workloads.0.widths.1", 0),
    "accuracy beside R2": ("records.0.losses.0.held_out_r_squared", 0.5),
    "R2 over 1": (
        "records.0.losses.0",
        {**EXAMPLE["records"][0]["losses"][0], "held_out_accuracy": None, "held_out_r_squared": 2},
    ),
    "unknown activation": ("workloads.0.activation", "mish"),
    "no activation": ("workloads.0.activation", DELETED),
    "unknown loss": ("workloads.0.loss", "l1"),
    "unknown optimizer": ("workloads.0.optimizer.kind", "lion"),
    "sgd without momentum": ("workloads.0.optimizer.momentum", DELETED),
    "sgd with a beta": ("workloads.0.optimizer.beta1", 0.9),
    "adam without its numbers": ("workloads.0.optimizer", {"kind": "adam", "learning_rate": 0.1}),
    "momentum of 1": ("workloads.0.optimizer.momentum", 1),
    "an empty about": ("workloads.0.about", ""),
    "learning rate of zero": ("workloads.0.optimizer.learning_rate", 0),
    "absolute folder": ("workloads.0.dataset.folder", "/home/someone/mnist"),
    "floor of an unknown precision": ("workloads.0.floors.fp8", {"seconds": 1.0, "bound": "bytes"}),
    "the path of a model's file": ("run.model", {**MODEL, "file": "/home/someone/net.py"}),
    "a model without its digest": ("run.model", {**MODEL, "sha256": None}),
    "calibration without a unit": ("calibration.copy.unit", DELETED),
}


def with_fault(path: str, value: object) -> dict:
    document = copy.deepcopy(EXAMPLE)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    target = document
    for key in parents:
        target = target[key]
    if value is DELETED:
        del target[last]
    else:
        target[last] = value
    return document


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_example_is_valid():
    assert [error.message for error in VALIDATOR.iter_errors(EXAMPLE)] == []


def test_a_users_model_is_valid():
    assert VALIDATOR.is_valid(with_fault("run.model", MODEL))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    assert not VALIDATOR.is_valid(with_fault(*FAULTS[name]))


@pytest.mark.parametrize(
    "path", ["device", "run.finished_utc", "run.suite", "run.git_sha", "records.0.setup_seconds"]
)
def test_unknown_is_null(path):
    assert VALIDATOR.is_valid(with_fault(path, None))


def test_every_field_says_what_it_is():
    def silent(schema: dict, where: str) -> list[str]:
        found = []
        for name, field in schema.get("properties", {}).items():
            if not isinstance(field, dict):
                continue
            target = SCHEMA["$defs"].get(field.get("$ref", "").removeprefix("#/$defs/"), {})
            if "description" not in field and "description" not in target and "items" not in field:
                found.append(f"{where}.{name}")
            found += silent(field, f"{where}.{name}")
        return found

    missing = silent(SCHEMA, "")
    for name, definition in SCHEMA["$defs"].items():
        missing += silent(definition, name)
    assert missing == []
