"""The autocast step of pytorch-eager on the CPU: PyTorch can run it there, the worker does not offer it."""

import numpy as np
import pytest
from worker_process import problems_of_a_fresh_seed, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_protocol.server import Arguments, read_request  # noqa: E402
from headroom_worker.pytorch_eager import make_trainer  # noqa: E402
from headroom_worker.torch_trainer import loss_scale  # noqa: E402

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture
def problem(tmp_path):
    return problems_of_a_fresh_seed(tmp_path, 1)[0]


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("fp16", 1e-2), ("bf16", 8e-2)])
def test_update_in_every_precision_is_near_double_precision(tmp_path, precision, bound):
    errors = []
    for problem in problems_of_a_fresh_seed(tmp_path, 9):
        request = read_request(Arguments(problem.request(precision=precision), "request"))
        trainer = make_trainer(request, torch.device("cpu"))
        assert trainer.features.dtype == TYPES[precision]
        trainer.train(1, 1)
        loss, expected = problem.step(problem.parameters, 1)
        errors.append(relative_error(trainer.state() - problem.parameters, expected - problem.parameters))
        assert abs(trainer.losses(1, 1)[0] - loss) <= bound * loss
    # A ReLU that switches moves a network this small by some percent, in fp16 often enough for the median.
    assert np.quantile(errors, 0.25) <= bound, errors
    if precision != "fp32":
        assert min(errors) > 1e-5  # products were in 16 bits indeed


def test_loss_scale_is_16_times_a_power_of_two_of_at_least_the_batch_up_to_what_a_sum_in_fp16_holds():
    scales = {1: 16.0, 2: 32.0, 31: 512.0, 32: 512.0, 33: 1024.0, 2048: 32768.0, 131072: 32768.0}
    assert {batch_size: loss_scale("fp16", batch_size) for batch_size in scales} == scales
    assert all(loss_scale(precision, 32) == 1.0 for precision in ("fp32", "tf32", "bf16"))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_precision_switches_are_set_whatever_they_were(problem, precision):
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = precision != "tf32"
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = True
    request = read_request(Arguments(problem.request(precision=precision), "request"))
    make_trainer(request, torch.device("cpu"))
    assert matmul.allow_tf32 is (precision == "tf32")
    assert not matmul.allow_fp16_reduced_precision_reduction
    assert not matmul.allow_bf16_reduced_precision_reduction
