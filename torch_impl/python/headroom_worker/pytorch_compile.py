"""`pytorch-compile`: torch.compile(mode="max-autotune", fullgraph=True) of the loss, and of the update.

The mode captures each compiled part in a CUDA graph of its own (forward, backward, update) and copies what
comes from outside, the batch, into memory that stays. The update is a function over all tensors:
Optimizer.step breaks the graph by design.
"""

import torch
import torch.nn.functional as F
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import Compilation, compiled
from headroom_worker.torch_trainer import KEPT_LOSSES, TorchTrainer

# A part's CUDA graph is recorded in its second call and replayed from the third on.
WARM_UP_STEPS = 4


class CompiledTrainer(TorchTrainer):
    """`backend`: one of torch.compile's, for tests without a GPU."""

    def __init__(self, request: TrainerRequest, device: torch.device, backend: str = "inductor"):
        super().__init__(request, device)
        self.parameter_list = list(self.network.parameters())
        self.learning_rate = request.optimizer.learning_rate / self.scale
        compilation = Compilation(request.cache_folder)
        self.loss = compiled(self.mean_losses, "max-autotune", backend)
        self.update = compiled(self.updated, "max-autotune", backend)
        self.run_steps(0, WARM_UP_STEPS)
        self._synchronize()
        self.set_state(request.parameters)
        if backend == "inductor":
            self.setup_cache = compilation.finish()
        self.note = self.scale_note()

    def mean_losses(self, features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of features [batch, inputs], labels [batch]: the loss, and the one to take the gradient of."""
        with self.autocast():
            loss = F.cross_entropy(self.network(features), labels)
        return loss.detach(), loss * self.scale

    def updated(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        torch._foreach_add_(parameters, gradients, alpha=-self.learning_rate)

    def run_steps(self, first_step: int, count: int) -> None:
        for step in range(first_step, first_step + count):
            first = step % self.batches * self.batch_size
            batch = slice(first, first + self.batch_size)
            torch.compiler.cudagraph_mark_step_begin()
            loss, scaled = self.loss(self.features[batch], self.labels[batch])
            self.loss_slots[step % KEPT_LOSSES] = loss
            gradients = torch.autograd.grad(scaled, self.parameter_list)
            with torch.no_grad():
                self.update(self.parameter_list, gradients)


def make_trainer(request: TrainerRequest, device: torch.device) -> CompiledTrainer:
    return CompiledTrainer(request, device)
