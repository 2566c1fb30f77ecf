"""What every PyTorch backend has in common: network, its optimizer's slots, resident data, losses, timing.

Losses go to a ring of 2^20 floats on the device: copying one to the host inside a block would wait for the
device at every step.
"""

import contextlib
import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from headroom_protocol.kept_losses import KEPT_LOSSES, KeptSteps
from headroom_protocol.server import Timing, TrainerRequest
from torch import nn

from headroom_worker.rules import ACTIVATIONS, LOSSES

VALUES_PER_PAGE = 1024
AUTOCAST_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def set_precision_switches(precision: str) -> None:
    """Every switch of PyTorch that changes a product's arithmetic, set rather than left at a default."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    matmul.allow_fp16_reduced_precision_reduction = False
    matmul.allow_bf16_reduced_precision_reduction = False
    if hasattr(matmul, "allow_fp16_accumulation"):  # PyTorch 2.7
        matmul.allow_fp16_accumulation = False


def find_pages(flat: torch.Tensor) -> None:
    """Touches each page of a mapped file, on all cores.

    A copy to or from the device is one thread's work, and takes several times as long if it has to find pages
    as it goes. Reading finds several at once, and those of a file in memory may then be written too.
    """
    flat[::VALUES_PER_PAGE].sum()


def make_network(widths: tuple[int, ...], activation: str = "relu") -> nn.Sequential:
    """Linear, activation, ..., Linear; its parameters() are in the order of the flat array."""
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        modules += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
    return nn.Sequential(*modules[:-1])


def own_rows(values: np.ndarray, request: TrainerRequest) -> np.ndarray:
    """Features or targets of this rank: [batches * batch_size, ...] where it is one of several."""
    if request.devices == 1:
        return values
    import torch.distributed

    joined = values[: request.batches * request.joined_batch_size]
    by_rank = joined.reshape(request.batches, request.devices, request.batch_size, *values.shape[1:])
    return by_rank[:, torch.distributed.get_rank()].reshape(-1, *values.shape[1:])


def loss_scale(precision: str, batch_size: int) -> float:
    """fp16: 16 times the smallest power of two of at least the batch size, which the mean divides by.

    At most 2^15: autocast sums bias gradients over the batch into fp16, which ends at 65504. A scaler that
    searches would come down as far.
    """
    return min(16.0 * (1 << (batch_size - 1).bit_length()), 32768.0) if precision == "fp16" else 1.0


class TorchTrainer:
    """One network on one device. A backend adds `run_steps`, the only code that is timed."""

    note = ""
    setup_cache: str | None = None  # "cold" or "warm" where code was compiled

    def __init__(self, request: TrainerRequest, device: torch.device):
        set_precision_switches(request.precision)
        self.device = device
        self.widths = request.widths
        self.batch_size = request.batch_size
        self.batches = request.batches
        self.autocast_type = AUTOCAST_TYPES.get(request.precision)
        self.scale = loss_scale(request.precision, request.joined_batch_size)

        with torch.device("meta"):  # no initial values: they come from the request
            network = make_network(request.widths, request.activation)
        self.network = network.to_empty(device=device)
        self.parameter_list = list(self.network.parameters())
        self.rule = request.optimizer
        self.slots = [  # of the optimizer, in the order of its names; each has a tensor for each parameter
            [torch.empty_like(parameter, requires_grad=False) for parameter in self.parameter_list]
            for _ in self.rule.slots
        ]
        self.trained_steps = torch.zeros(
            len(self.parameter_list), device=device
        )  # as torch.optim counts them
        self._next_step = -1  # which trained_steps is right for
        self.start_from(request.parameters)
        self.loss_function = LOSSES[request.loss]

        # Rounded on the host, so that the device never holds both copies.
        features = torch.from_numpy(own_rows(request.features, request))
        features = features.to(self.autocast_type or torch.float32, copy=True)
        self.features = features.to(device)  # [samples, inputs]
        targets = torch.from_numpy(own_rows(request.targets, request))
        if request.loss == "cross-entropy":
            targets = targets.to(torch.int64)
        self.targets = targets.to(device, copy=True)  # [samples] or [samples, outputs]

        self.loss_slots = torch.full((KEPT_LOSSES,), float("nan"), device=device)
        self._kept = KeptSteps()
        if device.type == "cuda":
            self._begin, self._end = (
                torch.cuda.Event(enable_timing=True),
                torch.cuda.Event(enable_timing=True),
            )
        self._synchronize()

    def run_steps(self, first_step: int, count: int) -> None:
        raise NotImplementedError

    def go_to(self, step: int) -> None:
        """Before steps that do not go on where the last ones ended."""
        self.trained_steps.fill_(step)

    def autocast(self) -> contextlib.AbstractContextManager:
        """Around forward pass and loss; does nothing in fp32 and tf32."""
        if self.autocast_type is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast_type)

    def scale_note(self) -> str:
        return f"static loss scale {self.scale:g}" if self.scale != 1.0 else ""

    def train(self, first_step: int, count: int) -> Timing:
        goes_on, self._next_step = first_step == self._next_step, -1

        def run() -> None:
            if not goes_on:
                self.go_to(first_step)
            self.run_steps(first_step, count)

        timing = self._timed(run)
        self._next_step = first_step + count
        self._kept.add(first_step, count)
        return timing

    def _timed(self, run: Callable[[], None]) -> Timing:
        cpu, wall = time.process_time(), time.perf_counter()
        if self.device.type == "cuda":
            self._begin.record()
            run()
            self._end.record()
            self._end.synchronize()
        else:
            run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        device = self._begin.elapsed_time(self._end) * 1e-3 if self.device.type == "cuda" else wall
        return Timing(device_seconds=device, wall_seconds=wall, cpu_seconds=cpu)

    def losses(self, first_step: int, count: int) -> np.ndarray:
        slots = self._kept.slots(first_step, count)
        return self.loss_slots.cpu().numpy()[slots]

    def _state_tensors(self) -> list[torch.Tensor]:
        return [*self.parameter_list, *itertools.chain.from_iterable(self.slots)]

    def state(self, into: np.ndarray | None = None) -> np.ndarray:
        """Flat, and `into` an array such as a mapped file where there is one."""
        tensors, begin = self._state_tensors(), 0
        values = np.empty(sum(tensor.numel() for tensor in tensors), np.float32) if into is None else into
        flat = torch.from_numpy(values)
        if into is not None:
            find_pages(flat)
        with torch.no_grad():
            for tensor in tensors:
                flat[begin : begin + tensor.numel()].view_as(tensor).copy_(tensor)
                begin += tensor.numel()
        return values

    def set_state(self, values: np.ndarray) -> None:
        """Copies in place: optimizers and captured graphs keep pointing at the same memory."""
        self._copy(values, self._state_tensors())

    def start_from(self, parameters: np.ndarray) -> None:
        """Their state at step 0: slots are zeros."""
        for slot in self.slots:
            for tensor in slot:
                tensor.zero_()
        self._copy(parameters, self.parameter_list)

    def _copy(self, values: np.ndarray, tensors: list[torch.Tensor]) -> None:
        flat, begin = torch.from_numpy(np.ascontiguousarray(values)), 0
        find_pages(flat)
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[begin : begin + tensor.numel()].view_as(tensor))
                begin += tensor.numel()

    def peak_device_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
