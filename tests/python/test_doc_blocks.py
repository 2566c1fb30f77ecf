"""Blocks of the docs that show what the published files do not hold yet, on made-up results."""

import json
import sys
from pathlib import Path

import made_up_results as made_up
import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plots"))

import doc_blocks  # noqa: E402
import findings  # noqa: E402
from published import PUBLISHED, Published, Stale, claimed, latest  # noqa: E402
from results_file import read_results  # noqa: E402


def published(tmp_path: Path, *documents: dict) -> Published:
    files = []
    for place, document in enumerate(documents):
        files.append(tmp_path / f"{place}.json")
        files[-1].write_text(json.dumps(document))
    results = read_results(files)
    return Published(results, findings.cells_of(results), tmp_path)


def document(precision: str = "fp32", copy: float | None = None, ladder: bool = False) -> dict:
    results = made_up.empty_document()
    entry = made_up.workload((784, 128, 128, 128, 10))
    results["workloads"].append(entry)
    results["records"].append(made_up.record(entry["name"], "pytorch-eager", precision, 1e-3))
    if copy is not None:
        results["calibration"]["copy"] = {"value": copy, "unit": "bytes_per_second", "how": "how"}
        results["calibration"]["launch"] = {"value": 2.5e-6, "unit": "seconds", "how": "launches"}
    if ladder:
        entry["ladders"] = {precision: made_up.ladder()}
    return results


def test_calibration_is_shown_from_lowest_to_highest(tmp_path):
    data = published(tmp_path, document("fp32", 4.3e12), document("fp16", 4.1e12))
    text = doc_blocks.made_block(data, "calibration")
    assert "| `copy` | 4.1 TB/s to 4.3 TB/s | how |" in text
    assert "| `launch` | 2.50 µs | launches |" in text
    assert "no calibration" in doc_blocks.made_block(published(tmp_path, document()), "calibration")


def test_a_summary_has_the_best_of_both_sides_and_the_floor(tmp_path):
    assert "no result of ours" in doc_blocks.made_block(published(tmp_path, document()), "summary")
    results = document()
    (entry,) = results["workloads"]
    entry["floors"] = {"fp32": made_up.floor(5e-6, "exchanges")}
    results["records"] += [
        made_up.record(entry["name"], "pytorch-graph", "fp32", 1e-4),
        made_up.record(entry["name"], "cuda-layered", "fp32", 4e-5),
        made_up.record(entry["name"], "cuda-resident", "fp32", 1e-5, fraction_of_floor=0.5),
    ]
    text = doc_blocks.made_block(published(tmp_path, results), "summary")
    ours = "100 pytorch-graph | the same | 10 cuda-resident | 10× | 10× | 100×"
    assert f"| 128 | fp32 | {ours} | 5 µs (exchanges) | 50 % |" in text
    assert text.count("\n") == 3


def test_a_summary_has_the_best_rival_where_it_is_no_pytorch_row(tmp_path):
    results = document()
    name = results["workloads"][0]["name"]
    results["records"] += [
        made_up.record(name, "cublaslt-graph", "fp32", 8e-5),
        made_up.record(name, "oracle", "fp32", 1e-6),
        made_up.record(name, "cuda-resident", "fp32", 1e-5),
    ]
    text = doc_blocks.made_block(published(tmp_path, results), "summary")
    assert "| 1000 pytorch-eager | 80 cublaslt-graph | 10 cuda-resident | 100× | 8.0× | 100× |" in text


def test_of_a_cell_that_was_measured_again_the_later_file_counts_if_no_rival_is_missing(tmp_path):
    documents = [document(), document(), document()]
    for day, results in enumerate(documents, start=1):
        results["run"]["started_utc"] = f"2026-01-0{day}T00:00:00Z"
    name = documents[0]["workloads"][0]["name"]
    documents[1]["records"].append(
        made_up.record(name, "pytorch-graph", "fp32", 1e-4)
    )  # not in the third file
    for results, backend in zip(
        documents, ("cuda-resident-compiled", "cuda-resident", "cuda-resident"), strict=True
    ):
        results["records"].append(made_up.record(name, backend, "fp32", 1e-5))
    data = published(tmp_path, documents[0])
    files = [tmp_path / f"{place}.json" for place in range(3)]
    for file, results in zip(files, documents, strict=True):
        file.write_text(json.dumps(results))
    rows = latest(read_results(files, with_repeated=True)).rows
    assert sorted({Path(row.file).name for row in rows}) == ["1.json", "2.json"]
    assert latest(data.results) == data.results


def test_a_claim_of_an_end_is_over_all_cells_that_have_its_rows(tmp_path):
    documents = [document(precision) for precision in ("fp32", "fp16", "bf16")]
    for results, seconds in zip(documents, (2e-4, 5e-4, None), strict=True):
        name = results["workloads"][0]["name"]
        precision = results["records"][0]["precision"]
        results["records"].append(made_up.record(name, "cuda-layered", precision, seconds))
    data = published(tmp_path, *documents)
    assert claimed(data, "lowest H=* best / cuda-layered")[0] == pytest.approx(2)
    value, row = claimed(data, "highest * best / cuda-layered")
    assert (value, row.precision) == (pytest.approx(5), "fp32")
    with pytest.raises(Stale, match="no cell"):
        claimed(data, "lowest H=* best / cuda-fused")


def test_an_interval_of_a_share_is_what_both_rows_allow(tmp_path):
    results = document()
    name = results["workloads"][0]["name"]
    results["records"].append(made_up.record(name, "libtorch-eager", "fp32", 5e-4))
    data = published(tmp_path, results)
    least, share, most = (
        claimed(data, f"fp32 H=128 {how} libtorch-eager of pytorch-eager")[0]
        for how in ("at least", "saved by", "at most")
    )
    assert least < share < most
    assert share == pytest.approx(0.5)


def test_a_verification_record_is_a_line_a_kind_of_test(tmp_path, monkeypatch):
    data = published(tmp_path, document())
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    assert "No verification" in doc_blocks.made_block(data, "verification")
    (tmp_path / "results" / "verification").mkdir(parents=True)
    counts = {"passed": 4, "failed": 0, "skipped": 1, "not_finished": ["one", "two"]}
    record = {"device": "GPU", "date": "2026-01-01", "ptx_jit": counts}
    (tmp_path / "results" / "verification" / "gpu.json").write_text(json.dumps(record))
    (line,) = doc_blocks.made_block(data, "verification").splitlines()[2:]
    assert line.startswith("| GPU | 2026-01-01 | tests of the kernels") and line.endswith("| 4 | 0 | 1 | 2 |")


def simulated(name: str, passed: int, failed: int) -> dict:
    fault = {"caught": 400, "missed": 0, "cannot_be_checked": 0, "invisible": 0}
    return {
        "class": name,
        "ranges": [{"seed": 1, "first": 0, "networks": passed + failed}],
        "passed": passed,
        "failed": failed,
        "cannot_be_checked": 0,
        "free_steps": {"passed": passed + failed, "failed": 0},
        "faults": {"NaN": fault},
    }


def test_a_class_that_misses_is_told_from_one_with_too_few_networks(tmp_path, monkeypatch):
    classes = [
        simulated("fp32 relu mse sgd", 800, 0),
        simulated("bf16 relu mse sgd", 799, 1),
        simulated("bf16 autocast relu mse sgd", 796, 4),
    ]
    (tmp_path / "results" / "bounds").mkdir(parents=True)
    file = tmp_path / "results" / "bounds" / "simulation.json"
    file.write_text(json.dumps({"networks": 800, "copies": 16, "classes": classes}))
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    text = doc_blocks.made_block(published(tmp_path, document()), "bounds")
    assert "comes out as bad as bf16 autocast relu mse sgd." in text
    assert "too few networks to tell: bf16 relu mse sgd." in text
    assert "| bf16 autocast | 796 | 4 | 5 | 400 | 0 | 0 |" in text


def test_every_record_is_among_the_outcomes(tmp_path):
    results = document()
    name = results["workloads"][0]["name"]
    results["records"] += [
        made_up.record(name, "cuda-layered", seconds=None),
        made_up.record(name, "cuda-resident", seconds=None, outcome="failed", message="fell"),
    ]
    text = doc_blocks.made_block(published(tmp_path, results), "outcomes")
    assert text.splitlines()[-1] == "| 3 | 1 | 1 | 0 | 1 |"


def test_a_results_file_is_a_line_of_a_table(tmp_path):
    results = document("fp16", copy=4e12)
    results["run"] |= {"source_digest": "fnv1a64:0123456789", "complete": False}
    (line,) = doc_blocks.made_block(published(tmp_path, results), "sources").splitlines()[2:]
    name = results["workloads"][0]["name"]
    assert line == f"| `0.json` | {name} | fp16 | 1 |  | 2026-01-01, not finished | 2.50 µs | 0123456 |"


def test_regimes_are_the_workloads_outside_the_seed_suite(tmp_path):
    seed = document()
    assert "no other workload" in doc_blocks.made_block(published(tmp_path, seed), "regimes")
    entry = made_up.workload((64, 64, 16))
    seed["workloads"].append(entry)
    seed["records"] += [
        made_up.record(entry["name"], "pytorch-eager", "fp16", 3e-4),
        made_up.record(entry["name"], "cuda-fused", "fp16", 1e-4),
    ]
    text = doc_blocks.made_block(published(tmp_path, seed), "regimes")
    assert f"| {entry['name']} | fp16 | 3.0× | 3.0× | 300 | 100 | 0.json |" in text
    assert "mlp-784x128" not in text


def test_a_ladder_says_what_is_noise_negative_or_unknown(tmp_path):
    text = doc_blocks.made_block(published(tmp_path, document(ladder=True)), "ladder H=128")
    assert "| fp32 | 290 µs | 480 µs | 1.00 µs, inside the noise |  | -12.0 µs, NEGATIVE |  |" in text
    assert "no ladder" in doc_blocks.made_block(published(tmp_path, document()), "ladder")


def test_a_witness_is_shown_with_the_gap_a_launch(tmp_path, monkeypatch):
    data = published(tmp_path, document())
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    assert "No witness" in doc_blocks.made_block(data, "witness")
    (tmp_path / "results" / "witness").mkdir(parents=True)
    entry = {
        "workload": "mlp-784x128x128x128x10-b32",
        "precision": "fp32",
        "eager_seconds": 9e-4,
        "graph_backend": "libtorch-graph",
        "graph_seconds": 1.1e-4,
        "busy_seconds": 9.9e-5,
        "launches": 44.0,
        "results_file": "a.json",
    }
    (tmp_path / "results" / "witness" / "gpu.json").write_text(json.dumps([entry]))
    text = doc_blocks.made_block(data, "witness")
    assert "| libtorch-graph 110 µs | 99.0 µs | 44 | +10.0 % | 250 ns | `a.json` |" in text


def streamed(widths: tuple[int, ...], precision: str, seconds: float, copy: float) -> dict:
    results = made_up.empty_document()
    entry = made_up.workload(widths)
    results["workloads"].append(entry)
    results["records"] += [
        made_up.record(entry["name"], "pytorch-eager", precision, 4e-3),
        made_up.record(entry["name"], "cuda-streamed", precision, seconds),
    ]
    results["calibration"]["copy"] = {"value": copy, "unit": "bytes_per_second", "how": "how"}
    return results


def test_bytes_of_a_streamed_step_are_counted_against_the_copy_of_the_same_file(tmp_path):
    data = published(
        tmp_path,
        streamed((1000, 2000, 2000), "bf16", 20e-6, 4e12),  # 8 * 2e6 + 10 * 4e6 = 56 MB
        streamed((1000, 2000, 4000), "fp16", 56e-6, 2e12),  # 8 * 2e6 + 12 * 8e6 = 112 MB
        streamed((1000, 200, 200), "fp32", 1e-6, 4e12),
    )
    text = doc_blocks.made_block(data, "traffic H=1024")
    assert "| bf16 | 20 | 56 | 9.33 | 2.8 | 70 % | 0.json |" in text
    assert "| fp16 | 56 | 112 | 11.2 | 2 | 100 % | 1.json |" in text
    assert "2.json" not in text
    assert "No result" in doc_blocks.made_block(published(tmp_path, document()), "traffic H=1")


def test_what_is_published_apart_comes_from_its_folder(tmp_path):
    data = published(tmp_path, document())
    assert "Nothing" in doc_blocks.made_block(data, "apart shapes")
    folder = tmp_path / PUBLISHED / "shapes"
    folder.mkdir(parents=True)
    large = streamed((784, 16384, 10), "tf32", 2e-3, 4e12)
    (folder / "large.json").write_text(json.dumps(large))
    name = large["workloads"][0]["name"]
    text = doc_blocks.made_block(data, "apart shapes")
    assert f"| {name} | tf32 | 4000 | 2000 | large.json |" in text
    assert "mlp-784x128" not in text
    assert f"| {name} | tf32 | 2000 |" in doc_blocks.made_block(data, "traffic H=1024")
    value, row = claimed(data, f"shapes/ tf32 {name} cuda-streamed")
    assert (value, Path(row.file).name) == (2e-3, "large.json")
    with pytest.raises(Stale):
        claimed(data, f"tf32 {name} cuda-streamed")


def test_what_people_train_comes_from_files_of_its_suite(tmp_path):
    """The fastest of each side, its name, and a ratio; a file of another suite is left out."""
    data = published(tmp_path, streamed((784, 16, 10), "bf16", 8e-6, 4e12))
    assert "No file" in doc_blocks.made_block(data, "users")
    (tmp_path / "0.json").rename(tmp_path / "users-bf16.json")
    results = read_results([tmp_path / "users-bf16.json"])
    data = Published(results, findings.cells_of(results), tmp_path)
    row = (
        "| bf16 | 4000 | 4000 pytorch-eager | 4000 pytorch-eager | 8 cuda-streamed | 500× | users-bf16.json |"
    )
    assert row in doc_blocks.made_block(data, "users")


def two_gpus_published(tmp_path: Path, results: dict) -> Published:
    data = published(tmp_path, document())
    folder = tmp_path / f"{PUBLISHED}-x2"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.json").write_text(json.dumps(results))
    return data


def gpus_lines(tmp_path: Path, results: dict) -> list[str]:
    return doc_blocks.made_block(two_gpus_published(tmp_path, results), "gpus").splitlines()[2:]


def test_two_gpus_are_a_line_with_both_times_the_speed_up_and_the_fastest_rival(tmp_path):
    times = {
        "cuda-layered": {1: 20, 2: 44},
        "cuda-resident": {1: 4, 2: 5},
        "pytorch-graph": {1: 33, 2: 105},
        "pytorch-compile-graph": {1: 30, 2: 58},
    }
    assert "No result of two GPUs" in doc_blocks.made_block(published(tmp_path, document()), "gpus")
    (line,) = gpus_lines(tmp_path, made_up.several_gpus(times))
    ours = "4 cuda-resident | 5 cuda-resident | 1.60×, 80 %"
    rival = "58 pytorch-compile-graph | 12×"
    assert line == f"| mlp-784x128x128x10-b32-g2 | bf16 | {ours} | {rival} | small.json |"


def test_cells_of_two_gpus_that_are_missing_say_so(tmp_path):
    name = "| mlp-784x128x128x10-b32-g2 | bf16"
    (line,) = gpus_lines(tmp_path, made_up.several_gpus({"cuda-resident": {2: 5}}))
    missing = "no ratio | not in the file | no ratio"
    assert line == f"{name} | not in the file | 5 cuda-resident | {missing} | small.json |"
    (line,) = gpus_lines(tmp_path, made_up.several_gpus({"pytorch-graph": {1: 30, 2: 58}}))
    absent = "not in the file | not in the file | no ratio"
    assert line == f"{name} | {absent} | 58 pytorch-graph | no ratio | small.json |"


def test_rows_of_two_gpus_that_failed_or_were_not_verified_count_for_nothing(tmp_path):
    times = {
        "cuda-resident": {1: 4, 2: 5},
        "pytorch-graph": {1: 33, 2: 50},
        "pytorch-ddp": {2: 40},
    }
    results = made_up.several_gpus(times)
    for place, record in enumerate(results["records"]):
        if record["workload"].endswith("-g2") and record["backend"] == "pytorch-ddp":
            results["records"][place] = made_up.failed(record)
        if not record["workload"].endswith("-g2") and record["backend"] == "cuda-resident":
            record["verification"] = {"verdict": "not_run", "checks": []}
    (line,) = gpus_lines(tmp_path, results)
    ours = "no result (unverified) | 5 cuda-resident | no ratio"
    rival = "50 pytorch-graph | pytorch-ddp failed verification"
    assert line == f"| mlp-784x128x128x10-b32-g2 | bf16 | {ours} | {rival} | small.json |"


def test_a_claim_names_a_file_of_two_gpus(tmp_path):
    times = {"cuda-resident": {1: 4, 2: 5}, "pytorch-graph": {1: 33, 2: 50}}
    data = two_gpus_published(tmp_path, made_up.several_gpus(times))
    value, row = claimed(data, "x2/ bf16 mlp-784x128x128x10-b32-g2 ours")
    assert (value, row.file) == (pytest.approx(5e-6), str(tmp_path / f"{PUBLISHED}-x2" / "small.json"))
    assert claimed(data, "x2/ bf16 mlp-784x128x128x10-b32-g2 best / ours")[0] == pytest.approx(10)
    for folder in ("", "x4/ ", "jax/ "):
        with pytest.raises(Stale, match="no record"):
            claimed(data, f"{folder}bf16 mlp-784x128x128x10-b32-g2 ours")
