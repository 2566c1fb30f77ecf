"""Other ways to write the rows' steps, measured like any backend; docs/rivals.md says what they gave.

./headroom run --suite trials

They train with plain SGD only.
"""

import torch
import torch.nn.functional as F
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import compiled
from headroom_worker.pytorch_compile_graph import CompiledGraphTrainer
from headroom_worker.pytorch_eager import EagerTrainer
from headroom_worker.pytorch_graph import GraphedEagerTrainer
from headroom_worker.torch_trainer import make_network


class EagerForm(EagerTrainer):
    """`sgd`: options of torch.optim.SGD; `keep_gradients`: set to zero in each step instead of made anew."""

    def __init__(
        self, request: TrainerRequest, device: torch.device, sgd: dict | None = None, keep_gradients=False
    ):
        super().__init__(request, device)
        learning_rate = self.rule.learning_rate / self.scale
        self.optimizer = torch.optim.SGD(self.parameter_list, lr=learning_rate, **(sgd or {}))
        if keep_gradients:
            clear = self.optimizer.zero_grad
            self.optimizer.zero_grad = lambda set_to_none: clear(set_to_none=False)


class EagerForeachAdd(EagerTrainer):
    """No optimizer: gradients as a list, the update as one call."""

    def __init__(self, request: TrainerRequest, device: torch.device):
        super().__init__(request, device)
        self.learning_rate = self.rule.learning_rate / self.scale
        self.step = self.step_with_foreach

    def step_with_foreach(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with self.autocast():
            loss = F.cross_entropy(self.network(features), labels)
        scaled = loss * self.scale if self.scale != 1.0 else loss
        gradients = torch.autograd.grad(scaled, self.parameter_list)
        with torch.no_grad():
            torch._foreach_add_(self.parameter_list, gradients, alpha=-self.learning_rate)
        return loss.detach()


class GraphedOptimizer(GraphedEagerTrainer):
    """The update by torch.optim.SGD with the options `sgd`."""

    def __init__(
        self, request: TrainerRequest, device: torch.device, sgd: dict, keep_gradients: bool = False
    ):
        self.sgd, self.keep_gradients = sgd, keep_gradients
        super().__init__(request, device)

    def prepare_step(self) -> None:
        self.optimizer = torch.optim.SGD(self.parameter_list, lr=self.learning_rate, **self.sgd)

    def step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss, scaled = self.scaled_loss(features, labels)
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)
        scaled.backward()
        self.optimizer.step()
        return loss


class GraphedCopies(GraphedEagerTrainer):
    """fp16, bf16: 16-bit copies of the weights beside the masters, rounded once a step; no autocast."""

    def prepare_step(self) -> None:
        with torch.device("meta"):
            network = make_network(self.widths)
        self.low = network.to_empty(device=self.device).to(self.autocast_type or torch.float32)
        self.low_list = list(self.low.parameters())
        self.set_state(self.state())

    def step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.low(features).float(), labels)
        gradients = torch.autograd.grad(loss * self.scale, self.low_list)
        with torch.no_grad():
            in_fp32 = [gradient.float() for gradient in gradients]
            torch._foreach_add_(self.parameter_list, in_fp32, alpha=-self.learning_rate)
            torch._foreach_copy_(self.low_list, self.parameter_list)
        return loss.detach()

    def _copy(self, values, tensors) -> None:
        super()._copy(values, tensors)
        with torch.no_grad():
            for low, master in zip(getattr(self, "low_list", ()), self.parameter_list, strict=False):
                low.copy_(master)


class CompiledInParts(CompiledGraphTrainer):
    """Loss and update compiled each for itself, autograd between them, the update in place."""

    def __init__(self, request: TrainerRequest, device: torch.device, backend: str = "inductor"):
        super().__init__(request, device, keep_copies=False, backend=backend)

    def compile_step(self, mode: str, backend: str) -> None:
        self.learning_rate = self.rule.learning_rate / self.scale
        self.losses_of = compiled(self.mean_losses, mode, backend)
        self.update = compiled(self.update_all, mode, backend)

    def update_all(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        torch._foreach_add_(parameters, gradients, alpha=-self.learning_rate)

    def queue_steps(self, features: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor) -> None:
        queued = []
        for batch in zip(features, labels, strict=True):
            scaled, loss = self.losses_of(self.parameter_list, *batch)
            queued.append(loss.detach())
            gradients = torch.autograd.grad(scaled, self.parameter_list)
            with torch.no_grad():
                self.update(self.parameter_list, gradients)
        torch.stack(queued, out=losses)


KINDS = {
    "eager": EagerForm,
    "eager-foreach-add": EagerForeachAdd,
    "graph": GraphedEagerTrainer,
    "graph-optimizer": GraphedOptimizer,
    "graph-copies": GraphedCopies,
    "compile-graph": CompiledGraphTrainer,
    "compile-graph-in-parts": CompiledInParts,
}


def make_trainer(request: TrainerRequest, device: torch.device, kind: str, **options):
    return KINDS[kind](request, device, **options)
