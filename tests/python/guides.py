"""A guide of docs/ as steps that a test can follow: new files, lines put into files, commands.

What counts as a step is what a reader takes for one: "New file `PATH`:", "In `PATH`, below the line that
begins with `TEXT`:", the same with "instead of", or "Run:", each before a fence.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

STEP = re.compile(
    r"^(?:New file `(?P<new>[^`]+)`|"
    r"In `(?P<old>[^`]+)`, (?P<where>below|instead of) the line that begins with `(?P<line>[^\n]+)`|"
    r"Run):\n"
    r"```[a-z]*\n(?P<body>.*?)^```",
    re.S | re.M,
)


@dataclass(frozen=True)
class Step:
    section: str
    body: str
    new: str = ""
    old: str = ""
    line: str = ""
    where: str = ""

    @property
    def commands(self) -> list[str]:
        return [] if self.new or self.old else self.body.splitlines()

    def put_into(self, root: Path) -> None:
        """Does what the step says to the files below `root`."""
        if self.new:
            assert not (root / self.new).exists(), f"{self.new} is there already"
            (root / self.new).write_text(self.body)
        if self.old:
            lines = (root / self.old).read_text().splitlines(keepends=True)
            places = [place for place, line in enumerate(lines) if line.strip().startswith(self.line)]
            assert len(places) == 1, f"{self.old}: '{self.line}' begins {len(places)} lines"
            if self.where == "below":
                first = last = end_of_statement(lines, places[0])
            else:
                first, last = places[0], places[0] + 1
            (root / self.old).write_text("".join([*lines[:first], self.body, *lines[last:]]))


def end_of_statement(lines: list[str], first: int) -> int:
    """Where the line ends that begins at `first`: a formatter may have wrapped a row or a call."""
    depth = 0
    for place in range(first, len(lines)):
        depth += sum(map(lines[place].count, "({")) - sum(map(lines[place].count, ")}"))
        if depth <= 0 or lines[place].rstrip().endswith(("= (", "= {")):
            return place + 1
    raise AssertionError("brackets do not match")


def steps_of(guide: Path) -> list[Step]:
    """In order, each with the heading that it stands under."""
    text = guide.read_text()
    found = []
    for match in STEP.finditer(text):
        headings = re.findall(r"^## (.+)$", text[: match.start()], re.M)
        found.append(Step(headings[-1], **match.groupdict(default="")))
    return found


def copy_of_checkout(repository: Path, target: Path) -> Path:
    """What git has or would have; a checkout without git: everything but builds and runs."""
    listed = subprocess.run(
        ["git", "-C", repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        ignored = shutil.ignore_patterns("build*", ".git", "runs", "__pycache__")
        return Path(shutil.copytree(repository, target, ignore=ignored))
    for name in listed.stdout.split("\0"):
        if name and not name.startswith("results/h200/") and (repository / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, target / name)
    return target
