"""What the compiled rows have in common: where compiled code is kept, and whether it was found there.

A setting of the user's shell that turns the compiler off would turn a row into another one: __main__.py takes
those out of the environment, and `Compilation` checks that something was compiled.
"""

import contextlib
import fcntl
import functools
import os
import tempfile
import threading
from collections.abc import Callable

import torch

# How long Triton's do_bench times a kernel: a fifth of Inductor's defaults (25 ms, then 100 ms), as these
# kernels take microseconds. Without effect while Inductor's own benchmarker times them, as it does by default
# in PyTorch 2.11: at most 100 calls (torch/_inductor/runtime/benchmarking.py; docs/rivals.md).
WARM_UP_MILLISECONDS = 5
TIMING_MILLISECONDS = 20
# How many processes may compile for this one where several set up rows side by side (the driver's
# compile_ahead.cpp); else as many as Inductor starts, one a core. With fewer than two it would compile in
# threads of this process, which hold up the launches that are being timed.
COMPILERS = "HEADROOM_COMPILERS"
LEAST_COMPILERS = 2
# Their niceness. A process that times a kernel has the device's lock, and all others wait for it.
COMPILERS_STEP_BACK = 10
# Before each call that is timed, Inductor's benchmarker overwrites as many bytes as the L2 has, to empty it.
# While the device does that, the host launches what is timed; if it takes longer, the launch is timed too.
# 60 MB take an H200 some 15 us, about as long as a slow host needs for a Triton kernel between two events.
OVERWRITTEN_BYTES = 256 << 20
# The longest wait for PyTorch's compile workers: they import PyTorch, 9 s from a slow disk.
POOL_SECONDS = 60


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
        tune_one_at_a_time(folder)
        time_kernels_without_their_launch()
        assemble_like_compile_workers()
        start_compile_workers_when_needed()
        self._before = _counts()

    def finish(self) -> str:
        """`cold` or `warm`. Raises RuntimeError if nothing was compiled at all."""
        compiled, found = (now - before for now, before in zip(_counts(), self._before, strict=True))
        if compiled + found == 0:
            raise RuntimeError("torch.compile compiled nothing: is it turned off in torch._dynamo.config?")
        return "cold" if compiled else "warm"


def assemble_like_compile_workers() -> None:
    """Lets this process find what PyTorch's compile workers compile for it.

    The workers assemble with torch/bin/ptxas, this process, unless told, with the one that Triton brings:
    another version, so another key in Triton's cache. Every kernel to be timed was then compiled a second
    time, here, one after another (torch 2.11: only workers call _set_triton_ptxas_path).
    """
    from torch._inductor.runtime import compile_tasks

    # A name inside of PyTorch: a version without it compiles as it likes. So are those below.
    set_assembler = getattr(compile_tasks, "_set_triton_ptxas_path", None)
    if set_assembler is not None:
        set_assembler()


def start_compile_workers_when_needed() -> None:
    """PyTorch's compile workers, once a graph is not found in the cache, and not before.

    They take seconds to start, and a set-up that finds everything needs none. One that compiles waits for
    them: kernels asked for before they are there are compiled by threads of this process.
    """
    from torch._inductor import compile_fx, config

    compile_graph = getattr(compile_fx, "fx_codegen_and_compile", None)
    if compile_graph is None:
        config.compile_threads = compile_workers()
        return
    config.compile_threads = 1  # none yet; the number is in no cache's key
    if hasattr(compile_graph, "starts_workers"):
        return

    @functools.wraps(compile_graph)
    def with_workers(*arguments, **options):
        start_compile_workers()
        return compile_graph(*arguments, **options)

    with_workers.starts_workers = True
    compile_fx.fx_codegen_and_compile = with_workers


def compile_workers() -> int:
    from torch._inductor.config import decide_compile_threads

    return max(LEAST_COMPILERS, int(os.environ.get(COMPILERS) or decide_compile_threads()))


def start_compile_workers() -> None:
    from torch._inductor import async_compile, config

    config.compile_threads = compile_workers()
    if COMPILERS in os.environ:
        # Read where Inductor compiles candidates in threads of its own.
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(config.compile_threads)
    wait = getattr(async_compile.AsyncCompile, "wait_pool_ready", None)
    if wait is None or not torch.cuda.is_available():
        return
    process = getattr(async_compile.AsyncCompile.process_pool(), "process", None)
    if process is not None:  # which starts the workers when it has imported PyTorch
        with contextlib.suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + COMPILERS_STEP_BACK
            )
    with contextlib.suppress(TimeoutError):
        wait(timeout=POOL_SECONDS)


def time_kernels_without_their_launch() -> None:
    """A choice between kernels of a few microseconds must not depend on how fast the host launches them."""
    from torch._inductor.runtime import benchmarking

    if torch.cuda.is_available() and hasattr(type(benchmarking.benchmarker), "L2_cache_size"):
        benchmarking.benchmarker.L2_cache_size = OVERWRITTEN_BYTES  # in place of a cached_property


def tune_one_at_a_time(folder: str) -> None:
    """Whoever times a kernel to choose one holds its device's lock in `folder`: others there wait."""
    from torch._inductor.runtime import benchmarking

    global _tuning_lock
    os.makedirs(folder, exist_ok=True)
    device = "cpu"
    if torch.cuda.is_available():
        index = torch.cuda.current_device()
        device = getattr(torch.cuda.get_device_properties(index), "uuid", index)
    _tuning_lock = os.path.join(folder, f"tuning-{device}.lock")
    for benchmarker in (benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
        method = vars(benchmarker).get("benchmark_gpu")
        if method is not None and not hasattr(method, "holds_lock"):
            benchmarker.benchmark_gpu = holding_lock(method)


_tuning_lock = ""
_held = threading.local()


def holding_lock(method: Callable) -> Callable:
    @functools.wraps(method)
    def alone(*arguments, **options):
        # What is timed may be several kernels that are chosen when they are first called (decompose_k).
        if getattr(_held, "now", False):
            return method(*arguments, **options)
        # Opened for each call: a process that is ended in the middle leaves no lock behind.
        with open(_tuning_lock, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _held.now = True
            try:
                return method(*arguments, **options)
            finally:
                _held.now = False

    alone.holds_lock = True
    return alone


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
