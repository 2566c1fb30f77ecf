"""The witness of the ladder: its arithmetic, its answers to files it cannot use, and on a GPU a trace."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import made_up_results as made_up
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "torch_impl" / "python" / "witness.py"
sys.path.insert(0, str(PROGRAM.parent))

import witness  # noqa: E402

NAME = "mlp-784x128x10-b32"
EXAMPLE = witness.Witness(
    device="made-up GPU",
    results_file="a.json",
    workload=NAME,
    precision="fp32",
    eager_seconds=1e-3,
    graph_backend="libtorch-graph",
    graph_seconds=1e-4,
    graph_node_seconds=5e-7,
    busy_seconds=9.5e-5,
    launches=50,
)


def document(*backends: str) -> dict:
    results = made_up.empty_document()
    results["workloads"].append(made_up.workload((784, 128, 10)))
    for place, backend in enumerate(backends):
        results["records"].append(made_up.record(NAME, backend, "fp32", 1e-3 / (1 + place)))
    return results


def run(tmp_path: Path, results: object, *more: str) -> subprocess.CompletedProcess:
    file = tmp_path / "a.json"
    file.write_text(results if isinstance(results, str) else json.dumps(results))
    command = [sys.executable, str(PROGRAM), str(file), "--workload", NAME, "--precision", "fp32", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_work_that_overlaps_counts_once():
    assert witness.busy_time([]) == 0
    assert witness.busy_time([(5, 6), (0, 2), (1, 3), (1, 2), (3, 4)]) == 5


def test_ten_per_cent_decide():
    assert EXAMPLE.agrees
    assert EXAMPLE.difference == pytest.approx(0.05)
    assert EXAMPLE.gap_seconds == pytest.approx(1e-7)
    assert "agrees within 10%" in EXAMPLE.text()
    for busy in (8.9e-5, 1.11e-4):
        assert not replace(EXAMPLE, busy_seconds=busy).agrees
        assert "DIFFERS" in replace(EXAMPLE, busy_seconds=busy).text()
    assert not replace(EXAMPLE, busy_seconds=float("nan")).agrees


def test_the_fastest_verified_graph_is_compared():
    results = document("pytorch-eager", "libtorch-graph", "pytorch-graph")
    assert witness.measured(results, NAME, "fp32") == (1e-3, "pytorch-graph", pytest.approx(1e-3 / 3))
    results["records"][2] = made_up.failed(results["records"][2])
    assert witness.measured(results, NAME, "fp32")[1] == "libtorch-graph"


@pytest.mark.parametrize("backends", [(), ("pytorch-eager", "cuda-layered"), ("libtorch-graph",)])
def test_without_the_rows_there_is_nothing_to_compare(tmp_path, backends):
    done = run(tmp_path, document(*backends))
    assert done.returncode == 1
    assert "expected verified records of pytorch-eager" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_bad_input_gets_one_line(tmp_path):
    for results, said in (("{", "expected a results file"), (made_up.empty_document(), "no workload")):
        done = run(tmp_path, results)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_an_outcome_replaces_the_one_before(tmp_path):
    file = tmp_path / "folder" / "witness.json"
    witness.add_to(file, EXAMPLE)
    witness.add_to(file, replace(EXAMPLE, precision="fp16"))
    witness.add_to(file, replace(EXAMPLE, launches=60))
    entries = json.loads(file.read_text())
    assert [(entry["precision"], entry["launches"]) for entry in entries] == [("fp16", 50), ("fp32", 60)]


def test_a_trace_on_this_machine(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    done = run(tmp_path, document("pytorch-eager", "libtorch-graph"), "--output", str(tmp_path / "w.json"))
    if not torch.cuda.is_available():
        assert done.returncode == 2
        assert "nothing to trace" in done.stderr
        pytest.skip("no CUDA device")
    # The made-up times agree with nothing; the trace itself has to hold the step's kernels.
    assert done.returncode in (0, 1), done.stderr
    (entry,) = json.loads((tmp_path / "w.json").read_text())
    assert entry["launches"] >= 8  # two products forward, three backward, loss, update
    assert 1e-6 < entry["busy_seconds"] < 1e-2
