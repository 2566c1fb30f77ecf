"""`pytorch-graph`: the eager step, captured whole in a CUDA graph.

Gradients are asked for as a list. Without momentum the update is one `_foreach_add_`: in a graph nothing else
is left of such an optimizer. The others are torch.optim's, captured with the step.
"""

from collections.abc import Sequence

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.graph_trainer import STEPS_PER_GRAPH, GraphTrainer
from headroom_worker.rules import torch_optimizer


class GraphedEagerTrainer(GraphTrainer):
    def __init__(self, request: TrainerRequest, device: torch.device, steps_per_graph: int = STEPS_PER_GRAPH):
        super().__init__(request, device, steps_per_graph)
        self.learning_rate = self.rule.learning_rate / self.scale  # of the update without slots
        self.prepare_step()
        self.capture(request.parameters)
        self.note = ", ".join(filter(None, (self.graph_note(), self.scale_note())))

    def prepare_step(self) -> None:
        """What a step needs beyond the parameters."""
        self.optimizer = torch_optimizer(
            self.rule, self.parameter_list, self.slots, self.trained_steps, self.scale
        )

    def queue_steps(self, features: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor) -> None:
        # One kernel for all losses of a graph.
        torch.stack([self.step(*batch) for batch in zip(features, targets, strict=True)], out=losses)

    def scaled_loss(self, features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss, and the one to take the gradient of."""
        with self.autocast():
            loss = self.loss_function(self.network(features), targets)
        return loss.detach(), loss * self.scale if self.scale != 1.0 else loss

    def step(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """features [batch, inputs], targets [batch, ...]; the loss before the update, on the device."""
        loss, scaled = self.scaled_loss(features, targets)
        self.update(torch.autograd.grad(scaled, self.parameter_list))
        return loss

    def update(self, gradients: Sequence[torch.Tensor]) -> None:
        """They carry the loss scale."""
        if not self.slots:
            with torch.no_grad():
                torch._foreach_add_(self.parameter_list, gradients, alpha=-self.learning_rate)
            return
        for parameter, gradient in zip(self.parameter_list, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def make_trainer(request: TrainerRequest, device: torch.device) -> GraphedEagerTrainer:
    return GraphedEagerTrainer(request, device)
