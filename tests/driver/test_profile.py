"""`headroom profile`: what it says without a GPU, and what it asks the worker of a made-up one."""

import json
import uuid
from pathlib import Path

import pytest
from running import FAULT_WORKER, SMALL, assert_refused, headroom, proxy

# Notes every call; takes part in ranges if RANGES is set.
WATCHED = """
def tamper(request):
    with open({log!r}, "a") as log:
        log.write(line.decode())
    if request["call"] == "range":
        return {{}}
    def change(result):
        if os.environ.get("RANGES"):
            result["ranges"] = True
        else:
            result.pop("ranges")  # as a worker of before there were any
    return change if request["call"] == "hello" else None
"""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Runs a profile of the fault worker on a made-up GPU; returns what it printed and the calls."""
    log, device = tmp_path / "calls", f"GPU-{uuid.uuid4()}"
    monkeypatch.setenv("FAULT_DEVICE", device)

    def run(*words, **environment):
        worker = f"fault={proxy(tmp_path, WATCHED.format(log=str(log)))}"
        done = headroom("profile", *words, "--worker", worker, HEADROOM_COMMAND="./headroom", **environment)
        return done, [json.loads(line) for line in log.read_text().splitlines()]

    yield run
    Path(f"/tmp/headroom-{device}.lock").unlink(missing_ok=True)


def test_a_block_is_trained_after_the_check_each_in_its_range(watched):
    done, calls = watched(SMALL, "honest", "fp32", "--steps", "7", RANGES="1")
    assert done.returncode == 0, done.stderr
    begun = [call["name"] for call in calls if call["call"] == "range"]
    assert begun == ["set-up", "check", "warm-up", "block", None]
    inside, range_now = {}, None
    for call in calls:
        if call["call"] == "range":
            range_now = call["name"]
        else:
            inside.setdefault(range_now, []).append((call["call"], call.get("first_step"), call.get("count")))
    assert inside["set-up"] == [("prepare", None, None)]
    assert inside["warm-up"] == [("train", 0, 7)]
    assert inside["block"] == [("train", 7, 7)]
    assert ("train", 0, 10) in inside["check"]
    assert "honest/fp32 on made-up GPU: verified. A block of 7 steps took" in done.stdout


def test_it_prints_the_two_command_lines(watched):
    done, _ = watched(SMALL, "honest", "fp32", RANGES="1")
    command = f"./headroom profile {SMALL} honest fp32 --worker 'fault="
    assert f"  nsys profile --trace=cuda,nvtx --cuda-graph-trace=node {command}" in done.stdout
    ncu = "ncu --target-processes all --nvtx --nvtx-include block --launch-count 20 --set full"
    assert f"  {ncu} {command}" in done.stdout


def test_a_worker_without_ranges_is_asked_for_none(watched):
    done, calls = watched(SMALL, "honest", "fp32")
    assert done.returncode == 0, done.stderr
    assert "range" not in {call["call"] for call in calls}
    assert "Worker fault has no ranges" in done.stdout and "--nvtx-include" not in done.stdout


def test_what_fails_its_check_is_not_profiled(watched):
    done, calls = watched(SMALL, "fault-bias", "fp32", RANGES="1")
    assert done.returncode == 1
    assert "fault-bias: verification: " in done.stderr and done.stdout == ""
    assert "block" not in [call.get("name") for call in calls]


def test_what_cannot_train_it_is_wrong_input(watched):
    done, _ = watched(SMALL, "fault-unsupported", "fp32")
    assert_refused(done, f"profile: fault-unsupported does not train {SMALL}: widths must be even")


@pytest.mark.long  # of its parts Client.AWorkerHasAsLongToEndAsItsLimitSays has one
def test_a_profiler_gets_all_the_time_to_write(watched, tmp_path):
    """The end of the worker's process is waited for, longer than in a run."""
    script = tmp_path / "slow"
    script.write_text(f'#!/bin/sh\n{FAULT_WORKER} "$@"\nsleep 6\necho written > {tmp_path}/profile\n')
    script.chmod(0o755)
    done = headroom("profile", SMALL, "honest", "fp32", "--worker", f"fault={script}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "profile").read_text() == "written\n"


def test_without_a_gpu_it_says_so_in_one_line():
    done = headroom("profile", SMALL, "oracle", "fp32")
    assert_refused(done, "profile: no CUDA device 0 was found")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected WORKLOAD BACKEND PRECISION"),
        ([SMALL, "oracle"], "found 2 of the three"),
        ([SMALL, "oracle", "fp23"], "fp23"),
        ([SMALL, "oracel", "fp32"], "unknown backend 'oracel'; did you mean 'oracle'?"),
        ([SMALL, "all", "fp32"], "profile all: expected one backend"),
        ([SMALL, "-oracle", "fp32"], "-oracle"),
        (["mlp-4x2", "oracle", "fp32"], "mlp-4x2"),
        (["pppo", "oracle", "fp32", "--suite", "users"], "has no workload 'pppo'; did you mean 'ppo'?"),
        ([SMALL, "oracle", "fp32", "more"], "unknown argument 'more'"),
        ([SMALL, "oracle", "fp32", "--steps", "0"], "--steps"),
        ([SMALL, "oracle", "fp32", "--setps", "3"], "did you mean '--steps'?"),
    ],
)
def test_wrong_usage_is_refused(arguments, said):
    assert_refused(headroom("profile", *arguments), said)
