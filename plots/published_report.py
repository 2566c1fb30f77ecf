"""What the repository keeps of its published results, made anew by `./headroom report --published`.

results/h200/report/ holds report.md and at most ten figures, which the docs show. All other figures and
report.html come from `./headroom report results/h200/*.json -o FOLDER`; kept here, each would make every
clone larger. The results files have no white space between their values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import json_file
from output_folder import write_whole
from published import PUBLISHED, ROOT, published
from results_file import Results

REPORT = "results/h200/report"
FIGURES = (
    "step-time-in-short-784-H-H-H-10-b32",
    "step-time-784-H-H-H-10-b32",
    "speedup-best-pytorch-784-H-H-H-10-b32",
    "networks-bf16",
    "ladder-mlp-784x128x128x128x10-b32",
    "floor-784-H-H-H-10-b32",
    "energy-784-H-H-H-10-b32",
    "spread-784-H-H-H-10-b32",
    "loss-mlp-784x128x128x128x10-b32",
)
GATE = "gate"  # drawn from gate.json, for docs/gate.md
STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


def compact(json_text: str) -> str:
    """The same JSON without white space between values; strings and digits stay as they are written."""
    return STRING_OR_SPACE.sub(lambda found: found.group(1) or "", json_text) + "\n"


def made(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Files of results/ that are made of others, with their text."""
    from gate import draw_gate
    from svg import file_of

    apart = (root / PUBLISHED).parent.glob(f"{Path(PUBLISHED).name}-x*/*.json")  # of several GPUs
    for file in sorted([*(root / PUBLISHED).rglob("*.json"), *apart]):
        yield file, compact(file.read_text(encoding="utf-8"))
    folder = root / REPORT
    yield from report_files(published(root).results, folder)
    gate = json_file.read(root / PUBLISHED / "gate.json", "a gate.json", "gate.schema.json")
    yield folder / f"figures/{GATE}.svg", file_of(draw_gate(gate))


def report_files(results: Results, folder: Path) -> Iterator[tuple[Path, str]]:
    from figures import plan
    from rendering import ReportFigure, renderer
    from svg import file_of

    drawings, figures = plan(results), []
    for name in FIGURES:
        page = drawings[name]()
        figures.append(ReportFigure(name, page.title, page.subtitle, page.notes, skips=False, panels=[]))
        yield folder / f"figures/{name}.svg", file_of(page)
    yield folder / "report.md", renderer(results, figures, is_published=True)("report.md").decode("utf-8")


def write() -> list[Path]:
    """Numbers and tables of the docs too; what the words around them say is for a person to read again."""
    import doc_numbers

    written = []
    for file, text in made():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
            written.append(file)
    for line in doc_numbers.check([ROOT / page for page in doc_numbers.PAGES], write=True):
        print(line, file=sys.stderr)
    return written
