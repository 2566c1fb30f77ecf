"""What the tests of `headroom compare` share: the program, builds with made-up times, results files."""

import copy
import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("HEADROOM_BUILD")
if not BUILD or not (Path(BUILD) / "bin" / "headroom").exists():
    pytest.skip("HEADROOM_BUILD names no build", allow_module_level=True)
PROGRAM = str(Path(BUILD) / "bin" / "headroom")
TIMED_WORKER = Path(BUILD) / "bin" / "headroom-timed-worker"
EXAMPLE = json.loads((ROOT / "tests" / "python" / "data" / "example-results.json").read_text())
SMALL, SECOND = "mlp-12x8x4-b8", "mlp-6x5x3-b4"


def start(*arguments):
    return subprocess.Popen(
        [PROGRAM, "compare", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HEADROOM_ROOT": str(ROOT)},
    )


def finish(process, timeout=300):
    output, errors = process.communicate(timeout=timeout)
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        assert list(folder.glob(f"headroom-{process.pid}-*")) == []
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def compare(*arguments):
    return finish(start(*arguments))


def assert_refused(done, *said, code=2):
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    # Progress may come before it; the complaint is one line.
    complaints = [line for line in done.stderr.splitlines() if line.startswith("headroom: ")]
    assert len(complaints) == 1, done.stderr
    for text in said:
        assert text in complaints[0]


def build_with(folder: Path, times: str = "", program: str | None = None) -> Path:
    """A build folder whose CUDA worker makes up its times; `program`: a script in its place."""
    (folder / "bin").mkdir(parents=True)
    worker = folder / "bin" / "headroom-cuda-worker"
    worker.write_text(program or f'#!/bin/sh\nHEADROOM_TIMES="{times}" exec {TIMED_WORKER} "$@"\n')
    worker.chmod(0o755)
    return folder


def of_builds(base: Path, head: Path, workloads=SMALL, backends="cuda-layered"):
    return ["--base", base, "--head", head, "--workload", workloads, "--backend", backends, "--device", "-1"]


def compare_builds(base: Path, head: Path, *arguments, **cells):
    return compare(*of_builds(base, head, **cells), *arguments)


def record(steps_seconds, workload="mlp-784x10-b32", backend="cuda-layered", precision="fp32", **fields):
    """A verified record with one block for each of the step times."""
    made = copy.deepcopy(EXAMPLE["records"][0])
    made |= {"workload": workload, "backend": backend, "precision": precision, "losses": [], "message": ""}
    made["blocks"] = [
        {
            "order": i,
            "steps": 1000,
            "device_seconds": seconds * 1000,
            "wall_seconds": abs(seconds) * 1100,
            "cpu_seconds": abs(seconds) * 900,
        }
        for i, seconds in enumerate(steps_seconds)
    ]
    return made | fields


def results(records):
    """A results file with these records; their workloads are 784-10 and the like."""
    made = copy.deepcopy(EXAMPLE)
    made["records"] = records
    made["host"] |= {"kernel": None, "memory_bytes": None}
    workload = made["workloads"][0]
    made["workloads"] = []
    for name in dict.fromkeys(one["workload"] for one in records):
        widths, batch = name.removeprefix("mlp-").split("-b")
        entry = copy.deepcopy(workload) | {
            "name": name,
            "widths": [int(width) for width in widths.split("x")],
            "batch_size": int(batch),
        }
        made["workloads"].append(entry)
    return made


def write(path: Path, content) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
