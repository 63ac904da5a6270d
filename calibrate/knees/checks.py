"""One published figure beside its recomputation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One figure: the largest deviation from print, the tolerance, and what was computed."""

    name: str
    statement: str
    deviation: float
    tolerance: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        return self.deviation <= self.tolerance
