"""What the driver's tests need of the machine they run on.

They take the lock of a GPU, a real or a made-up one, so of files that run side by side one goes at a time.
Variables that the driver keeps from its workers, and says so, are not set.
"""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

LEFT_OUT = ("TORCH", "PYTORCH", "CUBLAS", "CUDNN", "NVIDIA_TF32", "NCCL", "XLA", "JAX", "TRITON")


@pytest.fixture(scope="session", autouse=True)
def one_file_at_a_time():
    with open(Path(tempfile.gettempdir()) / f"headroom-tests-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def plain_environment():
    for name in [name for name in os.environ if name.startswith(LEFT_OUT)]:
        del os.environ[name]
