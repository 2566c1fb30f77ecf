"""Prints name, verdict and output of the tests that failed in JUnit files of CTest and pytest.

usage: junit_failures.py LINES FILE...: of each test's output the first LINES lines.
Prints nothing for a file that is missing or cut off, whose program's own output is all there is.
"""

import sys
import xml.etree.ElementTree as ElementTree

GOOGLETEST_PROGRESS = ("[", "Running main() from", "Note: Google Test filter")
MOST_TESTS = 10
MOST_CHARACTERS = 300  # of a line: GoogleTest prints whole vectors


def cases_of(path):
    try:
        return list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []


def failed_cases(path):
    """(suite or module, test) of each."""
    for case in cases_of(path):
        if case.find("failure") is not None or case.find("error") is not None:
            yield case.get("classname"), case.get("name")


def failed_tests(path):
    """(name, verdict, lines of output but GoogleTest's progress) of each."""
    for case in cases_of(path):
        for tag in ("failure", "error"):
            node = case.find(tag)
            if node is None:
                continue
            verdict = (node.get("message") or tag).splitlines()[0]
            output = (node.text or case.findtext("system-out") or "").strip("\n").splitlines()
            output = [line for line in output if not line.startswith(GOOGLETEST_PROGRESS)]
            name = "::".join(dict.fromkeys(filter(None, (case.get("classname"), case.get("name")))))
            yield name, verdict, output


def shortened(line):
    return line if len(line) <= MOST_CHARACTERS else line[:MOST_CHARACTERS] + " ..."


def main(most_lines, paths):
    failed = [test for path in paths for test in failed_tests(path)]
    for name, verdict, output in failed[:MOST_TESTS]:
        print(f"failed: {name}: {shortened(verdict)}")
        for line in output[:most_lines]:
            print("    " + shortened(line))
        if len(output) > most_lines:
            print(f"    ... {len(output) - most_lines} more lines")
    if len(failed) > MOST_TESTS:
        print(f"failed: {len(failed) - MOST_TESTS} more tests")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
