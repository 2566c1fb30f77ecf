"""The front door, in a copy that holds nothing but itself: no network, no compiler, a cache of its own.

PyTorch and the test programs are stand-ins of a few lines; what is tested is what the scripts decide.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Stands for python3 in an installation: `-m venv` copies itself, `-m pip` does what the file `pip` says.
STAND_IN_PYTHON = """#!/usr/bin/env bash
[ "$1" != -m ] || echo "$2" >>"$STAND_IN/calls"
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip") . "$STAND_IN/pip" ;;
esac
"""

TEST_PROGRAM = """#!/usr/bin/env bash
for argument in "$@"; do
  case $argument in
    --gtest_list_tests) printf 'Suite.\\n  One\\n'; exit ;;
    --gtest_output=xml:*) report=${argument#--gtest_output=xml:} ;;
  esac
done
echo "all=${HEADROOM_TEST_ALL:-}" >"$0.all"
echo '<testsuites><testsuite tests="5" failures="1" skipped="2" errors="0"/></testsuites>' >"$report"
exit 1
"""


@pytest.fixture
def copy(tmp_path):
    """A checkout with the front door alone."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "headroom", root)
    for folder in ("cmake/front_door", "cmake/requirements"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def environment(tmp_path):
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HEADROOM_PYTHON": sys.executable}


def run(root, environment, *arguments):
    return subprocess.run(
        [root / "headroom", *arguments],
        env=environment,
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rnu"],
            "unknown command 'rnu'; known: run, compare, list, calibrate, report, history, profile, test,",
        ),
        (["test", "--gpus"], "unknown option '--gpus'; known: --all, --gpu, --sanitize, --parts"),
        (["test", "--sanitize"], "--sanitize goes with --gpu"),
        (["test", "--gpu", "--parts", "tests,racechek"], "unknown part 'racechek'; known: tests, ptx_jit"),
        (["test", "--gpu", "--within", "5m"], "--within 5m: expected a number of seconds"),
        (["test", "--build"], "--build needs a folder"),
        (["run", "--build", "nowhere"], "--build nowhere: there is no bin/headroom in it"),
        (["clean", "--all"], "unknown option '--all'; known: --yes"),
    ],
)
def test_wrong_usage_gets_one_line_and_exit_code_2(copy, environment, arguments, message):
    result = run(copy, environment, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_help_needs_nothing_and_names_every_command(copy, environment):
    result = run(copy, environment, "--help")
    assert result.returncode == 0
    for command in ("run", "compare", "list", "report", "history", "profile", "test", "clean"):
        assert f"\n  {command} " in result.stdout
    assert run(copy, environment).returncode == 2
    assert not Path(environment["XDG_CACHE_HOME"]).exists()


@pytest.fixture
def own_shared_memory(copy, tmp_path):
    """In place of /dev/shm, which others use."""
    clean = copy / "cmake/front_door/clean.sh"
    assert "/dev/shm/" in clean.read_text()
    clean.write_text(clean.read_text().replace("/dev/shm/", f"{tmp_path}/shm/"))
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


def test_clean_says_what_and_asks_before_it_removes(copy, environment, own_shared_memory):
    made = [copy / "build", Path(environment["XDG_CACHE_HOME"]) / "headroom"]
    for folder in made:
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 100_000)
    results = copy / "results"
    results.mkdir()
    environment["TMPDIR"] = str(copy / "nothing-here")
    unasked = run(copy, environment, "clean")
    assert unasked.returncode == 2
    assert all(folder.exists() for folder in made)
    agreed = run(copy, environment, "clean", "--yes")
    assert agreed.returncode == 0
    for folder in made:
        assert any(line.split()[-1] == str(folder) for line in agreed.stderr.splitlines())
        assert not folder.exists()
    assert results.exists()
    assert "nothing to remove" in run(copy, environment, "clean", "--yes").stderr


def test_clean_removes_what_killed_runs_left_and_nothing_else(copy, environment, own_shared_memory, tmp_path):
    folder = tmp_path / "temporary"
    elsewhere = tmp_path / "elsewhere"
    for name in ("headroom-1-killed", "headroom-2-runs", "headroom-3-no-lock", "other-4", "../elsewhere"):
        (folder / name).mkdir(parents=True)
        (folder / name / "features.f32").write_text("x" * 100_000)
        if name != "headroom-3-no-lock":
            (folder / name / "owner.lock").touch()
    (folder / "headroom-1-killed/link").symlink_to(elsewhere)
    (folder / "headroom-5-link").symlink_to(elsewhere)
    (folder / "headroom-6-file").write_text("")
    (folder / "headroom-7-link-as-lock").mkdir()
    (folder / "headroom-7-link-as-lock/owner.lock").symlink_to(elsewhere / "owner.lock")
    (folder / "headroom-8-pipe").mkdir()
    os.mkfifo(folder / "headroom-8-pipe/owner.lock")
    environment["TMPDIR"] = str(folder)
    in_memory = own_shared_memory / "headroom-1-killed"
    shutil.copytree(folder / "headroom-1-killed", in_memory, symlinks=True)
    before = sorted(folder.iterdir())
    with (folder / "headroom-2-runs/owner.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unasked = run(copy, environment, "clean")
        assert unasked.returncode == 2
        assert sorted(folder.iterdir()) == before
        agreed = run(copy, environment, "clean", "--yes")
    assert agreed.returncode == 0, agreed.stderr
    for result in (unasked, agreed):
        shown = [line.split()[-1] for line in result.stderr.splitlines() if "/headroom-" in line]
        assert shown == [str(in_memory), str(folder / "headroom-1-killed")]
    assert not in_memory.exists()
    assert set(before) - set(folder.iterdir()) == {folder / "headroom-1-killed"}
    assert (elsewhere / "features.f32").exists()


class Installation:
    """make_environment with a stand-in for Python."""

    def __init__(self, root, environment, folder):
        self.root, self.folder = root, folder
        self.environment = environment | {"STAND_IN": str(folder)}
        folder.mkdir()
        (folder / "python").write_text(STAND_IN_PYTHON)
        (folder / "python").chmod(0o755)
        self.pip("true")

    def pip(self, script):
        (self.folder / "pip").write_text(script + "\n")

    def start(self, gigabytes=0):
        script = f"""
            set -euo pipefail
            root={self.root} front_door={self.root}/cmake/front_door build={self.root}/build
            for part in own_environment say attended packages environment; do . "$front_door/$part.sh"; done
            base_executable={self.folder}/python base_version=3.11.0
            make_environment "package==1" "" {gigabytes} "a test"
            echo "made:$environment_made"
        """
        return subprocess.Popen(
            ["bash", "-c", script],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell cannot trap what it was started with ignored, as jobs in the background are.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, **how):
        process = self.start(**how)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output.strip(), errors

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []

    def finished(self):
        return list(Path(self.environment["XDG_CACHE_HOME"]).glob("headroom/env-*/complete"))


@pytest.fixture
def installation(copy, environment, tmp_path):
    return Installation(copy, environment, tmp_path / "stand-in")


@pytest.fixture
def values_of(copy, installation):
    """Runs shell with the front door's parts loaded: exit code, the NAME=VALUE lines printed, messages."""

    def run_lines(lines: str, **variables: str) -> tuple[int, dict[str, str], str]:
        script = f"""
            set -euo pipefail
            root={copy} front_door={copy}/cmake/front_door build={copy}/build
            for part in own_environment say attended packages environment; do . "$front_door/$part.sh"; done
            need_space() {{ :; }}
            python=/the/chosen base_executable={installation.folder}/python base_version=3.11.0
            {lines}
        """
        done = subprocess.run(
            ["bash", "-c", script],
            env=installation.environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        values = dict(line.split("=", 1) for line in done.stdout.splitlines())
        return done.returncode, values, done.stderr

    return run_lines


def test_a_finished_environment_is_used_again(installation):
    assert installation.run()[:2] == (0, "made:yes")
    assert installation.run()[:2] == (0, "made:yes")
    assert installation.calls() == ["venv", "pip"]


def test_a_failed_installation_shows_the_log_and_is_begun_anew(installation):
    installation.pip("echo no such package; exit 1")
    status, output, errors = installation.run()
    assert output == "made:"
    assert "no such package" in errors
    assert not installation.finished()
    installation.pip("true")
    assert installation.run()[1] == "made:yes"
    assert len(installation.finished()) == 1


def test_an_interrupted_installation_is_not_taken_for_a_finished_one(installation):
    installation.pip("exec sleep 60")
    process = installation.start()
    deadline = time.monotonic() + 30
    while "pip" not in installation.calls() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not installation.finished()
    installation.pip("true")
    assert installation.run()[1] == "made:yes"


def test_an_installation_ends_with_a_front_door_that_is_killed(installation):
    installation.pip('echo $$ >"$STAND_IN/pip-runs"; exec sleep 60')
    process = installation.start()
    noted = installation.folder / "pip-runs"
    deadline = time.monotonic() + 30
    while not (noted.exists() and noted.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    while Path(f"/proc/{noted.read_text().strip()}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{noted.read_text().strip()}").exists()
    assert not installation.finished()


def test_two_installations_at_once_are_one(installation):
    installation.pip("sleep 1")
    processes = [installation.start() for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert outputs == ["made:yes", "made:yes"]
    assert installation.calls() == ["venv", "pip"]


def test_a_full_disk_is_noticed_before_anything_is_installed(installation):
    status, output, errors = installation.run(gigabytes=10**9)
    assert status == 2
    assert "GB of free disk" in errors
    assert installation.calls() == []


@pytest.mark.parametrize("complete", [True, False])
def test_an_environment_without_the_tools_of_today_is_not_used(copy, environment, installation, complete):
    old = Path(environment["XDG_CACHE_HOME"]) / "headroom" / "env-old"
    (old / "bin").mkdir(parents=True)
    for name in ("python", "cmake"):
        (old / "bin" / name).write_text("#!/bin/sh\n")
        (old / "bin" / name).chmod(0o755)
    (old / "complete").write_text("")
    if complete:
        (old / "lib/python3.11/site-packages/jinja2").mkdir(parents=True)
    script = f"""
        set -euo pipefail
        root={copy} front_door={copy}/cmake/front_door build={copy}/build
        for part in own_environment say attended packages environment; do . "$front_door/$part.sh"; done
        base_executable={installation.folder}/python base_version=3.11.0
        tools_environment
        echo "$python"
    """
    done = subprocess.run(
        ["bash", "-c", script], env=installation.environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout.strip() == str(old / "bin/python")) == complete


def pretend_pytorch(folder, version="2.11.0+cu130", cuda="'13.0'", abi=1):
    """A Python with a package that looks like PyTorch to inspect_python.py."""
    torch = folder / "packages/torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "share/cmake/Torch").mkdir(parents=True)
    (torch / "__init__.py").write_text("")
    (torch / "version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda}\n")
    (torch / "share/cmake/Torch/TorchConfig.cmake").write_text(f"-D_GLIBCXX_USE_CXX11_ABI={abi}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={torch.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({}, ""),
        ({"version": "2.6.0+cu126", "cuda": "'12.6'"}, ""),
        ({"version": "2.5.1+cu124", "cuda": "'12.4'"}, "older than 2.6"),
        ({"version": "2.11.0+cpu", "cuda": "None"}, "no CUDA build"),
        ({"abi": 0}, "from before C++11"),
    ],
)
def test_which_existing_pytorch_is_used(copy, tmp_path, facts, problem):
    python = pretend_pytorch(tmp_path, **facts)
    result = subprocess.run(
        [python, copy / "cmake/front_door/inspect_python.py", copy / "cmake/requirements/tools.txt"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith("torch_problem=")]
    assert len(lines) == bool(problem)
    assert problem in "".join(lines)


@pytest.fixture
def moved_build(tmp_path, environment):
    """A build folder from elsewhere: a driver that shows how it was called, one test program, a record."""
    environment["HEADROOM_PYTHON"] = str(pretend_pytorch(tmp_path))
    binaries = tmp_path / "moved" / "bin"
    binaries.mkdir(parents=True)
    for name, text in (
        ("headroom", '#!/bin/sh\necho "$@"; env | grep ^HEADROOM_ | sort\n'),
        ("some_test", TEST_PROGRAM),
    ):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    (binaries / "test-programs").write_text("some_test core\n")
    (binaries / "build-record").write_text(
        "build_torch_version=2.11.0+cu130\nbuild_kernel_digest=0\nbuild_git_sha=0123abc\nbuild_git_dirty=no\n"
    )
    return binaries.parent


def test_a_moved_build_runs_as_it_is(copy, environment, moved_build, tmp_path):
    result = run(copy, environment, "run", "--suite", "quick", "--build", str(moved_build))
    assert result.returncode == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "run --suite quick"
    assert f"HEADROOM_ROOT={copy}" in lines
    assert "HEADROOM_BUILD_GIT_SHA=0123abc" in lines and "HEADROOM_BUILD_GIT_DIRTY=no" in lines
    assert f"HEADROOM_PYTHON={environment['HEADROOM_PYTHON']}" in lines
    assert f"HEADROOM_COMMAND={copy}/headroom" in lines
    library_path = next(line for line in lines if line.startswith("HEADROOM_TORCH_LIBRARY_PATH="))
    assert str(tmp_path / "packages/torch/lib") in library_path
    assert not (copy / "build").exists()


def test_another_pytorch_than_the_builds_is_told_in_one_line(copy, environment, moved_build):
    record = moved_build / "bin/build-record"
    record.write_text(record.read_text().replace("2.11.0", "2.9.0"))
    result = run(copy, environment, "list", "--build", str(moved_build))
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert "2.9.0+cu130" in line and "2.11.0+cu130" in line


def add_sources(root):
    for folder in ("bench", "cuda_impl", "torch_impl", "tests"):
        (root / folder).mkdir()
    (root / "bench/one.cpp").write_text("int one() { return 1; }\n")
    (root / "tests/test_nothing.py").write_text("def test_nothing():\n    pass\n")


def test_the_tests_of_a_moved_build_are_counted(copy, environment, moved_build):
    add_sources(copy)
    # What runs is what the options say, not a variable of the user's.
    result = run(copy, environment | {"HEADROOM_TEST_ALL": "1"}, "test", "--build", str(moved_build))
    assert result.returncode == 1
    assert (moved_build / "bin/some_test.all").read_text() == "all=\n"
    assert "the long tests were left out; ./headroom test --all runs them too" in result.stdout.splitlines()
    assert "FAILED  some_test: 2 passed, 1 failed, 2 skipped" in result.stdout
    assert "no record of a GPU run" in result.stdout
    passed, _, failed, _, skipped, _ = result.stdout.splitlines()[-1].replace(",", "").split()
    assert int(passed) >= 3
    assert int(failed) >= 1
    assert int(skipped) >= 2


@pytest.fixture
def gpu_machine(copy, environment, moved_build, tmp_path):
    """A moved build with one passing kernel test, a PyTorch that claims a GPU, a stand-in sanitizer."""
    add_sources(copy)
    (tmp_path / "packages/torch/__init__.py").write_text(
        "from . import version\n"
        "class cuda:\n"
        "    is_available = staticmethod(lambda: True)\n"
        "    get_device_name = staticmethod(lambda index: 'Made-up GPU 1')\n"
    )
    program = moved_build / "bin/some_test"
    passing = TEST_PROGRAM.replace('failures="1"', 'failures="0"')
    program.write_text(passing.replace("exit 1", 'echo "jit=${CUDA_FORCE_PTX_JIT:-} $*" >>"$0.calls"'))
    (moved_build / "bin/test-programs").write_text("some_test cuda\n")
    sanitizer = tmp_path / "toolkit/bin/compute-sanitizer"
    sanitizer.parent.mkdir(parents=True)
    sanitizer.write_text('#!/usr/bin/env bash\nexec "${@:7}"\n')
    sanitizer.chmod(0o755)
    environment["CUDA_HOME"] = str(tmp_path / "toolkit")
    record = moved_build / "bin/build-record"
    record.write_text(
        f"build_torch_version=2.11.0+cu130\nbuild_kernel_digest={verification(copy, 'digest')}\n"
    )
    return moved_build


@pytest.mark.parametrize("all_tests", ["", "yes"])
def test_ctest_runs_tests_that_are_labelled_long_with_all_only(copy, tmp_path, all_tests):
    (tmp_path / "bin").mkdir()
    ctest = tmp_path / "bin/ctest"
    ctest.write_text(
        f'#!/usr/bin/env bash\necho "$*" >{tmp_path}/called\n'
        'while [ $# -gt 0 ]; do [ "$1" != --output-junit ] || report=$2; shift; done\n'
        'echo \'<testsuite tests="1" failures="0" disabled="0" skipped="0"/>\' >"$report"\n'
    )
    ctest.chmod(0o755)
    script = f"""
        set -euo pipefail
        front_door={copy}/cmake/front_door build={tmp_path} reports={tmp_path} cmake={tmp_path}/bin/cmake
        for part in say attended tests; do . "$front_door/$part.sh"; done
        python={sys.executable} all={all_tests} passed=0 failed=0 skipped=0 not_finished=0 failed_reports=()
        run_ctest
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert "GoogleTest (ctest): 1 passed, 0 failed, 0 skipped" in done.stdout, done.stderr
    assert ("--label-exclude ^long$" in (tmp_path / "called").read_text()) == (not all_tests)


RECORD = "results/verification/made-up-gpu-1.json"
PARTS = ("tests", "ptx_jit", "memcheck", "racecheck", "synccheck")


def test_a_gpu_run_writes_the_verification_record(copy, environment, gpu_machine):
    result = run(copy, environment, "test", "--all", "--gpu", "--sanitize", "--build", str(gpu_machine))
    assert (gpu_machine / "bin/some_test.all").read_text() == "all=1\n"
    assert "left out" not in result.stdout
    record = json.loads((copy / RECORD).read_text())
    assert record["device"] == "Made-up GPU 1"
    assert record["kernel_digest"] == verification(copy, "digest")
    for part in PARTS[1:]:
        assert record[part] == {"passed": 3, "failed": 0, "skipped": 2, "not_finished": [], "failures": []}
        assert f"ok      {part}: some_test: 3 passed, 0 failed, 2 skipped (" in result.stdout
    assert record["tests"]["passed"] >= 4
    assert "Made-up GPU 1" in result.stdout and ": current" in result.stdout
    calls = (gpu_machine / "bin/some_test.calls").read_text().splitlines()
    assert sorted(call.split()[0] for call in calls) == ["jit="] * 4 + ["jit=1"]
    assert sum("--gtest_filter=*Small*" in call for call in calls) == 3
    assert (gpu_machine / "test-logs/racecheck.some_test.log").exists()


def test_parts_are_run_one_by_one_into_one_record(copy, environment, gpu_machine):
    for part in PARTS:
        run(copy, environment, "test", "--gpu", "--parts", part, "--build", str(gpu_machine))
    record = json.loads((copy / RECORD).read_text())
    assert all(record[part]["passed"] >= 3 for part in PARTS)
    record["driver"] = "another"
    (copy / RECORD).write_text(json.dumps(record))
    run(copy, environment, "test", "--gpu", "--parts", "memcheck", "--build", str(gpu_machine))
    record = json.loads((copy / RECORD).read_text())
    assert [part for part in PARTS if record[part]] == ["memcheck"]


@pytest.fixture
def hanging_racecheck(gpu_machine, tmp_path):
    """A sanitizer under which the test never ends, though it says that it passed."""
    sanitizer = tmp_path / "toolkit/bin/compute-sanitizer"
    sanitizer.write_text(
        "#!/usr/bin/env bash\n"
        '[ "$2" = racecheck ] || exec "${@:7}"\n'
        'echo "[       OK ] Suite.One"; sleep 30\n'
    )
    return gpu_machine


def test_what_is_cut_off_is_not_finished_and_the_rest_is_kept(copy, environment, hanging_racecheck, tmp_path):
    options = ("--within", "5", "--logs", str(tmp_path / "logs"), "--build", str(hanging_racecheck))
    result = run(copy, environment, "test", "--gpu", "--parts", "memcheck,racecheck,synccheck", *options)
    assert result.returncode == 1
    assert "CUT OFF racecheck: some_test: 0 passed, 0 failed, 0 skipped, 1 not finished" in result.stdout
    assert "not finished: some_test Suite.One" in result.stdout
    assert "(not run: tests, ptx_jit; not finished: racecheck (1))" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(", 1 not finished")
    record = json.loads((copy / RECORD).read_text())
    assert record["racecheck"]["not_finished"] == ["some_test Suite.One"]
    assert record["memcheck"]["passed"] == record["synccheck"]["passed"] == 3
    assert (tmp_path / "logs/racecheck.some_test.log").read_text().startswith("[       OK ]")


def test_a_run_is_resumed_with_what_its_record_lacks(copy, environment, hanging_racecheck, tmp_path):
    parts = ("--gpu", "--parts", "memcheck,racecheck", "--build", str(hanging_racecheck))
    run(copy, environment, "test", *parts, "--within", "5")
    sanitizer = tmp_path / "toolkit/bin/compute-sanitizer"
    sanitizer.write_text('#!/usr/bin/env bash\nexec "${@:7}"\n')
    calls = hanging_racecheck / "bin/some_test.calls"
    calls.unlink()
    result = run(copy, environment, "test", *parts, "--resume")
    assert result.returncode == 0, result.stdout
    assert [call.split()[1] for call in calls.read_text().splitlines()] == ["--gtest_filter=Suite.One"]
    record = json.loads((copy / RECORD).read_text())
    assert record["memcheck"]["passed"] == record["racecheck"]["passed"] == 3
    assert record["racecheck"]["not_finished"] == []
    # Of other kernels there is nothing to go on with, and of a finished record nothing is left.
    calls.unlink()
    assert run(copy, environment, "test", *parts, "--resume").returncode == 0
    assert not calls.exists()
    assert run(copy, environment, "test", "--resume").returncode == 2


@pytest.mark.parametrize(
    ("how", "end"), [(signal.SIGTERM, os.killpg), (signal.SIGKILL, os.killpg), (signal.SIGKILL, os.kill)]
)
def test_a_run_that_is_ended_from_outside_leaves_what_it_had(copy, environment, hanging_racecheck, how, end):
    process = subprocess.Popen(
        [copy / "headroom", "test", "--gpu", "--parts", "racecheck,synccheck", "--build", hanging_racecheck],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 50
    while not (copy / RECORD).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    end(process.pid, how)
    output = process.communicate(timeout=30)[0]
    record = json.loads((copy / RECORD).read_text())
    assert record["synccheck"]["passed"] == 3
    assert "ok      synccheck: some_test" in output
    assert record["racecheck"]["not_finished"] == ["some_test Suite.One"]


def test_a_build_of_other_kernels_leaves_no_record(copy, environment, gpu_machine):
    (copy / "cuda_impl/new.cu").write_text("")
    result = run(copy, environment, "test", "--gpu", "--build", str(gpu_machine))
    assert result.returncode == 1
    assert "the build is not of these kernel sources" in result.stdout
    assert not (copy / "results").exists()


def test_a_smaller_build_keeps_saying_of_which_kernels_the_tests_are(copy, tmp_path):
    add_sources(copy)
    (tmp_path / "build" / "bin").mkdir(parents=True)

    def digest_after_building(target):
        paths = f"root={copy} front_door={copy}/cmake/front_door build={tmp_path}/build"
        variables = f"{paths} python={sys.executable} torch_version=2"
        script = f"{variables}; . $front_door/build.sh; write_build_record {target}"
        subprocess.run(["bash", "-euc", script], check=True, timeout=60)
        record = (tmp_path / "build" / "bin" / "build-record").read_text().splitlines()
        return dict(line.split("=", 1) for line in record)["build_kernel_digest"]

    assert digest_after_building("programs") == ""
    of_tests = digest_after_building("everything")
    assert of_tests == verification(copy, "digest")
    assert digest_after_building("programs") == of_tests
    (copy / "cuda_impl" / "one.cu").write_text("// another kernel\n")
    assert digest_after_building("programs") == ""
    assert digest_after_building("everything") not in ("", of_tests)


def verification(root, *arguments):
    script = REPOSITORY / "cmake/front_door/verification.py"
    return subprocess.run(
        [sys.executable, script, *arguments, root], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_kernel_digest_follows_the_kernels_and_nothing_else(tmp_path):
    (tmp_path / "cuda_impl").mkdir()
    kernel = tmp_path / "cuda_impl/kernel.cu"
    kernel.write_text("1")
    first = verification(tmp_path, "digest")
    (tmp_path / "cuda_impl/notes.md").write_text("notes")
    (tmp_path / "other.cu").write_text("2")
    assert verification(tmp_path, "digest") == first
    kernel.write_text("2")
    second = verification(tmp_path, "digest")
    assert second != first
    kernel.rename(tmp_path / "cuda_impl/renamed.cu")
    assert verification(tmp_path, "digest") not in (first, second)


def test_a_verification_record_is_current_until_a_kernel_changes(tmp_path):
    (tmp_path / "cuda_impl").mkdir()
    (tmp_path / "cuda_impl/kernel.cu").write_text("1")
    record = tmp_path / "results/verification/gpu.json"
    record.parent.mkdir(parents=True)
    digest = verification(tmp_path, "digest")
    counts = {"passed": 1, "failed": 0, "skipped": 0}
    complete = {"device": "GPU", "date": "2026-01-01", "kernel_digest": digest} | dict.fromkeys(PARTS, counts)
    record.write_text(json.dumps(complete | {"racecheck": None}))
    assert verification(tmp_path, "status").endswith("GPU, 2026-01-01: current (not run: racecheck)")
    record.write_text(json.dumps(complete))
    assert verification(tmp_path, "status").endswith("GPU, 2026-01-01: current")
    (tmp_path / "cuda_impl/kernel.cu").write_text("2")
    assert "of older kernels" in verification(tmp_path, "status")


def test_counts_are_summed_and_a_missing_report_is_a_failure(tmp_path):
    (tmp_path / "gtest.xml").write_text(
        '<testsuites tests="3"><testsuite tests="2" failures="1" skipped="1" errors="0"/>'
        '<testsuite tests="1" failures="0" skipped="0" errors="0"/></testsuites>'
    )
    (tmp_path / "ctest.xml").write_text('<testsuite tests="4" failures="0" disabled="1" skipped="1"/>')
    (tmp_path / "cut.xml").write_text("<testsuites><testsuite tests=")
    script = REPOSITORY / "cmake/front_door/junit_counts.py"
    files = [tmp_path / name for name in ("gtest.xml", "ctest.xml", "cut.xml", "missing.xml")]
    result = subprocess.run([sys.executable, script, *files], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["3", "3", "3"]


def test_a_failed_test_is_named_with_what_it_printed(tmp_path):
    (tmp_path / "ctest.xml").write_text(
        '<testsuite><testcase name="good"><system-out>fine</system-out></testcase>'
        '<testcase name="A.b" classname="A.b"><failure message="Failed"/><system-out>Running main() from x\n'
        "[ RUN      ] A.b\nlaunch 3: nobody gets on\na.cpp:1: Failure\n1\n2</system-out></testcase>"
        "</testsuite>"
    )
    (tmp_path / "pytest.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.c" name="d"><failure message="no&#10;more">'
        f"{'x' * 1000}</failure></testcase></testsuite></testsuites>"
    )
    files = [tmp_path / name for name in ("ctest.xml", "pytest.xml", "missing.xml")]
    script = REPOSITORY / "cmake/front_door/junit_failures.py"
    result = subprocess.run([sys.executable, script, "3", *files], capture_output=True, text=True, check=True)
    *lines, last = result.stdout.splitlines()
    assert lines == [
        "failed: A.b: Failed",
        "    launch 3: nobody gets on",
        "    a.cpp:1: Failure",
        "    1",
        "    ... 1 more lines",
        "failed: tests.c::d: no",
    ]
    assert len(last) < 400
