"""What a run writes: who may write a file, what is in it whatever ends the run, and what is refused at once.

Needs a build: HEADROOM_BUILD (set by ./headroom test) names it.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_driver import (
    BUILD,
    FAULT_WORKER,
    ROOT,
    SMALL,
    assert_refused,
    headroom,
    read,
    run_small,
    start,
    write_idx,
)

# Whatever a test begins ends with it, and blocks of 0.02 s are as good as longer ones here.
QUICK = ["--worker", FAULT_WORKER, "--backend", "oracle-honest", "--no-figures", "--block-seconds", "0.02"]


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    monkeypatch.setenv("HEADROOM_ROOT", str(ROOT))


@pytest.fixture
def begun():
    """Starts runs; those that are still there at the end of the test are killed, with what they left."""
    processes = []

    def begin(*arguments):
        processes.append(start("run", *arguments))
        return processes[-1]

    yield begin
    for process in processes:
        kill(process)


def kill(process):
    process.kill()
    process.communicate()
    for folder in (Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp"))):
        for leftover in folder.glob(f"headroom-{process.pid}-*"):
            shutil.rmtree(leftover)


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def python_that(tmp_path, monkeypatch, script):
    """A program in place of Python, which draws the figures and serves PyTorch's rows."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("HEADROOM_PYTHON", str(program))


def outcomes(results):
    return {record["backend"]: record["outcome"] for record in results["records"]}


def test_runs_that_start_together_each_have_a_file_of_their_own(tmp_path, monkeypatch, begun):
    monkeypatch.setenv("HEADROOM_ROOT", str(tmp_path))  # whose results/runs this test can count
    processes = [begun("--workload", f"mlp-12x{width}x4-b8", *QUICK) for width in (5, 6, 7, 8)]
    named = []
    for width, process in zip((5, 6, 7, 8), processes, strict=True):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        named.append(output.splitlines()[-1].removeprefix("Results: "))
        results = read(named[-1])
        assert results["run"]["complete"]
        assert [record["workload"] for record in results["records"]] == [f"mlp-12x{width}x4-b8"]
    files = list((tmp_path / "results" / "runs").iterdir())
    assert sorted(map(str, files)) == sorted(named)


def test_a_file_belongs_to_the_run_that_writes_it(tmp_path, begun):
    output = tmp_path / "a.json"
    command = ["--workload", f"{SMALL},mlp-12x9x4-b8", *QUICK, "--blocks", "40"]
    first = begun(*command, "--output", output)
    wait_for(output.exists)
    assert read(output)["run"]["complete"] is False  # a valid one from the first moment on
    assert_refused(headroom("run", *command, "--output", output), "there is such a file")
    assert_refused(headroom("run", "--resume", output, *QUICK), "another run is writing it")
    wait_for(lambda: read(output)["records"])
    assert_refused(headroom("run", "--resume", output, *QUICK), "another run is writing it")
    kill(first)
    assert len(read(output)["records"]) == 1

    second = begun("--resume", output, "--worker", FAULT_WORKER, "--no-figures")
    assert "on the CPU" in "".join(line for line, _ in zip(second.stderr, range(3), strict=False))
    assert_refused(headroom("run", "--resume", output, *QUICK), "another run is writing it")
    assert second.wait(timeout=60) == 0
    assert len(read(output)["records"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_while_it_asks_its_workers_leaves_no_file(tmp_path, monkeypatch, begun, how):
    output = tmp_path / "runs" / "a.json"
    asked = tmp_path / "asked"
    python_that(tmp_path, monkeypatch, f"touch {asked}; exec sleep 100")
    run = begun("--workload", SMALL, "--backend", "oracle,pytorch-eager", "--no-figures", "--output", output)
    wait_for(asked.exists)
    run.send_signal(how)
    run.communicate(timeout=20)
    assert run.returncode == (130 if how == signal.SIGINT else -9)
    assert not output.parent.exists() or list(output.parent.iterdir()) == []


def test_a_run_that_is_killed_before_its_first_record_leaves_a_file_to_go_on_with(
    tmp_path, monkeypatch, begun
):
    output = tmp_path / "runs" / "a.json"
    command = ["--workload", SMALL, "--backend", "oracle,pytorch-eager", "--no-figures", "--output", output]
    killed = begun(*command)
    wait_for(output.exists)
    kill(killed)
    assert read(output)["records"] == []
    python_that(tmp_path, monkeypatch, "exit 1")
    done = headroom("run", "--resume", output, "--no-figures")
    results = read(output)
    assert results["run"]["complete"], done.stderr
    assert outcomes(results)["oracle"] == "ok"


def test_a_full_disk_ends_the_run_and_keeps_the_file_as_it_was(tmp_path, begun):
    """A limit on the size of the driver's files stands in for the disk."""
    data = tmp_path / "idx"
    data.mkdir()
    write_idx(data)
    output = tmp_path / "runs" / "a.json"
    workloads = [f"mlp-12x{width}x4-b8" for width in (5, 6, 7, 8)]
    arguments = ["--workload", ",".join(workloads), *QUICK, "--data", data, "--output", output]
    process = begun(*arguments)
    wait_for(lambda: output.exists() and read(output)["records"])
    limit = output.stat().st_size + 100
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert printed == ""
    assert errors.splitlines()[-1] == f"headroom: {output}: cannot be written: File too large"
    assert list(output.parent.iterdir()) == [output]
    results = read(output)
    assert 1 <= len(results["records"]) < 4
    assert results["run"]["complete"] is False
    done = headroom("run", "--resume", output, "--worker", FAULT_WORKER, "--data", data, "--no-figures")
    assert done.returncode == 0, done.stderr
    assert len(read(output)["records"]) == 4


def test_a_record_that_fails_at_its_release_has_no_time_anywhere(tmp_path):
    out = tmp_path / "gb.json"
    done = run_small(
        tmp_path / "a.json",
        *(f"--benchmark_out={out}", "--benchmark_context=who=me", "--block-seconds", 0.02),
        backends="oracle-honest,fault-dies-in-release,fault-unavailable",
    )
    assert done.returncode == 1
    records = {record["backend"]: record for record in read(tmp_path / "a.json")["records"]}
    late = records["fault-dies-in-release"]
    assert late["outcome"] == "failed"
    assert late["message"].startswith("releasing: ")
    assert late["verification"]["verdict"] == "pass"  # which is so
    assert late["blocks"] == []
    for name in (
        "step_seconds",
        "wall_step_seconds",
        "cpu_step_seconds",
        "fraction_of_floor",
        "joules_per_step",
    ):
        assert late[name] is None

    report = json.loads(out.read_text())
    assert report["context"]["gpu"] == "none"
    assert report["context"]["who"] == "me"
    runs = {}
    for run in report["benchmarks"]:
        if run["run_type"] == "iteration":
            runs.setdefault(run["name"].split("/")[1], []).append(run)
    (failed,), (skipped,) = runs["fault-dies-in-release"], runs["fault-unavailable"]
    assert failed["error_occurred"] is True
    assert failed["error_message"] == late["message"]
    assert failed["real_time"] == skipped["real_time"] == 0
    assert "no such device" in json.dumps(skipped)
    blocks = records["oracle-honest"]["blocks"]
    for run, block in zip(runs["oracle-honest"], blocks, strict=True):
        assert run["real_time"] == pytest.approx(block["device_seconds"] / block["steps"] * 1e6)
        assert run["cpu_time"] == pytest.approx(block["cpu_seconds"] / block["steps"] * 1e6)
        assert run["operations_per_second"] > 0
        assert "exact" in run["label"]


def test_an_interrupt_keeps_the_benchmark_file_of_what_was_finished(tmp_path, begun):
    out = tmp_path / "gb.json"
    out.write_text("an earlier one")
    command = ["--workload", f"{SMALL},mlp-64x64x10-b64", *QUICK, "--blocks", "20"]
    process = begun(*command, "--output", tmp_path / "a.json", f"--benchmark_out={out}")
    wait_for(lambda: out.read_text() != "an earlier one")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    workloads = {run["name"].split("/")[0] for run in json.loads(out.read_text())["benchmarks"]}
    assert workloads == {SMALL}
    done = headroom(
        "run", "--resume", tmp_path / "a.json", *QUICK[:2], "--no-figures", "--benchmark_format=csv"
    )
    assert done.returncode == 0, done.stderr
    # The earlier records are in the report of the run that went on.
    assert f'"{SMALL}/oracle-honest/fp32/manual_time"' in done.stdout
    assert '"mlp-64x64x10-b64/oracle-honest/fp32/manual_time"' in done.stdout


def test_the_table_is_printed_before_figures_are_drawn(tmp_path, monkeypatch, begun):
    python_that(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/drawn; exec sleep 100')
    output = tmp_path / "r"
    arguments = ["--workload", SMALL, *QUICK, "--output", output]
    arguments.remove("--no-figures")
    process = begun(*arguments)
    wait_for((tmp_path / "drawn").exists)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "verified" in printed
    assert printed.splitlines()[-1] == f"Results: {output}"
    assert read(output)["run"]["complete"] is True
    # A file without .json does not share its name with the folder of its figures.
    assert f"--output={output}-figures -- {output}" in (tmp_path / "drawn").read_text()


def test_a_floor_that_cannot_be_computed_costs_the_floor_only(tmp_path, monkeypatch):
    monkeypatch.setenv("FAULT_DEVICE", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(BUILD) / "bin" / "fake-nvml"))
    monkeypatch.setenv("FAULT_CALIBRATION", "")
    output = tmp_path / "a.json"
    quick = ["--device", -1, "--energy-seconds", 0, "--block-seconds", 0.02, "--wait"]
    assert run_small(output, *quick).returncode == 0
    results = read(output)
    results["run"]["complete"] = False
    results["records"] = []
    results["workloads"] = []
    results["calibration"]["copy"]["value"] = 0
    output.write_text(json.dumps(results))
    done = headroom("run", "--resume", output, "--worker", FAULT_WORKER, "--no-figures", "--wait")
    assert done.returncode == 0, done.stderr
    assert f"No floor of {SMALL} in fp32: calibration: copy is 0" in done.stderr
    (record,) = read(output)["records"]
    assert record["outcome"] == "ok"
    assert record["fraction_of_floor"] is None


def test_failed_records_are_measured_again_where_that_is_asked_for(tmp_path):
    output = tmp_path / "a.json"
    quick = ["--block-seconds", 0.02, "--precision", "fp32,bf16"]
    assert run_small(output, *quick, backends="oracle-honest,honest").returncode == 0
    resume = ["run", "--resume", output, "--worker", FAULT_WORKER, "--no-figures"]
    assert_refused(headroom(*resume, "--retry-failed"), "no record failed")
    before = read(output)
    before["records"][1].update(outcome="failed", message="out of memory", step_seconds=None, blocks=[])
    output.write_text(json.dumps(before))
    assert_refused(headroom(*resume), "complete", "--retry-failed")
    done = headroom(*resume, "--retry-failed")
    assert done.returncode == 0, done.stderr
    after = read(output)
    assert after["run"]["complete"] is True
    cells = [(record["backend"], record["precision"]) for record in after["records"]]
    assert cells == [(record["backend"], record["precision"]) for record in before["records"]]
    assert all(record["outcome"] == "ok" for record in after["records"])
    # With what it is compared with, as their blocks are interleaved; the other precision stays as it was.
    assert after["records"][0]["blocks"] != before["records"][0]["blocks"]
    assert after["records"][2:] == before["records"][2:]


TOO_LARGE = [
    "--device",
    "-1",
    "--backend",
    "oracle",
    "--workload",
    "mlp-" + "x".join(17 * ["65536"]) + "-b65536",
]
TOO_LONG = ["--workload", SMALL, *QUICK[:-2], "--blocks", "100000", "--block-seconds", "60"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", *TOO_LARGE, "--output", "a.json"], " of memory, "),
        (["run", *TOO_LONG, "--output", "a.json"], "more than a day: start it with --yes"),
        (["compare", "--self-check", *TOO_LARGE], " of memory, "),
    ],
)
def test_what_does_not_fit_or_takes_days_is_refused_before_anything_is_made(
    tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    done = headroom(*arguments, timeout=20)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_yes_starts_what_takes_days(tmp_path, begun):
    process = begun(*TOO_LONG, "--yes", "--output", tmp_path / "a.json")
    assert any("1 record on the CPU: about 1833 h" in line for line in process.stderr)


def test_names_after_two_dashes_are_no_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_small("-a.json", "--block-seconds", 0.02).returncode == 0
    shutil.copy("-a.json", "b.json")
    done = headroom("compare", "--tolerance", 10, "--", "-a.json", "b.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("base: -a.json\n")
    through_the_door = [str(ROOT / "headroom"), "compare", "--build", BUILD, "--", "-a.json", "--help"]
    done = subprocess.run(through_the_door, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--help: cannot be read" in done.stderr
