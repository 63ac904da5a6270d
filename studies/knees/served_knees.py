"""Served knees: efficiency under concurrency beside the static knee of the same cell, in steps of the tested ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.closed_form.knee import Knee
from studies.knees.curves import CurveCell, EfficiencyCurve


@dataclass(frozen=True, slots=True)
class ServedKnee:
    """A served curve's knee on its rungs, and the static one snapped to them; None is beyond the last rung.

    `steps` are rungs from the static knee to the served one; None where no static curve was given that says.
    """

    curve: EfficiencyCurve
    knee: float | None
    static: float | None = None
    steps: int | None = None


def against_static(served: Sequence[EfficiencyCurve], static: Sequence[EfficiencyCurve], tau: float) -> list[ServedKnee]:
    """Served knees beside the static ones of the same model, GPU, dtype and context."""
    at = {_place(curve.cell): curve for curve in static}
    rows = []
    for curve in served:
        found = curve.discrete_knee(tau)
        mine = None if found.censored else found.batch
        steps_curve = at.get(_place(curve.cell))
        # a static ladder that ends before the served one does not say where beyond it the knee lies
        if steps_curve is None or ((knee := steps_curve.knee(tau)).censored and knee.batch < curve.batches[-1]):
            rows.append(ServedKnee(curve, mine))
            continue
        other = snapped(knee, curve.batches)
        # one that was never crossed stands one rung above the last
        rank = {rung: place for place, rung in enumerate([*curve.batches, None])}
        rows.append(ServedKnee(curve, mine, other, rank[mine] - rank[other]))
    return rows


def snapped(knee: Knee, ladder: Sequence[float]) -> float | None:
    """The first rung at or past a knee, as a ladder would have shown it; None where it lies beyond the last, or was never crossed."""
    return None if knee.censored else next((rung for rung in ladder if rung >= knee.batch), None)


def _place(cell: CurveCell) -> tuple[str, str, str, int, int]:
    return cell.model, cell.gpu, cell.weight_dtype, cell.tp, cell.context_tokens
