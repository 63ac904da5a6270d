"""The published ladder of eleven predictors against our bill, by what each says of knees left out; censored knees enter as bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.knees import predictors, weight_axis
from calibrate.knees.alpha import learn_alpha
from calibrate.knees.by_bill import GENERATED, STUDY, knee_of_price, knee_predictor
from calibrate.knees.censored import Ranked, compare, standardised
from calibrate.knees.curves import Cell
from calibrate.knees.predictors import Knees, observed_knees
from calibrate.sampling import Settings
from sim.errors import UsageError
from sim.precision import Precision
from sim.rates import RateDraws
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model

Array = NDArray[np.float64]
Rates = Callable[[Any, Precision], RateDraws]
BILL, ALPHA = "bill", "Ck/W + per-GPU alpha"
GIB = 2**30


@dataclass(frozen=True)
class LeftOut:
    """Predictors from best to worst, each GPU's factor on the ratio at 5, 50 and 95 %, and what there is to say of both."""

    knees: int
    censored: int
    ranked: list[Ranked]
    alpha: Mapping[str, tuple[float, float, float]]
    notes: list[str]


def rank(knees: Knees, more: Mapping[str, Array], notes: Sequence[str], settings: Settings) -> LeftOut:
    """Rank the ladder and `more` predictors [n] of the same knees. Those that do not vary here are ranked once, as what they are.

    The factor of a GPU is learnt with the knees, so its predictor is its own model; all others get two free numbers.
    Raises UsageError with fewer than three finite knees, UnconvergedError when a gate fails.
    """
    values = {name: v for name, (v, _) in predictors.ladder(knees).items() if name != ALPHA} | dict(more)
    flat = [name for name, v in values.items() if not standardised(v).any()]
    asked = {name: v for name, v in values.items() if name not in flat}
    if flat:
        asked["a constant"] = np.ones(knees.batch.size)
        notes = [*notes, f"a constant stands for what does not vary here: {', '.join(flat)}"]
    learnt = learn_alpha(knees.batch, knees.censored, predictors.ratio(knees.cells), [c.gpu for c in knees.cells], knees.tau, settings)
    ranked = compare(knees.batch, knees.censored, asked, settings, {ALPHA: (learnt.left_out, learnt.sigma)})
    return LeftOut(knees.batch.size, int(knees.censored.sum()), ranked, learnt.factor, list(notes))


def of_curves(curves: Sequence[Any], tau: float, rates_for: Rates, settings: Settings) -> LeftOut:
    """The ladder and the bill on measured curves. Without the bill, and saying so, where a model or GPU is in no catalogue."""
    knees = observed_knees(curves, tau)
    try:
        bill, said = _bill(knees, rates_for)
    except UsageError as error:
        return rank(knees, {}, [f"no bill: {error}"], settings)
    return rank(
        knees, {BILL: bill}, [f"rates of the bill: {said}; knees of grids that these were learnt from are not left out for it"], settings
    )


def of_study(rates: RateDraws, settings: Settings) -> LeftOut:
    """The same on the published weight axis, its uncrossed cell among the knees, and the closed form with sliding windows."""
    seen, (shape, context, last) = weight_axis.observations(), weight_axis.uncrossed()
    shapes = [*((o.shape, o.context_tokens) for o in seen), (shape, context)]
    cells = [Cell(s.name, "H100", "fp8", c, GENERATED, s.params * weight_axis.FP8_BYTES, s.kv_bytes(c), 80 * GIB) for s, c in shapes]
    batch = np.array([*(o.knee for o in seen), last])
    knees = Knees(tuple(cells), batch, np.arange(batch.size) == len(seen), weight_axis.TAU)
    bill, sliding = knee_predictor(rates.point), weight_axis.closed_form(sliding=True)
    more = {
        f"{BILL}, no knee seen": np.array([bill(s, c) for s, c in shapes]),
        "Ck/W closed-form, sliding window": np.array([sliding(s, c) for s, c in shapes]),
    }
    return rank(knees, more, [f"rates of the bill: {rates.summary}, for {STUDY.weights} weights"], settings)


def _bill(knees: Knees, rates_for: Rates) -> tuple[Array, str]:
    values, known = [], {}
    for cell in knees.cells:
        if (place := (cell.gpu, cell.weight_dtype)) not in known:
            known[place] = rates_for(get_gpu(cell.gpu), Precision(cell.weight_dtype))
        context = cell.context_tokens + cell.decode_tokens / 2
        rates = known[place].point
        values.append(knee_of_price(get_model(cell.model), context, Precision(cell.weight_dtype), rates, knees.tau, cell.tp))
    return np.array(values), "; ".join(dict.fromkeys(rates.summary for rates in known.values()))
