"""However the front door ends, what it started ends with it, and the lock is held until then."""

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_compare_revisions import Checkout
from test_front_door import REPOSITORY

WATCH = REPOSITORY / "cmake/front_door/watch.sh"

# Stands for a build: three processes that say their numbers, and end late when they are asked to.
SLOW = """#!/usr/bin/env bash
if [ "$1" != --build ]; then mkdir -p "$4"; exit; fi
trap 'sleep %s; exit 1' TERM
sleep 300 & echo $! >>"$STAND_IN/started"
bash -c 'echo $$ >>"$STAND_IN/started"; while :; do sleep 0.1; done' &
echo $$ >>"$STAND_IN/started"
touch "$STAND_IN/all-started"
while :; do sleep 0.1; done
"""


def is_running(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_locked(file):
    with file.open("a") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Building:
    """`./headroom list` while it builds."""

    def __init__(self, folder, patience="0", **how):
        self.checkout = Checkout(folder)
        self.stand_in, self.lock = self.checkout.stand_in, self.checkout.folder / "build/lock"
        (self.stand_in / "cmake").write_text(SLOW % patience)
        self.process = subprocess.Popen(
            [self.checkout.folder / "headroom", "list"],
            env=self.checkout.environment,
            cwd=self.checkout.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell cannot trap what it was started with ignored, as pytest's children are SIGPIPE.
            preexec_fn=self.default_signals,
            **how,
        )
        # One of the three says itself that it has started, maybe after the others.
        assert wait_until(lambda: (self.stand_in / "all-started").exists() and len(self.running()) == 3)

    @staticmethod
    def default_signals():
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    def running(self):
        return [number for number in (self.stand_in / "started").read_text().split() if is_running(number)]

    def all_ended(self):
        return not self.running()


SIGNALS = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize("sent", SIGNALS, ids=lambda one: one.name)
def test_a_signal_to_the_front_door_alone_ends_the_build(tmp_path, sent):
    building = Building(tmp_path)
    assert is_locked(building.lock)
    building.process.send_signal(sent)
    errors = building.process.communicate(timeout=30)[1]
    if sent == signal.SIGKILL:
        assert wait_until(building.all_ended)
        assert wait_until(lambda: not is_locked(building.lock))
    else:
        assert building.process.returncode == 130
        assert building.all_ended()
        assert not is_locked(building.lock)
        assert errors.splitlines()[-1] == "headroom: interrupted"


def test_the_end_of_the_whole_group_ends_the_build(tmp_path):
    building = Building(tmp_path, start_new_session=True)
    os.killpg(building.process.pid, signal.SIGKILL)
    building.process.communicate(timeout=30)
    assert wait_until(building.all_ended)


def test_the_lock_is_held_until_the_last_process_has_ended(tmp_path):
    building = Building(tmp_path, patience="0.5")
    building.process.kill()
    building.process.wait()
    while len(building.running()) > 0:
        assert is_locked(building.lock) or not building.running()
        time.sleep(0.05)
    assert wait_until(lambda: not is_locked(building.lock))


def test_what_ignores_the_request_is_ended_all_the_same():
    stubborn = subprocess.Popen(
        ["bash", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stubborn.stdout.readline()
    # Its waits between two looks are cut short here.
    script = f"sleep() {{ command sleep 0.001; }}; . {WATCH}; end_group {stubborn.pid}"
    subprocess.run(["bash", "-euc", script], check=True, timeout=30)
    assert stubborn.wait(timeout=10) == -signal.SIGKILL


STAND_IN_APT = """#!/bin/sh
[ "$1 $2" = "install -y" ] || exit 0
touch "$STAND_IN/begun"
while [ ! -e "$STAND_IN/go-on" ]; do sleep 0.05; done
touch "$STAND_IN/ended"
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_system_packages_are_installed_to_the_end_under_the_lock(tmp_path, sent):
    """An interrupted dpkg has to be mended by hand."""
    (tmp_path / "apt-get").write_text(STAND_IN_APT)
    (tmp_path / "apt-get").chmod(0o755)
    script = f"""
        set -euo pipefail
        front_door={WATCH.parent}
        for part in own_environment say attended packages; do . "$front_door/$part.sh"; done
        with_lock "$cache/lock" install_packages a-package
    """
    process = subprocess.Popen(
        ["bash", "-c", script],
        env=os.environ
        | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(tmp_path),
            "STAND_IN": str(tmp_path),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until((tmp_path / "begun").exists)
    process.send_signal(sent)
    errors = process.communicate(timeout=30)[1]
    assert sent == signal.SIGKILL or "goes on to its end" in errors.splitlines()[-1]
    assert is_locked(tmp_path / "headroom/lock")
    (tmp_path / "go-on").touch()
    assert wait_until((tmp_path / "ended").exists)
    assert wait_until(lambda: not is_locked(tmp_path / "headroom/lock"))


def test_nobody_reads_what_the_front_door_says(tmp_path):
    """As in `./headroom list 2>&1 | head -n 1`."""
    building = Building(tmp_path)
    building.process.stderr.close()
    building.process.stdout.close()
    building.process.terminate()
    assert building.process.wait(timeout=30) == 130
    assert building.all_ended()


def test_a_command_that_ends_by_itself_leaves_no_watcher_and_no_lock(tmp_path):
    checkout = Checkout(tmp_path)
    for _ in range(2):
        done = subprocess.run(
            [checkout.folder / "headroom", "list"],
            env=checkout.environment,
            cwd=checkout.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, "list\n"), done.stderr
        assert "waiting for another" not in done.stderr
        assert not is_locked(checkout.folder / "build/lock")
    watchers = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(checkout.folder).encode() in contents(path) and b"watch.sh" in contents(path)
    ]
    assert watchers == []


def contents(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
