"""The proof of the regression gate: A/A comparisons and planted slowdowns on a GPU, as results/GPU/gate.json.

`measure` runs `headroom compare --self-check` with a build on this machine; it may be run several times,
on several days, each run into a folder of its own. `write` makes the file of all, with the noise that they
show and how often the gate would be right under it (headroom-simulate-gate). A slowdown counts as caught only
if its cell is called a regression; an inconclusive one is counted apart.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from gate_tables import with_tables

ROOT = Path(__file__).resolve().parents[2]
# Comparisons for each planted percentage (0: none).
PLAN = {0: 40, 3: 13, 5: 13, 2: 1, 10: 1}
# The workloads of ci with the backend that can wait, in two precisions: twelve cells.
PLANTABLE = ["--backend", "cuda-layered", "--precision", "fp32,fp16"]
SIMULATED_SUITES = 10000


def read(files):
    comparisons = []
    folders = list(dict.fromkeys(Path(file).parent for file in files))  # one for each run of `measure`
    for file in files:
        session = folders.index(Path(file).parent)
        for line in Path(file).read_text().splitlines():
            comparison = json.loads(line)
            if comparison["kind"] != "self-check":
                sys.exit(f"{file}: expected self-checks, found {comparison['kind']}")
            comparisons.append(comparison | {"session": session})
    if not comparisons:
        sys.exit("no comparison in these files")
    return comparisons


# ---- measuring


def measure(arguments):
    first, parts = (int(word) for word in arguments.part.split("/"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    program = Path(arguments.build) / "bin" / "headroom"
    for planted, count in PLAN.items():
        count = math.ceil(count * first / parts) - math.ceil(count * (first - 1) / parts)
        if count == 0:
            continue
        command = [program, "compare", "--self-check", "--head", arguments.build, "--repeat", count]
        command += ["--output", arguments.output / f"planted-{planted}.jsonl"]
        if planted:
            command += ["--plant", planted, *PLANTABLE]
        begin = time.monotonic()
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - begin
        print(f"{planted} %: {count} comparisons in {seconds:.1f} s, exit code {done.returncode}", flush=True)
        if done.returncode not in (0, 1, 3):
            return done.returncode
    return 0


# ---- writing


def name_of(cell):
    return f"{cell['workload']}/{cell['head_backend']}/{cell['precision']}"


def planted_percent(cell):
    """What the worker measured after it had chosen the delay: 'planted delay: 3.01 % of a step of ...'."""
    return float(cell["message"].split("planted delay: ")[1].split(" %")[0])


def estimates(comparisons):
    rows = []
    for number, comparison in enumerate(comparisons):
        for cell in comparison["cells"]:
            finding = cell["finding"] or {}
            rows.append(
                {
                    "comparison": number,
                    "session": comparison["session"],
                    "asked_percent": comparison["planted_percent"],
                    "planted_percent": planted_percent(cell) if comparison["planted_percent"] else 0,
                    "cell": name_of(cell),
                    "verdict": cell["verdict"],
                    "rounds": cell["rounds"],
                    "pairs": len(cell["pairs"]),
                    "step_seconds": finding.get("base_step_seconds"),
                    "ratio": finding.get("ratio"),
                    "low": finding.get("low"),
                    "high": finding.get("high"),
                    "level": finding.get("level"),
                }
            )
    return rows


def noise_of(comparisons):
    """By cell, from the A/A comparisons: how far apart processes and blocks are, and what the order does."""
    launches = defaultdict(list)
    for comparison in comparisons:
        if comparison["planted_percent"]:
            continue
        for cell in comparison["cells"]:
            by_processes = defaultdict(list)
            for pair in cell["pairs"]:
                base, head = (math.log(pair[f"{side}_step_seconds"]) for side in ("base", "head"))
                by_processes[pair["processes"]].append((base, head, pair["first"] == "head"))
            launches[name_of(cell)] += by_processes.values()
    return [{"cell": cell} | noise_of_launches(pairs) for cell, pairs in launches.items()]


def noise_of_launches(launches):
    """`launches`: by pair of processes, its pairs of logarithms of a step: base, head, was head first."""
    means, freedom, pair_squares, block_squares, second_over_first = [], 0, 0.0, 0.0, []
    for pairs in launches:
        base_mean, head_mean = (statistics.fmean(pair[side] for pair in pairs) for side in (0, 1))
        means.append(head_mean - base_mean)
        freedom += len(pairs) - 1
        for base, head, head_first in pairs:
            block_squares += ((base - base_mean) ** 2 + (head - head_mean) ** 2) / 2
            pair_squares += (head - base - means[-1]) ** 2
            second_over_first.append(base - head if head_first else head - base)
    # A pair of processes differs by the luck of two; their few pairs of blocks add noise of their own.
    of_blocks = pair_squares / freedom / statistics.fmean(len(pairs) for pairs in launches)
    process_variance = max(0.0, statistics.fmean(mean**2 for mean in means) - of_blocks) / 2
    return {
        "process": math.sqrt(process_variance),
        "block": math.sqrt(block_squares / freedom),
        "second_over_first": statistics.fmean(second_over_first),
        "largest_process_pair": max(map(abs, means)),
    }


def between_runs(comparisons):
    """How far a cell's step of the same build moves between comparisons, within a session and over all."""
    steps = defaultdict(lambda: defaultdict(list))
    for comparison in comparisons:
        for cell in comparison["cells"]:
            if cell["finding"]:
                step = cell["finding"]["base_step_seconds"]
                steps[name_of(cell)][comparison["session"]].append(math.log(step))
    within, between = [], []
    for by_session in steps.values():
        everything = [value for values in by_session.values() for value in values]
        within += [max(values) - min(values) for values in by_session.values()]
        between.append(max(everything) - min(everything))
    return {
        "sessions": len({comparison["session"] for comparison in comparisons}),
        "largest_within_session": math.expm1(max(within)),
        "largest": math.expm1(max(between)),
    }


def simulation(simulator, noise, shape):
    """The rule under the noisiest cell's noise in all cells; and with processes four times as different."""
    process = max(row["process"] for row in noise)
    block = max(row["block"] for row in noise)
    runs = []
    for factor in (1, 4):
        model = {
            "process": factor * process,
            "block": block,
            # Hardly any drift was seen within a launch; as much as the blocks' own noise is put in.
            "drift": block,
            "drift_correlation": 0.9,
            "spike_probability": 0.01,
            "spike": 0.05,
        }
        slowdowns = [1.0, 1.02, 1.03, 1.05, 1.1]
        command = [simulator, SIMULATED_SUITES, *shape, *model.values(), *slowdowns]
        done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
        runs.append({"noise": model, "rates": json.loads(done.stdout)})
    names = ("cells", "launches", "pairs")
    return {"suites": SIMULATED_SUITES, "shape": dict(zip(names, shape, strict=True)), "runs": runs}


def planted(comparisons):
    rows = []
    for percent in sorted({comparison["planted_percent"] for comparison in comparisons} - {0}):
        cells = [c for one in comparisons if one["planted_percent"] == percent for c in one["cells"]]
        made = [planted_percent(cell) for cell in cells]
        rows.append(
            {
                "slowdown_percent": percent,
                "trials": len(cells),
                "caught": sum(cell["verdict"] == "regression" for cell in cells),
                "inconclusive": sum(cell["verdict"] == "inconclusive" for cell in cells),
                "equivalent": sum(cell["verdict"] == "equivalent" for cell in cells),
                "made_percent": {
                    "least": min(made),
                    "median": statistics.median(made),
                    "most": max(made),
                },
            }
        )
    return rows


def write(arguments):
    comparisons = read(arguments.files)
    equal = [comparison for comparison in comparisons if not comparison["planted_percent"]]
    cells = [cell for comparison in equal for cell in comparison["cells"]]
    shape = (
        max(len(comparison["cells"]) for comparison in equal),
        1 + max(pair["processes"] for cell in cells for pair in cell["pairs"] if pair["round"] == 1),
        sum(pair["processes"] == 0 for pair in cells[0]["pairs"]),
    )
    noise = noise_of(comparisons)
    seconds = [comparison["seconds"] for comparison in equal]
    document = {
        "schema_version": 1,
        "started_utc": min(comparison["started_utc"] for comparison in comparisons),
        "device": comparisons[0]["device"],
        "software": comparisons[0]["software"],
        "rule": comparisons[0]["rule"],
        "seconds": sum(comparison["seconds"] for comparison in comparisons),
        "aa": {
            "suite_runs": len(equal),
            "cells": len(cells),
            "false_alarms": sum(cell["verdict"] == "regression" for cell in cells),
            "false_improvements": sum(cell["verdict"] == "improvement" for cell in cells),
            "inconclusive": sum(cell["verdict"] == "inconclusive" for cell in cells),
            "equivalent": sum(cell["verdict"] == "equivalent" for cell in cells),
            "seconds_a_comparison": {"median": statistics.median(seconds), "most": max(seconds)},
            "visible_slowdown": {
                "median": statistics.median(cell["finding"]["visible_slowdown"] for cell in cells),
                "most": max(cell["finding"]["visible_slowdown"] for cell in cells),
            },
        },
        "planted": planted(comparisons),
        "noise": noise,
        "between_runs": between_runs(comparisons),
        "simulation": simulation(arguments.simulator, noise, shape),
        "estimates": estimates(comparisons),
    }
    arguments.output.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    if arguments.docs:
        arguments.docs.write_text(with_tables(arguments.docs.read_text(), document))
    if arguments.samples:
        arguments.samples.write_text(samples(comparisons))
    print(f"wrote {arguments.output}")
    return 0


# ---- recorded samples for the tests

SAMPLES_HEADER = """// Written by tests/gate/prove_gate.py of comparisons on an H200; see recorded_test.cpp.
#pragma once

namespace headroom {{

inline constexpr const char* kRecordedSamples = R"(
{}
)";

}}  // namespace headroom
"""


def samples(comparisons):
    """A few comparisons with all their pairs, as the header that tests/analysis/recorded_test.cpp reads."""
    chosen = []
    for percent, count in ((0, 3), (2, 1), (3, 2), (5, 2), (10, 1)):
        chosen += [one for one in comparisons if one["planted_percent"] == percent][:count]
    # Also one of each verdict that is rare.
    for word in ("inconclusive", "improvement"):
        chosen += [one for one in comparisons if any(cell["verdict"] == word for cell in one["cells"])][:1]
    lines = []
    for comparison in {id(one): one for one in chosen}.values():
        lines.append(f"comparison {comparison['planted_percent']}")
        for cell in comparison["cells"]:
            lines.append(f"cell {name_of(cell)} {cell['verdict']}")
            for pair in cell["pairs"]:
                base, head = (1e6 * pair[f"{side}_step_seconds"] for side in ("base", "head"))
                lines.append(f"{pair['round']} {pair['processes']} {base:.5f} {head:.5f}")
    return SAMPLES_HEADER.format("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(prog="prove_gate.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure", help="on a machine with a GPU")
    one.add_argument("--build", required=True, help="a build folder of ./headroom")
    one.add_argument("--output", required=True, type=Path, help="folder for the comparisons")
    one.add_argument("--part", default="1/1", help="I/N: the I-th of N parts, to be measured at another time")
    two = commands.add_parser("write", help="gate.json from what was measured")
    two.add_argument("files", nargs="+", help="the comparisons (*.jsonl) of one or several runs of `measure`")
    two.add_argument("--simulator", required=True, help="build/bin/headroom-simulate-gate")
    two.add_argument("--output", required=True, type=Path)
    two.add_argument("--docs", type=Path, help="also bring the tables of docs/gate.md up to date")
    two.add_argument("--samples", type=Path, help="also write a few comparisons for the tests")
    arguments = parser.parse_args()
    return measure(arguments) if arguments.command == "measure" else write(arguments)


if __name__ == "__main__":
    sys.exit(main())
