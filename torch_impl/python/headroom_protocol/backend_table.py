"""A worker's table of backends: its rows, what `hello` says of them, and the row that `prepare` asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headroom_protocol.server import TrainerRequest, WorkerError
from headroom_protocol.workload import beyond_plain_training

# Whom a backend is compared with (Family in bench/core/record.h).
FAMILIES = ("reference", "pytorch", "libtorch", "jax", "vendor", "ours", "other")


@dataclass(frozen=True)
class Backend:
    """One row: `module` has make_trainer(request, device, **options)."""

    name: str
    family: str  # of FAMILIES
    description: str  # one line
    module: str
    contracts: Mapping[str, str]  # by precision
    runs_on_cpu: tuple[str, ...] = ()  # precisions
    compiles: bool = False  # with a compiler that may be missing
    repeats: bool = False  # another row's work under its own name: "all" leaves it out
    # Else what is beyond ReLU, cross-entropy and plain sgd is refused for it.
    trains_everything: bool = False
    options: Mapping[str, object] = field(default_factory=dict)
    # That it trains one network on; workloads of more, or fewer, are refused for it.
    max_devices: int = 1
    min_devices: int = 1


class BackendTable:
    """`unavailable(backend, precision)`: why that does not run here, or None."""

    def __init__(self, backends: Sequence[Backend], unavailable: Callable[[Backend, str], str | None]):
        self._by_name = {backend.name: backend for backend in backends}
        if len(self._by_name) != len(backends):
            raise ValueError("backends.py: two backends have the same name")
        for backend in backends:
            if backend.family not in FAMILIES:
                raise ValueError(f"backends.py: family of {backend.name}: expected {', '.join(FAMILIES)}")
        self._unavailable = unavailable

    def offered(self) -> list[dict]:
        return [
            {
                "name": backend.name,
                "family": backend.family,
                "description": backend.description,
                "compiles": backend.compiles,
                "repeats": backend.repeats,
                "max_devices": backend.max_devices,
                "min_devices": backend.min_devices,
                "precisions": {
                    precision: {"contract": contract, "unavailable": self._unavailable(backend, precision)}
                    for precision, contract in backend.contracts.items()
                },
            }
            for backend in self._by_name.values()
        ]

    def asked_for(self, request: TrainerRequest) -> Backend:
        backend = self._by_name.get(request.backend)
        if backend is None:
            known = ", ".join(self._by_name)
            raise WorkerError("input", f"backend: unknown backend '{request.backend}', expected {known}")
        if request.precision not in backend.contracts:
            known = ", ".join(backend.contracts)
            raise WorkerError(
                "input", f"precision: unknown precision '{request.precision}', expected {known}"
            )
        reason = self._unavailable(backend, request.precision)
        if reason is not None:
            raise WorkerError("unsupported", f"{backend.name} {request.precision}: {reason}")
        if request.devices > backend.max_devices:
            most = backend.max_devices
            fewer = "one device" if most == 1 else f"at most {most} devices"
            raise WorkerError("unsupported", f"trains on {fewer}")
        if request.devices < backend.min_devices:
            raise WorkerError("unsupported", f"trains on {backend.min_devices} devices or more")
        if not backend.trains_everything:
            beyond = beyond_plain_training(request.activation, request.loss, request.optimizer)
            if beyond:
                raise WorkerError("unsupported", beyond)
        return backend
