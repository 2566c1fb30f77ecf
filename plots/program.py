"""How the programs of this folder print and end, whatever the terminal's encoding and on a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

DONE, BAD_INPUT, INTERRUPTED = 0, 2, 130  # BAD_INPUT: wrong usage and output that cannot be written, too


def _give_up_standard_output() -> None:
    """Python flushes it once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(program: str, lines: Iterable[object]) -> int:
    """Prints the lines. Exit code: who reads them may stop, but a full disk is said."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_standard_output()
    except OSError as error:
        _give_up_standard_output()
        print(f"{program}: standard output cannot be written: {error.strerror or error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


def end_with(program: str, main: Callable[[], int]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # names of files, where the terminal has only ASCII
    try:
        code = main()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
