"""The Python worker on a GPU: four precisions, device times, memory. Skipped where there is none."""

import numpy as np
import pytest
from worker_process import Worker, problems_of_a_fresh_seed, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
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
    hello = worker.ok("hello", protocol=1)
    device = hello["device"]
    assert device["name"]
    assert device["uuid"].startswith("GPU-")
    assert device["sm_count"] > 0
    assert device["memory_bytes"] > 2**30
    assert device["l2_bytes"] > 0
    for backend in hello["backends"]:
        assert [row["unavailable"] for row in backend["precisions"].values()] == [None] * 4


@pytest.mark.parametrize("precision", BOUNDS)
def test_update_and_loss_are_near_double_precision(worker, tmp_path, precision):
    errors = []
    for problem in problems_of_a_fresh_seed(tmp_path, 9):
        worker.ok("prepare", **problem.request(precision=precision))
        worker.ok("train", first_step=1, count=1)
        worker.ok("parameters", file=str(problem.folder / "out"))
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
