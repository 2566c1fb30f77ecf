"""Workloads that differ in hidden width and batch only, as a map: a panel a precision, H to the right.

One figure shows how many times as fast ours is as the best rival of the same file, another which share of the
floor's speed ours reaches. A cell holds its number and the mark of the strategy that trained it. A cell that
was not measured is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from findings import Cell, cells_of
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize, to_rgb
from matplotlib.patches import Rectangle
from results_file import PRECISIONS, Results, Workload, refuted_text
from style import ALARM, FAINT, INK, MUTED, Page, backend_order, format_percent, look_of
from width_series import alike_but_for_width

LEAST_WIDTHS, LEAST_BATCHES = 3, 3  # fewer are better read as lines
LEAST_SHARE = 0.5  # of the grid's cells that have a workload
CELL_WIDTH, CELL_HEIGHT = 0.64, 0.46  # inches
# The signs of notes that are the markers of style.LOOKS.
SIGNS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "X": "✖", "v": "▼", "<": "◀", ">": "▶", "p": "⬟"}
LOST = 0.98  # a ratio whose interval lies below it
CLOSE = 1.15  # a ratio below it wants a reason
CLIFF = 1.6 / 1.3  # how much more than work time may grow from a cell to its neighbour
MOST_LISTED = 12


@dataclass(frozen=True)
class Plane:
    title: str  # "784-H-H-H-10"
    slug: str
    places: dict[str, tuple[int, int]]  # workload name to H and batch

    @property
    def widths(self) -> list[int]:
        return sorted({width for width, _ in self.places.values()})

    @property
    def batches(self) -> list[int]:
        return sorted({batch for _, batch in self.places.values()})


def find_planes(workloads: list[Workload]) -> list[Plane]:
    """Groups of workloads that are equal but for one hidden width and the batch, and fill most of a grid."""
    groups: dict[tuple, dict[tuple[int, int], str]] = {}
    for workload in workloads:
        key = alike_but_for_width(workload)
        if key is not None:
            place = (workload.widths[1], workload.batch_size)
            groups.setdefault(key, {}).setdefault(place, workload.name)
    found = []
    for key, names in groups.items():
        widths, batches = {width for width, _ in names}, {batch for _, batch in names}
        if len(widths) < LEAST_WIDTHS or len(batches) < LEAST_BATCHES:
            continue
        if len(names) < LEAST_SHARE * len(widths) * len(batches):
            continue
        trained = key.trained
        found.append(
            Plane(
                title=", ".join(filter(None, (key.shape, trained))),
                slug="-".join(filter(None, (key.shape, trained.replace(", ", "-").replace(" ", "")))),
                places={name: place for place, name in sorted(names.items())},
            )
        )
    return found


def strategy_of(cell: Cell) -> str:
    """The backend that trained the fastest of ours: `cuda` says which one it took."""
    return cell.ours.taken or cell.ours.backend


def work_of(workload: Workload) -> float:
    """Multiply-adds of a step: forward, weight gradient, and input gradient of all but the first layer."""
    products = [
        inputs * outputs for inputs, outputs in zip(workload.widths, workload.widths[1:], strict=False)
    ]
    return workload.batch_size * (3 * sum(products) - products[0])


Grid = dict[tuple[int, int], Cell]  # by H and batch


def grids_of(results: Results, plane: Plane) -> dict[str, Grid]:
    """By precision. A cell that several files have is the first one's that has a result."""
    grids: dict[str, Grid] = {}
    for cell in cells_of(results):
        if cell.workload.name not in plane.places:
            continue
        grid = grids.setdefault(cell.precision, {})
        place = plane.places[cell.workload.name]
        if place not in grid or (grid[place].against_rival is None and cell.against_rival is not None):
            grid[place] = cell
    return {precision: grids[precision] for precision in PRECISIONS if precision in grids}


@dataclass(frozen=True)
class Cliff:
    """Two neighbours in a plane between which the step's time grows far more than its work."""

    precision: str
    start: Cell
    end: Cell

    @property
    def time(self) -> float:
        return self.end.ours.median / self.start.ours.median

    @property
    def work(self) -> float:
        return work_of(self.end.workload) / work_of(self.start.workload)

    def __str__(self) -> str:
        names = " to ".join(
            f"{cell.workload.name.removeprefix('mlp-')} ({strategy_of(cell)})"
            for cell in (self.start, self.end)
        )
        return f"{self.precision} {names}: {self.time:.2g} times the time for {self.work:.2g} times the work"


def cliffs(results: Results) -> list[Cliff]:
    """The steepest first. Time may grow 1.6 times where work grows 1.3 times, and elsewhere in proportion."""
    found = []
    for plane in find_planes(results.workloads):
        widths, batches = plane.widths, plane.batches
        for precision, grid in grids_of(results, plane).items():
            timed = {place: cell for place, cell in grid.items() if cell.ours}
            pairs = [((a, batch), (b, batch)) for a, b in _neighbours(widths) for batch in batches]
            pairs += [((width, a), (width, b)) for width in widths for a, b in _neighbours(batches)]
            for start, end in pairs:
                if start in timed and end in timed:
                    cliff = Cliff(precision, timed[start], timed[end])
                    if cliff.time > CLIFF * cliff.work:
                        found.append(cliff)
    return sorted(found, key=lambda cliff: -cliff.time / cliff.work)


def _neighbours(values: list[int]) -> list[tuple[int, int]]:
    return list(zip(values, values[1:], strict=False))


def close_cells(results: Results) -> list[Cell]:
    """Where ours is less than 1.15 times as fast as the best rival; the worst first."""
    found = [
        cell
        for plane in find_planes(results.workloads)
        for grid in grids_of(results, plane).values()
        for cell in grid.values()
        if cell.against_rival is not None and cell.against_rival < CLOSE
    ]
    return sorted(found, key=lambda cell: cell.against_rival)


def is_lost(cell: Cell) -> bool:
    """Whether even the best of the interval is a loss, with the bounds of both times at their farthest."""
    return cell.rival.high / cell.ours.low < LOST


def close_text(cell: Cell) -> str:
    lost = ", lost" if is_lost(cell) else ""
    return (
        f"{cell.precision} {cell.workload.name.removeprefix('mlp-')}: {cell.against_rival:.2f}{lost}"
        f" ({strategy_of(cell)} against {cell.rival.backend})"
    )


def draw_against_rival(results: Results, plane: Plane) -> Page | None:
    """None where no cell has both."""
    grids = grids_of(results, plane)
    ratios = [cell.against_rival for grid in grids.values() for cell in grid.values() if cell.against_rival]
    if not ratios:
        return None
    farthest = max(2.0, min(8.0, max(max(ratio, 1 / ratio) for ratio in ratios)))
    notes = [
        "Number: time of the best rival of the same file over ours; blue: ours is faster. The best rival is"
        " the fastest row that is not ours.",
        *_cliff_notes(plane, cliffs(results)),
    ]
    return _draw(
        results,
        plane,
        grids,
        title=f"Ours over the best rival: {plane.title}",
        notes=notes,
        value=lambda cell: cell.against_rival,
        words=lambda value: f"{value:.2f}" if value < 9.95 else f"{value:.0f}",
        colors=matplotlib.colormaps["RdBu"],
        norm=LogNorm(1 / farthest, farthest, clip=True),
    )


def draw_floor(results: Results, plane: Plane) -> Page | None:
    """None where no cell has a floor."""

    def value(cell: Cell) -> float | None:
        return cell.ours.fraction_of_floor if cell.ours else None

    grids = grids_of(results, plane)
    if not any(value(cell) for grid in grids.values() for cell in grid.values()):
        return None
    return _draw(
        results,
        plane,
        grids,
        title=f"Share of the floor that ours reaches: {plane.title}",
        notes=["Number: the floor over ours; 100 %: as fast as this device allows by its measured rates."],
        value=value,
        words=format_percent,
        colors=matplotlib.colormaps["YlGnBu"],
        norm=Normalize(0, 1, clip=True),
    )


def _cliff_notes(plane: Plane, found: list[Cliff]) -> list[str]:
    here = [cliff for cliff in found if cliff.start.workload.name in plane.places]
    if not here:
        return ["No cliffs: nowhere does time grow much more than work from a cell to its neighbour."]
    notes = [f"Cliffs, where time grows more than {CLIFF:.2f} times as much as work:"]
    notes += [f"{cliff}." for cliff in here[:MOST_LISTED]]
    return notes + ([f"And {len(here) - MOST_LISTED} more."] if len(here) > MOST_LISTED else [])


def _draw(
    results: Results,
    plane: Plane,
    grids: dict[str, Grid],
    title: str,
    notes: list[str],
    value: Callable[[Cell], float | None],
    words: Callable[[float], str],
    colors: Colormap,
    norm: Normalize,
) -> Page:
    strategies = sorted(
        {strategy_of(cell) for grid in grids.values() for cell in grid.values() if cell.ours},
        key=backend_order,
    )
    marks = ", ".join(f"{SIGNS.get(look_of(name, strategies).marker, '?')} {name}" for name in strategies)
    failed = {
        refuted_text(list(cell.refuted)) for grid in grids.values() for cell in grid.values() if cell.refuted
    }
    notes = [
        notes[0],
        *([f"Mark: which of ours trained it: {marks}."] if marks else []),
        "Empty: not measured. A dash: measured, and without this number.",
        *(f"In cells with a dash: {text}." for text in sorted(failed)),
        *notes[1:],
    ]
    columns = min(2, len(grids))
    page = Page(
        title,
        f"{results.device} · {', '.join(grids)} · H: units of each hidden layer",
        notes,
        panel_width=CELL_WIDTH * len(plane.widths),
        row_heights=[CELL_HEIGHT * len(plane.batches)] * -(-len(grids) // columns),
        columns=columns,
        left=0.85,
        right=0.3,
        gap=0.95,
    )
    flat = [axes for row in page.axes for axes in row]
    for spare in flat[len(grids) :]:
        spare.remove()
    for axes, (precision, grid) in zip(flat, grids.items(), strict=False):
        _draw_panel(axes, plane, grid, value, words, colors, norm, strategies)
        axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=6)
    return page


def _draw_panel(
    axes: Axes,
    plane: Plane,
    grid: Grid,
    value: Callable[[Cell], float | None],
    words: Callable[[float], str],
    colors: Colormap,
    norm: Normalize,
    strategies: list[str],
) -> None:
    widths, batches = plane.widths, plane.batches
    axes.set_xlim(0, len(widths))
    axes.set_ylim(0, len(batches))
    axes.set_xticks([at + 0.5 for at in range(len(widths))], [str(width) for width in widths])
    axes.set_yticks([at + 0.5 for at in range(len(batches))], [str(batch) for batch in batches])
    axes.set_xlabel("hidden width H (units)")
    axes.set_ylabel("batch (samples)")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for (width, batch), cell in grid.items():
        x, y = widths.index(width), batches.index(batch)
        number = value(cell)
        color = colors(norm(number))[:3] if number is not None else (1.0, 1.0, 1.0)
        axes.add_patch(
            Rectangle((x + 0.02, y + 0.03), 0.96, 0.94, facecolor=color, edgecolor=FAINT, linewidth=0.6)
        )
        ink = "white" if _is_dark(color) else INK
        text = words(number) if number is not None else "–"
        shade = {"color": ALARM if cell.refuted else MUTED} if number is None else {"color": ink}
        axes.text(x + 0.57, y + 0.5, text, ha="center", va="center_baseline", fontsize=9, **shade)
        if cell.ours:
            marker = look_of(strategy_of(cell), strategies).marker
            axes.plot(x + 0.16, y + 0.5, marker, color=ink, markersize=4.5, markeredgewidth=0, zorder=4)


def _is_dark(color: tuple[float, ...]) -> bool:
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def section(results: Results) -> dict[str, list[str]]:
    """What a report says of planes in words: title of a list to its lines; nothing without a plane."""
    if not find_planes(results.workloads):
        return {}
    close = close_cells(results)
    lost = sum(map(is_lost, close))
    return {
        f"Cells below {CLOSE} of the best rival ({len(close)}, of which {lost} are lost)": list(
            map(close_text, close)
        ),
        f"Cliffs: neighbours between which time grows over {CLIFF:.2f} times as much as work": [
            str(cliff) for cliff in cliffs(results)
        ],
    }
