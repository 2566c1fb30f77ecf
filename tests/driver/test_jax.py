"""The JAX rows through the driver, on the CPU: verified against the oracle, caught where they are wrong."""

import json
import os
import subprocess
import sys

import pytest
from running import PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
from worker_process import PACKAGE, jax_python  # noqa: E402

PYTHON = jax_python()
needs_jax = pytest.mark.skipif(
    PYTHON is None, reason="JAX is not installed: HEADROOM_JAX_PYTHON names no Python with it"
)

# The JAX worker with an optimizer whose learning rate is 1 % off.
FAULTY_WORKER = """
import dataclasses, os, runpy, sys
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, {package!r})
from headroom_jax import rules
sgd = rules.OPTIMIZERS["sgd"]
faster = lambda rule: dataclasses.replace(rule, learning_rate=1.01 * rule.learning_rate)
rules.OPTIMIZERS["sgd"] = lambda rule, *arguments: sgd(faster(rule), *arguments)
runpy.run_module("headroom_jax", run_name="__main__")
"""


def records_of_a_run(folder, *arguments, **environment) -> tuple[int, dict]:
    """Exit code and records, by backend and precision."""
    output = folder / "a.json"
    words = ["run", "--workload", "mlp-64x48x32x10-b16", "--device", "-1", "--output", output, "--no-figures"]
    done = subprocess.run(
        [PROGRAM, *map(str, [*words, *arguments])],
        env=os.environ | {"HEADROOM_ROOT": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert output.exists(), done.stderr
    records = json.loads(output.read_text())["records"]
    return done.returncode, {(record["backend"], record["precision"]): record for record in records}


@needs_jax
def test_both_rows_are_verified_in_fp32_and_bf16(tmp_path):
    code, records = records_of_a_run(
        tmp_path, "--backend", "jax-jit,jax-scan", "--precision", "fp32,bf16", "--block-seconds", 0.02
    )
    assert len(records) == 4
    for (backend, precision), record in records.items():
        assert (record["outcome"], record["verification"]["verdict"]) == ("ok", "pass"), record["message"]
        assert record["contract"] == "exact"
        assert record["step_seconds"]["median"] > 0
        assert ("unroll" in record["message"]) == (backend == "jax-scan"), precision
    assert code == 0


@needs_jax
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_learning_rate_one_per_cent_off_is_caught(tmp_path, precision):
    worker = tmp_path / "worker.py"
    worker.write_text(FAULTY_WORKER.format(package=str(PACKAGE)))
    code, records = records_of_a_run(
        tmp_path, "--backend", "jax-jit", "--precision", precision, "--worker", f"jax={PYTHON} {worker}"
    )
    record = records["jax-jit", precision]
    assert (record["outcome"], record["verification"]["verdict"]) == ("failed", "fail")
    assert record["message"].startswith("verification: ")
    assert record["step_seconds"] is None
    assert code == 1


def test_rows_without_jax_are_skipped_with_the_reason(tmp_path):
    python = tmp_path / "python"
    blocked = "import runpy, sys; sys.modules['jax'] = None; sys.argv = sys.argv[2:]"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "{blocked}; '
        "runpy.run_module('headroom_jax', run_name='__main__')\" \"$@\"\n"
    )
    python.chmod(0o755)
    code, records = records_of_a_run(
        tmp_path, "--backend", "jax-jit,jax-scan", HEADROOM_JAX_PYTHON=str(python)
    )
    assert [record["outcome"] for record in records.values()] == ["skipped", "skipped"]
    for record in records.values():
        assert record["message"].startswith("JAX cannot be imported by this Python: ")
    assert code == 0
