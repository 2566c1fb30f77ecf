"""How a worker's process begins, before a library that prints, reads or computes is imported.

The protocol's descriptors are put out of reach first: whatever a library prints goes to standard error, and
whatever it reads finds the end of the file.
"""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Iterable

# NVLink multicast stays off in every worker and in what it starts: on hosts whose GPUs are shared a program
# that uses it can put them out of service. Whoever asks for it in the environment is not heard.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


def reserve_protocol_descriptors() -> tuple[int, int]:
    """Duplicates descriptors 0 and 1 (not inherited by children) and leaves harmless ones in their place."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def die_with_parent(parent: int) -> None:
    """A driver that is killed must not leave a worker behind that holds the GPU."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(0)


def become_worker(switches: Iterable[str]) -> tuple[int, int]:
    """Descriptors of requests and answers; the variables that begin with one of `switches` are gone."""
    parent = os.getppid()
    descriptors = reserve_protocol_descriptors()
    die_with_parent(parent)
    # Ctrl-C reaches the whole process group; the driver decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in [name for name in os.environ if name.startswith(tuple(switches))]:
        del os.environ[name]
    os.environ.update(NO_MULTICAST)
    return descriptors


def argument_parser(program: str, framework: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=f"Worker of Headroom for {framework}.")
    parser.add_argument(
        "--device", type=int, required=True, metavar="N", help="CUDA device index; -1 for none"
    )
    return parser
