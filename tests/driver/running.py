"""What the tests with workers that mean no good share: the program, and a proxy before a worker."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("HEADROOM_BUILD")
if not BUILD or not (Path(BUILD) / "bin" / "headroom").exists():
    pytest.skip("HEADROOM_BUILD names no build", allow_module_level=True)
PROGRAM = str(Path(BUILD) / "bin" / "headroom")
FAULT_WORKER = Path(BUILD) / "bin" / "headroom-fault-worker"
SMALL = "mlp-12x8x4-b8"
SCRATCH_PARENTS = [Path("/dev/shm"), Path(tempfile.gettempdir())]

# A worker that hands everything on to the fault worker, but for what a test has put into `tamper(request)`:
# called before a request is handed on, it may return a function that changes the answer, or an answer.
PROXY = """
import json, os, subprocess, sys, time
{tamper}
worker = subprocess.Popen([{worker!r}, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    request = json.loads(line)
    change = tamper(request)
    if isinstance(change, dict):
        answer = {{"id": request["id"], "ok": True, "result": change}}
    else:
        worker.stdin.write(line)
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        if change is not None and answer["ok"]:
            change(answer["result"])
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""


def proxy(folder: Path, tamper: str) -> str:
    """The command of a proxy whose Python source `tamper` defines tamper(request)."""
    program = folder / "proxy.py"
    program.write_text(PROXY.format(tamper=tamper, worker=str(FAULT_WORKER)))
    return f"{sys.executable} -I -S {program}"


def start(*arguments, **environment):
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HEADROOM_ROOT": str(ROOT)} | environment,
    )


def scratch_of(process) -> list[Path]:
    return [folder for parent in SCRATCH_PARENTS for folder in parent.glob(f"headroom-{process.pid}-*")]


def headroom(*arguments, **environment):
    process = start(*arguments, **environment)
    try:
        output, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert scratch_of(process) == []
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_words(output: Path, worker: object = FAULT_WORKER, backends="oracle-honest") -> list:
    return [
        *("run", "--workload", SMALL, "--worker", f"fault={worker}", "--backend", backends, "--device", -1),
        *("--output", output, "--no-figures"),
    ]


def records_of(output: Path) -> dict:
    return {record["backend"]: record for record in json.loads(output.read_text())["records"]}


def assert_refused(done, *said):
    assert done.returncode == 2, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("headroom: ")]
    assert len(complaints) == 1, done.stderr
    for text in said:
        assert text in complaints[0]
