"""Run the simctl command in this process and catch what it prints and how it exits."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, NamedTuple

from simctl.cli import main


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    """What `simctl ARGUMENTS` prints and returns."""
    return caught(main, *arguments)


def caught(program: Callable[[list[str]], Any], *arguments: str) -> Result:
    """What a program prints and returns."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = program(list(arguments))
        except SystemExit as stop:
            code = stop.code
    return Result(int(code or 0), out.getvalue(), err.getvalue())
