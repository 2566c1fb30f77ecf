"""The table of backends of this worker, and what this machine's PyTorch can run of it.

The table is read without PyTorch: where that is missing or too old every backend is listed with the reason. A
PyTorch that is there and cannot be imported is an error: its rows fail and are not left out.
"""

import errno
import gc
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from headroom_protocol.backend_table import Backend, BackendTable
from headroom_protocol.server import Trainer, TrainerRequest, WorkerError, one_line

from headroom_worker.device import device_description

OLDEST_TORCH = (2, 6)
MOST_RANKS = 8  # of a host
# What PyTorch's autograd promises: fp32 as in the contract, its libraries' tf32, autocast in 16 bits.
AUTOGRAD_CONTRACTS = {"fp32": "exact", "tf32": "library", "fp16": "autocast", "bf16": "autocast"}


def row(name: str, description: str, **options) -> Backend:
    module = f"headroom_worker.{name.replace('-', '_')}"
    return Backend(
        name, "pytorch", description, module, AUTOGRAD_CONTRACTS, trains_everything=True, **options
    )


BACKENDS = (
    row("pytorch-eager", "PyTorch from Python, operation by operation", runs_on_cpu=("fp32",)),
    row("pytorch-graph", "pytorch-eager's step, captured in a CUDA graph"),
    row("pytorch-compile", "torch.compile (max-autotune) of the loss and of the update", compiles=True),
    row(
        "pytorch-compile-graph",
        "loss, gradients and update compiled as one function, whole steps in a CUDA graph",
        compiles=True,
        max_devices=MOST_RANKS,
    ),
    row(
        "pytorch-ddp",
        "pytorch-eager's step by DistributedDataParallel, a process for each device",
        min_devices=2,
        max_devices=MOST_RANKS,
        runs_on_cpu=("fp32",),
    ),
    row(
        "pytorch-ddp-graph",
        "pytorch-ddp's step with its all-reduce, captured in a CUDA graph for each device",
        min_devices=2,
        max_devices=MOST_RANKS,
    ),
)


def trial(
    name: str, kind: str, compiles: bool = False, trains_everything: bool = False, **options
) -> Backend:
    return Backend(
        name,
        "other",  # so that "all" leaves it out and it is no best PyTorch
        "another form of a row's step, tried before (docs/rivals.md)",
        "headroom_worker.trials",
        AUTOGRAD_CONTRACTS,
        compiles=compiles,
        options={"kind": kind, **options},
        trains_everything=trains_everything,
    )


def trial_on_several_devices(name: str, kind: str, compiles: bool = False, **options) -> Backend:
    return Backend(
        name,
        "other",
        "another form of a row's step on several devices, tried before (docs/rivals.md)",
        "headroom_worker.several_devices_trials",
        AUTOGRAD_CONTRACTS,
        compiles=compiles,
        options={"kind": kind, **options},
        trains_everything=True,
        min_devices=2,
        max_devices=MOST_RANKS,
    )


# What was tried before the rows above became what they are (docs/rivals.md); served with --trials only.
TRIALS = (
    trial("eager-fused", "eager", sgd={"fused": True}),
    trial("eager-tensor-by-tensor", "eager", sgd={"foreach": False}),
    trial("eager-kept-gradients", "eager", keep_gradients=True),
    trial("eager-foreach-add", "eager-foreach-add"),
    trial("graph-one-step", "graph", steps_per_graph=1),
    trial("graph-foreach", "graph-optimizer", sgd={"foreach": True}),
    trial("graph-fused", "graph-optimizer", sgd={"fused": True}),
    trial("graph-tensor-by-tensor", "graph-optimizer", sgd={"foreach": False}),
    trial("graph-kept-gradients", "graph-optimizer", sgd={"foreach": True}, keep_gradients=True),
    trial("graph-copies", "graph-copies"),
    trial("compile-graph-no-copies", "compile-graph", compiles=True, keep_copies=False),
    trial("compile-graph-in-parts", "compile-graph-in-parts", compiles=True),
    # These differ from a row where the optimizer has slots.
    trial("eager-slots-foreach", "eager-optimizer", trains_everything=True, options={"foreach": True}),
    trial(
        "eager-slots-capturable",
        "eager-optimizer",
        trains_everything=True,
        options={"foreach": True, "capturable": True},
    ),
    trial("graph-slots-foreach", "graph-foreach-optimizer", trains_everything=True),
    trial("compile-graph-default", "compile-graph", compiles=True, trains_everything=True, mode="default"),
)

# Of pytorch-ddp, pytorch-ddp-graph and pytorch-compile-graph on several devices; served likewise.
TRIALS_ON_SEVERAL_DEVICES = (
    trial_on_several_devices("ddp-plain", "ddp", static_graph=False, gradient_as_bucket_view=False),
    trial_on_several_devices("ddp-static", "ddp", gradient_as_bucket_view=False),
    trial_on_several_devices("ddp-views", "ddp", static_graph=False),
    trial_on_several_devices(
        "ddp-graph-plain", "ddp-graph", static_graph=False, gradient_as_bucket_view=False
    ),
    trial_on_several_devices("graph-one-all-reduce", "graph"),
    trial_on_several_devices("graph-grouped-all-reduce", "graph", grouped=True),
    trial_on_several_devices("compile-graph-all-reduce-apart", "compile-graph-in-parts", compiles=True),
)


def import_torch() -> tuple[ModuleType | None, str | None]:
    """PyTorch, or the reason why there is none to use. Raises WorkerError if it is there and broken."""
    try:
        import numpy  # noqa: F401 (PyTorch imports without it, this worker's arrays do not)
        import torch
    except Exception as error:  # a broken installation fails in many ways
        if isinstance(error, ModuleNotFoundError) and error.name in ("numpy", "torch"):
            return None, one_line(f"PyTorch cannot be imported by this Python: {error}")
        raise WorkerError(
            "failed", one_line(f"PyTorch is broken in this Python: {type(error).__name__}: {error}")
        ) from error
    version = str(getattr(torch, "__version__", "0"))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return None, f"PyTorch {version} is too old: {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer is needed"
    return torch, None


def no_compiler_reason() -> str | None:
    """Why torch.compile cannot compile for a GPU here, found without importing anything."""
    if importlib.util.find_spec("triton") is None:
        return "torch.compile needs Triton, which this Python does not have"
    if not os.environ.get("CC") and not any(map(shutil.which, ("gcc", "clang"))):
        return "torch.compile needs a C compiler: there is no gcc or clang on PATH"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "torch.compile needs Python.h (Debian, Ubuntu: python3-dev)"
    return None


def kind_of_error(error: Exception, torch: ModuleType | None) -> str:
    """As PROTOCOL.md has it."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return "out_of_memory"
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return "out_of_memory"
    # cuBLAS handles and the CPU allocator report theirs as a plain RuntimeError.
    words = (
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory",
        "DefaultCPUAllocator: can't allocate",
    )
    if isinstance(error, RuntimeError) and any(word in str(error) for word in words):
        return "out_of_memory"
    return "failed"


class PyTorchBackends:
    """What protocol.py serves: the table on device `device` (CUDA index, -1 for the CPU)."""

    def __init__(self, device: int, backends: tuple[Backend, ...] = BACKENDS):
        self._device = device
        self._torch, self._missing, self._broken = None, None, None
        self._range = None  # of NVTX, the one that is open
        try:
            self._torch, self._missing = import_torch()
        except WorkerError as error:
            self._missing, self._broken = str(error), error
        self._no_compiler = no_compiler_reason()
        self._table = BackendTable(backends, self._unavailable)
        if self._missing is None and device >= 0:
            self._missing = self._no_cuda_reason()

    def _no_cuda_reason(self) -> str | None:
        if not self._torch.cuda.is_available():
            build = "" if self._torch.version.cuda else ", and is a build without CUDA"
            return f"PyTorch {self._torch.__version__} finds no CUDA device{build}"
        if self._device >= self._torch.cuda.device_count():
            return f"no CUDA device {self._device}: there are {self._torch.cuda.device_count()}"
        return None

    def _unavailable(self, backend: Backend, precision: str) -> str | None:
        if self._missing is not None:
            return self._missing
        if self._device < 0:
            return None if precision in backend.runs_on_cpu else "no CUDA device"
        if precision in ("tf32", "bf16"):
            major, minor = self._torch.cuda.get_device_capability(self._device)
            if major < 8:
                return f"{precision} needs compute capability 8.0, this device has {major}.{minor}"
        return self._no_compiler if backend.compiles else None

    def hello(self) -> dict:
        software = {"python": platform.python_version()}
        if self._torch is not None:
            software["torch"] = str(self._torch.__version__)
            if self._torch.version.cuda:
                software["torch_cuda"] = str(self._torch.version.cuda)
        on_gpu = self._missing is None and self._device >= 0
        return {
            "worker": "python",
            "software": software,
            "device": device_description(self._torch, self._device) if on_gpu else None,
            "devices": self._all_devices() if on_gpu else [],
            "backends": self._table.offered(),
            "ranges": "torch_cuda" in software,
            "broken": None if self._broken is None else str(self._broken),
        }

    def _all_devices(self) -> list[dict]:
        return [device_description(self._torch, index) for index in range(self._torch.cuda.device_count())]

    def get_ready(self) -> None:
        """Imports what the rows need at their first set-up, and makes the device's context."""
        if self._missing is not None:
            return
        import torch._dynamo  # as torch.optim does

        if self._device >= 0:
            if self._no_compiler is None:
                import torch._inductor.compile_fx  # noqa: F401
            self._torch.cuda.synchronize(self._device)

    def begin_range(self, name: str | None) -> None:
        """For profilers, instead of the range before. Not of a thread: autograd launches from its own."""
        nvtx = self._torch.cuda.nvtx
        if self._range is not None:
            nvtx.range_end(self._range)
        self._range = None if name is None else nvtx.range_start(name)

    def prepare(self, request: TrainerRequest) -> Trainer:
        backend = self._table.asked_for(request)
        if request.devices > 1:
            self._expect_devices(request.device_indices)
            from headroom_worker.ranks import RankedTrainer

            return RankedTrainer(request, backend.module, backend.options)
        device = self._torch.device("cuda", self._device) if self._device >= 0 else self._torch.device("cpu")
        if device.type == "cuda":
            self._torch.cuda.init()  # else there are no statistics to reset
            self._torch.cuda.set_device(device)
            self._torch.cuda.reset_peak_memory_stats(device)
        return importlib.import_module(backend.module).make_trainer(request, device, **backend.options)

    def _expect_devices(self, indices: tuple[int, ...]) -> None:
        """Of a workload on several; none of CPU ranks."""
        found = self._torch.cuda.device_count()
        missing = [index for index in indices if index >= found]
        if missing:
            raise WorkerError("unsupported", f"no CUDA device {missing[0]}: there are {found}")
        distributed = self._torch.distributed
        if not distributed.is_available() or (indices and not distributed.is_nccl_available()):
            library = "NCCL" if indices else "torch.distributed"
            raise WorkerError(
                "unsupported", f"PyTorch {self._torch.__version__} is a build without {library}"
            )

    def error_kind(self, error: Exception) -> str:
        return kind_of_error(error, self._torch)

    def free_memory(self) -> None:
        """Gives back what a released or failed trainer held, so that the next one is measured alone."""
        try:
            if "torch._dynamo" in sys.modules:  # holds compiled graphs, and the memory they were captured in
                self._torch._dynamo.reset()
            gc.collect()
            if self._missing is None and self._device >= 0:
                self._torch.cuda.empty_cache()
        except RuntimeError as error:  # a dead context: the next call says so
            print(f"free_memory: {error}", file=sys.stderr)
