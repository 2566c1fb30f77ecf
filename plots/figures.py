"""`figures.py FILES... -o DIR`: draws results files as SVG and PNG and prints the names of what it wrote.

Exit code 0: done; 2: wrong usage or input that cannot be drawn; 3: matplotlib is not there. Everything that a
figure does not show is said in a line on standard error, never left out in silence.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from results_file import InputError, Results, read_results

DONE, BAD_INPUT, NO_MATPLOTLIB = 0, 2, 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="figures.py", description="Draw results files as SVG and PNG.")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="results files of one device model"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the figures"
    )
    return parser.parse_args()


def file_name(text: str, taken: set[str]) -> str:
    """A workload's name as a file name: harmless, short, and another one where two would be equal."""
    base = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("._")[:100] or "figure"
    name, number = base, 2
    while name.lower() in taken:
        name, number = f"{base}-{number}", number + 1
    taken.add(name.lower())
    return name


def plan(results: Results) -> dict:
    """Title of each figure and how it is drawn: width series as lines, what is left as bars, then losses."""
    import bars
    import loss_curves
    import scaling

    workloads = list({row.workload.name: row.workload for row in results.rows}.values())
    series = scaling.find_series(workloads)
    drawings, taken = {}, set()
    for one in series:
        for title, draw in scaling.drawings(results, one).items():
            drawings[file_name(title, taken)] = draw
    in_series = {name for one in series for name in one.widths}
    for workload in workloads:
        if workload.name not in in_series:
            name = file_name(f"step-time-{workload.name}", taken)
            drawings[name] = lambda workload=workload: bars.draw_bars(results, workload)
    for workload in workloads:
        if any(row.losses for row in results.rows if row.workload.name == workload.name):
            name = file_name(f"loss-{workload.name}", taken)
            drawings[name] = lambda workload=workload: loss_curves.draw_losses(results, workload)
    return drawings


def main() -> int:
    arguments = parse_arguments()
    try:
        results = read_results(arguments.files)
    except InputError as error:
        print(f"figures.py: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"figures.py: no figures: matplotlib cannot be imported ({error})", file=sys.stderr)
        return NO_MATPLOTLIB
    if not results.rows:
        print("figures.py: no figures: the files hold no records", file=sys.stderr)
        return DONE
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        for name, draw in plan(results).items():
            page = draw()
            if page is None:
                print(f"figures.py: {name}: not drawn, no record has what it shows", file=sys.stderr)
                continue
            for path in page.save(arguments.output, name):
                print(path, flush=True)
    except OSError as error:
        print(
            f"figures.py: {arguments.output}: cannot be written: {error.strerror or error}", file=sys.stderr
        )
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
