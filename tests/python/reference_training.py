"""Training as PyTorch does it, in double precision: torch.nn, torch.nn.functional and torch.optim."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from worker_process import Problem

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
        size = np.median if pieces == 3 and piece == 0 else np.linalg.norm
        error = size(np.abs(after - right)) / size(np.abs(right - before))
        assert error <= bound + 4 * 2**-24 * size(np.abs(before)) / size(np.abs(right - before))
