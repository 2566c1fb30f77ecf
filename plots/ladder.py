"""Where the time of an eager step goes: a workload's ladder as bars in microseconds, a panel a precision.

The terms come from the results file and are not computed here. One that is negative or inside the noise keeps
its bar, hatched or hollow, and is called so; one that is missing says why. The two rows of a term
stand below its bar.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from results_file import PRECISIONS, Results, Term, Workload
from style import ALARM, INK, MUTED, TEXT_SIZE, Page, shortened, text_inches, write_beside

ROW_INCHES = 0.42
TITLES = {
    "python": "Python",
    "dispatch": "dispatch and launches",
    "fusion": "fusion, extra traffic",
    "choice": "another PyTorch row",
    "kernels": "kernels",
    "left": "left above the floor",
}
COLORS = {
    "python": "#0072b2",
    "dispatch": "#56b4e9",
    "fusion": "#009e73",
    "choice": "#44aa99",
    "kernels": "#d55e00",
    "left": "#999999",
}


def ladders_of(results: Results, workload: Workload) -> list[tuple[str, tuple[Term, ...]]]:
    """Precision (with the file's name where two files have it) and terms, if any of them is known."""
    found = []
    for source, one in {
        (row.file, row.workload.name): row.workload
        for row in results.rows
        if row.workload.name == workload.name
    }.items():
        for precision, terms in one.ladders.items():
            if any(term.seconds is not None for term in terms):
                found.append((precision, source[0], terms))
    found.sort(key=lambda item: PRECISIONS.index(item[0]))
    precisions = [precision for precision, _, _ in found]
    return [
        (precision if precisions.count(precision) == 1 else f"{precision} ({file.rpartition('/')[2]})", terms)
        for precision, file, terms in found
    ]


def draw_ladder(results: Results, workload: Workload) -> Page | None:
    """None where no term is known."""
    panels = ladders_of(results, workload)
    if not panels:
        return None
    everything = [term for _, terms in panels for term in terms]
    notes = [
        "Python: pytorch-eager less libtorch-eager. Dispatch and launches: that less the whole step in a"
        " CUDA graph. Fusion: that less the expert or compiled graph."
        " Kernels: best PyTorch less best of ours.",
        "Black lines: what both 95 % intervals allow. All rows of a panel are of one file.",
    ]
    if any(term.name == "choice" for term in everything):
        notes.append(
            "Another PyTorch row: the expert or compiled graph less best PyTorch, where the two differ."
        )
    if any(term.verdict == "noise" for term in everything):
        notes.append("Hollow: inside the noise, the intervals of both rows overlap.")
    if any(term.verdict == "negative" for term in everything):
        notes.append("Hatched: negative, the second row is the slower one.")
    names = [title for name, title in TITLES.items() if any(term.name == name for term in everything)]
    page = Page(
        f"Where the time of a step goes: {shortened(workload.name, 90)}",
        f"{results.device} · {', '.join(title for title, _ in panels)} · batch {workload.batch_size}",
        notes,
        panel_width=4.0,
        row_heights=[ROW_INCHES * len(terms) + 0.08 for _, terms in panels],
        columns=1,
        left=0.3 + max(text_inches(name, TEXT_SIZE) for name in names),
        right=0.25,
        gap=0.62,
    )
    scale = _common_scale(page.axes[0][0], [terms for _, terms in panels])
    for (title, terms), (axes,) in zip(panels, page.axes, strict=True):
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK, pad=5)
        _draw_panel(axes, terms, scale)
    page.axes[-1][0].set_xlabel("time of a step that goes away (µs)", color=MUTED)
    return page


def term_text(term: Term) -> str:
    """Three digits of microseconds, and whether they mean what they say; empty if the term is not known."""
    if term.seconds is None:
        return ""
    microseconds = 1e6 * term.seconds
    value = f"{microseconds:.{0 if abs(microseconds) >= 100 else 1 if abs(microseconds) >= 10 else 2}f} µs"
    return value + {"noise": ", inside the noise", "negative": ", NEGATIVE"}.get(term.verdict, "")


def _words(term: Term) -> str:
    if term.seconds is None:
        return f"not known: {term.message}"
    return term_text(term)


def _common_scale(axes: Axes, panels: list[tuple[Term, ...]]) -> tuple[float, float]:
    """Ends of the axis in microseconds, the same for all panels: from the most negative end of a bar or
    interval, with room for the words beside each bar."""
    width = axes.get_position().width * axes.figure.get_figwidth()
    terms = [term for panel in panels for term in panel]
    known = [term for term in terms if term.seconds is not None]
    lowest = 1e6 * min(0.0, *(min(term.seconds, term.low) for term in known))
    limit = 1e6 * max(1e-9, *(term.seconds for term in known))
    for term in terms:
        words = min(text_inches(_words(term), TEXT_SIZE) + 0.2, 0.7 * width)
        end = 1e6 * max(0.0, term.high or 0.0)
        limit = max(limit, lowest + (end - lowest) * width / (width - words))
    return lowest, limit


def _draw_panel(axes: Axes, terms: tuple[Term, ...], scale: tuple[float, float]) -> None:
    """Linear; `scale` as from _common_scale()."""
    width = axes.get_position().width * axes.figure.get_figwidth()
    lowest, limit = scale
    axes.set_xlim(lowest, limit)
    axes.set_ylim(len(terms) - 0.25, -0.45)
    for place, term in enumerate(terms):
        end = 0.0
        if term.seconds is not None:
            color = COLORS[term.name]
            axes.barh(
                place,
                1e6 * term.seconds,
                height=0.44,
                facecolor="white" if term.verdict != "positive" else color,
                edgecolor=ALARM if term.verdict == "negative" else color,
                hatch="////" if term.verdict == "negative" else None,
                linewidth=1.0,
                zorder=3,
            )
            axes.plot(
                [1e6 * term.low, 1e6 * term.high], [place, place], color="#000000", linewidth=1.4, zorder=4
            )
            end = 1e6 * max(0.0, term.high)
            write_beside(axes, f"{term.start} to {term.end}", 0.0, place + 0.44, MUTED, gap=3)
        room = width * (limit - end) / (limit - lowest) - 0.1
        words = _words(term)
        letters = int(len(words) * room / text_inches(words, TEXT_SIZE))
        color = ALARM if term.verdict == "negative" else MUTED if term.verdict == "missing" else INK
        write_beside(axes, shortened(words, max(12, letters)), end, place, color)
    axes.set_yticks(range(len(terms)), [TITLES[term.name] for term in terms])
    axes.tick_params(axis="y", length=0, labelsize=TEXT_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
    axes.axvline(0, color=MUTED, linewidth=0.8, zorder=2)
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
