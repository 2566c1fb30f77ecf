"""What the compiled rows have in common: where compiled code is kept, and whether it was found there.

A setting of the user's shell that turns the compiler off would turn a row into another one: __main__.py takes
those out of the environment, and `Compilation` checks that something was compiled.
"""

import os
import tempfile
from collections.abc import Callable

import torch

# torch.compile's own times for choosing a kernel (25 ms, then 100 ms) are for kernels that take milliseconds.
# These take microseconds: a fifth of it still runs each of them hundreds of times.
WARM_UP_MILLISECONDS = 5
TIMING_MILLISECONDS = 20


class Compilation:
    """From its making to `finish()` everything is compiled, or found, in `folder` (None: a temporary one)."""

    def __init__(self, folder: str | None):
        import torch._dynamo

        folder = folder or _temporary_folder()
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "inductor")
        os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        torch._dynamo.reset()  # nothing in this process's memory is found again: set-up times stay comparable
        torch._dynamo.config.suppress_errors = False
        from torch._inductor import config

        config.fx_graph_cache = config.autotune_local_cache = True
        config.inductor_default_autotune_warmup = WARM_UP_MILLISECONDS
        config.inductor_default_autotune_rep = TIMING_MILLISECONDS
        config.autotune_num_choices_displayed = 0  # the worker's log is for what went wrong
        config.max_autotune_report_choices_stats = False
        self._before = _counts()

    def finish(self) -> str:
        """`cold` or `warm`. Raises RuntimeError if nothing was compiled at all."""
        compiled, found = (now - before for now, before in zip(_counts(), self._before, strict=True))
        if compiled + found == 0:
            raise RuntimeError("torch.compile compiled nothing: is it turned off in torch._dynamo.config?")
        return "cold" if compiled else "warm"


def _counts() -> tuple[int, int]:
    """Graphs compiled and graphs found in the cache, in this process so far."""
    from torch._dynamo.utils import counters

    inductor, autograd = counters["inductor"], counters["aot_autograd"]
    compiled = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return compiled, inductor["fxgraph_cache_hit"] + autograd["autograd_cache_hit"]


_temporary: tempfile.TemporaryDirectory | None = None


def _temporary_folder() -> str:
    global _temporary
    if _temporary is None:
        _temporary = tempfile.TemporaryDirectory(prefix="headroom-compiled-")
    return _temporary.name


def compiled(function: Callable, mode: str, backend: str = "inductor") -> Callable:
    """`function` compiled for fixed shapes, without a graph break; `backend`: another one for tests."""
    options = {"mode": mode} if backend == "inductor" else {}
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend, **options)
