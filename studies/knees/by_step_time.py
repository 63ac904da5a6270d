"""Knees from the step-time formula: the batch at which a decode step crosses the efficiency threshold, for the published study.

The rates are a GPU's posterior; nothing is fitted to the knees except, where asked, the two host costs of the serving stack that was
measured, and then always on other families than the one predicted.
A knee is a point of a continuous curve through measured batches, which are sizes of captured graphs: no padding in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from sim.cost.batch import decode_batch
from sim.cost.rates import Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.knees.ranks import factor_errors, spearman
from studies.knees.weight_axis import TAU, Contrast, Observation, Predictor, Shape, closed_form, right_signs

STUDY = Precision("fp8", "fp16")
GENERATED = 64  # tokens decoded per stream in the study: a knee is seen at half of them on average
CATALOGUE = {
    "qwen2.5-7b": "Qwen2.5-7B",
    "qwen2.5-14b": "Qwen2.5-14B",
    "qwen2.5-32b": "Qwen2.5-32B",
    "mistral-7b": "Mistral-7B-v0.3",
    "mistral-24b": "Mistral-Small-24B",
    "gemma3-4b": "Gemma-3-4B",
    "gemma3-12b": "Gemma-3-12B",
    "gemma3-27b": "Gemma-3-27B",
}
LARGEST_BATCH = 2.0**14
# How far the host costs of another engine version may lie from ours, as log standard deviations.
HOST_LOG_SD = {"c0_s": 0.5, "c_seq_s": 0.7}


@dataclass(frozen=True, slots=True)
class AxisScore:
    """Scores of a predictor on the study: contrasts on the right side, factor errors and rank over its knees."""

    name: str
    signs: int
    contrasts: int
    median_factor: float
    worst_factor: float
    spearman: float


def knee_predictor(rates: Rates) -> Predictor:
    """Knee batch of a study model at one set of rates (floats)."""

    def predict(shape: Shape, context_tokens: int) -> float:
        return knee_of_step_time(get_model(CATALOGUE[shape.name]), context_tokens + GENERATED / 2, STUDY, rates, TAU)

    return predict


def knee_of_step_time(model: ModelSpec, context: float, precision: Precision, rates: Rates, tau: float, tp: int = 1) -> float:
    """Batch at which the time of a decode step crosses `tau`, LARGEST_BATCH where it does not."""
    alone = _step_s(model, context, 1.0, precision, rates, tp)
    low, high = 1.0, LARGEST_BATCH
    for _ in range(50):  # the time grows with the batch: bisect in log
        mid = (low * high) ** 0.5
        low, high = (low, mid) if alone / _step_s(model, context, mid, precision, rates, tp) < tau else (mid, high)
    return low


def fit_host(rates: Rates, seen: Sequence[Observation]) -> Rates:
    """The rates with c0 and c_seq fitted to observed knees (least squares in log, pulled towards the posterior's values)."""
    names = tuple(HOST_LOG_SD)

    def at(z: Sequence[float]) -> Rates:
        return replace(rates, **{n: getattr(rates, n) * np.exp(HOST_LOG_SD[n] * v) for n, v in zip(names, z, strict=True)})

    def residuals(z: Sequence[float]) -> list[float]:
        predict = knee_predictor(at(z))
        return [np.log(predict(o.shape, o.context_tokens) / o.knee) / 0.1 for o in seen] + list(z)

    return at(least_squares(residuals, np.zeros(len(names)), diff_step=1e-2).x)


def leave_family_out(rates: Rates, seen: Sequence[Observation]) -> Predictor:
    """A predictor whose host costs never saw the family it predicts."""
    fitted: dict[str, Predictor] = {}
    for family in sorted({o.family for o in seen}):
        fitted[family] = knee_predictor(fit_host(rates, [o for o in seen if o.family != family]))
    of = {o.shape.name: o.family for o in seen}
    return lambda shape, context_tokens: fitted[of[shape.name]](shape, context_tokens)


def axis_score(name: str, predict: Predictor, seen: Sequence[Observation], pairs: Sequence[Contrast]) -> AxisScore:
    """Score a predictor on observed knees and contrasts."""
    predicted = [predict(o.shape, o.context_tokens) for o in seen]
    observed = [o.knee for o in seen]
    errors = factor_errors(predicted, observed)
    signs = right_signs(predict, list(pairs))
    return AxisScore(name, signs, len(pairs), float(np.median(errors)), float(errors.max()), spearman(predicted, observed))


def _step_s(model: ModelSpec, context: float, batch: float, precision: Precision, rates: Rates, tp: int) -> float:
    shape = decode_batch(model, batch, context)._replace(padding=0.0)
    return float(step_time_s(iteration_work(model, shape, precision, tp=tp), rates))


def study_scores(rates: Rates, seen: Sequence[Observation], pairs: Sequence[Contrast]) -> list[AxisScore]:
    """The published closed form, the formula without any knee seen, with host costs from the other families, and post hoc."""
    return [
        axis_score("closed form, as published", closed_form(), seen, pairs),
        axis_score("step time, no knee seen", knee_predictor(rates), seen, pairs),
        axis_score("step time, family left out", leave_family_out(rates, seen), seen, pairs),
        axis_score("step time, all knees (post hoc)", knee_predictor(fit_host(rates, seen)), seen, pairs),
    ]
