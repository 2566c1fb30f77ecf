"""What is written arrives whole or is missed: comparisons, baselines, standard output."""

import json
import os
import resource
import signal
import subprocess
import threading
import uuid
from pathlib import Path

import pytest
from compared import (
    BUILD,
    PROGRAM,
    ROOT,
    SMALL,
    assert_refused,
    build_with,
    compare,
    of_builds,
    record,
    results,
    start,
    write,
)

STEPS = [40e-6 * (1 + i / 1e4) for i in range(12)]
FAULT_WORKER = f"fault={Path(BUILD) / 'bin' / 'headroom-fault-worker'}"
ENVIRONMENT = os.environ | {
    "HEADROOM_ROOT": str(ROOT),
    "HEADROOM_PYTHON": "/bin/false",
}  # `list` asks no PyTorch
EARLIER = '{"earlier": "comparison"}\n'
FORMATS = ["text", "markdown", "json", "google-benchmark", "bencher", "github-action-benchmark"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path):
    slower = [1.2 * seconds for seconds in STEPS]
    return (
        write(tmp_path / "base.json", results([record(STEPS), record(slower, backend="cuda-fused")])),
        write(tmp_path / "head.json", results([record(STEPS), record(slower, backend="cuda-fused")])),
    )


def headroom(*arguments, stdout=subprocess.PIPE, **options):
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
        **options,
    )


def run_small(output, *arguments, **options):
    return headroom(
        *("run", "--workload", SMALL, "--worker", FAULT_WORKER, "--backend", "oracle-honest"),
        *("--precision", "fp32", "--output", output, "--no-figures", *arguments),
        **options,
    )


def listing(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def files_of_at_most(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


# ---- --output of compare


@pytest.mark.parametrize(
    "spelling", ["base.json", "./x/../base.json", "symbolic.json", "hard.json", "head.json"]
)
def test_an_output_that_is_an_input_is_refused(files, spelling):
    Path("x").mkdir()
    Path("symbolic.json").symlink_to("base.json")
    os.link("base.json", "hard.json")
    before = [path.read_text() for path in files]
    assert_refused(compare(*files, "--output", spelling), f"--output {spelling}: is what is read as")
    assert [path.read_text() for path in files] == before


def test_an_output_that_is_read_in_another_way_is_refused(files):
    base, head = files
    within = ["--within", base, "--base-backend", "cuda-layered", "--head-backend", "cuda-fused"]
    assert_refused(compare(*within, "--output", base), "is what is read as")
    stored = compare(base, "--save-baseline", "main", "--baselines", "stored")
    assert stored.returncode == 0, stored.stderr
    before = {name: Path("stored", name).read_text() for name in listing("stored")}
    assert len(before) == 2
    for name in before:
        done = compare(head, "--baseline", "main", "--baselines", "stored", "--output", f"stored/{name}")
        assert_refused(done, f"--output stored/{name}: is what is read as")
    suite = write(Path("suite.json"), (ROOT / "bench" / "suites" / "ci.json").read_text())
    measured = ["--self-check", "--head", build_with(Path("build")), "--device", "-1"]
    assert_refused(
        compare(*measured, "--suite", suite, "--output", "suite.json"), "is what is read as suite.json"
    )
    assert {name: Path("stored", name).read_text() for name in listing("stored")} == before


def test_what_ends_without_a_comparison_leaves_the_earlier_one(files):
    base, head = files
    other = json.loads(head.read_text())
    other["device"]["name"] = "another GPU"
    write(Path("other.json"), other)
    write(Path("broken.json"), "no JSON")
    write(Path("c.json"), EARLIER)
    there = listing(".")
    assert_refused(compare(base, "broken.json", "--output", "c.json"), "broken.json")
    assert_refused(compare(base, "other.json", "--output", "c.json"), "not comparable", code=4)
    assert_refused(compare(base, "other.json", "--output", "new.json"), "not comparable", code=4)
    assert Path("c.json").read_text() == EARLIER
    assert listing(".") == there


def test_ctrl_c_leaves_the_earlier_comparison():
    write(Path("c.json"), EARLIER)
    builds = of_builds(build_with(Path("base")), build_with(Path("head")))
    process = start(*builds, "--launches", 100, "--pairs", 100, "--output", "c.json")
    assert "round 1" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert Path("c.json").read_text() == EARLIER
    assert listing(".") == ["base", "c.json", "head"]


def test_a_comparison_takes_the_place_of_the_earlier_one(files):
    write(Path("real.json"), EARLIER)
    Path("real.json").chmod(0o640)
    Path("link.json").symlink_to("real.json")
    there = listing(".")
    for _ in range(2):  # replaced, not appended to
        done = compare(*files, "--output", "link.json")
        assert done.returncode == 0, done.stderr
        assert json.loads(Path("real.json").read_text())["verdict"] == "no_regression"
    assert Path("link.json").is_symlink()
    assert listing(".") == there
    assert_refused(compare(*files, "--output", "."), "--output .: is a folder")
    assert_refused(
        compare(*files, "--output", "nowhere/c.json"), "--output nowhere/c.json: cannot be written"
    )


def test_a_comparison_goes_into_a_pipe_or_a_device_that_stays(files):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    assert compare(*files, "--output", "pipe").returncode == 0
    reader.join(10)
    assert json.loads(read[0])["verdict"] == "no_regression"
    assert compare(*files, "--output", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()
    with open("all", "w") as both:  # the shell's file, not one in its place
        assert headroom("compare", *files, "--output", "/dev/stdout", stdout=both).returncode == 0
    assert Path("all").read_text().startswith("base: base.json")
    assert json.loads(Path("all").read_text().splitlines()[-1])["verdict"] == "no_regression"
    with open("all", "w") as both:
        done = headroom("compare", *files, "--output", "all", stdout=both)
    assert (done.returncode, "is where standard output goes" in done.stderr) == (2, True)
    done = compare(*files, "--output", "/dev/full")
    assert (done.returncode, "No space left" in done.stderr) == (2, True)


# ---- a full disk


def test_a_comparison_that_does_not_fit_leaves_the_earlier_one(files):
    write(Path("c.json"), EARLIER)
    there = listing(".")
    done = headroom("compare", *files, "--output", "c.json", preexec_fn=files_of_at_most(1000))
    assert done.returncode == 2
    assert "c.json: cannot be written: File too large" in done.stderr
    assert Path("c.json").read_text() == EARLIER
    assert listing(".") == there


def test_a_baseline_that_does_not_fit_leaves_the_earlier_one(files):
    base, head = files
    store = ["compare", base, "--save-baseline", "main", "--baselines", "stored"]
    done = headroom(*store, preexec_fn=files_of_at_most(1000))
    assert done.returncode == 2
    assert "cannot be written: File too large" in done.stderr
    assert listing("stored") == []
    assert headroom(*store).returncode == 0
    there = listing("stored")
    changed = json.loads(base.read_text())
    changed["run"]["id"] = "another"
    write(base, changed)
    assert headroom(*store, preexec_fn=files_of_at_most(1000)).returncode == 2
    assert listing("stored") == there
    assert compare(head, "--baseline", "main", "--baselines", "stored").returncode == 0
    assert headroom(*store).returncode == 0
    assert compare(head, "--baseline", "main", "--baselines", "stored").returncode == 0


def test_scratch_that_is_full_is_no_regression():
    builds = of_builds(build_with(Path("base")), build_with(Path("head")))
    done = headroom("compare", *builds, preexec_fn=files_of_at_most(100))
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert "File too large" in done.stderr.splitlines()[-1]


# ---- standard output


def said_full(done):
    last = done.stderr.splitlines()[-1]
    assert last == "headroom: standard output: cannot be written: No space left on device"
    return done.returncode


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_standard_output_of_compare_is_told_and_the_file_is_whole(files, kind):
    with open("/dev/full", "w") as full:
        done = headroom("compare", *files, "--format", kind, "--output", "c.json", stdout=full)
    assert said_full(done) == 2
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(Path("c.json").read_text())["verdict"] == "no_regression"


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--json"], ["--help"], ["run", "--help"], ["--version"], []]
)
def test_a_full_standard_output_is_told(arguments):
    with open("/dev/full", "w") as full:
        done = headroom(*arguments, stdout=full)
    assert said_full(done) == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--benchmark_format=json"]])
def test_a_full_standard_output_of_run_is_told_and_the_file_is_whole(arguments):
    with open("/dev/full", "w") as full:
        done = run_small("a.json", *arguments, stdout=full)
    assert said_full(done) == 2
    assert json.loads(Path("a.json").read_text())["run"]["complete"] is True


def test_a_full_standard_output_of_calibrate_is_told(monkeypatch):
    made_up = {"FAULT_DEVICE": f"GPU-{uuid.uuid4()}", "FAULT_CALIBRATION": ""}
    for name, value in made_up.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    with open("/dev/full", "w") as full:
        done = headroom("calibrate", "--device", "-1", "--worker", FAULT_WORKER, stdout=full)
    Path(f"/tmp/headroom-{made_up['FAULT_DEVICE']}.lock").unlink()
    assert said_full(done) == 2


def test_a_closed_standard_output_is_told_and_gets_into_no_file(files):
    done = subprocess.run(
        ["sh", "-c", f"exec {PROGRAM} compare base.json head.json --output c.json <&- >&-"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "headroom: standard output: cannot be written: it is closed\n"
    assert len(Path("c.json").read_text().splitlines()) == 1
    json.loads(Path("c.json").read_text())


def test_a_standard_error_that_is_closed_or_full_changes_no_exit_code(files):
    for redirection in ("2>&-", "2>/dev/full"):
        for arguments, code in (("compare base.json nowhere.json", 2), ("compare base.json head.json", 0)):
            command = f"exec {PROGRAM} {arguments} {redirection}"
            done = subprocess.run(
                ["sh", "-c", command], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
            )
            assert done.returncode == code, command
            assert ("equivalent" in done.stdout) == (code == 0)


def test_a_reader_that_leaves_changes_no_exit_code_and_is_not_complained_about(files):
    base, head = files
    slower = json.loads(head.read_text())
    for block in slower["records"][0]["blocks"]:
        block["device_seconds"] *= 1.2
    write(head, slower)
    for arguments, code in ((["compare", base, head, "--output", "c.json"], 1), (["list"], 0)):
        reading, writing = os.pipe()
        os.close(reading)
        done = headroom(*arguments, stdout=writing)
        os.close(writing)
        assert (done.returncode, done.stderr) == (code, "")
    assert json.loads(Path("c.json").read_text())["verdict"] == "regression"


# ---- a working folder that is gone


@pytest.mark.parametrize(
    "arguments", ["list", f"run --workload {SMALL} --backend oracle", "compare a.json b.json"]
)
def test_a_working_folder_that_is_gone_is_told_in_one_line(arguments):
    script = f"mkdir x && cd x && rmdir ../x && exec {PROGRAM} {arguments}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "headroom: the working folder cannot be found: No such file or directory" in line
