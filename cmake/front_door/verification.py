"""Verification records: which kernel sources passed the tests on which GPU.

The digest covers what decides the code of the kernels: bench/device, cuda_impl and cmake/cuda.cmake.
Documentation beside them does not count, or a corrected comma in it would void a record.

A part (see PARTS) has the counts of the last run that held it; its tests that were cut off are in
`not_finished`, by name. Parts of an earlier run of the same kernels on the same GPU, driver and CUDA version
stay, so that the parts can be run one by one.

    verification.py digest ROOT             the digest of the kernel sources
    verification.py status ROOT             one line for each record: is it of these sources, and complete?
    verification.py device                  the GPU's name; exit code 2 when there is none
"""

import datetime
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

# What a record counts; null in it: was not run.
PARTS = ("tests", "ptx_jit", "memcheck", "racecheck", "synccheck")


def kernel_sources(root):
    named = [root / "cmake" / "cuda.cmake"]
    for folder in ("bench/device", "cuda_impl"):
        named += [
            path
            for path in (root / folder).rglob("*")
            if path.suffix in (".cu", ".cuh", ".cpp", ".h", ".txt")
        ]
    return sorted(path for path in named if path.is_file())


def kernel_digest(root):
    digest = hashlib.sha256()
    for path in kernel_sources(root):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def status(root):
    current = kernel_digest(root)
    files = sorted((root / "results" / "verification").glob("*.json"))
    if not files:
        return ["verification: no record of a GPU run; ./headroom test --gpu makes one"]
    lines = []
    for path in files:
        record = json.loads(path.read_text())
        state = (
            "current"
            if record["kernel_digest"] == current
            else "of older kernels; ./headroom test --gpu renews it"
        )
        state += in_brackets(
            [
                ("not run", [part for part in PARTS if record.get(part) is None]),
                ("FAILED", parts_with(record, "failed", int)),
                ("not finished", parts_with(record, "not_finished", len)),
            ]
        )
        lines.append(f"verification: {record['device']}, {record['date']}: {state}")
    return lines


def parts_with(record, field, size):
    """The parts in which a field is not empty, with its size."""
    sizes = {part: size(record[part].get(field, ())) for part in PARTS if record.get(part)}
    return [f"{part} ({count})" for part, count in sizes.items() if count]


def in_brackets(remarks):
    text = "; ".join(f"{what}: {', '.join(parts)}" for what, parts in remarks if parts)
    return f" ({text})" if text else ""


def device():
    """Name, driver version and CUDA version; the GPU is asked for through PyTorch, which is there anyway."""
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: test --gpu needs one", file=sys.stderr)
        sys.exit(2)
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"]
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        driver = None
    return torch.cuda.get_device_name(0), driver, torch.version.cuda


class Record:
    """The record of the GPU at hand, as it grows during a run."""

    def __init__(self, root, digest):
        name, driver, cuda = device()
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self.path = root / "results" / "verification" / f"{slug}.json"
        of = {"device": name, "driver": driver, "cuda": cuda, "kernel_digest": digest}
        earlier = json.loads(self.path.read_text()) if self.path.exists() else {}
        same = all(earlier.get(key) == value for key, value in of.items())
        self.parts = {part: earlier.get(part) if same else None for part in PARTS}
        self.of = of

    def set(self, part, counts):
        self.parts[part] = counts

    def write(self):
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({**self.of, "date": date, **self.parts}, indent=2) + "\n")
        new.replace(self.path)


def main():
    command, *arguments = sys.argv[1:]
    if command == "digest":
        print(kernel_digest(Path(arguments[0])))
    elif command == "status":
        print("\n".join(status(Path(arguments[0]))))
    elif command == "device":
        print(device()[0])


if __name__ == "__main__":
    main()
