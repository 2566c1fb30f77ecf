"""Every activation, loss and optimizer in the JAX rows, against torch.optim in double precision."""

import os

import numpy as np
import pytest
from worker_process import Problem, Worker, jax_python

pytest.importorskip("torch", reason="PyTorch is not installed")
PYTHON = jax_python()
if PYTHON is None:
    pytest.skip("JAX is not installed: HEADROOM_JAX_PYTHON names no Python with it", allow_module_level=True)

from reference_training import (  # noqa: E402
    OPTIMIZERS,
    SLOTS,
    ReferenceTraining,
    assert_changed_alike,
    random_state,
)

# Each activation, loss and optimizer: each of them is compiled.
SOME = [
    ("relu", "cross-entropy", "adam"),
    ("tanh", "mse", "momentum"),
    ("silu", "bce", "adamw"),
    ("gelu", "mse", "adam"),
    ("elu", "cross-entropy", "sgd"),
]
BOUNDS = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1.5e-1}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("worker") / "log", module="headroom_jax", python=PYTHON)
    yield worker
    assert worker.end() == 0


def state_of(worker, folder) -> np.ndarray:
    worker.ok("state", file=str(folder / "out"))
    return np.fromfile(folder / "out", np.float32)


def assert_trains_as_torch_does(worker, folder, backend, precision, activation, loss, optimizer):
    """From step 0, and from a step and a state in the midst of training."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    problem = Problem(
        folder,
        widths=(12, 9, 7, 3),
        samples=25,  # 3 batches
        learning_rate=1e-2,
        seed=seed,
        activation=activation,
        loss=loss,
        optimizer=OPTIMIZERS[optimizer],
    )
    reference, pieces = ReferenceTraining(problem, optimizer), 1 + len(SLOTS[optimizer])
    worker.ok("prepare", **problem.request(backend=backend, precision=precision))
    start = np.concatenate([problem.parameters, np.zeros(problem.parameters.size * (pieces - 1))])
    assert np.array_equal(state_of(worker, folder), start.astype(np.float32))  # whatever set-up has trained
    for first, state in ((0, start), (40, random_state(problem, optimizer))):
        state.astype(np.float32).tofile(folder / "in")
        worker.ok("set_state", file=str(folder / "in"))
        reference.set_state(state, first)
        worker.ok("train", first_step=first, count=2)
        worker.ok("train", first_step=first + 2, count=1)
        worker.ok("losses", first_step=first, count=3, file=str(folder / "losses"))
        losses, expected = np.fromfile(folder / "losses", np.float32), np.array(reference.train(first, 3))
        assert np.abs(losses - expected).max() <= BOUNDS[precision] * np.abs(expected).max()
        assert_changed_alike(state_of(worker, folder), reference.state(), state, pieces, BOUNDS[precision])


@pytest.mark.parametrize(("activation", "loss", "optimizer"), SOME)
def test_every_rule_is_trained(worker, tmp_path, activation, loss, optimizer):
    assert_trains_as_torch_does(worker, tmp_path, "jax-jit", "fp32", activation, loss, optimizer)


def test_a_scan_hands_slots_and_the_number_of_the_step_on(worker, tmp_path):
    assert_trains_as_torch_does(worker, tmp_path, "jax-scan", "fp32", "silu", "bce", "adamw")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("activation", "optimizer"), [("gelu", "momentum"), ("silu", "adamw"), ("elu", "adam")]
)
def test_slots_in_16_bits_are_near_double_precision(worker, tmp_path, precision, activation, optimizer):
    """In fp16 the loss is scaled, and slots are not."""
    assert_trains_as_torch_does(worker, tmp_path, "jax-jit", precision, activation, "mse", optimizer)
