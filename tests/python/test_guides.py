"""docs/add-a-workload.md, add-a-backend.md and add-an-activation.md, followed in a copy of the checkout.

The commands are the guides' own. To them the tests add only where the build is, shorter blocks, and that pip
asks no index.
Needs a build (HEADROOM_BUILD, set by ./headroom test) for the first, compilers for the second. What the
second makes is compiled with `./headroom test --all`; that its steps fit the files is tested always.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guides import copy_of_checkout, steps_of
from worker_process import Problem, Worker, losses_of, parameters_of, relative_error

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("HEADROOM_BUILD", "")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
SHORT = ["--block-seconds", "0.02", "--no-figures"]


def tool(name: str) -> str | None:
    return shutil.which(name, path=PATH)


@pytest.fixture
def checkout(tmp_path):
    return copy_of_checkout(ROOT, tmp_path / "checkout")


def run(checkout: Path, command: str, build: str) -> subprocess.CompletedProcess:
    """A command of a guide in the copy: the build's programs, the copy's suites and Python package."""
    words = shlex.split(command)
    if words[0] != "./headroom":
        return subprocess.run(
            ["bash", "-c", command],
            cwd=checkout,
            env=os.environ | {"PATH": PATH},  # python3 is the one that runs this
            capture_output=True,
            text=True,
            timeout=120,
        )
    more = SHORT if words[1] == "run" else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADROOM_")}
    return subprocess.run(
        [*words, *more, "--build", build],
        cwd=checkout,
        # On few cores PyTorch's threads would only wait for each other.
        env=kept | {"HEADROOM_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def records(checkout: Path, done: subprocess.CompletedProcess) -> list[dict]:
    """Of the results file that the run names."""
    (name,) = set(re.findall(r"^Results: (\S+\.json)$", done.stdout, re.M))
    return json.loads((checkout / name).read_text())["records"]


@pytest.mark.skipif(not (Path(BUILD) / "bin" / "headroom").exists(), reason="HEADROOM_BUILD names no build")
def test_the_guide_to_a_workload(checkout):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    trained, listed = set(), ""
    for step in steps_of(ROOT / "docs/add-a-workload.md"):
        step.put_into(checkout)
        for command in step.commands:
            done = run(checkout, command, BUILD)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            if command == "./headroom list":
                listed = done.stdout
                continue
            for record in records(checkout, done):
                assert record["outcome"] in ("ok", "skipped"), record["message"]
                if record["backend"] == "pytorch-eager" and record["outcome"] == "ok":
                    assert record["verification"]["verdict"] == "pass"
                    trained.add(record["workload"])
    assert "narrow" in listed
    assert trained == {
        "mlp-784x64x10-b16",
        "mlp-17x64x64x6-b64-tanh-mse-adam",
        "mlp-784x16x10-b32",
        "mlp-784x32x10-b32",
        "mlp-784x32x32x10-b8",
    }


def folder_of(python: str, module: str) -> Path | None:
    """Where that Python has a package."""
    find = "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]).origin)"
    done = subprocess.run([python, "-c", find, module], capture_output=True, text=True)
    return Path(done.stdout.strip()).parent if done.returncode == 0 else None


def lend(venv: Path, *modules: str) -> None:
    """Links packages that are installed here into a virtual environment, for want of an index."""
    (target,) = (venv / "lib").glob("python3*/site-packages")
    for module in modules:
        places = (folder_of(python, module) for python in (sys.executable, "/usr/bin/python3"))
        folder = next((place for place in places if place and not (target / module).exists()), None)
        for part in folder.parent.glob(f"{module}*") if folder else ():
            (target / part.name).symlink_to(part)


def configure_and_build(checkout: Path, build: Path, *targets: str, options: tuple[str, ...] = ()) -> None:
    """A build type that CMake does not know, so no flags: what is wanted is that it compiles and runs."""
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if tool("ccache") else []
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if tool("ninja") else []
    commands = (
        [tool("cmake"), "-S", checkout, "-B", build, *generator, *launcher, "-DCMAKE_BUILD_TYPE=Quick"]
        + ["-DHEADROOM_TESTS=OFF", "-DHEADROOM_TORCH=OFF", *options],
        [tool("cmake"), "--build", build, "-j", str(os.cpu_count()), "--target", *targets],
    )
    # Where there is a ccache, what another copy compiled counts too.
    environment = os.environ | {"CCACHE_BASEDIR": str(checkout.parent), "CCACHE_NOHASHDIR": "1"}
    for command in commands:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def section(number: int) -> list:
    steps = [
        step for step in steps_of(ROOT / "docs/add-a-backend.md") if step.section.startswith(f"{number}.")
    ]
    assert len(steps) >= 3
    return steps


needs_compilers = pytest.mark.skipif(
    tool("cmake") is None or tool("c++") is None or not Path("/usr/include/nlohmann/json.hpp").exists(),
    reason="cmake, c++ or the libraries that the driver needs are not installed",
)


@pytest.mark.parametrize("number", [1, 2])
def test_the_steps_of_the_guide_to_a_backend_fit_the_files(checkout, number):
    for step in section(number):
        step.put_into(checkout)
        for command in step.commands:
            if not command.startswith("./headroom"):
                done = run(checkout, command, "")
                assert done.returncode == 0, done.stderr
        if step.new.endswith(".py"):
            compile(step.body, step.new, "exec")


@pytest.mark.long
@needs_compilers
def test_the_guide_to_a_backend_in_python(checkout, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    steps = section(1)
    for step in steps:
        step.put_into(checkout)
    build = tmp_path / "build"
    options = ("-DHEADROOM_CUDA=OFF",)
    configure_and_build(checkout, build, "headroom", "headroom-oracle-worker", options=options)
    (command,) = [command for step in steps for command in step.commands]
    done = run(checkout, command, str(build))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = {record["backend"]: record for record in records(checkout, done)}
    assert set(found) == {"pytorch-foreach", "pytorch-eager"}
    assert found["pytorch-foreach"]["verification"]["verdict"] == "pass"
    assert found["pytorch-foreach"]["step_seconds"]["median"] > 0
    # As the guide says: change the sign, and see it fail.
    file = checkout / "torch_impl/python/headroom_worker/pytorch_foreach.py"
    file.write_text(file.read_text().replace("alpha=-self", "alpha=self"))
    done = run(checkout, command, str(build))
    assert done.returncode == 1
    found = {record["backend"]: record for record in records(checkout, done)}
    assert found["pytorch-foreach"]["verification"]["verdict"] == "fail"


def nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("nvcc", path=f"{PATH}{os.pathsep}{home}/bin")


def test_the_step_of_the_guide_trains_as_the_contract_says(tmp_path):
    """Less than following it, which --all does: the package from the tree, the worker without the driver."""
    (file,) = [step for step in section(3) if step.new]
    file.put_into(tmp_path)
    problem = Problem(tmp_path)
    worker = Worker(tmp_path / "log", command=[sys.executable, str(tmp_path / file.new)])
    worker.ok("hello", protocol=2)
    worker.ok("prepare", **problem.request(backend="numpy-step"))
    parameters, found = problem.parameters, []
    for step in (0, 1, 2, 3, 4):  # the fifth begins the data anew
        worker.ok("train", first_step=step, count=1)
        loss, parameters = problem.step(parameters, step)
        found.append(loss)
    assert relative_error(parameters_of(worker, problem), parameters) <= 1e-6
    assert relative_error(losses_of(worker, problem, 0, 5), found) <= 1e-6
    momentum = {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.9}
    request = problem.request(backend="numpy-step", workload__optimizer=momentum)
    assert worker.error("prepare", **request) == ("unsupported", "momentum; it trains plain sgd")
    assert worker.end() == 0


def test_a_step_on_the_cpu_is_not_offered_where_a_gpu_is_measured(tmp_path):
    (file,) = [step for step in section(3) if step.new]
    file.put_into(tmp_path)
    worker = Worker(tmp_path / "log", device=0, command=[sys.executable, str(tmp_path / file.new)])
    (backend,) = worker.ok("hello", protocol=2)["backends"]
    assert "this run measures a GPU" in backend["precisions"]["fp32"]["unavailable"]
    assert worker.end() == 0


@pytest.mark.long
@pytest.mark.skipif(not (Path(BUILD) / "bin" / "headroom").exists(), reason="HEADROOM_BUILD names no build")
def test_the_guide_to_a_step_of_your_own(checkout):
    """The package is installed without an index: what builds it is lent."""
    for step in section(3):
        step.put_into(checkout)
        for command in step.commands:
            if " pip install " in command:
                lend(checkout / "mine", "numpy", "setuptools", "wheel")
                if not (folder_of(str(checkout / "mine/bin/python"), "wheel")):
                    pytest.skip("no setuptools and wheel are installed (Debian: python3-wheel)")
                command += " --no-index --no-build-isolation"
            done = run(checkout, command, BUILD)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert folder_of(str(checkout / "mine/bin/python"), "torch") is None
    installed = folder_of(str(checkout / "mine/bin/python"), "headroom_protocol")
    assert installed.is_relative_to(checkout / "mine")
    found = {record["backend"]: record for record in records(checkout, done)}
    assert found["numpy-step"]["verification"]["verdict"] == "pass"
    assert found["numpy-step"]["family"] == "other"
    # As the guide says: leave out the last line of the loop, and see it fail.
    file = checkout / "numpy_step.py"
    file.write_text(file.read_text().replace("        gradient = below\n", ""))
    done = run(checkout, command, BUILD)
    assert done.returncode == 1
    found = {record["backend"]: record for record in records(checkout, done)}
    assert found["numpy-step"]["outcome"] == "failed"


@pytest.mark.long
@needs_compilers
@pytest.mark.skipif(nvcc() is None, reason="no CUDA compiler on PATH or in CUDA_HOME")
def test_the_guide_to_kernels_of_your_own(checkout, tmp_path):
    for step in section(2):
        step.put_into(checkout)
        for command in step.commands:
            done = run(checkout, command, "")
            assert done.returncode == 0, done.stderr
    # One kind of GPU instead of three: the kernels are the same.
    cuda = checkout / "cmake/cuda.cmake"
    cuda.write_text(re.sub(r"(?<=HEADROOM_PORTABLE_TARGETS )[^)]+", "80-real", cuda.read_text()))
    worker = "cuda_impl/CMakeFiles/headroom-cuda-worker.dir/worker_main.cpp.o"
    driver = "bench/driver/plan/CMakeFiles/headroom_driver_plan.dir/backends.cpp.o"
    objects = (worker, driver) if tool("ninja") else ()
    options = (f"-DCMAKE_CUDA_COMPILER={nvcc()}", "-DHEADROOM_CUDA=ON")
    configure_and_build(checkout, tmp_path / "build", "headroom_mine", *objects, options=options)


def test_the_steps_of_the_guide_to_an_activation_fit_the_files(checkout):
    """Less than following it, which --all does: the files take them, and Python's tables have the name."""
    steps = steps_of(ROOT / "docs/add-an-activation.md")
    for step in steps:
        step.put_into(checkout)
    changed = {step.old for step in steps if step.old}
    for name in changed:
        # Whatever else names elu by itself has to name a new activation too, and so belongs to the guide.
        assert "oftplus" in (checkout / name).read_text()
    folders = [checkout / folder for folder in ("bench", "cuda_impl", "torch_impl")]
    with_elu = {
        path.relative_to(checkout).as_posix()
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".py") and "case Activation::kElu" in path.read_text()
    }
    assert with_elu <= changed


@pytest.mark.long
@needs_compilers
@pytest.mark.skipif(nvcc() is None, reason="no CUDA compiler on PATH or in CUDA_HOME")
def test_the_guide_to_an_activation(checkout, tmp_path):
    """The oracle, the kernels on the GPU that the CPU plays, and PyTorch all have the new one."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (command,) = [c for step in steps_of(ROOT / "docs/add-an-activation.md") for c in step.commands]
    for step in steps_of(ROOT / "docs/add-an-activation.md"):
        step.put_into(checkout)
    build = tmp_path / "build"
    options = (f"-DCMAKE_CUDA_COMPILER={nvcc()}", "-DHEADROOM_CUDA=ON", "-DHEADROOM_TESTS=ON")
    programs = ("headroom", "headroom-oracle-worker", "oracle_test", "emulated_layered_tests")
    configure_and_build(checkout, build, *programs, options=options)
    for program, names in (
        ("oracle_test", "*"),
        ("emulated_layered_tests", "*ActivationsLosses*Small*:*SmallActivationsLosses*"),
    ):
        done = subprocess.run(
            [build / "bin" / program, f"--gtest_filter={names}"], capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert "PASSED" in done.stdout
    done = run(checkout, command, str(build))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (record,) = [record for record in records(checkout, done) if record["backend"] == "pytorch-eager"]
    assert record["verification"]["verdict"] == "pass"


def follow_the_guide_to_a_topology(checkout: Path) -> list[Path]:
    """Returns the new files."""
    steps = steps_of(ROOT / "docs/add-a-topology.md")
    for step in steps:
        step.put_into(checkout)
        for command in step.commands:
            done = run(checkout, command, "")
            assert done.returncode == 0, done.stderr
    return [checkout / step.new for step in steps if step.new]


def test_the_steps_of_the_guide_to_a_topology_fit_the_files(checkout):
    """And what they make is formatted, and has what the tests of the docs want of every kernel."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    new = follow_the_guide_to_a_topology(checkout)
    sources = [path for path in new if path.suffix in (".h", ".cpp", ".cuh")]
    assert len(sources) >= 8
    if formatter := tool("clang-format"):
        command = [formatter, "--dry-run", "-Werror", *sources]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    names = ["tests/python/test_kernel_tests.py", "tests/python/test_kernel_drawings.py"]
    wanted = "has_a_line or tests_named or drawing_kept or tree_names"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", wanted, *names]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@needs_compilers
@pytest.mark.skipif(nvcc() is None, reason="no CUDA compiler on PATH or in CUDA_HOME")
def test_the_guide_to_a_topology(checkout, tmp_path):
    """The kernel passes its tests on the GPU that the CPU plays, and compiles for a GPU."""
    follow_the_guide_to_a_topology(checkout)
    build = tmp_path / "build"
    options = (f"-DCMAKE_CUDA_COMPILER={nvcc()}", "-DHEADROOM_CUDA=ON", "-DHEADROOM_TESTS=ON")
    programs = ("emulated_one_block_tests", "cuda_one_block_tests")
    configure_and_build(checkout, build, *programs, options=options)
    for program, names in zip(programs, ("*", "OneBlockCompiled.*:OneBlockPlan.*"), strict=True):
        command = [build / "bin" / program, f"--gtest_filter={names}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-4000:]
        assert "PASSED" in done.stdout and "SKIPPED" not in done.stdout
