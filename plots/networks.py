"""Step times of networks that have names of their own, a row each: as written, best rival and ours.

The networks of a suite such as `users` differ by a hundred times, so the axis is logarithmic, and what is
compared are distances along a row. The report's tables have every backend.
"""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from results_file import Results, Row, Workload, refuted_text
from style import (
    ALARM,
    FAINT,
    INK,
    MUTED,
    TEXT_SIZE,
    Page,
    format_ratio,
    format_seconds,
    shortened,
    text_inches,
    write_beside,
)

ROW_INCHES = 0.36
PANEL_INCHES = 5.6
LEAST_NETWORKS = 4  # fewer are drawn as bars alone
WRITTEN, RIVAL, OURS = "#0072b2", "#7a4b1e", "#cc3311"


@dataclass(frozen=True)
class Line:
    """One network: what it takes as written, by the fastest rival, and by the fastest of ours."""

    workload: Workload
    written: Row | None
    rival: Row | None
    ours: Row
    refuted: list[str]  # rivals that failed verification: then no ratio stands


def lines_of(results: Results, workloads: list[Workload], precision: str) -> list[Line]:
    """Those that have a time of ours, slowest last."""
    lines = []
    for workload in workloads:
        rows = [row for row in results.rows if row.workload == workload and row.precision == precision]
        ours = [row for row in rows if row.is_ours and row.counts]
        if not ours:
            continue
        fastest = min(ours, key=lambda row: row.median)
        base = results.baselines(fastest)
        lines.append(
            Line(workload, base.get("eager"), base.get("rival"), fastest, results.refuted_rivals(fastest))
        )
    return sorted(lines, key=lambda line: line.ours.median)


def draw_networks(results: Results, workloads: list[Workload], precision: str) -> Page:
    """Those of the networks that have a time of ours: at least one."""
    lines = lines_of(results, workloads, precision)
    names = [shortened(line.workload.name, 24) for line in lines]
    details = [shortened(_detail(line.workload), 46) for line in lines]
    left = 0.3 + max(text_inches(text, TEXT_SIZE) for text in [*names, *details])
    right = 0.4 + max(
        text_inches(text, TEXT_SIZE) for text in ("rival / ours", *(_words(line)[0] for line in lines))
    )
    notes = [
        f"Median of the blocks' {results.clock} per step. As written: pytorch-eager. Best rival: the fastest "
        "row that is not ours; the report names it.",
        "The number is the best rival's time over ours.",
    ]
    notes += [
        f"No ratio for {line.workload.name}: {refuted_text(line.refuted)}." for line in lines if line.refuted
    ]
    page = Page(
        "Time of a training step of networks that people train",
        f"{results.device} · {precision} · further left is faster · logarithmic",
        notes,
        panel_width=PANEL_INCHES,
        row_heights=[ROW_INCHES * len(lines)],
        columns=1,
        left=left,
        right=right,
        gap=0.3,
    )
    _draw(page.axes[0][0], lines, names, details)
    return page


def _detail(workload: Workload) -> str:
    widths = "-".join(str(width) for width in workload.widths)
    return f"{widths}, batch {workload.batch_size}"


def _words(line: Line) -> tuple[str, str]:
    """What stands at the right end of a row, and its colour."""
    if line.refuted:
        return "no ratio", ALARM
    if line.rival is None:
        return "no rival", MUTED
    return format_ratio(line.rival.median / line.ours.median), INK


def _draw(axes: Axes, lines: list[Line], names: list[str], details: list[str]) -> None:
    axes.set_xscale("log")
    every = [row.median for line in lines for row in (line.written, line.rival, line.ours) if row]
    axes.set_xlim(min(every) / 1.4, max(every) * 1.4)
    axes.set_ylim(len(lines) - 0.4, -0.9)
    marks = (("written", WRITTEN, "o"), ("rival", RIVAL, "D"), ("ours", OURS, "X"))
    for place, line in enumerate(lines):
        times = [row.median for row in (line.written, line.rival, line.ours) if row]
        axes.plot([min(times), max(times)], [place, place], color=FAINT, linewidth=1.2, zorder=2)
        for name, color, marker in marks:
            row = getattr(line, name)
            if row:
                axes.plot(row.median, place, marker, color=color, markersize=7.5, zorder=4)
        words, color = _words(line)
        write_beside(axes, words, axes.get_xlim()[1], place, color)
    for name, color, text in (
        ("ours", OURS, "ours"),
        ("rival", RIVAL, "best rival"),
        ("written", WRITTEN, "as written"),
    ):
        row = getattr(lines[0], name)
        if row:
            axes.annotate(
                text,
                xy=(row.median, 0),
                xytext=(0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=TEXT_SIZE,
                color=color,
                fontweight="bold",
            )
    write_beside(axes, "rival / ours", axes.get_xlim()[1], -0.7, MUTED)
    axes.set_yticks(
        range(len(lines)), [f"{name}\n{detail}" for name, detail in zip(names, details, strict=True)]
    )
    axes.tick_params(axis="y", length=0, labelsize=7.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: format_seconds(value).replace(".00", "").replace(".0", ""))
    )
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    axes.set_xlabel("time of a step")
