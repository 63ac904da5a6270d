"""Programs of studies/: a failure that is expected is one line on stderr, with the exit code of `simctl`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import click

from sim.errors import SimctlError, ending
from sim.termination import as_interruption

Main = Callable[[Sequence[str]], int]


def program(name: str, wants: str = "") -> Callable[[Main], Main]:
    """Decorates a main of `python -m NAME`; `wants` names the arguments, where one is missing."""

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: Sequence[str]) -> int:
            try:
                with as_interruption():
                    return main(argv)
            except click.exceptions.Exit as stop:
                return stop.exit_code
            except (SimctlError, OSError, click.ClickException, KeyboardInterrupt) as problem:
                code, text = ending(problem)
                print(f"{name}: {text}", file=sys.stderr)
                return code
            except IndexError:
                if len(argv) >= len(wants.split()):
                    raise
                print(f"{name}: needs {wants}", file=sys.stderr)
            return 1

        return run

    return decorate
