"""A worker process behind its pipes, and small random problems to give it."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parents[2] / "torch_impl" / "python"


def jax_python() -> str | None:
    """A Python that has JAX, as the driver finds it; None where that has none."""
    python = os.environ.get("HEADROOM_JAX_PYTHON") or sys.executable
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('jax') is None)"
    return python if subprocess.run([python, "-c", find]).returncode == 0 else None


class Worker:
    """Starts `PYTHON -m MODULE`; `prelude` is Python that runs in its process before it. Or `command`.

    Sees no CUDA device unless told to, so that the CPU tests do the same everywhere.
    """

    def __init__(
        self,
        log: Path,
        prelude: str = "",
        device: int = -1,
        sees_cuda: bool = False,
        module: str = "headroom_worker",
        python: str = sys.executable,
        command: list[str] | None = None,
    ):
        start = f"import runpy, sys; sys.argv[1:] = ['--device', '{device}']\n"
        start += f"{prelude}\nrunpy.run_module('{module}', run_name='__main__')"
        environment = dict(os.environ, PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1")
        if not sees_cuda:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.log_path = log
        with log.open("w") as log_file:
            self.process = subprocess.Popen(
                [*command, "--device", str(device)] if command else [python, "-c", start],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env=environment,
            )
        self._id = 0

    def raw(self, line: bytes) -> dict:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"no answer; log: {self.log_path.read_text()}"
        return json.loads(answer)

    def request(self, call: str, **arguments) -> dict:
        self._id += 1
        answer = self.raw(json.dumps({"id": self._id, "call": call, **arguments}).encode())
        assert answer["id"] == self._id
        return answer

    def ok(self, call: str, **arguments) -> dict:
        answer = self.request(call, **arguments)
        assert answer["ok"] is True, answer
        return answer["result"]

    def error(self, call: str, **arguments) -> tuple[str, str]:
        answer = self.request(call, **arguments)
        assert answer["ok"] is False, answer
        message = answer["error"]["message"]
        assert message
        assert "\n" not in message
        return answer["error"]["kind"], message

    def end(self) -> int:
        self.process.stdin.close()
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        return code


@dataclass
class Problem:
    """A small network with random data and its files; `step` trains ReLU, cross-entropy and plain sgd."""

    folder: Path
    widths: tuple[int, ...] = (23, 33, 7, 5)
    batch_size: int = 7
    samples: int = 31  # 4 batches and 3 samples left over
    learning_rate: float = 0.1
    seed: int = 0
    activation: str = "relu"
    loss: str = "cross-entropy"
    optimizer: dict = field(default_factory=lambda: {"kind": "sgd", "momentum": 0})

    def __post_init__(self):
        random = np.random.default_rng(self.seed)
        self.features = random.random((self.samples, self.widths[0]), dtype=np.float32)
        self.labels = random.integers(0, self.widths[-1], self.samples, dtype=np.int32)
        pieces = []
        for inputs, outputs in zip(self.widths, self.widths[1:], strict=False):
            pieces.append(random.uniform(-1, 1, inputs * outputs + outputs) / np.sqrt(inputs))
        self.parameters = np.concatenate(pieces).astype(np.float32)
        self.features.tofile(self.folder / "features")
        self.targets = self.labels
        if self.loss != "cross-entropy":
            values = random.random((self.samples, self.widths[-1]), dtype=np.float32)
            self.targets = np.round(values) if self.loss == "bce" else 4 * values - 2
        self.targets.tofile(self.folder / "targets")
        self.parameters.tofile(self.folder / "parameters")

    def request(self, **changes) -> dict:
        request = {
            "backend": "pytorch-eager",
            "precision": "fp32",
            "workload": {
                "name": "test",
                "widths": list(self.widths),
                "activation": self.activation,
                "loss": self.loss,
                "batch_size": self.batch_size,
                "optimizer": {"learning_rate": self.learning_rate, **self.optimizer},
                "seed": 1,
            },
            "data": {
                "features_file": str(self.folder / "features"),
                "targets_file": str(self.folder / "targets"),
                "samples": self.samples,
                "feature_count": self.widths[0],
            },
            "parameters_file": str(self.folder / "parameters"),
            "cache_folder": None,
        }
        for path, value in changes.items():
            target = request
            *parents, last = path.split("__")
            for key in parents:
                target = target[key]
            target[last] = value
        return request

    def layers(self, flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        layers, begin = [], 0
        for inputs, outputs in zip(self.widths, self.widths[1:], strict=False):
            weight = flat[begin : begin + inputs * outputs].reshape(outputs, inputs)
            begin += inputs * outputs
            layers.append((weight, flat[begin : begin + outputs]))
            begin += outputs
        return layers

    def step(self, parameters: np.ndarray, step: int) -> tuple[float, np.ndarray]:
        """Loss before the update and the parameters after it, in double precision by NumPy."""
        first = step % (self.samples // self.batch_size) * self.batch_size
        hidden = self.features[first : first + self.batch_size].astype(np.float64)
        labels = self.labels[first : first + self.batch_size]
        layers = self.layers(parameters.astype(np.float64))
        activations = [hidden]
        for index, (weight, bias) in enumerate(layers):
            hidden = hidden @ weight.T + bias
            if index + 1 < len(layers):
                hidden = np.maximum(hidden, 0)
            activations.append(hidden)
        logits = hidden - hidden.max(axis=1, keepdims=True)
        log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows = np.arange(self.batch_size)
        loss = -log_probability[rows, labels].mean()
        gradient = np.exp(log_probability)
        gradient[rows, labels] -= 1
        gradient /= self.batch_size
        pieces = []
        for (weight, bias), inputs in zip(reversed(layers), reversed(activations[:-1]), strict=True):
            new_weight = weight - self.learning_rate * gradient.T @ inputs
            new_bias = bias - self.learning_rate * gradient.sum(axis=0)
            pieces.append(np.concatenate([new_weight.reshape(-1), new_bias]))
            gradient = (gradient @ weight) * (inputs > 0)
        return float(loss), np.concatenate(pieces[::-1])


def problems_of_a_fresh_seed(folder: Path, count: int, batches: int = 3) -> list[Problem]:
    """Several, for medians: where products are rounded, one ReLU that flips costs an update some per cent."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    problems = []
    for index in range(count):
        (folder / str(index)).mkdir()
        problems.append(
            Problem(
                folder / str(index),
                widths=(64, 48, 32, 10),
                batch_size=16,
                samples=16 * batches,
                seed=seed + index,
            )
        )
    return problems


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """In Frobenius norms; not a number if either has one, so compare with `error <= bound`."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def parameters_of(worker, problem) -> np.ndarray:
    file = problem.folder / "out"
    np.full(problem.parameters.size, np.nan, dtype=np.float32).tofile(file)
    assert worker.ok("state", file=str(file)) == {"count": problem.parameters.size}
    return np.fromfile(file, dtype=np.float32)


def losses_of(worker, problem, first_step: int, count: int) -> np.ndarray:
    file = problem.folder / "losses"
    assert worker.ok("losses", first_step=first_step, count=count, file=str(file)) == {"count": count}
    return np.fromfile(file, dtype=np.float32)


def assert_describes_a_gpu(device: dict) -> None:
    """What `hello` says of it."""
    assert device["name"]
    assert device["uuid"].startswith("GPU-")
    assert device["sm_count"] > 0
    assert device["memory_bytes"] > 2**30
    assert device["l2_bytes"] > 0
