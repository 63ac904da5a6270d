"""The whole knee study of a set of curves, as one plain result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.knees import predictors
from calibrate.knees.audit import Finding, Fit, audit, axis_counts, fit_ratio
from calibrate.knees.curves import Curve
from calibrate.knees.predictors import Knees, Score
from calibrate.knees.ranks import factor_errors, spearman
from sim.knee import Knee, closed_form_knee

TAUS = (0.50, 0.65, 0.75, 0.80, 0.90)


@dataclass(frozen=True, slots=True)
class CurveResult:
    """One curve with its knees, its own best ratio, and the closed form's knee."""

    curve: Curve
    discrete: Knee
    continuous: Knee
    fit: Fit
    closed_form: float


@dataclass(frozen=True, slots=True)
class TauRow:
    """Censoring, rank and size of the closed form at one threshold; NaN where fewer than three knees are finite."""

    tau: float
    finite: int
    censored: int
    spearman: float
    median_factor: float


@dataclass(frozen=True)
class Study:
    """Everything the analysis says about n curves at one tau."""

    tau: float
    curves: list[CurveResult]
    scores: list[Score]
    alpha: dict[str, float]
    taus: list[TauRow]
    leave_one_model_out: dict[str, float]
    audit: list[Finding]
    categories: Counter[str]
    axes: Counter[str]


def study(curves: Sequence[Curve], rng: np.random.Generator, tau: float = 0.65, resamples: int = 10_000) -> Study:
    """Analyse the curves. The parts that need three finite knees, or two models, are empty when there are fewer."""
    knees = predictors.observed_knees(curves, tau)
    finite = int((~knees.censored).sum())
    rows = [CurveResult(c, c.discrete_knee(tau), c.knee(tau), fit_ratio(c), _closed_form(c, tau)) for c in curves]
    scores = []
    if finite >= 3:
        for name, (values, is_batch) in predictors.ladder(knees).items():
            scores.append(predictors.score(name, values, is_batch, knees, rng, resamples))
    findings = audit(curves, tau)
    return Study(
        tau,
        rows,
        scores,
        predictors.gpu_alpha(knees),
        [_tau_row(curves, value) for value in TAUS],
        _baselines(knees),
        findings,
        Counter(label for finding in findings for label in finding.categories),
        axis_counts(finding.curve.cell for finding in findings),
    )


def _closed_form(curve: Curve, tau: float) -> float:
    return float(closed_form_knee(curve.cell.kv_bytes / curve.cell.weight_bytes, tau))


def _tau_row(curves: Sequence[Curve], tau: float) -> TauRow:
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
    return {
        name: float(np.median(factor_errors(predictors.leave_one_model_out(knees, design), observed)))
        for name, design in (
            ("context only", predictors.context_only),
            ("context + GPU", predictors.context_and_gpu),
        )
    }
