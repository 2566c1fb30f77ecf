"""`headroom compare` over files of Google Benchmark and NVBench.

Google Benchmark's are made by its own release, through headroom-google-benchmark-sample. NVBench's are
written here as its source does (nvbench/json_printer.cu, version 1.0.0 of the format): it needs a GPU and is
on no package index.
"""

import copy
import json
import os
import random
import re
import struct
import subprocess
from pathlib import Path

import pytest
from compared import BUILD, ROOT, assert_refused, compare, record, results, write

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
VALIDATOR = jsonschema.Draft202012Validator(
    json.loads((ROOT / "results" / "compare.schema.json").read_text())
)
SAMPLE = Path(BUILD) / "bin" / "headroom-google-benchmark-sample"
MICRO = "told/two_microseconds/iterations:1/manual_time"
NANO = "told/thirty_nanoseconds/iterations:1/manual_time"
FAILS = "fails/iterations:1/manual_time"


def google(file: Path, scale=1.0, seed=1, repetitions=20, *flags: str, **environment) -> Path:
    """A file of the tool's own."""
    done = subprocess.run(
        [SAMPLE, f"--benchmark_out={file}", f"--benchmark_repetitions={repetitions}", *flags],
        env=os.environ | {"HEADROOM_SCALE": str(scale), "HEADROOM_SEED": str(seed)} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture
def base(tmp_path):
    return google(tmp_path / "base.json")


def cells_of(done) -> dict:
    comparison = json.loads(done.stdout)
    VALIDATOR.validate(comparison)
    return {cell["benchmark"]: cell for cell in comparison["cells"]}


@pytest.mark.parametrize(
    ("scale", "verdict", "code"),
    [(1.0, "equivalent", 0), (1.08, "regression", 1), (0.9, "improvement", 0)],
)
def test_files_of_google_benchmark_are_judged(base, tmp_path, scale, verdict, code):
    done = compare(base, google(tmp_path / "head.json", scale, 2), "--json")
    assert done.returncode == code, done.stderr
    cells = cells_of(done)
    for name, seconds in ((MICRO, 2e-6), (NANO, 30e-9)):
        assert cells[name]["verdict"] == verdict
        assert cells[name]["finding"]["ratio"] == pytest.approx(scale, rel=0.003)
        assert cells[name]["finding"]["base_step_seconds"] == pytest.approx(seconds, rel=0.01)
        assert len(cells[name]["pairs"]) == 20
    assert cells[FAILS]["verdict"] == "equivalent"


def test_the_text_says_what_was_read_and_that_the_tolerance_is_widened(base, tmp_path):
    done = compare(base, google(tmp_path / "head.json", 1.03, 2))
    assert done.returncode == 0
    assert "two Google Benchmark files" in done.stdout
    assert "widened by 2 % for the drift between runs" in done.stdout
    assert re.search(rf"{re.escape(MICRO)} +(1.99|2.0\d) us +2.0\d us", done.stdout)
    assert re.search(rf"{re.escape(NANO)} +(29.9|30|30.\d) ns +(30|31).?\d? ns", done.stdout)


@pytest.mark.parametrize("format", ["markdown", "google-benchmark", "bencher", "github-action-benchmark"])
def test_every_format_writes_such_a_comparison(base, tmp_path, format):
    done = compare(base, google(tmp_path / "head.json", 1.2, 2), "--format", format)
    assert done.returncode == 1, done.stderr
    assert MICRO in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3,), "samples: base 20; head 3; expected at least 12"),
        ((1,), "head 1;"),
        ((20, "--benchmark_report_aggregates_only=true"), "only aggregates"),
    ],
)
def test_too_few_repetitions_cannot_tell(base, tmp_path, arguments, said):
    head = google(tmp_path / "head.json", 1.5, 2, *arguments)
    done = compare(base, head, "--json")
    assert done.returncode == 3, done.stderr
    cells = cells_of(done)
    assert {cell["verdict"] for cell in cells.values()} == {"cannot tell"}
    assert said in cells[MICRO]["message"]
    text = compare(base, head)
    assert text.returncode == 3
    assert "Inconclusive: 3 cannot tell" in text.stdout


def test_failed_missing_and_new_benchmarks(base, tmp_path):
    failed = google(tmp_path / "failed.json", HEADROOM_FAILS="1")
    done = compare(base, failed, "--json")
    assert done.returncode == 1
    assert cells_of(done)[FAILS]["verdict"] == "failed"
    assert "no such device" in cells_of(done)[FAILS]["message"]
    back = compare(failed, base, "--json")
    assert back.returncode == 3
    assert cells_of(back)[FAILS]["verdict"] == "base failed"
    fewer = google(tmp_path / "fewer.json", 1, 2, 20, "--benchmark_filter=told")
    assert cells_of(compare(base, fewer, "--json"))[FAILS]["verdict"] == "missing"
    more = compare(fewer, base, "--json")
    assert more.returncode == 0
    assert cells_of(more)[FAILS]["verdict"] == "new"


def changed(file: Path, change, to: Path) -> Path:
    text = re.sub(r"-?\bNaN\b", "null", file.read_text())
    document = json.loads(text)
    change(document)
    return write(to, document)


def test_the_release_that_made_the_file_wrote_what_is_no_json(base):
    """Else the test above would not show that such a file is read."""
    assert re.search(r": -?NaN\b", base.read_text())


def test_files_of_another_machine_or_build_are_not_comparable(base, tmp_path):
    def other_cpus(document):
        document["context"]["num_cpus"] += 1

    def debug(document):
        document["context"]["library_build_type"] = "another"

    for change, field in ((other_cpus, "num_cpus"), (debug, "library_build_type")):
        done = compare(base, changed(base, change, tmp_path / "other.json"))
        assert_refused(done, "not comparable", field, code=4)


def test_the_host_may_have_another_name(base, tmp_path):
    def renamed(document):
        document["context"]["host_name"] = "runner-17"

    assert compare(base, changed(base, renamed, tmp_path / "other.json")).returncode == 0


def repetition(document) -> dict:
    return document["benchmarks"][0]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: repetition(d).update(time_unit="h"), "benchmarks[0].time_unit: expected ns, us, ms or s"),
        (lambda d: repetition(d).update(real_time="2"), "benchmarks[0].real_time: expected a number"),
        (lambda d: repetition(d).update(real_time=0), "benchmarks[0].real_time: expected a time over 0"),
        (lambda d: repetition(d).update(real_time=-1), "benchmarks[0].real_time: expected a finite number"),
        (lambda d: repetition(d).update(iterations=0), "benchmarks[0].iterations: expected a whole number"),
        (lambda d: repetition(d).pop("run_name"), "benchmarks[0].run_name: missing"),
        (lambda d: repetition(d).pop("run_type"), "benchmarks[0].run_type: missing"),
        (lambda d: d["benchmarks"].append(repetition(d)), "has this repetition twice"),
        (lambda d: d["context"].pop("num_cpus"), "context.num_cpus: missing"),
        (lambda d: d["context"].update(json_schema_version=2), "json_schema_version: expected 1"),
        (lambda d: d.update(benchmarks={}), "benchmarks: expected a list"),
    ],
)
def test_a_damaged_file_of_google_benchmark_is_one_line(base, tmp_path, damage, said):
    bad = changed(base, damage, tmp_path / "bad.json")
    assert_refused(compare(base, bad), str(bad), said)


def test_half_a_file_is_one_line(base, tmp_path):
    bad = write(tmp_path / "bad.json", base.read_text()[: base.stat().st_size // 2])
    assert_refused(compare(base, bad), str(bad), "no JSON")


def nvbench_file(file: Path, samples: dict[str, list[float]], binary=True, skipped=(), name="copy") -> Path:
    """As the tool writes it: samples of each state, by the state's name."""
    states = []
    for number, (state, seconds) in enumerate(samples.items()):
        mean = sum(seconds) / len(seconds)
        summaries = [
            {
                "tag": "nv/cold/time/gpu/mean",
                "name": "GPU Time",
                "description": "Mean isolated kernel execution time (measured with CUDA events)",
                "hint": "duration",
                "data": [{"name": "value", "type": "float64", "value": str(mean)}],
            }
        ]
        if binary:
            folder = file.with_name(file.name + "-bin")
            folder.mkdir(exist_ok=True)
            (folder / f"{number}.bin").write_bytes(struct.pack(f"<{len(seconds)}f", *seconds))
            summaries.append(
                {
                    "tag": "nv/json/bin:nv/cold/sample_times",
                    "name": "Samples Times File",
                    "description": "Binary file containing sample times as little-endian float32.",
                    "hint": "file/sample_times",
                    "hide": "Not needed in table.",
                    "data": [
                        {"name": "filename", "type": "string", "value": f"{folder}/{number}.bin"},
                        {"name": "size", "type": "int64", "value": str(len(seconds))},
                    ],
                }
            )
        states.append(
            {
                "name": state,
                "min_samples": 10,
                "device": 0,
                "type_config_index": 0,
                "axis_values": [{"name": "BlockSize", "type": "int64", "value": "256"}],
                "summaries": summaries,
                "is_skipped": False,
            }
        )
    for state in skipped:
        left_out = {"name": state, "device": 0, "summaries": None, "is_skipped": True}
        states.append(left_out | {"skip_reason": "too large"})
    numbers = {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}
    version = {"json": numbers, "nvbench": {**numbers, "major": 0, "minor": 1, "string": "0.1.0"}}
    device = {"id": 0, "name": "NVIDIA H200", "sm_version": 900}
    benchmark = {"name": name, "index": 0, "devices": [0], "axes": None, "states": states}
    document = {"meta": {"argv": ["bench"], "version": version}, "devices": [device]}
    return write(file, document | {"benchmarks": [benchmark]})


def seconds(scale=1.0, seed=0, count=400, step=15e-6) -> list[float]:
    made = random.Random(seed)
    return [step * scale * (1 + abs(made.gauss(0, 0.02))) for _ in range(count)]


STATE = "Device=0 BlockSize=2^8"
CELL = f"copy/{STATE}"


@pytest.mark.parametrize(
    ("scale", "verdict", "code"),
    [(1.0, "equivalent", 0), (1.08, "regression", 1), (0.9, "improvement", 0)],
)
def test_files_of_nvbench_are_judged_by_their_samples(tmp_path, scale, verdict, code):
    base = nvbench_file(tmp_path / "base.json", {STATE: seconds()})
    head = nvbench_file(tmp_path / "head.json", {STATE: seconds(scale, 1, 500)}, skipped=["Device=0 N=9"])
    done = compare(base, head, "--json")
    assert done.returncode == code, done.stderr
    cells = cells_of(done)
    assert cells[CELL]["verdict"] == verdict
    assert cells[CELL]["finding"]["ratio"] == pytest.approx(scale, rel=0.01)
    assert len(cells[CELL]["pairs"]) == 400
    assert cells["copy/Device=0 N=9"]["verdict"] == "skipped"
    assert "too large" in cells["copy/Device=0 N=9"]["message"]
    assert "two NVBench files" in compare(base, head).stdout


def test_of_many_samples_evenly_many_are_taken(tmp_path):
    base = nvbench_file(tmp_path / "base.json", {STATE: seconds(count=50_000)})
    done = compare(base, base, "--json")
    assert done.returncode == 0
    assert len(cells_of(done)[CELL]["pairs"]) == 2000


def test_summaries_alone_cannot_tell(tmp_path):
    base = nvbench_file(tmp_path / "base.json", {STATE: seconds()}, binary=False)
    head = nvbench_file(tmp_path / "head.json", {STATE: seconds(2)}, binary=False)
    done = compare(base, head, "--json")
    assert done.returncode == 3
    assert cells_of(done)[CELL]["verdict"] == "cannot tell"
    assert "--jsonbin" in cells_of(done)[CELL]["message"]


def test_samples_are_found_where_the_file_was_moved_with_its_folder(tmp_path):
    (tmp_path / "made").mkdir()
    nvbench_file(tmp_path / "made" / "run.json", {STATE: seconds()})
    moved = (tmp_path / "made").rename(tmp_path / "moved") / "run.json"
    assert compare(moved, moved).returncode == 0
    (tmp_path / "moved" / "run.json-bin" / "0.bin").unlink()
    assert_refused(compare(moved, moved), "run.json-bin/0.bin", "keep that folder with it")


def of_state(document) -> dict:
    return document["benchmarks"][0]["states"][0]


def of_samples(document) -> list:
    return of_state(document)["summaries"][1]["data"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: of_samples(d)[1].update(value="7"), "expected 7 values of 4 bytes in 0.bin, found 1600"),
        (lambda d: of_samples(d)[1].update(value="-1"), "expected a number of samples"),
        (lambda d: of_samples(d)[0].update(value="/etc/passwd"), "expected the name of a file such as"),
        (lambda d: of_samples(d)[0].update(value="x/../../0.bin"), "expected the name of a file such as"),
        (lambda d: of_state(d).pop("name"), "benchmarks[0].states[0].name: missing"),
        (lambda d: of_state(d).update(is_skipped="no"), "is_skipped: expected true or false"),
        (lambda d: d["meta"]["version"]["json"].update(major=2), "major: expected 1, the version"),
        (lambda d: d["benchmarks"][0]["states"].append(of_state(d)), "is there twice"),
    ],
)
def test_a_damaged_file_of_nvbench_is_one_line(tmp_path, damage, said):
    file = nvbench_file(tmp_path / "run.json", {STATE: seconds()})
    document = json.loads(file.read_text())
    damage(document)
    assert_refused(compare(write(file, document), file), str(file), said)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1e-6])
def test_a_sample_that_is_no_time_is_one_line(tmp_path, value):
    file = nvbench_file(tmp_path / "run.json", {STATE: [*seconds(count=20), value]})
    assert_refused(compare(file, file), "sample 20 is", "expected a time over 0")


def test_files_of_another_gpu_are_not_comparable(tmp_path):
    base = nvbench_file(tmp_path / "base.json", {STATE: seconds()})
    other = json.loads(base.read_text())
    other["devices"][0]["name"] = "NVIDIA H100"
    done = compare(base, write(tmp_path / "other.json", other))
    assert_refused(done, "device 0 is 'NVIDIA H200' and 'NVIDIA H100'", code=4)


def test_files_of_two_kinds_are_refused(base, tmp_path):
    nvbench = nvbench_file(tmp_path / "nvbench.json", {STATE: seconds()})
    ours = write(tmp_path / "ours.json", results([record(seconds(count=12))]))
    for one, other, first, second in (
        (base, nvbench, "a file of Google Benchmark", "a file of NVBench"),
        (nvbench, ours, "a file of NVBench", "a results file"),
        (ours, base, "a results file", "a file of Google Benchmark"),
    ):
        assert_refused(compare(one, other), first, second, "expected two files of one kind")


def test_baselines_and_backends_are_of_results_files(base, tmp_path):
    for arguments in (
        ("--within", base, "--base-backend", "a", "--head-backend", "b"),
        ("--baseline", "main", "--baselines", tmp_path, base),
    ):
        said = f"{base}: expected a results file, found a file of Google Benchmark"
        assert_refused(compare(*arguments), said)


def test_files_without_a_benchmark_in_common_are_refused(tmp_path):
    base = nvbench_file(tmp_path / "base.json", {STATE: seconds()})
    head = nvbench_file(tmp_path / "head.json", {STATE: seconds()}, name="other")
    assert_refused(compare(base, head), "no benchmark in common")


def test_a_file_that_headroom_wrote_for_google_benchmark_is_one_of_its(tmp_path):
    """`compare --format google-benchmark` is read back: base and head are benchmarks of one file there."""
    ours = [write(tmp_path / f"{name}.json", results([record(seconds(count=12))])) for name in "ab"]
    written = write(tmp_path / "gb.json", compare(*ours, "--format", "google-benchmark").stdout)
    document = json.loads(written.read_text())
    document["context"]["num_cpus"] = 2  # which the tool itself always says
    again = write(tmp_path / "again.json", copy.deepcopy(document))
    assert compare(again, again).returncode == 0
