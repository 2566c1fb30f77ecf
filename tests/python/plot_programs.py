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


BAD_FILES = {
    "truncated": (lambda: json.dumps(small())[:-200], "not valid JSON"),
    "empty": (lambda: "", "not valid JSON"),
    "a list": (lambda: "[]", "run0.json: expected an object, found []"),
    "NaN": (lambda: json.dumps(small()).replace("4e-05", "NaN", 1), "not valid JSON"),
    "infinite": (lambda: json.dumps(small()).replace("4e-05", "1e999", 1), "records[2].step_seconds.median"),
    "deeply nested": (lambda: "[" * 100_000, "not valid JSON"),
    "another version": (lambda: changed("schema_version", 2), "schema_version: expected 1, found 2"),
    "null median": (lambda: changed("records.0.step_seconds.median", None), "records[0].step_seconds.median"),
    "zero median": (lambda: changed("records.0.step_seconds.median", 0), "positive"),
    "unknown workload": (lambda: changed("records.0.workload", "mlp"), "records[0].workload"),
    "unknown precision": (lambda: changed("records.0.precision", "fp8"), "records[0].precision"),
    "no records": (lambda: {k: v for k, v in small().items() if k != "records"}, "records: missing"),
    "record as text": (lambda: changed("records.0", "x"), "records[0]: expected an object"),
    "widths as text": (lambda: changed("workloads.0.widths", "784x10"), "workloads[0].widths"),
}
