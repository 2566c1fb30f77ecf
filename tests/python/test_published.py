"""What the repository keeps of its results: made by one command, small, and nothing else."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")

import published_report  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "results"
AGAIN = "`./headroom report --published` writes it anew"


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return dict(published_report.made())


def test_what_is_kept_is_what_the_command_makes(made):
    stale = [str(file.relative_to(ROOT)) for file, text in made.items() if file.read_text() != text]
    assert stale == [], AGAIN


def test_pictures_are_ten_svg_files_at_most_and_no_page_is_kept(made):
    runs = KEPT / "runs"
    files = [path for path in KEPT.rglob("*") if path.is_file() and runs not in path.parents]
    pictures = {path for path in files if path.suffix not in (".json", ".md")}
    assert pictures == {file for file in made if file.suffix == ".svg"}
    assert len(pictures) <= 10


def test_every_figure_of_the_report_is_kept_beside_it():
    folder = ROOT / published_report.REPORT
    shown = re.findall(r"\]\((figures/[^)]+)\)", (folder / "report.md").read_text())
    assert len(shown) == len(published_report.FIGURES)
    assert [name for name in shown if not (folder / name).is_file()] == []


def test_files_of_several_gpus_are_kept_without_white_space_too(tmp_path):
    file = tmp_path / "results" / "h200-x2" / "small.json"
    file.parent.mkdir(parents=True)
    file.write_text('{ "a": 1 }')
    assert next(published_report.made(tmp_path)) == (file, '{"a":1}\n')


@pytest.mark.parametrize(
    "text",
    [
        '{ "a b" : [ 1.50 , 1e-05,\n\t-0.0 ] }',
        '{"quote \\" and \\\\ ": "a \\" b"}',
        '[ "\\\\" , " x " ]',
        "[]",
    ],
)
def test_compact_json_has_the_same_values_digit_for_digit(text):
    def digits(text: str) -> object:
        return json.loads(text, parse_float=lambda one: ("float", one), parse_int=lambda one: ("int", one))

    short = published_report.compact(text)
    assert digits(short) == digits(text)
    assert len(short) <= len(text) + 1
    assert published_report.compact(short) == short
