"""The program `headroom` end to end on the CPU, with the worker whose backends misbehave.

Needs a build: HEADROOM_BUILD (set by ./headroom test) names it.
"""

import fcntl
import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("HEADROOM_BUILD")
if not BUILD or not (Path(BUILD) / "bin" / "headroom").exists():
    pytest.skip("HEADROOM_BUILD names no build", allow_module_level=True)
PROGRAM = str(Path(BUILD) / "bin" / "headroom")
FAULT_WORKER = f"fault={Path(BUILD) / 'bin' / 'headroom-fault-worker'}"
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "results" / "schema.json").read_text()))
SMALL = "mlp-12x8x4-b8"


@pytest.fixture(autouse=True)
def checkout(monkeypatch):
    monkeypatch.setenv("HEADROOM_ROOT", str(ROOT))


def start(*arguments):
    return subprocess.Popen(
        [PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def assert_nothing_left(process):
    """Neither temporary folders nor workers outlive the program."""
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        assert list(folder.glob(f"headroom-{process.pid}-*")) == []


@pytest.fixture
def made_up_gpu(monkeypatch):
    """A device that the fault worker offers and a stand-in for NVML knows; returned: what sets its faults."""
    monkeypatch.setenv("FAULT_DEVICE", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(BUILD) / "bin" / "fake-nvml"))
    return lambda wrong: monkeypatch.setenv("FAKE_NVML", wrong)


def headroom(*arguments, timeout=300):
    process = start(*arguments)
    output, errors = process.communicate(timeout=timeout)
    assert_nothing_left(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_small(output, *arguments, backends="oracle-honest", workload=SMALL):
    return headroom(
        "run",
        "--workload",
        workload,
        "--worker",
        FAULT_WORKER,
        "--backend",
        backends,
        "--output",
        output,
        "--no-figures",
        *arguments,
    )


def read(path):
    results = json.loads(
        Path(path).read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the file")
    )
    VALIDATOR.validate(results)
    return results


def assert_refused(done, *said):
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for text in said:
        assert text in lines[0]


def test_a_workload_of_two_devices_is_checked_as_one_device_with_both_batches(tmp_path):
    backends = "oracle-honest,honest,fault-one-rank"
    done = run_small(tmp_path / "a.json", backends=backends, workload="mlp-12x8x4-b8-g2")
    assert done.returncode == 1, done.stderr
    results = read(tmp_path / "a.json")
    (workload,) = results["workloads"]
    assert (workload["batch_size"], workload["devices"]) == (8, 2)
    assert workload["dataset"]["batches"] == workload["dataset"]["samples"] // 16
    records = {record["backend"]: record for record in results["records"]}
    assert records["oracle-honest"]["verification"]["verdict"] == "pass"
    assert records["honest"]["outcome"] == "skipped"
    assert records["honest"]["message"] == "trains on one device"
    assert records["fault-one-rank"]["verification"]["verdict"] == "fail"


def test_devices_that_no_workload_trains_on_are_refused():
    assert_refused(headroom("run", "--devices", "0,0"), "--devices: 0 is there twice")
    assert_refused(headroom("run", "--devices", "0,1", "--device", "0"), "--device")


def test_honest_backend_is_verified_and_timed(tmp_path):
    done = run_small(tmp_path / "a.json", "--losses", 150, "--loss-seeds", "1,2", "--precision", "fp32,bf16")
    assert done.returncode == 0, done.stderr
    results = read(tmp_path / "a.json")
    assert results["run"]["complete"] is True
    assert results["device"] is None or results["device"]["name"]
    assert "argv" in results["run"] and not any(str(tmp_path) in word for word in results["run"]["argv"])
    assert [record["precision"] for record in results["records"]] == ["fp32", "bf16"]
    for record in results["records"]:
        assert record["outcome"] == "ok"
        assert record["verification"]["verdict"] == "pass"
        assert len(record["blocks"]) == 12
        for block in record["blocks"]:
            assert block["steps"] >= 50
            assert block["device_seconds"] >= 0.02
        assert [curve["seed"] for curve in record["losses"]] == [1, 2]
        assert record["losses"][0]["values"] != record["losses"][1]["values"]
        assert 0 <= record["losses"][0]["held_out_accuracy"] <= 1
        names = {check["name"] for check in record["verification"]["checks"]}
        assert {"step_update", "ten_steps", "losses_finite"} <= names
    assert "verified" in done.stdout


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_planted_faults_are_caught(tmp_path, precision):
    faults = [
        "fault-learning-rate",
        "fault-frozen-layer",
        "fault-bias",
        "fault-shifted-batches",
        "fault-nan",
        "empty",
    ]
    done = run_small(
        tmp_path / "a.json", "--precision", precision, backends=",".join([*faults, "oracle-honest"])
    )
    assert done.returncode == 1
    records = {record["backend"]: record for record in read(tmp_path / "a.json")["records"]}
    for fault in faults:
        assert records[fault]["outcome"] == "failed"
        assert records[fault]["verification"]["verdict"] == "fail"
        assert records[fault]["message"].startswith("verification: ")
        assert records[fault]["step_seconds"] is None
    assert records["oracle-honest"]["outcome"] == "ok"


def test_worker_that_misbehaves_costs_its_record_only(tmp_path):
    failing = {
        "fault-dies": "Aborted",
        "fault-hangs": "within 2 s",
        "fault-rubbish": "not JSON",
        "fault-throws": "two lines",
        "fault-stuck": "step 7 was not done after 10 s",
        "fault-times": "nan",
        "fault-out-of-memory": "1 TB",
        "fault-dies-in-prepare": "Aborted",
        "fault-throws-in-prepare": "setting up: ptxas is missing",
    }
    skipped = {"fault-unsupported": "even", "fault-unavailable": "no such device"}
    done = run_small(
        tmp_path / "a.json", "--time-limit", 2, backends=",".join([*failing, *skipped, "oracle-honest"])
    )
    assert done.returncode == 1
    assert "what():" not in done.stderr
    records = {record["backend"]: record for record in read(tmp_path / "a.json")["records"]}
    for backend, said in failing.items():
        assert records[backend]["outcome"] == "failed"
        assert said in records[backend]["message"]
    for backend, said in skipped.items():
        assert records[backend]["outcome"] == "skipped"
        assert said in records[backend]["message"]
    assert records["oracle-honest"]["verification"]["verdict"] == "pass"


def test_set_up_that_passes_its_limit_costs_its_record_only(tmp_path):
    backends = "fault-hangs-in-prepare,oracle-honest"
    done = run_small(tmp_path / "a.json", "--setup-limit", 1, "--precision", "fp32,bf16", backends=backends)
    assert done.returncode == 1
    for record in read(tmp_path / "a.json")["records"]:
        if record["backend"] == "oracle-honest":
            assert record["outcome"] == "ok"
            assert record["setup_seconds"] >= 0
            assert record["setup_cache"] is None
        else:
            assert record["outcome"] == "failed"
            assert record["message"].startswith("setting up: it takes longer than --setup-limit, 1 s")
            assert record["setup_seconds"] is None


def test_graph_and_compile_rows_say_why_they_do_not_run_on_the_cpu(tmp_path):
    rows = ["pytorch-graph", "pytorch-compile", "pytorch-compile-graph"]
    done = run_small(
        tmp_path / "a.json", "--device", -1, "--cache-dir", tmp_path / "cache", backends=",".join(rows)
    )
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / "a.json")["records"]
    assert [record["backend"] for record in records] == rows
    for record in records:
        assert record["outcome"] == "skipped"
        assert record["message"]


def test_a_broken_pytorch_fails_its_rows_and_no_others(tmp_path, monkeypatch):
    """A PyTorch that does not know the GPU ends the same way: tests/python/test_worker.py."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("HEADROOM_PYTHON", str(python))
    done = run_small(tmp_path / "a.json", backends="pytorch-eager,pytorch-compile,oracle-honest")
    assert done.returncode == 1, done.stderr
    records = {record["backend"]: record for record in read(tmp_path / "a.json")["records"]}
    assert records["oracle-honest"]["outcome"] == "ok"
    for backend in ("pytorch-eager", "pytorch-compile"):
        assert records[backend]["outcome"] == "failed"
        assert "libcudart" in records[backend]["message"]


def test_worker_is_started_again_for_the_next_precision(tmp_path):
    done = run_small(tmp_path / "a.json", "--precision", "fp32,bf16", backends="fault-dies")
    assert done.returncode == 1
    records = read(tmp_path / "a.json")["records"]
    assert len(records) == 2
    assert all("about to abort" in record["message"] for record in records)


def test_interrupt_keeps_what_was_finished_and_resume_goes_on(tmp_path):
    output = tmp_path / "a.json"
    command = ["run", "--workload", f"{SMALL},mlp-64x64x10-b64", "--worker", FAULT_WORKER]
    command += ["--backend", "oracle-honest", "--output", output, "--no-figures", "--blocks", "200"]
    process = start(*command)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if output.exists() and json.loads(output.read_text())["records"]:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    assert_nothing_left(process)
    before = read(output)
    assert before["run"]["complete"] is False
    assert len(before["records"]) == 1

    refused = headroom("run", "--resume", output, "--worker", FAULT_WORKER, "--blocks", "13")
    assert_refused(refused, "--blocks 200, not --blocks 13")
    other = headroom("run", "--resume", output, "--worker", FAULT_WORKER, "--backend", "empty")
    assert_refused(other, "--backend oracle-honest, not --backend empty")

    # The rest with fewer blocks: the file says so too, as a run with other settings would not go on with it.
    before["run"]["settings"]["blocks"] = "12"
    output.write_text(json.dumps(before))
    done = headroom("run", "--resume", output, "--worker", FAULT_WORKER, "--no-figures")
    assert done.returncode == 0, done.stderr
    after = read(output)
    assert after["run"]["complete"] is True
    assert after["run"]["id"] == before["run"]["id"]
    assert after["records"][0] == before["records"][0]
    assert [record["workload"] for record in after["records"]] == [SMALL, "mlp-64x64x10-b64"]
    assert_refused(headroom("run", "--resume", output, "--worker", FAULT_WORKER), "complete")


def test_resume_refuses_other_sources_and_devices(tmp_path):
    output = tmp_path / "a.json"
    assert run_small(output).returncode == 0
    results = read(output)
    results["run"]["complete"] = False
    changed = json.loads(json.dumps(results))
    changed["run"]["source_digest"] = "fnv1a64:0"
    output.write_text(json.dumps(changed))
    done = headroom("run", "--resume", output, "--worker", FAULT_WORKER)
    assert done.returncode == 2
    assert "source_digest" in done.stderr
    assert "starting the workers" not in done.stderr
    changed = json.loads(json.dumps(results))
    changed["device"] = {
        "name": "another GPU",
        "uuid": "GPU-0",
        "driver": None,
        "index": 0,
        "sm_count": 1,
        "compute_major": 9,
        "compute_minor": 0,
        "memory_bytes": 1,
        "l2_bytes": 1,
    }
    output.write_text(json.dumps(changed))
    done = headroom("run", "--resume", output, "--worker", FAULT_WORKER)
    assert done.returncode == 2
    assert "device" in done.stderr


def test_termination_while_the_driver_computes(tmp_path):
    """The driver itself may be busy (following the oracle) when the signal comes."""
    output = tmp_path / "a.json"
    process = start(
        "run", "--workload", "mlp-784x1024x1024x10-b256", "--backend", "oracle", "--output", output
    )
    for line in process.stderr:
        if "following the oracle" in line:
            break
    time.sleep(0.5)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert_nothing_left(process)
    read(output)


def test_google_benchmark_writes_one_file_for_the_run(tmp_path):
    out = tmp_path / "gb.json"
    arguments = [f"--benchmark_out={out}", "--precision", "fp32,bf16", "--benchmark_filter=honest"]
    assert run_small(tmp_path / "a.json", *arguments, backends="oracle-honest,empty").returncode == 0
    report = json.loads(out.read_text())
    assert report["context"]["executable"] == "headroom"
    runs = report["benchmarks"]
    names = {run["run_name"].split("/manual_time")[0].split("/iterations")[0] for run in runs}
    assert names == {f"{SMALL}/oracle-honest/fp32", f"{SMALL}/oracle-honest/bf16"}
    records = read(tmp_path / "a.json")["records"]
    steps = sorted(block["device_seconds"] / block["steps"] * 1e6 for block in records[0]["blocks"])
    reported = sorted(
        run["real_time"] for run in runs if run["run_type"] == "iteration" and run["name"].find("fp32") > 0
    )
    assert reported == pytest.approx(steps, rel=1e-6)


def test_what_cuda_took_is_in_the_file_and_choose_again_tells_its_worker(tmp_path):
    worker = tmp_path / "worker.sh"
    worker.write_text(
        f'#!/bin/sh\necho "since $HEADROOM_CHOICES_SINCE" >> {tmp_path}/log\n'
        f'HEADROOM_TIMES="step_us=30 takes=cuda-resident" exec {BUILD}/bin/headroom-timed-worker "$@"\n'
    )
    worker.chmod(0o755)
    arguments = ["run", "--workload", "mlp-12x8x4-b8", "--backend", "cuda", "--device", -1, "--no-figures"]
    arguments += ["--worker", f"cuda={worker}", "--cache-dir", tmp_path / "cache"]
    done = headroom(*arguments, "--output", tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "a.json")["workloads"][0]["choices"] == {
        "fp32": {
            "cuda": {
                "taken": "cuda-resident",
                "kept": False,
                "candidates": [
                    {"backend": "cuda-layered", "step_seconds": 3e-5, "left_out": None},
                    {"backend": "cuda-resident", "step_seconds": 2e-5, "left_out": None},
                    {"backend": "cuda-fused", "step_seconds": None, "left_out": "no"},
                ],
            }
        }
    }
    assert set((tmp_path / "log").read_text().splitlines()) == {"since "}
    before = time.time()
    done = headroom(*arguments, "--choose-again", "--output", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    since = [
        float(line.removeprefix("since "))
        for line in (tmp_path / "log").read_text().split("\n")
        if len(line) > 6
    ]
    assert since and all(before <= one <= time.time() for one in since)


def test_json_summary(tmp_path):
    done = run_small(tmp_path / "a.json", "--json")
    summary = json.loads(done.stdout)
    assert summary["complete"] is True
    assert summary["records"][0]["verdict"] == "pass"


def test_list_says_what_runs_here():
    done = headroom("list", "--json", "--worker", FAULT_WORKER)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert {"quick", "seed"} <= {suite["name"] for suite in listed["suites"]}
    backends = {backend["name"]: backend for backend in listed["backends"]}
    assert backends["oracle"]["runs"] is True
    for backend in backends.values():
        for precision in backend["precisions"].values():
            assert precision["runs"] or precision["reason"]


def test_the_suite_of_the_map_is_read_whole_and_listed_in_short():
    done = headroom("list", "--json", "--worker", FAULT_WORKER)
    (plane,) = [suite for suite in json.loads(done.stdout)["suites"] if suite["name"] == "plane"]
    names = plane["workloads"]
    assert len(names) == len(set(names)) == 77
    grid = {
        (h, b)
        for h in (64, 128, 256, 512, 1024, 2048, 4096)
        for b in (1, 32, 64, 128, 256, 1024, 4096, 16384)
    }
    grid |= {(h, 131072) for h in (64, 128, 256)}
    assert {f"mlp-784x{h}x{h}x{h}x10-b{b}" for h, b in grid} <= set(names)
    assert "mlp-784x2048x2048x2048x10-b4096-adam" in names
    assert "and 57 more, which list --json has" in headroom("list").stdout


def test_the_suite_of_what_people_train_says_of_each_what_and_whence():
    done = headroom("list", "--json", "--worker", FAULT_WORKER)
    (users,) = [suite for suite in json.loads(done.stdout)["suites"] if suite["name"] == "users"]
    assert len(users["workloads"]) == 12
    entries = json.loads((ROOT / "bench/suites/users.json").read_text())["workloads"]
    assert all(entry["about"].endswith(".") for entry in entries)
    assert re.search(r"^    ppo +mlp-17x64x64x6-b64-tanh-mse-adam$", headroom("list").stdout, re.M)


def test_a_workload_of_that_suite_is_verified_with_its_numbers_and_its_source(tmp_path):
    words = ["--suite", "users", "--workloads", "ppo", "--backend", "oracle", "--precision", "fp32"]
    more = [
        "--losses",
        20,
        "--loss-seeds",
        1,
        "--beta1",
        0.5,
        "--no-figures",
        "--output",
        tmp_path / "a.json",
    ]
    done = headroom("run", "--device", -1, *words, *more)
    assert done.returncode == 0, done.stderr
    assert "ppo: mlp-17x64x64x6-b64-tanh-mse-adam" in done.stdout
    results = read(tmp_path / "a.json")
    (workload,), (record,) = results["workloads"], results["records"]
    assert (workload["name"], workload["activation"], workload["loss"]) == ("ppo", "tanh", "mse")
    numbers = {"learning_rate": 3e-4, "beta1": 0.5, "beta2": 0.999, "epsilon": 1e-5}
    assert workload["optimizer"] == {"kind": "adam", **numbers}
    assert "CleanRL" in workload["about"]
    assert record["verification"]["verdict"] == "pass"
    assert record["losses"][0]["held_out_accuracy"] is None
    assert record["losses"][0]["held_out_r_squared"] <= 1


def test_labels_are_refused_for_a_regression_before_anything_is_measured(tmp_path):
    (tmp_path / "idx").mkdir()
    write_idx(tmp_path / "idx")
    words = ["--data", tmp_path / "idx", "--output", tmp_path / "a.json"]
    assert_refused(headroom("run", "--workload", f"{SMALL}-mse", *words), "IDX files hold labels")
    assert not (tmp_path / "a.json").exists()


def test_the_suite_of_trials_brings_their_worker():
    done = headroom("run", "--suite", "trials", "--device", -1, "--benchmark_list_tests")
    assert done.returncode == 0, done.stderr
    assert "mlp-784x128x128x128x10-b32/eager-foreach-add/fp32" in done.stdout.split()


def test_existing_output_is_not_overwritten(tmp_path):
    output = tmp_path / "a.json"
    output.write_text("precious")
    assert_refused(run_small(output), "--output", "--resume")
    assert output.read_text() == "precious"


BAD_ARGUMENTS = {
    "unknown suite": (["--suite", "quik"], "quick"),
    "unknown backend": (["--backend", "oracl"], "did you mean 'oracle'"),
    "unknown precision": (["--precision", "fp61"], "fp16"),
    "malformed workload name": (["--workload", "mlp-784-10"], "mlp-784-10"),
    "a width of 0": (["--workload", "mlp-784x0x10-b32"], "mlp-784x0x10-b32"),
    "a width too large": (["--workload", "mlp-784x65537x10-b32"], "65536"),
    "a batch of 0": (["--workload", "mlp-784x10-b0"], "mlp-784x10-b0"),
    "missing suite file": (["--suite", "no/such.json"], "no/such.json"),
    "missing data folder": (["--data", "no/such/folder"], "no/such/folder"),
    "output folder that is a file": (["--output", "/dev/null/a.json"], "/dev/null/a.json"),
    "output that is a folder": (["--output", "/tmp"], "/tmp"),
    "cache folder that is a file": (["--cache-dir", "/dev/null"], "--cache-dir /dev/null"),
    "no time to set up": (["--setup-limit", "0"], "--setup-limit"),
    "unknown backend left out": (["--backend", "all,-pytorch-eagr"], "did you mean 'pytorch-eager'"),
    "every backend left out": (["--backend", "oracle,-oracle"], "nothing to measure"),
    "results file that is none": (["--resume", "/dev/null"], "/dev/null"),
    "a device that is not there": (["--device", "77"], "--device 77"),
    "a worker that is not there": (["--worker", "x=/no/such/program"], "--worker x"),
    "unknown workload of a suite": (["--workloads", "mlp-784x128x128x128x10-b33"], "b32"),
    "benchmark file": (["--benchmark_out=/no/such/folder/x"], "benchmark_out"),
    "blocks of no number": (["--block-seconds", "nan"], "--block-seconds: Value nan not in range"),
    "energy of no number": (["--energy-seconds", "NaN"], "--energy-seconds: Value NaN not in range"),
    "empty data folder's name": (["--data", ""], "--data: its value is empty"),
    "unknown activation": (["--workload", "mlp-4x3-b2-tahn"], "did you mean 'tanh'"),
    "unknown optimizer": (["--workload", "mlp-4x3-b2-adamx"], "did you mean 'adam"),
    "momentum of 1": (["--momentum", "1"], "--momentum 1: expected"),
    "a beta for sgd": (["--beta1", "0.5"], "is trained by sgd, which has none"),
    "momentum for adam": (["--workload", "mlp-4x3-b2-adam", "--momentum", "0.5"], "--momentum: workload"),
    "empty beta": (["--beta2", ""], "--beta2"),
    "empty seed": (["--seed", ""], "--seed: its value is empty"),
    "empty shard": (["--shard", ""], "--shard: its value is empty"),
    "empty file to go on with": (["--resume", ""], "--resume: its value is empty"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_line(tmp_path, name):
    arguments, said = BAD_ARGUMENTS[name]
    extra = [] if "--output" in arguments or "--resume" in arguments else ["--output", tmp_path / "a.json"]
    assert_refused(headroom("run", *arguments, *extra), said)
    assert not (tmp_path / "a.json").exists()


def write_idx(folder, images=40, rows=3, columns=4, labels=None, magic=2051, cut=0, compress=False):
    labels = [i % 4 for i in range(images)] if labels is None else labels
    pixels = bytes((7 * i) % 256 for i in range(images * rows * columns))
    image_file = struct.pack(">IIII", magic, images, rows, columns) + pixels
    image_file = image_file[: len(image_file) - cut]
    label_file = struct.pack(">II", 2049, len(labels)) + bytes(labels)
    for name, contents in (("t-images-idx3-ubyte", image_file), ("t-labels-idx1-ubyte", label_file)):
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(contents))
        else:
            (folder / name).write_bytes(contents)


BAD_DATA = {
    "truncated": {"cut": 5},
    "wrong magic number": {"magic": 1234},
    "another count of labels": {"labels": [0, 1, 2]},
    "label outside the classes": {"labels": [9] * 40},
    "another image size": {"rows": 5},
    "batch larger than the data set": {"images": 6},
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused_before_anything_is_measured(tmp_path, name):
    folder = tmp_path / "idx"
    folder.mkdir()
    write_idx(folder, **BAD_DATA[name])
    done = headroom("run", "--workload", SMALL, "--data", folder, "--output", tmp_path / "a.json")
    assert_refused(done)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("compress", [False, True])
def test_idx_data_is_trained_on(tmp_path, compress):
    folder = tmp_path / "idx"
    folder.mkdir()
    write_idx(folder, compress=compress)
    done = run_small(tmp_path / "a.json", "--data", folder)
    assert done.returncode == 0, done.stderr
    dataset = read(tmp_path / "a.json")["workloads"][0]["dataset"]
    assert dataset["kind"] == "idx"
    assert dataset["folder"] == "idx"
    assert dataset["digest"]


BAD_SUITES = {
    "unknown key": '{"precisions": ["fp32"], "backends": ["all"], "workloads": [], "x": 1}',
    "not JSON": "{",
    "no file": "",
    "duplicate names": json.dumps(
        {
            "description": "",
            "precisions": ["fp32"],
            "backends": ["oracle"],
            "workloads": [{"widths": [4, 3], "batch_size": 2}] * 2,
        }
    ),
}


@pytest.mark.parametrize("name", BAD_SUITES)
def test_bad_suite_files_are_refused(tmp_path, name):
    suite = tmp_path / "mine.json"
    suite.write_text(BAD_SUITES[name])
    assert_refused(headroom("run", "--suite", suite, "--output", tmp_path / "a.json"), str(suite))


def test_blocks_have_the_state_of_the_gpu_and_records_their_energy(tmp_path, made_up_gpu):
    made_up_gpu("")
    done = run_small(
        tmp_path / "a.json", "--device", -1, "--energy-seconds", 0.3, backends="oracle-honest,oracle"
    )
    assert done.returncode == 0, done.stderr
    results = read(tmp_path / "a.json")
    assert results["device"]["ecc_enabled"] is True
    oracle, record = results["records"]
    for block in record["blocks"]:
        assert block["gpu"]["samples"] >= 1
        assert block["gpu"]["sm_clock_megahertz"] == 1980
        assert block["gpu"]["throttle_reasons"] == ["software_power_cap"]
    assert record["slowdown_reasons"] == []
    energy = record["energy"]
    assert energy["seconds"] >= 0.3
    assert energy["joules"] == pytest.approx(
        250 * energy["seconds"], rel=0.2
    )  # the made-up GPU always draws 250 W
    assert energy["idle_watts"] == pytest.approx(250, rel=0.2)
    assert record["joules_per_step"] == pytest.approx(energy["joules"] / energy["steps"])
    assert oracle["energy"] is None  # it works on the CPU


def test_a_workload_of_two_gpus_has_the_facts_the_locks_and_the_energy_of_both(
    tmp_path, made_up_gpu, monkeypatch
):
    made_up_gpu("")
    monkeypatch.setenv("FAULT_DEVICES", "2")
    folders = [str(Path(BUILD) / "bin" / name) for name in ("fake-nvml", "fake-cuda")]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(folders))
    two = "mlp-12x8x4-b8-g2"
    settings = ("--energy-seconds", 0.3, "--devices", "0,1")
    done = run_small(tmp_path / "a.json", *settings, backends="oracle-honest", workload=f"{SMALL},{two}")
    assert done.returncode == 0, done.stderr
    results = read(tmp_path / "a.json")
    assert results["device"]["uuid"].endswith("1")
    (peer,) = results["peer_devices"]
    assert peer["uuid"].endswith("2") and peer["index"] == 1 and peer["ecc_enabled"] is True
    one, both = results["records"]
    assert all("peer_gpus" not in block for block in one["blocks"])
    assert all(len(block["peer_gpus"]) == 1 for block in both["blocks"])
    assert both["energy"]["joules"] == pytest.approx(500 * both["energy"]["seconds"], rel=0.2)
    assert one["energy"]["joules"] == pytest.approx(250 * one["energy"]["seconds"], rel=0.2)
    # One too many, one too few, and one that is not there.
    for devices, said in (("0,1", "train on one"), ("0", "up to 2"), ("0,2", "no device 2")):
        workload = SMALL if said == "train on one" else two
        refused = run_small(tmp_path / "b.json", "--devices", devices, workload=workload)
        assert_refused(refused, "--devices", said)
    with Path(f"/tmp/headroom-{peer['uuid']}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = run_small(tmp_path / "c.json", "--devices", "0,1", workload=two)
    assert held.returncode == 2
    assert "device 1 (made-up GPU) is in use by another run" in held.stderr


def test_a_machine_with_one_gpu_skips_workloads_of_two_with_a_line(tmp_path, made_up_gpu):
    made_up_gpu("")
    done = run_small(tmp_path / "a.json", "--device", -1, "--energy-seconds", 0, workload="mlp-12x8x4-b8-g2")
    assert done.returncode == 0, done.stderr
    (record,) = read(tmp_path / "a.json")["records"]
    assert record["outcome"] == "skipped"
    assert record["message"] == "needs 2 CUDA devices, 1 is here"
    assert "Workloads of more than 1 device are skipped" in done.stderr


def test_slowdown_marks_the_record(tmp_path, made_up_gpu):
    made_up_gpu("slowdown")
    done = run_small(tmp_path / "a.json", "--device", -1, "--energy-seconds", 0)
    (record,) = read(tmp_path / "a.json")["records"]
    assert record["slowdown_reasons"] == ["hardware_thermal_slowdown"]
    assert record["energy"] is None
    assert "slowed down in 12 of 12 blocks: hardware_thermal_slowdown" in record["message"]
    assert "slowed down in 12 of 12 blocks" in done.stdout


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("no-driver", "Driver Not Loaded"), ("no-permission", "NVML does not say here: SM clock")],
)
def test_without_nvml_or_permission_the_state_is_null_and_one_line_says_so(
    tmp_path, made_up_gpu, wrong, said
):
    made_up_gpu(wrong)
    done = run_small(tmp_path / "a.json", "--device", -1)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if said in line]) == 1, done.stderr
    (record,) = read(tmp_path / "a.json")["records"]
    assert record["energy"] is None
    assert record["slowdown_reasons"] is None
    states = {json.dumps(block["gpu"] and block["gpu"]["power_watts"]) for block in record["blocks"]}
    assert states == {"null"}


def test_calibration_gives_floors_and_each_record_its_fraction(tmp_path, made_up_gpu, monkeypatch):
    monkeypatch.setenv("FAULT_CALIBRATION", "")
    done = run_small(
        tmp_path / "a.json",
        *("--device", -1, "--energy-seconds", 0, "--precision", "fp32,bf16,fp16"),
        backends="honest,oracle,fault-nan",
        workload="mlp-784x128x128x128x10-b32",
    )
    results = read(tmp_path / "a.json")
    assert results["calibration"]["copy"] == {
        "value": 4e12,
        "unit": "bytes_per_second",
        "how": "made up for a test",
    }
    floors = results["workloads"][0]["floors"]
    assert sorted(floors) == ["bf16", "fp32"]  # there is no rate for fp16, which is said
    assert "No floors in these, a rate is missing: tf32 ('matrix_tf32'), fp16 ('matrix_fp16')." in done.stderr
    assert floors["fp32"]["bound"] == "exchanges"
    # Two exchanges of [32 x 128] and one of [32 x 10].
    assert floors["fp32"]["seconds"] == pytest.approx(0.93e-6)
    for record in results["records"]:
        if record["backend"] == "honest" and record["precision"] != "fp16":
            floor = floors[record["precision"]]["seconds"]
            assert record["fraction_of_floor"] == pytest.approx(floor / record["step_seconds"]["median"])
        else:
            assert record["fraction_of_floor"] is None
    assert "% exchanges" in done.stdout
    assert "DEFECT" not in done.stdout


def test_a_record_that_is_faster_than_its_floor_is_called_a_defect(tmp_path, made_up_gpu, monkeypatch):
    monkeypatch.setenv("FAULT_CALIBRATION", "slow")
    done = run_small(tmp_path / "a.json", "--device", -1, "--energy-seconds", 0, backends="honest")
    (record,) = read(tmp_path / "a.json")["records"]
    assert record["fraction_of_floor"] > 1
    assert "FASTER THAN ITS FLOOR" in done.stdout
    assert "DEFECT: honest trains" in done.stdout


@pytest.mark.parametrize(("wrong", "said"), [("dies", "about to abort"), ("nan", "finite")])
def test_a_calibration_that_fails_costs_the_floors_only(tmp_path, made_up_gpu, monkeypatch, wrong, said):
    monkeypatch.setenv("FAULT_CALIBRATION", wrong)
    done = run_small(tmp_path / "a.json", "--device", -1, "--energy-seconds", 0)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if "Calibration: " in line and said in line]) == 1
    results = read(tmp_path / "a.json")
    assert results["calibration"] == {}
    assert results["workloads"][0]["floors"] == {}
    assert results["records"][0]["outcome"] == "ok"
    assert results["records"][0]["fraction_of_floor"] is None


def test_calibrate_prints_the_rates(made_up_gpu, monkeypatch):
    monkeypatch.setenv("FAULT_CALIBRATION", "")
    done = headroom("calibrate", "--device", -1, "--worker", FAULT_WORKER)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "made-up GPU"
    assert any(line.split()[:3] == ["copy", "4.00", "TB/s"] for line in lines)
    printed = json.loads(headroom("calibrate", "--device", -1, "--worker", FAULT_WORKER, "--json").stdout)
    assert printed["device"] == "made-up GPU"
    assert printed["calibration"]["remote_read"]["unit"] == "seconds"
    assert_refused(headroom("calibrate", "--devise", 0), "--devise", "--device")


def test_calibrate_without_a_device_is_refused():
    assert_refused(headroom("calibrate", "--device", -1), "no CUDA device")


# A worker in place of the Python one: it writes down what it was asked to set up, and fails for bf16.
COMPILING_WORKER = """
import os, sys, time, types
sys.path.insert(0, sys.argv[1])
from headroom_protocol import process
from headroom_protocol.server import WorkerError, serve

class Backends:
    def hello(self):
        offered = {name: {"contract": "exact", "unavailable": None} for name in ("fp32", "tf32", "bf16")}
        return {"worker": "python", "software": {}, "device": None,
                "backends": [{"name": "pytorch-compile-graph", "family": "pytorch", "description": "",
                              "compiles": True, "precisions": offered}]}
    def prepare(self, request):
        with open(sys.argv[2], "a") as log:
            print(request.workload_name, request.precision, os.getpid(), os.environ.get("HEADROOM_COMPILERS"),
                  os.path.exists(request.cache_folder), file=log)
        time.sleep(0.5)
        if request.precision == "bf16":
            raise WorkerError("failed", "ptxas is missing")
        return types.SimpleNamespace(setup_cache="cold", note="", peak_device_bytes=lambda: None)
    def error_kind(self, error):
        return "failed"
    def free_memory(self):
        pass

serve(*process.reserve_protocol_descriptors(), Backends())
"""


def compile_ahead(tmp_path, *arguments, workloads=f"{SMALL},mlp-6x5x4-b2"):
    (tmp_path / "worker.py").write_text(COMPILING_WORKER)
    log, cache = tmp_path / "log", tmp_path / "cache"
    package = ROOT / "torch_impl" / "python"
    worker = f"python={sys.executable} {tmp_path / 'worker.py'} {package} {log}"
    done = headroom(
        *("run", "--workload", workloads, "--precision", "fp32,tf32,bf16", "--worker", worker),
        *("--backend", "pytorch-compile-graph", "--cache-dir", cache, "--output", tmp_path / "a.json"),
        *("--no-figures", *arguments),
    )
    return done, [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_compile_processes_set_up_every_compiled_cell_side_by_side(tmp_path):
    pytest.importorskip("numpy")
    done, calls = compile_ahead(tmp_path, "--compile-processes", 3, "--compile-only")
    assert done.returncode == 0, done.stderr
    cells = [(workload, precision) for workload, precision, *_ in calls]
    assert sorted(cells) == sorted(
        (workload, precision)
        for workload in (SMALL, "mlp-6x5x4-b2")
        for precision in ("fp32", "tf32", "bf16")
    )
    assert len({process for *_, process, _, _ in calls}) >= 3
    assert all(int(compilers) >= 1 and cache == "True" for *_, compilers, cache in calls)
    assert done.stderr.count("ptxas is missing") == 2  # one line a cell, and the others go on
    assert not (tmp_path / "a.json").exists()


def test_what_takes_longest_is_compiled_first(tmp_path):
    pytest.importorskip("numpy")
    small, large, deep = "mlp-6x5x4-b2", "mlp-6x50x4-b2", "mlp-6x5x5x4-b2"
    done, calls = compile_ahead(tmp_path, "--compile-only", workloads=f"{small},{large},{deep}")
    assert done.returncode == 0, done.stderr
    assert [workload for workload, *_ in calls] == 3 * [deep] + 3 * [large] + 3 * [small]


def test_a_worker_loads_what_it_needs_before_the_first_set_up(tmp_path):
    """What is begun beside others is told so by a release without a trainer."""
    done = run_small(tmp_path / "a.json", "--worker", f"python={sys.executable} {loading_worker(tmp_path)}",
                     backends="one,two")  # fmt: skip
    calls = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    by_process = {process: [call for who, call in calls if who == process] for process, _ in calls}
    assert len(by_process) == 2, done.stderr
    for names in by_process.values():
        assert names[:3] == ["hello", "hello", "release"] or names[:2] == ["hello", "release"]
        assert names.index("release") < names.index("prepare")


def loading_worker(tmp_path):
    program = tmp_path / "loading.py"
    program.write_text(f"""
import json, os, sys
offered = {{"fp32": {{"contract": "exact", "unavailable": None}}}}
hello = {{"protocol": 2, "worker": "python", "software": {{}}, "device": None,
         "backends": [{{"name": name, "family": "other", "description": "", "precisions": offered}}
                      for name in ("one", "two")]}}
for line in sys.stdin:
    request = json.loads(line)
    with open({str(tmp_path / "log")!r}, "a") as log:
        print(os.getpid(), request["call"], file=log)
    results = {{"hello": hello, "release": {{"peak_device_bytes": None}}}}
    answer = {{"id": request["id"], "ok": request["call"] in results}}
    if answer["ok"]:
        answer["result"] = results[request["call"]]
    else:
        answer["error"] = {{"kind": "failed", "message": "it trains nothing"}}
    print(json.dumps(answer), flush=True)
""")
    return program


# A worker that greets as it should and answers everything else with brackets in brackets.
DEEP_WORKER = """
import json, sys
hello = {"protocol": 2, "worker": "deep", "software": {}, "device": None,
         "backends": [{"name": "deep", "family": "other", "description": "",
                       "precisions": {"fp32": {"contract": "exact", "unavailable": None}}}]}
for line in sys.stdin:
    request = json.loads(line)
    answer = json.dumps({"id": request["id"], "ok": True, "result": hello})
    print(answer if request["call"] == "hello" else "[" * 100_000 + "]" * 100_000, flush=True)
"""


def test_a_worker_that_answers_with_deep_brackets_loses_its_own_record_only(tmp_path):
    (tmp_path / "worker.py").write_text(DEEP_WORKER)
    worker = f"deep={sys.executable} {tmp_path / 'worker.py'}"
    done = run_small(tmp_path / "a.json", "--worker", worker, backends="deep,oracle-honest")
    assert done.returncode == 1, done.stderr
    records = {record["backend"]: record for record in read(tmp_path / "a.json")["records"]}
    assert (records["deep"]["outcome"], records["oracle-honest"]["outcome"]) == ("failed", "ok")
    assert "brackets more than 64 deep" in records["deep"]["message"]


def test_compile_only_alone_takes_one_process(tmp_path):
    pytest.importorskip("numpy")
    done, calls = compile_ahead(tmp_path, "--compile-only")
    assert done.returncode == 0, done.stderr
    assert len(calls) == 6
    assert "Compiling 6 cells in 1 processes" in done.stderr


# A worker of our kernels on a machine without a GPU.
KERNEL_WORKER = """
import json, sys
reason = {"contract": "exact", "unavailable": "no CUDA device"}
hello = {"protocol": 2, "worker": "cuda", "software": {}, "device": None,
         "backends": [{"name": "cuda-fused", "family": "ours", "description": "", "compiles": True,
                       "repeats": True, "precisions": {"fp16": reason, "bf16": reason}}]}
for line in sys.stdin:
    request = json.loads(line)
    answer = {"id": request["id"], "ok": True, "result": hello}
    if request["call"] == "compile":
        with open(sys.argv[1], "a") as log:
            print(json.dumps(request), file=log)
        answer["result"] = {"setup_seconds": 1.5, "setup_cache": "cold", "note": "a_kernel"}
        if request["precision"] == "bf16":
            answer = {"id": request["id"], "ok": False,
                      "error": {"kind": "failed", "message": "kernel 'k': it spills"}}
    print(json.dumps(answer), flush=True)
"""


def test_compile_only_makes_our_kernels_for_the_usual_device_where_there_is_none(tmp_path):
    (tmp_path / "worker.py").write_text(KERNEL_WORKER)
    log = tmp_path / "log"
    done = headroom(
        *("run", "--workload", "mlp-64x64x10-b256", "--precision", "fp16,bf16", "--device", -1),
        *("--worker", f"cuda={sys.executable} {tmp_path / 'worker.py'} {log}"),
        *(
            "--backend",
            "cuda-fused",
            "--cache-dir",
            tmp_path / "cache",
            "--compile-only",
            "--no-figures",
        ),
    )
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(call["precision"] for call in calls) == ["bf16", "fp16"]
    for call in calls:
        assert call["workload"]["widths"] == [64, 64, 10]
        assert call["cache_folder"] == str(tmp_path / "cache")
        assert call["target"] == {
            "compute_major": 9,
            "compute_minor": 0,
            "sm_count": 132,
            "shared_bytes": 232448,
        }
    assert "mlp-64x64x10-b256/cuda-fused/fp16: compiled in 1.5 s" in done.stderr
    assert "mlp-64x64x10-b256/cuda-fused/bf16: kernel 'k': it spills" in done.stderr


def test_compile_only_asks_each_worker_for_its_own_rows(tmp_path):
    """One process at a time: the one that made a row of the first worker does not serve the second's."""
    first, second = tmp_path / "worker.py", tmp_path / "second.py"
    first.write_text(KERNEL_WORKER)
    second.write_text(KERNEL_WORKER.replace('"cuda"', '"second"').replace("cuda-fused", "second-row"))
    logs = {"cuda-fused": tmp_path / "first.log", "second-row": tmp_path / "second.log"}
    done = headroom(
        *("run", "--workload", "mlp-64x64x10-b256", "--workload", "mlp-64x32x10-b256", "--precision", "fp16"),
        *("--worker", f"cuda={sys.executable} {first} {logs['cuda-fused']}"),
        *("--worker", f"second={sys.executable} {second} {logs['second-row']}"),
        *("--backend", "cuda-fused,second-row", "--device", -1, "--no-figures"),
        *("--cache-dir", tmp_path / "cache", "--compile-only"),
    )
    assert done.returncode == 0, done.stderr
    for backend, log in logs.items():
        calls = [json.loads(line) for line in log.read_text().splitlines()]
        assert [call["backend"] for call in calls] == [backend, backend]
        assert {tuple(call["workload"]["widths"]) for call in calls} == {(64, 64, 10), (64, 32, 10)}
