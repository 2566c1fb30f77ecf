"""What `--read-model` reads off a user's file, and what it refuses by name."""

import hashlib
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from headroom_worker import user_model  # noqa: E402
from headroom_worker.user_model import NotTrained, read_model, read_network  # noqa: E402
from torch import nn  # noqa: E402
from worker_process import PACKAGE  # noqa: E402


class OwnForward(nn.Module):
    def forward(self, x):
        return x


def frozen() -> nn.Linear:
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad = False
    return layer


def tied() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    network[2].weight = network[0].weight
    return network


def hooked() -> nn.Linear:
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda *_: None)
    return layer


def replaced() -> nn.Linear:
    layer = nn.Linear(3, 3)
    layer.forward = lambda x: x
    return layer


SHARED = nn.Linear(3, 3)
LOOP = nn.Sequential(nn.Linear(3, 3))
LOOP.append(LOOP)
BLOCK = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
READ = {
    "one layer": (lambda: nn.Sequential(nn.Linear(4, 3)), [4, 3], "relu"),
    "one activation module used twice": (
        lambda: nn.Sequential(nn.Linear(4, 3), act := nn.SiLU(), nn.Linear(3, 5), act, nn.Linear(5, 1)),
        [4, 3, 5, 1],
        "silu",
    ),
    "nested, flattened": (
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.GELU()), nn.Linear(3, 2), nn.GELU()),
            nn.Linear(2, 6),
        ),
        [4, 3, 2, 6],
        "gelu",
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.ELU(inplace=True), nn.Linear(3, 2)),
        [4, 3, 2],
        "elu",
    ),
}
REFUSED = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, 1)),
        "module '2' is a Dropout(p=0.1, inplace=False); leave it out",
    ),
    "a layer that is there twice": (
        lambda: nn.Sequential(SHARED, nn.ReLU(), SHARED),
        "module '2' is a Linear",
    ),
    "a block that is there twice": (
        lambda: nn.Sequential(BLOCK, BLOCK, nn.Linear(3, 1)),
        "module '1' is a Sequential",
    ),
    "a network in itself": (lambda: LOOP, "module '1' is a Sequential that is there twice"),
    "a call of its own": (
        lambda: type("Called", (nn.Sequential,), {"__call__": lambda self, x: x})(nn.Linear(3, 3)),
        "it is a Called; expected a torch.nn.Sequential",
    ),
    "tied weights": (tied, "with the parameters of another layer"),
    "no bias": (lambda: nn.Sequential(nn.Linear(3, 1, bias=False)), "module '0' is a Linear(in_features=3"),
    "gelu by tanh": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.GELU(approximate="tanh"), nn.Linear(3, 1)),
        "with approximate='tanh'; expected the default, 'none'",
    ),
    "elu with another alpha": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ELU(2.0), nn.Linear(3, 1)),
        "with alpha=2.0; expected the default, 1",
    ),
    "mixed activations": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)),
        "module '3' is a Tanh(); before it relu",
    ),
    "an activation at the end": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        "module '1' is an activation behind",
    ),
    "an activation at the beginning": (
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(3, 3)),
        "expected a Linear before it",
    ),
    "two activations": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU(), nn.Linear(3, 3)),
        "module '2' is a ReLU(); expected a Linear before it",
    ),
    "no activation": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), "with no activation between"),
    "a softmax head": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=1)),
        "leave it out: --loss cross-entropy",
    ),
    "a log-softmax head": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(1)),
        "leave it out: --loss cross-entropy",
    ),
    "a sigmoid head": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()), "leave it out: --loss bce"),
    "a convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(3, 3)),
        "module '0' is a Conv2d(1, 2",
    ),
    "another activation": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(), nn.Linear(3, 3)),
        "known are Linear, ReLU",
    ),
    "a forward of its own": (
        lambda: nn.Sequential(nn.Linear(3, 3), OwnForward()),
        "module '1' is an OwnForward; a forward",
    ),
    "a forward of its own alone": (OwnForward, "it is an OwnForward; expected a torch.nn.Sequential"),
    "widths that do not fit": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 1)),
        "out_features=1, bias=True), but the Linear before it gives 4 outputs",
    ),
    "a Flatten in the midst": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Flatten()),
        "module '1' is a Flatten",
    ),
    "a Flatten of the batch": (
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(3, 3)),
        "expected its defaults",
    ),
    "frozen parameters": (lambda: nn.Sequential(frozen()), "that is frozen"),
    "double precision": (
        lambda: nn.Sequential(nn.Linear(3, 3).double()),
        "of torch.float64; expected torch.float32",
    ),
    "a hook": (lambda: nn.Sequential(hooked()), "with a hook or another forward"),
    "another forward": (lambda: nn.Sequential(replaced()), "with a hook or another forward"),
    "nothing": (nn.Sequential, "no Linear layer"),
}


@pytest.mark.parametrize("name", READ)
def test_widths_and_activation_are_read(name):
    make, widths, activation = READ[name]
    assert read_network(make()) == (widths, activation)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_trained_is_refused_by_name(name):
    make, said = REFUSED[name]
    with pytest.raises(NotTrained) as refused:
        read_network(make())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


NETWORK = "from torch import nn\nnetwork = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))\n"
BAD_FILES = {
    "no such name": (NETWORK, "has no 'make'"),
    "an exception in the file": ("x = 1\nraise ValueError('no\\nluck')", "line 2: ValueError: no luck"),
    "an exception in the callable": (
        "def make():\n    return 1 / 0",
        "line 2: ZeroDivisionError: division by zero",
    ),
    "no Python": ("def make(:", "line 1: invalid syntax"),
    "an exit": ("import sys\nsys.exit(3)", "line 2: SystemExit: 3"),
    "another type": ("make = 3", "make is of type int; expected a torch.nn.Sequential"),
    "another returned type": ("def make(): pass", "make returned a value of type NoneType"),
    "an argument": ("def make(width): pass", "TypeError: make() missing 1 required positional argument"),
}


def answer_of(file, name="make") -> tuple[dict, str]:
    """What the worker's program says, and its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "headroom_worker", "--device", "-1", f"--read-model={file}:{name}"],
        env={"PYTHONPATH": str(PACKAGE), "PATH": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line), done.stderr


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / "net.py"


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_without_a_network_is_refused_in_one_line(file, name):
    text, said = BAD_FILES[name]
    file.write_text(text)
    with pytest.raises(NotTrained) as refused:
        read_model(str(file), "make")
    assert said in user_model.one_line(str(refused.value))


def test_a_file_that_is_not_there_is_refused(file):
    with pytest.raises(NotTrained, match="cannot be read: No such file"):
        read_model(str(file), "make")


def test_what_the_file_prints_and_leaves_running_does_not_reach_the_answer(file):
    file.with_name("neighbour.py").write_text("from torch import nn\nACTIVATION = nn.ELU\n")
    file.write_text(
        "import atexit, os, sys, threading, time\n"
        "from neighbour import ACTIVATION\n"
        "from torch import nn\n"
        "print('printed'); os.write(1, b'written'); print(repr(sys.stdin.read()))\n"
        "atexit.register(print, 'at the end')\n"
        "if os.fork() == 0: os.setsid(); os.close(2); os.close(1); time.sleep(20); os._exit(0)\n"
        "threading.Thread(target=time.sleep, args=[60]).start()\n"
        "if __name__ == '__main__': raise SystemExit\n"
        "class Make:\n"
        "    def __call__(self): return nn.Sequential(nn.Linear(4, 3), ACTIVATION(), nn.Linear(3, 2))\n"
        "make = Make()\n"
    )
    answer, errors = answer_of(file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert answer == {"widths": [4, 3, 2], "activation": "elu", "sha256": digest}
    assert "printed" in errors and "written" in errors and "''" in errors


def test_a_module_is_read_as_it_is(file):
    file.write_text(NETWORK)
    assert answer_of(file, "network")[0]["widths"] == [4, 3, 2]
