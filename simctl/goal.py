"""A goal as users write it: a figure of the result and the bound it must meet."""

from __future__ import annotations

import re

from sim.errors import UsageError

GOAL = re.compile(r"\s*([\w.]+)\s*<=\s*([0-9.eE+-]+)\s*$")


def read_goal(text: str) -> tuple[str, float]:
    """(metric, limit) of "p99_ttft_ms<=2000". Raises UsageError."""
    found = GOAL.match(text)
    try:
        if found:
            return found[1], float(found[2])
    except ValueError:
        pass
    raise UsageError(f"--goal needs METRIC<=NUMBER, for example 'p99_ttft_ms<=2000', got {text!r}")
