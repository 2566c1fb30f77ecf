"""`pytorch-compile-graph`: loss, gradients and update compiled as one function, captured in a CUDA graph.

The function changes nothing in place: it takes a state and returns a new one, because Inductor lets an update
be the end of the weight gradient's product only if nothing is overwritten by it. Captured steps hand the new
state on, and the last one of a graph copies it back. In 16 bits the state holds, beside the masters, the
16-bit copies that autocast would make of them in each step: the update makes the next step's, and the
arithmetic stays autocast's. Adam's bias corrections are made for all steps of a graph at its head: Inductor
would put them into every kernel that updates, for each element.
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from headroom_protocol.server import TrainerRequest

from headroom_worker.compilation import Compilation, compiled
from headroom_worker.graph_trainer import GraphTrainer
from headroom_worker.rules import ACTIVATIONS, Tensors, step_factors, updated


class CompiledGraphTrainer(GraphTrainer):
    """`keep_copies`: see above; `mode` and `backend` (for tests without a GPU) are torch.compile's."""

    def __init__(
        self,
        request: TrainerRequest,
        device: torch.device,
        keep_copies: bool = True,
        mode: str = "max-autotune-no-cudagraphs",
        backend: str = "inductor",
    ):
        super().__init__(request, device)
        self.activation = ACTIVATIONS[request.activation]()
        # Of each step of a graph, four times, as are the factors made of it: so they are 16 bytes apart.
        # Inductor would copy a number that is not so aligned.
        self.trained_steps = torch.zeros(self.steps_per_graph, 4, device=device)
        self.masters: Tensors = [tensor.detach() for tensor in self.parameter_list]
        self.copies: Tensors = []
        if keep_copies and self.autocast_type is not None:
            self.copies = [tensor.to(self.autocast_type) for tensor in self.masters]
        compilation = Compilation(request.cache_folder)
        self.compile_step(mode, backend)
        self.capture(request.parameters)
        if backend == "inductor":
            self.setup_cache = compilation.finish()
        self.note = ", ".join(filter(None, (self.graph_note(), self.scale_note())))

    def compile_step(self, mode: str, backend: str) -> None:
        self.next_state = compiled(self.trained, mode, backend)
        self.factors = compiled(self.factors_of_steps, mode, backend)

    def factors_of_steps(self, trained_steps: torch.Tensor) -> Tensors:
        return step_factors(self.rule, trained_steps)

    def mean_losses(
        self, weights: Tensors, features: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss to take the gradient of, and the one to report."""
        with self.autocast():
            values = features
            for index in range(0, len(weights), 2):
                values = F.linear(values, weights[index], weights[index + 1])
                if index + 2 < len(weights):
                    values = self.activation(values)
            loss = self.loss_function(values, targets)
        return loss * self.scale, loss

    def trained(
        self,
        factors: Tensors,
        masters: Tensors,
        copies: Tensors,
        slots: list[Tensors],
        features: torch.Tensor,
        targets: torch.Tensor,
    ) -> tuple[Tensors, Tensors, list[Tensors], torch.Tensor]:
        """One step: the state behind it and the loss; features [batch, inputs], targets [batch, ...].

        factors: each of step_factors(), one number.
        """
        gradients, (_, loss) = torch.func.grad_and_value(self.mean_losses, has_aux=True)(
            copies or masters, features, targets
        )
        gradients = self.joined([gradient.float() for gradient in gradients])
        return *self.behind_update(factors, masters, copies, slots, gradients), loss

    def behind_update(
        self, factors: Tensors, masters: Tensors, copies: Tensors, slots: list[Tensors], gradients: Tensors
    ) -> tuple[Tensors, Tensors, list[Tensors]]:
        """The state; gradients are fp32 and carry the loss scale."""
        new_masters, new_slots = [], [[] for _ in slots]
        for index, (master, gradient) in enumerate(zip(masters, gradients, strict=True)):
            own_slots = [slot[index] for slot in slots]
            unscaled = gradient * (1 / self.scale)
            new_master, own_slots = updated(self.rule, factors, master, unscaled, own_slots)
            new_masters.append(new_master)
            for slot, tensor in zip(new_slots, own_slots, strict=True):
                slot.append(tensor)
        new_copies = [master.to(copy.dtype) for master, copy in zip(new_masters, copies, strict=False)]
        return new_masters, new_copies, new_slots

    def joined(self, gradients: Tensors) -> Tensors:
        """Over all devices, where there are several."""
        return gradients

    def go_to(self, step: int) -> None:
        super().go_to(step)
        self.trained_steps.add_(self._offsets[:, None])

    def queue_steps(self, features: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor) -> None:
        state, queued = (self.masters, self.copies, self.slots), []
        with torch.no_grad():
            all_factors = self.factors(self.trained_steps) if self.rule.kind != "sgd" else []
            for step, batch in enumerate(zip(features, targets, strict=True)):
                factors = [of_steps[step, 0] for of_steps in all_factors]
                *state, loss = self.next_state(factors, *state, *batch)
                queued.append(loss)
            torch.stack(queued, out=losses)
            torch._foreach_copy_(flattened(self.masters, self.copies, self.slots), flattened(*state))
            if self.rule.kind != "sgd":
                self.trained_steps.add_(len(features))

    def _copy(self, values: np.ndarray, tensors: Tensors) -> None:
        super()._copy(values, tensors)
        for copy, master in zip(getattr(self, "copies", ()), self.parameter_list, strict=False):
            copy.copy_(master.detach())


def flattened(masters: Tensors, copies: Tensors, slots: list[Tensors]) -> Tensors:
    return [*masters, *copies, *itertools.chain.from_iterable(slots)]


def make_trainer(request: TrainerRequest, device: torch.device, **options) -> CompiledGraphTrainer:
    if request.devices == 1:
        return CompiledGraphTrainer(request, device, **options)
    from headroom_worker.compiled_on_several_devices import CompiledOnSeveralDevices

    return CompiledOnSeveralDevices(request, device, **options)
