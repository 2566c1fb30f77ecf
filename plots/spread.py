"""How far blocks lie from their record's median, a row a backend: the noise that other figures hide.

Blocks of all workloads given share a row. What lies beyond the axis is a triangle at its edge, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from results_file import PRECISIONS, Results, Row, Workload
from style import INK, MUTED, TEXT_SIZE, Page, backend_order, look_of, shortened, text_inches, write_beside

ROW_INCHES = 0.27
LEAST_LIMIT = 2.0  # percent; a smaller axis would make noise of a thousandth look large


@dataclass(frozen=True)
class Spread:
    backend: str
    deviations: np.ndarray  # of blocks from their record's median, percent

    @property
    def usual(self) -> float:
        """Nine of ten blocks lie within."""
        return float(np.quantile(np.abs(self.deviations), 0.9))


def spreads(rows: list[Row]) -> list[Spread]:
    """One for each backend of `rows`, which are of one precision."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.counts and len(row.blocks) > 1:
            deviations = [100 * (block.step_seconds / row.median - 1) for block in row.blocks]
            found.setdefault(row.backend, []).extend(deviations)
    order = sorted(found, key=backend_order)
    return [Spread(backend, np.array(found[backend])) for backend in order]


def draw_spread(results: Results, title: str, workloads: list[Workload]) -> Page | None:
    """None where no record has blocks."""
    names = {workload.name for workload in workloads}
    rows = [row for row in results.rows if row.workload.name in names]
    by_precision = {
        precision: spreads([row for row in rows if row.precision == precision]) for precision in PRECISIONS
    }
    by_precision = {precision: found for precision, found in by_precision.items() if found}
    if not by_precision:
        return None
    everything = [spread for found in by_precision.values() for spread in found]
    farthest = np.concatenate([np.abs(spread.deviations) for spread in everything])
    limit = max(LEAST_LIMIT, 1.1 * float(np.quantile(farthest, 0.98)))
    beyond = int((farthest > limit).sum())
    notes = [
        f"A dot is a block: its {results.clock} per step against the median of its record"
        f"{', records of all sizes in one row' if len(names) > 1 else ''}. Nine of ten blocks lie within the"
        " figure at the right.",
    ]
    if beyond:
        notes.append(
            f"Triangles: {beyond} of {len(farthest)} blocks lie beyond the axis, the farthest"
            f" {farthest.max():.0f} % off."
        )
    backends = [spread.backend for spread in everything]
    columns = 1 if len(by_precision) == 1 else 2
    most = max(len(found) for found in by_precision.values())
    page = Page(
        f"Spread of the blocks: {shortened(title, 90)}",
        f"{results.device} · {', '.join(by_precision)} · deviation of each timed block from the median",
        notes,
        panel_width=3.1,
        row_heights=[ROW_INCHES * most + 0.1] * -(-len(by_precision) // columns),
        columns=columns,
        left=0.2 + max(text_inches(shortened(backend, 32), TEXT_SIZE) for backend in backends),
        right=0.85,
        gap=0.95,
    )
    flat = [axes for row in page.axes for axes in row]
    for spare in flat[len(by_precision) :]:
        spare.remove()
    for axes, (precision, found) in zip(flat, by_precision.items(), strict=False):
        axes.set_title(precision, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=6)
        _draw_panel(axes, found, backends, limit, most)
    return page


def _draw_panel(axes: Axes, found: list[Spread], backends: list[str], limit: float, most: int) -> None:
    axes.set_xlim(-1.06 * limit, 1.06 * limit)  # triangles at the limit stay inside
    axes.set_ylim(most - 0.4, -0.6)
    axes.axvline(0.0, color=MUTED, linewidth=1.0, zorder=2)
    for place, spread in enumerate(found):
        look = look_of(spread.backend, backends)
        inside = np.abs(spread.deviations) <= limit
        # Dots of a row are spread a little, always in the same way, so that equal ones are seen.
        offsets = place + 0.5 * (np.modf(np.arange(len(inside)) * 0.618034)[0] - 0.5)
        axes.plot(
            spread.deviations[inside],
            offsets[inside],
            "o",
            color=look.color,
            markersize=2.6,
            alpha=0.55,
            markeredgewidth=0,
        )
        for sign, marker in ((-1, "<"), (1, ">")):
            far = ~inside & (np.sign(spread.deviations) == sign)
            edge = np.full(far.sum(), sign * limit)
            axes.plot(edge, offsets[far], marker, color=look.color, markersize=3.6)
        usual = f"± {spread.usual:.1f} %" if spread.usual >= 0.95 else f"± {spread.usual:.2f} %"
        write_beside(axes, usual, 1.06 * limit, place, look.ink, gap=8)
    axes.set_yticks(range(len(found)), [shortened(spread.backend, 32) for spread in found])
    for label, spread in zip(axes.get_yticklabels(), found, strict=True):
        label.set_color(look_of(spread.backend, backends).ink)
        label.set_fontsize(TEXT_SIZE)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g} %" if value else "0"))
    axes.set_xlabel("from the record's median")
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
