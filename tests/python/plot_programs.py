"""The plot programs on made-up results: how they are started, and results with one thing changed or wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import made_up_results as made_up

ROOT = Path(__file__).resolve().parents[2]
FIGURES, REPORT = ROOT / "plots" / "figures.py", ROOT / "plots" / "report.py"


def run(
    program: Path, folder: Path, *documents, output: str = "figures", prelude: str = ""
) -> subprocess.CompletedProcess:
    files = []
    for index, document in enumerate(documents):
        files.append(folder / f"run{index}.json")
        files[-1].write_text(document if isinstance(document, str) else json.dumps(document))
    arguments = [*map(str, files), "-o", str(folder / output)]
    if prelude:
        start = f"import runpy, sys\nsys.argv = {[str(program), *arguments]!r}\n"
        start += f"sys.path.insert(0, {str(program.parent)!r})\n"
        command = [
            sys.executable,
            "-c",
            f"{start}{prelude}\nrunpy.run_path({str(program)!r}, run_name='__main__')",
        ]
    else:
        command = [sys.executable, str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def one_line(done: subprocess.CompletedProcess) -> str:
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def small(precision: str = "fp32", device: str | None = made_up.DEVICE) -> dict:
    """One workload, three backends in one precision."""
    document = made_up.empty_document(device)
    entry = made_up.workload((784, 128, 10))
    document["workloads"].append(entry)
    for backend, seconds in (("pytorch-eager", 1e-3), ("libtorch-eager", 8e-4), ("cuda-layered", 4e-5)):
        document["records"].append(made_up.record(entry["name"], backend, precision, seconds))
    return document


def changed(path: str, value: object) -> dict:
    document = small()
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    target = document
    for key in parents:
        target = target[key]
    target[last] = value
    return document


def edited(old: str, new: str) -> str:
    """The text of a good file with something in it that json.dumps() would not write."""
    text = json.dumps(small())
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


def with_ladder(**fields) -> dict:
    """A ladder of one term that is not missing, with something changed."""
    document = small()
    document["workloads"][0]["ladders"] = {"fp32": [{**made_up.ladder()[0], **fields}]}
    return document


DEEP = "[" * 100_000 + "]" * 100_000
NESTED = "expected a results file, found brackets more than 64 deep"
NO_JSON = "expected a results file, found no JSON"
# What every reader says, C++ or Python; where there are two texts, the second is Python's.
BAD_FILES = {
    "truncated": (lambda: json.dumps(small())[:-200], NO_JSON),
    "empty": (lambda: "", NO_JSON),
    "a list": (lambda: "[]", "expected an object, found []"),
    "NaN": (lambda: edited("4e-05", "NaN"), NO_JSON),
    "infinite": (lambda: edited("4e-05", "1e999"), NO_JSON, "records[2].step_seconds.median"),
    "400 digits": (lambda: edited("784, 128", "1" + 400 * "0"), NO_JSON, "workloads[0].widths[0]"),
    "deeply nested, open": (lambda: "[" * 100_000, NESTED),
    "deeply nested": (lambda: DEEP, NESTED),
    "deeply nested inside": (lambda: edited('"none"', DEEP), NESTED),
    "65 deep": (lambda: edited('"none"', "[" * 63 + "]" * 63), NESTED),
    "64 deep": (
        lambda: edited('"none"', "[" * 62 + "]" * 62),
        "host.os: expected a string or null, found [[",
    ),
    "lone surrogate": (lambda: edited("made-up CPU", "\\udc80"), NO_JSON),
    "lone surrogate in a key": (lambda: edited('"cores"', '"\\ud800": 1, "cores"'), NO_JSON),
    "control character in a key": (
        lambda: edited('"cores"', '"\\u001b[31m": 1, "cores"'),
        "control character",
    ),
    "key twice": (lambda: edited('"cores"', '"os": "x", "cores"'), "twice in one object"),
    "another version": (lambda: changed("schema_version", 3), "schema_version: expected 1 or 2, found 3"),
    "a version that is no whole number": (
        lambda: changed("schema_version", 1.0),
        "schema_version: expected 1 or 2, found 1.0",
    ),
    "version 1 with what came later": (
        lambda: changed("schema_version", 1),
        "workloads[0].",
    ),
    "null median": (
        lambda: changed("records.0.step_seconds.median", None),
        "records[0].step_seconds.median: expected a number, found null",
    ),
    "zero median": (
        lambda: changed("records.0.step_seconds.median", 0),
        "records[0].step_seconds.median: expected a number, at least 1e-15, at most 1e+12, found 0",
    ),
    "unknown workload": (
        lambda: changed("records.0.workload", "mlp"),
        "records[0].workload: expected the name of one of workloads, found mlp",
    ),
    "unknown precision": (
        lambda: changed("records.0.precision", "fp8"),
        'records[0].precision: expected one of fp32, tf32, fp16, bf16, found "fp8"',
    ),
    "unknown contract": (
        lambda: changed("records.0.contract", "close"),
        'records[0].contract: expected one of exact, autocast, library, found "close"',
    ),
    "unknown outcome": (
        lambda: changed("records.0.outcome", "fine"),
        'records[0].outcome: expected one of ok, skipped, failed, found "fine"',
    ),
    "unknown verdict": (
        lambda: changed("records.0.verification.verdict", "maybe"),
        "records[0].verification.verdict: expected one of pass, fail, cannot_be_checked, not_run,"
        ' found "maybe"',
    ),
    "unknown optimizer": (
        lambda: changed("workloads.0.optimizer.kind", "adagrad"),
        'workloads[0].optimizer.kind: expected one of sgd, adam, adamw, found "adagrad"',
    ),
    "optimizer without its numbers": (
        lambda: changed("workloads.0.optimizer", {"kind": "adam", "learning_rate": 0.1}),
        "workloads[0].optimizer.beta1: is missing",
    ),
    "optimizer with another's number": (
        lambda: changed("workloads.0.optimizer.beta1", 0.9),
        "workloads[0].optimizer.beta1: expected nothing, found 0.9",
    ),
    "beta of 1": (
        lambda: changed("workloads.0.optimizer", made_up.adam(beta2=1)),
        "workloads[0].optimizer.beta2: expected a number, at least 0, below 1, found 1",
    ),
    "unknown activation": (
        lambda: changed("workloads.0.activation", "mish"),
        'workloads[0].activation: expected one of relu, tanh, silu, gelu, elu, found "mish"',
    ),
    "unknown loss": (
        lambda: changed("workloads.0.loss", "l1"),
        'workloads[0].loss: expected one of cross-entropy, mse, bce, found "l1"',
    ),
    "accuracy and R2": (
        lambda: changed(
            "records.0.losses",
            [
                {
                    **{"seed": 1, "steps": [], "values": [], "last_mean": None},
                    **{"held_out_accuracy": 0.5, "held_out_r_squared": 0.5},
                }
            ],
        ),
        "records[0].losses[0].held_out_r_squared: expected null, found 0.5",
    ),
    "unknown data set": (
        lambda: changed("workloads.0.dataset.kind", "cifar"),
        'workloads[0].dataset.kind: expected one of synthetic, idx, found "cifar"',
    ),
    "files of no folder": (
        lambda: changed("workloads.0.dataset.kind", "idx"),
        "workloads[0].dataset.folder: expected a string, found null",
    ),
    "no records": (lambda: {k: v for k, v in small().items() if k != "records"}, "records: is missing"),
    "record as text": (lambda: changed("records.0", "x"), 'records[0]: expected an object, found "x"'),
    "widths as text": (
        lambda: changed("workloads.0.widths", "784x10"),
        'workloads[0].widths: expected a list, found "784x10"',
    ),
    "width as a fraction": (
        lambda: changed("workloads.0.widths.1", 128.0),
        "workloads[0].widths[1]: expected a whole number, found 128.0",
    ),
    "settings that are no text": (
        lambda: changed("run.settings", {"blocks": 16}),
        "run.settings.blocks: expected a string, found 16",
    ),
    "cache as a number": (
        lambda: changed("records.0.setup_cache", 3),
        "records[0].setup_cache: expected one of cold, warm, null, found 3",
    ),
    "ladder without an end": (
        lambda: with_ladder(high=None),
        "workloads[0].ladders.fp32[0].high: expected a number, found null",
    ),
    "missing term with a time": (
        lambda: with_ladder(verdict="missing", low=None, high=None),
        "workloads[0].ladders.fp32[0].seconds: expected null, found 0.00029",
    ),
    "floor of an unknown precision": (
        lambda: changed("workloads.0.floors", {"fp8": made_up.floor(1.0)}),
        "workloads[0].floors.fp8: unknown field",
    ),
    "passed without an error": (
        lambda: changed("records.0.verification.checks.0.error", None),
        "records[0].verification.checks[0].error: expected a number, found null",
    ),
    "pass with a check that failed": (
        lambda: changed("records.0.verification.checks.0.passed", False),
        "records[0].verification.checks[0].passed: expected true, found false",
    ),
    "skipped without a reason": (
        lambda: changed(
            "records.0", {**made_up.record("mlp-784x128x10-b32", "x", seconds=None), "message": ""}
        ),
        'records[0].message: expected a string, not empty, found ""',
    ),
    "the machine's name": (
        lambda: changed("host.hostname", "node7"),
        'host.hostname: expected nothing, found "node7"',
    ),
}
