"""Workers that mean no good, and programs that were killed: what they leave, what they may not reach."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compared import compare, record, results, write
from running import (
    PROGRAM,
    ROOT,
    SMALL,
    assert_refused,
    headroom,
    proxy,
    records_of,
    run_words,
    scratch_of,
    start,
)

ESCAPE = "\x1b[31mred\u009b2J\x07"


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "instead",
    [
        'os.mkfifo(request["file"])',
        'os.symlink("/dev/zero", request["file"])',
        'os.makedirs(request["file"] + "/below")',
    ],
    ids=["fifo", "link", "folder"],
)
def test_a_file_of_losses_that_is_no_file_costs_its_record_only(tmp_path, instead):
    tamper = f"""
held = None
def tamper(request):
    global held
    held = request.get("backend", held)
    if request["call"] == "losses" and held == "honest":
        {instead}
        return {{"count": request["count"]}}
"""
    words = run_words(tmp_path / "a.json", proxy(tmp_path, tamper), "honest,oracle-honest")
    started = time.monotonic()
    done = headroom(*words, "--time-limit", 5)
    assert time.monotonic() - started < 20
    assert done.returncode == 1, done.stderr
    records = records_of(tmp_path / "a.json")
    assert records["honest"]["outcome"] == "failed"
    assert "losses" in records["honest"]["message"]
    assert records["oracle-honest"]["outcome"] == "ok", records["oracle-honest"]["message"]


def test_a_folder_that_a_worker_has_replaced_by_a_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "a").write_text("mine")
    tamper = f"""
folder = None
def tamper(request):
    global folder
    if request["call"] == "prepare":
        folder = os.path.dirname(os.path.dirname(request["parameters_file"]))
    if request["call"] == "release":
        os.rename(folder, folder + "-moved")
        os.symlink({str(victim)!r}, folder)
"""
    done = headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, tamper)))
    assert done.returncode == 0, done.stderr
    assert (victim / "a").read_text() == "mine"


def test_a_worker_that_never_answers_hello_is_waited_for_no_longer_than_the_time_limit(tmp_path):
    tamper = """
def tamper(request):
    time.sleep(60)
"""
    started = time.monotonic()
    done = headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, tamper)), "--time-limit", 1)
    assert time.monotonic() - started < 15
    assert_refused(done, "gave no answer to 'hello' within 1 s")


def test_a_worker_that_is_killed_before_its_hello_costs_its_own_rows_only(tmp_path):
    tamper = """
def tamper(request):
    os.kill(os.getpid(), 9)
"""
    done = headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, tamper), "honest,oracle"))
    assert done.returncode == 1, done.stderr
    records = records_of(tmp_path / "a.json")
    assert records["honest"]["outcome"] == "failed"
    assert "died with signal 9 (Killed) during 'hello'" in records["honest"]["message"]
    assert records["oracle"]["outcome"] == "ok", records["oracle"]["message"]


# As workers of old answer: one refuses the driver's version, the other gives its own.
OLD_ANSWERS = {
    "refuses": {"ok": False, "error": {"kind": "input", "message": "request.protocol: expected 1, found 2"}},
    "answers": {"ok": True, "result": {"protocol": 1, "worker": "old", "software": {}, "backends": []}},
}


@pytest.mark.parametrize("answer", OLD_ANSWERS)
def test_a_worker_of_protocol_1_is_a_skipped_row(tmp_path, answer):
    program = tmp_path / "old.py"
    program.write_text(f"""
import json, sys
for line in sys.stdin:
    print(json.dumps({{"id": json.loads(line)["id"]}} | {OLD_ANSWERS[answer]!r}), flush=True)
""")
    worker = f"old={sys.executable} -I -S {program}"
    words = run_words(tmp_path / "a.json", backends="oracle-honest,old-fast")
    done = headroom(*words, "--worker", worker)
    assert done.returncode == 0, done.stderr
    records = records_of(tmp_path / "a.json")
    assert records["oracle-honest"]["outcome"] == "ok"
    assert records["old-fast"]["outcome"] == "skipped"
    assert "worker protocol" in records["old-fast"]["message"]
    assert ("version 1" if answer == "answers" else "expected 1, found 2") in records["old-fast"]["message"]
    assert done.stdout.count("worker protocol") == 1


@pytest.mark.parametrize("family, said", [("pytroch", "did you mean 'pytorch'?"), (None, "family: missing")])
def test_a_worker_that_does_not_say_what_its_backends_are_is_refused(tmp_path, family, said):
    tamper = f"""
def tamper(request):
    def change(result):
        result["backends"][0].pop("family")
        if {family!r}:
            result["backends"][0]["family"] = {family!r}
    return change if request["call"] == "hello" else None
"""
    assert_refused(headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, tamper))), "--worker fault", said)


def test_a_working_folder_that_goes_during_the_run_costs_nothing(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    tamper = f"""
def tamper(request):
    if request["call"] == "train" and os.path.exists({str(gone)!r}):
        os.rmdir({str(gone)!r})
"""
    output = tmp_path / "a.json"
    words = map(str, [PROGRAM, *run_words(output, proxy(tmp_path, tamper))])
    environment = os.environ | {"HEADROOM_ROOT": str(ROOT)}
    done = subprocess.run(words, cwd=gone, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not gone.exists()
    assert f"Results: {output}" in done.stdout


DAEMON = """
def tamper(request):
    if request["call"] == "train" and not os.path.exists({pid!r}):
        # Twice forked and in a session of its own: nobody's child, in nobody's group.
        if os.fork() == 0:
            os.setsid()
            daemon = os.fork()
            if daemon == 0:
                os.execvp("sleep", ["sleep", "300"])
            with open({pid!r}, "w") as file:
                file.write(str(daemon))
            os._exit(0)
        os.wait()
"""


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_daemon_of_a_worker_does_not_outlive_the_run(tmp_path, interrupted):
    pid = tmp_path / "pid"
    words = run_words(tmp_path / "a.json", proxy(tmp_path, DAEMON.format(pid=str(pid))))
    process = start(*words, *(["--losses", 1 << 20] if interrupted else []))
    if interrupted:
        assert until(lambda: pid.exists() and pid.read_text())
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == (130 if interrupted else 0)
    daemon = int(pid.read_text())
    try:
        assert not alive(daemon)
    finally:
        if alive(daemon):
            os.kill(daemon, signal.SIGKILL)


def test_what_the_program_was_started_beside_lives_on(tmp_path):
    """`exec headroom` in a shell makes the shell's other children its own."""
    pid = tmp_path / "pid"
    words = [PROGRAM, *map(str, run_words(tmp_path / "a.json"))]
    shell = f'sleep 300 & echo $! > {pid}; exec "$@"'
    environment = {**os.environ, "HEADROOM_ROOT": str(Path(__file__).resolve().parents[2])}
    code = os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", shell, "sh", *words], environment)
    beside = int(pid.read_text())
    try:
        assert code == 0
        assert alive(beside)
    finally:
        os.kill(beside, signal.SIGKILL)


def test_control_characters_in_what_a_worker_says_reach_neither_terminal_nor_file(tmp_path):
    tamper = f"""
def tamper(request):
    def change(result):
        if request["call"] == "hello":
            result["software"] = {{{ESCAPE!r}: {ESCAPE!r}}}
            result["backends"][-1]["precisions"]["fp32"]["unavailable"] = {ESCAPE!r}
        if request["call"] == "prepare":
            result["note"] = {ESCAPE!r}
    if request["call"] == "train":
        sys.stderr.write({ESCAPE!r})
        sys.stderr.flush()
        sys.exit(3)
    return change
"""
    words = run_words(tmp_path / "a.json", proxy(tmp_path, tamper), "oracle-honest,fault-unavailable")
    done = headroom(*words)
    assert done.returncode == 1
    assert "red 2J" in done.stdout
    text = json.dumps(json.loads((tmp_path / "a.json").read_text()), ensure_ascii=False)
    for shown in (done.stdout, done.stderr, text.replace("\\u001b", "\x1b")):
        assert not {"\x1b", "\u009b", "\x07"} & set(shown)


def test_control_characters_in_a_results_file_do_not_reach_the_terminal(tmp_path):
    for name, cpu in (("a", ESCAPE), ("b", "another")):
        one = results([record([1e-3] * 12, backend=ESCAPE, message=ESCAPE)])
        one["device"] = None
        one["host"]["cpu"] = cpu
        write(tmp_path / f"{name}.json", one)
    different = compare(tmp_path / "a.json", tmp_path / "b.json")
    same = compare(tmp_path / "a.json", tmp_path / "a.json")
    assert "red" in different.stderr + same.stdout
    for done in (different, same):
        assert not {"\x1b", "\u009b", "\x07"} & set(done.stdout + done.stderr)


def test_variables_that_change_a_rows_arithmetic_reach_no_worker(tmp_path):
    left_out = {
        "NVIDIA_TF32_OVERRIDE": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":0:0",
        "CUDA_LAUNCH_BLOCKING": "1",
        "MKL_CBWR": "COMPATIBLE",
        "PYTHONPATH": str(tmp_path),
        "PYTORCH_CUDA_ALLOC_CONF": "x:1",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
        "XLA_FLAGS": "--none",
    }
    kept = {
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_CACHE_PATH": str(tmp_path),
        "MKL_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_CORETYPE": "Haswell",
    }
    tamper = f"""
with open({str(tmp_path / "seen")!r}, "w") as file:
    json.dump(dict(os.environ), file)
def tamper(request):
    pass
"""
    done = headroom(*run_words(tmp_path / "a.json", proxy(tmp_path, tamper)), **left_out, **kept)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen").read_text())
    assert not seen.keys() & left_out.keys()
    assert {name: seen.get(name) for name in kept} == kept
    (line,) = [line for line in done.stderr.splitlines() if "environment" in line]
    assert line.startswith("Left out of the workers' environment: ")
    for name in left_out:
        assert name in line


@pytest.mark.parametrize(
    "variables",
    [
        {"BENCHMARK_FORMAT": "zzz"},
        {"BENCHMARK_LIST_TESTS": "true", "BENCHMARK_FILTER": "none"},
        {"BENCHMARK_OUT": "/nowhere/x", "BENCHMARK_OUT_FORMAT": "xml"},
    ],
    ids=["format", "list", "out"],
)
def test_variables_of_google_benchmark_change_nothing(tmp_path, variables):
    done = headroom(*run_words(tmp_path / "a.json"), **variables)
    assert done.returncode == 0, done.stderr
    assert records_of(tmp_path / "a.json")["oracle-honest"]["outcome"] == "ok"
    assert "verified" in done.stdout
    assert all(name in done.stderr for name in variables)


def test_scratch_of_a_program_that_was_killed_goes_with_the_next_one(tmp_path):
    process = start(*run_words(tmp_path / "a.json", backends="fault-hangs"))
    assert until(lambda: any(any(folder.glob("*/own/initial.f32")) for folder in scratch_of(process)))
    running = sorted(scratch_of(process))
    # A program that ends before it measures anything, but not before it has made a folder of its own.
    nothing = ("run", "--workload", SMALL, "--backend", "none", "--device", -1)
    assert headroom(*nothing).returncode == 2
    assert sorted(scratch_of(process)) == running
    process.kill()
    process.communicate()
    assert sorted(scratch_of(process)) == running
    assert headroom(*nothing).returncode == 2
    assert scratch_of(process) == []
