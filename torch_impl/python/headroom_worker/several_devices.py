"""How the rows on several devices join their gradients: by DistributedDataParallel, or by one all-reduce.

Each rank (ranks.py) is a process that torch.distributed knows.
"""

import itertools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch.nn.parallel import DistributedDataParallel

Tensors = list[torch.Tensor]

# Of DistributedDataParallel: the network is the same in each step, and a gradient need not be copied out of
# its bucket (docs/rivals.md).
DDP_OPTIONS = {"static_graph": True, "gradient_as_bucket_view": True}


def distributed(network: torch.nn.Module, device: torch.device, options: dict) -> DistributedDataParallel:
    wrapped = DistributedDataParallel(
        network, device_ids=[device.index] if device.type == "cuda" else None, **options
    )
    # Its own timing of every hundredth step queries events, which a capture does not allow.
    wrapped._set_ddp_runtime_logging_sample_rate(2**31 - 1)
    return wrapped


def ddp_note(options: dict) -> str:
    return " ".join([communication_note(), *(name for name, used in options.items() if used)])


def communication_note() -> str:
    """Which library joins the gradients."""
    if not by_nccl():
        return "gloo"
    return "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))


def by_nccl() -> bool:
    return dist.get_backend() == "nccl"


def means_in_a_graph(gradients: Tensors) -> Tensors:
    """Over all ranks, by one all-reduce; for torch.compile, which fuses what is around it."""
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    mean = "avg" if by_nccl() else "sum"  # gloo has no mean
    flat = functional_collectives.all_reduce(flat, mean, dist.group.WORLD)
    return pieces_of(flat if by_nccl() else flat / dist.get_world_size(), gradients)


def mean_in_place(values: torch.Tensor) -> None:
    dist.all_reduce(values, dist.ReduceOp.AVG if by_nccl() else dist.ReduceOp.SUM)
    if not by_nccl():
        values.div_(dist.get_world_size())


def means_in_place(tensors: Tensors) -> None:
    """In one NCCL group, so that no tensor is copied."""
    if not by_nccl():
        for tensor in tensors:
            mean_in_place(tensor)
        return
    with dist._coalescing_manager(device=tensors[0].device):
        for tensor in tensors:
            mean_in_place(tensor)


def pieces_of(flat: torch.Tensor, like: Tensors) -> Tensors:
    ends = list(itertools.accumulate((tensor.numel() for tensor in like), initial=0))
    pieces = zip(ends, ends[1:], like, strict=False)
    return [flat[begin:end].view_as(tensor) for begin, end, tensor in pieces]
