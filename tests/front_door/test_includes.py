"""A wrong include does not build: each is tried with the flags of a file in the folder it is wrong in."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("HEADROOM_BUILD", REPOSITORY / "build"))

ALLOWED = [
    ("bench/worker", "core/trainer.h"),
    ("bench/data", "core/workload.h"),
    ("bench/worker", "json/reader.h"),
    ("bench/driver/run", "worker/client.h"),
    ("bench/driver/plan", "driver/system/json_file.h"),
    ("bench/driver/results", "driver/plan/options.h"),
    ("bench/driver/run", "driver/results/results.h"),
    ("bench/driver/run", "driver/gpu/nvml.h"),
    ("bench/driver/compare", "driver/run/run.h"),
    ("bench/driver/history", "driver/compare/comparison.h"),
    ("bench/device", "core/error.h"),
    ("torch_impl/libtorch", "core/trainer.h"),
]
FORBIDDEN = [
    ("bench/core", "worker/client.h"),
    ("bench/core", "json/reader.h"),
    ("bench/core", "data/dataset.h"),
    ("bench/core", "oracle/oracle.h"),
    ("bench/core", "driver/run/run.h"),
    ("bench/oracle", "data/dataset.h"),
    ("bench/worker", "driver/run/run.h"),
    ("bench/analysis", "worker/client.h"),
    ("bench/driver/run", "device/device.h"),
    ("bench/driver/run", "layered/trainer.h"),
    ("bench/driver/run", "torch/torch.h"),
    ("bench/driver/system", "driver/plan/plan.h"),
    ("bench/driver/gpu", "driver/plan/plan.h"),
    ("bench/driver/plan", "driver/results/results.h"),
    ("bench/driver/plan", "driver/gpu/nvml.h"),
    ("bench/driver/results", "driver/run/run.h"),
    ("bench/driver/run", "driver/compare/comparison.h"),
    ("bench/driver/compare", "driver/history/history.h"),
    ("bench/device", "worker/client.h"),
    ("cuda_impl/layered", "torch/torch.h"),
    ("cuda_impl/layered", "libtorch/trainer.h"),
    ("torch_impl/libtorch", "layered/layered_trainer.h"),
]


def compile_with_flags_of(folder, header):
    """Checks a file that includes `header`, with the flags of the first C++ file in `folder`."""
    commands = BUILD / "compile_commands.json"
    if not commands.exists():
        pytest.skip(f"{BUILD} was built elsewhere")
    for entry in json.loads(commands.read_text()):
        source = Path(entry["file"])
        if source.suffix == ".cpp" and source.parent == REPOSITORY / folder:
            break
    else:
        pytest.skip(f"{BUILD} has no C++ file of {folder}")
    words = shlex.split(entry["command"])
    flags = [word for previous, word in zip(words, words[1:], strict=False) if is_kept(previous, word)]
    return subprocess.run(
        [words[0], *flags, "-fsyntax-only", "-x", "c++", "-"],
        input=f'#include "{header}"\n',
        capture_output=True,
        text=True,
        cwd=entry["directory"],
    )


def is_kept(previous, word):
    return word.startswith(("-I", "-D", "-std", "-isystem")) or previous == "-isystem"


@pytest.mark.parametrize(("folder", "header"), ALLOWED)
def test_an_allowed_include_builds(folder, header):
    result = compile_with_flags_of(folder, header)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("folder", "header"), FORBIDDEN)
def test_a_forbidden_include_does_not_build(folder, header):
    result = compile_with_flags_of(folder, header)
    assert result.returncode != 0
    assert "No such file" in result.stderr, result.stderr
