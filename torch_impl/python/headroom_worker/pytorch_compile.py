"""`pytorch-compile`: torch.compile(mode="max-autotune", fullgraph=True) of the loss, and of the update.

The mode captures each compiled part in a CUDA graph of its own (forward, backward, update) and copies what
comes from outside, the batch, into memory that stays. The update is a function over all tensors, written out:
Optimizer.step breaks the graph by design.
"""

import itertools

import torch
import torch._dynamo
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import Compilation, compiled
from headroom_worker.rules import Tensors, update_in_place
from headroom_worker.torch_trainer import KEPT_LOSSES, TorchTrainer

# A part's CUDA graph is recorded in its second call and replayed from the third on.
WARM_UP_STEPS = 4


class CompiledTrainer(TorchTrainer):
    """`backend`: one of torch.compile's, for tests without a GPU."""

    def __init__(self, request: TrainerRequest, device: torch.device, backend: str = "inductor"):
        super().__init__(request, device)
        self.trained_steps = torch.zeros((), device=device)
        for tensor in (self.trained_steps, *itertools.chain.from_iterable(self.slots)):
            # Like a network's parameters: what a CUDA graph changes in place must not be copied for it.
            torch._dynamo.mark_static_address(tensor, guard=False)
        compilation = Compilation(request.cache_folder)
        self.loss = compiled(self.mean_losses, "max-autotune", backend)
        self.update = compiled(self.updated, "max-autotune", backend)
        self.run_steps(0, WARM_UP_STEPS)
        self._synchronize()
        self.start_from(request.parameters)
        if backend == "inductor":
            self.setup_cache = compilation.finish()
        self.note = self.scale_note()

    def mean_losses(self, features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of features [batch, inputs], targets [batch, ...]: the loss, and the one to differentiate."""
        with self.autocast():
            loss = self.loss_function(self.network(features), targets)
        return loss.detach(), loss * self.scale

    def updated(
        self, trained_steps: torch.Tensor, parameters: Tensors, gradients: Tensors, slots: list[Tensors]
    ) -> None:
        if self.scale != 1.0:
            gradients = torch._foreach_mul(gradients, 1 / self.scale)
        update_in_place(self.rule, trained_steps, parameters, gradients, slots)

    def run_steps(self, first_step: int, count: int) -> None:
        for step in range(first_step, first_step + count):
            first = step % self.batches * self.batch_size
            batch = slice(first, first + self.batch_size)
            torch.compiler.cudagraph_mark_step_begin()
            loss, scaled = self.loss(self.features[batch], self.targets[batch])
            self.loss_slots[step % KEPT_LOSSES] = loss
            gradients = torch.autograd.grad(scaled, self.parameter_list)
            with torch.no_grad():
                self.update(self.trained_steps, self.parameter_list, gradients, self.slots)


def make_trainer(request: TrainerRequest, device: torch.device) -> CompiledTrainer:
    return CompiledTrainer(request, device)
