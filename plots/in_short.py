"""Time of a step against the hidden width H: eager PyTorch, the best PyTorch row, ours, and the floor.

It shows the first and the last of the precisions that were measured, for a reader who has a minute; every row
and precision is in the figure of all backends.
"""

from __future__ import annotations

from dataclasses import dataclass

from findings import Cell, cells_of
from line_labels import LineLabel, label_lines
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from notes import record_notes
from results_file import EAGER, PRECISIONS, Results
from style import LOOKS, MUTED, Look, Page, format_seconds
from width_series import Series, limits, panels, series_page, width_axis

EAGER_LOOK = Look(LOOKS[EAGER].color, "o", 2.0)
BEST_LOOK = Look("#56b4e9", "s", 2.0)
RIVAL_LOOK = Look("#009e73", "^", 2.0, (0, (2, 2)))
OURS_LOOK = Look("#d55e00", "D", 3.0, size=6.0)
FLOOR_LOOK = Look(MUTED, "", 1.4, (0, (4, 3)))


@dataclass(frozen=True)
class Line:
    name: str
    look: Look
    points: list[tuple[int, float]]  # H and seconds, ascending


def draw_in_short(results: Results, series: Series) -> Page | None:
    """None where no row of ours stands beside one of PyTorch."""
    cells = [cell for cell in cells_of(results) if cell.workload.name in series.widths and cell.against_best]
    measured = [name for name in PRECISIONS if any(cell.precision == name for cell in cells)]
    if not measured:
        return None
    shown = list(dict.fromkeys((measured[0], measured[-1])))
    lines = {name: lines_of(series, [cell for cell in cells if cell.precision == name]) for name in shown}
    page = series_page(
        f"Time of a training step: {series.title}",
        f"{results.device} · {results.clock}, axes logarithmic · best PyTorch, rival: the fastest of each",
        failures_of(results, series, shown),
        shown,
        ["PyTorch, eager 0.00 ms"],
    )
    values = [value for found in lines.values() for line in found for _, value in line.points]
    low, high = limits(values, 1.0)
    for precision, axes in panels(page, shown):
        width_axis(axes, list(series.widths.values()), precision, left=0.75)  # the first values stand there
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(LogLocator(base=10))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        for line in lines[precision]:
            axes.plot(
                *zip(*line.points, strict=True),
                color=line.look.color,
                linewidth=line.look.width,
                linestyle=line.look.line,
                marker=line.look.marker,
                markersize=line.look.size,
                zorder=3,
            )
        write_ends(axes, lines[precision])
    return page


def failures_of(results: Results, series: Series, precisions: list[str]) -> list[str]:
    """A row that failed might have been the fastest; a row that was skipped is no part of this figure."""
    rows = [
        row
        for row in results.rows
        if row.workload.name in series.widths and row.precision in precisions and row.state != "skipped"
    ]
    return record_notes(results, rows, where=lambda row: f"H {series.widths[row.workload.name]}")


def lines_of(series: Series, cells: list[Cell]) -> list[Line]:
    by_width = sorted((series.widths[cell.workload.name], cell) for cell in cells)
    lines = [
        Line("PyTorch, eager", EAGER_LOOK, [(h, cell.eager.median) for h, cell in by_width if cell.eager]),
        Line("best PyTorch", BEST_LOOK, [(h, cell.best.median) for h, cell in by_width]),
        Line("best rival", RIVAL_LOOK, other_rivals(by_width)),
        Line("ours", OURS_LOOK, [(h, cell.ours.median) for h, cell in by_width]),
        Line(
            "floor",
            FLOOR_LOOK,
            [
                (h, cell.workload.floors[cell.precision].seconds)
                for h, cell in by_width
                if cell.precision in cell.workload.floors
            ],
        ),
    ]
    return [line for line in lines if line.points]


def other_rivals(by_width: list[tuple[int, Cell]]) -> list[tuple[int, float]]:
    """Where the best rival is not PyTorch; nothing if it always is."""
    if all(cell.rival is cell.best for _, cell in by_width):
        return []
    return [(h, cell.rival.median) for h, cell in by_width]


def write_ends(axes: Axes, lines: list[Line]) -> None:
    """Name and time at the last H, the time alone at the first."""
    label_lines(
        axes,
        [
            LineLabel(f"{line.name} {format_seconds(line.points[-1][1])}", line.look.ink, *line.points[-1])
            for line in lines
        ],
    )
    label_lines(
        axes,
        [
            LineLabel(format_seconds(line.points[0][1]), line.look.ink, *line.points[0])
            for line in lines
            if len(line.points) > 1
        ],
        side="left",
    )


def _plain(seconds: float) -> str:
    number, unit = format_seconds(seconds * 1.0001).split()
    return f"{float(number):g} {unit}"
