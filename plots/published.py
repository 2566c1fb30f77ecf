"""The results files that the repository publishes, and how a document names a number in them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import findings
from findings import Cell
from results_file import PRECISIONS, Results, Row, read_results, refuted_text

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = "results/h200"
SERIES = re.compile(r"mlp-784x(\d+)x\1x\1x10-b32")  # the seed suite's
TRIALS = "results/h200/trials"  # other ways to write a row, in files of their own: they are no competitors


class Stale(Exception):
    """A claim that the results files do not bear out."""


@dataclass
class Published:
    results: Results
    cells: list[Cell]
    root: Path = ROOT

    def cell(self, precision: str, place: str) -> Cell:
        """`place`: a workload's name, or H=N for the seed suite's."""
        found = re.fullmatch(r"H=(\d+)", place)
        name = "mlp-784x{0}x{0}x{0}x10-b32".format(found.group(1)) if found else place
        cells = [cell for cell in self.cells if (cell.workload.name, cell.precision) == (name, precision)]
        if not cells:
            raise Stale(f"there is no record of {name} in {precision}")
        return max(cells, key=lambda cell: len(cell.rows))


def published(root: Path = ROOT) -> Published:
    results = latest(read_results(sorted((root / PUBLISHED).glob("*.json")), with_repeated=True))
    return Published(results, findings.cells_of(results), root)


def latest(results: Results) -> Results:
    """Without a workload and precision of a file where a later one has it, and no rival less."""
    started = {source.file: str(source.run["started_utc"]) for source in results.sources}
    rivals: dict[tuple[str, str], dict[str, set[str]]] = {}  # of a cell in each file that has it
    for row in results.rows:
        of_files = rivals.setdefault((row.workload.name, row.precision), {})
        names = of_files.setdefault(row.file, set())
        if row.is_rival and row.state != "skipped":
            names.add(row.backend)

    def replaced(row: Row) -> bool:
        of_files = rivals[row.workload.name, row.precision]
        return any(
            started[row.file] < started[file] and of_files[row.file] <= names
            for file, names in of_files.items()
        )

    return replace(results, rows=[row for row in results.rows if not replaced(row)])


def folder_apart(name: str) -> str:
    """'jax': a folder inside that of one GPU; 'x2': that of two GPUs, which is beside it."""
    return f"{PUBLISHED}-{name}" if re.fullmatch(r"x\d+", name) else f"{PUBLISHED}/{name}"


def apart(data: Published, name: str) -> Published:
    """The files of a folder of their own. The report on one GPU has none of them."""
    files = sorted((data.root / folder_apart(name)).glob("*.json"))
    results = read_results(files) if files else Results(device=data.results.device)
    return Published(results, findings.cells_of(results), data.root)


def row_of(cell: Cell, name: str) -> Row:
    """`name`: a backend, or best, rival, ours, eager for the fastest of a family in this cell."""
    family = {"best": cell.best, "rival": cell.rival, "ours": cell.ours, "eager": cell.eager}
    row = family.get(name) or next((row for row in cell.rows if row.backend == name), None)
    if row is None or not row.counts:
        state = "no record" if row is None else row.state
        raise Stale(f"{name} {cell.precision} of {cell.workload.name}: {state}")
    return row


def claimed(data: Published, claim: str) -> tuple[float, Row]:
    """The value that a claim names, and the record that it is about.

    'fp32 H=128 cuda-layered' (seconds), 'fp32 H=128 best / ours' (ratio of times), '... saved by A of B'
    (share of B's time), '... A floor' (share of the floor), '... A joules'. '... at least A of B' and
    '... at most A of B' are what both rows' intervals allow of that share. 'lowest H=* best / ours' and
    'highest * best / ours' are the ends over the seed suite's series, and over all that is published. 'jax/ '
    before any of them: of the files in that folder; 'x2/ ': of those of two GPUs.
    """
    if found := re.match(r"([a-z]+|x\d+)/ ", claim):
        return claimed(apart(data, found.group(1)), claim[found.end() :])
    precision, place, what = (claim.split(maxsplit=2) + ["", ""])[:3]
    if precision in ("lowest", "highest"):
        return end_of_all(data, precision, place, what)
    if precision not in PRECISIONS:
        raise Stale(f"'{claim}' does not begin with a precision and a workload")
    return value_of(data.cell(precision, place), what)


def end_of_all(data: Published, end: str, places: str, what: str) -> tuple[float, Row]:
    found = []
    for cell in data.cells:
        if places == "*" or (places == "H=*" and SERIES.fullmatch(cell.workload.name)):
            try:
                found.append(value_of(cell, what))
            except Stale:
                continue  # this cell lacks a row of the claim
    if not found:
        raise Stale(f"no cell of {places} has {what}")
    return (min if end == "lowest" else max)(found, key=lambda one: one[0])


def value_of(cell: Cell, what: str) -> tuple[float, Row]:
    if found := re.fullmatch(r"(\S+) / (\S+)", what):
        first, second = (row_of(cell, name) for name in found.groups())
        if cell.refuted:
            raise Stale(f"{cell.workload.name} {cell.precision}: {refuted_text(list(cell.refuted))}")
        return first.median / second.median, second
    if found := re.fullmatch(r"(saved by|at least|at most) (\S+) of (\S+)", what):
        how, *names = found.groups()
        first, second = (row_of(cell, name) for name in names)
        ends = {"saved by": (first.median, second.median), "at least": (first.high, second.low)}
        new, old = ends.get(how, (first.low, second.high))
        return 1 - new / old, first
    if found := re.fullmatch(r"(\S+) (floor|joules)", what):
        row = row_of(cell, found.group(1))
        value = row.fraction_of_floor if found.group(2) == "floor" else row.joules_per_step
        if value is None:
            raise Stale(
                f"{found.group(2)} of {row.backend} {cell.precision} of {row.workload.name}: not known"
            )
        return value, row
    row = row_of(cell, what)
    return row.median, row
