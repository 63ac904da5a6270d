"""The published ladder of eleven predictors against the step-time formula, by what each says of knees left out; censored ones as bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.knees import predictors, weight_axis
from calibrate.knees.by_step_time import GENERATED, STUDY, knee_of_step_time, knee_predictor
from calibrate.knees.censored import Ranked, compare, standardised
from calibrate.knees.curves import Cell
from calibrate.knees.predictors import Knees, observed_knees
from calibrate.sampling import Settings
from sim.cost.rates import RateDraws
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision

Array = NDArray[np.float64]
Rates = Callable[[Any, Precision], RateDraws]
FORMULA = "step-time formula"
GIB = 2**30


@dataclass(frozen=True)
class LeftOut:
    """Predictors from best to worst, and what there is to say of them."""

    knees: int
    censored: int
    ranked: list[Ranked]
    notes: list[str]


def rank(knees: Knees, more: Mapping[str, Array], notes: Sequence[str], settings: Settings) -> LeftOut:
    """Rank the ladder and `more` predictors [n] of the same knees, two free numbers each. Those that do not vary here are ranked once.

    Raises UsageError with fewer than three finite knees, UnconvergedError when a gate fails.
    """
    values = {name: v for name, (v, _) in predictors.ladder(knees).items()} | dict(more)
    flat = [name for name, v in values.items() if not standardised(v).any()]
    asked = {name: v for name, v in values.items() if name not in flat}
    if flat:
        asked["a constant"] = np.ones(knees.batch.size)
        notes = [*notes, f"a constant stands for what does not vary here: {', '.join(flat)}"]
    return LeftOut(knees.batch.size, int(knees.censored.sum()), compare(knees.batch, knees.censored, asked, settings), list(notes))


def of_curves(curves: Sequence[Any], tau: float, rates_for: Rates, settings: Settings) -> LeftOut:
    """The ladder and the formula on measured curves. Without the formula, and saying so, where a model or GPU is in no catalogue."""
    knees = observed_knees(curves, tau)
    try:
        batch, said = _by_formula(knees, rates_for)
    except UsageError as error:
        return rank(knees, {}, [f"no step-time formula: {error}"], settings)
    return rank(
        knees,
        {FORMULA: batch},
        [f"rates of the formula: {said}; knees of grids they were learnt from are not left out"],
        settings,
    )


def of_study(rates: RateDraws, settings: Settings) -> LeftOut:
    """The same on the published weight axis, its uncrossed cell among the knees, and the closed form with sliding windows."""
    seen, (shape, context, last) = weight_axis.observations(), weight_axis.uncrossed()
    shapes = [*((o.shape, o.context_tokens) for o in seen), (shape, context)]
    cells = [Cell(s.name, "H100", "fp8", c, GENERATED, s.params * weight_axis.FP8_BYTES, s.kv_bytes(c), 80 * GIB) for s, c in shapes]
    batch = np.array([*(o.knee for o in seen), last])
    knees = Knees(tuple(cells), batch, np.arange(batch.size) == len(seen), weight_axis.TAU)
    predict, sliding = knee_predictor(rates.point), weight_axis.closed_form(sliding=True)
    more = {
        f"{FORMULA}, no knee seen": np.array([predict(s, c) for s, c in shapes]),
        "Ck/W closed-form, sliding window": np.array([sliding(s, c) for s, c in shapes]),
    }
    return rank(knees, more, [f"rates of the formula: {rates.summary}, for {STUDY.weights} weights"], settings)


def _by_formula(knees: Knees, rates_for: Rates) -> tuple[Array, str]:
    values, known = [], {}
    for cell in knees.cells:
        if (place := (cell.gpu, cell.weight_dtype)) not in known:
            known[place] = rates_for(get_gpu(cell.gpu), Precision(cell.weight_dtype))
        context = cell.context_tokens + cell.decode_tokens / 2
        rates = known[place].point
        values.append(knee_of_step_time(get_model(cell.model), context, Precision(cell.weight_dtype), rates, knees.tau, cell.tp))
    return np.array(values), "; ".join(dict.fromkeys(rates.summary for rates in known.values()))
