"""The drawings of docs/kernels are those of the sources."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
import kernel_drawings
from svg import file_of
from test_kernel_tests import kernels_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", kernel_drawings.DRAWINGS)
def test_the_drawing_kept_is_what_the_program_makes(name):
    kept = (ROOT / f"docs/kernels/{name}.svg").read_text(encoding="utf-8")
    made = file_of(kernel_drawings.DRAWINGS[name]())
    assert made == kept, "python plots/kernel_drawings.py -o docs/kernels writes it anew"


def test_the_tree_names_every_kernel():
    named = {f"{one.folder}/{name}.cuh" for one in kernel_drawings.strategies(ROOT) for name in one.kernels}
    assert kernels_of(ROOT) - named == set()


def test_a_kernel_and_a_row_that_are_added_are_drawn(tmp_path):
    shutil.copytree(ROOT / "cuda_impl", tmp_path / "cuda_impl")
    (tmp_path / "cuda_impl/tiled/other_step.cuh").write_text("__global__ void other_kernel();\n")
    worker = tmp_path / "cuda_impl/worker_main.cpp"
    row = '      {.name = "cuda-other",\n       .make_trainer = make_tiled_trainer(request)},\n'
    text = worker.read_text()
    worker.write_text(text.replace('      {.name = "cuda-tiled",', f'{row}      {{.name = "cuda-tiled",'))
    drawn = file_of(kernel_drawings.draw_tree(tmp_path))
    assert "other_step" in drawn and "cuda-other" in drawn


def test_the_step_names_functions_of_the_slice_kernel_in_the_order_of_their_calls():
    text = (ROOT / "cuda_impl/resident/slice_step.cuh").read_text()
    names = [name for part in kernel_drawings.STEP for name in part.functions.split(", ")]
    for name in set(names):
        assert re.search(rf"MACHINE_DEVICE \w+ {name}\(", text), name
    step = text[text.index("bool pass(") : text.index("// ---- forward")]
    # Inputs are staged at several places, as it suits the precision.
    calls = [name for name in dict.fromkeys(names) if f" {name}(" in step and not name.startswith("stage_")]
    first_calls = [step.index(f" {name}(") for name in calls]
    assert first_calls == sorted(first_calls) and len(first_calls) >= 8


def test_what_a_part_takes_was_given_before():
    given: list[str] = []
    for part in kernel_drawings.STEP:
        assert not part.takes or part.takes in given
        given += [part.gives] if part.gives else []
    assert given == ["h1", "h2", "h3", "d2"]


def test_the_program_writes_both_and_says_in_a_line_where_it_cannot(tmp_path):
    program = [sys.executable, ROOT / "plots/kernel_drawings.py", "--png", "-o"]
    done = subprocess.run([*program, tmp_path / "figures"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"{name}.{form}" for name in sorted(kernel_drawings.DRAWINGS) for form in ("png", "svg")]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == names
    (tmp_path / "file").write_text("")
    done = subprocess.run([*program, tmp_path / "file"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and str(tmp_path / "file") in done.stderr
