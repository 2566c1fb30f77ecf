"""The Python worker's end of the protocol, with backends that have no PyTorch."""

import dataclasses
import json
import os
import sys
import threading
import types
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "torch_impl" / "python"))

np = pytest.importorskip("numpy", reason="NumPy is not installed")

from headroom_protocol.backend_table import Backend, BackendTable  # noqa: E402
from headroom_protocol.server import (  # noqa: E402
    Arguments,
    Timing,
    TrainerRequest,
    WorkerError,
    read_request,
    serve,
)
from headroom_protocol.step_function import StepBackends  # noqa: E402
from headroom_protocol.workload import Optimizer  # noqa: E402


class Backends:
    """One backend, whose trainer answers with what the test has put into `times`, `note` and `peak`."""

    times = (1.0, 1.0, 1.0)
    note = ""
    peak = None

    def hello(self):
        return {"worker": "w", "software": {}, "device": None, "backends": []}

    def prepare(self, request):
        return types.SimpleNamespace(
            setup_cache=None,
            note=self.note,
            train=lambda first_step, count: Timing(*self.times),
            peak_device_bytes=lambda: self.peak,
        )

    def error_kind(self, error):
        return "failed"

    def free_memory(self):
        pass


class Session:
    """serve() in a thread, behind two pipes."""

    def __init__(self, folder: Path):
        self.backends, self.id = Backends(), 0
        requests, self.requests = os.pipe()
        answers, write_answers = os.pipe()
        self.answers = os.fdopen(answers, "rb")
        self.thread = threading.Thread(target=serve, args=(requests, write_answers, self.backends))
        self.thread.start()
        np.zeros(8, dtype="<f4").tofile(folder / "features")
        np.zeros(4, dtype="<i4").tofile(folder / "targets")
        np.zeros(9, dtype="<f4").tofile(folder / "parameters")
        self.prepared = {
            "backend": "b",
            "precision": "fp32",
            "workload": {
                "name": "small",
                "widths": [2, 3],
                "batch_size": 2,
                "activation": "relu",
                "loss": "cross-entropy",
                "optimizer": {"kind": "sgd", "learning_rate": 0.1, "momentum": 0},
                "seed": 1,
            },
            "data": {
                "features_file": str(folder / "features"),
                "targets_file": str(folder / "targets"),
                "samples": 4,
                "feature_count": 2,
            },
            "parameters_file": str(folder / "parameters"),
            "cache_folder": None,
        }

    def ask(self, call: str, **arguments) -> dict:
        self.id += 1
        os.write(self.requests, json.dumps({"id": self.id, "call": call, **arguments}).encode() + b"\n")
        answer = json.loads(self.answers.readline(), parse_constant=lambda word: pytest.fail(word))
        assert answer["id"] == self.id
        return answer

    def error(self, call: str, **arguments) -> dict:
        answer = self.ask(call, **arguments)
        assert answer["ok"] is False
        return answer["error"]

    def end(self) -> None:
        os.close(self.requests)
        self.thread.join()
        self.answers.close()


@pytest.fixture
def session(tmp_path):
    session = Session(tmp_path)
    yield session
    session.end()


def test_a_release_without_a_trainer_loads_what_backends_need(session):
    loaded = []
    session.backends.get_ready = lambda: loaded.append(1)
    assert session.ask("release")["result"] == {"peak_device_bytes": None}
    assert loaded == [1]
    assert session.ask("prepare", **session.prepared)["ok"]
    session.ask("release")  # of a trainer
    assert loaded == [1]


def test_a_workload_of_several_devices_names_them(session):
    asked = []
    prepare = session.backends.prepare
    session.backends.prepare = lambda request: asked.append(request) or prepare(request)
    assert session.ask("prepare", **session.prepared)["ok"]
    several = session.prepared | {"workload": session.prepared["workload"] | {"devices": 2}}
    assert session.ask("prepare", **several, devices=[1, 0])["ok"]
    assert [(request.devices, request.device_indices) for request in asked] == [(1, ()), (2, (1, 0))]
    assert [(request.joined_batch_size, request.batches) for request in asked] == [(2, 2), (4, 1)]
    for wrong, said in (([0], "expected 2"), ([0, 0], "different"), ("0,1", "array of indices")):
        error = session.error("prepare", **several, devices=wrong)
        assert error["kind"] == "input" and said in error["message"]
    several["workload"]["devices"] = 3  # a joined batch of 6 of 4 samples
    assert "more than the 4 samples" in session.error("prepare", **several)["message"]


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_time_that_is_not_finite_fails_its_call_and_the_worker_lives(session, place, value):
    assert session.ask("prepare", **session.prepared)["ok"]
    session.backends.times = tuple(value if i == place else 1.0 for i in range(3))
    field = ("device_seconds", "wall_seconds", "cpu_seconds")[place]
    error = session.error("train", first_step=0, count=1)
    assert error == {"kind": "failed", "message": f"{field}: expected a finite number, found {value}"}
    session.backends.times = (1.0, 2.0, 3.0)
    answer = session.ask("train", first_step=1, count=1)
    assert answer["result"] == {"device_seconds": 1.0, "wall_seconds": 2.0, "cpu_seconds": 3.0}


def test_ranges_begin_and_end_where_the_backends_have_any(session):
    assert session.error("range", name="check") == {
        "kind": "unsupported",
        "message": "range: this worker has none",
    }
    begun = []
    session.backends.begin_range = begun.append
    for name in ("set-up", "check", None):
        assert session.ask("range", name=name)["result"] == {}
    assert begun == ["set-up", "check", None]
    for wrong in ("", "two words", 3):
        assert session.error("range", name=wrong)["kind"] == "input"
    assert session.error("range")["message"].startswith("request.name: missing")


@pytest.mark.parametrize("value", [float("nan"), object(), np.float32(1)], ids=["nan", "object", "float32"])
def test_an_answer_that_json_cannot_hold_fails_its_call_and_the_worker_lives(session, value):
    session.backends.peak = value
    assert session.ask("prepare", **session.prepared)["ok"]
    assert session.error("release")["kind"] == "failed"
    session.backends.peak = 7
    assert session.ask("prepare", **session.prepared)["ok"]
    assert session.ask("release")["result"] == {"peak_device_bytes": 7}


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        ({"activation": "tanh"}, "activation tanh; it trains relu"),
        ({"loss": "mse"}, "loss mse; it trains cross-entropy"),
        ({"optimizer": Optimizer("adam")}, "optimizer adam; it trains sgd"),
        ({"optimizer": Optimizer("sgd", momentum=0.9)}, "momentum; it trains plain sgd"),
    ],
)
def test_a_backend_that_does_not_train_everything_refuses_what_is_not_plain(beyond, reason):
    rows = [
        Backend("all", "pytorch", "d", "m", {"fp32": "exact"}, trains_everything=True),
        Backend("b", "pytorch", "d", "m", {"fp32": "exact"}),
    ]
    table = BackendTable(rows, lambda backend, precision: None)
    plain = TrainerRequest("b", "fp32", "w", (2, 3), 2, *(np.zeros((4, 2)), np.zeros(4), np.zeros(9)), None)
    assert table.asked_for(plain) is rows[1]
    with pytest.raises(WorkerError) as refused:
        table.asked_for(dataclasses.replace(plain, **beyond))
    assert (refused.value.kind, str(refused.value)) == ("unsupported", reason)
    assert table.asked_for(dataclasses.replace(plain, backend="all", **beyond)) is rows[0]


def test_a_row_says_what_its_backend_is():
    row = Backend("b", "jax", "one line", "m", {"fp32": "exact"}, compiles=True)
    (offered,) = BackendTable([row], lambda backend, precision: None).offered()
    assert offered == {
        "name": "b",
        "family": "jax",
        "description": "one line",
        "compiles": True,
        "repeats": False,
        "max_devices": 1,
        "min_devices": 1,
        "precisions": {"fp32": {"contract": "exact", "unavailable": None}},
    }
    with pytest.raises(ValueError, match="family of b: expected reference, pytorch"):
        BackendTable([dataclasses.replace(row, family="torch")], lambda backend, precision: None)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a b", "-b", "\x1b[31m", "ü", "a\n", "x" * 129])
def test_a_name_that_is_none_is_an_input_error(session, name):
    workload = session.prepared["workload"] | {"name": name}
    for field, wrong in (("name", {"workload": workload}), ("backend", {"backend": name})):
        error = session.error("prepare", **(session.prepared | wrong))
        assert error["kind"] == "input"
        assert f"{field}: expected a name of letters" in error["message"]
        assert "\x1b" not in error["message"]
    assert session.ask("prepare", **session.prepared)["ok"]


def test_a_step_function_that_fails_costs_its_call_and_memory_is_told_apart(tmp_path):
    errors = [ZeroDivisionError("by nothing"), MemoryError()]

    def step(layers, features, labels, request):
        if errors:
            raise errors.pop(0)
        assert type(features) is type(labels) is np.ndarray
        return 0.5

    row = Backend("b", "other", "one line", "", {"fp32": "exact"})
    session = Session(tmp_path)  # for its files
    session.end()
    backends = StepBackends(row, step, -1)
    trainer = backends.prepare(read_request(Arguments(session.prepared, "request")))
    for kind in ("failed", "out_of_memory"):
        with pytest.raises(Exception) as caught:
            trainer.train(0, 1)
        assert backends.error_kind(caught.value) == kind
    trainer.train(0, 2)
    assert trainer.losses(0, 2).tolist() == [0.5, 0.5]
    with pytest.raises(WorkerError, match="step 2 was not trained"):
        trainer.losses(1, 2)
    assert trainer.state().tolist() == [0.0] * 9
    with pytest.raises(WorkerError, match="this run measures a GPU"):
        StepBackends(row, step, 0).prepare(read_request(Arguments(session.prepared, "request")))
