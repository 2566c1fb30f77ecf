"""How figures look: one colour, marker and weight per backend, number formats, a page with title and notes.

Colours are Okabe and Ito's and Tol's, told apart by colour-blind readers; with more than eight lines no
palette is enough, so every line has a marker and its name beside it. Text stays text in the SVG.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

matplotlib.rcParams.update(
    {
        "axes.edgecolor": "#888888",
        "axes.labelcolor": "#333333",
        "axes.labelsize": 9,
        "axes.linewidth": 0.8,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.dpi": 100,
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "grid.color": "#e4e4e4",
        "grid.linewidth": 0.7,
        "path.simplify": True,
        "svg.fonttype": "none",
        "svg.hashsalt": "headroom",  # else element names are random
        "text.color": "#222222",
        "text.parse_math": False,  # names come from files and may hold a dollar sign
        "xtick.color": "#555555",
        "xtick.labelsize": 8.5,
        "ytick.color": "#555555",
        "ytick.labelsize": 8.5,
    }
)

INK, MUTED, FAINT, ALARM = "#222222", "#666666", "#bbbbbb", "#b00020"
NOTE_SIZE = 7.6  # points
TEXT_SIZE = 8.6  # points, of words beside bars and rows


def write_beside(
    axes: Axes, words: str, end: float, place: float, color: str = INK, gap: float = 5, layer: float = 5
) -> None:
    """Words `gap` points right of (end, place), the end of a bar or of a row; they may leave the axes."""
    axes.annotate(
        words,
        xy=(end, place),
        xytext=(gap, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=TEXT_SIZE,
        color=color,
        annotation_clip=False,
        zorder=layer,
    )


@dataclass(frozen=True)
class Look:
    color: str
    marker: str = "o"
    width: float = 1.5
    line: str = "-"
    size: float = 5.5  # of the marker, points

    @property
    def ink(self) -> str:
        """The colour as text: darkened until it stands out from white (contrast 4.5, WCAG)."""
        rgb = to_rgb(self.color)
        while 1.05 / (_luminance(rgb) + 0.05) < 4.5:
            rgb = tuple(0.95 * part for part in rgb)
        return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)


def _luminance(rgb: tuple[float, ...]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


LOOKS = {
    "pytorch-eager": Look("#0072b2", "o"),
    "pytorch-graph": Look("#56b4e9", "s", size=7.0),  # both graphs hold the same kernels: the lines coincide
    "pytorch-compile": Look("#332288", "^"),
    "pytorch-compile-graph": Look("#6699cc", "D"),
    "pytorch-ddp": Look("#4477aa", "v"),
    "pytorch-ddp-graph": Look("#88ccee", ">"),
    "libtorch-eager": Look("#009e73", "o"),
    "libtorch-graph": Look("#44aa99", "s", line="--", size=4.0),
    "libtorch-expert": Look("#117733", "^"),
    "jax-jit": Look("#b5894a", "d"),
    "jax-scan": Look("#7a4b1e", "H"),
    "cublaslt-graph": Look("#999933", "P"),
    "cuda-layered": Look("#d55e00", "o", 2.2),
    "cuda-resident": Look("#e69f00", "s", 2.2),
    "cuda-streamed": Look("#cc6677", "^", 2.2),
    "cuda-fused": Look("#aa4499", "D", 2.2),
    "cuda-tiled": Look("#cc3311", "X", 2.2),
    "cuda-resident-compiled": Look("#b8860b", "<", 2.2),
    "cuda-streamed-compiled": Look("#f4a6b0", "v", 2.2),
    "cuda-fused-compiled": Look("#7b3294", ">", 2.2),
    "cuda-tiled-portable": Look("#ee7733", "p", 2.2),
    "cuda-gemm": Look("#882255", "v", 2.2),
    "cuda": Look("#222222", "*", 2.2, size=8.0),
    "oracle": Look("#777777", "x", 1.2, "--"),
    "oracle-cuda": Look("#999999", "x", 1.2, "--"),
}
UNKNOWN = [
    Look("#661100", "h"),
    Look("#999999", "p"),
    Look("#ddaa33", "<"),
    Look("#004488", ">"),
    Look("#bb5566", "8"),
]


def look_of(backend: str, all_backends: list[str]) -> Look:
    """The same colour in every figure; backends that are not in the table share a second one."""
    if backend in LOOKS:
        return LOOKS[backend]
    strangers = sorted(name for name in set(all_backends) if name not in LOOKS)
    return UNKNOWN[strangers.index(backend) % len(UNKNOWN)]


def backend_order(backend: str) -> tuple[int, str]:
    names = list(LOOKS)
    return (names.index(backend) if backend in LOOKS else len(names), backend)


def format_seconds(seconds: float) -> str:
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next(((unit, scale) for unit, scale in units if seconds >= 0.9995 * scale), ("ns", 1e-9))
    return f"{_three_digits(seconds / scale)} {unit}"


def format_ratio(ratio: float) -> str:
    """Near 1 the second decimal matters, far from it none does."""
    for least, decimals in ((9.95, 0), (1.95, 1)):
        if ratio >= least:
            return f"{ratio:.{decimals}f}×"
    return f"{ratio:.2f}×" if ratio >= 0.01 else f"{ratio:.1g}×"


def format_joules(joules: float) -> str:
    units = (("J", 1.0), ("mJ", 1e-3), ("µJ", 1e-6))
    unit, scale = next(((unit, scale) for unit, scale in units if joules >= 0.9995 * scale), ("nJ", 1e-9))
    return f"{_three_digits(joules / scale)} {unit}"


def format_percent(fraction: float) -> str:
    percent = 100 * fraction
    return (
        f"{percent:.0f} %"
        if percent >= 9.95
        else f"{percent:.1f} %"
        if percent >= 0.95
        else f"{percent:.2g} %"
    )


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def text_inches(text: str, size: float) -> float:
    """Width of `text` in the figures' font at `size` points."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)
    return width / 72


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _wrapped(text: str, characters: float) -> list[str]:
    return textwrap.wrap(text, int(characters), subsequent_indent="    ", break_on_hyphens=False)


class Page:
    """A figure laid out in inches: title and subtitle on top, a grid of axes, notes at the foot."""

    def __init__(
        self,
        title: str,
        subtitle: str,
        notes: list[str],
        panel_width: float,
        row_heights: list[float],
        columns: int,
        left: float,
        right: float,
        gap: float,
        foot: float = 0.62,
        above: float = 0.32,  # between the words on top and the first axes
    ):
        self.title, self.subtitle, self.notes = title, subtitle, notes
        self.panels: list[list[Axes]] = []  # axes that belong together; empty: each stands alone
        width = max(columns * (left + panel_width + right), 6.0)
        panel_width = width / columns - left - right
        title_lines = _wrapped(title, width * 8.4)
        subtitle_lines = _wrapped(subtitle, width * 12.8)
        note_lines = []
        for note in notes:
            note_lines += _wrapped(note, width * 16.3)
        head = 0.3 + 0.25 * len(title_lines) + 0.19 * len(subtitle_lines) + above
        tail = foot + 0.155 * len(note_lines) + (0.22 if note_lines else 0.1)
        height = head + sum(row_heights) + gap * (len(row_heights) - 1) + tail
        self.figure = Figure(figsize=(width, height), facecolor="white")
        FigureCanvasAgg(self.figure)

        def text(x: float, y: float, line: str, **options) -> None:
            self.figure.text(x / width, 1 - y / height, line, ha="left", va="top", **options)

        y = 0.16
        for line in title_lines:
            text(0.14, y, line, fontsize=13, fontweight="bold")
            y += 0.25
        for line in subtitle_lines:
            text(0.14, y + 0.03, line, fontsize=9.5, color=MUTED)
            y += 0.19
        y = height - 0.155 * len(note_lines) - 0.1
        for line in note_lines:
            text(0.14, y, line, fontsize=NOTE_SIZE, color=MUTED)
            y += 0.155
        self.axes: list[list[Axes]] = []
        top = head
        for row_height in row_heights:
            row = []
            for column in range(columns):
                x = column * (left + panel_width + right) + left
                box = (x / width, 1 - (top + row_height) / height, panel_width / width, row_height / height)
                row.append(self.figure.add_axes(box))
            self.axes.append(row)
            top += row_height + gap

    @property
    def parts(self) -> list[list[Axes]]:
        """What a narrow page may show below each other instead of side by side."""
        return self.panels or [[axes] for axes in self.figure.axes]
