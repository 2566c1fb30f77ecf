"""The picture of a step of cuda-tiled, from a made-up trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "plots" / "tiled_step.py"


def task(multiprocessor: int, name: str, begin: float) -> dict:
    return {
        "multiprocessor": multiprocessor,
        "task": name,
        "begin_seconds": begin,
        "first_slab_seconds": begin,
        "products_seconds": begin + 1e-6,
        "end_seconds": begin + 2e-6,
    }


def trace() -> dict:
    return {
        "workload": "mlp-784x256x10-b64",
        "precision": "bf16",
        "tasks": [
            task(0, "forward product of layer 1, tile row 0, column 0", 0),
            task(1, "outputs and loss, tile row 0, column 0", 3e-6),
            task(0, "update of layer 2, tile row 0, column 0", 6e-6),
        ],
    }


def run(folder: Path, text: str) -> subprocess.CompletedProcess:
    (folder / "trace.json").write_text(text)
    command = [sys.executable, str(PROGRAM), str(folder / "trace.json"), "-o", str(folder / "figures")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_trace_becomes_a_picture_that_names_its_workload_and_what_is_done(tmp_path):
    done = run(tmp_path, json.dumps(trace()))
    assert (done.returncode, done.stderr) == (0, "")
    drawn = (tmp_path / "figures" / "tiled-step.svg").read_text()
    for words in ("mlp-784x256x10-b64", "forward", "weight gradient and update", "loss", "multiprocessor"):
        assert words in drawn


@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({**trace(), "tasks": []}), json.dumps({**trace(), "tasks": [{"task": 1}]})]
)
def test_what_is_no_trace_is_bad_input_in_one_line(tmp_path, text):
    done = run(tmp_path, text)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "trace.json" in done.stderr
