"""`history.py FILE -o DIR`: draws what `headroom history --format json` printed as SVG and PNG.

A figure for each device and workload: a panel a precision, a line a backend, a point a commit with its 95 %
interval. Every verdict is in the file: nothing is judged here. The figures replace those that manifest.json
in the folder lists, and no other file.
Exit code 0: done; 2: wrong usage, input that cannot be drawn, or output that cannot be written; 3: a package
is not there; 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import json_file
from figures import NO_PACKAGE, file_name
from json_file import InputError
from output_folder import filled_by
from program import BAD_INPUT, end_with, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from style import Look, Page

NAME = "headroom history"
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
# How a change is marked: what the rule calls real, what could not be judged, and what has no time.
MARKED = {"regression": ("^", "#b00020"), "improvement": ("v", "#00693e")}
BROKEN = ("not compared", "chose otherwise")
MOST_LABELS = 24  # of commits below a panel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description="Draw step times over commits as SVG and PNG.")
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="what `headroom history --format json` printed"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the figures"
    )
    return parser.parse_args()


def pieces(points: list[dict]) -> Iterator[list[dict]]:
    """The parts of a line: it is broken where two points cannot be compared. What failed is in none."""
    piece: list[dict] = []
    for point in points:
        if point["step_seconds"] is None:
            continue
        if point["change"] in BROKEN and piece:
            yield piece
            piece = []
        piece.append(point)
    if piece:
        yield piece


def short_date(source: dict) -> str:
    return source["date"][:10]


def notes_of(device: dict, cells: list[dict], rule: dict) -> list[str]:
    points = [(cell, point) for cell in cells for point in cell["points"]]
    changes = {point["change"] for _, point in points}
    order = (
        "of the commits' own dates"
        if device["order"] == "commit"
        else "of measuring, as the checkout does not have all of these commits"
    )
    notes = [
        f"Points: median of all blocks of a commit's files; bars: its 95 % interval. In the order {order}. "
        "+: with changes that are in no commit."
    ]
    if changes & set(MARKED):
        drift = f"of which {100 * rule['widened_by']:.2g} % are for the drift between runs"
        notes.append(
            "Triangles: the gate's rule calls the change real, upwards slower, downwards faster; "
            f"tolerance {100 * rule['tolerance']:.3g} %, {drift}."
        )
    for change in BROKEN:
        found = {point["message"] for _, point in points if point["change"] == change}
        if found:
            notes.append(f"Broken lines, {change}: {'; '.join(sorted(found))}.")
    failed = [
        f"{cell['backend']} {cell['precision']} at {device['sources'][point['source']]['label']}"
        for cell, point in points
        if point["change"] == "failed"
    ]
    if failed:
        notes.append(f"Crosses at the foot, failed: {'; '.join(failed)}.")
    return notes


def draw_workload(device: dict, cells: list[dict], rule: dict) -> Page:
    """`cells`: all of one workload. The sources that none of them has are left out."""
    from line_labels import FONT_SIZE, LABEL_GAP, LineLabel, label_lines
    from style import Page, backend_order, look_of, shortened, text_inches

    precisions = [name for name in PRECISIONS if any(cell["precision"] == name for cell in cells)]
    backends = sorted({cell["backend"] for cell in cells}, key=backend_order)
    used = sorted({point["source"] for cell in cells for point in cell["points"]})
    places = {source: place for place, source in enumerate(used)}
    sources = [device["sources"][source] for source in used]
    workload, trained = cells[0]["workload"], cells[0]["trained"]
    about = f"{device['device']} · {', '.join(precisions)} · device time of a step, axis logarithmic"
    page = Page(
        f"Step time over commits: {shortened(workload, 80)}",
        about if workload == trained else f"{trained} · {about}",
        notes_of(device, cells, rule),
        panel_width=max(3.4, min(9.0, 0.42 * len(used))),
        row_heights=[3.2 if len(backends) <= 8 else 4.4] * len(precisions),
        columns=1,
        left=0.85,
        right=LABEL_GAP + 0.2 + max(text_inches(shortened(name, 32), FONT_SIZE) for name in backends),
        gap=1.15,
        foot=1.0,
    )
    for precision, (axes,) in zip(precisions, page.axes, strict=True):
        panel = [cell for cell in cells if cell["precision"] == precision]
        _axis(axes, precision, panel, sources)
        ends = []
        for cell in sorted(panel, key=lambda one: backend_order(one["backend"])):
            look = look_of(cell["backend"], backends)
            last = _draw_cell(axes, cell, places, look)
            if last is not None:
                name = shortened(cell["backend"], 32)
                ends.append(LineLabel(name, look.ink, places[last["source"]], last["step_seconds"]["median"]))
        label_lines(axes, ends)
    return page


def _axis(axes: Axes, precision: str, cells: list[dict], sources: list[dict]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter
    from style import INK, format_seconds
    from width_series import limits

    axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=8)
    axes.set_yscale("log")
    values = [
        point["step_seconds"][bound]
        for cell in cells
        for point in cell["points"]
        if point["step_seconds"]
        for bound in ("low", "high")
    ]
    axes.set_ylim(*limits(values or [1e-5, 1e-4], 0.15))
    for formatted in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        formatted(FuncFormatter(lambda value, _: format_seconds(value)))
    low, high = axes.get_ylim()
    if high / low > 8:
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("time of a step")
    axes.set_xlim(-0.5, len(sources) - 0.5)
    every = -(-len(sources) // MOST_LABELS)
    shown = range(len(sources) - 1, -1, -every)  # the last one always
    axes.set_xticks(
        list(shown),
        [f"{sources[place]['label']}\n{short_date(sources[place])}" for place in shown],
        rotation=45,
        ha="right",
        rotation_mode="anchor",
        fontsize=7.2,
        linespacing=0.95,
    )
    axes.grid(True, which="major")
    axes.tick_params(length=3, which="both")
    axes.set_axisbelow(True)


def _draw_cell(axes: Axes, cell: dict, places: dict[int, int], look: Look) -> dict | None:
    """Returns the last point that has a time."""
    from style import ALARM

    last = None
    for piece in pieces(cell["points"]):
        at = [places[point["source"]] for point in piece]
        medians = [point["step_seconds"]["median"] for point in piece]
        axes.plot(at, medians, look.line, color=look.color, linewidth=look.width, zorder=3)
        axes.vlines(
            at,
            [point["step_seconds"]["low"] for point in piece],
            [point["step_seconds"]["high"] for point in piece],
            color=look.color,
            linewidth=1.2,
            zorder=3,
        )
        axes.plot(at, medians, look.marker, color=look.color, markersize=0.8 * look.size, zorder=4)
        last = piece[-1]
    for point in cell["points"]:
        place = places[point["source"]]
        if point["step_seconds"] is None:
            axes.plot(
                [place],
                [0.03],
                "X",
                markersize=8.0,
                color=look.color,
                markeredgecolor=ALARM,
                markeredgewidth=1.2,
                transform=axes.get_xaxis_transform(),
                zorder=6,
            )
        elif point["change"] in MARKED:
            _mark(axes, place, point)
    return last


def _mark(axes: Axes, place: int, point: dict) -> None:
    """A triangle around the point, and how much it is."""
    marker, color = MARKED[point["change"]]
    slower = point["change"] == "regression"
    median = point["step_seconds"]["median"]
    axes.plot(
        [place],
        [median],
        marker,
        markersize=13,
        markerfacecolor="none",
        markeredgecolor=color,
        markeredgewidth=1.6,
        zorder=6,
    )
    axes.annotate(
        f"{100 * (point['finding']['ratio'] - 1):+.1f} %",
        xy=(place, median),
        xytext=(0, 12 if slower else -12),
        textcoords="offset points",
        ha="center",
        va="bottom" if slower else "top",
        fontsize=7.6,
        color=color,
        zorder=7,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.4},
    )


def draw(history: dict, folder: Path) -> list[str]:
    """Names of the files that it made."""
    from svg import save

    names, taken = [], set()
    for device in history["devices"]:
        which = f"-{device['device']}" if len(history["devices"]) > 1 else ""
        for workload in dict.fromkeys(cell["workload"] for cell in device["cells"]):
            cells = [cell for cell in device["cells"] if cell["workload"] == workload]
            page = draw_workload(device, cells, history["rule"])
            name = file_name(f"history{which}-{workload}", taken)
            names += [path.name for path in save(page, folder, name)]
    return names


def main() -> int:
    arguments = parse_arguments()
    try:
        history = json_file.read(arguments.file, "a history", "history.schema.json")
        import matplotlib  # noqa: F401
    except InputError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        print(f"{NAME}: no figures: {error}", file=sys.stderr)
        return NO_PACKAGE
    names = filled_by(NAME, arguments.output, lambda made: draw(history, made))
    if names is None:
        return BAD_INPUT
    # Standard output is the table's.
    print(f"Figures: {arguments.output} ({len(names)} files)", file=sys.stderr)
    return show(NAME, [])


if __name__ == "__main__":
    end_with(NAME, main)
