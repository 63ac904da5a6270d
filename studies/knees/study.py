"""The whole knee study of a set of curves, as one plain result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from sim.closed_form.knee import Knee, closed_form_knee, eta
from studies.knees import predictors
from studies.knees.curves import EfficiencyCurve
from studies.knees.predictors import Knees, PredictorScore
from studies.knees.ranks import factor_errors, spearman

TAUS = (0.50, 0.65, 0.75, 0.80, 0.90)


@dataclass(frozen=True, slots=True)
class CurveResult:
    """One curve with its knees, the closed form's knee, and the ratio r of eta(B) = (1 + r)/(1 + B r) that fits it best, with its R2."""

    curve: EfficiencyCurve
    discrete: Knee
    continuous: Knee
    closed_form: float
    r: float
    r2: float


@dataclass(frozen=True, slots=True)
class TauRow:
    """Censoring, rank and size of the closed form at one threshold; NaN where fewer than three knees are finite."""

    tau: float
    finite: int
    censored: int
    spearman: float
    median_factor: float


@dataclass(frozen=True)
class KneeStudy:
    """Everything the analysis says about n curves at one tau."""

    tau: float
    curves: list[CurveResult]
    scores: list[PredictorScore]
    alpha: dict[str, float]
    taus: list[TauRow]
    leave_one_model_out: dict[str, float]


def study(curves: Sequence[EfficiencyCurve], rng: np.random.Generator, tau: float = 0.65, resamples: int = 10_000) -> KneeStudy:
    """Analyse the curves. The parts that need three finite knees, or two models, are empty when there are fewer."""
    knees = predictors.observed_knees(curves, tau)
    scores = []
    if int((~knees.censored).sum()) >= 3:
        for name, (values, is_batch) in predictors.ladder(knees).items():
            scores.append(predictors.score(name, values, is_batch, knees, rng, resamples))
    taus = [_tau_row(curves, value) for value in TAUS]
    return KneeStudy(tau, [_result(curve, tau) for curve in curves], scores, predictors.gpu_alpha(knees), taus, _baselines(knees))


def _result(curve: EfficiencyCurve, tau: float) -> CurveResult:
    closed = float(closed_form_knee(curve.cell.kv_bytes / curve.cell.weight_bytes, tau))
    return CurveResult(curve, curve.discrete_knee(tau), curve.knee(tau), closed, *fit_ratio(curve))


def fit_ratio(curve: EfficiencyCurve) -> tuple[float, float]:
    """(ratio r of eta(B) = (1 + r)/(1 + B r) by least squares over [1e-6, 1e3]; R2, NaN for a curve that does not vary)."""
    batches, etas = np.array(curve.batches), np.array(curve.etas)

    def loss(log_r: float) -> float:
        return float(((eta(batches, np.exp(log_r)) - etas) ** 2).sum())

    # the loss has flat ends: bracket the minimum on a grid before the bounded search
    grid = np.linspace(np.log(1e-6), np.log(1e3), 60)
    best = int(np.argmin([loss(g) for g in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    total = float(((etas - etas.mean()) ** 2).sum())
    return float(np.exp(found.x)), 1 - float(found.fun) / total if total > 0 else float("nan")


def _tau_row(curves: Sequence[EfficiencyCurve], tau: float) -> TauRow:
    knees = predictors.observed_knees(curves, tau)
    cells, observed = knees.finite()
    censored = int(knees.censored.sum())
    if len(cells) < 3:
        return TauRow(tau, len(cells), censored, float("nan"), float("nan"))
    predicted = closed_form_knee(predictors.ratio(cells), tau)
    return TauRow(tau, len(cells), censored, spearman(predicted, observed), float(np.median(factor_errors(predicted, observed))))


def _baselines(knees: Knees) -> dict[str, float]:
    cells, observed = knees.finite()
    if len({c.model for c in cells}) < 2:
        return {}
    designs = {"context only": predictors.context_only, "context + GPU": predictors.context_and_gpu}
    return {
        name: float(np.median(factor_errors(predictors.leave_one_model_out(knees, design), observed))) for name, design in designs.items()
    }
