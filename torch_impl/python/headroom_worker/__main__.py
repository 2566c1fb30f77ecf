"""`python -m headroom_worker --device N`: serves the backends of backends.py until standard input ends.

With `--read-model=FILE:NAME` it executes a user's file instead, and tells its network (user_model.py).
"""

import sys

from headroom_protocol.process import argument_parser, become_worker

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


def main() -> int:
    requests, answers = become_worker(SWITCHES)
    parser = argument_parser("headroom_worker", "PyTorch in Python")
    parser.add_argument("--trials", action="store_true", help="offer also what was tried (docs/rivals.md)")
    parser.add_argument("--read-model", metavar="FILE:NAME", help="execute FILE, tell its network, and end")
    arguments = parser.parse_args()

    if arguments.read_model:
        from headroom_worker.user_model import answer_about

        answer_about(arguments.read_model, answers)

    from headroom_protocol.server import serve

    from headroom_worker.backends import BACKENDS, TRIALS, TRIALS_ON_SEVERAL_DEVICES, PyTorchBackends

    trials = TRIALS + TRIALS_ON_SEVERAL_DEVICES if arguments.trials else ()
    return serve(requests, answers, PyTorchBackends(arguments.device, BACKENDS + trials))


if __name__ == "__main__":
    sys.exit(main())
