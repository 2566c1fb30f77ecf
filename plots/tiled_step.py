"""What cuda-tiled's multiprocessors did when in one step, from a trace of its kernel, as SVG and PNG files.

    python plots/tiled_step.py TRACE.json -o FOLDER

TRACE.json comes from tests/cuda/tiled_task_times.cpp, `--trace`. A row is a multiprocessor; a bar is a task,
from its first slab until its tile is stored, and darker while it multiplies.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from json_file import InputError, parsed
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from program import BAD_INPUT, end_with, show
from style import Page, shortened
from svg import save

TIMES = ("begin_seconds", "first_slab_seconds", "products_seconds", "end_seconds")
# By how a task's description begins.
KINDS = {
    "forward product": ("forward", "#0072b2"),
    "loss": ("loss", "#b00020"),
    "outputs": ("loss", "#b00020"),
    "input gradient": ("input gradient", "#e69f00"),
    "weight gradient": ("weight gradient and update", "#009e73"),
    "update": ("weight gradient and update", "#009e73"),
}


def kind_of(task: dict) -> tuple[str, str]:
    for begin, kind in KINDS.items():
        if task["task"].startswith(begin):
            return kind
    return ("other", "#999999")


def read_trace(path: Path) -> dict:
    """Raises InputError."""
    trace = parsed(path, "a trace of cuda-tiled")
    try:
        for task in trace["tasks"]:
            if not isinstance(task["task"], str) or not isinstance(task["multiprocessor"], int):
                raise TypeError
            if any(not isinstance(task[time], int | float) for time in TIMES):
                raise TypeError
        if not trace["tasks"] or not isinstance(trace["workload"], str):
            raise TypeError
    except (TypeError, KeyError):
        raise InputError(f"{path}: expected a trace of cuda-tiled (tiled_task_times --trace)") from None
    return trace


def draw_step(trace: dict) -> Page:
    tasks = trace["tasks"]
    rows = 1 + max(task["multiprocessor"] for task in tasks)
    page = Page(
        f"A step of cuda-tiled: {shortened(trace['workload'], 60)}",
        f"{trace['precision']} · {len(tasks)} tasks on {rows} multiprocessors · from the step's first slab",
        ["A bar: a task. Dark: it multiplies; light: its tile is finished and stored. White: waits."],
        panel_width=7.4,
        row_heights=[max(2.0, 0.032 * rows)],
        columns=1,
        left=0.6,
        right=0.2,
        gap=0,
        foot=0.8,
    )
    draw_tasks(page.axes[0][0], tasks, rows)
    return page


def draw_tasks(axes: Axes, tasks: list[dict], rows: int) -> None:
    kinds = {}
    for task in tasks:
        name, color = kind_of(task)
        kinds[name] = color
        first, products, end = (1e6 * task[time] for time in TIMES[1:])
        bar = {"color": color, "height": 0.9, "linewidth": 0}
        axes.barh(task["multiprocessor"], products - first, left=first, **bar)
        axes.barh(task["multiprocessor"], end - products, left=products, alpha=0.4, **bar)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_ylabel("multiprocessor")
    axes.set_xlabel("microseconds")
    # Names that a task's description gives layers stand where the first of theirs begins.
    starts = {}
    for task in tasks:
        found = re.search(r"layer \d+", task["task"])
        what = (kind_of(task)[0], found.group() if found else "")
        starts[what] = min(starts.get(what, 1e9), 1e6 * task["first_slab_seconds"])
    for (kind, layer), start in starts.items():
        if kind in ("forward", "loss"):
            axes.axvline(start, color=kinds[kind], linewidth=0.7, linestyle=":", zorder=0)
            axes.text(start, -1.2, layer.replace("layer ", "") if kind == "forward" else "loss", fontsize=7)
    axes.legend(
        handles=[Patch(color=color, label=name) for name, color in kinds.items()],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        ncols=len(kinds),
        frameon=False,
        fontsize=8,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder")
    arguments = parser.parse_args()
    try:
        page = draw_step(read_trace(arguments.trace))
        arguments.output.mkdir(parents=True, exist_ok=True)
        return show("tiled_step", save(page, arguments.output, "tiled-step"))
    except InputError as error:
        print(f"tiled_step: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tiled_step: {arguments.output}: {error.strerror}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    end_with("tiled_step", main)
