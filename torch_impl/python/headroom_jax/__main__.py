"""`python -m headroom_jax --device N`: serves the backends of backends.py until standard input ends."""

import os
import sys

from headroom_protocol.process import argument_parser, become_worker

# What changes how JAX, XLA or a library below them computes, whatever the program asks for.
SWITCHES = ("JAX_", "XLA_", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULAT")


def main() -> int:
    requests, answers = become_worker(SWITCHES)
    arguments = argument_parser("headroom_jax", "JAX").parse_args()
    # By default a process takes three quarters of the GPU's memory when it starts; here each backend has a
    # process.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_PLATFORMS"] = "cpu" if arguments.device < 0 else "cuda,cpu"

    from headroom_protocol.server import serve

    from headroom_jax.backends import JaxBackends

    return serve(requests, answers, JaxBackends(arguments.device))


if __name__ == "__main__":
    sys.exit(main())
