"""Knees as observations, with those never crossed right-censored, and predictors compared by what they say of cells left out.

    log knee ~ Normal(intercept + slope * score, sigma), censored from above at the last tested batch

`score` is a predictor's value, standardised on a log scale where it is positive. A predictor in units of batch is not granted its
units here: every one gets the same two free numbers, so that the comparison is about order and shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from calibrate import backend
from calibrate.sampling import Compiled, Graph, Settings, diagnose, quiet
from sim.errors import UsageError

Array = NDArray[np.float64]
NEVER = 20.0  # pm.Censored reads a value at its bound as "at least that"; a finite knee gets a bound so far above it, in the logarithm


@dataclass(frozen=True, slots=True)
class Ranked:
    """One predictor's expected log density of left-out cells (higher is better), its standard error, and the difference to the best."""

    predictor: str
    elpd: float
    error: float
    below_best: float
    below_best_error: float
    sigma: float
    bad_pareto_k: int


def knee_model(batch: Array, censored: NDArray[np.bool_], score: Array) -> Any:
    """pm.Model of n knees: batch [n] (the last tested one where `censored`) and standardised score [n].

    pm.Data `score`, `log_batch` and `upper` may be replaced; a knee at its `upper` is one that lies beyond. Raises UsageError for knees
    that are too few to learn from, or no batches.
    """
    if batch.size < 4 or (~censored).sum() < 3:
        raise UsageError(f"{int((~censored).sum())} finite knees of {batch.size} are too few to compare predictors: three are needed")
    if not (np.isfinite(batch).all() and (batch > 0).all()):
        raise UsageError("knees must be positive batches")
    pm = backend.pymc()
    log_batch = np.log(batch)
    upper = np.where(censored, log_batch, log_batch + NEVER)
    with pm.Model() as model:
        x, seen, bound = pm.Data("score", score), pm.Data("log_batch", log_batch), pm.Data("upper", upper)
        mean = pm.Normal("intercept", np.log(10.0), 1.5) + pm.Normal("slope", 0.5, 1.0) * x
        sigma = pm.HalfNormal("sigma", 0.7)
        pm.Censored("log_knee", pm.Normal.dist(mean, sigma), lower=None, upper=bound, observed=seen)
    return model


def standardised(values: Array) -> Array:
    """Zero mean and unit spread, in log where all values have one sign; zeros when constant."""
    one_sign = (values > 0).all() or (values < 0).all()
    v = np.sign(values) * np.log(np.abs(values)) if one_sign else values.astype(float)
    sd = float(v.std())
    out: Array = (v - v.mean()) / sd if sd > 1e-12 * float(np.abs(v).max()) else np.zeros(v.size)
    return out


def compare(batch: Array, censored: NDArray[np.bool_], predictors: Mapping[str, Array], settings: Settings) -> list[Ranked]:
    """Predictors from best to worst by leave-one-out log density. One compiled model serves all."""
    scores = {name: standardised(np.asarray(v, dtype=float)) for name, v in predictors.items()}
    compiled = Compiled(Graph(knee_model(batch, censored, next(iter(scores.values())))))
    found: dict[str, tuple[LeaveOneOut, float]] = {}
    for name, score in scores.items():
        idata = compiled.sample(settings, {"score": score})
        diagnose(idata).require()
        p = idata.posterior
        mean = (p["intercept"].values + p["slope"].values * score[:, None, None]).transpose(1, 2, 0)
        values = log_density(np.log(batch), censored, mean, p["sigma"].values[..., None])
        found[name] = (loo(values), float(np.median(p["sigma"].values)))
    order = sorted(found, key=lambda n: -found[n][0].elpd)
    best = found[order[0]][0]
    ranked = []
    for name in order:
        left_out, sigma = found[name]
        gap = best.each - left_out.each
        error = float(np.std(gap) * np.sqrt(gap.size))
        ranked.append(Ranked(name, left_out.elpd, left_out.error, float(gap.sum()), error, sigma, left_out.bad))
    return ranked


class LeaveOneOut(NamedTuple):
    """Expected log density of left-out cells, its standard error, each cell's own [n], and how many of those are not to be trusted."""

    elpd: float
    error: float
    each: Array
    bad: int


def loo(values: Array) -> LeaveOneOut:
    """ArviZ's estimate from log densities [chain, draw, n]."""
    az = backend.arviz()
    groups = {"posterior": {"at": values[..., 0]}, "log_likelihood": {"log_knee": values}}
    new = not hasattr(az, "Numba")  # from version 1 on
    with quiet():
        found = az.loo(az.from_dict(groups) if new else az.from_dict(**groups), pointwise=True)
    elpd, each = (found.elpd, found.elpd_i) if new else (found.elpd_loo, found.loo_i)
    return LeaveOneOut(float(elpd), float(found.se), np.asarray(each.values), int((found.pareto_k.values > 0.7).sum()))


def log_density(log_batch: Array, censored: NDArray[np.bool_], mean: Array, sigma: Array) -> Array:
    """Pointwise log density [..., n]: normal for finite knees, log P(knee > last batch) for censored ones."""
    z = (log_batch - mean) / sigma
    out: Array = np.where(censored, log_ndtr(-z), -0.5 * z**2 - np.log(sigma) - 0.5 * np.log(2 * np.pi))
    return out
