"""The docs: links lead somewhere, commands have the options shown, measured numbers are in results files."""

import functools
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("HEADROOM_BUILD", "")
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "bench/**/*.md", "results/**/*.md")
    for path in ROOT.glob(pattern)
    if "runs" not in path.parts
)
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.S | re.M)
INLINE_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
SHELL_COMMANDS = ("test", "report", "clean")  # their help needs no build


def without_code(text: str) -> str:
    return INLINE_CODE.sub("`code`", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    dead = []
    for target in LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT):
            dead.append(target)
        elif anchor and anchor not in anchors(file):
            dead.append(target)
    assert dead == []


def test_every_page_of_the_docs_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        for target in LINK.findall(without_code(page.read_text())):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.suffix == ".md":
                waiting.append(path)
    docs = set((ROOT / "docs").rglob("*.md"))
    assert sorted(str(page.relative_to(ROOT)) for page in docs - reached) == []


def test_the_first_page_has_900_words_at_most_and_its_commands_near_the_top():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    assert text[: text.index("./headroom run")].count("\n") <= 15


def commands(page: Path) -> list[list[str]]:
    """Every ./headroom command that the page shows, in fences and in code, without comments and output."""
    text = page.read_text()
    lines = [line for fence in FENCE.findall(text) for line in fence.splitlines()]
    lines += [code.strip("`") for code in INLINE_CODE.findall(FENCE.sub("", text))]
    found = []
    for line in lines:
        line = line.removeprefix("$ ").replace("|", "/")
        if line.startswith("./headroom "):
            found.append(shlex.split(line, comments=True)[1:])
    return found


@functools.cache
def help_of(command: str) -> str:
    if command in SHELL_COMMANDS:
        program = [str(ROOT / "headroom"), command]
    else:
        program = [str(Path(BUILD) / "bin" / "headroom"), command]
        if not Path(program[0]).exists():
            return ""
    return subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=60).stdout


def known_commands() -> set[str]:
    shown = subprocess.run([ROOT / "headroom", "--help"], capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r"^  (\w+) +\w", shown, re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_shown_exist_with_their_options(page):
    known, wrong, unknown_help = known_commands(), [], set()
    for words in commands(page):
        command = words[0].split("/")[0] if words else ""
        if command.startswith("-"):
            continue
        if command not in known:
            wrong.append(f"{command}: no such command")
            continue
        options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        text = help_of(command)
        if not text:
            unknown_help.add(command)
            continue
        for option in options - {"--build", "--help"}:
            if (
                not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text)
                and "--benchmark_" not in option
            ):
                wrong.append(f"{command} {option}: not in its help")
    assert wrong == []
    if unknown_help:
        pytest.skip(f"no build (HEADROOM_BUILD) to ask for the options of {', '.join(sorted(unknown_help))}")


def test_measured_numbers_stand_in_the_results_files():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import doc_numbers

    pages = [ROOT / page for page in doc_numbers.PAGES]
    assert doc_numbers.check(pages, write=False) == []


class TestChecker:
    """That the check of numbers fails when it should."""

    @pytest.fixture(autouse=True)
    def page(self, tmp_path):
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
        self.document = tmp_path / "page.md"

    def problems(self, text: str, write: bool = False) -> list[str]:
        import doc_numbers

        self.document.write_text(text)
        return doc_numbers.check([self.document], write)

    def row(self):
        """A published record, as a claim names it."""
        import published

        data = published.published()
        cell = next(cell for cell in data.cells if cell.eager and cell.best is not cell.eager)
        return cell, f"{cell.precision} {cell.workload.name}"

    def test_a_number_without_a_file_is_found(self):
        (line,) = self.problems("It takes 40.2 µs.\n")
        assert "1: '40.2 µs' names no results file" in line

    def test_code_and_numbers_worked_out_are_no_claims(self):
        assert self.problems("*4.2 µs* on paper, `30 ms`, 50 steps\n\n```\n882 us\n```\n") == []

    @pytest.mark.parametrize(
        "text",
        [
            "The best gain is *10.8×*.",
            "It is *10.8 times as fast*.",
            "An earlier run (*88.5 µs*, with which our lead there were 10.8 and not 11.2).",
        ],
    )
    def test_a_ratio_beside_the_made_blocks_is_a_claim_in_italics_too(self, text):
        (line,) = self.problems(f"<!-- results: extremes -->\n<!-- /results -->\n\n{text}\n", write=True)
        assert "10.8" in line and line.endswith("names no results file")

    def test_in_the_readme_every_number_in_italics_is_a_claim(self):
        self.document = self.document.with_name("README.md")
        (line,) = self.problems("It takes *88.5 µs*.\n")
        assert "1: '88.5 µs' names no results file" in line

    def test_a_wrong_number_is_stale_and_writing_mends_it(self):
        cell, place = self.row()
        text = f'[1.00 µs](x.json "{place} pytorch-eager"), [7.77×](x.json "{place} eager / best")\n'
        assert "stale" in self.problems(text)[0]
        assert self.problems(text, write=True) == []
        mended = self.document.read_text()
        assert f"{1e6 * cell.eager.median:.0f}"[:3] in mended
        assert Path(cell.file).name in mended
        assert self.problems(mended) == []

    def test_a_number_one_digit_off_is_stale(self):
        cell, place = self.row()
        self.problems(f'[1.00 µs](x.json "{place} pytorch-eager")\n', write=True)
        text = self.document.read_text()
        digit = re.search(r"\d(?= ?µs)", text)
        changed = f"{text[: digit.start()]}{(int(digit.group()) + 1) % 10}{text[digit.end() :]}"
        assert "stale" in self.problems(changed)[0]

    def test_a_record_that_is_not_there_is_said(self):
        _, place = self.row()
        assert "no record" in self.problems(f'[1 µs](x.json "{place} cuda-imaginary")\n')[0]
        assert (
            "there is no record of mlp-1x1-b1" in self.problems('[1 µs](x.json "fp32 mlp-1x1-b1 best")\n')[0]
        )

    def test_a_block_is_made_whole_and_stale_when_changed(self):
        text = "<!-- results: answer -->\n- We are 900 times as fast.\n<!-- /results -->\n"
        assert "stale" in self.problems(text)[0]
        self.problems(text, write=True)
        assert "900 times" not in self.document.read_text()
        assert "unknown block 'x'" in self.problems("<!-- results: x -->\n<!-- /results -->\n")[0]
