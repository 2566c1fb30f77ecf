"""What `./headroom test` makes of its programs and of pytest's files: jobs, their order, what counts of one
that is cut off, and which tests are left out (conftest.py).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake/front_door"))

import run_tests  # noqa: E402

LISTED = """Running main() from gtest_main.cc
Waits.
  SmallLost
Every/Trainer.
  SmallSteps/fp32  # GetParam() = 4-byte object <00-00 00-00>
  SmallSteps/fp16  # GetParam() = 4-byte object <02-00 00-00>
Kernels/fp32.  # TypeParam = Fp32
  SmallForward
"""


@pytest.fixture
def program(tmp_path):
    """A test program that writes when it began and ended, and what it ran."""
    (tmp_path / "list").write_text(LISTED)
    path = tmp_path / "some_test"
    path.write_text(
        f'#!/usr/bin/env bash\n[ "$1" != --gtest_list_tests ] || exec cat {tmp_path}/list\n'
        f'echo "begins $0 $GTEST_SHARD_INDEX" >>{tmp_path}/events\n'
        "sleep 0.2\n"
        f'echo "ends $0 $GTEST_SHARD_INDEX" >>{tmp_path}/events\n'
        "for argument; do case $argument in --gtest_output=xml:*) report=${argument#*xml:} ;; esac; done\n"
        'counts=\'tests="1" failures="0" skipped="0" errors="0"\'\n'
        'echo "<testsuites><testsuite $counts/></testsuites>" >"$report"\n'
    )
    path.chmod(0o755)
    return path


def jobs(program, alone=False, part="tests"):
    tests = run_tests.test_names(program, "*", {})
    return list(run_tests.program_jobs(part, program, tests, "*", [], {}, alone))


def run(all_jobs, folder, **limits):
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    changes = []
    limits = {"limit": 30, "within": 30} | limits
    test_run = run_tests.TestRun(
        all_jobs, folder, logs, limits["limit"], limits["within"], lambda parts: changes.append(dict(parts))
    )
    test_run.run()
    return test_run, changes


def test_names_are_read_from_the_programs_own_list(program):
    assert run_tests.test_names(program, "*", {}) == [
        "Waits.SmallLost",
        "Every/Trainer.SmallSteps/fp32",
        "Every/Trainer.SmallSteps/fp16",
        "Kernels/fp32.SmallForward",
    ]
    assert run_tests.test_names(program.parent / "nowhere", "*", {}) == []


def test_kernels_of_tests_are_compiled_into_the_folder_that_the_tests_are_given(tmp_path, capsys):
    (tmp_path / "bin").mkdir()
    for name, status in (("compile_some_kernels", 0), ("compile_other_kernels", 1), ("some_test", 0)):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/usr/bin/env bash\necho "into $HEADROOM_TEST_CUBINS"\nexit {status}\n')
        program.chmod(0o755)
    run_tests.compile_kernels(tmp_path, tmp_path, {"HEADROOM_TEST_CUBINS": "/some/folder"})
    logs = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert logs == dict.fromkeys(
        ("compile_some_kernels.log", "compile_other_kernels.log"), "into /some/folder\n"
    )
    said = capsys.readouterr().out
    assert "compile_some_kernels: compiled (" in said and "compile_other_kernels: some failed (" in said


def test_every_test_is_in_one_shard(program):
    found = jobs(program)
    assert [job.environment["GTEST_SHARD_INDEX"] for job in found] == ["0", "1", "2", "3"]
    assert sorted(test for job in found for test in job.tests) == sorted(
        f"some_test {name}" for name in run_tests.test_names(program, "*", {})
    )
    assert len(jobs(program, alone=True)) == 1


def test_the_record_is_renewed_after_every_job(program):
    _, changes = run(jobs(program), program.parent)
    assert len(changes) >= 4
    assert changes[-1]["tests"].passed == 4


def test_a_program_that_is_not_there_has_failed_and_the_others_run(program, capsys):
    missing = list(run_tests.program_jobs("tests", program.parent / "nowhere", [], "*", [], {}, False))
    _, changes = run([*missing, *jobs(program)], program.parent)
    assert (changes[-1]["tests"].passed, changes[-1]["tests"].failed) == (4, 1)
    assert "FAILED  tests.nowhere did not start" in capsys.readouterr().out


def test_nothing_runs_beside_a_program_that_measures_times(program):
    alone = program.with_name("timed_test")
    alone.write_text(program.read_text())
    alone.chmod(0o755)
    run(jobs(program) + jobs(alone, alone=True), program.parent)
    events = [line.split() for line in (program.parent / "events").read_text().splitlines()]
    assert [event[0] for event in events[:2]] == ["begins", "ends"]
    assert events[0][1] == events[1][1] == str(alone)


def test_jobs_that_hold_the_same_thing_run_one_after_another_and_keep_no_core_waiting(program, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    holder = program.with_name("holding_test")
    holder.write_text(program.read_text())
    holder.chmod(0o755)
    holding = jobs(holder)[:2]
    for job in holding:
        job.shared = "lock"
    run([*holding, *jobs(program)[:1]], program.parent)
    events = [line.split() for line in (program.parent / "events").read_text().splitlines()]
    assert {events[0][1], events[1][1]} == {str(holder), str(program)}
    of_holder = [event[0] for event in events if event[1] == str(holder)]
    assert of_holder == ["begins", "ends", "begins", "ends"]


def test_what_takes_longest_begins_first(program, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    part, name = run_tests.LONGEST.split(": ")
    longest = program.with_name(name)
    longest.write_text(program.read_text())
    longest.chmod(0o755)
    run(jobs(program)[:1] + jobs(longest, part=part)[:1], program.parent)
    events = [line.split() for line in (program.parent / "events").read_text().splitlines()]
    assert [event[1] for event in events if event[0] == "begins"] == [str(longest), str(program)]


@pytest.mark.parametrize(("part", "passed", "left"), [("tests", 1, 1), ("memcheck", 0, 2)])
def test_of_a_job_that_is_cut_off_only_plain_tests_that_ended_count(tmp_path, part, passed, left):
    job = run_tests.Job(part, "group", "name", [], ["some_test A.Ended", "some_test A.Begun"])
    job.log(tmp_path).write_text("[ RUN      ] A.Ended\n[       OK ] A.Ended (3 ms)\n[ RUN      ] A.Begun\n")
    counts = run_tests.cut_off_counts(job, tmp_path)
    assert (counts.passed, counts.failed, len(counts.not_finished)) == (passed, 0, left)
    assert "some_test A.Begun" in counts.not_finished
    assert counts.verdict() == "CUT OFF"


def test_a_job_over_its_limit_does_not_hold_the_others_up(program, capsys):
    slow = program.with_name("slow_test")
    slow.write_text(program.read_text().replace("sleep 0.2", "sleep 30"))
    slow.chmod(0o755)
    test_run, _ = run(jobs(slow) + jobs(program), program.parent, limit=2)
    assert test_run.parts["tests"].passed == 4
    assert len(test_run.parts["tests"].not_finished) == 4
    output = capsys.readouterr().out
    assert "CUT OFF slow_test: 0 passed, 0 failed, 0 skipped, 4 not finished" in output
    assert "ok      some_test: 4 passed" in output


def test_what_is_not_begun_in_time_is_named(program, capsys):
    test_run, _ = run(jobs(program), program.parent, within=0)
    assert len(test_run.parts["tests"].not_finished) == 4
    assert "(not begun)" in capsys.readouterr().out


def test_what_failed_is_named_as_it_is_asked_for_again(tmp_path):
    def names_of(group, tests, case):
        job = run_tests.Job("tests", group, "name", [], tests)
        job.report(tmp_path).write_text(
            f'<testsuites><testsuite tests="2" skipped="0" failures="1" errors="0">{case}'
            '<testcase classname="Other" name="Passed"/></testsuite></testsuites>'
        )
        return run_tests.finished_counts(job, 1, tmp_path).failures

    of_program = '<testcase classname="Every/Trainer" name="Steps/fp32"><failure message="no"/></testcase>'
    of_pytest = '<testcase classname="tests.test_some" name="test_one[a]"><failure message="no"/></testcase>'
    assert names_of("some_test", ["some_test A.B"], of_program) == ["some_test Every/Trainer.Steps/fp32"]
    assert names_of("pytest", ["tests/test_some.py"], of_pytest) == ["tests/test_some.py::test_one[a]"]
    assert names_of("some_test", ["some_test A.B"], "") == []  # it failed, and no test says so


def test_a_resumed_run_has_what_failed_or_was_not_finished_and_counts_the_rest_once(program):
    (program.parent / "bin").mkdir()
    program.rename(program.parent / "bin/some_test")
    (program.parent / "bin/test-programs").write_text("some_test cuda\n")
    (program.parent / "tests").mkdir()
    for name in ("test_done", "test_left", "test_failed"):
        (program.parent / f"tests/{name}.py").write_text("")
    earlier = run_tests.Counts(
        passed=5,
        failed=3,
        not_finished=["some_test Waits.SmallLost", "tests/test_left.py", "gone_test A.B"],
        failures=["some_test Kernels/fp32.SmallForward", "tests/test_failed.py::test_one", "gone_test A.C"],
    )
    jobs = run_tests.jobs_left(program.parent, program.parent, ["tests"], {"tests": earlier}, {}, "")
    assert sorted(test for job in jobs for test in job.tests) == [
        "some_test Kernels/fp32.SmallForward",
        "some_test Waits.SmallLost",
        "tests/test_failed.py::test_one",
        "tests/test_left.py",
    ]
    assert {job.command[-1] for job in jobs if job.group == "some_test"} == {
        "--gtest_filter=Waits.SmallLost:Kernels/fp32.SmallForward"
    }
    assert run_tests.without_what_runs_again(earlier, jobs, "tests") == run_tests.Counts(
        passed=5, failed=1, not_finished=["gone_test A.B"], failures=["gone_test A.C"]
    )


@pytest.mark.parametrize(
    ("status", "skipped", "failed"),
    [(0, 1, 0), (5, 0, 0), (4, 1, 0), (4, 0, 1), (1, 1, 1)],
    ids=["skipped", "skipped whole", "one test of a file skipped whole", "no such test", "died"],
)
def test_what_pytest_could_not_find_has_failed_unless_its_file_skipped_itself(
    tmp_path, status, skipped, failed
):
    job = run_tests.Job("tests", "pytest", "name", [], ["tests/test_some.py::test_one"])
    job.report(tmp_path).write_text(
        f'<testsuites><testsuite tests="{skipped}" skipped="{skipped}" failures="0" errors="0"/></testsuites>'
    )
    assert run_tests.finished_counts(job, status, tmp_path).failed == failed


def test_what_runs_apart_is_not_run_with_its_file():
    jobs = {job.name: job.command for job in run_tests.pytest_jobs(ROOT)}
    for test in run_tests.APART:
        file = test.split("::")[0]
        assert [command[-1] for command in jobs.values()].count(test) == 1
        (with_its_file,) = (command for command in jobs.values() if command[-1] == file)
        assert f"--deselect={test}" in with_its_file


@pytest.fixture
def long_and_short(tmp_path):
    """A checkout with one file of tests, of which one is long."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_some.py").write_text(
        "import pytest\n\ndef test_short():\n    pass\n\n"
        "@pytest.mark.long\ndef test_long():\n    assert False\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/test-programs").write_text("no_such_program core\n")
    return tmp_path


@pytest.mark.parametrize(("all_tests", "counts"), [("", "1 0 0 0"), ("0", "1 0 0 0"), ("1", "1 1 0 0")])
def test_pytest_alone_runs_its_long_tests_with_all_only(long_and_short, all_tests, counts):
    program = Path(run_tests.__file__)
    folder = long_and_short
    done = subprocess.run(
        [sys.executable, program, "--root", folder, "--build", folder, "--parts", "pytest"]
        + ["--logs", folder / "logs", "--totals", folder / "totals"],
        env=os.environ | {"HEADROOM_TEST_ALL": all_tests},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "totals").read_text().strip() == counts, done.stdout
