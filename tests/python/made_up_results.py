"""Made-up results for tests of the figures, labelled so in every title; never to be committed as results."""

from __future__ import annotations

import copy

import numpy as np

DEVICE = "made-up GPU (test data)"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
FIXED_MICROSECONDS = {
    "pytorch-eager": 1000.0,
    "libtorch-eager": 850.0,
    "cuda-layered": 24.0,
    "pytorch-graph": 120.0,
    "pytorch-compile-graph": 42.0,
    "libtorch-expert": 90.0,
    "pytorch-compile": 1040.0,
    "libtorch-graph": 110.0,
    "cublaslt-graph": 60.0,
    "cuda-resident": 6.0,
}
CONTRACTS = {"fp32": "exact", "tf32": "library", "fp16": "autocast", "bf16": "autocast"}


def empty_document(device: str | None = DEVICE) -> dict:
    return {
        "schema_version": 2,
        "run": {
            "id": "made-up",
            "started_utc": "2026-01-01T00:00:00Z",
            "finished_utc": "2026-01-01T00:01:00Z",
            "argv": ["headroom"],
            "suite": None,
            "git_sha": None,
            "git_dirty": None,
            "source_digest": None,
            "settings": {},
            "complete": True,
        },
        "host": {"cpu": "made-up CPU (test data)", "cores": 2, "os": "none"},
        "device": device
        and {
            "name": device,
            "uuid": None,
            "driver": None,
            "index": 0,
            "sm_count": 132,
            "compute_major": 9,
            "compute_minor": 0,
            "memory_bytes": 1,
            "l2_bytes": 1,
        },
        "software": {},
        "calibration": {},
        "workloads": [],
        "records": [],
    }


def workload(widths: tuple[int, ...], batch_size: int = 32, name: str | None = None, **fields) -> dict:
    return {
        "name": name or f"mlp-{'x'.join(map(str, widths))}-b{batch_size}",
        "about": None,
        "widths": list(widths),
        "activation": "relu",
        "loss": "cross-entropy",
        "batch_size": batch_size,
        "optimizer": {"kind": "sgd", "learning_rate": 0.003, "momentum": 0},
        "dataset": {
            "kind": "synthetic",
            "description": "made up",
            "digest": None,
            "samples": 9000,
            "held_out_samples": 1000,
            "batches": 281,
            "folder": None,
        },
        "seed": 1,
        "parameters": sum(
            (inputs + 1) * outputs for inputs, outputs in zip(widths, widths[1:], strict=False)
        ),
        "flops_per_step": 1.0,
        "floors": {},
        **fields,
    }


def adam(**numbers: float) -> dict:
    defaults = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    return {"kind": "adam", **defaults, **numbers}


def as_version_1(document: dict) -> dict:
    """The same file as it was written before version 2, which only plain training can be."""
    old = copy.deepcopy(document)
    old["schema_version"] = 1
    for entry in old["workloads"]:
        del entry["about"], entry["activation"], entry["loss"], entry["optimizer"]["momentum"]
    for entry in old["records"]:
        for curve in entry["losses"]:
            del curve["held_out_r_squared"]
    return old


def floor(seconds: float, bound: str = "bytes") -> dict:
    parts = {f"{name}_seconds": 0.5 * seconds for name in ("bytes", "operations", "exchanges")}
    return {"seconds": seconds, "bound": bound, **parts, f"{bound}_seconds": seconds}


def term(name: str, start: str, end: str, microseconds: float, verdict: str = "positive") -> dict:
    seconds = 1e-6 * microseconds
    ends = {"low": seconds - 2e-6, "high": seconds + 2e-6}
    return {
        "name": name,
        "from": start,
        "to": end,
        "seconds": seconds,
        **ends,
        "verdict": verdict,
        "message": "",
    }


def missing_term(name: str, message: str) -> dict:
    nothing = dict.fromkeys(("from", "to", "seconds", "low", "high"))
    return {"name": name, **nothing, "verdict": "missing", "message": message}


def ladder() -> list[dict]:
    return [
        term("python", "pytorch-eager", "libtorch-eager", 290),
        term("dispatch", "libtorch-eager", "libtorch-graph", 480),
        term("fusion", "libtorch-graph", "libtorch-expert", 1, "noise"),
        term("kernels", "libtorch-expert", "cuda-layered", -12, "negative"),
        missing_term("left", "no floor was computed"),
    ]


def record(
    workload_name: str, backend: str, precision: str = "fp32", seconds: float | None = 1e-4, **fields
) -> dict:
    """A verified record, or a skipped one if `seconds` is None and nothing else is said."""
    skipped = seconds is None
    times = None if skipped else {"median": seconds, "low": 0.98 * seconds, "high": 1.02 * seconds}
    check = {"name": "step_update", "tensor": "", "steps": [0], "error": 1e-6, "worst": 1e-6, "bound": 1e-3}
    return {
        "workload": workload_name,
        "backend": backend,
        "precision": precision,
        "contract": CONTRACTS[precision] if "torch" in backend else "exact",
        "outcome": "skipped" if skipped else "ok",
        "message": "no CUDA device" if skipped else "",
        "setup_seconds": None,
        "blocks": [],
        "step_seconds": times,
        "wall_step_seconds": seconds,
        "cpu_step_seconds": seconds,
        "fraction_of_floor": None,
        "joules_per_step": None,
        "peak_device_bytes": None,
        "losses": [],
        "verification": {
            "verdict": "not_run" if skipped else "pass",
            "checks": [] if skipped else [{**check, "passed": True}],
        },
        **fields,
    }


def failed(entry: dict, message: str = "step_update of weight1: 0.3 is over 0.001") -> dict:
    check = {
        "name": "step_update",
        "tensor": "weight1",
        "steps": [0],
        "error": 0.3,
        "worst": 0.4,
        "bound": 1e-3,
    }
    verification = {"verdict": "fail", "checks": [{**check, "passed": False}]}
    return {**entry, "outcome": "failed", "message": message, "verification": verification}


def width_series(backends: int = 3, precisions: tuple[str, ...] = PRECISIONS, floors: bool = False) -> dict:
    """784-H-H-H-10 at H = 128 ... 8192: from the backend's fixed cost to its share of the bandwidth."""
    random = np.random.default_rng(7)
    document = empty_document()
    for width in (128, 256, 512, 1024, 2048, 4096, 8192):
        entry = workload((784, width, width, width, 10))
        parameters = 784 * width + 2 * width * width + 10 * width
        document["workloads"].append(entry)
        for precision in precisions:
            traffic = parameters * (13 if precision == "fp32" else 10 if precision == "tf32" else 12) / 4.0e12
            if floors:
                entry["floors"][precision] = floor(1.2e-6 + 0.8 * traffic)
            for index, backend in enumerate(list(FIXED_MICROSECONDS)[:backends]):
                if backend == "cuda-resident" and width > 1024:
                    fields = {"message": "weights do not fit on the chip"}
                    document["records"].append(record(entry["name"], backend, precision, None, **fields))
                    continue
                fixed = FIXED_MICROSECONDS[backend] * 1e-6 * random.uniform(0.95, 1.05)
                seconds = (fixed**2 + (traffic * (1.1 + 0.12 * index)) ** 2) ** 0.5
                document["records"].append(record(entry["name"], backend, precision, seconds))
    return document


def loss_curves(random: np.random.Generator, seeds: int, steps: int, noise: float) -> list[dict]:
    """Curves whose batch noise depends on the seed alone, as equal batches make it."""
    curves = []
    for seed in range(1, seeds + 1):
        at = np.array([*range(min(100, steps)), *range(100, steps, 10)])
        batches = np.random.default_rng(seed).normal(0, 0.12, len(at))
        values = 0.25 + 2.05 * np.exp(-at / (0.3 * steps)) + batches
        values = values + noise * np.cumsum(random.normal(0, 1, len(at))) / len(at) ** 0.5
        last = float(values[-32:].mean())
        values = [float(f"{value:.7g}") for value in values]
        curve = {"seed": seed, "steps": at.tolist(), "values": values, "last_mean": last}
        curves.append({**curve, "held_out_accuracy": 0.92, "held_out_r_squared": None})
    return curves


def with_losses(document: dict, seeds: int = 3, steps: int = 5000) -> dict:
    random = np.random.default_rng(3)
    for entry in document["records"]:
        if entry["outcome"] == "ok":
            noise = {"fp32": 2e-5, "tf32": 4e-4, "fp16": 3e-4, "bf16": 2e-3}[entry["precision"]]
            entry["losses"] = loss_curves(random, seeds, steps, noise)
    return document


def several_gpus(
    times: dict[str, dict[int, float]],
    shapes: tuple[tuple[int, ...], ...] = ((784, 128, 128, 10),),
    precision: str = "bf16",
) -> dict:
    """Networks on one and more GPUs; `times`: a backend's microseconds a step by the number of GPUs."""
    document = empty_document()
    for widths in shapes:
        for devices in sorted({count for of_backend in times.values() for count in of_backend}):
            entry = workload(widths, devices=devices)
            entry["name"] += f"-g{devices}" if devices > 1 else ""
            document["workloads"].append(entry)
            for backend, of_backend in times.items():
                if devices in of_backend:
                    seconds = 1e-6 * of_backend[devices]
                    document["records"].append(record(entry["name"], backend, precision, seconds))
    return document


def choice(taken: str, **left_out: str) -> dict:
    """What a backend that takes the fastest of several says of itself."""
    candidates = [{"backend": taken, "step_seconds": 1e-5, "left_out": None}]
    candidates += [
        {"backend": name, "step_seconds": None, "left_out": reason} for name, reason in left_out.items()
    ]
    return {"taken": taken, "kept": False, "candidates": candidates}


def plane(
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096),
    batches: tuple[int, ...] = (1, 32, 64, 128, 256, 1024, 4096, 16384),
    precisions: tuple[str, ...] = ("fp32", "bf16"),
) -> dict:
    """784-H-H-H-10: a fixed cost and a share of the arithmetic for each row; the largest are not measured."""
    document = empty_document()
    rates = {"fp32": 4e13, "tf32": 2e14, "fp16": 5e14, "bf16": 5e14}
    for width in widths:
        for batch in batches:
            entry = workload((784, width, width, width, 10), batch)
            operations = 6.0 * batch * entry["parameters"]
            document["workloads"].append(entry)
            entry["choices"] = {}
            for precision in precisions:
                work = operations / rates[precision]
                if work > 1e-2:
                    continue
                small = batch <= 32 and width <= 1024
                taken = "cuda-resident" if small else "cuda-streamed" if batch <= 64 else "cuda-tiled"
                if batch >= 256 and width <= 64:
                    taken = "cuda-fused"
                fixed = {
                    "cuda-resident": 4e-6,
                    "cuda-streamed": 17e-6,
                    "cuda-tiled": 20e-6,
                    "cuda-fused": 7e-6,
                }
                ours = fixed[taken] + 1.15 * work
                entry["floors"][precision] = floor(2e-6 + 0.9 * work)
                entry["choices"][precision] = {"cuda": choice(taken)}
                document["records"] += [
                    record(entry["name"], "pytorch-graph", precision, 55e-6 + 1.05 * work),
                    record(entry["name"], "cublaslt-graph", precision, 30e-6 + 1.1 * work),
                    record(
                        entry["name"], "cuda", precision, ours, fraction_of_floor=(2e-6 + 0.9 * work) / ours
                    ),
                ]
    used = {one["workload"] for one in document["records"]}
    document["workloads"] = [one for one in document["workloads"] if one["name"] in used]
    return document
