"""Claims of published reports: verdicts, and the interval of a claim in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERDICTS = ("reproduced", "within", "differs", "not testable")


def interval(claim: Mapping[str, Any]) -> str:
    """The 90 % interval of a claim as printed by --json, in words; empty where the figure is exact."""
    low, high = claim.get("low"), claim.get("high")
    if low is None or high is None:
        return ""
    digits = next(n for n in (3, 4, 5, 9) if n == 9 or (f"{low:.{n}g}" != f"{high:.{n}g}" and high < 10.0**n))
    return f"{low:.{digits}g} to {high:.{digits}g} {claim['unit']}".rstrip()
