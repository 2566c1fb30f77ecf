"""Verification records: which kernel sources passed the tests on which GPU.

The digest covers what decides the code of the kernels: bench/device, cuda_impl and cmake/cuda.cmake.
Documentation beside them does not count, or a corrected comma in it would void a record.

    verification.py digest ROOT             the digest of the kernel sources
    verification.py status ROOT             one line for each record: is it of these sources?
    verification.py device                  the GPU's name; exit code 2 when there is none
    verification.py write ROOT DIGEST NAME=PASSED,FAILED,SKIPPED...
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
        missing = [part for part in PARTS if record.get(part) is None]
        if missing:
            state += f" (not run: {', '.join(missing)})"
        lines.append(f"verification: {record['device']}, {record['date']}: {state}")
    return lines


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


def write(root, digest, results):
    name, driver, cuda = device()
    record = {
        "device": name,
        "driver": driver,
        "cuda": cuda,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "kernel_digest": digest,
        **dict.fromkeys(PARTS),
    }
    for result in results:
        key, numbers = result.split("=")
        record[key] = dict(zip(("passed", "failed", "skipped"), map(int, numbers.split(",")), strict=True))
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    path = root / "results" / "verification" / f"{slug}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def main():
    command, *arguments = sys.argv[1:]
    if command == "digest":
        print(kernel_digest(Path(arguments[0])))
    elif command == "status":
        print("\n".join(status(Path(arguments[0]))))
    elif command == "device":
        print(device()[0])
    elif command == "write":
        print(write(Path(arguments[0]), arguments[1], arguments[2:]))


main()
