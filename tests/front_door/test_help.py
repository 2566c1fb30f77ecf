"""Help needs no build: the front door prints files, and they are what the driver itself says.

HEADROOM_BUILD=build python tests/front_door/test_help.py    writes the files anew
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "cmake/front_door/help"
COMMANDS = ("run", "compare", "list", "calibrate", "history", "profile")
DRIVER = Path(os.environ.get("HEADROOM_BUILD", "nowhere")) / "bin/headroom"


def help_of_driver(command):
    return subprocess.run(
        [DRIVER, command, "--help"],
        env=os.environ | {"HEADROOM_COMMAND": "./headroom"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.skipif(not DRIVER.exists(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_kept_help_is_the_drivers(command):
    kept = (FOLDER / f"{command}.txt").read_text()
    # Versions of CLI11 differ in blanks and capitals.
    assert kept.lower().split() == help_of_driver(command).lower().split(), (
        "HEADROOM_BUILD=build python tests/front_door/test_help.py writes the files anew"
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_needs_no_build_and_no_home(tmp_path, command, option):
    """In a folder that is no checkout: whatever set up or built there would be seen."""
    (tmp_path / "cmake").mkdir()
    (tmp_path / "headroom").symlink_to(ROOT / "headroom")
    began = time.monotonic()
    result = subprocess.run(
        [tmp_path / "headroom", command, "--suite", "quick", option],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{tmp_path}/headroom {command} [OPTIONS]" in result.stdout
    assert ("--format" if command == "history" else "--device") in result.stdout
    assert time.monotonic() - began < 5


@pytest.mark.skipif(not DRIVER.exists(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--sweet", "ci"], "See {} run --help"),
        (["calibrate", "--device", "x"], "see {} calibrate --help"),
        (["rnu"], "See {} --help"),
        (["run", "--suite", "quack"], "`{} list` shows them"),
        (["run", "--workload", "mlp-4x2-b2", "--backend", "oracel"], "`{} list` shows them"),
    ],
)
@pytest.mark.parametrize("called", ["./headroom", None])
def test_messages_name_what_the_user_typed(arguments, said, called):
    environment = os.environ | {"HEADROOM_ROOT": str(ROOT)} | ({"HEADROOM_COMMAND": called} if called else {})
    if not called:
        environment.pop("HEADROOM_COMMAND", None)
    result = subprocess.run([DRIVER, *arguments], env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    assert said.format(called or "headroom") in result.stderr


def version_of_front_door(root=ROOT):
    return subprocess.run([root / "headroom", "--version"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not DRIVER.exists(), reason="HEADROOM_BUILD names no build")
def test_the_driver_and_the_front_door_say_the_same_version():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADROOM_")}
    done = subprocess.run(
        [DRIVER, "--version"],
        env=environment | {"HEADROOM_ROOT": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == version_of_front_door()
    assert done.stdout.startswith("headroom 0.2.0 (")


def test_the_version_says_the_commit_and_whether_files_were_changed(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    shutil.copy(ROOT / "headroom", tmp_path)
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    shutil.copytree(ROOT / "cmake", tmp_path / "cmake")
    assert version_of_front_door(tmp_path) == "headroom 0.2.0 (no commit is known)\n"
    git("init", "-q")
    git("add", "headroom", "CMakeLists.txt")
    git("commit", "-q", "-m", "all")
    assert re.fullmatch(r"headroom 0\.2\.0 \(commit [0-9a-f]{10}, clean\)\n", version_of_front_door(tmp_path))
    (tmp_path / "CMakeLists.txt").write_text("project(headroom VERSION 0.2.0 LANGUAGES CXX)\n")
    assert version_of_front_door(tmp_path).endswith(", with changes)\n")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in COMMANDS:
        (FOLDER / f"{name}.txt").write_text(help_of_driver(name))
