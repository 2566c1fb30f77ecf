"""The front door in surroundings that it did not choose: variables, folders and checkouts of the user's.

Builds and installations are stand-ins of a few lines, as in test_front_door.py and test_compare_revisions.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_compare_revisions import STAND_IN_CMAKE, WORKS, Checkout
from test_front_door import REPOSITORY, pretend_pytorch, run

SCRIPTS = [REPOSITORY / "headroom", *sorted((REPOSITORY / "cmake/front_door").glob("*.sh"))]
ASSIGNED = re.compile(
    r"(?:^|[\s;({])([A-Za-z_][A-Za-z0-9_]*)\+?=(?!=)|\bread (?:-\w+ )*([\w ]+)|for (\w+) in", re.M
)
GARBAGE = "/nowhere/*; exit 7"


def variables_of_the_scripts():
    """Every name that the scripts assign, but for those that they export on purpose."""
    names = set()
    for script in SCRIPTS:
        text = re.sub(r"<<'?TEXT'?$.*?^TEXT$", "", script.read_text(), flags=re.S | re.M)
        text = re.sub(r"(^|\s)#.*", "", text)
        for groups in ASSIGNED.findall(text):
            names.update(" ".join(groups).split())
    return {name for name in names if not name.startswith(("HEADROOM_", "DEBIAN_", "TMPDIR", "IFS"))}


def test_variables_of_the_scripts_have_names_in_small_letters():
    """Only those are taken back from the environment."""
    names = variables_of_the_scripts()
    assert {"python", "base_python", "root", "build", "cache", "level", "inputs", "toolkit"} <= names
    assert [name for name in sorted(names) if not re.fullmatch("[a-z0-9_]+", name)] == []


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def listed(checkout, *arguments, **variables):
    """`list` with the stand-in for CMake, whose driver prints what it was called with."""
    return subprocess.run(
        [checkout.folder / "headroom", "list", *arguments],
        env=checkout.environment | variables,
        cwd=checkout.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def without_times(messages):
    """A step that ends at once is announced by its end only."""
    lines = [line for line in messages.splitlines() if not line.endswith(".log)")]
    return [re.sub(r"\d+ s", "", line) for line in lines]


def test_exported_variables_with_the_scripts_names_change_nothing(checkout, tmp_path):
    plain, set_up = [], checkout.folder / "build/set-up"
    for _ in range(2):  # the second time with the choice of the first
        plain.append(listed(checkout))
        kept = set_up.read_text()
    shutil.rmtree(checkout.folder / "build")
    garbage = dict.fromkeys(variables_of_the_scripts(), GARBAGE)
    function = {"BASH_FUNC_step%%": "() { echo the wrong step; }", "BASH_FUNC_sed%%": "() { exit 9; }"}
    for expected in plain:
        result = listed(checkout, **garbage, **function)
        assert (result.returncode, result.stdout) == (0, "list\n"), result.stderr
        assert without_times(result.stderr) == without_times(expected.stderr)
        assert set_up.read_text() == kept


def test_proxies_stay_in_the_environment(copy_of_moved_build):
    root, environment, build = copy_of_moved_build
    (build / "bin/headroom").write_text('#!/bin/sh\necho "$https_proxy $no_proxy ${level-unset}"\n')
    environment |= {"https_proxy": "http://proxy:3128", "no_proxy": "localhost", "level": "all"}
    assert run(root, environment, "list", "--build", str(build)).stdout == (
        "http://proxy:3128 localhost unset\n"
    )


@pytest.fixture
def copy_of_moved_build(tmp_path):
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "headroom", root)
    for folder in ("cmake/front_door", "cmake/requirements"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = tmp_path / "moved"
    (build / "bin").mkdir(parents=True)
    (build / "bin/headroom").write_text('#!/bin/sh\nenv | grep -E "^(PYTHON|HEADROOM_)" | sort\n')
    (build / "bin/headroom").chmod(0o755)
    (build / "bin/build-record").write_text("build_torch_version=2.11.0+cu130\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "HEADROOM_PYTHON": str(pretend_pytorch(tmp_path)),
    }
    return root, environment, build


def test_python_runs_isolated(copy_of_moved_build, tmp_path):
    root, environment, build = copy_of_moved_build
    broken = tmp_path / "broken"
    broken.mkdir()
    for module in ("numpy", "re", "sitecustomize"):
        (broken / f"{module}.py").write_text("raise SystemExit('broken')\n")
    environment |= {
        "PYTHONPATH": str(broken),
        "PYTHONHOME": "/nowhere",
        "PYTHONSTARTUP": str(broken / "re.py"),
        "PYTHONSAFEPATH": "1",
        "PYTHONHASHSEED": "no number",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    result = run(root, environment, "list", "--build", str(build))
    assert result.returncode == 0, result.stderr
    (line,) = (line for line in result.stderr.splitlines() if "runs isolated" in line)
    assert "PYTHONPATH" in line and "PYTHONHOME" in line
    assert "PYTHONNOUSERSITE" not in line and "PYTHONUNBUFFERED" not in line
    passed_on = [line for line in result.stdout.splitlines() if line.startswith("PYTHON")]
    assert passed_on == ["PYTHONNOUSERSITE=1", "PYTHONUNBUFFERED=1"]


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "here"}, {"XDG_CACHE_HOME": "cache"}])
def test_a_command_that_needs_the_cache_asks_for_a_home(copy_of_moved_build, home):
    root, environment, build = copy_of_moved_build
    del environment["HOME"]
    environment |= home
    # report needs an environment when the Python has no Jinja2
    hollow = root.parent / "hollow"
    hollow.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    hollow.chmod(0o755)
    result = run(root, environment | {"HEADROOM_PYTHON": str(hollow)}, "report", "a.json", "-o", "a")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "set HOME or XDG_CACHE_HOME" in line
    for command in (["--help"], ["list", "--build", str(build)], ["run", "--help"], ["clean", "--help"]):
        result = run(root, environment, *command)
        assert (result.returncode, "HOME" in result.stderr) == (0, False), result.stderr
    assert not (root / "cache").exists() and not (root / "here").exists()


def test_a_relative_cache_folder_is_ignored(copy_of_moved_build):
    root, environment, _ = copy_of_moved_build
    environment["XDG_CACHE_HOME"] = "cache"
    assert f"{environment['HOME']}/.cache/headroom" in run(root, environment, "clean", "--help").stdout


def test_cdpath_and_other_variables_of_the_shell_change_nothing(copy_of_moved_build, tmp_path):
    root, environment, build = copy_of_moved_build
    (root / "moved").symlink_to(build)
    environment |= {"CDPATH": f"{root}:{tmp_path}", "GLOBIGNORE": "*", "GREP_OPTIONS": "-v"}
    result = run(root, environment, "list", "--build", "moved")
    assert (result.returncode, result.stderr) == (0, "")
    assert "HEADROOM_BUILD=" in result.stdout


def test_build_needs_a_name_and_double_dash_ends_the_front_doors_options(copy_of_moved_build):
    root, environment, build = copy_of_moved_build
    for option in (["--build="], ["--build", ""]):
        assert "--build needs a folder" in run(root, environment, "list", *option).stderr
    (build / "bin/headroom").write_text('#!/bin/sh\necho "$@"\n')
    (root / "-b").symlink_to(build)
    result = run(root, environment, "compare", "--build", "-b", "--", "--base", "--help")
    assert (result.returncode, result.stdout) == (0, "compare -- --base --help\n"), result.stderr


def test_another_programs_output_is_not_evaluated(copy_of_moved_build, tmp_path):
    root, environment, build = copy_of_moved_build
    for text in (
        'echo "base_version=3.11.0; touch evaluated"; echo "touch evaluated"; echo \'x=$(touch evaluated)\'',
        'exec /bin/ls "$@"',
    ):
        (tmp_path / "other").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "other").chmod(0o755)
        environment["HEADROOM_PYTHON"] = str(tmp_path / "other")
        result = run(root, environment, "list", "--build", str(build))
        assert result.returncode == 2
        assert result.stderr.splitlines() == [f"headroom: {tmp_path}/other does not run as a Python"]
        assert not (root / "evaluated").exists()


def test_a_moved_builds_record_is_not_evaluated(copy_of_moved_build):
    root, environment, build = copy_of_moved_build
    lines = "touch evaluated\nbuild_git_sha=0123abc$(touch evaluated)\npython=/nowhere\n"
    (build / "bin/build-record").write_text(f"{lines}build_torch_version=2.11.0+cu130\n")
    result = run(root, environment, "list", "--build", str(build))
    assert (result.returncode, result.stderr) == (0, "")
    assert "HEADROOM_BUILD_GIT_SHA=0123abc$(touch evaluated)" in result.stdout
    assert f"HEADROOM_PYTHON={environment['HEADROOM_PYTHON']}" in result.stdout
    assert not (root / "evaluated").exists()


def test_a_saved_choice_is_not_evaluated(checkout):
    assert listed(checkout).returncode == 0
    saved = checkout.folder / "build/set-up"
    kept = saved.read_text()
    # The second is one of a version that wrote it for the shell to evaluate.
    for text in (f"touch evaluated\nroot=/nowhere\n{kept}", re.sub("=(.*)", r'="\1"', kept)):
        saved.write_text(text)
        result = listed(checkout)
        assert (result.returncode, result.stdout) == (0, "list\n")
        assert "set-up" not in result.stderr and not (checkout.folder / "evaluated").exists()
    assert saved.read_text() == kept


@pytest.mark.parametrize("command", ["run", "list", "compare", "calibrate", "report", "test"])
def test_a_current_folder_that_is_gone_is_said(copy_of_moved_build, tmp_path, command):
    root, environment, _ = copy_of_moved_build
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "{root}/headroom" {command}'
    result = subprocess.run(["bash", "-c", script + " a b"], env=environment, capture_output=True, text=True)
    assert result.returncode == 2
    # The shell has said its own before the first line of the script.
    ours = [line for line in result.stderr.splitlines() if not line.startswith("shell-init: ")]
    assert ours == [
        "headroom: the current folder is gone (removed, or made anew); change to one that is there"
    ]
    gone.mkdir()
    result = subprocess.run(
        ["bash", "-c", script + " --help"], env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout != "") == (0, True)


QUIET_NINJA = "[0/2] Re-checking globbed directories...\nninja: no work to do."


@pytest.mark.parametrize(
    ("printed", "is_said"),
    [
        (QUIET_NINJA, False),
        ("[ 50%] Built target headroom_core\n[100%] Built target headroom", False),
        ("[1/2] Building CXX object a.o\n[2/2] Linking CXX executable headroom", True),
        ("[0/1] Re-running CMake...\n-- Configuring done\nninja: no work to do.", True),
        ("[ 50%] Building CXX object a.o\n[100%] Built target headroom", True),
    ],
)
def test_a_build_is_announced_when_something_is_built(checkout, printed, is_said):
    text = f"[ \"$1\" != --build ] || cat <<'TEXT'\n{printed}\nTEXT\n"
    cmake = checkout.stand_in / "cmake"
    cmake.write_text(STAND_IN_CMAKE.replace('if [ "$1" = --build ]', text + 'if [ "$1" = --build ]', 1))
    assert "building the driver, once" in listed(checkout).stderr or not is_said
    result = listed(checkout)
    assert (result.returncode, result.stdout) == (0, "list\n")
    assert (result.stderr != "") == is_said
    assert "building the driver: done" in result.stderr or not is_said


def refusing_git(checkout):
    """Stands for git in another user's checkout."""
    git = checkout.stand_in / "git"
    git.write_text(
        "#!/bin/sh\necho \"fatal: detected dubious ownership in repository at '$2'\" >&2\nexit 128\n"
    )
    git.chmod(0o755)


def test_a_checkout_that_git_refuses_is_said_so(checkout):
    checkout.commit(WORKS.format("x"))
    refusing_git(checkout)
    done = checkout.compare("--base", "HEAD")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "--base HEAD: not a build folder, and git does not read" in last
    assert "fatal: detected dubious ownership" in last


def test_a_revision_that_a_shallow_clone_lacks_is_said_so(checkout, tmp_path):
    checkout.commit(WORKS.format("first"))
    checkout.commit(WORKS.format("second"))
    full, shallow = checkout.folder, tmp_path / "shallow"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{full}", shallow], check=True)
    checkout.folder = shallow
    done = checkout.compare("--base", "HEAD~1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "which is shallow; get its history with: git fetch --unshallow"
    )
    checkout.git("fetch", "--quiet", "--unshallow")
    assert checkout.compare("--base", "HEAD~1").returncode == 0


def test_a_git_hooks_repository_is_not_taken_for_this_one(checkout, tmp_path):
    sha = checkout.commit(WORKS.format("x"))
    subprocess.run(["git", "init", "--quiet", tmp_path / "other"], check=True)
    checkout.environment |= {
        "GIT_DIR": str(tmp_path / "other/.git"),
        "GIT_WORK_TREE": str(tmp_path / "other"),
    }
    done = checkout.compare("--base", "HEAD")
    assert done.returncode == 0, done.stderr
    assert f"HEAD ({sha[:9]})" in done.stdout


DRIVER = Path(os.environ.get("HEADROOM_BUILD", "nowhere")) / "bin/headroom"


@pytest.mark.skipif(not DRIVER.exists(), reason="HEADROOM_BUILD names no build")
@pytest.mark.parametrize("is_checkout", [True, False])
def test_the_driver_says_that_git_does_not_tell_the_commit(checkout, tmp_path, is_checkout):
    refusing_git(checkout)
    root = tmp_path / "root"
    shutil.copytree(REPOSITORY / "bench/suites", root / "bench/suites")
    if is_checkout:
        (root / ".git").mkdir()
    environment = checkout.environment | {"HEADROOM_ROOT": str(root), "HOME": str(tmp_path)}
    environment.pop("HEADROOM_BUILD_GIT_SHA", None)
    run_it = ["run", "--workload", "mlp-4x3x2-b2", "--backend", "oracle", "--device", "-1", "--no-figures"]
    output = ["--output", str(tmp_path / "a.json")]
    done = subprocess.run([DRIVER, *run_it, *output], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "git does" in line]
    expected = (
        f"headroom: git does not tell the commit of {root}, so the results name none; "
        f"why: git -C {root} status"
    )
    assert said == ([expected] if is_checkout else [])
