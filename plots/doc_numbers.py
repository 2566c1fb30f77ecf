"""Numbers in the docs that claim to be measured: checked against the published results, or written anew.

Two forms, both ordinary Markdown to a reader:
    [40.2 µs](../results/h200/seed-128-fp32.json "fp32 H=128 cuda-layered")
    <!-- results: answer --> ... <!-- /results -->
A link names its file and its record; a block is made whole by one of doc_blocks.BLOCKS. What stands in
neither and has a unit that only a measurement gives is an unnamed claim, unless it is code, or *in italics*:
worked out and not measured. A ratio is a claim in italics too, and so is everything in README.md: beside the
made blocks nothing may say again, in other digits, what they say.

    doc_numbers.py [--write] [DOCUMENT...]      default: check the pages named in PAGES
Exit code 0: all current; 1: stale or unnamed numbers, one line each; 2: a results file that cannot be read.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from doc_blocks import made_block
from output_folder import write_whole
from program import end_with, show
from published import ROOT, Published, Stale, claimed, published
from results_file import InputError

# Pages whose numbers are results. The logs of the kernels hold what was tried on the way, and say so.
PAGES = (
    "README.md",
    "docs/usage.md",
    "docs/how-it-measures.md",
    "docs/results.md",
    "docs/rivals.md",
    "docs/from-layered-to-resident.md",
    "docs/add-a-backend.md",
    "docs/add-a-workload.md",
    "docs/floors.md",
    "docs/more-gpus.md",
    "docs/where-the-time-goes.md",
    "docs/kernels/choice.md",
    "docs/kernels/layered.md",
    "docs/kernels/resident.md",
    "docs/kernels/streamed.md",
    "docs/kernels/fused.md",
    "results/community/README.md",
)
CURRENT, STALE, BAD_INPUT = 0, 1, 2

BLOCK = re.compile(r"(<!-- results: ([^>]*?) -->\n)(.*?)(<!-- /results -->)", re.S)
LINK = re.compile(r'\[([^\]]*)\]\(([^)\s]+\.json) "([^"]*)"\)')
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
ITALIC = re.compile(r"(?<!\*)\*[^*\n]+\*(?!\*)")
CLAIM = re.compile(r"\d[\d.,]*\s?(?:µs|us\b|ns\b|ms\b|×|TB/s|TFLOP/s|times as fast)")
RATIO = re.compile(
    r"\d[\d.,]*\s?(?:×|times (?:as fast|faster))|\b(?:lead|gain|speed-up)s?\b[^.;|\n]*?\b\d+\.\d+(?!\s?[%\d])"
)
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(\s?)(µs|ms|s|×|%|mJ|J|)$")
SCALES = {"µs": 1e6, "ms": 1e3, "s": 1.0, "mJ": 1e3, "J": 1.0, "×": 1.0, "%": 100.0, "": 1.0}


def written(text: str, value: float) -> str:
    """`value` with the unit and as many significant digits as `text` has."""
    found = NUMBER.search(text)
    if found is None:
        raise Stale(f"'{text}' is not a number with a unit that is known here")
    number, space, unit = found.groups()
    digits = max(1, len(number.replace(".", "").lstrip("0")))
    scaled = value * SCALES[unit]
    shown = f"{scaled:.{digits}g}"
    if "e" in shown:
        shown = f"{scaled:.0f}"
    decimals = len(shown.partition(".")[2])
    missing = digits - len(shown.replace(".", "").lstrip("-0"))
    if missing > 0:
        shown = f"{scaled:.{decimals + missing}f}"
    return f"{text[: found.start()]}{shown}{space}{unit}"


def refreshed_link(data: Published, document: Path, text: str, claim: str) -> str:
    value, row = claimed(data, claim)
    path = os.path.relpath(row.file, document.parent)
    return f'[{written(text, value)}]({path} "{claim}")'


def refreshed(data: Published, document: Path) -> tuple[str, list[str]]:
    """The document with current numbers, and what no results file bears out."""
    text = document.read_text(encoding="utf-8")
    problems: list[str] = []

    def block(found: re.Match) -> str:
        try:
            return f"{found.group(1)}{made_block(data, found.group(2))}{found.group(4)}"
        except Stale as error:
            problems.append(str(error))
            return found.group()

    def link(found: re.Match) -> str:
        try:
            return refreshed_link(data, document, found.group(1), found.group(3))
        except Stale as error:
            problems.append(str(error))
            return found.group()

    return LINK.sub(link, BLOCK.sub(block, text)), problems


def unnamed_claims(text: str, italics_are_claims: bool = False) -> list[str]:
    """What looks measured and names no file, as line and text."""

    def blanked(text: str, pattern: re.Pattern) -> str:
        return pattern.sub(lambda found: "\n" * found.group().count("\n"), text)

    for pattern in (BLOCK, CODE, LINK):
        text = blanked(text, pattern)
    plain = text if italics_are_claims else blanked(text, ITALIC)
    found = {
        (part.count("\n", 0, claim.start()) + 1, claim.group())
        for part, pattern in ((plain, CLAIM), (text, RATIO))
        for claim in pattern.finditer(part)
    }
    return [f"{line}: '{claim}' names no results file" for line, claim in sorted(found)]


def check(documents: list[Path], write: bool) -> list[str]:
    """One line for each number that is stale, names no file or cannot be found; `write` mends stale ones."""
    data = published()
    problems = []
    for document in documents:
        name = os.path.relpath(document, ROOT)
        before = document.read_text(encoding="utf-8")
        after, unknown = refreshed(data, document)
        problems += [f"{name}: {line}" for line in unknown]
        problems += [f"{name}:{line}" for line in unnamed_claims(before, document.name == "README.md")]
        if write and after != before:
            write_whole(document, after)
            print(f"{name}: numbers written anew", file=sys.stderr)
        elif after != before:
            old, new = before.splitlines(), after.splitlines()
            changed = [f"{name}: stale: {one.strip()}" for one in old if one not in new]
            problems += changed or [f"{name}: stale: lines are missing"]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="doc_numbers.py", description="Check the measured numbers of the docs."
    )
    parser.add_argument("--write", action="store_true", help="write stale numbers and blocks anew")
    parser.add_argument("documents", nargs="*", type=Path, metavar="DOCUMENT")
    arguments = parser.parse_args()
    documents = [path.resolve() for path in arguments.documents] or [ROOT / page for page in PAGES]
    try:
        problems = check(documents, arguments.write)
    except (InputError, OSError) as error:
        print(f"doc_numbers.py: {error}", file=sys.stderr)
        return BAD_INPUT
    return show("doc_numbers.py", problems) or (STALE if problems else CURRENT)


if __name__ == "__main__":
    end_with("doc_numbers.py", main)
