"""What the report's templates show, as plain values: sentences, tables, provenance. No markup here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import findings
import plane
from findings import Cell, Number, Sentence
from notes import kind_of
from results_file import PRECISIONS, Check, Results, Row, Source, refuted_text
from style import (
    backend_order,
    format_joules,
    format_percent,
    format_ratio,
    format_seconds,
    look_of,
)
from width_series import find_series

PLAIN_NUMBER = re.compile(r"[\d.]+×?")


@dataclass(frozen=True)
class Field:
    """A table's field: what is shown, what it is sorted by (None: last), where it leads, how it looks."""

    text: str
    key: float | str | None = None
    link: str = ""
    hint: str = ""
    look: str = ""

    @property
    def sort_key(self) -> str:
        """Empty where the text itself says it: a number, or the same words."""
        if self.key is None or self.key == self.text or PLAIN_NUMBER.fullmatch(self.text):
            return ""
        return f"{self.key:.7g}" if isinstance(self.key, float) else str(self.key)

    @property
    def numeric(self) -> bool:
        return self.text == "–" or isinstance(self.key, (int, float)) and self.text[:1].isdigit()


@dataclass(frozen=True)
class Table:
    name: str  # its anchor
    title: str
    about: str
    columns: tuple[str, ...]
    rows: list[list[Field]]
    anchors: list[str]  # of the rows; empty where nothing leads there
    folded: bool = False


def anchor_of(results: Results, row: Row) -> str:
    files = [source.file for source in results.sources]
    return f"record-{files.index(row.file) + 1}-{row.index}"


def trace_of(row: Row) -> str:
    return f"{Path(row.file).name} · {row.workload.name} · {row.backend} · {row.precision}"


def view_of(results: Results) -> dict:
    cells = findings.cells_of(results)
    answer = findings.answer(results, cells)
    return {
        "device": results.device,
        "measured": measured(results),
        "answer": [pieces(results, sentence) for sentence in answer],
        "traces": traces(answer),
        "verification": pieces(results, findings.verification(results)),
        "failures": any(row.state == "failed" for row in results.rows),
        "extremes": [
            {"title": one.title, "number": pieces(results, [one.number])[0], "detail": one.detail}
            for one in findings.extremes(results, cells)
        ],
        "warnings": findings.warnings(results, cells),
        "plane": plane.section(results),
        "missing": findings.missing(results, cells),
        "networks": networks_table(results),
        "summary": summary_table(results, cells),
        "skips": skips(results),
        "reasons": reasons_table(results),
        "records": records_table(results, cells),
        "checks": checks_table(results),
        "backends": backends(results),
        "sources": [source_view(results, source) for source in results.sources],
    }


def pieces(results: Results, sentence: Sentence) -> list[dict[str, str]]:
    """Numbers lead to the record they are about and name all that they were made of."""
    return [
        {
            "text": piece.text,
            "link": f"#{anchor_of(results, piece.rows[0])}",
            "hint": " / ".join(map(trace_of, piece.rows)),
        }
        if isinstance(piece, Number)
        else {"text": piece, "link": "", "hint": ""}
        for piece in sentence
    ]


def traces(sentences: list[Sentence]) -> list[tuple[str, str]]:
    """Each number of the sentences with its records, for readers without links."""
    numbers = [piece for sentence in sentences for piece in sentence if isinstance(piece, Number)]
    return [(number.text, "; ".join(map(trace_of, number.rows))) for number in numbers]


def measured(results: Results) -> str:
    """What was measured, in a line."""
    series = find_series(results.workloads)
    parts = [f"{one.title} at H = {', '.join(map(str, one.widths.values()))}" for one in series]
    alone = [
        workload.name
        for workload in results.workloads
        if not any(workload.name in one.widths for one in series)
    ]
    precisions = [name for name in PRECISIONS if any(row.precision == name for row in results.rows)]
    ran = len({row.backend for row in results.rows if row.state != "skipped"})
    days = sorted({str(source.run.get("started_utc"))[:10] for source in results.sources})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    files = f"{len(results.sources)} results file{'s' if len(results.sources) > 1 else ''}"
    return (
        f"{'; '.join(parts + alone)}. {', '.join(precisions)}; {ran} backend{'s' if ran > 1 else ''},"
        f" {len(results.rows)} records from {files}, measured {day} (UTC)."
    )


def backends(results: Results) -> list[dict[str, str]]:
    rows = {row.backend: row for row in results.rows}
    names = sorted(rows)
    return [
        {
            "name": name,
            "color": look_of(name, names).color,
            "kind": "ours" if rows[name].is_ours else "PyTorch" if rows[name].is_pytorch else "neither",
        }
        for name in names
    ]


def microseconds(seconds: float | None) -> Field:
    if seconds is None:
        return Field("–")
    value = 1e6 * seconds
    return Field(
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}", value
    )


def optional(value: float | None, text) -> Field:
    return Field("–") if value is None else Field(text(value), value)


def workload_field(results: Results, row: Row) -> Field:
    """Sorted by size and not by spelling."""
    hint = row.workload.network if row.workload.has_own_name else ""
    return Field(row.workload.name, row.workload.parameters * row.workload.batch_size, hint=hint)


def precision_field(precision: str) -> Field:
    return Field(precision, PRECISIONS.index(precision))


def ratio_field(cell: Cell, base: Row | None, row: Row | None) -> Field:
    """Where a rival failed verification its name stands in place of a ratio of ours."""
    if row is not None and cell.refuted:
        text = refuted_text(list(cell.refuted)) if row.is_ours else "–"
        return Field(
            text, hint="no speed-up is claimed until it is known why", look="failed" if text != "–" else ""
        )
    if base is None or row is None:
        return Field("–")
    value = base.median / row.median
    low, high = base.low / row.high, base.high / row.low
    hint = f"{format_ratio(low)} to {format_ratio(high)}, against {base.backend}"
    return Field(format_ratio(value), value, hint=hint, look="slower" if value < 1 and row.is_ours else "")


def networks_table(results: Results) -> Table:
    """Workloads whose names do not say all: what is trained, and where it comes from. Empty where all do."""
    shown = [one for one in results.workloads if one.has_own_name or one.about]
    return Table(
        name="networks",
        title="What is trained",
        about="Widths from the inputs to the outputs, batch size, and what is neither ReLU, cross-entropy nor"
        " plain SGD.",
        columns=("workload", "network", "optimizer's numbers", "where it comes from"),
        rows=[
            [
                Field(one.name, one.parameters * one.batch_size),
                Field(one.network, one.network),
                Field(
                    ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in one.optimizer.numbers)
                ),
                Field(one.about or "–", one.about or None),
            ]
            for one in shown
        ],
        anchors=[],
    )


SAME = [Field("the same"), Field("–")]


def summary_table(results: Results, cells: list[Cell]) -> Table:
    rows = []
    for cell in cells:
        if cell.rival is None and cell.ours is None:
            continue
        rows.append(
            [
                workload_field(results, cell.rows[0]),
                precision_field(cell.precision),
                *_named_time(results, cell.eager, named=False),
                *_named_time(results, cell.best),
                *(SAME if cell.rival is cell.best else _named_time(results, cell.rival)),
                *_named_time(results, cell.ours),
                ratio_field(cell, cell.best, cell.ours),
                Field("–") if cell.rival is cell.best else ratio_field(cell, cell.rival, cell.ours),
                ratio_field(cell, cell.eager, cell.ours),
            ]
        )
    return Table(
        name="summary",
        title="Best PyTorch, best rival and ours, cell by cell",
        about="Fastest verified row of each, microseconds a step (median of the blocks'"
        f" {results.clock}). A rival is whatever is not ours: PyTorch, JAX, the vendor's library."
        " A ratio is the time of the other row over ours, same file, workload and precision; pointing at it"
        " shows what both 95 % intervals allow."
        + (
            " Where a rival failed verification it is named instead."
            if any(cell.refuted for cell in cells)
            else ""
        ),
        columns=(
            "workload",
            "precision",
            "pytorch-eager, µs",
            "best PyTorch",
            "its time, µs",
            "best rival",
            "its time, µs",
            "fastest of ours",
            "its time, µs",
            "vs best PyTorch",
            "vs best rival",
            "vs eager",
        ),
        rows=rows,
        anchors=[],
    )


def _named_time(results: Results, row: Row | None, named: bool = True) -> list[Field]:
    if row is None:
        return [Field("–")] * (2 if named else 1)
    time = microseconds(row.median)
    linked = Field(time.text, time.key, link=f"#{anchor_of(results, row)}", hint=trace_of(row))
    return [Field(row.named, row.backend), linked] if named else [linked]


STATES = {"ok": "verified", "unverified": "not verified", "failed": "FAILED", "skipped": "skipped"}


def records_table(results: Results, cells: list[Cell]) -> Table:
    """Columns that no record fills are left out; the list of what is missing names them."""
    by_key = {(row.file, row.index): cell for cell in cells for row in cell.rows}
    ordered = [row for cell in cells for row in cell.rows]
    optional_columns = {
        "of the floor": lambda row: optional(row.fraction_of_floor, format_percent),
        "floor set by": lambda row: _floor_bound(row),
        "energy": lambda row: optional(row.joules_per_step, format_joules),
        "set-up": lambda row: optional(row.setup_seconds, format_seconds),
        "cache": lambda row: Field(row.setup_cache or "–", row.setup_cache or None),
        "memory, MB": lambda row: optional(row.peak_device_bytes, lambda value: f"{value / 1e6:.0f}"),
    }
    kept = {
        name: field
        for name, field in optional_columns.items()
        if any(field(row).key is not None for row in ordered)
    }
    listed = {group[0].message for group in skipped_for_a_reason(results)}
    rows = []
    for row in ordered:
        cell = by_key[row.file, row.index]
        counted = row if row.counts else None
        rows.append(
            [
                workload_field(results, row),
                precision_field(row.precision),
                Field(row.named, row.backend),
                Field(row.contract, row.contract),
                _state_field(row, listed),
                microseconds(row.median if row.counts else None),
                _interval(row),
                ratio_field(cell, cell.best, counted),
                ratio_field(cell, cell.eager, counted),
                *[field(row) for field in kept.values()],
                microseconds(row.wall_seconds if row.counts else None),
                microseconds(row.cpu_seconds if row.counts else None),
                Field(str(len(row.blocks)), len(row.blocks)),
                Field(f"{Path(row.file).name} records[{row.index}]", f"{Path(row.file).name} {row.index:6}"),
            ]
        )
    return Table(
        name="records",
        title="Every record",
        about=f"Times are microseconds a step: the median of the blocks' {results.clock} and its 95 %"
        " interval, then wall and CPU time (all threads of the worker). A record that failed has no time and"
        " no speed-up: the reason stands under 'Skipped and failed'. Contract: 'exact' obeys the precision"
        " contract, 'autocast' and 'library' round as PyTorch's autocast or a vendor's library does.",
        columns=(
            "workload",
            "precision",
            "backend",
            "contract",
            "result",
            "step, µs",
            "95 % interval, µs",
            "vs best PyTorch",
            "vs eager",
            *kept,
            "wall, µs",
            "CPU, µs",
            "blocks",
            "source",
        ),
        rows=rows,
        anchors=[anchor_of(results, row) for row in ordered],
    )


def _state_field(row: Row, listed: set[str]) -> Field:
    """Skips lead to their list, which says why; a reason that it does not quote is shown when pointed at."""
    if row.state != "skipped":
        return Field(STATES[row.state], row.state, hint=row.message, look=row.state)
    hint = "" if row.message in listed else row.message
    return Field(STATES[row.state], row.state, link="#reasons", hint=hint, look=row.state)


def _floor_bound(row: Row) -> Field:
    floor = row.workload.floors.get(row.precision)
    return (
        Field("–") if floor is None else Field(floor.bound, floor.bound, hint=format_seconds(floor.seconds))
    )


def _interval(row: Row) -> Field:
    """Sorted by its width relative to the median."""
    if not row.counts:
        return Field("–")
    low, high = microseconds(row.low), microseconds(row.high)
    return Field(f"{low.text} to {high.text}", (row.high - row.low) / row.median)


def skipped_for_a_reason(results: Results) -> list[list[Row]]:
    """Reasons that differ in a name or a number only are one; the first row's stands for it."""
    by_kind: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.state == "skipped":
            by_kind.setdefault(kind_of(row.message), []).append(row)
    return sorted(by_kind.values(), key=len, reverse=True)


def skips(results: Results) -> list[str]:
    """A line a reason."""
    lines = []
    for rows in skipped_for_a_reason(results):
        reasons = len({row.message for row in rows})
        reason = rows[0].message.rstrip(".") or "no reason was given"
        if reasons > 1:
            reason += f" (one of {reasons} such reasons)"
        backends = sorted({row.backend for row in rows}, key=backend_order)
        precisions = [name for name in PRECISIONS if any(row.precision == name for row in rows)]
        workloads = [one.name for one in results.workloads if any(row.workload == one for row in rows)]
        where = workloads if len(workloads) <= 4 else [f"{len(workloads)} workloads"]
        count = "1 record was" if len(rows) == 1 else f"{len(rows)} records were"
        named = {"Backends": backends, "precisions": precisions, "workloads": where}
        places = "; ".join(f"{title}: {', '.join(names)}" for title, names in named.items())
        lines.append(f"{count} skipped: {reason}. {places}.")
    return lines


def reasons_table(results: Results) -> Table:
    shown = [row for row in results.rows if row.state in ("failed", "unverified")]
    shown.sort(key=lambda row: ("failed", "unverified").index(row.state))
    return Table(
        name="reasons",
        title="Skipped and failed",
        about="Every record without a verified time, and why.",
        columns=("result", "workload", "precision", "backend", "reason", "source"),
        rows=[
            [
                Field(STATES[row.state], row.state, look=row.state),
                workload_field(results, row),
                precision_field(row.precision),
                Field(row.backend, row.backend),
                Field(row.message or "no checks were made", row.message),
                Field(f"{Path(row.file).name} records[{row.index}]", f"{Path(row.file).name} {row.index:6}"),
            ]
            for row in shown
        ],
        anchors=[],
    )


def checks_table(results: Results) -> Table:
    """A row a record, a column a kind of check: the tensor that used most of its bound, or failed."""
    kinds = list(dict.fromkeys(check.name for row in results.rows for check in row.checks))
    checked = [row for row in results.rows if row.checks]
    return Table(
        name="checks",
        title="Verification: errors and bounds",
        about="For each record and kind of check: error, bound, and the tensor that used most of its bound."
        " Errors are relative, the median over the compared steps; pointing at one shows the largest over all"
        " steps. Sorted by error over bound; a check may bound the largest error too.",
        columns=("workload", "precision", "backend", *kinds),
        rows=[
            [
                workload_field(results, row),
                precision_field(row.precision),
                Field(row.backend, row.backend, link=f"#{anchor_of(results, row)}"),
                *[_checks_field([check for check in row.checks if check.name == kind]) for kind in kinds],
            ]
            for row in checked
        ],
        anchors=[],
        folded=True,
    )


def _use_of_bound(check: Check) -> float:
    """Error over bound; what failed comes before what passed."""
    share = check.error / check.bound if check.error is not None and check.bound > 0 else 0.0
    return share if check.passed else 1e6 + share


def _checks_field(checks: list[Check]) -> Field:
    if not checks:
        return Field("–")
    closest = max(checks, key=_use_of_bound)
    failed = [check.tensor or check.name for check in checks if not check.passed]
    tensor = f", {closest.tensor}" if closest.tensor else ""
    text = f"{_error(closest.error)} of {closest.bound:.2g}{tensor}"
    if failed:
        text += f"; FAILED: {', '.join(failed)}"
    hint = f"largest over all steps: {_error(closest.worst)}"
    return Field(text, _use_of_bound(closest), hint=hint, look="failed" if failed else "")


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"


def source_view(results: Results, source: Source) -> dict:
    run, device = source.run, source.device or {}
    rows = [row for row in results.rows if row.file == source.file]
    facts = {
        "run": run.get("id"),
        "command": shlex.join(map(str, run.get("argv") or [])),
        "started (UTC)": run.get("started_utc"),
        "finished (UTC)": run.get("finished_utc") or "not finished",
        "commit": f"{run.get('git_sha') or 'not known'}{' (changed)' if run.get('git_dirty') else ''}",
        "source digest": run.get("source_digest"),
        "model": "{file}:{name}, read as {workload}; SHA-256 of the file {sha256}".format(**run["model"])
        if run.get("model")
        else None,
        "settings": ", ".join(f"{name}: {value}" for name, value in (run.get("settings") or {}).items()),
        "data": "; ".join(sorted({row.workload.data for row in rows})),
        "device": device.get("name"),
        "driver": device.get("driver"),
        "compute capability": f"{device.get('compute_major')}.{device.get('compute_minor')}"
        if device
        else None,
        "multiprocessors": device.get("sm_count"),
        "ECC": {True: "on", False: "off"}.get(device.get("ecc_enabled")),
        "host": ", ".join(
            str(source.host[name]) for name in ("cpu", "os", "kernel") if source.host.get(name) is not None
        ),
        "cores": source.host.get("cores"),
        "versions": ", ".join(f"{name} {value}" for name, value in sorted(source.software.items()) if value),
        **gpu_facts(rows),
    }
    return {
        "file": Path(source.file).name,
        "complete": source.complete,
        "records": len(rows),
        "facts": {name: str(value) for name, value in facts.items() if value not in (None, "")},
        "calibration": [
            {
                "name": name,
                "value": f"{entry.get('value'):.4g}" if isinstance(entry.get("value"), (int, float)) else "–",
                "unit": str(entry.get("unit")).replace("_", " "),
                "how": str(entry.get("how")),
            }
            for name, entry in source.calibration.items()
        ],
    }


GPU_FACTS = {
    "sm_clock_megahertz": ("SM clock during the blocks", "MHz"),
    "memory_clock_megahertz": ("memory clock during the blocks", "MHz"),
    "power_watts": ("power during the blocks", "W"),
    "temperature_celsius": ("temperature during the blocks", "°C"),
    "uncorrected_ecc_errors": ("uncorrected ECC errors", ""),
    "other_processes": ("other processes on the GPU", ""),
}


def gpu_facts(rows: list[Row]) -> dict[str, str]:
    """Smallest to largest over all blocks."""
    states = [block.gpu for row in rows for block in row.blocks if block.gpu]
    facts = {}
    for name, (title, unit) in GPU_FACTS.items():
        values = [state[name] for state in states if isinstance(state.get(name), (int, float))]
        if values:
            low, high = min(values), max(values)
            span = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
            facts[title] = f"{span} {unit}".strip()
    reasons = sorted({reason for state in states for reason in state.get("throttle_reasons") or []})
    if states:
        facts["throttle reasons seen"] = ", ".join(map(str, reasons)) or "none"
    idle = [row.idle_watts for row in rows if row.idle_watts is not None]
    if idle:
        facts["idle power"] = f"{min(idle):.4g} to {max(idle):.4g} W"
    return facts
