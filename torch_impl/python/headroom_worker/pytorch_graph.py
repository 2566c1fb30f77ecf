"""`pytorch-graph`: the eager step, captured whole in a CUDA graph.

Gradients are asked for as a list and the update is one `_foreach_add_`: in a graph nothing else is left of an
optimizer without momentum.
"""

import torch
import torch.nn.functional as F
from headroom_protocol.server import TrainerRequest

from headroom_worker.graph_trainer import STEPS_PER_GRAPH, GraphTrainer


class GraphedEagerTrainer(GraphTrainer):
    def __init__(self, request: TrainerRequest, device: torch.device, steps_per_graph: int = STEPS_PER_GRAPH):
        super().__init__(request, device, steps_per_graph)
        self.parameter_list = list(self.network.parameters())
        self.learning_rate = request.optimizer.learning_rate / self.scale
        self.prepare_step()
        self.capture(request.parameters)
        self.note = ", ".join(filter(None, (self.graph_note(), self.scale_note())))

    def prepare_step(self) -> None:
        """What a step needs beyond the parameters."""

    def queue_steps(self, features: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor) -> None:
        # One kernel for all losses of a graph.
        torch.stack([self.step(*batch) for batch in zip(features, labels, strict=True)], out=losses)

    def scaled_loss(self, features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the one to take the gradient of."""
        with self.autocast():
            loss = F.cross_entropy(self.network(features), labels)
        return loss.detach(), loss * self.scale if self.scale != 1.0 else loss

    def step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """features [batch, inputs], labels [batch]; returns the loss before the update, on the device."""
        loss, scaled = self.scaled_loss(features, labels)
        gradients = torch.autograd.grad(scaled, self.parameter_list)
        with torch.no_grad():
            torch._foreach_add_(self.parameter_list, gradients, alpha=-self.learning_rate)
        return loss


def make_trainer(request: TrainerRequest, device: torch.device) -> GraphedEagerTrainer:
    return GraphedEagerTrainer(request, device)
