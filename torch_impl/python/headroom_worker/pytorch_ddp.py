"""`pytorch-ddp`: the eager step on several devices, as PyTorch's tutorial writes it.

A process for each device, torch.nn.parallel.DistributedDataParallel around the network, NCCL below it. What
it adds to pytorch-eager is the wrapper: in the backward pass its hooks join the gradients, bucket by bucket.
"""

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.pytorch_eager import EagerTrainer
from headroom_worker.several_devices import DDP_OPTIONS, ddp_note, distributed


class DdpTrainer(EagerTrainer):
    """`options`: of DistributedDataParallel."""

    def __init__(self, request: TrainerRequest, device: torch.device, **options):
        super().__init__(request, device)
        options = DDP_OPTIONS | options
        self.network = distributed(self.network, device, options)
        self.note = ", ".join(filter(None, (ddp_note(options), self.note)))


def make_trainer(request: TrainerRequest, device: torch.device, **options) -> DdpTrainer:
    return DdpTrainer(request, device, **options)
