"""What the captured rows have in common: several steps in one CUDA graph, moved on by the device.

A captured step cannot be told its batch or its loss slot. Indices on the device name them: one gather of a
graph's batches opens the graph, one scatter of its losses and the indices' next values close it, all of it
inside the timed region. Two graphs serve any number of steps: one of `steps_per_graph` and one of a single
step. Large batches would be costly to gather, and there are few of them: each has a graph of its own that
reads it where it lies. Without a GPU nothing is captured and the steps run one by one. The C++ rows do the
same (torch_impl/libtorch/graph_trainer.h).
"""

from collections.abc import Callable

import numpy as np
import torch
from headroom_protocol.server import TrainerRequest

from headroom_worker.torch_trainer import KEPT_LOSSES, TorchTrainer

# Launching a graph costs the host some us and the device a few: sixteen of the shortest steps hide both.
STEPS_PER_GRAPH = 16
# Copies of the graph's batches, targets included; more would only push weights out of the L2.
GRAPH_FEATURE_BYTES = 8 << 20
LARGE_BATCH_BYTES = 4 << 20
MOST_GRAPHS = 64
WARM_UP_ROUNDS = 3


def as_rows(batches: torch.Tensor) -> torch.Tensor:
    """A row for each batch, of the widest type that makes up its bytes: a gather then moves whole vectors."""
    rows = batches.view(len(batches), -1)
    row_bytes = rows.shape[1] * rows.element_size()
    if row_bytes % 16 == 0:
        return rows.view(torch.complex128)
    return rows.view(torch.float64) if row_bytes % 8 == 0 else rows


class GraphTrainer(TorchTrainer):
    """A row adds `queue_steps`, and calls `capture` at the end of its constructor."""

    def __init__(self, request: TrainerRequest, device: torch.device, steps_per_graph: int = STEPS_PER_GRAPH):
        super().__init__(request, device)
        samples = self.batches * self.batch_size
        self._batches = self.features[:samples].view(self.batches, self.batch_size, -1)
        self._batch_targets = self.targets[:samples].view(
            self.batches, self.batch_size, *self.targets.shape[1:]
        )
        batch_bytes = self._batches[0].nbytes + self._batch_targets[0].nbytes
        self._captures = device.type == "cuda"
        self._graph_per_batch = (
            self._captures and batch_bytes >= LARGE_BATCH_BYTES and self.batches <= MOST_GRAPHS
        )
        fitting = max(1, min(GRAPH_FEATURE_BYTES // batch_bytes, steps_per_graph))
        self.steps_per_graph = fitting if self._captures and not self._graph_per_batch else 1

        if not self._graph_per_batch:
            # What a graph's steps read, and where it comes from.
            self._gathered = [
                (data, data.new_empty((self.steps_per_graph, *data.shape[1:])))
                for data in (self._batches, self._batch_targets)
            ]
        self._graph_losses = self.loss_slots.new_empty(self.steps_per_graph)
        self._offsets = torch.arange(self.steps_per_graph, device=device)
        self._batch_indices = self._offsets.clone()  # of the next steps_per_graph steps
        self._slots = self._offsets.clone()  # likewise

    def queue_steps(self, features: torch.Tensor, targets: torch.Tensor, losses: torch.Tensor) -> None:
        """Enqueues steps: features [steps, batch, inputs], targets [steps, batch, ...], losses [steps]."""
        raise NotImplementedError

    def capture(self, initial: np.ndarray) -> None:
        """Runs some steps, captures, and goes back to the initial state."""
        if not self._captures:
            self._queue(1)
        else:
            self._pool, self._one_step, self._many_steps, self._batch_graphs = None, None, None, []
            self.go_to(0)
            self._synchronize()
            if self._graph_per_batch:
                for batch in range(self.batches):
                    self._batch_graphs.append(self._captured(lambda batch=batch: self._queue_batch(batch)))
            else:
                self._one_step = self._captured(lambda: self._queue(1))
                if self.steps_per_graph > 1:
                    self._many_steps = self._captured(lambda: self._queue(self.steps_per_graph))
        self.start_from(initial)

    def graph_note(self) -> str:
        if not self._captures:
            return "no graph"
        return "a graph for each batch" if self._graph_per_batch else f"{self.steps_per_graph} steps a graph"

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        stream = capture_stream(self.device)
        with torch.cuda.stream(stream):
            # In the first rounds libraries choose kernels and allocate, which a capture does not allow.
            for _ in range(WARM_UP_ROUNDS):
                work()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            pool = () if self._pool is None else (self._pool,)
            graph.capture_begin(*pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                # The capture has to end before the stream can be used again; the first error counts.
                try:
                    graph.capture_end()
                except RuntimeError:
                    pass
                raise
            graph.capture_end()
            self._pool = graph.pool()
            stream.synchronize()
        return graph

    def run_steps(self, first_step: int, count: int) -> None:
        step, end = first_step, first_step + count
        while step < end:
            if not self._captures:
                self._queue(1)
                step += 1
            elif self._graph_per_batch:
                self._batch_graphs[step % self.batches].replay()
                step += 1
            elif self._many_steps is not None and end - step >= self.steps_per_graph:
                self._many_steps.replay()
                step += self.steps_per_graph
            else:
                self._one_step.replay()
                step += 1

    def go_to(self, step: int) -> None:
        super().go_to(step)
        self._batch_indices.copy_(self._offsets).add_(step % self.batches).remainder_(self.batches)
        self._slots.copy_(self._offsets).add_(step % KEPT_LOSSES).remainder_(KEPT_LOSSES)

    def _queue(self, steps: int) -> None:
        indices = self._batch_indices[:steps]
        for data, copies in self._gathered:
            torch.index_select(as_rows(data), 0, indices, out=as_rows(copies[:steps]))
        features, targets = (copies[:steps] for _, copies in self._gathered)
        self.queue_steps(features, targets, self._graph_losses[:steps])
        self._close_steps(steps)

    def _queue_batch(self, batch: int) -> None:
        one = slice(batch, batch + 1)
        self.queue_steps(self._batches[one], self._batch_targets[one], self._graph_losses)
        self._close_steps(1)

    def _close_steps(self, steps: int) -> None:
        """The losses to their slots, and the indices to the next steps."""
        self.loss_slots.index_copy_(0, self._slots[:steps], self._graph_losses[:steps])
        if not self._graph_per_batch:
            self._batch_indices.add_(steps).remainder_(self.batches)
        self._slots.add_(steps).remainder_(KEPT_LOSSES)


_streams: dict[int, torch.cuda.Stream] = {}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all trainers: PyTorch keeps a library's workspace for every stream it has seen."""
    if device.index not in _streams:
        _streams[device.index] = torch.cuda.Stream(device)
    return _streams[device.index]
