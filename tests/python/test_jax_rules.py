"""Every activation, loss and optimizer in the JAX rows, against torch.optim in double precision."""

import pytest
from worker_process import Worker, jax_python

pytest.importorskip("torch", reason="PyTorch is not installed")
PYTHON = jax_python()
if PYTHON is None:
    pytest.skip("JAX is not installed: HEADROOM_JAX_PYTHON names no Python with it", allow_module_level=True)

from reference_training import assert_worker_trains_as_torch_does  # noqa: E402

# Each activation, loss and optimizer: each of them is compiled.
SOME = [
    ("relu", "cross-entropy", "adam"),
    ("tanh", "mse", "momentum"),
    ("silu", "bce", "adamw"),
    ("gelu", "mse", "adam"),
    ("elu", "cross-entropy", "sgd"),
]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    worker = Worker(tmp_path_factory.mktemp("worker") / "log", module="headroom_jax", python=PYTHON)
    yield worker
    assert worker.end() == 0


@pytest.mark.parametrize(("activation", "loss", "optimizer"), SOME)
def test_every_rule_is_trained(worker, tmp_path, activation, loss, optimizer):
    assert_worker_trains_as_torch_does(worker, tmp_path, "jax-jit", "fp32", activation, loss, optimizer)


def test_a_scan_hands_slots_and_the_number_of_the_step_on(worker, tmp_path):
    assert_worker_trains_as_torch_does(worker, tmp_path, "jax-scan", "fp32", "silu", "bce", "adamw")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("activation", "optimizer"), [("gelu", "momentum"), ("silu", "adamw"), ("elu", "adam")]
)
def test_slots_in_16_bits_are_near_double_precision(worker, tmp_path, precision, activation, optimizer):
    """In fp16 the loss is scaled, and slots are not."""
    assert_worker_trains_as_torch_does(worker, tmp_path, "jax-jit", precision, activation, "mse", optimizer)
