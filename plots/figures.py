"""`figures.py FILES... -o DIR`: draws results files as SVG and PNG and prints the names of what it wrote.

It replaces the figures that manifest.json in the folder lists, and no other file.
Exit code 0: done; 2: wrong usage, input that cannot be drawn, or output that cannot be written; 3: a package
is not there; 130: interrupted. Everything that a figure does not show is said in a line on standard error,
never left out in silence.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from output_folder import filled_by
from program import BAD_INPUT, DONE, end_with, show
from results_file import PRECISIONS, InputError, Results, Row, read_results

NO_PACKAGE = 3


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
    """Name of each figure and how it is drawn: maps, width series as lines, the rest as bars, losses."""
    import bars
    import in_short
    import ladder
    import loss_curves
    import networks
    import plane
    import quantities
    import scaling
    import several_gpus
    import spread
    import width_series

    drawings, taken = {}, set()

    def add(name: str, draw, *arguments) -> None:
        drawings[file_name(name, taken)] = lambda: draw(results, *arguments)

    def rows_of(*names: str) -> list[Row]:
        return [row for row in results.rows if row.workload.name in names]

    workloads = results.workloads
    planes = plane.find_planes(workloads)
    for one in planes:
        add(f"plane-rival-{one.slug}", plane.draw_against_rival, one)
        add(f"plane-floor-{one.slug}", plane.draw_floor, one)
    # A map has so many cells that a figure for each of them would be a book.
    mapped = {name for one in planes for name in one.places}
    everything, workloads = workloads, [one for one in workloads if one.name not in mapped]
    series = width_series.find_series(workloads)
    in_series = {name for one in series for name in one.widths}
    alone = [workload for workload in workloads if workload.name not in in_series]
    for one in series:
        add(f"step-time-in-short-{one.slug}", in_short.draw_in_short, one)
        add(f"step-time-{one.slug}", scaling.draw_step_time, one)
        add(f"speedup-best-pytorch-{one.slug}", scaling.draw_speedup, one, "best")
        add(f"speedup-pytorch-eager-{one.slug}", scaling.draw_speedup, one, "eager")
    named = [workload for workload in alone if workload.has_own_name]
    for precision in PRECISIONS:
        if len(networks.lines_of(results, named, precision)) >= networks.LEAST_NETWORKS:
            add(f"networks-{precision}", networks.draw_networks, named, precision)
    for precision in PRECISIONS:
        if several_gpus.networks_to_draw(results, precision):
            add(f"gpus-{precision}", several_gpus.draw_several_gpus, precision)
    for workload in alone:
        add(f"step-time-{workload.name}", bars.draw_bars, workload)
    for workload in workloads:
        if ladder.ladders_of(results, workload):
            add(f"ladder-{workload.name}", ladder.draw_ladder, workload)
    for quantity in quantities.QUANTITIES:
        for one in series:
            if any(map(quantity.value, rows_of(*one.widths))):
                add(f"{quantity.slug}-{one.slug}", quantities.draw_against_width, one, quantity)
        for workload in alone:
            if any(map(quantity.value, rows_of(workload.name))):
                add(f"{quantity.slug}-{workload.name}", quantities.draw_bars, workload, quantity)
    for one in series:
        if any(row.blocks for row in rows_of(*one.widths)):
            members = [workload for workload in workloads if workload.name in one.widths]
            add(f"spread-{one.slug}", spread.draw_spread, one.title, members)
    for workload in alone:
        if any(row.blocks for row in rows_of(workload.name)):
            add(f"spread-{workload.name}", spread.draw_spread, workload.name, [workload])
    for workload in everything:
        if any(row.losses for row in rows_of(workload.name)):
            add(f"loss-{workload.name}", loss_curves.draw_losses, workload)
    return drawings


def draw(results: Results, folder: Path) -> list[str]:
    """Names of the files that it made."""
    from svg import save

    names = []
    for name, draw_one in plan(results).items():
        page = draw_one()
        if page is None:
            print(f"figures.py: {name}: not drawn, no record has what it shows", file=sys.stderr)
            continue
        names += [path.name for path in save(page, folder, name)]
    return names


def main() -> int:
    arguments = parse_arguments()
    try:
        results = read_results(arguments.files)
    except InputError as error:
        print(f"figures.py: {error}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        print(f"figures.py: no figures: jsonschema cannot be imported ({error})", file=sys.stderr)
        return NO_PACKAGE
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        print(f"figures.py: no figures: matplotlib cannot be imported ({error})", file=sys.stderr)
        return NO_PACKAGE
    if not results.rows:
        print("figures.py: no figures: the files hold no records", file=sys.stderr)
        return DONE
    names = filled_by("figures.py", arguments.output, lambda made: draw(results, made))
    if names is None:
        return BAD_INPUT
    return show("figures.py", [arguments.output / name for name in names])


if __name__ == "__main__":
    end_with("figures.py", main)
