"""What people have measured on GPUs of theirs: results/community/*.json, a file a GPU.

A file is taken as it is or not at all. `problems` says why not; the tests ask it for every file, and
`./headroom report --community FILE` before one is sent. Numbers are not looked at beyond that no floor is
beaten: who sends a file says what was measured.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import findings
import json_file
from findings import Cell
from json_file import InputError
from results_file import Results, Row, read_results
from style import format_ratio

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "results/community"
SUITE = "community"
MOST_BYTES = 1_500_000  # every clone has every file
# A place in somebody's file system, or on a drive.
PLACE = re.compile(r"(?:^|[\s\"'=:,(])(?:/[\w.+~-]+/|~/|\\\\|[A-Za-z]:\\)")
# What may be said on the command line: nothing that changes the time of a step.
SETTINGS = {"suite", "device", "energy-seconds"}


def files(root: Path = ROOT) -> list[Path]:
    return sorted((root / FOLDER).glob("*.json"))


def name_of(device: str) -> str:
    """'nvidia-h200' of 'NVIDIA H200': what the names of its files begin with."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def problems(path: Path, root: Path = ROOT) -> list[str]:
    """Why the file cannot be added, a line each; empty if it can."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            return [f"{size} bytes, expected at most {MOST_BYTES}"]
        document = json_file.read(path, "a results file", "schema.json")
        results = read_results([path])
    except (InputError, OSError) as error:
        return [str(error)]
    suite = json.loads((root / f"bench/suites/{SUITE}.json").read_text(encoding="utf-8"))
    found = [*of_the_run(document), *of_the_name(path, document), *of_the_cells(document, suite)]
    return [*found, *of_the_rows(results), *of_places(document, "")]


def of_the_run(document: dict) -> Iterator[str]:
    run, version = document["run"], document["software"].get("headroom")
    if document["device"] is None:
        yield "device: null, expected a GPU: this is a run without one"
    if run["suite"] != SUITE:
        yield f"run.suite: {run['suite']}, expected {SUITE}"
    if not run["complete"]:
        yield "run.complete: false, expected true; go on with ./headroom run --resume"
    if not re.fullmatch(r"\d+\.\d+\.\d+", str(version)):
        yield f"software.headroom: {version}, expected a version such as 0.2.0"
    if run["git_sha"] is None or run["git_dirty"] is not False:
        yield "run.git_sha, run.git_dirty: expected a commit without changes, which others can measure"
    for name in sorted(set(run["settings"]) - SETTINGS):
        yield f"run.settings.{name}: expected the suite as it is; leave --{name} out"


def of_the_name(path: Path, document: dict) -> Iterator[str]:
    if document["device"] is None:
        return
    begin = name_of(document["device"]["name"])
    if not re.fullmatch(rf"{re.escape(begin)}(-[a-z0-9]+)*\.json", path.name):
        yield f"the file's name: {path.name}, expected {begin}.json, or {begin}-2.json if that is there"


def of_the_cells(document: dict, suite: dict) -> Iterator[str]:
    """Every network of the suite has rows in each of its precisions."""
    for entry in suite["workloads"]:
        name = next((one["name"] for one in document["workloads"] if is_meant(one, entry)), None)
        widths = "-".join(map(str, entry["widths"]))
        if name is None:
            yield f"workloads: {widths} at batch {entry['batch_size']} is missing"
            continue
        for precision in entry.get("precisions", suite["precisions"]):
            rows = [
                one
                for one in document["records"]
                if (one["workload"], one["precision"]) == (name, precision) and one["outcome"] != "skipped"
            ]
            if not rows:
                yield f"records: {name} in {precision} has no row that ran"


def is_meant(workload: dict, entry: dict) -> bool:
    kind = entry.get("optimizer", {"kind": "sgd"})["kind"]
    meant = {"activation": entry.get("activation", "relu"), "loss": entry.get("loss", "cross-entropy")}
    meant |= {name: entry[name] for name in ("widths", "batch_size")}
    return workload["optimizer"]["kind"] == kind and all(workload[key] == meant[key] for key in meant)


def of_the_rows(results: Results) -> Iterator[str]:
    """Each was verified, or failed, or was skipped; the schema demands a reason of the last two."""
    for row in results.rows:
        name = f"records[{row.index}]: {row.workload.name}/{row.backend}/{row.precision}"
        if row.state == "unverified":
            yield f"{name}: has a time and was not verified"
        if row.counts and not row.is_reference and beats_floor(row):
            yield f"{name}: is faster than its floor, so one of the two is wrong"


def beats_floor(row: Row) -> bool:
    floor = row.workload.floors.get(row.precision)
    stated = row.fraction_of_floor is not None and row.fraction_of_floor > 1
    return stated or (floor is not None and row.median < floor.seconds)


def of_places(value: object, where: str) -> Iterator[str]:
    """Paths of the machine that it was measured on."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from of_places(member, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for place, member in enumerate(value):
            yield from of_places(member, f"{where}[{place}]")
    elif isinstance(value, str) and PLACE.search(value):
        yield f"{where}: '{value[:60]}' has a path of the machine in it"


def folder_problems(root: Path = ROOT) -> list[str]:
    """Of all files together: what each has, other files, and versions that differ."""
    found, versions = [], {}
    for path in sorted((root / FOLDER).glob("*")):
        if path.suffix == ".json":
            wrong = problems(path, root)
            found += [f"{path.name}: {line}" for line in wrong]
            if not wrong:
                document = json.loads(path.read_text(encoding="utf-8"))
                versions.setdefault(document["software"]["headroom"], []).append(path.name)
        elif path.is_file() and path.name != "README.md":
            found.append(f"{path.name}: expected results files and README.md only")
    if len(versions) > 1:
        named = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(versions.items()))
        found.append(
            f"files of several versions ({named}), expected one; older ones go to a folder of theirs"
        )
    return found


def table_of(root: Path = ROOT) -> tuple[list[str], list[list[str]]]:
    """Titles and a line a file; no lines where there are no files."""
    lines, titles = [], []
    for path in files(root):
        results = read_results([path])
        cells = findings.cells_of(results)
        if not titles:
            titles = [f"{cell.workload.name} {cell.precision}" for cell in cells]
        ratios = {f"{cell.workload.name} {cell.precision}": ratio_of(cell) for cell in cells}
        lines.append([*about(path, results), *[ratios.get(title, "") for title in titles]])
    return ["GPU", "driver", "version", "measured", "verified", "failed", "skipped", *titles], lines


def about(path: Path, results: Results) -> list[str]:
    (source,) = results.sources
    counts = Counter(row.state for row in results.rows)
    failed = [f"{row.backend} {row.precision} of {row.workload.name}" for row in failed_rows(results)]
    return [
        f"[{results.device}]({path.name})",
        str((source.device or {}).get("driver") or ""),
        f"{source.software.get('headroom')} ({str(source.run['git_sha'])[:7]})",
        str(source.run["started_utc"])[:10],
        str(counts["ok"]),
        ", ".join(failed) or "0",
        str(counts["skipped"]),
    ]


def failed_rows(results: Results) -> list[Row]:
    return [row for row in results.rows if row.state == "failed"]


def ratio_of(cell: Cell) -> str:
    """Ours against the best PyTorch; empty where one of them is missing or nobody knows the best."""
    value = cell.against_best
    return f"{format_ratio(value)} ({cell.ours.backend})" if value is not None and cell.ours else ""
