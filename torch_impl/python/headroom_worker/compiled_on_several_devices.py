"""`pytorch-compile-graph` on several devices.

The compiled function holds the all-reduce of the gradients too, one of PyTorch's functional collectives, and
NCCL's kernels become nodes of the graph.
"""

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.pytorch_compile_graph import CompiledGraphTrainer
from headroom_worker.rules import Tensors
from headroom_worker.several_devices import communication_note, means_in_a_graph


class CompiledOnSeveralDevices(CompiledGraphTrainer):
    def __init__(self, request: TrainerRequest, device: torch.device, **options):
        super().__init__(request, device, **options)
        self.note = f"{communication_note()}, {self.note}"

    def joined(self, gradients: Tensors) -> Tensors:
        return means_in_a_graph(gradients)
