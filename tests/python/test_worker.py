"""The Python worker as a process, spoken to in its protocol on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from worker_process import PACKAGE, Problem, Worker, losses_of, parameters_of, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

BOUND = 1e-4


@pytest.fixture(scope="module")
def shared_worker(tmp_path_factory):
    """One process for all tests: a worker has to survive every one of them anyway."""
    worker = Worker(tmp_path_factory.mktemp("worker") / "log")
    yield worker
    assert worker.end() == 0


@pytest.fixture
def worker(shared_worker):
    shared_worker.ok("release")
    return shared_worker


@pytest.fixture
def problem(tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    return Problem(tmp_path, seed=seed)


def test_hello_lists_every_precision_with_a_reason_for_what_the_cpu_cannot_run(worker):
    hello = worker.ok("hello", protocol=2)
    assert hello["protocol"] == 2
    assert hello["worker"] == "python"
    assert hello["device"] is None
    assert hello["software"]["torch"] == torch.__version__
    precisions = {backend["name"]: backend["precisions"] for backend in hello["backends"]}["pytorch-eager"]
    contracts = {name: row["contract"] for name, row in precisions.items()}
    assert contracts == {"fp32": "exact", "tf32": "library", "fp16": "autocast", "bf16": "autocast"}
    assert precisions["fp32"]["unavailable"] is None
    assert all("CUDA" in precisions[name]["unavailable"] for name in ("tf32", "fp16", "bf16"))


def test_graph_and_compile_rows_have_a_reason_on_the_cpu(worker, problem):
    hello = worker.ok("hello", protocol=2)
    offered = {backend["name"]: backend["precisions"] for backend in hello["backends"]}
    for row in ("pytorch-graph", "pytorch-compile", "pytorch-compile-graph"):
        assert set(offered[row]) == {"fp32", "tf32", "fp16", "bf16"}
        assert all(precision["unavailable"] == "no CUDA device" for precision in offered[row].values())
        assert worker.error("prepare", **problem.request(backend=row))[0] == "unsupported"
    worker.ok("prepare", **problem.request())


def test_another_protocol_version_is_refused(worker):
    assert worker.error("hello", protocol=1) == ("input", "request.protocol: expected 2, found 1")


@pytest.mark.parametrize("step", [0, 3, 6])
def test_update_of_one_step_matches_double_precision(worker, problem, step):
    prepared = worker.ok("prepare", **problem.request())
    assert prepared["setup_seconds"] > 0
    assert isinstance(prepared["note"], str)
    timing = worker.ok("train", first_step=step, count=1)
    assert all(timing[name] > 0 for name in ("device_seconds", "wall_seconds"))
    assert timing["cpu_seconds"] >= 0
    loss, expected = problem.step(problem.parameters, step)
    after, expected_layers = problem.layers(parameters_of(worker, problem)), problem.layers(expected)
    for before, found, right in zip(problem.layers(problem.parameters), after, expected_layers, strict=True):
        for tensor in (0, 1):
            error = relative_error(found[tensor] - before[tensor], right[tensor] - before[tensor])
            assert error <= BOUND
    assert abs(losses_of(worker, problem, step, 1)[0] - loss) <= BOUND * abs(loss)


@pytest.mark.parametrize("held", [0, 3, 10**6])
def test_a_state_is_written_over_what_the_file_held(worker, problem, held):
    worker.ok("prepare", **problem.request())
    file = problem.folder / "out"
    file.write_bytes(b"\xff" * held)
    worker.ok("state", file=str(file))
    assert np.array_equal(np.fromfile(file, dtype=np.float32), problem.parameters)


def test_a_state_that_cannot_be_written_are_an_error_of_the_call(worker, problem):
    worker.ok("prepare", **problem.request())
    assert worker.error("state", file=str(problem.folder / "none" / "out"))[0] == "failed"
    assert np.array_equal(parameters_of(worker, problem), problem.parameters)


def test_ten_steps_and_their_losses_match_double_precision(worker, problem):
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=0, count=4)
    worker.ok("train", first_step=4, count=6)
    parameters, losses = problem.parameters.astype(np.float64), []
    for step in range(10):
        loss, parameters = problem.step(parameters, step)
        losses.append(loss)
    assert relative_error(parameters_of(worker, problem), parameters) <= BOUND
    assert relative_error(losses_of(worker, problem, 0, 10), np.array(losses)) <= BOUND


def test_one_layer_and_odd_widths(worker, tmp_path):
    problem = Problem(tmp_path, widths=(1, 3), batch_size=1, samples=2)
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=1, count=1)
    assert relative_error(parameters_of(worker, problem), problem.step(problem.parameters, 1)[1]) <= BOUND


def test_a_state_that_is_set_returns_to_the_start(worker, problem):
    worker.ok("prepare", **problem.request())
    assert np.array_equal(parameters_of(worker, problem), problem.parameters)
    worker.ok("train", first_step=0, count=3)
    first = parameters_of(worker, problem)
    assert not np.array_equal(first, problem.parameters)
    assert worker.ok("set_state", file=str(problem.folder / "parameters")) == {}
    worker.ok("train", first_step=0, count=3)
    assert relative_error(parameters_of(worker, problem), first) <= 1e-6


def test_a_state_holds_the_slots_behind_the_parameters(worker, tmp_path):
    problem = Problem(tmp_path, optimizer={key: ADAM[key] for key in ADAM if key != "learning_rate"})
    worker.ok("prepare", **problem.request())
    size = problem.parameters.size
    assert worker.ok("state", file=str(tmp_path / "start")) == {"count": 3 * size}
    start = np.fromfile(tmp_path / "start", np.float32)
    assert np.array_equal(start, np.concatenate([problem.parameters, np.zeros(2 * size, np.float32)]))
    worker.ok("train", first_step=0, count=2)
    worker.ok("state", file=str(tmp_path / "out"))
    assert (np.fromfile(tmp_path / "out", np.float32)[size:] != 0).mean() > 0.5
    kind, message = worker.error("set_state", file=str(tmp_path / "parameters"))
    assert (kind, f"expected {3 * size} values" in message) == ("input", True)
    assert worker.ok("set_state", file=str(tmp_path / "start")) == {}
    worker.ok("state", file=str(tmp_path / "out"))
    assert np.array_equal(np.fromfile(tmp_path / "out", np.float32), start)


def test_the_callers_files_are_not_written_to(worker, problem):
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=0, count=5)
    assert np.array_equal(np.fromfile(problem.folder / "parameters", np.float32), problem.parameters)
    assert np.array_equal(
        np.fromfile(problem.folder / "features", np.float32).ravel(), problem.features.ravel()
    )


def test_losses_of_steps_that_were_not_trained_are_an_error(worker, problem):
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=10, count=5)
    losses_of(worker, problem, 10, 5)
    for first_step, count in ((9, 2), (14, 2), (0, 1), (10, 2**20 + 1)):
        kind, _ = worker.error(
            "losses", first_step=first_step, count=count, file=str(problem.folder / "losses")
        )
        assert kind == "input"


def test_release_forgets_the_trainer(worker, problem):
    worker.ok("prepare", **problem.request())
    assert worker.ok("release") == {"peak_device_bytes": None}
    assert worker.error("train", first_step=0, count=1)[0] == "input"
    assert worker.ok("release") == {"peak_device_bytes": None}


def test_a_failed_prepare_leaves_no_trainer(worker, problem):
    worker.ok("prepare", **problem.request())
    worker.error("prepare", **problem.request(precision="fp64"))
    assert worker.error("train", first_step=0, count=1)[0] == "input"


ADAM = {"kind": "adam", "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
BAD_PREPARES = {
    "unknown backend": ({"backend": "pytorch-lazy"}, "input", "pytorch-lazy"),
    "unknown precision": ({"precision": "fp64"}, "input", "fp64"),
    "precision of the GPU": ({"precision": "bf16"}, "unsupported", "CUDA"),
    "batch over samples": ({"workload__batch_size": 32}, "input", "batch_size"),
    "batch of zero": ({"workload__batch_size": 0}, "input", "batch_size"),
    "width of zero": ({"workload__widths": [23, 0, 5]}, "input", "widths"),
    "widths as text": ({"workload__widths": "23x5"}, "input", "widths"),
    "other inputs": ({"workload__widths": [24, 5]}, "input", "feature_count"),
    "fewer classes than labels": ({"workload__widths": [23, 33, 7, 1]}, "input", "label"),
    "another size of parameters": ({"workload__widths": [23, 34, 7, 5]}, "input", "parameters"),
    "unknown optimizer": ({"workload__optimizer__kind": "lion"}, "input", "sgd, adam, adamw, found 'lion'"),
    "unknown activation": (
        {"workload__activation": "rleu"},
        "input",
        "workload.activation: expected relu, tanh",
    ),
    "unknown loss": ({"workload__loss": "l1"}, "input", "workload.loss: expected cross-entropy, mse, bce"),
    "unknown field": ({"workload__dropout": 0.5}, "input", "workload: 'dropout' is not a field of version 2"),
    "field of another optimizer": ({"workload__optimizer__beta1": 0.9}, "input", "optimizer: 'beta1' is not"),
    "no momentum": ({"workload__optimizer": {"kind": "sgd", "learning_rate": 0.1}}, "input", "momentum"),
    "momentum of 1": ({"workload__optimizer__momentum": 1}, "input", "from 0 to below 1"),
    "beta of 1": ({"workload__optimizer": ADAM | {"beta2": 1}}, "input", "beta2: expected a number from 0"),
    "epsilon of 0": ({"workload__optimizer": ADAM | {"epsilon": 0}}, "input", "epsilon: expected a positive"),
    "weight decay for adam": (
        {"workload__optimizer": ADAM | {"weight_decay": 0}},
        "input",
        "'weight_decay' is",
    ),
    "labels for a regression": (
        {"workload__loss": "mse"},
        "input",
        "targets: expected 155 values of 4 bytes",
    ),
    "learning rate of zero": ({"workload__optimizer__learning_rate": 0}, "input", "learning_rate"),
    "no file": ({"data__features_file": "/nowhere/features"}, "input", "/nowhere/features"),
    "file too short": ({"data__samples": 32}, "input", "features"),
    "no data": ({"data": None}, "input", "request.data"),
    "boolean count": ({"data__samples": True}, "input", "samples"),
}


@pytest.mark.parametrize("name", BAD_PREPARES)
def test_bad_prepare(worker, problem, name):
    changes, expected_kind, word = BAD_PREPARES[name]
    kind, message = worker.error("prepare", **problem.request(**changes))
    assert kind == expected_kind
    assert word in message


def test_missing_arguments_and_unknown_calls_are_named(worker, problem):
    worker.ok("prepare", **problem.request())
    assert "count" in worker.error("train", first_step=0)[1]
    assert "first_step" in worker.error("train", first_step=-1, count=1)[1]
    assert "count" in worker.error("train", first_step=0, count=0)[1]
    assert "dance" in worker.error("dance")[1]
    assert worker.error("reference", steps=[0], folder="/tmp", free_steps=10)[0] == "unsupported"
    assert worker.error("state", file="/nowhere/out")[0] == "failed"


@pytest.mark.parametrize(
    "line", [b"rubbish", b"[1]", b'"x"', b"{", b"\xff\xfe", b"[" * 100000, b'{"id": NaN, "call": 3}']
)
def test_a_line_that_is_no_request_gets_an_error(worker, line):
    answer = worker.raw(line)
    assert answer["ok"] is False
    assert answer["error"]["kind"] == "input"
    worker.ok("hello", protocol=2)


@pytest.mark.parametrize("allowance", [4, 12], ids=["mapping the file", "making the network"])
def test_a_network_larger_than_memory_is_out_of_memory(tmp_path, allowance):
    problem = Problem(tmp_path, widths=(1, 3), batch_size=1, samples=2)
    width = 30000  # 7.2 GB of parameters
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(4 * (2 * width + 2 * (width * width + width) + 3 * width + 3))  # sparse
    limit = f"""
import resource, torch
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {allowance} * 10**9, resource.RLIM_INFINITY))
"""
    worker = Worker(tmp_path / "log", prelude=limit)
    changes = {"workload__widths": [1, width, width, width, 3], "parameters_file": str(tmp_path / "huge")}
    kind, message = worker.error("prepare", **problem.request(**changes))
    assert (kind, "memory" in message) == ("out_of_memory", True), message
    worker.ok("prepare", **problem.request())
    assert worker.end() == 0


def test_what_a_library_prints_does_not_reach_the_stream(tmp_path):
    noise = """
import os, torch
def noisy(*arguments, real=torch.optim.SGD.step, **options):
    print("noise from Python", flush=True)
    os.write(1, b"noise from C\\n")
    os.system("echo noise from a child; cat")
    return real(*arguments, **options)
torch.optim.SGD.step = noisy
"""
    worker, problem = Worker(tmp_path / "log", prelude=noise), Problem(tmp_path)
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=0, count=2)
    worker.ok("hello", protocol=2)
    assert worker.end() == 0
    log = worker.log_path.read_text()
    assert all(f"noise from {source}" in log for source in ("Python", "C", "a child"))


@pytest.mark.parametrize(
    ("prelude", "reason"),
    [
        ("import sys; sys.modules['torch'] = None", "cannot be imported"),
        ("import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None", "cannot be imported"),
        (
            "import sys, types; sys.modules['torch'] = types.SimpleNamespace(__version__='2.5.1+cu121')",
            "too old",
        ),
    ],
)
def test_without_a_usable_torch_every_backend_says_why(tmp_path, prelude, reason):
    worker, problem = Worker(tmp_path / "log", prelude=prelude), Problem(tmp_path)
    for backend in worker.ok("hello", protocol=2)["backends"]:
        assert len(backend["precisions"]) == 4
        assert all(reason in row["unavailable"] for row in backend["precisions"].values())
    if "numpy" not in prelude:
        kind, message = worker.error("prepare", **problem.request())
        assert (kind, reason in message) == ("unsupported", True)
    assert worker.end() == 0
    assert "Traceback" not in worker.log_path.read_text()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("numpy", "raise ImportError('numpy: wrong version of its C part')"),
        ("torch", "raise OSError('libcudart.so.13: cannot open shared object file')"),
        ("torch", "import a_dependency_that_is_not_there"),
    ],
)
def test_a_torch_that_is_there_and_broken_is_an_error_and_no_reason_to_skip(tmp_path, module, text):
    (tmp_path / f"{module}.py").write_text(text)
    worker = Worker(tmp_path / "log", prelude=f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    hello = worker.ok("hello", protocol=2)
    assert "PyTorch is broken" in hello["broken"]
    assert "pytorch-eager" in [row["name"] for row in hello["backends"]]
    assert worker.end() == 0


def test_a_cuda_device_that_is_not_there_is_not_replaced_by_the_cpu(tmp_path):
    worker = Worker(tmp_path / "log", device=0)
    for backend in worker.ok("hello", protocol=2)["backends"]:
        assert all("CUDA device" in row["unavailable"] for row in backend["precisions"].values())
    assert worker.end() == 0


def test_an_interrupt_is_left_to_the_driver(worker):
    worker.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    worker.ok("hello", protocol=2)


def test_the_worker_dies_with_its_parent(tmp_path):
    """The parent is a Python that starts a worker, waits for its hello, prints its id and kills itself."""
    script = """
import os, signal, subprocess, sys
worker = subprocess.Popen([sys.executable, "-m", "headroom_worker", "--device", "-1"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
keep = os.dup(worker.stdin.fileno())
os.set_inheritable(keep, True)
holder = subprocess.Popen(["sleep", "30"], close_fds=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # input stays open
worker.stdin.write(b'{"id": 1, "call": "hello", "protocol": 2}\\n'); worker.stdin.flush()
worker.stdout.readline()
print(worker.pid, holder.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE))
    parent = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, timeout=50)
    worker, holder = map(int, parent.stdout.split())
    try:
        deadline = time.monotonic() + 10
        while is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not is_running(worker)
    finally:
        os.kill(holder, signal.SIGKILL)


def is_running(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_answers_are_plain_json_lines(worker):
    answer = worker.raw(json.dumps({"id": 5, "call": "hello", "protocol": 2}).encode())
    assert set(answer) == {"id", "ok", "result"}
