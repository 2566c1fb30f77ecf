"""The lines at the foot of a figure: what was skipped, failed, not verified or not finished, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from results_file import PRECISIONS, Results, Row
from style import backend_order, shortened

SKIPPED = "Skipped"
WORDS = {
    "skipped": SKIPPED,
    "failed": "Failed (crosses or hatched, no speed-up)",
    "unverified": "Not verified (hollow)",
}


def kind_of(message: str) -> str:
    """The message without what a workload and a precision bring into it: names in quotes and numbers."""
    return re.sub(r"'[^']*'|\b(fp|tf|bf)?\d+", "#", message)


def record_notes(results: Results, rows: list[Row], where: Callable[[Row], str]) -> list[str]:
    """One line a state and reason; skips for reasons that differ in a name or a number share one.

    `where` names a row's workload; left out where all of them are meant.
    """
    notes = []
    for state, word in WORDS.items():
        reasons: dict[tuple[str, str], list[Row]] = {}
        first_of_kind: dict[tuple[str, str], str] = {}
        for row in rows:
            if row.state == state:
                message = shortened(row.message, 160) if state != "unverified" else ""
                if state == "skipped":
                    message = first_of_kind.setdefault((row.backend, kind_of(message)), message)
                reasons.setdefault((row.backend, message), []).append(row)
        joined: dict[tuple[str, str], list[str]] = {}
        for (backend, message), found in sorted(reasons.items(), key=lambda item: backend_order(item[0][0])):
            cells = _cells(rows, backend, found, where)
            different = len({row.message for row in found}) if state == "skipped" else 1
            reason = f"{message.rstrip('.')} (one of {different} such reasons)" if different > 1 else message
            joined.setdefault((reason, cells), []).append(shortened(backend, 40))
        for (message, cells), backends in joined.items():
            reason = f": {message.rstrip('.')}" if message else ""
            notes.append(f"{word}: {', '.join(backends)} {cells}{reason}.")
    timeless = [row for row in rows if row.state in ("ok", "unverified") and not row.timed]
    for row in timeless:
        notes.append(
            f"Not timed: {shortened(row.backend, 40)} {row.precision} {where(row)}.".replace(" .", ".")
        )
    for row in rows:
        if row.slowdown:
            cell = " ".join(f"{shortened(row.backend, 40)} {row.precision} {where(row)}".split())
            notes.append(f"Measured while the GPU was slowed down: {cell}: {', '.join(row.slowdown)}.")
    files = {Path(row.file).name for row in rows}
    partial = [name for name in results.partial if name in files]
    if partial:
        notes.append(f"Partial: the run of {', '.join(partial)} did not finish.")
    return notes


def _cells(rows: list[Row], backend: str, found: list[Row], where: Callable[[Row], str]) -> str:
    """As in `fp32, tf32 (H 128, 512)`: places only where not all of the backend's are meant."""
    parts: dict[tuple[str, ...], list[str]] = {}
    for precision in PRECISIONS:
        places = [where(row) for row in found if row.precision == precision]
        places.sort(key=lambda place: (len(place), place))  # H 512 before H 1024
        if not places:
            continue
        everywhere = [where(row) for row in rows if (row.backend, row.precision) == (backend, precision)]
        key = () if sorted(places) == sorted(everywhere) else tuple(places)
        parts.setdefault(key, []).append(precision)
    texts = []
    for places, precisions in parts.items():
        names = [places[0], *[place.removeprefix("H ") for place in places[1:]]] if places else []
        texts.append(", ".join(precisions) + (f" ({', '.join(names)})" if names else ""))
    return "; ".join(texts)
