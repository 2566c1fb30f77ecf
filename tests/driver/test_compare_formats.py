"""`headroom compare --format`: each format against its published schema, or read by the tool it is for."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compared import compare, record, results, write
from test_compare_files import steps

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

# https://bencher.dev/bmf.json
BENCHER = {
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        name: {"type": "number"} for name in ("value", "lower_value", "upper_value")
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
# What the documentation of github-action-benchmark asks of a custom tool, and its own types.
GITHUB_ACTION = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
        "additionalProperties": False,
    },
}


@pytest.fixture
def formatted(tmp_path):
    """One cell that is slower, one that is the same, one that failed."""
    failed = {"outcome": "failed", "message": "verification: a | b"}
    base = [record(steps(1, i), backend=f"cuda-{i}") for i in range(3)]
    head = [
        record(steps(1.1, 10), backend="cuda-0"),
        record(steps(1.0, 11), backend="cuda-1"),
        record(steps(1.0, 12), backend="cuda-2", **failed),
    ]
    files = write(tmp_path / "base.json", results(base)), write(tmp_path / "head.json", results(head))

    def make(name):
        done = compare(*files, "--format", name)
        assert done.returncode == 1, done.stderr
        return done.stdout

    return make


def test_bencher_metric_format(formatted):
    metrics = json.loads(formatted("bencher"))
    jsonschema.Draft7Validator(BENCHER).validate(metrics)
    assert set(metrics) == {"mlp-784x10-b32/cuda-0/fp32", "mlp-784x10-b32/cuda-1/fp32"}
    for name, ratio in (("cuda-0", 1.1), ("cuda-1", 1.0)):
        metric = metrics[f"mlp-784x10-b32/{name}/fp32"]
        assert metric["latency"]["value"] == pytest.approx(40e3 * ratio, rel=0.005)  # nanoseconds
        assert metric["head-over-base"]["value"] == pytest.approx(ratio, rel=0.005)
        for one in metric.values():
            assert one["lower_value"] < one["value"] < one["upper_value"]


def test_github_action_benchmark(formatted):
    entries = json.loads(formatted("github-action-benchmark"))
    jsonschema.Draft202012Validator(GITHUB_ACTION).validate(entries)
    assert [entry["unit"] for entry in entries] == ["us/step"] * 2
    assert entries[0]["value"] == pytest.approx(44, rel=0.005)
    assert entries[0]["extra"].startswith("regression: +")


def test_markdown_fits_a_comment(formatted):
    text = formatted("markdown")
    assert text.startswith("### Step time: REGRESSION: 1 failed, 1 regression, 1 equivalent")
    assert len(text) < 65536
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 3
    columns = {line.replace("\\|", "").count("|") for line in table}
    assert columns == {7}
    assert "FAILED: verification: a \\| b" in text


def test_text_is_a_table_and_a_sentence(formatted):
    text = formatted("text")
    assert "base: base.json\nhead: head.json\n" in text
    assert "REGRESSION: 1 failed, 1 regression, 1 equivalent (tolerance" in text
    assert any(
        line.startswith("mlp-784x10-b32/cuda-0/fp32") and line.endswith("REGRESSION")
        for line in text.splitlines()
    )


def compare_py():
    """Google Benchmark's reader: HEADROOM_GBENCH_COMPARE, PATH, or Debian's libbenchmark-tools."""
    for candidate in (
        os.environ.get("HEADROOM_GBENCH_COMPARE"),
        shutil.which("compare.py"),
        "/usr/share/benchmark/compare.py",
    ):
        if candidate and Path(candidate).exists():
            return candidate
    pytest.skip("Google Benchmark's compare.py is not here (Debian: libbenchmark-tools)")


def test_google_benchmark_has_the_fields_of_its_reader(formatted):
    document = json.loads(formatted("google-benchmark"))
    assert {"date", "executable", "library_build_type"} <= set(document["context"])
    runs = document["benchmarks"]
    assert len(runs) == 2 * 2 * 12
    for run in runs:
        assert {"name", "run_name", "run_type", "iterations", "real_time", "cpu_time", "time_unit"} <= set(
            run
        )
        assert run["run_type"] == "iteration" and run["time_unit"] == "us"
    head = [run["real_time"] for run in runs if run["name"] == "head/mlp-784x10-b32/cuda-0/fp32"]
    assert sorted(head) == pytest.approx(sorted(1e6 * value for value in steps(1.1, 10)))


def test_google_benchmarks_compare_reads_it(formatted, tmp_path):
    tool = compare_py()
    file = write(tmp_path / "gb.json", formatted("google-benchmark"))
    done = subprocess.run(
        [sys.executable, tool, "--no-color", "filters", str(file), "base", "head"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "cuda-0/fp32" in line]
    times = [line for line in lines if "pvalue" not in line]
    assert len(times) >= 12, done.stdout
    # The last six columns: change of time and CPU time as fractions, then old and new of both.
    assert all(float(line.split()[-6]) > 0.05 for line in times)
    (p_value,) = re.findall(r"cuda-0/fp32_pvalue +([0-9.]+)", done.stdout)
    assert float(p_value) < 0.01
