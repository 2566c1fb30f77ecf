"""`pytorch-eager`: the training step as a PyTorch user writes it.

fp16 uses the contract's static loss scale instead of GradScaler: a careful user's choice, cheaper, and it
never skips a step. The optimizer takes the scale out again.
"""

import time

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.rules import torch_optimizer
from headroom_worker.torch_trainer import KEPT_LOSSES, TorchTrainer

LAUNCHES = 1000


def launch_note(device: torch.device) -> str:
    """What a launch costs the host, and which it is: an eager step is made of them."""
    if device.type != "cuda":
        return ""
    value = torch.zeros(1, device=device)
    times = []
    for _ in range(3):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            value.zero_()
        torch.cuda.synchronize(device)
        times.append((time.perf_counter() - start) / LAUNCHES)
    return f"a zero_() of one float takes {min(times) * 1e6:.1f} us from Python on {cpu_model()}"


def cpu_model() -> str:
    with open("/proc/cpuinfo") as file:
        models = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        return next(models, "a CPU that does not say its name")


class EagerTrainer(TorchTrainer):
    def __init__(self, request: TrainerRequest, device: torch.device):
        super().__init__(request, device)
        self.optimizer = torch_optimizer(
            self.rule, self.parameter_list, self.slots, self.trained_steps, self.scale
        )
        self.step = self.step_plain if self.autocast_type is None else self.step_autocast
        self.note = ", ".join(filter(None, (self.scale_note(), launch_note(device))))

    def run_steps(self, first_step: int, count: int) -> None:
        for step in range(first_step, first_step + count):
            first = step % self.batches * self.batch_size
            batch = slice(first, first + self.batch_size)
            self.loss_slots[step % KEPT_LOSSES] = self.step(self.features[batch], self.targets[batch])

    def step_plain(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """features [batch, inputs], targets [batch, ...]; the loss before the update, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_function(self.network(features), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step_autocast(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """As step_plain, with 16-bit products; features are 16-bit already."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss_function(self.network(features), targets)
        scaled = loss * self.scale if self.scale != 1.0 else loss
        scaled.backward()
        self.optimizer.step()
        return loss.detach()


def make_trainer(request: TrainerRequest, device: torch.device) -> EagerTrainer:
    return EagerTrainer(request, device)
