"""`report.py FILES... -o DIR`: results files as report.html, report.md and figures/ (SVG and PNG).

The HTML file holds everything, figures included, and needs nothing beside it. All text from results files
passes through Jinja's escaping; only our own SVG is inserted as it is. manifest.json lists what was made: the
next report replaces that and nothing else.
Exit code 0: done; 2: wrong usage, input that cannot be reported, or output that cannot be written; 3: a
package is not there; 130: interrupted.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from output_folder import filled
from program import BAD_INPUT, end_with, show
from results_file import InputError, Results, read_results

NO_PACKAGE = 3
TEMPLATES = Path(__file__).parent / "templates"
TRUSTED = ("report.css", "report.js")  # ours, inserted as they are
SECTIONS = {  # by the beginning of a figure's name
    "step-time": "Time of a step",
    "speedup": "Speed-up",
    "ladder": "Where the time goes",
    "floor": "Share of the floor",
    "energy": "Energy",
    "spread": "Spread of the blocks",
    "loss": "Training loss",
}


MOST_BYTES = 2_900_000  # of report.html, so that it can be mailed and opens on a phone


@dataclass(frozen=True)
class ReportFigure:
    name: str
    title: str
    subtitle: str
    notes: list[str]
    skips: bool  # rows that it lacks were skipped
    panels: list

    @property
    def expendable(self) -> tuple[bool, int, int]:
        """More is less missed: figures of late sections, among them large ones."""
        section = next((place for place, one in enumerate(SECTIONS) if self.name.startswith(f"{one}-")), 0)
        return bool(self.panels), section, sum(len(panel.svg) for panel in self.panels)

    def left_out(self) -> ReportFigure:
        note = f"Not drawn here, to keep this file small: figures/{self.name}.svg has it."
        return replace(self, panels=[], notes=[note])


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
        "files", nargs="+", type=Path, metavar="FILE", help="results files of one device model"
    )
    parser.add_argument(
        "-o", "--output", type=folder_name, required=True, metavar="DIR", help="folder of the report"
    )
    parser.add_argument(
        "--docs",
        action="store_true",
        help="also write the measured numbers of README.md and docs/ anew, from results/h200",
    )
    return parser.parse_args()


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
    from inline_svg import panels_of
    from notes import SKIPPED

    for number, (name, draw) in enumerate(plan(results).items()):
        page = draw()
        if page is None:
            continue  # the report's list of what is missing says why
        page.save(folder, name)
        # Skips are listed once in a report, and not below each figure.
        notes = [note for note in page.notes if not note.startswith(f"{SKIPPED}: ")]
        skips = len(notes) < len(page.notes)
        yield ReportFigure(name, page.title, page.subtitle, notes, skips, panels_of(page, f"f{number}"))


def sections_of(figures: list[ReportFigure]) -> dict[str, list[ReportFigure]]:
    """Title of a section to its figures; those of no section come last."""
    sections = {
        title: [figure for figure in figures if figure.name.startswith(f"{prefix}-")]
        for prefix, title in SECTIONS.items()
    }
    sections["More figures"] = [
        figure for figure in figures if not figure.name.startswith(tuple(f"{prefix}-" for prefix in SECTIONS))
    ]
    return {title: found for title, found in sections.items() if found}


def escape_markdown(value: object) -> str:
    """Text that Markdown shows as it is, on one line, also inside a table. Spaces at the ends stay."""
    text = re.sub(r"\s+", " ", str(value))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text)


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
    import jinja2
    import markupsafe
    import report_view

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES, encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        autoescape=lambda template: template is not None and template.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = escape_markdown
    view = report_view.view_of(results)
    if not any(figure.name.startswith("ladder-") for figure in figures):
        view["missing"].append("No figure of where the time goes (ladder) was drawn from these files.")
    values = {
        "view": view,
        "trusted": {
            name: markupsafe.Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in TRUSTED
        },
        "svg": markupsafe.Markup,
    }

    def rendered(name: str) -> bytes:
        text = environment.get_template(name).render(values, sections=sections_of(figures))
        return text.encode("utf-8", "replace")

    html = rendered("report.html")
    while len(html) > MOST_BYTES and any(figure.panels for figure in figures):
        least_missed = max(range(len(figures)), key=lambda index: figures[index].expendable)
        figures[least_missed] = figures[least_missed].left_out()
        html = rendered("report.html")
    return html, rendered("report.md")


def refresh_docs() -> None:
    """Numbers and tables; what the words around them say is for a person to read again."""
    import doc_numbers

    for line in doc_numbers.check([doc_numbers.ROOT / page for page in doc_numbers.PAGES], write=True):
        print(line, file=sys.stderr)


def main() -> int:
    arguments = parse_arguments()
    try:
        results = readable_results(arguments.files)
        paths = write_report(results, arguments.output)
        if arguments.docs:
            refresh_docs()
    except InputError as error:
        print(f"headroom report: {error}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        print(f"headroom report: no report: {error}", file=sys.stderr)
        return NO_PACKAGE
    except OSError as error:
        reason = error.strerror or error
        print(f"headroom report: {arguments.output}: cannot be written: {reason}", file=sys.stderr)
        return BAD_INPUT
    return show("headroom report", paths)


if __name__ == "__main__":
    end_with("headroom report", main)
