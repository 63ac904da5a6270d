"""Run the simctl command in this process and catch what it prints and how it exits."""

from __future__ import annotations

import contextlib
import io
from typing import NamedTuple

from simctl.cli import main


class Result(NamedTuple):
    code: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Result:
    """What `simctl ARGUMENTS` prints and returns."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code
    return Result(int(code or 0), out.getvalue(), err.getvalue())
