"""Runs the test programs of a build and pytest side by side; what finished is kept when the run is cut off.

Everything is cut into jobs: one shard of one GoogleTest program in one way (plain, with its PTX compiled on
the spot, under a sanitizer), or one file of pytest, less its tests that are in APART. As many run at once
as the host has cores; programs marked ALONE in tests/CMakeLists.txt measure times, so they run first and
one by one. Every job has its log in a folder that is named at the start, a line is printed as soon as a
program's last shard ends, and on a GPU the verification record is written anew after every job. What passes
its limit, or is not begun in time, is "not finished", test by test and by name, and a part that holds such
tests is not clean.

Four shards, because tests of the four precisions follow each other: each shard then loads (compiles,
instruments) the kernels of one precision only.
"""

import argparse
import importlib.util
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import junit_counts
import junit_failures
import verification

SHARDS = 4
SANITIZERS = ("racecheck", "memcheck", "synccheck")  # the slowest first
SANITIZER_FAILED = 86
MOST_NAMED = 4  # of the tests that a line says were not finished; the record has all
# The vendor's library holds no PTX to compile, so nothing in its tests can run that way; nor can kernels that
# are compiled at set-up, which are machine code.
WITHOUT_PTX = (
    "cublaslt_test",
    "cuda_resident_tests",
    "cuda_compiled_resident_tests",
    "cuda_fused_tests",
    "cuda_streamed_tests",
    "cuda_tiled_tests",
)
# Minutes for a shard, so its jobs begin before all others: a run lasts as long as what ends last.
LONGEST = "racecheck: cuda_resident_tests"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
# Tests that take minutes, as they compile with torch.compile: each is a job of its own.
APART = (
    "tests/python/test_captured_rows.py::test_what_was_set_up_beside_others_is_found_alone_and_starts_no_compilers",
    "tests/python/test_captured_rows.py::test_this_process_assembles_like_pytorchs_compile_workers",
    "tests/python/test_worker_gpu.py::test_compiled_steps[pytorch-compile]",
    "tests/python/test_worker_gpu.py::test_compiled_steps[pytorch-compile-graph]",
)


@dataclass
class Job:
    part: str  # what the record counts it under
    group: str  # the line that it belongs to
    name: str  # of its log
    command: list[str]
    tests: list[str]  # that it should run, for those that it does not finish
    environment: dict[str, str] = field(default_factory=dict)
    alone: bool = False
    shared: str = ""  # what it holds while it runs, as no other job may that names it too

    def report(self, logs):
        return logs / f"{self.name}.xml"

    def log(self, logs):
        return logs / f"{self.name}.log"


@dataclass
class Counts:
    """The fields of a part in the verification record."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    not_finished: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # names; none of a job that failed otherwise

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.not_finished = self.not_finished + other.not_finished
        self.failures = self.failures + other.failures

    def __str__(self):
        text = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return text + (f", {len(self.not_finished)} not finished" if self.not_finished else "")

    def verdict(self):
        return "FAILED" if self.failed else "CUT OFF" if self.not_finished else "ok"


@dataclass
class Running:
    job: Job
    process: subprocess.Popen
    started: float


def test_names(program, names, environment):
    """What a GoogleTest program would run under the filter `names`; nothing when it cannot say."""
    command = [program, "--gtest_list_tests", f"--gtest_filter={names}"]
    try:
        listed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found, suite = [], ""
    for line in listed.splitlines():
        name = line.split("#")[0].rstrip()
        if re.fullmatch(r"[\w/]+\.", name):
            suite = name
        elif suite and re.fullmatch(r"  [\w/]+", name):
            found.append(suite + name.strip())
    return found


def program_jobs(part, program, tests, names, wrapper, environment, alone):
    """The shards of one program in one part. One that cannot list its tests is one job: its failure shows."""
    name = program.name
    shards = 1 if alone or not tests else min(SHARDS, len(tests))
    group = name if part == "tests" else f"{part}: {name}"
    for shard in range(shards):
        yield Job(
            part=part,
            group=group,
            name=f"{part}.{name}" + (f".{shard + 1}of{shards}" if shards > 1 else ""),
            command=[*wrapper, str(program), f"--gtest_filter={names}"],
            tests=[f"{name} {test}" for test in tests[shard::shards]] or [name],
            environment=environment | {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)},
            alone=alone,
        )


def pytest_jobs(root):
    if importlib.util.find_spec("pytest") is None:
        print(f"skipped pytest: {sys.executable} has none", flush=True)
        return
    for number, test in enumerate(APART, 1):
        if not (root / test.split("::")[0]).exists():
            continue
        yield Job("tests", "pytest", f"tests.apart.{number}", [*PYTEST, test], [test])
    without = [f"--deselect={test}" for test in APART]
    for path in sorted((root / "tests").rglob("test_*.py")):
        file = path.relative_to(root).as_posix()
        # One at a time (tests/driver/conftest.py): a second one would hold a core only to wait.
        shared = "driver" if path.parent.name == "driver" else ""
        name = file.removesuffix(".py").replace("/", ".")
        yield Job("tests", "pytest", name, [*PYTEST, *without, file], [file], shared=shared)


def gtest_jobs(build, parts, environment, sanitizer, left=None):
    """The jobs of all programs in bin/test-programs: name, folder below tests/, and `alone` or nothing.

    `left`: of a part that it has only these tests, as jobs name them.
    """
    left = left or {}
    rows = [line.split() for line in (build / "bin/test-programs").read_text().splitlines() if line]
    wanted = [(part, row) for part in parts for row in rows if runs_in(part, row)]

    def listed(part_and_row):
        part, (name, *_) = part_and_row
        found = test_names(build / "bin" / name, filter_of(part), os.environ | environment)
        return [test for test in found if part not in left or f"{name} {test}" in left[part]]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        lists = list(pool.map(listed, wanted))
    for (part, (name, _, *marks)), tests in zip(wanted, lists, strict=True):
        if (part in SANITIZERS or part in left) and not tests:
            continue
        names = ":".join(tests) if part in left else filter_of(part)
        wrapper, variables = [], {}
        if part in SANITIZERS:
            variables = {"HEADROOM_SANITIZER": part}  # tests/cuda/sanitizer.h
            wrapper = [sanitizer, "--tool", part, "--require-cuda-init", "no"]
            wrapper += ["--error-exitcode", str(SANITIZER_FAILED)]
        if part == "ptx_jit":
            variables = {"CUDA_FORCE_PTX_JIT": "1"}
        alone = part not in SANITIZERS and "alone" in marks
        yield from program_jobs(
            part, build / "bin" / name, tests, names, wrapper, environment | variables, alone
        )


def jobs_left(root, build, parts, earlier, environment, sanitizer):
    """The jobs of `parts`; of those in `earlier` (Counts by part) what failed or was not finished."""
    left = {part: {*counts.not_finished, *counts.failures} for part, counts in earlier.items()}
    jobs = []
    if "tests" in parts:
        jobs = [job for job in pytest_jobs(root) if "tests" not in left or job.tests[0] in left["tests"]]
        known = {job.tests[0] for job in jobs}
        for number, test in enumerate(sorted(left.get("tests", set()) - known), 1):
            if (root / test.split("::")[0]).is_file():
                jobs.append(Job("tests", "pytest", f"tests.again.{number}", [*PYTEST, test], [test]))
    return [*jobs, *gtest_jobs(build, parts, environment, sanitizer, left)]


def without_what_runs_again(counts, jobs, part):
    """Of a part's earlier counts what stays beside those of its jobs."""
    again = {test for job in jobs if job.part == part for test in job.tests}
    failures = [test for test in counts.failures if test not in again]
    return replace(
        counts,
        failed=counts.failed - (len(counts.failures) - len(failures)),
        not_finished=[test for test in counts.not_finished if test not in again],
        failures=failures,
    )


def compile_kernels(build, logs, environment):
    """What tests compile when they make a trainer, once for all; that a kernel fails is the tests' to say."""
    for program in sorted((build / "bin").glob("compile_*_kernels")):
        begun = time.monotonic()
        with (logs / f"{program.name}.log").open("wb") as log:
            status = subprocess.run(
                [program], env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        say = "compiled" if status == 0 else "some failed"
        print(f"{program.name}: {say} ({time.monotonic() - begun:.0f} s)", flush=True)


def runs_in(part, row):
    name, folder = row[:2]
    if part == "tests":
        return True
    return folder == "cuda" and not (part == "ptx_jit" and name in WITHOUT_PTX)


def filter_of(part):
    return "*Small*" if part in SANITIZERS else "*"


def finished_counts(job, status, logs):
    """Of a job that ended by itself: a bad status without a counted failure is one too."""
    passed, failed, skipped = junit_counts.counts(job.report(logs))
    # A file that skipped itself whole; asked for one test of it, pytest calls that an error.
    nothing_to_run = job.group == "pytest" and (status == 5 or (status == 4 and skipped))
    if status != 0 and failed == 0 and not nothing_to_run:
        failed = 1
    names = [name_in_job(job, *case) for case in junit_failures.failed_cases(job.report(logs))]
    return Counts(passed, failed, skipped, failures=names if len(names) == failed else [])


def name_in_job(job, suite, test):
    """Of a test in a JUnit file, as Job.tests has it; of a pytest file's test what pytest takes."""
    if job.group == "pytest":
        return f"{job.tests[0].split('::')[0]}::{test}"
    return f"{job.tests[0].split()[0]} {suite}.{test}"


def cut_off_counts(job, logs):
    """Of a job that was ended or not begun. A sanitizer has its say at the end, so nothing counts before."""
    if job.part in SANITIZERS or not job.log(logs).exists():
        return Counts(not_finished=job.tests)
    text = job.log(logs).read_text(errors="replace")
    ended = {
        word: re.findall(rf"^\[ +{word} +\] ([\w/.]+)", text, re.MULTILINE)
        for word in ("OK", "FAILED", "SKIPPED")
    }
    names = {name for found in ended.values() for name in found}
    left = [test for test in job.tests if test.split()[-1] not in names]
    return Counts(len(ended["OK"]), len(set(ended["FAILED"])), len(ended["SKIPPED"]), left)


def cpu_seconds_of_children():
    """Of all that ended and was waited for; the difference over a wait is what that job took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class Interrupted(Exception):
    """Ctrl-C, or a time limit from outside that asked first."""


class TestRun:
    def __init__(self, jobs, root, logs, limit, within, on_change):
        self.jobs, self.root, self.logs, self.limit = jobs, root, logs, limit
        self.deadline = time.monotonic() + within
        self.on_change = on_change
        self.parts = {}
        self.groups = {}
        for job in jobs:
            self.groups.setdefault(job.group, [Counts(), 0])[1] += 1
            for left_over in (job.report(logs), job.log(logs)):
                left_over.unlink(missing_ok=True)
        self.begun = {}
        self.running = []
        self.took = []  # of each job that ended: CPU seconds, seconds, name

    def run(self):
        waiting = deque(sorted(self.jobs, key=lambda job: (not job.alone, job.group != LONGEST)))  # stable
        try:
            while waiting or self.running:
                if time.monotonic() >= self.deadline:
                    break
                while (job := self.next_of(waiting)) is not None:
                    waiting.remove(job)
                    self.start(job)
                self.reap()
                time.sleep(0.02)
        finally:
            for running in list(self.running):
                self.cut_off(running)
            for job in waiting:
                self.done(job, cut_off_counts(job, self.logs))
            self.on_change(self.parts)

    def next_of(self, waiting):
        """The first that need not wait for a running one; those that run alone lie before all others."""
        if not waiting or not self.has_room(waiting[0]):
            return None
        held = {running.job.shared for running in self.running if running.job.shared}
        return next((job for job in waiting if job.shared not in held), None)

    def has_room(self, job):
        if job.alone or any(running.job.alone for running in self.running):
            return not self.running
        return len(self.running) < len(os.sched_getaffinity(0))

    def start(self, job):
        report = "--junitxml=" if job.group == "pytest" else "--gtest_output=xml:"
        self.begun.setdefault(job.group, time.monotonic())
        try:
            process = self.spawned(job, [*job.command, f"{report}{job.report(self.logs)}"])
        except OSError as error:  # a build folder from which a program was left out
            print(f"FAILED  {job.name} did not start: {error}", flush=True)
            self.done(job, Counts(failed=1))
            return
        self.running.append(Running(job, process, time.monotonic()))

    def spawned(self, job, command):
        with job.log(self.logs).open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | job.environment,
                # Of its own, so that children end with it; not a session, or they would outlive ours.
                preexec_fn=os.setpgrp,
            )

    def reap(self):
        for running in list(self.running):
            before = cpu_seconds_of_children()
            status = running.process.poll()
            if status is not None:
                self.running.remove(running)
                self.took.append(
                    (
                        cpu_seconds_of_children() - before,
                        time.monotonic() - running.started,
                        running.job.name,
                    )
                )
                counts = finished_counts(running.job, status, self.logs)
                if counts.failed:
                    self.show_failure(running)
                self.done(running.job, counts)
                self.on_change(self.parts)
            elif time.monotonic() - running.started > self.limit:
                self.cut_off(running)
                self.on_change(self.parts)

    def cut_off(self, running):
        self.running.remove(running)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        self.done(running.job, cut_off_counts(running.job, self.logs))

    def done(self, job, counts):
        self.parts.setdefault(job.part, Counts()).add(counts)
        group = self.groups[job.group]
        group[0].add(counts)
        group[1] -= 1
        if group[1] == 0:
            self.show_end(job.group, group[0])

    def show_end(self, group, counts):
        begun = self.begun.get(group)
        seconds = f"{time.monotonic() - begun:.0f} s" if begun else "not begun"
        print(f"{counts.verdict():7} {group}: {counts} ({seconds})")
        for test in counts.not_finished[:MOST_NAMED]:
            print(f"        not finished: {test}")
        if len(counts.not_finished) > MOST_NAMED:
            print(f"        and {len(counts.not_finished) - MOST_NAMED} more")
        sys.stdout.flush()

    def show_failure(self, running):
        seconds = time.monotonic() - running.started
        log = running.job.log(self.logs)
        print(f"FAILED  {running.job.name} after {seconds:.0f} s; the last lines of {log}:")
        print("\n".join(log.read_text(errors="replace").splitlines()[-60:]), flush=True)


def parsed_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument(
        "--totals", type=Path, required=True, help="file for: passed failed skipped not_finished"
    )
    parser.add_argument(
        "--parts", required=True, help="of tests, ptx_jit, memcheck, racecheck, synccheck; or pytest alone"
    )
    parser.add_argument(
        "--style", default="0,0,0", help="counts of the checks before, for the record's `tests`"
    )
    parser.add_argument("--sanitizer", default="")
    parser.add_argument(
        "--compile-first", action="store_true", help="the kernels that tests compile, side by side"
    )
    parser.add_argument("--torch-libraries", default="", help="folders for LD_LIBRARY_PATH")
    parser.add_argument(
        "--kernel-digest", default="", help="of the build; a record is written when it is given"
    )
    parser.add_argument(
        "--resume", action="store_true", help="only what the record lacks: failed or not finished"
    )
    parser.add_argument("--job-limit", type=float, default=300, help="seconds that one job may take")
    parser.add_argument("--within", type=float, default=3600, help="seconds that everything may take")
    return parser.parse_args()


def main():
    began = time.monotonic()
    options = parsed_arguments()
    options.logs.mkdir(parents=True, exist_ok=True)
    print(f"logs: {options.logs}", flush=True)
    folders = [folder for folder in (options.torch_libraries, os.environ.get("LD_LIBRARY_PATH")) if folder]
    environment = {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}
    # Programs and shards compile each kernel once (tests/cuda/kept_kernels.h).
    environment["HEADROOM_TEST_CUBINS"] = os.environ.get(
        "HEADROOM_TEST_CUBINS", str(options.logs.resolve() / "cubins")
    )
    if options.compile_first:
        compile_kernels(options.build, options.logs, environment)
    parts = [part for part in ("tests", *SANITIZERS, "ptx_jit") if part in options.parts.split(",")]
    record = verification.Record(options.root, options.kernel_digest) if options.kernel_digest else None
    earlier = {}
    if options.resume and record is not None:
        earlier = {part: Counts(**record.parts[part]) for part in parts if record.parts[part]}
    # pytest's longest files take longer than most programs, so it begins first.
    if options.parts == "pytest":
        jobs = list(pytest_jobs(options.root))
    else:
        jobs = jobs_left(options.root, options.build, parts, earlier, environment, options.sanitizer)
    before = {"tests": Counts(*map(int, options.style.split(",")))}
    before |= {part: without_what_runs_again(counts, jobs, part) for part, counts in earlier.items()}

    def keep(counted):
        if record is None:
            return
        for part, counts in counted.items():
            total = Counts()
            total.add(before.get(part, Counts()))
            total.add(counts)
            record.set(part, asdict(total))
        record.write()

    left = options.within - (time.monotonic() - began)
    run = TestRun(jobs, options.root, options.logs, options.job_limit, left, keep)

    def interrupt(number, frame):
        raise Interrupted

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGINT, interrupt)
    status = 0
    try:
        run.run()
    except Interrupted:
        status = 130
    total = Counts()
    for counts in run.parts.values():
        total.add(counts)
    (options.logs / "took.txt").write_text(
        "CPU seconds, seconds, job\n"
        + "".join(f"{cpu:.1f} {wall:.1f} {name}\n" for cpu, wall, name in sorted(run.took, reverse=True))
    )
    options.totals.write_text(f"{total.passed} {total.failed} {total.skipped} {len(total.not_finished)}\n")
    if record is not None:
        print(f"wrote {record.path}")
    sys.exit(status)


if __name__ == "__main__":
    main()
