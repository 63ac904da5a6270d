"""Programs of studies/: a failure that is expected is one line on stderr and exit code 1."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

from sim.errors import SimctlError

Main = Callable[[Sequence[str]], int]


def program(name: str, wants: str = "") -> Callable[[Main], Main]:
    """Decorates a main of `python -m NAME`; `wants` names the arguments, where one is missing."""

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: Sequence[str]) -> int:
            try:
                return main(argv)
            except (SimctlError, OSError) as problem:
                print(f"{name}: {problem}", file=sys.stderr)
            except IndexError:
                if len(argv) >= len(wants.split()):
                    raise
                print(f"{name}: needs {wants}", file=sys.stderr)
            return 1

        return run

    return decorate
