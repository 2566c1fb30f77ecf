"""`./headroom compare` of git revisions: worktrees, the cache of builds, revisions that do not build.

CMake is a stand-in that lets each revision say what its build does; tested is what the scripts decide.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_front_door import REPOSITORY

# `cmake -S SOURCE -B FOLDER ...` remembers the source; `cmake --build FOLDER ...` runs its build-script.
STAND_IN_CMAKE = """#!/usr/bin/env bash
echo "cmake $*" >>"$STAND_IN/calls"
if [ "$1" = --version ]; then echo "cmake version 3.31.0"; exit; fi
if [ "$1" = --build ]; then
  mkdir -p "$2/bin"
  case "$*" in
    *"--target headroom "* | *"--target headroom") cp "$STAND_IN/driver" "$2/bin/headroom" ;;
    *) cd "$(cat "$2/source")" && bash ./build-script "$2/bin" ;;
  esac
else
  mkdir -p "$4"
  echo "$2" >"$4/source"
fi
"""

# Stands for the driver: which programs the suite needs, else what it was called with.
STAND_IN_DRIVER = """#!/usr/bin/env bash
case "$*" in
  *--bad-option*) echo "headroom: unknown option '--bad-option'" >&2; exit 2 ;;
  *--print-targets*) echo "$*" >>"$STAND_IN/asked"; echo headroom-oracle-worker ;;
  *) printf '%s\\n' "$@" ;;
esac
"""


class Checkout:
    def __init__(self, folder):
        self.folder, self.stand_in = folder / "checkout", folder / "stand-in"
        self.cache = folder / "cache" / "headroom"
        self.stand_in.mkdir()
        for name, text in (("cmake", STAND_IN_CMAKE), ("driver", STAND_IN_DRIVER)):
            (self.stand_in / name).write_text(text)
            (self.stand_in / name).chmod(0o755)
        # A Python of its own, since tools beside the Python in use come before PATH.
        python = self.stand_in / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{self.stand_in}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HEADROOM_PYTHON": str(python),
            "STAND_IN": str(self.stand_in),
        }
        self.folder.mkdir()
        shutil.copy(REPOSITORY / "headroom", self.folder)
        for part in ("cmake/front_door", "cmake/requirements"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / part, self.folder / part, ignore=ignored)
        self.git("init", "--quiet", "--initial-branch=main")
        (self.folder / ".gitignore").write_text("/build/\n")

    def git(self, *arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, build_script):
        (self.folder / "build-script").write_text(build_script)
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def start(self, *arguments):
        return subprocess.Popen(
            [self.folder / "headroom", "compare", *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell starts its background jobs, and what they start, with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def compare(self, *arguments):
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def builds(self):
        calls = (self.stand_in / "calls").read_text().splitlines()
        return sum("--target headroom-oracle-worker" in call for call in calls)

    def assert_clean(self):
        assert len(self.git("worktree", "list").splitlines()) == 1
        assert list(self.cache.glob("builds/work-*")) == []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


WORKS = 'echo "{}" >"$1/headroom-oracle-worker"\n'


def passed_on(done):
    """What the driver was called with, as option to value."""
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[0] == "compare"
    return dict(zip(words[1::2], words[2::2], strict=False))


def test_revisions_are_built_once_each_and_worktrees_removed(checkout):
    first = checkout.commit(WORKS.format("first"))
    second = checkout.commit(WORKS.format("second"))
    called = passed_on(checkout.compare("--base", "HEAD~1", "--head=main", "--suite", "ci"))
    for side, sha, label in (("base", first, "HEAD~1"), ("head", second, "main")):
        assert called[f"--{side}-label"] == f"{label} ({sha[:9]})"
        program = Path(called[f"--{side}"]) / "bin" / "headroom-oracle-worker"
        assert program.read_text().strip() == ("first" if side == "base" else "second")
        assert Path(called[f"--{side}"]).name.startswith(sha)
    assert called["--suite"] == "ci"
    asked = (checkout.stand_in / "asked").read_text()
    assert asked == "compare --print-targets --base HEAD~1 --head main --suite ci\n"
    checkout.assert_clean()
    assert checkout.builds() == 2
    again = passed_on(checkout.compare("--base", first, "--head", "main", "--suite", "ci"))
    assert again["--base"] == called["--base"]
    assert checkout.builds() == 2  # both from the cache
    calls = (checkout.stand_in / "calls").read_text()
    assert "-DHEADROOM_TORCH=OFF" in calls and "-DHEADROOM_TESTS=OFF" in calls
    assert "-DHEADROOM_CUDA=OFF" in calls  # this suite needs no CUDA worker


def test_head_is_this_checkout_as_it_is(checkout):
    base = checkout.commit(WORKS.format("committed"))
    (checkout.folder / "build-script").write_text(WORKS.format("changed and not committed"))
    called = passed_on(checkout.compare("--base", "HEAD"))
    assert Path(called["--base"]).name.startswith(base)
    assert called["--head-label"] == "this checkout"
    program = Path(called["--head"]) / "bin" / "headroom-oracle-worker"
    assert program.read_text().strip() == "changed and not committed"


@pytest.mark.parametrize("side", ["--base", "--head"])
def test_revision_that_does_not_exist(checkout, side):
    checkout.commit(WORKS.format("x"))
    other = "--head" if side == "--base" else "--base"
    done = checkout.compare(side, "no-such-branch", other, "HEAD")
    assert done.returncode == 2
    assert f"{side} no-such-branch: neither a build folder nor a git revision" in done.stderr
    assert "builds commit" not in done.stderr  # it is said before the other side is built
    assert done.stdout == ""
    checkout.assert_clean()


def test_revision_that_does_not_build(checkout):
    checkout.commit("echo compiling; echo 'kernel.cu(7): error: expected a semicolon'; exit 1\n")
    broken = checkout.git("rev-parse", "HEAD")
    checkout.commit(WORKS.format("x"))
    for _ in range(2):  # what failed is not in the cache
        done = checkout.compare("--base", "HEAD", "--head", broken)
        assert done.returncode == 2
        assert "kernel.cu(7): error: expected a semicolon" in done.stderr
        assert f"--head {broken}: commit {broken[:9]} does not build" in done.stderr.splitlines()[-1]
        assert done.stdout == ""
        checkout.assert_clean()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_while_a_revision_is_built(checkout, sent):
    checkout.commit('touch "$STAND_IN/building"; sleep 60\n')
    process = checkout.start("--base", "HEAD", "--head", "HEAD")
    deadline = time.monotonic() + 60
    while not (checkout.stand_in / "building").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    checkout.assert_clean()


def test_build_folders_are_used_as_they_are(checkout):
    checkout.commit(WORKS.format("x"))
    for side in ("a", "b"):
        (checkout.folder / side / "bin").mkdir(parents=True)
    called = passed_on(checkout.compare("--base", "a", "--head", "b"))
    assert (called["--base"], called["--head"], called["--head-label"]) == ("a", "b", "b")
    assert checkout.builds() == 0


def test_files_need_no_build(checkout):
    checkout.commit(WORKS.format("x"))
    done = checkout.compare("base.json", "head.json", "--format", "markdown")
    assert done.stdout.splitlines() == ["compare", "base.json", "head.json", "--format", "markdown"]
    assert checkout.builds() == 0


def test_options_are_checked_before_anything_is_built(checkout):
    checkout.commit(WORKS.format("x"))
    done = checkout.compare("--base", "HEAD", "--bad-option")
    assert done.returncode == 2
    assert "unknown option '--bad-option'" in done.stderr.splitlines()[-1]
    assert checkout.builds() == 0
    assert checkout.compare("--base").returncode == 2
