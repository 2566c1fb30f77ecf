"""`python -m headroom_worker --device N`: serves the backends of backends.py until standard input ends.

The protocol's descriptors are put out of reach before anything else is imported: whatever a library prints
goes to standard error, and whatever it reads finds the end of the file.
"""

import argparse
import ctypes
import os
import signal
import sys

# Each of these would change a precision behind the switches that the backends set, or turn torch.compile off.
SWITCHES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "TORCHDYNAMO_SUPPRESS_ERRORS",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
)


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


def main() -> int:
    parent = os.getppid()
    requests, answers = reserve_protocol_descriptors()
    die_with_parent(parent)
    # Ctrl-C reaches the whole process group; the driver decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in SWITCHES:
        os.environ.pop(name, None)

    parser = argparse.ArgumentParser(
        prog="headroom_worker", description="Worker of Headroom for PyTorch in Python."
    )
    parser.add_argument(
        "--device", type=int, required=True, metavar="N", help="CUDA device index; -1 for none"
    )
    parser.add_argument("--trials", action="store_true", help="offer also what was tried (docs/rivals.md)")
    arguments = parser.parse_args()

    from headroom_worker.backends import BACKENDS, TRIALS, PyTorchBackends
    from headroom_worker.protocol import serve

    backends = BACKENDS + TRIALS if arguments.trials else BACKENDS
    return serve(requests, answers, PyTorchBackends(arguments.device, backends))


if __name__ == "__main__":
    sys.exit(main())
