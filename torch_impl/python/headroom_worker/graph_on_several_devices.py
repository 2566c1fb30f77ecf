"""`pytorch-graph` on several devices: one all-reduce of all gradients in the graph."""

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.pytorch_graph import GraphedEagerTrainer
from headroom_worker.several_devices import Tensors, communication_note, mean_in_place, pieces_of


class GraphOnSeveralDevices(GraphedEagerTrainer):
    def __init__(self, request: TrainerRequest, device: torch.device, **options):
        super().__init__(request, device, **options)
        self.note = f"{communication_note()}, {self.note}"

    def step(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss, scaled = self.scaled_loss(features, targets)
        self.update(self.joined(list(torch.autograd.grad(scaled, self.parameter_list))))
        return loss

    def joined(self, gradients: Tensors) -> Tensors:
        """Their means over all ranks, by way of one array."""
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        mean_in_place(flat)
        return pieces_of(flat, gradients)
