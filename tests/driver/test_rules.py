"""What is trained, through the driver on the CPU: verified against the oracle, caught where it is wrong."""

import json
import os
import subprocess
import sys

import pytest
from running import PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))
from worker_process import PACKAGE, jax_python  # noqa: E402

pytest.importorskip("torch", reason="PyTorch is not installed")

# Every activation, loss and optimizer, an output of width 1, and a layer without hidden units.
WORKLOADS = [
    "mlp-17x32x32x6-b32-tanh-mse-adam",
    "mlp-20x16x4-b8-gelu-adamw",
    "mlp-9x8x1-b16-silu-bce-momentum0.9",
    "mlp-12x16x5-b16-elu-adam",
    "mlp-7x3-b4-mse",
]

# pytorch-eager's worker with a change to its rules.
FAULTY_WORKER = """
import runpy, sys
sys.path.insert(0, {package!r})
import torch
from headroom_worker import rules, torch_trainer
{change}
if __name__ == "__main__":  # and not in a rank's process, which has the change too
    runpy.run_module("headroom_worker", run_name="__main__")
"""
FAULTS = {
    "a step number off by one": "go_to = torch_trainer.TorchTrainer.go_to\n"
    "torch_trainer.TorchTrainer.go_to = lambda trainer, step: go_to(trainer, step + 1)",
    "a wrong beta": "kind = torch.optim.AdamW\n"
    "torch.optim.AdamW = lambda *a, **o: kind(*a, **(o | {'betas': (0.89, 0.999)}))",
    "no weight decay": "kind = torch.optim.AdamW\n"
    "torch.optim.AdamW = lambda *a, **o: kind(*a, **(o | {'weight_decay': 0}))",
    "another activation": "rules.ACTIVATIONS['gelu'] = torch.nn.SiLU",
}


def records_of_a_run(folder, *arguments) -> tuple[int, list[dict]]:
    """Exit code and records."""
    output = folder / "a.json"
    words = ["run", "--device", -1, "--output", output, "--no-figures", "--block-seconds", 0.02]
    done = subprocess.run(
        [PROGRAM, *map(str, [*words, *arguments])],
        env=os.environ
        | {"HEADROOM_ROOT": str(ROOT), "HEADROOM_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert output.exists(), done.stderr
    return done.returncode, json.loads(output.read_text())["records"]


def test_pytorch_and_the_oracle_are_verified(tmp_path):
    code, records = records_of_a_run(
        *(tmp_path, "--workload", ",".join(WORKLOADS), "--backend", "oracle,pytorch-eager"),
        *("--precision", "fp32"),
    )
    assert {(record["workload"], record["backend"]) for record in records} == {
        (workload, backend) for workload in WORKLOADS for backend in ("oracle", "pytorch-eager")
    }
    for record in records:
        assert record["outcome"] == "ok", record["message"]
        assert record["verification"]["verdict"] == "pass"
    assert code == 0


# test_jax.py has both rows in both precisions with one workload.
@pytest.mark.long
@pytest.mark.skipif(jax_python() is None, reason="JAX is not installed: HEADROOM_JAX_PYTHON names no Python")
def test_jax_is_verified(tmp_path):
    code, records = records_of_a_run(
        *(tmp_path, "--workload", ",".join(WORKLOADS[:3]), "--backend", "jax-jit,jax-scan"),
        *("--precision", "fp32,bf16"),
    )
    assert len(records) == 12
    for record in records:
        assert record["outcome"] == "ok", record["message"]
        assert record["verification"]["verdict"] == "pass"
    assert code == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(tmp_path, fault):
    worker = tmp_path / "worker.py"
    worker.write_text(FAULTY_WORKER.format(package=str(PACKAGE), change=FAULTS[fault]))
    code, (record,) = records_of_a_run(
        *(tmp_path, "--workload", "mlp-20x16x4-b8-gelu-adamw", "--backend", "pytorch-eager"),
        *("--precision", "fp32", "--worker", f"python={sys.executable} {worker}"),
    )
    assert (record["outcome"], record["verification"]["verdict"]) == ("failed", "fail")
    assert record["step_seconds"] is None
    assert code == 1


# Starting two processes takes seconds.
SHIFTED_RANK = """
def rows_of_the_first_rank(values, request):
    joined = values[: request.batches * request.joined_batch_size]
    by_rank = joined.reshape(request.batches, request.devices, request.batch_size, *values.shape[1:])
    return by_rank[:, 0].reshape(-1, *values.shape[1:])

torch_trainer.own_rows = rows_of_the_first_rank
"""


@pytest.mark.long
@pytest.mark.parametrize("change", ["", SHIFTED_RANK], ids=["as it is", "a rank with another's rows"])
def test_two_ranks_are_verified_against_the_joined_batch(tmp_path, change):
    worker = tmp_path / "worker.py"
    worker.write_text(FAULTY_WORKER.format(package=str(PACKAGE), change=change))
    code, (record,) = records_of_a_run(
        *(tmp_path, "--workload", "mlp-20x16x4-b8-gelu-adamw-g2", "--backend", "pytorch-ddp"),
        *("--precision", "fp32", "--worker", f"python={sys.executable} {worker}"),
    )
    assert record["outcome"] == ("failed" if change else "ok"), record["message"]
    assert record["verification"]["verdict"] == ("fail" if change else "pass")
    assert code == (1 if change else 0)
