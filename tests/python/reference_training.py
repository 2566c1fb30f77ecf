"""Training as PyTorch does it, in double precision: torch.nn, torch.nn.functional and torch.optim."""

import itertools
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from worker_process import Problem, Worker

ACTIVATIONS = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
}
LOSSES = {
    "cross-entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}
ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
OPTIMIZERS = {
    "sgd": {"kind": "sgd", "momentum": 0.0},
    "momentum": {"kind": "sgd", "momentum": 0.9},
    "adam": {"kind": "adam", **ADAM},
    "adamw": {"kind": "adamw", **ADAM, "weight_decay": 0.1},
}
SLOTS = {"sgd": (), "momentum": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq")}
SLOTS["adamw"] = SLOTS["adam"]
BOUNDS = {"fp32": 2e-5, "tf32": 2e-2, "fp16": 2e-2, "bf16": 1.5e-1}  # relative


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


class ReferenceTraining:
    """`optimizer` is one of OPTIMIZERS; a state is flat, as the protocol has it."""

    def __init__(self, problem: Problem, optimizer: str):
        self.problem, self.slots = problem, SLOTS[optimizer]
        self.activation, self.loss = ACTIVATIONS[problem.activation], LOSSES[problem.loss]
        self.layers = [
            nn.Linear(inputs, outputs, dtype=torch.float64)
            for inputs, outputs in itertools.pairwise(problem.widths)
        ]
        self.parameters = [tensor for layer in self.layers for tensor in (layer.weight, layer.bias)]
        options = dict(OPTIMIZERS[optimizer], lr=problem.learning_rate)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[
            options.pop("kind")
        ]
        if "beta1" in options:
            options["betas"] = options.pop("beta1"), options.pop("beta2")
            options["eps"] = options.pop("epsilon")
        self.optimizer = kind(self.parameters, **options)
        self.features = torch.from_numpy(problem.features).double()
        self.targets = torch.from_numpy(problem.targets)
        self.targets = self.targets.long() if problem.loss == "cross-entropy" else self.targets.double()

    def set_state(self, state: np.ndarray, step: int) -> None:
        values = torch.from_numpy(state.astype(np.float64))
        sizes = [tensor.numel() for tensor in self.parameters] * (1 + len(self.slots))
        pieces = list(values.split(sizes))
        with torch.no_grad():
            for index, tensor in enumerate(self.parameters):
                own = [piece.view_as(tensor) for piece in pieces[index :: len(self.parameters)]]
                tensor.copy_(own[0])
                self.optimizer.state[tensor] = dict(zip(self.slots, own[1:], strict=True))
                if len(self.slots) == 2:
                    self.optimizer.state[tensor]["step"] = torch.tensor(float(step))

    def state(self) -> np.ndarray:
        tensors = [*self.parameters]
        for slot in self.slots:
            tensors += [self.optimizer.state[tensor][slot] for tensor in self.parameters]
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()

    def train(self, first_step: int, count: int) -> list[float]:
        """The losses before each step's update."""
        losses = []
        for step in range(first_step, first_step + count):
            first = step % (self.problem.samples // self.problem.batch_size) * self.problem.batch_size
            batch = slice(first, first + self.problem.batch_size)
            values = self.features[batch]
            for layer in self.layers[:-1]:
                values = self.activation(layer(values))
            loss = self.loss(self.layers[-1](values), self.targets[batch])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses


def random_state(problem: Problem, optimizer: str) -> np.ndarray:
    """The problem's parameters, and slots as they may be in the midst of training."""
    random = np.random.default_rng(problem.seed)
    size = problem.parameters.size
    slots = [1e-2 * random.standard_normal(size) for _ in SLOTS[optimizer][:1]]
    slots += [1e-4 * random.random(size) + 1e-5 for _ in SLOTS[optimizer][1:]]
    return np.concatenate([problem.parameters, *slots]).astype(np.float32)


def assert_changed_alike(
    found: np.ndarray, expected: np.ndarray, start: np.ndarray, pieces: int, bound: float
):
    """What was added to parameters and slots, each of which may be beyond the bound by its rounding to fp32.

    The parameters of adam by medians: its first steps are signs, and a gradient near 0 may have either.
    """
    split = [np.split(state, pieces) for state in (found, expected, start)]
    for piece, (after, right, before) in enumerate(zip(*split, strict=True)):
        moved = right != before  # not where a ReLU is off for all samples
        assert np.array_equal(after[~moved], before[~moved])
        size = np.median if pieces == 3 and piece == 0 else np.linalg.norm
        increment = size(np.abs(right - before)[moved])
        error = size(np.abs(after - right)[moved]) / increment
        assert error <= bound + 4 * 2**-24 * size(np.abs(before)[moved]) / increment


def state_of(worker: Worker, folder: Path) -> np.ndarray:
    worker.ok("state", file=str(folder / "out"))
    return np.fromfile(folder / "out", np.float32)


def assert_worker_trains_as_torch_does(
    worker: Worker, folder: Path, backend, precision, activation, loss, optimizer
):
    """From step 0, and from a step and a state in the midst of training."""
    problem = make_problem(folder, activation, loss, optimizer)
    reference, pieces = ReferenceTraining(problem, optimizer), 1 + len(SLOTS[optimizer])
    worker.ok("prepare", **problem.request(backend=backend, precision=precision))
    start = np.concatenate([problem.parameters, np.zeros(problem.parameters.size * (pieces - 1))])
    assert np.array_equal(state_of(worker, folder), start.astype(np.float32))  # whatever set-up has trained
    count = 20 if precision == "fp32" else 3  # more than a CUDA graph holds; roundings to 16 bits add up
    for first, state in ((0, start), (40, random_state(problem, optimizer))):
        state.astype(np.float32).tofile(folder / "in")
        worker.ok("set_state", file=str(folder / "in"))
        reference.set_state(state, first)
        worker.ok("train", first_step=first, count=count - 1)
        worker.ok("train", first_step=first + count - 1, count=1)
        worker.ok("losses", first_step=first, count=count, file=str(folder / "losses"))
        losses, expected = np.fromfile(folder / "losses", np.float32), np.array(reference.train(first, count))
        assert np.abs(losses - expected).max() <= BOUNDS[precision] * np.abs(expected).max()
        assert_changed_alike(state_of(worker, folder), reference.state(), state, pieces, BOUNDS[precision])
