"""`run --model`: a user's network is measured like any workload; what is none is refused in one line."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from running import PROGRAM, ROOT, assert_refused

pytest.importorskip("torch", reason="PyTorch is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
SCHEMA = json.loads((ROOT / "results" / "schema.json").read_text())
NETWORK = """
from torch import nn
print("made")
def make():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
"""
TRAINING = ["--batch", 16, "--loss", "mse", "--optimizer", "adam"]


@pytest.fixture
def run(tmp_path):
    def runs(*arguments):
        words = [PROGRAM, "run", "--device", -1, "--no-figures", "--block-seconds", 0.02, *arguments]
        return subprocess.run(
            [*map(str, words)],
            cwd=tmp_path,
            env=os.environ
            | {"HEADROOM_ROOT": str(ROOT), "HEADROOM_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )

    (tmp_path / "net.py").write_text(NETWORK)
    return runs


def test_a_users_network_is_measured_and_gone_on_with_without_its_file(run, tmp_path):
    output = tmp_path / "a.json"
    what = ["--model", tmp_path / "net.py:make", *TRAINING, "--momentum", 0.5]
    assert_refused(run(*what, "--output", output), "--momentum: workload")
    done = run(*what[:-2], "--output", output, "--backend", "oracle,pytorch-eager", "--epsilon", 1e-5)
    assert done.returncode == 0, done.stderr
    assert "net.py:make is mlp-5x8x3-b16-tanh-mse-adam" in done.stderr
    results = json.loads(output.read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(results)
    digest = hashlib.sha256(NETWORK.encode()).hexdigest()
    name = "mlp-5x8x3-b16-tanh-mse-adam"
    assert results["run"]["model"] == {"file": "net.py", "name": "make", "sha256": digest, "workload": name}
    assert str(tmp_path) not in output.read_text()
    assert [record["workload"] for record in results["records"]] == [name, name]
    assert all(record["verification"]["verdict"] == "pass" for record in results["records"])
    # As if it had been killed before the second record.
    cut = results | {"run": results["run"] | {"complete": False}, "records": []}
    output.write_text(json.dumps(cut))
    os.remove(tmp_path / "net.py")
    done = run("--resume", output)
    assert done.returncode == 0, done.stderr
    resumed = json.loads(output.read_text())
    assert resumed["run"]["model"] == results["run"]["model"]
    assert resumed["workloads"][0]["optimizer"]["epsilon"] == 1e-5
    assert len(resumed["records"]) == 2


MISTAKES = {
    "no name": (["--model", "net.py", "--batch", 2], "expected FILE.py:NAME, such as net.py:make"),
    "no batch": (["--model", "net.py:make"], "--model: needs --batch N"),
    "no such file": (
        ["--model", "nett.py:make", "--batch", 2],
        "--model nett.py:make: the file cannot be read",
    ),
    "no such name": (["--model", "net.py:mak", "--batch", 2], "the file has no 'mak'; it has make"),
    "another loss": (
        ["--model", "net.py:make", "--batch", 2, "--loss", "msee"],
        "--loss: loss 'msee': did you mean 'mse'?",
    ),
    "another optimizer": (
        ["--model", "net.py:make", "--batch", 2, "--optimizer", "adma"],
        "--optimizer: optimizer 'adma': did you mean 'adam'?",
    ),
    "a batch of nothing": (["--model", "net.py:make", "--batch", 0], "--batch"),
    "a workload too": (
        ["--model", "net.py:make", "--batch", 2, "--workload", "mlp-4x3-b2"],
        "give one of them",
    ),
    "to go on": (["--model", "net.py:make", "--batch", 2, "--resume", "a.json"], "leave --model out"),
    "a suite's": (
        ["--suite", "quick", "--optimizer", "adam"],
        "--optimizer: goes with --workload or --model",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_in_one_line(run, tmp_path, name):
    arguments, said = MISTAKES[name]
    more = [] if "--resume" in arguments else ["--output", tmp_path / "a.json"]
    assert_refused(run(*arguments, *more), said)
    assert not (tmp_path / "a.json").exists()


def test_a_module_in_the_way_is_named(run, tmp_path):
    (tmp_path / "net.py").write_text(NETWORK.replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.5)"))
    assert_refused(
        run("--model", "net.py:make", "--batch", 2), "--model net.py:make: module '2' is a Dropout(p=0.5"
    )


def test_a_network_too_deep_is_refused(run, tmp_path):
    layers = "*[layer for _ in range(16) for layer in (nn.Linear(5, 5), nn.Tanh())]"
    (tmp_path / "net.py").write_text(
        NETWORK.replace("nn.Linear(5, 8), nn.Tanh()", layers).replace("(8, 3)", "(5, 3)")
    )
    assert_refused(run("--model", "net.py:make", "--batch", 2), "has 17 layers, must have 1 to 16")


def test_one_output_with_cross_entropy_is_refused(run, tmp_path):
    (tmp_path / "net.py").write_text(NETWORK.replace("8, 3", "8, 1"))
    what = ["--model", "net.py:make", "--batch", 2, "--backend", "oracle", "--benchmark_list_tests"]
    assert_refused(run(*what), "it has one output, with which cross-entropy learns nothing")
    assert "mlp-5x8x1-b2-tanh-bce/oracle/fp32" in run(*what, "--loss", "bce").stdout


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass"])
def test_a_file_that_takes_too_long_is_ended(run, tmp_path, code):
    (tmp_path / "net.py").write_text(code)
    assert_refused(run("--model", "net.py:make", "--batch", 2, "--time-limit", 5), "took longer than 5 s")


def test_a_file_that_ends_its_process_is_refused(run, tmp_path):
    (tmp_path / "net.py").write_text("import os; os._exit(0)")
    assert_refused(run("--model", "net.py:make", "--batch", 2), "ended without an answer")


def test_other_training_than_a_names_makes_another_name(run):
    done = run(
        *("--workload", "mlp-5x3-b8-momentum0.5,mlp-6x3-b8-tanh-bce", *TRAINING),
        *("--backend", "oracle", "--benchmark_list_tests"),
    )
    assert done.stdout.split() == [
        "mlp-5x3-b16-mse-adam/oracle/fp32",
        "mlp-6x3-b16-tanh-mse-adam/oracle/fp32",
    ]


def test_the_first_pages_example_works_as_printed(run, tmp_path):
    page = (ROOT / "README.md").read_text()
    example = re.search(r"^(echo '.+' > net\.py)\n\./headroom (run .*--model .+)$", page, re.M)
    shutil.rmtree(tmp_path / "net.py", ignore_errors=True)
    subprocess.run(["bash", "-c", example.group(1)], cwd=tmp_path, check=True)
    done = run(*example.group(2).split()[1:], "--benchmark_list_tests")
    assert "mlp-17x64x6-b64-tanh-mse-adam/pytorch-eager/fp32" in done.stdout, done.stderr
