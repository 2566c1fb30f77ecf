"""The lines at the foot of a figure: what was skipped, failed, not verified or not finished, and why."""

from __future__ import annotations

from collections.abc import Callable

from results_file import PRECISIONS, Results, Row
from style import backend_order, shortened

WORDS = {
    "skipped": "Skipped",
    "failed": "Failed (crosses or hatched, no speed-up)",
    "unverified": "Not verified (hollow)",
}


def record_notes(results: Results, rows: list[Row], where: Callable[[Row], str]) -> list[str]:
    """One line a state and reason. `where` names a row's workload; left out where all of them are meant."""
    notes = []
    for state, word in WORDS.items():
        reasons: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if row.state == state:
                message = shortened(row.message, 160) if state != "unverified" else ""
                reasons.setdefault((row.backend, message), []).append(row)
        joined: dict[tuple[str, str], list[str]] = {}
        for (backend, message), found in sorted(reasons.items(), key=lambda item: backend_order(item[0][0])):
            cells = _cells(rows, backend, found, where)
            joined.setdefault((message, cells), []).append(shortened(backend, 40))
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
    if results.partial:
        notes.append(f"Partial: the run of {', '.join(results.partial)} did not finish.")
    return notes


def _cells(rows: list[Row], backend: str, found: list[Row], where: Callable[[Row], str]) -> str:
    """As in `fp32, tf32 (H 128, 512)`: places only where not all of the backend's are meant."""
    parts: dict[tuple[str, ...], list[str]] = {}
    for precision in PRECISIONS:
        places = [where(row) for row in found if row.precision == precision]
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
