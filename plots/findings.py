"""What results files say, in sentences: pure functions from rows to text; every number keeps its records.

Nothing here compares across precisions: a cell is one workload and precision of one file, and a sentence that
spans several cells names the precision of each number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from results_file import (
    EAGER,
    PRECISIONS,
    Results,
    Row,
    Workload,
    refuted_text,
)
from style import backend_order, format_percent, format_ratio, format_seconds
from width_series import find_series

# What takes overhead from the eager step and leaves its operations, the most thorough first.
EAGER_WITHOUT_OVERHEAD = {
    "A CUDA graph of the eager step does without Python, dispatch and launches": (
        "pytorch-graph",
        "libtorch-graph",
    ),
    "The eager step from C++ does without Python": ("libtorch-eager",),
}


MOST_NAMED = 4  # workloads that a sentence names


@dataclass(frozen=True)
class Number:
    """A number in a sentence and the records it was made of."""

    text: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return self.text


Sentence = list[str | Number]


@dataclass(frozen=True)
class Cell:
    """The records of one workload and precision in one file, and who is fastest among them."""

    file: str
    workload: Workload
    precision: str
    rows: tuple[Row, ...]
    eager: Row | None
    best: Row | None  # of the PyTorch rows
    ours: Row | None  # of the hand-written kernels
    # Rivals that failed verification: there is no speed-up until that is understood.
    refuted: tuple[str, ...] = ()

    @property
    def rival(self) -> Row | None:
        """The fastest row that is not ours: PyTorch, JAX, the vendor's library or another's."""
        rivals = [row for row in self.rows if row.counts and row.is_rival]
        return min(rivals, key=lambda row: row.median, default=None)

    @property
    def rivals(self) -> list[Row]:
        return [row for row in self.rows if row.is_pytorch and row.counts]

    @property
    def failed_rivals(self) -> list[str]:
        """PyTorch rows without a result: with them the best PyTorch might be faster."""
        return [row.backend for row in self.rows if row.is_pytorch and row.state == "failed"]

    @property
    def against_best(self) -> float | None:
        return self.over(self.best)

    @property
    def against_rival(self) -> float | None:
        return self.over(self.rival)

    @property
    def against_eager(self) -> float | None:
        return self.over(self.eager)

    def over(self, base: Row | None) -> float | None:
        return base.median / self.ours.median if base and self.ours and not self.refuted else None


def cells_of(results: Results) -> list[Cell]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in results.rows:
        groups.setdefault((row.file, row.workload.name, row.precision), []).append(row)
    cells = []
    for (file, _, precision), rows in groups.items():
        ours = [row for row in rows if row.is_ours and row.counts]
        bases = results.baselines(rows[0])
        cells.append(
            Cell(
                file=file,
                workload=rows[0].workload,
                precision=precision,
                rows=tuple(sorted(rows, key=lambda row: backend_order(row.backend))),
                eager=bases.get("eager"),
                best=bases.get("best"),
                ours=min(ours, key=lambda row: row.median, default=None),
                refuted=tuple(results.refuted_rivals(rows[0])),
            )
        )
    order = {workload.name: place for place, workload in enumerate(results.workloads)}
    cells.sort(key=lambda cell: (order[cell.workload.name], PRECISIONS.index(cell.precision), cell.file))
    return cells


def ends_of(results: Results) -> dict[str, str]:
    """Names of the smallest and the largest workload, as a reader would call them: the ends of the suite."""
    series = max(find_series(results.workloads), key=lambda one: len(one.widths), default=None)
    if series is not None:
        names = list(series.widths)
        return {name: f"H = {series.widths[name]}" for name in (names[0], names[-1])}
    names = [workload.name for workload in results.workloads]
    return {name: name for name in (names[0], names[-1])}


def place_of(results: Results, row: Row) -> str:
    """The workload, as short as it stays unique: 'H = 128' in a series of widths."""
    series = find_series(results.workloads)
    if len(series) == 1 and row.workload.name in series[0].widths:
        return f"H = {series[0].widths[row.workload.name]}"
    return row.workload.name


def joined(parts: Iterable[Sentence | str], comma: str = ", ", last: str = " and ") -> Sentence:
    parts = [[part] if isinstance(part, str) else part for part in parts]
    sentence: Sentence = []
    for place, part in enumerate(parts):
        if place:
            sentence.append(last if place == len(parts) - 1 else comma)
        sentence += part
    return sentence


def answer(results: Results, cells: list[Cell]) -> list[Sentence]:
    """Three sentences: how fast, where an eager step's time goes, how close to the floor."""
    return [speed(results, cells), eager_time(results, cells), floor(results, cells)]


def speed(results: Results, cells: list[Cell]) -> Sentence:
    compared = [cell for cell in cells if cell.against_best is not None]
    if not compared:
        return _speed_without_ours(results, cells)
    parts = []
    for name, label in ends_of(results).items():
        here = sorted(
            (cell for cell in compared if cell.workload.name == name), key=lambda cell: cell.against_best
        )
        subject = "it" if any(isinstance(part, list) for part in parts) else "the fastest of our kernels"
        if not here:
            parts.append(f"at {label} there is nothing to compare")
        elif str(_ratio(here[0])) == str(_ratio(here[-1])):
            precisions = ", ".join(cell.precision for cell in here)
            parts.append([f"at {label} {subject} is ", _ratio(here[0]), f" as fast ({precisions})"])
        else:
            low, high = here[0], here[-1]
            between = f" ({low.precision}) to ", _ratio(high), f" ({high.precision}) as fast"
            parts.append([f"at {label} {subject} is ", _ratio(low), *between])
    rivals = sorted({row.backend for cell in compared for row in cell.rivals}, key=backend_order)
    against = (
        f"the best of {len(rivals)} PyTorch rows"
        if len(rivals) > 1
        else f"{rivals[0]}, the only PyTorch row,"
    )
    return [
        f"Against {against} in the same precision, ",
        *joined(parts, "; ", "; "),
        " (below 1×: slower)." if any(cell.against_best < 1 for cell in compared) else ".",
        *_against_rivals(compared),
    ]


def _against_rivals(compared: list[Cell]) -> Sentence:
    """What is left against whoever is fastest, where that is not PyTorch."""
    others = [cell for cell in compared if cell.rival is not cell.best]
    if not others:
        return []
    low, high = (end(others, key=lambda cell: cell.against_rival) for end in (min, max))
    names = sorted({cell.rival.backend for cell in others}, key=backend_order)
    where = f" Where the best rival is not PyTorch ({', '.join(names)}), ours is "
    found = [Number(format_ratio(cell.against_rival), (cell.ours, cell.rival)) for cell in (low, high)]
    if str(found[0]) == str(found[1]):
        return [where, found[0], " as fast as it."]
    return [where, found[0], " to ", found[1], " as fast as it."]


def _ratio(cell: Cell) -> Number:
    return Number(format_ratio(cell.against_best), (cell.ours, cell.best))


def _speed_without_ours(results: Results, cells: list[Cell]) -> Sentence:
    reason = "none of our kernels was measured"
    if any(row.is_ours and row.counts for row in results.rows):
        reason = "no file holds a PyTorch row beside one of our kernels"
    elif any(row.is_ours and row.state == "failed" for row in results.rows):
        reason = "every record of our kernels failed"
    refuted = [cell for cell in cells if cell.refuted and cell.ours and cell.best]
    if refuted:
        rivals = sorted({name for cell in refuted for name in cell.refuted}, key=backend_order)
        reason = f"where our kernels stand beside PyTorch, {refuted_text(rivals)}"
    found = [
        cell
        for cell in cells
        if cell.best and cell.eager and cell.best is not cell.eager and not cell.refuted
    ]
    if not found:
        return [f"There is no speed-up to report: {reason}."]
    cell = max(found, key=lambda cell: cell.eager.median / cell.best.median)
    ratio = Number(format_ratio(cell.eager.median / cell.best.median), (cell.best, cell.eager))
    where = f"({cell.best.backend}, {cell.precision}, {place_of(results, cell.best)})"
    return [
        f"There is no speed-up of ours to report: {reason}; the fastest PyTorch row reaches up to ",
        ratio,
        f" against {EAGER} {where}.",
    ]


def eager_time(results: Results, cells: list[Cell]) -> Sentence:
    """What is gone when the same step is captured in a graph or, without such a row, run from C++."""
    parts: dict[str, list[Sentence]] = {}
    for name, label in ends_of(results).items():
        cell = next((cell for cell in cells if cell.workload.name == name and cell.eager), None)
        for how, backends in EAGER_WITHOUT_OVERHEAD.items():
            rows = [row for row in cell.rows if row.backend in backends and row.counts] if cell else []
            if rows:
                rival = min(rows, key=lambda row: row.median)
                parts.setdefault(how, []).append(_saved(cell.eager, rival, label))
                break
    if not parts:
        return [f"Where the time of an eager step goes is not known: no row was measured beside {EAGER}."]
    clauses = [[f"{how}, which saves ", *joined(found)] for how, found in parts.items()]
    return [*joined(clauses, "; ", "; "), "."]


def _saved(eager: Row, rival: Row, label: str) -> Sentence:
    share = 1 - rival.median / eager.median
    of = [" of the ", Number(format_seconds(eager.median), (eager,)), f" at {label} in {eager.precision}"]
    name = f" ({rival.backend})"
    if rival.low <= eager.high and eager.low <= rival.high:
        return ["nothing that stands out from the noise", *of, name]
    if share < 0:
        return ["nothing", *of, f" ({rival.backend} takes longer)"]
    return [Number(format_percent(share), (rival, eager)), *of, name]


def floor(results: Results, cells: list[Cell]) -> Sentence:
    known = [
        row
        for row in results.rows
        if row.counts and row.fraction_of_floor is not None and not row.is_reference
    ]
    if not known:
        return [
            "How close a step comes to the floor of the hardware is not known: these files hold no floors."
        ]
    ours = [row for row in known if row.is_ours] or known
    whose = "our kernels" if ours[0].is_ours else "the records"
    top = max(ours, key=lambda row: row.fraction_of_floor)
    bottoms = [
        max(
            (row for row in ours if (row.workload.name, row.precision) == key),
            key=lambda row: row.fraction_of_floor,
        )
        for key in {(row.workload.name, row.precision) for row in ours}
    ]
    bottom = min(bottoms, key=lambda row: (row.fraction_of_floor, row.workload.name, row.precision))
    best = max(known, key=lambda row: row.fraction_of_floor)
    sentence = [f"The fastest of {whose} reaches "]
    if bottom is not top:
        sentence += ["between ", *_fraction(results, bottom), " and "]
    sentence += [*_fraction(results, top), " of the speed that the floor allows"]
    if best is not top:
        sentence += ["; nothing comes closer than ", *_fraction(results, best)]
    return [*sentence, "."]


def _fraction(results: Results, row: Row) -> Sentence:
    where = f" ({row.backend}, {row.precision}, {place_of(results, row)})"
    return [Number(format_percent(row.fraction_of_floor), (row,)), where]


@dataclass(frozen=True)
class Extreme:
    """The best or the worst ratio: shown with the same weight."""

    title: str
    number: Number
    detail: str


def extremes(results: Results, cells: list[Cell]) -> list[Extreme]:
    found = []
    for name, ratio, base in (
        ("best PyTorch", lambda cell: cell.against_best, lambda cell: cell.best),
        ("best rival", lambda cell: cell.against_rival, lambda cell: cell.rival),
        (EAGER, lambda cell: cell.against_eager, lambda cell: cell.eager),
    ):
        known = [cell for cell in cells if ratio(cell) is not None]
        if not known or (name != EAGER and all(base(cell) is cell.eager for cell in known)):
            continue  # where eager is all of PyTorch, it is not called the best of it
        if name == "best rival" and all(cell.rival is cell.best for cell in known):
            continue  # which was said
        whole = [cell for cell in known if not cell.failed_rivals] or known
        best, worst = max(whole, key=ratio), min(known, key=ratio)
        chosen = {"Best against": best, "Worst against": worst} if best is not worst else {"Against": best}
        for word, cell in chosen.items():
            ours, other = cell.ours, base(cell)
            detail = (
                f"{cell.precision}, {place_of(results, ours)}: {ours.backend} {format_seconds(ours.median)},"
                f" {other.backend} {format_seconds(other.median)}"
            )
            number = Number(format_ratio(ratio(cell)), (ours, other))
            found.append(Extreme(f"{word} {name}", number, detail))
    return found


def verification(results: Results) -> Sentence:
    ran = [row for row in results.rows if row.state != "skipped"]
    count = {
        state: [row for row in results.rows if row.state == state]
        for state in ("ok", "failed", "unverified", "skipped")
    }
    passed = f"All {len(ran)}" if len(count["ok"]) == len(ran) else f"{len(count['ok'])} of the {len(ran)}"
    sentence: Sentence = [f"{passed} records that ran passed every check against the oracle"]
    if count["failed"]:
        names = sorted(
            {f"{row.backend} {row.precision} at {place_of(results, row)}" for row in count["failed"]}
        )
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        sentence.append(f"; {len(count['failed'])} failed and have no speed-up: {shown}")
    if count["unverified"]:
        sentence.append(f"; {len(count['unverified'])} ran without checks")
    if count["skipped"]:
        sentence.append(f"; {len(count['skipped'])} more were skipped")
    return [*sentence, "."]


def warnings(results: Results, cells: list[Cell]) -> list[str]:
    """What a reader has to know before believing the rest."""
    said = [
        f"No speed-up is claimed in {cell.precision} at {place_of(results, cell.ours)}: "
        f"{refuted_text(list(cell.refuted))}, and nobody knows whether it would have been the fastest."
        for cell in cells
        if cell.refuted and cell.ours
    ]
    said += [
        f"{', '.join(cell.failed_rivals)} failed in {cell.precision} at {place_of(results, cell.ours)} and"
        f" might have been faster than {cell.best.backend}: that speed-up does not count as the best."
        for cell in cells
        if cell.failed_rivals and cell.against_best is not None
    ]
    for row in results.rows:
        name = f"{row.backend} {row.precision}, {place_of(results, row)}"
        if row.counts and row.fraction_of_floor is not None and row.fraction_of_floor > 1:
            said.append(
                f"Faster than its floor: {name}, at {format_percent(row.fraction_of_floor)} of it."
                " The floor is wrong."
            )
        if row.slowdown:
            said.append(f"Measured while the GPU was slowed down ({', '.join(row.slowdown)}): {name}.")
        if row.curve_differs:
            said.append(f"Loss curve differs: {name}: {row.message}")
    for what, values in _differences(results).items():
        said.append(f"The files differ in {what}: {', '.join(values)}.")
    builds = {source.run.get("source_digest") for source in results.sources}
    if len(builds) > 1:
        said.append(
            f"The files come from {len(builds)} versions of Headroom's source, so a kernel of one file may be"
            " older than that of another. The report's list of files has the source digest of each."
        )
    return said


def _differences(results: Results) -> dict[str, list[str]]:
    """Driver or versions that are not the same in all files."""
    seen: dict[str, set[str]] = {}
    for source in results.sources:
        seen.setdefault("driver", set()).add(str((source.device or {}).get("driver")))
        for name in ("torch", "cuda_runtime", "nvcc"):
            seen.setdefault(name, set()).add(str(source.software.get(name)))
        seen.setdefault("host CPU", set()).add(str(source.host.get("cpu")))
    return {name: sorted(values) for name, values in seen.items() if len(values) > 1}


def missing(results: Results, cells: list[Cell]) -> list[str]:
    """What a report has but these files do not give, so that its absence is not taken for a result."""
    ran = [row for row in results.rows if row.counts and not row.is_reference]
    said = [
        f"The run of {file} did not finish: workloads it had not completed are not in it."
        for file in results.partial
    ]
    said += _gaps(results)
    for cell in cells:
        if cell.ours and not cell.best:
            said.append(
                f"No speed-up for {cell.precision} at {place_of(results, cell.ours)}: no PyTorch row of it"
                f" has a result in {Path(cell.file).name}."
            )
    for name, value in (
        ("the floor", lambda row: row.fraction_of_floor),
        ("the energy of a step", lambda row: row.joules_per_step),
        (
            "the state of the GPU (clocks, power, temperature)",
            lambda row: any(b.gpu for b in row.blocks) or None,
        ),
    ):
        without = [row for row in ran if value(row) is None]
        if without:
            count = "any record" if len(without) == len(ran) else f"{len(without)} of {len(ran)} records"
            said.append(f"Not known for {count}: {name}.")
    if not any(source.calibration for source in results.sources):
        said.append("No rates of the device were measured (calibration).")
    if not any(row.losses for row in results.rows):
        said.append("No loss curves were recorded.")
    if not any(row.is_pytorch for row in ran):
        said.append("No PyTorch row has a result.")
    if not any(row.is_ours for row in ran):
        said.append("None of our kernels has a result.")
    return said


def _gaps(results: Results) -> list[str]:
    """Backends and precisions that a file has for some of its workloads and not for others."""
    said = []
    for source in results.sources:
        rows = [row for row in results.rows if row.file == source.file and not row.is_reference]
        have = {(row.workload.name, row.backend, row.precision) for row in rows}
        pairs = sorted({(row.backend, row.precision) for row in rows})
        alike: dict[str, list[str]] = {}  # workloads that lack the same
        for name in dict.fromkeys(row.workload.name for row in rows):
            absent = [
                f"{backend} {precision}"
                for backend, precision in pairs
                if (name, backend, precision) not in have
            ]
            if absent:
                alike.setdefault(", ".join(absent), []).append(name)
        for absent, names in alike.items():
            for_whom = ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} workloads"
            said.append(f"Not in {Path(source.file).name} for {for_whom}: {absent}.")
    return said
