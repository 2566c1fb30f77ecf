"""Speed-up and efficiency over the number of GPUs, for networks that a file has on several numbers of them.

The batch a GPU stays the same (weak scaling), so N GPUs train N times the samples in a step. The speed-up is
samples per second over those of the fastest row on one GPU. Ours and the rivals each have their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from line_labels import FONT_SIZE, LABEL_GAP, LineLabel, label_lines
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from results_file import Results, Row, Workload, refuted_text
from style import ALARM, FAINT, INK, MUTED, Page, format_percent, shortened, text_inches

OURS, RIVAL = "#cc3311", "#7a4b1e"  # as in networks.py
SIDES = {"ours": OURS, "rival": RIVAL}
MOST_COLUMNS = 3
PANEL_INCHES = 1.75
NAME_SIZE = 7.6  # points


@dataclass(frozen=True)
class Network:
    """What differs in the number of GPUs alone, within one file."""

    file: str
    workloads: dict[int, Workload]  # by the number of GPUs, ascending

    @property
    def title(self) -> str:
        """Its name on the fewest GPUs if it has one of its own, else its widths and batch."""
        fewest = next(iter(self.workloads.values()))
        if fewest.has_own_name:
            return fewest.name
        trained = fewest.trained if fewest.devices == 1 else fewest.trained.rpartition(", ")[0]
        shape = f"{'-'.join(map(str, fewest.widths))}, batch {fewest.batch_size}"
        return ", ".join(filter(None, (shape, trained)))


@dataclass(frozen=True)
class Point:
    """The fastest row of a side on a number of GPUs, against its fastest row on one."""

    row: Row
    base: Row

    @property
    def devices(self) -> int:
        return self.row.workload.devices

    @property
    def speedup(self) -> float:
        return self.devices * self.base.median / self.row.median

    @property
    def interval(self) -> tuple[float, float]:
        """Speed-ups that both 95 % intervals allow."""
        return (
            self.devices * self.base.low / self.row.high,
            self.devices * self.base.high / self.row.low,
        )

    @property
    def efficiency(self) -> float:
        return self.speedup / self.devices


@dataclass(frozen=True)
class Line:
    """A side's points by the number of GPUs; without any, `reason` says why."""

    points: tuple[Point, ...]
    refuted: dict[int, list[str]] = field(default_factory=dict)  # there no rival is known to be the fastest
    reason: str = ""


def networks_of(results: Results) -> list[Network]:
    """Every network of every file, the smallest first; many are there on one number of GPUs only."""
    groups: dict[tuple, dict[int, Workload]] = {}
    used = {(row.file, row.workload.name) for row in results.rows}
    for workload in results.workloads:
        for source in results.sources:
            if (source.file, workload.name) in used:
                key = (source.file, _trained(workload))
                groups.setdefault(key, {}).setdefault(workload.devices, workload)
    return [Network(file, dict(sorted(found.items()))) for (file, _), found in groups.items()]


def _trained(one: Workload) -> tuple:
    return (one.widths, one.activation, one.loss, one.optimizer, one.batch_size, one.data, one.seed)


def rows_of(results: Results, network: Network, devices: int, precision: str) -> list[Row]:
    if devices not in network.workloads:
        return []
    key = (network.file, network.workloads[devices].name, precision)
    return [row for row in results.rows if (row.file, row.workload.name, row.precision) == key]


def fastest(rows: list[Row], side: str) -> Row | None:
    """Of the rows that passed verification."""
    found = [
        row
        for row in rows
        if row.timed and row.state == "ok" and (row.is_ours if side == "ours" else row.is_rival)
    ]
    return min(found, key=lambda row: row.median, default=None)


def refuted(rows: list[Row]) -> list[str]:
    return [row.backend for row in rows if row.refuted and row.is_rival]


def line_of(results: Results, network: Network, precision: str, side: str) -> Line:
    rows = {devices: rows_of(results, network, devices, precision) for devices in network.workloads}
    wrong = {devices: names for devices, found in rows.items() if (names := refuted(found))}
    if side == "ours":
        wrong = {}
    base = fastest(rows.get(1, []), side)
    if 1 in wrong:
        return Line((), wrong, refuted_text(wrong[1]))
    if base is None:
        return Line((), wrong, "no result on one GPU")
    best = [fastest(found, side) for devices, found in rows.items() if devices not in wrong]
    points = tuple(Point(row, base) for row in best if row)
    if len(points) < 2:
        return Line((), wrong, "no result on several GPUs")
    return Line(points, wrong)


def networks_to_draw(results: Results, precision: str) -> list[Network]:
    """Those that have a speed-up of ours or of a rival."""
    return [
        network
        for network in networks_of(results)
        if len(network.workloads) > 1
        and any(line_of(results, network, precision, side).points for side in SIDES)
    ]


def draw_several_gpus(results: Results, precision: str) -> Page:
    """A panel a network; at least one has to have a speed-up."""
    networks = networks_to_draw(results, precision)
    lines = {
        place: {side: line_of(results, network, precision, side) for side in SIDES}
        for place, network in enumerate(networks)
    }
    columns = min(MOST_COLUMNS, len(networks))
    page = Page(
        "Speed-up over the number of GPUs",
        f"{results.device} · {precision} · samples per second relative to one GPU, "
        "same batch a GPU (weak scaling) · axes logarithmic",
        _notes(networks, lines),
        panel_width=PANEL_INCHES,
        row_heights=[1.75] * -(-len(networks) // columns),
        columns=columns,
        left=0.62,
        right=LABEL_GAP + 0.15 + text_inches("rival 100 %", FONT_SIZE),
        gap=1.22,
        above=0.78,
    )
    flat = [axes for row in page.axes for axes in row]
    for spare in flat[len(networks) :]:
        spare.remove()
    points = [point for found in lines.values() for line in found.values() for point in line.points]
    counts = sorted({point.devices for point in points})
    low = min(1.0, *(point.interval[0] for point in points)) / 1.25
    high = max(counts[-1], *(point.interval[1] for point in points)) * 1.25
    for place, (network, axes) in enumerate(zip(networks, flat, strict=False)):
        _axes(axes, counts, low, high)
        axes.set_ylabel("speed-up (times)")
        _head(axes, _titles(networks)[place], lines[place])
        _draw(axes, lines[place], ideal=place == 0, end=max(network.workloads))
    return page


def _titles(networks: list[Network]) -> list[str]:
    """With the file where two have the same network."""
    plain = [network.title for network in networks]
    return [
        f"{title} ({Path(network.file).name})" if plain.count(title) > 1 else title
        for title, network in zip(plain, networks, strict=True)
    ]


def _notes(networks: list[Network], lines: dict[int, dict[str, Line]]) -> list[str]:
    notes = [
        "Each line is relative to its own fastest row on one GPU: ours to ours, the rival's to the rival's. "
        "The lines do not say which of the two is faster.",
        "Per cent: efficiency, the speed-up over the number of GPUs. Thin line: the ideal, an efficiency "
        "of 100 %. Grey: slower than one GPU. Vertical lines: speed-ups that both 95 % intervals allow.",
        "Names: the fastest rows from one GPU on. Rows that failed or were not verified are left out.",
    ]
    for place, title in enumerate(_titles(networks)):
        for devices, names in lines[place]["rival"].refuted.items():
            where = f"{devices} GPU{'s' if devices > 1 else ''}"
            notes.append(f"No rival's point of {title} on {where}: {refuted_text(names)}.")
    return notes


def _axes(axes: Axes, counts: list[int], low: float, high: float) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(counts[0] / counts[-1] ** 0.07, counts[-1] * counts[-1] ** 0.07)
    axes.set_ylim(low, high)
    ticks = [2.0**power for power in range(-12, 12)]
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("GPUs")
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=2)
    axes.axhspan(low, 1.0, color=FAINT, alpha=0.3, zorder=0, linewidth=0)


def _head(axes: Axes, title: str, lines: dict[str, Line]) -> None:
    """The network, and below it whose rows the lines are."""

    def above(height: float, text: str, **options) -> None:
        axes.annotate(
            text,
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(-26, height),
            textcoords="offset points",
            va="baseline",
            annotation_clip=False,
            **options,
        )

    above(33, shortened(title, 38), fontsize=9, fontweight="bold", color=INK)
    for height, (side, line) in zip((20, 9), lines.items(), strict=True):
        names = ", ".join(dict.fromkeys(point.row.named for point in line.points))
        color = SIDES[side] if line.points else ALARM if line.refuted else MUTED
        above(height, shortened(f"{side}: {names or line.reason}", 48), fontsize=NAME_SIZE, color=color)


def _draw(axes: Axes, lines: dict[str, Line], ideal: bool, end: int) -> None:
    axes.plot([1, end], [1, end], color=MUTED, linewidth=0.7, zorder=2)
    ends = [LineLabel("ideal", MUTED, end, end)] if ideal else []
    for side, line in lines.items():
        if not line.points:
            continue
        color, points = SIDES[side], line.points
        x = [point.devices for point in points]
        axes.plot(
            x,
            [point.speedup for point in points],
            "-X" if side == "ours" else "-D",
            color=color,
            linewidth=2.0 if side == "ours" else 1.4,
            markersize=6.5 if side == "ours" else 5,
            zorder=4,
        )
        axes.vlines(
            x[1:], *zip(*(point.interval for point in points[1:]), strict=True), color=color, zorder=3
        )
        last = points[-1]
        ends.append(LineLabel(f"{side} {format_percent(last.efficiency)}", color, last.devices, last.speedup))
    _label_between(axes, lines)
    label_lines(axes, ends)


def _label_between(axes: Axes, lines: dict[str, Line]) -> None:
    """Efficiencies before the last point, clear of both lines."""
    for side, line in lines.items():
        for before, point, after in zip(line.points, line.points[1:], line.points[2:], strict=False):
            rises = after.speedup >= point.speedup
            others = [
                (other.speedup, name)
                for name, found in lines.items()
                for other in found.points
                if name != side and other.devices == point.devices
            ]
            is_above = (point.speedup, side) > others[0] if others else not rises
            place = "left" if others and rises == is_above else "right"  # alone: the ideal is on the left
            is_peak = point.speedup > max(before.speedup, after.speedup)
            if is_peak and others and others[0][0] > 1.4 * point.speedup:
                is_above, place = True, "center"  # there is room up to the other line
            axes.annotate(
                format_percent(point.efficiency),
                xy=(point.devices, point.speedup),
                xytext=({"left": -3, "center": 0, "right": 3}[place], 6 if is_above else -6),
                textcoords="offset points",
                ha={"left": "right", "center": "center", "right": "left"}[place],
                va="bottom" if is_above else "top",
                fontsize=NAME_SIZE,
                color=SIDES[side],
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.3},
                zorder=2.5,
            )
