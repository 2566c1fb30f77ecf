"""`report.py FILES... -o DIR`: results files as report.html, report.md and figures/ (SVG and PNG).
`report.py --published`: what the repository keeps of results/h200 (published_report.py), written anew.

The HTML file holds everything, figures included, and needs nothing beside it. All text from results files
passes through Jinja's escaping; only our own SVG is inserted as it is. manifest.json lists what was made: the
next report replaces that and nothing else.
Exit code 0: done; 2: wrong usage, input that cannot be reported, or output that cannot be written; 3: a
package is not there; 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from output_folder import filled
from program import BAD_INPUT, DONE, end_with, show
from rendering import ReportFigure, renderer
from results_file import InputError, Results, read_results

NO_PACKAGE = 3
MOST_BYTES = 2_900_000  # of report.html, so that it can be mailed and opens on a phone


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (--help)\n")


def folder_name(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, found an empty name")
    return Path(text)


def parse_arguments() -> argparse.Namespace:
    parser = OneLineParser(
        prog=f"{os.environ.get('HEADROOM_COMMAND', 'headroom')} report",
        allow_abbrev=False,  # `--doc` must not write the docs
        description="Write report.html, report.md and figures (SVG and PNG) from results files.",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="results files of one device model"
    )
    parser.add_argument("-o", "--output", type=folder_name, metavar="DIR", help="folder of the report")
    parser.add_argument(
        "--published",
        action="store_true",
        help="write anew what the repository keeps of results/h200: report.md, its figures, and the"
        " measured numbers of README.md and docs/",
    )
    parser.add_argument(
        "--community",
        type=Path,
        metavar="FILE",
        help="say whether FILE, a run of the suite `community`, can be added to results/community",
    )
    arguments = parser.parse_args()
    alone = [name for name in ("--published", "--community") if getattr(arguments, name[2:])]
    if alone and (arguments.files or arguments.output or len(alone) > 1):
        parser.error(f"{alone[0]} takes no other FILE and no other option")
    if not alone and not (arguments.files and arguments.output):
        parser.error("FILE and -o/--output are required, or --published, or --community FILE")
    return arguments


def check_community(path: Path) -> int:
    """Prints what is wrong with the file, a line each, or where it goes."""
    import community

    found = community.problems(path)
    for line in found:
        print(f"headroom report: {path}: {line}", file=sys.stderr)
    if found:
        return BAD_INPUT
    print(f"{path} can be added as {community.FOLDER}/{path.name}")
    return DONE


def readable_results(paths: list[Path]) -> Results:
    """Results with something to report, or an InputError."""
    results = read_results(paths)
    if all(row.state == "skipped" for row in results.rows):
        reason = f" (every record was skipped: {results.rows[0].message})" if results.rows else ""
        names = ", ".join(map(str, paths))
        raise InputError(f"{names}: no complete workload, expected at least one record that ran{reason}")
    return results


def draw_figures(results: Results, folder: Path) -> Iterator[ReportFigure]:
    from figures import plan
    from notes import SKIPPED
    from svg import panels_of, save

    for number, (name, draw) in enumerate(plan(results).items()):
        page = draw()
        if page is None:
            continue  # the report's list of what is missing says why
        save(page, folder, name)
        # Skips are listed once in a report, and not below each figure.
        notes = [note for note in page.notes if not note.startswith(f"{SKIPPED}: ")]
        skips = len(notes) < len(page.notes)
        yield ReportFigure(name, page.title, page.subtitle, notes, skips, panels_of(page, f"f{number}"))


def write_report(results: Results, folder: Path) -> list[Path]:
    """All or nothing: what was there before stays until everything is drawn and written."""
    with filled(folder) as made:
        (made / "figures").mkdir()
        figures = list(draw_figures(results, made / "figures"))
        html, markdown = rendered_documents(results, figures)
        (made / "report.html").write_bytes(html)
        (made / "report.md").write_bytes(markdown)
        images = sorted(path.name for path in (made / "figures").iterdir())
    return [folder / "report.html", folder / "report.md", *(folder / "figures" / name for name in images)]


def rendered_documents(results: Results, figures: list[ReportFigure]) -> tuple[bytes, bytes]:
    """report.html, without its least missed figures where it would be too large, and report.md."""
    rendered = renderer(results, figures)
    html = rendered("report.html")
    while len(html) > MOST_BYTES and any(figure.panels for figure in figures):
        least_missed = max(range(len(figures)), key=lambda index: figures[index].expendable)
        figures[least_missed] = figures[least_missed].left_out()
        html = rendered("report.html")
    return html, rendered("report.md")


def main() -> int:
    arguments = parse_arguments()
    try:
        if arguments.community:
            return check_community(arguments.community)
        if arguments.published:
            import published_report

            paths = published_report.write()
        else:
            paths = write_report(readable_results(arguments.files), arguments.output)
    except InputError as error:
        print(f"headroom report: {error}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        print(f"headroom report: no report: {error}", file=sys.stderr)
        return NO_PACKAGE
    except OSError as error:
        reason = error.strerror or error
        where = arguments.output or error.filename
        print(f"headroom report: {where}: cannot be written: {reason}", file=sys.stderr)
        return BAD_INPUT
    return show("headroom report", paths)


if __name__ == "__main__":
    end_with("headroom report", main)
