"""The JAX worker as a process, spoken to in its protocol on the CPU."""

import re
import subprocess

import numpy as np
import pytest
from worker_process import PACKAGE, Problem, Worker, jax_python, losses_of, parameters_of, relative_error

PYTHON = jax_python()
if PYTHON is None:
    pytest.skip("JAX is not installed: HEADROOM_JAX_PYTHON names no Python with it", allow_module_level=True)

ROWS = ("jax-jit", "jax-scan")
BOUND = 1e-4
HALFWAY = 1 + 2**-8  # between two bf16 numbers, the lower of which is even


def start(folder, prelude="") -> Worker:
    return Worker(folder / "log", prelude, module="headroom_jax", python=PYTHON)


@pytest.fixture(scope="module")
def shared_worker(tmp_path_factory):
    """One process for all tests: a worker has to survive every one of them anyway."""
    worker = start(tmp_path_factory.mktemp("worker"))
    yield worker
    assert worker.end() == 0


@pytest.fixture
def worker(shared_worker):
    shared_worker.ok("release")
    return shared_worker


@pytest.fixture
def problem(tmp_path):
    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    return Problem(tmp_path, seed=seed)


def test_hello_says_contracts_and_what_the_cpu_cannot_run(worker):
    hello = worker.ok("hello", protocol=2)
    assert (hello["worker"], hello["device"]) == ("jax", None)
    assert hello["software"]["jax"]
    offered = {backend["name"]: backend["precisions"] for backend in hello["backends"]}
    assert tuple(offered) == ROWS
    for precisions in offered.values():
        contracts = {name: row["contract"] for name, row in precisions.items()}
        assert contracts == {"fp32": "exact", "tf32": "library", "fp16": "exact", "bf16": "exact"}
        reasons = {name: row["unavailable"] for name, row in precisions.items()}
        assert reasons == {"fp32": None, "tf32": "no CUDA device", "fp16": None, "bf16": None}


@pytest.mark.parametrize("backend", ROWS)
def test_steps_and_losses_match_double_precision_and_leave_the_callers_files_alone(worker, problem, backend):
    prepared = worker.ok("prepare", **problem.request(backend=backend))
    assert prepared["setup_cache"] == "cold"
    start = problem.parameters
    assert np.array_equal(parameters_of(worker, problem), start)  # whatever set-up has trained
    for step in (6, 3):
        worker.ok("set_state", file=str(problem.folder / "parameters"))
        timing = worker.ok("train", first_step=step, count=1)
        assert timing["device_seconds"] > 0 and timing["cpu_seconds"] >= 0
        loss, expected = problem.step(start, step)
        assert relative_error(parameters_of(worker, problem) - start, expected - start) <= BOUND
        assert abs(losses_of(worker, problem, step, 1)[0] - loss) <= BOUND * abs(loss)
    worker.ok("set_state", file=str(problem.folder / "parameters"))
    worker.ok("train", first_step=0, count=4)
    worker.ok("train", first_step=4, count=6)
    parameters, losses = start.astype(np.float64), []
    for step in range(10):
        loss, parameters = problem.step(parameters, step)
        losses.append(loss)
    assert relative_error(parameters_of(worker, problem), parameters) <= BOUND
    assert relative_error(losses_of(worker, problem, 0, 10), np.array(losses)) <= BOUND
    around = 2**20 - 3  # steps beyond it use the first slots for losses again
    worker.ok("set_state", file=str(problem.folder / "parameters"))
    worker.ok("train", first_step=around, count=6)
    parameters, losses = start.astype(np.float64), []
    for step in range(around, around + 6):
        loss, parameters = problem.step(parameters, step)
        losses.append(loss)
    assert relative_error(parameters_of(worker, problem), parameters) <= BOUND
    assert relative_error(losses_of(worker, problem, around, 6), np.array(losses)) <= BOUND
    for first_step, count in ((around - 1, 2), (around + 6, 1), (0, 2**20 + 1)):
        arguments = {"first_step": first_step, "count": count, "file": str(problem.folder / "losses")}
        assert worker.error("losses", **arguments)[0] == "input"
    assert np.array_equal(np.fromfile(problem.folder / "parameters", np.float32), start)
    assert worker.ok("release") == {"peak_device_bytes": None}
    assert worker.error("train", first_step=0, count=1)[0] == "input"


def to_bf16(values: np.ndarray, ties_away: bool = False) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    half = 0x8000 if ties_away else 0x7FFF + ((bits >> 16) & 1)
    return ((bits + half) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def rounded_bias_update(problem: Problem, rounded, rounded_weight, scale: float) -> np.ndarray:
    """Of the first step of a network of one layer: the contract's roundings, sums in double precision."""
    ((weight, bias),) = problem.layers(problem.parameters)
    rows = np.arange(problem.batch_size)
    inputs = rounded(problem.features[rows]).astype(np.float64)
    logits = inputs @ rounded_weight(weight).astype(np.float64).T + bias
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    gradient = exponentials / exponentials.sum(axis=1, keepdims=True)
    gradient[rows, problem.labels[rows]] -= 1
    gradient = rounded(gradient * (scale / problem.batch_size)).astype(np.float64)
    return -problem.learning_rate / scale * gradient.sum(axis=0)


@pytest.mark.parametrize(
    ("precision", "rounded", "rounded_weight", "scale"),
    [
        ("bf16", to_bf16, lambda weight: to_bf16(weight, ties_away=True), 1.0),
        ("fp16", lambda values: values.astype(np.float16), lambda weight: weight.astype(np.float16), 256.0),
    ],
)
def test_a_bias_sums_the_gradient_as_it_is_rounded(
    worker, tmp_path, precision, rounded, rounded_weight, scale
):
    """Without that rounding the errors are ten times as large."""
    with_rounding, without = [], []
    for seed in range(5):
        (tmp_path / str(seed)).mkdir()
        problem = Problem(tmp_path / str(seed), widths=(24, 12), batch_size=16, samples=16, seed=seed)
        worker.ok("prepare", **problem.request(backend="jax-jit", precision=precision))
        worker.ok("train", first_step=0, count=1)
        bias = slice(24 * 12, None)
        found = parameters_of(worker, problem)[bias].astype(np.float64) - problem.parameters[bias]
        expected = rounded_bias_update(problem, rounded, rounded_weight, scale)
        with_rounding.append(relative_error(found, expected))
        same = rounded_bias_update(problem, lambda values: values, rounded_weight, scale)
        without.append(relative_error(found, same))
    print(with_rounding, without)
    assert np.median(with_rounding) <= 0.1 * np.median(without)


def test_bf16_weights_round_ties_away_from_zero(worker, tmp_path):
    problem = Problem(tmp_path, widths=(1, 2), batch_size=1, samples=1)
    np.array([1], np.float32).tofile(tmp_path / "features")
    np.array([0], np.int32).tofile(tmp_path / "targets")
    np.array([-HALFWAY, 0, 0, 0], np.float32).tofile(tmp_path / "parameters")  # logits -1 - 2^-7 and 0
    worker.ok("prepare", **problem.request(backend="jax-jit", precision="bf16"))
    worker.ok("train", first_step=0, count=1)
    assert abs(losses_of(worker, problem, 0, 1)[0] - np.log1p(np.exp(1 + 2**-7))) <= 1e-6


UNROLLING = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
from headroom_jax import jax_scan
os.sched_getaffinity = lambda process: range(CORES)
times, unrolls = iter([1e-5, 480e-5, 160e-5, 320e-5]), []
jax_scan.ScanTrainer._seconds = lambda *arguments, **options: next(times)
compiled = jax_scan.ScanTrainer._compiled
def noted(trainer, length, unroll):
    print(f"compiles {length} {unroll}\\n", end="", file=sys.stderr, flush=True)
    return compiled(trainer, length, unroll)
jax_scan.ScanTrainer._compiled = noted
"""


@pytest.mark.parametrize("cores", [2, 8])
def test_the_fastest_unroll_is_kept_and_reported(tmp_path, problem, cores):
    """With times that the test makes up: of one step, and of 160 steps with each unroll."""
    worker = start(tmp_path, UNROLLING.replace("CORES", str(cores)))
    request = problem.request(backend="jax-scan")
    note = worker.ok("prepare", **request)["note"]
    assert note == "unroll 4 (us a step with 1: 30.0, 4: 10.0, 8: 20.0)"
    worker.ok("train", first_step=0, count=10)
    worker.ok("train", first_step=10, count=320)  # no block: two scans that are there
    worker.ok("train", first_step=330, count=1040)
    assert worker.ok("prepare", **request)["note"] == note  # found once: there are no more times
    assert worker.end() == 0
    compiled = re.findall(r"compiles (\d+) (\d+)", worker.log_path.read_text())
    side_by_side = {("160", "1"), ("160", "4"), ("160", "8")}
    checked = {("10", "1"), ("10", "4"), ("10", "8")} if cores >= 6 else set()
    end = 1 + len(side_by_side | checked)
    assert set(compiled[1:end]) == side_by_side | checked
    afterwards = [] if checked else [("10", "4")]
    assert compiled[:1] + compiled[end:] == [("1", "1"), *afterwards, ("1040", "4"), ("1", "1")]


def test_steps_of_several_scans_train_what_one_scan_trains(tmp_path, problem):
    """Ten scans of ten steps, which is no block, and one of 100."""
    states = []
    for least_block_seconds in (1e9, 0):
        prelude = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
from headroom_jax import jax_scan
jax_scan.LEAST_BLOCK_SECONDS, jax_scan.UNROLLS = {least_block_seconds}, (1,)
"""
        worker = start(tmp_path, prelude)
        worker.ok("prepare", **problem.request(backend="jax-scan"))
        worker.ok("train", first_step=0, count=10)
        worker.ok("train", first_step=3, count=100)
        states.append((parameters_of(worker, problem), losses_of(worker, problem, 3, 100)))
        assert worker.end() == 0
    assert relative_error(states[0][0], states[1][0]) <= BOUND
    assert relative_error(states[0][1], states[1][1]) <= BOUND


@pytest.mark.parametrize("backend", ROWS)
def test_what_one_process_compiled_the_next_one_finds(tmp_path, problem, backend):
    request = problem.request(backend=backend, cache_folder=str(tmp_path / "cache"))
    prelude = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
from headroom_jax import jax_scan
jax_scan.SHORT_STEP_SECONDS = jax_scan.SLOW_STEP_SECONDS = 1e9  # the same scans, however slow this machine is
"""
    found = []
    for _ in range(2):
        worker = start(tmp_path, prelude)
        found.append(worker.ok("prepare", **request)["setup_cache"])
        assert worker.end() == 0
    assert found == ["cold", "warm"]


def test_steps_beyond_the_longest_scan_are_made_of_shorter_ones(tmp_path, problem):
    prelude = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
from headroom_jax import jax_scan
jax_scan.LONGEST_SECONDS, jax_scan.LONGEST_STEPS = 0, 8
"""
    worker = start(tmp_path, prelude)
    worker.ok("prepare", **problem.request(backend="jax-scan"))
    worker.ok("train", first_step=1, count=19)
    parameters, losses = problem.parameters.astype(np.float64), []
    for step in range(1, 20):
        loss, parameters = problem.step(parameters, step)
        losses.append(loss)
    assert relative_error(parameters_of(worker, problem), parameters) <= BOUND
    assert relative_error(losses_of(worker, problem, 1, 19), np.array(losses)) <= BOUND
    assert worker.end() == 0


def test_without_jax_every_row_has_the_reason(tmp_path, problem):
    worker = start(tmp_path, "sys.modules['jax'] = None")
    for backend in worker.ok("hello", protocol=2)["backends"]:
        for row in backend["precisions"].values():
            assert row["unavailable"].startswith("JAX cannot be imported by this Python: ")
    assert worker.error("prepare", **problem.request(backend="jax-scan"))[0] == "unsupported"
    assert worker.end() == 0


def test_a_broken_jax_is_a_failure(tmp_path):
    (tmp_path / "jax.py").write_text("raise OSError('libjax_common.so: cannot open shared object file')")
    worker = start(tmp_path, f"sys.path.insert(0, '{tmp_path}')")
    hello = worker.ok("hello", protocol=2)
    assert hello["broken"].startswith("JAX is broken in this Python: OSError: libjax_common.so")
    assert [row["name"] for row in hello["backends"]] == ["jax-jit", "jax-scan"]
    assert worker.end() == 0


def test_a_cuda_device_that_is_not_there_is_not_replaced_by_the_cpu(tmp_path):
    worker = Worker(tmp_path / "log", device=0, module="headroom_jax", python=PYTHON)
    for backend in worker.ok("hello", protocol=2)["backends"]:
        assert all("finds no CUDA device" in row["unavailable"] for row in backend["precisions"].values())
    assert worker.end() == 0


PRODUCTS = """
import types
import jax, jax.numpy as jnp
from headroom_jax.network import ARITHMETICS, Network
from headroom_protocol.workload import Optimizer

OUTPUTS = 4
state = [(jnp.ones((16, 8)), jnp.ones(16)), (jnp.ones((OUTPUTS, 16)), jnp.ones(OUTPUTS))], []
for precision, arithmetic in ARITHMETICS.items():
    rules = dict(activation="relu", loss="cross-entropy", optimizer=Optimizer())
    request = types.SimpleNamespace(precision=precision, joined_batch_size=8, devices=1, **rules)
    step = Network(request, "cuda").step
    traced = jax.jit(step).trace(state, None, jnp.ones((8, 8), arithmetic.type), jnp.zeros(8, jnp.int32))
    for line in traced.lower(lowering_platforms=("cuda",)).as_text().splitlines():
        if "dot" in line:
            print(precision, line)
"""


def products_for_a_gpu(outputs: int) -> list[str]:
    """In what is handed to XLA, which is the same on a machine without a GPU; each behind its precision."""
    done = subprocess.run(
        [PYTHON, "-c", PRODUCTS.replace("OUTPUTS = 4", f"OUTPUTS = {outputs}")],
        env={"PYTHONPATH": str(PACKAGE), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_products_of_one_output_for_a_gpu_are_made_of_fp32_factors():
    """XLA would round each of their terms to 16 bits."""
    of_one = [line for line in products_for_a_gpu(1) if re.search(r"[<x]1x", line.split(" : (")[1])]
    assert len(of_one) == 3 * 4  # forward, weights, inputs of the last layer
    for product in of_one:
        assert product.split(" : (")[1].split(") ->")[0].count("xf32>") == 2, product
        assert "HIGHEST, HIGHEST" in product


def test_every_product_for_a_gpu_names_its_precision():
    lines = products_for_a_gpu(4)
    named = {"fp32": "precision = [HIGHEST, HIGHEST]", "tf32": "lhs_precision_type = tf32"}
    named |= {"bf16": "lhs_precision_type = bf16", "fp16": "lhs_precision_type = f16"}
    operands = {"fp32": "xf32>", "tf32": "xf32>", "bf16": "xbf16>", "fp16": "xf16>"}
    for precision, words in named.items():
        products = [line for line in lines if line.startswith(precision)]
        assert len(products) == 5  # forward 2, weights 2, inputs 1
        for product in products:
            assert words in product
            assert re.search(r": \(tensor<\w+>, tensor<\w+>\) -> tensor<\w+xf32>", product)
            assert product.split(" : (")[1].split(") ->")[0].count(operands[precision]) == 2
            assert precision == "fp32" or "accumulation_type = f32" in product


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory):
    worker = start(tmp_path_factory.mktemp("two"), "import jax; jax.config.update('jax_num_cpu_devices', 2)")
    yield worker
    assert worker.end() == 0


def test_a_scan_on_two_devices_trains_the_joined_batch(two_devices, tmp_path):
    joined = Problem(tmp_path, batch_size=6, samples=27)
    request = joined.request(backend="jax-scan", workload__batch_size=3, workload__devices=2)
    two_devices.ok("prepare", **request)
    assert np.array_equal(parameters_of(two_devices, joined), joined.parameters)
    two_devices.ok("train", first_step=0, count=5)
    two_devices.ok("train", first_step=5, count=3)
    parameters, losses = joined.parameters.astype(np.float64), []
    for step in range(8):
        loss, parameters = joined.step(parameters, step)
        losses.append(loss)
    moved = parameters - joined.parameters
    assert relative_error(parameters_of(two_devices, joined) - joined.parameters, moved) <= BOUND
    assert relative_error(losses_of(two_devices, joined, 0, 8), np.array(losses)) <= BOUND


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_two_devices_round_and_scale_as_one_does_with_the_joined_batch(two_devices, tmp_path, precision):
    joined = Problem(tmp_path, widths=(24, 12, 5), batch_size=8, samples=16, seed=4)
    states = []
    for changes in ({}, {"workload__batch_size": 4, "workload__devices": 2}):
        request = joined.request(backend="jax-scan", precision=precision, **changes)
        prepared = two_devices.ok("prepare", **request)
        assert ("static loss scale 128" in prepared["note"]) == (precision == "fp16")
        two_devices.ok("train", first_step=0, count=1)
        states.append(parameters_of(two_devices, joined) - joined.parameters)
    assert relative_error(states[1], states[0]) <= 1e-5


def test_more_devices_than_there_are_and_a_row_of_one_are_refused(worker, problem):
    two = {"workload__batch_size": 3, "workload__devices": 2}
    assert worker.error("prepare", **problem.request(backend="jax-jit", **two)) == (
        "unsupported",
        "trains on one device",
    )
    kind, message = worker.error("prepare", **problem.request(backend="jax-scan", **two))
    assert (kind, message) == ("unsupported", "2 CPU devices: JAX has 1")
