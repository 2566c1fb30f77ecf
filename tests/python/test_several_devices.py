"""The rows that train on several devices, with two processes of the CPU and gloo between them.

What they train is checked in double precision with the joined batch. Starting two processes that import
PyTorch takes seconds, so a test has several questions to them.
"""

import json
import os
import signal
import time

import numpy as np
import pytest
from worker_process import Problem, Worker, relative_error

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headroom_protocol.server import Arguments, Session, WorkerError, read_request  # noqa: E402
from headroom_worker.backends import TRIALS_ON_SEVERAL_DEVICES, PyTorchBackends  # noqa: E402
from headroom_worker.ranks import RankedTrainer  # noqa: E402
from reference_training import OPTIMIZERS, SLOTS, ReferenceTraining, assert_changed_alike  # noqa: E402

BOUND = 1e-5
TRACED = {"backend": "aot_eager"}


@pytest.fixture(autouse=True)
def one_thread_a_rank(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def joined(tmp_path):
    """As one device trains it: the batch is that of two ranks together."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"problem seed {seed}")  # shown on failure
    return Problem(tmp_path, batch_size=6, samples=27, seed=seed)


def of_two_ranks(joined: Problem, **changes) -> dict:
    return joined.request(workload__batch_size=joined.batch_size // 2, workload__devices=2, **changes)


def ranked(joined: Problem, module: str, precision: str = "fp32", options=(), **limits) -> RankedTrainer:
    request = read_request(Arguments(of_two_ranks(joined, precision=precision), "request"))
    return RankedTrainer(request, module, dict(options), **limits)


def assert_trains_the_joined_batch(trainer: RankedTrainer, joined: Problem, bound: float = BOUND):
    """Over the end of the data (4 batches), and in a state that was set."""
    assert np.array_equal(trainer.state(), joined.parameters)  # whatever set-up has trained
    for first, count in ((0, 5), (5, 3)):
        trainer.train(first, count)
    parameters, losses = joined.parameters.astype(np.float64), []
    for step in range(8):
        loss, parameters = joined.step(parameters, step)
        losses.append(loss)
    moved = parameters - joined.parameters
    assert relative_error(trainer.state() - joined.parameters, moved) <= bound
    assert relative_error(trainer.losses(0, 8), np.array(losses)) <= bound
    trainer.set_state(joined.parameters)
    assert np.array_equal(trainer.state(), joined.parameters)


def is_there(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_all_gone(process_ids: list[int]):
    assert len(process_ids) == 2
    assert not any(map(is_there, process_ids))


def test_ddp_trains_the_joined_batch_and_a_killed_rank_is_one_error(joined):
    trainer = ranked(joined, "headroom_worker.pytorch_ddp")
    ids = trainer.process_ids()
    assert_trains_the_joined_batch(trainer, joined)
    assert "static_graph" in trainer.note
    os.kill(ids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match="train: rank 1 was ended by signal 9"):
        trainer.train(8, 10)
    assert_all_gone(ids)
    with pytest.raises(WorkerError, match="signal 9"):  # and no other error later
        trainer.state()


@pytest.mark.long
def test_ddp_by_the_protocol_with_adam_and_no_process_is_left_behind(tmp_path):
    optimizer = OPTIMIZERS["adam"]
    joined = Problem(
        tmp_path, widths=(12, 9, 3), batch_size=4, samples=12, learning_rate=1e-2, optimizer=optimizer
    )
    worker = Worker(tmp_path / "log")
    worker.ok("prepare", **of_two_ranks(joined, backend="pytorch-ddp"))
    ids = children_of(worker.process.pid)
    timing = worker.ok("train", first_step=0, count=4)
    assert 0 < timing["device_seconds"] <= timing["wall_seconds"]
    worker.ok("state", file=str(tmp_path / "out"))
    reference = ReferenceTraining(joined, "adam")
    start = np.concatenate([joined.parameters, np.zeros(2 * joined.parameters.size, np.float32)])
    reference.set_state(start, 0)
    losses = reference.train(0, 4)
    found = np.fromfile(tmp_path / "out", np.float32)
    assert_changed_alike(found, reference.state(), start, 1 + len(SLOTS["adam"]), 2e-5)
    worker.ok("losses", first_step=0, count=4, file=str(tmp_path / "losses"))
    assert relative_error(np.fromfile(tmp_path / "losses", np.float32), np.array(losses)) <= BOUND
    worker.ok("release")
    assert_all_gone(ids)
    worker.ok("prepare", **joined.request())  # one device, by the same worker
    assert worker.end() == 0


def children_of(process_id: int) -> list[int]:
    """Ranks; not Python's own process that watches shared memory."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as command:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
                if parent == process_id and "spawn_main" in command.read():
                    found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.long
def test_the_captured_row_trains_the_joined_batch(joined):
    trainer = ranked(joined, "headroom_worker.pytorch_ddp_graph", "fp16")
    assert "static loss scale 128" in trainer.note  # of the joined batch: 16 times 8
    assert_trains_the_joined_batch(trainer, joined, 5e-2)
    trainer.close()


def test_ranks_of_other_bits_are_an_error_and_one_that_does_not_answer_ends_all(joined):
    trainer = ranked(joined, "faulty_ranks", least_training_seconds=0.5)
    ids = trainer.process_ids()
    timing = trainer.train(0, 1)
    assert (timing.device_seconds, timing.cpu_seconds) == (2e-3, 2e-3)  # of the slower rank, and of both
    with pytest.raises(WorkerError, match="rank 1 has other bits than rank 0 in 1 of .* first in value 3"):
        trainer.state()
    os.kill(ids[1], signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(WorkerError, match="train: rank 0, rank 1 gave no answer within"):
        trainer.train(1, 1)
    assert time.monotonic() - begin < 10
    assert_all_gone(ids)


def test_a_set_up_that_fails_leaves_no_process(joined, monkeypatch):
    made = []
    gather = RankedTrainer._gather
    monkeypatch.setattr(
        RankedTrainer, "_gather", lambda self, *rest: made.extend(self.process_ids()) or gather(self, *rest)
    )
    with pytest.raises(WorkerError, match="prepare: rank [01]: ModuleNotFoundError"):
        ranked(joined, "no_such_row")
    assert_all_gone(made)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_compiled_row_trains_the_joined_batch(joined, precision):
    trainer = ranked(joined, "headroom_worker.pytorch_compile_graph", precision, TRACED)
    assert_trains_the_joined_batch(trainer, joined, BOUND if precision == "fp32" else 1.5e-1)
    trainer.close()


@pytest.mark.long
@pytest.mark.parametrize("trial", TRIALS_ON_SEVERAL_DEVICES, ids=lambda trial: trial.name)
def test_trials_train_the_joined_batch(joined, trial):
    trainer = ranked(joined, trial.module, options=dict(trial.options) | (TRACED if trial.compiles else {}))
    assert_trains_the_joined_batch(trainer, joined)
    trainer.close()


@pytest.fixture
def session():
    """Without a process: what is refused is refused before."""
    ids = iter(range(100))
    session = Session(PyTorchBackends(-1))

    def error(**request) -> tuple[str, str]:
        line = json.dumps({"id": next(ids), "call": "prepare", **request}).encode()
        answer = session.answer(line)
        assert answer["ok"] is False, answer
        return answer["error"]["kind"], answer["error"]["message"]

    return error


def test_rows_are_refused_on_more_and_on_fewer_devices_than_they_train_on(session, joined):
    one, two = joined.request(), of_two_ranks(joined)
    assert session(**two) == ("unsupported", "trains on one device")
    assert session(**one | {"backend": "pytorch-ddp"}) == ("unsupported", "trains on 2 devices or more")
    nine = joined.request(backend="pytorch-ddp", workload__batch_size=1, workload__devices=9)
    assert session(**nine) == ("unsupported", "trains on at most 8 devices")


def test_a_device_that_is_not_there_is_named_before_a_process_is_started(session, joined):
    two = of_two_ranks(joined, backend="pytorch-ddp", devices=[0, 7])
    assert session(**two) == ("unsupported", "no CUDA device 0: there are 0")
