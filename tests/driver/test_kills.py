"""Kills (-9) at random moments of a run, of the driver and of its workers, and what is left then.

After each kill of the driver the results file, if there is one, is valid, the report takes it, --resume goes
on with it, and the next run removes what was left in scratch. A killed worker costs one record. The moments
follow from a seed, which is printed; HEADROOM_TEST_SEED gives them again. Runs of a small network are killed
in every run of the tests, those of the suite `quick` with `./headroom test --all`.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_driver import BUILD, FAULT_WORKER, PROGRAM, ROOT, VALIDATOR

SMALL = ("--workload", "mlp-12x8x4-b8,mlp-13x9x4-b8", "--backend", "oracle,honest")
QUICK = ("--suite", "quick", "--losses", "20")
ALWAYS = ("--device", "-1", "--block-seconds", "0.02", "--no-figures")
REPORT = ROOT / "plots" / "report.py"


class Killed:
    """Runs of one command with random kills; `folder` gets results files, reports, a temporary folder."""

    def __init__(self, command, folder, monkeypatch, workers=(), most_reports=1000):
        self.command, self.program = command, (PROGRAM, "run", *ALWAYS, *workers)
        self.folder, self.most_reports = folder, most_reports
        self.seed = int(os.environ.get("HEADROOM_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"HEADROOM_TEST_SEED={self.seed}")  # shown on failure
        self.random = random.Random(self.seed)
        self.results, self.temporary = folder / "results", folder / "temporary"
        self.results.mkdir()
        self.temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv("HEADROOM_ROOT", str(ROOT))
        monkeypatch.setenv("HEADROOM_PYTHON", sys.executable)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")  # PyTorch's threads would only wait for each other
        self.drivers, self.files, self.reports = [], 0, 0
        self.others = set(self.scratch_folders("*"))
        began = time.monotonic()
        self.run_to_the_end(self.fresh_file())
        self.seconds = time.monotonic() - began

    def go_through_the_front_door(self):
        self.program = (ROOT / "headroom", "run", "--build", BUILD, *self.program[2:])

    def fresh_file(self):
        self.files += 1
        return self.results / f"{self.files}.json"

    def start(self, file):
        what = ("--resume", file) if file.exists() else (*self.command, "--output", file)
        log = (self.folder / "log").open("w")
        process = subprocess.Popen([*self.program, *map(str, what)], stdout=subprocess.DEVNULL, stderr=log)
        log.close()
        self.drivers.append(process.pid)
        return process

    def run_to_the_end(self, file):
        self.assert_ended_well(self.start(file).wait(timeout=300), file)

    def log(self):
        return (self.folder / "log").read_text()

    def assert_ended_well(self, code, file):
        assert code == 0, self.log()
        results = self.valid(file)
        assert results["run"]["complete"] is True
        assert all(record["outcome"] in ("ok", "skipped") for record in results["records"])

    def valid(self, file):
        results = json.loads(file.read_text())
        VALIDATOR.validate(results)
        return results

    def report_takes(self, file):
        if self.reports == self.most_reports:
            return
        self.reports += 1
        done = subprocess.run(
            [sys.executable, REPORT, file, "-o", self.folder / f"report{self.reports}"],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr

    # ---- the driver

    def kill_drivers(self, kills):
        """So many kills of runs that go on with each other's files, then one that comes to its end."""
        file = self.fresh_file()
        while kills > 0:
            process = self.start(file)
            moment = self.random.uniform(0, 1.1 * self.seconds)
            try:
                self.assert_ended_well(process.wait(timeout=moment), file)
                self.report_takes(file)
                file = self.fresh_file()
                continue
            except subprocess.TimeoutExpired:
                pass
            workers = children_of(process.pid)
            process.kill()
            process.wait(timeout=10)
            kills -= 1
            say = f"driver killed after {moment:.2f} s of {self.seconds:.1f} s"
            assert_ended(workers, say)
            if not file.exists():
                continue
            try:
                results = self.valid(file)
            except Exception as error:
                raise AssertionError(f"{say}: {file.name} is not valid: {error}") from error
            if results["records"]:
                self.report_takes(file)
            if results["run"]["complete"]:  # killed when all was written
                file = self.fresh_file()
        self.run_to_the_end(file)
        self.report_takes(file)

    # ---- a worker

    def kill_a_worker(self):
        """Returns whether it cost a record: none if the worker had no trainer yet, or none any more.

        Before it has said which backends it has, it costs the rows of all of them.
        """
        file = self.fresh_file()
        process = self.start(file)
        time.sleep(self.random.uniform(0, self.seconds))
        if worker := busiest_of(children_of(process.pid)):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(worker, signal.SIGKILL)
        code = process.wait(timeout=300)
        results = self.valid(file)
        assert results["run"]["complete"] is True
        failed = [record for record in results["records"] if record["outcome"] == "failed"]
        for record in failed:
            assert "Killed" in record["message"], record["message"]
            assert record["step_seconds"] is None
        said = {record["message"] for record in failed}
        assert len(failed) <= 1 or (len(said) == 1 and said.pop().endswith("during 'hello'")), failed
        assert code == (1 if failed else 0), self.log()
        return bool(failed)

    # ---- what is left

    def scratch_folders(self, of):
        return [
            path for parent in (Path("/dev/shm"), self.temporary) for path in parent.glob(f"headroom-{of}-*")
        ]

    def left_in_scratch(self):
        return [path for pid in self.drivers for path in self.scratch_folders(pid) if path not in self.others]

    def assert_nothing_is_left(self):
        """Of any of these runs, once one more has begun."""
        # Of a driver that was killed between two system calls an empty folder may stay for a minute.
        assert [path for path in self.left_in_scratch() if any(path.iterdir())] == []
        # PyTorch keeps a cache of its own there, for later processes.
        ours = [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
        assert [name for name in ours if not name.startswith("headroom-")] == []
        expected = {f"{number + 1}.json" for number in range(self.files)}
        assert {path.name for path in self.results.iterdir()} == expected

    def clean(self):
        """After a failure too: what a test has left is not there for the next one."""
        for path in self.left_in_scratch():
            shutil.rmtree(path, ignore_errors=True)


def children_of(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def busiest_of(pids):
    """Most workers of a run wait for their turn."""
    before = {pid: cpu_ticks(pid) for pid in pids}
    time.sleep(0.1)
    return max(pids, key=lambda pid: cpu_ticks(pid) - before[pid], default=None)


def cpu_ticks(pid):
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    except OSError:
        return 0


def assert_ended(pids, say):
    deadline = time.monotonic() + 10
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"{say}: workers outlive it: {alive}"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def killed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    made = []

    def make(command, **more):
        made.append(Killed(command, tmp_path, monkeypatch, **more))
        return made[-1]

    yield make
    for runs in made:
        runs.clean()


def test_kills_of_a_small_run_leave_a_valid_file_and_nothing_else(killed):
    runs = killed(SMALL, workers=("--worker", FAULT_WORKER), most_reports=1)
    runs.kill_drivers(3)
    runs.kill_a_worker()
    runs.assert_nothing_is_left()


@pytest.mark.long
def test_forty_kills_of_the_quick_suite_leave_valid_files_and_nothing_else(killed):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    runs = killed(QUICK)
    runs.kill_drivers(25)
    runs.go_through_the_front_door()
    runs.kill_drivers(1)
    costs = [runs.kill_a_worker() for _ in range(14)]
    assert sum(costs) >= 3, f"{len(costs)} kills of workers cost {sum(costs)} records"
    runs.assert_nothing_is_left()
