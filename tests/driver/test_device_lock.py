"""The lock of a device: what stands in its place is told, and --share-device is the way out."""

import fcntl
import os
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from compared import BUILD, PROGRAM, ROOT, SMALL

FAULT_WORKER = f"fault={Path(BUILD) / 'bin' / 'headroom-fault-worker'}"
CALIBRATE = [PROGRAM, "calibrate", "--device", "-1", "--worker", FAULT_WORKER]
RUN = [PROGRAM, "run", "--workload", SMALL, "--worker", FAULT_WORKER, "--backend", "oracle-honest"]
RUN += ["--output", "a.json", "--no-figures"]


@pytest.fixture
def device_lock(tmp_path, monkeypatch):
    """Where the lock of a made-up device is; nothing is there yet."""
    device = f"GPU-{uuid.uuid4()}"
    for name, value in {"FAULT_DEVICE": device, "FAULT_CALIBRATION": "", "HEADROOM_ROOT": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    path = Path(f"/tmp/headroom-{device}.lock")
    yield path
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def called(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.mkdir(), "it is a folder"),
        (lambda path: path.symlink_to("/dev/null"), "it is a symbolic link"),
        (lambda path: os.mkfifo(path), "it is no file"),
    ],
    ids=["folder", "link", "pipe"],
)
def test_a_lock_that_cannot_be_had_is_an_error_with_a_way_out(device_lock, make, reason):
    make(device_lock)
    begun = time.monotonic()
    refused = called(RUN)
    assert refused.returncode == 2
    assert f"the device's lock {device_lock} cannot be taken: {reason}" in refused.stderr
    assert "--share-device" in refused.stderr
    assert not Path("a.json").exists()
    shared = called([*CALIBRATE, "--share-device"])
    assert shared.returncode == 0, shared.stderr
    assert f"is not known: the device's lock {device_lock} cannot be taken: {reason}" in shared.stderr
    assert time.monotonic() - begun < 30


def test_calibrate_that_finds_the_device_in_use_has_the_ways_out_that_it_names(device_lock):
    with open(device_lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = called(CALIBRATE)
        assert refused.returncode == 2
        assert "--wait, or go on with --share-device" in refused.stderr
        shared = called([*CALIBRATE, "--share-device"])
        assert shared.returncode == 0, shared.stderr
        waiting = subprocess.Popen(
            [*CALIBRATE, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert "Waiting for the run that uses device" in waiting.stderr.readline()
    waiting.communicate(timeout=20)
    assert waiting.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_lock_of_another_user_with_a_narrow_umask_is_seen(device_lock):
    def become_nobody():
        os.umask(0o077)
        os.setgid(65534)
        os.setuid(65534)

    made = subprocess.run(CALIBRATE, capture_output=True, check=False, preexec_fn=lambda: os.umask(0o077))
    assert made.returncode == 0
    with open(device_lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            refused = called(CALIBRATE, preexec_fn=become_nobody)
        except PermissionError:
            pytest.skip("another user cannot reach this build")
    assert (refused.returncode, "is in use by another run" in refused.stderr) == (2, True), refused.stderr
