"""Smooth maximum of a stage's memory time and compute time."""

from __future__ import annotations

from typing import Any

P = 3.0  # the exponent of every stage; learnt from grids it came out between 2.9 and 4.4, and served runs do not tell it from 3


def smooth_max(a: Any, b: Any, p: float = P) -> Any:
    """(a**p + b**p)**(1/p): at least the larger, at most their sum (p >= 1)."""
    return (a**p + b**p) ** (1.0 / p)
