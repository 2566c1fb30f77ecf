"""On a terminal: its width is kept to, no debris stays, and there are escape codes only where they work."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from compared import BUILD, PROGRAM, ROOT, SMALL, build_with, of_builds, record, results, write

FAULT_WORKER = f"fault={Path(BUILD) / 'bin' / 'headroom-fault-worker'}"
STEPS = [40e-6 * (1 + i / 1e4) for i in range(12)]
NAME = "mlp-784x128x128x128x10-b32"
RUN = ["run", "--workload", SMALL, "--worker", FAULT_WORKER, "--backend", "oracle-honest,cuda-layered"]
RUN += ["--precision", "fp32", "--energy-seconds", "0", "--output", "a.json", "--no-figures"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def shown(arguments, columns, both=True, **variables):
    """What the program writes to a terminal so wide; `both`: standard output goes there too."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs if both else subprocess.DEVNULL,
        stderr=theirs,
        env=os.environ | {"HEADROOM_ROOT": str(ROOT), "TERM": "xterm", "NO_COLOR": ""} | variables,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, written
    return written.decode()


def status_lines(written):
    """What was written over."""
    apart = written.replace("\x1b[K", "\x1b[K\n")
    return [line for line in re.findall(r"([^\r\n]*)\r\x1b\[K", apart) if line]


class Screen:
    """A terminal that knows line ends, carriage returns and erasing to the end of the line."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column = columns, [""], 0, 0

    def show(self, text):
        for part in re.findall(r"\x1b\[K|\r|\n|[^\r\n\x1b]|\x1b", text):
            assert part != "\x1b", "an unknown escape code"
            line = self.rows[self.row]
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.next_row()
            elif part == "\x1b[K":
                self.rows[self.row] = line[: self.column]
            else:
                if self.column == self.columns:
                    self.next_row()
                    self.column, line = 0, self.rows[self.row]
                self.rows[self.row] = line[: self.column].ljust(self.column) + part + line[self.column + 1 :]
                self.column += 1
        return [row.rstrip() for row in self.rows]

    def next_row(self):
        self.row += 1
        self.rows.append("")


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_the_status_line_leaves_nothing_behind(columns):
    written = shown(RUN, columns, both=False)
    updates = status_lines(written)
    assert len(updates) >= 3
    assert all(len(update) < columns for update in updates), updates
    text = "\n".join(Screen(columns).show(written))
    kept = "".join(text.split())
    for debris in ("timing", "checking", "startingtheworkers", "..."):
        assert debris not in kept, text


@pytest.mark.parametrize("columns", [40, 80])
def test_the_status_line_of_compare_is_gone_when_its_table_comes(columns):
    builds = of_builds(build_with(Path("base")), build_with(Path("head")))
    rows = Screen(columns).show(shown(["compare", *builds], columns))
    assert rows[0] == "base: base"


def test_the_status_line_is_gone_when_the_table_of_a_run_comes():
    rows = Screen(200).show(shown(RUN, 200))
    table = next(i for i, row in enumerate(rows) if row.startswith("workload"))
    assert rows[table - 1] == ""
    assert rows[table - 2].endswith("Results: a.json")


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": ""}, {"NO_COLOR": "1"}])
def test_a_terminal_without_escape_codes_gets_plain_lines(variables):
    written = shown(RUN, 80, **variables)
    assert "\x1b" not in written
    assert "\r" not in written.replace("\r\n", "")
    assert "starting the workers" in written


def comparison(columns, both=True):
    changed = record([1.01 * seconds for seconds in STEPS], workload=NAME, backend="cuda-resident")
    write(Path("base.json"), results([record(STEPS, workload=NAME, backend="cuda-resident")]))
    write(Path("head.json"), results([changed]))
    return shown(["compare", "base.json", "head.json"], columns, both)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_tables_are_no_wider_than_the_terminal(columns):
    compared = comparison(columns)
    ran = shown([*RUN, "--blocks", "12"], columns)
    for text in (compared, ran):
        lines = re.sub(r"[^\n]*\x1b\[K", "", text).replace("\r", "").split("\n")
        assert len(lines) > 5
        for line in lines:
            # A name is kept whole, however long.
            assert len(line) <= columns or " " not in line.strip(), line
    assert "equivalent" in compared and "+1.00 %" in compared
    assert "oracle-honest" in ran and "verified" in ran


def test_what_is_no_terminal_gets_the_whole_table():
    wide = comparison(200)
    piped = subprocess.run(
        [PROGRAM, "compare", "base.json", "head.json"], capture_output=True, text=True, check=False
    ).stdout
    assert wide.replace("\r", "") == piped
    (row,) = [line for line in piped.splitlines() if line.startswith(NAME)]
    assert len(row) > 100


@pytest.mark.parametrize("arguments", [["list"], ["--version"]])
def test_lists_are_no_wider_than_the_terminal(arguments):
    for line in shown(arguments, 60, HEADROOM_PYTHON="/bin/false").replace("\r", "").splitlines():
        assert len(line) <= 60 or " " not in line.strip(), line


def test_the_width_is_asked_anew_for_each_status_line():
    ours, theirs = pty.openpty()
    size = lambda columns: fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))  # noqa: E731
    size(100)
    process = subprocess.Popen(
        [PROGRAM, *RUN],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=os.environ | {"HEADROOM_ROOT": str(ROOT), "TERM": "xterm", "NO_COLOR": ""},
    )
    written = b""
    while b"timing" not in written:
        written += os.read(ours, 4096)
    size(30)
    process.wait(timeout=60)
    os.close(theirs)
    os.set_blocking(ours, False)
    try:
        late = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
    updates = status_lines(late)[1:]
    assert updates
    assert all(len(update) < 30 for update in updates), updates


# ---- the front door


@pytest.mark.parametrize("columns", [30, 80])
def test_the_front_doors_progress_fits_and_leaves_nothing_behind(columns):
    script = (
        f"front_door={ROOT}/cmake/front_door; "
        'for part in say attended; do [ ! -f "$front_door/$part.sh" ] || . "$front_door/$part.sh"; done; '
        'step "building what is needed" log bash -c "for i in 1 2 3; do echo [\\$i/3] Building CXX object '
        'bench/driver/plan/CMakeFiles/headroom_driver_plan.dir/options.cpp.o; sleep 0.3; done"'
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", script], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            written += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert process.wait(timeout=20) == 0
    text = written.decode()
    assert "\x1b[K" in text
    rows = [row for row in Screen(columns).show(text) if row]
    assert "".join(rows).startswith("headroom: building what is needed: done in"), rows
