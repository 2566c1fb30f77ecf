"""Loss against step, backends overlaid, and below it the difference to pytorch-eager in fp32, seed by seed.

The loss of one batch is mostly the batch's own difficulty, so curves are smoothed before the spread over
seeds is taken; differences are between equal seeds, which have equal batches: there it cancels out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from notes import record_notes
from results_file import EAGER, PRECISIONS, LossCurve, Results, Row, Workload
from style import ALARM, INK, MUTED, Page, backend_order, look_of, shortened

WINDOW = 0.02  # of the trained steps
LEAST_WINDOW = 50  # steps
LEAST_DIFFERENCE = 5e-4  # nats; a smaller range would blow up noise
MOST_POINTS = 90  # a curve; more cannot be seen and only make files large
LOSSES = {
    "cross-entropy": "mean cross-entropy (nats)",
    "mse": "mean squared error",
    "bce": "mean binary cross-entropy (nats)",
}
TABLE_SIZE = 8.2  # points
TABLE_INCHES = 0.18


@dataclass
class Band:
    """Over the seeds, at each of `steps`."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def smooth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Mean of the stored values at most half a window of steps away; fewer at the ends, NaN where one is."""
    half = max(LEAST_WINDOW, WINDOW * (steps[-1] - steps[0])) / 2
    first = np.searchsorted(steps, steps - half, side="left")
    last = np.searchsorted(steps, steps + half, side="right")
    bad = np.concatenate([[0], np.cumsum(np.isnan(values))])
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values, nan=0.0))])
    means = (sums[last] - sums[first]) / (last - first)
    means[bad[last] > bad[first]] = np.nan
    return means


def _band(steps: np.ndarray, curves: list[np.ndarray]) -> Band:
    even = np.linspace(steps[0], steps[-1], MOST_POINTS)  # the stored steps are dense at the beginning
    every = np.unique(np.searchsorted(steps, even).clip(0, len(steps) - 1))
    stacked = np.stack(curves)[:, every]
    return Band(steps[every], stacked.mean(axis=0), stacked.min(axis=0), stacked.max(axis=0))


def _arrays(curve: LossCurve, steps: np.ndarray) -> np.ndarray:
    held = dict(zip(curve.steps, curve.values, strict=True))
    return np.array([held[step] for step in steps])


def _common_steps(curves: list[LossCurve]) -> np.ndarray:
    common = set(curves[0].steps).intersection(*[curve.steps for curve in curves[1:]])
    return np.array(sorted(common))


def loss_band(row: Row) -> Band | None:
    steps = _common_steps(list(row.losses))
    if len(steps) < 2:
        return None
    return _band(steps, [smooth(steps, _arrays(curve, steps)) for curve in row.losses])


def difference_band(row: Row, reference: Row) -> Band | None:
    """Over the seeds that both have; None if there are none."""
    mine = {curve.seed: curve for curve in row.losses}
    pairs = [(mine[curve.seed], curve) for curve in reference.losses if curve.seed in mine]
    if not pairs:
        return None
    steps = _common_steps([curve for pair in pairs for curve in pair])
    if len(steps) < 2:
        return None
    return _band(steps, [smooth(steps, _arrays(own, steps) - _arrays(other, steps)) for own, other in pairs])


def _seeds_text(seeds: dict[str, list[int]]) -> str:
    """'seeds 1, 2', or for each precision where they are not the same: 'seeds 1, 2 (fp32), seed 1 (fp16)'."""

    def text(numbers: list[int]) -> str:
        return f"{'seeds' if len(numbers) > 1 else 'seed'} {', '.join(map(str, numbers))}"

    first = next(iter(seeds.values()))
    if all(numbers == first for numbers in seeds.values()):
        return text(first)
    return ", ".join(f"{text(numbers)} ({precision})" for precision, numbers in seeds.items())


def draw_losses(results: Results, workload: Workload) -> Page | None:
    """None if no record of the workload has a loss curve."""
    rows = [row for row in results.rows if row.workload.name == workload.name]
    drawn = [row for row in rows if any(len(curve.steps) > 1 for curve in row.losses)]
    if not drawn:
        return None
    precisions = [precision for precision in PRECISIONS if any(row.precision == precision for row in drawn)]
    panels = {
        name: sorted(
            (row for row in drawn if row.precision == name), key=lambda row: backend_order(row.backend)
        )
        for name in precisions
    }
    eager = next((row for row in drawn if (row.backend, row.precision) == (EAGER, "fp32")), None)
    reference = eager if eager is not None and eager.state != "failed" else None
    seeds = {
        name: sorted({curve.seed for row in panels[name] for curve in row.losses}) for name in precisions
    }
    bands = "; bands: smallest to largest" if any(len(numbers) > 1 for numbers in seeds.values()) else ""
    notes = [
        f"Lines: running mean over {100 * WINDOW:g} % of the steps (at least {LEAST_WINDOW}), mean over"
        f" {_seeds_text(seeds)}{bands}. Curves that coincide lie inside each other.",
    ]
    if reference is not None:
        notes.append(
            "Difference: between equal seeds, so equal batches; smoothed in the same way. Dashed: failed."
        )
    else:
        notes.append("No difference is drawn: there is no valid curve of pytorch-eager in fp32.")
    for row in drawn:
        if row.curve_differs:
            notes.append(
                f"Curve check not passed: {row.backend} {row.precision}: {shortened(row.message, 200)}"
            )
        broken = [curve.seed for curve in row.losses if np.isnan(curve.values).any()]
        if broken:
            notes.append(
                f"Loss not finite: {row.backend} {row.precision}, seeds {', '.join(map(str, broken))}."
            )
    files = {row.file for row in drawn}
    shown = [row for row in rows if row.precision in precisions and row.file in files]
    notes += record_notes(results, shown, where=lambda row: "")
    title = f"Training loss: {shortened(workload.name, 90)}"
    subtitle = f"{results.device} · {', '.join(precisions)} · {LOSSES[workload.loss]} before each update"
    heights = [2.7, 1.5] if reference is not None else [2.7]
    table = max(len(panel) for panel in panels.values()) + 1
    columns = min(2, len(precisions))
    block = [*heights, TABLE_INCHES * table]
    page = Page(
        title,
        subtitle,
        notes,
        panel_width=4.8 if columns == 1 else 4.1,
        row_heights=block * -(-len(precisions) // columns),
        columns=columns,
        left=1.0,
        right=0.2,
        gap=0.6,
        foot=0.12,
    )
    names = [row.backend for row in rows]
    panels_axes = []
    for first in range(0, len(page.axes), len(block)):
        panels_axes += [list(column) for column in zip(*page.axes[first : first + len(block)], strict=True)]
    for spare in panels_axes[len(precisions) :]:
        for axes in spare:
            axes.remove()
    for precision, axes in zip(precisions, panels_axes, strict=False):
        _draw_loss(axes[0], precision, panels[precision], names)
        if reference is not None:
            _draw_difference(axes[1], panels[precision], reference, names)
        axes[len(heights) - 1].set_xlabel("training step")
        _draw_table(axes[-1], panels[precision], names, table)
    page.panels = panels_axes[: len(precisions)]
    for index in range(len(heights)):
        _share_limits([axes[index] for axes in panels_axes[: len(precisions)]], symmetric=index == 1)
    return page


def _share_limits(panels: list[Axes], symmetric: bool) -> None:
    limits = [axes.get_ylim() for axes in panels]
    low, high = min(limit[0] for limit in limits), max(limit[1] for limit in limits)
    if symmetric:  # differences: zero in the middle
        high = max(abs(low), abs(high))
        low = -high
    for axes in panels:
        axes.set_ylim(low, high)


def _nested_width(place: int, count: int) -> float:
    """Later curves are drawn thinner over the earlier ones, so that equal curves are all seen."""
    return 4.0 - 3.0 * place / max(1, count - 1) if count > 1 else 1.6


def _draw_band(axes: Axes, band: Band, row: Row, names: list[str], width: float) -> None:
    look = look_of(row.backend, names)
    line = (0, (3, 2)) if row.state == "failed" else "-"
    if (band.high > band.low).any():  # of one seed nobody would see it
        axes.fill_between(band.steps, band.low, band.high, color=look.color, alpha=0.14, linewidth=0)
    axes.plot(band.steps, band.mean, color=look.color, linewidth=width, linestyle=line)


def _prepare(axes: Axes) -> None:
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.tick_params(length=3)
    axes.margins(x=0.01)
    inches = axes.get_position().width * axes.figure.get_figwidth()
    axes.yaxis.set_label_coords(-0.62 / inches, 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _draw_loss(axes: Axes, precision: str, rows: list[Row], names: list[str]) -> None:
    _prepare(axes)
    axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=6)
    axes.set_ylabel(f"loss{_unit(rows)}")
    for place, row in enumerate(rows):
        band = loss_band(row)
        if band is not None:
            _draw_band(axes, band, row, names, _nested_width(place, len(rows)))


def _draw_difference(axes: Axes, rows: list[Row], reference: Row, names: list[str]) -> None:
    _prepare(axes)
    axes.axhline(0.0, color=MUTED, linewidth=1.0)
    axes.set_ylabel(f"difference to\npytorch-eager fp32{_unit(rows)}", fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.2g}" if value else "0"))
    axes.yaxis.set_major_locator(MaxNLocator(5, symmetric=True, steps=[1, 2, 5, 10]))
    for row in rows:
        band = difference_band(row, reference) if row is not reference else None
        if band is not None:
            _draw_band(axes, band, row, names, 1.3)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.1 * LEAST_DIFFERENCE), max(high, 1.1 * LEAST_DIFFERENCE))


def _unit(rows: list[Row]) -> str:
    return "" if rows[0].workload.loss == "mse" else " (nats)"


def _held_out(row: Row) -> str:
    """Accuracy where there are labels, else R²."""
    accuracy = _mean([curve.held_out_accuracy for curve in row.losses])
    r_squared = _mean([curve.held_out_r_squared for curve in row.losses])
    if accuracy is not None:
        return f"{100 * accuracy:.1f} %"
    return f"R² {r_squared:.3f}" if r_squared is not None else "–"


def _mean(values: list[float | None]) -> float | None:
    return float(np.mean(values)) if values and None not in values else None


def _draw_table(axes: Axes, rows: list[Row], names: list[str], lines: int) -> None:
    """Names and figures of the curves; direct labels would all point at the same spot."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(lines, 0)

    def line(place: int, cells: tuple[str, str, str], color: str) -> None:
        axes.text(0.1, place + 0.5, cells[0], color=color, fontsize=TABLE_SIZE, va="center")
        axes.text(0.76, place + 0.5, cells[1], color=color, fontsize=TABLE_SIZE, va="center", ha="right")
        axes.text(1.0, place + 0.5, cells[2], color=color, fontsize=TABLE_SIZE, va="center", ha="right")

    line(0, ("", "last 312 steps", "held out"), MUTED)
    for place, row in enumerate(rows, start=1):
        look = look_of(row.backend, names)
        failed = row.state == "failed"
        axes.plot(
            [0.0, 0.075],
            [place + 0.5] * 2,
            color=look.color,
            linewidth=_nested_width(place - 1, len(rows)),
            linestyle=(0, (3, 2)) if failed else "-",
            solid_capstyle="butt",
        )
        last = _mean([curve.last_mean for curve in row.losses])
        name = shortened(row.backend, 18 if failed else 24) + (" FAILED" if failed else "")
        cells = (
            name,
            f"{last:.4f}" if last is not None else "–",
            _held_out(row),
        )
        line(place, cells, ALARM if failed else look.ink)
