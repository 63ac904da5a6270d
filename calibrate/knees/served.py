"""Served knees: efficiency under concurrency, and distances between knees in steps of the tested ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibrate.knees.curves import Cell, Curve
from sim.errors import UsageError
from sim.knee import Knee


@dataclass(frozen=True, slots=True)
class ServedKnee:
    """A served curve's knee on its rungs, and the static one snapped to them; None is beyond the last rung.

    `steps` and `direction` are of the served knee against the static one; None where no static curve was given.
    """

    curve: Curve
    knee: float | None
    static: float | None = None
    steps: int | None = None
    direction: str | None = None


def against_static(served: Sequence[Curve], static: Sequence[Curve], tau: float) -> list[ServedKnee]:
    """Served knees beside the static ones of the same model, GPU, dtype and context."""
    at = {_place(curve.cell): curve for curve in static}
    rows = []
    for curve in served:
        found = curve.discrete_knee(tau)
        mine = None if found.censored else found.batch
        beside = at.get(_place(curve.cell))
        # a static ladder that ends before the served one does not say where beyond it the knee lies
        if beside is None or ((knee := beside.knee(tau)).censored and knee.batch < curve.batches[-1]):
            rows.append(ServedKnee(curve, mine))
            continue
        other = snapped(knee, curve.batches)
        rows.append(ServedKnee(curve, mine, other, ladder_steps(mine, other, curve.batches), compare(mine, other, curve.batches)))
    return rows


def _place(cell: Cell) -> tuple[str, str, str, int, int]:
    return cell.model, cell.gpu, cell.weight_dtype, cell.tp, cell.context_tokens


def served_efficiency(concurrency: Sequence[float], decode_tps: Sequence[float]) -> list[float]:
    """agg_decode_tps(N) / agg_decode_tps(1) / N; the first concurrency must be 1."""
    if not concurrency or concurrency[0] != 1 or len(concurrency) != len(decode_tps):
        raise UsageError("served efficiency needs one throughput per concurrency, from concurrency 1 up")
    if not all(math.isfinite(v) and v > 0 for v in decode_tps):
        raise UsageError("throughputs must be positive and finite")
    return [tps / decode_tps[0] / n for n, tps in zip(concurrency, decode_tps, strict=True)]


def snapped(knee: Knee, ladder: Sequence[float]) -> float | None:
    """The first rung at or past a knee, as a ladder would have shown it; None where it lies beyond the last, or was never crossed."""
    return None if knee.censored else next((rung for rung in ladder if rung >= knee.batch), None)


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
