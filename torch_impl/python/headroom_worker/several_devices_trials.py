"""Other ways to write the steps of the rows on several devices; docs/rivals.md says what they gave."""

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import compiled
from headroom_worker.pytorch_compile_graph import CompiledGraphTrainer
from headroom_worker.pytorch_ddp import DdpTrainer
from headroom_worker.pytorch_ddp_graph import GraphedDdpTrainer
from headroom_worker.pytorch_graph import GraphedEagerTrainer
from headroom_worker.rules import Tensors
from headroom_worker.several_devices import communication_note, mean_in_place, means_in_place, pieces_of


class GraphedAllReduce(GraphedEagerTrainer):
    """No DistributedDataParallel: gradients as a list, copied together and joined by one all-reduce.

    `grouped`: joined where they lie instead, by one group of NCCL.
    """

    def __init__(self, request: TrainerRequest, device: torch.device, grouped: bool = False):
        self.grouped = grouped
        super().__init__(request, device)
        self.note = f"{communication_note()}, {self.note}"

    def step(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss, scaled = self.scaled_loss(features, targets)
        gradients = list(torch.autograd.grad(scaled, self.parameter_list))
        if self.grouped:
            means_in_place(gradients)
        else:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            mean_in_place(flat)
            gradients = pieces_of(flat, gradients)
        self.update(gradients)
        return loss


class CompiledAroundAllReduce(CompiledGraphTrainer):
    """Gradients and update compiled each for itself, PyTorch's own all-reduce between them."""

    def compile_step(self, mode: str, backend: str) -> None:
        super().compile_step(mode, backend)
        self.flat_gradients = compiled(self.gradients_in_one, mode, backend)
        self.update = compiled(self.behind_flat_update, mode, backend)
        self.next_state = self.step_in_parts

    def gradients_in_one(
        self, weights: Tensors, features: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gradients, (_, loss) = torch.func.grad_and_value(self.mean_losses, has_aux=True)(
            weights, features, targets
        )
        return torch.cat([gradient.float().reshape(-1) for gradient in gradients]), loss

    def behind_flat_update(self, factors, masters, copies, slots, flat):
        return self.behind_update(factors, masters, copies, slots, pieces_of(flat, masters))

    def step_in_parts(self, factors, masters, copies, slots, features, targets):
        flat, loss = self.flat_gradients(copies or masters, features, targets)
        mean_in_place(flat)
        return *self.update(factors, masters, copies, slots, flat), loss


KINDS = {
    "ddp": DdpTrainer,
    "ddp-graph": GraphedDdpTrainer,
    "graph": GraphedAllReduce,
    "compile-graph-in-parts": CompiledAroundAllReduce,
}


def make_trainer(request: TrainerRequest, device: torch.device, kind: str, **options):
    return KINDS[kind](request, device, **options)
