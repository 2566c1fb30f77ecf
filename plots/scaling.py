"""Step time and speed-up against the hidden width H, for workloads that differ only in it.

A record that failed is a cross at its time (at the edge if it has none), on no line and in no speed-up.
"""

from __future__ import annotations

from line_labels import LineLabel, label_lines
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from notes import record_notes
from results_file import EAGER, PRECISIONS, Results, Row, refuted_text
from style import (
    ALARM,
    FAINT,
    MUTED,
    Look,
    Page,
    backend_order,
    format_ratio,
    format_seconds,
    look_of,
    shortened,
)
from width_series import (
    Point,
    Series,
    contract_note,
    draw_cross,
    draw_line,
    limits,
    panels,
    series_page,
    width_axis,
)


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
        (precision, series.widths[row.workload.name]): row.workload.floors[precision].seconds
        for precision in precisions
        for row in rows
        if precision in row.workload.floors
    }
    notes = [
        f"Points: median of the blocks' {results.clock} per step; vertical lines: its 95 % interval.",
        *record_notes(results, rows, where=lambda row: f"H {series.widths[row.workload.name]}"),
        *contract_note(rows),
    ]
    if floors:
        notes.append("Floor: an estimate of the least time that this step can take on this device.")
    subtitle = (
        f"{results.device} · {', '.join(precisions)} · {results.clock} of a step against H, axes logarithmic"
    )
    names = [shortened(backend, 32) for backend in backends]
    names += [f"{shortened(row.backend, 32)} (failed)" for row in shown if row.state == "failed"]
    page = series_page(f"Time of a training step: {series.title}", subtitle, notes, precisions, names)
    widths = list(series.widths.values())
    ends = [row.high for row in shown if row.timed and row.high is not None]
    low, high = limits(times + ends + list(floors.values()), 1.0)
    if any(not row.timed for row in shown):
        high *= 1.4  # room for the crosses at the edge
    for precision, axes in panels(page, precisions):
        width_axis(axes, widths, precision)
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
        draw_line(axes, points, list(series.widths.values()), look)
    failed = [row for row in rows if row.state == "failed"]
    for row in failed:
        draw_cross(axes, width_of(row), row.median, look, edge=1.0)
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
    refuted: dict[str, list[Row]] = {}
    for row in rows:
        width = series.widths[row.workload.name]
        base = results.baselines(row).get(against)
        rivals = refuted_text(results.refuted_rivals(row))
        if rivals and row.timed and not row.is_pytorch and not row.is_reference:
            refuted.setdefault(rivals, []).append(row)
        if rivals and row.state != "failed":
            continue
        if base is not None:
            best[row.precision, width] = base.backend
        competes = not row.is_reference and not (against == "best" and row.is_pytorch)
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
    notes += [f"No speed-up, {why}: {_cells(series, found)}." for why, found in refuted.items()]
    notes += record_notes(results, rows, where=lambda row: f"H {series.widths[row.workload.name]}")
    notes += contract_note(rows)
    subtitle = (
        f"{results.device} · {', '.join(precisions)} · ratio of {results.clock}s of a step, axes logarithmic"
    )
    title = f"Speed-up over {'the ' if against == 'best' else ''}{base_name}: {series.title}"
    page = series_page(
        title, subtitle, notes, precisions, [f"{shortened(backend, 32)} 0.00×" for backend in backends]
    )
    values = [point.value for line in points.values() for point in line]
    low, high = min(1.0, *values) / 1.2, max(1.6, *values) * 1.2
    for precision, axes in panels(page, precisions):
        width_axis(axes, widths, precision, left=0.6)  # the first points' values stand there
        _speedup_axis(axes, low, high)
        ends = [LineLabel(f"{base_name} 1×", MUTED, axes.get_xlim()[1], 1.0)]
        starts = []
        for backend in backends:
            line = sorted(points.get((backend, precision), []), key=lambda point: point.width)
            look = look_of(backend, backends)
            for row in failed:
                if (row.backend, row.precision) == (backend, precision):
                    draw_cross(axes, series.widths[row.workload.name], None, look, edge=0.03)
            if not line:
                continue
            draw_line(axes, line, widths, look)
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
