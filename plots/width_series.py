"""What all figures against the hidden width H share: the series, panels, axes, lines and crosses.

A panel a precision; a line breaks where its backend has no result.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from line_labels import FONT_SIZE, LABEL_GAP
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from results_file import PRECISIONS, Row, Workload
from style import ALARM, INK, Look, Page, backend_order, text_inches

LEAST_WIDTHS = 3  # fewer are better read as bars


@dataclass(frozen=True)
class Series:
    title: str  # "784-H-H-H-10, batch 32"
    slug: str  # "784-H-H-H-10-b32"
    widths: dict[str, int]  # workload name to H


@dataclass(frozen=True)
class Alike:
    """What workloads share that differ in one hidden width, and perhaps in the batch."""

    shape: str  # "784-H-H-H-10"
    trained: str  # as Workload.trained
    rest: tuple  # what else has to be equal


def alike_but_for_width(workload: Workload) -> Alike | None:
    """None if the hidden layers are not of one width."""
    if len(set(workload.widths[1:-1])) != 1:
        return None
    shape = "-".join([str(workload.widths[0]), *["H"] * (len(workload.widths) - 2), str(workload.widths[-1])])
    trained = (workload.activation, workload.loss, workload.optimizer, workload.devices)
    return Alike(shape, workload.trained, (trained, workload.data, workload.seed))


def find_series(workloads: list[Workload]) -> list[Series]:
    """Groups of at least three workloads that are equal but for one hidden width."""
    groups: dict[tuple[Alike, int], dict[int, str]] = {}
    for workload in workloads:
        if (key := alike_but_for_width(workload)) is not None:
            by_width = groups.setdefault((key, workload.batch_size), {})
            by_width.setdefault(workload.widths[1], workload.name)
    found = []
    for (key, batch), by_width in groups.items():
        if len(by_width) < LEAST_WIDTHS:
            continue
        trained = key.trained.replace(", ", "-").replace(" ", "")
        found.append(
            Series(
                title=", ".join(filter(None, (f"{key.shape}, batch {batch}", key.trained))),
                slug="-".join(filter(None, (f"{key.shape}-b{batch}", trained))),
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


def series_page(
    title: str, subtitle: str, notes: list[str], precisions: list[str], labels: list[str]
) -> Page:
    """A panel a precision, with room for `labels` beside the ends of the lines."""
    columns = 1 if len(precisions) == 1 else 2
    longest = max((text_inches(label, FONT_SIZE) for label in labels), default=1.0)
    return Page(
        title,
        subtitle,
        notes,
        panel_width=4.2 if columns == 1 else 3.2,
        row_heights=[3.6 if len(labels) <= 6 else 4.2] * -(-len(precisions) // columns),
        columns=columns,
        left=0.78,
        right=LABEL_GAP + 0.1 + longest,
        gap=0.95,
    )


def panels(page: Page, precisions: list[str]) -> list[tuple[str, Axes]]:
    flat = list(itertools.chain.from_iterable(page.axes))
    for spare in flat[len(precisions) :]:
        spare.remove()
    return list(zip(precisions, flat, strict=False))


def width_axis(axes: Axes, widths: list[int], precision: str, left: float = 0.0) -> None:
    """`left`: inches kept free between the axis and the first width."""
    axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=8)
    axes.set_xscale("log", base=2)
    free = left / (axes.get_position().width * axes.figure.get_figwidth())
    ratio = (widths[-1] / widths[0]) ** (0.04 / (1 - free))
    axes.set_xlim(widths[0] / (widths[-1] / widths[0]) ** max(0.04, free / (1 - free)), widths[-1] * ratio)
    axes.xaxis.set_major_locator(FixedLocator(widths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("hidden width H (units)")
    axes.grid(True, which="major")
    axes.tick_params(length=3, which="both")
    axes.set_axisbelow(True)


def draw_line(axes: Axes, points: list[Point], widths: list[int], look: Look) -> None:
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
    spans = [point for point in points if point.low < point.high]
    if spans:
        axes.vlines(
            [point.width for point in spans],
            [point.low for point in spans],
            [point.high for point in spans],
            color=look.color,
            linewidth=1.0,
            zorder=3,
        )
    for verified in (True, False):
        alike = [point for point in points if (point.row.state == "ok") == verified]
        axes.plot(
            [point.width for point in alike],
            [point.value for point in alike],
            look.marker,
            color=look.color,
            markersize=look.size,
            markerfacecolor=look.color if verified else "white",
            markeredgewidth=1.0,
            zorder=4,
        )


def draw_cross(axes: Axes, width: int, value: float | None, look: Look, edge: float) -> None:
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


def limits(values: list[float], least_decades: float) -> tuple[float, float]:
    """A little room around the values on a log axis, and never so narrow that noise looks like a trend."""
    low, high = min(values), max(values)
    missing = 10**least_decades / (high / low)
    if missing > 1:
        low, high = low / missing**0.5, high * missing**0.5
    return low / 1.25, high * 1.25


def contract_note(rows: list[Row]) -> list[str]:
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
