"""The Python worker on a GPU: four precisions, device times, memory, captured steps, compiled code.

Skipped where there is none.
"""

import numpy as np
import pytest
from worker_process import Worker, assert_describes_a_gpu, problems_of_a_fresh_seed, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_worker.backends import no_compiler_reason  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

# Against plain double precision, so what the precision itself costs is part of the error.
BOUNDS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 1e-2, "bf16": 8e-2}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("worker") / "log", device=0, sees_cuda=True)
    yield worker
    assert worker.end() == 0


@pytest.fixture
def problem(tmp_path):
    return problems_of_a_fresh_seed(tmp_path, 1)[0]


def test_hello_describes_the_device_and_offers_every_precision(worker):
    hello = worker.ok("hello", protocol=2)
    assert_describes_a_gpu(hello["device"])
    for backend in hello["backends"]:
        missing = no_compiler_reason() if "compile" in backend["name"] else None
        assert [row["unavailable"] for row in backend["precisions"].values()] == [missing] * 4


@pytest.mark.parametrize("backend", ["pytorch-eager", "pytorch-graph"])
@pytest.mark.parametrize("precision", BOUNDS)
def test_update_and_loss_are_near_double_precision(worker, tmp_path, precision, backend):
    errors = []
    for problem in problems_of_a_fresh_seed(tmp_path, 9):
        worker.ok("prepare", **problem.request(precision=precision, backend=backend))
        worker.ok("train", first_step=1, count=1)
        worker.ok("state", file=str(problem.folder / "out"))
        found = np.fromfile(problem.folder / "out", np.float32)
        loss, expected = problem.step(problem.parameters, 1)
        errors.append(relative_error(found - problem.parameters, expected - problem.parameters))
        worker.ok("losses", first_step=1, count=1, file=str(problem.folder / "losses"))
        assert abs(np.fromfile(problem.folder / "losses", np.float32)[0] - loss) <= BOUNDS[precision] * loss
    assert np.median(errors) <= BOUNDS[precision], errors


@pytest.mark.parametrize("precision", BOUNDS)
def test_device_times_and_memory(worker, problem, precision):
    worker.ok("prepare", **problem.request(precision=precision))
    worker.ok("train", first_step=0, count=10)
    timing = worker.ok("train", first_step=10, count=200)
    assert 0 < timing["device_seconds"] <= 1.05 * timing["wall_seconds"] + 1e-4
    assert worker.ok("release")["peak_device_bytes"] > problem.parameters.nbytes


def trained(worker, problem, ranges) -> tuple[np.ndarray, np.ndarray]:
    """Parameters and losses after the ranges (first step, count) that follow one another."""
    worker.ok("set_state", file=str(problem.folder / "parameters"))
    for first, count in ranges:
        worker.ok("train", first_step=first, count=count)
    worker.ok("state", file=str(problem.folder / "out"))
    begin, end = ranges[0][0], sum(ranges[-1])
    worker.ok("losses", first_step=begin, count=end - begin, file=str(problem.folder / "losses"))
    return np.fromfile(problem.folder / "out", np.float32), np.fromfile(problem.folder / "losses", np.float32)


def assert_graphs_serve_every_range_of_steps(worker, problem):
    """16 steps a graph and 3 batches: together and one by one is the same, wherever it begins."""
    for first, count in ((0, 16), (5, 37), (2**20 - 3, 20)):
        together = trained(worker, problem, [(first, count)])
        one_by_one = trained(worker, problem, [(step, 1) for step in range(first, first + count)])
        assert np.array_equal(together[0], one_by_one[0])
        assert np.array_equal(together[1], one_by_one[1])
        assert np.isfinite(together[1]).all()


@pytest.mark.parametrize("precision", BOUNDS)
def test_captured_steps(worker, problem, precision):
    worker.ok("prepare", **problem.request(precision=precision, backend="pytorch-graph"))
    assert_graphs_serve_every_range_of_steps(worker, problem)


@pytest.mark.skipif(no_compiler_reason() is not None, reason=str(no_compiler_reason()))
@pytest.mark.parametrize("backend", ["pytorch-compile", "pytorch-compile-graph"])
def test_compiled_steps(tmp_path, problem, backend):
    """Two processes with one cache folder: the second finds what the first compiled."""
    request = problem.request(precision="bf16", backend=backend, cache_folder=str(tmp_path / "cache"))
    for found in ("cold", "warm"):
        worker = Worker(tmp_path / f"log-{found}", device=0, sees_cuda=True)
        assert worker.ok("prepare", **request)["setup_cache"] == found
        if found == "warm":
            assert_graphs_serve_every_range_of_steps(worker, problem)
            loss, expected = problem.step(problem.parameters, 1)
            parameters, losses = trained(worker, problem, [(1, 1)])
            assert abs(losses[0] - loss) <= BOUNDS["bf16"] * loss
            error = relative_error(parameters - problem.parameters, expected - problem.parameters)
            assert error <= 2 * BOUNDS["bf16"]  # one step: a ReLU that flips costs some per cent
        worker.ok("release")
        assert worker.end() == 0


def test_out_of_device_memory_costs_one_answer(tmp_path, problem):
    width = 8192  # 268 MB of weights in the middle
    limit = f"import torch; torch.cuda.set_per_process_memory_fraction({200e6 / memory_bytes()}, 0)"
    worker = Worker(tmp_path / "log", prelude=limit, device=0, sees_cuda=True)
    count = 64 * width + width + width * width + width + 10 * width + 10
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(4 * count)  # sparse
    changes = {"workload__widths": [64, width, width, 10], "parameters_file": str(tmp_path / "huge")}
    kind, message = worker.error("prepare", **problem.request(**changes))
    assert kind == "out_of_memory", message
    worker.ok("prepare", **problem.request())
    worker.ok("train", first_step=0, count=5)
    assert worker.end() == 0


def memory_bytes() -> int:
    return torch.cuda.get_device_properties(0).total_memory
