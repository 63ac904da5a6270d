"""Served knees: efficiency under concurrency, and distances between knees in steps of the tested ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sim.errors import UsageError


def served_efficiency(concurrency: Sequence[float], decode_tps: Sequence[float]) -> list[float]:
    """agg_decode_tps(N) / agg_decode_tps(1) / N; the first concurrency must be 1."""
    if not concurrency or concurrency[0] != 1 or len(concurrency) != len(decode_tps):
        raise UsageError("served efficiency needs one throughput per concurrency, from concurrency 1 up")
    if not all(math.isfinite(v) and v > 0 for v in decode_tps):
        raise UsageError("throughputs must be positive and finite")
    return [tps / decode_tps[0] / n for n, tps in zip(concurrency, decode_tps, strict=True)]


def ladder_steps(knee: float | None, other: float | None, ladder: Sequence[float]) -> int:
    """Signed rungs from `other` to `knee`; None (never crossed) stands one rung above the last."""

    def rank(value: float | None) -> int:
        if value is None:
            return len(ladder)
        if value not in ladder:
            raise UsageError(f"{value:g} is not on the ladder {', '.join(f'{b:g}' for b in ladder)}")
        return list(ladder).index(value)

    return rank(knee) - rank(other)


def compare(knee: float | None, other: float | None, ladder: Sequence[float]) -> str:
    """`lower`, `equal` or `higher`."""
    steps = ladder_steps(knee, other, ladder)
    return "lower" if steps < 0 else "higher" if steps > 0 else "equal"
