"""docs/kernels/README.md: every kernel has a test with a NaN, at another depth than four, and at odd widths.

The table's kernels, rows and tests are compared with the sources: which kernels and rows there are, which
networks a test has, and where it runs, by the filters of tests/emulated/CMakeLists.txt.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/kernels/README.md"
TESTS = ROOT / "tests/cuda"
HEADER = "| kernel | rows | a NaN | another depth than four | odd widths |"
KINDS = HEADER.strip("| ").split(" | ")[2:]
TRAINS_NOTHING = {"calibration", "planted"}
NAMED = re.compile(r"`(\w+)\.(\w+)`((?: \d+(?:x\d+)+)*)( \*\(--all\)\*)?")
DEFINED = re.compile(r"^(?:TEST|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\)", re.M)
PARAMETERS = [f"{name}{form}" for name in ("fp32", "tf32", "fp16", "bf16") for form in ("", "_portable")]


@dataclass(frozen=True)
class Line:
    kernels: tuple[str, ...]  # below cuda_impl
    rows: tuple[str, ...]
    cells: tuple[str, ...]  # one a kind


def lines_of(page: str) -> list[Line]:
    found = []
    for text in page[page.index(HEADER) :].splitlines()[2:]:
        if not text.startswith("|"):
            break
        kernel, rows, *cells = (cell.strip() for cell in text.strip("|").split(" | "))
        kernels = re.findall(r"\]\(\.\./\.\./cuda_impl/([^)]+)\)", kernel)
        found.append(Line(tuple(kernels), tuple(re.findall(r"`([^`]+)`", rows)), tuple(cells)))
    return found


def requests_of(folder: Path) -> str:
    """Where a strategy writes down what it has compiled."""
    return "".join(path.read_text() for path in sorted(folder.glob("*.cpp")))


def kernels_of(root: Path) -> set[str]:
    """Headers with a kernel of their own, or with members for the slice kernel, which requests name."""
    return {
        path.relative_to(root / "cuda_impl").as_posix()
        for path in (root / "cuda_impl").glob("*/*.cuh")
        if path.parent.name not in TRAINS_NOTHING
        and path.name != "slice_kernel.cuh"
        and ("__global__" in path.read_text() or f'{path.name}"' in requests_of(path.parent))
    }


def rows_of(root: Path) -> set[str]:
    text = "".join(path.read_text() for path in sorted((root / "cuda_impl").rglob("worker_main.cpp")))
    return set(re.findall(r"^\s+(?:\{\.|backend\.)name = \"([^\"]+)\"", text, re.M))


@functools.cache
def defined_tests() -> dict[tuple[str, str], tuple[Path, bool, bool]]:
    """Of each test: its file, and whether a played GPU and whether a GPU has it."""
    found = {}
    for path in sorted(TESTS.glob("*_test.cpp")):
        emulated, real = [True], [True]  # of the conditions around a line
        for line in path.read_text().splitlines():
            if re.match(r"#\s*if", line):
                emulated.append(emulated[-1] and "ifndef HEADROOM_EMULATED" not in line)
                real.append(real[-1] and "ifdef HEADROOM_EMULATED" not in line)
            elif re.match(r"#\s*else", line):
                before = emulated[-1], real[-1]
                emulated[-1], real[-1] = emulated[-2] and not before[0], real[-2] and not before[1]
                if before == (emulated[-2], real[-2]):  # a condition of something else
                    emulated[-1], real[-1] = before
            elif re.match(r"#\s*endif", line):
                emulated.pop(), real.pop()
            elif match := DEFINED.match(line):
                found[match.groups()] = path, emulated[-1], real[-1]
    return found


@functools.cache
def played_programs() -> list[tuple[str, str, bool]]:
    """Of tests/emulated/CMakeLists.txt: files, filter of names, and whether --all alone runs them."""
    text = (ROOT / "tests/emulated/CMakeLists.txt").read_text()
    files, found = {}, []
    for name, names, sources in re.findall(r"^emulated_tests\((\w+) \"([^\"]*)\"\s+([^)]*)\)", text, re.M):
        files[name] = sources
        found.append((sources, names, False))
    pattern = (
        r"gtest_discover_tests\(emulated_(\w+)_tests [^\"]*TEST_FILTER \"([^\"]*)\" PROPERTIES ([^)]*)\)"
    )
    for name, names, properties in re.findall(pattern, text):
        found.append((files[name], names, "LABELS long" in properties))
    return found


def matches(names: str, suite: str, test: str) -> bool:
    """Whether a filter of GoogleTest takes the test in some precision."""
    wanted, _, unwanted = names.partition("-")
    candidates = [f"{suite}.{test}", *(f"{suite}/{parameter}.{test}" for parameter in PARAMETERS)]
    candidates += [f"Every/{suite}.{test}/{parameter}" for parameter in PARAMETERS]
    return any(
        any(fnmatchcase(candidate, one) for one in wanted.split(":"))
        and not any(fnmatchcase(candidate, one) for one in unwanted.split(":"))
        for candidate in candidates
    )


def played(suite: str, test: str) -> str:
    """ "always", "--all", or "" if the CPU never plays it."""
    path, emulated, _ = defined_tests()[suite, test]
    runs = [
        is_long
        for files, names, is_long in played_programs()
        if emulated and path.name in files.split() and matches(names, suite, test)
    ]
    return "" if not runs else "--all" if all(runs) else "always"


def runs_on_a_gpu(suite: str, test: str) -> bool:
    path, _, real = defined_tests()[suite, test]
    text = (TESTS / "CMakeLists.txt").read_text()
    programs = re.findall(r"^headroom_test\(\w+ SOURCES ([^)]*)\)", text, re.M)
    return real and any(path.name in program.split() and "LABELS gpu" in program for program in programs)


def has_network(suite: str, test: str, widths: list[int]) -> bool:
    """In the test's file or a header beside it: as a name or as a list."""
    text = defined_tests()[suite, test][0].read_text()
    beside = sorted(TESTS.glob("*_kernels.h")) + sorted(TESTS.glob("*_cases.h"))
    text += "".join(path.read_text() for path in beside)
    return f"mlp-{'x'.join(map(str, widths))}-b" in text or f"{{{', '.join(map(str, widths))}}}" in text


def problems_of(line: Line) -> list[str]:
    """What is wrong with a line's cells, in words."""
    found = []
    for kind, cell in zip(KINDS, line.cells, strict=True):
        place = f"{', '.join(line.kernels) or line.rows[0]}, {kind}"
        if kind == KINDS[1] and (refusal := re.fullmatch(r"only four: `(\w+)\.(\w+)`", cell)):
            if refusal.groups() not in defined_tests():
                found.append(f"{place}: there is no test {'.'.join(refusal.groups())}")
            continue
        tests = NAMED.findall(cell)
        if not tests or NAMED.sub("", cell).strip():
            found.append(f"{place}: expected `Suite.Test` and its network's widths, found '{cell}'")
            continue
        known = [one for one in tests if (one[0], one[1]) in defined_tests()]
        found += [f"{place}: there is no test {a}.{b}" for a, b, *_ in tests if (a, b) not in defined_tests()]
        where = {played(suite, test) for suite, test, *_ in known} - {""}
        if not where:
            found.append(f"{place}: no filter of tests/emulated/CMakeLists.txt takes the test")
        elif (where == {"--all"}) != any(mark for *_, mark in known):
            found.append(f"{place}: expected *(--all)* where the filters say so, and nowhere else")
        if not any(runs_on_a_gpu(suite, test) for suite, test, *_ in known):
            found.append(f"{place}: no test of a GPU")
        for suite, test, networks, _ in known:
            sizes = [[int(width) for width in one.split("x")] for one in networks.split()]
            found += [
                f"{place}: {suite}.{test} has no network {one}"
                for one in sizes
                if not has_network(suite, test, one)
            ]
            if kind == KINDS[1] and not any(len(one) != 5 for one in sizes):
                found.append(f"{place}: {suite}.{test} names no network of another depth")
            hidden = [one[1:-1] or one[1:] for one in sizes]
            if kind == KINDS[2] and not any(width % 8 for widths in hidden for width in widths):
                found.append(f"{place}: {suite}.{test} names no network of odd widths")
    return found


@pytest.fixture(scope="module")
def table() -> list[Line]:
    return lines_of(PAGE.read_text())


def test_every_kernel_has_a_line(table):
    assert kernels_of(ROOT) - {kernel for line in table for kernel in line.kernels} == set()


def test_every_row_of_the_workers_has_a_line_and_no_other_is_named(table):
    assert {row for line in table for row in line.rows} == rows_of(ROOT)


def test_the_tests_named_are_there_and_run_where_the_table_says(table):
    assert [problem for line in table for problem in problems_of(line)] == []


GOOD = "`Narrow.SmallCasesMatchTheOracle` 20x33x7"


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (("", GOOD, GOOD), "a NaN: expected `Suite.Test`"),
        (("`Narrow.NoSuchTest`", GOOD, GOOD), "there is no test Narrow.NoSuchTest"),
        ((GOOD, "only four: `Narrow.NoSuchTest`", GOOD), "there is no test Narrow.NoSuchTest"),
        ((GOOD, "`Narrow.LargeBatchesMatchTheOracle` 20x33x7", GOOD), "no filter of tests/emulated"),
        ((GOOD, "`Narrow.SmallCasesMatchTheOracle` 10x20x33x7x9", GOOD), "has no network [10, 20, 33, 7, 9]"),
        ((GOOD, "`Narrow.SmallCasesMatchTheOracle` 9x9x9x9x9", GOOD), "names no network of another depth"),
        ((GOOD, GOOD, "`Narrow.SmallCasesMatchTheOracle` 17x64x64x6"), "names no network of odd widths"),
        ((GOOD, GOOD, f"{GOOD} *(--all)*"), "expected *(--all)* where the filters say so"),
        (
            ("`FusedTrainer.ANaNComesOutOfThePipelineWithOtherRulesAsNaNLosses`", GOOD, GOOD),
            "no test of a GPU",
        ),
        (("`ResidentColumnsDeep.SmallStepsOfSevenLayersInFourClustersMatchTheOracle`", GOOD, GOOD), "--all"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(cells, problem):
    assert problem in "\n".join(problems_of(Line(("narrow/step.cuh",), ("cuda-fused",), cells)))
