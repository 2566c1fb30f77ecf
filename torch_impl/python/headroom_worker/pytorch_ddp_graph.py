"""`pytorch-ddp-graph`: pytorch-ddp's step, captured whole in a CUDA graph for each device.

As PyTorch's notes on CUDA graphs describe it: DistributedDataParallel is made on a side stream and runs
eleven steps before the first capture, and NCCL's kernels become nodes of the graph.
"""

import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.graph_trainer import STEPS_PER_GRAPH, capture_stream
from headroom_worker.pytorch_graph import GraphedEagerTrainer
from headroom_worker.several_devices import DDP_OPTIONS, ddp_note, distributed

# DistributedDataParallel measures and rebuilds its buckets in the first ten.
WARM_UP_STEPS = 11


class GraphedDdpTrainer(GraphedEagerTrainer):
    """`options`: of DistributedDataParallel."""

    def __init__(
        self,
        request: TrainerRequest,
        device: torch.device,
        steps_per_graph: int = STEPS_PER_GRAPH,
        **options,
    ):
        self.options = DDP_OPTIONS | options
        super().__init__(request, device, steps_per_graph)
        self.note = f"{ddp_note(self.options)}, {self.note}"

    def prepare_step(self) -> None:
        super().prepare_step()
        self._synchronize()  # what was made on the default stream
        with self.on_capture_stream():
            self.network = distributed(self.network, self.device, self.options)
            for _ in range(WARM_UP_STEPS):
                self.step(self._batches[0], self._batch_targets[0])

    def on_capture_stream(self):
        return torch.cuda.stream(capture_stream(self.device) if self._captures else None)

    def step(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss, scaled = self.scaled_loss(features, targets)
        scaled.backward()
        self.update([parameter.grad for parameter in self.parameter_list])
        for parameter in self.parameter_list:
            parameter.grad = None
        return loss


def make_trainer(request: TrainerRequest, device: torch.device, **options) -> GraphedDdpTrainer:
    return GraphedDdpTrainer(request, device, **options)
