"""Activations, losses and optimizers on a GPU: all rows, captured and compiled ones with their slots.

Skipped where there is none.
"""

import pytest
from worker_process import Worker, jax_python

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_worker.backends import no_compiler_reason  # noqa: E402
from reference_training import assert_worker_trains_as_torch_does  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

# Each activation, loss and optimizer.
SOME = [
    ("relu", "cross-entropy", "adam"),
    ("tanh", "mse", "momentum"),
    ("silu", "bce", "adamw"),
    ("gelu", "mse", "adam"),
    ("elu", "cross-entropy", "sgd"),
]


@pytest.fixture(scope="module", params=["headroom_worker", "headroom_jax"])
def worker(request, tmp_path_factory):
    log = tmp_path_factory.mktemp("worker") / "log"
    python = {"python": jax_python()} if request.param == "headroom_jax" else {}
    if None in python.values():
        pytest.skip("JAX is not installed: HEADROOM_JAX_PYTHON names no Python with it")
    worker = Worker(log, device=0, sees_cuda=True, module=request.param, **python)
    yield worker
    assert worker.end() == 0


def rows_of(worker: Worker, precision: str) -> list[str]:
    hello = worker.ok("hello", protocol=2)
    rows = [row["name"] for row in hello["backends"] if row["precisions"][precision]["unavailable"] is None]
    if not rows:
        pytest.skip("the worker offers no row here")
    return [row for row in rows if "compile" not in row]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("activation", "loss", "optimizer"), SOME)
def test_every_rule_is_trained(worker, tmp_path, precision, activation, loss, optimizer):
    for row in rows_of(worker, precision):
        (tmp_path / row).mkdir()
        assert_worker_trains_as_torch_does(
            worker, tmp_path / row, row, precision, activation, loss, optimizer
        )


@pytest.mark.skipif(no_compiler_reason() is not None, reason=str(no_compiler_reason()))
@pytest.mark.parametrize(
    ("precision", "optimizer"), [("fp32", "adam"), ("fp16", "adamw"), ("bf16", "momentum")]
)
@pytest.mark.parametrize("row", ["pytorch-compile", "pytorch-compile-graph"])
def test_compiled_steps_keep_their_slots(tmp_path, row, precision, optimizer):
    worker = Worker(tmp_path / "log", device=0, sees_cuda=True)
    assert_worker_trains_as_torch_does(worker, tmp_path, row, precision, "silu", "mse", optimizer)
    assert worker.end() == 0
