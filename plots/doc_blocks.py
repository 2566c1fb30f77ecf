"""Parts of the docs that are made whole from the published results: tables and lists in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from math import comb
from pathlib import Path

import community
import findings
import several_gpus
from findings import Cell, Sentence
from ladder import TITLES, ladders_of, term_text
from published import ROOT, SERIES, TRIALS, Published, Stale, apart, claimed, row_of
from results_file import (
    EAGER,
    PRECISIONS,
    TERMS,
    Results,
    Row,
    Source,
    Workload,
    read_results,
    refuted_text,
)
from spread import spreads
from style import backend_order, format_percent, format_ratio, format_seconds


def titled(workload: Workload) -> str:
    """Its name, and what is trained where that does not say it."""
    return f"{workload.name} ({workload.network})" if workload.has_own_name else workload.name


def claim(cell: Cell, value: float | None) -> str:
    return refuted_text(list(cell.refuted)) if cell.refuted and cell.ours else _ratio(value)


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    lines = [titles, ["---"] * len(titles), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def sentence_text(sentence: Sentence) -> str:
    return "".join(map(str, sentence))


def answer_block(data: Published, arguments: list[str]) -> list[str]:
    sentences = [*findings.answer(data.results, data.cells), findings.verification(data.results)]
    warnings = findings.warnings(data.results, data.cells)
    return [f"- {line}" for line in [*map(sentence_text, sentences), *warnings]]


def extremes_block(data: Published, arguments: list[str]) -> list[str]:
    rows = [
        [one.title, f"**{one.number.text}**", one.detail, Path(one.number.rows[0].file).name]
        for one in findings.extremes(data.results, data.cells)
    ]
    return table(["", "", "", "file"], rows)


def widths_of(data: Published, arguments: list[str]) -> list[int]:
    """H=128,8192 among the arguments, else every H of 784-H-H-H-10 at batch 32 that is published."""
    for argument in arguments:
        if argument.startswith("H="):
            return [int(width) for width in argument[2:].split(",")]
    names = (SERIES.fullmatch(one.name) for one in data.results.workloads)
    return sorted(int(found.group(1)) for found in names if found)


def cells_at(data: Published, width: int) -> list[Cell]:
    found = []
    for precision in PRECISIONS:
        try:
            found.append(data.cell(precision, f"H={width}"))
        except Stale:
            continue
    return found


def times_block(data: Published, arguments: list[str]) -> list[str]:
    """Microseconds a step, a column a backend: those of backends=A,B, else all that have a result."""
    cells = [cell for width in widths_of(data, arguments) for cell in cells_at(data, width)]
    asked = next((item[9:].split(",") for item in arguments if item.startswith("backends=")), None)
    named = [[str(cell.workload.widths[1]), cell.precision] for cell in cells]
    return times_table(["H", "precision"], named, cells, asked)


def regimes_block(data: Published, arguments: list[str]) -> list[str]:
    """The same for every published workload outside the seed suite's family and of what people train."""
    seed = {cell.workload.name for width in widths_of(data, []) for cell in cells_at(data, width)}
    others = [cell for cell in data.cells if cell.workload.name not in seed]
    cells = [cell for cell in others if not is_of_users(cell)]
    if not cells:
        return ["The published files hold no other workload yet."]
    named = []
    for cell in cells:
        against = [claim(cell, value) for value in (cell.against_best, cell.against_rival)]
        named.append([titled(cell.workload), cell.precision, *against])
    titles = ["workload", "precision", "ours against best PyTorch", "against best rival"]
    return times_table(titles, named, cells, None)


def _ratio(value: float | None) -> str:
    return "" if value is None else format_ratio(value)


def times_table(
    titles: list[str], named: list[list[str]], cells: list[Cell], asked: list[str] | None
) -> list[str]:
    """A line a cell, begun by `named`; microseconds a step of `asked`, else of all that have a result."""
    timed = {row.backend for cell in cells for row in cell.rows if row.counts and not row.is_reference}
    names = sorted(timed, key=backend_order) if asked is None else [name for name in asked if name in timed]
    rows = []
    for name, cell in zip(named, cells, strict=True):
        by_name = {row.backend: row for row in cell.rows}
        times = [_time(by_name.get(backend)) for backend in names]
        rows.append([*name, *times, Path(cell.file).name])
    missing = [name for name in asked or [] if name not in timed]
    absent = ["", f"The published files hold no result of {', '.join(missing)} yet."] if missing else []
    return [*table([*titles, *names, "file"], rows), *absent]


def _time(row: Row | None) -> str:
    if row is None:
        return ""
    return (
        f"{1e6 * row.median:.3g}"
        if row.counts and row.median < 999.5e-6
        else (f"{1e6 * row.median:.0f}" if row.counts else row.state)
    )


def against_block(data: Published, arguments: list[str]) -> list[str]:
    """The fastest of ours against a rival (best, eager or a backend), a column a precision."""
    rival = arguments[0]
    title = {"best": "the best PyTorch row", "eager": EAGER}.get(rival, rival)
    rows = []
    for width in widths_of(data, arguments):
        fields = []
        for precision in PRECISIONS:
            try:
                value, row = claimed(data, f"{precision} H={width} {rival} / ours")
                fields.append(f"{format_ratio(value)} ({row.backend})")
            except Stale:
                fields.append("")
        if any(fields):
            rows.append([str(width), *fields])
    if not rows:
        return [f"The published files hold no row of {title} with a result beside one of ours."]
    return table([f"H, against {title}", *PRECISIONS], rows)


def summary_block(data: Published, arguments: list[str]) -> list[str]:
    """A line a width and precision: the best of PyTorch, the fastest of ours, both ratios, and the floor."""
    cells = [cell for width in widths_of(data, arguments) for cell in cells_at(data, width) if cell.ours]
    if not cells:
        return ["The published files hold no result of ours in this series."]
    titles = ["H", "precision", "best PyTorch, µs", "best rival, µs", "fastest of ours, µs"]
    against = ["against best PyTorch", "against best rival", "against pytorch-eager"]
    return table([*titles, *against, "floor", "of its speed"], [_summary(cell) for cell in cells])


def _summary(cell: Cell) -> list[str]:
    floor = cell.workload.floors.get(cell.precision)
    reached = cell.ours.fraction_of_floor
    return [
        str(cell.workload.widths[1]),
        cell.precision,
        _time_and_name(cell.best),
        "the same" if cell.best and cell.rival is cell.best else _time_and_name(cell.rival),
        _time_and_name(cell.ours),
        claim(cell, cell.against_best),
        claim(cell, cell.against_rival),
        claim(cell, cell.against_eager),
        f"{1e6 * floor.seconds:.3g} µs ({floor.bound})" if floor else "",
        format_percent(reached) if floor and reached else "",
    ]


def _time_and_name(row: Row | None) -> str:
    return f"{_time(row)} {row.backend}" if row else ""


def outcomes_block(data: Published, arguments: list[str]) -> list[str]:
    """How many records there are, and what became of them."""
    counts = Counter(row.state for row in data.results.rows)
    titles = {
        "ok": "passed every check",
        "failed": "failed",
        "unverified": "not checked",
        "skipped": "skipped",
    }
    return table(
        ["records", *titles.values()],
        [[str(len(data.results.rows)), *[str(counts[state]) for state in titles]]],
    )


def ladder_block(data: Published, arguments: list[str]) -> list[str]:
    """Where the time of a step goes, a line a precision and workload: those named, else all of the series."""
    names = [name for name in arguments if name.startswith("mlp-")]
    names = names or [f"mlp-784x{width}x{width}x{width}x10-b32" for width in widths_of(data, arguments)]
    rows = []
    for workload in data.results.workloads:
        if workload.name not in names:
            continue
        for precision, terms in ladders_of(data.results, workload):
            known = {term.name: term_text(term) for term in terms}
            rows.append([workload.name, precision, *[known.get(name, "") for name in TERMS]])
    if not rows:
        return ["The published files hold no ladder."]
    return table(["workload", "precision", *[TITLES[name] for name in TERMS]], rows)


def witness_block(data: Published, arguments: list[str]) -> list[str]:
    """What torch.profiler saw of an eager step beside the graph's time, from results/witness/."""
    rows = []
    for file in sorted((ROOT / "results" / "witness").glob("*.json")):
        for one in json.loads(file.read_text(encoding="utf-8")):
            graph, busy, launches = one["graph_seconds"], one["busy_seconds"], one["launches"]
            rows.append(
                [
                    one["workload"],
                    one["precision"],
                    format_seconds(one["eager_seconds"]),
                    f"{one['graph_backend']} {format_seconds(graph)}",
                    format_seconds(busy),
                    f"{launches:.0f}",
                    f"{100 * (graph - busy) / graph:+.1f} %",
                    ("-" if graph < busy else "") + format_seconds(abs(graph - busy) / launches),
                    f"`{one['results_file']}`",
                ]
            )
    if not rows:
        return ["No witness has been recorded."]
    titles = ["workload", "precision", "eager", "graph", "device busy", "launches"]
    return table([*titles, "graph less busy", "gap for each launch", "times from"], rows)


def verification_block(data: Published, arguments: list[str]) -> list[str]:
    """What ran on real GPUs, from results/verification/: a line a device and kind of test."""
    rows = []
    for file in sorted((ROOT / "results" / "verification").glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        for name, title in TESTED.items():
            if record.get(name):  # null: was not run
                counts = [str(record[name][outcome]) for outcome in ("passed", "failed", "skipped")]
                unfinished = str(len(record[name]["not_finished"]))
                rows.append([record["device"], record["date"], title, *counts, unfinished])
    if not rows:
        return ["No verification has been recorded."]
    return table(["GPU", "date", "what", "passed", "failed", "skipped", "not finished"], rows)


def bounds_block(data: Published, arguments: list[str]) -> list[str]:
    """How often the checks were right over random networks: all classes together, and those of a contract."""
    file = ROOT / "results" / "bounds" / "simulation.json"
    if not file.exists():
        return ["No simulation has been recorded."]
    record = json.loads(file.read_text(encoding="utf-8"))
    classes = record["classes"]
    correct = [(one["class"], one["passed"], one["failed"], one["cannot_be_checked"], 0) for one in classes]
    lines = [simulated_line("correct code passes", correct)]
    for fault in sorted({fault for one in classes for fault in one["faults"]}):
        counts = [
            (
                one["class"],
                *(
                    one["faults"][fault][what]
                    for what in ("caught", "missed", "cannot_be_checked", "invisible")
                ),
            )
            for one in classes
            if fault in one["faults"]
        ]
        lines.append(simulated_line(f"caught: {fault}", counts))
    free_steps = [
        (one["class"], one["free_steps"]["passed"], one["free_steps"]["failed"], 0, 0) for one in classes
    ]
    lines.insert(1, simulated_line("correct code passes ten free steps", free_steps))
    short = sorted({name for _, misses in lines for name in misses})
    certain = sorted({name for _, misses in lines for name, is_certain in misses.items() if is_certain})
    seeds = sorted({part["seed"] for one in classes for part in one["ranges"]})
    text = (
        f"{len(classes)} classes of at least {record['networks']:,} networks each,"
        f" seed {', '.join(map(str, seeds))}, {record['copies']} copies."
    )
    if short:
        chance = [name for name in short if name not in certain]
        text += (
            f" Fewer than 999 of 1000 were judged rightly in {len(short)} classes."
            " Where one of 1000 is wrong, at most one class of twenty comes out as bad"
        )
        text += f" as {', '.join(certain)}." if certain else " as any of them."
        text += f" These have too few networks to tell: {', '.join(chance)}." if chance else ""
    elif record["networks"] < 1000:
        text += " None was judged wrongly; so few networks a class cannot show 999 of 1000."
    else:
        text += " In every class at least 999 of 1000 were judged rightly."
    titles = [
        "judgement",
        "classes",
        "right",
        "wrong",
        "worst class, wrong of a thousand",
        "cannot be checked",
        "invisible",
    ]
    of_contracts = [
        "precision and contract",
        "correct: passed",
        "failed",
        "of a thousand",
        "faults: caught",
        "missed",
        "of a thousand",
    ]
    return [
        text,
        "",
        *table(titles, [cells for cells, _ in lines]),
        "",
        *table(of_contracts, contract_lines(classes)),
    ]


def contract_lines(classes: list[dict]) -> list[list[str]]:
    """For each precision and contract its correct networks and its faults, of all classes together."""
    sums: dict[str, Counter[str]] = {}
    for one in classes:
        # The last three words are activation, loss and optimizer.
        of_contract = sums.setdefault(" ".join(one["class"].split()[:-3]), Counter())
        of_contract.update({what: one[what] for what in ("passed", "failed")})
        for fault in one["faults"].values():
            of_contract.update({what: fault[what] for what in ("caught", "missed")})
    lines = []
    for name, counted in sums.items():
        cells = [name]
        for right, wrong in (("passed", "failed"), ("caught", "missed")):
            share = 1000 * counted[wrong] / max(1, counted[right] + counted[wrong])
            cells += [f"{counted[right]:,}", f"{counted[wrong]:,}", f"{share:.2g}"]
        lines.append(cells)
    return lines


def simulated_line(
    title: str, counts: list[tuple[str, int, int, int, int]]
) -> tuple[list[str], dict[str, bool]]:
    """A line of the table; each class with fewer than 999 of 1000 right, and if it is hardly chance."""
    wrong = {name: 1000 * missed / max(1, right + missed) for name, right, missed, *_ in counts}
    sums = [f"{sum(column):,}" for column in list(zip(*counts, strict=True))[1:]]
    cells = [title, str(len(counts)), *sums[:2], f"{max(wrong.values()):.2g}", *sums[2:]]
    return cells, {
        name: chance_of(missed, right + missed) < 0.05
        for name, right, missed, *_ in counts
        if wrong[name] > 1
    }


def chance_of(wrong: int, judged: int, share: float = 1e-3) -> float:
    """The probability of so many wrong or more where each is wrong with probability `share`."""
    return 1 - sum(comb(judged, k) * share**k * (1 - share) ** (judged - k) for k in range(wrong))


TESTED = {
    "tests": "all tests",
    "ptx_jit": "tests of the kernels, compiled from PTX by the driver",
    "memcheck": "small tests under memcheck",
    "racecheck": "small tests under racecheck",
    "synccheck": "small tests under synccheck",
}


def calibration_block(data: Published, arguments: list[str]) -> list[str]:
    """What was measured of the device itself, from the lowest to the highest of all published runs."""
    measured: dict[str, list[dict[str, object]]] = {}
    for source in data.results.sources:
        for name, entry in source.calibration.items():
            measured.setdefault(name, []).append(entry)
    if not measured:
        return ["The published files hold no calibration of the device."]
    rows = []
    for name, entries in sorted(measured.items()):
        values = sorted(float(entry["value"]) for entry in entries)
        ends = dict.fromkeys(format_rate(value, str(entries[0]["unit"])) for value in (values[0], values[-1]))
        rows.append([f"`{name}`", " to ".join(ends), str(entries[-1]["how"])])
    return table(["name", "measured", "how"], rows)


def format_rate(value: float, unit: str) -> str:
    if unit == "seconds":
        return format_seconds(value)
    scale, name = {
        "bytes_per_second": (1e12, "TB/s"),
        "flops_per_second": (1e12, "TFLOP/s"),
        "bytes": (1e6, "MB"),
    }.get(unit, (1.0, unit))
    return f"{value / scale:.3g} {name}"


def spread_block(data: Published, arguments: list[str]) -> list[str]:
    """Nine of ten blocks lie within, over all widths of the series."""
    names = {f"mlp-784x{width}x{width}x{width}x10-b32" for width in widths_of(data, arguments)}
    rows = [row for row in data.results.rows if row.workload.name in names and not row.is_reference]
    by_precision = {
        precision: {one.backend: one for one in spreads([row for row in rows if row.precision == precision])}
        for precision in PRECISIONS
    }
    backends = sorted({name for found in by_precision.values() for name in found}, key=backend_order)
    lines = [
        [
            backend,
            *[
                f"± {by_precision[precision][backend].usual:.2g} %"
                if backend in by_precision[precision]
                else ""
                for precision in PRECISIONS
            ],
        ]
        for backend in backends
    ]
    return table(["backend", *PRECISIONS], lines)


def sources_block(data: Published, arguments: list[str]) -> list[str]:
    """The results files: what each holds, and what of its host and its build bears on the numbers."""
    lines = []
    for source in data.results.sources:
        rows = [row for row in data.results.rows if row.file == source.file]
        launch = source.calibration.get("launch")
        lines.append(
            [
                f"`{Path(source.file).name}`",
                "<br>".join(dict.fromkeys(row.workload.name for row in rows)),
                ", ".join(name for name in PRECISIONS if any(row.precision == name for row in rows)),
                str(len(rows)),
                "yes" if any(row.losses for row in rows) else "",
                str(source.run.get("started_utc"))[:10] + ("" if source.complete else ", not finished"),
                format_seconds(float(launch["value"])) if launch else "",
                str(source.run.get("source_digest")).rpartition(":")[2][:7],
            ]
        )
    titles = ["file", "networks", "precisions", "records", "loss curves", "measured", "a launch"]
    return table([*titles, "source"], lines)


def costs_block(data: Published, arguments: list[str]) -> list[str]:
    """What the published runs of each suite took: time, and the GPU memory of the row that takes the most."""
    lines = []
    for suite in sorted({str(source.run.get("suite")) for source in data.results.sources} - {"None"}):
        sources = [one for one in data.results.sources if one.run.get("suite") == suite and seconds_of(one)]
        if not sources:
            continue  # no run of it went to its end
        runs = {str(one.run.get("id")): seconds_of(one) for one in sources}  # some files are parts of a run
        files = {one.file for one in sources}
        rows = [row for row in data.results.rows if row.file in files and row.state != "skipped"]
        most = max((row.peak_device_bytes or 0 for row in rows), default=0)
        count, minutes = str(len(rows)), f"{sum(runs.values()) / 60:.0f} min"
        lines.append([f"`{suite}`", count, minutes, f"{most / 1e9:.1f} GB"])
    if not lines:
        return ["No run of a suite is published."]
    return table(["suite", "results", "time of the runs", "GPU memory, at most"], lines)


def seconds_of(source: Source) -> float | None:
    """From the run's begin to its end; None if it did not finish."""
    ends = [source.run.get("started_utc"), source.run.get("finished_utc")]
    if None in ends:
        return None
    begin, end = (datetime.fromisoformat(str(one).replace("Z", "+00:00")) for one in ends)
    return (end - begin).total_seconds()


def trials_block(data: Published, arguments: list[str]) -> list[str]:
    """Microseconds a step of the named backends in a file of what was tried, a column a cell."""
    file, *arguments = arguments
    files = sorted((ROOT / TRIALS).glob(file))
    rows = [row for row in read_results(files).rows if row.backend in arguments] if files else []
    if not rows:
        return [f"{TRIALS}/ holds no result of {', '.join(arguments)} yet."]
    cells = dict.fromkeys((row.workload.name, row.precision) for row in rows)
    found = {(row.backend, row.workload.name, row.precision): row for row in rows}
    lines = [
        [name, *[_time(found.get((name, *cell))) for cell in cells]]
        for name in arguments
        if any((name, *cell) in found for cell in cells)
    ]
    named = ", ".join(str(file.relative_to(ROOT)) for file in files)
    return [*table(["backend", *[" ".join(cell) for cell in cells]], lines), "", f"Source: {named}."]


def message_block(data: Published, arguments: list[str]) -> list[str]:
    """What a record says of itself: message PRECISION PLACE BACKEND."""
    precision, place, backend = arguments
    row = row_of(data.cell(precision, place), backend)
    return ["```", row.message, "```", f"({Path(row.file).relative_to(ROOT)}, {place}, {precision})"]


def setup_block(data: Published, arguments: list[str]) -> list[str]:
    """Seconds that setting up the named backends took, a line a width, a column a precision."""
    lines = []
    for width in widths_of(data, arguments):
        by_precision = {
            cell.precision: {row.backend: row for row in cell.rows} for cell in cells_at(data, width)
        }
        for name in arguments:
            rows = [by_precision.get(precision, {}).get(name) for precision in PRECISIONS]
            if any(row and row.setup_seconds is not None for row in rows):
                lines.append([str(width), name, *map(_setup, rows)])
    if not lines:
        return [f"The published files hold no result of {', '.join(arguments)} yet."]
    return table(["H", "backend", *PRECISIONS], lines)


def _setup(row: Row | None) -> str:
    if row is None or row.setup_seconds is None:
        return ""
    return f"{row.setup_seconds:.2g} s {row.setup_cache}".rstrip()


def apart_block(data: Published, arguments: list[str]) -> list[str]:
    """Microseconds a step of the workloads in a folder of their own: apart FOLDER."""
    cells = apart(data, arguments[0]).cells
    if not cells:
        return [f"Nothing is published in {arguments[0]} yet."]
    named = [[titled(cell.workload), cell.precision] for cell in cells]
    return times_table(["workload", "precision"], named, cells, None)


def gpus_block(data: Published, arguments: list[str]) -> list[str]:
    """Two GPUs against one, and against the fastest rival on two, from the folder of two GPUs."""
    results = apart(data, "x2").results
    lines = [
        _two_gpus(results, network, precision)
        for network in several_gpus.networks_of(results)
        for precision in PRECISIONS
        if several_gpus.rows_of(results, network, 2, precision)
    ]
    if not lines:
        return ["No result of two GPUs is published yet."]
    times = ["ours on one GPU, µs", "ours on two, µs", "speed-up in samples a second, efficiency"]
    return table(
        ["network", "precision", *times, "best rival on two, µs", "best rival / ours, on two", "file"], lines
    )


def _two_gpus(results: Results, network: several_gpus.Network, precision: str) -> list[str]:
    """A line of the table. Rows that failed or were not verified count for nothing."""
    one, two = (several_gpus.rows_of(results, network, devices, precision) for devices in (1, 2))
    base, ours = (several_gpus.fastest(rows, "ours") for rows in (one, two))
    rival, refuted = several_gpus.fastest(two, "rival"), several_gpus.refuted(two)
    speedup = several_gpus.Point(ours, base) if ours and base else None
    no_ratio = refuted_text(refuted) or "no ratio"
    return [
        titled(network.workloads[2]),
        precision,
        _time_or_reason(base, [row for row in one if row.is_ours]),
        _time_or_reason(ours, [row for row in two if row.is_ours]),
        f"{format_ratio(speedup.speedup)}, {format_percent(speedup.efficiency)}" if speedup else "no ratio",
        _time_or_reason(rival, [row for row in two if row.is_rival]),
        format_ratio(rival.median / ours.median) if rival and ours and not refuted else no_ratio,
        Path(network.file).name,
    ]


def _time_or_reason(fastest: Row | None, rows: list[Row]) -> str:
    if fastest:
        return f"{_time(fastest)} {fastest.named}"
    states = ", ".join(sorted({row.state for row in rows}))
    return f"no result ({states})" if states else "not in the file"


def is_of_users(cell: Cell) -> bool:
    return Path(cell.file).name.startswith("users")


def fastest(row: Row | None) -> str:
    return f"{row.median * 1e6:.4g} {row.backend}" if row else ""


def users_block(data: Published, arguments: list[str]) -> list[str]:
    """Microseconds a step of what people train, from the results files users*.json."""
    lines = []
    for cell in data.cells:
        if not is_of_users(cell):
            continue
        lines.append(
            [
                titled(cell.workload),
                cell.precision,
                f"{cell.eager.median * 1e6:.4g}" if cell.eager else "",
                fastest(cell.best),
                fastest(cell.rival),
                fastest(cell.ours),
                claim(cell, cell.against_rival) or "",
                Path(cell.file).name,
            ]
        )
    if not lines:
        return ["No file of this suite is published yet."]
    titles = [
        "workload",
        "precision",
        "as written",
        "best PyTorch",
        "best rival",
        "ours",
        "best rival / ours",
        "file",
    ]
    return table(titles, lines)


def weights_of_layers(workload: Workload) -> list[int]:
    return [a * b for a, b in zip(workload.widths, workload.widths[1:], strict=False)]


def streamed_bytes(workload: Workload, precision: str) -> float:
    """Bytes of weights that cuda-streamed moves in a step if nothing of them stays on the chip or in the L2.

    The backward pass reads and writes masters (8 bytes), the forward pass reads them in every layer but the
    first (4 bytes; bf16: 2), whose forward pass rides on its update (cuda_impl/streamed/plan.h).
    """
    first, *others = weights_of_layers(workload)
    return 8.0 * first + (10 if precision == "bf16" else 12) * sum(others)


def traffic_block(data: Published, arguments: list[str]) -> list[str]:
    """Bytes that cuda-streamed counts in a step, against what a copy reaches; networks of at least H=N."""
    least, other = int(arguments[0][2:]), apart(data, "shapes")
    sources = [*data.results.sources, *other.results.sources]
    lines = []
    for cell in [*data.cells, *other.cells]:
        row = next((row for row in cell.rows if row.backend == "cuda-streamed" and row.counts), None)
        if row is None or max(cell.workload.widths[1:]) < least:
            continue
        counted = streamed_bytes(cell.workload, cell.precision)
        copy = next(one for one in sources if one.file == cell.file).calibration.get("copy")
        share = format_percent(counted / row.median / float(copy["value"])) if copy else ""
        lines.append(
            [
                cell.workload.name,
                cell.precision,
                f"{row.median * 1e6:.4g}",
                f"{counted / 1e6:.4g}",
                f"{counted / sum(weights_of_layers(cell.workload)):.3g}",
                f"{counted / row.median / 1e12:.3g}",
                share,
                Path(cell.file).name,
            ]
        )
    if not lines:
        return ["No result of cuda-streamed is published."]
    titles = ["workload", "precision", "µs a step", "MB counted", "bytes a weight", "TB/s", "of a copy's"]
    return table([*titles, "file"], lines)


def community_block(data: Published, arguments: list[str]) -> list[str]:
    """A line a GPU of results/community; in each cell ours against the best PyTorch."""
    titles, lines = community.table_of(data.root)
    if not lines:
        return ["Nobody has added results of a GPU yet."]
    return table(titles, lines)


BLOCKS: dict[str, Callable[[Published, list[str]], list[str]]] = {
    "answer": answer_block,
    "extremes": extremes_block,
    "times": times_block,
    "regimes": regimes_block,
    "against": against_block,
    "summary": summary_block,
    "outcomes": outcomes_block,
    "bounds": bounds_block,
    "calibration": calibration_block,
    "ladder": ladder_block,
    "witness": witness_block,
    "verification": verification_block,
    "spread": spread_block,
    "sources": sources_block,
    "costs": costs_block,
    "trials": trials_block,
    "message": message_block,
    "setup": setup_block,
    "apart": apart_block,
    "gpus": gpus_block,
    "users": users_block,
    "traffic": traffic_block,
    "community": community_block,
}


def made_block(data: Published, what: str) -> str:
    name, *arguments = what.split()
    if name not in BLOCKS:
        raise Stale(f"unknown block '{name}', expected one of {', '.join(BLOCKS)}")
    return "\n".join(BLOCKS[name](data, arguments)) + "\n"
