"""Step time and speed-up against the hidden width H, for workloads that differ only in it.

A panel a precision. A record that failed is a cross at its time (at the edge if it has none), on no line and
in no speed-up; a line breaks where its backend has no result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from line_labels import FONT_SIZE, LineLabel, label_lines
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from notes import record_notes
from results_file import EAGER, PRECISIONS, Results, Row, Workload, is_oracle, is_pytorch
from style import (
    ALARM,
    FAINT,
    INK,
    MUTED,
    Look,
    Page,
    backend_order,
    format_ratio,
    format_seconds,
    look_of,
    shortened,
)

LEAST_WIDTHS = 3  # fewer are better read as bars


@dataclass(frozen=True)
class Series:
    title: str  # "784-H-H-H-10, batch 32"
    slug: str  # "784-H-H-H-10-b32"
    widths: dict[str, int]  # workload name to H


def find_series(workloads: list[Workload]) -> list[Series]:
    """Groups of at least three workloads that are equal but for one hidden width."""
    groups: dict[tuple, dict[int, str]] = {}
    for workload in workloads:
        hidden = set(workload.widths[1:-1])
        if len(hidden) != 1:
            continue
        shape = (workload.widths[0], len(workload.widths) - 2, workload.widths[-1])
        key = (*shape, workload.batch_size, workload.learning_rate, workload.data, workload.seed)
        groups.setdefault(key, {}).setdefault(hidden.pop(), workload.name)
    found = []
    for key, by_width in groups.items():
        if len(by_width) < LEAST_WIDTHS:
            continue
        shape = "-".join([str(key[0]), *["H"] * key[1], str(key[2])])
        found.append(
            Series(
                title=f"{shape}, batch {key[3]}",
                slug=f"{shape}-b{key[3]}",
                widths={name: width for width, name in sorted(by_width.items())},
            )
        )
    return found


@dataclass
class Point:
    width: int
    value: float
    low: float
    high: float
    row: Row


def _page(
    results: Results, title: str, subtitle: str, notes: list[str], precisions: list[str], names: list[str]
):
    columns = 1 if len(precisions) == 1 else 2
    longest = max((len(name) for name in names), default=10)
    return Page(
        title,
        subtitle,
        notes,
        panel_width=5.2 if columns == 1 else 3.9,
        row_heights=[3.6 if len(names) <= 6 else 4.2] * -(-len(precisions) // columns),
        columns=columns,
        left=0.72,
        right=0.3 + longest * FONT_SIZE * 0.62 / 72,
        gap=0.95,
    )


def _panels(page: Page, precisions: list[str]) -> list[tuple[str, Axes]]:
    flat = list(itertools.chain.from_iterable(page.axes))
    for spare in flat[len(precisions) :]:
        spare.remove()
    return list(zip(precisions, flat, strict=False))


def _width_axis(axes: Axes, widths: list[int], precision: str) -> None:
    axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=8)
    axes.set_xscale("log", base=2)
    ratio = (widths[-1] / widths[0]) ** 0.04
    axes.set_xlim(widths[0] / ratio, widths[-1] * ratio)
    axes.xaxis.set_major_locator(FixedLocator(widths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("hidden width H (units)")
    axes.grid(True, which="major")
    axes.tick_params(length=3, which="both")
    axes.set_axisbelow(True)


def _draw_line(axes: Axes, points: list[Point], widths: list[int], look: Look) -> None:
    values = {point.width: point.value for point in points}
    axes.plot(
        widths,
        [values.get(width, math.nan) for width in widths],
        look.line,
        color=look.color,
        linewidth=look.width,
        zorder=3,
        solid_capstyle="round",
    )
    for point in points:
        verified = point.row.state == "ok"
        axes.vlines(point.width, point.low, point.high, color=look.color, linewidth=1.0, zorder=3)
        axes.plot(
            [point.width],
            [point.value],
            look.marker,
            color=look.color,
            markersize=8 if look.marker == "*" else 5.5,
            markerfacecolor=look.color if verified else "white",
            markeredgewidth=1.0,
            zorder=4,
        )


def _draw_cross(axes: Axes, width: int, value: float | None, look: Look, edge: float) -> None:
    """A failed record; without a value at `edge`, a fraction of the axes' height."""
    axes.plot(
        [width],
        [edge if value is None else value],
        "X",
        markersize=8.5,
        color=look.color,
        markeredgecolor=ALARM,
        markeredgewidth=1.2,
        transform=axes.get_xaxis_transform() if value is None else axes.transData,
        clip_on=False,
        zorder=6,
    )


def _limits(values: list[float], least_decades: float) -> tuple[float, float]:
    """A little room around the values on a log axis, and never so narrow that noise looks like a trend."""
    low, high = min(values), max(values)
    missing = 10**least_decades / (high / low)
    if missing > 1:
        low, high = low / missing**0.5, high * missing**0.5
    return low / 1.25, high * 1.25


def _contract_note(rows: list[Row]) -> list[str]:
    """One line: which backends have roundings of their own, and in which precisions."""
    contracts: dict[str, dict[str, list[str]]] = {}
    for precision in PRECISIONS:
        for row in rows:
            if row.precision == precision and row.contract != "exact" and row.state != "skipped":
                found = contracts.setdefault(row.backend, {}).setdefault(row.contract, [])
                if precision not in found:
                    found.append(precision)
    backends: dict[str, list[str]] = {}
    for backend, found in sorted(contracts.items(), key=lambda item: backend_order(item[0])):
        text = " and ".join(f"{contract} in {', '.join(names)}" for contract, names in sorted(found.items()))
        backends.setdefault(text, []).append(backend)
    parts = [f"{text} ({', '.join(names)})" for text, names in backends.items()]
    return [f"Roundings other than the precision contract's: {'; '.join(parts)}."] if parts else []


def draw_step_time(results: Results, series: Series) -> Page | None:
    """Log-log, one line a backend. None if nothing was timed."""
    rows = [row for row in results.rows if row.workload.name in series.widths]
    shown = [row for row in rows if row.timed or row.state == "failed"]
    times = [row.median for row in shown if row.timed]
    if not times:
        return None
    precisions = [precision for precision in PRECISIONS if any(row.precision == precision for row in shown)]
    backends = sorted({row.backend for row in shown}, key=backend_order)
    floors = {
        (precision, series.widths[row.workload.name]): row.workload.floors[precision]
        for precision in precisions
        for row in rows
        if precision in row.workload.floors
    }
    notes = [
        "Points: median of the blocks' device time per step; vertical lines: its 95 % interval.",
        *record_notes(results, rows, where=lambda row: f"H {series.widths[row.workload.name]}"),
        *_contract_note(rows),
    ]
    if floors:
        notes.append("Floor: no implementation of this step can be faster on this device.")
    subtitle = (
        f"{results.device} · {', '.join(precisions)} · device time of a step against H, axes logarithmic"
    )
    page = _page(results, f"Time of a training step: {series.title}", subtitle, notes, precisions, backends)
    widths = list(series.widths.values())
    low, high = _limits(times + list(floors.values()), 1.0)
    if any(not row.timed for row in shown):
        high *= 1.4  # room for the crosses at the edge
    for precision, axes in _panels(page, precisions):
        _width_axis(axes, widths, precision)
        axes.set_yscale("log")
        axes.set_ylim(low, high)
        steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_seconds(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel("time of a step")
        labels = []
        for backend in backends:
            mine = [row for row in shown if (row.backend, row.precision) == (backend, precision)]
            labels += _time_line(axes, series, mine, look_of(backend, backends))
        floor = sorted((width, seconds) for (name, width), seconds in floors.items() if name == precision)
        if floor:
            axes.plot(*zip(*floor, strict=True), color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=2)
            labels.append(LineLabel("floor", MUTED, *floor[-1]))
        label_lines(axes, labels)
    return page


def _plain_seconds(value: float) -> str:
    number, unit = format_seconds(value * 1.0001).split()
    return f"{float(number):g} {unit}"


def _time_line(axes: Axes, series: Series, rows: list[Row], look: Look) -> list[LineLabel]:
    width_of = lambda row: series.widths[row.workload.name]  # noqa: E731
    points = [Point(width_of(row), row.median, row.low, row.high, row) for row in rows if row.counts]
    if points:
        _draw_line(axes, points, list(series.widths.values()), look)
    failed = [row for row in rows if row.state == "failed"]
    for row in failed:
        _draw_cross(axes, width_of(row), row.median, look, edge=1.0)
    name = shortened(rows[0].backend, 32) if rows else ""
    if points:
        last = max(points, key=lambda point: point.width)
        return [LineLabel(name, look.ink, last.width, last.value)]
    if failed:
        last = max(failed, key=width_of)
        top = axes.get_ylim()[1] / (axes.get_ylim()[1] / axes.get_ylim()[0]) ** 0.03
        return [LineLabel(f"{name} (failed)", ALARM, width_of(last), last.median or top)]
    return []


def draw_speedup(results: Results, series: Series, against: str) -> Page | None:
    """`against`: best (fastest PyTorch row of the cell) or eager. None if there is nothing to compare."""
    rows = [row for row in results.rows if row.workload.name in series.widths]
    widths = list(series.widths.values())
    points: dict[tuple[str, str], list[Point]] = {}
    best: dict[tuple[str, int], str] = {}
    failed: list[Row] = []
    without_base: list[Row] = []
    for row in rows:
        width = series.widths[row.workload.name]
        base = results.baselines(row).get(against)
        if base is not None:
            best[row.precision, width] = base.backend
        competes = not is_oracle(row.backend) and not (against == "best" and is_pytorch(row.backend))
        if not competes or row.state == "skipped" or base is row:
            continue
        if row.state == "failed":
            failed.append(row)
        elif row.timed and base is None:
            without_base.append(row)
        elif row.timed:
            point = Point(width, base.median / row.median, base.low / row.high, base.high / row.low, row)
            points.setdefault((row.backend, row.precision), []).append(point)
    if not points:
        return None
    precisions = [name for name in PRECISIONS if any(precision == name for _, precision in points)]
    backends = sorted({backend for backend, _ in points}, key=backend_order)
    base_name = "best PyTorch" if against == "best" else EAGER
    notes = [
        "Time of the baseline over time of the backend, same precision: above 1× is faster.",
        "Vertical lines: ratios that both 95 % intervals allow. A value stands at the first and the last H.",
        *(_best_notes(best, precisions, widths) if against == "best" else []),
    ]
    if without_base:
        notes.append(f"No speed-up, its baseline has no result: {_cells(series, without_base)}.")
    notes += record_notes(results, rows, where=lambda row: f"H {series.widths[row.workload.name]}")
    notes += _contract_note(rows)
    subtitle = (
        f"{results.device} · {', '.join(precisions)} · ratio of device times of a step, axes logarithmic"
    )
    title = f"Speed-up over {'the ' if against == 'best' else ''}{base_name}: {series.title}"
    page = _page(results, title, subtitle, notes, precisions, [f"{backend} 0.00×" for backend in backends])
    values = [point.value for line in points.values() for point in line]
    low, high = min(1.0, *values) / 1.2, max(1.6, *values) * 1.2
    for precision, axes in _panels(page, precisions):
        _width_axis(axes, widths, precision)
        left, right = axes.get_xlim()
        axes.set_xlim(left / (right / left) ** 0.11, right)  # room for the values of the first points
        _speedup_axis(axes, low, high)
        ends = [LineLabel(f"{base_name} 1×", MUTED, right, 1.0)]
        starts = []
        for backend in backends:
            line = sorted(points.get((backend, precision), []), key=lambda point: point.width)
            look = look_of(backend, backends)
            for row in failed:
                if (row.backend, row.precision) == (backend, precision):
                    _draw_cross(axes, series.widths[row.workload.name], None, look, edge=0.03)
            if not line:
                continue
            _draw_line(axes, line, widths, look)
            first, last = line[0], line[-1]
            name = shortened(backend, 32)
            ends.append(LineLabel(f"{name} {format_ratio(last.value)}", look.ink, last.width, last.value))
            if len(line) > 1 and first.width == widths[0]:
                starts.append(LineLabel(format_ratio(first.value), look.ink, first.width, first.value))
        label_lines(axes, ends)
        label_lines(axes, starts, side="left")
    return page


def _best_notes(best: dict[tuple[str, int], str], precisions: list[str], widths: list[int]) -> list[str]:
    """Which row was the best PyTorch, precisions with the same answer together."""
    answers: dict[str, list[str]] = {}
    for precision in precisions:
        by_name: dict[str, list[int]] = {}
        for width in widths:
            if (precision, width) in best:
                by_name.setdefault(best[precision, width], []).append(width)
        parts = [
            f"{name} at {'every H' if found == widths else 'H ' + ', '.join(map(str, found))}"
            for name, found in by_name.items()
        ]
        answers.setdefault("; ".join(parts), []).append(precision)
    return [f"Best PyTorch, {', '.join(names)}: {answer}." for answer, names in answers.items()]


def _speedup_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    ticks = [2.0**power for power in range(-12, 24)]
    if high / low < 8:
        ticks = [0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("speed-up (times)")
    axes.axhline(1.0, color=MUTED, linewidth=1.2, zorder=2)
    axes.axhspan(low, 1.0, color=FAINT, alpha=0.13, zorder=0, linewidth=0)


def _cells(series: Series, rows: list[Row]) -> str:
    return "; ".join(f"{row.backend} {row.precision} at H {series.widths[row.workload.name]}" for row in rows)


Drawing = Callable[[], Page | None]


def drawings(results: Results, series: Series) -> dict[str, Drawing]:
    """Name of each figure and how it is drawn."""
    return {
        f"step-time-{series.slug}": lambda: draw_step_time(results, series),
        f"speedup-best-pytorch-{series.slug}": lambda: draw_speedup(results, series, "best"),
        f"speedup-pytorch-eager-{series.slug}": lambda: draw_speedup(results, series, "eager"),
    }
