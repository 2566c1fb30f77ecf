"""Damaged results, suite, baseline and IDX files through `run`, `compare`, `history` and `report`.

Whatever is in a file, a program ends with one of its documented exit codes, in a line and not in a traceback,
and prints nothing that a terminal obeys. Both readers of results files, C++ and Python, take the same ones.

HEADROOM_TEST_ALL=1 makes 2,000 files (minutes), else a few dozen; HEADROOM_FUZZ_FILES another number.
The seed is printed; HEADROOM_FUZZ_SEED makes the same files again. What failed is kept.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import mutations
import pytest

pytest.importorskip("jsonschema", reason="jsonschema is not installed")
ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HEADROOM_BUILD", "/nowhere"))
PROGRAM = BUILD / "bin" / "headroom"
FAULT_WORKER = f"fault={BUILD / 'bin' / 'headroom-fault-worker'}"
if not PROGRAM.is_file():
    pytest.skip("HEADROOM_BUILD names no build", allow_module_level=True)
for folder in ("plots", "tests/python"):
    sys.path.insert(0, str(ROOT / folder))

import made_up_results as made_up  # noqa: E402
import results_file  # noqa: E402

ALL = os.environ.get("HEADROOM_TEST_ALL") == "1"
FILES = int(os.environ.get("HEADROOM_FUZZ_FILES", 2000 if ALL else 40))
SEED = int(os.environ.get("HEADROOM_FUZZ_SEED", random.SystemRandom().randrange(10**9)))
CODES = (0, 1, 2, 3, 4)
CRASH = re.compile(r"Traceback|terminate called|Sanitizer|runtime error:|Assertion|core dumped")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SECONDS = 120  # for one program


def share(part: float) -> int:
    return max(3, round(part * FILES))


@pytest.fixture(scope="module", autouse=True)
def seed_is_printed(request):
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nHEADROOM_FUZZ_SEED={SEED} HEADROOM_FUZZ_FILES={FILES}", flush=True)


def check_said(output: str, where: str) -> None:
    assert not CRASH.search(output), f"{where}\n{output[-3000:]}"
    assert not CONTROL.search(output), f"{where}: control characters in {CONTROL.sub('?', output)[-3000:]!r}"


def ended(command: list, where: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"HEADROOM_ROOT": str(ROOT), "HEADROOM_PYTHON": "/bin/false"}
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"{where}: {command}: still there after {SECONDS} s")
    done = subprocess.CompletedProcess(command, process.returncode, output.decode(), errors.decode())
    assert done.returncode in CODES, f"{where}: {command}: {done.returncode}\n{done.stderr[-3000:]}"
    check_said(done.stdout + done.stderr, where)
    if done.returncode == 2:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("headroom")]
        assert len(complaints) == 1, f"{where}\n{done.stderr}"
    return done


class Kept:
    """Folder of one round of files; what a failed test needs to be run again stays."""

    def __init__(self, folder: Path, name: str):
        self.folder = folder
        self.rng = random.Random(f"{SEED} {name}")
        self.name = name

    def rounds(self, count: int):
        for number in range(count):
            folder = self.folder / str(number)
            folder.mkdir()
            yield f"HEADROOM_FUZZ_SEED={SEED} {self.name} {number}: {folder}", folder
            shutil.rmtree(folder)


@pytest.fixture
def kept(tmp_path, request):
    return Kept(tmp_path, request.node.name)


def whole_document() -> dict:
    """Something in every field that a results file may have."""
    document = made_up.empty_document()
    document["run"] |= {"suite": "quick", "git_sha": "0123abc", "git_dirty": False, "source_digest": "fnv"}
    document["run"]["settings"] = {"blocks": "12", "suite": "quick", "losses": "150"}
    document["host"] |= {"kernel": "6.1", "memory_bytes": 2**36}
    document["software"] = {"torch": "2.11.0", "nvcc": None}
    document["calibration"] = {"copy": {"value": 4.2e12, "unit": "bytes_per_second", "how": "copies"}}
    entry = made_up.workload((784, 128, 10))
    entry["floors"] = {"fp32": made_up.floor(1.1e-6)}
    entry["ladders"] = {"fp32": made_up.ladder()}
    entry["choices"] = {"fp32": {"cuda": made_up.choice("cuda-layered", **{"cuda-fused": "trains in fp16"})}}
    trained = {"activation": "tanh", "loss": "mse", "optimizer": made_up.adam(), "about": "a paper"}
    document["workloads"] = [entry, made_up.workload((12, 8, 4), 8, **trained)]
    gpu = {"samples": 3, "sm_clock_megahertz": 1980, "memory_clock_megahertz": 2619.5, "power_watts": 310.5}
    gpu |= {"temperature_celsius": 41, "throttle_reasons": ["power_cap"], "uncorrected_ecc_errors": 0}
    gpu |= {"other_processes": None}
    for backend, seconds in (("pytorch-eager", 1e-3), ("libtorch-eager", 8e-4), ("cuda-layered", 4e-5)):
        record = made_up.record(entry["name"], backend, "fp32", seconds)
        record["blocks"] = [
            {
                "order": 3 * place,
                "steps": 50,
                "device_seconds": 50 * seconds * (1 + 0.01 * place),
                "wall_seconds": 50 * seconds,
                "cpu_seconds": 25 * seconds,
                "gpu": gpu if place < 2 else None,
            }
            for place in range(12)
        ]
        record |= {"fraction_of_floor": 0.25, "joules_per_step": 0.01, "setup_seconds": 1.5}
        record |= {"setup_cache": "warm", "peak_device_bytes": 31_000_000, "slowdown_reasons": ["hardware"]}
        record["energy"] = {"steps": 100, "seconds": 2.0, "joules": 300.0, "idle_watts": 70.5}
        curve = {"seed": 1, "steps": [0, 1, 2, 5, 10], "values": [2.31, 2.3, 2.28, None, 2.0]}
        record["losses"] = [
            {**curve, "last_mean": 2.2, "held_out_accuracy": 0.14, "held_out_r_squared": None}
        ]
        document["records"].append(record)
    document["records"].append(made_up.record(entry["name"], "cuda-fused", "fp32", None))
    document["records"].append(made_up.failed(made_up.record("mlp-12x8x4-b8", "oracle", "bf16")))
    return document


def accepted(file: Path) -> tuple[bool, str]:
    try:
        results_file.read_results([file])
    except results_file.InputError as error:
        check_said(str(error), str(file))
        assert "\n" not in str(error)
        return False, str(error)
    return True, ""


def test_compare_ends_as_documented_and_both_readers_agree(kept):
    whole = whole_document()
    good = kept.folder / "good.json"
    good.write_text(json.dumps(whole))
    assert ended([PROGRAM, "compare", good, good], "undamaged").returncode == 1  # one cell failed
    formats = ("text", "markdown", "json", "google-benchmark", "bencher", "github-action-benchmark")
    for where, folder in kept.rounds(share(0.25)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(whole, kept.rng))
        sides = kept.rng.choice([[bad, bad], [bad, good], [good, bad]])
        done = ended([PROGRAM, "compare", *sides, "--format", kept.rng.choice(formats)], where)
        refused = done.returncode == 2 and done.stderr.startswith(f"headroom: {bad}: ")
        taken, why = accepted(bad)
        assert taken != refused, f"{where}\nPython: {why or 'taken'}\nC++: {done.stderr}"


def other_tools_documents(folder: Path) -> list[dict]:
    """What Google Benchmark and NVBench write, with the folder of samples that the latter needs."""
    context = {"date": "2026-01-01T00:00:00+00:00", "num_cpus": 2, "library_build_type": "release"}
    runs = [
        {"run_name": "b", "run_type": "iteration", "repetition_index": place, "iterations": 10}
        | {"real_time": 2.0 + place / 100, "cpu_time": 2.0, "time_unit": "us"}
        for place in range(12)
    ]
    (folder / "bad.json-bin").mkdir()
    (folder / "bad.json-bin" / "0.bin").write_bytes(struct.pack("<12f", *range(1, 13)))
    data = [{"name": "filename", "type": "string", "value": "bad.json-bin/0.bin"}]
    data.append({"name": "size", "type": "int64", "value": "12"})
    samples = {"tag": "nv/json/bin:nv/cold/sample_times", "hint": "file/sample_times", "data": data}
    states = [{"name": "Device=0", "device": 0, "summaries": [samples], "is_skipped": False}]
    states.append({"name": "Device=1", "summaries": None, "is_skipped": True, "skip_reason": "none"})
    version = {"json": {"major": 1}, "nvbench": {"string": "0.1.0"}}
    return [
        {"context": context, "benchmarks": runs},
        {
            "meta": {"argv": [], "version": version},
            "devices": [{"id": 0, "name": "a GPU"}],
            "benchmarks": [{"name": "b", "axes": None, "states": states}],
        },
    ]


def test_comparing_files_of_other_tools_ends_as_documented(kept):
    for where, folder in kept.rounds(share(0.2)):
        document = kept.rng.choice(other_tools_documents(folder))
        good, bad = folder / "good.json", folder / "bad.json"
        good.write_text(json.dumps(document))
        assert ended([PROGRAM, "compare", good, good], where).returncode in (0, 3)
        bad.write_bytes(mutations.damaged_json(document, kept.rng))
        sides = kept.rng.choice([[bad, bad], [bad, good], [good, bad]])
        ended([PROGRAM, "compare", *sides, "--json"], where)


def test_comparing_within_a_file_ends_as_documented(kept):
    whole = whole_document()
    for where, folder in kept.rounds(share(0.05)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(whole, kept.rng))
        backends = ["--base-backend", "pytorch-eager", "--head-backend", "cuda-layered"]
        ended([PROGRAM, "compare", "--within", bad, *backends], where)


def test_histories_and_rows_end_as_documented(kept):
    whole = whole_document()
    good = kept.folder / "good.json"
    good.write_text(json.dumps(whole))
    for where, folder in kept.rounds(share(0.1)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(whole, kept.rng))
        done = ended(
            [PROGRAM, "history", good, bad, "--format", kept.rng.choice(("text", "json", "csv"))], where
        )
        ended([PROGRAM, "report", bad, "--format", "csv"], where)
        if not accepted(bad)[0] and done.returncode == 0:  # a file of another version is left out
            assert f"{bad}: left out: " in done.stdout + done.stderr or '"left_out": [' in done.stdout, where


def test_baselines_end_as_documented(kept):
    whole = whole_document()
    good = kept.folder / "good.json"
    good.write_text(json.dumps(whole))
    for where, folder in kept.rounds(share(0.1)):
        stored = folder / "baselines"
        if kept.rng.random() < 0.5:  # what is stored is damaged from the start
            bad = folder / "bad.json"
            bad.write_bytes(mutations.damaged_json(whole, kept.rng))
            ended([PROGRAM, "compare", "--save-baseline", "main", "--baselines", stored, bad], where)
        else:
            ended([PROGRAM, "compare", "--save-baseline", "main", "--baselines", stored, good], where)
            victim = kept.rng.choice(sorted(stored.iterdir()))
            victim.write_bytes(mutations.damage_bytes(victim.read_bytes(), kept.rng))
        ended([PROGRAM, "compare", "--baseline", "main", "--baselines", stored, good], where)


def interrupted_run(file: Path) -> dict:
    """A file to go on with: of its two workloads the second is left, and fails as soon as it is set up."""
    workloads = ["--workload", "mlp-12x8x4-b8", "--workload", "mlp-6x4-b8"]
    backends = ["--worker", FAULT_WORKER, "--backend", "fault-throws-in-prepare", "--device", "-1"]
    done = ended([PROGRAM, "run", *workloads, *backends, "--output", file, "--no-figures"], "undamaged")
    assert done.returncode == 1, done.stderr
    document = json.loads(file.read_text())
    document["run"] |= {"complete": False, "finished_utc": None}
    del document["records"][1:], document["workloads"][1:]
    whole = whole_document()["records"][2]
    fields = {name: whole[name] for name in ("blocks", "step_seconds", "losses", "energy", "verification")}
    document["records"][0] |= fields | {"outcome": "ok"}
    document["workloads"][0]["ladders"] = {"fp32": made_up.ladder()}
    return document


def test_resuming_ends_as_documented_and_leaves_a_file_that_is_read(kept):
    document = interrupted_run(kept.folder / "first.json")
    whole = kept.folder / "whole.json"
    whole.write_text(json.dumps(document))
    worker = ["--worker", FAULT_WORKER, "--no-figures", "--device", "-1"]
    done = ended([PROGRAM, "run", "--resume", whole, *worker], "undamaged")
    assert done.returncode == 1 and len(results_file.read_results([whole]).rows) == 2, done.stderr
    for where, folder in kept.rounds(share(0.2)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(document, kept.rng))
        given = bad.read_bytes()
        format = kept.rng.choice([[], ["--json"]])
        done = ended([PROGRAM, "run", "--resume", bad, *worker, *format], where)
        if done.returncode == 2:
            assert bad.read_bytes() == given, where
        else:
            assert accepted(bad) == (True, ""), where


def suites() -> list[dict]:
    files = sorted((ROOT / "bench" / "suites").glob("*.json"))
    return [json.loads(file.read_text()) for file in files]


def test_suites_end_as_documented(kept):
    known = suites()
    for where, folder in kept.rounds(share(0.18)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(kept.rng.choice(known), kept.rng))
        ended([PROGRAM, "run", "--suite", bad, "--benchmark_list_tests"], where)


def test_idx_files_end_as_documented(kept):
    training = ["--workload", "mlp-6x4-b8", "--worker", FAULT_WORKER, "--backend", "fault-throws-in-prepare"]
    training += ["--device", "-1"]  # other tests hold the lock of one
    whole = mutations.idx_files(kept.rng)
    (kept.folder / "whole").mkdir()
    for name, data in whole.items():
        (kept.folder / "whole" / name).write_bytes(data)
    output = ["--no-figures", "--output", kept.folder / "whole.json"]
    done = ended([PROGRAM, "run", *training, "--data", kept.folder / "whole", *output], "undamaged")
    assert done.returncode == 1 and "idx" in (kept.folder / "whole.json").read_text(), done.stderr
    for where, folder in kept.rounds(share(0.12)):
        data = folder / "data"
        data.mkdir()
        for name, content in mutations.damaged_idx_folder(kept.rng).items():
            (data / name).write_bytes(content)
        output = ["--no-figures", "--output", folder / "out.json"]
        ended([PROGRAM, "run", *training, "--data", data, *output], where)


class TooLong(Exception):
    pass


def reported(file: Path, folder: Path, capsys, monkeypatch, where: str) -> int:
    """As `report.py FILE -o FOLDER`, in this process: a process takes a second to begin."""
    import report

    def alarm(*_):
        raise TooLong(where)

    monkeypatch.setattr(sys, "argv", ["report.py", str(file), "-o", str(folder)])
    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        code = report.main()
    except SystemExit as ended:
        code = ended.code
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = capsys.readouterr()
    check_said(said.out + said.err, where)
    return code


def check_report(folder: Path, where: str) -> None:
    for file in folder.rglob("*"):
        if file.suffix in (".html", ".md", ".svg"):
            text = file.read_text()
            assert not CONTROL.search(text), f"{where}: {file}"
            if file.suffix == ".svg":
                xml.etree.ElementTree.fromstring(text)


@pytest.mark.filterwarnings("ignore")  # of Matplotlib: a font that lacks a letter
def test_reports_end_as_documented_and_are_well_formed(kept, capsys, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("jinja2", reason="Jinja2 is not installed")
    whole = whole_document()
    drawn = 0
    for where, folder in kept.rounds(share(0.2)):
        bad = folder / "bad.json"
        bad.write_bytes(mutations.damaged_json(whole, kept.rng))
        taken, _ = accepted(bad)
        if taken and not ALL and drawn:
            continue  # a report takes a second
        code = reported(bad, folder / "report", capsys, monkeypatch, where)
        assert code in (0, 2), where
        if code == 0:
            drawn += 1
            check_report(folder / "report", where)
        if drawn % 20 == 1 and ALL:  # and as it is started
            command = [sys.executable, ROOT / "plots" / "report.py", bad, "-o", folder / "again"]
            assert ended(command, where).returncode == code


def test_the_same_seed_makes_the_same_files():
    document = whole_document()
    before = copy.deepcopy(document)
    first, second = (
        [mutations.damaged_json(document, rng) for _ in range(20)]
        for rng in (random.Random(1), random.Random(1))
    )
    assert first == second and document == before
    assert mutations.damaged_idx_folder(random.Random(1)) == mutations.damaged_idx_folder(random.Random(1))
