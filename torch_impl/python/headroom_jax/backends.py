"""The table of backends of this worker, and what this machine's JAX can run of it.

The table is read without JAX: where that is missing or too old every backend is listed with the reason. A JAX
that is there and cannot be imported is an error: its rows fail and are not left out.
"""

import gc
import importlib
import os
import platform
import sys
from types import ModuleType

from headroom_protocol.backend_table import Backend, BackendTable
from headroom_protocol.cuda_driver import device_description, device_descriptions
from headroom_protocol.server import Trainer, TrainerRequest, WorkerError, one_line

OLDEST_JAX = (0, 6)
# The step is written to the contract; only tf32 products are the library's, and may cut operands off.
CONTRACTS = {"fp32": "exact", "tf32": "library", "fp16": "exact", "bf16": "exact"}
ON_CPU = ("fp32", "fp16", "bf16")


def row(name: str, description: str, **options) -> Backend:
    module = f"headroom_jax.{name.replace('-', '_')}"
    return Backend(
        name, "jax", description, module, CONTRACTS, runs_on_cpu=ON_CPU, trains_everything=True, **options
    )


BACKENDS = (
    row("jax-jit", "JAX, one compiled step a call"),
    row("jax-scan", "JAX, all steps of a block in one compiled loop", max_devices=8),
)


def import_jax() -> tuple[ModuleType | None, str | None]:
    """JAX, or the reason why there is none to use. Raises WorkerError if it is there and broken."""
    try:
        import jax
    except Exception as error:  # a broken installation fails in many ways
        if isinstance(error, ModuleNotFoundError) and error.name in ("jax", "jaxlib", "numpy"):
            return None, one_line(f"JAX cannot be imported by this Python: {error}")
        raise WorkerError(
            "failed", one_line(f"JAX is broken in this Python: {type(error).__name__}: {error}")
        ) from error
    if jax.__version_info__[:2] < OLDEST_JAX:
        return None, f"JAX {jax.__version__} is too old: {OLDEST_JAX[0]}.{OLDEST_JAX[1]} or newer is needed"
    return jax, None


class JaxBackends:
    """What server.py serves: the table on device `device` (CUDA index, -1 for the CPU)."""

    def __init__(self, device: int):
        self._device = device
        self._jax, self._missing, self._broken = None, None, None
        self._compute = (0, 0)  # capability
        # CUDA devices that JAX sees: those of its first client, for as long as the process lives.
        self._visible = os.environ.get("HEADROOM_DEVICES", str(device))
        try:
            self._jax, self._missing = import_jax()
        except WorkerError as error:
            self._missing, self._broken = str(error), error
        self._table = BackendTable(BACKENDS, self._unavailable)
        if self._missing is None and device >= 0:
            self._missing = self._no_cuda_reason()

    def _no_cuda_reason(self) -> str | None:
        # JAX would take memory of every GPU that it sees.
        self._jax.config.update("jax_cuda_visible_devices", self._visible)
        try:
            found = self._jax.devices("cuda")
        except RuntimeError as error:
            return one_line(f"JAX {self._jax.__version__} finds no CUDA device: {error}")
        self._compute = tuple(int(part) for part in str(found[0].compute_capability).split("."))
        return None

    def _unavailable(self, backend: Backend, precision: str) -> str | None:
        if self._missing is not None:
            return self._missing
        if self._device < 0:
            return None if precision in backend.runs_on_cpu else "no CUDA device"
        if precision in ("tf32", "bf16") and self._compute < (8, 0):
            found = ".".join(map(str, self._compute))
            return f"{precision} needs compute capability 8.0, this device has {found}"
        return None

    def hello(self) -> dict:
        software = {"python": platform.python_version()}
        if self._jax is not None:
            software["jax"] = str(self._jax.__version__)
        on_gpu = self._missing is None and self._device >= 0
        return {
            "worker": "jax",
            "software": software,
            "device": device_description(self._device) if on_gpu else None,
            "devices": device_descriptions() if on_gpu else [],
            "backends": self._table.offered(),
            "broken": None if self._broken is None else str(self._broken),
        }

    def prepare(self, request: TrainerRequest) -> Trainer:
        backend = self._table.asked_for(request)
        devices = self._devices(request)
        return importlib.import_module(backend.module).make_trainer(request, devices, **backend.options)

    def _devices(self, request: TrainerRequest) -> list:
        """One for each rank. Asked for anew each time, as free_memory() ends what they belong to."""
        indices = request.device_indices or (self._device,)
        if self._device < 0:
            found = self._jax.devices("cpu")
            if len(found) < request.devices:
                raise WorkerError("unsupported", f"{request.devices} CPU devices: JAX has {len(found)}")
            return found[: request.devices]
        try:
            found = {device.local_hardware_id: device for device in self._jax.devices("cuda")}
        except RuntimeError as error:
            raise WorkerError("unsupported", one_line(f"no CUDA devices {self._visible}: {error}")) from error
        if missing := set(indices) - set(found):
            raise WorkerError(
                "unsupported",
                f"JAX sees the CUDA devices {self._visible} in this process, and not {sorted(missing)}",
            )
        return [found[index] for index in indices]

    def error_kind(self, error: Exception) -> str:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return "out_of_memory"
        return "failed"

    def free_memory(self) -> None:
        """Gives back what a trainer held, as JAX keeps a GPU's memory until its backend ends."""
        if self._jax is None:
            return
        try:
            gc.collect()
            from jax.extend.backend import clear_backends

            clear_backends()
            gc.collect()
        except (ImportError, RuntimeError) as error:  # a dead context: the next call says so
            print(f"free_memory: {error}", file=sys.stderr)
