"""The published ladder of eleven predictors against the step-time formula, by what each says of knees left out; censored ones as bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Settings
from sim.cost.rates import RateDraws
from studies.knees import predictors, weight_axis
from studies.knees.by_step_time import GENERATED, STUDY, knee_predictor
from studies.knees.censored import Ranked, compare, standardised
from studies.knees.curves import CurveCell
from studies.knees.predictors import Knees

Array = NDArray[np.float64]
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
    chosen = {name: v for name, v in values.items() if name not in flat}
    if flat:
        chosen["a constant"] = np.ones(knees.batch.size)
        notes = [*notes, f"a constant stands for what does not vary here: {', '.join(flat)}"]
    return LeftOut(knees.batch.size, int(knees.censored.sum()), compare(knees.batch, knees.censored, chosen, settings), list(notes))


def of_study(rates: RateDraws, settings: Settings) -> LeftOut:
    """The same on the published weight axis, its uncrossed cell among the knees, and the closed form with sliding windows."""
    seen, (shape, context, last) = weight_axis.observations(), weight_axis.uncrossed()
    shapes = [*((o.shape, o.context_tokens) for o in seen), (shape, context)]
    cells = [CurveCell(s.name, "H100", "fp8", c, GENERATED, s.params * weight_axis.FP8_BYTES, s.kv_bytes(c), 80 * GIB) for s, c in shapes]
    batch = np.array([*(o.knee for o in seen), last])
    knees = Knees(tuple(cells), batch, np.arange(batch.size) == len(seen), weight_axis.TAU)
    predict, sliding = knee_predictor(rates.point), weight_axis.closed_form(sliding=True)
    more = {
        f"{FORMULA}, no knee seen": np.array([predict(s, c) for s, c in shapes]),
        "Ck/W closed-form, sliding window": np.array([sliding(s, c) for s, c in shapes]),
    }
    return rank(knees, more, [f"rates of the formula: {rates.summary}, for {STUDY.weights} weights"], settings)
