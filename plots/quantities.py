"""What a record has beside its time, one figure each: how near it comes to the floor, and its energy a step.

Drawn against H for a width series, as bars for a workload alone. Only records whose time counts are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from line_labels import LineLabel, label_lines
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter
from notes import record_notes
from results_file import PRECISIONS, Results, Row, Workload
from style import (
    INK,
    MUTED,
    TEXT_SIZE,
    Page,
    backend_order,
    format_joules,
    format_percent,
    look_of,
    shortened,
    text_inches,
    write_beside,
)
from width_series import Point, Series, draw_line, limits, panels, series_page, width_axis

BAR_INCHES = 0.3


@dataclass(frozen=True)
class Quantity:
    slug: str
    title: str
    axis: str
    note: str
    value: Callable[[Row], float | None]
    text: Callable[[float], str]
    bound: float | None = None  # what no value passes: drawn as a line


QUANTITIES = (
    Quantity(
        "floor",
        "Share of the floor that is reached",
        "floor over time of a step",
        "100 %: as fast as this device allows by its measured rates. Above 100 % the floor is wrong, not the"
        " record fast.",
        lambda row: row.fraction_of_floor,
        format_percent,
        bound=1.0,
    ),
    Quantity(
        "energy",
        "Energy of a training step",
        "energy of a step",
        "From the device's own energy counter over an untimed stretch of steps; idle power is included.",
        lambda row: row.joules_per_step,
        format_joules,
    ),
)


def _rows_with(quantity: Quantity, results: Results, names: set[str]) -> list[Row]:
    return [
        row
        for row in results.rows
        if row.workload.name in names
        and row.counts
        and not row.is_reference
        and quantity.value(row) is not None
    ]


def _precisions(rows: list[Row]) -> list[str]:
    return [precision for precision in PRECISIONS if any(row.precision == precision for row in rows)]


def _absent_note(results: Results, series: Series, quantity: Quantity) -> list[str]:
    """One line: which cells have records that count, and in none of them the quantity."""
    having: dict[tuple[str, int], bool] = {}
    for row in results.rows:
        if row.workload.name in series.widths and row.counts and not row.is_reference:
            cell = (row.precision, series.widths[row.workload.name])
            having[cell] = having.get(cell, False) or quantity.value(row) is not None
    absent: dict[tuple[int, ...], list[str]] = {}
    for precision in PRECISIONS:
        widths = tuple(
            sorted(width for (name, width), has in having.items() if name == precision and not has)
        )
        if widths:
            absent.setdefault(widths, []).append(precision)
    parts = [f"{', '.join(names)} at H {', '.join(map(str, widths))}" for widths, names in absent.items()]
    return [f"Not in the files: {'; '.join(parts)}."] if parts else []


def draw_against_width(results: Results, series: Series, quantity: Quantity) -> Page | None:
    """Log-log, a line a backend. None where no record has the quantity."""
    rows = _rows_with(quantity, results, set(series.widths))
    if not rows:
        return None
    precisions = _precisions(rows)
    backends = sorted({row.backend for row in rows}, key=backend_order)
    everything = [row for row in results.rows if row.workload.name in series.widths]
    notes = [
        quantity.note,
        *_absent_note(results, series, quantity),
        *record_notes(results, everything, where=lambda row: f"H {series.widths[row.workload.name]}"),
    ]
    subtitle = f"{results.device} · {', '.join(precisions)} · against H, axes logarithmic"
    names = [shortened(backend, 32) for backend in backends]
    page = series_page(f"{quantity.title}: {series.title}", subtitle, notes, precisions, names)
    widths = list(series.widths.values())
    values = [quantity.value(row) for row in rows]
    low, high = limits(values if quantity.bound is None else [*values, quantity.bound], 1.0)
    for precision, axes in panels(page, precisions):
        width_axis(axes, widths, precision)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity.text(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(quantity.axis)
        if quantity.bound is not None:
            axes.axhline(quantity.bound, color=MUTED, linewidth=1.2, zorder=2)
        ends = []
        for backend in backends:
            points = [
                Point(series.widths[row.workload.name], *[quantity.value(row)] * 3, row)
                for row in rows
                if (row.backend, row.precision) == (backend, precision)
            ]
            if not points:
                continue
            look = look_of(backend, backends)
            draw_line(axes, points, widths, look)
            last = max(points, key=lambda point: point.width)
            ends.append(LineLabel(shortened(backend, 32), look.ink, last.width, last.value))
        label_lines(axes, ends)
    return page


def draw_bars(results: Results, workload: Workload, quantity: Quantity) -> Page | None:
    """Linear from zero. None where no record has the quantity."""
    rows = _rows_with(quantity, results, {workload.name})
    if not rows:
        return None
    by_precision = {
        precision: sorted((row for row in rows if row.precision == precision), key=quantity.value)
        for precision in _precisions(rows)
    }
    names = [row.backend for row in rows]
    subtitle = f"{results.device} · {', '.join(by_precision)} · batch {workload.batch_size}"
    page = Page(
        f"{quantity.title}: {shortened(workload.name, 90)}",
        subtitle,
        [quantity.note],
        panel_width=4.0,
        row_heights=[BAR_INCHES * len(panel) + 0.08 for panel in by_precision.values()],
        columns=1,
        left=0.3 + max(text_inches(shortened(name, 32), TEXT_SIZE) for name in names),
        right=0.9,
        gap=0.5,
    )
    longest = max(quantity.value(row) for row in rows)
    for (precision, panel), (axes,) in zip(by_precision.items(), page.axes, strict=True):
        axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
        _draw_panel(axes, panel, names, quantity, longest)
    return page


def _draw_panel(axes: Axes, rows: list[Row], names: list[str], quantity: Quantity, longest: float) -> None:
    axes.set_xlim(0, 1.02 * longest)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    for place, row in enumerate(rows):
        value = quantity.value(row)
        axes.barh(place, value, height=0.62, color=look_of(row.backend, names).color, zorder=3)
        write_beside(axes, quantity.text(value), value, place)
    axes.set_yticks(range(len(rows)), [shortened(row.backend, 32) for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(look_of(row.backend, names).ink)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity.text(value) if value else "0"))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(quantity.axis, color=MUTED)
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
