"""The rows on several devices on GPUs: the joined batch, steps in any order, a rank that is lost.

On one GPU two ranks share it, with gloo between them, as NCCL refuses that; and one rank has NCCL for itself,
which is captured as on several. The rest is skipped where there are fewer than two.
"""

import dataclasses
import os
import signal

import numpy as np
import pytest
from test_several_devices import assert_all_gone, assert_trains_the_joined_batch, children_of
from worker_process import Worker, jax_python, problems_of_a_fresh_seed, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_protocol.server import Arguments, WorkerError, read_request  # noqa: E402
from headroom_worker.backends import no_compiler_reason  # noqa: E402
from headroom_worker.ranks import RankedTrainer  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")

# Against plain double precision, so what the precision itself costs is part of the error.
BOUNDS = {"fp32": 1e-4, "tf32": 2e-2, "fp16": 1e-2, "bf16": 8e-2}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("worker") / "log", device=0, sees_cuda=True)
    yield worker
    assert worker.end() == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ddp_of_two_ranks_that_share_a_gpu_trains_the_joined_batch(tmp_path, precision):
    (joined,) = problems_of_a_fresh_seed(tmp_path, 1)
    request = read_request(Arguments(on_two_devices(joined, precision=precision), "request"))
    request = dataclasses.replace(request, device_indices=(0, 0))
    trainer = RankedTrainer(request, "headroom_worker.pytorch_ddp", {}, least_training_seconds=2.0)
    ids = trainer.process_ids()
    assert_trains_the_joined_batch(trainer, joined, BOUNDS[precision])
    assert trainer.peak_device_bytes() > joined.parameters.nbytes
    os.kill(ids[1], signal.SIGSTOP if precision == "fp32" else signal.SIGKILL)
    with pytest.raises(WorkerError, match="gave no answer|was ended by signal 9"):
        trainer.train(8, 10)
    assert_all_gone(ids)


ONE_RANK = {
    "pytorch-ddp": ("headroom_worker.pytorch_ddp", {}),
    "pytorch-ddp-graph": ("headroom_worker.pytorch_ddp_graph", {}),
    "pytorch-graph": ("headroom_worker.several_devices_trials", {"kind": "graph"}),
    "graph-grouped-all-reduce": ("headroom_worker.several_devices_trials", {"kind": "graph-grouped"}),
}


@pytest.mark.parametrize("row", ONE_RANK)
def test_one_rank_with_nccl_trains_what_one_device_does(tmp_path, row):
    (problem,) = problems_of_a_fresh_seed(tmp_path, 1)
    request = dataclasses.replace(read_request(Arguments(problem.request(), "request")), device_indices=(0,))
    module, options = ONE_RANK[row]
    trainer = RankedTrainer(request, module, options)
    assert "NCCL" in trainer.note
    assert_trains_the_joined_batch(trainer, problem, BOUNDS["fp32"])
    states = []
    for ranges in ([(5, 37)], [(step, 1) for step in range(5, 42)]):
        trainer.set_state(problem.parameters)
        for first, count in ranges:
            trainer.train(first, count)
        states.append(trainer.state())
    assert np.array_equal(states[0], states[1])
    trainer.close()


def on_two_devices(joined, **changes) -> dict:
    two = {"workload__batch_size": joined.batch_size // 2, "workload__devices": 2, "devices": [0, 1]}
    return joined.request(**two, **changes)


def assert_update_is_near_double_precision(worker, problems, precision, backend):
    errors = []
    for joined in problems:
        worker.ok("prepare", **on_two_devices(joined, precision=precision, backend=backend))
        worker.ok("train", first_step=1, count=1)
        worker.ok("state", file=str(joined.folder / "out"))
        found = np.fromfile(joined.folder / "out", np.float32)
        loss, expected = joined.step(joined.parameters, 1)
        errors.append(relative_error(found - joined.parameters, expected - joined.parameters))
        worker.ok("losses", first_step=1, count=1, file=str(joined.folder / "losses"))
        assert abs(np.fromfile(joined.folder / "losses", np.float32)[0] - loss) <= BOUNDS[precision] * loss
    assert np.median(errors) <= 2 * BOUNDS[precision], errors


def assert_any_steps_are_the_same_together_and_one_by_one(worker, joined):
    """16 steps a graph and 3 batches; also says that all ranks have the same bits."""
    for first, count in ((0, 16), (5, 37)):
        states = []
        for ranges in ([(first, count)], [(step, 1) for step in range(first, first + count)]):
            worker.ok("set_state", file=str(joined.folder / "parameters"))
            for begin, steps in ranges:
                worker.ok("train", first_step=begin, count=steps)
            worker.ok("state", file=str(joined.folder / "out"))
            states.append(np.fromfile(joined.folder / "out", np.float32))
        assert np.array_equal(states[0], states[1])
        assert not np.array_equal(states[0], joined.parameters)


@two_gpus
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["pytorch-ddp", "pytorch-graph", "pytorch-ddp-graph"])
def test_the_joined_batch_is_trained(worker, tmp_path, precision, backend):
    problems = problems_of_a_fresh_seed(tmp_path, 1)
    assert_update_is_near_double_precision(worker, problems, precision, backend)
    assert_any_steps_are_the_same_together_and_one_by_one(worker, problems[0])


@two_gpus
@pytest.mark.long
@pytest.mark.skipif(no_compiler_reason() is not None, reason=str(no_compiler_reason()))
def test_the_compiled_row_trains_the_joined_batch(worker, tmp_path):
    problems = problems_of_a_fresh_seed(tmp_path, 1)
    assert_update_is_near_double_precision(worker, problems, "bf16", "pytorch-compile-graph")
    assert_any_steps_are_the_same_together_and_one_by_one(worker, problems[0])


@two_gpus
@pytest.mark.skipif(jax_python() is None, reason="JAX is not installed: HEADROOM_JAX_PYTHON names no Python")
def test_a_scan_trains_the_joined_batch(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADROOM_DEVICES", "0,1")
    worker = Worker(tmp_path / "log", device=0, sees_cuda=True, module="headroom_jax", python=jax_python())
    (tmp_path / "problems").mkdir()
    problems = problems_of_a_fresh_seed(tmp_path / "problems", 1)
    assert_update_is_near_double_precision(worker, problems, "fp32", "jax-scan")
    assert worker.end() == 0


@two_gpus
def test_a_rank_that_is_killed_costs_one_answer(worker, tmp_path):
    (joined,) = problems_of_a_fresh_seed(tmp_path, 1)
    worker.ok("prepare", **on_two_devices(joined, backend="pytorch-ddp-graph"))
    ids = children_of(worker.process.pid)
    os.kill(ids[1], signal.SIGKILL)
    kind, message = worker.error("train", first_step=0, count=100)
    assert kind == "failed"
    assert "was ended by signal 9" in message
    assert_all_gone(ids)
    worker.ok("prepare", **joined.request(backend="pytorch-graph"))  # the device is not stuck
    worker.ok("train", first_step=0, count=1)
