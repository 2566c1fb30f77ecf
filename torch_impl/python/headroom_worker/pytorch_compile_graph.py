"""`pytorch-compile-graph`: loss, gradients and update compiled as one function, captured in a CUDA graph.

The function changes nothing in place: it takes weights and returns new ones, because Inductor lets an update
be the end of the weight gradient's product only if nothing is overwritten by it. Captured steps hand the new
weights on, and the last one of a graph copies them back. In 16 bits the state holds, beside the masters, the
16-bit copies that autocast would make of them in each step: the update makes the next step's, and the
arithmetic stays autocast's.
"""

import torch
import torch.nn.functional as F
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import Compilation, compiled
from headroom_worker.graph_trainer import GraphTrainer

Tensors = list[torch.Tensor]


class CompiledGraphTrainer(GraphTrainer):
    """`keep_copies`: see above; `backend`: one of torch.compile's, for tests without a GPU."""

    def __init__(
        self,
        request: TrainerRequest,
        device: torch.device,
        keep_copies: bool = True,
        backend: str = "inductor",
    ):
        super().__init__(request, device)
        self.learning_rate = request.optimizer.learning_rate / self.scale
        self.masters: Tensors = [tensor.detach() for tensor in self.network.parameters()]
        self.copies: Tensors = []
        if keep_copies and self.autocast_type is not None:
            self.copies = [tensor.to(self.autocast_type) for tensor in self.masters]
        compilation = Compilation(request.cache_folder)
        self.compile_step("max-autotune-no-cudagraphs", backend)
        self.capture(request.parameters)
        if backend == "inductor":
            self.setup_cache = compilation.finish()
        self.note = ", ".join(filter(None, (self.graph_note(), self.scale_note())))

    def compile_step(self, mode: str, backend: str) -> None:
        self.next_state = compiled(self.trained, mode, backend)

    def mean_losses(
        self, weights: Tensors, features: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss to take the gradient of, and the one to report."""
        with self.autocast():
            values = features
            for index in range(0, len(weights), 2):
                values = F.linear(values, weights[index], weights[index + 1])
                if index + 2 < len(weights):
                    values = torch.relu(values)
            loss = F.cross_entropy(values, labels)
        return loss * self.scale, loss

    def trained(
        self, masters: Tensors, copies: Tensors, features: torch.Tensor, labels: torch.Tensor
    ) -> tuple[Tensors, Tensors, torch.Tensor]:
        """One step: new masters, new copies and the loss; features [batch, inputs], labels [batch]."""
        gradients, (_, loss) = torch.func.grad_and_value(self.mean_losses, has_aux=True)(
            copies or masters, features, labels
        )
        new = [
            master - self.learning_rate * gradient.float()
            for master, gradient in zip(masters, gradients, strict=True)
        ]
        return new, [master.to(copy.dtype) for master, copy in zip(new, copies, strict=False)], loss

    def queue_steps(self, features: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor) -> None:
        masters, copies, queued = self.masters, self.copies, []
        with torch.no_grad():
            for batch in zip(features, labels, strict=True):
                masters, copies, loss = self.next_state(masters, copies, *batch)
                queued.append(loss)
            torch.stack(queued, out=losses)
            torch._foreach_copy_(self.masters + self.copies, [*masters, *copies])

    def set_state(self, values) -> None:
        super().set_state(values)
        for copy, master in zip(getattr(self, "copies", ()), self.network.parameters(), strict=False):
            copy.copy_(master.detach())


def make_trainer(request: TrainerRequest, device: torch.device) -> CompiledGraphTrainer:
    return CompiledGraphTrainer(request, device)
