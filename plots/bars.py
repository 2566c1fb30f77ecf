"""Step times of one workload as horizontal bars, a panel a precision, where workloads are no width series.

The axis is linear and begins at zero, so that lengths can be compared by eye; exact values stand beside them.
The oracle has no bar where that would squeeze the others: it is far slower, and no competitor.
"""

from __future__ import annotations

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from notes import record_notes
from results_file import PRECISIONS, Results, Row, Workload, refuted_text
from style import (
    ALARM,
    FAINT,
    INK,
    MUTED,
    TEXT_SIZE,
    Page,
    backend_order,
    format_ratio,
    format_seconds,
    look_of,
    shortened,
    text_inches,
    write_beside,
)

BAR_INCHES = 0.3
PANEL_INCHES = 6.0  # with names and words: a phone shows it whole, in letters that can be read
MOST_ALIKE = 2  # rows of a panel that were skipped for one reason; more of them are a note


def draw_bars(results: Results, workload: Workload) -> Page | None:
    """None if no record of the workload was timed or failed: then there is only a list of reasons."""
    rows = [row for row in results.rows if row.workload.name == workload.name]
    precisions = [
        precision
        for precision in PRECISIONS
        if any(row.precision == precision and (row.timed or row.state == "failed") for row in rows)
    ]
    if not precisions:
        return None
    panels = {
        precision: _ordered(_shown([row for row in rows if row.precision == precision]))
        for precision in precisions
    }
    elsewhere = [row for row in rows if row not in _inside(panels)]
    notes = [f"Bars: median of the blocks' {results.clock} per step; black lines: its 95 % interval."]
    if any(row.is_reference and row.timed for row in rows):
        notes.append("The oracle is the double-precision reference of the checks, not a competitor.")
    notes += record_notes(results, elsewhere, where=lambda row: "")
    notes += [
        note for note in record_notes(results, _inside(panels), lambda row: "") if not note.startswith("Skip")
    ]
    texts = {precision: [_bar_text(results, row) for row in panel] for precision, panel in panels.items()}
    meanings = "\n".join(meaning for panel in texts.values() for _, meaning, _ in panel)
    if " vs " in meanings:
        notes.append("vs best: over the fastest PyTorch row; vs eager: over pytorch-eager; same precision.")
        if any(_has_other_rival(results, row) for row in rows):
            notes.append("Best rival: the fastest row that is not ours.")
    names = [row.backend for panel in panels.values() for row in panel]
    title = f"Time of a training step: {shortened(workload.name, 90)}"
    subtitle = f"{results.device} · {', '.join(precisions)} · {workload.network} · shorter is faster"
    left = 0.3 + max(text_inches(shortened(name, 32), TEXT_SIZE) for name in names)
    page = Page(
        title,
        subtitle,
        _unique(notes),
        panel_width=PANEL_INCHES - left - 0.25,
        row_heights=[BAR_INCHES * len(panel) + 0.08 for panel in panels.values()],
        columns=1,
        left=left,
        right=0.25,
        gap=0.68,
        foot=0.62,
    )
    shown = _inside(panels)
    competing = [row.median for row in shown if row.timed and not row.is_reference]
    longest = max(competing, default=max((row.median for row in shown if row.timed), default=1.0))
    all_axes = [row[0] for row in page.axes]
    words = [(row, text) for name in panels for row, text in zip(panels[name], texts[name], strict=True)]
    limit = _limit(all_axes[0], words, longest)
    for axes, (precision, panel) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, precision, panel, texts[precision], longest, limit, names)
    all_axes[-1].set_xlabel("time of a step")
    return page


def _inside(panels: dict[str, list[Row]]) -> list[Row]:
    return [row for panel in panels.values() for row in panel]


def _shown(rows: list[Row]) -> list[Row]:
    reasons = Counter(row.message for row in rows if row.state == "skipped")
    return [row for row in rows if row.state != "skipped" or reasons[row.message] <= MOST_ALIKE]


def _unique(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def _ordered(rows: list[Row]) -> list[Row]:
    """Fastest first; then what failed, then what was skipped."""
    rank = {"ok": 0, "unverified": 0, "failed": 1, "skipped": 2}
    return sorted(rows, key=lambda row: (rank[row.state], row.median or 1e300, backend_order(row.backend)))


def _bar_text(results: Results, row: Row) -> tuple[str, str, str]:
    """Time in bold, what it means, colour."""
    if row.state == "skipped":
        return "", f"skipped: {row.message}", MUTED
    if row.state == "failed":
        time = f"{format_seconds(row.median)}, " if row.timed else ""
        return "", f"{time}FAILED: {row.message}", ALARM
    if not row.timed:
        return "", "not timed", MUTED
    parts = []
    base = results.baselines(row)
    refuted = results.refuted_rivals(row)
    if row.is_reference:
        parts.append("reference of the checks")
    elif refuted:
        if not row.is_pytorch:
            parts.append(f"no speed-up: {refuted_text(refuted)}")
    else:
        if "best" in base and not row.is_pytorch:
            parts.append(f"{format_ratio(base['best'].median / row.median)} vs best")
        if not row.is_rival and _has_other_rival(results, row):
            parts.append(f"{format_ratio(base['rival'].median / row.median)} vs best rival")
        if base.get("best") is row:
            parts.append("best PyTorch")
        elif base.get("rival") is row:
            parts.append("best rival")
        if "eager" in base and base["eager"] is not row:
            parts.append(f"{format_ratio(base['eager'].median / row.median)} vs eager")
    if row.state == "unverified":
        parts.append("not verified")
    return format_seconds(row.median), ", ".join(parts), INK


def _has_other_rival(results: Results, row: Row) -> bool:
    base = results.baselines(row)
    return "rival" in base and base["rival"] is not base.get("best")


def _has_bar(row: Row, longest: float) -> bool:
    return row.timed and not (row.is_reference and row.median > 1.5 * longest)


def _limit(axes: Axes, bars: list[tuple[Row, tuple[str, str, str]]], longest: float) -> float:
    """The axis' end: every bar and the words beside it fit; long messages are cut later."""
    width = axes.get_position().width * axes.figure.get_figwidth()
    limit = longest * 1.02
    for row, (time, meaning, _) in bars:
        if _has_bar(row, longest):
            words = min(text_inches(f"{time} · {meaning}", TEXT_SIZE) + 0.2, 0.7 * width)
            limit = max(limit, row.high * width / (width - words))
    return limit


def _draw_panel(
    axes: Axes,
    precision: str,
    rows: list[Row],
    texts: list[tuple[str, str, str]],
    longest: float,
    limit: float,
    names: list[str],
) -> None:
    width = axes.get_position().width * axes.figure.get_figwidth()
    axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
    axes.set_xlim(0, limit)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    for place, (row, (time, meaning, color)) in enumerate(zip(rows, texts, strict=True)):
        look = look_of(row.backend, names)
        length = row.median if _has_bar(row, longest) else 0.0
        end = max(length, row.high) if length else 0.0
        if length:
            failed, hollow = row.state == "failed", row.state != "ok"
            axes.barh(
                place,
                length,
                height=0.62,
                facecolor="white" if hollow else look.color,
                edgecolor=ALARM if failed else look.color,
                hatch="////" if failed else None,
                linewidth=1.0,
                zorder=3,
            )
            axes.plot([row.low, row.high], [place, place], color="#000000", linewidth=1.4, zorder=4)
        room = width * (1 - end / limit) - 0.1
        words = " · ".join(part for part in (time, meaning) if part)  # a page takes several blanks for one
        if row.timed and not length:
            words += " (no bar: too long)"
        letters = int(len(words) * room / max(text_inches(words, TEXT_SIZE), 0.01))
        words = shortened(words, max(12, letters))
        write_beside(axes, words, end, place, color)
    axes.set_yticks(range(len(rows)), [shortened(row.backend, 32) for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_color(MUTED if row.state == "skipped" else look_of(row.backend, names).ink)
        label.set_fontsize(TEXT_SIZE)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=3)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, limit)))
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    axes.spines["left"].set_color(FAINT)


def _tick(value: float, limit: float) -> str:
    """All ticks of an axis in the unit of its end."""
    unit, scale = next(
        ((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if limit >= s), ("ns", 1e-9)
    )
    return f"{value / scale:.4g} {unit}" if value else "0"
