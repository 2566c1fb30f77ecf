"""The drawings of docs/kernels as SVG files: the tree of cuda_impl, and the life of a resident step.

    python plots/kernel_drawings.py -o docs/kernels

The tree is read from the sources: folders, kernels, and the rows of the worker. The step is drawn from the
list below; tests/python/test_kernel_drawings.py compares its names with the kernel.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from program import BAD_INPUT, end_with, show
from style import INK, MUTED, Page, text_inches
from svg import file_of, save

ROOT = Path(__file__).resolve().parents[1]
CHAIN, PUT_OFF, TRAVELS, BASE, TOPOLOGY, ROW = (
    "#cfe2f3",
    "#f2f2f2",
    "#b45309",
    "#e6efe1",
    "#cfe2f3",
    "#fbe5cc",
)


# ---- what both are made of


def blank_page(title: str, subtitle: str, notes: list[str], width: float, height: float) -> tuple[Page, Axes]:
    """Axes in inches, y downwards, without a frame."""
    page = Page(title, subtitle, notes, width, [height], columns=1, left=0.15, right=0.15, gap=0, foot=0.1)
    axes = page.axes[0][0]
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return page, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, color: str) -> None:
    edge = {"boxstyle": "round,pad=0,rounding_size=0.05", "linewidth": 0.8, "edgecolor": "#888888"}
    axes.add_patch(FancyBboxPatch((x, y), width, height, facecolor=color, clip_on=False, **edge))


def words(axes: Axes, x: float, y: float, text: str, size: float = 8.6, color: str = INK, **options) -> None:
    axes.text(x, y, text, fontsize=size, color=color, va="center_baseline", **options)


def in_lines(names: list[str], width: float, size: float) -> list[str]:
    """The names with commas between them, in lines of `width` inches at most."""
    lines: list[str] = []
    for name in names:
        longer = f"{lines[-1]} {name}," if lines else ""
        if lines and text_inches(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(f"{name},")
    return [*lines[:-1], lines[-1].rstrip(",")] if lines else []


# ---- the tree


@dataclass(frozen=True)
class Strategy:
    folder: str
    kernels: list[str]  # headers, or sources where each holds one operation
    rows: list[str]
    compiled: bool  # some for the network at hand
    rules: bool  # trains more than plain SGD, ReLU and cross-entropy


# What is drawn from left to right, and the makers by which the worker's rows are known.
MAKERS = {
    "layered": ("make_layered_trainer",),
    "resident": ("make_resident_trainer",),
    "streamed": ("make_streamed_trainer", "make_compiled_streamed_trainer"),
    "tiled": ("make_tiled_trainer", "make_compiled_tiled_trainer"),
    "fused": ("make_fused_trainer", "make_compiled_fused_trainer"),
    "narrow": ("make_compiled_fused_trainer",),
}
HELPERS = {
    "prepare",
    "pack",
    "update",
    "launch",
    "slice_kernel",
    "wide_update",
}  # beside the kernels that train


def strategies(root: Path) -> list[Strategy]:
    sources = root / "cuda_impl"
    worker = (sources / "worker_main.cpp").read_text()
    offered = re.split(r"^\s+\{\.name = ", worker, flags=re.M)[1:]
    found = []
    for folder, makers in MAKERS.items():
        names = set()
        requests = "".join(path.read_text() for path in sorted((sources / folder).glob("*.cpp")))
        for path in sorted((sources / folder).glob("*.cu*")):
            has_kernel = "__global__" in path.read_text() or f'{path.name}"' in requests
            if has_kernel and path.stem not in HELPERS:
                names.add(path.stem)
        text = "".join(path.read_text() for path in sorted((sources / folder).rglob("*.*")) if path.is_file())
        rows = [
            re.match(r'"([^"]+)"', row).group(1) for row in offered if any(f"{m}(" in row for m in makers)
        ]
        found.append(
            Strategy(folder, sorted(names), rows, "jit/request.h" in text, '#include "rules/' in text)
        )
    return found


def headers_of(folder: Path) -> list[str]:
    return sorted(
        {path.stem for path in folder.glob("*.cuh")} | {path.stem for path in folder.glob("*_trainer.h")}
    )


def draw_tree(root: Path) -> Page:
    found = strategies(root)
    width, size = 9.0, 7.8
    gap = 0.1
    share = (width - gap * (len(found) - 1)) / len(found)
    kernel_lines = {one.folder: in_lines(one.kernels, share - 0.16, size) for one in found}
    rows_height = 0.24 + 0.16 * max(len(one.rows) for one in found)
    kernels_height = 0.42 + 0.16 * max(len(lines) for lines in kernel_lines.values())
    wide = [
        ("trainers", "the host's halves: " + ", ".join(headers_of(root / "cuda_impl/trainers"))),
        ("ranks", "several GPUs: a trainer and a thread for each, its part of the data, NCCL"),
        ("jit", "kernels compiled for the network at hand: request, cache, nvcc or NVRTC"),
        ("rules", "what is trained: " + ", ".join(headers_of(root / "cuda_impl/rules"))),
    ]
    machine = in_lines(headers_of(root / "cuda_impl/machine"), width - 0.3, size)
    page, axes = blank_page(
        "cuda_impl: what stands on what",
        "A topology (blue) includes what is below it; the worker offers it as the rows above it",
        ["* trains every activation, loss and optimizer, or some. c: compiled for the network at hand."],
        width,
        0.5 + rows_height + kernels_height + 0.42 * len(wide) + 0.42 + 0.16 * len(machine),
    )
    y = 0.0
    box(axes, 0, y, width, 0.36, ROW)
    words(axes, 0.1, y + 0.19, "choice", weight="bold")
    words(axes, 0.75, y + 0.19, "the row cuda: makes each of these rows, times them, and keeps the fastest")
    y += 0.46
    for place, one in enumerate(found):
        x = place * (share + gap)
        box(axes, x, y, share, rows_height, ROW)
        for line, row in enumerate(one.rows):
            words(axes, x + 0.08, y + 0.2 + 0.16 * line, row, size)
    y += rows_height + 0.1
    for place, one in enumerate(found):
        x = place * (share + gap)
        box(axes, x, y, share, kernels_height, TOPOLOGY)
        marks = f"{' *' if one.rules else ''}{' c' if one.compiled else ''}"
        words(axes, x + 0.08, y + 0.17, one.folder + marks, weight="bold")
        for line, text in enumerate(kernel_lines[one.folder]):
            words(axes, x + 0.08, y + 0.4 + 0.16 * line, text, size)
    y += kernels_height + 0.1
    for name, text in wide:
        box(axes, 0, y, width, 0.34, BASE)
        words(axes, 0.1, y + 0.18, name, weight="bold")
        words(axes, 0.95, y + 0.18, text, size)
        y += 0.42
    box(axes, 0, y, width, 0.36 + 0.16 * len(machine), BASE)
    words(axes, 0.1, y + 0.18, "machine", weight="bold")
    words(axes, 0.95, y + 0.18, "what the chip does, named once", size)
    for line, text in enumerate(machine):
        words(axes, 0.1, y + 0.4 + 0.16 * line, text, size)
    return page


# ---- a resident step


@dataclass(frozen=True)
class Part:
    what: str
    functions: str  # of SliceMember, in resident/slice_step.cuh
    on_chain: bool = True
    takes: str = ""  # what it waits for from the others
    gives: str = ""  # what it publishes for them


STEP = [
    Part("h1 = relu(x W1' + b1)", "forward_first, publish_hidden", gives="h1"),
    Part("columns and rows of W2, as the step before left off", "update_columns, update_rows", False),
    Part("h2 = relu(h1 W2' + b2)", "forward, publish_hidden", takes="h1", gives="h2"),
    Part("rows of W3", "update_rows", False),
    Part("h3 = relu(h2 W3' + b3)", "forward, publish_hidden", takes="h2", gives="h3"),
    Part("W4, which every member has whole", "update_last", False),
    Part("z = h3 W4' + b4", "logits", takes="h3"),
    Part(
        "loss and dz, by every member; inputs of the next step", "gradient_of_loss, stage_columns, stage_rows"
    ),
    Part("d3 = mask(dz W4), by every member", "gradient_below_last"),
    Part("d2 = mask(d3 W3)", "sum_columns, publish_gradient", gives="d2"),
    Part("columns of W3", "update_columns", False),
    Part("d1 = mask(d2 W2), which stays", "sum_columns, publish_gradient", takes="d2"),
    Part("W1 -= rate * d1' x", "update_first"),
]


def draw_step() -> Page:
    left, right, across = (0.0, 4.5), (6.6, 2.0), 0.44  # x and width of a column; height of a part
    page, axes = blank_page(
        "A step of the plain slice kernel: who hands whom what, and when",
        "resident/slice_step.cuh without teams, four layers; time goes down",
        [
            "Blue: the chain, of which each part waits for the part before. Grey: what is put off until a "
            "member would wait anyway. Brown: an exchange, in which every member publishes the tile "
            "[32 rows, 8 columns] of its slice and takes all others.",
        ],
        8.8,
        0.3 + across * len(STEP) + 0.36,
    )
    words(axes, left[0] + 0.05, 0.12, "a member (thread block), by its functions", weight="bold")
    words(axes, right[0] + 0.05, 0.12, "every other member", weight="bold")
    tops = [0.3 + across * place for place in range(len(STEP))]
    for part, top in zip(STEP, tops, strict=True):
        for x, width in (left, right):
            box(axes, x, top, width, across - 0.07, CHAIN if part.on_chain else PUT_OFF)
        middle = top + 0.19
        words(axes, left[0] + 0.1, middle - 0.075, part.what)
        words(axes, left[0] + 0.1, middle + 0.08, part.functions, 7.2, MUTED)
        short = part.what.split(" = ")[0] if " = " in part.what else "updates" if not part.on_chain else ""
        words(axes, right[0] + 0.1, middle, short or ("loss, dz" if "loss" in part.what else "W1"))
    for given, top in zip(STEP, tops, strict=True):
        if not given.gives:
            continue
        taken = next(below for part, below in zip(STEP, tops, strict=True) if part.takes == given.gives)
        begin, end = top + 0.185, taken + 0.185
        for start, finish in ((left[0] + left[1], right[0]), (right[0], left[0] + left[1])):
            axes.add_patch(
                FancyArrowPatch(
                    (start, begin),
                    (finish, end),
                    arrowstyle="-|>",
                    mutation_scale=9,
                    color=TRAVELS,
                    linewidth=1.2,
                    shrinkA=0,
                    shrinkB=0,
                )
            )
        centre = (left[0] + left[1] + right[0]) / 2
        words(axes, centre, (begin + end) / 2 - 0.16, given.gives, 9.5, TRAVELS, ha="center", weight="bold")
    words(axes, left[0] + 0.1, tops[-1] + across + 0.1, "the next step begins with h1 again", 8, MUTED)
    return page


DRAWINGS = {"tree": lambda: draw_tree(ROOT), "resident-step": draw_step}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder")
    parser.add_argument("--png", action="store_true", help="PNG files beside them, to look at")
    arguments = parser.parse_args()
    folder = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, draw in DRAWINGS.items():
            paths.append(folder / f"{name}.svg")
            if arguments.png:
                paths += save(draw(), folder, name)[1:]
            else:
                paths[-1].write_text(file_of(draw()), encoding="utf-8")
        return show("kernel_drawings", paths)
    except OSError as error:
        print(f"kernel_drawings: {folder}: {error.strerror}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    end_with("kernel_drawings", main)
