"""Every activation, loss and optimizer, against torch.optim in double precision.

The captured and compiled rows run on the CPU as in test_captured_rows.py.
"""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from worker_process import Problem, Worker, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_protocol.server import Arguments, read_request  # noqa: E402
from headroom_worker.pytorch_compile import CompiledTrainer  # noqa: E402
from headroom_worker.pytorch_compile_graph import CompiledGraphTrainer  # noqa: E402
from headroom_worker.pytorch_eager import EagerTrainer  # noqa: E402
from headroom_worker.pytorch_graph import GraphedEagerTrainer  # noqa: E402
from reference_training import (  # noqa: E402
    ACTIVATIONS,
    LOSSES,
    OPTIMIZERS,
    SLOTS,
    ReferenceTraining,
    assert_changed_alike,
    random_state,
)

CPU = torch.device("cpu")
COMBINATIONS = list(itertools.product(ACTIVATIONS, LOSSES, OPTIMIZERS))
# Each activation, loss and optimizer, and no two tests that differ in one of them only: these compile.
SOME = [
    ("relu", "cross-entropy", "adam"),
    ("tanh", "mse", "momentum"),
    ("silu", "bce", "adamw"),
    ("gelu", "mse", "adam"),
    ("elu", "cross-entropy", "sgd"),
]
ROWS = {
    "pytorch-graph": (GraphedEagerTrainer, {}),
    "pytorch-compile": (CompiledTrainer, {"backend": "aot_eager"}),
    "pytorch-compile-graph": (CompiledGraphTrainer, {"backend": "aot_eager"}),
}
BOUNDS = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 1.5e-1}


def make_problem(folder: Path, activation: str, loss: str, optimizer: str) -> Problem:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    return Problem(
        folder,
        widths=(12, 9, 7, 3),
        samples=25,  # 3 batches
        learning_rate=1e-2,
        seed=seed,
        activation=activation,
        loss=loss,
        optimizer=OPTIMIZERS[optimizer],
    )


def make(kind, problem: Problem, precision: str = "fp32", **options):
    return kind(read_request(Arguments(problem.request(precision=precision), "request")), CPU, **options)


def assert_trains_as_torch_does(trainer, problem: Problem, optimizer: str, precision: str = "fp32"):
    """From step 0, and from a step and a state in the midst of training."""
    bound = BOUNDS[precision]
    reference, pieces = ReferenceTraining(problem, optimizer), 1 + len(SLOTS[optimizer])
    start = np.concatenate([problem.parameters, np.zeros(problem.parameters.size * (pieces - 1))])
    assert np.array_equal(trainer.state(), start.astype(np.float32))  # whatever set-up has trained
    for first, count, state in ((0, 3, start), (40, 2, random_state(problem, optimizer))):
        trainer.set_state(state.astype(np.float32))
        assert np.array_equal(trainer.state(), state.astype(np.float32))
        reference.set_state(state, first)
        trainer.train(first, count - 1)
        trainer.train(first + count - 1, 1)
        losses = reference.train(first, count)
        assert relative_error(trainer.losses(first, count), np.array(losses)) <= bound
        assert_changed_alike(trainer.state(), reference.state(), state, pieces, bound)


@pytest.mark.parametrize(("activation", "loss", "optimizer"), COMBINATIONS)
def test_the_eager_row_trains_every_combination(tmp_path, activation, loss, optimizer):
    problem = make_problem(tmp_path, activation, loss, optimizer)
    assert_trains_as_torch_does(make(EagerTrainer, problem), problem, optimizer)


@pytest.mark.parametrize(("activation", "loss", "optimizer"), SOME)
@pytest.mark.parametrize("row", ROWS)
def test_the_other_rows_train_every_rule(tmp_path, row, activation, loss, optimizer):
    problem = make_problem(tmp_path, activation, loss, optimizer)
    kind, options = ROWS[row]
    assert_trains_as_torch_does(make(kind, problem, **options), problem, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("row", ["pytorch-eager", *ROWS])
def test_slots_hold_no_loss_scale(tmp_path, row, optimizer):
    """Of fp16, by which the gradients of a loss are 128 times as large."""
    problem = make_problem(tmp_path, "tanh", "mse", optimizer)
    kind, options = ROWS.get(row, (EagerTrainer, {}))
    trainer = make(kind, problem, precision="fp16", **options)
    assert trainer.scale == 128
    assert_trains_as_torch_does(trainer, problem, optimizer, "fp16")


@pytest.mark.parametrize("row", ROWS)
def test_bf16_steps_with_slots_are_near_double_precision(tmp_path, row):
    problem = make_problem(tmp_path, "silu", "bce", "adamw")
    kind, options = ROWS[row]
    trainer = make(kind, problem, precision="bf16", **options)
    assert_trains_as_torch_does(trainer, problem, "adamw", "bf16")


@pytest.mark.parametrize("row", ["pytorch-eager", *ROWS])
def test_first_moments_without_memory_are_gradients(tmp_path, row):
    """A beta of 0, whose logarithm is none."""
    problem = make_problem(tmp_path, "tanh", "mse", "adam")
    problem.optimizer = OPTIMIZERS["adam"] | {"beta1": 0.0}
    kind, options = ROWS.get(row, (EagerTrainer, {}))
    trainer = make(kind, problem, **options)
    trainer.train(0, 2)
    assert np.isfinite(trainer.state()).all()
    assert not np.array_equal(trainer.state()[: problem.parameters.size], problem.parameters)


BUILD = os.environ.get("HEADROOM_BUILD", "")
ORACLE = Path(BUILD) / "bin" / "headroom-oracle-worker"


@pytest.mark.skipif(not BUILD or not ORACLE.exists(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize(("activation", "loss"), [("tanh", "mse"), ("gelu", "cross-entropy")])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fifty_steps_of_the_oracle_are_those_of_torch_optim(tmp_path, activation, loss, optimizer):
    """In fp32, where it rounds the state between steps and nothing else."""
    problem = make_problem(tmp_path, activation, loss, optimizer)
    worker = Worker(tmp_path / "log", command=[str(ORACLE)])
    worker.ok("prepare", **problem.request(backend="oracle"))
    reference, pieces = ReferenceTraining(problem, optimizer), 1 + len(SLOTS[optimizer])
    start = np.concatenate([problem.parameters, np.zeros(problem.parameters.size * (pieces - 1))])
    reference.set_state(start, 0)
    worker.ok("train", first_step=0, count=50)
    losses = reference.train(0, 50)
    worker.ok("state", file=str(tmp_path / "out"))
    worker.ok("losses", first_step=0, count=50, file=str(tmp_path / "losses"))
    assert relative_error(np.fromfile(tmp_path / "losses", np.float32), np.array(losses)) <= 1e-6
    found = np.fromfile(tmp_path / "out", np.float32)
    assert_changed_alike(found, reference.state(), start, pieces, bound=1e-7)
    assert worker.end() == 0
