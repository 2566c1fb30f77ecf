"""A report's templates filled: from results and drawn figures to the text of report.html and report.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from results_file import Results

TEMPLATES = Path(__file__).parent / "templates"
TRUSTED = ("report.css", "report.js")  # ours, inserted as they are
SECTIONS = {  # by the beginning of a figure's name
    "plane": "The map over width and batch",
    "step-time": "Time of a step",
    "speedup": "Speed-up",
    "gpus": "Speed-up over the number of GPUs",
    "ladder": "Where the time goes",
    "floor": "Share of the floor",
    "energy": "Energy",
    "spread": "Spread of the blocks",
    "loss": "Training loss",
}


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


def renderer(
    results: Results, figures: list[ReportFigure], is_published: bool = False
) -> Callable[[str], bytes]:
    """From a template's name to its text with the figures that the list holds when it is called."""
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
        "is_published": is_published,
        "trusted": {
            name: markupsafe.Markup((TEMPLATES / name).read_text(encoding="utf-8")) for name in TRUSTED
        },
        "svg": markupsafe.Markup,
    }

    def rendered(name: str) -> bytes:
        text = environment.get_template(name).render(values, sections=sections_of(figures))
        return text.encode("utf-8", "replace")

    return rendered
