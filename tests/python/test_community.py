"""results/community: what is there may be there, and a file with any one fault may not. Made-up results."""

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import made_up_results as made_up
import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
pytest.importorskip("matplotlib", reason="matplotlib is not installed")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plots"))

import community  # noqa: E402
import doc_blocks  # noqa: E402
from published import Published  # noqa: E402
from results_file import Results  # noqa: E402

SUITE = json.loads((ROOT / "bench/suites/community.json").read_text())
DEVICE, NAME = "Made-up GPU 9000 (test)", "made-up-gpu-9000-test"


def document() -> dict:
    """A run of the suite without a fault: each row is verified, one failed, one was skipped."""
    made = made_up.empty_document(DEVICE)
    made["run"] |= {"suite": "community", "git_sha": "0123abc" * 2, "git_dirty": False}
    made["software"] = {"headroom": "0.2.0", "torch": "2.11.0"}
    for entry in SUITE["workloads"]:
        trained = {name: entry[name] for name in ("activation", "loss") if name in entry}
        if "optimizer" in entry:
            trained["optimizer"] = made_up.adam(**{"learning_rate": entry["optimizer"]["learning_rate"]})
        workload = made_up.workload(tuple(entry["widths"]), entry["batch_size"], **trained)
        made["workloads"].append(workload)
        for precision in entry.get("precisions", SUITE["precisions"]):
            workload["floors"][precision] = made_up.floor(2e-6)
            for backend, seconds in (
                ("pytorch-eager", 1e-3),
                ("pytorch-graph", 1e-4),
                ("cuda-layered", 4e-5),
            ):
                record = made_up.record(workload["name"], backend, precision, seconds)
                made["records"].append(record | {"fraction_of_floor": 2e-6 / seconds})
    first = made["workloads"][0]["name"]
    made["records"].append(made_up.record(first, "cuda-resident", "fp32", None))
    failed = made_up.failed(made_up.record(first, "cuda-fused", "fp32", None))
    made["records"].append(failed)
    return made


@pytest.fixture
def root(tmp_path):
    """A checkout with this suite and no results."""
    (tmp_path / "bench/suites").mkdir(parents=True)
    shutil.copy(ROOT / "bench/suites/community.json", tmp_path / "bench/suites")
    (tmp_path / community.FOLDER).mkdir(parents=True)
    return tmp_path


def put(root: Path, made: dict, name: str = NAME) -> Path:
    file = root / community.FOLDER / f"{name}.json"
    file.write_text(json.dumps(made, separators=(",", ":")))
    return file


def test_what_is_in_the_folder_may_be_there():
    assert community.folder_problems() == []


def test_a_run_of_the_suite_may_be_added(root):
    assert community.problems(put(root, document()), root) == []
    assert community.problems(put(root, document(), f"{NAME}-2"), root) == []
    assert community.folder_problems(root) == []


def unverified(made):
    made["records"][0]["verification"] = {"verdict": "not_run", "checks": []}


def faster_than_its_floor(made):
    made["records"][2] |= {"step_seconds": dict.fromkeys(("median", "low", "high"), 1e-6)}


def network_missing(made):
    gone = made["workloads"].pop()["name"]
    made["records"] = [one for one in made["records"] if one["workload"] != gone]


def precision_missing(made):
    name = made["workloads"][0]["name"]
    made["records"] = [
        one for one in made["records"] if (one["workload"], one["precision"]) != (name, "tf32")
    ]


def precision_skipped(made):
    name = made["workloads"][0]["name"]
    for one in made["records"]:
        if (one["workload"], one["precision"]) == (name, "tf32"):
            one.update(made_up.record(name, one["backend"], "tf32", None))


def failed_without_a_reason(made):
    made["records"][-1]["message"] = ""


FAULTS = {
    "of version 1": (lambda made: made.update(schema_version=1), "schema_version: expected 2"),
    "unknown field": (lambda made: made.update(extra=1), "extra"),
    "the machine's name": (lambda made: made["host"].update(hostname="node7"), "hostname"),
    "no GPU": (lambda made: made.update(device=None), "device: null, expected a GPU"),
    "another suite": (lambda made: made["run"].update(suite="quick"), "run.suite: quick"),
    "not finished": (lambda made: made["run"].update(complete=False), "run.complete: false"),
    "no version": (lambda made: made["software"].pop("headroom"), "software.headroom: None"),
    "no commit": (lambda made: made["run"].update(git_sha=None), "expected a commit without changes"),
    "a changed checkout": (lambda made: made["run"].update(git_dirty=True), "a commit without changes"),
    "shorter blocks": (lambda made: made["run"]["settings"].update(blocks="99"), "leave --blocks out"),
    "fewer rows": (lambda made: made["run"]["settings"].update(backend="cuda"), "leave --backend out"),
    "a network is missing": (network_missing, "17-64-64-6 at batch 64 is missing"),
    "a precision is missing": (precision_missing, "in tf32 has no row that ran"),
    "a precision was skipped": (precision_skipped, "in tf32 has no row that ran"),
    "a time that was not verified": (unverified, "pytorch-eager/fp32: has a time and was not verified"),
    "a failure without a reason": (failed_without_a_reason, "message"),
    "faster than its floor": (faster_than_its_floor, "cuda-layered/fp32: is faster than its floor"),
    "more than its floor's speed": (
        lambda made: made["records"][1].update(fraction_of_floor=1.2),
        "pytorch-graph/fp32: is faster than its floor",
    ),
    "a path in the command": (
        lambda made: made["run"]["argv"].append("--cache-dir=/home/me/kept/x"),
        "run.argv[1]: '--cache-dir=/home/me/kept/x' has a path",
    ),
    "a path in a message": (
        lambda made: made["records"][0].update(message="no /opt/cuda/bin/nvcc there"),
        "records[0].message",
    ),
    "a path of Windows": (
        lambda made: made["software"].update(tool="C:\\tools\\x"),
        "software.tool",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_itself_and_said(root, fault):
    change, said = FAULTS[fault]
    made = document()
    change(made)
    found = community.problems(put(root, made), root)
    assert len(found) == 1, found
    assert said in found[0]
    assert community.folder_problems(root) == [f"{NAME}.json: {found[0]}"]


def test_a_file_that_is_too_large_is_refused(root, monkeypatch):
    file = put(root, document())
    monkeypatch.setattr(community, "MOST_BYTES", file.stat().st_size - 1)
    assert "expected at most" in community.problems(file, root)[0]


def test_half_a_file_is_refused(root):
    file = put(root, document())
    file.write_text(file.read_text()[:1000])
    assert "no JSON" in community.problems(file, root)[0]


def test_a_file_has_its_gpus_name(root):
    (found,) = community.problems(put(root, document(), "fast-gpu"), root)
    assert f"expected {NAME}.json" in found


def test_files_are_of_one_version(root):
    newer = document()
    newer["software"]["headroom"] = "0.3.0"
    put(root, document())
    put(root, newer, f"{NAME}-2")
    (found,) = community.folder_problems(root)
    assert f"0.2.0: {NAME}.json; 0.3.0: {NAME}-2.json" in found


def test_nothing_else_is_kept_there(root):
    (root / community.FOLDER / "README.md").write_text("")
    (root / community.FOLDER / "photo.png").write_bytes(b"")
    assert community.folder_problems(root) == ["photo.png: expected results files and README.md only"]


def table(root: Path) -> str:
    return doc_blocks.made_block(Published(Results(DEVICE), [], root), "community")


def test_the_table_says_so_where_there_are_no_files(root):
    assert table(root) == "Nobody has added results of a GPU yet.\n"


def test_the_table_has_a_row_a_gpu(root):
    put(root, document())
    other = copy.deepcopy(document())
    other["device"]["name"] = "Another GPU"
    put(root, other, "another-gpu")
    titles, _, first, second = table(root).splitlines()
    assert "mlp-784x128x128x128x10-b32 bf16" in titles
    ran = sum(len(entry.get("precisions", SUITE["precisions"])) for entry in SUITE["workloads"])
    assert first.startswith("| [Another GPU](another-gpu.json) |  | 0.2.0 (0123abc) | 2026-01-01 |")
    failed = "cuda-fused fp32 of mlp-784x128x128x128x10-b32"
    assert f"| {3 * ran} | {failed} | 1 |" in second
    assert second.count("2.5× (cuda-layered)") == ran


def test_the_suite_is_small_and_compiles_one_size():
    entries = SUITE["workloads"]
    compiled = [
        one for one in entries if "-pytorch-compile-graph" not in one.get("backends", SUITE["backends"])
    ]
    assert len(compiled) == 1
    cells = [
        (place, precision)
        for place, one in enumerate(entries)
        for precision in one.get("precisions", SUITE["precisions"])
    ]
    assert len(cells) <= 10
    assert {precision for _, precision in cells} == {"fp32", "tf32", "fp16", "bf16"}


def test_the_front_doors_check_says_where_a_file_goes(root, monkeypatch, capsys):
    import report

    for change, code in ((lambda made: None, 0), (lambda made: made["run"].update(complete=False), 2)):
        made = document()
        change(made)
        file = put(root, made)
        monkeypatch.setattr(sys, "argv", ["report.py", "--community", str(file)])
        assert report.main() == code
        said = capsys.readouterr()
        if code == 0:
            assert f"can be added as results/community/{NAME}.json" in said.out
        else:
            assert "run.complete: false, expected true" in said.err and said.out == ""


def test_the_front_door_shows_the_option():
    done = subprocess.run([ROOT / "headroom", "report", "--help"], capture_output=True, text=True)
    assert "--community FILE" in done.stdout
