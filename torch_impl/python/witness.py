"""`witness.py RESULTS.json --workload NAME --precision P`: a witness of where a step's time goes.

The ladder says that an eager step's device work is what the same step takes as one CUDA graph, and that the
rest is Python, dispatch and launches. This traces pytorch-eager's steps with torch.profiler (CUPTI) and
compares: the time in which the device was busy, and how many launches there were. Exit code 0: within 10 %;
1: not, or nothing to compare with; 2: wrong usage or no CUDA device. `--output FILE` adds what was found to a
JSON file that the docs are made from.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

BOUND = 0.1
GRAPHS = ("libtorch-graph", "pytorch-graph")
STEPS = 30
BATCHES = 16


@dataclass(frozen=True)
class Witness:
    device: str
    results_file: str
    workload: str
    precision: str
    eager_seconds: float  # from the results file
    graph_backend: str
    graph_seconds: float  # from the results file
    graph_node_seconds: float | None  # of the calibration: what one more kernel in a graph costs at the least
    busy_seconds: float  # traced, a step
    launches: float  # kernels, copies and fills, a step

    @property
    def difference(self) -> float:
        """Of the graph's step from the device-busy time, relative to the graph's."""
        return (self.graph_seconds - self.busy_seconds) / self.graph_seconds

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= BOUND

    @property
    def gap_seconds(self) -> float:
        """What the graph takes beyond the busy time, for each launch."""
        return (self.graph_seconds - self.busy_seconds) / self.launches

    def text(self) -> str:
        verdict = "agrees" if self.agrees else "DIFFERS"
        return (
            f"{self.workload} {self.precision} on {self.device}: {verdict} within {BOUND:.0%}\n"
            f"  eager step                  {1e6 * self.eager_seconds:9.1f} us  (results file)\n"
            f"  {self.graph_backend:<26}  {1e6 * self.graph_seconds:9.1f} us  (results file)\n"
            f"  device busy, eager          {1e6 * self.busy_seconds:9.1f} us  (traced),"
            f" {self.launches:.1f} launches\n"
            f"  difference                  {100 * self.difference:+9.1f} %   of the graph's step,"
            f" {1e6 * self.gap_seconds:.2f} us a launch\n"
        )


def busy_time(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of [start, end): work that overlaps counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class NothingToCompare(Exception):
    pass


def measured(document: dict, workload: str, precision: str) -> tuple[float, str, float]:
    """Seconds of pytorch-eager, and name and seconds of the fastest whole-step graph, both verified."""
    times = {
        record["backend"]: record["step_seconds"]["median"]
        for record in document["records"]
        if (record["workload"], record["precision"]) == (workload, precision)
        and record["outcome"] == "ok"
        and record["verification"]["verdict"] == "pass"
        and record["step_seconds"]
    }
    graphs = {name: times[name] for name in GRAPHS if name in times}
    if "pytorch-eager" not in times or not graphs:
        raise NothingToCompare(
            f"{workload} {precision}: expected verified records of pytorch-eager and of"
            f" {' or '.join(GRAPHS)}, found {', '.join(sorted(times)) or 'none'}"
        )
    graph = min(graphs, key=graphs.get)
    return times["pytorch-eager"], graph, graphs[graph]


def traced_step(workload: dict, precision: str, device_index: int) -> tuple[float, float, str]:
    """Device-busy seconds and launches of one eager step, and the device's name."""
    import numpy as np
    import torch
    from headroom_protocol.server import TrainerRequest
    from headroom_protocol.workload import Optimizer
    from headroom_worker.backends import PyTorchBackends

    random = np.random.default_rng(1)
    widths, batch = tuple(workload["widths"]), workload["batch_size"]
    parameters = [
        random.uniform(-(inputs**-0.5), inputs**-0.5, inputs * outputs + outputs)
        for inputs, outputs in zip(widths, widths[1:], strict=False)
    ]
    samples = batch * BATCHES
    request = TrainerRequest(
        backend="pytorch-eager",
        precision=precision,
        workload_name=workload["name"],
        widths=widths,
        batch_size=batch,
        features=random.random((samples, widths[0]), dtype=np.float32),
        targets=random.integers(0, widths[-1], samples, dtype=np.int32),
        parameters=np.concatenate(parameters).astype(np.float32),
        cache_folder=None,
        optimizer=Optimizer("sgd", workload["optimizer"]["learning_rate"]),
    )
    trainer = PyTorchBackends(device_index).prepare(request)
    trainer.train(0, STEPS)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):  # the first one pays for CUPTI's start
        trainer.train(STEPS, 2)
    with torch.profiler.profile(activities=activities) as profile:
        trainer.train(STEPS + 2, STEPS)
    intervals = [
        (1e-6 * event.time_range.start, 1e-6 * event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return busy_time(intervals) / STEPS, len(intervals) / STEPS, torch.cuda.get_device_name(device_index)


def add_to(file: Path, witness: Witness) -> None:
    """Replaces what the file held of this workload and precision."""
    entries = json.loads(file.read_text()) if file.exists() else []
    key = (witness.workload, witness.precision)
    entries = [entry for entry in entries if (entry["workload"], entry["precision"]) != key]
    entries.append(asdict(witness))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(entries, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="witness.py", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="RESULTS.json")
    parser.add_argument("--workload", required=True, metavar="NAME")
    parser.add_argument("--precision", required=True, choices=("fp32", "tf32", "fp16", "bf16"))
    parser.add_argument("--device", type=int, default=0, help="CUDA device index")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file to add the outcome to")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        document = json.loads(arguments.file.read_text())
        workload = next(one for one in document["workloads"] if one["name"] == arguments.workload)
        eager, graph, graph_seconds = measured(document, arguments.workload, arguments.precision)
    except (OSError, ValueError, KeyError, RecursionError) as error:
        print(f"witness.py: {arguments.file}: expected a results file: {error}", file=sys.stderr)
        return 2
    except StopIteration:
        print(f"witness.py: {arguments.file}: no workload '{arguments.workload}'", file=sys.stderr)
        return 2
    except NothingToCompare as error:
        print(f"witness.py: {arguments.file}: {error}", file=sys.stderr)
        return 1
    import torch

    if arguments.device >= torch.cuda.device_count():
        print(f"witness.py: no CUDA device {arguments.device}: there is nothing to trace", file=sys.stderr)
        return 2
    busy, launches, device = traced_step(workload, arguments.precision, arguments.device)
    node = document["calibration"].get("graph_node", {}).get("value")
    witness = Witness(
        device=device,
        results_file=arguments.file.name,
        workload=arguments.workload,
        precision=arguments.precision,
        eager_seconds=eager,
        graph_backend=graph,
        graph_seconds=graph_seconds,
        graph_node_seconds=node,
        busy_seconds=busy,
        launches=launches,
    )
    print(witness.text(), end="")
    if arguments.output is not None:
        add_to(arguments.output, witness)
    return 0 if witness.agrees else 1


if __name__ == "__main__":
    sys.exit(main())
