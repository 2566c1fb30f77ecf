"""The proof of the regression gate (results/h200/gate.json) as a figure.

One row for each slowdown that was planted, none included: every estimate with its interval and verdict.
The grey band is the tolerance: what lies in it is as good as the same.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from style import ALARM, INK, MUTED, Page

COLORS = {"regression": ALARM, "inconclusive": "#e69f00", "equivalent": "#0072b2", "improvement": "#009e73"}
MARKERS = {"regression": "o", "inconclusive": "s", "equivalent": "o", "improvement": "^"}


def draw_gate(gate: dict) -> Page:
    asked = sorted({row["asked_percent"] for row in gate["estimates"]})
    rows = {
        percent: sorted(
            (row for row in gate["estimates"] if row["asked_percent"] == percent and row["ratio"]),
            key=lambda row: row["ratio"],
        )
        for percent in asked
    }
    aa = gate["aa"]
    page = Page(
        "What the regression gate says of equal builds and of planted slowdowns",
        f"{gate['device']['name']} · suite ci · {aa['suite_runs']} comparisons of a build with itself, "
        f"{sum(one['trials'] for one in gate['planted'])} cells with a planted delay",
        [
            "Points: estimate of head over base of one cell in one comparison; lines: its interval, each end "
            "at the level that Holm's procedure left for it.",
            "Grey: the tolerance. Dashed: the slowdown that was asked for; what the worker made of it is in "
            "the file.",
        ],
        panel_width=7.4,
        row_heights=[1.9 if percent == 0 else 1.1 for percent in asked],
        columns=1,
        left=1.55,
        right=0.3,
        gap=0.14,
        foot=0.62,
    )
    all_axes = [row[0] for row in page.axes]
    for axes, percent in zip(all_axes, asked, strict=True):
        draw_row(axes, percent, rows[percent], 100 * gate["rule"]["tolerance"])
        axes.sharex(all_axes[0])
    for axes in all_axes[:-1]:
        axes.tick_params(labelbottom=False)
    lowest = min(row["low"] for row in gate["estimates"] if row["low"])
    highest = max(row["high"] for row in gate["estimates"] if row["high"])
    all_axes[0].set_xlim(min(-3.0, 100 * (lowest - 1) - 0.3), max(12.0, 100 * (highest - 1) + 0.3))
    all_axes[-1].set_xlabel("change of the step, head against base, in percent")
    return page


def draw_row(axes: Axes, percent: float, rows: list[dict], tolerance: float) -> None:
    axes.axvspan(-tolerance, tolerance, color="#ececec", zorder=0)
    axes.axvline(percent, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
    counts = []
    for verdict, color in COLORS.items():
        places = [i for i, row in enumerate(rows) if row["verdict"] == verdict]
        if not places:
            continue
        counts.append(f"{len(places)} {verdict}")
        chosen = [rows[i] for i in places]
        axes.hlines(
            places,
            [100 * (row["low"] - 1) for row in chosen],
            [100 * (row["high"] - 1) for row in chosen],
            color=color,
            linewidth=0.5,
            alpha=0.5,
        )
        axes.plot(
            [100 * (row["ratio"] - 1) for row in chosen],
            places,
            MARKERS[verdict],
            color=color,
            markersize=2.2,
            linestyle="none",
        )
    axes.set_ylim(-2, len(rows) + 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    title = "nothing planted" if percent == 0 else f"{percent:g} % planted"
    axes.text(-0.02, 0.72, title, transform=axes.transAxes, ha="right", va="center", color=INK, weight="bold")
    for i, count in enumerate(counts):
        color = COLORS[count.split()[1]]
        axes.text(-0.02, 0.5 - 0.2 * i, count, transform=axes.transAxes, ha="right", va="center", color=color)
